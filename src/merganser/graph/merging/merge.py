"""MERGE of one node or edge: find by the match, then lay `on_match` over what is there, or create.

A match and the write that follows are one transaction that began IMMEDIATE, so that no other merge comes in between.
Each writes with one statement, which is undone by itself if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from merganser.errors import InvalidArgumentError, MergeConflictError
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, MergedEdge, MergedNode, Node, at, edge, node
from merganser.graph.sqlite.indexes import warn_without_index
from merganser.graph.sqlite.sql import conditions, match_terms
from merganser.graph.sqlite.write import (
    check_edge,
    check_ids,
    check_type,
    insert_edge,
    insert_node,
    not_there,
    now,
    touch,
    write,
)
from merganser.graph.values import changes, decode, equal, has_dict, laid_over, plain, without_null

if TYPE_CHECKING:
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

Given: TypeAlias = Mapping[str, Any]
# New properties, or a function that makes them of the old ones.
OnMatch: TypeAlias = Given | Callable[[dict[str, Any]], Given]

# SQLite's conditions may not be nested deeper than a thousand.
_MOST_MATCHED = 200
Merged = TypeVar("Merged", MergedNode, MergedEdge)


@dataclass(slots=True)
class Change:
    """What a merge does to what it finds."""

    over: Properties | Callable[[dict[str, Any]], Given]
    match: Properties
    condition: Properties
    allow_key_change: bool
    touch: bool

    def apply(self, store: Store, table: Table, record_id: int, text: str) -> tuple[Properties, bool | None]:
        """Give the properties after a match, and whether they changed; None where the condition does not hold.

        They are read again after a function, which may have changed them itself.
        """
        old: Properties = decode(text)
        if self.condition and not all(equal(old.get(name), value) for name, value in self.condition.items()):
            return old, None
        over = self.over
        if callable(over):
            over = plain(over(decode(text)), "on_match")
            self.check(over)
            old = decode(_stored(store, table, record_id))
        return (laid_over(old, over), True) if changes(old, over) else (old, False)

    def check(self, over: Properties) -> None:
        """Refuse to change what nodes are found by."""
        if over and not self.allow_key_change:
            _check_key("on_match", over, self.match, "Leave it out, or give allow_key_change=True.")


def merge_node(
    store: Store,
    type_: str,
    match: Given,
    base: Given | None,
    *,
    on_create: Given | None,
    on_match: OnMatch | None,
    condition: Given | None,
    allow_key_change: bool,
    touch_it: bool,
    warn: bool,
) -> MergedNode:
    """Find or create a node; see `GraphDatabase.merge_node`."""
    check_type(type_)
    key = read_match(match)
    check_match(type_, key)
    if warn and (type_, tuple(key)) not in store.checked:
        warn_without_index(store, type_, key)
    new = read_new(key, base, on_create, "base")
    change = read_change(key, on_match, condition, allow_key_change=allow_key_change, touch_it=touch_it)
    return _as_one(store, on_match, merge_one_node, store, type_, key, new, change)


def merge_edge(
    store: Store,
    from_id: int,
    type_: str,
    to_id: int,
    properties: Given | None,
    *,
    on_create: Given | None,
    on_match: OnMatch | None,
    match: Given | None,
    direction: str,
    condition: Given | None,
    allow_key_change: bool,
    touch_it: bool,
) -> MergedEdge:
    """Find or create an edge; see `GraphDatabase.merge_edge`."""
    check_type(type_)
    check_ids(from_id, to_id)
    check_direction(direction)
    key = read_match(match)
    new = read_new(key, properties, on_create, "properties")
    change = read_change(key, on_match, condition, allow_key_change=allow_key_change, touch_it=touch_it)
    either = direction == "both"
    return _as_one(store, on_match, merge_one_edge, store, from_id, type_, to_id, key, new, change, either)


def _as_one(store: Store, on_match: OnMatch | None, merge: Callable[..., Merged], *given: Any) -> Merged:
    """Merge in a transaction; within the caller's, a savepoint is made only for what a function may write."""
    if callable(on_match):
        with store.transaction():
            return merge(*given)
    return store.run_within(merge, *given)


def check_direction(direction: str) -> None:
    """Refuse what is no direction of an edge merge."""
    if direction not in ("out", "both"):
        message = f"direction is {direction!r}; give 'out', or 'both' to match an edge that points either way."
        raise InvalidArgumentError(message)


def read_match(match: Given | None) -> Properties:
    """Check what records are found by."""
    key = plain(match, "match")
    if len(key) > _MOST_MATCHED:
        message = f"The match has {len(key)} properties; match on at most {_MOST_MATCHED} that identify a record."
        raise InvalidArgumentError(message)
    for name, value in key.items():
        if value is None:
            message = (
                f"match property {name!r} is NULL, which equals nothing: each run would create another record. Leave "
                "out such records, or match on other properties."
            )
            raise InvalidArgumentError(message)
        if has_dict(value):
            message = f"match property {name!r} is or holds a dict, which cannot be matched on; match on its parts."
            raise InvalidArgumentError(message)
    return key


def check_match(type_: str, key: Properties) -> None:
    """Refuse to look for a node by its type alone."""
    if not key:
        message = f"The match of a {type_} is empty; give the properties that identify a node."
        raise InvalidArgumentError(message)


def read_new(key: Properties, base: Given | None, on_create: Given | None, role: str) -> Properties:
    """Give the properties of a new record: the match, then the base, then `on_create`."""
    new = key
    for word, given in ((role, base), ("on_create", on_create)):
        if given is not None:
            part = plain(given, word)
            _check_key(word, part, key, "Give it the same value, or leave it out.")
            new = {**new, **part}
    return without_null(new)


def read_change(
    key: Properties, on_match: OnMatch | None, condition: Given | None, *, allow_key_change: bool, touch_it: bool
) -> Change:
    """Check what is to happen to a record that is found."""
    over = on_match if callable(on_match) else plain(on_match, "on_match")
    change = Change(over, key, plain(condition, "condition"), allow_key_change, touch_it)
    if not callable(over):
        change.check(over)
    return change


def merge_one_node(store: Store, type_: str, key: Properties, new: Properties, change: Change) -> MergedNode:
    """Merge a node that has been checked, inside a transaction."""
    terms, parameters = match_terms(key)
    rows = store.connection.execute(_find_nodes(type_, terms), parameters).fetchall()
    if not rows:
        return new_node(store, type_, new)
    if len(rows) > 1:
        raise MergeConflictError(type_, key, [node(row) for row in rows])
    return match_node(store, rows[0], change)


def new_node(store: Store, type_: str, new: Properties) -> MergedNode:
    """Create the node that was not found."""
    moment = now()
    created, seen = insert_node(store, type_, new, moment), at(moment)
    return MergedNode(created, type_, new, seen, seen, created=True)


def match_node(store: Store, row: tuple[int, str, str, int, int], change: Change) -> MergedNode:
    """Do to a node that was found what a merge does to it."""
    found, type_, text, created_at, updated_at = row
    after, changed = change.apply(store, "nodes", found, text)
    if changed is not None and (changed or change.touch):
        if store.schema is not None:
            store.schema.check_node(type_, after)
        updated_at = now()
        if changed:
            write(store, "nodes", found, after, updated_at)
        else:
            touch(store, "nodes", found, updated_at)
    return MergedNode(found, type_, after, at(created_at), at(updated_at), created=False)


def merge_one_edge(
    store: Store,
    from_id: int,
    type_: str,
    to_id: int,
    key: Properties,
    new: Properties,
    change: Change,
    either: bool,  # noqa: FBT001 - the last of what makes an edge
) -> MergedEdge:
    """Merge an edge that has been checked, inside a transaction."""
    terms, parameters = match_terms(key)
    ends = (from_id, to_id, to_id, from_id) if either else (from_id, to_id)
    rows = store.connection.execute(_find_edges(type_, terms, either), (*ends, *parameters)).fetchall()
    if not rows:
        return new_edge(store, type_, from_id, to_id, new)
    if len(rows) > 1:
        described = {"from_id": from_id, "to_id": to_id, **key}
        raise MergeConflictError(type_, described, [edge(row) for row in rows], "edges")
    return match_edge(store, rows[0], change)


def new_edge(store: Store, type_: str, from_id: int, to_id: int, new: Properties) -> MergedEdge:
    """Create the edge that was not found."""
    moment = now()
    created, seen = insert_edge(store, type_, from_id, to_id, new, moment), at(moment)
    return MergedEdge(created, type_, from_id, to_id, new, seen, seen, created=True)


def match_edge(store: Store, row: tuple[int, str, int, int, str, int, int], change: Change) -> MergedEdge:
    """Do to an edge that was found what a merge does to it."""
    found, type_, start, end, text, created_at, updated_at = row
    after, changed = change.apply(store, "edges", found, text)
    if changed is not None and (changed or change.touch):
        check_edge(store, type_, start, end, after)
        updated_at = now()
        if changed:
            write(store, "edges", found, after, updated_at)
        else:
            touch(store, "edges", found, updated_at)
    return MergedEdge(found, type_, start, end, after, at(created_at), at(updated_at), created=False)


def _stored(store: Store, table: Table, record_id: int) -> str:
    row = store.connection.execute(f"SELECT properties FROM {table} WHERE id = ?", (record_id,)).fetchone()
    if row is None:
        raise not_there(table, record_id)
    return str(row[0])


def find_nodes(store: Store, type_: str, match: Properties) -> list[Node]:
    """Find the nodes that match."""
    terms, parameters = match_terms(match)
    return [node(row) for row in store.connection.execute(_find_nodes(type_, terms), parameters)]


@lru_cache(maxsize=1024)
def _find_nodes(type_: str, terms: tuple[tuple[str, str], ...]) -> str:
    return f"SELECT {NODE_COLUMNS} FROM nodes WHERE {conditions(type_, terms)}"


@lru_cache(maxsize=1024)
def _find_edges(type_: str, terms: tuple[tuple[str, str], ...], either: bool) -> str:  # noqa: FBT001 - a cache key
    ends = "((from_id = ? AND to_id = ?) OR (from_id = ? AND to_id = ?))" if either else "from_id = ? AND to_id = ?"
    return f"SELECT {EDGE_COLUMNS} FROM edges WHERE {ends} AND {conditions(type_, terms)}"


def _check_key(role: str, given: Properties, key: Properties, remedy: str) -> None:
    for name in key:
        if name in given and not equal(given[name], key[name]):
            message = f"{role} gives the match property {name!r} the value {given[name]!r}, not {key[name]!r}. {remedy}"
            raise InvalidArgumentError(message)
