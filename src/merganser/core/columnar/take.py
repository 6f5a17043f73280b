"""Rows of an Arrow table by number, without laying its chunks together first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

# Rows of a chunk below which the work of visiting it is more than that of copying it, and bytes that make up for them.
TARGET_CHUNK_ROWS = 1 << 17
TARGET_CHUNK_BYTES = 8 << 20


def take(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Take rows in the order asked for; Arrow's own `take` would copy every column whole to do it.

    The chunks of all columns have to end at the same rows, as those of `align_chunks` and `coalesce_batches` do.
    """
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return table.slice(rows[0], len(rows))
    chunks = table.column(0).chunks if table.num_columns else []
    if len(chunks) < 2:  # noqa: PLR2004  one chunk, or none
        return table.take(pa.array(rows))
    starts = np.cumsum([0, *map(len, chunks)])
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    cuts = np.searchsorted(ascending, starts)
    pieces = [
        _get_chunk(table, number).take(pa.array(ascending[first:last] - starts[number]))
        for number, (first, last) in enumerate(pairwise(cuts))
        if first < last
    ]
    found = pa.Table.from_batches(pieces, table.schema).combine_chunks()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found.take(pa.array(place))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Give a table without rows; Arrow's own way has no arrays of extension types inside others."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def null_array(rows: int, data_type: pa.DataType) -> pa.Array:
    """Give NULLs; Arrow's own way has NULL in structs' fields too, even where these are declared never NULL."""
    try:
        return pa.array([None], data_type).take(pa.array(np.zeros(rows, np.int64)))
    except pa.ArrowNotImplementedError:
        return pa.nulls(rows, data_type)


def to_array(column: pa.ChunkedArray) -> pa.Array:
    """Give a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def align_chunks(table: pa.Table) -> pa.Table:
    """Give a table whose columns have the same chunks, none of them small; nothing is copied if it is so already."""
    widest = max((column.num_chunks for column in table.columns), default=0)
    if widest * TARGET_CHUNK_ROWS > table.num_rows + TARGET_CHUNK_ROWS:
        return table.combine_chunks()
    return pa.Table.from_batches(table.to_batches(), table.schema)


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut large batches in pieces that may be copied without much memory."""
    for batch in batches:
        rows = max(1, min(TARGET_CHUNK_ROWS, TARGET_CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def coalesce_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Lay small batches together."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        waiting.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= TARGET_CHUNK_ROWS or (size >= TARGET_CHUNK_BYTES and count):
            yield _concat_batches(waiting, schema)
            waiting, count, size = [], 0, 0
    if count:
        yield _concat_batches(waiting, schema)


def _concat_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]


def _get_chunk(table: pa.Table, number: int) -> pa.RecordBatch:
    return pa.record_batch([column.chunk(number) for column in table.columns], schema=table.schema)
