"""The benchmark runs, on very little, and takes no wrong answer."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import alter, measure, worker, writers
from benchmarks.contenders import ALTERING, CONTENDERS
from benchmarks.contenders.engines import Engine
from benchmarks.contenders.polars_by_hand import PolarsByHand
from benchmarks.data import rows, uuids
from benchmarks.digest import digest
from benchmarks.environments import Failed
from benchmarks.goals import evaluate_goals
from benchmarks.measure import LONG, Bench
from benchmarks.oracle import WrongResultError, check, expected
from benchmarks.process import in_process
from benchmarks.report import Report
from benchmarks.report_lines import Figures, Line
from benchmarks.run import run
from benchmarks.scenarios import SCENARIOS, find_scenarios
from benchmarks.task import Measured, Merge, Task

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.contenders import Contender

# Enough for some rows in each of 40 files.
ROWS = 4_000
measure.SETTLED = 0.0
LOCAL = [contender for contender in CONTENDERS.values() if contender.environment is None]


def here(_contender: Contender, task: Task) -> Measured:
    """Run a step in this process: a process for each would take minutes."""
    return worker.run_step(task)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("K") else []) for name in SCENARIOS]
)
def test_every_scenario_gives_figures_of_every_contender_of_this_environment(scenario: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, ROWS, repeat=1, start=here)
    lines = run(bench, [SCENARIOS[scenario]], LOCAL, tmp_path / "out", keep=False)
    assert [line.failure for line in lines] == [None] * len(lines)
    assert [line.contender for line in lines if line.is_ours] == ["duckdb", "arrow"]
    assert len(lines) == (2 if SCENARIOS[scenario].action == "plan" else len(LOCAL))
    written = {line.contender: line.figures.bytes_written for line in lines if line.figures}
    assert (written["arrow"] == 0) == (scenario in {"F", "J-cold", "J-warm"})
    told = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert len(told["lines"]) == len(lines)
    ET.fromstring((tmp_path / "out" / "merge.svg").read_text())  # noqa: S314  our own picture
    assert f"### {scenario}: " in (tmp_path / "out" / "merge.md").read_text()


def test_schema_changes_give_figures_of_every_contender_of_this_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, ROWS, repeat=1, start=here)
    lines = alter.run(bench, 4, [one for one in ALTERING.values() if one.environment is None])
    assert [line.failure for line in lines] == [None] * len(lines)
    assert [(line.scenario, line.contender) for line in lines] == [
        (scenario, contender) for scenario in ("add", "widen") for contender in ("duckdb", "arrow", "whole", "copy")
    ]
    printed = capsys.readouterr().out
    assert f"### add: add a column to {ROWS:,} rows in 4 files" in printed
    assert "not measured" not in printed


@pytest.mark.parametrize(
    ("scenario", "failure"),
    [
        ("add", "wrong result: as many rows as there should be, but not the same"),
        ("widen", "wrong result: customer is of type int32, not int64"),
    ],
)
def test_a_schema_that_did_not_change_is_a_wrong_result(
    scenario: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "add_column", lambda *_: None)
    monkeypatch.setattr(Engine, "widen_column", lambda *_: None)
    bench = Bench(tmp_path, ROWS, repeat=1, start=here)
    (selected,) = (one for one in alter.make_scenarios(4) if one.id == scenario)
    (line,) = bench.compare(bench.setting(selected), [ALTERING["arrow"]])
    assert line.failure == failure


def test_a_wrong_row_is_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PolarsByHand.merge

    def wrong(self: PolarsByHand, batch: pa.Table, place: Path, merge: Merge) -> None:
        amounts = batch["amount"].to_numpy().copy()
        amounts[len(amounts) // 2] += 1
        right(self, batch.set_column(batch.schema.get_field_index("amount"), "amount", pa.array(amounts)), place, merge)

    monkeypatch.setattr(PolarsByHand, "merge", wrong)
    bench = Bench(tmp_path, ROWS, repeat=1, start=here)
    found = bench.compare(bench.setting(SCENARIOS["B"]), [CONTENDERS["polars"], CONTENDERS["whole"]])
    assert [line.failure for line in found] == ["wrong result: as many rows as there should be, but not the same", None]
    assert [line.figures is None for line in found] == [True, False]


def test_a_missing_row_is_a_wrong_result(tmp_path: Path) -> None:
    dataset = SCENARIOS["E"].dataset(ROWS)
    batch = SCENARIOS["E"].batch(dataset)
    wanted = expected(dataset.build(tmp_path), batch, "id")
    assert wanted.rows == ROWS + batch.num_rows
    with pytest.raises(WrongResultError, match=f"{ROWS:,} rows, not {wanted.rows:,}"):
        check(expected(tmp_path / dataset.name, batch.slice(0, 0), "id"), wanted)


def test_a_fingerprint_depends_on_values_not_on_order_or_width() -> None:
    table = rows(np.arange(500), seed=1)
    found = digest(table.to_batches())
    wide = pa.schema([("id", pa.int64()), ("customer", pa.int64()), *list(table.schema)[2:]])
    turned = table.take(np.arange(499, -1, -1)).cast(wide)
    turned = turned.set_column(5, "note", turned["note"].cast(pa.large_string()))
    assert digest(turned.select(table.schema.names[::-1]).to_batches(max_chunksize=70)) == found
    swapped = table.set_column(2, "amount", table["amount"].take(np.roll(np.arange(500), 1)))
    assert digest(swapped.to_batches()) != found
    assert digest(table.rename_columns([*table.schema.names[:-1], "date"]).to_batches()) != found
    texts = [pa.record_batch({"a": [left, right]}) for left, right in (("ab", "c"), ("a", "bc"), ("ab", None))]
    assert len({digest([text]).total for text in texts}) == 3


def test_ids_look_like_uuids_and_are_all_different() -> None:
    found = uuids(np.arange(10_000)).to_pylist()
    assert len(set(found)) == 10_000
    assert [len(part) for part in found[0].split("-")] == [8, 4, 4, 4, 12]


@pytest.mark.slow
def test_a_contender_has_a_process_of_its_own_and_ends_in_time(tmp_path: Path) -> None:
    file = tmp_path / "batch.parquet"
    pq.write_table(rows(np.arange(10), seed=1), file)
    task = Task("merge", "arrow", str(tmp_path / "live"), Merge(("id",)), batch=str(file))
    assert in_process(CONTENDERS["arrow"], task) == Measured()
    refused = Task("merge", "arrow", str(tmp_path / "live"), Merge(("none",)), batch=str(file))
    with pytest.raises(Failed, match="none"):
        in_process(CONTENDERS["arrow"], refused)


@pytest.mark.parametrize(("output", "found"), [('{"seconds": 1.5}', 1.5), ("", None), ("loaded", None), ("7", None)])
def test_a_process_that_breaks_after_its_figures_has_them(
    output: str, found: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = subprocess.CompletedProcess([], -6, f"a line before\n{output}\n", "terminate called")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: aborted)
    task = Task("measure", "arrow", "live", Merge(("id",)))
    if found is None:
        with pytest.raises(Failed, match="terminate called"):
            in_process(CONTENDERS["arrow"], task)
    else:
        assert in_process(CONTENDERS["arrow"], task) == Measured(found)


def test_files_are_old_enough_to_be_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(measure, "SETTLED", 7.5)
    bench = Bench(tmp_path, ROWS, repeat=1, start=here)
    for scenario, count in (("A", 0), ("I-cold", 1), ("I-warm", 1), ("I-wide", 1)):
        waits.clear()
        bench.run(bench.setting(SCENARIOS[scenario]), CONTENDERS["polars"], compare=False)
        assert waits.count(7.5) == count


def test_a_failed_contender_is_listed_and_counts_as_the_limit(tmp_path: Path) -> None:
    ours = Line("A", "rows", "arrow", "merganser (arrow)", "merganser", Figures(1.5, 100, 10, 0.1))
    over = Line("A", "rows", "delta", "delta-rs", "copy on write", failure="over 150")
    away = Line("A", "rows", "lance", "Lance", "merge on read", failure="no environment: it | said so")
    report = Report(10, 1, 150, {"pyarrow": "1"}, [ours, over, away])
    assert "| delta-rs | over 150 |" in report.markdown()
    assert "| Lance | no environment: it / said so |" in report.markdown()
    assert [(goal.ratio, goal.verdict) for goal in evaluate_goals(report.lines)] == [
        (0.01, "reached"),
        (None, "not measured"),
        (None, "not measured"),
    ]
    report.write(tmp_path)
    assert "over 150 s" in (tmp_path / "merge.svg").read_text()


def test_scenarios_and_contenders_are_selected_by_name() -> None:
    assert [scenario.id for scenario in find_scenarios(["K", "J-cold"])] == ["J-cold", "K-A", "K-C"]
    assert len(find_scenarios([])) == len(SCENARIOS)
    with pytest.raises(ValueError, match="There is no scenario X"):
        find_scenarios(["X"])


def test_a_report_keeps_what_is_not_measured_again(tmp_path: Path) -> None:
    def line(scenario: str, contender: str, seconds: float) -> Line:
        return Line(scenario, "", contender, contender, "merganser", Figures(seconds, 1.0, 0))

    Report(ROWS, 3, 150.0, {"a": "1", "b": "1"}, [line("A", "arrow", 1.0), line("B", "arrow", 2.0)]).write(tmp_path)
    again = Report(ROWS, 3, 150.0, {"b": "2"}, [line("B", "arrow", 3.0), line("A", "duckdb", 4.0)]).add_lines_of(
        tmp_path
    )
    assert again.lines == [line("A", "duckdb", 4.0), line("A", "arrow", 1.0), line("B", "arrow", 3.0)]
    assert again.versions == {"a": "1", "b": "2"}
    other = Report(ROWS + 1, 3, 150.0, {}, [line("A", "arrow", 1.0)])
    assert other.add_lines_of(tmp_path) is other


def test_a_slow_contender_has_one_run(tmp_path: Path) -> None:
    turns: list[str] = []

    def start(contender: Contender, _task: Task) -> Measured:
        turns.append(contender.id)
        return Measured(LONG + 1 if contender.id == "whole" else 1.0, 1.0)

    bench = Bench(tmp_path, ROWS, start=start)
    bench.compare(bench.setting(SCENARIOS["A"]), [CONTENDERS["polars"], CONTENDERS["whole"]])
    assert turns == ["polars", "whole", "polars", "polars"]


@pytest.mark.slow
def test_writers_side_by_side_do_all_their_work(capsys: pytest.CaptureFixture[str]) -> None:
    # Rows are counted there, and a merge that does not stage for as long as it should is an error.
    few = ["--writers", "2", "--merges", "2", "--rows", "100", "--partition-rows", "5000", "--stage-seconds", "1"]
    writers.main([*few, "--adjacent"])
    assert re.fullmatch(
        r"behind one lock .* s, side by side .* s: .* of it\na merge alone .* s, beside one .* 1 s .* s\n",
        capsys.readouterr().out,
    )
