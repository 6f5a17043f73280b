"""A new Parquet file from row groups of an old one, copied byte for byte, and row groups encoded anew.

A Parquet file is column chunks and a footer that points at them. `open_old` reads and checks the old file's footer;
`splice` places one row group after another and ends with the old footer, in which only row groups, offsets and the
number of rows have changed: schema, created_by, column orders and key-value metadata stay verbatim.

A new chunk is read through the old schema, so it may enter only if that gives what its own schema would. Where this is
in doubt, or the footer holds anything that is not understood, `CannotSpliceError` asks for a whole rewrite.
"""

from __future__ import annotations

import errno
import os
import stat
import struct as binary
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from merganser.core import thrift
from merganser.core.encode import Leaf, is_read_specially, is_stored_alike, read_leaves
from merganser.core.errors import UnsupportedFileError
from merganser.core.thrift import Struct, ThriftError, ThriftList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_COLUMN_CHUNKS = 20_000  # about a second of parsing; a wider file is rewritten whole
MAX_FOOTER_BYTES = 256 << 20
COPY_PIECE, MIN_KERNEL_COPY = 8 << 20, 64 << 10  # below the latter, reading is cheaper than flushing

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_SCHEMA, _NUM_ROWS, _ROW_GROUPS, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION, _SIGNING_KEY = 2, 3, 4, 6, 7, 8, 9
_COLUMNS, _GROUP_ROWS, _SORTING, _GROUP_OFFSET, _ORDINAL = 1, 3, 4, 5, 7
_FILE_PATH, _FILE_OFFSET, _META, _CRYPTO, _ENCRYPTED_META = 1, 2, 3, 8, 9
_OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH = 4, 5, 6, 7
_TYPE, _PATH, _NUM_VALUES, _COMPRESSED_SIZE, _DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE = 1, 3, 5, 7, 9, 10, 11
_STATISTICS, _BLOOM, _BLOOM_LENGTH = 12, 14, 15
_SMALLEST_FILE, _MAX_ORDINAL = 12, 32_767
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class CannotSpliceError(Exception):
    """Why this file has to be rewritten whole."""


class _EncryptedError(CannotSpliceError):
    """The footer, or a part of it, speaks of encryption."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A Parquet file whose footer was understood completely; the new rows in memory are another."""

    file: BinaryIO
    size: int
    footer: bytes
    tree: Struct
    leaves: tuple[Leaf, ...]

    @property
    def data_end(self) -> int:
        """Where the footer begins."""
        return self.size - 8 - len(self.footer)

    @property
    def num_row_groups(self) -> int:
        """How many row groups there are to copy."""
        return len(self.tree[_ROW_GROUPS])


def open_old(old: BinaryIO, size: int) -> OldFile:
    """Read the footer of a Parquet file of `size` bytes and check all that copying its row groups relies on.

    Raises `CannotSpliceError` where a whole rewrite is needed, `UnsupportedFileError` for an encrypted file.
    """
    try:
        return _open(old, size)
    except _EncryptedError:
        shown = old.name if isinstance(getattr(old, "name", None), str) else "The Parquet file"
        message = f"{shown} is encrypted; rewriting it would write plaintext. Merge into an unencrypted copy."
        raise UnsupportedFileError(message) from None


def check_fits(old: OldFile, new: pa.Buffer) -> None:
    """Raise `CannotSpliceError` if row groups of `new` may not stand in `old`; a buffer without rows will do to ask."""
    _open_new(old, new)


def splice(old: OldFile, groups: Iterable[int | pa.Buffer], out: BinaryIO) -> int:
    """Write the file that `groups` describe and return its number of rows.

    A number stands for that row group of the old file, a buffer (a Parquet file in memory) for its own row groups. The
    iterable is consumed as the file grows. After a `CannotSpliceError` what was written to `out` is worthless.
    """
    output = _Output(old, out)
    placed: list[_Placed] = []
    for group in groups:
        if isinstance(group, int):
            if not 0 <= group < old.num_row_groups:
                raise IndexError(f"row group {group} of {old.num_row_groups}")
            placed.append(_place(old, old.tree[_ROW_GROUPS][group], output))
        else:
            new = _open_new(old, group)
            placed += [_place(new, _as_new(part, old.leaves), output) for part in new.tree[_ROW_GROUPS]]
    _write_page_indexes(placed, output)
    return _write_footer(old, placed, output)


# -------------------- understanding a footer


def _open(file: BinaryIO, size: int) -> OldFile:
    if size < _SMALLEST_FILE:
        raise CannotSpliceError("the file is too short to be Parquet")
    head, tail = _read_at(file, 0, 4), _read_at(file, size - 8, 8)
    if _ENCRYPTED_MAGIC in (head, tail[4:]):
        raise _EncryptedError
    (length,) = binary.unpack("<I", tail[:4])
    if (head, tail[4:]) != (_MAGIC, _MAGIC) or length > min(size - _SMALLEST_FILE, MAX_FOOTER_BYTES):
        raise CannotSpliceError("the file does not end in a Parquet footer")
    footer = _read_at(file, size - 8 - length, length)
    return OldFile(file, size, footer, *_parse(footer, size - 8 - length))


def _open_new(old: OldFile, buffer: pa.Buffer) -> OldFile:
    reader: Any = pa.BufferReader(buffer)
    new = _open(reader, buffer.size)
    if len(new.leaves) != len(old.leaves):
        raise CannotSpliceError(f"the new rows have {len(new.leaves)} leaf columns, the file has {len(old.leaves)}")
    for before, after in zip(old.leaves, new.leaves, strict=True):
        if not is_stored_alike(before, after):
            raise CannotSpliceError(f"the new rows store a column in another way: {before} and {after}")
    return new


def _parse(footer: bytes, data_end: int) -> tuple[Struct, tuple[Leaf, ...]]:
    """Return a footer as a tree, and its leaves, or raise if any of it could lead to a wrong copy."""
    try:
        if _count_chunks(footer) > MAX_COLUMN_CHUNKS:
            raise ThriftError(f"it has more than {MAX_COLUMN_CHUNKS} column chunks")  # noqa: TRY301 - one way out
        tree, end = thrift.read_struct_at(footer, 0, thrift.FILE_METADATA)
        leaves = read_leaves(tree[_SCHEMA])
    except ThriftError as error:
        reason = _EncryptedError if _names_encryption(footer) else CannotSpliceError
        raise reason(f"the footer is not understood: {error}") from error
    if _ENCRYPTION in tree or _SIGNING_KEY in tree:
        raise _EncryptedError
    if is_read_specially(tree.get(_CREATED_BY, b"")):
        raise CannotSpliceError(f"readers decode chunks of {tree[_CREATED_BY]!r} in a way of their own")
    if not leaves or len(tree.get(_COLUMN_ORDERS, leaves)) != len(leaves) or end != len(footer):
        raise CannotSpliceError("the footer has no columns, or not one order for each, or bytes after its end")
    extents = sorted(extent for group in tree[_ROW_GROUPS] for extent in _check_group(group, leaves, data_end))
    if any(after[0] < before[1] for before, after in pairwise(extents)):
        raise CannotSpliceError("column chunks overlap")
    if tree[_NUM_ROWS] != sum(group[_GROUP_ROWS] for group in tree[_ROW_GROUPS]):
        raise CannotSpliceError("the row groups do not add up to the number of rows")
    return tree, leaves


def _check_group(group: Struct, leaves: Sequence[Leaf], data_end: int) -> list[tuple[int, int]]:
    chunks, rows = group[_COLUMNS], group[_GROUP_ROWS]
    if len(chunks) != len(leaves) or rows < 0:
        raise CannotSpliceError("a row group does not have the columns of the schema")
    extents = []
    for chunk, leaf in zip(chunks, leaves, strict=True):
        if _CRYPTO in chunk or _ENCRYPTED_META in chunk:
            raise _EncryptedError
        if _FILE_PATH in chunk or _META not in chunk:
            raise CannotSpliceError("a column chunk lies in another file")
        meta = chunk[_META]
        if tuple(meta[_PATH]) != leaf.path or meta[_TYPE] != leaf.physical:
            raise CannotSpliceError("a column chunk is not of the column that the schema has in its place")
        if meta[_NUM_VALUES] != rows and (not leaf.is_repeated or meta[_NUM_VALUES] < rows):
            raise CannotSpliceError("a column chunk and its row group disagree about the number of rows")
        start, end = _extent(meta)
        pages = [meta.get(page, 0) for page in (_INDEX_PAGE, _DICTIONARY_PAGE)]
        if not len(_MAGIC) <= start <= meta[_DATA_PAGE] <= end <= data_end or meta[_COMPRESSED_SIZE] < 0:
            raise CannotSpliceError("a column chunk lies outside the file")
        if any(page and not start <= page < end for page in pages):
            raise CannotSpliceError("a page lies outside its column chunk")
        extents.append((start, end))
    return extents


def _extent(meta: Struct) -> tuple[int, int]:
    dictionary = meta.get(_DICTIONARY_PAGE, 0)  # absent, or 0, where there is none
    start = min(meta[_DATA_PAGE], dictionary) if dictionary > 0 else meta[_DATA_PAGE]
    return start, start + meta[_COMPRESSED_SIZE]


def _count_chunks(footer: bytes) -> int:
    """Count column chunks by the first row group, without reading further."""
    groups, first = thrift.find_list(footer, 0, _ROW_GROUPS)
    return groups * thrift.find_list(footer, first, _COLUMNS)[0] if groups else 0


def _names_encryption(footer: bytes) -> bool:
    try:
        return any(number in (_ENCRYPTION, _SIGNING_KEY) for number, _, _ in thrift.scan_fields(footer))
    except ThriftError:
        return False


# -------------------- placing row groups


@dataclass(slots=True)
class _Placed:
    """A row group whose data is written; its page indexes follow after the last row group, as readers expect."""

    group: Struct
    chunks: list[Struct] = field(default_factory=list)
    indexes: list[dict[int, bytes | None]] = field(default_factory=list)


def _as_new(group: Struct, leaves: Sequence[Leaf]) -> Struct:
    """Take from a new row group what its writer cannot know: the order of rows, and the order of intervals."""
    chunks = []
    for chunk, leaf in zip(group[_COLUMNS], leaves, strict=True):
        if leaf.has_no_order:
            meta = chunk[_META].replace({_STATISTICS: None, _BLOOM: None, _BLOOM_LENGTH: None})
            chunk = chunk.replace({_META: meta, _COLUMN_INDEX: None, _COLUMN_INDEX_LENGTH: None})  # noqa: PLW2901
        chunks.append(chunk)
    return group.replace({_SORTING: None, _COLUMNS: ThriftList(thrift.STRUCT, chunks)})


def _place(file: OldFile, group: Struct, output: _Output) -> _Placed:
    """Write the chunks of a row group and then its bloom filters; return it with every offset moved."""
    extents = [_extent(chunk[_META]) for chunk in group[_COLUMNS]]
    starts = _send_chunks(file, extents, output)
    placed = _Placed(group)
    for chunk, (start, end), new_start in zip(group[_COLUMNS], extents, starts, strict=True):
        meta = chunk[_META]
        offsets = {page: meta.get(page, 0) for page in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE)}
        moved = {page: offset + new_start - start for page, offset in offsets.items() if offset > 0}
        if _BLOOM in meta:
            moved[_BLOOM] = output.position
            output.write(_read_bloom(file, meta))
        # A file offset outside the chunk points at a copy of the metadata, which stays behind.
        file_offset = chunk[_FILE_OFFSET] + new_start - start if start <= chunk[_FILE_OFFSET] < end else 0
        placed.chunks.append(chunk.replace({_META: meta.replace(moved), _FILE_OFFSET: file_offset}))
        indexes = {number: _read_index(file, chunk, number) for number in (_COLUMN_INDEX, _OFFSET_INDEX)}
        if (index := indexes[_OFFSET_INDEX]) is not None:
            indexes[_OFFSET_INDEX] = _move_offset_index(index, start, end, new_start - start)
        placed.indexes.append(indexes)
    if group.get(_GROUP_OFFSET, 0) > 0:
        placed.group = group.replace({_GROUP_OFFSET: starts[0]})
    return placed


def _send_chunks(file: OldFile, extents: Sequence[tuple[int, int]], output: _Output) -> list[int]:
    """Send chunks, those that touch each other in one piece, and return where each begins now."""
    starts, run_start, run_end = [], extents[0][0], extents[0][0]
    for start, end in extents:
        if start != run_end:
            output.copy(file, run_start, run_end)
            run_start = start
        starts.append(output.position + start - run_start)
        run_end = end
    output.copy(file, run_start, run_end)
    return starts


def _read_bloom(file: OldFile, meta: Struct) -> bytes:
    start = meta[_BLOOM]
    header = _read_range(file, start, min(64, max(0, file.data_end - start)))
    fields, header_length = _understand(header, thrift.BLOOM_FILTER_HEADER)
    length = header_length + fields[1]
    if fields[1] < 0 or meta.get(_BLOOM_LENGTH, length) != length:
        raise CannotSpliceError("a bloom filter is not as long as the footer says")
    return _read_range(file, start, length)


def _read_index(file: OldFile, chunk: Struct, number: int) -> bytes | None:
    if number not in chunk and number + 1 not in chunk:
        return None
    return _read_range(file, chunk.get(number, 0), chunk.get(number + 1, -1))


def _read_range(file: OldFile, start: int, length: int) -> bytes:
    if start < len(_MAGIC) or length < 0 or start + length > file.data_end:
        raise CannotSpliceError("a bloom filter or page index lies outside the file")
    return _read_at(file.file, start, length)


def _understand(data: bytes, shape: thrift.Shape) -> tuple[Struct, int]:
    try:
        return thrift.read_struct_at(data, 0, shape)
    except ThriftError as error:
        raise CannotSpliceError(f"a bloom filter or page index is not understood: {error}") from error


def _move_offset_index(index: bytes, start: int, end: int, shift: int) -> bytes:
    tree, length = _understand(index, thrift.OFFSET_INDEX)
    pages = tree[1]
    if length != len(index) or any(not start <= page[1] <= page[1] + page[2] <= end for page in pages):
        raise CannotSpliceError("an offset index speaks of pages outside its column chunk")
    moved = [page.replace({1: page[1] + shift}) for page in pages]
    return thrift.write_struct(tree.replace({1: ThriftList(thrift.STRUCT, moved)}))


def _write_page_indexes(placed: Sequence[_Placed], output: _Output) -> None:
    for number in (_COLUMN_INDEX, _OFFSET_INDEX):
        for group in placed:
            for column, indexes in enumerate(group.indexes):
                if (index := indexes[number]) is not None:
                    at = {number: output.position, number + 1: len(index)}
                    group.chunks[column] = group.chunks[column].replace(at)
                    output.write(index)


def _write_footer(old: OldFile, placed: Sequence[_Placed], output: _Output) -> int:
    groups = []
    for ordinal, item in enumerate(placed):
        changes: dict[int, object] = {_COLUMNS: ThriftList(thrift.STRUCT, item.chunks)}
        if _ORDINAL in item.group:
            changes[_ORDINAL] = ordinal if ordinal <= _MAX_ORDINAL else None
        groups.append(item.group.replace(changes))
    rows: int = sum(group[_GROUP_ROWS] for group in groups)
    footer = thrift.write_struct(old.tree.replace({_NUM_ROWS: rows, _ROW_GROUPS: ThriftList(thrift.STRUCT, groups)}))
    output.write(footer + binary.pack("<I", len(footer)) + _MAGIC)
    return rows


class _Output:
    """The new file and how far it has grown; its position is counted here, because not every writer can tell."""

    def __init__(self, old: OldFile, out: BinaryIO) -> None:
        self.old, self.out, self.position = old, out, 0
        self.write(_MAGIC)
        self.descriptors = _descriptors(old, out)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # Some writers return nothing and take it all; raw files may take less.
            written = self.out.write(rest)
            rest = rest[len(rest) if written is None else written :]
        self.position += len(data)

    def copy(self, file: OldFile, start: int, end: int) -> None:
        """Append bytes of another file, inside the kernel where it can."""
        if self.descriptors and file is self.old and end - start >= MIN_KERNEL_COPY:
            start = self._copy_in_kernel(*self.descriptors, start, end)
        while start < end:
            piece = _read_at(file.file, start, min(end - start, COPY_PIECE))
            self.write(piece)
            start += len(piece)

    def _copy_in_kernel(self, source: int, target: int, start: int, end: int) -> int:
        self.out.flush()
        while start < end:
            try:
                copied = os.copy_file_range(source, target, end - start, start, self.position)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                copied = 0
            if not copied:
                self.descriptors = None
                break
            start += copied
            self.position += copied
        # The file object has not seen these bytes: tell it where the file stands before it writes on.
        self.out.seek(self.position)
        return start


def _descriptors(old: OldFile, out: BinaryIO) -> tuple[int, int] | None:
    """Return both file descriptors if the kernel may copy between them.

    An object such as a decompressor also has a descriptor, of other bytes: hence the looks at what is there.
    """
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        out.flush()
        source, target = old.file.fileno(), out.fileno()
        same = os.pread(source, len(old.footer), old.data_end) == old.footer
        state = os.fstat(target)
        fresh = stat.S_ISREG(state.st_mode) and state.st_size == len(_MAGIC) and out.seekable()
    except (AttributeError, OSError, ValueError):
        return None
    return (source, target) if same and fresh else None


def _read_at(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    pieces = []
    while length and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    if length:
        raise CannotSpliceError("the file ends early")
    return b"".join(pieces)
