"""Property graphs that Spark merges into."""

from __future__ import annotations

from merganser.graph.spark.exchange import ExchangeResult
from merganser.graph.spark.parquet_graph import ParquetGraph
from merganser.graph.spark.results import GraphMergeResult
from merganser.graph.spark.sqlite_graph import SqliteGraph

__all__ = ["ExchangeResult", "GraphMergeResult", "ParquetGraph", "SqliteGraph"]
