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
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeNotFoundError",
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
    "NodeType",
    "Path",
    "PropertyTypeError",
    "PropertyValueError",
    "UniqueConstraintError",
]
