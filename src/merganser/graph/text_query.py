"""Text queries run on a graph: see `querying.text_parser` for their syntax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.query import EdgeQuery, NodeQuery
from merganser.graph.querying.results import Edges, Nodes, Paths

if TYPE_CHECKING:
    from merganser.graph.database import GraphDatabase
    from merganser.graph.querying.pattern import Pattern
    from merganser.graph.querying.text_parser import ParsedEdge, ParsedNode, ParsedQuery

QueryT = TypeVar("QueryT", NodeQuery, EdgeQuery)

_NODE_OPTIONS = ("connected_to", "not_connected_to")
_EDGE_OPTIONS = ("from_id", "to_id")
_ORDER_OPTIONS = ("order_by", "descending", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The options of a text query; which of them apply depends on what the query asks for."""

    order_by: tuple[str, ...] = ()
    descending: bool = False
    limit: int | None = None
    offset: int = 0
    connected_to: tuple[tuple[ParsedEdge, ParsedNode], ...] = ()
    not_connected_to: tuple[tuple[ParsedEdge, ParsedNode], ...] = ()
    from_id: int | None = None
    to_id: int | None = None
    paths: bool = False

    def refuse(self, query: str, *names: str) -> None:
        """Refuse options that do not apply to this kind of query."""
        for name in names:
            if getattr(self, name) != getattr(QueryOptions(), name):
                raise InvalidArgumentError(f"{name} does not apply to {query}. Leave it out.")


def run_query(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Nodes | Edges | Paths:
    """Read what a query asks for."""
    if (single := _build_query(graph, query, options)) is not None:
        return single.exec()
    options.refuse("a query for paths or for a node by its id", *_NODE_OPTIONS, *_EDGE_OPTIONS, *_ORDER_OPTIONS)
    if any(edge.depths for edge in query.edges):
        return _run_traversal(graph, query, options)
    options.refuse("a query without *", "paths")
    found = _build_pattern(graph, query, options).exec()
    return found if query.edges else Nodes(path.nodes[0] for path in found)


def count_results(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> int:
    """Count what `run_query` would read."""
    single = _build_query(graph, query, options)
    return len(run_query(graph, query, options)) if single is None else single.count()


def _build_query(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> NodeQuery | EdgeQuery | None:
    """Build the query for nodes alone or edges alone; None if it is for paths or for a node by its id."""
    if not query.nodes:
        return _build_edge_query(graph, query.edges[0], options)
    if len(query.nodes) == 1 and query.nodes[0].id is None:
        return _build_node_query(graph, query.nodes[0], options)
    return None


def _build_node_query(graph: GraphDatabase, node: ParsedNode, options: QueryOptions) -> NodeQuery:
    options.refuse("a query for nodes", *_EDGE_OPTIONS, "paths")
    query = _apply_options(graph.nodes(node.type), node, options)
    for is_connected, hops in ((True, options.connected_to), (False, options.not_connected_to)):
        for edge, other in hops:
            _check_neighbour(edge, other)
            keep = query.connected_to if is_connected else query.not_connected_to
            query = keep(other.type, edge.types or None, direction=edge.direction, match=other.get_match_values())
    return query


def _build_edge_query(graph: GraphDatabase, edge: ParsedEdge, options: QueryOptions) -> EdgeQuery:
    options.refuse("a query for edges", *_NODE_OPTIONS, "paths")
    if len(edge.types) > 1 or edge.depths:
        raise InvalidArgumentError("A query for edges has one type and no *. Write [TYPE], or put () at both ends.")
    query = graph.edges(next(iter(edge.types), None), from_id=options.from_id, to_id=options.to_id)
    return _apply_options(query, edge, options)


def _apply_options(query: QueryT, parsed: ParsedNode | ParsedEdge, options: QueryOptions) -> QueryT:
    for condition in parsed.conditions:
        query = query.where(condition.name, condition.operator, condition.value)
    for name in options.order_by:
        query = query.order_by(name, descending=options.descending)
    if options.limit is not None:
        query = query.limit(options.limit)
    return query.offset(options.offset)


def _check_neighbour(edge: ParsedEdge, node: ParsedNode) -> None:
    _check_types_only(edge)
    if node.id is not None:
        message = f"A neighbour cannot be given by its id #{node.id}. Write {{name: value}}, or query the edge to it."
        raise InvalidArgumentError(message)


def _check_types_only(edge: ParsedEdge) -> None:
    if edge.conditions or edge.depths:
        raise InvalidArgumentError(
            "An edge between nodes may only have types here: no conditions, and no * beside other edges. Query the "
            "edges by themselves, as in [POSTED_BY {since: 1}]."
        )


def _build_pattern(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Pattern:
    start, *others = query.nodes
    pattern = graph.pattern(start.type, start.get_match_values(), start_id=start.id)
    for edge, node in zip(query.edges, others, strict=True):
        _check_types_only(edge)
        if node.id is not None:
            message = f"Only the first node may be given by its id, not #{node.id}. Reverse the query."
            raise InvalidArgumentError(message)
        add_hop = {"out": pattern.out, "in": pattern.in_, "both": pattern.both}[edge.direction]
        pattern = add_hop(edge.types or None, node.type, node.get_match_values())
    return pattern if options.limit is None else pattern.limit(options.limit)


def _run_traversal(graph: GraphDatabase, query: ParsedQuery, options: QueryOptions) -> Nodes | Paths:
    """Follow any number of edges; if the last node is identified, find the shortest path to it."""
    if len(query.edges) > 1 or query.edges[0].conditions:
        raise InvalidArgumentError("An edge with * must be the only edge, without conditions. Use several queries.")
    (edge,), (start, end) = query.edges, query.nodes
    min_depth, max_depth = edge.depths or (1, None)
    is_identified = end.id is not None or bool(end.conditions)
    traversal = graph.traverse(
        _find_node_id(graph, start),
        edge.types or None,
        direction=edge.direction,
        min_depth=1 if is_identified else min_depth,
        max_depth=max_depth,
        node_type=None if is_identified else end.type,
    )
    if is_identified:
        shortest = traversal.shortest_path(_find_node_id(graph, end))
        return Paths([] if shortest is None else [shortest])
    if not options.paths:
        return Nodes(traversal.nodes()[: options.limit])
    if max_depth is None:
        message = "paths of unlimited length could take forever. Give the largest number of edges, as in [*1..3]."
        raise InvalidArgumentError(message)
    return Paths(traversal.paths()[: options.limit])


def _find_node_id(graph: GraphDatabase, node: ParsedNode) -> int:
    if node.id is not None:
        return node.id
    found = _build_node_query(graph, node, QueryOptions(limit=2)).exec()
    if len(found) != 1:
        count = "several nodes match" if found else "no node matches"
        message = f"A path needs one node at each end, and {count}. Give the node by its id, as in (#7)."
        raise InvalidArgumentError(message)
    return found[0].id
