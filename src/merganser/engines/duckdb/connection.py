"""Arrow to DuckDB and back, which is where the versions of its Python interface differ."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH_ROWS = 1 << 17


def query(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Run a statement and give its rows."""
    # Not by way of `execute`, whose Arrow results 2.0 copies once more and 1.3 knows by another name.
    return connection.sql(sql).to_arrow_table()


def query_row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """Run a statement that gives one row."""
    # Not `fetchone`, after which 2.0 takes the result for unfinished.
    (row,) = connection.execute(sql).fetchall()
    return row


def stream(relation: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Give the rows of a relation as they come; 1.x calls this by another name than 2.0."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    reader = read(_BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(reader.schema, _stream_batches(reader))


def _stream_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except OSError as error:
        # What fails in DuckDB while rows are streamed comes through Arrow as this.
        kind = duckdb.OutOfMemoryException if "Out of Memory Error" in str(error) else duckdb.Error
        raise kind(str(error)) from error


@contextmanager
def register_view(connection: duckdb.DuckDBPyConnection, rows: pa.Table | pa.RecordBatchReader) -> Iterator[str]:
    """Show Arrow rows to DuckDB, without a copy, for a while."""
    name = f"view_{uuid.uuid4().hex}"
    connection.register(name, rows)
    try:
        yield name
    finally:
        connection.unregister(name)
