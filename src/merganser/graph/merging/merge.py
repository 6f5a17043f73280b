"""MERGE of one node or edge: find it by its match properties and overwrite those of `on_match`, or create it.

Match and write share one IMMEDIATE transaction, so that no other merge comes in between. Each merge writes with one
statement, which SQLite undoes by itself if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from merganser.errors import InvalidArgumentError, MergeConflictError
from merganser.graph.records import (
    EDGE_COLUMNS,
    NODE_COLUMNS,
    MergedEdge,
    MergedNode,
    Node,
    to_datetime,
    to_edge,
    to_node,
)
from merganser.graph.sqlite import write
from merganser.graph.sqlite.indexes import warn_without_index
from merganser.graph.sqlite.sql import Table, build_match_sql, split_match
from merganser.graph.values import (
    apply_properties,
    are_equal,
    decode,
    drop_nulls,
    has_changes,
    has_dict,
    normalize_properties,
)

if TYPE_CHECKING:
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

PropertyMap: TypeAlias = Mapping[str, Any]
# New properties, or a function that returns them for the old ones.
OnMatch: TypeAlias = PropertyMap | Callable[[dict[str, Any]], PropertyMap]

# SQLite's conditions may not be nested deeper than a thousand.
_MAX_MATCH_PROPERTIES = 200
MergedT = TypeVar("MergedT", MergedNode, MergedEdge)


@dataclass(slots=True)
class MatchUpdate:
    """What a merge writes to the record that it finds."""

    updates: Properties | Callable[[dict[str, Any]], PropertyMap]
    match: Properties
    condition: Properties
    allow_key_change: bool
    touch: bool
    # Whether the record that was found got other properties.
    changed: bool = False

    def apply(self, store: Store, table: Table, record_id: int, text: str) -> tuple[Properties, bool | None]:
        """Return the properties after a match, and whether they changed: None if the condition does not hold.

        They are read again after calling a function, which may have changed them itself.
        """
        old: Properties = decode(text)
        if self.condition and not all(are_equal(old.get(name), value) for name, value in self.condition.items()):
            return old, None
        updates = self.updates
        if callable(updates):
            updates = normalize_properties(updates(decode(text)), "on_match")
            self.check_key_unchanged(updates)
            old = decode(_read_properties(store, table, record_id))
        self.changed = has_changes(old, updates)
        return (apply_properties(old, updates), True) if self.changed else (old, False)

    def check_key_unchanged(self, updates: Properties) -> None:
        """Refuse updates of match properties, unless they are allowed."""
        if updates and not self.allow_key_change:
            _check_key("on_match", updates, self.match, "Leave it out, or give allow_key_change=True.")


@dataclass(slots=True, kw_only=True)
class MergeOptions:
    """What a merge should write, as the caller gave it."""

    base: PropertyMap | None
    on_create: PropertyMap | None
    on_match: OnMatch | None
    condition: PropertyMap | None
    allow_key_change: bool
    touch: bool

    def read_new_properties(self, match: Properties, role: str = "base") -> Properties:
        """Check the properties of a new record: the match, then the base, then `on_create`."""
        new = match
        for name, given in ((role, self.base), ("on_create", self.on_create)):
            if given is not None:
                properties = normalize_properties(given, name)
                _check_key(name, properties, match, "Give it the same value, or leave it out.")
                new = {**new, **properties}
        return drop_nulls(new)

    def read_match_update(self, match: Properties) -> MatchUpdate:
        """Check what is written to a record that is found."""
        updates = self.on_match if callable(self.on_match) else normalize_properties(self.on_match, "on_match")
        condition = normalize_properties(self.condition, "condition")
        change = MatchUpdate(updates, match, condition, self.allow_key_change, self.touch)
        if not callable(updates):
            change.check_key_unchanged(updates)
        return change


class EdgeMatch(NamedTuple):
    """How an edge is found: its type, its endpoints and its match properties."""

    type: str
    from_id: int
    to_id: int
    match: Properties
    is_undirected: bool


def merge_node(store: Store, type_: str, match: PropertyMap, options: MergeOptions, *, warn: bool) -> MergedNode:
    """Find or create a node; see `GraphDatabase.merge_node`."""
    write.check_type(type_)
    key = read_match(match)
    check_match(type_, key)
    if warn and (type_, tuple(key)) not in store.checked_matches:
        warn_without_index(store, type_, key)
    new, change = options.read_new_properties(key), options.read_match_update(key)
    return _merge_in_transaction(store, options, merge_one_node, store, type_, key, new, change)


def merge_edge(
    store: Store, from_id: int, type_: str, to_id: int, match: PropertyMap | None, direction: str, options: MergeOptions
) -> MergedEdge:
    """Find or create an edge; see `GraphDatabase.merge_edge`."""
    write.check_type(type_)
    write.check_ids(from_id, to_id)
    check_direction(direction)
    edge = EdgeMatch(type_, from_id, to_id, read_match(match), direction == "both")
    new, change = options.read_new_properties(edge.match, "properties"), options.read_match_update(edge.match)
    return _merge_in_transaction(store, options, merge_one_edge, store, edge, new, change)


def _merge_in_transaction(store: Store, options: MergeOptions, merge: Callable[..., MergedT], *given: Any) -> MergedT:
    """Merge in a transaction; inside the caller's, only a function needs a savepoint, for what it may write."""
    if callable(options.on_match):
        with store.transaction():
            return merge(*given)
    return store.run_in_transaction(merge, *given)


def check_direction(direction: str) -> None:
    """Refuse a direction that edges cannot be merged by."""
    if direction not in ("out", "both"):
        message = f"direction is {direction!r}; give 'out', or 'both' to match an edge that points either way."
        raise InvalidArgumentError(message)


def read_match(match: PropertyMap | None) -> Properties:
    """Check the match properties."""
    key = normalize_properties(match, "match")
    if len(key) > _MAX_MATCH_PROPERTIES:
        raise InvalidArgumentError(
            f"The match has {len(key)} properties; match on at most {_MAX_MATCH_PROPERTIES} that identify a record."
        )
    for name, value in key.items():
        if value is None:
            raise InvalidArgumentError(
                f"match property {name!r} is NULL, which equals nothing: each run would create another record. Leave "
                "out such records, or match on other properties."
            )
        if has_dict(value):
            message = f"match property {name!r} is or holds a dict, which cannot be matched; match on its values."
            raise InvalidArgumentError(message)
    return key


def check_match(type_: str, key: Properties) -> None:
    """Refuse to look for a node by its type alone."""
    if not key:
        raise InvalidArgumentError(f"The match of a {type_} is empty; give the properties that identify a node.")


def merge_one_node(store: Store, type_: str, key: Properties, new: Properties, change: MatchUpdate) -> MergedNode:
    """Merge a node that has been checked, inside a transaction."""
    conditions, parameters = split_match(key)
    rows = store.connection.execute(_build_node_match_sql(type_, conditions), parameters).fetchall()
    if not rows:
        return create_missing_node(store, type_, new)
    if len(rows) > 1:
        raise MergeConflictError(type_, key, [to_node(row) for row in rows])
    return update_matched_node(store, rows[0], change)


def create_missing_node(store: Store, type_: str, new: Properties) -> MergedNode:
    """Create the node that was not found."""
    moment = write.current_milliseconds()
    created, seen = write.insert_node(store, type_, new, moment), to_datetime(moment)
    return MergedNode(created, type_, new, seen, seen, created=True)


def update_matched_node(store: Store, row: tuple[int, str, str, int, int], change: MatchUpdate) -> MergedNode:
    """Update the node that was found."""
    found, type_, text, created_at, updated_at = row
    after, changed = change.apply(store, "nodes", found, text)
    if changed is not None and (changed or change.touch):
        write.check_node(store, type_, after)
        updated_at = write.current_milliseconds()
        if changed:
            write.update_properties(store, "nodes", found, after, updated_at)
        else:
            write.touch_record(store, "nodes", found, updated_at)
    return MergedNode(found, type_, after, to_datetime(created_at), to_datetime(updated_at), created=False)


def merge_one_edge(store: Store, edge: EdgeMatch, new: Properties, change: MatchUpdate) -> MergedEdge:
    """Merge an edge that has been checked, inside a transaction."""
    type_, from_id, to_id, match, is_undirected = edge
    conditions, parameters = split_match(match)
    endpoints = (from_id, to_id, to_id, from_id) if is_undirected else (from_id, to_id)
    statement = _build_edge_match_sql(type_, conditions, is_undirected)
    rows = store.connection.execute(statement, (*endpoints, *parameters)).fetchall()
    if not rows:
        return create_missing_edge(store, type_, from_id, to_id, new)
    if len(rows) > 1:
        described = {"from_id": from_id, "to_id": to_id, **match}
        raise MergeConflictError(type_, described, [to_edge(row) for row in rows], "edges")
    return update_matched_edge(store, rows[0], change)


def create_missing_edge(store: Store, type_: str, start: int, end: int, new: Properties) -> MergedEdge:
    """Create the edge that was not found."""
    moment = write.current_milliseconds()
    created, seen = write.insert_edge(store, type_, start, end, new, moment), to_datetime(moment)
    return MergedEdge(
        id=created, type=type_, from_id=start, to_id=end, properties=new, created_at=seen, updated_at=seen, created=True
    )


def update_matched_edge(store: Store, row: tuple[int, str, int, int, str, int, int], change: MatchUpdate) -> MergedEdge:
    """Update the edge that was found."""
    found, type_, start, end, text, created_at, updated_at = row
    after, changed = change.apply(store, "edges", found, text)
    if changed is not None and (changed or change.touch):
        write.check_edge(store, type_, start, end, after)
        updated_at = write.current_milliseconds()
        if changed:
            write.update_properties(store, "edges", found, after, updated_at)
        else:
            write.touch_record(store, "edges", found, updated_at)
    return MergedEdge(
        id=found,
        type=type_,
        from_id=start,
        to_id=end,
        properties=after,
        created_at=to_datetime(created_at),
        updated_at=to_datetime(updated_at),
        created=False,
    )


def _read_properties(store: Store, table: Table, record_id: int) -> str:
    row = store.connection.execute(f"SELECT properties FROM {table} WHERE id = ?", (record_id,)).fetchone()
    if row is None:
        raise write.make_not_found_error(table, record_id)
    return str(row[0])


def find_nodes(store: Store, type_: str, match: Properties) -> list[Node]:
    """Find the nodes that match."""
    conditions, parameters = split_match(match)
    return [to_node(row) for row in store.connection.execute(_build_node_match_sql(type_, conditions), parameters)]


@lru_cache(maxsize=1024)
def _build_node_match_sql(type_: str, conditions: tuple[tuple[str, str], ...]) -> str:
    return f"SELECT {NODE_COLUMNS} FROM nodes WHERE {build_match_sql(type_, conditions)}"


@lru_cache(maxsize=1024)
def _build_edge_match_sql(type_: str, conditions: tuple[tuple[str, str], ...], is_undirected: bool) -> str:  # noqa: FBT001 - a cache key
    endpoints = "from_id = ? AND to_id = ?"
    if is_undirected:
        endpoints = f"(({endpoints}) OR ({endpoints}))"
    return f"SELECT {EDGE_COLUMNS} FROM edges WHERE {endpoints} AND {build_match_sql(type_, conditions)}"


def _check_key(role: str, given: Properties, key: Properties, remedy: str) -> None:
    for name in key:
        if name in given and not are_equal(given[name], key[name]):
            message = f"{role} gives the match property {name!r} the value {given[name]!r}, not {key[name]!r}. {remedy}"
            raise InvalidArgumentError(message)
