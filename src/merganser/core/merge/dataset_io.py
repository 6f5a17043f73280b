"""The public interface that every engine shares: merge, plan, write and read a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.merge import driver
from merganser.core.model.options import DECLARATIONS, Options, pick_options, pick_source, suggest_names

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from merganser.core.merge.driver import WriteMode
    from merganser.core.merge.planner import MergePlan
    from merganser.core.model.engine import Engine
    from merganser.core.model.options import Call, PartitionMove
    from merganser.core.model.result import MergeResult, WriteResult
    from merganser.core.model.strategy import MergeStrategy
    from merganser.progress import ProgressCallback


class MergeOptions(TypedDict, total=False):
    """The options of `merge`, for methods that pass them on (written by scripts/options.py)."""

    partition_columns: Sequence[str] | str | None
    filesystem: Any
    compression: str
    max_rows_per_file: int
    row_group_size: int
    partition_by: Sequence[str] | str | None
    update_columns: Sequence[str] | str | None
    insert_columns: Sequence[str] | str | None
    dedup_order_by: Sequence[str] | str | None
    sequence_column: str | None
    operation_column: str | None
    operation_values: Mapping[str, Any] | None
    skip_unchanged: bool | Sequence[str] | str
    scope: Mapping[str, Any] | None
    on_partition_move: PartitionMove
    check_partition_moves: bool
    audit: bool | str | os.PathLike[str]
    batch_id: str | None
    retain: int
    lock_timeout: float
    progress: ProgressCallback | None
    ignore_table_format: bool
    use_merge: bool | None


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The operation that an engine is opened for, which its errors name."""

    operation: str
    path: str | os.PathLike[str]
    options: Options
    strategy: str | None = None
    keys: Sequence[str] | str = ()

    @property
    def description(self) -> str:
        """The operation and the dataset."""
        return f"{self.operation} of {self.path}"


class DatasetIO(ABC):
    """Parquet datasets through one engine; `filesystem` is the default of its calls.

    Signatures and `Args:` of `merge`, `plan` and `write_dataset` are written by scripts/options.py.
    """

    engine_name: ClassVar[str]

    def __init__(self, filesystem: Any = None) -> None:
        self.filesystem = filesystem

    @abstractmethod
    def _open_engine(self, context: OperationContext) -> AbstractContextManager[Engine]:
        """Open the engine for one call, and close it however the call ends."""

    @abstractmethod
    def read(self, path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False) -> Any:
        """Open the dataset's data files, and no others, with partition columns in their recorded types.

        Args:
            path: Folder or URL of the dataset.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            ignore_table_format: Also read files of a table of another format, whatever its log says of them.
        """

    @suggest_names
    def merge(
        self,
        source: Any = None,
        path: str | os.PathLike[str] = "",
        strategy: MergeStrategy = "upsert",
        key_columns: Sequence[str] | str = (),
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        compression: str = "snappy",
        max_rows_per_file: int = 5_000_000,
        row_group_size: int = 500_000,
        *,
        data: Any = None,
        partition_by: Sequence[str] | str | None = None,
        update_columns: Sequence[str] | str | None = None,
        insert_columns: Sequence[str] | str | None = None,
        dedup_order_by: Sequence[str] | str | None = None,
        sequence_column: str | None = None,
        operation_column: str | None = None,
        operation_values: Mapping[str, Any] | None = None,
        skip_unchanged: bool | Sequence[str] | str = False,
        scope: Mapping[str, Any] | None = None,
        on_partition_move: PartitionMove = "refuse",
        check_partition_moves: bool = True,
        audit: bool | str | os.PathLike[str] = False,
        batch_id: str | None = None,
        retain: int = 0,
        lock_timeout: float = 60.0,
        progress: ProgressCallback | None = None,
        ignore_table_format: bool = False,
        use_merge: bool | None = None,
    ) -> MergeResult:
        """Merge keyed rows into a dataset; merging the same rows again changes nothing.

        Strategies: `upsert` replaces matched rows and inserts new ones; `insert` only inserts; `update` only replaces;
        `full_merge` also deletes target rows that are missing from the source; `deduplicate` is an upsert of one source
        row per key, the highest in `dedup_order_by`; `delete` deletes matched rows.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, or the path of files.
            path: Folder or URL of the dataset.
            strategy: What happens to matched, new and missing rows.
            key_columns: Columns that identify a row.
            partition_columns: Partition columns of a new dataset; an existing one keeps its own.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            compression: Codec for new files.
            max_rows_per_file: Maximum number of rows in a new file.
            row_group_size: Maximum number of rows in a row group of a new file.
            data: Another name for `source`.
            partition_by: Another name for `partition_columns`.
            update_columns: Columns that matched rows take from the source; default all.
            insert_columns: Columns that new rows take from the source; default all.
            dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
            sequence_column: Column that orders rows with the same key, also against the target; older source rows are
                skipped.
            operation_column: Source column that holds the operation of each row: insert, update or delete.
            operation_values: Values of the operation column that stand for insert, update and delete.
            skip_unchanged: Do not rewrite matched rows that already equal the source, in all columns or in those
                listed.
            scope: Partitions that the source covers completely; full_merge deletes missing rows only there.
            on_partition_move: Whether matched rows whose partition changes are refused or moved.
            check_partition_moves: Look for matched rows whose partition changes; False promises that there are none.
            audit: Record of changed rows: True lists keys and actions, "rows" also the rows before and after; a folder
                receives these as Parquet.
            batch_id: Name of this batch; a batch that was committed before is not merged again.
            retain: Number of latest commits that can be undone; their replaced files are kept.
            lock_timeout: Seconds to wait for another writer.
            progress: Function that is called with a `Progress` at every step, from any thread.
            ignore_table_format: Use the target as plain Parquet files although it was a Delta Lake, Iceberg, Hudi,
                Lance or DuckLake table.
            use_merge: DuckDB only: True for MERGE, False for UNION ALL and NOT EXISTS; by default MERGE if DuckDB has
                it.
        """
        given, options = pick_source(source, data), self._make_options("merge", locals())
        return self._merge(given, path, strategy, key_columns, options)

    @suggest_names
    def plan(
        self,
        source: Any = None,
        path: str | os.PathLike[str] = "",
        strategy: MergeStrategy = "upsert",
        key_columns: Sequence[str] | str = (),
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        *,
        data: Any = None,
        partition_by: Sequence[str] | str | None = None,
        update_columns: Sequence[str] | str | None = None,
        insert_columns: Sequence[str] | str | None = None,
        dedup_order_by: Sequence[str] | str | None = None,
        sequence_column: str | None = None,
        operation_column: str | None = None,
        operation_values: Mapping[str, Any] | None = None,
        skip_unchanged: bool | Sequence[str] | str = False,
        scope: Mapping[str, Any] | None = None,
        on_partition_move: PartitionMove = "refuse",
        check_partition_moves: bool = True,
        ignore_table_format: bool = False,
    ) -> MergePlan:
        """Report what `merge` would do to each file, and why, without doing it.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, or the path of files.
            path: Folder or URL of the dataset.
            strategy: What happens to matched, new and missing rows.
            key_columns: Columns that identify a row.
            partition_columns: Partition columns of a new dataset; an existing one keeps its own.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            data: Another name for `source`.
            partition_by: Another name for `partition_columns`.
            update_columns: Columns that matched rows take from the source; default all.
            insert_columns: Columns that new rows take from the source; default all.
            dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
            sequence_column: Column that orders rows with the same key, also against the target; older source rows are
                skipped.
            operation_column: Source column that holds the operation of each row: insert, update or delete.
            operation_values: Values of the operation column that stand for insert, update and delete.
            skip_unchanged: Do not rewrite matched rows that already equal the source, in all columns or in those
                listed.
            scope: Partitions that the source covers completely; full_merge deletes missing rows only there.
            on_partition_move: Whether matched rows whose partition changes are refused or moved.
            check_partition_moves: Look for matched rows whose partition changes; False promises that there are none.
            ignore_table_format: Use the target as plain Parquet files although it was a Delta Lake, Iceberg, Hudi,
                Lance or DuckLake table.
        """
        given, options = pick_source(source, data), self._make_options("plan", locals())
        with self._open(OperationContext("plan", path, options, strategy, key_columns)) as engine:
            return driver.plan(engine, given, path, strategy, key_columns, options.filesystem, options)

    @suggest_names
    def write_dataset(
        self,
        source: Any,
        path: str | os.PathLike[str],
        mode: WriteMode = "append",
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        compression: str = "snappy",
        max_rows_per_file: int = 5_000_000,
        row_group_size: int = 500_000,
        *,
        partition_by: Sequence[str] | str | None = None,
        retain: int = 0,
        lock_timeout: float = 60.0,
        progress: ProgressCallback | None = None,
        ignore_table_format: bool = False,
    ) -> WriteResult:
        """Append rows to a dataset, or overwrite it; both are committed like a merge.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, or the path of files.
            path: Folder or URL of the dataset.
            mode: Whether existing rows are kept or replaced.
            partition_columns: Partition columns of a new dataset; an existing one keeps its own.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            compression: Codec for new files.
            max_rows_per_file: Maximum number of rows in a new file.
            row_group_size: Maximum number of rows in a row group of a new file.
            partition_by: Another name for `partition_columns`.
            retain: Number of latest commits that can be undone; their replaced files are kept.
            lock_timeout: Seconds to wait for another writer.
            progress: Function that is called with a `Progress` at every step, from any thread.
            ignore_table_format: Use the target as plain Parquet files although it was a Delta Lake, Iceberg, Hudi,
                Lance or DuckLake table.
        """
        options = self._make_options("write_dataset", locals())
        with self._open(OperationContext("write_dataset", path, options)) as engine:
            return driver.write_dataset(engine, source, path, mode, options.filesystem, options)

    def _merge(
        self,
        source: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: Sequence[str] | str,
        options: Options,
    ) -> MergeResult:
        with self._open(OperationContext("merge", path, options, strategy, key_columns)) as engine:
            return driver.merge(engine, source, path, strategy, key_columns, options.filesystem, options)

    @contextmanager
    def _open(self, context: OperationContext) -> Iterator[Engine]:
        with translate_memory_errors(context.description), self._open_engine(context) as engine:
            yield engine

    def _make_options(self, call: Call, arguments: Mapping[str, Any], **others: Any) -> Options:
        """Make the options of a call from its arguments; those of another engine are refused."""
        given = pick_options(call, arguments)
        for name, value in given.items():
            if value is not None and DECLARATIONS[name].engine not in (None, self.engine_name):
                message = f"{call}() got {name}, an option of the {DECLARATIONS[name].engine} engine. Leave it out."
                raise TypeError(message)
        return Options(**{**given, "filesystem": self._choose_filesystem(given.get("filesystem"))}, **others)

    def _choose_filesystem(self, given: Any) -> Any:
        return self.filesystem if given is None else given
