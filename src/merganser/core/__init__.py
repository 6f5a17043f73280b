"""The semantics, the plan and the commit of a merge, once, for every engine. Imports no engine."""

from __future__ import annotations

from merganser.core.commit import recover
from merganser.core.dataset import list_dataset_files
from merganser.core.doors import (
    ConservativeMembershipChecker,
    IncrementalFileManager,
    IncrementalRewritePlan,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    confirm_affected_files,
    plan_incremental_rewrite,
)
from merganser.core.errors import (
    ColumnTypeError,
    ColumnValueError,
    ConcurrentWriteError,
    CountMismatchError,
    DatasetMergeError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    LockTimeoutError,
    MerganserError,
    MissingExtraError,
    PartitionMoveError,
    PartitionValueError,
    SchemaMismatchError,
    StagingError,
    TargetPathError,
    UndoError,
    UnreadableFileError,
    UnsupportedFileError,
    UnsupportedTypeError,
)
from merganser.core.history import HistoryFile, HistoryRecord
from merganser.core.hive import parse_hive_partition_path
from merganser.core.keys import normalize_keys
from merganser.core.paths import PathValidator
from merganser.core.plan import FilePlan, MergePlan
from merganser.core.result import MergeFileMetadata, MergeResult, MergeStats, WriteResult, compute_merge_stats
from merganser.core.strategy import MergeStrategy
from merganser.core.validate import (
    TableLike,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)

__all__ = [
    "ColumnTypeError",
    "ColumnValueError",
    "ConcurrentWriteError",
    "ConservativeMembershipChecker",
    "CountMismatchError",
    "DatasetMergeError",
    "DuplicateKeyError",
    "FilePlan",
    "HistoryFile",
    "HistoryRecord",
    "IncrementalFileManager",
    "IncrementalRewritePlan",
    "InvalidArgumentError",
    "KeyColumnError",
    "LockTimeoutError",
    "MerganserError",
    "MergeFileMetadata",
    "MergePlan",
    "MergeResult",
    "MergeStats",
    "MergeStrategy",
    "MissingExtraError",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionMoveError",
    "PartitionPruner",
    "PartitionValueError",
    "PathValidator",
    "SchemaMismatchError",
    "StagingError",
    "TableLike",
    "TargetPathError",
    "UndoError",
    "UnreadableFileError",
    "UnsupportedFileError",
    "UnsupportedTypeError",
    "WriteResult",
    "compute_merge_stats",
    "confirm_affected_files",
    "list_dataset_files",
    "normalize_keys",
    "parse_hive_partition_path",
    "plan_incremental_rewrite",
    "recover",
    "validate_keys_and_schema",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
]
