"""From Spark to the driver: the rows of a DataFrame as Arrow tables, a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.engines.spark.jobs import explained, marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

ROWS = 50_000
# A table of large values is cut before it has all its rows, so that the driver holds little at a time.
_BYTES = 32 * 2**20


def arrow_batches(frame: DataFrame, rows: int = ROWS) -> Iterator[pa.Table]:
    """Give the rows of a DataFrame in its order, in tables of at most some thousand rows, none of them empty.

    Executors pack them, because rows would cross to Python one by one otherwise; while a table is in use, Spark
    prepares the next partition. Times with a zone are in UTC, whatever the session's zone.
    """
    packed = frame.mapInArrow(marked(_pack, rows), "packed binary")
    with explained():
        for row in packed.toLocalIterator(prefetchPartitions=True):
            table = pa.ipc.open_stream(row.packed).read_all()
            yield table.cast(pa.schema([field.with_type(_in_utc(field.type)) for field in table.schema]))


def _pack(rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack the batches of a partition into few."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in _cut(rows, batches):
        count, size = count + batch.num_rows, size + batch.nbytes
        if held and (count > rows or size > _BYTES):
            yield _packed(held)
            held, count, size = [], batch.num_rows, batch.nbytes
        held.append(batch)
    if held:
        yield _packed(held)


def _cut(rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _packed(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return pa.record_batch({"packed": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Give a type with UTC for the zone of its times, those inside lists and structs included."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_in_utc(kind.key_type)), kind.item_field.with_type(_in_utc(kind.item_type))
        )
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind
