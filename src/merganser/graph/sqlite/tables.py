"""The tables of a graph database, and the migrations of older files."""

from __future__ import annotations

import sqlite3
import time

from merganser.errors import GraphFileError

# "mgsr", which identifies a graph file to `file` and SQLite.
APPLICATION_ID = 0x6D677372

# Step n migrates a file from version n to n + 1.
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
    (
        # Checkpoints of merges of sorted records; a part is a table and a type, such as "nodes Job".
        """CREATE TABLE resume_points (
            part TEXT NOT NULL,
            batch_id TEXT NOT NULL,
            last_id TEXT NOT NULL,
            rows INTEGER NOT NULL,
            created INTEGER NOT NULL,
            changed INTEGER NOT NULL,
            skipped INTEGER NOT NULL,
            done INTEGER NOT NULL,
            PRIMARY KEY (part, batch_id)
        ) WITHOUT ROWID""",
    ),
)


def migrate_file(connection: sqlite3.Connection, path: str, timeout: float) -> None:
    """Migrate the file to the current version."""
    try:
        version = _read_version(connection, path)
        _enable_wal(connection, timeout)
        if version < len(MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have migrated it in the meantime.
            for step in MIGRATIONS[_read_version(connection, path) :]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        message = f"Cannot use {path!r} as a graph database: {error}. Give another path, or restore the file."
        raise GraphFileError(message) from error


def check_readable(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that cannot be read; it need not have the migrations that only writers need."""
    try:
        version = _read_version(connection, path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        message = f"Cannot read {path!r} as a graph database: {error}. Give another path, or restore the file."
        raise GraphFileError(message) from error
    if version == 0:
        message = f"{path!r} is empty. Give the path of a graph, or open it without read_only=True to create one."
        raise GraphFileError(message)


def _enable_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to WAL, so that readers do not wait for a writer; SQLite ignores the timeout for this switch."""
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


def _read_version(connection: sqlite3.Connection, path: str) -> int:
    """Read the version of a graph database, and refuse other databases and newer versions."""
    # One statement, because another process may be migrating the file.
    ((version, application, tables),) = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_user_version, pragma_application_id"
    ).fetchall()
    if application != APPLICATION_ID and (tables or application):
        raise GraphFileError(f"{path!r} is an SQLite database, but not a graph of merganser. Give another path.")
    if version > len(MIGRATIONS):
        message = f"{path!r} was written by a newer merganser (version {version} of the file). Install that one."
        raise GraphFileError(message)
    return int(version)
