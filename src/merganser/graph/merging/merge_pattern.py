"""MERGE of a pattern of nodes and edges: each part by itself, or all of them as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError, MergeConflictError
from merganser.graph.argument_names import find_known_name
from merganser.graph.merging import merge
from merganser.graph.merging.merge import EdgeMatch, MatchUpdate, MergeOptions, check_direction, check_match, read_match
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, MergedEdge, MergedNode, to_edge, to_node
from merganser.graph.sqlite.indexes import warn_without_index
from merganser.graph.sqlite.sql import Parameter, Table, build_match_sql, split_match
from merganser.graph.sqlite.write import check_type, make_not_found_error

if TYPE_CHECKING:
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# SQLite joins at most 64 tables.
_MAX_PARTS = 64
_NODE_KEYS = ("type", "match", "base", "on_create", "on_match", "condition", "allow_key_change")
_EDGE_KEYS = ("edge", "from", "to", "properties", "direction", *_NODE_KEYS[1:2], *_NODE_KEYS[3:])


@dataclass(frozen=True, slots=True)
class NodePart:
    """A node of a pattern."""

    type: str
    match: Properties
    new: Properties
    change: MatchUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePart:
    """An edge of a pattern, between the nodes at two positions of the list of parts."""

    type: str
    from_position: Any
    to_position: Any
    is_undirected: bool
    match: Properties
    new: Properties
    change: MatchUpdate


@dataclass(frozen=True, slots=True)
class PatternParts:
    """A pattern: its nodes and edges by their positions."""

    nodes: dict[int, NodePart]
    edges: dict[int, EdgePart]


def merge_pattern(
    store: Store, given: Sequence[Mapping[str, Any]], *, whole: bool, touch: bool, warn: bool
) -> tuple[MergedNode | MergedEdge, ...]:
    """Merge a pattern; see `GraphDatabase.merge_pattern`."""
    parts = _read_parts(given, touch=touch)
    if warn:
        for part in parts.nodes.values():
            warn_without_index(store, part.type, part.match)
    if whole:
        _check_whole(parts)
    with store.transaction():
        return _merge_whole(store, parts) if whole else _merge_parts(store, parts)


def _read_parts(given: Sequence[Mapping[str, Any]], *, touch: bool) -> PatternParts:
    if not isinstance(given, list | tuple):
        raise InvalidArgumentError(f"The pattern is a {type(given).__name__}; give a list of parts.")
    nodes: dict[int, NodePart] = {}
    edges: dict[int, EdgePart] = {}
    for position, part in enumerate(given):
        if not isinstance(part, Mapping) or ("type" in part) == ("edge" in part):
            raise InvalidArgumentError(
                f"Part {position} of the pattern is {part!r}; give a dict with 'type' for a node or 'edge' for an edge."
            )
        if "type" in part:
            nodes[position] = _read_node(position, part, touch=touch)
        else:
            edges[position] = _read_edge(position, part, touch=touch)
    for position, edge in edges.items():
        for word, end in (("from", edge.from_position), ("to", edge.to_position)):
            if type(end) is not int or end not in nodes:
                message = f"Part {position} of the pattern has {word!r}: {end!r}; its nodes are at {list(nodes)}."
                raise InvalidArgumentError(message)
    if not nodes:
        raise InvalidArgumentError("The pattern has no nodes; give at least one part with 'type' and 'match'.")
    return PatternParts(nodes, edges)


def _check_whole(parts: PatternParts) -> None:
    """Refuse a pattern that cannot be found as one: with too many parts, or not connected."""
    if len(parts.nodes) + len(parts.edges) > _MAX_PARTS:
        message = f"A pattern of more than {_MAX_PARTS} parts cannot be found as one; merge it in pieces."
        raise InvalidArgumentError(message)
    connected = {min(parts.nodes)}
    for _ in parts.edges:
        for edge in parts.edges.values():
            endpoints = {edge.from_position, edge.to_position}
            connected |= endpoints if endpoints & connected else set()
    if isolated := parts.nodes.keys() - connected:
        message = f"No edge connects part {min(isolated)} of the pattern with the others; whole=True needs one."
        raise InvalidArgumentError(message)


def _merge_parts(store: Store, parts: PatternParts) -> tuple[MergedNode | MergedEdge, ...]:
    """Find or create each part by itself, nodes before the edges between them."""
    done: dict[int, MergedNode | MergedEdge] = {
        position: merge.merge_one_node(store, part.type, part.match, part.new, part.change)
        for position, part in parts.nodes.items()
    }
    for position, link in parts.edges.items():
        from_id, to_id = done[link.from_position].id, done[link.to_position].id
        edge = EdgeMatch(link.type, from_id, to_id, link.match, link.is_undirected)
        done[position] = merge.merge_one_edge(store, edge, link.new, link.change)
    return tuple(done[position] for position in sorted(done))


def _merge_whole(store: Store, parts: PatternParts) -> tuple[MergedNode | MergedEdge, ...]:
    found = _find_match(store, parts)
    done: dict[int, MergedNode | MergedEdge] = {}
    for position, part in parts.nodes.items():
        if found is None:
            done[position] = merge.create_missing_node(store, part.type, part.new)
        else:
            done[position] = merge.update_matched_node(store, _read_row(store, "nodes", found[position]), part.change)
    for position, link in parts.edges.items():
        if found is None:
            done[position] = merge.create_missing_edge(
                store, link.type, done[link.from_position].id, done[link.to_position].id, link.new
            )
        else:
            done[position] = merge.update_matched_edge(store, _read_row(store, "edges", found[position]), link.change)
    return tuple(done[position] for position in sorted(done))


def _find_match(store: Store, parts: PatternParts) -> dict[int, int] | None:
    """Find the one match of the whole pattern, as the id of each part."""
    tables, conditions = [], []
    parameters: list[Parameter] = []
    for position, part in parts.nodes.items():
        tables.append(f"nodes p{position}")
        compared, values = split_match(part.match)
        conditions.append(build_match_sql(part.type, compared, f"p{position}."))
        parameters += values
    for position, link in parts.edges.items():
        tables.append(f"edges p{position}")
        compared, values = split_match(link.match)
        start, end = f"p{link.from_position}.id", f"p{link.to_position}.id"
        directions = [f"(p{position}.from_id = {start} AND p{position}.to_id = {end})"]
        directions += [f"(p{position}.from_id = {end} AND p{position}.to_id = {start})"] if link.is_undirected else []
        conditions.append(f"({' OR '.join(directions)}) AND {build_match_sql(link.type, compared, f'p{position}.')}")
        parameters += values
    # As in Cypher, two parts may be the same node, but not the same edge.
    conditions += [f"p{one}.id <> p{other}.id" for one, other in combinations(parts.edges, 2)]
    positions = [*parts.nodes, *parts.edges]
    ids = ", ".join(f"p{position}.id" for position in positions)
    rows = store.connection.execute(
        f"SELECT {ids} FROM {', '.join(tables)} WHERE {' AND '.join(conditions)}", parameters
    ).fetchall()
    # A symmetric pattern matches the same records twice, read from either side.
    nodes = len(parts.nodes)
    found = {(frozenset(row[:nodes]), frozenset(row[nodes:])): dict(zip(positions, row, strict=True)) for row in rows}
    if len(found) > 1:
        raise _make_conflict_error(store, parts, list(found.values()))
    return next(iter(found.values()), None)


def _make_conflict_error(store: Store, parts: PatternParts, found: list[dict[int, int]]) -> MergeConflictError:
    """Report the part in which the matches differ most."""
    position = max(found[0], key=lambda position: len({match[position] for match in found}))
    if position in parts.nodes:
        part = parts.nodes[position]
        nodes = [to_node(_read_row(store, "nodes", match[position])) for match in found]
        return MergeConflictError(part.type, part.match, nodes, "patterns")
    link = parts.edges[position]
    edges = [to_edge(_read_row(store, "edges", match[position])) for match in found]
    return MergeConflictError(link.type, link.match, edges, "patterns")


def _read_row(store: Store, table: Table, record_id: int) -> Any:
    columns = NODE_COLUMNS if table == "nodes" else EDGE_COLUMNS
    row = store.connection.execute(f"SELECT {columns} FROM {table} WHERE id = ?", (record_id,)).fetchone()
    if row is None:
        # An on_match function of another part has deleted it.
        raise make_not_found_error(table, record_id)
    return row


def _read_node(position: int, given: Mapping[str, Any], *, touch: bool) -> NodePart:
    part = _read_part_keys(position, given, _NODE_KEYS)
    check_type(part["type"])
    match = read_match(part.get("match"))
    check_match(part["type"], match)
    options = _read_options(part, "base", touch=touch)
    return NodePart(part["type"], match, options.read_new_properties(match), options.read_match_update(match))


def _read_edge(position: int, given: Mapping[str, Any], *, touch: bool) -> EdgePart:
    part = _read_part_keys(position, given, _EDGE_KEYS)
    check_type(part["edge"])
    direction = part.get("direction", "out")
    check_direction(direction)
    match = read_match(part.get("match"))
    options = _read_options(part, "properties", touch=touch)
    return EdgePart(
        type=part["edge"],
        from_position=part.get("from"),
        to_position=part.get("to"),
        is_undirected=direction == "both",
        match=match,
        new=options.read_new_properties(match, "properties"),
        change=options.read_match_update(match),
    )


def _read_options(part: Mapping[str, Any], base: str, *, touch: bool) -> MergeOptions:
    return MergeOptions(
        base=part.get(base),
        on_create=part.get("on_create"),
        on_match=part.get("on_match"),
        condition=part.get("condition"),
        allow_key_change=bool(part.get("allow_key_change")),
        touch=touch,
    )


def _read_part_keys(position: int, part: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for given, value in part.items():
        word = find_known_name(given, known)
        if word in found:
            message = (
                f"Part {position} of the pattern has {given!r} and {word!r}, which mean the same. Give one of them."
            )
            raise InvalidArgumentError(message)
        found[word] = value
        if word not in known:
            similar = get_close_matches(str(word), known, n=1)
            meant = f" Did you mean {similar[0]!r}?" if similar else ""
            message = f"Part {position} of the pattern has {word!r}.{meant} It may have: {', '.join(known)}."
            raise InvalidArgumentError(message)
    return found
