"""A pipeline on Spark: every row accounted for, bad ones kept aside, and a run that may be run again."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow import orc
from tests.pipeline.postings import load_demo, read_datasets, read_parquet_graph, read_sqlite_graph
from tests.support import list_data_files, open_spark, put, read_rows, snapshot

from merganser import SparkDatasetIO, history
from merganser.cli.app import app
from merganser.demo import story as demo
from merganser.demo.feed import write_day
from merganser.errors import AccountingError, ConfigurationError, InvalidArgumentError, PipelineError, QualityError
from merganser.pipeline import Check, Dataset, Graph, Node, Pipeline, RunOutcome, Source, When, run
from merganser.pipeline.report.files import write_report
from merganser.pipeline.report.terminal import report_lines
from merganser.pipeline.runner import session
from merganser.pipeline.runner.steps import DatasetStep, GraphStep

if TYPE_CHECKING:
    from merganser.core.merge.operation import OperationContext
    from merganser.core.model.result import MergeResult
    from merganser.timeline import Span

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
FEED_ROWS = 600
LINES = [
    '{"id": 1, "pay": "10", "team": "red"}',
    '{"id": 2, "pay": "20", "team": "red"}',
    '{"id": 2, "pay": "21", "team": "blue"}',
    '{"id": null, "pay": "30", "team": "red"}',
    '{"id": 4, "pay": "-1", "team": "red"}',
    '{"id": 5, "pay": "much", "team": "red"}',
    '{"id": 6, "pay": "-2", "team": null}',
    '{"id": 7, "pay"',
    '{"id": "eight", "pay": "80", "team": "red"}',
    '{"id": 9, "pay": "90", "team": "out"}',
]


def write_lines(folder: Path, lines: list[str] = LINES) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "people.json").write_text("\n".join(lines) + "\n", "utf-8")
    return str(folder)


def people(tmp_path: Path, **changed: Any) -> Pipeline:
    """A source with one row for each thing that can be wrong."""
    source = {
        "name": "people",
        "path": str(tmp_path / "feed"),
        "format": "json",
        "schema": "id INT, pay STRING, team STRING",
        "cast": {"pay": "int"},
        "where": ["team IS NULL OR team <> 'out'"],
    }
    tables: dict[str, Any] = {
        "name": "people",
        "state": str(tmp_path / "state"),
        "source": [Source(**{**source, **changed.pop("source", {})})],
        "check": [Check(name="paid", source="people", rule="pay > 0")],
        "dataset": [
            Dataset(
                name="people",
                source="people",
                path=str(tmp_path / "lake/people"),
                key_columns="id",
                strategy="deduplicate",
                merge={"dedup_order_by": "pay"},
            )
        ],
    }
    return Pipeline(**{**tables, **changed})


def test_rows_that_fail_are_in_the_quarantine_with_the_reason(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed")
    said: list[str] = []
    outcome = run(people(tmp_path), spark=spark, run_id="first", say=said.append)
    (source,), (step,) = outcome.sources, outcome.steps
    assert (source.rows_read, source.rows_filtered, source.rows_in) == (10, 1, 9)
    assert (source.rows_quarantined, source.rows_clean, source.files) == (6, 3, 1)
    assert {rule.name: rule.rows for rule in source.rules} == {
        "cast pay": 1,
        "malformed": 2,
        "null key people.id": 1,
        "paid": 3,
    }
    assert (step.rows_in, step.rows_quarantined, step.rows_deduplicated, step.rows_merged) == (9, 6, 1, 2)
    assert read_rows(open_spark(), str(tmp_path / "lake/people")) == [
        {"id": 1, "pay": 10, "team": "red"},
        {"id": 2, "pay": 21, "team": "blue"},
    ]
    kept = read_rows(open_spark(), str(tmp_path / "state/quarantine"), ["row"])
    assert {(row["run_id"], row["source"]) for row in kept} == {("first", "people")}
    assert all(row["source_file"].endswith("/feed/people.json") for row in kept)
    told = {row["row"]: row["rules"] for row in kept}
    assert [(text, told.pop(text)) for text in LINES[7:9]] == [(text, ["malformed"]) for text in LINES[7:9]]
    assert sorted((json.loads(text)["pay"], rules, text) for text, rules in told.items()) == [
        ("-1", ["paid"], '{"id":4,"pay":"-1","team":"red"}'),
        ("-2", ["paid"], '{"id":6,"pay":"-2"}'),
        ("30", ["null key people.id"], '{"pay":"30","team":"red"}'),
        ("much", ["cast pay", "paid"], '{"id":5,"pay":"much","team":"red"}'),
    ]
    assert any("10 rows read, 3 clean, 6 quarantined" in line for line in said)
    # The same rows in another run are the same rows.
    before = {name: snapshot(str(tmp_path / name)) for name in ("lake/people", "state/quarantine")}
    again = run(people(tmp_path), spark=spark, run_id="second").steps[0]
    assert (again.state, again.inserted, again.updated, again.skipped) == ("done", 0, 0, 2)
    assert {name: snapshot(str(tmp_path / name)) for name in before} == before
    # What is staged goes with the end of a run.
    assert not list_data_files(str(tmp_path / "state/runs"))


# E3
def test_a_source_may_get_another_column(spark: Any, tmp_path: Path) -> None:
    evolving = {"dedup_order_by": "pay", "schema_mode": "evolve"}
    dataset = replace(people(tmp_path).dataset[0], merge=evolving)
    for schema, lines in (
        ("id INT, pay STRING, team STRING", LINES[:3]),
        ("id INT, pay STRING, city STRING", ['{"id": 2, "pay": "5", "city": "Rome"}']),
    ):
        write_lines(tmp_path / "feed", lines)
        run(people(tmp_path, source={"schema": schema, "where": []}, dataset=[dataset]), spark=spark)
    assert read_rows(open_spark(), str(tmp_path / "lake/people")) == [
        {"id": 1, "pay": 10, "team": "red", "city": None},
        {"id": 2, "pay": 5, "team": "blue", "city": "Rome"},
    ]


def test_a_report_has_no_credentials(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed")
    said: list[str] = []
    outcome = run(people(tmp_path), spark=spark, parameters={"feed": "ftp://ada:s3cr3t@host/x"}, say=said.append)
    step = DatasetStep(Dataset(name="a", source="people", path="s3://k:s3cr3t@b/a", key_columns="id"), open_spark())  # type: ignore[arg-type]
    outcome = replace(outcome, steps=(step.make_outcome(outcome.sources[0], replayed=False),))
    assert (outcome.parameters["feed"], outcome.steps[0].target) == ("ftp://***@host/x", "s3://***@b/a")
    texts = [Path(place).read_text("utf-8") for place in write_report(outcome, str(tmp_path / "reports"))]
    assert not [text for text in [*texts, *report_lines(outcome), *said] if "s3cr3t" in text]


# Q5
def test_rows_with_a_null_key_are_merged_if_null_equals_null(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed", [LINES[0], LINES[3]])
    merge = {"dedup_order_by": "pay", "null_keys": "match"}
    pipeline = people(tmp_path, dataset=[replace(people(tmp_path).dataset[0], merge=merge)])
    for run_id, counts in (("first", (2, 0)), ("second", (0, 2))):
        outcome = run(pipeline, spark=spark, run_id=run_id)
        assert outcome.sources[0].rows_quarantined == 0
        assert (outcome.steps[0].inserted, outcome.steps[0].skipped) == counts
    assert {row["id"] for row in read_rows(open_spark(), str(tmp_path / "lake/people"))} == {1, None}


# M11
def test_a_row_that_is_nested_too_deeply_is_quarantined(spark: Any, tmp_path: Path) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    write_lines(tmp_path / "feed", [LINES[0], f'{{"id": 2, "pay": {deep}, "team": "red"}}'])
    outcome = run(people(tmp_path), spark=spark)
    assert (outcome.sources[0].rows_quarantined, outcome.steps[0].inserted) == (1, 1)
    (kept,) = read_rows(open_spark(), str(tmp_path / "state/quarantine"), ["row"])
    assert kept["rules"] == ["malformed"]


def test_a_failed_cast_is_reported_whatever_derive_and_where_do(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed", ['{"id": 1, "pay": "much"}', '{"id": 2, "pay": "0"}', '{"id": 3, "pay": null}'])
    source = {"derive": {"pay": "coalesce(nullif(pay, 0), -1)"}, "where": ["pay = -1 AND id > 1"]}
    outcome = run(people(tmp_path, source=source, check=()), spark=spark)
    (rule,) = outcome.sources[0].rules
    assert (rule.name, rule.rows) == ("cast pay", 1)
    assert [row["id"] for row in read_rows(open_spark(), str(tmp_path / "lake/people"))] == [2, 3]


def test_a_source_that_is_a_table_of_another_format_is_refused(spark: Any, tmp_path: Path) -> None:
    put(f"{tmp_path}/feed/day=mon/a.parquet", pa.table({"id": [1]}))
    Path(tmp_path, "feed/_delta_log").mkdir()
    Path(tmp_path, "feed/_delta_log/00000000000000000000.json").write_text("{}", "utf-8")
    for path in ("feed", "feed/day=mon"):
        with pytest.raises(ConfigurationError, match="Delta Lake table"):
            run(people(tmp_path, source={"format": "parquet", "path": str(tmp_path / path)}), spark=spark)
    assert not Path(tmp_path, "lake").exists()


def test_files_that_would_not_be_read_are_reported(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed/below")
    with pytest.raises(ConfigurationError, match=r"people.json is in a subfolder, .*recursiveFileLookup = true"):
        run(people(tmp_path), spark=spark)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="there is no file"):
        run(people(tmp_path, source={"path": str(tmp_path / "empty")}), spark=spark)
    found = run(people(tmp_path, source={"options": {"recursiveFileLookup": True}}), spark=spark).sources[0]
    assert (found.files, found.rows_read) == (1, 10)


def test_too_many_bad_rows_end_a_run_before_anything_is_merged(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed")
    with pytest.raises(QualityError, match=r"\[\[source\]\] 'people': 6 of 9 rows failed a rule, more than .* 0\.5"):
        run(people(tmp_path, source={"fail_above": 0.5}), spark=spark)
    rule = Check(name="paid", source="people", rule="pay > 0", fail_above=0.3)
    with pytest.raises(QualityError, match=r"\[\[check\]\] 'paid': 3 of 9 rows failed it, .*Nothing was merged"):
        run(people(tmp_path, check=[rule]), spark=spark)
    assert not (tmp_path / "lake").exists()
    assert len(read_rows(open_spark(), str(tmp_path / "state/quarantine"), ["row"])) == 6
    # The same run again sees the feed and the rules as they are now.
    with pytest.raises(QualityError):
        run(people(tmp_path, source={"fail_above": 0.5}), spark=spark, run_id="day")
    write_lines(tmp_path / "feed", LINES[:3])
    assert run(people(tmp_path, source={"fail_above": 0.5}), spark=spark, run_id="day").steps[0].inserted == 2


def test_the_same_files_are_the_same_run_and_others_are_another(spark: Any, tmp_path: Path) -> None:
    folder = Path(write_lines(tmp_path / "feed"))
    first = run(people(tmp_path), spark=spark, parameters={"date": "2026-01-02"})
    assert first.run_id.startswith("people-2026-01-02-")
    (step,) = (tmp_path / "state").rglob("step-*.json")
    unfinished = [file / f"x.json.{'0f' * 16}.new" for file in (step.parent, step.parent / "sources")]
    for file in unfinished:
        file.write_text("{")
    # Records of an earlier version have no times.
    for file in (step, step.parent / "sources/people.json"):
        record = json.loads(file.read_text("utf-8"))
        for name in ("started", "spans"):
            del record.get("outcome", record)[name]
        file.write_text(json.dumps(record), "utf-8")
    second = run(people(tmp_path), spark=spark, parameters={"date": "2026-01-02"})
    assert (second.run_id, second.steps[0].state, second.sources[0].staged) == (first.run_id, "replayed", True)
    assert [(step.inserted, step.rows_deduplicated) for step in second.steps] == [(2, 1)]
    # What an earlier attempt did has no place in the timeline of this one.
    earlier: list[Any] = [*second.sources, *second.steps]
    assert [(one.started, one.spans) for one in earlier] == [(None, ())] * 2
    assert [span.name for span in second.spans] == [span.name for span in first.spans]
    # What a killed run left is removed by the next one.
    assert not [file for file in unfinished if file.exists()]
    (folder / "more.json").write_text('{"id": 3, "pay": "33", "team": "red"}\n', "utf-8")
    third = run(people(tmp_path), spark=spark, parameters={"date": "2026-01-02"})
    assert third.run_id != first.run_id
    assert (third.steps[0].state, third.steps[0].inserted) == ("done", 1)
    # A target that somebody removed is made again.
    lake = tmp_path / "lake"
    lake.rename(tmp_path / "gone")
    fourth = run(people(tmp_path), spark=spark, parameters={"date": "2026-01-02"})
    assert (fourth.run_id, fourth.steps[0].state, fourth.steps[0].inserted) == (third.run_id, "done", 3)


def stock(tmp_path: Path, *when: When, **changed: Any) -> Pipeline:
    """Movements of a stock, counted by clauses."""
    counting = when or (
        When(matched="delete", where="s.pay IS NULL"),
        When(matched="update", set={"pay": "t.pay + s.pay"}, where="s.pay <> 0"),
        When(not_matched="insert", where="s.pay > 0"),
        When(not_matched_by_source="delete", where="t.pay = 0"),
    )
    lake = str(tmp_path / "lake/stock")
    dataset: dict[str, Any] = {
        "name": "stock",
        "source": "people",
        "path": lake,
        "key_columns": "id",
        "columns": ["id", "pay"],
    }
    return people(tmp_path, check=(), dataset=[Dataset(**dataset, when=counting, **changed)])


def move(tmp_path: Path, **pay: str | None) -> None:
    rows = [{"id": int(name.removeprefix("n")), "pay": value, "team": "red"} for name, value in pay.items()]
    write_lines(tmp_path / "feed", [json.dumps(row) for row in rows])


def test_a_run_counts_its_rows_once_however_often_it_is_run(spark: Any, tmp_path: Path) -> None:
    lake = tmp_path / "lake/stock"
    put(str(lake / "old.parquet"), pa.table({"id": pa.array([1, 2, 3, 4, 5], pa.int32()), "pay": [10, 20, 0, 40, 50]}))
    move(tmp_path, n1="1", n2=None, n4="0", n6="6", n7="0", n8="much")
    first = run(stock(tmp_path), spark=spark)
    counted = [(1, 11), (4, 40), (5, 50), (6, 6)]
    assert [(row["id"], row["pay"]) for row in read_rows(open_spark(), str(lake))] == counted
    (step,) = first.steps
    assert (step.rows_in, step.rows_quarantined, step.rows_merged, step.rows_deduplicated) == (6, 1, 5, 0)
    # Matched rows are updated, deleted or skipped; a missing row is deleted, too, and one new row is not inserted.
    assert (step.inserted, step.updated, step.deleted, step.skipped) == (1, 1, 2, 1)
    assert "  6 into steps = 1 quarantined + 5 merged" in report_lines(first)
    before = snapshot(str(lake))
    again = run(stock(tmp_path), spark=spark)
    assert (again.run_id, again.steps[0].state, again.steps[0].updated) == (first.run_id, "replayed", 1)
    # An attempt that ended between the commit and the record of its step.
    for file in (tmp_path / "state").rglob("step-*.json"):
        file.unlink()
    third = run(stock(tmp_path), spark=spark)
    assert (third.steps[0].state, third.steps[0].deleted) == ("replayed", 2)
    assert snapshot(str(lake)) == before
    (record,) = history(str(lake))
    assert record.options["clauses"][1] == "WHEN MATCHED AND s.pay <> 0 THEN UPDATE SET pay = t.pay + s.pay"
    assert record.batch_id == f"people/{first.run_id}/dataset stock"
    # Other files are another run, which counts.
    move(tmp_path, n1="1")
    assert run(stock(tmp_path), spark=spark).steps[0].updated == 1
    assert read_rows(open_spark(), str(lake))[0] == {"id": 1, "pay": 12}


def test_rows_that_clauses_do_not_count_end_the_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = SparkDatasetIO.run_merge

    def lose_one(io: SparkDatasetIO, source: Any, context: OperationContext) -> MergeResult:
        result = merge(io, source, context)
        return replace(result, inserted=result.inserted - 1)

    monkeypatch.setattr(SparkDatasetIO, "run_merge", lose_one)
    move(tmp_path, n1="1", n2="2")
    every = When(matched="delete", where="s.pay > 1"), When(not_matched="insert")
    with pytest.raises(AccountingError, match=r"'stock': only 1 of 2 keys were inserted, updated, deleted or skipped"):
        run(stock(tmp_path, *every), spark=spark)
    # Where a clause may leave rows out, they cannot be missed.
    some = When(not_matched="insert", where="s.pay > 0")
    assert run(stock(tmp_path, some), spark=spark).steps[0].inserted == -1


def test_every_format_is_read_renamed_cast_derived_and_filtered(spark: Any, tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    (feed / "a.csv").write_text("nr;name\n1;Ada\n2;Grace\n2;too;many\n", "utf-8")
    (feed / "b.txt").write_text("3,Edsger\n4,Barbara\n", "utf-8")
    table = pa.table({"nr": pa.array([5, 6], pa.int64()), "name": ["Tony", "名前"]})
    pq.write_table(table, feed / "c.parquet")
    orc.write_table(table.set_column(0, "nr", pa.array([7, 8], pa.int64())), str(feed / "d.orc"))
    last: dict[str, Any] = {"rename": {"nr": "id"}, "cast": {"id": "bigint"}}
    sources = [
        Source(name="csv", path=str(feed / "a.csv"), format="csv", options={"header": True, "sep": ";"}, **last),
        Source(
            name="text",
            path=str(feed / "b.txt"),
            format="text",
            derive={"id": "CAST(split(value, ',')[0] AS bigint)", "name": "split(value, ',')[1]"},
            drop="value",
        ),
        Source(name="parquet", path=str(feed / "c.parquet"), format="parquet", where="nr > 5", **last),
        Source(name="orc", path=[str(feed / "d.orc")], format="orc", derive={"name": "upper(name)"}, **last),
    ]
    datasets = [
        Dataset(name=one.name, source=one.name, path=str(tmp_path / "lake"), key_columns="id") for one in sources
    ]
    outcome = run(Pipeline(name="all", state=str(tmp_path / "state"), source=sources, dataset=datasets), spark=spark)
    assert [(one.rows_read, one.rows_filtered, one.rows_quarantined) for one in outcome.sources] == [
        (3, 0, 1),
        (2, 0, 0),
        (2, 1, 0),
        (2, 0, 0),
    ]
    assert [(row["id"], row["name"]) for row in read_rows(open_spark(), str(tmp_path / "lake"))] == [
        (1, "Ada"),
        (2, "Grace"),
        (3, "Edsger"),
        (4, "Barbara"),
        (6, "名前"),
        (7, "TONY"),
        (8, "名前"),
    ]


def jobs_by(**merge: Any) -> Dataset:
    return Dataset(name="d", source="people", path="unused", key_columns="id", merge=merge)


def clauses_of(*when: When) -> Dataset:
    return Dataset(name="d", source="people", path="unused", key_columns="id", when=when)


def graph_of(**changed: Any) -> Graph:
    return Graph(path="unused", node=[Node(**{"type": "T", "source": "people", "match": "id", **changed})])


@pytest.mark.parametrize(
    ("changed", "place", "words"),
    [
        ({"source": {"schema": "id INTT"}}, "[[source]] 'people', key 'schema'", "INTT"),
        ({"source": {"path": "/no/such/place"}}, "[[source]] 'people', key 'path'", "/no/such/place"),
        ({"source": {"where": "nosuch > 1"}}, "[[source]] 'people', key 'where'", "nosuch"),
        ({"source": {"derive": {"x": "pay +"}}}, "[[source]] 'people', key 'derive.x'", "Syntax error"),
        ({"source": {"cast": {"pay": "money"}}}, "[[source]] 'people', key 'cast.pay'", "MONEY|money"),
        ({"source": {"cast": {"salary": "int"}}}, "[[source]] 'people', key 'cast'", "no column 'salary' to cast"),
        (
            {"source": {"rename": {"salary": "pay"}}},
            "[[source]] 'people', key 'rename'",
            "no column 'salary'. They have",
        ),
        ({"source": {"drop": "salary"}}, "[[source]] 'people', key 'drop'", "no column 'salary' to drop"),
        ({"check": [Check(name="c", source="people", rule="nosuch > 1")]}, "[[check]] 'c', key 'rule'", "nosuch"),
        ({"dataset": [jobs_by(partition_columns="nosuch")]}, "[[dataset]] 'd', key 'partition_columns'", "'nosuch'"),
        (
            {
                "dataset": [
                    clauses_of(When(matched="update", where="s.pay > 1"), When(matched="delete", where="s.nosuch = 1"))
                ]
            },
            "[[dataset.when]] 2 of 'd', key 'where'",
            "uses s.nosuch, but the source has no such column. Its columns are: id, pay, team",
        ),
        (
            {"dataset": [clauses_of(When(not_matched="insert", values={"id": "id", "x": "nosuch"}))]},
            "[[dataset.when]] 1 of 'd', key 'values.x'",
            "nosuch",
        ),
        ({"dataset": (), "graph": graph_of(match="nosuch")}, "[[graph.node]] 'T', key 'match'", "nosuch"),
        ({"graph": graph_of(base={"x": "nosuch"})}, "[[graph.node]] 'T', key 'base.x'", "nosuch"),
        ({"graph": graph_of(order_by="nosuch")}, "[[graph.node]] 'T', key 'order_by'", "nosuch"),
    ],
    ids=lambda given: given if isinstance(given, str) and given.startswith("[[") else "",
)
def test_expressions_are_refused_by_table_and_key_before_anything_is_read(
    spark: Any, tmp_path: Path, changed: dict[str, Any], place: str, words: str
) -> None:
    write_lines(tmp_path / "feed")
    with pytest.raises(ConfigurationError, match=f"(?s){words}") as refused:
        run(people(tmp_path, **changed), spark=spark)
    assert str(refused.value).startswith(f"{place}: ")
    assert "JVM" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["feed"]


def test_a_failure_of_spark_names_the_step(spark: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "feed")
    with pytest.raises(
        PipelineError, match=r"(?s)\[\[source\]\] 'people': reading it failed\. Spark reports: .*no luck"
    ):
        run(people(tmp_path, source={"derive": {"x": "raise_error('no luck')"}}), spark=spark)
    for name in ("a/b", "..", ".hidden"):
        with pytest.raises(InvalidArgumentError, match=f"run id '{name}' is used as a folder name"):
            run(people(tmp_path), spark=spark, run_id=name)
    assert not (tmp_path / "lake").exists()


def test_rows_that_do_not_add_up_are_not_reported_as_merged(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "feed")
    monkeypatch.setattr(RunOutcome, "unbalanced", lambda _: ["One row is missing."])
    with pytest.raises(AccountingError, match="One row is missing"):
        run(people(tmp_path), spark=spark)


def test_the_command_runs_a_file_and_writes_reports(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_, **__: nullcontext(spark))
    write_lines(tmp_path / "feed/day=1")
    file = tmp_path / "people.toml"
    file.write_text(
        """
        [pipeline]
        name = "people"
        state = "state"
        parameters = ["day"]
        [[source]]
        name = "people"
        path = "feed/day={day}"
        format = "json"
        schema = "id INT, team STRING"
        [[dataset]]
        name = "people"
        source = "people"
        path = "lake"
        key_columns = "id"
        strategy = "deduplicate"
        dedup_order_by = "team"
        """,
        "utf-8",
    )
    arguments = [str(file), "--param", "day=1", "--run-id", "one", "--report", str(tmp_path / "reports")]
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 0
    report = RunOutcome.from_dict(json.loads((tmp_path / "reports/one.json").read_text("utf-8")))
    assert report.steps[0].rows_merged == 6
    assert "The accounting holds:" in done.stdout
    assert str(tmp_path / "reports/one.html") in done.stdout
    # There is no terminal to show progress on.
    assert "dataset people: 6 inserted" not in done.stderr
    assert "</html>" in (tmp_path / "reports/one.html").read_text("utf-8")
    with pytest.raises(ConfigurationError):
        CliRunner().invoke(app, ["run", str(file), "--param", "day=2", "--debug"], catch_exceptions=False)
    again = CliRunner().invoke(app, ["run", *arguments, "--json"])
    answer = json.loads(again.stdout)
    assert answer.pop("reports") == [str(tmp_path / f"reports/one.{form}") for form in ("html", "json")]
    assert RunOutcome.from_dict(answer).run_id == "one"
    refused = CliRunner().invoke(app, ["run", str(file), "--param", "day=2"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"Error: {file}, [[source]] 'people', key 'path': ")


# -------------------- the whole of it, with the graph


def counts(outcome: RunOutcome) -> list[Any]:
    return [
        (step.name, step.rows_in, step.rows_quarantined, step.rows_deduplicated, step.rows_merged, step.inserted)
        for step in outcome.steps
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunOutcome]:
    folder = tmp_path_factory.mktemp("undisturbed")
    write_day(str(folder / "feed"), date(2026, 1, 5), FEED_ROWS)
    return folder, run(load_demo(folder), spark=open_spark().spark, run_id="day")  # type: ignore[attr-defined]


def find_spans(spans: tuple[Span, ...]) -> set[tuple[str, str]]:
    return {(span.kind, span.name) for span in spans}


@pytest.mark.slow
def test_every_part_of_a_run_is_on_its_timeline(undisturbed: tuple[Path, RunOutcome]) -> None:
    _, outcome = undisturbed
    rest = ("driver", "other work")
    assert [(span.kind, span.name) for span in outcome.spans] == [
        ("driver", "inspect source files"),
        ("driver", "check expressions"),
        ("steps", "sources"),
        ("steps", "steps"),
        rest,
    ]
    (source,) = outcome.sources
    assert find_spans(source.spans) == {("job", "read source"), rest}
    tasks = {task.name: find_spans(task.spans) for task in outcome.tasks}
    assert tasks.pop("records of the graph") == {("job", "fold records"), rest}
    # The quarantine is a dataset, too.
    (quarantined,) = tasks.values()
    assert quarantined == {("job", "number rows"), ("job", "merge rows"), ("commit", "commit"), rest}
    for step in outcome.steps:
        found = find_spans(step.spans)
        if step.name.endswith(", sqlite"):
            assert {kind for kind, _ in found} <= {"merge", "waiting", "driver"}
            assert {("merge", "SQLite"), rest} <= found
        else:
            assert {("job", "merge rows"), ("commit", "commit"), rest} <= found
    # Which steps wait depends on the threads, but edges begin before their nodes are merged.
    waiting = {name for step in outcome.steps for kind, name in find_spans(step.spans) if kind == "waiting"}
    assert waiting == {"records", "earlier steps"}
    ran: list[Any] = [*outcome.sources, *outcome.tasks, *outcome.steps]
    for one in ran:
        assert 0 < one.started <= one.started + one.seconds <= outcome.seconds
        assert sum(span.seconds for span in one.spans) == pytest.approx(one.seconds)
        assert all(one.started <= span.started <= one.started + one.seconds for span in one.spans)
    assert sum(span.seconds for span in outcome.spans) == pytest.approx(outcome.seconds)


@pytest.mark.slow
def test_the_demo_reports_what_its_feed_holds_and_day_three_again_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "open_session", lambda *_, **__: nullcontext(spark))
    demo.main(str(tmp_path), FEED_ROWS)
    printed = capsys.readouterr().out
    reports = [json.loads(file.read_text("utf-8")) for file in (tmp_path / "reports").glob("*.json")]
    reports.sort(key=lambda report: report["started_at"])
    outcomes = [RunOutcome.from_dict(report) for report in reports]
    days = [date(2026, 1, 5 + number) for number in range(3)]
    every = [write_day(str(tmp_path / "unused"), day, FEED_ROWS, days_before=at) for at, day in enumerate(days)]
    for facts, outcome in zip(every, outcomes, strict=False):
        (source,) = outcome.sources
        bad = {
            "malformed": facts.malformed,
            "null key jobs.url": facts.null_urls,
            "salary range": facts.bad_salaries,
            "cast posted_at": facts.bad_times,
        }
        found = {rule.name: rule.rows for rule in source.rules}
        assert {name: found.get(name, 0) for name in bad} == bad
        assert (source.rows_in, source.rows_quarantined) == (facts.rows, sum(bad.values()))
        new = facts.urls - facts.seen_urls
        jobs, companies, *parts = outcome.steps
        assert (jobs.inserted, jobs.rows_deduplicated, jobs.skipped) == (new, facts.duplicates, facts.late)
        assert jobs.updated == facts.seen_urls - facts.late
        assert companies.rows_merged == facts.companies
        assert [step.inserted for step in parts] == [companies.inserted, new, new] * 2
    assert outcomes[2].steps[0].inserted + every[1].urls_so_far == every[2].urls_so_far
    # Both graphs are the same, whatever changed in three days.
    assert read_sqlite_graph(tmp_path) == read_parquet_graph(tmp_path)
    again = outcomes[3]
    assert [(step.state, step.inserted, step.updated, step.deleted) for step in again.steps] == [("done", 0, 0, 0)] * 8
    files = len(demo.list_data_files(str(tmp_path)))
    assert f"Data files that day 3 changed when it was run again: 0 of {files}." in printed
    assert f"{every[2].urls_so_far:,} Job nodes, {every[2].companies_so_far:,} Company nodes" in printed


@pytest.mark.slow
def test_a_run_that_fails_at_every_step_ends_as_one_that_never_did(
    undisturbed: tuple[Path, RunOutcome], spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_day(str(tmp_path / "feed"), date(2026, 1, 5), FEED_ROWS)
    failed: set[tuple[str, str]] = set()
    merges = {kind: kind.merge for kind in (DatasetStep, GraphStep)}

    def failing(self: Any, *given: Any) -> Any:
        """Fail each step once before its merge, and once after it was committed, before anyone knows."""
        if (self.name, "before") not in failed:
            failed.add((self.name, "before"))
            raise OSError(self.name)
        done = merges[type(self)](self, *given)
        if (self.name, "after") not in failed:
            failed.add((self.name, "after"))
            raise OSError(self.name)
        return done

    for kind in merges:
        monkeypatch.setattr(kind, "merge", failing)
    attempts = 0
    outcome = None
    while outcome is None:
        attempts += 1
        try:
            outcome = run(load_demo(tmp_path), spark=spark, run_id="day")
        except OSError:
            assert attempts <= 6
    # The three steps of the SQLite graph wait for each other; all others fail beside them.
    assert attempts == 7
    folder, expected = undisturbed
    assert counts(outcome) == counts(expected)
    assert read_datasets(tmp_path) == read_datasets(folder)
    assert read_sqlite_graph(tmp_path) == read_parquet_graph(tmp_path)
