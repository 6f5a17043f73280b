"""DataFrames as sources: their types, their lack of order, and settings of the session (X6, X8)."""

from __future__ import annotations

import datetime as dt
import gzip
import os
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.support import assert_unchanged, load, put, read_rows, read_table
from tests.values import NESTED, PLAIN, is_carried_by_spark

from merganser.core.sources.files import SourceFiles
from merganser.engines.spark import input_splits as portions
from merganser.engines.spark.types import to_spark_schema, to_transport_schema
from merganser.errors import InvalidArgumentError, TargetPathError, UnreadableFileError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

# A night in which New York's clocks jump: 02:30 does not exist there.
GAP = dt.datetime(2024, 3, 10, 2, 30)  # noqa: DTZ001  no zone is the point
ROWS = pa.schema({"id": pa.int64(), "v": pa.string(), "at": pa.timestamp("us")})


# X6
def test_a_frame_is_merged(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    frame = spark.range(10).selectExpr("id", "cast(id as string) v", "array(id, null) tags", "named_struct('a', id) s")
    first = io.merge(frame, f"{lake}/t", key_columns="id")
    again = io.merge(frame.where("id > 4").selectExpr("id + 2 id", "'new' v", "tags", "s"), f"{lake}/t", "upsert", "id")
    assert (first.inserted, again.inserted, again.updated) == (10, 2, 3)
    found = read_rows(io, f"{lake}/t")
    assert [row["v"] for row in found] == ["0", "1", "2", "3", "4", "5", "6", *["new"] * 5]
    assert found[7] == {"id": 7, "v": "new", "tags": [5, None], "s": {"a": 5}}


# X6, T3
def test_rows_of_a_frame_have_no_order(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    frame = spark.createDataFrame([(1, "a", 1), (1, "b", 3), (1, "c", 2), (2, "d", None)], "id int, v string, at int")
    with assert_unchanged(f"{lake}/t"), pytest.raises(InvalidArgumentError, match="dedup_order_by"):
        io.merge(frame, f"{lake}/t", "deduplicate", "id")
    io.merge(frame, f"{lake}/t", "deduplicate", "id", dedup_order_by="at")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["b", "d"]


# X6, X8
@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", "TIMESTAMP_LTZ"])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_no_zone_of_a_session_moves_a_timestamp(
    broadcast_io: AnyDatasetIO, spark: Any, lake: str, configured: Callable[..., None], zone: str, kind: str
) -> None:
    configured({"spark.sql.session.timeZone": zone, "spark.sql.timestampType": kind})
    instant = GAP.replace(tzinfo=dt.UTC)
    schema = pa.schema({"id": pa.int64(), "naive": pa.timestamp("ms"), "zoned": pa.timestamp("ms", "Europe/Paris")})
    table = pa.table([[1], [GAP], [instant]], schema=schema)
    broadcast_io.merge(table, f"{lake}/t", key_columns="id")
    frame = spark.sql(
        "SELECT 2L id, timestamp_ntz'2024-03-10 02:30:00' naive, timestamp_ltz'2024-03-10 02:30:00Z' zoned"
    )
    broadcast_io.merge(frame, f"{lake}/t", key_columns="id")
    found = load(broadcast_io, f"{lake}/t").sort_by("id")
    assert found.schema.types == schema.types
    assert found.column("naive").to_pylist() == [GAP, GAP]
    assert found.column("zoned").cast(pa.int64()).to_pylist() == [int(instant.timestamp()) * 1000] * 2
    frame = broadcast_io.read(f"{lake}/t")
    seen = frame.selectExpr("typeof(naive) n", "typeof(zoned) z", "unix_seconds(zoned) s").collect()
    assert {tuple(row) for row in seen} == {("timestamp_ntz", "timestamp", int(instant.timestamp()))}


UNCARRIED = {
    "unsigned": pa.array([1], pa.uint32()),
    "nanoseconds": pa.array([1], pa.timestamp("ns")),
    "time": pa.array([1], pa.time64("us")),
    "half": pa.array([1.0], pa.float32()).cast(pa.float16()),
    "inside": pa.array([[1]], pa.list_(pa.uint8())),
    "digits": pa.array([Decimal(1)], pa.decimal256(60, 2)),
}


# X6
@pytest.mark.parametrize("name", UNCARRIED)
def test_what_spark_cannot_carry_is_refused_before_anything_is_written(
    broadcast_io: AnyDatasetIO, lake: str, name: str
) -> None:
    table = pa.table({"id": [1], name: UNCARRIED[name]})
    put(f"{lake}/t/a.parquet", table)
    for call in (broadcast_io.merge, broadcast_io.plan):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(UnsupportedTypeError, match=f"'{name}'.*Spark does not support"),
        ):
            call(table, f"{lake}/t", key_columns="id")


# X6
def test_columns_of_other_types_survive_in_rewritten_files(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    kinds = pa.schema(
        {
            "id": pa.uint32(),
            "u": pa.uint64(),
            "at": pa.timestamp("ns"),
            "text": pa.dictionary(pa.int8(), pa.string()),
            "raw": pa.binary(2),
        }
    )
    big = (1 << 64) - 1
    put(
        f"{lake}/t/a.parquet",
        pa.table([[1, 2], [big, 5], [1_000_000_001, 2], ["a", "b"], [b"xy", b"zz"]], schema=kinds),
    )
    frame = spark.sql("SELECT 2L id, 7 u, timestamp_ntz'1970-01-01 00:00:01' at, 'new' text, cast('ab' as binary) raw")
    result = io.merge(frame, f"{lake}/t", key_columns="id")
    assert result.updated == 1
    found = load(io, f"{lake}/t")
    assert found.schema.types == kinds.types
    assert found.column("u").to_pylist() == [big, 7]
    assert found.column("at").cast(pa.int64()).to_pylist() == [1_000_000_001, 1_000_000_000]


# X6, H2
def test_007_stays_007(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    frame = spark.createDataFrame([(1, "007"), (2, "7")], "id int, agent string")
    io.merge(frame, f"{lake}/t", key_columns="id", partition_columns="agent")
    assert sorted(os.listdir(f"{lake}/t")) == ["agent=007", "agent=7"]
    io.merge(frame.where("id = 1"), f"{lake}/t", key_columns="id")
    found = read_table(io, f"{lake}/t").sort_by("id")
    assert found.column("agent").to_pylist() == ["007", "7"]


TROUBLE = {
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.adaptive.enabled": "false",
}


# X8
def test_session_settings_have_no_effect(
    io: AnyDatasetIO, spark: Any, lake: str, configured: Callable[..., None]
) -> None:
    configured(TROUBLE)
    table = pa.table({"id": range(20), "ID": range(20), "day": [f"0{n % 2}" for n in range(20)], "v": ["x"] * 20})
    io.merge(table, f"{lake}/t", key_columns=["id", "ID"], partition_columns="day")
    frame = spark.createDataFrame(
        [(n, n, f"0{n % 2}", "new") for n in range(5, 25)], "a int, b int, c string, d string"
    )
    frame = frame.toDF("id", "ID", "day", "v")
    result = io.merge(frame, f"{lake}/t", key_columns=["id", "ID"])
    assert (result.updated, result.inserted) == (15, 5)
    found = read_table(io, f"{lake}/t").sort_by("id")
    assert found.to_pylist() == [
        {"id": n, "ID": n, "v": "x" if n < 5 else "new", "day": f"0{n % 2}"} for n in range(25)
    ]


# X8
def test_a_damaged_target_is_an_error_whatever_the_session_ignores(
    io: AnyDatasetIO, lake: str, configured: Callable[..., None]
) -> None:
    configured(TROUBLE)
    table = pa.table({"id": range(1000), "v": ["x" * 10] * 1000})
    path = put(f"{lake}/t/a.parquet", table, compression="none", use_dictionary=False)
    put(f"{lake}/t/b.parquet", pa.table({"id": [5000], "v": ["y"]}))
    with open(path, "r+b") as file:
        # The pages of the key column, not the footer.
        file.seek(4)
        file.write(b"\xff" * 64)
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnreadableFileError, match=r"a\.parquet"):
        io.merge(table.slice(5, 5), f"{lake}/t", key_columns="id")
    with pytest.raises(PySparkException, match=r"Cannot read .*a\.parquet"):
        read_table(io, f"{lake}/t")


# X6
def test_a_frame_without_an_arrow_type_is_refused_by_name(broadcast_io: AnyDatasetIO, spark: Any, lake: str) -> None:
    frame = spark.sql("SELECT 1 id, interval '1' month AS wait")
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedTypeError, match="'wait'"):
        broadcast_io.merge(frame, f"{lake}/t", key_columns="id")


# X6
@pytest.mark.parametrize("kind", [*PLAIN, *NESTED, pa.null(), pa.list_(pa.uuid())], ids=str)
def test_spark_carries_every_other_type(kind: pa.DataType) -> None:
    schema = pa.schema({"v": kind})
    if is_carried_by_spark(kind):
        assert len(to_spark_schema(to_transport_schema(schema)).fields) == 1
    else:
        with pytest.raises(UnsupportedTypeError, match="'v'"):
            to_transport_schema(schema)


# X6, X1
def test_a_path_is_read_by_executors(io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"id": range(6), "v": [f"{n}" for n in range(6)], "at": [GAP] * 6}, schema=ROWS)
    for start in (0, 3):
        put(f"{lake}/rows/{start}.parquet", table.slice(start, 3), row_group_size=1)
    os.makedirs(f"{lake}/text")
    with open(f"{lake}/text/rows.csv.gz", "wb") as file:
        file.write(gzip.compress(b"id,v,at\n1,one,2024-03-10 02:30:00\n9,nine,2024-03-10 02:30:00\n"))
    put(f"{lake}/set/day=1/a.parquet", table.slice(0, 2))

    def refuse(*_: Any) -> None:
        message = "the driver reads source rows"
        raise AssertionError(message)

    monkeypatch.setattr(SourceFiles, "read_batches", refuse)
    monkeypatch.setattr(SourceFiles, "_read_table", refuse)
    monkeypatch.setattr(portions, "_SPLIT_BYTES", 300)
    assert io.plan(f"{lake}/rows/*.parquet", f"{lake}/t", key_columns="id").inserted == 6
    assert io.merge(f"{lake}/rows/*.parquet", f"{lake}/t", key_columns="id").inserted == 6
    assert read_rows(io, f"{lake}/t") == table.to_pylist()
    result = io.merge(f"{lake}/text/*.csv.gz", f"{lake}/t", key_columns="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert io.merge(f"{lake}/set", f"{lake}/u", key_columns="id").inserted == 2
    assert [row["day"] for row in read_rows(io, f"{lake}/u")] == ["1", "1"]


# X6
def test_a_path_that_cannot_be_read_is_named(broadcast_io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/rows/a.parquet", pa.table({"id": [1]}))
    os.makedirs(f"{lake}/text")
    for number in range(2):
        with open(f"{lake}/text/{number}.json", "w", encoding="utf-8") as file:
            file.write("{" if number else '{"id": 1}')
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnreadableFileError, match=r"1\.json"):
        broadcast_io.merge(f"{lake}/text/*.json", f"{lake}/t", key_columns="id")
    with pytest.raises(TargetPathError, match="no Parquet files"):
        broadcast_io.read(f"{lake}/none")


# X6, O3
def test_some_columns_are_read(broadcast_io: AnyDatasetIO, lake: str) -> None:
    broadcast_io.merge(pa.table({"id": [1, 2], "day": ["a", "b"], "v": [3, 4]}), f"{lake}/t", "insert", "id", "day")
    found = broadcast_io.read_columns(f"{lake}/t", ["day", "id"])  # type: ignore[attr-defined]
    assert sorted(map(tuple, found.collect())) == [("a", 1), ("b", 2)]
    with pytest.raises(InvalidArgumentError, match="no column 'nosuch'"):
        broadcast_io.read_columns(f"{lake}/t", "nosuch")  # type: ignore[attr-defined]
    with pytest.raises(TargetPathError, match="no Parquet files"):
        broadcast_io.read_columns(f"{lake}/none", "id")  # type: ignore[attr-defined]
