"""One SQLite file: a connection for each thread, and write transactions that wait for each other.

Every write transaction begins IMMEDIATE. A deferred one that reads before it writes fails at once when another has
written in between, whatever the timeout; an immediate one waits its turn.
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
from merganser.graph.sqlite.sql import define_functions
from merganser.graph.sqlite.tables import check_readable, migrate_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from merganser.graph.sqlite.sql import Parameter

ResultT = TypeVar("ResultT")

MIN_SQLITE_VERSION = (3, 38, 0)
# Seconds; SQLite counts milliseconds in 32 bits.
_MAX_TIMEOUT = 2_000_000


class Store:
    """An open graph database, to be shared between threads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 30.0,
        schema: GraphSchema | None = None,
        read_only: bool = False,
    ) -> None:
        self.path = _read_path(path)
        self.timeout = _read_timeout(timeout)
        self.schema = _read_schema(schema)
        # Types and properties that a merge has been seen to have an index for, or was warned about.
        self.checked_matches: set[tuple[str, tuple[str, ...]]] = set()
        self.warned_matches: set[tuple[str, frozenset[str]]] = set()
        # All connections of a process that name it share a database in memory; it ends with the last of them.
        name = f"/merganser-{uuid.uuid4().hex}?vfs=memdb&mode="
        if self.path != ":memory:":
            name = f"{quote(os.path.abspath(self.path))}?mode="
        self._uri = f"file:{name}"
        self._connections: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread_local = threading.local()
        self._closed = False
        # What the file has to stay like while it is read without locks.
        self._opened_state = _read_file_state(self.path) if read_only and _has_no_writer(self.path) else None
        # The first connection may create the file; later ones find it, or there is something wrong.
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
        """Close the connections of all threads; one that is at work is closed when its work has ended."""
        self._closed = True
        with self._lock:
            every = list(self._connections)
        for held in every:
            held.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that is done inside, or nothing; inside another transaction, as a part of that."""
        held = self._get_connection()
        try:
            with held.lock:
                yield from self._run_transaction(held)
        finally:
            self._close_if_store_closed(held)

    def run(self, work: Callable[..., ResultT], *given: Any) -> ResultT:
        """Do some work with this thread's connection."""
        held = self._get_connection()
        try:
            with held.lock:
                found = work(*given)
        except sqlite3.Error as error:
            self.raise_graph_error(error)
        finally:
            self._close_if_store_closed(held)
        self._check_unchanged()
        return found

    def run_in_transaction(self, work: Callable[..., ResultT], *given: Any) -> ResultT:
        """Do some work in the transaction that this thread is in, or else in one of its own."""
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
        """Run a statement, and give what it reads."""
        return self.run(lambda: self.connection.execute(statement, parameters).fetchall())

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Let several statements read the same state of the database."""
        held = self._get_connection()
        connection = held.connection
        try:
            with held.lock:
                alone = not connection.in_transaction
                if alone:
                    connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if alone and not self._closed:
                        connection.execute("ROLLBACK")
            self._check_unchanged()
        except sqlite3.Error as error:
            self.raise_graph_error(error)
        finally:
            self._close_if_store_closed(held)

    def raise_graph_error(self, error: sqlite3.Error) -> NoReturn:
        """Give what happens to files an error that names the file; a mistake in SQL stays what it is."""
        if self._closed:
            raise self._make_closed_error() from error
        self._check_unchanged()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            message = (
                f"Another process or thread kept {self.path!r} locked for {self.timeout:g} s. Try again, keep "
                "transactions shorter, or give GraphDatabase a longer timeout."
            )
            raise GraphLockedError(message) from error
        if code in _FILE_ERROR_CODES and self._mode.startswith("ro"):
            message = (
                f"{self.path!r} cannot be read as a graph database: {error}. See that it is the right file and that it "
                "may be read; to change it, open it without read_only=True."
            )
            raise GraphFileError(message) from error
        if code in _FILE_ERROR_CODES:
            message = (
                f"{self.path!r} cannot be used as a graph database: {error}. What was not committed is undone. See "
                "that it is the right file, that it may be read and written, and that the disk has room."
            )
            raise GraphFileError(message) from error
        raise error

    def _get_connection(self) -> _ThreadConnection:
        try:
            held: _ThreadConnection = self._thread_local.held
        except AttributeError:
            return self._open()
        if held.process == _process_id and not self._closed:
            return held
        # A connection must not cross a fork; in one transaction's locks, SQLite here sees a transaction of its own.
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
            # KiB for pages: what a transaction changes in a large graph is seldom in few of them.
            connection.execute("PRAGMA cache_size = -65536")
            # Pages of the log, 64 MB: a merge all over a large graph would otherwise copy its pages back as it commits.
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
        """Close a connection that was at work when the database was closed."""
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
            # An index may be gone that a merge was seen to have.
            self.checked_matches.clear()
            self._undo(held, depth, undo)
            if isinstance(error, sqlite3.Error):
                self.raise_graph_error(error)
            raise
        finally:
            if held.depth == depth:
                held.depth -= 1

    def _check_end(self, held: _ThreadConnection, depth: int) -> None:
        """Refuse to commit what is not this transaction's alone."""
        if self._closed:
            raise self._make_closed_error()
        if held.process != _process_id:
            raise _make_fork_error()
        if held.depth != depth:
            message = (
                "Two transactions of one thread overlap, so both are undone. Do not await inside a transaction, or "
                "give each task a thread."
            )
            raise GraphError(message)
        if not held.connection.in_transaction:
            message = "The transaction was ended inside its block, by a COMMIT or ROLLBACK; leave that to the block."
            raise GraphError(message)

    def _undo(self, held: _ThreadConnection, depth: int, statements: Sequence[str]) -> None:
        # Closing undoes as well, and what an overlapping transaction has undone is undone.
        if self._closed or held.process != _process_id or held.depth < depth:
            return
        if held.depth > depth:
            held.depth, statements = 0, ("ROLLBACK",)
        # SQLite itself rolls back after some failures, such as a full disk.
        if held.connection.in_transaction:
            for statement in statements:
                held.connection.execute(statement)

    def _check_unchanged(self) -> None:
        """Refuse what was read without locks while another process changed the file."""
        if self._opened_state is not None and _read_file_state(self.path) != self._opened_state:
            message = f"Another process has changed {self.path!r} since it was opened to read only. Open it again."
            raise GraphFileError(message)

    def _suggest_remedy(self) -> str:
        if os.path.exists(self.path) and not os.access(self.path, os.R_OK):
            return "The file may not be read; change its permissions."
        if self._mode.startswith("ro"):
            return "Check the path."
        return "Check that its folder exists and is writable."

    def _make_closed_error(self) -> GraphError:
        return GraphError(
            f"The graph database {self.path!r} is closed. Open it again with GraphDatabase({self.path!r})."
        )


_FILE_ERROR_CODES = {
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
_inherited_connections: list[sqlite3.Connection] = []
_process_id = os.getpid()


def _make_fork_error() -> GraphError:
    return GraphError("This process was forked inside a transaction, which is its parent's. Fork when none is open.")


def _update_process_id() -> None:
    global _process_id  # noqa: PLW0603 - asking the system each time would take longer than a statement
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_update_process_id)


class _ThreadConnection:
    """A thread's connection, closed when the thread has ended; while its lock is held, it is at work.

    Python may crash if a connection is closed under a statement.
    """

    __slots__ = ("__weakref__", "connection", "depth", "lock", "process")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # How many transactions of ours are open, one within another.
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
            # Its own thread may close it in this moment.
            with suppress(sqlite3.ProgrammingError):
                self.connection.interrupt()

    __del__ = close


def _read_path(given: str | os.PathLike[str]) -> str:
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        message = (
            f"This Python has SQLite {sqlite3.sqlite_version}; a graph database needs 3.38 or newer. Use a Python that "
            "has it."
        )
        raise GraphFileError(message)
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path or "://" in path or "\0" in path:
        message = f"A graph database is a file on a local disk, or ':memory:'; {path!r} is neither. Give such a path."
        raise InvalidArgumentError(message)
    if os.path.isdir(path):
        message = f"{path!r} is a folder; a graph database is a file. Give the path of the file."
        raise GraphFileError(message)
    return path


def _has_no_writer(path: str) -> bool:
    """Tell whether nobody has a file open to write, so that it holds all there is."""
    return not os.path.exists(f"{os.path.realpath(path)}-wal")


def _read_file_state(path: str) -> tuple[int, ...] | None:
    """Give what is different once a file has been written; None if nothing can be told of it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        message = f"timeout is {timeout!r}; give the seconds to wait for another writer."
        raise InvalidArgumentError(message)
    return min(timeout, _MAX_TIMEOUT)


def _read_schema(schema: GraphSchema | None) -> GraphSchema | None:
    if schema is not None and not isinstance(schema, GraphSchema):
        message = f"schema is a {type(schema).__name__}; give a GraphSchema."
        raise InvalidArgumentError(message)
    return schema
