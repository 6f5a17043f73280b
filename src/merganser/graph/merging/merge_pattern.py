"""MERGE of a pattern: several nodes, and edges between them, each by itself or all as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError, MergeConflictError
from merganser.graph.merging.merge import (
    MatchUpdate,
    check_direction,
    check_match,
    create_missing_edge,
    create_missing_node,
    merge_one_edge,
    merge_one_node,
    read_match,
    read_match_update,
    read_new_properties,
    update_matched_edge,
    update_matched_node,
)
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, to_edge, to_node
from merganser.graph.sqlite.indexes import warn_without_index
from merganser.graph.sqlite.sql import build_match_sql, split_match
from merganser.graph.sqlite.write import check_type, make_not_found_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph.records import MergedEdge, MergedNode
    from merganser.graph.sqlite.sql import Parameter, Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# SQLite joins no more tables.
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


@dataclass(frozen=True, slots=True)
class EdgePart:
    """An edge of a pattern, between the nodes at two places of it."""

    type: str
    from_position: Any
    to_position: Any
    is_undirected: bool
    match: Properties
    new: Properties
    change: MatchUpdate


@dataclass(frozen=True, slots=True)
class PatternParts:
    """A pattern: its nodes and edges by their places."""

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
        message = f"The pattern is a {type(given).__name__}; give a list of parts."
        raise InvalidArgumentError(message)
    nodes: dict[int, NodePart] = {}
    edges: dict[int, EdgePart] = {}
    for place, part in enumerate(given):
        if not isinstance(part, Mapping) or ("type" in part) == ("edge" in part):
            message = (
                f"Part {place} of the pattern is {part!r}; give a dict with 'type' for a node or 'edge' for an edge."
            )
            raise InvalidArgumentError(message)
        if "type" in part:
            nodes[place] = _read_node(place, part, touch=touch)
        else:
            edges[place] = _read_edge(place, part, touch=touch)
    for place, link in edges.items():
        for word, end in (("from", link.from_position), ("to", link.to_position)):
            if type(end) is not int or end not in nodes:
                message = f"Part {place} of the pattern has {word!r}: {end!r}; its nodes are at {list(nodes)}."
                raise InvalidArgumentError(message)
    if not nodes:
        message = "The pattern has no nodes; give at least one part with 'type' and 'match'."
        raise InvalidArgumentError(message)
    return PatternParts(nodes, edges)


def _check_whole(parts: PatternParts) -> None:
    """Refuse what cannot be found as a whole."""
    if len(parts.nodes) + len(parts.edges) > _MAX_PARTS:
        message = f"A pattern of more than {_MAX_PARTS} parts cannot be found as a whole; merge it in pieces."
        raise InvalidArgumentError(message)
    together = {min(parts.nodes)}
    for _ in parts.edges:
        for link in parts.edges.values():
            ends = {link.from_position, link.to_position}
            together |= ends if ends & together else set()
    if apart := parts.nodes.keys() - together:
        message = f"Part {min(apart)} of the pattern hangs by no edge on the others; with whole=True, all must."
        raise InvalidArgumentError(message)


def _merge_parts(store: Store, parts: PatternParts) -> tuple[MergedNode | MergedEdge, ...]:
    """Find or create each part by itself, nodes before the edges between them."""
    done: dict[int, MergedNode | MergedEdge] = {
        place: merge_one_node(store, part.type, part.match, part.new, part.change)
        for place, part in parts.nodes.items()
    }
    for place, link in parts.edges.items():
        ends = done[link.from_position].id, link.type, done[link.to_position].id
        done[place] = merge_one_edge(store, *ends, link.match, link.new, link.change, link.is_undirected)
    return tuple(done[place] for place in sorted(done))


def _merge_whole(store: Store, parts: PatternParts) -> tuple[MergedNode | MergedEdge, ...]:
    """Find all parts together, or create all of them."""
    found = _find_match(store, parts)
    done: dict[int, MergedNode | MergedEdge] = {}
    for place, part in parts.nodes.items():
        if found is None:
            done[place] = create_missing_node(store, part.type, part.new)
        else:
            done[place] = update_matched_node(store, _read_row(store, "nodes", found[place]), part.change)
    for place, link in parts.edges.items():
        if found is None:
            done[place] = create_missing_edge(
                store, link.type, done[link.from_position].id, done[link.to_position].id, link.new
            )
        else:
            done[place] = update_matched_edge(store, _read_row(store, "edges", found[place]), link.change)
    return tuple(done[place] for place in sorted(done))


def _find_match(store: Store, parts: PatternParts) -> dict[int, int] | None:
    """Find the one place in the graph where the whole pattern is, as the id of each part."""
    tables, wanted = [], []
    parameters: list[Parameter] = []
    for place, part in parts.nodes.items():
        tables.append(f"nodes p{place}")
        terms, values = split_match(part.match)
        wanted.append(build_match_sql(part.type, terms, f"p{place}."))
        parameters += values
    for place, link in parts.edges.items():
        tables.append(f"edges p{place}")
        terms, values = split_match(link.match)
        start, end = f"p{link.from_position}.id", f"p{link.to_position}.id"
        ways = [f"(p{place}.from_id = {start} AND p{place}.to_id = {end})"]
        ways += [f"(p{place}.from_id = {end} AND p{place}.to_id = {start})"] if link.is_undirected else []
        wanted.append(f"({' OR '.join(ways)}) AND {build_match_sql(link.type, terms, f'p{place}.')}")
        parameters += values
    # As in Cypher, two parts may be the same node, but not the same edge.
    wanted += [f"p{one}.id <> p{other}.id" for one, other in combinations(parts.edges, 2)]
    places = [*parts.nodes, *parts.edges]
    ids = ", ".join(f"p{place}.id" for place in places)
    rows = store.connection.execute(
        f"SELECT {ids} FROM {', '.join(tables)} WHERE {' AND '.join(wanted)}", parameters
    ).fetchall()
    # Seen from its other end, a pattern may be found twice in one place.
    nodes = len(parts.nodes)
    found = {(frozenset(row[:nodes]), frozenset(row[nodes:])): dict(zip(places, row, strict=True)) for row in rows}
    if len(found) > 1:
        raise _make_conflict_error(store, parts, list(found.values()))
    return next(iter(found.values()), None)


def _make_conflict_error(store: Store, parts: PatternParts, found: list[dict[int, int]]) -> MergeConflictError:
    """Name the part that tells several matches apart best."""
    place = max(found[0], key=lambda place: len({match[place] for match in found}))
    if place in parts.nodes:
        part = parts.nodes[place]
        nodes = [to_node(_read_row(store, "nodes", match[place])) for match in found]
        return MergeConflictError(part.type, part.match, nodes, "patterns")
    link = parts.edges[place]
    edges = [to_edge(_read_row(store, "edges", match[place])) for match in found]
    return MergeConflictError(link.type, link.match, edges, "patterns")


def _read_row(store: Store, table: Table, record_id: int) -> Any:
    columns = NODE_COLUMNS if table == "nodes" else EDGE_COLUMNS
    row = store.connection.execute(f"SELECT {columns} FROM {table} WHERE id = ?", (record_id,)).fetchone()
    if row is None:
        # A function of another part has deleted it.
        raise make_not_found_error(table, record_id)
    return row


def _read_node(place: int, part: Mapping[str, Any], *, touch: bool) -> NodePart:
    _check_part_keys(place, part, _NODE_KEYS)
    check_type(part["type"])
    match = read_match(part.get("match"))
    check_match(part["type"], match)
    new = read_new_properties(match, part.get("base"), part.get("on_create"), "base")
    return NodePart(part["type"], match, new, _read_change(match, part, touch=touch))


def _read_edge(place: int, part: Mapping[str, Any], *, touch: bool) -> EdgePart:
    _check_part_keys(place, part, _EDGE_KEYS)
    check_type(part["edge"])
    direction = part.get("direction", "out")
    check_direction(direction)
    match = read_match(part.get("match"))
    new = read_new_properties(match, part.get("properties"), part.get("on_create"), "properties")
    change = _read_change(match, part, touch=touch)
    from_place, to_place = part.get("from"), part.get("to")
    return EdgePart(part["edge"], from_place, to_place, direction == "both", match, new, change)


def _read_change(match: Properties, part: Mapping[str, Any], *, touch: bool) -> MatchUpdate:
    allowed = bool(part.get("allow_key_change"))
    return read_match_update(match, part.get("on_match"), part.get("condition"), allow_key_change=allowed, touch=touch)


def _check_part_keys(place: int, part: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for word in part:
        if word not in known:
            near = get_close_matches(str(word), known, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            message = f"Part {place} of the pattern has {word!r}.{meant} It may have: {', '.join(known)}."
            raise InvalidArgumentError(message)
