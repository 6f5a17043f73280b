"""INT96 as PyArrow 21 wrote it: instants before 1970 have a negative time of day (S6)."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.make_arrow_fixtures import KIND, rows_of
from tests.support import (
    FIXTURES,
    assert_unchanged,
    copy_fixture,
    edit_footer,
    list_data_files,
    load,
    put,
    put_int96,
    to_plain_rows,
)

from merganser.core.parquet.int96 import split_int96
from merganser.core.rows.key_scan import open_parquet
from merganser.core.storage.local import LocalStore
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

    from merganser.core.model.strategy import MergeStrategy

NEAR, FAR = "arrow21_int96", "arrow21_int96_far"
CHANGED = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(to_plain_rows(table), key=lambda row: str(row["id"]).zfill(9))


def test_the_fixtures_have_a_negative_time_of_day() -> None:
    for name in (NEAR, FAR):
        file = FIXTURES / name / "part-0.parquet"
        assert pq.read_metadata(file).created_by.startswith("parquet-cpp-arrow version 21.")
        with open_parquet(LocalStore(), str(file)) as parquet:
            time, _, _ = split_int96(parquet.read_bytes(0, ["ts"]).column("ts").chunk(0))
        assert (time < 0).tolist() == [True, True, False, True]
        with duckdb.connect() as connection:
            seen = connection.execute("SELECT epoch_us(ts) FROM read_parquet(?) ORDER BY id", [str(file)]).fetchall()
        assert [value for (value,) in seen] == rows_of(name).column("ts").cast(pa.int64()).to_pylist()


# S6, W2
@pytest.mark.parametrize("name", [NEAR, FAR])
@pytest.mark.parametrize("strategy", ["upsert", "delete"])
def test_a_merge_keeps_the_instants_of_other_rows(
    io: AnyDatasetIO, lake: str, name: str, strategy: MergeStrategy
) -> None:
    path, expected = copy_fixture(name, lake), rows_of(name)
    change = expected.slice(2, 1).set_column(1, "ts", pa.array([CHANGED], KIND))
    result = io.merge(change, path, strategy, "id")
    assert (result.updated, result.deleted) == ((1, 0) if strategy == "upsert" else (0, 1))
    kept = [expected.slice(0, 2), *([change] if strategy == "upsert" else []), expected.slice(3)]
    assert rows(load(io, path)) == rows(pa.concat_tables(kept))
    (file,) = list_data_files(path)
    assert pq.ParquetFile(f"{path}/{file}").schema.column(1).physical_type == "INT64"


# S6, K6
@pytest.mark.parametrize("name", [NEAR, FAR])
def test_an_instant_before_1970_is_found_as_a_key(io: AnyDatasetIO, lake: str, name: str) -> None:
    path, source = copy_fixture(name, lake), rows_of(name)
    source = source.filter(source.column("ts").is_valid())
    result = io.merge(source, path, "upsert", "ts")
    assert (result.inserted, result.updated) == (0, source.num_rows)


# S6
@pytest.mark.parametrize("name", [NEAR, FAR])
def test_a_source_file_gives_the_same_instants(io: AnyDatasetIO, lake: str, name: str) -> None:
    io.merge(str(FIXTURES / name / "part-0.parquet"), f"{lake}/t", key_columns="id")
    assert rows(load(io, f"{lake}/t")) == rows(rows_of(name))


# S6, O3
def test_a_folder_is_read_as_the_same_instants(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture(NEAR, lake)
    put(f"{path}/part-1.parquet", rows_of(FAR).slice(6), use_deprecated_int96_timestamps=True)
    expected = rows(pa.concat_tables([rows_of(NEAR), rows_of(FAR).slice(6)]))
    assert rows(load(io, path)) == expected
    io.merge(path, f"{lake}/t", key_columns="id")
    assert rows(load(io, f"{lake}/t")) == expected


# S6, O3
def test_keys_of_spark_in_a_file_of_pyarrow_prove_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture(NEAR, lake)
    with edit_footer(f"{path}/part-0.parquet") as footer:
        # PyArrow keeps them where it writes a file of Spark's again.
        footer[5].append(footer[5][0].replace({1: b"org.apache.spark.version", 2: b"3.5.0"}))
    assert b"org.apache.spark.version" in pq.read_metadata(f"{path}/part-0.parquet").metadata
    assert rows(load(io, path)) == rows(rows_of(NEAR))
    io.merge(path, f"{lake}/t", key_columns="id")
    assert rows(load(io, f"{lake}/t")) == rows(rows_of(NEAR))


# S6, O3
def test_a_folder_that_arrow_datasets_misread_is_refused(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture(FAR, lake)
    misread = r"Column 'ts' of .*part-0\.parquet holds INT96 .* PyArrow .*write_dataset"
    with pytest.raises(UnsupportedFileError, match=misread):
        io.read(path)
    # What the message advises.
    io.write_dataset(f"{path}/part-0.parquet", f"{lake}/new")
    assert rows(load(io, f"{lake}/new")) == rows(rows_of(FAR))
    put(f"{lake}/t/a.parquet", rows_of(NEAR))
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedFileError, match=r"part-0\.parquet"):
        io.merge(path, f"{lake}/t", key_columns="id")


# S6
def test_an_instant_that_microseconds_cannot_hold_is_refused(io: AnyDatasetIO, lake: str) -> None:
    put_int96(f"{lake}/t/a.parquet", [2_440_588, 2**31 - 1])
    change = pa.table({"id": [1], "ts": pa.array([CHANGED], KIND)})
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(UnsupportedFileError, match=r"Column 'ts' of .*a\.parquet holds an INT96"),
    ):
        io.merge(change, f"{lake}/t", key_columns="id")
