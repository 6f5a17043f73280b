"""Sources: a DataFrame, files, or anything Arrow, and how executors read its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame as AnyDataFrame

from merganser.core.columnar.take import coalesce_batches, split_batches
from merganser.core.sources.source import stream_source
from merganser.engines.spark import jobs
from merganser.engines.spark.input_splits import InputSplits, cast_to_transport, open_files
from merganser.engines.spark.row_files import SelectedRows
from merganser.engines.spark.staged_source import (
    SourceSchemas,
    StagedFile,
    StagedSource,
    cast_batch,
    compute_stats,
    make_unknown_stats,
    merge_stats,
    write_staged_files,
)
from merganser.engines.spark.types import to_arrow_schema, to_transport_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.model.engine import ConformedSource, SourceSpec
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.engine import SparkEngine
    from merganser.engines.spark.staged_source import SourceStats

    Batches = Iterator[pa.RecordBatch]
    # A batch of source rows, the number of its staged file, and that of its first row there.
    NumberedBatches = Iterator[tuple[int, int, pa.RecordBatch]]
    ConformedTables = Iterator[tuple[int, int, pa.Table]]


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """`merganser.core.model.engine.OpenedSource` of rows that are anywhere."""

    engine: SparkEngine
    schema: pa.Schema
    rows: DataFrame | InputSplits | SelectedRows | pa.Table | pa.RecordBatchReader

    @property
    def is_ordered(self) -> bool:
        # Spark decides which task stages which rows.
        return not isinstance(self.rows, AnyDataFrame | SelectedRows)

    def conform(self, spec: SourceSpec) -> ConformedSource:
        return self.engine.choose_mode(stage(self.engine.spark, self, spec), spec)


@dataclass(frozen=True, slots=True)
class Source:
    """A source that fits the target: `reader` finds its rows in `frame`; `staged` is None if nothing may be written."""

    schemas: SourceSchemas
    stats: SourceStats
    frame: DataFrame
    reader: _Reader
    staged: StagedSource | None = None

    def select(self, names: Sequence[str]) -> tuple[DataFrame, Callable[[Batches], ConformedTables]]:
        at = [self.schemas.transport.names.index(name) for name in names]
        frame, reader = self.reader.select(self.frame, at)
        return frame, _ConformingReader(reader, self.schemas.select(names))


def open_source(engine: SparkEngine, source: Any) -> OpenedSource:
    """Open a source; files are left to the executors to read."""
    if isinstance(source, AnyDataFrame):
        return OpenedSource(engine, to_arrow_schema(source), source)
    if isinstance(source, SelectedRows):
        return OpenedSource(engine, source.schema, source)
    splits = open_files(engine.spark, os.fspath(source)) if isinstance(source, str | os.PathLike) else None
    rows = stream_source(source) if splits is None else splits
    return OpenedSource(engine, rows.schema, rows)


def stage(spark: SparkSession, opened: OpenedSource, spec: SourceSpec) -> Source:
    """Evaluate a source once: its rows are checked against the target, and written to the staging folder (X3)."""
    # Columns that the merge does not use are not transported.
    schema, staging = opened.schema, spec.staging
    needed = [at for at, field in enumerate(schema) if field.name in spec.schema.names]
    schemas = SourceSchemas(to_transport_schema(pa.schema([schema.field(at) for at in needed])), spec.schema)
    if isinstance(opened.rows, AnyDataFrame):
        # Spark cannot resolve names that differ by case only, or contain a dot.
        plain = opened.rows.toDF(*(f"c{at}" for at in range(len(schema))))
        return stage_frame(spark, plain.select(*(f"c{at}" for at in needed)), schemas, staging)
    if isinstance(opened.rows, SelectedRows):
        return _stage_row_files(spark, opened.rows, schemas, staging)
    if isinstance(opened.rows, InputSplits):
        return _stage_splits(spark, opened.rows, schemas, staging)
    batches = _split_driver_rows(opened.rows, schemas.transport)
    if staging is not None:
        return make_source(spark, StagedSource(staging, schemas, tuple(write_staged_files(batches, schemas, staging))))
    blobs, stats = [], []
    for batch in batches:
        stats += [file.stats for file in write_staged_files([batch], schemas, None)]
        blobs.append(_encode_batch(batch))
    return Source(schemas, merge_stats(stats), jobs.make_task_frame(spark, blobs), _BlobReader())


def _stage_row_files(
    spark: SparkSession, rows: SelectedRows, schemas: SourceSchemas, staging: Staging | None
) -> Source:
    """Use rows as they are in their files; their statistics are not known yet."""
    files = rows.row_files.files
    if staging is None:
        paths = [file.path for file in files]
        return _stage_splits(spark, InputSplits(rows.schema, paths, rows.without_files().read_batches), schemas, None)
    listed = tuple(StagedFile(file.path, rows.measure(file), make_unknown_stats(file.rows)) for file in files)
    return make_source(spark, StagedSource(staging, schemas, listed, rows))


def find_stats(spark: SparkSession, staged: StagedSource, stats: SourceStats) -> SourceStats:
    """Find the statistics of a source, by reading its rows if they are not known."""
    if staged.row_files is None:
        return stats
    return merge_stats(
        jobs.run_tasks(spark, partial(compute_stats, staged.without_files()), staged.files, "compute statistics")
    )


def _stage_splits(spark: SparkSession, splits: InputSplits, schemas: SourceSchemas, staging: Staging | None) -> Source:
    found = jobs.run_tasks(spark, partial(_stage_split, splits.read, schemas, staging), splits.splits, "stage rows")
    files = tuple(chain.from_iterable(found))
    if staging is not None:
        return make_source(spark, StagedSource(staging, schemas, files))
    stats = merge_stats(file.stats for file in files)
    frame = jobs.make_task_frame(spark, splits.splits)
    return Source(schemas, stats, frame, _SplitReader(splits.read, schemas.transport))


def _stage_split(
    read: Callable[[Any], Batches], schemas: SourceSchemas, staging: Staging | None, split: Any
) -> list[StagedFile]:
    return list(write_staged_files(cast_to_transport(read(split), schemas.transport), schemas, staging))


def make_source(spark: SparkSession, staged: StagedSource) -> Source:
    """Make the source whose rows are staged."""
    frame = jobs.make_task_frame(spark, staged.files)
    stats = merge_stats(file.stats for file in staged.files)
    return Source(staged.schemas, stats, frame, _StagedFileReader(staged.without_files()), staged)


def stage_frame(spark: SparkSession, frame: DataFrame, schemas: SourceSchemas, staging: Staging | None) -> Source:
    """Evaluate a DataFrame once."""
    plain = frame.toDF(*(f"c{at}" for at in range(len(schemas.transport))))
    if staging is None:
        plain = plain.persist()
    work = jobs.tag_errors(_stage_rows, schemas, staging)
    found: list[StagedFile] = jobs.collect_results(plain.mapInArrow(work, jobs.RESULT_SCHEMA), "stage rows")
    if staging is not None:
        return make_source(spark, StagedSource(staging, schemas, tuple(found)))
    return Source(schemas, merge_stats(file.stats for file in found), plain, _FrameReader(schemas.transport))


def _stage_rows(schemas: SourceSchemas, staging: Staging | None, batches: Batches) -> Batches:
    for file in write_staged_files(map(partial(cast_batch, schema=schemas.transport), batches), schemas, staging):
        yield jobs.encode_result(jobs.get_partition_id(), file)


def _split_driver_rows(rows: pa.Table | pa.RecordBatchReader, transport_schema: pa.Schema) -> Batches:
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return cast_to_transport(coalesce_batches(split_batches(batches), rows.schema), transport_schema)


def _encode_batch(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _number_batches(number: int, batches: Batches, columns: Sequence[int] | None = None) -> NumberedBatches:
    start = 0
    for batch in batches:
        yield number, start, batch if columns is None else batch.select(list(columns))
        start += batch.num_rows


class _Reader(Protocol):
    """How a task finds the rows of a frame."""

    def __call__(self, batches: Batches) -> NumberedBatches: ...

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        """Read some columns only."""


@dataclass(frozen=True, slots=True)
class _ConformingReader:
    reader: _Reader
    schemas: SourceSchemas

    def __call__(self, batches: Batches) -> ConformedTables:
        for file, start, batch in self.reader(batches):
            yield file, start, self.schemas.conform_batch(batch)


@dataclass(frozen=True, slots=True)
class _BlobReader:
    """Rows that are encoded in the frame."""

    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _BlobReader(columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        for number, blob in jobs.decode_tasks(batches):
            yield from _number_batches(number, pa.ipc.open_stream(blob), self.columns)


@dataclass(frozen=True, slots=True)
class _SplitReader:
    """Rows of input files, which every stage reads again if nothing may be written."""

    read: Callable[[Any], Batches]
    transport_schema: pa.Schema
    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _SplitReader(self.read, self.transport_schema, columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        for number, split in jobs.decode_tasks(batches):
            yield from _number_batches(number, cast_to_transport(self.read(split), self.transport_schema), self.columns)


@dataclass(frozen=True, slots=True)
class _StagedFileReader:
    """Rows in staged files that the frame lists."""

    staged_source: StagedSource
    columns: Sequence[int] | None = None

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _StagedFileReader(self.staged_source, columns)

    def __call__(self, batches: Batches) -> NumberedBatches:
        names = self.staged_source.schemas.transport.names
        wanted = names if self.columns is None else [names[at] for at in self.columns]
        for number, file in jobs.decode_tasks(batches):
            yield from _number_batches(number, self.staged_source.read_batches(file, wanted))


@dataclass(frozen=True, slots=True)
class _FrameReader:
    """Rows of the frame itself."""

    transport_schema: pa.Schema

    def select(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        wanted = frame.select(*(f"c{at}" for at in columns))
        return wanted, _FrameReader(pa.schema([self.transport_schema.field(at) for at in columns]))

    def __call__(self, batches: Batches) -> NumberedBatches:
        yield from _number_batches(
            jobs.get_partition_id(), map(partial(cast_batch, schema=self.transport_schema), batches)
        )
