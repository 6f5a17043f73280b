"""A DuckDB database for expressions of other users: it reaches no file and no extension, and keeps its settings."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Python variables of callers are not tables, either.
    "python_enable_replacements": "false",
}
_databases: dict[int, duckdb.DuckDBPyConnection] = {}
_lock = threading.Lock()


def connect_closed(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Open such a database in memory."""
    import duckdb  # noqa: PLC0415  only expressions need it

    with _leave_removed_folder():
        database = duckdb.connect(config=_CLOSED)
    if threads is not None:
        database.execute(f"SET threads = {threads}")
    # Cursors have only the global settings, and begin with the zone of the machine.
    database.execute("SET GLOBAL TimeZone = 'UTC'; SET TimeZone = 'UTC'; SET lock_configuration = true")
    return database


@contextmanager
def open_cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection to the instance of this process, which no setting can open again."""
    with _lock:
        database = _databases.get(os.getpid())
        if database is None:
            database = connect_closed(threads=1)
            _databases[os.getpid()] = database
            atexit.register(database.close)
        cursor = database.cursor()
    with cursor:
        yield cursor


def query_rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a query of the library in such a connection."""
    with open_cursor() as cursor:
        return cursor.execute(sql, list(parameters)).fetchall()


@contextmanager
def _leave_removed_folder() -> Iterator[None]:
    """Leave the working directory for a moment if it was removed: there, DuckDB ends the process while it is closed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        removed = os.open(".", os.O_RDONLY)
        try:
            os.chdir("/")
            yield
        finally:
            os.fchdir(removed)
            os.close(removed)
    else:
        yield
