"""Sources: everything that carries rows can be merged, and what does not is refused clearly (S3, T1)."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files, load, put, read_rows

import merganser
from merganser.core import InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

# A relation of DuckDB 1.3 does not keep its connection alive.
CONNECTION = duckdb.connect()
TABLE = pa.table({"id": pa.array([2, 3], pa.int64()), "v": ["B", "c"]})
AFTER = [{"id": 1, "v": "a"}, {"id": 2, "v": "B"}, {"id": 3, "v": "c"}]


class OnlyStream:
    """Nothing but the stream half of the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OnlyArray:
    """Nothing but the array half of the Arrow PyCapsule interface."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


OBJECTS: dict[str, Callable[[], Any]] = {
    "Arrow table": lambda: TABLE,
    "Arrow table in chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 1)]),
    "record batch": lambda: TABLE.to_batches()[0],
    "record batch reader": TABLE.to_reader,
    "dataset": lambda: pads.dataset(TABLE),
    "scanner": lambda: pads.dataset(TABLE).scanner(),
    "pandas": TABLE.to_pandas,
    "pandas with Arrow types": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "Polars": lambda: pl.from_arrow(TABLE),
    "Polars query": lambda: pl.from_arrow(TABLE).lazy(),  # type: ignore[union-attr]
    "narwhals frame": lambda: nw.from_native(pl.from_arrow(TABLE)),
    "narwhals frame of pandas": lambda: nw.from_native(TABLE.to_pandas()),
    "DuckDB query": lambda: CONNECTION.sql("SELECT id, v FROM (VALUES (2, 'B'), (3, 'c')) rows(id, v) ORDER BY id"),
    "DuckDB relation": lambda: CONNECTION.from_arrow(TABLE),
    "list of dicts": TABLE.to_pylist,
    "dict of columns": TABLE.to_pydict,
    "dict of arrays": lambda: {"id": np.array([2, 3]), "v": TABLE.column("v")},
    "list of batches": TABLE.to_batches,
    "generator of batches": lambda: iter(TABLE.to_batches(max_chunksize=1)),
    "pandas frame with an index": lambda: TABLE.to_pandas().set_index("id"),
    "pandas frame with a range": lambda: pd.DataFrame({"v": ["B", "c"]}, pd.RangeIndex(2, 4, name="id")),
    "stream capsule": lambda: OnlyStream(TABLE),
    "array capsule": lambda: OnlyArray(TABLE.to_batches()[0]),
}


def merged(io: AnyDatasetIO, lake: str, source: Any) -> list[dict[str, Any]]:
    io.merge(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", key_columns="id")
    result = io.merge(source, f"{lake}/t", key_columns="id")
    assert (result.source_count, result.inserted, result.updated) == (2, 1, 1)
    return read_rows(io, f"{lake}/t")


# S3
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_in_memory(io: AnyDatasetIO, lake: str, name: str) -> None:
    assert merged(io, lake, OBJECTS[name]()) == AFTER


# S4, T4
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_in_memory_as_a_first_load(io: AnyDatasetIO, lake: str, name: str) -> None:
    io.merge(OBJECTS[name](), f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == TABLE.to_pylist()
    io.write_dataset(OBJECTS[name](), f"{lake}/w", "overwrite")
    assert read_rows(io, f"{lake}/w") == TABLE.to_pylist()


# P5
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_in_memory_may_be_planned(io: AnyDatasetIO, lake: str, name: str) -> None:
    assert io.plan(OBJECTS[name](), f"{lake}/t", key_columns="id").inserted == 2


# S3
def test_a_pandas_index_is_not_a_column(io: AnyDatasetIO, lake: str) -> None:
    frame = TABLE.to_pandas()
    frame.index = pd.Index([7, 8])
    assert merged(io, lake, frame) == AFTER


# S3
def test_a_polars_frame_with_views_and_categories(io: AnyDatasetIO, lake: str) -> None:
    frame = pl.DataFrame({"id": [2, 3], "v": pl.Series(["B", "c"], dtype=pl.Categorical)})
    assert merged(io, lake, frame) == AFTER


# S3
def test_a_relation_reads_the_temporary_tables_of_its_own_connection(io: AnyDatasetIO, lake: str) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TEMP TABLE mine AS SELECT * FROM (VALUES (2, 'B'), (3, 'c')) AS rows (id, v)")
    assert merged(io, lake, connection.table("mine")) == AFTER
    assert connection.execute("SELECT count(*) FROM mine").fetchone() == (2,)


def write_parquet(path: str) -> None:
    pq.write_table(TABLE, path)


def write_csv(path: str) -> None:
    pacsv.write_csv(TABLE, path)


def write_json(path: str) -> None:
    Path(path).write_text('{"id": 2, "v": "B"}\n{"id": 3, "v": "c"}\n', "utf-8")


FORMATS: dict[str, Callable[[str], None]] = {
    "rows.parquet": write_parquet,
    "rows.csv": write_csv,
    "rows.json": write_json,
    "rows.jsonl": write_json,
    "rows.ndjson": write_json,
    "ROWS.CSV": write_csv,
    "with space & [brackets].csv": write_csv,
    "pct%20name.parquet": write_parquet,
}


# S3
@pytest.mark.parametrize("kind", [str, Path], ids=["text", "Path"])
@pytest.mark.parametrize("name", FORMATS)
def test_files_by_path(io: AnyDatasetIO, lake: str, name: str, kind: Callable[[str], Any]) -> None:
    FORMATS[name](f"{lake}/{name}")
    assert merged(io, lake, kind(f"{lake}/{name}")) == AFTER


# S3
@pytest.mark.parametrize("name", ["rows.csv", "rows.json", "rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_files(
    io: AnyDatasetIO, lake: str, name: str, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    FORMATS[name](f"{lake}/{name}")
    packed = Path(f"{lake}/{name}{suffix}")
    packed.write_bytes(compress(Path(f"{lake}/{name}").read_bytes()))
    assert merged(io, lake, str(packed)) == AFTER


# S3
def test_a_glob_takes_every_file_that_matches_in_name_order(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/in/2.parquet", TABLE.slice(1))
    put(f"{lake}/in/1.parquet", TABLE.slice(0, 1))
    put(f"{lake}/in/skip.parquet", pa.table({"other": [1]}))
    assert merged(io, lake, f"{lake}/in/[0-9].parquet") == AFTER


# S3, T3
def test_a_glob_gives_source_order_for_deduplicate(io: AnyDatasetIO, lake: str) -> None:
    for name, value in (("b", "later"), ("a", "earlier")):
        pacsv.write_csv(pa.table({"id": [1], "v": [value]}), f"{lake}/{name}.csv")
    io.merge(f"{lake}/*.csv", f"{lake}/t", "deduplicate", "id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": "later"}]


# S3
def test_a_glob_over_csv_files_whose_types_were_guessed_differently(io: AnyDatasetIO, lake: str) -> None:
    Path(f"{lake}/1.csv").write_text("id,v\n2,B\n", "utf-8")
    Path(f"{lake}/2.csv").write_text("v,id\nc,3\n", "utf-8")
    assert merged(io, lake, f"{lake}/*.csv") == AFTER


# S3
def test_a_file_whose_name_looks_like_a_pattern_is_itself(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/in/[1].parquet", TABLE)
    put(f"{lake}/in/1.parquet", pa.table({"id": [77, 78], "v": ["not", "this"]}))
    assert merged(io, lake, f"{lake}/in/[1].parquet") == AFTER


# S3
def test_a_local_path_is_never_a_chain_of_filesystems(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/a::b/c::d.parquet", TABLE)
    assert merged(io, f"{lake}/a::b", f"{lake}/a::b/c::d.parquet") == AFTER


# S6, S3
@pytest.mark.parametrize("folder", [False, True])
def test_int96_in_a_source_file_is_an_instant(io: AnyDatasetIO, lake: str, folder: bool) -> None:
    kind = pa.timestamp("us", "UTC")
    # Also where nanoseconds since 1970 would not fit 64 bits.
    instants = [dt.datetime(year, 2, 28, 12, 30, tzinfo=dt.UTC) for year in (1500, 1970, 3000)]
    source = pa.table({"id": [1, 2, 3], "v": pa.array(instants, kind)})
    path = put(f"{lake}/in/rows.parquet", source, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(1).physical_type == "INT96"
    if folder:
        path = f"{lake}/in"
    io.write_dataset(path, f"{lake}/w")
    assert load(io, f"{lake}/w").schema.field("v").type == kind
    assert read_rows(io, f"{lake}/w") == source.to_pylist()
    io.merge(source.slice(0, 1).set_column(1, "v", pa.array([0], kind)), f"{lake}/t", key_columns="id")
    result = io.merge(path, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (2, 1)
    assert read_rows(io, f"{lake}/t") == source.to_pylist()


# S3, O3
def test_a_folder_is_read_as_a_dataset(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/in/a.parquet", TABLE.slice(0, 1))
    put(f"{lake}/in/deep/b.parquet", TABLE.slice(1))
    put(f"{lake}/in/_hidden/c.parquet", TABLE)
    assert merged(io, lake, f"{lake}/in") == AFTER


# S3, H2
def test_a_partitioned_folder_gives_its_partition_columns(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1, 2], "day": [7, 8]})
    io.write_dataset(table, f"{lake}/in", partition_columns="day")
    io.merge(f"{lake}/in", f"{lake}/t", key_columns="id", partition_columns="day")
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# S3
def test_a_url_of_another_filesystem(io: AnyDatasetIO, lake: str) -> None:
    memory = fsspec.filesystem("memory")
    name = uuid.uuid4().hex
    with memory.open(f"/{name}/rows.parquet", "wb") as stream:
        pq.write_table(TABLE, stream)
    with memory.open(f"/{name}/more.csv", "wb") as stream:
        pacsv.write_csv(TABLE, stream)
    try:
        for source in (f"memory://{name}/rows.parquet", f"memory://{name}/*.csv", f"memory://{name}/more.csv"):
            io.write_dataset(source, f"{lake}/w", "overwrite")
            assert read_rows(io, f"{lake}/w") == TABLE.to_pylist()
        assert merged(io, lake, f"memory://{name}/rows.parquet") == AFTER
    finally:
        memory.rm(f"/{name}", recursive=True)


# S3, C6
def test_a_target_on_another_filesystem(io: AnyDatasetIO) -> None:
    path = f"memory://{uuid.uuid4().hex}/t"
    assert merged(io, path, TABLE) == AFTER
    fsspec.filesystem("memory").rm(path, recursive=True)


# S3
def test_a_file_url_and_a_home_path(io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(f"{lake}/rows.parquet")
    io.write_dataset(f"file://{lake}/rows.parquet", f"{lake}/w", "overwrite")
    monkeypatch.setenv("HOME", lake)
    io.write_dataset("~/rows.parquet", f"{lake}/w", "overwrite")
    assert read_rows(io, f"{lake}/w") == TABLE.to_pylist()


# S3
def test_the_target_may_be_a_part_of_the_source(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(TABLE, f"{lake}/t")
    result = io.merge(f"{lake}/t", f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (0, 2)
    assert read_rows(io, f"{lake}/t") == TABLE.to_pylist()


# S3
def test_csv_values_meet_the_types_of_the_target(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pa.table({"id": pa.array([1], pa.int8()), "day": [dt.date(2025, 1, 1)]}), f"{lake}/t", key_columns="id")
    Path(f"{lake}/rows.csv").write_text("id,day\n1,2025-01-02\n2,\n", "utf-8")
    io.merge(f"{lake}/rows.csv", f"{lake}/t", key_columns="id")
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == [dt.date(2025, 1, 2), None]


# S3
@pytest.mark.parametrize(
    "source",
    [3, 1.5, b"bytes", object(), {1, 2}, pa.array([1]), iter([]), [], [1], [TABLE], (one for one in [{"id": 1}])],
    ids=lambda source: type(source).__name__,
)
def test_an_object_without_rows_is_refused_by_its_type(io: AnyDatasetIO, lake: str, source: Any) -> None:
    put(f"{lake}/t/a.parquet", TABLE)
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=type(source).__name__):
        io.merge(source, f"{lake}/t", key_columns="id")


# S3
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.parquet", None, "does not exist"),
        ("none*.parquet", None, "No file matches"),
        ("rows.xlsx", b"x", "is unknown. Its name must end in"),
        ("rows", b"x", "is unknown. Its name must end in"),
        ("rows.gz", b"x", "is unknown. Its name must end in"),
        ("bad.parquet", b"PAR1 not really", "Cannot read the source file"),
        ("bad.csv", b"id,v\n1\n", "Cannot read the source file"),
        ("bad.json", b"{", "Cannot read the source file"),
        ("bad.csv.gz", b"not gzip", "Cannot read the source file"),
        ("cut.csv.gz", gzip.compress(b"id,v\n1,a\n")[:-9], "Cannot read the source file"),
        ("empty.csv", b"", "Cannot read the source file"),
        ("empty.parquet", b"", "Cannot read the source file"),
    ],
    ids=lambda item: item if isinstance(item, str) and "." in item else "",
)
def test_files_that_cannot_be_read_are_named(
    io: AnyDatasetIO, lake: str, name: str, content: bytes | None, message: str
) -> None:
    put(f"{lake}/t/a.parquet", TABLE)
    if content is not None:
        Path(f"{lake}/{name}").write_bytes(content)
    with assert_unchanged(f"{lake}/t"), pytest.raises((ValueError, OSError), match=message) as caught:
        io.merge(f"{lake}/{name}", f"{lake}/t", key_columns="id")
    assert name in str(caught.value)


# S2
def test_a_glob_over_files_that_do_not_go_together_is_refused(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/in/1.parquet", TABLE)
    put(f"{lake}/in/2.parquet", pa.table({"id": ["x"], "v": ["y"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises((ValueError, TypeError), match="id"):
        io.merge(f"{lake}/in/*.parquet", f"{lake}/t", key_columns="id")


# S2
@pytest.mark.parametrize(
    ("name", "first", "second", "message"),
    [
        ("parquet", {"id": [1], "v": ["a"]}, {"id": [2]}, r"2\.parquet.*'v'"),
        ("csv", {"id": [1]}, {"id": [2], "v": ["b"]}, r"2\.csv.*'v'"),
        ("parquet", {"id": [1], "v": ["a"]}, {"id": [2], "v": [5]}, r"\*\.parquet.*disagree"),
        ("csv", {"id": [1], "v": [5]}, {"id": [2], "v": ["b"]}, r"\*\.csv.*disagree"),
    ],
)
def test_a_glob_never_fills_columns_or_mixes_types(
    io: AnyDatasetIO, lake: str, name: str, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    Path(f"{lake}/in").mkdir()
    for number, columns in enumerate((first, second), 1):
        write = pq.write_table if name == "parquet" else pacsv.write_csv
        write(pa.table(columns), f"{lake}/in/{number}.{name}")
    with assert_unchanged(f"{lake}/t"), pytest.raises(SchemaMismatchError, match=message):
        io.merge(f"{lake}/in/*.{name}", f"{lake}/t", key_columns="id")


# S2, T5
def test_an_empty_folder_is_not_a_source(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", TABLE)
    Path(f"{lake}/in").mkdir()
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="holds no Parquet file"):
        io.merge(f"{lake}/in", f"{lake}/t", "full_merge", "id")


# C7
def test_a_source_that_fails_halfway_changes_nothing(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", TABLE)

    def batches() -> Any:
        yield TABLE.to_batches()[0]
        message = "the wire broke"
        raise RuntimeError(message)

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
    with assert_unchanged(f"{lake}/t"), pytest.raises(Exception, match="the wire broke"):
        io.merge(reader, f"{lake}/t", key_columns="id")
    assert list_data_files(f"{lake}/t") == ["a.parquet"]


# R1
def test_the_source_may_be_called_data(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1, 2], "v": ["a", "b"]})
    assert io.merge(data=table.slice(0, 1), path=f"{lake}/t", key_columns="id").inserted == 1
    plan = io.plan(data=table, path=f"{lake}/t", key_columns="id")
    assert (plan.inserted, plan.updated) == (1, 1)
    assert io.merge(data=table, path=f"{lake}/t", strategy="insert", key_columns="id").inserted == 1
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# R1
@pytest.mark.parametrize("verb", ["merge", "plan"])
def test_one_source_and_a_path_are_needed(io: AnyDatasetIO, lake: str, verb: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1]}))
    call, table = getattr(io, verb), pa.table({"id": [2]})
    refused: list[tuple[dict[str, Any], str]] = [
        ({"source": table, "data": table, "path": f"{lake}/t"}, "source and data mean the same"),
        ({"path": f"{lake}/t"}, "There is no source"),
        ({"source": None, "data": None, "path": f"{lake}/t"}, "There is no source"),
        ({"data": table}, "path must be a non-empty string"),
        ({"source": table}, "path must be a non-empty string"),
    ]
    for arguments, message in refused:
        with assert_unchanged(f"{lake}/t"), pytest.raises(InvalidArgumentError, match=message):
            call(**arguments, key_columns="id")


def test_the_source_may_be_called_data_at_the_top_level(lake: str) -> None:
    table = pa.table({"id": [1]})
    for engine in ("arrow", "duckdb"):
        path = f"{lake}/{engine}"
        assert merganser.plan(data=table, path=path, key_columns="id", engine=engine).inserted == 1
        assert merganser.merge(data=table, path=path, key_columns="id", engine=engine).inserted == 1
        with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="source and data mean the same"):
            merganser.merge(table, path, data=table, key_columns="id", engine=engine)
