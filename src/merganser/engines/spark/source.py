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

from merganser.core.columnar.take import cut, gathered
from merganser.core.sources.source import stream_source
from merganser.engines.spark.input_splits import Portions, carried_rows, open_files
from merganser.engines.spark.jobs import ANSWERS, answers, marked, one_answer, orders_frame, spread, unpacked
from merganser.engines.spark.staged_source import Part, Parts, Profile, Shape, merged, write_parts
from merganser.engines.spark.types import carried_schema, frame_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.storage.staging import Staging

    Batches = Iterator[pa.RecordBatch]
    # A batch of source rows, with the number of its part and that of its first row there.
    Numbered = Iterator[tuple[int, int, pa.RecordBatch]]
    Conformed = Iterator[tuple[int, int, pa.Table]]


@dataclass(frozen=True, slots=True)
class Given:
    """A source as it came, not looked at yet."""

    schema: pa.Schema
    rows: DataFrame | Portions | pa.Table | pa.RecordBatchReader

    @property
    def ordered(self) -> bool:
        """Whether there is a first and a last row."""
        return not isinstance(self.rows, AnyDataFrame)


@dataclass(frozen=True, slots=True)
class Source:
    """A source whose rows fit the target.

    `frame` with `reader` gives its rows on executors; `parts` are the files they are in, unless nothing may be written.
    """

    shape: Shape
    profile: Profile
    frame: DataFrame
    reader: _Reader
    parts: Parts | None
    staging: Staging | None

    def rows(self, names: Sequence[str]) -> tuple[DataFrame, Callable[[Batches], Conformed]]:
        """Give some columns as they are to be in the target."""
        at = [self.shape.carried.names.index(name) for name in names]
        frame, reader = self.reader.of(self.frame, at)
        return frame, _Conforming(reader, self.shape.of(names))


def open_source(spark: SparkSession, source: Any) -> Given:
    """Take a source; files are left to the executors to read."""
    if isinstance(source, AnyDataFrame):
        return Given(frame_schema(source), source)
    if isinstance(source, str | os.PathLike):
        portions = open_files(spark, os.fspath(source))
        if portions is not None:
            return Given(portions.schema, portions)
    rows = stream_source(source)
    return Given(rows.schema, rows)


def stage(spark: SparkSession, given: Given, goal: pa.Schema, staging: Staging | None) -> Source:
    """Evaluate a source once: its rows are checked against the target, and written to the staging folder (X3)."""
    # What the merge does not take from the source need not be carried.
    needed = [at for at, field in enumerate(given.schema) if field.name in goal.names]
    shape = Shape(carried_schema(pa.schema([given.schema.field(at) for at in needed])), goal)
    if isinstance(given.rows, AnyDataFrame):
        # Names that differ by case only, or hold a dot, mean nothing to Spark but trouble.
        plain = given.rows.toDF(*(f"c{at}" for at in range(len(given.schema))))
        return stage_frame(spark, plain.select(*(f"c{at}" for at in needed)), shape, staging)
    if isinstance(given.rows, Portions):
        return _stage_portions(spark, given.rows, shape, staging)
    pieces = _pieces(given.rows, shape.carried)
    if staging is None:
        blobs = []
        profiles = []
        for piece in pieces:
            profiles += [part.profile for part in write_parts([piece], shape, None)]
            blobs.append(_packed(piece))
        return Source(shape, merged(profiles), orders_frame(spark, blobs), _FromBlobs(), None, None)
    files = tuple(write_parts(pieces, shape, staging))
    return staged(spark, Parts(staging.location.store, shape, files), staging)


def _stage_portions(spark: SparkSession, portions: Portions, shape: Shape, staging: Staging | None) -> Source:
    found = spread(spark, partial(_stage_portion, portions.read, shape, staging), portions.orders)
    files = tuple(chain.from_iterable(found))
    if staging is not None:
        return staged(spark, Parts(staging.location.store, shape, files), staging)
    profile = merged(part.profile for part in files)
    frame = orders_frame(spark, portions.orders)
    return Source(shape, profile, frame, _FromPortions(portions.read, shape.carried), None, None)


def _stage_portion(read: Callable[[Any], Batches], shape: Shape, staging: Staging | None, order: Any) -> list[Part]:
    return list(write_parts(carried_rows(read(order), shape.carried), shape, staging))


def staged(spark: SparkSession, parts: Parts, staging: Staging) -> Source:
    """Give the source that is in files."""
    frame = orders_frame(spark, parts.files)
    profile = merged(part.profile for part in parts.files)
    return Source(parts.shape, profile, frame, _FromParts(parts.any()), parts, staging)


def stage_frame(spark: SparkSession, frame: DataFrame, shape: Shape, staging: Staging | None) -> Source:
    """Evaluate a DataFrame once."""
    plain = frame.toDF(*(f"c{at}" for at in range(len(shape.carried))))
    if staging is None:
        plain = plain.persist()
    found: list[Part] = answers(plain.mapInArrow(marked(_stage_rows, shape, staging), ANSWERS))
    if staging is not None:
        return staged(spark, Parts(staging.location.store, shape, tuple(found)), staging)
    return Source(shape, merged(part.profile for part in found), plain, _FromFrame(shape.carried), None, None)


def _stage_rows(shape: Shape, staging: Staging | None, batches: Batches) -> Batches:
    for part in write_parts(_carried(batches, shape.carried), shape, staging):
        yield one_answer(_partition(), part)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _carried(batches: Batches, carried: pa.Schema) -> Batches:
    """Give batches of a DataFrame the types they have here: no zone of a session."""
    for batch in batches:
        columns = [column.cast(kind) for column, kind in zip(batch.columns, carried.types, strict=True)]
        yield pa.record_batch(columns, schema=carried)


def _pieces(rows: pa.Table | pa.RecordBatchReader, carried: pa.Schema) -> Batches:
    """Cut what is on the driver in pieces of the carried types."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return carried_rows(gathered(cut(batches), rows.schema), carried)


def _packed(piece: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


class _Reader(Protocol):
    """How the rows of a frame are found on an executor."""

    def __call__(self, batches: Batches) -> Numbered: ...

    def of(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        """Read some columns only."""


@dataclass(frozen=True, slots=True)
class _Conforming:
    reader: _Reader
    shape: Shape

    def __call__(self, batches: Batches) -> Conformed:
        for part, start, batch in self.reader(batches):
            yield part, start, self.shape.conformed(batch)


@dataclass(frozen=True, slots=True)
class _FromBlobs:
    """Rows that came with the frame, packed."""

    columns: Sequence[int] | None = None

    def of(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _FromBlobs(columns)

    def __call__(self, batches: Batches) -> Numbered:
        for number, blob in unpacked(batches):
            start = 0
            for batch in pa.ipc.open_stream(blob):
                yield number, start, batch if self.columns is None else batch.select(list(self.columns))
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _FromPortions:
    """Rows of files that are not ours; they are read again by every stage, where nothing may be written."""

    read: Callable[[Any], Batches]
    carried: pa.Schema
    columns: Sequence[int] | None = None

    def of(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _FromPortions(self.read, self.carried, columns)

    def __call__(self, batches: Batches) -> Numbered:
        for number, order in unpacked(batches):
            start = 0
            for batch in carried_rows(self.read(order), self.carried):
                yield number, start, batch if self.columns is None else batch.select(list(self.columns))
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _FromParts:
    """Rows in files that the frame names."""

    parts: Parts
    columns: Sequence[int] | None = None

    def of(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        return frame, _FromParts(self.parts, columns)

    def __call__(self, batches: Batches) -> Numbered:
        names = self.parts.shape.carried.names
        wanted = names if self.columns is None else [names[at] for at in self.columns]
        for number, part in unpacked(batches):
            start = 0
            for batch in self.parts.batches(part, wanted):
                yield number, start, batch
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class _FromFrame:
    """Rows of the frame itself."""

    carried: pa.Schema

    def of(self, frame: DataFrame, columns: Sequence[int]) -> tuple[DataFrame, _Reader]:
        wanted = frame.select(*(f"c{at}" for at in columns))
        return wanted, _FromFrame(pa.schema([self.carried.field(at) for at in columns]))

    def __call__(self, batches: Batches) -> Numbered:
        start = 0
        for batch in _carried(batches, self.carried):
            yield _partition(), start, batch
            start += batch.num_rows
