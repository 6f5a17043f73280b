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
    from merganser.graph.querying.query_text import EdgeText, NodeText, QueryText
    from merganser.graph.querying.traverse import Traversal

Query = TypeVar("Query", NodeQuery, EdgeQuery)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What else is asked: of nodes or edges by themselves, and of several edges in a row."""

    order_by: tuple[str, ...] = ()
    descending: bool = False
    limit: int | None = None
    offset: int = 0
    connected_to: tuple[tuple[EdgeText, NodeText], ...] = ()
    not_connected_to: tuple[tuple[EdgeText, NodeText], ...] = ()
    from_id: int | None = None
    to_id: int | None = None
    paths: bool = False

    def refuse(self, what: str, *names: str) -> None:
        """Refuse wishes that mean nothing here."""
        for name in names:
            if getattr(self, name) != getattr(Wishes(), name):
                message = f"--{name.replace('_', '-')} says nothing of {what}. Leave it out."
                raise InvalidArgumentError(message)


_OF_NODES = ("connected_to", "not_connected_to")
_OF_EDGES = ("from_id", "to_id")
_OF_EITHER = ("order_by", "descending", "offset")


def ask(graph: GraphDatabase, query: QueryText, wishes: Wishes) -> Nodes | Edges | Paths:
    """Give what a query finds."""
    if not query.nodes:
        return edges_query(graph, query.edges[0], wishes).exec()
    if len(query.nodes) == 1 and query.nodes[0].id is None:
        return nodes_query(graph, query.nodes[0], wishes).exec()
    wishes.refuse("paths, or of a node by its id", *_OF_NODES, *_OF_EDGES, *_OF_EITHER)
    if any(edge.depths for edge in query.edges):
        return _reached(graph, query, wishes)
    wishes.refuse("edges that come one at a time", "paths")
    found = _pattern(graph, query, wishes).exec()
    return found if query.edges else Nodes(path.nodes[0] for path in found)


def count(graph: GraphDatabase, query: QueryText, wishes: Wishes) -> int:
    """Count what a query finds."""
    if not query.nodes:
        return edges_query(graph, query.edges[0], wishes).count()
    if len(query.nodes) == 1 and query.nodes[0].id is None:
        return nodes_query(graph, query.nodes[0], wishes).count()
    return len(ask(graph, query, wishes))


def nodes_query(graph: GraphDatabase, node: NodeText, wishes: Wishes) -> NodeQuery:
    """Give the query of nodes by themselves."""
    wishes.refuse("nodes", *_OF_EDGES, "paths")
    found = _chosen(graph.nodes(node.type), node, wishes)
    for edge, other in wishes.connected_to:
        found = found.connected_to(*_neighbour(edge, other), direction=edge.direction, match=other.equalities())
    for edge, other in wishes.not_connected_to:
        found = found.not_connected_to(*_neighbour(edge, other), direction=edge.direction, match=other.equalities())
    return found


def edges_query(graph: GraphDatabase, edge: EdgeText, wishes: Wishes) -> EdgeQuery:
    """Give the query of edges by themselves."""
    wishes.refuse("edges", *_OF_NODES, "paths")
    if len(edge.types) > 1 or edge.depths:
        message = "Edges by themselves are of one type, and one at a time. Say [TYPE], or () at both ends."
        raise InvalidArgumentError(message)
    chosen = graph.edges(next(iter(edge.types), None), from_id=wishes.from_id, to_id=wishes.to_id)
    return _chosen(chosen, edge, wishes)


def _chosen(found: Query, text: NodeText | EdgeText, wishes: Wishes) -> Query:
    for condition in text.conditions:
        found = found.where(condition.name, condition.operator, condition.value)
    for name in wishes.order_by:
        found = found.order_by(name, descending=wishes.descending)
    if wishes.limit is not None:
        found = found.limit(wishes.limit)
    return found.offset(wishes.offset)


def _neighbour(edge: EdgeText, node: NodeText) -> tuple[str | None, tuple[str, ...] | None]:
    _check_plain(edge)
    if node.id is not None:
        message = f"A neighbour cannot be asked for by its id #{node.id}. Say {{name: value}}, or draw the edge to it."
        raise InvalidArgumentError(message)
    return node.type, edge.types or None


def _check_plain(edge: EdgeText) -> None:
    if edge.conditions or edge.depths:
        message = (
            "An edge between nodes has types alone here: no conditions, and no * beside other edges. Ask for the edges "
            "in a query of their own, such as [POSTED_BY {since: 1}]."
        )
        raise InvalidArgumentError(message)


def _pattern(graph: GraphDatabase, query: QueryText, wishes: Wishes) -> Pattern:
    start, *others = query.nodes
    found = graph.pattern(start.type, start.equalities(), start_id=start.id)
    for edge, node in zip(query.edges, others, strict=True):
        _check_plain(edge)
        if node.id is not None:
            message = f"Only the first node may be given by its id; #{node.id} is another. Turn the query round."
            raise InvalidArgumentError(message)
        hop = {"out": found.out, "in": found.in_, "both": found.both}[edge.direction]
        found = hop(edge.types or None, node.type, node.equalities())
    return found if wishes.limit is None else found.limit(wishes.limit)


def _reached(graph: GraphDatabase, query: QueryText, wishes: Wishes) -> Nodes | Paths:
    """Follow edges of unknown number; to a node that is known, by the shortest path."""
    if len(query.edges) > 1 or query.edges[0].conditions:
        message = "An edge with * stands alone between two nodes, without conditions. Ask in several queries."
        raise InvalidArgumentError(message)
    (edge,), (start, end) = query.edges, query.nodes
    least, most = edge.depths or (1, None)
    known = end.id is not None or bool(end.conditions)
    traversal: Traversal = graph.traverse(
        _one(graph, start),
        edge.types or None,
        direction=edge.direction,
        min_depth=1 if known else least,
        max_depth=most,
        node_type=None if known else end.type,
    )
    if known:
        shortest = traversal.shortest_path(_one(graph, end))
        return Paths([] if shortest is None else [shortest])
    if wishes.paths:
        if most is None:
            message = "--paths along any number of edges could be endless work. Say the most, such as [*1..3]."
            raise InvalidArgumentError(message)
        return Paths(traversal.paths()[: wishes.limit])
    return Nodes(traversal.nodes()[: wishes.limit])


def _one(graph: GraphDatabase, node: NodeText) -> int:
    """Find the id of the one node that a text means."""
    if node.id is not None:
        return node.id
    found = nodes_query(graph, node, Wishes(limit=2)).exec()
    if len(found) != 1:
        told = "no node is" if not found else "several nodes are"
        message = f"The way has to begin and end at one node, and {told} like that. Name it by its id, such as (#7)."
        raise InvalidArgumentError(message)
    return found[0].id
