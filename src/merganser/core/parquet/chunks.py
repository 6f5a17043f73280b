"""Descriptions of column chunks, read from footers by our own parser.

With a damaged footer, PyArrow may abort the process when asked for a column chunk, for example of another type than its
column, or when it serialises the footer. It only raises errors when it parses a footer or decodes rows, so merganser
lets PyArrow do only these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.core.parquet import thrift

if TYPE_CHECKING:
    from collections.abc import Iterable

    from merganser.core.parquet.thrift import Struct

# Parquet's numbers and PyArrow's names. PyArrow's LZ4 is LZ4_RAW (7), successor of Hadoop's framed LZ4 (5), which it
# cannot write.
_CODECS = {0: "NONE", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", 5: "LZ4", 6: "ZSTD", 7: "LZ4"}
_ENCODINGS = {
    2: "PLAIN_DICTIONARY",
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    8: "RLE_DICTIONARY",
    9: "BYTE_STREAM_SPLIT",
}
_ROW_GROUPS, _COLUMNS = 4, 1
_META, _OFFSET_INDEX, _COLUMN_INDEX = 3, 4, 6
_ENCODING_LIST, _PATH, _CODEC, _VALUES, _SIZE, _COMPRESSED_SIZE = 2, 3, 4, 5, 6, 7
_STATISTICS, _PAGES, _BLOOM = 12, 13, 14
_MAX, _MIN, _NULL_COUNT, _MAX_EXACT, _MIN_EXACT = 5, 6, 3, 7, 8
_MAX_ENCODINGS = 9  # more encodings than a writer uses in one chunk
# The first bytes of a chunk's type, and of a list of so many encodings.
_TYPE_FIELD = 1 << 4 | thrift.I32
_ENCODING_LISTS = [bytes([1 << 4 | thrift.LIST, count << 4 | thrift.I32]) for count in range(_MAX_ENCODINGS)]
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# The fields between the path of a chunk and its statistics: codec, number of values, two sizes, the offset of its data,
# and optional offsets of an index page and a dictionary. A chunk with key-value metadata does not match.
_TO_STATISTICS = re.compile(
    rb"\x15V\x16V\x16V\x16V\x26V(?:\x3c|\x16V\x2c|\x26V\x1c|\x16V\x16V\x1c)".replace(b"V", _VARINT), re.DOTALL
)


class Chunk(NamedTuple):
    """Properties of a column chunk that a rewrite keeps; `pages` are type, encoding and number of its pages."""

    path: tuple[bytes, ...]
    codec: str
    encodings: frozenset[str]
    pages: list[tuple[int, int, int]]
    value_count: int
    size: int
    compressed_size: int
    null_count: int | None
    has_statistics: bool
    has_page_index: bool
    has_bloom_filter: bool


class StoredBounds(NamedTuple):
    """The encoded bounds of a column chunk, and its number of NULLs, if known."""

    physical_type: int
    low: bytes
    high: bytes
    null_count: int | None


def read_chunks(raw: bytes, wanted: Iterable[int]) -> dict[int, list[Chunk]]:
    """Read the column chunks of some row groups; a damaged footer raises `ThriftError`."""
    groups = set(wanted)
    count, position = thrift.find_list(raw, 0, _ROW_GROUPS)
    if groups and max(groups) >= count:
        raise thrift.ThriftError(f"it has {count} row groups")
    found = {}
    for number in range(max(groups, default=-1) + 1):
        if number not in groups:
            position = thrift.skip_struct(raw, position)
            continue
        group, position = thrift.read_struct_at(raw, position)
        found[number] = [_read_chunk(chunk) for chunk in get_list(group, _COLUMNS, thrift.STRUCT)]
    return found


def _read_chunk(chunk: Struct) -> Chunk:
    meta = get_field(chunk, _META, thrift.STRUCT)
    codec = _CODECS.get(get_field(meta, _CODEC, thrift.I32)) if meta is not None else None
    if meta is None or codec is None:
        raise thrift.ThriftError("a column chunk has no known codec")
    statistics = get_field(meta, _STATISTICS, thrift.STRUCT)
    return Chunk(
        path=tuple(get_list(meta, _PATH, thrift.BINARY)),
        codec=codec,
        encodings=frozenset(_ENCODINGS.get(encoding, "") for encoding in get_list(meta, _ENCODING_LIST, thrift.I32)),
        pages=[(page.get(1), page.get(2), page.get(3)) for page in get_list(meta, _PAGES, thrift.STRUCT)],
        value_count=get_field(meta, _VALUES, thrift.I64) or 0,
        size=get_field(meta, _SIZE, thrift.I64) or 0,
        compressed_size=get_field(meta, _COMPRESSED_SIZE, thrift.I64) or 0,
        null_count=None if statistics is None else get_field(statistics, _NULL_COUNT, thrift.I64),
        has_statistics=statistics is not None,
        has_page_index=any(get_field(chunk, index, thrift.I64) is not None for index in (_OFFSET_INDEX, _COLUMN_INDEX)),
        has_bloom_filter=get_field(meta, _BLOOM, thrift.I64) is not None,
    )


def get_field(tree: Struct, number: int, wire: int) -> Any:
    """Return a field, or None if it is missing or of another wire type, which Thrift readers skip."""
    return tree.get(number) if tree.wires.get(number) == wire else None


def get_list(tree: Struct, number: int, element: int) -> list[Any]:
    """Return a list of elements of this wire type; empty if there is none."""
    found = get_field(tree, number, thrift.LIST)
    return [] if found is None or found.element != element else found


def find_bounds(raw: bytes, column: str, row_groups: int) -> list[StoredBounds | None] | None:
    """Find the bounds of a plain column in each row group, None where they are missing or marked inexact."""
    # Searching for the column's path is a hundred times faster than parsing a whole footer in Python. The result is
    # None unless this finds the path exactly once for each row group.
    name = column.encode()
    needle = b"\x19\x18" + thrift.encode_varint(len(name)) + name
    found: list[StoredBounds | None] = []
    try:
        position = raw.find(needle)
        while position >= 0:
            end = position + len(needle)
            physical = _read_type_before(raw, position)
            if physical is not None:
                found.append(_read_bounds(raw, physical, end))
            position = raw.find(needle, end)
    except thrift.ThriftError:
        return None
    return found if len(found) == row_groups else None


def _read_type_before(raw: bytes, path: int) -> int | None:
    """Read the type of a chunk, which precedes its encodings (a byte each) and its path."""
    for count in range(_MAX_ENCODINGS):
        start = path - count - 4
        if start >= 0 and raw[start] == _TYPE_FIELD and raw[start + 2 : start + 4] == _ENCODING_LISTS[count]:
            return raw[start + 1] >> 1
    return None


def _read_bounds(raw: bytes, physical_type: int, position: int) -> StoredBounds | None:
    skipped = _TO_STATISTICS.match(raw, position)
    if skipped is None:
        return None
    statistics, _ = thrift.read_struct_at(raw, skipped.end())
    values, wires = statistics.values, statistics.wires
    if not wires.get(_MIN) == wires.get(_MAX) == thrift.BINARY:
        return None
    if (values.get(_MIN_EXACT), values.get(_MAX_EXACT)) not in ((None, None), (True, True)):
        return None
    null_count = values.get(_NULL_COUNT) if wires.get(_NULL_COUNT) == thrift.I64 else None
    return StoredBounds(physical_type, values[_MIN], values[_MAX], null_count)
