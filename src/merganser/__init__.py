"""Idempotent MERGE of keyed rows into plain Parquet datasets, and of keyed records into a property graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merganser.api import compact, dedupe, history, inspect, merge, plan, recover, undo, vacuum, write_dataset
    from merganser.core import (
        AccountingError,
        ColumnTypeError,
        ColumnValueError,
        CompactResult,
        ConcurrentWriteError,
        ConfigurationError,
        CountMismatchError,
        DatasetMergeError,
        DatasetPermissionError,
        DedupeResult,
        DuplicateKeyError,
        EdgeNotFoundError,
        GraphError,
        GraphFileError,
        GraphLockedError,
        GraphSchemaError,
        HistoryRecord,
        Inspection,
        InvalidArgumentError,
        KeyColumnError,
        LockTimeoutError,
        MerganserError,
        MergeConflictError,
        MergeFileMetadata,
        MergePerformanceWarning,
        MergePlan,
        MergeResult,
        MergeStats,
        MissingExtraError,
        NodeNotFoundError,
        OutOfMemoryError,
        PartitionMoveError,
        PartitionValueError,
        PipelineError,
        PropertyTypeError,
        PropertyValueError,
        QualityError,
        SchemaMismatchError,
        StagingError,
        TargetPathError,
        UndoError,
        UniqueConstraintError,
        UnreadableFileError,
        UnsupportedFileError,
        UnsupportedTypeError,
        WriteResult,
    )
    from merganser.engines.arrow import PyArrowDatasetIO, merge_parquet_dataset_pyarrow
    from merganser.engines.duckdb import DuckDBDatasetIO, DuckDBParquetHandler
    from merganser.engines.spark import SparkDatasetIO
    from merganser.graph import GraphDatabase, ParquetGraph

    __version__: str
    # For readers of the source; the list that runs leaves out what is not installed.
    __all__ = [
        "AccountingError",
        "ColumnTypeError",
        "ColumnValueError",
        "CompactResult",
        "ConcurrentWriteError",
        "ConfigurationError",
        "CountMismatchError",
        "DatasetMergeError",
        "DatasetPermissionError",
        "DedupeResult",
        "DuckDBDatasetIO",
        "DuckDBParquetHandler",
        "DuplicateKeyError",
        "EdgeNotFoundError",
        "GraphDatabase",
        "GraphError",
        "GraphFileError",
        "GraphLockedError",
        "GraphSchemaError",
        "HistoryRecord",
        "Inspection",
        "InvalidArgumentError",
        "KeyColumnError",
        "LockTimeoutError",
        "MerganserError",
        "MergeConflictError",
        "MergeFileMetadata",
        "MergePerformanceWarning",
        "MergePlan",
        "MergeResult",
        "MergeStats",
        "MissingExtraError",
        "NodeNotFoundError",
        "OutOfMemoryError",
        "ParquetGraph",
        "PartitionMoveError",
        "PartitionValueError",
        "PipelineError",
        "PropertyTypeError",
        "PropertyValueError",
        "PyArrowDatasetIO",
        "QualityError",
        "SchemaMismatchError",
        "SparkDatasetIO",
        "StagingError",
        "TargetPathError",
        "UndoError",
        "UniqueConstraintError",
        "UnreadableFileError",
        "UnsupportedFileError",
        "UnsupportedTypeError",
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
        "AccountingError",
        "ColumnTypeError",
        "ColumnValueError",
        "CompactResult",
        "ConcurrentWriteError",
        "ConfigurationError",
        "CountMismatchError",
        "DatasetMergeError",
        "DatasetPermissionError",
        "DedupeResult",
        "DuplicateKeyError",
        "EdgeNotFoundError",
        "GraphError",
        "GraphFileError",
        "GraphLockedError",
        "GraphSchemaError",
        "HistoryRecord",
        "Inspection",
        "InvalidArgumentError",
        "KeyColumnError",
        "LockTimeoutError",
        "MerganserError",
        "MergeConflictError",
        "MergeFileMetadata",
        "MergePerformanceWarning",
        "MergePlan",
        "MergeResult",
        "MergeStats",
        "MissingExtraError",
        "NodeNotFoundError",
        "OutOfMemoryError",
        "PartitionMoveError",
        "PartitionValueError",
        "PipelineError",
        "PropertyTypeError",
        "PropertyValueError",
        "QualityError",
        "SchemaMismatchError",
        "StagingError",
        "TargetPathError",
        "UndoError",
        "UniqueConstraintError",
        "UnreadableFileError",
        "UnsupportedFileError",
        "UnsupportedTypeError",
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
    if name == "__all__":
        # What `from merganser import *` asks for first.
        return __dir__()
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
    from contextlib import suppress  # noqa: PLC0415  slow to load
    from importlib.util import find_spec  # noqa: PLC0415  as above

    has_spark = False
    with suppress(ImportError):
        has_spark = find_spec("pyspark") is not None
    names = [name for name, module in _MODULE_OF.items() if has_spark or "spark" not in module]
    return sorted([*names, "__version__"])
