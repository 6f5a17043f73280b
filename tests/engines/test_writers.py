"""Datasets of other writers are merged into, and other readers see the same result (S6, W2, R3, C3)."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from tests.support import copy_fixture, list_data_files, load, put, read_fixture_rows, read_rows, snapshot

from merganser.engines.duckdb.connection import parse_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support import AnyDatasetIO

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SPARK_PLAIN = ["spark_int96", "spark_legacy", "spark_no_statistics"]
NEW_ROW: dict[str, Any] = {
    "id": 6,
    "name": "new",
    "ts": dt.datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC),
    "d": dt.date(2030, 1, 2),
    "amount": Decimal("-1.25"),
    "big": Decimal("0.0001"),
    "huge": Decimal("1.00000"),
    "tags": ["x", None],
    "attrs": [("k", 1), ("n", None)],
    "nested": {"a": 1, "b": None},
}


def spelled(value: Any) -> Any:
    """Spell a value the way `expected.json` does."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="microseconds")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return {name: spelled(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(inner) for inner in value]
    return value


def expected(name: str) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in read_fixture_rows(name)}


def found(io: AnyDatasetIO, path: str) -> dict[int, dict[str, Any]]:
    return {row["id"]: {name: spelled(value) for name, value in row.items()} for row in read_rows(io, path)}


def source_like(io: AnyDatasetIO, path: str, *changed: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(changed), schema=load(io, path).schema)


# S6, O3
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_spark_files_read_as_spark_wrote_them(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = copy_fixture(name, lake)
    assert found(io, path) == expected(name)
    assert load(io, path).schema.field("ts").type == pa.timestamp("us", "UTC")


# S6, T1, W2
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_spark_files_are_merged_into(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = copy_fixture(name, lake)
    change = source_like(io, path, NEW_ROW | {"id": 4}, NEW_ROW)
    result = io.merge(change, path, key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    after = expected(name)
    for number in (4, 6):
        after[number] = {column: spelled(value) for column, value in (NEW_ROW | {"id": number}).items()}
    assert found(io, path) == after


# S6, W2
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_new_row_groups_of_spark_files_hold_int64_microseconds_and_the_old_decimals(
    io: AnyDatasetIO, lake: str, name: str
) -> None:
    path = copy_fixture(name, lake)
    old = {file: pq.ParquetFile(f"{path}/{file}").schema for file in list_data_files(path)}
    result = io.merge(source_like(io, path, NEW_ROW | {"id": 4}), path, "update", "id")
    for file in result.rewritten_files:
        before, after = old[os.path.basename(file)], pq.ParquetFile(file).schema
        for leaf in range(len(before)):
            one, two = before.column(leaf), after.column(leaf)
            if one.physical_type == "INT96":
                assert (two.physical_type, two.logical_type.type) == ("INT64", "TIMESTAMP")
            else:
                assert (one.physical_type, str(one.logical_type)) == (two.physical_type, str(two.logical_type))


# C3
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_a_stale_checksum_goes_with_the_file_it_described(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = copy_fixture(name, lake)
    result = io.merge(source_like(io, path, NEW_ROW | {"id": 4}), path, key_columns="id")
    for file in result.rewritten_files:
        folder, base = os.path.split(file)
        assert not os.path.exists(f"{folder}/.{base}.crc")
    for file in result.preserved_files:
        folder, base = os.path.split(file)
        assert os.path.exists(f"{folder}/.{base}.crc")
    assert Path(f"{path}/_SUCCESS").exists()


# C3, T5
def test_checksums_of_removed_files_go_too(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture("spark_int96", lake)
    result = io.merge(source_like(io, path, NEW_ROW), path, "full_merge", "id")
    assert len(result.removed_files) == 2
    assert [name for name in os.listdir(path) if name.endswith(".crc")] == ["._SUCCESS.crc"]


# H2, H3
def test_spark_partitions_are_read_and_merged_into(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture("spark_partitioned", lake)
    before = expected("spark_partitioned")
    assert {n: row | {"day": spelled(row["day"])} for n, row in found(io, path).items()} == before
    folders = {os.path.dirname(file) for file in list_data_files(path)}
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us", "UTC")),
            ("value", pa.float64()),
            ("day", pa.date32()),
            ("kind", pa.string()),
        ]
    )
    instant = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    changed = [
        {
            "id": number,
            "ts": instant,
            "value": -1.0,
            "day": None if row["day"] is None else dt.date.fromisoformat(row["day"]),
            "kind": row["kind"],
        }
        for number, row in before.items()
    ]
    doubled = [row | {"id": row["id"] + 100} for row in changed]
    result = io.merge(pa.Table.from_pylist([*changed, *doubled], schema=schema), path, key_columns="id")
    assert (result.inserted, result.updated) == (12, 12)
    # Every new row found the folder that Spark had made for its values.
    assert {os.path.dirname(file) for file in list_data_files(path)} == folders
    after = found(io, path)
    for number, row in before.items():
        assert after[number] == after[number + 100] | {"id": number}
        assert (after[number]["day"], after[number]["kind"], after[number]["value"]) == (row["day"], row["kind"], -1.0)


BY_DUCKDB: dict[str, str] = {
    "one file": "COPY data TO '{path}/a.parquet' (FORMAT parquet)",
    "small row groups, zstd": "COPY data TO '{path}/a.parquet' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 2048)",
    "version 2": "COPY data TO '{path}/a.parquet' (FORMAT parquet, PARQUET_VERSION v2)",
}
SELECT = """
    SELECT i AS id, 'name ' || i AS name, i * 0.5 AS f, (i * 1.25)::DECIMAL(9, 2) AS amount,
           TIMESTAMP '2025-01-01' + to_seconds(i) AS ts, TIMESTAMPTZ '2025-01-01 00:00:00+00' + to_seconds(i) AS tz,
           DATE '2025-01-01' + i::INT AS d, [i, NULL] AS tags, {'a': i, 'b': NULL::VARCHAR} AS nested,
           MAP {'k': i} AS attrs, i % 2 = 0 AS even, uuid() AS u, 'x'::BLOB AS raw, i::UTINYINT AS tiny, 7::HUGEINT AS h
    FROM range(20) AS r (i)
"""


def change_one_and_add_one(io: AnyDatasetIO, path: str, keys: Sequence[str] = ("id",)) -> None:
    """Merge a changed row and a new one, and compare everything with what was there."""
    before = load(io, path)
    ids = before.column("id").to_pylist()
    position = ids.index(7)
    changed = before.slice(position, 1)
    fresh = before.slice(ids.index(9), 1)
    first = before.schema.get_field_index("id")
    fresh = fresh.set_column(first, before.schema.field(first), pa.array([1000]).cast(before.schema.field(first).type))
    donor = before.slice(ids.index(3), 1)
    where = before.schema.get_field_index("name")
    changed = changed.set_column(where, before.schema.field(where), donor.column("name"))
    result = io.merge(pa.concat_tables([changed, fresh]), path, "upsert", list(keys))
    assert (result.inserted, result.updated) == (1, 1)
    after = load(io, path)
    assert after.schema.equals(before.schema)
    want = {row["id"]: row for row in before.to_pylist()}
    want[7] = want[7] | {"name": want[3]["name"]}
    want[1000] = want[9] | {"id": 1000}
    assert {row["id"]: row for row in after.to_pylist()} == want


# W2, R3
@pytest.mark.parametrize("how", BY_DUCKDB)
def test_duckdb_files_are_merged_into(io: AnyDatasetIO, lake: str, how: str) -> None:
    os.makedirs(f"{lake}/t")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE TABLE data AS {SELECT}")
    connection.execute(BY_DUCKDB[how].format(path=f"{lake}/t"))
    layout = _leaves(f"{lake}/t/a.parquet")
    change_one_and_add_one(io, f"{lake}/t")
    assert _leaves(f"{lake}/t/a.parquet") == layout
    readers_agree(io, f"{lake}/t")


def _leaves(path: str) -> list[tuple[str, str, str]]:
    schema = pq.ParquetFile(path).schema
    leaves = [schema.column(leaf) for leaf in range(len(schema))]
    # Signed integers of full width mean the same with and without their annotation.
    plain = {"Int(bitWidth=64, isSigned=true)", "Int(bitWidth=32, isSigned=true)"}
    meanings = [str(leaf.logical_type) for leaf in leaves]
    return [
        (leaf.path, leaf.physical_type, "None" if meaning in plain else meaning)
        for leaf, meaning in zip(leaves, meanings, strict=True)
    ]


# S5, W2, W4
@pytest.mark.parametrize("mixed", [False, True], ids=["spliced", "written whole"])
@pytest.mark.parametrize(
    "value",
    [
        "uuid()",
        "[uuid()]",
        "{'u': uuid()}",
        "'[1]'::JSON",
        "INTERVAL 1 DAY",
        "'12:00:00+02'::TIMETZ",
        "'12:00:00'::TIME",
        "'2025-01-01'::TIMESTAMP_NS",
        "1.5::DECIMAL(4, 2)",
        "1.5::DECIMAL(38, 2)",
        "5::USMALLINT",
        "'x'::BLOB",
    ],
)
def test_parquet_types_that_arrow_does_not_distinguish_are_kept_or_refused(
    io: AnyDatasetIO, lake: str, value: str, mixed: bool
) -> None:
    os.makedirs(f"{lake}/t")
    # PyArrow stores such a wide decimal in fewer bytes than DuckDB, so its file is not spliced.
    wide = ", (i * 0.5)::DECIMAL(21, 1) AS w" if mixed else ""
    query = f"SELECT i AS id, {value} AS v{wide} FROM range(4) AS r (i)"  # noqa: S608
    duckdb.connect().execute(f"COPY ({query}) TO '{lake}/t/a.parquet' (FORMAT parquet)")
    meanings = [meaning for _, _, meaning in _leaves(f"{lake}/t/a.parquet")]
    before, table = snapshot(f"{lake}/t"), load(io, f"{lake}/t")
    ids = table.schema.field("id")
    fresh = table.slice(2, 1).set_column(0, ids, pa.array([99], ids.type))
    try:
        result = io.merge(pa.concat_tables([table.slice(1, 1), fresh]), f"{lake}/t", key_columns="id")
    except TypeError as error:
        assert "'v" in str(error)  # noqa: PT017  a refusal by name is right too, a silent change is not
        assert snapshot(f"{lake}/t") == before
    else:
        for path in (*result.rewritten_files, *result.inserted_files):
            assert [meaning for _, _, meaning in _leaves(path)] == meanings


# H1, H3, R3
def test_duckdb_partitions_are_merged_into(io: AnyDatasetIO, lake: str) -> None:
    connection = duckdb.connect()
    # Before 1.4 DuckDB writes a folder kind=NULL, which is the text NULL to everyone else.
    other = "NULL" if parse_version(duckdb.__version__) >= (1, 4, 0) else "'c'"
    connection.execute(
        "CREATE TABLE data AS SELECT i AS id, 'n' || i AS name, i % 3 AS day, "  # noqa: S608
        f"CASE i % 4 WHEN 0 THEN 'a b' WHEN 1 THEN 'a/b' WHEN 2 THEN '東京' ELSE {other} END AS kind "
        "FROM range(20) AS r (i)"
    )
    connection.execute(f"COPY data TO '{lake}/t' (FORMAT parquet, PARTITION_BY (day, kind))")
    folders = {os.path.dirname(file) for file in list_data_files(f"{lake}/t")}
    table = connection.table("data").to_arrow_table()
    result = io.merge(table, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (0, 20)
    assert {os.path.dirname(file) for file in list_data_files(f"{lake}/t")} == folders
    assert read_rows(io, f"{lake}/t") == table.sort_by("id").to_pylist()
    change_one_and_add_one(io, f"{lake}/t")


POLARS_FRAME = pl.DataFrame(
    {
        "id": range(20),
        "name": [f"name {n}" for n in range(20)],
        "amount": pl.Series([Decimal(n) / 4 for n in range(20)], dtype=pl.Decimal(9, 2)),
        "ts": pl.Series([dt.datetime(2025, 1, 1, n, tzinfo=dt.UTC) for n in range(20)]),
        "d": [dt.date(2025, 1, 1)] * 20,
        "tags": [[n, None] for n in range(20)],
        "nested": [{"a": n, "b": None if n % 2 else str(n)} for n in range(20)],
        "t": [dt.time(1, 2, 3)] * 20,
        "raw": [b"x"] * 20,
        "nothing": pl.Series([None] * 20, dtype=pl.String),
    }
)


# W2, R3
@pytest.mark.parametrize("options", [{}, {"row_group_size": 5, "compression": "snappy"}, {"statistics": False}])
def test_polars_files_are_merged_into(io: AnyDatasetIO, lake: str, options: dict[str, Any]) -> None:
    os.makedirs(f"{lake}/t")
    POLARS_FRAME.write_parquet(f"{lake}/t/a.parquet", **options)
    layout = _leaves(f"{lake}/t/a.parquet")
    change_one_and_add_one(io, f"{lake}/t")
    assert _leaves(f"{lake}/t/a.parquet") == layout
    readers_agree(io, f"{lake}/t")


# W2, R3
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 5, "compression": "zstd", "use_dictionary": False},
        {"version": "1.0", "data_page_version": "1.0", "store_schema": False},
        {"data_page_version": "2.0", "write_page_index": True, "store_decimal_as_integer": True},
        {"use_deprecated_int96_timestamps": True},
        {"compression": "none", "write_statistics": False, "column_encoding": "PLAIN", "use_dictionary": False},
    ],
)
def test_pyarrow_files_are_merged_into(io: AnyDatasetIO, lake: str, options: dict[str, Any]) -> None:
    table = POLARS_FRAME.to_arrow()
    plain = pa.schema([pa.field(field.name, _plain(field.type)) for field in table.schema])
    put(f"{lake}/t/a.parquet", table.cast(plain), **options)
    codec = pq.read_metadata(f"{lake}/t/a.parquet").row_group(0).column(0).compression
    change_one_and_add_one(io, f"{lake}/t")
    assert pq.read_metadata(f"{lake}/t/a.parquet").row_group(0).column(0).compression == codec
    readers_agree(io, f"{lake}/t")


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    simpler = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return pa.time64("us") if pa.types.is_time(kind) else pa.timestamp("us", kind.tz)
    return simpler.get(kind, pa.binary() if kind == pa.large_binary() else kind)


# H1, R3
def test_pyarrow_partitions_are_merged_into(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": range(20), "name": [f"n{n}" for n in range(20)], "day": [n % 3 for n in range(20)]})
    partitioning = pads.partitioning(pa.schema([("day", pa.int64())]), flavor="hive")
    pads.write_dataset(table, f"{lake}/t", format="parquet", partitioning=partitioning)
    assert io.merge(table, f"{lake}/t", key_columns="id").updated == 20
    change_one_and_add_one(io, f"{lake}/t")
    read = pads.dataset(f"{lake}/t", partitioning=partitioning).to_table().sort_by("id")
    assert read.to_pylist() == read_rows(io, f"{lake}/t")


# R3
def test_polars_partitions_are_merged_into(io: AnyDatasetIO, lake: str) -> None:
    frame = pl.DataFrame({"id": range(20), "name": [f"n{n}" for n in range(20)], "day": ["a b", "c/d"] * 10})
    for key, part in frame.partition_by("day", as_dict=True, include_key=False).items():
        folder = f"{lake}/t/day={str(key[0]).replace('/', '%2F')}"
        os.makedirs(folder)
        part.write_parquet(f"{folder}/a.parquet")
    assert io.merge(frame, f"{lake}/t", key_columns="id").updated == 20
    change_one_and_add_one(io, f"{lake}/t")
    read = pl.read_parquet(f"{lake}/t", hive_partitioning=True).sort("id")
    assert read.rows(named=True) == read_rows(io, f"{lake}/t")


def readers_agree(io: AnyDatasetIO, path: str) -> None:
    """Count, sum and list a few columns with three readers; each opens the plain folder by itself."""
    own = load(io, path)
    columns = [name for name in ("id", "name", "amount", "d") if name in own.schema.names]
    want = [tuple(row[name] for name in columns) for row in own.sort_by("id").select(columns).to_pylist()]
    arrow = pads.dataset(path, format="parquet").to_table(columns=columns).sort_by("id").to_pylist()
    listed = ", ".join(columns)
    connection = duckdb.connect()
    sql = f"SELECT {listed} FROM read_parquet('{path}/**/*.parquet') ORDER BY id"  # noqa: S608
    by_polars = pl.read_parquet(path, columns=columns).sort("id").rows()
    assert [tuple(row.values()) for row in arrow] == want
    assert connection.execute(sql).fetchall() == want
    assert by_polars == want


READERS: dict[str, Callable[[str], list[tuple[int, str | None]]]] = {
    "PyArrow": lambda path: [
        (row["id"], row["name"])
        for row in pads.dataset(path, format="parquet").to_table(columns=["id", "name"]).sort_by("id").to_pylist()
    ],
    "DuckDB": lambda path: (
        duckdb.connect()
        .execute(f"SELECT id, name FROM read_parquet('{path}/**/*.parquet', hive_partitioning = true) ORDER BY id")  # noqa: S608
        .fetchall()
    ),
    "Polars": lambda path: pl.read_parquet(f"{path}/**/*.parquet", columns=["id", "name"]).sort("id").rows(),
}


# S6, R3, C1
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_merged_spark_files_are_read_alike_by_others(io: AnyDatasetIO, lake: str, name: str, reader: str) -> None:
    path = copy_fixture(name, lake)
    io.merge(source_like(io, path, NEW_ROW | {"id": 4}, NEW_ROW), path, key_columns="id")
    assert READERS[reader](path) == [(row["id"], row["name"]) for row in read_rows(io, path)]


# S6, R3
@pytest.mark.parametrize("name", SPARK_PLAIN)
def test_merged_instants_are_read_alike_by_duckdb_and_polars(io: AnyDatasetIO, lake: str, name: str) -> None:
    path = copy_fixture(name, lake)
    io.merge(source_like(io, path, NEW_ROW | {"id": 4}, NEW_ROW), path, key_columns="id")
    want = {row["id"]: row["ts"] for row in read_rows(io, path) if row["id"] in {1, 2, 3, 4, 6}}
    files = [f"{path}/{file}" for file in list_data_files(path)]
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for file in files:
        # File by file: Spark's INT96 column and ours of INT64 have one meaning but two types in these readers.
        found_here = connection.execute("SELECT id, epoch_us(ts) FROM read_parquet(?)", [file]).fetchall()
        for number, micros in found_here:
            if want.get(number) is not None:
                assert micros == (want[number] - EPOCH) // dt.timedelta(microseconds=1)
    new = next(file for file in files if os.path.basename(file).startswith("part-") and "-c000" not in file)
    assert pl.read_parquet(new, columns=["ts"]).rows() == [(NEW_ROW["ts"],)]


# C1, C3
def test_readers_that_take_whole_folders_see_data_files_only(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    io.merge(table, f"{lake}/t", key_columns="id", max_rows_per_file=1)
    io.merge(table.slice(1), f"{lake}/t", "full_merge", "id")
    for read in READERS.values():
        assert read(f"{lake}/t") == [(2, "b"), (3, "c")]
    # From above the dataset as well: the control folder holds nothing that ends in .parquet.
    assert READERS["DuckDB"](lake) == [(2, "b"), (3, "c")]
    assert READERS["Polars"](lake) == [(2, "b"), (3, "c")]
