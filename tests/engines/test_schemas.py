"""Schemas: which columns and types go together, and what a merge keeps of them (S1 to S6)."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.arrow_versions import HAS_NULL_FIXED_LISTS
from tests.support import assert_unchanged, list_data_files, load, open_dataset_io, put, read_rows, snapshot

from merganser.core import ColumnTypeError, ColumnValueError, SchemaMismatchError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

    from merganser.core.merge.driver import WriteMode

TIME = dt.datetime(2024, 2, 29, 12, 34, 56, 789000, tzinfo=dt.UTC)
DAY = dt.date(2024, 2, 29)


def column(values: list[Any] | pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """Build a column of any type, extension types included."""
    if isinstance(values, pa.Array):
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def keyed(values: list[Any] | pa.Array, kind: pa.DataType | None = None, start: int = 1) -> pa.Table:
    made = column(values, kind)
    return pa.table({"id": range(start, start + len(made)), "v": made})


# S1
def test_columns_match_by_name_in_any_order(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pa.table({"id": [1], "a": ["x"], "b": [1.5]}), f"{lake}/t", key_columns="id")
    io.merge(pa.table({"b": [2.5, 3.5], "id": [1, 2], "a": ["y", "z"]}), f"{lake}/t", key_columns="id")
    assert load(io, f"{lake}/t").schema.names == ["id", "a", "b"]
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "a": "y", "b": 2.5}, {"id": 2, "a": "z", "b": 3.5}]
    for name in list_data_files(f"{lake}/t"):
        assert pq.read_schema(f"{lake}/t/{name}").names == ["id", "a", "b"]


# S1
def test_files_keep_nullability_and_metadata_of_schema_and_fields(io: AnyDatasetIO, lake: str) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"unit": "piece"}),
            pa.field("v", pa.string(), metadata={"lang": "en"}),
        ],
        metadata={"owner": "sales", "ünï": "cödé"},
    )
    put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "v": ["a", None]}, schema=schema))
    io.merge(pa.table({"v": ["A", "c"], "id": [1, 3]}), f"{lake}/t", key_columns="id")
    assert len(list_data_files(f"{lake}/t")) == 2
    for name in list_data_files(f"{lake}/t"):
        found = pq.read_schema(f"{lake}/t/{name}")
        assert found.equals(schema), name
        assert {key: found.metadata[key] for key in schema.metadata} == schema.metadata
        assert found.field("id").metadata[b"unit"] == b"piece"
        assert found.field("v").metadata[b"lang"] == b"en"
        assert pq.ParquetFile(f"{lake}/t/{name}").schema.column(0).max_definition_level == 0


# S1
def test_metadata_of_the_source_does_not_enter_the_target(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(["a"]).replace_schema_metadata({"owner": "target"}))
    source = keyed(["b", "c"]).replace_schema_metadata({"owner": "source", "extra": "1"})
    io.merge(source, f"{lake}/t", key_columns="id")
    for name in list_data_files(f"{lake}/t"):
        assert pq.read_schema(f"{lake}/t/{name}").metadata == {b"owner": b"target"}


# S1
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_null_in_a_required_column_is_refused(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": ["a"]}, schema=schema))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'v' holds NULL"):
        io.merge(keyed(["b", None], pa.string()), f"{lake}/t", strategy, "id")
    io.merge(keyed(["b", "c"]), f"{lake}/t", "upsert", "id")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["b", "c"]


# S1
def test_a_column_required_in_one_file_only_is_required(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(["a"]))
    strict = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    put(f"{lake}/t/b.parquet", keyed(["b"], start=2).cast(strict))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match="'v' holds NULL"):
        io.merge(keyed([None], pa.string(), start=2), f"{lake}/t", key_columns="id")


# S1, S2
def test_files_that_disagree_are_refused_with_column_and_paths(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([1]))
    put(f"{lake}/t/b.parquet", keyed(["x"]))
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(SchemaMismatchError, match=r"'v': int64 in .*a\.parquet, string in .*b\.p"),
    ):
        io.merge(keyed([1]), f"{lake}/t", key_columns="id")


# S2
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_missing_and_unknown_columns_are_both_listed(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "a": [1], "b": [1]}))
    source = pa.table({"id": [1], "b": [1], "c": [1], "d": [1]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError) as caught:
        io.merge(source, f"{lake}/t", strategy, "id")
    assert isinstance(caught.value, ValueError)
    assert "missing from the source: 'a'" in str(caught.value)
    assert "unknown to the target: 'c', 'd'" in str(caught.value)


# S2
def test_names_that_differ_by_case_are_two_columns(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": [1], "V": ["x"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match="'V'"):
        io.merge(pa.table({"id": [1], "v": [1]}), f"{lake}/t", key_columns="id")
    io.merge(pa.table({"V": ["y"], "id": [1], "v": [2]}), f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": 2, "V": "y"}]


# S2
def test_a_source_with_one_name_twice_is_refused(io: AnyDatasetIO, lake: str) -> None:
    source = pa.table([[1], ["a"], ["b"]], names=["id", "v", "v"])
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match="several columns named 'v'"):
        io.merge(source, f"{lake}/t", key_columns="id")


LOSSLESS: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    # Integers: wider ones, and narrower ones whose values fit.
    (pa.int8(), pa.int64(), [-128, 127]),
    (pa.int16(), pa.int32(), [-(2**15), 2**15 - 1]),
    (pa.int64(), pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), pa.int8(), [-128, 127]),
    (pa.uint8(), pa.int16(), [0, 255]),
    (pa.uint64(), pa.int64(), [0, 2**63 - 1]),
    (pa.int64(), pa.uint64(), [0, 2**63 - 1]),
    (pa.uint32(), pa.uint8(), [0, 255]),
    (pa.int64(), pa.float64(), [-(2**53), 2**53]),
    (pa.float64(), pa.int32(), [-1.0, 7.0]),
    (pa.float32(), pa.float64(), [1.5, -0.25]),
    (pa.float64(), pa.float32(), [1.5, float("inf")]),
    # Text and bytes, however Arrow lays them out.
    (pa.large_string(), pa.string(), ["a", "東京"]),
    (pa.string_view(), pa.string(), ["a", ""]),
    (pa.string(), pa.large_string(), ["a", ""]),
    (pa.string(), pa.string_view(), ["a", ""]),
    (pa.binary(), pa.large_binary(), [b"a", b""]),
    (pa.binary_view(), pa.binary(), [b"a", b""]),
    (pa.binary(), pa.binary(2), [b"ab", b"\x00\x00"]),
    (pa.binary(2), pa.binary(), [b"ab", b"\x00\x00"]),
    # Dictionaries decoded.
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", "b"]),
    (pa.dictionary(pa.int32(), pa.large_string()), pa.string(), ["a", "b"]),
    (pa.dictionary(pa.int16(), pa.int64()), pa.int32(), [1, 2]),
    (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    # Decimals: exact rescales, other widths, integers.
    (pa.decimal128(9, 4), pa.decimal128(9, 2), [Decimal("1.2500"), Decimal("-3.0000")]),
    (pa.decimal128(5, 1), pa.decimal128(20, 6), [Decimal("1.5"), Decimal("-3.0")]),
    (pa.decimal256(60, 2), pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-3.00")]),
    (pa.decimal32(7, 2), pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-3.00")]),
    (pa.decimal64(12, 2), pa.decimal256(60, 3), [Decimal("1.25"), Decimal("-3.00")]),
    (pa.decimal128(9, 2), pa.decimal32(7, 2), [Decimal("1.25"), Decimal("-3.00")]),
    (pa.int64(), pa.decimal128(9, 2), [1, -9999999]),
    (pa.uint64(), pa.decimal128(20, 0), [0, 2**64 - 1]),
    (pa.decimal128(9, 2), pa.int64(), [Decimal("7.00"), Decimal("-1.00")]),
    # Times: exact changes of unit, and of zone.
    (pa.timestamp("s"), pa.timestamp("us"), [0, 1700000000]),
    (pa.timestamp("ns"), pa.timestamp("us"), [0, 1700000000123456000]),
    (pa.timestamp("us"), pa.timestamp("ns"), [0, 1700000000123456]),
    (pa.timestamp("us"), pa.timestamp("ms"), [0, 1700000000123000]),
    (pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "UTC"), [0, 1700000000123456]),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "America/New_York"), [0, 1700000000123]),
    (pa.time32("s"), pa.time64("us"), [0, 86399]),
    (pa.time64("ns"), pa.time32("ms"), [0, 86399000000000]),
    (pa.date64(), pa.date32(), [0, 86400000]),
    (pa.duration("s"), pa.duration("ms"), [0, 7]),
    # NULL of no type, and casts inside nested values.
    (pa.null(), pa.string(), [None, None]),
    (pa.null(), pa.list_(pa.int64()), [None, None]),
    (pa.null(), pa.struct([("a", pa.int64())]), [None, None]),
    (pa.null(), pa.map_(pa.string(), pa.int64()), [None, None]),
    (pa.null(), pa.decimal128(9, 2), [None, None]),
    (pa.null(), pa.dictionary(pa.int32(), pa.string()), [None, None]),
    (pa.null(), pa.timestamp("us", "UTC"), [None, None]),
    (pa.large_list(pa.int64()), pa.list_(pa.int32()), [[1, None], []]),
    (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), [[1, 2], [3, None]]),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}]),
    (pa.map_(pa.large_string(), pa.int64()), pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
]


# S3
@pytest.mark.parametrize(("given", "have", "values"), LOSSLESS, ids=lambda item: str(item).replace("/", "-")[:40])
def test_lossless_casts(io: AnyDatasetIO, lake: str, given: pa.DataType, have: pa.DataType, values: list[Any]) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1], pa.int64()), "v": pa.nulls(1, have)}))
    before = load(io, f"{lake}/t").schema.field("v").type
    source = pa.table({"id": [1, 2, 3], "v": pa.array([*values, None], given)})
    result = io.merge(source, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (2, 1)
    after = load(io, f"{lake}/t")
    assert after.schema.field("v").type == before
    found = {row["id"]: row["v"] for row in after.to_pylist()}
    assert _same([found[1], found[2], found[3]], source.column("v").to_pylist())


def _same(found: list[Any], given: list[Any]) -> bool:
    if found == given:
        return True
    # Equal instants may differ in class (nanoseconds are pandas') or zone.
    return [str(value)[:23] for value in found] == [str(value)[:23] for value in given]


REFUSED_TYPES: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.bool_(), pa.int64()),
    (pa.int64(), pa.bool_()),
    (pa.string(), pa.bool_()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.string(), pa.timestamp("us")),
    (pa.string(), pa.date32()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us"), pa.date32()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.int64()),
    (pa.int64(), pa.timestamp("us")),
    (pa.time64("us"), pa.timestamp("us")),
    (pa.float64(), pa.decimal128(9, 2)),
    (pa.decimal128(9, 2), pa.float64()),
    (pa.float64(), pa.string()),
    (pa.decimal128(9, 2), pa.string()),
    (pa.duration("s"), pa.int64()),
    (pa.list_(pa.int64()), pa.int64()),
    (pa.int64(), pa.list_(pa.int64())),
    (pa.list_(pa.string()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    (pa.struct([("a", pa.float64())]), pa.struct([("a", pa.float32())])),
    (pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())),
    (pa.map_(pa.int64(), pa.int64()), pa.map_(pa.string(), pa.int64())),
    (pa.list_(pa.timestamp("us")), pa.list_(pa.timestamp("us", "UTC"))),
    (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
]


# S3
@pytest.mark.parametrize(("given", "have"), REFUSED_TYPES, ids=str)
def test_a_type_pair_that_cannot_be_cast_names_column_and_both_types(
    io: AnyDatasetIO, lake: str, given: pa.DataType, have: pa.DataType
) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1], pa.int64()), "v": pa.nulls(1, have)}))
    target = load(io, f"{lake}/t").schema.field("v").type
    # Floats without a number would be NULL of any type.
    value = pa.array([1.5], given) if pa.types.is_floating(given) else pa.nulls(1, given)
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError) as caught:
        io.merge(pa.table({"id": [1], "v": value}), f"{lake}/t", key_columns="id")
    assert isinstance(caught.value, ColumnTypeError)
    assert f"'v' has type {given} in the source and {target} in the target" in str(caught.value)


MISFITS: list[tuple[pa.DataType, pa.DataType, list[Any], str]] = [
    (pa.int64(), pa.int32(), [1, None, 2**31, 2**40], "2147483648"),
    (pa.int64(), pa.uint8(), [255, -1, 256], "-1"),
    (pa.uint64(), pa.int64(), [1, 2**63], "9223372036854775808"),
    (pa.float64(), pa.int64(), [1.0, 1.5, 2.5], "1.5"),
    (pa.float64(), pa.int64(), [1.0, float("nan")], "nan"),
    (pa.float64(), pa.float32(), [1.5, 0.1], "0.1"),
    (pa.float64(), pa.float32(), [1.5, 1e300], r"1e\+300"),
    (pa.int64(), pa.float64(), [2**53, 2**53 + 1], "9007199254740993"),
    (pa.int64(), pa.float32(), [2**24, 2**24 + 1], "16777217"),
    (pa.int64(), pa.float16(), [2048, 2049], "2049"),
    (pa.uint64(), pa.float64(), [1, 2**64 - 1], "18446744073709551615"),
    (pa.float64(), pa.float16(), [1.5, 0.1], "0.1"),
    (pa.decimal128(9, 4), pa.decimal128(9, 2), [Decimal("1.25"), Decimal("1.2345")], r"1\.2345"),
    (pa.decimal128(9, 2), pa.decimal128(4, 2), [Decimal("1.25"), Decimal("123.45")], r"123\.45"),
    (pa.decimal128(9, 2), pa.int64(), [Decimal("1.00"), Decimal("1.50")], r"1\.50"),
    (pa.int64(), pa.decimal128(4, 2), [99, 100], "100"),
    (pa.timestamp("us"), pa.timestamp("ms"), [1000, 1001], "1001|001001"),
    (pa.timestamp("us"), pa.timestamp("ns"), [0, 2**62], "4611686018427387904"),
    (pa.time64("us"), pa.time32("ms"), [1000, 1001], "1001"),
    (pa.binary(), pa.binary(2), [b"ab", b"abc"], "abc"),
    (pa.date64(), pa.date32(), [0, 1], "1970"),
    (pa.list_(pa.int64()), pa.list_(pa.int32()), [[1], [2**40]], "1099511627776"),
    (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), [[1, 2], [3]], r"\[3\]"),
    (pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("us")), [[1000], [1001]], "001001"),
    (pa.struct([("a", pa.date64())]), pa.struct([("a", pa.date32())]), [{"a": 0}, {"a": 1}], "1970"),
    (
        pa.list_(pa.int32()),
        pa.list_(pa.field("element", pa.int32(), nullable=False)),
        [[1], [2, None]],
        r"\[2, None\]",
    ),
    (
        pa.struct([("a", pa.int32())]),
        pa.struct([pa.field("a", pa.int32(), nullable=False)]),
        [{"a": 1}, {"a": None}],
        "{'a': None}",
    ),
]


# S3
@pytest.mark.parametrize(
    ("given", "have", "values", "shown"), MISFITS, ids=[f"{given} to {have}" for given, have, _, _ in MISFITS]
)
def test_a_value_that_does_not_fit_is_named_with_its_column(
    io: AnyDatasetIO, lake: str, given: pa.DataType, have: pa.DataType, values: list[Any], shown: str
) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([], pa.int64()), "v": pa.nulls(0, have)}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=f"'v' holds .*({shown})") as caught:
        io.merge(keyed(values, given), f"{lake}/t", key_columns="id")
    assert isinstance(caught.value, ColumnValueError)


# S3
def test_the_first_value_that_does_not_fit_is_named_across_chunks(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([1], pa.int8()))
    chunks = [pa.array([1, 2]), pa.array([3, 300]), pa.array([400])]
    source = pa.table({"id": range(5), "v": pa.chunked_array(chunks)})
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'v' holds 300 "):
        io.merge(source, f"{lake}/t", key_columns="id")


# S3, K6
def test_key_values_that_do_not_fit_are_refused_too(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'id' holds 4294967297"):
        io.merge(pa.table({"id": [2**32 + 1], "v": ["b"]}), f"{lake}/t", key_columns="id")


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float16": (pa.float16(), [1.5, float("inf")]),
    "float32": (pa.float32(), [1.5, -0.25]),
    "float64": (pa.float64(), [0.1, -1e300]),
    "decimal32": (pa.decimal32(7, 2), [Decimal("1.25"), Decimal("-99999.99")]),
    "decimal64": (pa.decimal64(18, 4), [Decimal("1.2500"), Decimal("-0.0001")]),
    "decimal128": (pa.decimal128(38, 10), [Decimal("1.2500000000"), Decimal("-0.0000000001")]),
    "decimal256": (pa.decimal256(76, 0), [Decimal(10**75), Decimal(-1)]),
    "boolean": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "Größe 東京"]),
    "large string": (pa.large_string(), ["", "x"]),
    "string view": (pa.string_view(), ["", "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "large binary": (pa.large_binary(), [b"", b"\x00\xff"]),
    "binary view": (pa.binary_view(), [b"", b"longer than twelve bytes"]),
    "fixed-size binary": (pa.binary(3), [b"abc", b"\x00\x00\x00"]),
    "uuid": (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes]),
    "json": (pa.json_(), ["{}", "[1]"]),
    "date": (pa.date32(), [DAY, dt.date(1, 1, 1)]),
    "time ms": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), dt.time(0)]),
    "time us": (pa.time64("us"), [dt.time(1, 2, 3, 4), dt.time(0)]),
    "time ns": (pa.time64("ns"), [1, 86399999999999]),
    **{
        f"timestamp {unit} {zone}": (pa.timestamp(unit, zone), [0, -1])
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Paris", "+02:00")
    },
    "duration": (pa.duration("us"), [0, -1]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
    "ordered dictionary": (pa.dictionary(pa.int32(), pa.string(), ordered=True), ["a", "b"]),
    "list": (pa.list_(pa.int32()), [[1, None], []]),
    "list of required": (pa.list_(pa.field("element", pa.int32(), nullable=False)), [[1, 2], []]),
    "large list": (pa.large_list(pa.string()), [["a", None], []]),
    "fixed-size list": (pa.list_(pa.float32(), 2), [[1.5, None], [2.5, 3.5]]),
    "list of lists": (pa.list_(pa.list_(pa.string())), [[["a"], None, []], []]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
        [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("b", None)]]),
    "list of structs": (
        pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("by", pa.map_(pa.string(), pa.decimal128(9, 2)))])),
        [[{"at": TIME, "by": [("x", Decimal("1.00"))]}], [None]],
    ),
    "null": (pa.null(), [None, None]),
}


VIEWS = (pa.string_view(), pa.binary_view())


# S4
@pytest.mark.parametrize("name", TYPES)
def test_every_type_survives_a_merge_unchanged(io: AnyDatasetIO, lake: str, name: str) -> None:
    kind, (first, second) = TYPES[name]
    source = keyed([first, None, second, first], kind)
    if kind in VIEWS:
        # No new dataset has them.
        put(f"{lake}/t/a.parquet", source, row_group_size=2)
    else:
        io.merge(source, f"{lake}/t", key_columns="id", row_group_size=2)
    loaded = load(io, f"{lake}/t").combine_chunks()
    assert loaded.schema.field("v").type == kind
    assert loaded.column("v").to_pylist() == source.column("v").to_pylist()
    # Row 2 is replaced inside the first row group, row 9 is new, the second row group is left as it is.
    change = pa.table({"id": [2, 9], "v": column([second, None], kind)})
    result = io.merge(change, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    merged = load(io, f"{lake}/t")
    assert merged.schema.field("v").type == kind
    by_id = {row["id"]: row["v"] for row in merged.to_pylist()}
    old, new = source.column("v").to_pylist(), change.column("v").to_pylist()
    assert [by_id[n] for n in (1, 2, 3, 4, 9)] == [old[0], new[0], old[2], old[3], None]
    for file in list_data_files(f"{lake}/t"):
        assert pq.read_schema(f"{lake}/t/{file}").field("v").type == kind


VIEW_SOURCE = pa.table(
    {
        "id": pa.array(["a", "b"], pa.string_view()),
        "b": pa.array([b"x", None], pa.binary_view()),
        "s": pa.array([{"l": ["x"]}, None], pa.struct([("l", pa.list_(pa.string_view()))])),
    }
)
WITHOUT_VIEWS = [pa.string(), pa.binary(), pa.struct([("l", pa.list_(pa.string()))])]


# S4
@pytest.mark.parametrize("call", ["merge", "write_dataset", "overwrite", "evolve"])
def test_a_new_dataset_has_strings_and_binary_instead_of_views(io: AnyDatasetIO, lake: str, call: str) -> None:
    if call == "merge":
        io.merge(VIEW_SOURCE, f"{lake}/t", key_columns="id")
    elif call == "evolve":
        put(f"{lake}/t/a.parquet", VIEW_SOURCE.select(["id"]).append_column("b", pa.nulls(2)))
        io.merge(VIEW_SOURCE, f"{lake}/t", key_columns="id", schema_mode="evolve")
    else:
        io.write_dataset(VIEW_SOURCE, f"{lake}/t", "overwrite" if call == "overwrite" else "append")
    found = load(io, f"{lake}/t")
    # A column that exists keeps its type.
    assert found.schema.types[call == "evolve" :] == WITHOUT_VIEWS[call == "evolve" :]
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == VIEW_SOURCE.to_pylist()


# S4
def test_a_new_dataset_of_a_polars_frame_is_filtered_sorted_and_joined_by_pyarrow(io: AnyDatasetIO, lake: str) -> None:
    frame = pl.DataFrame({"id": ["b", "a"], "v": ["y", "x"], "c": pl.Series(["q", "r"], dtype=pl.Categorical)})
    io.merge(frame, f"{lake}/t", key_columns="id")
    found = load(io, f"{lake}/t")
    assert found.filter(pc.field("v") == "x").column("id").to_pylist() == ["a"]
    assert found.sort_by("v").take([1]).column("id").to_pylist() == ["b"]
    assert found.join(pa.table({"id": ["a"]}), "id", join_type="inner").column("v").to_pylist() == ["x"]


NO_PARQUET_FORM: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "date64": (pa.date64(), [DAY, DAY], pa.date32()),
    "time s": (pa.time32("s"), [dt.time(1, 2, 3), dt.time(0)], pa.time32("ms")),
    "timestamp s": (pa.timestamp("s"), [0, -1], pa.timestamp("ms")),
    "zoned timestamp s": (pa.timestamp("s", "UTC"), [0, -1], pa.timestamp("ms", "UTC")),
    "dictionary of integers": (pa.dictionary(pa.int16(), pa.int64()), [5, 6], pa.int64()),
}


# S4
@pytest.mark.parametrize("name", NO_PARQUET_FORM)
def test_types_that_parquet_spells_another_way_keep_their_values(io: AnyDatasetIO, lake: str, name: str) -> None:
    kind, values, stored = NO_PARQUET_FORM[name]
    source = keyed(values, kind)
    io.merge(source, f"{lake}/t", key_columns="id")
    assert io.merge(source, f"{lake}/t", key_columns="id").updated == 2
    found = load(io, f"{lake}/t")
    assert found.schema.field("v").type == stored
    assert found.column("v").to_pylist() == source.column("v").to_pylist()


# S4, K6
@pytest.mark.parametrize("name", [name for name, (kind, _) in TYPES.items() if not pa.types.is_nested(kind)])
def test_every_plain_type_may_be_a_key(io: AnyDatasetIO, lake: str, name: str) -> None:
    kind, values = TYPES[name]
    if kind == pa.null():
        # A column of no type holds nothing but NULL.
        with pytest.raises((TypeError, ValueError), match="'v'"):
            io.merge(keyed(values, kind), f"{lake}/t", key_columns="v")
        return
    table = pa.table({"k": column(values, kind), "v": ["a", "b"]})
    assert io.merge(table, f"{lake}/t", key_columns="k").inserted == 2
    result = io.merge(table.slice(1), f"{lake}/t", key_columns="k")
    assert (result.inserted, result.updated) == (0, 1)


# S4
def test_null_everywhere_but_in_keys(io: AnyDatasetIO, lake: str) -> None:
    kinds = {
        name: kind
        for name, (kind, _) in TYPES.items()
        if not isinstance(kind, pa.BaseExtensionType) and kind not in VIEWS
        if HAS_NULL_FIXED_LISTS or not pa.types.is_fixed_size_list(kind)
    }
    empty = {name: pa.nulls(3, kind) for name, kind in kinds.items()}
    source = pa.table({"id": [1, 2, 3], **empty})
    io.merge(source, f"{lake}/t", key_columns="id")
    assert io.merge(source.slice(1, 1), f"{lake}/t", key_columns="id").updated == 1
    found = load(io, f"{lake}/t")
    assert found.schema.equals(source.schema)
    assert all(value is None for row in found.to_pylist() for name, value in row.items() if name != "id")


def _union() -> pa.Array:
    ids, offsets = pa.array([0], pa.int8()), pa.array([0], pa.int32())
    return pa.UnionArray.from_dense(ids, offsets, [pa.array([1])], ["a"])


# S5
@pytest.mark.parametrize(
    "values",
    [
        _union(),
        pa.array([pa.MonthDayNano([1, 2, 3])]),
        pc.run_end_encode(pa.array(["a"])),
        pa.array([{}], pa.struct([])),
    ],
    ids=lambda values: str(values.type)[:20],
)
@pytest.mark.parametrize("method", ["merge", "append", "overwrite"])
def test_types_that_parquet_cannot_hold_are_refused_before_anything_is_written(
    io: AnyDatasetIO, lake: str, values: pa.Array, method: str
) -> None:
    source = pa.table({"id": [1], "odd": values})
    write: Callable[[], Any] = {
        "merge": lambda: io.merge(source, f"{lake}/t", key_columns="id"),
        "append": lambda: io.write_dataset(source, f"{lake}/t", "append"),
        "overwrite": lambda: io.write_dataset(source, f"{lake}/t", "overwrite"),
    }[method]
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedTypeError, match="'odd' has type") as caught:
        write()
    assert isinstance(caught.value, TypeError)
    assert str(values.type) in str(caught.value)


# S5, S2
def test_types_that_parquet_cannot_hold_are_compared_with_the_targets_type(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(["a"]))
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(TypeError, match=r"'v' has type dense_union.* and string in the target"),
    ):
        io.merge(pa.table({"id": [1], "v": _union()}), f"{lake}/t", key_columns="id")


NOT_CARRIED = [
    pa.list_view(pa.int32()),
    pa.large_list_view(pa.int32()),
    pa.struct([("a", pa.list_view(pa.int32()))]),
    pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]),
    pa.list_(pa.dictionary(pa.int8(), pa.string())),
]


# S5
@pytest.mark.parametrize("kind", NOT_CARRIED, ids=str)
@pytest.mark.parametrize("there", ["nothing", "plain target"])
def test_types_that_are_not_carried_are_refused_by_name(
    io: AnyDatasetIO, lake: str, kind: pa.DataType, there: str
) -> None:
    if there != "nothing":
        put(f"{lake}/t/a.parquet", keyed([[9]], pa.list_(pa.int32())))
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedTypeError, match=r"'v'.* has type") as caught:
        io.merge(pa.table({"id": [1], "v": pa.nulls(1, kind)}), f"{lake}/t", key_columns="id")
    assert str(kind) in str(caught.value)


def nested(levels: int, *, lists: bool = False) -> pa.DataType:
    kind = pa.int64()
    for _ in range(levels):
        kind = pa.list_(kind) if lists else pa.struct([("a", kind)])
    return kind


# S5, on engines that take Arrow types as they are.
@pytest.mark.parametrize("name", ["arrow", "duckdb"])
@pytest.mark.parametrize("kind", [nested(99), nested(1000), nested(50, lists=True)], ids=["99", "1000", "50 lists"])
@pytest.mark.parametrize("method", ["merge", "merge into a target", "overwrite"])
def test_types_nested_too_deeply_are_refused_before_anything_is_written(
    name: str, lake: str, kind: pa.DataType, method: str
) -> None:
    io = open_dataset_io(name)
    if method != "merge":
        put(f"{lake}/t/a.parquet", keyed(["a"]))
    source = pa.table({"id": [1], "v": pa.nulls(1, kind)})
    write = (
        partial(io.merge, key_columns="id") if method != "overwrite" else partial(io.write_dataset, mode="overwrite")
    )
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(UnsupportedTypeError, match="'v' of the source is nested over 98 levels"),
    ):
        write(source, f"{lake}/t")


# S5, on engines that take Arrow types as they are.
@pytest.mark.parametrize("name", ["arrow", "duckdb"])
@pytest.mark.parametrize("kind", [nested(98), nested(49, lists=True)], ids=["98", "49 lists"])
def test_the_deepest_types_that_can_be_read_again_are_carried(name: str, lake: str, kind: pa.DataType) -> None:
    io = open_dataset_io(name)
    io.merge(pa.table({"id": [1], "v": pa.nulls(1, kind)}), f"{lake}/t", key_columns="id")
    assert io.merge(pa.table({"id": [2], "v": pa.nulls(1, kind)}), f"{lake}/t", key_columns="id").inserted == 1


DAY_MS = 86_400_000


def dates64(milliseconds: list[int | None]) -> pa.Array:
    return pa.array(milliseconds, pa.int64()).view(pa.date64())


# S4, S5
@pytest.mark.parametrize("role", ["key", "value"])
def test_a_date64_with_a_time_of_day_is_refused(io: AnyDatasetIO, lake: str, role: str) -> None:
    name = "v" if role == "value" else "id"

    def source(dates: pa.Array) -> pa.Table:
        return keyed(dates) if role == "value" else pa.table({"id": dates, "v": range(len(dates))})

    with pytest.raises(ColumnValueError, match=f"'{name}'.*date64"):
        io.merge(source(dates64([0, DAY_MS + 5])), f"{lake}/t", key_columns="id")
    with pytest.raises(ColumnValueError, match=f"'{name}'.*date64"):
        io.write_dataset(source(dates64([0, DAY_MS + 5])), f"{lake}/t")
    assert list_data_files(f"{lake}/t") == []
    whole = source(dates64([0, DAY_MS, -DAY_MS]))
    for inserted in (3, 0):
        result = io.merge(whole, f"{lake}/t", key_columns="id")
        assert (result.inserted, result.updated) == (inserted, 3 - inserted)
    days = load(io, f"{lake}/t").column(name).cast(pa.date32()).cast(pa.int32())
    assert days.to_pylist() == [0, 1, -1]
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match=f"'{name}'"):
        io.merge(source(dates64([1])), f"{lake}/t", key_columns="id")


# S5
def test_a_decimal_of_negative_scale_is_refused_by_name(io: AnyDatasetIO, lake: str) -> None:
    source = keyed([Decimal(100)], pa.decimal128(5, -2))
    with pytest.raises(TypeError, match=r"'v'.*decimal128\(5, -2\)"):
        io.merge(source, f"{lake}/t", key_columns="id")
    with pytest.raises(TypeError, match=r"'v'.*decimal128\(5, -2\)"):
        io.write_dataset(source, f"{lake}/t", "overwrite")
    assert list_data_files(f"{lake}/t") == []


# S3
def test_fixed_size_lists_of_another_size_are_refused_by_name(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([[1, 2]], pa.list_(pa.int64(), 2)))
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match=r"Column 'v'"):
        io.merge(keyed([[1, 2, 3]], pa.list_(pa.int64(), 3)), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=r"Column 'v'"):
        io.merge(keyed([[1, 2, 3]], pa.list_(pa.int64())), f"{lake}/t", key_columns="id")


# S5
@pytest.mark.parametrize("skip_unchanged", [False, True])
@pytest.mark.parametrize("ids", [[1, 2], [1, 3]])
def test_null_in_a_fixed_size_list_is_kept_or_refused_before_anything_is_written(
    io: AnyDatasetIO, lake: str, ids: list[int], skip_unchanged: bool
) -> None:
    kind, path = pa.list_(pa.int64(), 2), f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "v": pa.array([[1, 2], [3, 4]], kind)}))
    source = pa.table({"id": ids, "v": pa.array([[5, 6], None], kind)})
    if HAS_NULL_FIXED_LISTS:
        io.merge(source, path, "upsert", "id", skip_unchanged=skip_unchanged)
        expected = {1: [1, 2], 2: [3, 4], **dict(zip(ids, [[5, 6], None], strict=True))}
        assert dict(zip(*load(io, path).select(["id", "v"]).to_pydict().values(), strict=True)) == expected
        return
    refused = r"Column 'v' .* holds NULL.*Install PyArrow 26"
    with assert_unchanged(path), pytest.raises(ValueError, match=refused):
        io.merge(source, path, "upsert", "id", skip_unchanged=skip_unchanged)
    with pytest.raises(ValueError, match=refused):
        io.write_dataset(source, f"{lake}/new")
    assert not os.path.exists(f"{lake}/new")


# S1, S3
@pytest.mark.parametrize(
    ("item", "value"),
    [
        (pa.field("value", pa.int64(), nullable=False), None),
        (pa.field("value", pa.struct([pa.field("x", pa.int64(), nullable=False)])), {"x": None}),
    ],
    ids=["value", "inside the value"],
)
@pytest.mark.parametrize("start", [1, 2])
def test_null_in_a_required_part_of_a_map_is_refused(
    io: AnyDatasetIO, lake: str, item: pa.Field, value: Any, start: int
) -> None:
    good = 1 if value is None else {"x": 1}
    put(f"{lake}/t/a.parquet", keyed([[("a", good)]], pa.map_(pa.string(), item)))
    loose = pa.map_(pa.string(), pa.int64() if value is None else pa.struct([("x", pa.int64())]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="Column 'v'"):
        io.merge(keyed([[("b", value)]], loose, start), f"{lake}/t", key_columns="id")
    assert io.merge(keyed([[("b", good)]], loose, start), f"{lake}/t", key_columns="id").source_count == 1


# S2
@pytest.mark.parametrize("twice", ["id", "v"])
def test_a_target_with_one_name_twice_is_refused(io: AnyDatasetIO, lake: str, twice: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table([[1], [2], [3]], names=["id", "v", twice]))
    for attempt in (io.merge, io.plan):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(SchemaMismatchError, match=f"target has several columns.*'{twice}'"),
        ):
            attempt(pa.table({"id": [1], "v": [2]}), f"{lake}/t", key_columns="id")


# S6
def test_int96_is_an_instant_in_microseconds(io: AnyDatasetIO, lake: str) -> None:
    instants = pa.array([0, 1_700_000_000_123_456_000, None], pa.timestamp("ns", "UTC"))
    table = pa.table({"id": [1, 2, 3], "v": instants})
    put(f"{lake}/t/a.parquet", table, use_deprecated_int96_timestamps=True, row_group_size=2)
    found = load(io, f"{lake}/t")
    assert found.schema.field("v").type == pa.timestamp("us", "UTC")
    change = pa.table({"id": [2, 4], "v": pa.array([1_600_000_000_654_321, 5], pa.timestamp("us", "UTC"))})
    result = io.merge(change, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    merged = load(io, f"{lake}/t")
    micros = {row["id"]: row["v"] for row in merged.set_column(1, "v", merged["v"].cast(pa.int64())).to_pylist()}
    assert micros == {1: 0, 2: 1_600_000_000_654_321, 3: None, 4: 5}
    for path in (*result.rewritten_files, *result.inserted_files):
        stored = pq.ParquetFile(path).schema.column(1)
        assert stored.physical_type == "INT64"
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(stored.logical_type)


# S6, K6
def test_int96_may_be_a_key(io: AnyDatasetIO, lake: str) -> None:
    kind = pa.timestamp("us", "UTC")
    table = pa.table({"at": pa.array([0, 10**6], kind), "v": ["a", "b"]})
    put(f"{lake}/t/a.parquet", table, use_deprecated_int96_timestamps=True)
    result = io.merge(pa.table({"at": pa.array([10**6, 5], kind), "v": ["B", "c"]}), f"{lake}/t", key_columns="at")
    assert (result.inserted, result.updated) == (1, 1)


# S6, S3
def test_a_naive_timestamp_does_not_enter_an_int96_column(io: AnyDatasetIO, lake: str) -> None:
    instants = pa.array([0], pa.timestamp("ns", "UTC"))
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": instants}), use_deprecated_int96_timestamps=True)
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'v' has type timestamp"):
        io.merge(keyed([0], pa.timestamp("us")), f"{lake}/t", key_columns="id")


FAR_SECONDS = 2**62
SECONDS = pa.timestamp("s")
FAR_INSTANTS: dict[str, pa.Array] = {
    "naive": pa.array([0, FAR_SECONDS], SECONDS),
    "zoned": pa.array([0, FAR_SECONDS], pa.timestamp("s", "Europe/Paris")),
    "dictionary": pa.array([0, FAR_SECONDS], SECONDS).dictionary_encode(),
    "list": pa.array([[0], [FAR_SECONDS]], pa.list_(SECONDS)),
    "struct": pa.array([{"a": 0}, {"a": FAR_SECONDS}], pa.struct([("a", SECONDS)])),
    "time": pa.array([0, 2**30], pa.time32("s")),
}


# S3
@pytest.mark.parametrize("values", FAR_INSTANTS.values(), ids=FAR_INSTANTS)
@pytest.mark.parametrize("attempt", ["merge", "append", "overwrite"])
def test_seconds_that_milliseconds_cannot_hold_are_refused(
    io: AnyDatasetIO, lake: str, values: pa.Array, attempt: WriteMode | Literal["merge"]
) -> None:
    source = pa.table({"id": [1, 2], "v": values})
    path = f"{lake}/t"
    write = partial(io.merge, key_columns="id") if attempt == "merge" else partial(io.write_dataset, mode=attempt)
    with pytest.raises(ColumnValueError, match=r"Column 'v' holds .* does not fit the target's .*\[[mu]s"):
        write(source, path)
    assert snapshot(f"{lake}/t") == {}


# S3
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_seconds_beyond_the_unit_of_the_target_are_refused(io: AnyDatasetIO, lake: str, unit: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": pa.array([0], pa.timestamp(unit))}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match=f"'v' holds {FAR_SECONDS} "):
        io.merge(pa.table({"id": [1, 2], "v": FAR_INSTANTS["naive"]}), f"{lake}/t", key_columns="id")


# S4, H2
def test_seconds_become_milliseconds_and_stay_seconds_in_paths(io: AnyDatasetIO, lake: str) -> None:
    seconds = pa.array([0, 86_400], SECONDS)
    source = pa.table({"id": [1, 2], "v": seconds, "day": seconds})
    for _ in range(2):
        result = io.merge(source, f"{lake}/t", key_columns=["id", "day"], partition_columns="day")
    assert (result.inserted, result.updated) == (0, 2)
    found = load(io, f"{lake}/t").sort_by("id")
    # Spark has microseconds only.
    assert found.schema.field("v").type in (pa.timestamp("ms"), pa.timestamp("us"))
    assert found.column("v").cast(SECONDS).equals(pa.chunked_array([seconds]))
    assert found.column("day").cast(SECONDS).equals(pa.chunked_array([seconds]))
