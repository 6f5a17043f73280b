"""Datasets through DuckDB, with the limits of the caller's connection or of a new one."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from weakref import finalize

import duckdb

from merganser.core.commit.pinned import open_pinned_dataset
from merganser.core.merge.dataset_io import DatasetIO
from merganser.core.merge.operation import OperationContext
from merganser.core.model.options import Options, check_names, list_options
from merganser.core.storage.location import locate
from merganser.core.storage.sql_paths import check_dataset_path
from merganser.engines.duckdb.connection import announce, check_use_merge, should_use_merge
from merganser.engines.duckdb.engine import DuckDBEngine
from merganser.engines.duckdb.instance import Instance, Limits, read_limits
from merganser.engines.duckdb.remote_dataset import open_remotely
from merganser.errors import DatasetMergeError, InvalidArgumentError, OutOfMemoryError, TargetPathError
from merganser.printable import to_printable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import Self, Unpack

    from merganser.core.commit.states import AsOf
    from merganser.core.merge.driver import WriteMode
    from merganser.core.merge.operation import MergeOptions
    from merganser.core.model.result import MergeResult, MergeStats, WriteResult
    from merganser.core.model.strategy import MergeStrategy

RewriteMode = Literal["full", "incremental"]
_log = logging.getLogger(__name__)


class DuckDBDatasetIO(DatasetIO):
    """Merge, plan, write and read Parquet datasets with DuckDB.

    Limits of memory, threads and disk are those of `connection`, which also runs what `read` returns. Merges run in a
    separate instance, so the connection's transaction, tables, views and settings stay as they are.

    Args:
        connection: DuckDB connection; by default a new one.
        filesystem: fsspec filesystem that calls use by default.

    >>> import tempfile, pyarrow as pa
    >>> lake = tempfile.mkdtemp()
    >>> io = DuckDBDatasetIO(duckdb.connect())
    >>> written = io.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", mode="overwrite")
    >>> result = io.merge(pa.table({"id": [2, 3], "v": ["B", "c"]}), f"{lake}/t", key_columns=["id"])
    >>> result.inserted, result.updated
    (1, 1)
    >>> io.read(f"{lake}/t").order("id").fetchall()
    [(1, 'a'), (2, 'B'), (3, 'c')]
    """

    engine_name = "duckdb"

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None, filesystem: Any = None) -> None:
        super().__init__(filesystem)
        if connection is not None and not isinstance(connection, duckdb.DuckDBPyConnection):
            raise InvalidArgumentError(f"connection must be a DuckDB connection, not {type(connection).__name__}.")
        self._given = connection
        self._own: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection that `read` uses: the caller's, or a new one."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = duckdb.connect()
        return self._own

    def close(self) -> None:
        """Close the connection unless it is the caller's; relations that `read` returned cannot be used then."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def write_parquet_dataset(
        self,
        source: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy | None = None,
        key_columns: Sequence[str] | str | None = None,
        mode: WriteMode = "append",
        rewrite_mode: RewriteMode = "full",
        **options: Unpack[MergeOptions],
    ) -> MergeResult | WriteResult:
        """Write a dataset, or merge into it if a strategy is given.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
            path: Folder or URL of the dataset.
            strategy: Strategy of a merge; None writes without merging.
            key_columns: Columns that identify a row, for a merge.
            mode: Whether a write keeps or replaces existing rows.
            rewrite_mode: Whether a merge rewrites all files ("full") or those with matched rows ("incremental").
            **options: Options of `merge` or `write_dataset`.

        >>> import tempfile, pyarrow as pa
        >>> DuckDBDatasetIO().write_parquet_dataset(pa.table({"id": [1]}), tempfile.mkdtemp(), "upsert", "id").inserted
        1
        """
        if rewrite_mode not in get_args(RewriteMode):
            raise InvalidArgumentError(f"Unknown rewrite_mode {rewrite_mode!r}. Choose full or incremental.")
        if strategy is not None and mode != "append":
            raise InvalidArgumentError(
                f"mode {mode!r} is for a write without a strategy; a merge always keeps what it does not change. Leave "
                "one of them out."
            )
        if strategy is None:
            if key_columns is not None:
                raise InvalidArgumentError("key_columns require a strategy. Name one, or leave key_columns out.")
            # An option that only a merge has is an unexpected argument there, as it should be.
            return self.write_dataset(source, path, mode, **cast("dict[str, Any]", options))
        check_names("write_parquet_dataset", options, list_options("merge"))
        made = self._make_options("merge", options, rewrite_all=rewrite_mode == "full")
        return self._merge(source, OperationContext("merge", path, made, strategy, key_columns or ()))

    def read(
        self,
        path: str | os.PathLike[str],
        filesystem: Any = None,
        *,
        as_of: AsOf | None = None,
        ignore_table_format: bool = False,
    ) -> duckdb.DuckDBPyRelation:
        """Open the dataset's data files as a relation, with partition columns in their recorded types.

        It is read from a snapshot, which no commit changes, and which ends with the relation and those made from it.

        Args:
            path: Folder or URL of the dataset.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            as_of: The state after a commit, by its id, the number of commits to go back, or a time; default now.
            ignore_table_format: Read all Parquet files, although the folder has the log of a Delta Lake or other table.

        >>> import tempfile, pyarrow as pa
        >>> written = (io := DuckDBDatasetIO()).write_dataset(pa.table({"id": [1, 2]}), lake := tempfile.mkdtemp())
        >>> io.read(lake).fetchall()
        [(1,), (2,)]
        """
        options = Options(filesystem=self._choose_filesystem(filesystem), ignore_table_format=ignore_table_format)
        context = OperationContext("read", path, options)
        check_dataset_path(context.path, context.options.filesystem)
        location = locate(path, options.filesystem, ignore_table_format=ignore_table_format)
        dataset = open_pinned_dataset(location, as_of)
        if not dataset.schema.names:
            message = f"There are no Parquet files below {path}, so a relation would have no columns. Check the path."
            raise TargetPathError(message)
        if not location.store.is_local:
            dataset = open_remotely(dataset)
        # Before 1.5, relations do not keep their connection, but they all keep the dataset.
        finalize(dataset, _release, self.connection).atexit = False
        with _translate_errors(context):
            return self.connection.from_arrow(dataset)

    @contextmanager
    def _open_engine(self, context: OperationContext) -> Iterator[DuckDBEngine]:
        check_dataset_path(context.path, context.options.filesystem)
        limits, use_merge = Limits(), context.options.use_merge
        with _translate_errors(context):
            if self._given is not None:
                limits = read_limits(self._given)
            check_use_merge(use_merge)
            with Instance(limits) as instance:
                yield DuckDBEngine(
                    instance,
                    lambda: should_use_merge(self._given or instance.database, use_merge),
                    partial(announce, use_merge) if context.operation == "merge" else lambda _: None,
                )


class DuckDBParquetHandler:
    """The interface of the source documents, whose merge returns only the counts.

    Args:
        connection: DuckDB connection; by default a new one.
        filesystem: fsspec filesystem of the datasets; by default that of their URL.

    >>> import tempfile, pyarrow as pa
    >>> with DuckDBParquetHandler() as handler:
    ...     handler.merge_parquet_dataset(pa.table({"id": [1]}), tempfile.mkdtemp(), "id")
    {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None, filesystem: Any = None) -> None:
        self._io = DuckDBDatasetIO(connection, filesystem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection unless it is the caller's."""
        self._io.close()

    def merge_parquet_dataset(
        self,
        source: Any,
        target_path: str | os.PathLike[str],
        key_columns: Sequence[str] | str,
        strategy: MergeStrategy = "upsert",
        dedup_order_by: Sequence[str] | str | None = None,
        compression: str = "snappy",
    ) -> MergeStats:
        """Merge with DuckDB and return only the counts.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
            target_path: Folder or URL of the dataset.
            key_columns: Columns that identify a row.
            strategy: What happens to matched, new and missing rows.
            dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
            compression: Codec for new files.
        """
        result = self._io.merge(
            source, target_path, strategy, key_columns, dedup_order_by=dedup_order_by, compression=compression
        )
        return result.stats

    def write_parquet_dataset(
        self,
        source: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy | None = None,
        key_columns: Sequence[str] | str | None = None,
        mode: WriteMode = "append",
        rewrite_mode: RewriteMode = "full",
        **options: Unpack[MergeOptions],
    ) -> MergeResult | WriteResult:
        """Write a dataset, or merge into it, as `DuckDBDatasetIO.write_parquet_dataset` does.

        Args:
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
            path: Folder or URL of the dataset.
            strategy: Strategy of a merge; None writes without merging.
            key_columns: Columns that identify a row, for a merge.
            mode: Whether a write keeps or replaces existing rows.
            rewrite_mode: Whether a merge rewrites all files ("full") or those with matched rows ("incremental").
            **options: Options of `merge` or `write_dataset`.
        """
        return self._io.write_parquet_dataset(source, path, strategy, key_columns, mode, rewrite_mode, **options)


def _release(_: duckdb.DuckDBPyConnection) -> None:
    """Do nothing: the finalizer has kept the connection, and ends now."""


@contextmanager
def _translate_errors(context: OperationContext) -> Iterator[None]:
    """Add the operation to errors of DuckDB (D7)."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            # This is what DuckDB makes of Ctrl-C.
            raise KeyboardInterrupt from error
        raise
    except duckdb.Error as error:
        about = f"operation {context.operation}, strategy {context.strategy}, key columns {context.keys or None}"
        failed = f"{context.path} failed in DuckDB: {type(error).__name__}: {error} ({about})"
        _log.error("%s", to_printable(failed))
        message = f"MERGE operation failed: {error} ({about}). Nothing was changed."
        if isinstance(error, duckdb.OutOfMemoryException):
            remedy = "DuckDB is out of memory: raise memory_limit of its connection, or work on fewer rows at a time."
            raise OutOfMemoryError(f"{message} {remedy}") from error
        raise DatasetMergeError(message) from error
