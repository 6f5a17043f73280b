"""Sources: a DataFrame, files, or anything Arrow, and how executors read its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame as AnyDataFrame

from merganser.core.columnar.take import coalesce_batches, split_batches
from merganser.core.rows.table_source import derive_rows
from merganser.core.sources.files import FileSource
from merganser.core.sources.source import stream_source
from merganser.engines.spark import jobs
from merganser.engines.spark.exchange import PACKET_SCHEMA, encode_inputs
from merganser.engines.spark.input_splits import InputSplits, cast_to_transport, open_files
from merganser.engines.spark.row_files import SelectedRows
from merganser.engines.spark.staged_source import (
    SourceReader,
    SourceSchemas,
    StagedFile,
    StagedSource,
    cast_batch,
    compute_file_stats,
    make_unknown_stats,
    merge_stats,
    write_staged_files,
)
from merganser.engines.spark.types import to_arrow_schema, to_transport_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.engine import ConformedSource, SourceSpec
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.engine import SparkEngine
    from merganser.engines.spark.staged_source import SourceStats

    Batches = Iterator[pa.RecordBatch]
    Cast = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """`merganser.core.model.engine.OpenedSource` of rows that are anywhere."""

    engine: SparkEngine
    schema: pa.Schema
    rows: DataFrame | InputSplits | SelectedRows | pa.Table | pa.RecordBatchReader
    derived: DerivedColumns | None = None  # computed by the tasks that stage a DataFrame

    @property
    def is_ordered(self) -> bool:
        # Spark decides which task stages which rows.
        return not isinstance(self.rows, AnyDataFrame | SelectedRows)

    @property
    def unique_columns(self) -> Sequence[str]:
        return self.rows.unique_columns if isinstance(self.rows, SelectedRows) else ()

    def derive(self, derived: DerivedColumns) -> OpenedSource:
        rows = self.rows
        if isinstance(rows, AnyDataFrame):
            return OpenedSource(self.engine, derived.schema, rows, derived)
        if isinstance(rows, SelectedRows):
            rows = _to_splits(rows)
        if isinstance(rows, InputSplits):
            read = partial(_read_derived, rows.read, derived)
            return OpenedSource(self.engine, derived.schema, InputSplits(derived.schema, rows.splits, read))
        return OpenedSource(self.engine, derived.schema, derive_rows(rows, derived))

    def conform(self, spec: SourceSpec) -> ConformedSource:
        return self.engine.choose_mode(stage(self.engine.spark, self, spec), spec)


@dataclass(frozen=True, slots=True)
class Source:
    """A source that fits the target: the rows of numbered files, whose inputs `frame` has as packets.

    `count` is the number of files and `stats` the statistics of their rows, None if not known yet. `staged` is None if
    nothing may be written.
    """

    reader: SourceReader
    frame: DataFrame
    count: int | None
    stats: SourceStats | None
    staged: StagedSource | None = None


def open_source(engine: SparkEngine, source: Any) -> OpenedSource:
    """Open a source; files are left to the executors to read."""
    if isinstance(source, AnyDataFrame):
        return OpenedSource(engine, to_arrow_schema(source), source)
    if isinstance(source, SelectedRows):
        return OpenedSource(engine, source.schema, source)
    if isinstance(source, str | os.PathLike):
        source = FileSource(os.fspath(source))
    splits = open_files(engine.spark, source) if isinstance(source, FileSource) else None
    rows = stream_source(source) if splits is None else splits
    return OpenedSource(engine, rows.schema, rows)


def stage(spark: SparkSession, opened: OpenedSource, spec: SourceSpec) -> Source:
    """Evaluate a source once: its rows are checked against the target, and written to the staging folder (X3)."""
    # Columns that the merge does not use are not transported.
    schema, staging = opened.schema, spec.staging
    needed = [at for at, field in enumerate(schema) if field.name in spec.schema.names]
    schemas = SourceSchemas(to_transport_schema(pa.schema([schema.field(at) for at in needed])), spec.schema)
    if isinstance(opened.rows, AnyDataFrame):
        derived = opened.derived
        given = schema if derived is None else derived.schema_before
        if derived is not None:
            needed = [given.get_field_index(name) for name in derived.inputs]
        # Spark cannot resolve names that differ by case only, or contain a dot.
        plain = opened.rows.toDF(*(f"c{at}" for at in range(len(given))))
        return stage_frame(spark, plain.select(*(f"c{at}" for at in needed)), schemas, staging, derived)
    if isinstance(opened.rows, SelectedRows):
        return _stage_row_files(spark, opened.rows, schemas, staging)
    if isinstance(opened.rows, InputSplits):
        return _stage_splits(spark, opened.rows, schemas, staging)
    batches = _split_driver_rows(opened.rows, schemas.transport)
    if staging is not None:
        return make_source(spark, StagedSource(staging, schemas, tuple(write_staged_files(batches, schemas, staging))))
    blobs = list(map(encode_blob, batches))
    return Source(SourceReader(schemas, read_blob), jobs.make_task_frame(spark, blobs), len(blobs), None)


def _stage_row_files(
    spark: SparkSession, rows: SelectedRows, schemas: SourceSchemas, staging: Staging | None
) -> Source:
    """Use rows as they are in their files; their statistics are not known yet."""
    files = rows.row_files.files
    if staging is None:
        return _stage_splits(spark, _to_splits(rows), schemas, None)
    listed = tuple(StagedFile(file.path, rows.measure(file), make_unknown_stats(file.rows)) for file in files)
    return make_source(spark, StagedSource(staging, schemas, listed, rows))


def _to_splits(rows: SelectedRows) -> InputSplits:
    paths = [file.path for file in rows.row_files.files]
    return InputSplits(rows.schema, paths, rows.without_files().read_batches)


def _read_derived(read: Callable[[Any], Batches], derived: DerivedColumns, split: Any) -> Batches:
    for batch in read(split):
        yield derived.derive_batch(batch.select(derived.inputs))


def find_stats(spark: SparkSession, staged: StagedSource) -> SourceStats:
    """Find the statistics of a staged source by reading its rows."""
    task = partial(compute_file_stats, staged.without_files())
    return merge_stats(jobs.run_tasks(spark, task, staged.files, "compute statistics"))


def _stage_splits(spark: SparkSession, splits: InputSplits, schemas: SourceSchemas, staging: Staging | None) -> Source:
    if staging is None:
        read = partial(_read_split, splits.read, schemas.transport)
        frame = jobs.make_task_frame(spark, splits.splits)
        return Source(SourceReader(schemas, read), frame, len(splits.splits), None)
    found = jobs.run_tasks(spark, partial(_stage_split, splits.read, schemas, staging), splits.splits, "stage rows")
    return make_source(spark, StagedSource(staging, schemas, tuple(chain.from_iterable(found))))


def _read_split(
    read: Callable[[Any], Batches], transport_schema: pa.Schema, split: Any, names: Sequence[str]
) -> Batches:
    """Read an input file, which every stage does again if nothing may be written."""
    return cast_to_transport(read(split), pa.schema([transport_schema.field(name) for name in names]))


def _stage_split(
    read: Callable[[Any], Batches], schemas: SourceSchemas, staging: Staging, split: Any
) -> list[StagedFile]:
    return list(write_staged_files(cast_to_transport(read(split), schemas.transport), schemas, staging))


def make_source(spark: SparkSession, staged: StagedSource) -> Source:
    """Make the source whose rows are staged."""
    stats = merge_stats(file.stats for file in staged.files) if staged.row_files is None else None
    reader = SourceReader(staged.schemas, staged.without_files().read_batches)
    return Source(reader, jobs.make_task_frame(spark, staged.files), len(staged.files), stats, staged)


def stage_frame(
    spark: SparkSession,
    frame: DataFrame,
    schemas: SourceSchemas,
    staging: Staging | None,
    derived: DerivedColumns | None = None,
) -> Source:
    """Evaluate a DataFrame once; it has the columns to transport, or those that these are derived from."""
    plain = frame.toDF(*(f"c{at}" for at in range(len(frame.columns))))
    cast = partial(cast_batch, schema=schemas.transport) if derived is None else partial(_derive, derived, schemas)
    if staging is None:
        kept = plain.mapInArrow(jobs.tag_errors(keep_rows, cast, schemas.transport), PACKET_SCHEMA).persist()
        return Source(SourceReader(schemas, read_blob), kept, None, None)
    work = jobs.tag_errors(_stage_rows, cast, schemas, staging)
    found: list[StagedFile] = jobs.collect_results(plain.mapInArrow(work, jobs.RESULT_SCHEMA), "stage rows")
    return make_source(spark, StagedSource(staging, schemas, tuple(found)))


def _derive(derived: DerivedColumns, schemas: SourceSchemas, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Compute the columns to transport from those of a DataFrame."""
    given = pa.schema([derived.schema_before.field(name) for name in derived.inputs])
    made = derived.derive_batch(cast_batch(batch, given))
    return cast_batch(made.select(schemas.transport.names), schemas.transport)


def _stage_rows(cast: Cast, schemas: SourceSchemas, staging: Staging, batches: Batches) -> Batches:
    for file in write_staged_files(map(cast, batches), schemas, staging):
        yield jobs.encode_result(jobs.get_partition_id(), file)


def keep_rows(cast: Cast, transport_schema: pa.Schema, batches: Batches) -> Batches:
    """Encode the rows of a partition, to be kept by Spark."""
    coming = (cast(batch) for batch in batches if batch.num_rows)
    blobs = map(encode_blob, coalesce_batches(coming, transport_schema))
    yield from encode_kept_rows(jobs.get_partition_id(), blobs)


def encode_kept_rows(number: int, blobs: Iterable[bytes]) -> Batches:
    """Encode blobs of rows as the inputs of a file."""
    for place, blob in enumerate(blobs):
        yield from encode_inputs([(number, place, blob)]).to_batches()


def _split_driver_rows(rows: pa.Table | pa.RecordBatchReader, transport_schema: pa.Schema) -> Batches:
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return cast_to_transport(coalesce_batches(split_batches(batches), rows.schema), transport_schema)


def encode_blob(batch: pa.RecordBatch) -> bytes:
    """Encode rows that Spark keeps."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_blob(blob: bytes, names: Sequence[str]) -> Batches:
    """Read some columns of rows that Spark has kept."""
    for batch in pa.ipc.open_stream(blob):
        yield batch.select(list(names))
