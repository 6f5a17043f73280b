"""A damaged footer leads to a refusal or to a file that reads as the damaged one does, never to another file."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import TYPE_CHECKING, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arrow_versions import bloom_filters

from merganser.core.parquet.source_file import CannotSpliceError, open_source_file
from merganser.core.parquet.splice import splice
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table(
    {
        "i": pa.array(range(12), pa.int32()),
        "s": [None if number % 5 == 0 else f"name {number % 3}" for number in range(12)],
        "l": [[number, None] if number % 3 else None for number in range(12)],
        "t": pa.array(range(12), pa.timestamp("us", "UTC")),
    }
)
WRITERS = ["arrow", "duckdb", "polars"]


@cache
def file_by(writer: str, folder: Path) -> bytes:
    path = str(folder / f"{writer}.parquet")
    if writer == "arrow":
        pq.write_table(TABLE, path, row_group_size=4, write_page_index=True, **bloom_filters(s=3))
    elif writer == "polars":
        cast("pl.DataFrame", pl.from_arrow(TABLE)).write_parquet(path, row_group_size=4)
    else:
        query = "select range::int i, 'name ' || range % 3 s, [range, null] l from range(4100)"
        duckdb.connect().execute(f"copy ({query}) to '{path}' (format parquet, row_group_size 2048)")
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def splice_or_refuse(data: bytes, groups: list[int]) -> tuple[bytes, list[int]] | None:
    """Return the new file and the row groups in it, of those asked for that the damage has left."""
    out = io.BytesIO()
    try:
        prepared = open_source_file(io.BytesIO(data), len(data))
        copied = [group for group in groups if group < prepared.num_row_groups]
        splice(prepared, copied, out)
    except (CannotSpliceError, UnsupportedFileError):
        return None
    return out.getvalue(), copied


def read_group(data: bytes, number: int) -> pa.Table | None:
    try:
        with pq.ParquetFile(io.BytesIO(data)) as file:
            table = file.read_row_group(number)
            table.validate(full=True)
            return table
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError):
        return None


def same(left: pa.Table, right: pa.Table) -> bool:
    # NaN, which damage can make of anything, equals itself only byte by byte.
    return bool(left.equals(right, check_metadata=True)) or serialized(left) == serialized(right)


def serialized(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def check(data: bytes, groups: list[int]) -> bool:
    """Whether the damaged file could be spliced; it fails if the result is not what the damaged file reads as."""
    spliced = splice_or_refuse(data, groups)
    if spliced is None:
        return False
    result, copied = spliced
    for place, group in enumerate(copied):
        expected = read_group(data, group)
        if expected is not None:
            got = read_group(result, place)
            assert got is not None
            assert same(got, expected)
    return True


@pytest.mark.parametrize("writer", WRITERS)
def test_an_undamaged_file_is_spliced(writer: str, folder: Path) -> None:
    # W2
    assert check(file_by(writer, folder), [2, 0])


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=250, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3),
    groups=st.permutations(range(3)).flatmap(lambda order: st.integers(1, 3).map(lambda size: order[:size])),
)
def test_changed_bytes_of_a_footer(writer: str, folder: Path, flips: list[tuple[int, int]], groups: list[int]) -> None:
    # W2, P8
    data = bytearray(file_by(writer, folder))
    (length,) = struct.unpack("<I", data[-8:-4])
    # A little more than the footer, so that page indexes and bloom filters before it are hit as well.
    reach = min(len(data), length + 8 + 300)
    for position, value in flips:
        data[len(data) - 1 - position % reach] = value
    check(bytes(data), groups)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 1 << 16), size=st.integers(1, 40), insert=st.binary(max_size=20))
def test_bytes_cut_out_of_a_footer_or_put_in(writer: str, folder: Path, cut: int, size: int, insert: bytes) -> None:
    # W2
    data = file_by(writer, folder)
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    at = cut % length
    footer = footer[:at] + insert + footer[at + size :]
    check(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1", [0, 2])


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 1 << 20))
def test_truncated_files(writer: str, folder: Path, length: int) -> None:
    # W2
    data = file_by(writer, folder)
    assert splice_or_refuse(data[: length % len(data)], [0]) is None
