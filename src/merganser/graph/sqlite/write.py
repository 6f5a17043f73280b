"""Reads and writes of single records, which merges, imports and the create and update methods share."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace as replace_fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from merganser.errors import (
    EdgeNotFoundError,
    GraphError,
    InvalidArgumentError,
    MergeConflictError,
    NodeNotFoundError,
    PropertyValueError,
    UniqueConstraintError,
)
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, Edge, Node, to_datetime, to_edge, to_node
from merganser.graph.sqlite.sql import to_json_path
from merganser.graph.values import (
    MAX_INT64,
    MIN_INT64,
    apply_properties,
    decode,
    drop_nulls,
    encode,
    normalize_properties,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

ResultT = TypeVar("ResultT")
RecordT = TypeVar("RecordT", Node, Edge)

INSERT_NODE = "INSERT INTO nodes (type, properties, created_at, updated_at) VALUES (?, ?, ?, ?)"
INSERT_EDGE = "INSERT INTO edges (type, from_id, to_id, properties, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
# SQLite's functions take 127 arguments.
_PATHS_PER_CALL = 50
_TABLES: tuple[Table, ...] = ("nodes", "edges")
_UPDATE_PROPERTIES = {table: f"UPDATE {table} SET properties = ?, updated_at = ? WHERE id = ?" for table in _TABLES}
_TOUCH = {table: f"UPDATE {table} SET updated_at = ? WHERE id = ?" for table in _TABLES}


def current_milliseconds() -> int:
    """Return the current time as it is stored: milliseconds, UTC."""
    return time.time_ns() // 1_000_000


def create_node(store: Store, type_: str, properties: Mapping[str, Any] | None) -> Node:
    """Create a node; see `GraphDatabase.create_node`."""
    check_type(type_)
    given = drop_nulls(normalize_properties(properties, "properties"))
    moment = current_milliseconds()
    with store.transaction():
        created = insert_node(store, type_, given, moment)
    return Node(created, type_, given, to_datetime(moment), to_datetime(moment))


def create_edge(store: Store, from_id: int, type_: str, to_id: int, properties: Mapping[str, Any] | None) -> Edge:
    """Create an edge; see `GraphDatabase.create_edge`."""
    check_type(type_)
    check_ids(from_id, to_id)
    given = drop_nulls(normalize_properties(properties, "properties"))
    moment = current_milliseconds()
    with store.transaction():
        made = insert_edge(store, type_, from_id, to_id, given, moment)
    seen = to_datetime(moment)
    return Edge(id=made, type=type_, from_id=from_id, to_id=to_id, properties=given, created_at=seen, updated_at=seen)


def get_node(store: Store, node_id: int) -> Node | None:
    """Read a node by its id."""
    check_ids(node_id)
    rows = store.fetch_all(f"SELECT {NODE_COLUMNS} FROM nodes WHERE id = ?", (node_id,))
    return to_node(rows[0]) if rows else None


def get_edge(store: Store, edge_id: int) -> Edge | None:
    """Read an edge by its id."""
    check_ids(edge_id)
    rows = store.fetch_all(f"SELECT {EDGE_COLUMNS} FROM edges WHERE id = ?", (edge_id,))
    return to_edge(rows[0]) if rows else None


def update_record(
    store: Store, table: Table, read: Callable[[Store, int], RecordT | None], id_: int, given: Any, *, replace: bool
) -> RecordT:
    """Overwrite properties of a node or edge; see `GraphDatabase.update_node`."""
    properties = normalize_properties(given, "properties")
    with store.transaction():
        found = read(store, id_)
        if found is None:
            raise make_not_found_error(table, id_)
        after = drop_nulls(properties) if replace else apply_properties(found.properties, properties)
        moment = current_milliseconds()
        if isinstance(found, Edge):
            check_edge(store, found.type, found.from_id, found.to_id, after)
        else:
            check_node(store, found.type, after)
        update_properties(store, table, found.id, after, moment)
    return replace_fields(found, properties=after, updated_at=to_datetime(moment))


def delete_record(store: Store, table: Table, record_id: int) -> None:
    """Delete a node with its edges, or an edge."""
    check_ids(record_id)
    with store.transaction():
        if not store.connection.execute(f"DELETE FROM {table} WHERE id = ?", (record_id,)).rowcount:
            raise make_not_found_error(table, record_id)


def insert_node(store: Store, type_: str, properties: Properties, moment: int) -> int:
    """Insert a node that has been checked, inside a transaction."""
    check_node(store, type_, properties)
    try:
        done = store.connection.execute(INSERT_NODE, (type_, encode(properties), moment, moment))
    except sqlite3.IntegrityError as error:
        raise translate_integrity_error(store, error, properties) from error
    return done.lastrowid or 0


def insert_edge(store: Store, type_: str, from_id: int, to_id: int, properties: Properties, moment: int) -> int:
    """Insert an edge that has been checked, inside a transaction."""
    check_edge(store, type_, from_id, to_id, properties)
    row = (type_, from_id, to_id, encode(properties), moment, moment)
    try:
        done = store.connection.execute(INSERT_EDGE, row)
    except sqlite3.IntegrityError as error:
        check_nodes(store, from_id, to_id)
        raise translate_integrity_error(store, error, properties) from error
    return done.lastrowid or 0


def update_properties(store: Store, table: Table, record_id: int, properties: Properties, moment: int) -> None:
    """Replace the properties of a record."""
    try:
        done = store.connection.execute(_UPDATE_PROPERTIES[table], (encode(properties), moment, record_id))
    except sqlite3.IntegrityError as error:
        raise translate_integrity_error(store, error, properties) from error
    if not done.rowcount:
        raise make_not_found_error(table, record_id)


def touch_record(store: Store, table: Table, record_id: int, moment: int) -> None:
    """Set the time of a record's last update."""
    store.connection.execute(_TOUCH[table], (moment, record_id))


def touch_records(store: Store, table: Table, ids: Iterable[int]) -> None:
    """Set the time of the last update of records; SQLite finds them in the order in which they are stored."""
    moment = current_milliseconds()
    statement = f"UPDATE {table} SET updated_at = ? WHERE id IN (SELECT value FROM json_each(?))"
    store.connection.execute(statement, (moment, encode(list(ids))))


def check_type(type_: str) -> None:
    """Refuse a value that cannot be the name of a type."""
    if not isinstance(type_, str) or not type_:
        raise InvalidArgumentError(f"The type is {type_!r}; give a name such as 'Job'.")
    if not type_.isascii():
        try:
            type_.encode()
        except UnicodeEncodeError as error:
            message = f"The type {type_!r} has a lone surrogate, which is not a character; decode the string again."
            raise PropertyValueError(message) from error


def check_ids(*ids: int) -> None:
    """Refuse a value that cannot be an id."""
    for given in ids:
        if type(given) is not int or not MIN_INT64 <= given <= MAX_INT64:
            raise InvalidArgumentError(f"{given!r} is not an id; give the id of a node or edge, such as node.id.")


def check_nodes(store: Store, *ids: int) -> None:
    """Refuse ids of nodes that do not exist."""
    for given in ids:
        if not store.fetch_all("SELECT 1 FROM nodes WHERE id = ?", (given,)):
            raise make_not_found_error("nodes", given)


def check_node(store: Store, type_: str, properties: Properties) -> None:
    """Refuse a node that the schema does not allow."""
    if store.schema is not None:
        store.schema.check_node(type_, properties)


def check_edge(store: Store, type_: str, from_id: int, to_id: int, properties: Properties) -> None:
    """Refuse an edge that the schema does not allow."""
    if store.schema is None:
        return
    check_nodes(store, from_id, to_id)
    types = dict(store.connection.execute("SELECT id, type FROM nodes WHERE id IN (?, ?)", (from_id, to_id)))
    store.schema.check_edge(type_, properties, types[from_id], types[to_id])


def make_not_found_error(table: Table, record_id: int) -> GraphError:
    """Create the error for a node or edge that does not exist."""
    message = f"There is no {table[:-1]} with the id {record_id}. It may have been deleted; look it up again."
    return NodeNotFoundError(message) if table == "nodes" else EdgeNotFoundError(message)


def call_with_label(label: str, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Call a function whose errors then name the record by its label."""
    try:
        return function(*arguments)
    except MergeConflictError as error:
        raise error.of(label) from error
    except (InvalidArgumentError, GraphError) as error:
        raise type(error)(f"{label}: {error}") from error


def translate_integrity_error(store: Store, error: sqlite3.IntegrityError, properties: Properties) -> Exception:
    """Translate an error of SQLite to one that names the unique index."""
    rows = store.connection.execute("SELECT name, type, properties FROM property_indexes").fetchall()
    for name, type_, columns in rows:
        # SQLite doubles the quotes in a name that it quotes.
        if str(error).endswith("index '" + name.replace("'", "''") + "'"):
            values = {column: properties.get(column) for column in decode(columns)}
            return UniqueConstraintError(
                f"Another {type_} has {values!r}, and the index {name!r} is unique. Merge on these properties, change "
                "the value, or drop the index."
            )
    return error


@lru_cache(maxsize=256)
def build_update_sql(table: Table, signature: tuple[tuple[str, bool], ...], *, touch: bool) -> str:
    """Build the statement that sets some properties of a record and removes others."""
    set_, removed = ([to_json_path(name) for name, gone in signature if gone is wanted] for wanted in (False, True))
    after = "properties"
    for paths in _split_paths(set_):
        after = f"json_set({after}, {', '.join(f'{path}, json(?)' for path in paths)})"
    for paths in _split_paths(removed):
        after = f"json_remove({after}, {', '.join(paths)})"
    changed = [f"properties -> {path} IS NOT ?" for path in set_]
    changed += [f"properties -> {path} IS NOT NULL" for path in removed]
    only = "" if touch else f" AND ({' OR '.join(changed)})"
    assignment = f"properties = {after}, " if signature else ""
    return f"UPDATE {table} SET {assignment}updated_at = ? WHERE id = ?{only}"


def _split_paths(paths: list[str]) -> Iterator[list[str]]:
    return (paths[start : start + _PATHS_PER_CALL] for start in range(0, len(paths), _PATHS_PER_CALL))
