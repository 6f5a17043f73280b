"""`compact` and `dedupe`, and when `inspect` suggests them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, list_data_files, load, open_dataset_io, put, snapshot, to_plain_rows

import merganser
from merganser.cli.app import COMMANDS, app

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.fixture
def orders(tmp_path: Any) -> str:
    """Nine small files in one folder, and one in another; key 1 is in two of them."""
    path = str(tmp_path / "orders")
    for number in range(9):
        put(f"{path}/day=a/f{number}.parquet", pa.table({"id": [number], "version": [number]}))
    put(f"{path}/day=b/f.parquet", pa.table({"id": [1], "version": [7]}))
    return path


def rows(path: str) -> list[tuple[int, int]]:
    return sorted((row["id"], row["version"]) for row in to_plain_rows(load(open_dataset_io("arrow"), path)))


def test_compact_combines_files_and_then_has_nothing_to_do(orders: str, cli: Callable[..., Result]) -> None:
    before = rows(orders)
    with assert_unchanged(orders):
        shown = cli("compact", orders, "--dry-run")
    assert shown.stdout == f"{orders}: 9 files would be compacted, 1 left alone\n"
    assert shown.stderr == ""
    done = cli("compact", orders, "--sort-by", "version,id", "--compression", "zstd", "--retain", "1")
    assert done.stdout == f"{orders}: 10 files compacted into 2, 0 left alone; 10 rows as before\n"
    assert done.stderr == ""
    assert rows(orders) == before
    again = cli("compact", orders)
    assert again.stdout == f"{orders}: nothing to compact in 2 files\n"
    assert "compact: no row changed" in cli("history", orders).stdout
    assert "compact: no row changed" in cli("undo", orders, "--yes").stdout
    assert len(list_data_files(orders)) == 10


# W3
def test_compact_reports_files_without_rows(tmp_path: Any, cli: Callable[..., Result]) -> None:
    path = str(tmp_path / "t")
    put(f"{path}/a.parquet", pa.table({"id": [1]}))
    put(f"{path}/b.parquet", pa.table({"id": pa.array([], pa.int64())}))
    assert cli("compact", path).stdout == f"{path}: 1 file without rows removed, 1 left alone\n"


def test_compact_takes_the_size_in_megabytes(orders: str, cli: Callable[..., Result]) -> None:
    with assert_unchanged(orders):
        assert "nothing to compact" in cli("compact", orders, "--target-file-mb", "0.0005").stdout
    assert "--target-file-mb" in cli("compact", orders, "--target-file-mb", "0", code=2).stderr
    options = ("--target-file-mb", "1", "--max-rows-per-file", "4", "--row-group-size", "2", "--lock-timeout", "1")
    assert "9 files compacted into 3" in cli("compact", orders, *options).stdout


def test_dedupe_keeps_the_highest_row_of_each_key(orders: str, cli: Callable[..., Result]) -> None:
    lines = (
        "1 row of 1 duplicate key {}deleted; 10 rows before, 9 after\nfiles: 0 {}rewritten, 1 {}removed, 9 left alone\n"
    )
    with assert_unchanged(orders):
        shown = cli("dedupe", orders, "--key", "id", "--order-by", "version", "--dry-run").stdout
    assert shown == f"{orders}: {lines.format(*['would be '] * 3)}"
    before = snapshot(orders)
    done = cli("dedupe", orders, "--key", "id", "--order-by", "version", "--retain", "1", "--lock-timeout", "1")
    assert done.stdout == f"{orders}: {lines.format('', '', '')}"
    assert done.stderr == ""
    assert (1, 7) in rows(orders)
    assert (1, 1) not in rows(orders)
    again = cli("dedupe", orders, "--key", "id").stdout
    assert again == f"{orders}: no duplicate keys in 9 rows\n"
    assert "dedupe: 1 deleted" in cli("undo", orders, "--yes").stdout
    assert snapshot(orders) == before


def test_rows_that_differ_are_refused_without_an_order(orders: str, cli: Callable[..., Result]) -> None:
    with assert_unchanged(orders):
        told = cli("dedupe", orders, "--key", "id", code=1).stderr
    assert "The dataset has 1 duplicate key whose rows differ, for example id=1." in told
    assert "--order-by" in told
    assert "--key" in cli("dedupe", orders, code=2).stderr


def test_programs_find_the_same_names_every_time(orders: str, answer: Callable[..., Any]) -> None:
    compacted = answer("compact", orders, "--dry-run")
    names = [
        "row_count",
        "file_count_before",
        "file_count_after",
        "size_before",
        "size_after",
        "files",
        "inserted_files",
        "removed_files",
        "preserved_files",
        "sort_by",
        "dry_run",
    ]
    assert list(compacted) == names
    assert (compacted["row_count"], compacted["file_count_after"], compacted["dry_run"]) == (10, None, True)
    done = answer("compact", orders)
    assert list(done) == names
    assert list(done["files"][0]) == ["path", "row_count", "operation", "size_bytes"]
    assert (done["file_count_before"], done["file_count_after"]) == (10, 2)
    deduped = answer("dedupe", orders, "--key", "id", "--order-by", "version")
    assert list(deduped) == [
        "target_count_before",
        "target_count_after",
        "duplicate_keys",
        "deleted",
        "files",
        "rewritten_files",
        "removed_files",
        "preserved_files",
        "key_columns",
        "order_by",
        "dry_run",
    ]
    assert (deduped["target_count_before"], deduped["target_count_after"]) == (10, 9)
    assert (deduped["key_columns"], deduped["order_by"], deduped["dry_run"]) == (["id"], ["version"], False)
    refused = answer("dedupe", orders, "--key", "nobody", code=1)
    assert refused["error"]["type"] == "KeyColumnError"


@pytest.mark.parametrize("command", ["compact", "dedupe"])
def test_help_lists_every_option(command: str, cli: Callable[..., Result]) -> None:
    told = cli(command, "--help").stdout
    given = {"compact": merganser.compact, "dedupe": merganser.dedupe}[command].__annotations__
    others = {"path": "TARGET", "filesystem": "--storage-option", "key_columns": "--key"}
    for name in given.keys() - {"return", "progress"}:
        option = others.get(name, f"--{name.replace('_', '-')}").replace("target-file-bytes", "target-file-mb")
        assert option in told, name
    assert COMMANDS[command][1] in " ".join(told.split())
    assert command in cli("--help").stdout
    assert app.get_command(None, command) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [("compact",), ("dedupe", "--key", "id", "--order-by", "version")])
def test_an_interrupted_commit_is_reported(
    orders: str, arguments: tuple[str, ...], cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("merganser.core.commit.publish._remove_files", fail)
        assert "merganser recover" in cli(arguments[0], orders, *arguments[1:], code=3).stderr
    cli("recover", orders)
    assert len(list_data_files(orders)) == (2 if arguments == ("compact",) else 9)


def test_inspect_advises_what_helps(orders: str, cli: Callable[..., Result], answer: Callable[..., Any]) -> None:
    told = cli("inspect", orders, "--key", "id").stdout
    assert "* 9 files in 1 folder are smaller than 16 MB. Run compact, or merge larger batches." in told
    assert (
        "* The dataset has 1 duplicate key; a merge changes all rows of a key. Run dedupe to keep one row per key."
        in told
    )
    found = answer("inspect", orders)
    assert found["duplicate_keys"] is None
    assert [finding.split(".")[0] for finding in found["findings"]] == ["9 files in 1 folder are smaller than 16 MB"]
    cli("compact", orders)
    cli("dedupe", orders, "--key", "id", "--order-by", "version")
    after = answer("inspect", orders, "--key", "id")
    assert (after["duplicate_keys"], after["findings"]) == (0, [])


def test_keys_with_null_or_nan_are_not_duplicates(tmp_path: Any, answer: Callable[..., Any]) -> None:
    path, nan = str(tmp_path / "t"), float("nan")
    put(f"{path}/f.parquet", pa.table({"id": [None, None, nan, nan, 1.0, 1.0]}))
    assert answer("inspect", path, "--key", "id")["duplicate_keys"] == 1
    assert answer("dedupe", path, "--key", "id", "--dry-run")["duplicate_keys"] == 1
