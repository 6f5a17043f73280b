"""Idempotent MERGE of keyed rows into plain Parquet datasets, and of keyed records into a property graph."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from merganser.api import history, merge, plan, recover, undo, vacuum, write_dataset
from merganser.core import (
    DatasetMergeError,
    HistoryRecord,
    MerganserError,
    MergeFileMetadata,
    MergePlan,
    MergeResult,
    MergeStats,
    WriteResult,
)
from merganser.engines import load

if TYPE_CHECKING:
    from merganser.engines.arrow import PyArrowDatasetIO, merge_parquet_dataset_pyarrow
    from merganser.engines.duckdb import DuckDBDatasetIO, DuckDBParquetHandler
    from merganser.engines.spark import SparkDatasetIO
    from merganser.graph import GraphDatabase, ParquetGraph

    __version__: str

__all__ = [
    "DatasetMergeError",
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "GraphDatabase",
    "HistoryRecord",
    "MerganserError",
    "MergeFileMetadata",
    "MergePlan",
    "MergeResult",
    "MergeStats",
    "ParquetGraph",
    "PyArrowDatasetIO",
    "SparkDatasetIO",
    "WriteResult",
    "__version__",
    "history",
    "merge",
    "merge_parquet_dataset_pyarrow",
    "plan",
    "recover",
    "undo",
    "vacuum",
    "write_dataset",
]

_LAZY = {
    "DuckDBDatasetIO": ("merganser.engines.duckdb", "merganser"),
    "GraphDatabase": ("merganser.graph", "merganser"),
    "ParquetGraph": ("merganser.graph.spark", "merganser[spark]"),
    "DuckDBParquetHandler": ("merganser.engines.duckdb", "merganser"),
    "PyArrowDatasetIO": ("merganser.engines.arrow", "merganser"),
    "SparkDatasetIO": ("merganser.engines.spark", "merganser[spark]"),
    "merge_parquet_dataset_pyarrow": ("merganser.engines.arrow", "merganser"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Not before it is asked for: a package that was shipped to an executor has no version there.
        return version("merganser")
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module, install = _LAZY[name]
    return load(module, name, install)
