"""MERGE of many rows in one transaction, with the same result as merging them one by one.

A batch of rows is looked up by one join, decided in memory row after row, and written by one statement for new records
and one for matched ones. Rows are merged one by one where that could differ (another unique index, keys that are lists
or fractions) or where a schema has to see complete records. Arrow data is merged by column (`bulk_columns`), except for
batches with duplicate keys or anything else that needs a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from merganser.errors import InvalidArgumentError, MergeConflictError, NodeNotFoundError
from merganser.graph.merging import merge
from merganser.graph.merging.bulk_columns import can_merge_columns, merge_columns
from merganser.graph.records import BulkResult, MergedEdge, MergedNode
from merganser.graph.sqlite import write
from merganser.graph.sqlite.indexes import list_indexes, read_names, warn_without_index
from merganser.graph.sqlite.lookup import (
    check_columns,
    extract_keys,
    find_by_keys,
    find_first_positions,
    read_batches,
    split_rows,
)
from merganser.graph.sqlite.sql import Table, has_json_path
from merganser.graph.values import apply_properties, drop_nulls, encode, normalize_name, normalize_properties

if TYPE_CHECKING:
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# Properties that one statement overwrites; SQLite's expressions have at most 1,000 levels.
_MAX_UPDATED_PROPERTIES = 300

# The columns that overwrite the properties of the same name, or the column for each property.
OnMatchColumns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How rows identify the node at one end of an edge.

    Args:
        type: The type of the node.
        match: For each match property of the node, the column that holds its value.

    >>> Endpoint("Job", {"url": "job_url"}).type
    'Job'
    """

    type: str
    match: Mapping[str, str]

    def __post_init__(self) -> None:
        write.check_type(self.type)
        if not isinstance(self.match, Mapping) or not self.match:
            message = f"The match of the endpoint {self.type} is {self.match!r}; give {{property: column}}."
            raise InvalidArgumentError(message)
        read_names(list(self.match), "the match of an endpoint")
        # Two properties may have the value of one column.
        read_names(sorted(set(self.match.values()), key=str), "the match of an endpoint")


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of a bulk merge, as the caller gave them."""

    match_on: str | Sequence[str]
    on_match: OnMatchColumns
    touch: bool
    warn_on_missing_index: bool


def bulk_merge_nodes(store: Store, type_: str, rows: Any, options: BulkOptions) -> BulkResult:
    """Merge rows into nodes; see `GraphDatabase.bulk_merge_nodes`."""
    write.check_type(type_)
    names = read_names(options.match_on, "match_on")
    if not names:
        raise InvalidArgumentError(f"match_on is empty; name the columns that identify a {type_}.")
    if options.warn_on_missing_index:
        warn_without_index(store, type_, names)
    columns = read_on_match_columns(options.on_match, names)
    return BulkNodes(store, type_, names, columns, touch=options.touch).run(rows)


def bulk_merge_edges(
    store: Store, type_: str, rows: Any, endpoints: Sequence[str | Endpoint], direction: str, options: BulkOptions
) -> BulkResult:
    """Merge rows into edges; see `GraphDatabase.bulk_merge_edges`."""
    write.check_type(type_)
    merge.check_direction(direction)
    names = read_names(options.match_on, "match_on")
    work = BulkEdges(store, type_, names, read_on_match_columns(options.on_match, names), touch=options.touch)
    work.set_endpoints(*endpoints, is_undirected=direction == "both")
    for endpoint in endpoints:
        if options.warn_on_missing_index and isinstance(endpoint, Endpoint):
            warn_without_index(store, endpoint.type, endpoint.match)
    return work.run(rows)


def read_on_match_columns(given: OnMatchColumns, names: tuple[str, ...]) -> dict[str, str]:
    """Check which column overwrites which property; match properties are left out, because a match has them already.

    >>> read_on_match_columns({"seen": "today", "url": "url"}, ("url",)), read_on_match_columns(["seen"], ("url",))
    ({'seen': 'today'}, {'seen': 'seen'})
    """
    if isinstance(given, Mapping):
        columns = {normalize_name(name, "on_match"): normalize_name(one, "on_match") for name, one in given.items()}
    else:
        columns = {name: name for name in read_names(given, "on_match")}
    for name in names:
        if columns.pop(name, name) != name:
            raise InvalidArgumentError(f"on_match gives the match property {name!r} another column; leave it out.")
    return columns


@dataclass(slots=True)
class _Record:
    """The record of a key: a new one with its properties, or a stored one, by its id, with those to overwrite."""

    id: int | None
    properties: Properties
    endpoint_ids: tuple[int, ...] = ()
    matched: bool = False


class BulkNodes:
    """A bulk merge of nodes; a row is its properties, as they will be stored."""

    table: Table = "nodes"
    insert_sql = write.INSERT_NODE
    # The SQL condition on the ids that precede the match properties in a key.
    endpoint_sql = ""
    endpoints: tuple[str | Endpoint, ...] = ()
    is_undirected = False

    def __init__(
        self, store: Store, type_: str, names: tuple[str, ...], on_match_columns: dict[str, str], *, touch: bool
    ) -> None:
        self.store = store
        self.type = type_
        self.names = names
        self.columns = dict(zip(names, names, strict=True))
        # For each property that a match overwrites, the column with its value.
        self.on_match_columns = on_match_columns
        # A column that only overwrites a property of another name is not stored as a property itself.
        self.property_columns = {*names, *(name for name, column in on_match_columns.items() if name == column)}
        self.non_property_columns = set(on_match_columns.values()) - self.property_columns
        self.touch = touch
        # Stored records that were changed; exact if touch is off and no key occurs twice.
        self.changed = 0

    def run(self, given: Any) -> BulkResult:
        """Merge all rows, or none if one is refused."""
        created = count = 0
        with self.store.transaction():
            one_by_one = self.needs_row_by_row()
            by_column = not one_by_one and can_merge_columns(self)
            for batch in read_batches(given, (*self.non_property_columns, *self.property_columns)):
                found = merge_columns(self, batch) if by_column and isinstance(batch, pa.RecordBatch) else None
                if found is None:
                    found = self.merge_rows(count, batch, one_by_one=one_by_one)
                created += found
                count += len(batch)
        return BulkResult(created, count - created)

    def merge_rows(self, first: int, batch: pa.RecordBatch | Sequence[Mapping[str, Any]], *, one_by_one: bool) -> int:
        """Merge a batch as rows, and count the records that it creates."""
        created = 0
        for given in split_rows(batch):
            rows = [normalize_properties(row, f"row {number}") for number, row in enumerate(given, first)]
            endpoints = self.resolve_endpoints(rows, first)
            keys = extract_keys(rows, self.columns, first)
            if one_by_one or keys is None:
                created += self.merge_row_by_row(first, rows, endpoints)
            else:
                created += self.merge_batch(first, rows, endpoints, self.prepend_endpoints(endpoints, keys))
            first += len(rows)
        return created

    def needs_row_by_row(self) -> bool:
        """Check whether keys and updates alone do not decide the result, so that whole records are needed."""
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
        """Find the ids of the nodes that each row connects."""
        return [()] * len(rows)

    def prepend_endpoints(self, endpoints: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:  # noqa: ARG002 - as above
        """Put the ids of the endpoints before each key."""
        return keys

    def merge_row_by_row(self, first: int, rows: list[Properties], endpoints: list[tuple[int, ...]]) -> int:
        """Merge a batch row after row, and count the records that it creates."""
        before = self.store.connection.total_changes
        created = sum(map(self.merge_row, range(first, first + len(rows)), rows, endpoints))
        self.changed += self.store.connection.total_changes - before - created
        return created

    def merge_row(self, number: int, row: Properties, endpoints: tuple[int, ...]) -> bool:
        """Merge one row, and return whether it created a record."""
        match = {name: row[name] for name in self.names}
        change = merge.MatchUpdate(self.select_updates(row), match, {}, allow_key_change=False, touch=self.touch)
        return write.call_with_label(
            f"row {number}", self.merge_record, match, self.select_new_properties(row), change, endpoints
        ).created

    def merge_record(
        self,
        match: Properties,
        new: Properties,
        change: merge.MatchUpdate,
        endpoints: tuple[int, ...],  # noqa: ARG002 - as above
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        return merge.merge_one_node(self.store, self.type, match, new, change)

    def select_updates(self, row: Properties) -> Properties:
        """Select the properties that a row overwrites in its match."""
        return {name: row[column] for name, column in self.on_match_columns.items() if column in row}

    def select_new_properties(self, row: Properties) -> Properties:
        """Select the properties of the record that a row creates."""
        if self.non_property_columns:
            row = {name: value for name, value in row.items() if name not in self.non_property_columns}
        return drop_nulls(row)

    def merge_batch(self, first: int, rows: list[Properties], endpoints: list[tuple[int, ...]], keys: list[Key]) -> int:
        """Merge a batch at once, and count the records that it creates."""
        records = self.find_records(first, rows, endpoints, keys)
        created = 0
        for row, endpoint_ids, key in zip(rows, endpoints, keys, strict=True):
            record = records.get(key)
            if record is None:
                records[key] = _Record(None, self.select_new_properties(row), endpoint_ids)
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
        self, first: int, rows: list[Properties], endpoints: list[tuple[int, ...]], keys: list[Key]
    ) -> dict[Key, _Record]:
        """Find the stored record of each key."""
        positions = find_first_positions(keys)
        distinct = list(positions)
        records: dict[Key, _Record] = {}
        for slot, record_id in find_by_keys(self.store, self.table, self.type, self.names, distinct, self.endpoint_sql):
            key = distinct[slot]
            if key in records:
                # Merging the row alone meets the same conflict, and raises it.
                self.merge_row(first + positions[key], rows[positions[key]], endpoints[positions[key]])
            records[key] = _Record(record_id, {})
        return records

    def write_records(self, records: Iterable[_Record]) -> None:
        """Insert the new records, and update the matched ones."""
        moment = write.current_milliseconds()
        new = []
        # Records that set and remove the same properties share a statement.
        matched: defaultdict[tuple[tuple[str, bool], ...], list[tuple[Any, ...]]] = defaultdict(list)
        for record in records:
            if record.id is None:
                new.append((self.type, *record.endpoint_ids, encode(record.properties), moment, moment))
            elif record.matched:
                signature = tuple((name, value is None) for name, value in record.properties.items())
                values = [encode(value) for value in record.properties.values() if value is not None]
                matched[signature].append((*values, moment, record.id, *(() if self.touch else values)))
        self.store.connection.executemany(self.insert_sql, new)
        for signature, parameters in matched.items():
            if self.touch or signature:
                statement = write.build_update_sql(self.table, signature, touch=self.touch)
                self.changed += self.store.connection.executemany(statement, parameters).rowcount


class BulkEdges(BulkNodes):
    """A bulk merge of edges, whose keys begin with the ids of their endpoints."""

    table: Table = "edges"
    insert_sql = write.INSERT_EDGE
    endpoint_sql = "r.from_id = k.c0 AND r.to_id = k.c1 AND "

    def set_endpoints(self, from_node: str | Endpoint, to_node: str | Endpoint, *, is_undirected: bool) -> None:
        """Set the columns by which rows identify the nodes that they connect."""
        self.is_undirected = is_undirected
        if is_undirected:
            self.endpoint_sql = "((r.from_id = k.c0 AND r.to_id = k.c1) OR (r.from_id = k.c1 AND r.to_id = k.c0)) AND "
        self.endpoints = (from_node, to_node)
        for endpoint in self.endpoints:
            if isinstance(endpoint, Endpoint):
                self.non_property_columns.update(endpoint.match.values())
            elif isinstance(endpoint, str):
                self.non_property_columns.add(endpoint)
            else:
                message = f"from_node or to_node is {endpoint!r}; give a column of ids, or an Endpoint."
                raise InvalidArgumentError(message)
        self.non_property_columns -= self.property_columns

    def resolve_endpoints(self, rows: list[Properties], first: int) -> list[tuple[int, ...]]:
        """Find the ids of the nodes that each row connects."""
        return list(zip(*(self.resolve_endpoint(endpoint, rows, first) for endpoint in self.endpoints), strict=True))

    def resolve_endpoint(self, endpoint: str | Endpoint, rows: list[Properties], first: int) -> list[int]:
        """Find the ids of the nodes at one end of all rows."""
        if isinstance(endpoint, str):
            return self.read_id_column(endpoint, rows, first)
        keys = extract_keys(rows, endpoint.match, first)
        if keys is None:
            return [self.find_one_node(endpoint, row, number) for number, row in enumerate(rows, first)]
        positions = find_first_positions(keys)
        distinct = list(positions)
        ids: dict[Key, int] = {}
        for slot, found in find_by_keys(self.store, "nodes", endpoint.type, tuple(endpoint.match), distinct):
            position = positions[distinct[slot]]
            ids[distinct[slot]] = (
                self.find_one_node(endpoint, rows[position], first + position) if distinct[slot] in ids else found
            )
        for position, key in enumerate(keys):
            if key not in ids:
                ids[key] = self.find_one_node(endpoint, rows[position], first + position)
        return [ids[key] for key in keys]

    def read_id_column(self, column: str, rows: list[Properties], first: int) -> list[int]:
        """Check the ids in a column."""
        check_columns(rows, [column], first)
        ids: list[Any] = [row[column] for row in rows]
        for number, given in enumerate(ids, first):
            if type(given) is not int:
                message = f"row {number}: the column {column!r} has {given!r}, which is not an id; give node ids."
                raise InvalidArgumentError(message)
        unknown = self.store.connection.execute(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM nodes)", (encode(ids),)
        ).fetchone()
        if unknown:
            missing = write.make_not_found_error("nodes", unknown[0])
            raise NodeNotFoundError(f"row {first + ids.index(unknown[0])}, column {column!r}: {missing}")
        return ids

    def find_one_node(self, endpoint: Endpoint, row: Properties, number: int) -> int:
        """Find one node, or raise why it cannot be identified."""
        match = {name: row[column] for name, column in endpoint.match.items()}
        found = merge.find_nodes(self.store, endpoint.type, match)
        if len(found) > 1:
            raise MergeConflictError(endpoint.type, match, found, label=f"row {number}")
        if not found:
            message = f"row {number}: no {endpoint.type} node has {match!r}. Merge the nodes before their edges."
            raise NodeNotFoundError(message)
        return found[0].id

    def prepend_endpoints(self, endpoints: list[tuple[int, ...]], keys: list[Key]) -> list[Key]:
        """Put the ids of the endpoints before each key."""
        return [(*(sorted(ids) if self.is_undirected else ids), *key) for ids, key in zip(endpoints, keys, strict=True)]

    def merge_record(
        self, match: Properties, new: Properties, change: merge.MatchUpdate, endpoints: tuple[int, ...]
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        from_id, to_id = endpoints
        edge = merge.EdgeMatch(self.type, from_id, to_id, match, self.is_undirected)
        return merge.merge_one_edge(self.store, edge, new, change)
