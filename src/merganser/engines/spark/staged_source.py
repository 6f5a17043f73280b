"""The staged source: its rows as executors wrote them, once, in Arrow files that every later stage reads.

This module runs on executors, and on the driver for a source that is in its memory; it knows nothing of Spark.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.arrow_versions import cast
from merganser.core.columnar.take import align_chunks, coalesce_batches, empty_table
from merganser.core.model.casts import conform, conform_schema, find_operation_column
from merganser.core.model.row_clauses import INSERT_COLUMN
from merganser.core.storage.staging import explain_staging_errors
from merganser.engines.spark.row_files import FILE_BYTES, IPC_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from merganser.core.model.engine import SourceFacts
    from merganser.core.rows.table_source import KeyFacts
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.row_files import SelectedRows


@dataclass(frozen=True, slots=True)
class SourceSchemas:
    """The columns of a source as they are transported, and as the target has them."""

    transport: pa.Schema
    target: pa.Schema

    def select(self, names: Sequence[str]) -> SourceSchemas:
        schemas = (self.transport, self.target)
        return SourceSchemas(*(pa.schema([schema.field(name) for name in names]) for schema in schemas))

    def make_empty_table(self) -> pa.Table:
        return empty_table(conform_schema(self.target))

    def conform_batch(self, batch: pa.RecordBatch) -> pa.Table:
        return conform(pa.Table.from_batches([batch]), self.target)


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What is known about rows without comparing them; `columns_with_nulls` have NULL in a row that does not delete.

    Of the `rows`, those that are `excluded` are not inserted.
    """

    rows: int
    excluded: int
    null_counts: Mapping[str, int]
    nan_counts: Mapping[str, int]
    columns_with_nulls: frozenset[str]

    def to_source_facts(self, facts: KeyFacts, keys: Sequence[str]) -> SourceFacts:
        nans = {key: self.nan_counts.get(key, 0) for key in keys}
        missing = {key: self.null_counts.get(key, 0) + count for key, count in nans.items()}
        return facts.to_source_facts(
            rows=self.rows,
            excluded_rows=self.excluded,
            null_keys={key: count for key, count in missing.items() if count},
            nan_keys={key: count for key, count in nans.items() if count},
            columns_with_nulls=self.columns_with_nulls,
        )


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file of source rows, and their bytes in memory."""

    path: str
    size: int
    stats: SourceStats


def make_unknown_stats(rows: int) -> SourceStats:
    """Make the statistics of rows of which only the number is known."""
    return SourceStats(rows, 0, {}, {}, frozenset())


@dataclass(frozen=True, slots=True)
class SourceReader:
    """Reads the rows of a source file, wherever they are; a file is one input of a task, or several.

    `read` reads some columns of an input as they are transported; without any column there would be no rows.
    """

    schemas: SourceSchemas
    read: Callable[[Any, Sequence[str]], Iterator[pa.RecordBatch]]

    def read_batches(
        self, inputs: Iterable[tuple[int, Any]], names: Sequence[str]
    ) -> Iterator[tuple[int, int, pa.Table]]:
        """Read some columns of the inputs of files; a batch has the number of its file and of its first row there."""
        schemas = self.schemas.select(list(names) or self.schemas.transport.names[:1])
        last, start = -1, 0
        for number, one in inputs:
            start = start if number == last else 0
            last = number
            for batch in self.read(one, schemas.transport.names):
                yield number, start, schemas.conform_batch(batch)
                start += batch.num_rows

    def read_table(self, inputs: Sequence[Any], names: Sequence[str]) -> pa.Table:
        """Read some columns of one file."""
        tables = [table for _, _, table in self.read_batches(((0, one) for one in inputs), names)]
        return align_chunks(pa.concat_tables(tables)) if tables else self.schemas.select(names).make_empty_table()

    def read_transport_table(self, inputs: Sequence[Any]) -> pa.Table:
        """Read one file as it is transported."""
        transport = self.schemas.transport
        batches = [batch for one in inputs for batch in self.read(one, transport.names)]
        return align_chunks(pa.Table.from_batches(batches, transport))


@dataclass(frozen=True, slots=True)
class StagedSource:
    """All source rows, in order; those of `row_files` were staged before, for several merges."""

    staging: Staging
    schemas: SourceSchemas
    files: tuple[StagedFile, ...]
    row_files: SelectedRows | None = None

    @property
    def rows(self) -> int:
        return sum(file.stats.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def without_files(self) -> StagedSource:
        """Leave out the files, for tasks that get theirs as input: long lists need not travel to each."""
        return replace(self, files=(), row_files=self.row_files and self.row_files.without_files())

    def with_files(self, files: Iterable[StagedFile]) -> StagedSource:
        """Replace the rows by those of other staged files."""
        return replace(self, files=tuple(files), row_files=None)

    def read_transport_rows(self) -> pa.Table:
        names = self.schemas.transport.names
        batches = (batch for file in self.files for batch in self.read_batches(file, names))
        return pa.Table.from_batches(batches, self.schemas.transport)

    def read_table(self, names: Iterable[str] | None = None) -> pa.Table:
        schemas = self.schemas if names is None else self.schemas.select(list(names))
        tables = [
            schemas.conform_batch(batch)
            for file in self.files
            for batch in self.read_batches(file, schemas.transport.names)
        ]
        return pa.concat_tables(tables) if tables else schemas.make_empty_table()

    def read_batches(self, staged_file: StagedFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.row_files is not None:
            yield from self.row_files.read_batches(staged_file.path, names)
            return
        at = [self.schemas.transport.names.index(name) for name in names]
        with self.staging.location.store.open_input(staged_file.path) as stream:
            reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=at))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).select(list(names))


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast the columns of a batch by position: those of a DataFrame have the time zone of the session."""
    pairs = zip(batch.columns, schema.types, strict=True)
    return pa.record_batch([cast(column, data_type) for column, data_type in pairs], schema=schema)


def write_staged_files(
    batches: Iterable[pa.RecordBatch], schemas: SourceSchemas, staging: Staging
) -> Iterator[StagedFile]:
    """Check that rows fit the target, and write them to files of the staging folder."""
    coming = coalesce_batches((batch for batch in batches if batch.num_rows), schemas.transport)
    for first in coming:
        stats: list[SourceStats] = []
        path, size = staging.make_path(), 0
        with ExitStack() as opened:
            with explain_staging_errors(staging):
                stream = opened.enter_context(staging.location.store.create(path))
                writer = opened.enter_context(pa.ipc.new_file(stream, schemas.transport, options=IPC_OPTIONS))
            # A failure while rows arrive is the source's, not the staging folder's.
            for batch in chain([first], coming):
                stats.append(compute_stats(schemas.conform_batch(batch), schemas.target))
                with explain_staging_errors(staging):
                    writer.write_batch(batch)
                size += batch.nbytes
                if size >= FILE_BYTES:
                    break
            with explain_staging_errors(staging):
                opened.close()
        yield StagedFile(path, size, merge_stats(stats))


def compute_file_stats(staged: StagedSource, file: StagedFile) -> SourceStats:
    """Compute the statistics of a file, and check that its rows fit the target."""
    schemas = staged.schemas
    batches = staged.read_batches(file, schemas.transport.names)
    return merge_stats(compute_stats(schemas.conform_batch(batch), schemas.target) for batch in batches)


def compute_stats(table: pa.Table, target: pa.Schema) -> SourceStats:
    """Compute the statistics of rows in the columns of the target."""
    operation = find_operation_column(target)
    remaining, excluded = table, 0
    if operation is not None:
        remaining = table.filter(pc.invert(table.column(operation)))
        excluded = table.num_rows - remaining.num_rows
    elif INSERT_COLUMN in table.column_names:
        excluded = table.num_rows - (pc.sum(table.column(INSERT_COLUMN)).as_py() or 0)
    with_nulls = frozenset(name for name in table.column_names if remaining.column(name).null_count)
    nulls = {name: table.column(name).null_count for name in table.column_names}
    nans = {
        field.name: pc.sum(pc.is_nan(table.column(field.name))).as_py() or 0
        for field in table.schema
        if pa.types.is_floating(field.type)
    }
    return SourceStats(table.num_rows, excluded, nulls, nans, with_nulls)


def merge_stats(stats: Iterable[SourceStats]) -> SourceStats:
    """Add up the statistics of several files."""
    rows = excluded = 0
    nulls: Counter[str] = Counter()
    nans: Counter[str] = Counter()
    with_nulls: frozenset[str] = frozenset()
    for one in stats:
        rows, excluded, with_nulls = rows + one.rows, excluded + one.excluded, with_nulls | one.columns_with_nulls
        nulls.update(one.null_counts)
        nans.update(one.nan_counts)
    return SourceStats(rows, excluded, nulls, nans, with_nulls)
