"""The property graph: one SQLite file whose MERGE makes imports repeatable."""

from __future__ import annotations

from merganser.graph.database import GraphDatabase
from merganser.graph.exchange.loading import ImportResult
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeType",
    "GraphDatabase",
    "GraphSchema",
    "ImportResult",
    "IndexInfo",
    "MergedEdge",
    "MergedNode",
    "Node",
    "NodeType",
    "Path",
]
