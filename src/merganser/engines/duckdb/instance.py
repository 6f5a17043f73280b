"""The DuckDB instance that a call works in, which no one else uses while it lasts.

It has the limits of the caller's connection and nothing more in common with it. A Parquet file with a broken page can
make DuckDB declare a whole instance invalid, with all that is in it; that must never be the caller's.
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

# What DuckDB prints and also takes: of more than TiB it prints units that it does not take.
_SIZE = re.compile(r"[\d.]+ ?(bytes|[KMGT]i?B)")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call may use: DuckDB's own settings, in the words that it understands. None leaves one to DuckDB."""

    memory_limit: str | None = None
    max_temp_directory_size: str | None = None
    threads: int | None = None
    temp_directory: str | None = None


# An instance takes some 20 ms to open, so each process keeps those that left nothing behind. A forked process opens its
# own: the threads of its parent's are not there.
_idle: dict[tuple[int, Limits], list[tuple[duckdb.DuckDBPyConnection, str]]] = defaultdict(list)


def limits_of(connection: duckdb.DuckDBPyConnection) -> Limits:
    """Read the limits that a connection works under.

    >>> limits_of(duckdb.connect(config={"threads": 3})).threads
    3
    """
    names = Limits.__dataclass_fields__
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    with connection.cursor() as cursor:
        found = cursor.execute(f"SELECT {asked}").fetchone() or ()
    limits = Limits(*found)
    sizes = {name: getattr(limits, name) for name in ("memory_limit", "max_temp_directory_size")}
    return replace(limits, **{name: text if _SIZE.fullmatch(text) else None for name, text in sizes.items()})


class Instance:
    """An in-memory instance, for one call at a time; `connection` is where that call works."""

    database: duckdb.DuckDBPyConnection
    connection: duckdb.DuckDBPyConnection

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = _idle[os.getpid(), limits]

    def __enter__(self) -> Self:
        try:
            self.database, self._spill = self._pool.pop()
        except IndexError:
            self._open()
        self.connection = self.database.cursor()
        return self

    def renew(self) -> None:
        """Go on in a fresh instance, without anything that was in this one."""
        self.connection.close()
        self.database.close()
        self._open()
        self.connection = self.database.cursor()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        # Closing an instance removes what it has spilled.
        if error is None and not (self._spill and os.path.exists(self._spill)):
            self._pool.append((self.database, self._spill))
        else:
            self.database.close()

    def _open(self) -> None:
        self._spill = _spill_folder(self._limits.temp_directory)
        settings = {
            "memory_limit": self._limits.memory_limit,
            "max_temp_directory_size": self._limits.max_temp_directory_size,
            "threads": self._limits.threads,
            "temp_directory": self._spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self.database = duckdb.connect(config={name: value for name, value in settings.items() if value is not None})


def _spill_folder(wanted: str | None) -> str:
    """Choose a folder that is this instance's alone: two in one would write over each other's files."""
    unique = f"merganser-{uuid.uuid4().hex}"
    if wanted is None:
        return os.path.join(tempfile.gettempdir(), unique)
    if not wanted:
        # Spilling is turned off, and stays so.
        return ""
    # DuckDB makes a folder when it needs it, but not the one above.
    return os.path.join(wanted, unique) if os.path.isdir(wanted) else f"{wanted}-{unique}"
