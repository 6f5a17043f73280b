"""The property graph: one SQLite file whose MERGE makes imports repeatable."""

from __future__ import annotations

from merganser.graph.database import GraphDatabase
from merganser.graph.hops import Pattern
from merganser.graph.query import EdgeQuery, NodeQuery
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType
from merganser.graph.traverse import Traversal

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeQuery",
    "EdgeType",
    "GraphDatabase",
    "GraphSchema",
    "IndexInfo",
    "MergedEdge",
    "MergedNode",
    "Node",
    "NodeQuery",
    "NodeType",
    "Path",
    "Pattern",
    "Traversal",
]
