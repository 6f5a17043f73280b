"""Bulk merges of edges, whose nodes are identified by their ids or by their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from merganser.display import pluralize
from merganser.errors import InvalidArgumentError, MergeConflictError, NodeNotFoundError
from merganser.graph.merging import merge
from merganser.graph.merging.bulk import BulkNodes
from merganser.graph.merging.bulk_options import BulkOptions, Endpoint
from merganser.graph.merging.missing import read_missing_options, start_missing_records
from merganser.graph.sqlite import write
from merganser.graph.sqlite.chosen import MAX_LISTED
from merganser.graph.sqlite.indexes import read_names, warn_without_index
from merganser.graph.sqlite.lookup import check_columns, extract_keys, find_by_keys, find_first_positions
from merganser.graph.values import drop_nulls, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph.merging.bulk import Endpoints
    from merganser.graph.merging.missing import MissingOptions, MissingRecords
    from merganser.graph.records import BulkResult, MergedEdge, MergedNode
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# What happens to an edge whose node does not exist: it is refused, skipped, or the node is created.
MissingNodePolicy: TypeAlias = Literal["error", "skip", "create"]


def check_missing_node_policy(given: str) -> None:
    """Refuse an unknown policy."""
    if given not in get_args(MissingNodePolicy):
        raise InvalidArgumentError(f"on_missing_node is {given!r}; give 'error', 'skip' or 'create'.")


def bulk_merge_edges(
    store: Store,
    type_: str,
    rows: Any,
    endpoints: Sequence[str | Endpoint],
    direction: str,
    on_missing_node: MissingNodePolicy,
    options: BulkOptions,
) -> BulkResult:
    """Merge rows into edges; see `GraphDatabase.bulk_merge_edges`."""
    write.check_type(type_)
    merge.check_direction(direction)
    check_missing_node_policy(on_missing_node)
    names = read_names(options.match_on, "match_on")
    missing = read_missing_options(options.missing, options.scope, options.detach, names)
    work = BulkEdges(store, type_, names, options.read_changes(names), missing=missing)
    work.set_endpoints(*endpoints, is_undirected=direction == "both", on_missing_node=on_missing_node)
    for endpoint in endpoints:
        if options.warn_on_missing_index and isinstance(endpoint, Endpoint):
            warn_without_index(store, endpoint.type, endpoint.match)
    return work.run(rows)


class BulkEdges(BulkNodes):
    """A bulk merge of edges, whose keys begin with the ids of their endpoints."""

    table: Table = "edges"
    insert_sql = write.INSERT_EDGE
    endpoint_sql = "r.from_id = k.c0 AND r.to_id = k.c1 AND "

    on_missing_node: MissingNodePolicy = "error"

    def set_endpoints(
        self,
        from_node: str | Endpoint,
        to_node: str | Endpoint,
        *,
        is_undirected: bool,
        on_missing_node: MissingNodePolicy = "error",
    ) -> None:
        """Set the columns by which rows identify the nodes that they connect, and what happens if one is missing."""
        self.is_undirected = is_undirected
        self.on_missing_node = on_missing_node
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
            if on_missing_node == "create" and isinstance(endpoint, str):
                raise InvalidArgumentError(
                    f"on_missing_node='create' cannot create the nodes of the column of ids {endpoint!r}; give an "
                    "Endpoint with their type and properties, or another policy."
                )
        self.non_property_columns -= self.property_columns

    def start_missing_records(self, options: MissingOptions) -> MissingRecords:
        """Start to record which edges are matched; rows between nodes of some types cover only the edges there."""
        types = tuple(endpoint.type if isinstance(endpoint, Endpoint) else None for endpoint in self.endpoints)
        if self.is_undirected and len(set(types)) > 1:
            types = (None, None)
        return start_missing_records(self.store, self.table, self.type, types, options)

    def check_skipped(self) -> None:
        """Refuse rows whose nodes are missing, unless they may be skipped."""
        if self.skipped and self.on_missing_node == "error":
            more = f"; and {self.skipped - MAX_LISTED:,} more" if self.skipped > MAX_LISTED else ""
            raise NodeNotFoundError(
                f"{pluralize(self.skipped, 'row')} cannot be merged: {'; '.join(self.skip_reasons)}{more}. Merge the "
                "nodes before their edges, or set on_missing_node to 'skip' or 'create'."
            )

    def skip_row(self, number: int, reason: str) -> None:
        """Count a row whose node is missing, and keep the reason if it is one of the first."""
        self.skipped += 1
        if len(self.skip_reasons) < MAX_LISTED:
            self.skip_reasons.append(f"row {number}: {reason}")

    def resolve_endpoints(self, rows: list[Properties], first: int) -> Endpoints:
        """Find the ids of the nodes that each row connects; None for a row that is skipped, because one is missing."""
        from_ids, to_ids = (self.resolve_endpoint(endpoint, rows, first) for endpoint in self.endpoints)
        found: Endpoints = []
        for number, (row, *pair) in enumerate(zip(rows, from_ids, to_ids, strict=True), first):
            start, end = pair
            if start is None or end is None:
                self.skip_row(number, self.describe_missing_node(row, self.endpoints[0 if start is None else 1]))
                found.append(None)
            else:
                found.append((start, end))
        return found

    def describe_missing_node(self, row: Properties, endpoint: str | Endpoint) -> str:
        """Describe the node of a row that does not exist."""
        if isinstance(endpoint, str):
            return f"column {endpoint!r}: there is no node with the id {row[endpoint]}"
        return f"no {endpoint.type} node has { {name: row[column] for name, column in endpoint.match.items()}!r}"

    def resolve_endpoint(self, endpoint: str | Endpoint, rows: list[Properties], first: int) -> list[int | None]:
        """Find the ids of the nodes at one end of all rows."""
        if isinstance(endpoint, str):
            return self.read_id_column(endpoint, rows, first)
        keys = extract_keys(rows, endpoint.match, first)
        if keys is None:
            return [self.find_one_node(endpoint, row, number) for number, row in enumerate(rows, first)]
        positions = find_first_positions(keys)
        distinct = list(positions)
        ids: dict[Key, int | None] = {}
        for slot, found in find_by_keys(self.store, "nodes", endpoint.type, tuple(endpoint.match), distinct):
            position = positions[distinct[slot]]
            ids[distinct[slot]] = (
                self.find_one_node(endpoint, rows[position], first + position) if distinct[slot] in ids else found
            )
        for key, position in positions.items():
            if key not in ids:
                ids[key] = self.find_one_node(endpoint, rows[position], first + position)
        return [ids[key] for key in keys]

    def read_id_column(self, column: str, rows: list[Properties], first: int) -> list[int | None]:
        """Check the ids in a column."""
        check_columns(rows, [column], first)
        ids: list[Any] = [row[column] for row in rows]
        for number, given in enumerate(ids, first):
            if type(given) is not int:
                message = f"row {number}: the column {column!r} has {given!r}, which is not an id; give node ids."
                raise InvalidArgumentError(message)
        unknown = self.store.connection.execute(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM nodes)", (encode(ids),)
        ).fetchall()
        if unknown:
            missing = {one for (one,) in unknown}
            return [None if one in missing else one for one in ids]
        return ids

    def find_one_node(self, endpoint: Endpoint, row: Properties, number: int) -> int | None:
        """Find or create one node, or return None if it is missing; several that match are refused."""
        match = {name: row[column] for name, column in endpoint.match.items()}
        found = merge.find_nodes(self.store, endpoint.type, match)
        if len(found) > 1:
            raise MergeConflictError(endpoint.type, match, found, label=f"row {number}")
        if found:
            return found[0].id
        if self.on_missing_node != "create":
            return None
        self.nodes_created += 1
        moment = write.current_milliseconds()
        return write.call_with_label(
            f"row {number}", write.insert_node, self.store, endpoint.type, drop_nulls(match), moment
        )

    def prepend_endpoints(self, endpoints: Endpoints, keys: list[Key]) -> list[Key]:
        """Put the ids of the endpoints before each key."""
        return [
            (*(sorted(ids or ()) if self.is_undirected else ids or ()), *key)
            for ids, key in zip(endpoints, keys, strict=True)
        ]

    def merge_record(
        self, match: Properties, new: Properties, change: merge.MatchUpdate, endpoints: tuple[int, ...]
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        from_id, to_id = endpoints
        edge = merge.EdgeMatch(self.type, from_id, to_id, match, self.is_undirected)
        return merge.merge_one_edge(self.store, edge, new, change)
