"""The property graph: one SQLite file whose MERGE makes imports repeatable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.engines import load
from merganser.errors import (
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
from merganser.graph.database import GraphDatabase
from merganser.graph.exchange.loading import ImportResult
from merganser.graph.merging.bulk_options import Endpoint
from merganser.graph.querying.pattern import Pattern
from merganser.graph.querying.query import EdgeQuery, NodeQuery
from merganser.graph.querying.results import Edges, Nodes, Paths, Rows
from merganser.graph.querying.stats import GraphStats
from merganser.graph.querying.traverse import Traversal
from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
from merganser.graph.schema import EdgeType, GraphSchema, NodeType
from merganser.graph.view.neighbourhood import Neighbourhood

if TYPE_CHECKING:
    from merganser.graph.spark import ExchangeResult, GraphMergeResult, ParquetGraph, SqliteGraph

__all__ = [
    "BulkResult",
    "Edge",
    "EdgeNotFoundError",
    "EdgeQuery",
    "EdgeType",
    "Edges",
    "Endpoint",
    "ExchangeResult",
    "GraphDatabase",
    "GraphError",
    "GraphFileError",
    "GraphLockedError",
    "GraphMergeResult",
    "GraphSchema",
    "GraphSchemaError",
    "GraphStats",
    "ImportResult",
    "IndexInfo",
    "MergeConflictError",
    "MergePerformanceWarning",
    "MergedEdge",
    "MergedNode",
    "Neighbourhood",
    "Node",
    "NodeNotFoundError",
    "NodeQuery",
    "NodeType",
    "Nodes",
    "ParquetGraph",
    "Path",
    "Paths",
    "Pattern",
    "PropertyTypeError",
    "PropertyValueError",
    "Rows",
    "SqliteGraph",
    "Traversal",
    "UniqueConstraintError",
]

# Loaded when first asked for: Spark takes its time.
_LAZY = ("ExchangeResult", "GraphMergeResult", "ParquetGraph", "SqliteGraph")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load("merganser.graph.spark", name, "merganser[spark]")
