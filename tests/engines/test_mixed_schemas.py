"""Folders whose files differ: they can be read, inspected and planned, and get one schema in one commit (E1, E5)."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import (
    assert_unchanged,
    decide_here,
    list_data_files,
    put,
    read_everywhere,
    read_rows,
    read_table,
    snapshot,
)

import merganser
from merganser import history, undo
from merganser.core.dataset import file_statistics, statistics_cache
from merganser.core.merge import filter_pruning
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

EVOLVE: Any = {"schema_mode": "evolve"}


def make_table(ids: list[int], key: pa.DataType | None = None, **values: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, key or pa.int64()), **values})


def instants(unit: Any, factor: int) -> pa.Array:
    return pa.array([5 * factor, 6 * factor], pa.timestamp(unit))


# Two tables for two files, what differs, and a third row for the first.
MIXED: dict[str, tuple[pa.Table, pa.Table, str]] = {
    "value": (
        make_table([1, 2], v=pa.array([1, 2], pa.int32())),
        make_table([3, 4], v=pa.array([2**40, 4], pa.int64())),
        "'v' is int32 in 1 file (…a.parquet), int64 in 1 file (…b.parquet)",
    ),
    "key": (
        make_table([1, 2], pa.int32(), v=[1, 2]),
        make_table([3, 4], pa.int64(), v=[3, 4]),
        "'id' is int32 in 1 file (…a.parquet), int64 in 1 file (…b.parquet)",
    ),
    "wider first": (
        make_table([1, 2], pa.int64(), v=[1.5, 2.5]),
        make_table([3, 4], pa.int16(), v=pa.array([3.5, 4.5], pa.float32())),
        (
            "'id' is int64 in 1 file (…a.parquet), int16 in 1 file (…b.parquet); "
            "'v' is double in 1 file (…a.parquet), float in 1 file (…b.parquet)"
        ),
    ),
    "unit": (
        make_table([1, 2], v=instants("ms", 1)),
        make_table([3, 4], v=instants("us", 1000)),
        "'v' is timestamp[ms] in 1 file (…a.parquet), timestamp[us] in 1 file (…b.parquet)",
    ),
    "nanoseconds": (
        make_table([1, 2], v=instants("us", 1)),
        make_table([3, 4], v=instants("ns", 1000)),
        "'v' is timestamp[us] in 1 file (…a.parquet), timestamp[ns] in 1 file (…b.parquet)",
    ),
    "null": (
        make_table([1, 2], v=pa.nulls(2)),
        make_table([3, 4], v=["c", "d"]),
        "'v' is null in 1 file (…a.parquet), string in 1 file (…b.parquet)",
    ),
    "missing from the first": (
        make_table([1, 2]),
        make_table([3, 4], v=["c", "d"]),
        "'v' is missing from 1 file (…a.parquet), string in 1 file (…b.parquet)",
    ),
    "missing from the last": (
        make_table([1, 2], v=["a", "b"], w=[1, 2]),
        pa.table({"w": [3, 4], "id": [3, 4]}),
        "'v' is string in 1 file (…a.parquet), missing from 1 file (…b.parquet)",
    ),
    "duration": (
        make_table([1, 2], v=pa.array([1, 2], pa.duration("ms"))),
        make_table([3, 4], v=pa.array([3, 4], pa.duration("us"))),
        "'v' is duration[ms] in 1 file (…a.parquet), duration[us] in 1 file (…b.parquet)",
    ),
    "fixed size": (
        make_table([1, 2], v=pa.array([[1, 2], None], pa.list_(pa.int8(), 2))),
        make_table([3, 4], v=pa.array([[1, 2, 3], None], pa.list_(pa.int8(), 3))),
        "'v' is fixed_size_list<element: int8>[2] in 1 file (…a.parquet), fixed_size_list<element: int8>[3] in …",
    ),
    "struct": (
        make_table([1, 2], v=[{"a": 1}, None]),
        make_table([3, 4], v=[{"b": "x", "a": 1}, None]),
        "'v' is struct<a: int64> in 1 file (…a.parquet), struct<b: string, a: int64> in 1 file (…b.parquet)",
    ),
}


def write_mixed(path: str, name: str) -> list[dict[str, Any]]:
    """Write both files, and return the rows of the unified dataset."""
    one, other, _ = MIXED[name]
    put(f"{path}/a.parquet", one, row_group_size=1)
    put(f"{path}/b.parquet", other, row_group_size=1)
    names = [*one.column_names, *(column for column in other.column_names if column not in one.column_names)]
    rows = [dict.fromkeys(names) | row for row in [*one.to_pylist(), *other.to_pylist()]]
    if name == "struct":
        for row in rows:
            row["v"] = row["v"] and {"a": row["v"]["a"], "b": row["v"].get("b")}
    return rows


def read_unified(io: AnyDatasetIO, path: str, name: str) -> list[dict[str, Any]]:
    """Read a dataset with every reader; a duration is an integer to DuckDB."""
    rows = read_rows(io, path)
    if name != "duration":
        assert sorted(read_everywhere(path), key=lambda row: row["id"]) == rows
    schemas = [pq.read_schema(f"{path}/{file}") for file in list_data_files(path)]
    assert all(schema.equals(schemas[0]) for schema in schemas)
    return rows


def to_pattern(text: str) -> str:
    return re.escape(text).replace("…", ".*")


# E5
@pytest.mark.parametrize("name", MIXED)
def test_a_mixed_folder_is_read_inspected_and_planned(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = f"{lake}/t"
    expected = write_mixed(path, name)
    source = make_table([3])
    with assert_unchanged(path):
        assert read_rows(io, path) == expected
        found = sorted(read_table(io, path).to_pylist(), key=lambda row: row["id"])
        # An interval of DuckDB has months and days too.
        assert found == expected or name == "duration"
        inspection = merganser.inspect(path, "id")
        assert (inspection.rows, inspection.duplicate_keys) == (4, 0)
        assert [*inspection.columns] == [*expected[0]]
        planned = io.plan(source, path, "delete", "id")
        assert (planned.deleted, planned.target_count_after) == (1, 3)
        assert re.fullmatch(to_pattern(MIXED[name][2]), "; ".join(map(str, planned.schema_differences)))
        assert "unify files: " in str(planned)
        planned = io.plan(source, path, "update", "id", **EVOLVE)
        assert planned.updated == 1
    assert snapshot(f"{lake}/.t.merganser") == {}


# E5
@pytest.mark.parametrize("name", MIXED)
def test_a_strict_merge_is_refused_with_the_call_that_unifies(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = f"{lake}/t"
    expected = write_mixed(path, name)
    source = make_table([3])
    for change in (
        lambda: io.merge(source, path, "delete", "id"),
        lambda: io.write_dataset(source, path),
        lambda: merganser.compact(path),
        lambda: merganser.dedupe(path, "id"),
        lambda: io.alter(path, add={"new": "int64"}),
    ):
        with assert_unchanged(path), pytest.raises(SchemaMismatchError, match=to_pattern(MIXED[name][2])) as refused:
            change()
    call = re.search(r"alter\(.*?unify=True\)", str(refused.value))
    assert call is not None
    before = snapshot(path)
    result = eval(call[0], {"alter": partial(io.alter, retain=1)})  # noqa: S307  the text under test
    assert any(line.startswith("unify files: ") for line in result.changes)
    assert read_unified(io, path, name) == expected
    with assert_unchanged(path):
        assert io.alter(path, unify=True).rewritten_files == []
    undo(path)
    assert snapshot(path) == before
    io.alter(path, unify=True)
    assert io.merge(source, path, "delete", "id").deleted == 1


# E1, E5
@pytest.mark.parametrize("name", MIXED)
def test_an_evolving_merge_unifies_in_the_same_commit(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = f"{lake}/t"
    expected = write_mixed(path, name)
    before = snapshot(path)
    source = make_table([2, 3, 9], pa.int32(), x=["new"] * 3)
    result = io.merge(source, path, "upsert", "id", retain=1, **EVOLVE)
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (2, 1, 2)
    rows = [row | {"x": "new" if row["id"] in (2, 3) else None} for row in expected]
    rows.append(dict.fromkeys(rows[0]) | {"id": 9, "x": "new"})
    assert read_unified(io, path, name) == rows
    assert len(history(path)) == 1
    undo(path)
    assert snapshot(path) == before


# E1, E5
def test_an_evolving_append_unifies_too(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    expected = write_mixed(path, "value")
    io.write_dataset(make_table([9], v=pa.array([9], pa.int8())), path, **EVOLVE)
    assert sorted(read_everywhere(path), key=lambda row: row["id"]) == [*expected, {"id": 9, "v": 9}]


# E5, S1
def test_another_order_of_columns_is_no_difference_and_is_unified(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", make_table([1, 2], v=["a", "b"]))
    put(f"{path}/b.parquet", pa.table({"v": ["c", "d"], "id": [3, 4]}))
    assert io.merge(make_table([3], v=["new"]), path, "upsert", "id").updated == 1
    assert pq.read_schema(f"{path}/b.parquet").names == ["v", "id"]
    result = io.alter(path, unify=True)
    assert len(result.rewritten_files) == 1
    assert [pq.read_schema(f"{path}/{name}").names for name in list_data_files(path)] == [["id", "v"]] * 2
    assert [row["v"] for row in sorted(read_everywhere(path), key=lambda row: row["id"])] == ["a", "b", "new", "d"]


# E1, E5
def test_columns_that_differ_only_in_case_are_not_put_into_one_file(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", make_table([1], V=["a"]))
    put(f"{path}/b.parquet", make_table([2], v=["b"]))
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="only in case"):
        io.alter(path, unify=True)
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="only in case"):
        io.merge(make_table([1], x=["new"]), path, "upsert", "id", **EVOLVE)


# E5
def test_files_that_no_type_holds_are_refused_by_every_call(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", make_table([1], v=pa.array([0], pa.timestamp("us"))))
    put(f"{path}/b.parquet", make_table([2], v=pa.array([0], pa.timestamp("us", "UTC"))))
    for call in (
        lambda: io.read(path),
        lambda: io.plan(make_table([1]), path, "delete", "id"),
        lambda: io.merge(make_table([1]), path, "upsert", "id", **EVOLVE),
        lambda: io.alter(path, unify=True),
    ):
        message = (
            r"'v': timestamp\[us\] in .*a\.parquet, timestamp\[us, tz=UTC\] in .*b\.parquet, and no type holds both"
        )
        with assert_unchanged(path), pytest.raises(SchemaMismatchError, match=message):
            call()


# E5
@pytest.mark.parametrize("kinds", [(pa.int32(), pa.int64()), (pa.int64(), pa.int32()), (pa.int32(), pa.float64())])
def test_duplicates_across_types_are_found(lake: str, kinds: tuple[pa.DataType, pa.DataType]) -> None:
    for number, kind in enumerate(kinds):
        put(f"{lake}/t/f{number}.parquet", make_table([1, 2 + number], kind))
    assert merganser.inspect(f"{lake}/t", "id").duplicate_keys == 1
    merganser.alter(f"{lake}/t", unify=True, engine="arrow")
    merganser.dedupe(f"{lake}/t", "id")
    assert sorted(row["id"] for row in read_everywhere(f"{lake}/t")) == [1, 2, 3]


# E5, H1
def test_partitions_may_differ(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=1/f.parquet", pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    put(f"{path}/day=2/f.parquet", pa.table({"v": ["b"], "id": [2], "day": [2], "w": [0.5]}))
    source = pa.table({"id": [2, 3], "day": pa.array([2, 1], pa.int32()), "w": [2.5, 3.5]})
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="unify=True"):
        io.merge(source.append_column("v", [["x", "y"]]), path, "upsert", ["id", "day"])
    result = io.merge(source, path, "upsert", ["id", "day"], **EVOLVE)
    assert (result.updated, result.inserted) == (1, 1)
    found = [(row["id"], row["v"], row["w"], int(row["day"])) for row in read_rows(io, path)]
    assert found == [(1, "a", None, 1), (2, "b", 2.5, 2), (3, None, 3.5, 1)]


# E1, E5, S1
def test_a_column_that_is_required_and_missing_is_null_where_it_is_missing(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": ["a"]}, schema=schema))
    put(f"{path}/b.parquet", make_table([2]))
    assert read_rows(io, path) == [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
    io.alter(path, unify=True)
    assert read_rows(io, path) == [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
    assert all(pq.read_schema(f"{path}/{name}").field("v").nullable for name in list_data_files(path))


KEYS: dict[str, tuple[pa.DataType, pa.DataType, pa.DataType]] = {
    "integers": (pa.int32(), pa.int64(), pa.int16()),
    "integers, wider first": (pa.int64(), pa.int32(), pa.int64()),
    "signs": (pa.uint16(), pa.int8(), pa.int64()),
    "integer and float": (pa.int32(), pa.float64(), pa.float64()),
    "decimals": (pa.decimal128(5, 1), pa.decimal128(9, 2), pa.int32()),
    "units": (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
    "units, finer first": (pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("us")),
    "fixed bytes": (pa.binary(3), pa.binary(4), pa.binary()),
}


def make_keys(numbers: list[int], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([b"%d" % number + b"." * (kind.byte_width - len(str(number))) for number in numbers], kind)
    if pa.types.is_binary(kind):
        return pa.array([b"%d" % number + b"." * (3 - len(str(number))) for number in numbers], kind)
    factor = 1000 if kind == pa.timestamp("us") else 1
    return pa.array([number * factor for number in numbers], kind)


@pytest.fixture(params=["bounds", "cache and filters"])
def pruning(request: pytest.FixtureRequest, io: AnyDatasetIO) -> Any:
    """Prune by bounds alone, or by the statistics cache and by filters of keys too; files are trusted at once."""
    decide_here(io)
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(file_statistics, "SETTLE_NANOSECONDS", 0))
        if request.param != "bounds":
            patches.enter_context(mock.patch.object(statistics_cache, "MIN_FILES", 1))
            patches.enter_context(mock.patch.multiple(filter_pruning, MIN_TOTAL_ROWS=1, MIN_FILE_ROWS=1))
        yield request.param


# E5, P1, P4
@pytest.mark.parametrize("name", KEYS)
def test_pruning_never_loses_a_match(io: AnyDatasetIO, lake: str, name: str, pruning: str) -> None:
    path, (one, other, given) = f"{lake}/t", KEYS[name]
    for number in range(6):
        # Keys of each file alternate, so that bounds alone cannot decide.
        ids = make_keys([number + 6 * at for at in range(5)], other if number % 2 else one)
        put(f"{path}/f{number}.parquet", pa.table({"id": ids, "v": ["old"] * 5}), row_group_size=2)
    wanted = [7, 8, 12, 100] if other != pa.binary(4) else [6, 8, 12, 100]
    source = pa.table({"id": make_keys(wanted, given), "v": ["new"] * 4})
    assert io.plan(source, path, "upsert", "id", **EVOLVE).updated == 3
    result = io.merge(source, path, "upsert", "id", **EVOLVE)
    assert (result.updated, result.inserted) == (3, 1), pruning
    again = io.merge(source, path, "upsert", "id", skip_unchanged=True, **EVOLVE)
    assert (again.updated, again.inserted, again.skipped) == (0, 0, 4)
    assert sum(row["v"] == "new" for row in read_everywhere(path)) == 4
    assert io.merge(source.slice(0, 3), path, "delete", "id").deleted == 3


# E3, P1, P4
@pytest.mark.parametrize("name", KEYS)
def test_keys_widen_without_losing_a_match(io: AnyDatasetIO, lake: str, name: str, pruning: str) -> None:
    path, (one, other, _) = f"{lake}/t", KEYS[name]
    if other == pa.binary(4):
        other = pa.binary()
    for number in range(4):
        ids = make_keys([number + 4 * at for at in range(5)], one)
        put(f"{path}/f{number}.parquet", pa.table({"id": ids, "v": ["old"] * 5}), row_group_size=2)
    # Keys that no file has leave filters and statistics of the old type behind.
    unknown = pa.table({"id": make_keys([100], one), "v": ["first"]})
    assert io.merge(unknown, path, "upsert", "id").inserted == 1
    assert io.merge(unknown, path, "upsert", "id").updated == 1
    source = pa.table({"id": make_keys([7, 9, 100, 101], other), "v": ["new"] * 4})
    result = io.merge(source, path, "upsert", "id", **EVOLVE)
    assert (result.updated, result.inserted) == (3, 1), pruning
    assert sum(row["v"] == "new" for row in read_everywhere(path)) == 4
    assert io.merge(source, path, "delete", "id").deleted == 4


# E5, P4
def test_more_files_than_the_cache_needs_may_differ(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    count = statistics_cache.MIN_FILES + 2
    for number in range(count):
        kind = pa.int64() if number % 3 else pa.int32()
        extra = {"x": [number]} if number % 5 == 0 else {}
        put(f"{path}/f{number:03}.parquet", make_table([number], kind, v=["old"], **extra))
    decide_here(io)
    with mock.patch.object(file_statistics, "SETTLE_NANOSECONDS", 0):
        with assert_unchanged(path), pytest.raises(SchemaMismatchError, match=r"'id' is int32 in 22 files \(like "):
            io.merge(make_table([1], v=["new"]), path, "upsert", "id")
        assert len(io.plan(make_table([1, 60]), path, "delete", "id").schema_differences) == 2
        assert io.merge(make_table([1, 60, 99], v=["new"] * 3), path, "upsert", "id", **EVOLVE).updated == 2
        result = io.merge(make_table([2, 60, 99], v=["newer"] * 3), path, "update", "id", update_columns=["v"])
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (3, 0, 3)
    found = {row["id"]: (row["v"], row["x"]) for row in read_everywhere(path)}
    assert len(found) == count + 1
    assert [found[number] for number in (0, 1, 2, 60)] == [("old", 0), ("new", None), ("newer", None), ("newer", 60)]
