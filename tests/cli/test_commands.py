"""The commands: what they do, what they print and how they end."""

from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, open_dataset_io, put, snapshot, to_plain_rows

import merganser as mg
from merganser.cli.app import COMMANDS, app
from merganser.core.commit import commit
from merganser.core.model.options import Call, list_options
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

MONDAY = "id,day,price\n1,2025-01-06,1.5\n2,2025-01-06,2.5\n3,2025-01-07,3.5\n"
TUESDAY = "id,day,price\n2,2025-01-06,9.5\n4,2025-01-07,4.5\n"


@pytest.fixture
def orders(tmp_path: Any, cli: Callable[..., Result]) -> str:
    """A partitioned dataset, merged from a CSV file, and another file to merge."""
    (tmp_path / "monday.csv").write_text(MONDAY)
    (tmp_path / "tuesday.csv").write_text(TUESDAY)
    cli("merge", str(tmp_path / "monday.csv"), str(tmp_path / "orders"), "--key", "id", "--partition-by", "day")
    return str(tmp_path / "orders")


def prices(path: str, **options: Any) -> dict[int, float]:
    found = to_plain_rows(open_dataset_io("arrow").read(path, **options).to_table())
    return {row["id"]: row["price"] for row in found}


def test_a_csv_file_is_planned_merged_and_undone(orders: str, tmp_path: Any, cli: Callable[..., Result]) -> None:
    before = snapshot(orders)
    source = str(tmp_path / "tuesday.csv")
    shown = cli("plan", source, orders, "--key", "id").stdout
    assert "1 inserted, 1 updated, 0 deleted" in shown
    assert "day=2025-01-06  █\nday=2025-01-07  ·\n✕ removed 0  █ rewritten 1  ▒ scanned 0  · left out 1\n" in shown
    assert snapshot(orders) == before
    assert cli("merge", source, orders, "--key", "id", "--dry-run").stdout == shown
    merged = cli("merge", source, orders, "--key", "id", "--retain", "1")
    assert "1 inserted, 1 updated, 0 deleted; 3 rows before, 4 after" in merged.stdout
    assert merged.stderr == ""
    assert prices(orders) == {1: 1.5, 2: 9.5, 3: 3.5, 4: 4.5}
    assert cli("history", orders).stdout.count("merge upsert") == 2
    cli("undo", orders, "--yes")
    assert snapshot(orders) == before
    assert cli("history", orders, "--limit", "1").stdout.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "spark"])
def test_every_engine_may_be_asked(name: str, orders: str, tmp_path: Any, answer: Callable[..., Any]) -> None:
    told = answer("merge", str(tmp_path / "tuesday.csv"), orders, "--key", "id", "--engine", name)
    assert (told["inserted"], told["updated"], told["target_count_after"]) == (1, 1, 4)


def test_what_json_holds_stays_the_same(orders: str, tmp_path: Any, answer: Callable[..., Any]) -> None:
    source = str(tmp_path / "tuesday.csv")
    place = ["--key", "id"]
    assert list(answer("plan", source, orders, *place)) == [
        "path", "strategy", "key_columns", "partition_columns", "source_count", "target_count_before",
        "target_count_after", "inserted", "updated", "deleted", "skipped", "files", "schema_changes",
        "schema_differences", "clauses",
    ]  # fmt: skip
    merged = answer("merge", source, orders, *place, "--audit", "rows", "--retain", "1")
    assert list(merged) == [
        "strategy", "source_count", "target_count_before", "target_count_after", "inserted", "updated", "deleted",
        "files", "rewritten_files", "inserted_files", "preserved_files", "removed_files", "audit", "batch_id",
        "replayed", "skipped", "audit_files", "deduplicated", "clauses", "engine",
    ]  # fmt: skip
    assert list(merged["files"][0]) == ["path", "row_count", "operation", "size_bytes"]
    assert len(merged["audit"]) == 2
    assert list(answer("write", source, f"{orders}-copy")) == ["mode", "row_count", "files", "removed_files"]
    assert list(answer("inspect", orders, *place)) == [
        "path", "rows", "size_bytes", "file_count", "row_group_count", "partition_columns", "partition_count",
        "columns", "smallest_file", "median_file", "largest_file", "keys", "duplicate_keys",
        "schema_differences", "findings",
    ]  # fmt: skip
    (newest, _) = answer("history", orders)
    assert newest["operation"] == "merge"
    assert answer("recover", orders) == {"path": orders, "recovered": False}
    assert answer("undo", orders, "--yes")["id"] == newest["id"]
    assert answer("vacuum", orders, "--yes")["path"] == orders


def test_a_refusal_ends_with_one_and_changes_nothing(
    orders: str, tmp_path: Any, cli: Callable[..., Result], answer: Callable[..., Any]
) -> None:
    (tmp_path / "twice.csv").write_text(TUESDAY + TUESDAY.partition("\n")[2])
    with assert_unchanged(orders):
        refused = cli("merge", str(tmp_path / "twice.csv"), orders, "--key", "id", code=1)
        told = answer("merge", str(tmp_path / "twice.csv"), orders, "--key", "id", code=1)
        missing = cli("merge", str(tmp_path / "nothing.csv"), orders, "--key", "id", code=1)
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1].startswith("Error: ")
    assert told["error"]["type"] == "DuplicateKeyError"
    assert told["error"]["exit_code"] == 1
    assert "does not exist. Check the path of the source." in missing.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge"],
        ["merge", "SOURCE", "TARGET"],
        ["merge", "SOURCE", "TARGET", "--key", "id", "--strategy", "guess"],
        ["merge", "SOURCE", "TARGET", "--key", "id", "--compare", "price"],
        ["merge", "SOURCE", "TARGET", "--key", "id,,day"],
        ["merge", "SOURCE", "TARGET", "--key", "id", "--scope", "day"],
        ["write", "SOURCE", "TARGET", "--mode", "overwrite"],
        ["undo", "TARGET"],
        ["vacuum", "TARGET"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_ends_with_two(
    arguments: list[str], orders: str, tmp_path: Any, cli: Callable[..., Result]
) -> None:
    places = {"SOURCE": str(tmp_path / "tuesday.csv"), "TARGET": orders}
    with assert_unchanged(orders):
        refused = cli(*(places.get(word, word) for word in arguments), code=2)
    assert "Error: " in refused.stderr
    assert refused.stdout == ""


def test_a_full_merge_of_an_empty_source_needs_confirmation(
    orders: str, tmp_path: Any, cli: Callable[..., Result]
) -> None:
    (tmp_path / "empty.csv").write_text(MONDAY.partition("\n")[0] + "\n")
    arguments = ["merge", str(tmp_path / "empty.csv"), orders, "--key", "id", "--strategy", "full_merge"]
    with assert_unchanged(orders):
        assert "deletes every row" in cli(*arguments, code=2).stderr
    schema = pa.table(
        {"id": pa.array([], pa.int64()), "day": pa.array([], pa.date32()), "price": pa.array([], pa.float64())}
    )
    pq.write_table(schema, tmp_path / "empty.parquet")
    cli("merge", str(tmp_path / "empty.parquet"), *arguments[2:], "--yes")
    assert prices(orders) == {}


def test_an_interrupted_merge_says_what_became_of_the_dataset(
    orders: str, tmp_path: Any, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    arguments = ["merge", str(tmp_path / "tuesday.csv"), orders, "--key", "id"]
    with assert_unchanged(orders), monkeypatch.context() as patch:
        patch.setattr("merganser.core.merge.driver.stage_merge", interrupt)
        assert cli(*arguments, code=1).stderr.endswith("Error: Interrupted. Nothing was changed.\n")
    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", interrupt)
        assert f"merganser recover {orders}" in cli(*arguments, code=3).stderr
    refused = cli("plan", *arguments[1:], code=3)
    assert "recover" in refused.stderr
    assert "recovered" in cli("recover", orders).stdout
    assert prices(orders) == {1: 1.5, 2: 9.5, 3: 3.5, 4: 4.5}


def test_debug_shows_where_an_error_comes_from(orders: str) -> None:
    with pytest.raises(ValueError, match=r"The source file nothing\.csv does not exist"):
        app(["merge", "nothing.csv", orders, "--key", "id", "--debug"], standalone_mode=False)


def test_every_option_of_the_library_is_an_option_here() -> None:
    other_names = {
        "partition_columns": "partition_by",
        "filesystem": "storage_option",
        "column_types": "column_type",
        "null_values": "null_value",
    }
    calls: dict[str, Call] = {"merge": "merge", "plan": "plan", "write": "write_dataset"}
    for command, call in calls.items():
        found = app.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None
        here = {parameter.name for parameter in found.params}
        # The command line shows progress by itself.
        asked = {other_names.get(name, name) for name in set(list_options(call)) - {"progress"}}
        assert asked <= here


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, cli: Callable[..., Result]) -> None:
    found = app.get_command(None, name)  # type: ignore[arg-type]
    assert found is not None
    assert found.get_short_help_str(200) == COMMANDS[name][1]
    assert all(option.help for option in found.params if isinstance(option, click.Option)), name
    assert "Usage: app " in cli(name, "--help").stdout


@pytest.mark.slow
def test_help_loads_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom merganser.cli import main\ntry: main()\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Merge keyed rows" in done.stdout
    assert "'click'" in done.stderr
    assert not any(f"'{name}'" in done.stderr for name in ("pyarrow", "numpy", "duckdb", "fsspec"))


@pytest.mark.slow
@pytest.mark.parametrize(("more", "loads_pandas"), [((), False), (("--audit", "keys"), True)])
def test_a_merge_loads_pandas_only_to_print_rows(tmp_path: Path, more: tuple[str, ...], loads_pandas: bool) -> None:
    (tmp_path / "ten.csv").write_text("id,name\n" + "".join(f"{number},n{number}\n" for number in range(10)), "utf-8")
    code = (
        "import sys\nfrom merganser.cli import main\ntry: main()\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "merge", str(tmp_path / "ten.csv"), str(tmp_path / "lake"), "--key", "id"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True, timeout=60)
    assert "10 inserted" in done.stdout
    assert ("'pandas'" in done.stderr) == loads_pandas
    assert not any(f"'{name}'" in done.stderr for name in ("fsspec", "pyspark", "rich", "sqlglot"))
    assert mg.read(tmp_path / "lake").to_pylist() == [{"id": n, "name": f"n{n}"} for n in range(10)]


@pytest.mark.slow
def test_help_comes_within_300_milliseconds() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "merganser.cli", "--help"], capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Of the processor, since other tests run meanwhile; it has nothing else to wait for.
    assert min(seconds() for _ in range(3)) < 0.3


def test_without_click_the_extra_is_named() -> None:
    code = "import sys\nsys.modules['click'] = None\nfrom merganser.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'merganser[cli]'.")


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
def test_an_undo_asks_for_confirmation(
    typed: str, code: int, orders: str, tmp_path: Any, cli: Callable[..., Result]
) -> None:
    cli("merge", str(tmp_path / "tuesday.csv"), orders, "--key", "id", "--retain", "1")
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    done = subprocess.run(
        [sys.executable, "-m", "merganser.cli", "undo", orders, "--json"],
        stdin=theirs, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    assert done.returncode == code
    assert "Undo the last commit" in done.stderr
    if code == 0:
        assert json.loads(done.stdout)["operation"] == "merge"
        assert prices(orders) == {1: 1.5, 2: 2.5, 3: 3.5}
    else:
        assert len(prices(orders)) == 4


def test_an_inspection_reports_possible_improvements(tmp_path: Any, cli: Callable[..., Result]) -> None:
    path = str(tmp_path / "t")
    for number in range(10):
        put(f"{path}/f{number}.parquet", pa.table({"id": [number, 100 - number], "v": ["a", "b"]}))
    put(f"{path}/again.parquet", pa.table({"id": [3], "v": ["c"]}), write_statistics=False)
    shown = cli("inspect", path, "--key", "id").stdout
    assert "21 rows" in shown
    assert "key id: from 0 to 100" in shown
    assert "duplicate keys: 1" in shown
    for advice in (
        "smaller than 16 MB",
        "1 row group without bounds of 'id'",
        "5.5 of the 11 files may contain a given key",
        "Run dedupe to keep one row per key",
    ):
        assert advice in shown
    sorted_ = str(tmp_path / "sorted")
    for number in range(10):
        put(f"{sorted_}/f{number}.parquet", pa.table({"id": [2 * number, 2 * number + 1]}))
    assert "1 of 10 files may contain a given key, at most 1" in cli("inspect", sorted_, "--key", "id").stdout
    assert "There are no Parquet files" in cli("inspect", str(tmp_path / "none"), code=1).stderr


# M10
def test_a_folder_above_or_inside_a_dataset_is_refused(orders: str, tmp_path: Any, cli: Callable[..., Result]) -> None:
    source, above = str(tmp_path / "tuesday.csv"), str(tmp_path)
    inside = f"{orders}/day=2025-01-06"
    before = snapshot(above)
    for target, told in (
        (above, f"{above} contains the dataset {orders}."),
        (inside, f"{inside} lies inside the dataset {orders}."),
    ):
        for arguments in (
            ("merge", source, target, "--key", "id", "--strategy", "full_merge", "--yes"),
            ("merge", source, target, "--key", "id", "--dry-run"),
            ("plan", source, target, "--key", "id"),
            ("write", source, target, "--mode", "overwrite", "--yes"),
            ("compact", target),
            ("dedupe", target, "--key", "id"),
        ):
            assert told in cli(*arguments, code=1).stderr
    assert snapshot(above) == before


# T4
def test_an_update_of_a_misspelled_path_is_refused(orders: str, tmp_path: Any, cli: Callable[..., Result]) -> None:
    source = str(tmp_path / "tuesday.csv")
    for command in ("merge", "plan"):
        refused = cli(command, source, f"{orders}s", "--key", "id", "--strategy", "update", code=1)
        assert f"There is no dataset at {orders}s" in refused.stderr


def test_a_table_of_another_format_is_used_if_that_is_asked_for(
    orders: str, tmp_path: Any, cli: Callable[..., Result]
) -> None:
    source, new = str(tmp_path / "tuesday.csv"), str(tmp_path / "new")
    (tmp_path / "orders" / "_delta_log").mkdir()
    (tmp_path / "orders" / "_delta_log" / "0.json").write_text("{}")
    commands = (
        ("plan", source, orders, "--key", "id"),
        ("merge", source, orders, "--key", "id", "--retain", "9"),
        ("write", source, orders, "--retain", "9"),
        ("undo", orders, "--yes"),
        ("compact", orders),
        ("dedupe", orders, "--key", "id"),
        ("inspect", orders),
    )
    for arguments in commands:
        with assert_unchanged(orders):
            assert f"{orders} is a Delta Lake table" in cli(*arguments, code=1).stderr
        cli(*arguments, "--ignore-table-format")
    assert prices(orders, ignore_table_format=True) == {1: 1.5, 2: 9.5, 3: 3.5, 4: 4.5}
    assert "is a Delta Lake table" in cli("write", orders, new, "--ignore-table-format", code=1).stderr
    assert not (tmp_path / "new").exists()
