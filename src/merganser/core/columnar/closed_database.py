"""A DuckDB database for expressions of other users: it reaches no file and no extension, and keeps its settings."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Python variables of callers are not tables, either.
    "python_enable_replacements": "false",
}


def connect_closed(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Open such a database in memory."""
    import duckdb  # noqa: PLC0415  only expressions need it

    with _leave_removed_folder():
        database = duckdb.connect(config=_CLOSED)
    if threads is not None:
        database.execute(f"SET threads = {threads}")
    database.execute("SET TimeZone = 'UTC'; SET lock_configuration = true")
    return database


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
