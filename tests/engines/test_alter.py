"""`alter`: the schema of every file changes in one commit, and what does not change is copied byte for byte (E2)."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, put, read_everywhere, read_rows, snapshot

import merganser
from merganser import history, undo
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    InvalidArgumentError,
    SchemaMismatchError,
    TargetPathError,
)

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


@pytest.fixture
def path(lake: str) -> str:
    for number in range(2):
        ids = [4 * number + at for at in range(4)]
        table = pa.table(
            {"id": pa.array(ids, pa.int32()), "v": [f"v{one}" for one in ids], "w": [one / 4 for one in ids]}
        )
        put(f"{lake}/t/f{number}.parquet", table, row_group_size=2)
    return f"{lake}/t"


def control_files(path: str) -> dict[str, bytes]:
    control = Path(path).parent / f".{Path(path).name}.merganser"
    return {name: data for name, data in snapshot(str(control)).items() if name != "lock"}


def read_chunk(path: str, column: str, group: int = 0) -> bytes:
    """Return the bytes of a column chunk."""
    with pq.ParquetFile(path) as file:
        row_group = file.metadata.row_group(group)
        chunk = next(
            row_group.column(at)
            for at in range(row_group.num_columns)
            if row_group.column(at).path_in_schema.split(".")[0] == column
        )
    start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    return Path(path).read_bytes()[start : start + chunk.total_compressed_size]


# E1, E2
def test_all_changes_are_one_commit_and_the_rest_is_copied(io: AnyDatasetIO, path: str) -> None:
    copied = {name: read_chunk(f"{path}/f0.parquet", name) for name in ("v", "id")}
    result = io.alter(
        path,
        add={"x": "int64", "y": pa.string()},
        default={"x": 7},
        drop="w",
        rename={"v": "name"},
        widen={"id": "BIGINT"},
    )
    assert result.changes == [
        "rename column 'v' to 'name'",
        "change column 'id' from int32 to int64",
        "add column 'x' (int64)",
        "add column 'y' (string)",
        "drop column 'w'",
    ]
    assert result.schema_before == {"id": "int32", "v": "string", "w": "double"}
    assert result.schema_after == {"id": "int64", "name": "string", "x": "int64", "y": "string"}
    assert (result.row_count, len(result.rewritten_files), result.preserved_files, result.is_plan) == (8, 2, [], False)
    assert result.bytes_copied > 0 < result.bytes_encoded
    assert read_chunk(result.rewritten_files[0], "name") == copied["v"]
    assert read_chunk(result.rewritten_files[0], "id") != copied["id"]
    expected = [{"id": one, "name": f"v{one}", "x": 7, "y": None} for one in range(8)]
    assert read_everywhere(path) == expected
    assert read_rows(io, path) == expected
    (record,) = history(path)
    assert (record.operation, record.target_count_before, record.target_count_after) == ("alter", 8, 8)
    assert (record.schema_before, record.schema_after) == (result.schema_before, result.schema_after)
    # A reader that knows the old files must not find new ones in their place, without its columns.
    assert {file.operation for file in record.files} == {"inserted", "removed"}


# E2, M9
def test_an_undo_restores_the_files_byte_for_byte(io: AnyDatasetIO, path: str) -> None:
    before = snapshot(path)
    io.alter(path, add={"x": "int64"}, drop="w", widen={"id": "int64"}, retain=1)
    assert snapshot(path) != before
    undo(path)
    assert snapshot(path) == before


# E2
def test_a_plan_changes_nothing_and_says_what_would_change(io: AnyDatasetIO, path: str) -> None:
    with assert_unchanged(path):
        planned = io.alter(path, add={"x": "int64"}, widen={"id": "int64"}, plan=True)
    assert control_files(path) == {}
    done = io.alter(path, add={"x": "int64"}, widen={"id": "int64"})
    assert (planned.is_plan, done.is_plan) == (True, False)
    for name in ("changes", "schema_before", "schema_after", "rewritten_files", "bytes_copied", "bytes_encoded"):
        assert getattr(planned, name) == getattr(done, name), name


CHANGES: dict[str, dict[str, Any]] = {
    "add": {"add": {"x": "int64"}},
    "default": {"add": {"x": "int64"}, "default": {"x": 1}},
    "drop": {"drop": ["w"]},
    "rename": {"rename": {"w": "weight"}},
    "widen": {"widen": {"id": "int64"}},
    "rename and widen": {"rename": {"id": "key"}, "widen": {"id": "int64"}},
    "rename onto a dropped name": {"drop": "w", "rename": {"v": "w"}},
    "unify": {"unify": True},
}


# E2
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_made_already_changes_nothing(io: AnyDatasetIO, path: str, name: str) -> None:
    io.alter(path, **CHANGES[name])
    control = control_files(path)
    with assert_unchanged(path):
        again = io.alter(path, **CHANGES[name])
    assert (again.changes, again.rewritten_files, len(again.preserved_files)) == ([], [], 2)
    assert control_files(path) == control


# E2
def test_names_may_be_swapped_and_reused(io: AnyDatasetIO, path: str) -> None:
    result = io.alter(path, rename={"v": "w", "w": "v"})
    assert result.changes == ["rename column 'v' to 'w'", "rename column 'w' to 'v'"]
    assert read_everywhere(path)[1] == {"id": 1, "w": "v1", "v": 0.25}
    result = io.alter(path, rename={"v": "z"}, add={"v": "date32"}, default={"v": dt.date(2024, 2, 29)})
    assert result.changes == ["rename column 'v' to 'z'", "add column 'v' (date32[day])"]
    assert read_everywhere(path)[1] == {"id": 1, "w": "v1", "z": 0.25, "v": dt.date(2024, 2, 29)}


# E1, E2
def test_partitioned_files_keep_their_folders_and_their_own_copies(io: AnyDatasetIO, lake: str) -> None:
    for day, held in (("a", {}), ("b", {"day": ["b"]})):
        put(f"{lake}/t/day={day}/f.parquet", pa.table({**held, "id": [1], "v": [day]}))
    result = io.alter(f"{lake}/t", add={"x": "int64"}, default={"x": 5}, rename={"v": "name"})
    assert list(result.schema_after) == ["id", "name", "x", "day"]
    assert pq.read_schema(result.rewritten_files[1]).names == ["id", "name", "x", "day"]
    assert read_rows(io, f"{lake}/t", ["day"]) == [
        {"id": 1, "name": "a", "x": 5, "day": "a"},
        {"id": 1, "name": "b", "x": 5, "day": "b"},
    ]
    for change in ({"drop": "day"}, {"rename": {"day": "d"}}, {"widen": {"day": "string"}}):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(InvalidArgumentError, match="partition column 'day'"),
        ):
            io.alter(f"{lake}/t", **change)
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match="'day'"):
        io.alter(f"{lake}/t", add={"day": "int64"})


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidArgumentError, "nothing to change"),
    ({"add": ["x"]}, InvalidArgumentError, "add must map columns to types"),
    ({"default": {"v": 1}}, InvalidArgumentError, "nothing to change|not in add"),
    ({"add": {"x": "int64"}, "default": {"y": 1}}, InvalidArgumentError, "'y', which is not in add"),
    ({"add": {"": "int64"}}, InvalidArgumentError, "is not a column name"),
    ({"rename": {"v": "\ud800"}}, InvalidArgumentError, "is not a column name"),
    ({"rename": {"v": "x"}, "add": {"x": "int8"}}, InvalidArgumentError, "Two columns would be named 'x'"),
    ({"drop": "v", "widen": {"v": "string"}}, InvalidArgumentError, "in drop and in another change"),
    ({"drop": ["id", "v", "w"]}, InvalidArgumentError, "No column would be left"),
    ({"widen": {"nope": "int64"}}, SchemaMismatchError, "no column 'nope'"),
    ({"rename": {"nope": "x"}}, SchemaMismatchError, "no column 'nope'"),
    ({"rename": {"v": "w"}}, SchemaMismatchError, "'w', which exists"),
    ({"rename": {"v": "W"}}, SchemaMismatchError, "differ only in case"),
    ({"rename": {"v": "a", "w": "A"}}, SchemaMismatchError, "differ only in case"),
    ({"add": {"V": "int64"}}, SchemaMismatchError, "differ only in case"),
    ({"add": {"x": "int64", "X": "int64"}}, SchemaMismatchError, "differ only in case"),
    ({"add": {"v": "int64"}}, SchemaMismatchError, "'v' exists, with another type"),
    ({"widen": {"id": "int16"}}, ColumnTypeError, "'id' has type int32, which cannot be widened to int16"),
    ({"widen": {"v": "int64"}}, ColumnTypeError, "cannot be widened to int64"),
    ({"widen": {"w": "float"}}, ColumnTypeError, "cannot be widened"),
    ({"add": {"x": "int8"}, "default": {"x": 300}}, ColumnValueError, "default 300 of column 'x'"),
    ({"add": {"x": "int8"}, "default": {"x": "a"}}, ColumnValueError, "default 'a' of column 'x'"),
]


# E2
@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=[ascii(one[0]) for one in REFUSED])
def test_a_change_that_cannot_be_made_is_refused(
    io: AnyDatasetIO, path: str, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with assert_unchanged(path), pytest.raises(error, match=message):
        io.alter(path, **change)
    assert not any(name.startswith("history") for name in control_files(path))


# E2
def test_a_path_without_files_is_refused(io: AnyDatasetIO, lake: str) -> None:
    for plans in (False, True):
        with pytest.raises(TargetPathError, match="no Parquet files"):
            io.alter(f"{lake}/none", add={"x": "int64"}, plan=plans)
    assert snapshot(lake) == {}


# E2
def test_a_value_that_does_not_fit_a_finer_unit_is_refused_with_its_file(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/f.parquet", pa.table({"id": [1], "t": pa.array([1 << 60], pa.timestamp("us"))}))
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ColumnValueError, match=r"'t' holds .*f\.parquet"),
    ):
        io.alter(f"{lake}/t", widen={"t": "timestamp[ns]"})


DEFAULTS: list[tuple[pa.DataType, Any]] = [
    (pa.uuid(), uuid.UUID(int=5)),
    (pa.uuid(), uuid.UUID(int=5).bytes),
    (pa.list_(pa.int64()), [1, None]),
    (pa.struct([("a", pa.int8())]), {"a": 1}),
    (pa.map_(pa.string(), pa.int8()), [("k", 1)]),
    (pa.list_(pa.int8(), 2), [1, 2]),
    (pa.dictionary(pa.int8(), pa.string()), "x"),
    (pa.duration("us"), dt.timedelta(days=1)),
    (pa.timestamp("ms", "Europe/Paris"), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
    (pa.time32("s"), dt.time(12, 34, 56)),
    (pa.decimal64(12, 2), Decimal("1.25")),
    (pa.binary(3), b"abc"),
    (pa.string_view(), "q"),
    (pa.bool_(), False),
    (pa.float64(), float("inf")),
]


# E2
@pytest.mark.parametrize(("kind", "value"), DEFAULTS, ids=[str(kind) for kind, _ in DEFAULTS])
@pytest.mark.parametrize("stores_schema", [True, False])
def test_a_new_column_has_its_default_in_every_row(
    lake: str, kind: pa.DataType, value: Any, stores_schema: bool
) -> None:
    table = pa.table({"id": range(5)})
    put(f"{lake}/t/f.parquet", table, row_group_size=2, store_schema=stores_schema)
    merganser.alter(f"{lake}/t", add={"x": kind, "y": kind}, default={"x": value}, engine="arrow")
    found = pq.read_table(f"{lake}/t/f.parquet")
    expected = uuid.UUID(bytes=value) if kind == pa.uuid() and isinstance(value, bytes) else value
    assert found.column("x").to_pylist() == [expected] * 5
    assert found.column("y").to_pylist() == [None] * 5
    with pq.ParquetFile(f"{lake}/t/f.parquet") as file:
        assert [file.metadata.row_group(at).num_rows for at in range(3)] == [2, 2, 1]


# E2
def test_files_without_rows_or_row_groups_change_too(io: AnyDatasetIO, lake: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("v", pa.string())])
    put(f"{lake}/t/a.parquet", schema.empty_table())
    with pq.ParquetWriter(f"{lake}/t/b.parquet", schema):
        pass
    put(f"{lake}/t/c.parquet", pa.table({"id": [1], "v": ["x"]}, schema=schema))
    io.alter(f"{lake}/t", add={"x": "int64"}, default={"x": 5}, widen={"id": "int64"}, rename={"v": "name"})
    assert read_everywhere(f"{lake}/t") == [{"id": 1, "name": "x", "x": 5}]


# E2
def test_a_dataset_on_an_object_store_is_altered(io: AnyDatasetIO, lake: str) -> None:
    url = "memory://lake/t" if not getattr(io, "spark", None) else f"file://{lake}/t"
    merganser.write_dataset(pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}), url, engine="arrow")
    filesystem, root = fsspec.core.url_to_fs(url)
    before = {name: filesystem.cat_file(name) for name in filesystem.find(root)}
    result = io.alter(url, add={"x": "string"}, default={"x": "q"}, widen={"id": "int64"}, rename={"v": "w"}, retain=1)
    assert len(result.rewritten_files) == 1
    assert merganser.read(url).to_pylist() == [{"id": 1, "w": "a", "x": "q"}, {"id": 2, "w": "b", "x": "q"}]
    assert [record.operation for record in history(url)] == ["alter", "write_dataset"]
    undo(url)
    assert {name: filesystem.cat_file(name) for name in filesystem.find(root)} == before


# E2, C5
def test_an_alter_reports_its_progress(io: AnyDatasetIO, path: str) -> None:
    stages: list[str] = []
    io.alter(path, add={"x": "int64"}, progress=lambda progress: stages.append(progress.stage))
    assert list(dict.fromkeys(stages)) == ["rewrite", "commit", "done"]
