"""The property graph: one SQLite file whose MERGE makes imports repeatable."""

from __future__ import annotations

from merganser.graph.bulk import Endpoint
from merganser.graph.database import GraphDatabase
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeType",
    "Endpoint",
    "GraphDatabase",
    "GraphSchema",
    "IndexInfo",
    "MergedEdge",
    "MergedNode",
    "Node",
    "NodeType",
    "Path",
]
