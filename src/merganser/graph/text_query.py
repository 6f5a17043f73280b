"""Queries that were read from a text, asked of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.query import EdgeQuery, NodeQuery
from merganser.graph.querying.results import Edges, Nodes, Paths

if TYPE_CHECKING:
    from merganser.graph.database import GraphDatabase
    from merganser.graph.querying.pattern import Pattern
    from merganser.graph.querying.query_text import ParsedEdge, ParsedNode, ParsedQuery
    from merganser.graph.querying.traverse import Traversal

QueryT = TypeVar("QueryT", NodeQuery, EdgeQuery)


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What else is asked: of nodes or edges by themselves, and of several edges in a row."""

    order_by: tuple[str, ...] = ()
    descending: bool = False
    limit: int | None = None
    offset: int = 0
    connected_to: tuple[tuple[ParsedEdge, ParsedNode], ...] = ()
    not_connected_to: tuple[tuple[ParsedEdge, ParsedNode], ...] = ()
    from_id: int | None = None
    to_id: int | None = None
    paths: bool = False

    def refuse(self, what: str, *names: str) -> None:
        """Refuse wishes that mean nothing here."""
        for name in names:
            if getattr(self, name) != getattr(QueryOptions(), name):
                message = f"--{name.replace('_', '-')} says nothing of {what}. Leave it out."
                raise InvalidArgumentError(message)


_NODE_OPTIONS = ("connected_to", "not_connected_to")
_EDGE_OPTIONS = ("from_id", "to_id")
_ORDER_OPTIONS = ("order_by", "descending", "offset")


def run_query(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Nodes | Edges | Paths:
    """Give what a query finds."""
    if not query.nodes:
        return build_edge_query(graph, query.edges[0], options).exec()
    if len(query.nodes) == 1 and query.nodes[0].id is None:
        return build_node_query(graph, query.nodes[0], options).exec()
    options.refuse("paths, or of a node by its id", *_NODE_OPTIONS, *_EDGE_OPTIONS, *_ORDER_OPTIONS)
    if any(edge.depths for edge in query.edges):
        return _run_traversal(graph, query, options)
    options.refuse("edges that come one at a time", "paths")
    found = _build_pattern(graph, query, options).exec()
    return found if query.edges else Nodes(path.nodes[0] for path in found)


def count(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> int:
    """Count what a query finds."""
    if not query.nodes:
        return build_edge_query(graph, query.edges[0], options).count()
    if len(query.nodes) == 1 and query.nodes[0].id is None:
        return build_node_query(graph, query.nodes[0], options).count()
    return len(run_query(graph, query, options))


def build_node_query(graph: GraphDatabase, node: ParsedNode, options: QueryOptions) -> NodeQuery:
    """Give the query of nodes by themselves."""
    options.refuse("nodes", *_EDGE_OPTIONS, "paths")
    found = _apply_conditions(graph.nodes(node.type), node, options)
    for edge, other in options.connected_to:
        found = found.connected_to(
            *_get_neighbour_types(edge, other), direction=edge.direction, match=other.get_match_values()
        )
    for edge, other in options.not_connected_to:
        found = found.not_connected_to(
            *_get_neighbour_types(edge, other), direction=edge.direction, match=other.get_match_values()
        )
    return found


def build_edge_query(graph: GraphDatabase, edge: ParsedEdge, options: QueryOptions) -> EdgeQuery:
    """Give the query of edges by themselves."""
    options.refuse("edges", *_NODE_OPTIONS, "paths")
    if len(edge.types) > 1 or edge.depths:
        message = "Edges by themselves are of one type, and one at a time. Say [TYPE], or () at both ends."
        raise InvalidArgumentError(message)
    chosen = graph.edges(next(iter(edge.types), None), from_id=options.from_id, to_id=options.to_id)
    return _apply_conditions(chosen, edge, options)


def _apply_conditions(found: QueryT, parsed: ParsedNode | ParsedEdge, options: QueryOptions) -> QueryT:
    for condition in parsed.conditions:
        found = found.where(condition.name, condition.operator, condition.value)
    for name in options.order_by:
        found = found.order_by(name, descending=options.descending)
    if options.limit is not None:
        found = found.limit(options.limit)
    return found.offset(options.offset)


def _get_neighbour_types(edge: ParsedEdge, node: ParsedNode) -> tuple[str | None, tuple[str, ...] | None]:
    _check_types_only(edge)
    if node.id is not None:
        message = f"A neighbour cannot be asked for by its id #{node.id}. Say {{name: value}}, or draw the edge to it."
        raise InvalidArgumentError(message)
    return node.type, edge.types or None


def _check_types_only(edge: ParsedEdge) -> None:
    if edge.conditions or edge.depths:
        message = (
            "An edge between nodes has types alone here: no conditions, and no * beside other edges. Ask for the edges "
            "in a query of their own, such as [POSTED_BY {since: 1}]."
        )
        raise InvalidArgumentError(message)


def _build_pattern(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Pattern:
    start, *others = query.nodes
    found = graph.pattern(start.type, start.get_match_values(), start_id=start.id)
    for edge, node in zip(query.edges, others, strict=True):
        _check_types_only(edge)
        if node.id is not None:
            message = f"Only the first node may be given by its id; #{node.id} is another. Turn the query round."
            raise InvalidArgumentError(message)
        hop = {"out": found.out, "in": found.in_, "both": found.both}[edge.direction]
        found = hop(edge.types or None, node.type, node.get_match_values())
    return found if options.limit is None else found.limit(options.limit)


def _run_traversal(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Nodes | Paths:
    """Follow edges of unknown number; to a node that is known, by the shortest path."""
    if len(query.edges) > 1 or query.edges[0].conditions:
        message = "An edge with * stands alone between two nodes, without conditions. Ask in several queries."
        raise InvalidArgumentError(message)
    (edge,), (start, end) = query.edges, query.nodes
    least, most = edge.depths or (1, None)
    known = end.id is not None or bool(end.conditions)
    traversal: Traversal = graph.traverse(
        _find_node_id(graph, start),
        edge.types or None,
        direction=edge.direction,
        min_depth=1 if known else least,
        max_depth=most,
        node_type=None if known else end.type,
    )
    if known:
        shortest = traversal.shortest_path(_find_node_id(graph, end))
        return Paths([] if shortest is None else [shortest])
    if options.paths:
        if most is None:
            message = "--paths along any number of edges could be endless work. Say the most, such as [*1..3]."
            raise InvalidArgumentError(message)
        return Paths(traversal.paths()[: options.limit])
    return Nodes(traversal.nodes()[: options.limit])


def _find_node_id(graph: GraphDatabase, node: ParsedNode) -> int:
    """Find the id of the one node that a text means."""
    if node.id is not None:
        return node.id
    found = build_node_query(graph, node, QueryOptions(limit=2)).exec()
    if len(found) != 1:
        told = "no node is" if not found else "several nodes are"
        message = f"The way has to begin and end at one node, and {told} like that. Name it by its id, such as (#7)."
        raise InvalidArgumentError(message)
    return found[0].id
