"""A DuckDB connection: its version, whether its MERGE is used, and Arrow rows to it and back."""

from __future__ import annotations

import logging
import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa

from merganser.errors import DatasetMergeError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

Version = tuple[int, int, int]

UNKNOWN_VERSION: Version = (0, 0, 0)
FIRST_WITH_MERGE: Version = (1, 4, 0)
_FORMAT = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?!\d|\.\d)")
_known: MutableMapping[duckdb.DuckDBPyConnection, Version] = WeakKeyDictionary()
_BATCH_ROWS = 1 << 17
_log = logging.getLogger(__name__)


def parse_version(text: str) -> Version:
    """Parse a version as three numbers, without the suffix of a development build.

    >>> parse_version("v1.5.0"), parse_version("1.6.0-dev123")
    ((1, 5, 0), (1, 6, 0))
    """
    found = _FORMAT.match(text)
    if found is None:
        raise InvalidArgumentError(f"{text!r} is not a version like 1.4.0.")
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch)


def detect_version(connection: duckdb.DuckDBPyConnection) -> Version:
    """Query the version of a connection once; an unknown one counts as too old (D1).

    >>> detect_version(duckdb.connect()) > (1, 3, 0)
    True
    """
    if connection not in _known:
        try:
            # A cursor, because a query on the caller's connection would end a result that is being read.
            with connection.cursor() as cursor:
                row = cursor.execute("SELECT library_version FROM pragma_version()").fetchone()
            _known[connection] = parse_version(str(row and row[0]))
        except (duckdb.Error, InvalidArgumentError) as error:
            _log.warning("Could not determine DuckDB version: %s", error)
            return UNKNOWN_VERSION
    return _known[connection]


def check_use_merge(use_merge: object) -> None:
    """Refuse anything but True, False or None (D1)."""
    if use_merge is not None and not isinstance(use_merge, bool):
        message = f"Invalid use_merge value: {use_merge!r}. Must be True, False, or None for auto-detect"
        raise InvalidArgumentError(message)


def should_use_merge(connection: duckdb.DuckDBPyConnection, use_merge: bool | None) -> bool:  # noqa: FBT001
    """Decide between MERGE and the fallback (D1)."""
    if use_merge is False:
        return False
    version = detect_version(connection)
    if use_merge and version < FIRST_WITH_MERGE:
        current = "unknown" if version == UNKNOWN_VERSION else ".".join(map(str, version))
        raise DatasetMergeError(
            "DuckDB MERGE requested but not available. Required version: >= 1.4.0, "
            f"Current: {current}. Upgrade DuckDB, or pass use_merge=False."
        )
    return version >= FIRST_WITH_MERGE


def announce(use_merge: bool | None, merges: bool) -> None:  # noqa: FBT001
    """Log which statement a merge uses, and who chose it (D2)."""
    if use_merge is None and merges:
        _log.info("Using DuckDB MERGE for merge operation (auto-detected)")
    elif use_merge is None:
        _log.info("Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)")
    elif merges:
        _log.info("Using DuckDB MERGE (explicitly requested)")
    else:
        _log.info("Using UNION ALL (explicitly requested)")


def query(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Run a statement and return its rows."""
    # Not by `execute`, whose Arrow results 2.0 copies once more and 1.3 names differently.
    return connection.sql(sql).to_arrow_table()


def query_row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """Run a statement that returns one row."""
    # Not `fetchone`, after which 2.0 regards the result as unfinished.
    (row,) = connection.execute(sql).fetchall()
    return row


def stream(relation: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Stream the rows of a relation; 1.x and 2.0 have different names for this."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    reader = read(_BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(reader.schema, _stream_batches(reader))


def _stream_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except OSError as error:
        # Arrow reports DuckDB's errors during streaming as this.
        error_class = duckdb.OutOfMemoryException if "Out of Memory Error" in str(error) else duckdb.Error
        raise error_class(str(error)) from error


@contextmanager
def register_view(connection: duckdb.DuckDBPyConnection, rows: pa.Table | pa.RecordBatchReader) -> Iterator[str]:
    """Register Arrow rows as a view, without a copy."""
    name = f"view_{uuid.uuid4().hex}"
    connection.register(name, rows)
    try:
        yield name
    finally:
        connection.unregister(name)
