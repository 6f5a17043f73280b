"""The property graph: one SQLite file whose MERGE makes imports repeatable."""

from __future__ import annotations

from merganser.core.errors import (
    EdgeNotFoundError,
    GraphError,
    GraphFileError,
    GraphLockedError,
    GraphSchemaError,
    MergeConflictError,
    MergePerformanceWarning,
    NodeNotFoundError,
    PropertyTypeError,
    PropertyValueError,
    UniqueConstraintError,
)
from merganser.graph.bulk import Endpoint
from merganser.graph.database import GraphDatabase
from merganser.graph.exchange.loading import ImportResult
from merganser.graph.pattern import Pattern
from merganser.graph.query import EdgeQuery, NodeQuery
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType
from merganser.graph.traverse import Traversal

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeNotFoundError",
    "EdgeQuery",
    "EdgeType",
    "Endpoint",
    "GraphDatabase",
    "GraphError",
    "GraphFileError",
    "GraphLockedError",
    "GraphSchema",
    "GraphSchemaError",
    "ImportResult",
    "IndexInfo",
    "MergeConflictError",
    "MergePerformanceWarning",
    "MergedEdge",
    "MergedNode",
    "Node",
    "NodeNotFoundError",
    "NodeQuery",
    "NodeType",
    "Path",
    "Pattern",
    "PropertyTypeError",
    "PropertyValueError",
    "Traversal",
    "UniqueConstraintError",
]
