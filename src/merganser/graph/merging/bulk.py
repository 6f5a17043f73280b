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
    MatchUpdate,
    check_direction,
    find_nodes,
    merge_one_edge,
    merge_one_node,
)
from merganser.graph.records import BulkResult
from merganser.graph.sqlite.indexes import list_indexes, read_names, warn_without_index
from merganser.graph.sqlite.lookup import check_columns, extract_keys, find_by_keys, find_first_positions, read_batches
from merganser.graph.sqlite.sql import has_json_path, to_json_path
from merganser.graph.sqlite.write import (
    INSERT_EDGE,
    INSERT_NODE,
    call_with_label,
    check_type,
    current_milliseconds,
    make_not_found_error,
)
from merganser.graph.values import apply_properties, drop_nulls, encode, normalize_name, normalize_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.graph.records import MergedEdge, MergedNode
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# Columns that one statement lays over; SQLite's functions take 127 arguments, and its conditions 1,000 parts.
_MAX_UPDATED_PROPERTIES = 300
_PATHS_PER_CALL = 50


# Columns that are laid over the properties of their names, or over those that they are given for.
OnMatchColumns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"


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
    on_match: OnMatchColumns,
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
    return BulkNodes(store, type_, names, read_on_match_columns(on_match, names), touch=touch).run(rows)


def bulk_merge_edges(
    store: Store,
    type_: str,
    rows: Any,
    *,
    from_node: str | Endpoint,
    to_node: str | Endpoint,
    match_on: str | Sequence[str],
    on_match: OnMatchColumns,
    direction: str,
    touch: bool,
    warn: bool,
) -> BulkResult:
    """Merge rows into edges; see `GraphDatabase.bulk_merge_edges`."""
    check_type(type_)
    check_direction(direction)
    names = read_names(match_on, "match_on")
    work = BulkEdges(store, type_, names, read_on_match_columns(on_match, names), touch=touch)
    work.set_endpoints(from_node, to_node, is_undirected=direction == "both")
    for end in (from_node, to_node):
        if warn and isinstance(end, Endpoint):
            warn_without_index(store, end.type, end.match)
    return work.run(rows)


def read_on_match_columns(given: OnMatchColumns, names: tuple[str, ...]) -> dict[str, str]:
    """Read which column is laid over which property, and leave out match properties: a match has them already.

    >>> read_on_match_columns({"seen": "today", "url": "url"}, ("url",)), read_on_match_columns(["seen"], ("url",))
    ({'seen': 'today'}, {'seen': 'seen'})
    """
    if isinstance(given, Mapping):
        over = {normalize_name(name, "on_match"): normalize_name(column, "on_match") for name, column in given.items()}
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
    endpoint_ids: tuple[int, ...] = ()
    matched: bool = False


class BulkNodes:
    """A bulk merge of nodes; a row is its properties, as they will be stored."""

    table: Table = "nodes"
    insert_sql = INSERT_NODE
    # The condition on what a key has before the match properties.
    endpoint_sql = ""

    def __init__(
        self, store: Store, type_: str, names: tuple[str, ...], on_match_columns: dict[str, str], *, touch: bool
    ) -> None:
        self.store = store
        self.type = type_
        self.names = names
        self.columns = dict(zip(names, names, strict=True))
        # The column that is laid over each of these properties.
        self.on_match_columns = on_match_columns
        # Columns that are no properties; one that is laid over the property of its name is one.
        self.property_columns = {*names, *(name for name, column in on_match_columns.items() if name == column)}
        self.non_property_columns = set(on_match_columns.values()) - self.property_columns
        self.touch = touch
        # Records that were there and got other values, if none was merely touched and no key came twice.
        self.changed = 0

    def run(self, given: Any) -> BulkResult:
        """Merge all rows, or none."""
        created = count = 0
        with self.store.transaction():
            one_by_one = self.needs_row_by_row()
            for batch in read_batches(given, (*self.non_property_columns, *self.property_columns)):
                rows = [normalize_properties(row, f"row {number}") for number, row in enumerate(batch, count)]
                ends = self.resolve_endpoints(rows, count)
                keys = extract_keys(rows, self.columns, count)
                if one_by_one or keys is None:
                    created += self.merge_row_by_row(count, rows, ends)
                else:
                    created += self.merge_batch(count, rows, ends, self.prepend_endpoints(ends, keys))
                count += len(rows)
        return BulkResult(created, count - created)

    def needs_row_by_row(self) -> bool:
        """Tell whether it takes more than their keys and what is laid over them to know what becomes of records."""
        return (
            self.store.schema is not None
            or not all(map(has_json_path, self.on_match_columns))
            or len(self.on_match_columns) > _MAX_UPDATED_PROPERTIES
            or any(
                found.unique and (self.endpoint_sql or set(found.properties) != set(self.names))
                for found in list_indexes(self.store)
                if (found.table, found.type) == (self.table, self.type)
            )
        )

    def resolve_endpoints(self, rows: list[Properties], first: int) -> list[tuple[int, ...]]:  # noqa: ARG002 - edges need it
        """Find the nodes that each row connects."""
        return [()] * len(rows)

    def prepend_endpoints(self, ends: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:  # noqa: ARG002 - as above
        """Put what a row connects before its key."""
        return keys

    def merge_row_by_row(self, first: int, rows: list[Properties], ends: list[tuple[int, ...]]) -> int:
        """Merge a batch row after row, and count what it creates."""
        before = self.store.connection.total_changes
        created = sum(map(self.merge_row, range(first, first + len(rows)), rows, ends))
        self.changed += self.store.connection.total_changes - before - created
        return created

    def merge_row(self, number: int, row: Properties, ends: tuple[int, ...]) -> bool:
        """Merge one row, and tell whether it created anything."""
        match = {name: row[name] for name in self.names}
        change = MatchUpdate(self.select_updates(row), match, {}, allow_key_change=False, touch=self.touch)
        return call_with_label(
            f"row {number}", self.merge_record, match, self.select_new_properties(row), change, ends
        ).created

    def merge_record(
        self,
        match: Properties,
        new: Properties,
        change: MatchUpdate,
        ends: tuple[int, ...],  # noqa: ARG002 - as above
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        return merge_one_node(self.store, self.type, match, new, change)

    def select_updates(self, row: Properties) -> Properties:
        """Give what a row lays over what it matches."""
        return {name: row[column] for name, column in self.on_match_columns.items() if column in row}

    def select_new_properties(self, row: Properties) -> Properties:
        """Give what a row creates."""
        if self.non_property_columns:
            row = {name: value for name, value in row.items() if name not in self.non_property_columns}
        return drop_nulls(row)

    def merge_batch(self, first: int, rows: list[Properties], ends: list[tuple[int, ...]], keys: list[Key]) -> int:
        """Merge a batch at once, and count what it creates."""
        records = self.find_records(first, rows, ends, keys)
        created = 0
        for row, end, key in zip(rows, ends, keys, strict=True):
            record = records.get(key)
            if record is None:
                records[key] = _Record(None, self.select_new_properties(row), end)
                created += 1
                continue
            record.matched = True
            if self.on_match_columns and record.id is None:
                record.properties = apply_properties(record.properties, self.select_updates(row))
            elif self.on_match_columns:
                record.properties = {**record.properties, **self.select_updates(row)}
        self.write_records(records.values())
        return created

    def find_records(
        self, first: int, rows: list[Properties], ends: list[tuple[int, ...]], keys: list[Key]
    ) -> dict[Key, _Record]:
        """Find what is there for each key."""
        places = find_first_positions(keys)
        distinct = list(places)
        records: dict[Key, _Record] = {}
        for slot, record_id in find_by_keys(
            self.store, self.table, "r.id", self.type, self.names, distinct, self.endpoint_sql
        ):
            key = distinct[slot]
            if key in records:
                # It meets the same conflict, and says so.
                self.merge_row(first + places[key], rows[places[key]], ends[places[key]])
            records[key] = _Record(record_id, {})
        return records

    def write_records(self, records: Iterable[_Record]) -> None:
        """Write what is new, and lay what is to be laid over what is there."""
        moment = current_milliseconds()
        new = []
        # By what is set and what is removed, the statement is the same.
        matched: defaultdict[tuple[tuple[str, bool], ...], list[tuple[Any, ...]]] = defaultdict(list)
        for record in records:
            if record.id is None:
                new.append((self.type, *record.endpoint_ids, encode(record.properties), moment, moment))
            elif record.matched:
                shape = tuple((name, value is None) for name, value in record.properties.items())
                values = [encode(value) for value in record.properties.values() if value is not None]
                matched[shape].append((*values, moment, record.id, *(() if self.touch else values)))
        self.store.connection.executemany(self.insert_sql, new)
        for shape, parameters in matched.items():
            if self.touch or shape:
                statement = _build_update_sql(self.table, shape, touch=self.touch)
                self.changed += self.store.connection.executemany(statement, parameters).rowcount


class BulkEdges(BulkNodes):
    """A bulk merge of edges: their key begins with the nodes that they connect."""

    table: Table = "edges"
    insert_sql = INSERT_EDGE
    endpoint_sql = "r.from_id = k.c0 AND r.to_id = k.c1 AND "

    def set_endpoints(self, from_node: str | Endpoint, to_node: str | Endpoint, *, is_undirected: bool) -> None:
        """Say by which columns rows name the nodes that they connect."""
        self.is_undirected = is_undirected
        if is_undirected:
            self.endpoint_sql = "((r.from_id = k.c0 AND r.to_id = k.c1) OR (r.from_id = k.c1 AND r.to_id = k.c0)) AND "
        self.endpoints = (from_node, to_node)
        for end in self.endpoints:
            if isinstance(end, Endpoint):
                self.non_property_columns.update(end.match.values())
            elif isinstance(end, str):
                self.non_property_columns.add(end)
            else:
                message = f"from_node or to_node is {end!r}; give a column of ids, or an Endpoint."
                raise InvalidArgumentError(message)
        self.non_property_columns -= self.property_columns

    def resolve_endpoints(self, rows: list[Properties], first: int) -> list[tuple[int, ...]]:
        """Find the nodes that each row connects."""
        return list(zip(*(self.resolve_endpoint(end, rows, first) for end in self.endpoints), strict=True))

    def resolve_endpoint(self, end: str | Endpoint, rows: list[Properties], first: int) -> list[int]:
        """Find the node at one end of each row."""
        if isinstance(end, str):
            return self.read_id_column(end, rows, first)
        keys = extract_keys(rows, end.match, first)
        if keys is None:
            return [self.find_one_node(end, row, number) for number, row in enumerate(rows, first)]
        places = find_first_positions(keys)
        distinct = list(places)
        ids: dict[Key, int] = {}
        for slot, found in find_by_keys(self.store, "nodes", "r.id", end.type, tuple(end.match), distinct):
            place = places[distinct[slot]]
            ids[distinct[slot]] = (
                self.find_one_node(end, rows[place], first + place) if distinct[slot] in ids else found
            )
        for place, key in enumerate(keys):
            if key not in ids:
                ids[key] = self.find_one_node(end, rows[place], first + place)
        return [ids[key] for key in keys]

    def read_id_column(self, column: str, rows: list[Properties], first: int) -> list[int]:
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
            message = (
                f"row {first + ids.index(unknown[0])}, column {column!r}: {make_not_found_error('nodes', unknown[0])}"
            )
            raise NodeNotFoundError(message)
        return ids

    def find_one_node(self, end: Endpoint, row: Properties, number: int) -> int:
        """Find one node, or say why it cannot be told."""
        match = {name: row[column] for name, column in end.match.items()}
        found = find_nodes(self.store, end.type, match)
        if len(found) > 1:
            raise MergeConflictError(end.type, match, found, label=f"row {number}")
        if not found:
            message = f"row {number}: there is no {end.type} node with {match!r}. Merge the nodes before their edges."
            raise NodeNotFoundError(message)
        return found[0].id

    def prepend_endpoints(self, ends: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:
        """Put what a row connects before its key."""
        return [(*(sorted(end) if self.is_undirected else end), *key) for end, key in zip(ends, keys, strict=True)]

    def merge_record(
        self, match: Properties, new: Properties, change: MatchUpdate, ends: tuple[int, ...]
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        from_id, to_id = ends
        return merge_one_edge(self.store, from_id, self.type, to_id, match, new, change, self.is_undirected)


@lru_cache(maxsize=256)
def _build_update_sql(table: Table, shape: tuple[tuple[str, bool], ...], *, touch: bool) -> str:
    """Give the statement that sets some properties of a record and removes others."""
    set_, removed = ([to_json_path(name) for name, gone in shape if gone is wanted] for wanted in (False, True))
    after = "properties"
    for goals in _split_paths(set_):
        after = f"json_set({after}, {', '.join(f'{goal}, json(?)' for goal in goals)})"
    for goals in _split_paths(removed):
        after = f"json_remove({after}, {', '.join(goals)})"
    changed = [f"properties -> {goal} IS NOT ?" for goal in set_]
    changed += [f"properties -> {goal} IS NOT NULL" for goal in removed]
    only = "" if touch else f" AND ({' OR '.join(changed)})"
    laid = f"properties = {after}, " if shape else ""
    return f"UPDATE {table} SET {laid}updated_at = ? WHERE id = ?{only}"


def _split_paths(goals: list[str]) -> Iterator[list[str]]:
    return (goals[start : start + _PATHS_PER_CALL] for start in range(0, len(goals), _PATHS_PER_CALL))
