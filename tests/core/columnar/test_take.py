"""Rows by number and rows that are kept: as Arrow would give them, without its copies (W5, S4)."""

from __future__ import annotations

import errno
import gc
import os
import random
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import freeze
from tests.support import to_plain_rows
from tests.values import NESTED, PLAIN, build, cells

from merganser.core import StagingError
from merganser.core.columnar import spool as spooling
from merganser.core.columnar import take as under_test
from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import TARGET_CHUNK_BYTES, TARGET_CHUNK_ROWS, align_chunks, coalesce_batches, take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

# Views have no kernel that takes rows; a handle has none of them.
KINDS = [kind for kind in (*PLAIN, *NESTED) if "view" not in str(kind)]
# A file of Arrow's takes one dictionary for a column; a handle has none.
SPOOLED = [kind for kind in KINDS if not pa.types.is_dictionary(kind)]
METADATA = {"owner": "ducks"}
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")


def listed(table: pa.Table) -> list[Any]:
    return [freeze(row) for row in to_plain_rows(table)]


def choose_chunk_ends(rnd: random.Random, count: int) -> list[int]:
    """Choose where chunks end; some are empty."""
    return sorted([0, count, *(rnd.randint(0, count) for _ in range(rnd.randrange(5)))])


def chunked(column: pa.Array, ends: Sequence[int]) -> pa.ChunkedArray:
    return pa.chunked_array([column.slice(start, end - start) for start, end in pairwise(ends)], column.type)


@st.composite
def tables(draw: st.DrawFn, kinds: Sequence[pa.DataType] = KINDS, *, even: bool = False) -> pa.Table:
    """Tables of a few columns, each in chunks of its own, or all of them in the same ones."""
    rnd = random.Random(draw(st.integers(0, 1 << 32)))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    pools = [draw(st.lists(st.none() | cells(kind), min_size=1, max_size=4)) for kind in chosen]
    count = draw(st.integers(0, 20))
    shared = choose_chunk_ends(rnd, count)
    columns = [
        chunked(
            build([rnd.choice(pool) for _ in range(count)], kind), shared if even else choose_chunk_ends(rnd, count)
        )
        for kind, pool in zip(chosen, pools, strict=True)
    ]
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(chosen)], METADATA)
    return pa.table(columns, schema=schema)


def same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert listed(found) == listed(expected)


def boundaries(table: pa.Table) -> list[list[int]]:
    return [[len(chunk) for chunk in column.chunks] for column in table.columns]


def drawn(data: st.DataObject, count: int) -> npt.NDArray[np.int64]:
    """Draw some of so many rows, in any order, some of them again."""
    numbers = data.draw(st.lists(st.integers(0, count - 1), max_size=30)) if count else []
    return np.array(numbers, np.int64)


# -------------------- take


# W5
@settings(max_examples=100)
@given(data=st.data(), table=tables(even=True))
def test_taken_rows_equal_those_of_arrows_take(data: st.DataObject, table: pa.Table) -> None:
    rows = drawn(data, table.num_rows)
    same(take(table, rows), table.take(pa.array(rows)))


# W5
@settings(max_examples=50)
@given(data=st.data(), table=tables(even=True))
def test_a_run_of_rows_is_a_slice(data: st.DataObject, table: pa.Table) -> None:
    start = data.draw(st.integers(0, table.num_rows))
    length = data.draw(st.integers(0, table.num_rows - start))
    run = np.arange(start, start + length)
    same(take(table, run), table.slice(start, length))
    same(take(table, run[::-1]), table.take(pa.array(run[::-1])))


# W5
def test_a_run_is_not_mistaken_for_what_begins_and_ends_like_one() -> None:
    table = pa.concat_tables([pa.table({"id": [0, 1, 2]}), pa.table({"id": [3, 4, 5]})])
    for rows in ([0, 2, 1, 3], [1, 1, 3, 4], [2, 5, 0, 5], [5, 0], [4]):
        assert take(table, np.array(rows)).column("id").to_pylist() == rows


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """A memory pool that nothing was taken from yet."""
    before = pa.default_memory_pool()
    fresh = pa.proxy_memory_pool(before)
    pa.set_memory_pool(fresh)
    yield fresh
    pa.set_memory_pool(before)


# W5: chunks are not laid together, so what is asked for decides what is copied
def test_few_rows_of_many_are_taken_in_little_memory(pool: pa.MemoryPool) -> None:
    piece = pa.table({"v": pa.array(["x" * 1000] * 4000, pa.large_string())})
    table = pa.concat_tables([piece] * 4)
    held = pool.max_memory()
    rows = np.arange(0, table.num_rows, 1000)[::-1]
    assert take(table, rows).num_rows == 16
    assert pool.max_memory() - held < table.nbytes / 10
    # Which Arrow does.
    assert table.take(pa.array(rows)).num_rows == 16
    assert pool.max_memory() - held > table.nbytes / 2


# W5
def test_a_run_of_rows_is_taken_without_a_copy(pool: pa.MemoryPool) -> None:
    table = pa.concat_tables([pa.table({"v": np.arange(100_000)})] * 4)
    held = pool.max_memory()
    assert take(table, np.arange(50_000, 350_000)).num_rows == 300_000
    assert pool.max_memory() - held < 10_000


# -------------------- align_chunks


# W5
@settings(max_examples=100)
@given(table=tables(), even=st.integers(1, 30), data=st.data())
def test_aligned_columns_have_the_same_chunks_and_rows(table: pa.Table, even: int, data: st.DataObject) -> None:
    with mock.patch.object(under_test, "TARGET_CHUNK_ROWS", even):
        found = align_chunks(table)
    same(found, table)
    assert all(one == boundaries(found)[0] for one in boundaries(found))
    rows = drawn(data, table.num_rows)
    same(take(found, rows), table.take(pa.array(rows)))


# W5
def test_small_chunks_are_combined_and_large_ones_left_alone() -> None:
    small = pa.concat_tables([pa.table({"id": [number]}) for number in range(100)])
    assert boundaries(align_chunks(small)) == [[100]]
    large = pa.concat_tables([pa.table({"id": np.arange(under_test.TARGET_CHUNK_ROWS)})] * 3)
    found = align_chunks(large)
    assert boundaries(found) == [[under_test.TARGET_CHUNK_ROWS] * 3]
    # Nothing was copied.
    places = [[chunk.buffers()[1].address for chunk in table.column("id").chunks] for table in (found, large)]
    assert places[0] == places[1]


# -------------------- coalesce_batches


def batches_of(table: pa.Table, ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
    whole = table.combine_chunks()
    for start, end in pairwise(ends):
        columns = [column.combine_chunks().slice(start, end - start) for column in whole.columns]
        yield pa.record_batch(columns, schema=table.schema)


# W5
@settings(max_examples=100)
@given(table=tables(), even=st.integers(1, 12), seed=st.integers(0, 1000))
def test_coalesced_batches_have_the_same_rows_and_only_the_last_is_small(table: pa.Table, even: int, seed: int) -> None:
    ends = choose_chunk_ends(random.Random(seed), table.num_rows)
    with mock.patch.object(under_test, "TARGET_CHUNK_ROWS", even):
        found = list(coalesce_batches(batches_of(table, ends), table.schema))
    same(pa.Table.from_batches(found, table.schema), table)
    assert all(batch.num_rows >= even for batch in found[:-1])
    assert all(batch.num_rows for batch in found)


# W5
def test_a_large_batch_is_passed_on_as_it_is() -> None:
    large = pa.record_batch({"id": np.arange(under_test.TARGET_CHUNK_ROWS)})
    found = list(coalesce_batches(iter([large, large]), large.schema))
    assert found[0] is large
    assert found[1] is large


# W5: a source without columns to read still has rows
def test_rows_without_columns_are_counted() -> None:
    table = pa.table({"id": [1, 2, 3]}).select([])
    assert align_chunks(table).num_rows == 3
    assert sum(batch.num_rows for batch in coalesce_batches(table.to_batches(), table.schema)) == 3
    assert take(table, np.arange(1, 3)).num_rows == 2


# -------------------- spool


# W5, S4
@settings(max_examples=100)
@given(table=tables(SPOOLED), even=st.integers(1, 12), limit=st.sampled_from([0, 40, 400]), seed=st.integers(0, 1000))
def test_a_spool_keeps_every_row(table: pa.Table, even: int, limit: int, seed: int) -> None:
    ends = choose_chunk_ends(random.Random(seed), table.num_rows)
    with (
        mock.patch.object(under_test, "TARGET_CHUNK_ROWS", even),
        mock.patch.object(spooling, "MAX_MEMORY_BYTES", limit),
    ):
        found = spool(batches_of(table, ends), table.schema)
    same(found, table)
    found.validate(full=True)
    # Rows may be picked from it, so its chunks end at the same rows.
    assert all(one == boundaries(found)[0] for one in boundaries(found))


def pieces(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.record_batch({"id": np.arange(number * 1000, (number + 1) * 1000)})


SCHEMA = pa.schema([("id", pa.int64())])


# W5
@ON_LINUX
def test_a_spool_on_disk_leaves_no_file_and_is_gone_with_its_table(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "TARGET_CHUNK_ROWS", 1000)
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10_000)
    found = spool(pieces(50), SCHEMA)
    assert found.column("id").to_numpy().tolist() == list(range(50_000))
    assert os.listdir(temporary) == []
    assert str(temporary) in Path("/proc/self/maps").read_text("utf-8")
    # A part of it is as good as the whole, as long as someone has it.
    part = take(found, np.array([49_999, 7]))
    slice_ = found.slice(40_000)
    del found
    gc.collect()
    assert part.column("id").to_pylist() == [49_999, 7]
    assert slice_.column("id").to_pylist() == list(range(40_000, 50_000))
    del slice_
    gc.collect()
    assert str(temporary) not in Path("/proc/self/maps").read_text("utf-8")


# W5
@ON_LINUX
def test_few_rows_are_kept_in_memory(temporary: Path) -> None:
    found = spool(pieces(3), SCHEMA)
    assert found.num_rows == 3000
    assert str(temporary) not in Path("/proc/self/maps").read_text("utf-8")


# C7
@ON_LINUX
def test_a_source_that_fails_is_not_taken_for_a_full_disk(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "TARGET_CHUNK_ROWS", 1000)
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10_000)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from pieces(5)
        raise ConnectionResetError(errno.ECONNRESET, "the wire broke")

    with pytest.raises(ConnectionResetError, match="the wire broke"):
        spool(broken(), SCHEMA)
    assert os.listdir(temporary) == []
    assert str(temporary) not in Path("/proc/self/maps").read_text("utf-8")


def full_disk(**_: object) -> Any:
    return open("/dev/full", "wb", buffering=0)


def no_space(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# C7
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize(
    ("name", "stand_in"),
    [("tempfile.TemporaryFile", full_disk), ("tempfile.TemporaryFile", no_space), ("mmap.mmap", no_space)],
    ids=["write", "create", "map"],
)
def test_a_folder_without_space_is_named_with_the_remedy(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str, stand_in: Any
) -> None:
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10)
    monkeypatch.setattr(name, stand_in)
    with pytest.raises(StagingError, match=r"No space left on device.*TMPDIR") as caught:
        spool(pieces(3), SCHEMA)
    assert str(temporary) in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


# C7
def test_a_missing_folder_is_named_with_the_remedy(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10)
    temporary.rmdir()
    with pytest.raises(StagingError, match="TMPDIR") as caught:
        spool(pieces(3), SCHEMA)
    assert str(temporary) in str(caught.value)


# C7
def test_a_missing_folder_for_temporary_files_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "MAX_MEMORY_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(StagingError, match="TMPDIR"):
        spool(pieces(3), SCHEMA)


def test_large_batches_are_split_and_small_ones_kept() -> None:
    text = pa.record_batch({"v": ["x" * 1000] * 50_000})
    few = pa.record_batch({"v": ["y"]})
    pieces = list(under_test.split_batches([text, few, text.slice(0, 0)]))
    assert max(piece.nbytes for piece in pieces[:-1]) <= 1.1 * TARGET_CHUNK_BYTES
    assert pieces[-1].num_rows == 1
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([text, few]))
    assert len(list(under_test.split_batches([pa.record_batch({"n": np.arange(3 * TARGET_CHUNK_ROWS)})]))) == 3


@pytest.mark.slow
def test_no_row_is_lost_where_strings_take_more_than_two_gigabytes() -> None:
    # Arrow leaves them in several chunks. The first batch is too small to be passed on alone.
    size, rows = 511 << 20, 4
    offsets = pa.py_buffer((np.arange(rows + 1) * size).astype(np.int32))
    large = pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(bytes(rows * size))])
    strings = [pa.array(["x" * (7 << 20)]), large]
    batches = [
        pa.record_batch({"s": one, "n": np.arange(len(one)) + first})
        for one, first in zip(strings, (0, 1), strict=True)
    ]
    coalesced = coalesce_batches(batches, batches[0].schema)
    assert [number for batch in coalesced for number in batch.column("n").to_pylist()] == [0, 1, 2, 3, 4]
    aligned = align_chunks(pa.table({"s": pa.chunked_array(strings), "n": np.arange(rows + 1)}))
    assert [len(chunk) for chunk in aligned["n"].chunks] == [len(chunk) for chunk in aligned["s"].chunks]
