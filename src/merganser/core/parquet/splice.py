"""Writes a new Parquet file from column chunks of an old one, copied byte for byte, and newly encoded chunks.

A Parquet file is column chunks and a footer that points at them. `splice` writes one row group after another, each
chunk from the old file or from new columns, and then the old footer with new row groups, offsets and number of rows:
schema, created_by, column orders and key-value metadata stay verbatim.

A new chunk is read through the old schema, so it is allowed only if its own schema means the same. In doubt,
`CannotSpliceError` asks for a full rewrite. With a `ReshapedFile`, the old file's chunks are copied into a new schema,
and the footer is that one's.
"""

from __future__ import annotations

import errno
import os
import stat
import struct as binary
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from merganser.core.parquet import thrift
from merganser.core.parquet.footer import MAGIC
from merganser.core.parquet.source_file import (
    COLUMNS,
    COMPRESSED_SIZE,
    DATA_PAGE,
    DICTIONARY_PAGE,
    GROUP_ROWS,
    INDEX_PAGE,
    META,
    NUM_ROWS,
    ROW_GROUPS,
    CannotSpliceError,
    SourceFile,
    get_extent,
    open_new_columns,
    read_at,
)
from merganser.core.parquet.thrift import Struct, ThriftError, ThriftList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from merganser.core.parquet.reshape import ReshapedFile

COPY_BUFFER_BYTES, MIN_KERNEL_COPY = 8 << 20, 64 << 10  # below the latter, a read and a write are cheaper

_GROUP_SIZE, _SORTING, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = 2, 4, 5, 6, 7
_FILE_OFFSET, _OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH = 2, 4, 5, 6, 7
_UNCOMPRESSED_SIZE, _STATISTICS, _BLOOM, _BLOOM_LENGTH = 6, 12, 14, 15
_MAX_ORDINAL = 32_767
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


@dataclass(frozen=True, slots=True)
class NewRowGroup:
    """Newly encoded columns, one or more per buffer (a Parquet file in memory), and the rest from an old row group."""

    columns: Sequence[pa.Buffer]
    source_row_group: int | None = None  # None if the buffers hold all columns


def check_fits(old: SourceFile, new: pa.Buffer) -> None:
    """Raise `CannotSpliceError` if columns of `new` cannot be spliced into `old`; `new` needs no rows."""
    open_new_columns(old.leaves, new)


def splice(
    old: SourceFile, groups: Iterable[int | NewRowGroup], out: BinaryIO, reshaped: ReshapedFile | None = None
) -> int:
    """Write a file of old row groups, given by number, and new ones; returns its number of rows.

    The iterable is consumed as the file grows. After a `CannotSpliceError`, `out` is unusable.
    """
    output = _Output(old, out)
    written: list[_WrittenGroup] = []
    for group in groups:
        if isinstance(group, int) and reshaped is None:
            copied = old.row_group(group)
            written.append(_write_group(copied, [_ChunkRef(old, chunk) for chunk in copied[COLUMNS]], output))
        else:
            new = NewRowGroup((), group) if isinstance(group, int) else group
            written += [_write_group(*combined, output) for combined in _combine_columns(old, new, reshaped)]
    _write_page_indexes(written, output)
    return _write_footer(old if reshaped is None else reshaped.template, written, output)


class _ChunkRef(NamedTuple):
    file: SourceFile
    chunk: Struct


def _combine_columns(
    old: SourceFile, group: NewRowGroup, reshaped: ReshapedFile | None
) -> list[tuple[Struct, list[_ChunkRef]]]:
    """Combine new columns with the rest of an old row group; the result has the row groups of the new columns."""
    leaves_after = (old if reshaped is None else reshaped.template).leaves
    opened = [open_new_columns(leaves_after, buffer) for buffer in group.columns]
    counts = {len(new.tree[ROW_GROUPS]) for new, _ in opened}
    rest, copied = None, dict[int, _ChunkRef]()
    if group.source_row_group is not None:
        rest, copied = _list_copied(old, group.source_row_group, reshaped)
        counts = counts or ({1} if reshaped is not None else set())
    if len(counts) != 1 or (rest is not None and counts != {1}):
        raise CannotSpliceError("the new columns do not have the same row groups")
    combined = []
    for number in range(counts.pop()):
        pieces = dict(copied)
        rows = [] if rest is None else [rest[GROUP_ROWS]]
        for new, leaves in opened:
            new_group = new.tree[ROW_GROUPS][number]
            rows.append(new_group[GROUP_ROWS])
            for leaf, chunk in zip(leaves, new_group[COLUMNS], strict=True):
                has_no_order = leaves_after[leaf].has_no_order
                pieces[leaf] = _ChunkRef(new, _drop_order_statistics(chunk) if has_no_order else chunk)
        if len(pieces) != len(leaves_after) or len(set(rows)) != 1:
            raise CannotSpliceError("the new columns and the rest do not make a row group")
        replaced = {leaf for _, leaves in opened for leaf in leaves}
        chunks = [pieces[leaf] for leaf in sorted(pieces)]
        combined.append(_describe_group(new_group if rest is None else rest, chunks, replaced))
    return combined


def _list_copied(old: SourceFile, number: int, reshaped: ReshapedFile | None) -> tuple[Struct, dict[int, _ChunkRef]]:
    """Return an old row group and its chunks that may be copied, by the number of their leaf in the new file."""
    group = old.row_group(number)
    if reshaped is None:
        return group, {leaf: _ChunkRef(old, chunk) for leaf, chunk in enumerate(group[COLUMNS])}
    chunks = {
        leaf: _ChunkRef(old, reshaped.copy_chunk(leaf, group[COLUMNS][at])) for at, leaf in reshaped.copied.items()
    }
    return reshaped.copy_sorting(group), chunks


def _describe_group(group: Struct, pieces: list[_ChunkRef], replaced: set[int]) -> tuple[Struct, list[_ChunkRef]]:
    """Update the sizes of a row group; it is no longer sorted if a sorting column was replaced."""
    metas = [piece.chunk[META] for piece in pieces]
    changes: dict[int, object] = {_GROUP_SIZE: sum(meta[_UNCOMPRESSED_SIZE] for meta in metas)}
    if _GROUP_COMPRESSED in group:
        changes[_GROUP_COMPRESSED] = sum(meta[COMPRESSED_SIZE] for meta in metas)
    if any(column[1] in replaced for column in group.get(_SORTING, ())):
        changes[_SORTING] = None
    return group.replace(changes), pieces


def _drop_order_statistics(chunk: Struct) -> Struct:
    """Remove the statistics of a column whose values have no order."""
    meta = chunk[META].replace({_STATISTICS: None, _BLOOM: None, _BLOOM_LENGTH: None})
    return chunk.replace({META: meta, _COLUMN_INDEX: None, _COLUMN_INDEX_LENGTH: None})


@dataclass(slots=True)
class _WrittenGroup:
    """A row group whose data is written; page indexes follow after the last row group, as readers expect."""

    group: Struct
    chunks: list[Struct] = field(default_factory=list)
    indexes: list[dict[int, bytes | None]] = field(default_factory=list)


def _write_group(group: Struct, pieces: Sequence[_ChunkRef], output: _Output) -> _WrittenGroup:
    """Write the chunks of a row group and then its bloom filters; returns it with all offsets moved."""
    starts = _copy_chunks(pieces, output)
    written = _WrittenGroup(group)
    for (file, chunk), new_start in zip(pieces, starts, strict=True):
        meta = chunk[META]
        start, end = get_extent(meta)
        offsets = {page: meta.get(page, 0) for page in (DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE)}
        moved = {page: offset + new_start - start for page, offset in offsets.items() if offset > 0}
        if _BLOOM in meta:
            moved[_BLOOM] = output.position
            output.write(_read_bloom(file, meta))
        # A file offset outside the chunk points at a copy of the metadata, which is not copied.
        file_offset = chunk[_FILE_OFFSET] + new_start - start if start <= chunk[_FILE_OFFSET] < end else 0
        written.chunks.append(chunk.replace({META: meta.replace(moved), _FILE_OFFSET: file_offset}))
        indexes = {number: _read_index(file, chunk, number) for number in (_COLUMN_INDEX, _OFFSET_INDEX)}
        if (index := indexes[_OFFSET_INDEX]) is not None:
            indexes[_OFFSET_INDEX] = _move_offset_index(index, start, end, new_start - start)
        written.indexes.append(indexes)
    if group.get(_GROUP_OFFSET, 0) > 0:
        written.group = group.replace({_GROUP_OFFSET: starts[0]})
    return written


def _copy_chunks(pieces: Sequence[_ChunkRef], output: _Output) -> list[int]:
    """Copy chunks, adjacent ones at once, and return their new positions."""
    starts = []
    run_file, run_start, run_end = pieces[0].file, 0, 0
    for file, chunk in pieces:
        start, end = get_extent(chunk[META])
        if start != run_end or file is not run_file:
            output.copy(run_file, run_start, run_end)
            run_file, run_start = file, start
        starts.append(output.position + start - run_start)
        run_end = end
    output.copy(run_file, run_start, run_end)
    return starts


def _read_bloom(file: SourceFile, meta: Struct) -> bytes:
    start = meta[_BLOOM]
    header = _read_range(file, start, min(64, max(0, file.data_end - start)))
    fields, header_length = _parse_struct(header, thrift.BLOOM_FILTER_HEADER)
    length = header_length + fields[1]
    if fields[1] < 0 or meta.get(_BLOOM_LENGTH, length) != length:
        raise CannotSpliceError("the length of a bloom filter is not the one in the footer")
    return _read_range(file, start, length)


def _read_index(file: SourceFile, chunk: Struct, number: int) -> bytes | None:
    if number not in chunk and number + 1 not in chunk:
        return None
    return _read_range(file, chunk.get(number, 0), chunk.get(number + 1, -1))


def _read_range(file: SourceFile, start: int, length: int) -> bytes:
    if start < len(MAGIC) or length < 0 or start + length > file.data_end:
        raise CannotSpliceError("a bloom filter or page index lies outside the file")
    return read_at(file.file, start, length)


def _parse_struct(data: bytes, spec: thrift.StructSpec) -> tuple[Struct, int]:
    try:
        return thrift.read_struct_at(data, 0, spec)
    except ThriftError as error:
        raise CannotSpliceError(f"a bloom filter or page index is not understood: {error}") from error


def _move_offset_index(index: bytes, start: int, end: int, shift: int) -> bytes:
    tree, length = _parse_struct(index, thrift.OFFSET_INDEX)
    pages = tree[1]
    if length != len(index) or any(not start <= page[1] <= page[1] + page[2] <= end for page in pages):
        raise CannotSpliceError("an offset index has pages outside its column chunk")
    moved = [page.replace({1: page[1] + shift}) for page in pages]
    return thrift.write_struct(tree.replace({1: ThriftList(thrift.STRUCT, moved)}))


def _write_page_indexes(written: Sequence[_WrittenGroup], output: _Output) -> None:
    for number in (_COLUMN_INDEX, _OFFSET_INDEX):
        for group in written:
            for column, indexes in enumerate(group.indexes):
                if (index := indexes[number]) is not None:
                    at = {number: output.position, number + 1: len(index)}
                    group.chunks[column] = group.chunks[column].replace(at)
                    output.write(index)


def _write_footer(old: SourceFile, written: Sequence[_WrittenGroup], output: _Output) -> int:
    groups = []
    for ordinal, item in enumerate(written):
        changes: dict[int, object] = {COLUMNS: ThriftList(thrift.STRUCT, item.chunks)}
        if _ORDINAL in item.group:
            changes[_ORDINAL] = ordinal if ordinal <= _MAX_ORDINAL else None
        groups.append(item.group.replace(changes))
    rows: int = sum(group[GROUP_ROWS] for group in groups)
    footer = thrift.write_struct(old.tree.replace({NUM_ROWS: rows, ROW_GROUPS: ThriftList(thrift.STRUCT, groups)}))
    output.write(footer + binary.pack("<I", len(footer)) + MAGIC)
    return rows


class _Output:
    """The new file and its position, counted here because not every writer has `tell`."""

    def __init__(self, old: SourceFile, out: BinaryIO) -> None:
        self.old, self.out, self.position = old, out, 0
        self.write(MAGIC)
        self.descriptors = _find_descriptors(old, out)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # Raw files may write less than all; writers that return None write all.
            count = self.out.write(rest)
            rest = rest[len(rest) if count is None else count :]
        self.position += len(data)

    def copy(self, file: SourceFile, start: int, end: int) -> None:
        """Append bytes of another file, inside the kernel if possible."""
        if self.descriptors and file is self.old and end - start >= MIN_KERNEL_COPY:
            start = self._copy_in_kernel(*self.descriptors, start, end)
        while start < end:
            block = read_at(file.file, start, min(end - start, COPY_BUFFER_BYTES))
            self.write(block)
            start += len(block)

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
        # The file object does not know of these bytes: move it to the end.
        self.out.seek(self.position)
        return start


def _find_descriptors(old: SourceFile, out: BinaryIO) -> tuple[int, int] | None:
    """Return both file descriptors if the kernel may copy between them."""
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        out.flush()
        source, target = old.file.fileno(), out.fileno()
        # A decompressor, for example, has a descriptor of other bytes.
        same = os.pread(source, len(old.footer), old.data_end) == old.footer
        state = os.fstat(target)
        fresh = stat.S_ISREG(state.st_mode) and state.st_size == len(MAGIC) and out.seekable()
    except (AttributeError, OSError, ValueError):
        return None
    return (source, target) if same and fresh else None
