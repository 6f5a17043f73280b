"""MERGE of many rows in one transaction, with the outcome of merging them one by one.

Rows are taken in batches. A batch is looked up by one join, decided in memory row after row, and written by one
statement for what is new and one for what is matched. Where that could differ from merging the rows one by one (another
unique index, keys that are lists or fractions), or needs whole records (a schema), they are merged one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.errors import InvalidArgumentError, MergeConflictError, NodeNotFoundError
from merganser.graph.merging.merge import (
    Change,
    check_direction,
    find_nodes,
    merge_one_edge,
    merge_one_node,
)
from merganser.graph.records import BulkResult
from merganser.graph.sqlite.indexes import all_indexes, read_names, warn_without_index
from merganser.graph.sqlite.lookup import batches, check_columns, find, first_places, keys_of
from merganser.graph.sqlite.sql import has_path, path
from merganser.graph.sqlite.write import INSERT_EDGE, INSERT_NODE, check_type, labelled, not_there, now
from merganser.graph.values import encode, laid_over, plain, plain_name, without_null

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.graph.records import MergedEdge, MergedNode
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# Columns that one statement lays over; SQLite's functions take 127 arguments, and its conditions 1,000 parts.
_MOST_LAID = 300
_AT_ONCE = 50


# Columns that are laid over the properties of their names, or over those that they are given for.
Columns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The node at one end of an edge: its type, and for each match property the column that holds its value.

    >>> Endpoint("Job", {"url": "job_url"}).type
    'Job'
    """

    type: str
    match: Mapping[str, str]

    def __post_init__(self) -> None:
        check_type(self.type)
        if not isinstance(self.match, Mapping) or not self.match:
            message = f"The match of the endpoint {self.type} is {self.match!r}; give {{property: column}}."
            raise InvalidArgumentError(message)
        read_names(list(self.match), "the match of an endpoint")
        # Two properties may have the value of one column.
        read_names(sorted(set(self.match.values()), key=str), "the match of an endpoint")


def bulk_merge_nodes(
    store: Store,
    type_: str,
    rows: Any,
    *,
    match_on: str | Sequence[str],
    on_match: Columns,
    touch: bool,
    warn: bool,
) -> BulkResult:
    """Merge rows into nodes; see `GraphDatabase.bulk_merge_nodes`."""
    check_type(type_)
    names = read_names(match_on, "match_on")
    if not names:
        message = f"match_on is empty; name the columns that identify a {type_}."
        raise InvalidArgumentError(message)
    if warn:
        warn_without_index(store, type_, names)
    return BulkNodes(store, type_, names, read_over(on_match, names), touch=touch).run(rows)


def bulk_merge_edges(
    store: Store,
    type_: str,
    rows: Any,
    *,
    from_node: str | Endpoint,
    to_node: str | Endpoint,
    match_on: str | Sequence[str],
    on_match: Columns,
    direction: str,
    touch: bool,
    warn: bool,
) -> BulkResult:
    """Merge rows into edges; see `GraphDatabase.bulk_merge_edges`."""
    check_type(type_)
    check_direction(direction)
    names = read_names(match_on, "match_on")
    work = BulkEdges(store, type_, names, read_over(on_match, names), touch=touch)
    work.connect(from_node, to_node, both=direction == "both")
    for end in (from_node, to_node):
        if warn and isinstance(end, Endpoint):
            warn_without_index(store, end.type, end.match)
    return work.run(rows)


def read_over(given: Columns, names: tuple[str, ...]) -> dict[str, str]:
    """Read which column is laid over which property, and leave out match properties: a match has them already.

    >>> read_over({"seen": "today", "url": "url"}, ("url",)), read_over(["seen"], ("url",))
    ({'seen': 'today'}, {'seen': 'seen'})
    """
    if isinstance(given, Mapping):
        over = {plain_name(name, "on_match"): plain_name(column, "on_match") for name, column in given.items()}
    else:
        over = {name: name for name in read_names(given, "on_match")}
    for name in names:
        if over.pop(name, name) != name:
            message = f"on_match gives the match property {name!r} another column; leave it out."
            raise InvalidArgumentError(message)
    return over


@dataclass(slots=True)
class _Record:
    """What a key stands for: a new record with its properties, or one that is there with what is laid over them."""

    id: int | None
    properties: Properties
    ends: tuple[int, ...] = ()
    matched: bool = False


class BulkNodes:
    """A bulk merge of nodes; a row is its properties, as they will be stored."""

    table: Table = "nodes"
    insert = INSERT_NODE
    # The condition on what a key has before the match properties.
    ends = ""

    def __init__(self, store: Store, type_: str, names: tuple[str, ...], over: dict[str, str], *, touch: bool) -> None:
        self.store = store
        self.type = type_
        self.names = names
        self.columns = dict(zip(names, names, strict=True))
        # The column that is laid over each of these properties.
        self.over = over
        # Columns that are no properties; one that is laid over the property of its name is one.
        self.own = {*names, *(name for name, column in over.items() if name == column)}
        self.apart = set(over.values()) - self.own
        self.touch = touch
        # Records that were there and got other values, if none was merely touched and no key came twice.
        self.changed = 0

    def run(self, given: Any) -> BulkResult:
        """Merge all rows, or none."""
        created = count = 0
        with self.store.transaction():
            one_by_one = self.intertwined()
            for batch in batches(given, (*self.apart, *self.own)):
                rows = [plain(row, f"row {number}") for number, row in enumerate(batch, count)]
                ends = self.connected(rows, count)
                keys = keys_of(rows, self.columns, count)
                if one_by_one or keys is None:
                    created += self.merge_each(count, rows, ends)
                else:
                    created += self.merge_batch(count, rows, ends, self.with_ends(ends, keys))
                count += len(rows)
        return BulkResult(created, count - created)

    def intertwined(self) -> bool:
        """Tell whether it takes more than their keys and what is laid over them to know what becomes of records."""
        return (
            self.store.schema is not None
            or not all(map(has_path, self.over))
            or len(self.over) > _MOST_LAID
            or any(
                found.unique and (self.ends or set(found.properties) != set(self.names))
                for found in all_indexes(self.store)
                if (found.table, found.type) == (self.table, self.type)
            )
        )

    def connected(self, rows: list[Properties], first: int) -> list[tuple[int, ...]]:  # noqa: ARG002 - edges need it
        """Find the nodes that each row connects."""
        return [()] * len(rows)

    def with_ends(self, ends: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:  # noqa: ARG002 - as above
        """Put what a row connects before its key."""
        return keys

    def merge_each(self, first: int, rows: list[Properties], ends: list[tuple[int, ...]]) -> int:
        """Merge a batch row after row, and count what it creates."""
        before = self.store.connection.total_changes
        created = sum(map(self.merge_one, range(first, first + len(rows)), rows, ends))
        self.changed += self.store.connection.total_changes - before - created
        return created

    def merge_one(self, number: int, row: Properties, ends: tuple[int, ...]) -> bool:
        """Merge one row, and tell whether it created anything."""
        match = {name: row[name] for name in self.names}
        change = Change(self.laid(row), match, {}, allow_key_change=False, touch=self.touch)
        return labelled(f"row {number}", self.merged, match, self.new(row), change, ends).created

    def merged(
        self,
        match: Properties,
        new: Properties,
        change: Change,
        ends: tuple[int, ...],  # noqa: ARG002 - as above
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        return merge_one_node(self.store, self.type, match, new, change)

    def laid(self, row: Properties) -> Properties:
        """Give what a row lays over what it matches."""
        return {name: row[column] for name, column in self.over.items() if column in row}

    def new(self, row: Properties) -> Properties:
        """Give what a row creates."""
        if self.apart:
            row = {name: value for name, value in row.items() if name not in self.apart}
        return without_null(row)

    def merge_batch(self, first: int, rows: list[Properties], ends: list[tuple[int, ...]], keys: list[Key]) -> int:
        """Merge a batch at once, and count what it creates."""
        records = self.found(first, rows, ends, keys)
        created = 0
        for row, end, key in zip(rows, ends, keys, strict=True):
            record = records.get(key)
            if record is None:
                records[key] = _Record(None, self.new(row), end)
                created += 1
                continue
            record.matched = True
            if self.over and record.id is None:
                record.properties = laid_over(record.properties, self.laid(row))
            elif self.over:
                record.properties = {**record.properties, **self.laid(row)}
        self.write(records.values())
        return created

    def found(
        self, first: int, rows: list[Properties], ends: list[tuple[int, ...]], keys: list[Key]
    ) -> dict[Key, _Record]:
        """Find what is there for each key."""
        places = first_places(keys)
        distinct = list(places)
        records: dict[Key, _Record] = {}
        for slot, record_id in find(self.store, self.table, "r.id", self.type, self.names, distinct, self.ends):
            key = distinct[slot]
            if key in records:
                # It meets the same conflict, and says so.
                self.merge_one(first + places[key], rows[places[key]], ends[places[key]])
            records[key] = _Record(record_id, {})
        return records

    def write(self, records: Iterable[_Record]) -> None:
        """Write what is new, and lay what is to be laid over what is there."""
        moment = now()
        new = []
        # By what is set and what is removed, the statement is the same.
        matched: defaultdict[tuple[tuple[str, bool], ...], list[tuple[Any, ...]]] = defaultdict(list)
        for record in records:
            if record.id is None:
                new.append((self.type, *record.ends, encode(record.properties), moment, moment))
            elif record.matched:
                shape = tuple((name, value is None) for name, value in record.properties.items())
                values = [encode(value) for value in record.properties.values() if value is not None]
                matched[shape].append((*values, moment, record.id, *(() if self.touch else values)))
        self.store.connection.executemany(self.insert, new)
        for shape, parameters in matched.items():
            if self.touch or shape:
                statement = _lay_over(self.table, shape, touch=self.touch)
                self.changed += self.store.connection.executemany(statement, parameters).rowcount


class BulkEdges(BulkNodes):
    """A bulk merge of edges: their key begins with the nodes that they connect."""

    table: Table = "edges"
    insert = INSERT_EDGE
    ends = "r.from_id = k.c0 AND r.to_id = k.c1 AND "

    def connect(self, from_node: str | Endpoint, to_node: str | Endpoint, *, both: bool) -> None:
        """Say by which columns rows name the nodes that they connect."""
        self.both = both
        if both:
            self.ends = "((r.from_id = k.c0 AND r.to_id = k.c1) OR (r.from_id = k.c1 AND r.to_id = k.c0)) AND "
        self.named = (from_node, to_node)
        for end in self.named:
            if isinstance(end, Endpoint):
                self.apart.update(end.match.values())
            elif isinstance(end, str):
                self.apart.add(end)
            else:
                message = f"from_node or to_node is {end!r}; give a column of ids, or an Endpoint."
                raise InvalidArgumentError(message)
        self.apart -= self.own

    def connected(self, rows: list[Properties], first: int) -> list[tuple[int, ...]]:
        """Find the nodes that each row connects."""
        return list(zip(*(self.nodes(end, rows, first) for end in self.named), strict=True))

    def nodes(self, end: str | Endpoint, rows: list[Properties], first: int) -> list[int]:
        """Find the node at one end of each row."""
        if isinstance(end, str):
            return self.known(end, rows, first)
        keys = keys_of(rows, end.match, first)
        if keys is None:
            return [self.node(end, row, number) for number, row in enumerate(rows, first)]
        places = first_places(keys)
        distinct = list(places)
        ids: dict[Key, int] = {}
        for slot, found in find(self.store, "nodes", "r.id", end.type, tuple(end.match), distinct):
            place = places[distinct[slot]]
            ids[distinct[slot]] = self.node(end, rows[place], first + place) if distinct[slot] in ids else found
        for place, key in enumerate(keys):
            if key not in ids:
                ids[key] = self.node(end, rows[place], first + place)
        return [ids[key] for key in keys]

    def known(self, column: str, rows: list[Properties], first: int) -> list[int]:
        """Check the ids in a column."""
        check_columns(rows, [column], first)
        ids: list[Any] = [row[column] for row in rows]
        for number, given in enumerate(ids, first):
            if type(given) is not int:
                message = f"row {number}: the column {column!r} has {given!r}, which is no id; give the ids of nodes."
                raise InvalidArgumentError(message)
        unknown = self.store.connection.execute(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM nodes)", (encode(ids),)
        ).fetchone()
        if unknown:
            message = f"row {first + ids.index(unknown[0])}, column {column!r}: {not_there('nodes', unknown[0])}"
            raise NodeNotFoundError(message)
        return ids

    def node(self, end: Endpoint, row: Properties, number: int) -> int:
        """Find one node, or say why it cannot be told."""
        match = {name: row[column] for name, column in end.match.items()}
        found = find_nodes(self.store, end.type, match)
        if len(found) > 1:
            raise MergeConflictError(end.type, match, found, label=f"row {number}")
        if not found:
            message = f"row {number}: there is no {end.type} node with {match!r}. Merge the nodes before their edges."
            raise NodeNotFoundError(message)
        return found[0].id

    def with_ends(self, ends: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:
        """Put what a row connects before its key."""
        return [(*(sorted(end) if self.both else end), *key) for end, key in zip(ends, keys, strict=True)]

    def merged(
        self, match: Properties, new: Properties, change: Change, ends: tuple[int, ...]
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        from_id, to_id = ends
        return merge_one_edge(self.store, from_id, self.type, to_id, match, new, change, self.both)


@lru_cache(maxsize=256)
def _lay_over(table: Table, shape: tuple[tuple[str, bool], ...], *, touch: bool) -> str:
    """Give the statement that sets some properties of a record and removes others."""
    set_, removed = ([path(name) for name, gone in shape if gone is wanted] for wanted in (False, True))
    after = "properties"
    for goals in _some(set_):
        after = f"json_set({after}, {', '.join(f'{goal}, json(?)' for goal in goals)})"
    for goals in _some(removed):
        after = f"json_remove({after}, {', '.join(goals)})"
    changed = [f"properties -> {goal} IS NOT ?" for goal in set_]
    changed += [f"properties -> {goal} IS NOT NULL" for goal in removed]
    only = "" if touch else f" AND ({' OR '.join(changed)})"
    laid = f"properties = {after}, " if shape else ""
    return f"UPDATE {table} SET {laid}updated_at = ? WHERE id = ?{only}"


def _some(goals: list[str]) -> Iterator[list[str]]:
    return (goals[start : start + _AT_ONCE] for start in range(0, len(goals), _AT_ONCE))
