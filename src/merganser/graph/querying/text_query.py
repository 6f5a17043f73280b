"""Text queries run on a graph: see `text_parser` for their syntax."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import check_integer
from merganser.graph.querying.match_query import MatchQuery
from merganser.graph.querying.query import EdgeQuery, NodeQuery, query_edges, query_nodes
from merganser.graph.querying.results import Edges, Nodes, Paths, Rows
from merganser.graph.querying.traverse import Traversal, find_unique_keys

if TYPE_CHECKING:
    from merganser.graph.querying.conditions import PropertyConditions
    from merganser.graph.querying.text_syntax import ParsedEdge, ParsedNode, ParsedPath, ParsedQuery
    from merganser.graph.sqlite.store import Store

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


def run_query(store: Store, query: ParsedQuery, options: QueryOptions) -> Nodes | Edges | Paths | Rows:
    """Read what a query asks for."""
    built = _build_query(store, query, options)
    if isinstance(built, Traversal):
        return _run_traversal(store, built, query.paths[0], options)
    return built.run() if isinstance(built, MatchQuery) else built.exec()


def count_results(store: Store, query: ParsedQuery, options: QueryOptions) -> int:
    """Count what `run_query` would read."""
    built = _build_query(store, query, options)
    if isinstance(built, Traversal):
        return len(_run_traversal(store, built, query.paths[0], options))
    return built.count()


def _build_query(
    store: Store, query: ParsedQuery, options: QueryOptions
) -> NodeQuery | EdgeQuery | MatchQuery | Traversal:
    """Build what reads the nodes, edges, paths or rows that a query asks for."""
    path = query.paths[0]
    if options.limit is not None:
        check_integer("limit", options.limit, 0)
    if not path.nodes:
        return _build_edge_query(store, path.edges[0], options)
    if not path.edges and path.nodes[0].id is None and not query.has_clauses:
        return _build_node_query(store, path.nodes[0], options)
    kind = "a query with clauses" if query.has_clauses else "a query for paths or for a node by its id"
    options.refuse(kind, *_NODE_OPTIONS, *_EDGE_OPTIONS, *_ORDER_OPTIONS)
    if path.edges and path.edges[0].depths:
        return _build_traversal(store, path)
    options.refuse("a query without *", "paths")
    if query.has_clauses:
        options.refuse("a query with clauses; it has LIMIT", "limit")
    elif options.limit is not None:
        query = replace(query, returning=replace(query.returning, limit=options.limit))
    return MatchQuery(store, query)


def _build_node_query(store: Store, node: ParsedNode, options: QueryOptions) -> NodeQuery:
    options.refuse("a query for nodes", *_EDGE_OPTIONS, "paths")
    query = _apply_options(query_nodes(store, node.type), node.conditions, options)
    for is_connected, hops in ((True, options.connected_to), (False, options.not_connected_to)):
        for edge, other in hops:
            _check_neighbour(edge, other)
            keep = query.connected_to if is_connected else query.not_connected_to
            query = keep(
                other.type,
                edge.types or None,
                direction=edge.direction,
                match=other.conditions,
                edge_where=edge.conditions,
            )
    return query


def _build_edge_query(store: Store, edge: ParsedEdge, options: QueryOptions) -> EdgeQuery:
    options.refuse("a query for edges", *_NODE_OPTIONS, "paths")
    if len(edge.types) > 1 or edge.depths:
        raise InvalidArgumentError("A query for edges has one type and no *. Write [TYPE], or put () at both ends.")
    query = query_edges(store, next(iter(edge.types), None), options.from_id, options.to_id)
    return _apply_options(query, edge.conditions, options)


def _apply_options(query: QueryT, conditions: PropertyConditions, options: QueryOptions) -> QueryT:
    query = query.where(conditions)
    for name in options.order_by:
        query = query.order_by(name, descending=options.descending)
    if options.limit is not None:
        query = query.limit(options.limit)
    return query.offset(options.offset)


def _check_neighbour(edge: ParsedEdge, node: ParsedNode) -> None:
    if edge.depths:
        raise InvalidArgumentError("An edge to a neighbour may not have *. Leave it out, or query the paths.")
    if node.id is not None:
        message = f"A neighbour cannot be given by its id #{node.id}. Write {{name: value}}, or query the edge to it."
        raise InvalidArgumentError(message)


def _build_traversal(store: Store, path: ParsedPath) -> Traversal:
    """Build a traversal along any number of edges."""
    (edge,), (start, end) = path.edges, path.nodes
    min_depth, max_depth = edge.depths or (1, None)
    is_identified = _is_identified(end)
    return Traversal(
        _store=store,
        start_id=_find_node_id(store, start),
        edge_type=edge.types or None,
        direction=edge.direction,
        min_depth=1 if is_identified else min_depth,
        max_depth=max_depth,
        node_type=None if is_identified else end.type,
        edge_where=edge.conditions,
    )


def _run_traversal(store: Store, traversal: Traversal, path: ParsedPath, options: QueryOptions) -> Nodes | Paths:
    """Read what a traversal reaches; if the last node is identified, the shortest path to it."""
    end = path.nodes[1]
    if _is_identified(end):
        shortest = traversal.shortest_path(_find_node_id(store, end))
        return Paths([] if shortest is None else [shortest], find_unique_keys(store))
    if not options.paths:
        return Nodes(traversal.nodes()[: options.limit])
    if traversal.max_depth is None:
        message = "paths of unlimited length could take forever. Give the largest number of edges, as in [*1..3]."
        raise InvalidArgumentError(message)
    return Paths(traversal.paths()[: options.limit], find_unique_keys(store))


def _is_identified(node: ParsedNode) -> bool:
    return node.id is not None or bool(node.conditions)


def _find_node_id(store: Store, node: ParsedNode) -> int:
    if node.id is not None:
        return node.id
    found = _build_node_query(store, node, QueryOptions(limit=2)).exec()
    if len(found) != 1:
        count = "several nodes match" if found else "no node matches"
        message = f"A path needs one node at each end, and {count}. Give the node by its id, as in (#7)."
        raise InvalidArgumentError(message)
    return found[0].id
