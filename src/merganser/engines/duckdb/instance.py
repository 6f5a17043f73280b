"""The DuckDB instance of a call, which no one else uses at the same time.

It shares nothing but the limits with the caller's connection. A Parquet file with a broken page can make DuckDB
invalidate an entire instance; that must never be the caller's.
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from typing import Self

# Sizes that DuckDB both prints and accepts: above TiB it prints units that it does not accept.
_SIZE_PATTERN = re.compile(r"[\d.]+ ?(bytes|[KMGT]i?B)")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a call, as DuckDB's settings; None is DuckDB's default."""

    memory_limit: str | None = None
    max_temp_directory_size: str | None = None
    threads: int | None = None
    temp_directory: str | None = None


# An instance takes some 20 ms to open, so each process keeps those that are clean. A forked process opens its own: it
# does not have the threads of its parent's.
_idle: dict[tuple[int, Limits], list[_OpenInstance]] = defaultdict(list)


def read_limits(connection: duckdb.DuckDBPyConnection) -> Limits:
    """Read the limits that a connection works under.

    >>> read_limits(duckdb.connect(config={"threads": 3})).threads
    3
    """
    names = Limits.__dataclass_fields__
    settings = ", ".join(f"current_setting('{name}')" for name in names)
    with connection.cursor() as cursor:
        found = cursor.execute(f"SELECT {settings}").fetchone() or ()
    limits = Limits(*found)
    sizes = {name: getattr(limits, name) for name in ("memory_limit", "max_temp_directory_size")}
    return replace(limits, **{name: text if _SIZE_PATTERN.fullmatch(text) else None for name, text in sizes.items()})


class Instance:
    """An in-memory instance for one call at a time, which opens in the background while the call reads its target."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = _idle[os.getpid(), limits]

    def __enter__(self) -> Self:
        self._opened: Future[_OpenInstance] = Future()
        try:
            self._opened.set_result(self._pool.pop())
        except IndexError:
            self._opened = self._open()
        return self

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        """The instance itself, which other calls will use later."""
        return self._opened.result().database

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection of this call, which is closed with all its objects when the call ends."""
        return self._opened.result().cursor

    def renew(self) -> None:
        """Replace this instance by a new one, without any of its objects."""
        self._opened.result().database.close()
        self._opened = self._open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        opened = self._opened.result()
        if error is not None:
            # A statement may still be running, and closing would wait for it.
            opened.cursor.interrupt()
        opened.cursor.close()
        # Closing an instance removes its spill files.
        if error is None and not os.path.exists(opened.spill_folder):
            self._pool.append(replace(opened, cursor=opened.database.cursor()))
        else:
            opened.database.close()

    def _open(self) -> Future[_OpenInstance]:
        executor = ThreadPoolExecutor(1, thread_name_prefix="merganser-duckdb")
        opened = executor.submit(_connect, self._limits)
        executor.shutdown(wait=False)
        return opened


@dataclass(frozen=True, slots=True)
class _OpenInstance:
    """An open instance, the connection to work on, and the folder that it would spill to."""

    database: duckdb.DuckDBPyConnection
    cursor: duckdb.DuckDBPyConnection
    spill_folder: str


def _choose_spill_folder(wanted: str | None) -> str:
    """Choose a folder for this instance alone: two instances would overwrite each other's files."""
    unique = f"merganser-{uuid.uuid4().hex}"
    if wanted is None:
        try:
            return os.path.join(tempfile.gettempdir(), unique)
        except FileNotFoundError:
            return ""
    if not wanted:
        # Spilling is turned off, and stays so.
        return ""
    # DuckDB creates this folder, but not its parent.
    return os.path.join(wanted, unique) if os.path.isdir(wanted) else f"{wanted}-{unique}"


def _connect(limits: Limits) -> _OpenInstance:
    spill = _choose_spill_folder(limits.temp_directory)
    settings = {
        "memory_limit": limits.memory_limit,
        "max_temp_directory_size": limits.max_temp_directory_size,
        "threads": limits.threads,
        "temp_directory": spill,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(config={name: value for name, value in settings.items() if value is not None})
    # Statistics of Parquet files may be wrong in ways that only we know of, so DuckDB must not prune by them.
    database.execute(
        "SET disabled_optimizers = 'statistics_propagation,compressed_materialization,join_filter_pushdown'"
    )
    return _OpenInstance(database, database.cursor(), spill)
