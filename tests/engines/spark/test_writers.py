"""Datasets that Spark wrote by itself: INT96, checksum files, decimals, its own folders (S6, C3, X6)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from tests.arrow_versions import bloom_filters, needs_bloom_filters
from tests.support import list_data_files, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

SCHEMA = "id long, at timestamp, small decimal(7,2), wide decimal(30,6), name string, day string"


def row(number: int, name: str) -> tuple[Any, ...]:
    at = dt.datetime(1950 + number, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC)
    return number, at, Decimal(number) / 100, Decimal(number) / 10**6, name, f"0{number % 2}"


def expected() -> list[tuple[Any, ...]]:
    return [row(n, "old" if n < 50 else "new") for n in range(110)]


# S6, C3, X6
@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_what_spark_wrote_is_merged_into_and_read_by_everyone(
    io: AnyDatasetIO, spark: Any, lake: str, kind: str, configured: Callable[..., None]
) -> None:
    configured({"spark.sql.parquet.outputTimestampType": kind, "spark.sql.session.timeZone": "Asia/Tokyo"})
    path = f"{lake}/t"
    written = spark.createDataFrame([row(n, "old") for n in range(100)], SCHEMA)
    written.repartition(2).write.partitionBy("day").parquet(path)
    assert list(Path(path).rglob(".*.crc"))
    changes = spark.createDataFrame([row(n, "new") for n in range(50, 110)], SCHEMA)
    result = io.merge(changes, path, "upsert", "id")
    assert (result.updated, result.inserted) == (50, 10)

    names = [column.split()[0] for column in SCHEMA.split(", ")]
    frames = {
        "spark": spark.read.schema(SCHEMA).parquet(path).select(*names).toArrow(),
        "ours": io.read(path).select(*names).toArrow(),
        "arrow": pads.dataset([f"{path}/{name}" for name in list_data_files(path)], partitioning="hive").to_table(),
        "polars": pl.scan_parquet(f"{path}/**/*.parquet", hive_schema={"day": pl.String}).collect().to_arrow(),
        "duckdb": duckdb.read_parquet(f"{path}/**/*.parquet", hive_partitioning=True).to_arrow_table(),
    }
    for name, table in frames.items():
        found = [
            (one["id"], as_utc(one["at"]), Decimal(one["small"]), Decimal(one["wide"]), one["name"])
            for one in table.sort_by("id").to_pylist()
        ]
        assert found == [one[:-1] for one in expected()], name
    assert frames["ours"].sort_by("id").column("day").to_pylist() == [one[-1] for one in expected()]


def as_utc(at: dt.datetime) -> dt.datetime:
    return at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at.astimezone(dt.UTC)


# W2
@needs_bloom_filters
@pytest.mark.splice
def test_spark_finds_rows_by_copied_columns_and_by_new_ones(broadcast_io: AnyDatasetIO, spark: Any, lake: str) -> None:
    count = 20_000
    names = [f"name {number}" for number in range(count)]
    old = pa.table({"id": range(count), "name": names, "price": [float(number) for number in range(count)]})
    filters = bloom_filters(**dict.fromkeys(("id", "name", "price"), count // 2))
    options: dict[str, Any] = {"write_page_index": True, "data_page_size": 1_000}
    path = put(f"{lake}/t/a.parquet", old, row_group_size=count // 2, **options, **filters)
    before = pq.read_metadata(path)
    source = pa.table({"id": [7, 15_000], "price": [-7.0, -15.0]})
    assert broadcast_io.merge(source, f"{lake}/t", "update", "id", update_columns=["price"]).updated == 2
    after = pq.read_metadata(path)
    for group in range(2):
        sizes = [
            [metadata.row_group(group).column(at).total_compressed_size for at in (0, 1)]
            for metadata in (before, after)
        ]
        assert sizes[0] == sizes[1]
        filtered = [after.row_group(group).column(at).bloom_filter_offset is not None for at in range(3)]
        assert filtered == [True, True, False]
    frame = spark.read.parquet(f"{lake}/t")
    for condition, ids in (
        ("price = -15.0", [15_000]),
        ("price = 15000.0", []),
        ("price < 0 or name = 'name 8'", [7, 8, 15_000]),
        ("name = 'name 15000'", [15_000]),
        ("name = 'nobody'", []),
        ("id between 14999 and 15001", [14_999, 15_000, 15_001]),
    ):
        assert sorted(row.id for row in frame.where(condition).collect()) == ids, condition
    assert frame.selectExpr("sum(price)").first()[0] == sum(range(count)) - 7 - 15_000 - 7 - 15
