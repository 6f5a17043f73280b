"""The staged source: its rows as executors wrote them, once, in Arrow files that every later stage reads.

This module runs on executors, and on the driver for a source that is in its memory; it knows nothing of Spark.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import coalesce_batches, empty_table
from merganser.core.model.casts import conform, conform_schema, find_operation_column
from merganser.core.storage.staging import explain_staging_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

# Bytes of rows in one part, which a task may hold in memory.
_STAGED_FILE_BYTES = 64 << 20
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class SourceSchemas:
    """What the columns of a source are on the way, and what they are to become in the target."""

    transport: pa.Schema
    target: pa.Schema

    def select(self, names: Sequence[str]) -> SourceSchemas:
        """Leave columns out."""
        return SourceSchemas(
            pa.schema([self.transport.field(name) for name in names]),
            pa.schema([self.target.field(name) for name in names]),
        )

    def make_empty_table(self) -> pa.Table:
        """Give no rows."""
        return empty_table(conform_schema(self.target))

    def cast_received(self, batch: pa.RecordBatch) -> pa.Table:
        """Give rows that Spark has carried, whose columns have numbers for names, the types that they are to have."""
        columns = [column.cast(kind) for column, kind in zip(batch.columns, self.transport.types, strict=True)]
        return self.conform_batch(pa.record_batch(columns, schema=self.transport))

    def conform_batch(self, batch: pa.RecordBatch) -> pa.Table:
        """Cast rows as `merganser.core.model.casts.conform` does."""
        return conform(pa.Table.from_batches([batch]), self.target)


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What is known of rows without looking at other rows: how many, how many delete, and where values are missing.

    `columns_with_nulls` are the columns that are NULL in a row that does not delete.
    """

    rows: int
    deletes: int
    null_counts: Mapping[str, int]
    nan_counts: Mapping[str, int]
    columns_with_nulls: frozenset[str]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file of source rows, and their bytes in memory."""

    path: str
    size: int
    stats: SourceStats


@dataclass(frozen=True, slots=True)
class StagedSource:
    """All source rows, in order."""

    store: Store
    schemas: SourceSchemas
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(part.stats.rows for part in self.files)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.files)

    def without_files(self) -> StagedSource:
        """Give what a task needs that is told which part to read: many files need not travel to each."""
        return replace(self, files=())

    def read_transport_rows(self) -> pa.Table:
        """Read all rows as they travel."""
        names = self.schemas.transport.names
        batches = (batch for part in self.files for batch in self.read_batches(part, names))
        return pa.Table.from_batches(batches, self.schemas.transport)

    def read_table(self, names: Iterable[str] | None = None) -> pa.Table:
        """Read some columns of all rows, cast to those of the target."""
        shape = self.schemas if names is None else self.schemas.select(list(names))
        tables = [
            shape.conform_batch(batch)
            for part in self.files
            for batch in self.read_batches(part, shape.transport.names)
        ]
        return pa.concat_tables(tables) if tables else shape.make_empty_table()

    def read_batches(self, staged_file: StagedFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns of one part."""
        at = [self.schemas.transport.names.index(name) for name in names]
        with self.store.open_input(staged_file.path) as stream:
            reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=at))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).select(list(names))


def write_staged_files(
    batches: Iterable[pa.RecordBatch], schemas: SourceSchemas, staging: Staging | None
) -> Iterator[StagedFile]:
    """Check that rows fit the target, and keep them in files of the staging folder, if there is one."""
    coming = coalesce_batches((batch for batch in batches if batch.num_rows), schemas.transport)
    operation = find_operation_column(schemas.target)
    for first in coming:
        profiles: list[SourceStats] = []
        if staging is None:
            yield StagedFile("", 0, _compute_stats(schemas.conform_batch(first), operation))
            continue
        path, size = staging.make_path(), 0
        with ExitStack() as opened:
            with explain_staging_errors(staging):
                stream = opened.enter_context(staging.location.store.create(path))
                writer = opened.enter_context(pa.ipc.new_file(stream, schemas.transport, options=_IPC_OPTIONS))
            # What fails while rows come is the source's failure, not the staging folder's.
            for batch in chain([first], coming):
                profiles.append(_compute_stats(schemas.conform_batch(batch), operation))
                with explain_staging_errors(staging):
                    writer.write_batch(batch)
                size += batch.nbytes
                if size >= _STAGED_FILE_BYTES:
                    break
            with explain_staging_errors(staging):
                opened.close()
        yield StagedFile(path, size, merge_stats(profiles))


def _compute_stats(table: pa.Table, operation: str | None) -> SourceStats:
    lasting, deletes = table, 0
    if operation is not None:
        lasting = table.filter(pc.invert(table.column(operation)))
        deletes = table.num_rows - lasting.num_rows
    lacking = frozenset(name for name in table.column_names if lasting.column(name).null_count)
    nulls = {name: table.column(name).null_count for name in table.column_names}
    nans = {
        field.name: pc.sum(pc.is_nan(table.column(field.name))).as_py() or 0
        for field in table.schema
        if pa.types.is_floating(field.type)
    }
    return SourceStats(table.num_rows, deletes, nulls, nans, lacking)


def merge_stats(stats: Iterable[SourceStats]) -> SourceStats:
    """Add up what is known of rows."""
    rows = deletes = 0
    nulls: dict[str, int] = {}
    nans: dict[str, int] = {}
    lacking: frozenset[str] = frozenset()
    for profile in stats:
        rows, deletes, lacking = rows + profile.rows, deletes + profile.deletes, lacking | profile.columns_with_nulls
        for name, count in profile.null_counts.items():
            nulls[name] = nulls.get(name, 0) + count
        for name, count in profile.nan_counts.items():
            nans[name] = nans.get(name, 0) + count
    return SourceStats(rows, deletes, nulls, nans, lacking)
