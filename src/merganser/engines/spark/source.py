"""Sources: a DataFrame, files, or anything Arrow, and how executors get at its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame as AnyDataFrame

from merganser.core.columnar.take import coalesce_batches, split_batches
from merganser.core.sources.source import stream_source
from merganser.engines.spark.input_splits import InputSplits, cast_to_transport, open_files
from merganser.engines.spark.jobs import (
    RESULT_SCHEMA,
    collect_results,
    decode_tasks,
    encode_result,
    make_task_frame,
    run_tasks,
    tag_errors,
)
from merganser.engines.spark.staged_source import (
    SourceSchemas,
    SourceStats,
    StagedFile,
    StagedSource,
    merge_stats,
    write_staged_files,
)
from merganser.engines.spark.types import to_arrow_schema, to_transport_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.storage.staging import Staging

    Batches = Iterator[pa.RecordBatch]
    # A batch of source rows, with the number of its part and that of its first row there.
    NumberedBatches = Iterator[tuple[int, int, pa.RecordBatch]]
    ConformedTables = Iterator[tuple[int, int, pa.Table]]


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source as it came, not looked at yet."""

    schema: pa.Schema
    rows: DataFrame | InputSplits | pa.Table | pa.RecordBatchReader

    @property
    def ordered(self) -> bool:
        """Whether there is a first and a last row."""
        return not isinstance(self.rows, AnyDataFrame)


@dataclass(frozen=True, slots=True)
class Source:
    """A source whose rows fit the target.

    `frame` with `reader` gives its rows on executors; `make_source` are the files they are in, unless nothing may be
    written.
    """

    schemas: SourceSchemas
    stats: SourceStats
    frame: DataFrame
    reader: _Reader
    staged: StagedSource | None
    staging: Staging | None

    def select(self, names: Sequence[str]) -> tuple[DataFrame, Callable[[Batches], ConformedTables]]:
        """Give some columns as they are to be in the target."""
        at = [self.schemas.transport.names.index(name) for name in names]
        frame, reader = self.reader.select(self.frame, at)
        return frame, _ConformingReader(reader, self.schemas.select(names))


def open_source(spark: SparkSession, source: Any) -> OpenedSource:
    """Take a source; files are left to the executors to read."""
    if isinstance(source, AnyDataFrame):
        return OpenedSource(to_arrow_schema(source), source)
    if isinstance(source, str | os.PathLike):
        portions = open_files(spark, os.fspath(source))
        if portions is not None:
            return OpenedSource(portions.schema, portions)
    rows = stream_source(source)
    return OpenedSource(rows.schema, rows)


def stage(spark: SparkSession, given: OpenedSource, target_schema: pa.Schema, staging: Staging | None) -> Source:
    """Evaluate a source once: its rows are checked against the target, and written to the staging folder (X3)."""
    # What the merge does not take from the source need not be carried.
    needed = [at for at, field in enumerate(given.schema) if field.name in target_schema.names]
    shape = SourceSchemas(to_transport_schema(pa.schema([given.schema.field(at) for at in needed])), target_schema)
    if isinstance(given.rows, AnyDataFrame):
        # Names that differ by case only, or hold a dot, mean nothing to Spark but trouble.
        plain = given.rows.toDF(*(f"c{at}" for at in range(len(given.schema))))
        return stage_frame(spark, plain.select(*(f"c{at}" for at in needed)), shape, staging)
    if isinstance(given.rows, InputSplits):
        return _stage_splits(spark, given.rows, shape, staging)
    pieces = _split_driver_rows(given.rows, shape.transport)
    if staging is None:
        blobs = []
        profiles = []
        for piece in pieces:
            profiles += [part.stats for part in write_staged_files([piece], shape, None)]
            blobs.append(_encode_batch(piece))
        return Source(shape, merge_stats(profiles), make_task_frame(spark, blobs), _BlobReader(), None, None)
    files = tuple(write_staged_files(pieces, shape, staging))
    return make_source(spark, StagedSource(staging.location.store, shape, files), staging)


def _stage_splits(spark: SparkSession, splits: InputSplits, schemas: SourceSchemas, staging: Staging | None) -> Source:
    found = run_tasks(spark, partial(_stage_split, splits.read, schemas, staging), splits.splits)
    files = tuple(chain.from_iterable(found))
    if staging is not None:
        return make_source(spark, StagedSource(staging.location.store, schemas, files), staging)
    profile = merge_stats(part.stats for part in files)
    frame = make_task_frame(spark, splits.splits)
    return Source(schemas, profile, frame, _SplitReader(splits.read, schemas.transport), None, None)


def _stage_split(
    read: Callable[[Any], Batches], schemas: SourceSchemas, staging: Staging | None, split: Any
) -> list[StagedFile]:
    return list(write_staged_files(cast_to_transport(read(split), schemas.transport), schemas, staging))


def make_source(spark: SparkSession, staged_source: StagedSource, staging: Staging) -> Source:
    """Give the source that is in files."""
    frame = make_task_frame(spark, staged_source.files)
    profile = merge_stats(part.stats for part in staged_source.files)
    return Source(
        staged_source.schemas, profile, frame, _StagedFileReader(staged_source.without_files()), staged_source, staging
    )


def stage_frame(spark: SparkSession, frame: DataFrame, schemas: SourceSchemas, staging: Staging | None) -> Source:
    """Evaluate a DataFrame once."""
    plain = frame.toDF(*(f"c{at}" for at in range(len(schemas.transport))))
    if staging is None:
        plain = plain.persist()
    found: list[StagedFile] = collect_results(
        plain.mapInArrow(tag_errors(_stage_rows, schemas, staging), RESULT_SCHEMA)
    )
    if staging is not None:
        return make_source(spark, StagedSource(staging.location.store, schemas, tuple(found)), staging)
    return Source(
        schemas, merge_stats(part.stats for part in found), plain, _FrameReader(schemas.transport), None, None
    )


def _stage_rows(schemas: SourceSchemas, staging: Staging | None, batches: Batches) -> Batches:
    for part in write_staged_files(_cast_frame_batches(batches, schemas.transport), schemas, staging):
        yield encode_result(_get_partition_id(), part)


def _get_partition_id() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _cast_frame_batches(batches: Batches, transport_schema: pa.Schema) -> Batches:
    """Give batches of a DataFrame the types they have here: no zone of a session."""
    for batch in batches:
        columns = [column.cast(kind) for column, kind in zip(batch.columns, transport_schema.types, strict=True)]
        yield pa.record_batch(columns, schema=transport_schema)


def _split_driver_rows(rows: pa.Table | pa.RecordBatchReader, transport_schema: pa.Schema) -> Batches:
    """Cut what is on the driver in pieces of the carried types."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return cast_to_transport(coalesce_batches(split_batches(batches), rows.schema), transport_schema)


def _encode_batch(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


class _Reader(Protocol):
    """How the rows of a frame are found on an executor."""

    def __call__(self, batches: Batches) -> NumberedBatches: ...

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        """Read some columns only."""


@dataclass(frozen=True, slots=True)
class _ConformingReader:
    reader: _Reader
    schemas: SourceSchemas

    def __call__(self, batches: Batches) -> ConformedTables:
        for part, start, batch in self.reader(batches):
            yield part, start, self.schemas.conform_batch(batch)


@dataclass(frozen=True, slots=True)
class _BlobReader:
    """Rows that came with the frame, packed."""

    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _BlobReader(columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        for number, blob in decode_tasks(batches):
            start = 0
            for batch in pa.ipc.open_stream(blob):
                yield number, start, batch if self.columns is None else batch.select(list(self.columns))
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _SplitReader:
    """Rows of files that are not ours; they are read again by every stage, where nothing may be written."""

    read: Callable[[Any], Batches]
    transport_schema: pa.Schema
    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _SplitReader(self.read, self.transport_schema, columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        for number, order in decode_tasks(batches):
            start = 0
            for batch in cast_to_transport(self.read(order), self.transport_schema):
                yield number, start, batch if self.columns is None else batch.select(list(self.columns))
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _StagedFileReader:
    """Rows in files that the frame names."""

    staged_source: StagedSource
    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _StagedFileReader(self.staged_source, columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        names = self.staged_source.schemas.transport.names
        wanted = names if self.columns is None else [names[at] for at in self.columns]
        for number, part in decode_tasks(batches):
            start = 0
            for batch in self.staged_source.read_batches(part, wanted):
                yield number, start, batch
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _FrameReader:
    """Rows of the frame itself."""

    transport_schema: pa.Schema

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        wanted = frame.select(*(f"c{at}" for at in columns))
        return wanted, _FrameReader(pa.schema([self.transport_schema.field(at) for at in columns]))

    def __call__(self, batches: Batches) -> NumberedBatches:
        start = 0
        for batch in _cast_frame_batches(batches, self.transport_schema):
            yield _get_partition_id(), start, batch
            start += batch.num_rows
