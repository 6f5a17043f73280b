"""The connections to one SQLite file, one for each thread, and transactions that wait for each other.

Every write transaction is IMMEDIATE: it waits for others. A deferred one that reads before it writes fails at once if
another transaction has written in between, whatever the timeout.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

from merganser.errors import GraphError, GraphFileError, GraphLockedError, InvalidArgumentError
from merganser.graph.schema import GraphSchema
from merganser.graph.sqlite.sql import Parameter, define_functions
from merganser.graph.sqlite.tables import check_readable, migrate_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


ResultT = TypeVar("ResultT")

MIN_SQLITE_VERSION = (3, 38, 0)
# Seconds; SQLite counts milliseconds in 32 bits.
_MAX_TIMEOUT = 2_000_000


class Store:
    """An open graph database that threads may share."""

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float, schema: GraphSchema | None, read_only: bool
    ) -> None:
        self.path = _read_path(path)
        self.timeout = _read_timeout(timeout)
        self.schema = _read_schema(schema)
        # Types and match properties that are known to have an index, and those that a warning was issued for.
        self.checked_matches: set[tuple[str, tuple[str, ...]]] = set()
        self.warned_matches: set[tuple[str, frozenset[str]]] = set()
        # All connections of the process to this name share one database in memory, which ends with the last of them.
        name = f"/merganser-{uuid.uuid4().hex}?vfs=memdb&mode="
        if self.path != ":memory:":
            name = f"{quote(os.path.abspath(self.path))}?mode="
        self._uri = f"file:{name}"
        self._connections: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread_local = threading.local()
        self._closed = False
        # The state that the file must keep while it is read without locks.
        self._opened_state = _read_file_state(self.path) if read_only and _has_no_writer(self.path) else None
        # Only the first connection may create the file.
        self._mode = ("ro&immutable=1" if self._opened_state else "ro") if read_only else "rwc"
        self._initialize(read_only=read_only)
        # The thread that opened the database may end before the last one that uses it.
        self._first_connection = self._thread_local.held

    def _initialize(self, *, read_only: bool) -> None:
        ready = False
        try:
            if read_only:
                check_readable(self.connection, self.path)
            else:
                migrate_file(self.connection, self.path, self.timeout)
                self._mode = "rw"
            ready = True
        except sqlite3.OperationalError as error:
            self.raise_graph_error(error)
        finally:
            if not ready:
                self.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        return self._get_connection().connection

    def close(self) -> None:
        """Close the connections of all threads; one that is in use is closed when its work has ended."""
        self._closed = True
        with self._lock:
            connections = list(self._connections)
        for held in connections:
            held.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that the block does, or nothing; inside another transaction, as a part of that."""
        held = self._get_connection()
        try:
            with held.lock:
                yield from self._run_transaction(held)
        finally:
            self._close_if_store_closed(held)

    def run(self, work: Callable[..., ResultT], *given: Any) -> ResultT:
        """Call a function while holding this thread's connection."""
        held = self._get_connection()
        try:
            with held.lock:
                found = work(*given)
        except sqlite3.Error as error:
            self.raise_graph_error(error)
        finally:
            if self._closed:
                held.close()
        if self._opened_state is not None:
            self._check_unchanged()
        return found

    def run_in_transaction(self, work: Callable[..., ResultT], *given: Any) -> ResultT:
        """Call a function in the open transaction of this thread, or in a new one."""
        held = self._get_connection()
        if held.depth:
            try:
                return work(*given)
            except sqlite3.Error as error:
                self.raise_graph_error(error)
        if self.run(lambda: held.connection.in_transaction):
            return self.run(work, *given)
        with self.transaction():
            return work(*given)

    def fetch_all(self, statement: str, parameters: Sequence[Parameter] = ()) -> list[Any]:
        """Run a statement, and return its rows."""
        return self.run(_fetch_all, self._get_connection().connection, statement, parameters)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Read the same state of the database with several statements."""
        held = self._get_connection()
        connection = held.connection
        try:
            with held.lock:
                is_outermost = not connection.in_transaction
                if is_outermost:
                    connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if is_outermost and not self._closed:
                        connection.execute("ROLLBACK")
            self._check_unchanged()
        except sqlite3.Error as error:
            self.raise_graph_error(error)
        finally:
            self._close_if_store_closed(held)

    def raise_graph_error(self, error: sqlite3.Error) -> NoReturn:
        """Raise errors of files as ours, with the path; an error in SQL is raised unchanged."""
        if self._closed:
            raise self._make_closed_error() from error
        self._check_unchanged()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise GraphLockedError(
                f"Another process or thread kept {self.path!r} locked for {self.timeout:g} s. Try again, keep "
                f"transactions shorter, or wait longer with timeout={self.timeout + 30:g}."
            ) from error
        if code in _FILE_ERROR_CODES and self._mode.startswith("ro"):
            raise GraphFileError(
                f"{self.path!r} cannot be read as a graph database: {error}. Check that it is the right file and that "
                "it may be read; to change it, open it without read_only=True."
            ) from error
        if code in _FILE_ERROR_CODES:
            raise GraphFileError(
                f"{self.path!r} cannot be used as a graph database: {error}. Uncommitted changes are undone. Check "
                "that it is the right file, that it may be read and written, and that the disk has space."
            ) from error
        if str(error).startswith(_SIZE_ERRORS):
            raise InvalidArgumentError(
                f"The query is too large for SQLite: {error}. Use fewer conditions or columns, or several queries."
            ) from error
        raise error

    def _get_connection(self) -> _ThreadConnection:
        try:
            held: _ThreadConnection = self._thread_local.held
        except AttributeError:
            return self._open()
        if held.process == _process_id and not self._closed:
            return held
        # A connection must not cross a fork: SQLite would take the locks of the parent's transaction for its own.
        if held.process != _process_id and held.connection.in_transaction:
            raise _make_fork_error()
        return self._open()

    def _open(self) -> _ThreadConnection:
        if self._closed:
            raise self._make_closed_error()
        try:
            connection = sqlite3.connect(
                self._uri + self._mode,
                timeout=self.timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
                uri=True,
            )
        except sqlite3.Error as error:
            message = f"Cannot open the graph database {self.path!r}: {error}. {self._suggest_remedy()}"
            raise GraphFileError(message) from error
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            # 64 MiB of cached pages: a transaction on a large graph seldom changes only a few of them.
            connection.execute("PRAGMA cache_size = -65536")
            # Staged keys and ids are never written to disk.
            connection.execute("PRAGMA temp_store = MEMORY")
            # Pages of the log, 64 MiB: with fewer, a large merge would copy its pages back as it commits.
            connection.execute("PRAGMA wal_autocheckpoint = 16384").fetchall()
        except sqlite3.Error as error:
            connection.close()
            self.raise_graph_error(error)
        define_functions(connection)
        held = self._thread_local.held = _ThreadConnection(connection)
        with self._lock:
            self._connections.add(held)
        self._close_if_store_closed(held)
        return held

    def _close_if_store_closed(self, held: _ThreadConnection) -> None:
        """Close a connection that was in use when the database was closed."""
        if self._closed:
            held.close()

    def _run_transaction(self, held: _ThreadConnection) -> Iterator[None]:
        connection = held.connection
        try:
            start, undo, end = _SAVEPOINT if connection.in_transaction else _TRANSACTION
            connection.execute(start)
        except sqlite3.Error as error:
            self.raise_graph_error(error)
        held.depth += 1
        depth = held.depth
        try:
            yield
            self._check_end(held, depth)
            connection.execute(end)
        except BaseException as error:
            # The transaction may have created an index that is now undone.
            self.checked_matches.clear()
            self._undo(held, depth, undo)
            if isinstance(error, sqlite3.Error):
                self.raise_graph_error(error)
            raise
        finally:
            if held.depth == depth:
                held.depth -= 1

    def _check_end(self, held: _ThreadConnection, depth: int) -> None:
        """Refuse to commit a transaction that overlaps with another, or was ended inside."""
        if self._closed:
            raise self._make_closed_error()
        if held.process != _process_id:
            raise _make_fork_error()
        if held.depth != depth:
            raise GraphError(
                "Two transactions of one thread overlap, so both are undone. Do not await inside a transaction, or "
                "give each task a thread."
            )
        if not held.connection.in_transaction:
            message = "The transaction was ended inside its block, by a COMMIT or ROLLBACK; leave that to the block."
            raise GraphError(message)

    def _undo(self, held: _ThreadConnection, depth: int, statements: Sequence[str]) -> None:
        # Closing the connection, or an overlapping transaction, has undone it already.
        if self._closed or held.process != _process_id or held.depth < depth:
            return
        if held.depth > depth:
            held.depth, statements = 0, ("ROLLBACK",)
        # SQLite itself rolls back after some failures, such as a full disk.
        if held.connection.in_transaction:
            for statement in statements:
                held.connection.execute(statement)

    def _check_unchanged(self) -> None:
        """Refuse results that were read without locks while another process changed the file."""
        if self._opened_state is not None and _read_file_state(self.path) != self._opened_state:
            message = f"Another process has changed {self.path!r} since it was opened read-only. Open it again."
            raise GraphFileError(message)

    def _suggest_remedy(self) -> str:
        if os.path.exists(self.path) and not os.access(self.path, os.R_OK):
            return "The file is not readable; change its permissions."
        if self._mode.startswith("ro"):
            return "Check the path."
        return "Check that its folder exists and is writable."

    def _make_closed_error(self) -> GraphError:
        return GraphError(
            f"The graph database {self.path!r} is closed. Open it again with GraphDatabase({self.path!r})."
        )


_FILE_ERROR_CODES = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
}
# What SQLite says of a statement with too many parts: conditions, parameters, columns or terms.
_SIZE_ERRORS = ("Expression tree is too large", "too many ")
# The statements that start, undo and end a transaction, and a nested one.
_TRANSACTION = ("BEGIN IMMEDIATE", ("ROLLBACK",), "COMMIT")
_SAVEPOINT = ("SAVEPOINT merganser", ("ROLLBACK TO merganser", "RELEASE merganser"), "RELEASE merganser")

# Connections of a parent process, kept open here: closing one would delete files that the parent uses.
_inherited_connections: list[sqlite3.Connection] = []
_process_id = os.getpid()


def _fetch_all(connection: sqlite3.Connection, statement: str, parameters: Sequence[Parameter]) -> list[Any]:
    return connection.execute(statement, parameters).fetchall()


def _make_fork_error() -> GraphError:
    return GraphError("This process was forked inside a transaction of its parent. Fork when no transaction is open.")


def _update_process_id() -> None:
    global _process_id  # noqa: PLW0603 - asking the system each time takes longer than a statement
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_update_process_id)


class _ThreadConnection:
    """The connection of a thread, closed when the thread has ended; its lock is held while it is in use.

    Python may crash if a connection is closed during a statement.
    """

    __slots__ = ("__weakref__", "connection", "depth", "lock", "process")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # The number of our nested transactions that are open.
        self.depth = 0
        self.lock = threading.RLock()
        self.process = _process_id

    def close(self) -> None:
        if self.process != _process_id:
            _inherited_connections.append(self.connection)
        elif self.lock.acquire(blocking=False):
            with self.lock:
                self.connection.close()
            self.lock.release()
        else:
            # Its own thread may close it at this moment.
            with suppress(sqlite3.ProgrammingError):
                self.connection.interrupt()

    __del__ = close


def _read_path(given: str | os.PathLike[str]) -> str:
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        raise GraphFileError(
            f"This Python has SQLite {sqlite3.sqlite_version}; a graph database needs 3.38 or newer. Use a Python that "
            "has it."
        )
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path or "://" in path or "\0" in path:
        message = f"A graph database is a file on a local disk, or ':memory:'; {path!r} is neither. Give such a path."
        raise InvalidArgumentError(message)
    if os.path.isdir(path):
        raise GraphFileError(f"{path!r} is a folder; a graph database is a file. Give the path of the file.")
    return path


def _has_no_writer(path: str) -> bool:
    """Check whether no process has the file open to write, so that the log holds nothing more."""
    return not os.path.exists(f"{os.path.realpath(path)}-wal")


def _read_file_state(path: str) -> tuple[int, ...] | None:
    """Return values that differ once a file has been written, or None if it cannot be accessed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgumentError(f"timeout is {timeout!r}; give the seconds to wait for another writer.")
    return min(timeout, _MAX_TIMEOUT)


def _read_schema(schema: GraphSchema | None) -> GraphSchema | None:
    if schema is not None and not isinstance(schema, GraphSchema):
        raise InvalidArgumentError(f"schema is a {type(schema).__name__}; give a GraphSchema.")
    return schema
