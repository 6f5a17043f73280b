"""Idempotent MERGE of keyed rows into plain Parquet datasets, and of keyed records into a property graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merganser.api import compact, dedupe, history, inspect, merge, plan, recover, undo, vacuum, write_dataset
    from merganser.core import (
        CompactResult,
        DatasetMergeError,
        DedupeResult,
        HistoryRecord,
        Inspection,
        MerganserError,
        MergeFileMetadata,
        MergePlan,
        MergeResult,
        MergeStats,
        WriteResult,
    )
    from merganser.engines.arrow import PyArrowDatasetIO, merge_parquet_dataset_pyarrow
    from merganser.engines.duckdb import DuckDBDatasetIO, DuckDBParquetHandler
    from merganser.engines.spark import SparkDatasetIO
    from merganser.graph import GraphDatabase, ParquetGraph

    __version__: str

__all__ = [
    "CompactResult",
    "DatasetMergeError",
    "DedupeResult",
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "GraphDatabase",
    "HistoryRecord",
    "Inspection",
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
    "compact",
    "dedupe",
    "history",
    "inspect",
    "merge",
    "merge_parquet_dataset_pyarrow",
    "plan",
    "recover",
    "undo",
    "vacuum",
    "write_dataset",
]

# Loaded when first asked for: Arrow and NumPy alone take longer to load than a small merge takes.
_MODULES = {
    "merganser.api": (
        "compact",
        "dedupe",
        "history",
        "inspect",
        "merge",
        "plan",
        "recover",
        "undo",
        "vacuum",
        "write_dataset",
    ),
    "merganser.core": (
        "CompactResult",
        "DatasetMergeError",
        "DedupeResult",
        "HistoryRecord",
        "Inspection",
        "MerganserError",
        "MergeFileMetadata",
        "MergePlan",
        "MergeResult",
        "MergeStats",
        "WriteResult",
    ),
    "merganser.engines.arrow": ("PyArrowDatasetIO", "merge_parquet_dataset_pyarrow"),
    "merganser.engines.duckdb": ("DuckDBDatasetIO", "DuckDBParquetHandler"),
    "merganser.engines.spark": ("SparkDatasetIO",),
    "merganser.graph": ("GraphDatabase",),
    "merganser.graph.spark": ("ParquetGraph",),
}
_PACKAGES = ("api", "core", "engines", "graph")
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  slow to load

        # Not before it is asked for: a package that was shipped to an executor has no version there.
        return version("merganser")
    if name in _PACKAGES:
        from importlib import import_module  # noqa: PLC0415  as above

        return import_module(f"merganser.{name}")
    if name not in _MODULE_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from merganser.engines import load  # noqa: PLC0415  as all else here

    module = _MODULE_OF[name]
    loaded = load(module, name, "merganser[spark]" if "spark" in module else "merganser")
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    from importlib.util import find_spec  # noqa: PLC0415  slow to load

    return [name for name in __all__ if find_spec("pyspark") or "spark" not in _MODULE_OF.get(name, "")]
