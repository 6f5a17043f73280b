"""MERGE of many rows in one transaction, with the outcome of merging them one by one.

Rows are taken in batches. A batch is looked up by one join, decided in memory row after row, and written by one
statement for what is new and one for what changed. Where that could differ from merging the rows one by one (another
unique index, a schema of edges, keys that are lists or fractions), they are merged one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.errors import InvalidArgumentError, MergeConflictError, NodeNotFoundError
from merganser.graph.indexes import all_indexes
from merganser.graph.lookup import batches, find, keys_of
from merganser.graph.merge import (
    Change,
    check_direction,
    find_nodes,
    merge_one_edge,
    merge_one_node,
    read_match,
)
from merganser.graph.records import BulkResult
from merganser.graph.values import changes, decode, encode, laid_over, plain, without_null
from merganser.graph.write import INSERT_EDGE, INSERT_NODE, check_ids, check_type, no_node, now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.graph.lookup import Key
    from merganser.graph.sql import Table
    from merganser.graph.store import Store
    from merganser.graph.values import Properties


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The node at one end of an edge: its type, and for each match property the column that holds its value.

    >>> Endpoint("Job", {"url": "job_url"}).type
    'Job'
    """

    type: str
    match: Mapping[str, str]


def bulk_merge_nodes(
    store: Store, type_: str, rows: Any, *, match_on: str | Sequence[str], on_match: str | Sequence[str], touch: bool
) -> BulkResult:
    """Merge rows into nodes; see `GraphDatabase.bulk_merge_nodes`."""
    check_type(type_)
    names = read_columns(match_on, "match_on")
    if not names:
        message = f"match_on is empty; name the columns that identify a {type_}."
        raise InvalidArgumentError(message)
    return _Nodes(store, type_, names, read_columns(on_match, "on_match"), touch=touch).run(rows)


def bulk_merge_edges(
    store: Store,
    type_: str,
    rows: Any,
    *,
    from_node: str | Endpoint,
    to_node: str | Endpoint,
    match_on: str | Sequence[str],
    on_match: str | Sequence[str],
    direction: str,
    touch: bool,
) -> BulkResult:
    """Merge rows into edges; see `GraphDatabase.bulk_merge_edges`."""
    check_type(type_)
    check_direction(direction)
    work = _Edges(store, type_, read_columns(match_on, "match_on"), read_columns(on_match, "on_match"), touch=touch)
    work.connect(from_node, to_node, both=direction == "both")
    return work.run(rows)


def read_columns(given: str | Sequence[str], role: str) -> tuple[str, ...]:
    """Read the names of columns."""
    names = (given,) if isinstance(given, str) else tuple(given)
    plain(dict.fromkeys(names), role)
    return names


@dataclass(slots=True)
class _Row:
    """A row: its number, its match properties, what a new record has of it, what a match gets, and what it connects."""

    number: int
    match: Properties
    new: Properties
    over: Properties
    ends: tuple[int, ...] = ()


@dataclass(slots=True)
class _Record:
    """What a key stands for: a record that is there, or one that will be."""

    id: int | None
    properties: Properties
    ends: tuple[int, ...] = ()
    changed: bool = False
    touched: bool = False


class _Nodes:
    """A bulk merge of nodes."""

    table: Table = "nodes"
    insert = INSERT_NODE
    # What the key has before the match properties.
    ends = ""

    def __init__(
        self, store: Store, type_: str, names: tuple[str, ...], on_match: tuple[str, ...], *, touch: bool
    ) -> None:
        self.store = store
        self.type = type_
        self.names = names
        self.over = tuple(name for name in on_match if name not in names)
        self.touch = touch

    def run(self, given: Any) -> BulkResult:
        """Merge all rows, or none."""
        created = count = 0
        with self.store.transaction():
            one_by_one = self.crowded()
            for batch in batches(given):
                rows = self.read(batch, count)
                keys = None if one_by_one else self.keys(rows)
                created += sum(map(self.merge_one, rows)) if keys is None else self.merge_batch(rows, keys)
                count += len(rows)
        return BulkResult(created, count - created)

    def crowded(self) -> bool:
        """Tell whether records may get in each other's way by more than their keys."""
        return any(
            found.unique
            and (found.table, found.type) == (self.table, self.type)
            and set(found.properties) != set(self.names)
            for found in all_indexes(self.store)
        )

    def read(self, batch: Iterable[Mapping[str, Any]], first: int) -> list[_Row]:
        """Check the rows of a batch."""
        return [self.row(number, plain(given, f"row {number}")) for number, given in enumerate(batch, first)]

    def row(self, number: int, given: Properties) -> _Row:
        """Take a row apart."""
        match = _pick(given, dict(zip(self.names, self.names, strict=True)), number)
        over = {name: given[name] for name in self.over if name in given}
        return _Row(number, match, without_null({**match, **given}), over)

    def keys(self, rows: list[_Row]) -> list[Key] | None:
        """Give each row's key; None if some key cannot be joined on."""
        return keys_of(row.match for row in rows)

    def merge_one(self, row: _Row) -> bool:
        """Merge one row, and tell whether it created anything."""
        return merge_one_node(self.store, self.type, row.match, row.new, self.change(row)).created

    def change(self, row: _Row) -> Change:
        """Say what a row does to what it matches."""
        return Change(row.over, row.match, {}, allow_key_change=False, touch=self.touch)

    def merge_batch(self, rows: list[_Row], keys: list[Key]) -> int:
        """Merge a batch at once, and count what it creates."""
        records = self.found(rows, keys)
        created = 0
        for row, key in zip(rows, keys, strict=True):
            record = records.get(key)
            if record is None:
                records[key] = record = _Record(None, row.new, row.ends)
                created += 1
            else:
                record.touched = self.touch
                if row.over and changes(record.properties, row.over):
                    record.properties = laid_over(record.properties, row.over)
                    record.changed = True
            if self.store.schema is not None:
                self.store.schema.check_node(self.type, record.properties)
        self.write(records.values())
        return created

    def found(self, rows: list[_Row], keys: list[Key]) -> dict[Key, _Record]:
        """Find what is there for each key."""
        distinct = dict(zip(keys, rows, strict=True))
        ordered = list(distinct)
        records: dict[Key, _Record] = {}
        needed = self.over or self.store.schema is not None
        matches = find(self.store, self.table, "r.id, r.properties", self.type, self.names, ordered, self.ends)
        for slot, record_id, text in matches:
            key = ordered[slot]
            if key in records:
                # The one that finds it again says so.
                self.merge_one(distinct[key])
            records[key] = _Record(record_id, decode(text) if needed else {})
        return records

    def write(self, records: Iterable[_Record]) -> None:
        """Write what is new, what changed, and what was seen."""
        moment = now()
        new, changed, seen = [], [], []
        for record in records:
            if record.id is None:
                new.append((self.type, *record.ends, encode(record.properties), moment, moment))
            elif record.changed:
                changed.append((encode(record.properties), moment, record.id))
            elif record.touched:
                seen.append((moment, record.id))
        connection = self.store.connection
        connection.executemany(self.insert, new)
        connection.executemany(f"UPDATE {self.table} SET properties = ?, updated_at = ? WHERE id = ?", changed)
        connection.executemany(f"UPDATE {self.table} SET updated_at = ? WHERE id = ?", seen)


class _Edges(_Nodes):
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
        self.apart: set[str] = set()
        for end in self.named:
            if isinstance(end, Endpoint):
                check_type(end.type)
                self.apart.update(end.match.values())
            else:
                self.apart.add(end)
        self.apart.difference_update(self.names, self.over)

    def crowded(self) -> bool:
        """Tell whether edges may get in each other's way, or depend on what they connect."""
        return self.store.schema is not None or super().crowded()

    def read(self, batch: Iterable[Mapping[str, Any]], first: int) -> list[_Row]:
        """Check the rows of a batch, and find the nodes that they connect."""
        given = [plain(row, f"row {number}") for number, row in enumerate(batch, first)]
        from_ids, to_ids = (self.nodes(end, given, first) for end in self.named)
        rows = [
            self.row(number, {name: value for name, value in row.items() if name not in self.apart})
            for number, row in enumerate(given, first)
        ]
        for row, from_id, to_id in zip(rows, from_ids, to_ids, strict=True):
            row.ends = (from_id, to_id)
        return rows

    def nodes(self, end: str | Endpoint, given: list[Properties], first: int) -> list[int]:
        """Find the node at one end of each row."""
        if isinstance(end, str):
            return self.known(end, given, first)
        matches = [_pick(row, end.match, number) for number, row in enumerate(given, first)]
        keys = keys_of(matches)
        if keys is None:
            return [self.node(end, match, number) for number, match in enumerate(matches, first)]
        places = dict(zip(keys, range(len(keys)), strict=True))
        ordered = list(places)
        ids: dict[Key, int] = {}
        for slot, found in find(self.store, "nodes", "r.id", end.type, tuple(end.match), ordered):
            if ordered[slot] in ids:
                self.node(end, matches[places[ordered[slot]]], first + places[ordered[slot]])
            ids[ordered[slot]] = found
        for number, key in enumerate(keys):
            if key not in ids:
                self.node(end, matches[number], first + number)
        return [ids[key] for key in keys]

    def known(self, column: str, given: list[Properties], first: int) -> list[int]:
        """Check the ids in a column."""
        ids: list[Any] = [_pick(row, {column: column}, number)[column] for number, row in enumerate(given, first)]
        check_ids(*ids)
        unknown = self.store.connection.execute(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM nodes)", (encode(ids),)
        ).fetchone()
        if unknown:
            message = f"row {first + ids.index(unknown[0])}, column {column!r}: {no_node(unknown[0])}"
            raise NodeNotFoundError(message)
        return ids

    def node(self, end: Endpoint, match: Properties, number: int) -> int:
        """Find one node, or say why there is none."""
        found = find_nodes(self.store, end.type, match)
        if len(found) > 1:
            raise MergeConflictError(end.type, match, found)
        if not found:
            message = f"row {number}: there is no {end.type} node with {match!r}. Merge the nodes before their edges."
            raise NodeNotFoundError(message)
        return found[0].id

    def keys(self, rows: list[_Row]) -> list[Key] | None:
        """Give each row's key; None if some key cannot be joined on."""
        keys = super().keys(rows)
        if keys is None:
            return None
        ends = (sorted(row.ends) if self.both else row.ends for row in rows)
        return [(*end, *key) for end, key in zip(ends, keys, strict=True)]

    def merge_one(self, row: _Row) -> bool:
        """Merge one row, and tell whether it created anything."""
        from_id, to_id = row.ends
        return merge_one_edge(
            self.store, from_id, self.type, to_id, row.match, row.new, self.change(row), either=self.both
        ).created


def _pick(given: Properties, columns: Mapping[str, str], number: int) -> Properties:
    """Take the match properties of a row from their columns."""
    match: Properties = {}
    for name, column in columns.items():
        value = given.get(column)
        if value is None:
            missing = "is NULL" if column in given else "is missing"
            message = f"row {number}: the match column {column!r} {missing}. Leave out such rows, or match on others."
            raise InvalidArgumentError(message)
        if type(value) is list or type(value) is dict:
            read_match({name: value})
        match[name] = value
    return match
