"""Rows that tasks stage once, for several merges: all rows of a key in one task, however many there are."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import open_spark_shuffle, read_rows

from merganser.core.storage.location import locate
from merganser.engines.spark import grouping
from merganser.engines.spark.grouping import Grouping, run_groupings
from merganser.engines.spark.row_files import RowFiles, RowFileWriter, write_row_files
from merganser.engines.spark.shuffle import ShuffleSource
from merganser.errors import ColumnValueError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import AnyDatasetIO

SCHEMA = pa.schema({"key": pa.string(), "n": pa.int64()})


def stage_rows(folder: Path, files: int, rows: int) -> RowFiles:
    """Stage rows whose keys repeat from file to file; in each, one has none."""
    location = locate(str(folder))
    location.store.make_folder(location.root)
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(rows)]
    found = []
    for file in range(files):
        batch = pa.record_batch([[*digests, None], [file * 1000 + number for number in range(rows + 1)]], schema=SCHEMA)
        found += write_row_files([batch], location.store, location.root, SCHEMA)
    return RowFiles(location.store, SCHEMA, tuple(found))


def list_rows(keep: list[str], table: pa.Table) -> list[dict[str, Any]]:
    return table.select(keep).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("limit", [64 << 20, 200])
def test_all_rows_of_a_key_reach_one_task(spark: Any, tmp_path: Path, limit: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(grouping, "FILE_BYTES", limit)
    rows = stage_rows(tmp_path / "rows", files=3, rows=20)
    work = partial(list_rows, ["key", "n"])
    selected = rows.select(SCHEMA.names)
    one, other = run_groupings(spark, [Grouping(selected, "key", work), Grouping(selected, "key", work)])
    assert one == other
    assert (len(one) > 1) == (limit == 200)
    keys = [{row["key"] for row in group} for group in one]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 21
    # Groups are in the order of their keys, so that what is sorted in each of them is sorted in all.
    bounds = [(min(found), max(found)) for found in ({key for key in group if key} for group in keys) if found]
    assert bounds == sorted(bounds)
    assert all(before[1] < after[0] for before, after in pairwise(bounds))
    everything = sorted(row["n"] for group in one for row in group)
    assert everything == sorted(file * 1000 + number for file in range(3) for number in range(21))
    assert not list(tmp_path.glob("*.groups"))


def test_row_files_are_a_source(io: AnyDatasetIO, tmp_path: Path) -> None:
    rows = stage_rows(tmp_path / "rows", files=2, rows=3)
    source = rows.select({"id": "n", "k": "key", "at": pa.scalar(7), "why": pa.scalar("x")})
    path = str(tmp_path / "t")
    assert io.merge(source, path, "upsert", "id").inserted == 8
    planned = io.plan(source, path, "upsert", "id", skip_unchanged=True)
    again = io.merge(source, path, "upsert", "id", skip_unchanged=True)
    assert (planned.updated, planned.skipped) == (again.updated, again.skipped) == (0, 8)
    found = read_rows(io, path)
    assert sorted(row["id"] for row in found) == [0, 1, 2, 3, 1000, 1001, 1002, 1003]
    assert {(row["at"], row["why"]) for row in found} == {(7, "x")}


# M3
def test_rows_that_are_left_out_are_counted(io: AnyDatasetIO, tmp_path: Path) -> None:
    source = pa.table({"id": [1, 1, 2], "n": [1, 2, 3]})
    result = io.merge(source, str(tmp_path / "t"), "deduplicate", "id", dedup_order_by="n")
    assert (result.source_count, result.deduplicated, result.inserted) == (3, 1, 2)


def test_a_value_that_does_not_fit_is_refused(io: AnyDatasetIO, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    io.merge(pa.table({"id": [1], "k": pa.array([1], pa.int8())}), path, key_columns="id")
    location = locate(str(tmp_path / "rows"))
    location.store.make_folder(location.root)
    schema = pa.schema({"id": pa.int64(), "k": pa.int64()})
    files = write_row_files([pa.record_batch([[2], [300]], schema=schema)], location.store, location.root, schema)
    with pytest.raises(ColumnValueError, match="k"):
        io.merge(RowFiles(location.store, schema, tuple(files)).select(schema.names), path, key_columns="id")
    assert read_rows(io, path) == [{"id": 1, "k": 1}]


def test_files_are_recorded_as_json(tmp_path: Path) -> None:
    rows = stage_rows(tmp_path, files=2, rows=3)
    assert RowFiles.from_dict(rows.store, rows.files[0].path.rpartition("/")[0], rows.to_dict()) == rows


def write_and_fail(writer: RowFileWriter) -> None:
    with writer:
        writer.write(pa.record_batch([["a"], [1]], schema=SCHEMA))
        raise ZeroDivisionError


def test_a_writer_that_fails_lists_no_file(tmp_path: Path) -> None:
    location = locate(str(tmp_path))
    writer = RowFileWriter(location.store, location.root, SCHEMA)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(writer)
    assert not writer.files


def test_keys_that_are_known_to_be_unique_are_not_compared(tmp_path: Path, monkeypatch: Any) -> None:
    io: Any = open_spark_shuffle()

    def refuse(_: ShuffleSource) -> tuple[int, pa.Table]:
        raise AssertionError

    monkeypatch.setattr(ShuffleSource, "find_duplicate_keys", refuse)
    rows = stage_rows(tmp_path / "rows", files=1, rows=20).select({"n": "n", "key": "key"})
    with pytest.raises(AssertionError):
        io.merge(rows, str(tmp_path / "lake"), key_columns="n")
    result = io.merge(replace(rows, unique_columns=["n"]), str(tmp_path / "lake"), key_columns="n")
    assert result.inserted == 21
