"""Column chunks as a footer describes them, read by our own parser.

PyArrow's view of a column chunk ends the process where a footer is damaged, by an abort over a chunk of another type
than its column or over a histogram of another length, and so does serialising such a footer. Nothing here asks for
either: PyArrow parses a footer as a whole, and decodes rows, which both end in an error at worst.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.core.parquet import thrift

if TYPE_CHECKING:
    from collections.abc import Iterable

    from merganser.core.parquet.thrift import Struct

# Parquet's numbers and PyArrow's names. PyArrow cannot write Hadoop's framed LZ4 (5); what it calls LZ4 is LZ4_RAW (7),
# which the format put in its place.
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
_ENCODING_LIST, _PATH, _CODEC, _SIZE, _STATISTICS, _PAGES, _BLOOM = 2, 3, 4, 6, 12, 13, 14
_MAX, _MIN, _NULL_COUNT, _MAX_EXACT, _MIN_EXACT = 5, 6, 3, 7, 8
# More encodings than a writer uses in one chunk.
_MAX_ENCODINGS = 9
# How a chunk's type, and its list of so many encodings, begin.
_TYPE_FIELD = 1 << 4 | thrift.I32
_ENCODING_LISTS = [bytes([1 << 4 | thrift.LIST, count << 4 | thrift.I32]) for count in range(_MAX_ENCODINGS)]
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# From the path of a chunk to its statistics: codec, number of values, two sizes, the offset of its data, and perhaps
# those of an index page and a dictionary. What has key-value metadata of its own is not looked into.
_TO_STATISTICS = re.compile(
    rb"\x15V\x16V\x16V\x16V\x26V(?:\x3c|\x16V\x2c|\x26V\x1c|\x16V\x16V\x1c)".replace(b"V", _VARINT), re.DOTALL
)


class Chunk(NamedTuple):
    """What rewriting needs to know of a column chunk; `pages` are type, encoding and number of its pages."""

    path: tuple[bytes, ...]
    codec: str
    encodings: frozenset[str]
    pages: list[tuple[int, int, int]]
    size: int
    null_count: int | None
    has_statistics: bool
    has_page_index: bool
    has_bloom_filter: bool


class StoredBounds(NamedTuple):
    """The bounds of a column chunk as they are stored, and how many of its values are NULL, if that is known."""

    physical_type: int
    low: bytes
    high: bytes
    null_count: int | None


def read_chunks(raw: bytes, wanted: Iterable[int]) -> dict[int, list[Chunk]]:
    """Read the column chunks of some row groups; raises `ThriftError` where that is impossible."""
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
        raise thrift.ThriftError("a column chunk has no codec that is known")
    statistics = get_field(meta, _STATISTICS, thrift.STRUCT)
    return Chunk(
        tuple(get_list(meta, _PATH, thrift.BINARY)),
        codec,
        frozenset(_ENCODINGS.get(encoding, "") for encoding in get_list(meta, _ENCODING_LIST, thrift.I32)),
        [(page.get(1), page.get(2), page.get(3)) for page in get_list(meta, _PAGES, thrift.STRUCT)],
        get_field(meta, _SIZE, thrift.I64) or 0,
        None if statistics is None else get_field(statistics, _NULL_COUNT, thrift.I64),
        statistics is not None,
        any(get_field(chunk, index, thrift.I64) is not None for index in (_OFFSET_INDEX, _COLUMN_INDEX)),
        get_field(meta, _BLOOM, thrift.I64) is not None,
    )


def get_field(tree: Struct, number: int, wire: int) -> Any:
    """Give a field, or None where it is absent or of another wire type, which readers of Thrift pass over."""
    return tree.get(number) if tree.wires.get(number) == wire else None


def get_list(tree: Struct, number: int, element: int) -> list[Any]:
    """Give a list of elements of this wire type, which is empty where there is none."""
    found = get_field(tree, number, thrift.LIST)
    return [] if found is None or found.element != element else found


def find_bounds(raw: bytes, column: str, row_groups: int) -> list[StoredBounds | None] | None:
    """Find the bounds of a plain column in each row group, None for one where they are missing or marked inexact.

    Reading a whole footer in Python takes a hundred times longer than finding a column by its path, which stands near
    the beginning of what describes a chunk. None if it cannot be found so, exactly once for each row group.
    """
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
    """Read the type of a chunk, which stands before its encodings and its path; each of them takes one byte."""
    for count in range(_MAX_ENCODINGS):
        start = path - count - 4
        if start >= 0 and raw[start] == _TYPE_FIELD and raw[start + 2 : start + 4] == _ENCODING_LISTS[count]:
            return raw[start + 1] >> 1
    return None


def _read_bounds(raw: bytes, physical_type: int, position: int) -> StoredBounds | None:
    between = _TO_STATISTICS.match(raw, position)
    if between is None:
        return None
    statistics, _ = thrift.read_struct_at(raw, between.end())
    values, wires = statistics.values, statistics.wires
    if not wires.get(_MIN) == wires.get(_MAX) == thrift.BINARY:
        return None
    if (values.get(_MIN_EXACT), values.get(_MAX_EXACT)) not in ((None, None), (True, True)):
        return None
    null_count = values.get(_NULL_COUNT) if wires.get(_NULL_COUNT) == thrift.I64 else None
    return StoredBounds(physical_type, values[_MIN], values[_MAX], null_count)
