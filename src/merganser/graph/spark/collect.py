"""Stream the rows of a DataFrame to the driver, as Arrow tables of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.engines.spark.jobs import tag_errors, watch_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

ROWS = 50_000
# A table of large values ends before it has all its rows, so that the driver holds little at a time.
_BYTES = 32 * 2**20


def stream_tables(frame: DataFrame, rows: int = ROWS) -> Iterator[pa.Table]:
    """Yield the rows of a DataFrame in its order, in tables of at most `rows` rows, none of them empty.

    Executors encode them, because rows would otherwise cross to Python one by one; while a table is in use, Spark
    prepares the next partition. Times with a zone are in UTC, whatever the session's zone.
    """
    encoded = frame.mapInArrow(tag_errors(_encode_partition, rows), "encoded binary")
    with watch_job("stream rows"):
        rows_left = encoded.toLocalIterator(prefetchPartitions=True)
    while (row := _fetch_row(rows_left)) is not None:
        table = pa.ipc.open_stream(row.encoded).read_all()
        yield table.cast(pa.schema([field.with_type(_to_utc(field.type)) for field in table.schema]))


def _fetch_row(rows: Iterator[Any]) -> Any:
    with watch_job("stream rows"):
        return next(rows, None)


def _encode_partition(rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in _split_batches(rows, batches):
        count, size = count + batch.num_rows, size + batch.nbytes
        if held and (count > rows or size > _BYTES):
            yield _encode_batches(held)
            held, count, size = [], batch.num_rows, batch.nbytes
        held.append(batch)
    if held:
        yield _encode_batches(held)


def _split_batches(rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _encode_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return pa.record_batch({"encoded": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _to_utc(data_type: pa.DataType) -> pa.DataType:
    """Replace the zone of timestamps by UTC, inside nested types too."""
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp(data_type.unit, "UTC")
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_to_utc(data_type.value_type)))
    if pa.types.is_map(data_type):
        return pa.map_(
            data_type.key_field.with_type(_to_utc(data_type.key_type)),
            data_type.item_field.with_type(_to_utc(data_type.item_type)),
        )
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_to_utc(field.type)) for field in data_type])
    return data_type
