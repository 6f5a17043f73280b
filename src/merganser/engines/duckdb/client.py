"""Where DuckDB's Python interface differs between versions: Arrow results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    import pyarrow as pa

_ROWS_AT_ONCE = 1 << 17


def stream(relation: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Give the rows of a relation as they come; 1.x calls this by another name than 2.0."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return read(_ROWS_AT_ONCE)


def query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object] = ()) -> pa.RecordBatchReader:
    """Run a statement and give its rows as they come."""
    # Not by way of `execute`, whose Arrow results 2.0 copies once more and 1.3 knows by yet another name.
    return stream(connection.sql(sql, params=list(parameters) or None))
