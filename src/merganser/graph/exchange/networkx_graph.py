"""Conversion from and to networkx, an optional package that is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError, MissingExtraError
from merganser.graph.exchange.loading import GraphImport, ImportResult, NewEdge, NewNode, import_graph
from merganser.graph.exchange.property_types import make_type_clash_error
from merganser.graph.values import Properties, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import networkx as nx

    from merganser.graph.sqlite.store import Store


def to_networkx(store: Store) -> nx.MultiDiGraph:
    """Convert the graph; see `GraphDatabase.to_networkx`."""
    graph = _import_networkx().MultiDiGraph()
    with store.snapshot() as connection:
        nodes = connection.execute("SELECT id, type, properties FROM nodes ORDER BY id")
        graph.add_nodes_from((found, _make_attributes("node", found, type_, text)) for found, type_, text in nodes)
        edges = connection.execute("SELECT from_id, to_id, id, type, properties FROM edges ORDER BY id")
        graph.add_edges_from(
            (start, end, found, _make_attributes("edge", found, type_, text))
            for start, end, found, type_, text in edges
        )
    return graph


def from_networkx(store: Store, graph: nx.Graph, node_type: str | None, edge_type: str | None) -> ImportResult:
    """Import a graph; see `GraphDatabase.from_networkx`."""
    if not isinstance(graph, _import_networkx().Graph):
        message = f"graph is a {type(graph).__name__}; give a Graph, DiGraph, MultiGraph or MultiDiGraph of networkx."
        raise InvalidArgumentError(message)
    nodes, edges = list(_read_nodes(graph, node_type)), list(_read_edges(graph, edge_type))
    incoming = GraphImport("the graph", list(graph.nodes), nodes, [None] * len(edges), edges)
    return import_graph(store, incoming, keep_ids=False)


def _import_networkx() -> Any:
    try:
        return import_module("networkx")
    except ModuleNotFoundError as error:
        message = f"This needs the package {error.name!r}. Install it with: pip install 'merganser[networkx]'."
        raise MissingExtraError(message) from error


def _make_attributes(domain: str, found: int, type_: str, text: str) -> Properties:
    properties: Properties = decode(text)
    if "type" in properties:
        raise make_type_clash_error(domain, found)
    return {**properties, "type": type_}


def _read_nodes(graph: nx.Graph, default: str | None) -> Iterator[NewNode]:
    for node, attributes in graph.nodes(data=True):
        label = f"node {node!r}"
        yield NewNode(label, _get_type(attributes, default, label, "node_type"), _get_properties(attributes))


def _read_edges(graph: nx.Graph, default: str | None) -> Iterator[NewEdge]:
    for start, end, attributes in graph.edges(data=True):
        label = f"edge {start!r} -> {end!r}"
        yield NewEdge(
            label, _get_type(attributes, default, label, "edge_type"), start, end, _get_properties(attributes)
        )


def _get_type(attributes: Mapping[str, Any], default: str | None, label: str, argument: str) -> Any:
    found = attributes.get("type")
    found = default if found is None else found
    if found is None:
        message = f"{label} has no attribute 'type'; set it, or give {argument} for all that have none."
        raise InvalidArgumentError(message)
    return found


def _get_properties(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "type"}
