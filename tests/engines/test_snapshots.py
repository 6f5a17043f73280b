"""Readers of one state: snapshots, what `read` returned, and past states, while the dataset changes."""

from __future__ import annotations

import gc
import os
import pickle
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.support import list_data_files, put

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.storage import staging
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.errors import InvalidArgumentError, NotRetainedError, TargetPathError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

Rows = list[tuple[Any, ...]]


def table(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids), "day": pa.array([str(key % 3) for key in ids])})


def to_rows(found: Any) -> Rows:
    """Return the rows of what an engine's `read` returned."""
    for name in ("toArrow", "to_arrow_table", "to_table"):
        if hasattr(found, name):
            found = getattr(found, name)()
            break
    names = sorted(found.column_names)
    return sorted(tuple(row[name] for name in names) for row in found.to_pylist())


def read_bytes(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def list_snapshots(path: str) -> list[str]:
    folder = f"{os.path.dirname(path)}/.t.merganser/snapshots"
    return os.listdir(folder) if os.path.isdir(folder) else []


def is_released(path: str) -> bool:
    """Wait until no snapshot is left: threads of Arrow and Java may hold on to one for a moment."""
    until = time.monotonic() + 30
    while list_snapshots(path) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return not list_snapshots(path)


# Every kind of change, one after the other.
CHANGES: list[Callable[[AnyDatasetIO, str], object]] = [
    lambda io, path: io.merge(table([1, 2, 30], "b"), path, "upsert", "id", retain=20),
    lambda io, path: io.merge(table([3], "c"), path, "delete", "id", retain=20),
    lambda io, path: io.write_dataset(table([40, 41], "d"), path, retain=20),
    lambda _, path: merganser.compact(path, retain=20),
    lambda io, path: io.merge(table([1, 4], "e"), path, "full_merge", "id", scope={"day": "1"}, retain=20),
    lambda _, path: merganser.undo(path),
    lambda _, path: merganser.alter(path, add={"x": "int64"}, default={"x": 7}, retain=20),
    lambda io, path: io.write_dataset(table([5, 6], "f"), path, "overwrite", retain=20),
]


def write_first(io: AnyDatasetIO, path: str) -> None:
    io.merge(table([1, 2, 3, 4], "a"), path, "upsert", "id", partition_columns="day", max_rows_per_file=1)


# V2
def test_no_change_reaches_a_snapshot(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_first(io, path)
    expected = to_rows(io.read(path))
    with merganser.snapshot(path) as folder:
        before = read_bytes(folder)
        assert before.keys() == read_bytes(path).keys()
        for change in CHANGES:
            change(io, path)
            assert read_bytes(folder) == before
        assert to_rows(io.read(folder)) == expected
    assert not os.path.exists(folder)
    assert to_rows(io.read(path)) == [("2", 5, "f"), ("0", 6, "f")][::-1]


# V2
def test_every_reader_reads_a_snapshot(lake: str) -> None:
    path = f"{lake}/t"
    write_first(merganser.DuckDBDatasetIO(), path)
    with merganser.snapshot(path) as folder:
        merganser.merge(table([1, 9], "b"), path, key_columns="id")
        with duckdb.connect() as connection:
            query = f"SELECT count(*) FROM read_parquet('{folder}/**/*.parquet', hive_partitioning=true)"  # noqa: S608
            assert connection.execute(query).fetchall() == [(4,)]
        assert pl.read_parquet(folder).shape == (4, 3)
        assert pl.read_parquet(f"{folder}/**/*.parquet").height == 4
        assert ds.dataset(folder, partitioning="hive").count_rows() == len(pd.read_parquet(folder)) == 4
        # It has the types of the partition columns too.
        assert merganser.read(folder).schema == merganser.read(path).schema
        assert os.path.basename(folder) == "t"
    assert list_snapshots(path) == []


# V2
def test_a_snapshot_of_links_takes_no_space(lake: str) -> None:
    path = f"{lake}/t"
    write_first(merganser.DuckDBDatasetIO(), path)
    with merganser.snapshot(path) as folder:
        for file in list_data_files(path):
            assert os.path.samefile(f"{path}/{file}", f"{folder}/{file}")


# V2
def test_where_there_are_no_links_a_snapshot_is_a_copy(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{lake}/t"
    write_first(merganser.DuckDBDatasetIO(), path)
    monkeypatch.setattr(LocalStore, "link", lambda *_: False)
    with merganser.snapshot(path) as folder:
        for file in list_data_files(path):
            assert not os.path.samefile(f"{path}/{file}", f"{folder}/{file}")
        before = read_bytes(folder)
        CHANGES[0](merganser.DuckDBDatasetIO(), path)
        assert read_bytes(folder) == before
    assert list_snapshots(path) == []


# V2
def test_a_snapshot_is_outside_of_a_dataset_that_holds_its_control_folder(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{lake}/t"
    monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)
    os.mkdir(path)
    write_first(merganser.DuckDBDatasetIO(), path)
    assert os.path.isdir(f"{path}/.t.merganser")
    expected = to_rows(merganser.read(path))
    with merganser.snapshot(path) as folder:
        assert not folder.startswith(path)
        CHANGES[0](merganser.DuckDBDatasetIO(), path)
        assert to_rows(merganser.read(folder)) == expected
        # What `read` returns holds no files that a glob over the dataset would find.
        found = merganser.PyArrowDatasetIO().read(path)
        with duckdb.connect() as connection:
            query = f"SELECT count(*) FROM read_parquet('{path}/**/*.parquet')"  # noqa: S608
            assert connection.execute(query).fetchall() == [(found.count_rows(),)] == [(5,)]
    assert not os.path.exists(folder)


# V2, V5
def test_on_an_object_store_a_snapshot_is_a_copy_there(lake: str) -> None:
    path = f"memory://{Path(lake).name}/t"
    io = merganser.PyArrowDatasetIO()
    write_first(io, path)
    expected = to_rows(io.read(path))
    with merganser.snapshot(path) as folder:
        assert folder.startswith("memory://")
        for change in CHANGES[:4]:
            change(io, path)
        assert to_rows(io.read(folder)) == expected
    with pytest.raises(TargetPathError):
        merganser.read(folder)
    assert to_rows(io.read(path, as_of=4)) == expected


# V2
def test_a_folder_without_data_has_no_snapshot(lake: str) -> None:
    with pytest.raises(TargetPathError, match=f"no Parquet files below {lake}/t"), merganser.snapshot(f"{lake}/t"):
        pass
    assert not os.path.exists(f"{lake}/t")


# V3
def test_what_read_returned_does_not_change(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_first(io, path)
    found = io.read(path)
    # What is made from it outlives it.
    name = "filter" if not isinstance(found, ds.Dataset) else "scanner"
    derived = found.scanner() if name == "scanner" else found.filter("id > 0")
    expected = to_rows(io.read(path))
    for change in CHANGES:
        change(io, path)
    assert to_rows(found) == expected
    is_spark = hasattr(found, "toArrow") and not isinstance(found, duckdb.DuckDBPyRelation)
    del found
    gc.collect()
    assert to_rows(derived) == expected
    del derived
    if is_spark:
        from tests.support import get_spark_session  # noqa: PLC0415  as above

        from merganser.engines.spark.pins import release_unused  # noqa: PLC0415  needs Spark

        until = time.monotonic() + 30
        while list_snapshots(path) and time.monotonic() < until:
            gc.collect()
            get_spark_session()._jvm.System.gc()
            time.sleep(0.1)
            release_unused()
    assert is_released(path)


# V3
def test_reading_needs_no_permission_to_write(io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{lake}/t"
    write_first(io, path)
    expected = to_rows(io.read(path))
    gc.collect()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "make_folder", mock.Mock(side_effect=PermissionError(13, "denied")))
        assert to_rows(io.read(path)) == expected
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "link", lambda *_: False)
        patch.setattr(LocalStore, "duplicate", mock.Mock(side_effect=AssertionError("a copy for a reader")))
        assert to_rows(io.read(path)) == expected


# V3
def test_reading_what_merganser_never_changed_creates_nothing(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/f.parquet", table([1], "a"))
    assert len(to_rows(io.read(f"{lake}/t"))) == 1
    assert os.listdir(lake) == ["t"]


# V3
def test_a_reader_does_not_wait_for_a_writer_that_stages(lake: str) -> None:
    path = f"{lake}/t"
    write_first(merganser.DuckDBDatasetIO(), path)
    with open_session(locate(path)):
        began = time.monotonic()
        assert merganser.read(path).num_rows == 4
        with merganser.snapshot(path, lock_timeout=0):
            assert time.monotonic() - began < 5


# V5
def test_a_past_state_equals_what_was(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_first(io, path)
    states = [to_rows(merganser.read(path))]
    for change in CHANGES:
        change(io, path)
        states.append(to_rows(merganser.read(path)))
    records = merganser.history(path)
    assert len(records) == len(states)
    undone = next(number for number, record in enumerate(records) if record.operation == "undo")
    for number, (record, expected) in enumerate(zip(records, reversed(states), strict=True)):
        if number == undone + 1:
            # What the undo took away is lost.
            with pytest.raises(NotRetainedError, match="not retained"):
                merganser.read(path, as_of=record.id)
            continue
        assert to_rows(merganser.read(path, as_of=number)) == expected
        with merganser.snapshot(path, as_of=record.id) as folder:
            assert to_rows(merganser.read(folder)) == expected
        assert to_rows(merganser.read(path, as_of=record.committed_at)) == expected
    assert to_rows(io.read(path, as_of=len(records) - 1)) == states[0]
    gc.collect()


# V5
def test_an_error_says_from_when_on_states_are_retained(lake: str) -> None:
    path = f"{lake}/t"
    with pytest.raises(NotRetainedError, match=r"no history.*retain=1"):
        merganser.read(f"{put(f'{lake}/u/f.parquet', table([1], 'a'))[: -len('/f.parquet')]}", as_of=1)
    io = merganser.DuckDBDatasetIO()
    write_first(io, path)
    for value in "bcd":
        io.merge(table([1, 2], value), path, "upsert", "id", retain=2)
    records = merganser.history(path)
    assert merganser.read(path, as_of=2).num_rows == 4
    message = (
        rf"as of 3 is not retained.*from {records[2].committed_at:%Y-%m-%d %H:%M:%S} UTC on, after {records[2].id}"
    )
    for as_of in (3, records[3].id, records[3].committed_at, datetime(2020, 1, 1, tzinfo=UTC), "2020-01-01", 99):
        with pytest.raises(
            NotRetainedError, match=message.replace("as of 3", "as of .*").replace("after ", "after commit ")
        ):
            merganser.read(path, as_of=as_of)
    with pytest.raises(NotRetainedError), merganser.snapshot(path, as_of=3):
        pass
    assert list_snapshots(path) == []


# V5
@pytest.mark.parametrize("as_of", ["yesterday", -1, True, 1.5, ""])
def test_what_names_no_state_is_refused(as_of: Any, lake: str) -> None:
    write_first(merganser.DuckDBDatasetIO(), f"{lake}/t")
    with pytest.raises(InvalidArgumentError, match="is not a commit: give the id"):
        merganser.read(f"{lake}/t", as_of=as_of)


# V5
def test_a_time_without_a_zone_is_utc(lake: str) -> None:
    path = f"{lake}/t"
    write_first(merganser.DuckDBDatasetIO(), path)
    first = merganser.history(path)[0].committed_at
    CHANGES[0](merganser.DuckDBDatasetIO(), path)
    for as_of in (
        first.replace(tzinfo=None),
        first.replace(tzinfo=None).isoformat(),
        first + timedelta(microseconds=1),
    ):
        assert merganser.read(path, as_of=as_of).num_rows == 4


# V5
def test_a_retained_file_that_another_program_changed_is_not_a_past_state(lake: str) -> None:
    path = f"{lake}/t"
    io = merganser.DuckDBDatasetIO()
    write_first(io, path)
    io.merge(table([1], "b"), path, "upsert", "id", retain=1)
    (kept,) = Path(f"{lake}/.t.merganser/retained").glob("*/*")
    os.utime(kept, (1, 1))
    with pytest.raises(NotRetainedError, match="not retained"):
        merganser.read(path, as_of=1)


# V3 C1
@pytest.mark.parametrize("as_of", [None, 1])
def test_no_pattern_finds_the_files_that_read_opened(io: AnyDatasetIO, lake: str, as_of: int | None) -> None:
    path = f"{lake}/t"
    io.merge(table([1, 2, 3], "a"), path, "upsert", "id", retain=5)
    io.merge(table([2, 4], "b"), path, "upsert", "id", retain=5)
    found = io.read(path, as_of=as_of)
    assert list_snapshots(path)
    assert pl.scan_parquet(f"{lake}/**/*.parquet").collect().height == 4
    assert duckdb.read_parquet(f"{lake}/**/*.parquet").count("*").fetchall() == [(4,)]
    assert len(to_rows(found)) == (4 if as_of is None else 3)


# V3
@pytest.mark.parametrize("as_of", [None, 1])
@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_a_dataset_that_read_returned_is_pickled_and_shows_its_files(lake: str, scheme: str, as_of: int | None) -> None:
    path = f"{scheme}{lake}/t"
    io = merganser.PyArrowDatasetIO()
    for value in "ab":
        io.merge(table([1, 2], value), path, "upsert", "id", retain=5)
    found = io.read(path, as_of=as_of)
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301  made here
    assert to_rows(copy) == to_rows(found)
    assert len(found.files) == 1
    for name in found.files:
        assert found.filesystem.open_input_file(name).read().startswith(b"PAR1")
