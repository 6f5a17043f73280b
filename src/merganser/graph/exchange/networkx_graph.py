"""Conversion from and to networkx, an optional package that is imported on first use."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError, MissingExtraError
from merganser.graph.exchange.loading import GraphImport, ImportResult, NewEdge, NewNode, import_graph
from merganser.graph.exchange.property_types import find_property_types, rename_reserved
from merganser.graph.values import Properties, decode, encode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    import networkx as nx

    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store

# The attributes of a graph that tell which attributes of nodes and edges hold properties of another name.
_RENAMED: dict[Table, str] = {"nodes": "merganser:node_properties", "edges": "merganser:edge_properties"}


def to_networkx(store: Store) -> nx.MultiDiGraph:
    """Convert the graph; see `GraphDatabase.to_networkx`."""
    graph = _import_networkx().MultiDiGraph()
    with store.snapshot() as connection:
        renamed = _rename_type(connection, graph, "nodes")
        nodes = connection.execute("SELECT id, type, properties FROM nodes ORDER BY id")
        graph.add_nodes_from((found, _make_attributes(type_, text, renamed)) for found, type_, text in nodes)
        renamed = _rename_type(connection, graph, "edges")
        edges = connection.execute("SELECT from_id, to_id, id, type, properties FROM edges ORDER BY id")
        graph.add_edges_from(
            (start, end, found, _make_attributes(type_, text, renamed)) for start, end, found, type_, text in edges
        )
    return graph


def from_networkx(store: Store, graph: nx.Graph, node_type: str | None, edge_type: str | None) -> ImportResult:
    """Import a graph; see `GraphDatabase.from_networkx`."""
    if not isinstance(graph, _import_networkx().Graph):
        message = f"graph is a {type(graph).__name__}; give a Graph, DiGraph, MultiGraph or MultiDiGraph of networkx."
        raise InvalidArgumentError(message)
    nodes = list(_read_nodes(graph, node_type, _read_renamed(graph, "nodes")))
    edges = list(_read_edges(graph, edge_type, _read_renamed(graph, "edges")))
    incoming = GraphImport("the graph", list(graph.nodes), nodes, [None] * len(edges), edges)
    return import_graph(store, incoming, keep_ids=False)


def _import_networkx() -> Any:
    try:
        return import_module("networkx")
    except ModuleNotFoundError as error:
        message = f"This needs the package {error.name!r}. Install it with: pip install 'merganser[networkx]'."
        raise MissingExtraError(message) from error


def _rename_type(connection: sqlite3.Connection, graph: Any, table: Table) -> dict[str, str]:
    """Find another attribute for a property 'type', if there is one, and note it in the graph."""
    query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE properties -> '$.type' IS NOT NULL)"
    if not connection.execute(query).fetchone()[0]:
        return {}
    renamed = rename_reserved(find_property_types(connection, table), ["type"])
    # JSON, because formats such as GraphML have no dicts.
    graph.graph[_RENAMED[table]] = encode({attribute: name for name, attribute in renamed.items()})
    return renamed


def _read_renamed(graph: nx.Graph, table: Table) -> dict[str, str]:
    """Read which attributes hold properties of another name."""
    noted = graph.graph.get(_RENAMED[table])
    try:
        found = {} if noted is None else json.loads(noted)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        message = f"The attribute {_RENAMED[table]!r} of the graph is {noted!r}, which is not a JSON object; remove it."
        raise InvalidArgumentError(message)
    return found


def _make_attributes(type_: str, text: str, renamed: Mapping[str, str]) -> Properties:
    properties: Properties = decode(text)
    return {**{renamed.get(name, name): value for name, value in properties.items()}, "type": type_}


def _read_nodes(graph: nx.Graph, default: str | None, renamed: Mapping[str, str]) -> Iterator[NewNode]:
    for node, attributes in graph.nodes(data=True):
        label = f"node {node!r}"
        yield NewNode(label, _get_type(attributes, default, label, "node_type"), _get_properties(attributes, renamed))


def _read_edges(graph: nx.Graph, default: str | None, renamed: Mapping[str, str]) -> Iterator[NewEdge]:
    for start, end, attributes in graph.edges(data=True):
        label = f"edge {start!r} -> {end!r}"
        type_ = _get_type(attributes, default, label, "edge_type")
        yield NewEdge(label, type_, start, end, _get_properties(attributes, renamed))


def _get_type(attributes: Mapping[str, Any], default: str | None, label: str, argument: str) -> Any:
    found = attributes.get("type")
    found = default if found is None else found
    if found is None:
        message = f"{label} has no attribute 'type'; set it, or give {argument} for all that have none."
        raise InvalidArgumentError(message)
    return found


def _get_properties(attributes: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    return {renamed.get(name, name): value for name, value in attributes.items() if name != "type"}
