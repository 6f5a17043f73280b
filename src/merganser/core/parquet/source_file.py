"""Opens Parquet files to copy column chunks from.

`open_source_file` reads and checks a footer. If it holds anything unknown, or that could lead to a wrong copy,
`CannotSpliceError` asks for a full rewrite.
"""

from __future__ import annotations

import struct as binary
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from merganser.core.parquet import thrift
from merganser.core.parquet.encode import Leaf, is_read_specially, is_stored_alike, read_leaves
from merganser.core.parquet.footer import ENCRYPTED_MAGIC, MAGIC, make_encrypted_error
from merganser.core.parquet.thrift import Struct, ThriftError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_COLUMN_CHUNKS = 20_000  # about a second of parsing; a file with more is fully rewritten
MAX_FOOTER_BYTES = 256 << 20

SCHEMA, NUM_ROWS, ROW_GROUPS, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION, _SIGNING_KEY = 2, 3, 4, 6, 7, 8, 9
COLUMNS, GROUP_ROWS = 1, 3
_FILE_PATH, META, _CRYPTO, _ENCRYPTED_META = 1, 3, 8, 9
_TYPE, _PATH, _NUM_VALUES, COMPRESSED_SIZE, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = 1, 3, 5, 7, 9, 10, 11
_MIN_FILE_BYTES = 12


class CannotSpliceError(Exception):
    """The file has to be fully rewritten."""


class _EncryptedError(CannotSpliceError):
    """The footer or a column chunk is encrypted."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Parquet file with a fully parsed footer: an old data file, or new rows encoded in memory."""

    file: BinaryIO
    size: int
    footer: bytes
    tree: Struct
    leaves: tuple[Leaf, ...]

    @property
    def data_end(self) -> int:
        """The position of the footer."""
        return self.size - 8 - len(self.footer)

    @property
    def num_row_groups(self) -> int:
        """The number of row groups."""
        return len(self.tree[ROW_GROUPS])

    def row_group(self, number: int) -> Struct:
        """Return the footer's entry of a row group."""
        if not 0 <= number < self.num_row_groups:
            raise IndexError(f"row group {number} of {self.num_row_groups}")
        return self.tree[ROW_GROUPS][number]  # type: ignore[no-any-return]


def open_source_file(old: BinaryIO, size: int) -> SourceFile:
    """Read the footer of a Parquet file of `size` bytes and check that its row groups can be copied."""
    try:
        return _open(old, size)
    except _EncryptedError:
        path = old.name if isinstance(getattr(old, "name", None), str) else "The Parquet file"
        raise make_encrypted_error(path) from None


def _open(file: BinaryIO, size: int) -> SourceFile:
    if size < _MIN_FILE_BYTES:
        raise CannotSpliceError("the file is too short to be Parquet")
    head, tail = read_at(file, 0, 4), read_at(file, size - 8, 8)
    if ENCRYPTED_MAGIC in (head, tail[4:]):
        raise _EncryptedError
    (length,) = binary.unpack("<I", tail[:4])
    if (head, tail[4:]) != (MAGIC, MAGIC) or length > min(size - _MIN_FILE_BYTES, MAX_FOOTER_BYTES):
        raise CannotSpliceError("the file does not end in a Parquet footer")
    footer = read_at(file, size - 8 - length, length)
    return SourceFile(file, size, footer, *_parse(footer, size - 8 - length))


def open_columns(buffer: pa.Buffer) -> SourceFile:
    """Open a Parquet file in memory."""
    reader: Any = pa.BufferReader(buffer)
    return _open(reader, buffer.size)


def open_new_columns(leaves: Sequence[Leaf], buffer: pa.Buffer) -> tuple[SourceFile, list[int]]:
    """Open some or all columns of new rows; returns them with the number of each leaf among those of the file."""
    new = open_columns(buffer)
    numbers: list[int] = []
    ahead = enumerate(leaves)
    for after in new.leaves:
        number, before = next(((number, leaf) for number, leaf in ahead if leaf.path == after.path), (0, None))
        if before is None or not is_stored_alike(before, after):
            raise CannotSpliceError(f"the new rows store a column in another way: {before} and {after}")
        numbers.append(number)
    columns, have = {leaf.path[0] for leaf in new.leaves}, set(numbers)
    if any(leaf.path[0] in columns and number not in have for number, leaf in enumerate(leaves)):
        raise CannotSpliceError("the new rows have only a part of a column")
    return new, numbers


def _parse(footer: bytes, data_end: int) -> tuple[Struct, tuple[Leaf, ...]]:
    """Parse a footer to a tree and its leaves; raises if any of it could lead to a wrong copy."""
    try:
        if _count_chunks(footer) > MAX_COLUMN_CHUNKS:
            raise ThriftError(f"it has more than {MAX_COLUMN_CHUNKS} column chunks")  # noqa: TRY301  handled below
        tree, end = thrift.read_struct_at(footer, 0, thrift.FILE_METADATA)
        leaves = read_leaves(tree[SCHEMA])
    except ThriftError as error:
        error_class = _EncryptedError if _has_encryption_fields(footer) else CannotSpliceError
        raise error_class(f"the footer is not understood: {error}") from error
    if _ENCRYPTION in tree or _SIGNING_KEY in tree:
        raise _EncryptedError
    if is_read_specially(tree.get(_CREATED_BY, b"")):
        raise CannotSpliceError(f"readers decode chunks of {tree[_CREATED_BY]!r} in a special way")
    if not leaves or len(tree.get(_COLUMN_ORDERS, leaves)) != len(leaves) or end != len(footer):
        raise CannotSpliceError("the footer has no columns, or not one order for each, or bytes after its end")
    extents = sorted(extent for group in tree[ROW_GROUPS] for extent in _check_group(group, leaves, data_end))
    if any(after[0] < before[1] for before, after in pairwise(extents)):
        raise CannotSpliceError("column chunks overlap")
    if tree[NUM_ROWS] != sum(group[GROUP_ROWS] for group in tree[ROW_GROUPS]):
        raise CannotSpliceError("the row groups do not add up to the number of rows")
    return tree, leaves


def _check_group(group: Struct, leaves: Sequence[Leaf], data_end: int) -> list[tuple[int, int]]:
    chunks, rows = group[COLUMNS], group[GROUP_ROWS]
    if len(chunks) != len(leaves) or rows < 0:
        raise CannotSpliceError("a row group does not have the columns of the schema")
    extents = []
    for chunk, leaf in zip(chunks, leaves, strict=True):
        if _CRYPTO in chunk or _ENCRYPTED_META in chunk:
            raise _EncryptedError
        if _FILE_PATH in chunk or META not in chunk:
            raise CannotSpliceError("a column chunk lies in another file")
        meta = chunk[META]
        if tuple(meta[_PATH]) != leaf.path or meta[_TYPE] != leaf.physical_type:
            raise CannotSpliceError("a column chunk belongs to another column than in the schema")
        if meta[_NUM_VALUES] != rows and (not leaf.is_repeated or meta[_NUM_VALUES] < rows):
            raise CannotSpliceError("a column chunk and its row group disagree about the number of rows")
        start, end = get_extent(meta)
        pages = [meta.get(page, 0) for page in (INDEX_PAGE, DICTIONARY_PAGE)]
        if not len(MAGIC) <= start <= meta[DATA_PAGE] <= end <= data_end or meta[COMPRESSED_SIZE] < 0:
            raise CannotSpliceError("a column chunk lies outside the file")
        if any(page and not start <= page < end for page in pages):
            raise CannotSpliceError("a page lies outside its column chunk")
        extents.append((start, end))
    return extents


def get_extent(meta: Struct) -> tuple[int, int]:
    """Return start and end of a column chunk."""
    dictionary = meta.get(DICTIONARY_PAGE, 0)  # missing or 0 if there is none
    start = min(meta[DATA_PAGE], dictionary) if dictionary > 0 else meta[DATA_PAGE]
    return start, start + meta[COMPRESSED_SIZE]


def _count_chunks(footer: bytes) -> int:
    """Estimate the number of column chunks from the first row group."""
    groups, first = thrift.find_list(footer, 0, ROW_GROUPS)
    return groups * thrift.find_list(footer, first, COLUMNS)[0] if groups else 0


def _has_encryption_fields(footer: bytes) -> bool:
    try:
        return any(number in (_ENCRYPTION, _SIGNING_KEY) for number, _, _ in thrift.scan_fields(footer))
    except ThriftError:
        return False


def read_at(file: BinaryIO, start: int, length: int) -> bytes:
    """Read exactly `length` bytes at `start`."""
    file.seek(start)
    blocks = []
    while length and (block := file.read(length)):
        blocks.append(block)
        length -= len(block)
    if length:
        raise CannotSpliceError("the file ends early")
    return b"".join(blocks)
