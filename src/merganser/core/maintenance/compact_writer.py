"""Packing: the rows of several files written as few large ones, row group by row group, or all of them sorted.

A sorted file says so in its footer, so that it need not be sorted again.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import empty_table, take
from merganser.core.model.keys import sort_rows
from merganser.core.model.schema import cast_column
from merganser.core.model.validation import check_writable
from merganser.core.parquet.footer import count_leaves, find_unwritable_column, read_footer, read_key_bounds
from merganser.core.rows.append import open_new_writer
from merganser.core.rows.key_scan import open_parquet, read_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.core.model.engine import Layout
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

# Of a file that is written without sorting, a row group takes up to this part.
_GROUPS_PER_FILE = 4


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """How large files are to be, in bytes and rows, what sorts them, and how they are compressed, if not as before."""

    target_file_bytes: int
    max_rows_per_file: int
    sort_by: Sequence[str]
    compression: str | None = None

    def is_small(self, piece: CompactionFile) -> bool:
        """Say whether a file has room for more."""
        return piece.size < self.target_file_bytes and piece.rows < self.max_rows_per_file

    def saves_files(self, small: Sequence[CompactionFile]) -> bool:
        """Say whether fewer files could hold the rows of these."""
        size, rows = sum(piece.size for piece in small), sum(piece.rows for piece in small)
        fewest = max(1, math.ceil(size / self.target_file_bytes), math.ceil(rows / self.max_rows_per_file))
        return fewest < len(small)

    def estimate_rows_per_file(self, pieces: Sequence[CompactionFile]) -> int:
        """Say how many rows fill a file, by what they take up now."""
        size, rows = sum(piece.size for piece in pieces), sum(piece.rows for piece in pieces)
        return max(1, min(self.max_rows_per_file, rows * self.target_file_bytes // max(1, size)))


@dataclass(frozen=True, slots=True)
class CompactionFile:
    """A file whose rows are to be packed, of the dataset or staged.

    `is_sorted` says that it is sorted as wished; `lower_bound` is the canonical bound of the first column to sort by.
    """

    path: str
    size: int
    rows: int
    is_sorted: bool = True
    lower_bound: Any = None


def describe_file(store: Store, path: str, shown: str, compact_options: CompactOptions) -> CompactionFile:
    """Look up what a file's footer tells of its order."""
    footer = read_footer(store, path, shown)
    rows = footer.metadata.num_rows
    if not compact_options.sort_by:
        return CompactionFile(path, footer.size, rows)
    kind = footer.schema.field(compact_options.sort_by[0]).type
    bounds = [bound for bound in read_key_bounds(footer, compact_options.sort_by[0], kind) if bound is not None]
    # A mark speaks of one row group; that one follows the other can be told by their bounds.
    rising = all(before[1] <= after[0] for before, after in pairwise(bounds))
    ordered = rising and _has_sorting_columns(footer, compact_options.sort_by)
    return CompactionFile(path, footer.size, rows, ordered, min((low for low, _ in bounds), default=None))


def sort_by_bounds(pieces: Sequence[CompactionFile]) -> list[CompactionFile]:
    """Put files that begin with near keys beside each other; those without a bound come last."""
    known = [piece for piece in pieces if piece.lower_bound is not None]
    others = [piece for piece in pieces if piece.lower_bound is None]
    ordered = sorted(known, key=lambda piece: (piece.lower_bound, piece.size, piece.rows))
    return [*ordered, *sorted(others, key=lambda piece: (piece.size, piece.rows))]


def _has_sorting_columns(footer: Footer, sort_by: Sequence[str]) -> bool:
    metadata = footer.metadata
    marks = tuple(_make_sorting_columns(footer.schema, sort_by))
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    return all(group.sorting_columns[: len(marks)] == marks for group in groups if group.num_rows)


def _make_sorting_columns(schema: pa.Schema, sort_by: Sequence[str]) -> list[pq.SortingColumn]:
    """Describe an ascending order, NULL first, by the numbers that the columns have among all leaves."""
    before = [
        sum(count_leaves(field.type) for field in list(schema)[: schema.get_field_index(name)]) for name in sort_by
    ]
    return [pq.SortingColumn(leaf, descending=False, nulls_first=True) for leaf in before]


def pack(
    pieces: Sequence[CompactionFile], layout: Layout, compact_options: CompactOptions, staging: Staging
) -> list[str]:
    """Stage files with all rows of these, in order or sorted: at least one file, if only to keep the schema."""
    store = staging.location.store
    rows = _read_row_groups(store, pieces, layout.schema)
    if compact_options.sort_by:
        staged = _pack_sorted(rows, layout, compact_options, staging, pieces)
    else:
        staged = _pack_in_order(rows, layout, compact_options, staging, sum(piece.rows for piece in pieces))
    if staged:
        return staged
    with _open_output(staging, layout, 0) as output:
        output.write(empty_table(layout.schema))
    return [output.path]


def _pack_in_order(
    rows: Iterable[tuple[pa.Table, float]],
    layout: Layout,
    compact_options: CompactOptions,
    staging: Staging,
    count: int,
) -> list[str]:
    staged: list[str] = []
    groups = _split_row_groups(rows, layout.row_group_size, compact_options.target_file_bytes / _GROUPS_PER_FILE)
    group_rows = min(count, layout.row_group_size)
    group = next(groups, None)
    while group is not None:
        with _open_output(staging, layout, group_rows) as output:
            while (
                group is not None
                and output.rows < compact_options.max_rows_per_file
                and output.size < compact_options.target_file_bytes
            ):
                room = compact_options.max_rows_per_file - output.rows
                output.write(group.slice(0, room))
                group = group.slice(room) if room < group.num_rows else next(groups, None)
        staged.append(output.path)
    return staged


def _pack_sorted(
    rows: Iterable[tuple[pa.Table, float]],
    layout: Layout,
    compact_options: CompactOptions,
    staging: Staging,
    pieces: Sequence[CompactionFile],
) -> list[str]:
    kept = spool((batch for table, _ in rows for batch in table.to_batches()), layout.schema)
    order = sort_rows(kept, compact_options.sort_by)
    each = compact_options.estimate_rows_per_file(pieces)
    staged = []
    for start in range(0, len(order), each):
        mine = order[start : start + each]
        group_rows = min(len(mine), layout.row_group_size)
        with _open_output(
            staging, layout, group_rows, _make_sorting_columns(layout.schema, compact_options.sort_by)
        ) as output:
            for first in range(0, len(mine), group_rows):
                output.write(take(kept, mine[first : first + group_rows]))
        staged.append(output.path)
    return staged


@dataclass(slots=True)
class _Output:
    """One staged file while it is written."""

    path: str
    stream: BinaryIO
    writer: pq.ParquetWriter
    group_size: int
    rows: int = 0

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return self.stream.tell()

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self.writer.write_table(table, row_group_size=self.group_size)
        self.rows += table.num_rows


@contextmanager
def _open_output(
    staging: Staging, layout: Layout, group_rows: int, sorting: Sequence[pq.SortingColumn] = ()
) -> Iterator[_Output]:
    path = staging.make_path()
    with (
        staging.location.store.create(path) as stream,
        open_new_writer(stream, layout, group_rows, sorting) as writer,
    ):
        yield _Output(path, stream, writer, layout.row_group_size)


def _read_row_groups(
    store: Store, pieces: Iterable[CompactionFile], schema: pa.Schema
) -> Iterator[tuple[pa.Table, float]]:
    """Give all rows, a row group at a time, in a file's schema, with the bytes that a row took up."""
    for piece in pieces:
        with open_parquet(store, piece.path, read_ahead=not store.is_local) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                check_writable(find_unwritable_column(parquet.metadata), piece.path)
                table = read_group(parquet, group, schema.names, piece.path)
                columns = [cast_column(table.column(field.name), field.type, field.name) for field in schema]
                yield pa.table(columns, schema=schema), piece.size / max(1, piece.rows)


def _split_row_groups(rows: Iterable[tuple[pa.Table, float]], max_rows: int, max_bytes: float) -> Iterator[pa.Table]:
    """Lay rows together until they are so many, or took up so many bytes, and go on with those after them."""
    waiting: list[pa.Table] = []
    count, size = 0, 0.0
    for given, each in rows:
        table = given
        while table.num_rows:
            room = max(1, min(max_rows - count, math.ceil((max_bytes - size) / each)))
            waiting.append(table.slice(0, room))
            count, size = count + waiting[-1].num_rows, size + waiting[-1].num_rows * each
            table = table.slice(room)
            if count >= max_rows or size >= max_bytes:
                yield pa.concat_tables(waiting)
                waiting, count, size = [], 0, 0.0
    if waiting:
        yield pa.concat_tables(waiting)
