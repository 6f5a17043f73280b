"""Other programs read the folder while it is merged into: never a staged row, never half a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.support import put

import merganser
from merganser.core.merge.attempt import Stager
from merganser.core.storage import staging
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.errors import ConcurrentWriteError

if TYPE_CHECKING:
    from collections.abc import Callable

Seen = list[tuple[str, int, int]]
FILES = 3
ROWS = 50
MERGES = 12


def with_duckdb(path: str) -> Seen:
    with duckdb.connect() as connection:
        query = f"SELECT filename, id, batch FROM read_parquet('{path}/**/*.parquet', filename=true)"  # noqa: S608
        return connection.execute(query).fetchall()


def with_polars_folder(path: str) -> Seen:
    return pl.scan_parquet(path, include_file_paths="file").select("file", "id", "batch").collect().rows()


def with_polars_glob(path: str) -> Seen:
    found = pl.scan_parquet(f"{path}/**/*.parquet", include_file_paths="file")
    return found.select("file", "id", "batch").collect().rows()


def with_pyarrow(path: str) -> Seen:
    table = ds.dataset(path, format="parquet").to_table(columns=["__filename", "id", "batch"])
    return [(row["__filename"], row["id"], row["batch"]) for row in table.to_pylist()]


READERS = [with_duckdb, with_polars_folder, with_polars_glob, with_pyarrow]


def readers(*, inside: bool) -> list[Callable[[str], Seen]]:
    """Return the readers that work with control beside or inside: Polars refuses a folder that holds any other file."""
    return [reader for reader in READERS if not (inside and reader is with_polars_folder)]


@pytest.fixture
def table(lake: str) -> str:
    """A dataset of three files whose rows all belong to batch 0."""
    for number in range(FILES):
        put(f"{lake}/t/f{number}.parquet", batch([number * 1000 + row for row in range(ROWS)], 0), row_group_size=20)
    return f"{lake}/t"


def batch(ids: list[int], number: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "batch": pa.array([number] * len(ids), pa.int64())})


def whole_batch(number: int) -> pa.Table:
    """Every row of the first two files, and one row that is new."""
    ids = [file * 1000 + row for file in range(2) for row in range(ROWS)]
    return batch([*ids, 100_000 + number], number)


def check_legal(seen: Seen, committed: int) -> None:
    """Each file is one batch's, whole; its batch has been committed; no old row is missing."""
    by_file: dict[str, list[tuple[int, int]]] = {}
    for file, key, number in seen:
        by_file.setdefault(os.path.basename(file), []).append((key, number))
    for number in range(FILES):
        found = by_file.pop(f"f{number}.parquet")
        assert sorted(key for key, _ in found) == [number * 1000 + row for row in range(ROWS)]
        assert len({one for _, one in found}) == 1
    for found in by_file.values():
        assert len(found) == 1
        assert found[0][0] == 100_000 + found[0][1]
    assert all(0 <= number <= committed for _, _, number in seen)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_readers_beside_merges_never_see_a_staged_row(
    table: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C1, C4: every second merge stages its rows, marked by a negative batch, and is then refused
    if inside:
        monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)
    over, deciding = threading.Event(), [0]
    failures: list[BaseException] = []
    beside = readers(inside=inside)
    counts = dict.fromkeys((reader.__name__ for reader in beside), 0)

    def watch(reader: Callable[[str], Seen]) -> None:
        try:
            while not over.is_set():
                seen = reader(table)
                check_legal(seen, deciding[0])
                counts[reader.__name__] += 1
        except BaseException as error:  # noqa: BLE001  asserted on below
            failures.append(error)

    threads = [threading.Thread(target=watch, args=(reader,)) for reader in beside]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, MERGES + 1):
            refused = mock.patch.object(Stager, "settle", side_effect=ConcurrentWriteError("refused"))
            with refused, pytest.raises(ConcurrentWriteError):
                merganser.merge(whole_batch(-number), table, "upsert", "id")
            deciding[0] = number
            merganser.merge(whole_batch(number), table, "upsert", "id")
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert min(counts.values()) > 1
    final = sorted((key, number) for _, key, number in with_pyarrow(table))
    for reader in beside:
        assert sorted((key, number) for _, key, number in reader(table)) == final
    assert len(final) == FILES * ROWS + MERGES


@pytest.mark.parametrize(
    ("inside", "reader"), [(inside, reader) for inside in (False, True) for reader in readers(inside=inside)]
)
def test_every_state_of_a_merge_is_legal_to_a_reader(
    table: str, inside: bool, reader: Callable[[str], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    # C1, C3, C4: old until the journal is written, then file by file, then new
    if inside:
        monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)
    states: list[list[int]] = []

    def look() -> None:
        seen = reader(table)
        check_legal(seen, 1)
        states.append([number for file, _, number in sorted(seen) if number])
        control = staging.choose_control_folder(locate(table))
        assert control == (f"{table}/.t.merganser" if inside else f"{os.path.dirname(table)}/.t.merganser")
        names = [path.name for path in Path(control).rglob("*")]
        # The first thing flushed, looked at before and after, is the control folder itself.
        assert any(name.startswith(".staging_") for name in names) or len(states) <= 2
        assert not [name for name in names if name.endswith(".parquet")]

    for name in ("flush", "write_small", "replace"):
        monkeypatch.setattr(LocalStore, name, observe_method(name, look))
    merganser.merge(whole_batch(1), table, "upsert", "id")
    monkeypatch.undo()
    amounts = [len(state) for state in states]
    assert amounts[:2] == [0, 0]
    # V4: the new row first
    assert sorted(set(amounts)) == [0, 1, ROWS + 1, 2 * ROWS + 1]
    assert amounts == sorted(amounts)
    assert len(reader(table)) == FILES * ROWS + 1


def move_rows(path: str) -> None:
    rows = pa.table({"id": [0, 1, 1000], "batch": [0, 0, 0], "day": ["b", "b", "a"]})
    merganser.merge(rows, path, "update", "id", on_partition_move="move")


def overwrite(path: str) -> None:
    rows = merganser.read(path)
    merganser.write_dataset(rows, path, "overwrite", max_rows_per_file=70)


# V4
@pytest.mark.parametrize("change", [move_rows, lambda path: merganser.compact(path, sort_by="id"), overwrite])
@pytest.mark.parametrize("reader", READERS)
def test_a_plain_reader_misses_no_row_that_moves_between_files(
    lake: str, reader: Callable[[str], Seen], change: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{lake}/t"
    for number, day in enumerate("aabb"):
        ids = [number // 2 * 1000 + number % 2 * ROWS + row for row in range(ROWS)]
        put(f"{path}/day={day}/f{number}.parquet", batch(ids, 0), row_group_size=20)
    expected = {key for _, key, _ in reader(path)}
    doubled = []

    def look() -> None:
        found = [key for _, key, _ in reader(path)]
        assert set(found) == expected
        doubled.append(len(found) > len(expected))

    for name in ("replace", "remove"):
        monkeypatch.setattr(LocalStore, name, observe_method(name, look))
    change(path)
    monkeypatch.undo()
    assert {*doubled} == {False, True}, "a row is seen twice rather than missed"
    assert len(reader(path)) == len(expected)


def test_polars_refuses_the_folder_rather_than_read_control_files(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C1: with control inside, its reader of whole folders fails, and the one that takes a pattern does not
    monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)

    def look() -> None:
        with pytest.raises(pl.exceptions.InvalidOperationError, match="different file extensions"):
            with_polars_folder(table)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "replace", observe_method("replace", look))
        merganser.merge(whole_batch(1), table, "upsert", "id")
    look()
    assert len(with_polars_glob(table)) == FILES * ROWS + 1


def observe_method(name: str, look: Callable[[], None]) -> Any:
    original = getattr(LocalStore, name)

    def method(self: LocalStore, *arguments: Any) -> None:
        look()
        original(self, *arguments)
        look()

    return method


def test_the_control_folder_is_beside_the_dataset(table: str, lake: str) -> None:
    # C1
    merganser.merge(whole_batch(1), table, "upsert", "id")
    assert sorted(os.listdir(lake)) == [".t.merganser", "t"]
    assert all(name.endswith(".parquet") for name in os.listdir(table))


def test_control_goes_inside_where_the_parent_is_another_disk(
    table: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C1
    original = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        found = original(path, *arguments, **options)
        if path == os.path.realpath(lake):
            return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        return found

    monkeypatch.setattr(os, "stat", stat)
    merganser.merge(whole_batch(1), table, "upsert", "id")
    monkeypatch.undo()
    check_inside(table, lake)


def test_control_goes_inside_where_the_parent_is_not_writable(
    table: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C1
    monkeypatch.setattr(os, "access", lambda path, _: path != os.path.realpath(lake))
    merganser.merge(whole_batch(1), table, "upsert", "id")
    monkeypatch.undo()
    check_inside(table, lake)


def check_inside(table: str, lake: str) -> None:
    assert os.listdir(lake) == ["t"]
    assert os.path.isdir(f"{table}/.t.merganser")
    for reader in readers(inside=True):
        seen = reader(table)
        check_legal(seen, 1)
        assert len(seen) == FILES * ROWS + 1
    # Once it exists it stays in use, even if the folder beside the dataset becomes writable.
    merganser.merge(whole_batch(2), table, "upsert", "id")
    assert os.listdir(lake) == ["t"]
    assert len(with_duckdb(table)) == FILES * ROWS + 2


def test_control_of_a_bucket_goes_inside(lake: str) -> None:
    # C1: the parent of a bucket cannot hold files
    name = Path(lake).name
    memory = fsspec.filesystem("memory")
    merganser.merge(batch([1, 2], 1), f"memory://bucket-{name}", "upsert", "id", partition_columns="batch")
    top = [path for path in memory.ls("/", detail=False) if name in path]
    assert top == [f"/bucket-{name}"]
    assert f"/bucket-{name}/.bucket-{name}.merganser" in memory.ls(f"/bucket-{name}", detail=False)
    assert not [path for path in memory.find(f"/bucket-{name}") if ".merganser/" in path and path.endswith(".parquet")]


def test_a_partitioned_dataset_reads_the_same_everywhere(lake: str) -> None:
    # C1, C4
    path = f"{lake}/t"
    rows = pa.table({"id": [1, 2, 3], "batch": [1, 1, 1], "day": ["a", "b", "a"]})
    merganser.merge(rows, path, "upsert", "id", partition_columns="day")
    newer = rows.set_column(1, "batch", pa.array([2, 2, 2]))
    merganser.merge(newer.slice(1), path, "upsert", "id")
    expected = [(1, 1), (2, 2), (3, 2)]
    for reader in READERS:
        assert sorted((key, number) for _, key, number in reader(path)) == expected
