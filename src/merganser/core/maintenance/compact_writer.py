"""Writing the files of a compaction: row group by row group, or all rows sorted.

A sorted file declares its order in the footer, so that it is not sorted again.
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
from merganser.core.model.casts import cast_column
from merganser.core.model.keys import sort_rows
from merganser.core.model.validation import check_writable
from merganser.core.parquet.footer import count_leaves, find_unwritable_column, read_footer, read_key_bounds
from merganser.core.rows.append import open_new_writer
from merganser.core.rows.key_scan import open_parquet, read_group
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.core.model.engine import Layout
    from merganser.core.model.options import Options
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

# An unsorted file has at least so many row groups.
_GROUPS_PER_FILE = 4


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The options of `compact`, beside the `common` ones; `compression` None keeps that of the replaced files."""

    common: Options
    target_file_bytes: int
    sort_by: Sequence[str]
    compression: str | None = None

    def __post_init__(self) -> None:
        size = self.target_file_bytes
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidArgumentError(f"target_file_bytes must be a positive integer, not {size!r}.")

    @property
    def max_rows_per_file(self) -> int:
        """The most rows in a new file."""
        return self.common.max_rows_per_file

    def is_small(self, file: CompactFile) -> bool:
        """Check whether a file has room for more rows."""
        return file.size < self.target_file_bytes and file.rows < self.max_rows_per_file

    def saves_files(self, small: Sequence[CompactFile]) -> bool:
        """Check whether fewer files could hold the rows of these."""
        size, rows = sum(file.size for file in small), sum(file.rows for file in small)
        fewest = max(1, math.ceil(size / self.target_file_bytes), math.ceil(rows / self.max_rows_per_file))
        return fewest < len(small)

    def estimate_rows_per_file(self, files: Sequence[CompactFile]) -> int:
        """Estimate how many rows fill a file, from their size now."""
        size, rows = sum(file.size for file in files), sum(file.rows for file in files)
        return max(1, min(self.max_rows_per_file, rows * self.target_file_bytes // max(1, size)))


@dataclass(frozen=True, slots=True)
class CompactFile:
    """A file to compact, of the dataset or staged; `lower_bound` is the canonical one of the first `sort_by` column."""

    path: str
    size: int
    rows: int
    is_sorted: bool = True
    lower_bound: Any = None

    @classmethod
    def from_footer(cls, store: Store, path: str, display: str, sort_by: Sequence[str]) -> CompactFile:
        """Describe a file by its footer."""
        footer = read_footer(store, path, display)
        rows = footer.metadata.num_rows
        if not sort_by:
            return cls(path, footer.size, rows)
        data_type = footer.schema.field(sort_by[0]).type
        bounds = [one for one in read_key_bounds(footer, sort_by[0], data_type) if one is not None]
        # A footer declares the order within a row group; bounds show the order of row groups.
        is_rising = all(before[1] <= after[0] for before, after in pairwise(bounds))
        is_sorted = is_rising and _has_sorting_columns(footer, sort_by)
        return cls(path, footer.size, rows, is_sorted, min((low for low, _ in bounds), default=None))


def sort_by_bounds(files: Sequence[CompactFile]) -> list[CompactFile]:
    """Sort files by their lower bounds; those without one come last."""
    known = [file for file in files if file.lower_bound is not None]
    others = [file for file in files if file.lower_bound is None]
    ordered = sorted(known, key=lambda file: (file.lower_bound, file.size, file.rows))
    return [*ordered, *sorted(others, key=lambda file: (file.size, file.rows))]


def _has_sorting_columns(footer: Footer, sort_by: Sequence[str]) -> bool:
    metadata = footer.metadata
    expected = tuple(_make_sorting_columns(footer.schema, sort_by))
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    return all(group.sorting_columns[: len(expected)] == expected for group in groups if group.num_rows)


def _make_sorting_columns(schema: pa.Schema, sort_by: Sequence[str]) -> list[pq.SortingColumn]:
    """Declare an ascending order, NULL first; Parquet numbers the leaf columns."""
    leaves = [sum(count_leaves(one.type) for one in list(schema)[: schema.get_field_index(name)]) for name in sort_by]
    return [pq.SortingColumn(leaf, descending=False, nulls_first=True) for leaf in leaves]


def pack(files: Sequence[CompactFile], layout: Layout, options: CompactOptions, staging: Staging) -> list[str]:
    """Stage the rows of files in new ones, in order or sorted; without rows, one file keeps the schema."""
    write = _pack_sorted if options.sort_by else _pack_as_is
    staged = write(files, layout, options, staging)
    if staged:
        return staged
    with _open_output(staging, layout, 0) as output:
        output.write(empty_table(layout.schema))
    return [output.path]


def _pack_as_is(files: Sequence[CompactFile], layout: Layout, options: CompactOptions, staging: Staging) -> list[str]:
    staged: list[str] = []
    rows = _read_row_groups(staging.location.store, files, layout.schema)
    groups = _split_row_groups(rows, layout.row_group_size, options.target_file_bytes / _GROUPS_PER_FILE)
    group_rows = min(sum(file.rows for file in files), layout.row_group_size)
    group = next(groups, None)
    while group is not None:
        with _open_output(staging, layout, group_rows) as output:
            while (
                group is not None
                and output.rows < options.max_rows_per_file
                and output.size < options.target_file_bytes
            ):
                room = options.max_rows_per_file - output.rows
                output.write(group.slice(0, room))
                group = group.slice(room) if room < group.num_rows else next(groups, None)
        staged.append(output.path)
    return staged


def _pack_sorted(files: Sequence[CompactFile], layout: Layout, options: CompactOptions, staging: Staging) -> list[str]:
    rows = _read_row_groups(staging.location.store, files, layout.schema)
    spooled = spool((batch for table, _ in rows for batch in table.to_batches()), layout.schema)
    order = sort_rows(spooled, options.sort_by)
    sorting = _make_sorting_columns(layout.schema, options.sort_by)
    file_rows = options.estimate_rows_per_file(files)
    staged = []
    for start in range(0, len(order), file_rows):
        numbers = order[start : start + file_rows]
        group_rows = min(len(numbers), layout.row_group_size)
        with _open_output(staging, layout, group_rows, sorting) as output:
            for first in range(0, len(numbers), group_rows):
                output.write(take(spooled, numbers[first : first + group_rows]))
        staged.append(output.path)
    return staged


@dataclass(slots=True)
class _Output:
    """A staged file that is being written."""

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
    with staging.location.store.create(path) as stream, open_new_writer(stream, layout, group_rows, sorting) as writer:
        yield _Output(path, stream, writer, layout.row_group_size)


def _read_row_groups(store: Store, files: Iterable[CompactFile], schema: pa.Schema) -> Iterator[tuple[pa.Table, float]]:
    """Read all row groups, cast to a schema, each with its mean bytes per row in the file."""
    for file in files:
        with open_parquet(store, file.path, read_ahead=not store.is_local) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                check_writable(find_unwritable_column(parquet.metadata), file.path)
                table = read_group(parquet, group, schema.names, file.path)
                columns = [cast_column(table.column(field.name), field.type, field.name) for field in schema]
                yield pa.table(columns, schema=schema), file.size / max(1, file.rows)


def _split_row_groups(rows: Iterable[tuple[pa.Table, float]], max_rows: int, max_bytes: float) -> Iterator[pa.Table]:
    """Combine and split tables into row groups of `max_rows`, or of rows that took `max_bytes` before."""
    pending: list[pa.Table] = []
    count, size = 0, 0.0
    for found, row_bytes in rows:
        table = found
        while table.num_rows:
            room = max(1, min(max_rows - count, math.ceil((max_bytes - size) / row_bytes)))
            pending.append(table.slice(0, room))
            count, size = count + pending[-1].num_rows, size + pending[-1].num_rows * row_bytes
            table = table.slice(room)
            if count >= max_rows or size >= max_bytes:
                yield pa.concat_tables(pending)
                pending, count, size = [], 0, 0.0
    if pending:
        yield pa.concat_tables(pending)
