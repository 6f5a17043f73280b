"""Takes rows from Arrow tables without concatenating their chunks, and splits and coalesces batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

# A chunk with fewer rows and bytes costs more to visit than to copy into a larger one.
TARGET_CHUNK_ROWS = 1 << 17
TARGET_CHUNK_BYTES = 8 << 20


def take(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Take rows in this order; Arrow's own `take` would copy all columns completely."""
    # All columns must have the same chunks, as after `align_chunks` and `coalesce_batches`.
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return table.slice(rows[0], len(rows))
    chunks = table.column(0).chunks if table.num_columns else []
    if len(chunks) < 2:  # noqa: PLR2004  one chunk, or none
        return table.take(pa.array(rows))
    starts = np.cumsum([0, *map(len, chunks)])
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    boundaries = np.searchsorted(ascending, starts)
    batches = [
        _get_chunk(table, number).take(pa.array(ascending[first:last] - starts[number]))
        for number, (first, last) in enumerate(pairwise(boundaries))
        if first < last
    ]
    found = pa.Table.from_batches(batches, table.schema).combine_chunks()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found.take(pa.array(place))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows; `Schema.empty_table` does not support nested extension types."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def null_array(rows: int, data_type: pa.DataType) -> pa.Array:
    """Return an array of NULLs; `pa.nulls` would also put NULLs into required fields of structs."""
    if pa.types.is_primitive(data_type):
        return pa.nulls(rows, data_type)
    try:
        return pa.array([None], data_type).take(pa.array(np.zeros(rows, np.int64)))
    except pa.ArrowNotImplementedError:
        return pa.nulls(rows, data_type)


def to_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def align_chunks(table: pa.Table) -> pa.Table:
    """Give all columns the same chunks, none of them small, copying only if necessary."""
    widest = max((column.num_chunks for column in table.columns), default=0)
    if widest * TARGET_CHUNK_ROWS > table.num_rows + TARGET_CHUNK_ROWS:
        table = table.combine_chunks()
    # Arrow leaves strings of more than 2 GB in several chunks, and other columns in one.
    if max((column.num_chunks for column in table.columns), default=0) < 2:  # noqa: PLR2004  one chunk, or none
        return table
    return pa.Table.from_batches(table.to_batches(), table.schema)


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split large batches into slices that can be copied with little memory."""
    for batch in batches:
        rows = max(1, min(TARGET_CHUNK_ROWS, TARGET_CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def coalesce_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Merge small batches into larger ones."""
    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        pending.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= TARGET_CHUNK_ROWS or (size >= TARGET_CHUNK_BYTES and count):
            yield from _concat_batches(pending, schema)
            pending, count, size = [], 0, 0
    if count:
        yield from _concat_batches(pending, schema)


def _concat_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Merge batches into one, or into several if their strings take more than 2 GB."""
    return batches if len(batches) == 1 else pa.Table.from_batches(batches, schema).combine_chunks().to_batches()


def _get_chunk(table: pa.Table, number: int) -> pa.RecordBatch:
    return pa.record_batch([column.chunk(number) for column in table.columns], schema=table.schema)
