"""One SQLite file: a connection for each thread, write transactions that wait for each other, and the tables.

Every write transaction begins IMMEDIATE. A deferred one that reads before it writes fails at once when another has
written in between, whatever the timeout; an immediate one waits its turn.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from merganser.core.errors import GraphError, GraphFileError, GraphLockedError, InvalidArgumentError
from merganser.graph.sql import define_functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.graph.schema import GraphSchema
    from merganser.graph.sql import Parameter

# "mgsr", so that `file` and SQLite can tell what a file is.
APPLICATION = 0x6D677372
OLDEST_SQLITE = (3, 38, 0)

# Step n brings a file of version n to version n + 1.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # AUTOINCREMENT: the id of a deleted node is never another node's.
        """CREATE TABLE nodes (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            type TEXT NOT NULL,
            properties TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL
        )""",
        """CREATE TABLE edges (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            type TEXT NOT NULL,
            from_id INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
            to_id INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
            properties TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL
        )""",
        "CREATE INDEX nodes_by_type ON nodes (type)",
        "CREATE INDEX edges_by_type ON edges (type)",
        "CREATE INDEX edges_out ON edges (from_id, type, to_id)",
        "CREATE INDEX edges_in ON edges (to_id, type, from_id)",
        """CREATE TABLE property_indexes (
            name TEXT PRIMARY KEY COLLATE NOCASE,
            "table" TEXT NOT NULL,
            type TEXT NOT NULL,
            properties TEXT NOT NULL,
            "unique" INTEGER NOT NULL
        )""",
    ),
)


class Store:
    """An open graph database, to be shared between threads."""

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float = 30.0, schema: GraphSchema | None = None
    ) -> None:
        self.path = _read_path(path)
        self.timeout = timeout
        self.schema = schema
        # Types and properties that a merge has been seen to have an index for, or was warned about.
        self.checked: set[tuple[str, tuple[str, ...]]] = set()
        self.warned: set[tuple[str, frozenset[str]]] = set()
        # All connections of a process that name it share a database in memory; it ends with the last of them.
        name = f"/merganser-{uuid.uuid4().hex}?vfs=memdb&mode="
        if self.path != ":memory:":
            name = f"{quote(os.path.abspath(self.path))}?mode="
        self._address = f"file:{name}"
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._here = threading.local()
        self._closed = False
        _check_timeout(timeout)
        # The first connection may create the file; later ones find it, or there is something wrong.
        self._mode = "rwc"
        try:
            _prepare(self.connection, self.path, timeout)
            self._mode = "rw"
        except sqlite3.OperationalError as error:
            self.fail(error)
        finally:
            if self._mode == "rwc":
                self.close()
        # The thread that opened the database may end before the last one that uses it.
        self._first = self._here.held

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        held: _Held | None = getattr(self._here, "held", None)
        # A connection must not cross a fork.
        if held is None or held.process != _process:
            held = self._open()
        return held.connection

    def close(self) -> None:
        """Close the connections of all threads."""
        self._closed = True
        self._here = threading.local()
        with self._lock:
            every = list(self._held)
        for held in every:
            held.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that is done inside, or nothing; inside another transaction, as a part of that."""
        connection = self.connection
        nested = connection.in_transaction
        start, undo, end = _SAVEPOINT if nested else _TRANSACTION
        try:
            connection.execute(start)
        except sqlite3.Error as error:
            self.fail(error)
        try:
            yield
            connection.execute(end)
        except BaseException as error:
            # An index may be gone that a merge was seen to have.
            self.checked.clear()
            # SQLite itself rolls back after some failures, such as a full disk.
            if not self._closed and connection.in_transaction:
                for statement in undo:
                    connection.execute(statement)
            if isinstance(error, sqlite3.Error):
                self.fail(error)
            raise

    def rows(self, statement: str, parameters: Sequence[Parameter] = ()) -> list[Any]:
        """Run a statement that reads."""
        try:
            return self.connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            self.fail(error)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Let several statements read the same state of the database."""
        connection = self.connection
        alone = not connection.in_transaction
        try:
            if alone:
                connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as error:
            self.fail(error)
        finally:
            if alone and connection.in_transaction:
                connection.execute("ROLLBACK")

    def _open(self) -> _Held:
        if self._closed:
            raise self._is_closed()
        try:
            connection = sqlite3.connect(
                self._address + self._mode,
                timeout=self.timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
                uri=True,
            )
        except sqlite3.Error as error:
            message = (
                f"Cannot open the graph database {self.path!r}: {error}. Check that its folder exists and is writable."
            )
            raise GraphFileError(message) from error
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            # KiB for pages: what a transaction changes in a large graph is seldom in few of them.
            connection.execute("PRAGMA cache_size = -65536")
        except sqlite3.Error as error:
            connection.close()
            self.fail(error)
        held = _Held(connection)
        with self._lock:
            self._held.add(held)
        define_functions(connection)
        self._here.held = held
        return held

    def _is_closed(self) -> GraphError:
        return GraphError(
            f"The graph database {self.path!r} is closed. Open it again with GraphDatabase({self.path!r})."
        )

    def fail(self, error: sqlite3.Error) -> NoReturn:
        """Give what happens to files an error that names the file; a mistake in SQL stays what it is."""
        if self._closed:
            raise self._is_closed() from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            message = (
                f"Another process or thread kept {self.path!r} locked for {self.timeout:g} s. Try again, keep "
                "transactions shorter, or give GraphDatabase a longer timeout."
            )
            raise GraphLockedError(message) from error
        if code in _FILE_TROUBLE:
            message = (
                f"{self.path!r} cannot be used as a graph database: {error}. What was not committed is undone. See "
                "that it is the right file, that it may be read and written, and that the disk has room."
            )
            raise GraphFileError(message) from error
        raise error


_FILE_TROUBLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
# What begins, undoes and ends a transaction, and one within another.
_TRANSACTION = ("BEGIN IMMEDIATE", ("ROLLBACK",), "COMMIT")
_SAVEPOINT = ("SAVEPOINT merganser", ("ROLLBACK TO merganser", "RELEASE merganser"), "RELEASE merganser")

# Connections of a parent process: closing one here would clean up under the parent's feet.
_left_open: list[sqlite3.Connection] = []
_process = os.getpid()


def _forked() -> None:
    global _process  # noqa: PLW0603 - asking the system each time would take longer than a statement
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Held:
    """A thread's connection, closed when the thread has ended."""

    __slots__ = ("__weakref__", "connection", "process")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.process = _process

    def close(self) -> None:
        if self.process == _process:
            self.connection.close()
        else:
            _left_open.append(self.connection)

    __del__ = close


def _read_path(given: str | os.PathLike[str]) -> str:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        message = f"This Python has SQLite {sqlite3.sqlite_version}; a graph database needs 3.38 or newer."
        raise GraphFileError(message)
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path or "://" in path or "\0" in path:
        message = f"A graph database is a file on a local disk, or ':memory:'; {path!r} is neither."
        raise InvalidArgumentError(message)
    return path


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        message = f"timeout is {timeout!r}; give the seconds to wait for another writer."
        raise InvalidArgumentError(message)


def _prepare(connection: sqlite3.Connection, path: str, timeout: float) -> None:
    """Bring the file to the version of this code."""
    try:
        version = _version(connection, path)
        _use_wal(connection, timeout)
        if version < len(MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have done it in the meantime.
            for step in MIGRATIONS[_version(connection, path) :]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        message = f"Cannot use {path!r} as a graph database: {error}. Give another path, or restore the file."
        raise GraphFileError(message) from error


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Let readers and a writer work at once; SQLite does not wait for others by itself when it switches."""
    last = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                raise
            time.sleep(0.01)
        else:
            return


def _version(connection: sqlite3.Connection, path: str) -> int:
    """Read the version of a graph database, and refuse what is none or what a newer merganser wrote."""
    # In one statement, because another process may be at it.
    ((version, application, tables),) = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_user_version, pragma_application_id"
    ).fetchall()
    if application != APPLICATION and (tables or application):
        message = f"{path!r} is an SQLite database, but no graph of merganser's. Give another path."
        raise GraphFileError(message)
    if version > len(MIGRATIONS):
        message = f"{path!r} was written by a newer merganser (version {version} of the file). Install that one."
        raise GraphFileError(message)
    return int(version)
