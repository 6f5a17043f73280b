"""`schema_mode="evolve"`: rows and schema change in one commit, and nothing is dropped or narrowed (E1, E3, E4)."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import oracle
from tests.support import assert_unchanged, list_data_files, put, read_everywhere, read_rows, snapshot

import merganser
from merganser import history, undo
from merganser.core.model.engine import OLD_ROW_COLUMN
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    InvalidArgumentError,
    KeyColumnError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

    from merganser.core.model.strategy import MergeStrategy

Row = dict[str, Any]
STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate", "delete"]
EVOLVE: Any = {"schema_mode": "evolve"}


def fill(rows: list[Row], columns: list[str]) -> list[Row]:
    """Return rows with NULL in the columns that they lack, as the oracle sees them."""
    return [dict.fromkeys(columns) | row for row in rows]


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


def write_files(path: str, **columns: pa.DataType) -> list[list[Row]]:
    """Write three files of two row groups with the ids 0 to 11, and return the rows of each."""
    files = []
    for number in range(3):
        rows = [{"id": 4 * number + at, "v": f"old {at}", "n": at} for at in range(4)]
        schema = pa.schema([("id", columns.get("id", pa.int32())), ("v", pa.string()), ("n", pa.int32())])
        put(f"{path}/f{number}.parquet", pa.Table.from_pylist(rows, schema), row_group_size=2)
        files.append(rows)
    return files


def control_files(path: str) -> dict[str, bytes]:
    control = Path(path).parent / f".{Path(path).name}.merganser"
    return {name: data for name, data in snapshot(str(control)).items() if name != "lock"}


# E1, E3
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_adds_widens_and_keeps_columns(io: AnyDatasetIO, lake: str, strategy: MergeStrategy) -> None:
    path = f"{lake}/t"
    files = write_files(path)
    # Without v; n is wider; x is new.
    new = [{"id": one, "n": one * 2**40, "x": one / 2} for one in (1, 2, 9, 70, 71)]
    source = pa.Table.from_pylist(new, pa.schema([("id", pa.int64()), ("n", pa.int64()), ("x", pa.float64())]))
    columns = ["id", "v", "n", *(["x"] if strategy != "delete" else [])]
    target = {f"f{number}": fill(rows, columns) for number, rows in enumerate(files)}
    given = [{"id": row["id"]} for row in new] if strategy == "delete" else new
    expected = oracle.merge(target, given, strategy, ["id"], options=oracle.Options(columns=columns))
    result = io.merge(source, path, strategy, "id", **EVOLVE)
    assert (result.inserted, result.updated, result.deleted) == (
        expected.count("insert"),
        expected.count("update"),
        expected.count("delete"),
    )
    assert by_id(read_everywhere(path)) == by_id(expected.rows) == read_rows(io, path)
    types = {"id": pa.int64(), "v": pa.string(), "n": pa.int64(), "x": pa.float64()}
    if strategy == "delete":
        types = {"id": pa.int64(), "v": pa.string(), "n": pa.int32()}
    found = pq.read_schema(f"{path}/{list_data_files(path)[0]}")
    assert dict(zip(found.names, found.types, strict=True)) == types


# E3
def test_the_history_has_both_schemas_and_an_undo_restores_every_byte(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    before = snapshot(path)
    io.merge(pa.table({"id": [1, 50], "x": ["a", "b"]}), path, "upsert", "id", retain=1, **EVOLVE)
    (record,) = history(path)
    assert record.schema_before == {"id": "int32", "v": "string", "n": "int32"}
    assert record.schema_after == {"id": "int64", "v": "string", "n": "int32", "x": "string"}
    assert sorted(file.operation for file in record.files) == ["inserted", *["rewritten"] * 3]
    undo(path)
    assert snapshot(path) == before


# E3
def test_a_merge_without_a_change_of_schema_records_none(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    result = io.merge(pa.table({"id": pa.array([1], pa.int8()), "v": ["new"]}), path, "upsert", "id", **EVOLVE)
    assert (len(result.rewritten_files), len(result.preserved_files)) == (1, 2)
    (record,) = history(path)
    assert (record.schema_before, record.schema_after) == (None, None)
    assert read_rows(io, path)[1] == {"id": 1, "v": "new", "n": 1}


# E3, M5
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_a_replay_with_skip_unchanged_writes_nothing(io: AnyDatasetIO, lake: str, strategy: MergeStrategy) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table(
        {"id": range(3, 9), "n": pa.array(range(6), pa.int64()), "x": [{"a": one} if one else None for one in range(6)]}
    )
    options: Any = {"skip_unchanged": True} if strategy != "insert" else {}
    io.merge(source, path, strategy, "id", **EVOLVE, **options)
    control = control_files(path)
    with assert_unchanged(path):
        again = io.merge(source, path, strategy, "id", **EVOLVE, **options)
    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)
    assert control_files(path) == control


# E3, M7
def test_a_batch_id_is_replayed_without_a_second_change(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table({"id": [1, 50], "x": ["a", "b"]})
    first = io.merge(source, path, "upsert", "id", batch_id="b", **EVOLVE)
    control = control_files(path)
    with assert_unchanged(path):
        again = io.merge(source.append_column("y", [[1, 2]]), path, "upsert", "id", batch_id="b", **EVOLVE)
    assert (first.replayed, again.replayed, again.inserted) == (False, True, 1)
    assert control_files(path) == control


# E3
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate", "delete"])
def test_an_empty_source_changes_nothing(io: AnyDatasetIO, lake: str, strategy: MergeStrategy) -> None:
    path = f"{lake}/t"
    write_files(path)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("x", pa.string())])
    with assert_unchanged(path):
        io.merge(schema.empty_table(), path, strategy, "id", **EVOLVE)
        io.write_dataset(schema.empty_table(), path, **EVOLVE)
    assert history(path) == []


# E1, E3, T5, W3
def test_a_full_merge_of_no_rows_leaves_one_file_that_can_evolve(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    schema = pa.schema([("id", pa.int64()), ("x", pa.string())])
    assert io.merge(schema.empty_table(), path, "full_merge", "id", **EVOLVE).deleted == 12
    assert len(list_data_files(path)) == 1
    io.merge(pa.table({"id": [2**40], "y": [1.5]}), path, "upsert", "id", **EVOLVE)
    (row,) = read_everywhere(path)
    assert {name: value for name, value in row.items() if value is not None} == {"id": 2**40, "y": 1.5}


WIDER: list[tuple[str, pa.Array, pa.Array, pa.DataType]] = [
    ("integers", pa.array([1], pa.int8()), pa.array([2**40], pa.int64()), pa.int64()),
    ("unsigned", pa.array([1], pa.uint16()), pa.array([-1], pa.int8()), pa.int32()),
    ("floats", pa.array([0.5], pa.float32()), pa.array([0.1], pa.float64()), pa.float64()),
    ("integer and float", pa.array([1], pa.int32()), pa.array([0.1], pa.float64()), pa.float64()),
    ("decimals", pa.array([1], pa.decimal128(5, 2)), pa.array([10**9], pa.decimal128(12, 0)), pa.decimal128(14, 2)),
    ("integer and decimal", pa.array([1], pa.int32()), pa.array([1], pa.decimal128(4, 2)), pa.decimal128(12, 2)),
    ("milliseconds", pa.array([1], pa.timestamp("ms")), pa.array([1], pa.timestamp("us")), pa.timestamp("us")),
    (
        "zones",
        pa.array([1], pa.timestamp("ms", "UTC")),
        pa.array([1], pa.timestamp("us", "Asia/Tokyo")),
        pa.timestamp("us", "UTC"),
    ),
    ("nanoseconds", pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("ns")), pa.timestamp("ns")),
    ("bytes", pa.array([b"abc"], pa.binary(3)), pa.array([b"abcd"], pa.binary(4)), pa.binary()),
    ("lists", pa.array([[1]], pa.list_(pa.int8())), pa.array([[2**40]], pa.list_(pa.int64())), pa.list_(pa.int64())),
]


# E1, E3
@pytest.mark.parametrize(("_", "old", "new", "common"), WIDER, ids=[one[0] for one in WIDER])
def test_values_widen_to_the_type_that_holds_both(
    io: AnyDatasetIO, lake: str, _: str, old: pa.Array, new: pa.Array, common: pa.DataType
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": old}))
    put(f"{path}/b.parquet", pa.table({"id": [2], "v": old}))
    io.merge(pa.table({"id": [2, 3], "v": pa.concat_arrays([new, new])}), path, "upsert", "id", **EVOLVE)
    found = pa.concat_tables([pq.read_table(f"{path}/{name}") for name in list_data_files(path)]).sort_by("id")
    kept, expected = found.column("v"), [old.to_pylist()[0], *new.to_pylist() * 2]
    assert kept.type.equals(common) or kept.type == pa.list_(pa.field("element", pa.int64()))
    values = [value.astimezone(dt.UTC) if getattr(value, "tzinfo", None) else value for value in kept.to_pylist()]
    assert values == expected
    # Narrower rows fit now, and narrow nothing.
    io.merge(pa.table({"id": [3], "v": old}), path, "upsert", "id", **EVOLVE)
    assert pq.read_schema(f"{path}/a.parquet").field("v").type == kept.type
    read_everywhere(path)


KEYS: list[tuple[str, pa.DataType, pa.DataType]] = [
    ("integers", pa.int32(), pa.int64()),
    ("unsigned and signed", pa.uint16(), pa.int32()),
    ("integer and float", pa.int32(), pa.float64()),
    ("integer and decimal", pa.int32(), pa.decimal128(12, 1)),
    ("decimals", pa.decimal128(5, 0), pa.decimal128(9, 2)),
    ("units", pa.timestamp("ms"), pa.timestamp("us")),
    ("coarser source", pa.timestamp("us"), pa.timestamp("ms")),
    ("narrower source", pa.int64(), pa.int8()),
]


def make_keys(numbers: list[int], kind: pa.DataType) -> pa.Array:
    factor = 1000 if kind == pa.timestamp("us") else 1
    return pa.array([number * factor for number in numbers], kind)


# E3, K6
@pytest.mark.parametrize(("_", "have", "given"), KEYS, ids=[one[0] for one in KEYS])
def test_keys_match_across_types(io: AnyDatasetIO, lake: str, _: str, have: pa.DataType, given: pa.DataType) -> None:
    path = f"{lake}/t"
    for number in range(2):
        ids = make_keys([3 * number + at for at in range(3)], have)
        put(f"{path}/f{number}.parquet", pa.table({"id": ids, "v": ["old"] * 3}), row_group_size=1)
    source = pa.table({"id": make_keys([1, 5, 7], given), "v": ["new"] * 3})
    result = io.merge(source, path, "upsert", "id", **EVOLVE)
    assert (result.updated, result.inserted) == (2, 1)
    rows = read_everywhere(path)
    assert sorted(row["v"] for row in rows) == ["new"] * 3 + ["old"] * 4
    assert len({row["id"] for row in rows}) == 7


# E3
def test_structs_get_the_fields_of_both(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "s": [{"a": 1, "b": "x"}, None], "l": [[{"p": 1}], []]}))
    put(f"{path}/b.parquet", pa.table({"id": [3], "s": [{"a": 3, "b": "z"}], "l": [[{"p": 3}]]}))
    source = pa.table(
        {
            "id": [2, 4],
            "s": [{"b": "new", "c": 1.5, "a": 7}, {"b": None, "c": 2.5, "a": None}],
            "l": [[{"p": 5, "q": "q"}], None],
        }
    )
    io.merge(source, path, "upsert", "id", **EVOLVE)
    assert by_id(read_everywhere(path)) == [
        {"id": 1, "s": {"a": 1, "b": "x", "c": None}, "l": [{"p": 1, "q": None}]},
        {"id": 2, "s": {"a": 7, "b": "new", "c": 1.5}, "l": [{"p": 5, "q": "q"}]},
        {"id": 3, "s": {"a": 3, "b": "z", "c": None}, "l": [{"p": 3, "q": None}]},
        {"id": 4, "s": {"a": None, "b": None, "c": 2.5}, "l": None},
    ]
    # A source with fewer fields, in another order, narrows nothing.
    io.merge(pa.table({"id": [1], "s": [{"c": 9.5, "b": "y"}]}), path, "upsert", "id", **EVOLVE)
    assert by_id(read_everywhere(path))[0] == {
        "id": 1,
        "s": {"a": None, "b": "y", "c": 9.5},
        "l": [{"p": 1, "q": None}],
    }


NULLS: list[tuple[str, pa.Array, pa.Array]] = [
    ("string", pa.nulls(2), pa.array(["a", "b"])),
    ("float16", pa.nulls(2), pa.array([b"ab", b"cd"], pa.binary(2))),
    ("timestamp", pa.nulls(2), pa.array([1, 2], pa.timestamp("us", "UTC"))),
    ("list", pa.array([[], None], pa.list_(pa.null())), pa.array([[1], [2]])),
    ("struct", pa.array([{"a": None}, None], pa.struct([("a", pa.null())])), pa.array([{"a": "x"}, None])),
]


# E1, E4
@pytest.mark.parametrize(("_", "old", "new"), NULLS, ids=[one[0] for one in NULLS])
@pytest.mark.parametrize("mode", ["strict", "evolve"])
def test_a_column_of_type_null_takes_the_first_type(
    io: AnyDatasetIO, lake: str, _: str, old: pa.Array, new: pa.Array, mode: Any
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "v": old}))
    put(f"{path}/b.parquet", pa.table({"id": [3, 4], "v": old}))
    io.merge(pa.table({"id": [4, 5], "v": new}), path, "upsert", "id", schema_mode=mode)
    assert [row["v"] for row in by_id(read_everywhere(path))] == [*old.to_pylist(), old[0].as_py(), *new.to_pylist()]
    assert history(path)[0].schema_after != history(path)[0].schema_before


# E4, K4
def test_a_key_of_type_null_takes_the_first_type_and_matches_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": pa.nulls(2), "v": ["a", "b"]}))
    result = io.merge(pa.table({"id": [1], "v": ["c"]}), path, "upsert", "id")
    assert (result.inserted, result.updated) == (1, 0)
    assert sorted(row["v"] for row in read_everywhere(path)) == ["a", "b", "c"]


# E3, E4
def test_a_source_of_nulls_only_narrows_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    io.merge(pa.table({"id": [1], "v": pa.nulls(1), "n": pa.nulls(1)}), path, "upsert", "id", **EVOLVE)
    assert read_rows(io, path)[1] == {"id": 1, "v": None, "n": None}
    assert pq.read_schema(f"{path}/f0.parquet").types == [pa.int64(), pa.string(), pa.int32()]


def instant(zone: str | None = None, unit: Any = "us") -> pa.Array:
    return pa.array([0], pa.timestamp(unit, zone))


NEVER: list[tuple[str, pa.Array, pa.Array]] = [
    ("naive and zoned", instant(), instant("UTC")),
    ("zoned and naive", instant("UTC"), instant()),
    ("date and zoned", pa.array([0], pa.date32()), instant("UTC")),
    ("zoned and date", instant("UTC"), pa.array([0], pa.date32())),
    ("date and naive", pa.array([0], pa.date32()), instant()),
    ("string and integer", pa.array(["1"]), pa.array([1])),
    ("integer and string", pa.array([1]), pa.array(["1"])),
    ("boolean and integer", pa.array([True]), pa.array([1])),
    ("list and value", pa.array([[1]]), pa.array([1])),
    (
        "nested zones",
        pa.array([{"t": 0}], pa.struct([("t", pa.timestamp("us"))])),
        pa.array([{"t": 0}], pa.struct([("t", pa.timestamp("us", "UTC"))])),
    ),
]


# E3, K6
@pytest.mark.parametrize(("_", "old", "new"), NEVER, ids=[one[0] for one in NEVER])
def test_types_without_a_common_one_are_refused(
    io: AnyDatasetIO, lake: str, _: str, old: pa.Array, new: pa.Array
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": old}))
    with assert_unchanged(path), pytest.raises(ColumnTypeError, match=r"'v' has type .* in the source"):
        io.merge(pa.table({"id": [1], "v": new}), path, "upsert", "id", **EVOLVE)
    with assert_unchanged(path), pytest.raises(ColumnTypeError, match=r"'v' has type .* in the source"):
        io.write_dataset(pa.table({"id": [1], "v": new}), path, **EVOLVE)


# E3, S3
def test_values_decide_where_no_type_holds_both(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": [0.5]}))
    io.merge(pa.table({"id": [1], "v": [7]}), path, "upsert", "id", **EVOLVE)
    assert read_everywhere(path) == [{"id": 1, "v": 7.0}]
    with assert_unchanged(path), pytest.raises(ColumnValueError, match=str(2**53 + 1)):
        io.merge(pa.table({"id": [1], "v": [2**53 + 1]}), path, "upsert", "id", **EVOLVE)


# E3
def test_a_stored_value_that_a_finer_unit_cannot_hold_is_refused(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": pa.array([1 << 60], pa.timestamp("ms"))}))
    source = pa.table({"id": [2], "v": instant()})
    with assert_unchanged(path), pytest.raises(ColumnValueError, match=r"remove that row of .*a\.parquet"):
        io.merge(source, path, "upsert", "id", **EVOLVE)


# E2, S2
def test_a_strict_error_quotes_the_call_that_makes_it_fit(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "it's": pa.array([{"a": 1}])}))
    source = pa.table(
        {
            "id": [1],
            "it's": pa.array([{"a": 2}]),
            "x": pa.array([0], pa.timestamp("us", "UTC")),
            "y.z": [[1.5]],
            'q"': pa.array([1], pa.decimal128(12, 2)),
        }
    )
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="schema_mode='evolve'") as refused:
        io.merge(source, path, "upsert", "id")
    call = re.search(r"alter\(.*?\}\)", str(refused.value))
    assert call is not None
    eval(call[0], {"alter": io.alter})  # noqa: S307  the text under test
    io.merge(source, path, "upsert", "id")
    assert read_rows(io, path) == source.to_pylist()


# E2, S3
def test_a_strict_error_of_types_quotes_the_call_that_widens(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "s": pa.array([{"a": 1}])}))
    source = pa.table({"id": [1], "s": pa.array([{"a": 2, "b": "x"}])})
    with assert_unchanged(path), pytest.raises(ColumnTypeError, match="schema_mode='evolve'") as refused:
        io.merge(source, path, "upsert", "id")
    call = re.search(r"alter\(.*?\}\)", str(refused.value))
    assert call is not None
    eval(call[0], {"alter": io.alter})  # noqa: S307  as above
    io.merge(source, path, "upsert", "id")
    assert read_rows(io, path) == source.to_pylist()


# E3, S2
def test_what_evolve_cannot_help_is_not_said_to_be_helped_by_it(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=a/f.parquet", pa.table({"id": [1], "v": [1]}))
    message = "missing from the source: 'day'"
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match=message) as error:
        io.merge(pa.table({"id": [1], "v": [2]}), f"{lake}/t", "upsert", "id", **EVOLVE)
    assert "schema_mode" not in str(error.value)
    with assert_unchanged(f"{lake}/t"), pytest.raises(KeyColumnError, match="'id' is missing from the source"):
        io.merge(pa.table({"v": [2], "day": ["a"]}), f"{lake}/t", "upsert", "id", **EVOLVE)


# E3
def test_names_that_differ_only_in_case_are_refused(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/f.parquet", pa.table({"id": [1], "v": [1]}))
    for names in (["V"], ["x", "X"]):
        source = pa.table({"id": [1], **{name: [2] for name in names}})
        with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match="only in case"):
            io.merge(source, f"{lake}/t", "upsert", "id", **EVOLVE)


# E3, H1
def test_partitioned_datasets_evolve_in_every_partition(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.merge(
        pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": ["a", "b", "c"], "day": ["x", "y", None]}),
        path,
        key_columns="id",
        partition_columns="day",
    )
    source = pa.table({"id": [2, 4, 5], "day": ["y", "x", "z"], "w": [2.5, 4.5, 5.5]})
    result = io.merge(source, path, "upsert", ["id", "day"], **EVOLVE)
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (1, 2, 3)
    assert read_rows(io, path) == [
        {"id": 1, "v": "a", "w": None, "day": "x"},
        {"id": 2, "v": "b", "w": 2.5, "day": "y"},
        {"id": 3, "v": "c", "w": None, "day": None},
        {"id": 4, "v": None, "w": 4.5, "day": "x"},
        {"id": 5, "v": None, "w": 5.5, "day": "z"},
    ]
    assert len(read_everywhere(path)) == 5


# E3, H1
def test_partition_columns_inside_files_stay_where_they_are(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=x/f.parquet", pa.table({"id": [1], "day": ["x"], "v": ["a"]}))
    put(f"{path}/day=y/f.parquet", pa.table({"id": [2], "day": ["y"], "v": ["b"]}))
    source = pa.table({"id": [2, 3], "day": ["y", "y"], "w": [2.5, 3.5]})
    io.merge(source, path, "upsert", "id", **EVOLVE)
    assert read_rows(io, path) == [
        {"id": 1, "v": "a", "w": None, "day": "x"},
        {"id": 2, "v": "b", "w": 2.5, "day": "y"},
        {"id": 3, "v": None, "w": 3.5, "day": "y"},
    ]
    for day in "xy":
        assert pq.read_table(f"{path}/day={day}/f.parquet", partitioning=None).column("day").to_pylist() == [day]


# E3, M8
def test_a_source_whose_rows_may_move_needs_every_column(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=x/f.parquet", pa.table({"id": [1, 2], "v": ["a", "b"]}))
    source = pa.table({"id": [1], "day": ["y"], "w": [2.5]})
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="missing from the source: 'v'"):
        io.merge(source, path, "upsert", "id", on_partition_move="move", **EVOLVE)
    source = source.append_column("v", [["new"]])
    assert io.merge(source, path, "upsert", "id", on_partition_move="move", **EVOLVE).updated == 1
    assert read_rows(io, path) == [
        {"id": 1, "v": "new", "w": 2.5, "day": "y"},
        {"id": 2, "v": "b", "w": None, "day": "x"},
    ]


# E3, M3
def test_a_new_sequence_column_orders_rows_from_now_on(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    first = pa.table({"id": [1, 1, 2], "v": ["late", "new", "new"], "seq": [1, 5, 5]})
    result = io.merge(first, path, "upsert", "id", sequence_column="seq", **EVOLVE)
    assert (result.updated, result.skipped) == (2, 0)
    second = pa.table({"id": [1, 2], "v": ["older", "newer"], "seq": [4, 6]})
    result = io.merge(second, path, "upsert", "id", sequence_column="seq", **EVOLVE)
    assert (result.updated, result.skipped) == (1, 1)
    assert [(row["v"], row["n"], row["seq"]) for row in read_rows(io, path)[:3]] == [
        ("old 0", 0, None),
        ("new", 1, 5),
        ("newer", 2, 6),
    ]


# E3, M4
def test_an_operation_column_is_not_added(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table({"id": [1, 2, 50, 60], "op": ["d", "u", "c", "d"], "x": [1.5, 2.5, 50.5, 60.5]})
    result = io.merge(source, path, "upsert", "id", operation_column="op", **EVOLVE)
    assert (result.deleted, result.updated, result.inserted) == (1, 1, 1)
    found = by_id(read_everywhere(path))
    assert found[1] == {"id": 2, "v": "old 2", "n": 2, "x": 2.5}
    assert found[-1] == {"id": 50, "v": None, "n": None, "x": 50.5}


# E3, M2
def test_only_columns_that_rows_take_are_added_or_widened(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table({"id": [1, 50], "n": [2**40, 2**41], "x": ["a", "b"], "y": [1, 2], "unused": [1, 2]})
    options: Any = {"update_columns": ["x"], "insert_columns": ["id", "y"]}
    io.merge(source, path, "upsert", "id", **options, **EVOLVE)
    found = by_id(read_everywhere(path))
    assert found[1] == {"id": 1, "v": "old 1", "n": 1, "x": "a", "y": None}
    assert found[-1] == {"id": 50, "v": None, "n": None, "x": None, "y": 2}
    assert pq.read_schema(f"{path}/f0.parquet").field("n").type == pa.int32()
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="update_columns names 'nope'"):
        io.merge(source, path, "upsert", "id", update_columns=["nope"], **EVOLVE)


# E3, R5
def test_an_audit_has_old_rows_in_the_new_schema(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table({"id": [1, 50], "n": [2**40, 5], "x": ["a", "b"]})
    result = io.merge(source, path, "upsert", "id", audit="rows", **EVOLVE)
    assert result.audit is not None
    found = {row.pop("id"): row for row in result.audit.to_pylist()}
    old = found[1].pop(OLD_ROW_COLUMN)
    assert {name: found[1][name] for name in ("v", "n", "x")} == {"v": "old 1", "n": 2**40, "x": "a"}
    assert old == {"id": 1, "v": "old 1", "n": 1, "x": None}
    assert {name: found[50][name] for name in ("v", "n", "x")} == {"v": None, "n": 5, "x": "b"}


# E1, E3, O1
def test_an_append_evolves_too(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    before = snapshot(path)
    io.write_dataset(pa.table({"id": [2**40], "x": ["new"]}), path, retain=1, **EVOLVE)
    found = by_id(read_everywhere(path))
    assert (len(found), found[0], found[-1]) == (
        13,
        {"id": 0, "v": "old 0", "n": 0, "x": None},
        {"id": 2**40, "v": None, "n": None, "x": "new"},
    )
    record = history(path)[0]
    assert (record.operation, (record.schema_after or {})["x"]) == ("write_dataset", "string")
    undo(path)
    assert snapshot(path) == before
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match="schema_mode='evolve'"):
        io.write_dataset(pa.table({"id": [1], "x": ["new"]}), path)
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="overwrite"):
        io.write_dataset(pa.table({"id": [1]}), path, "overwrite", **EVOLVE)


# E3, O1
def test_an_append_to_files_without_rows_evolves(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": pa.array([], pa.int32()), "v": pa.array([], pa.string())}))
    io.write_dataset(pa.table({"id": [2**40], "x": ["new"]}), path, **EVOLVE)
    assert read_everywhere(path) == [{"id": 2**40, "v": None, "x": "new"}]


# E3, T4
@pytest.mark.parametrize("strategy", ["insert", "upsert", "full_merge", "deduplicate"])
def test_a_first_load_with_evolve_is_a_first_load(io: AnyDatasetIO, lake: str, strategy: MergeStrategy) -> None:
    io.merge(pa.table({"id": [1], "v": ["a"]}), f"{lake}/t", strategy, "id", **EVOLVE)
    assert read_everywhere(f"{lake}/t") == [{"id": 1, "v": "a"}]


# E3, S1
def test_a_required_column_that_the_source_lacks_is_kept_and_refused_in_new_rows(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int32(), nullable=False)])
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": [5]}, schema=schema))
    with assert_unchanged(path), pytest.raises(ColumnValueError, match="New rows lack 'v'"):
        io.merge(pa.table({"id": [1, 2], "x": [1, 2]}), path, "upsert", "id", **EVOLVE)
    io.merge(pa.table({"id": [1], "x": [7]}), path, "update", "id", **EVOLVE)
    io.merge(pa.table({"id": [2], "v": [2**40], "x": [8]}), path, "upsert", "id", **EVOLVE)
    assert by_id(read_everywhere(path)) == [{"id": 1, "v": 5, "x": 7}, {"id": 2, "v": 2**40, "x": 8}]
    assert [field.nullable for field in pq.read_schema(f"{path}/a.parquet")] == [False, False, True]


# E3, P5
def test_a_plan_lists_the_changes_and_makes_none(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_files(path)
    source = pa.table({"id": [1, 50], "x": ["a", "b"]})
    with assert_unchanged(path):
        planned = io.plan(source, path, "upsert", "id", **EVOLVE)
    assert planned.schema_changes == ("change column 'id' from int32 to int64", "add column 'x' (string)")
    assert [file.reason for file in planned.files] == ["it holds matched rows", *["its schema changes"] * 2]
    assert "schema: add column 'x' (string)" in str(planned)
    assert "x" in planned._repr_html_()
    result = io.merge(source, path, "upsert", "id", **EVOLVE)
    assert (result.updated, result.inserted) == (planned.updated, planned.inserted)
    assert len(result.rewritten_files) == sum(file.action == "rewrite" for file in planned.files)


# E3
def test_metadata_of_schema_and_fields_survives(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    fields = [
        pa.field("id", pa.int32(), metadata={"unit": "piece"}),
        pa.field("v", pa.string(), metadata={"lang": "en"}),
    ]
    schema = pa.schema(fields, metadata={"owner": "sales"})
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "v": ["a", None]}, schema=schema))
    source = pa.table({"id": [1, 3], "x": [1.5, 2.5]}).replace_schema_metadata({"owner": "source"})
    io.merge(source, path, "upsert", "id", **EVOLVE)
    for name in list_data_files(path):
        found = pq.read_schema(f"{path}/{name}")
        assert found.metadata[b"owner"] == b"sales", name
        assert found.field("id").type == pa.int64()
        assert found.field("id").metadata[b"unit"] == b"piece", name
        assert found.field("v").metadata[b"lang"] == b"en", name
    merganser.alter(path, widen={"id": "decimal128(20, 0)"}, rename={"v": "w"}, engine="arrow")
    for name in list_data_files(path):
        found = pq.read_schema(f"{path}/{name}")
        assert found.field("id").metadata[b"unit"] == b"piece", name
        assert found.field("w").metadata[b"lang"] == b"en", name


# E1, E3
def test_field_ids_of_a_source_do_not_enter_the_target(io: AnyDatasetIO, lake: str) -> None:
    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    path = f"{lake}/t"
    inner = pa.struct([field("a", pa.int32(), 3)])
    schema = pa.schema([field("id", pa.int64(), 1), field("s", inner, 2)])
    put(f"{path}/a.parquet", pa.table([[1], [{"a": 1}]], schema=schema))
    wider = pa.struct([field("a", pa.int64(), 2), field("b", pa.string(), 3)])
    given = pa.schema([field("id", pa.int64(), 3), field("s", wider, 1), field("x", wider, 2)])
    new = {"a": 2, "b": "b"}
    io.merge(pa.table([[1, 2], [new, new], [new, new]], schema=given), path, "upsert", "id", **EVOLVE)
    found = [pq.read_schema(f"{path}/{name}") for name in list_data_files(path)]
    assert found[0].equals(found[1], check_metadata=True)
    for schema in found:
        ids = {one.name: (one.metadata or {}).get(b"PARQUET:field_id") for one in schema}
        assert ids == {"id": b"1", "s": b"2", "x": None}
        assert [one.metadata for name in ("s", "x") for one in schema.field(name).type] == [None] * 4
    assert by_id(read_everywhere(path)) == [{"id": one, "s": new, "x": new} for one in (1, 2)]
