"""Sources that come as streams: read once, kept where there is room, and merged like tables (S3, W5, C7)."""

from __future__ import annotations

import errno
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.engines import test_merge_property as property_tests
from tests.engines.test_merge_property import cases, check
from tests.support import assert_unchanged, load, open_dataset_io, put, read_rows

from merganser import DuckDBDatasetIO
from merganser.core import DatasetMergeError, MerganserError, UnreadableFileError
from merganser.core.columnar import spool as spooling
from merganser.core.columnar import take as row_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.engines.test_merge_property import Case
    from tests.support import AnyDatasetIO

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def _little_memory(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep next to nothing in memory, in small chunks; nothing may be left on disk."""
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 2000)
    monkeypatch.setattr(row_work, "TARGET_CHUNK_ROWS", 100)
    yield
    assert os.listdir(temporary) == []


def pairs(ids: Sequence[int], value: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{value} {number}" for number in ids]}, schema=SCHEMA)


def target(path: str) -> dict[str, list[oracle.Row]]:
    """Write two files of several row groups; gives their rows."""
    tables = {"a.parquet": pairs(range(0, 400, 2)), "b.parquet": pairs(range(300, 700, 3))}
    for name, table in tables.items():
        put(f"{path}/{name}", table, row_group_size=50)
    return {name: table.to_pylist() for name, table in tables.items()}


def check_merge(io: AnyDatasetIO, path: str, make: Callable[[pa.Table], Any], source: pa.Table, strategy: Any) -> None:
    """Merge a source in some form, and compare rows, counts and files with the oracle."""
    expected = oracle.merge(target(path), source.to_pylist(), strategy, ["id"])
    result = io.merge(make(source), path, strategy, "id")
    counts = [expected.count(action) for action in ("insert", "update", "delete")]
    assert [result.source_count, result.inserted, result.updated, result.deleted] == [source.num_rows, *counts]
    assert sorted(result.rewritten_files) == [f"{path}/{name}" for name in expected.rewritten]
    assert oracle.to_multiset(load(io, path).to_pylist()) == oracle.to_multiset(expected.rows)


# -------------------- readers


def in_batches(size: int) -> Callable[[pa.Table], pa.RecordBatchReader]:
    """Return rows a few at a time, with batches of none among them."""

    def make(table: pa.Table) -> pa.RecordBatchReader:
        nothing = pa.record_batch(table.schema.empty_table().to_pydict(), schema=table.schema)
        batches = table.combine_chunks().to_batches(max_chunksize=size)
        return pa.RecordBatchReader.from_batches(table.schema, (one for batch in batches for one in (batch, nothing)))

    return make


# S3, W5
@pytest.mark.parametrize("strategy", ["upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("size", [1, 130, 10_000])
def test_readers_of_small_and_large_batches(io: AnyDatasetIO, lake: str, size: int, strategy: str) -> None:
    check_merge(io, f"{lake}/t", in_batches(size), pairs(range(0, 900, 4), "new"), strategy)


# S3, W5
@pytest.mark.parametrize("strategy", ["upsert", "update", "insert", "full_merge", "deduplicate"])
@pytest.mark.usefixtures("_little_memory")
def test_readers_that_do_not_fit_into_memory(io: AnyDatasetIO, lake: str, strategy: str) -> None:
    check_merge(io, f"{lake}/t", in_batches(30), pairs(range(0, 900, 4), "new"), strategy)


# S3: a reader of more than one piece of every size there is
def test_a_reader_of_many_rows(io: AnyDatasetIO, lake: str) -> None:
    count = 300_000
    put(f"{lake}/t/a.parquet", pa.table({"id": np.arange(0, count, 2), "v": np.zeros(count // 2)}))
    table = pa.table({"id": np.arange(count)[::-1], "v": np.arange(count, dtype=np.float64)})
    for batches in (table.to_batches(), table.to_batches(max_chunksize=1000)):
        result = io.merge(pa.RecordBatchReader.from_batches(table.schema, batches), f"{lake}/t", "upsert", "id")
        assert result.inserted + result.updated == count
    assert load(io, f"{lake}/t").sort_by([("id", "descending")]).equals(table)


# T5, S3
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_a_reader_without_batches(io: AnyDatasetIO, lake: str, strategy: str) -> None:
    reader = pa.RecordBatchReader.from_batches(SCHEMA, [])
    check_merge(io, f"{lake}/t", lambda _: reader, pairs([]), strategy)


# T4, H3, W5
@pytest.mark.usefixtures("_little_memory")
def test_a_reader_as_a_first_load_with_partitions(io: AnyDatasetIO, lake: str) -> None:
    table = pairs(range(1000)).append_column("day", pa.array([number % 7 for number in range(1000)]))
    reader = table.to_reader(max_chunksize=17)
    result = io.merge(reader, f"{lake}/t", "upsert", "id", partition_columns="day", max_rows_per_file=50)
    assert (result.inserted, len(result.inserted_files)) == (1000, 21)
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# T3, W5
@pytest.mark.parametrize("order", [[], ["rank"], ["v", "rank"]], ids=str)
@pytest.mark.usefixtures("_little_memory")
def test_deduplicate_takes_the_right_row_of_a_source_that_does_not_fit(
    io: AnyDatasetIO, lake: str, order: list[str]
) -> None:
    random = np.random.default_rng(7)
    count = 2000
    ranks = pa.array(random.integers(0, 5, count), mask=random.random(count) < 0.2)
    table = pa.table({"id": random.integers(0, 300, count), "v": random.integers(0, 3, count), "rank": ranks})
    expected = oracle.merge({}, table.to_pylist(), "deduplicate", ["id"], order_by=order)
    # One more column distinguishes rows that are otherwise equal.
    result = io.merge(table.to_reader(max_chunksize=90), f"{lake}/t", "deduplicate", "id", dedup_order_by=order)
    assert (result.source_count, result.inserted) == (count, 300)
    assert oracle.to_multiset(load(io, f"{lake}/t").to_pylist()) == oracle.to_multiset(expected.rows)


# K5, K3: defects are found wherever they are
@pytest.mark.usefixtures("_little_memory")
def test_keys_are_checked_across_pieces(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    target(path)
    twice = pa.concat_tables([pairs(range(500)), pairs([3]), pairs(range(500, 900)), pairs([7, 3])])
    with assert_unchanged(path), pytest.raises(DatasetMergeError, match=r"2 duplicate keys, .*id=3; id=7\."):
        io.merge(twice.to_reader(max_chunksize=20), path, "upsert", "id")
    null = pa.concat_tables([pairs(range(500)), pa.table({"id": [None, None], "v": ["a", "b"]}, schema=SCHEMA)])
    with assert_unchanged(path), pytest.raises(DatasetMergeError, match="'id' in 2 rows"):
        io.merge(null.to_reader(max_chunksize=20), path, "upsert", "id")


# S3
@pytest.mark.usefixtures("_little_memory")
def test_a_value_that_does_not_fit_is_found_in_the_last_piece(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    table = pairs([*range(1000), 1 << 40])
    with assert_unchanged(f"{lake}/t"), pytest.raises(DatasetMergeError, match=str(1 << 40)):
        io.merge(table.to_reader(max_chunksize=50), f"{lake}/t", "upsert", "id")


class Streamed:
    """A dataset IO that gets every source as a stream."""

    def __init__(self, name: str, size: int) -> None:
        self._io = open_dataset_io(name)
        self._size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    def merge(self, source: pa.Table, **arguments: Any) -> Any:
        return self._io.merge(source.to_reader(max_chunksize=self._size), **arguments)

    def plan(self, source: pa.Table, **arguments: Any) -> Any:
        return self._io.plan(source.to_reader(max_chunksize=self._size), **arguments)


def check_streamed(engine: str, case: Case, size: int) -> None:
    with (
        mock.patch.object(property_tests, "open_dataset_io", lambda name: Streamed(name, size)),
        mock.patch.object(spooling, "MAX_MEMORY_BYTES", 20 * size),
        mock.patch.object(row_work, "TARGET_CHUNK_ROWS", size),
    ):
        check(engine, case)


# S3, S4, T1, T3, W5
@settings(max_examples=4)
@given(data=st.data(), size=st.integers(1, 4))
def test_streams_of_every_type_are_merged_like_tables(engine: str, data: st.DataObject, size: int) -> None:
    check_streamed(engine, data.draw(cases(engine)), size)


# S3, S4, T1, T3, W5
@pytest.mark.slow
@settings(max_examples=10)
@given(data=st.data(), size=st.integers(1, 4))
def test_many_streams_of_every_type_are_merged_like_tables(engine: str, data: st.DataObject, size: int) -> None:
    check_streamed(engine, data.draw(cases(engine)), size)


# -------------------- streams that fail


FAILURES = [
    RuntimeError("the wire broke"),
    ValueError("the wire broke"),
    OSError(errno.EIO, "the wire broke"),
    ConnectionResetError("the wire broke"),
    KeyError("the wire broke"),
    UnreadableFileError("the wire broke"),
]


# C7, S3
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.usefixtures("_little_memory")
def test_a_stream_that_fails_in_the_middle_changes_nothing(io: AnyDatasetIO, lake: str, failure: Exception) -> None:
    path = f"{lake}/t"
    target(path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from pairs(range(1000), "new").to_batches(max_chunksize=100)
        raise failure

    with assert_unchanged(path), pytest.raises(type(failure), match="the wire broke"):
        io.merge(pa.RecordBatchReader.from_batches(SCHEMA, batches()), path, "upsert", "id")
    # The dataset is unlocked, and another stream can be merged.
    assert io.merge(pairs([1]).to_reader(), path, "upsert", "id", lock_timeout=1).inserted == 1


# C7, S3, P6
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.usefixtures("_little_memory")
def test_a_source_file_with_a_broken_page_is_named_and_changes_nothing(io: AnyDatasetIO, lake: str, many: bool) -> None:
    path = f"{lake}/t"
    target(path)
    put(f"{lake}/in/1.parquet", pairs(range(1000)), row_group_size=100)
    broken = Path(put(f"{lake}/in/2.parquet", pairs(range(1000, 2000)), row_group_size=100, use_dictionary=False))
    data = bytearray(broken.read_bytes())
    place = pq.read_metadata(broken).row_group(5).column(0).data_page_offset
    data[place : place + 20] = b"\xff" * 20
    broken.write_bytes(data)
    source = f"{lake}/in/*.parquet" if many else f"{lake}/in/2.parquet"
    with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"in/2\.parquet"):
        io.merge(source, path, "upsert", "id")


# C7, P5
def test_a_stream_that_fails_ends_a_plan(io: AnyDatasetIO, lake: str) -> None:
    target(f"{lake}/t")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pairs([1]).to_batches()[0]
        raise ConnectionResetError("the wire broke")

    with assert_unchanged(f"{lake}/t"), pytest.raises(ConnectionResetError, match="the wire broke"):
        io.plan(pa.RecordBatchReader.from_batches(SCHEMA, batches()), f"{lake}/t", "upsert", "id")


# -------------------- paths


# S3, S1: columns go by name, and a narrower type is widened
@pytest.mark.usefixtures("_little_memory")
def test_a_glob_of_files_whose_columns_and_types_differ(io: AnyDatasetIO, lake: str) -> None:
    table = pairs(range(0, 900, 4), "new")
    narrow = pa.schema([("id", pa.int32()), ("v", pa.large_string())])
    other = pa.schema([("v", pa.string()), ("id", pa.uint16())])
    put(f"{lake}/in/1.parquet", table.slice(0, 80).cast(narrow), row_group_size=30)
    put(f"{lake}/in/2.parquet", table.slice(80, 80).select(["v", "id"]).cast(other), row_group_size=7)
    put(f"{lake}/in/3.parquet", table.slice(160))
    check_merge(io, f"{lake}/t", lambda _: f"{lake}/in/*.parquet", table, "full_merge")


# S3: the common type may be wider than the target's, if the values are not
@pytest.mark.usefixtures("_little_memory")
def test_a_glob_of_wider_types_than_the_target(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1, 2], pa.int16()), "v": ["a", "b"]}))
    put(f"{lake}/in/1.parquet", pa.table({"id": pa.array([2], pa.int64()), "v": ["B"]}))
    put(f"{lake}/in/2.parquet", pa.table({"v": ["C"], "id": pa.array([3], pa.int8())}))
    result = io.merge(f"{lake}/in/?.parquet", f"{lake}/t", "upsert", "id")
    assert (result.inserted, result.updated) == (1, 1)
    assert load(io, f"{lake}/t").schema.field("id").type == pa.int16()
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["a", "B", "C"]


# S3, O3
@pytest.mark.usefixtures("_little_memory")
def test_a_folder_of_files_with_columns_in_another_order(io: AnyDatasetIO, lake: str) -> None:
    table = pairs(range(0, 900, 4), "new")
    put(f"{lake}/in/a/1.parquet", table.slice(0, 100), row_group_size=30)
    put(f"{lake}/in/2.parquet", table.slice(100).select(["v", "id"]), row_group_size=7)
    check_merge(io, f"{lake}/t", lambda _: f"{lake}/in", table, "upsert")


# S3, W5
@pytest.mark.usefixtures("_little_memory")
def test_the_target_as_its_own_source(io: AnyDatasetIO, lake: str) -> None:
    target(f"{lake}/t")
    before = read_rows(io, f"{lake}/t")
    result = io.merge(f"{lake}/t", f"{lake}/t", "deduplicate", "id")
    assert (result.inserted, result.deleted, result.source_count) == (0, 0, len(before))
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [row["id"] for row in before]


# -------------------- relations


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute("CREATE TEMP TABLE mine AS SELECT i * 4 AS id, 'new ' || (i * 4) AS v FROM range(225) AS r (i)")
        yield made


NEW = pairs(range(0, 900, 4), "new")


# S3
@pytest.mark.usefixtures("_little_memory")
def test_a_relation_over_a_temporary_table(io: AnyDatasetIO, lake: str, connection: duckdb.DuckDBPyConnection) -> None:
    check_merge(io, f"{lake}/t", lambda _: connection.table("mine"), NEW, "upsert")
    assert connection.sql("SELECT count(*) FROM mine").fetchall() == [(225,)]


# S3: on the connection of the dataset IO itself, with rows that are not committed yet
@pytest.mark.usefixtures("_little_memory")
def test_a_relation_on_the_connection_of_the_dataset_io(lake: str, connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("BEGIN")
    connection.execute("UPDATE mine SET v = 'changed ' || id")
    io = DuckDBDatasetIO(connection)
    check_merge(io, f"{lake}/t", lambda _: connection.table("mine"), pairs(range(0, 900, 4), "changed"), "full_merge")
    connection.execute("ROLLBACK")
    assert connection.sql("SELECT v FROM mine WHERE id = 4").fetchall() == [("new 4",)]


# S3, W5
def test_a_relation_that_streams_for_long(io: AnyDatasetIO, lake: str) -> None:
    with duckdb.connect() as connection:
        relation = connection.sql("SELECT i AS id, i / 2 AS v FROM range(400_000) AS r (i) WHERE i % 2 = 0")
        result = io.merge(relation, f"{lake}/t", "insert", "id")
    assert (result.source_count, result.inserted) == (200_000, 200_000)
    assert sum(load(io, f"{lake}/t").column("id").to_pylist()) == sum(range(0, 400_000, 2))


# C7, S3
@pytest.mark.usefixtures("_little_memory")
def test_a_relation_that_fails_while_it_streams(
    io: AnyDatasetIO, lake: str, connection: duckdb.DuckDBPyConnection
) -> None:
    target(f"{lake}/t")
    broken = connection.sql(
        "SELECT i AS id, CASE WHEN i = 399_999 THEN error('the well ran dry') ELSE 'v' END AS v "
        "FROM range(400_000) AS r (i)"
    )
    with assert_unchanged(f"{lake}/t"), pytest.raises(Exception, match="the well ran dry"):
        io.merge(broken, f"{lake}/t", "upsert", "id")
    assert connection.sql("SELECT count(*) FROM mine").fetchall() == [(225,)]


# S3: rows of the target itself, read by DuckDB while the files are about to change
@pytest.mark.usefixtures("_little_memory")
def test_a_relation_over_the_files_of_the_target(
    io: AnyDatasetIO, lake: str, connection: duckdb.DuckDBPyConnection
) -> None:
    target(f"{lake}/t")
    source = connection.sql(
        f"SELECT id, upper(any_value(v)) AS v FROM read_parquet('{lake}/t/*.parquet') GROUP BY id"  # noqa: S608
    )
    result = io.merge(source, f"{lake}/t", "upsert", "id")
    assert (result.inserted, result.rewritten_files) == (0, [f"{lake}/t/a.parquet", f"{lake}/t/b.parquet"])
    assert {row["v"] for row in read_rows(io, f"{lake}/t")} == {
        f"OLD {row['id']}" for row in read_rows(io, f"{lake}/t")
    }


# -------------------- room for them


# C7: a merge that needs no room does without
def test_a_small_merge_needs_no_folder_for_temporary_files(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target(f"{lake}/t")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [f"{lake}/nowhere"])
    assert io.merge(pairs([1]), f"{lake}/t", "upsert", "id").inserted == 1


# C7
def test_a_source_that_exceeds_the_disk_changes_nothing(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target(f"{lake}/t")
    monkeypatch.setattr(tempfile, "tempdir", f"{lake}/nowhere")
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10)
    with assert_unchanged(f"{lake}/t"), pytest.raises(MerganserError, match="TMPDIR") as caught:
        open_dataset_io("duckdb").merge(NEW.to_reader(), f"{lake}/t", "upsert", "id")
    assert f"{lake}/nowhere" in str(caught.value)


MEASURED = """
import sys, threading
from pathlib import Path
from merganser import DuckDBDatasetIO
from merganser.core.columnar import spool

lake, form, rows, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
spool.MAX_MEMORY_BYTES = 32 << 20


def anonymous():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) >> 10


def watch():
    while not done.wait(0.003):
        peaks.append(anonymous())


io = DuckDBDatasetIO()
# Merges of a few rows, so that what any merge needs is there.
for _ in range(2):
    io.merge(pa.table({"id": [0, rows], "v": [b"", b""]}), f"{lake}/t", "upsert", "id")
peaks, done = [], threading.Event()
before = anonymous()
watching = threading.Thread(target=watch)
watching.start()
try:
    result = io.merge(weighty(rows, width) if form == "reader" else form, f"{lake}/t", "update", "id")
finally:
    done.set()
    watching.join()
assert (result.source_count, result.updated) == (rows, 1), result
print(max(peaks) - before)
"""


def weighty(count: int, width: int) -> pa.RecordBatchReader:
    """Return rows of so many bytes, which no codec makes smaller, in batches of 4 MB."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.binary())])
    size = (4 << 20) // width
    heap = np.random.default_rng(1).bytes(size * width)
    ends = pa.py_buffer(np.arange(0, (size + 1) * width, width, dtype=np.int32))

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, size):
            # A copy, as a wire would bring one.
            values = pa.Array.from_buffers(pa.binary(), size, [None, ends, pa.py_buffer(bytearray(heap))])
            here = min(size, count - start)
            yield pa.record_batch([np.arange(start, start + here), values.slice(0, here)], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


# W5: in MB; what a merge holds in memory follows the keys, not what else the rows have
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("form", "total", "width", "most"),
    [("reader", 400, 400, 200), ("reader", 250, 100_000, 125), ("file", 400, 400, 300), ("folder", 250, 100_000, 190)],
)
def test_a_large_source_is_merged_in_less_memory_than_it_has(
    lake: str, form: str, total: int, width: int, most: int
) -> None:
    count = (total << 20) // width
    source = "reader"
    if form != "reader":
        os.makedirs(f"{lake}/in")
        source = f"{lake}/in/rows.parquet" if form == "file" else f"{lake}/in"
        reader, options = weighty(count, width), {"compression": "none", "use_dictionary": False}
        with pq.ParquetWriter(f"{lake}/in/rows.parquet", reader.schema, **options) as writer:
            for batch in reader:
                writer.write_batch(batch)
    head = "from __future__ import annotations\nimport numpy as np\nimport pyarrow as pa\n"
    program = head + inspect.getsource(weighty) + MEASURED
    command = [sys.executable, "-c", program, lake, source, str(count), str(width)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert int(done.stdout) < most, f"{done.stdout} MB for {total} MB"
