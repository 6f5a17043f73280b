"""Columns as DuckDB takes them: dictionaries are decoded, and what it would round is refused."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.closed_database import open_cursor
from merganser.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator


def to_duckdb(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Decode dictionaries, which may have other values in each chunk, and refuse what DuckDB would round."""
    if any(not _keeps_nanoseconds(one) for one in _list_nanoseconds(column.type)) and not _is_microseconds(column):
        raise UnsupportedTypeError(
            f"Column {name!r} has type {column.type}, whose nanoseconds DuckDB discards, so no expression can use it. "
            "Use the column as it is, or leave it out."
        )
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _list_nanoseconds(data_type: pa.DataType) -> Iterator[pa.DataType]:
    """List the types with nanoseconds in a type, but those that every version of DuckDB has."""
    if pa.types.is_nested(data_type):
        for at in range(data_type.num_fields):
            yield from _list_nanoseconds(data_type.field(at).type)
    elif getattr(data_type, "unit", "") == "ns" and getattr(data_type, "tz", "") is not None:
        yield data_type


@cache
def _keeps_nanoseconds(data_type: pa.DataType) -> bool:
    with open_cursor() as cursor:
        cursor.register("given", pa.table({"x": pa.array([1], pa.int64()).cast(data_type)}))
        (found,) = cursor.from_query("SELECT x FROM given").to_arrow_table().columns
    # Intervals have nanoseconds in Arrow, and microseconds in DuckDB.
    return getattr(found.type, "unit", "") == "ns"


def _is_microseconds(column: pa.ChunkedArray) -> bool:
    """Whether no value of a column of such a type has nanoseconds."""
    if pa.types.is_nested(column.type):
        return False
    counts = column.cast(pa.int64())
    return bool(pc.all(pc.equal(pc.multiply(pc.divide(counts, 1000), 1000), counts)).as_py() is not False)
