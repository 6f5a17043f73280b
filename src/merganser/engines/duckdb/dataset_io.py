"""The doors: a dataset through DuckDB, on the caller's connection or on one of our own."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import duckdb
import pyarrow as pa

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.dataset.read import open_dataset
from merganser.core.merge import driver
from merganser.core.merge.dataset_io import DatasetIO, OperationContext
from merganser.core.model.options import CommitOptions, check_names, make_options, pick_source
from merganser.core.rows.matches import Matches
from merganser.core.storage.location import locate
from merganser.core.storage.sql_paths import PathValidator
from merganser.engines.duckdb.engine import DuckDBEngine
from merganser.engines.duckdb.instance import Instance, Limits, read_limits
from merganser.engines.duckdb.version import announce, check_use_merge, should_use_merge
from merganser.errors import DatasetMergeError, InvalidArgumentError, OutOfMemoryError, TargetPathError
from merganser.printable import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self, Unpack

    from merganser.core.merge.driver import WriteMode
    from merganser.core.model.options import MergeOptions, Options, WriteOptions
    from merganser.core.model.result import MergeResult, MergeStats, WriteResult
    from merganser.core.model.strategy import MergeStrategy

RewriteMode = Literal["full", "incremental"]
_log = logging.getLogger(__name__)


class DuckDBDatasetIO(DatasetIO[pa.Table | pa.RecordBatchReader, pa.Table, Matches]):
    """Merge, plan, write and read Parquet datasets with DuckDB.

    A given connection lends its limits of memory, threads and disk, and reads what `read` opens. The work itself is
    done in an instance apart, so the connection's transaction, tables, views and settings stay as they are.

    >>> import tempfile
    >>> lake = tempfile.mkdtemp()
    >>> io = DuckDBDatasetIO(duckdb.connect())
    >>> written = io.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", mode="overwrite")
    >>> result = io.merge(pa.table({"id": [2, 3], "v": ["B", "c"]}), f"{lake}/t", key_columns=["id"])
    >>> result.inserted, result.updated
    (1, 1)
    >>> io.read(f"{lake}/t").order("id").fetchall()
    [(1, 'a'), (2, 'B'), (3, 'c')]
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None, filesystem: Any = None) -> None:
        super().__init__(filesystem)
        if connection is not None and not isinstance(connection, duckdb.DuckDBPyConnection):
            message = f"connection must be a DuckDB connection, not {type(connection).__name__}."
            raise InvalidArgumentError(message)
        self._given = connection
        self._own: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The caller's connection, or one of this door's own: where `read` reads."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = duckdb.connect()
        return self._own

    def close(self) -> None:
        """Close the connection that was opened here for `read`, with what is read from it; the caller's stays open."""
        if self._own is not None:
            self._own.close()
            self._own = None

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
        use_merge: bool | None = None,
        **options: Unpack[CommitOptions],
    ) -> MergeResult:
        """Merge keyed rows into a dataset, as `DatasetIO.merge` says.

        `use_merge` is True for DuckDB's MERGE (1.4.0 or newer), False for UNION ALL and NOT EXISTS, None for MERGE
        where there is one. Both give the same rows and counts.
        """
        given = pick_source(source, data)
        check_names("merge", options, {*CommitOptions.__optional_keys__, "use_merge"})
        made = make_options(
            partition_columns,
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            **options,
        )
        return self._merge(given, path, strategy, key_columns, filesystem, use_merge, made)

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
        """Write a dataset, or with a strategy merge into it; the options are those of `write_dataset` or `merge`.

        `rewrite_mode="incremental"` rewrites the files that hold matched rows, as `merge` does; `"full"` every file.
        """
        if rewrite_mode not in get_args(RewriteMode):
            message = f"Unknown rewrite_mode {rewrite_mode!r}. Choose full or incremental."
            raise InvalidArgumentError(message)
        if strategy is not None and mode != "append":
            message = (
                f"mode {mode!r} is for a write without a strategy; a merge always keeps what it does not change. Leave "
                "one of them out."
            )
            raise InvalidArgumentError(message)
        if strategy is None:
            if key_columns is not None:
                message = "key_columns belong to a strategy. Name one, or leave key_columns out."
                raise InvalidArgumentError(message)
            # An option that only a merge has is an unexpected argument there, as it should be.
            return self.write_dataset(source, path, mode, **cast("WriteOptions", options))
        filesystem, use_merge = options.pop("filesystem", None), options.pop("use_merge", None)
        made = make_options(rewrite_all=rewrite_mode == "full", **options)
        return self._merge(source, path, strategy, key_columns or (), filesystem, use_merge, made)

    def read(
        self, path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
    ) -> duckdb.DuckDBPyRelation:
        """Open exactly the data files as a relation, partition columns in their recorded types.

        With `ignore_table_format`, also those that a table of another format left, whatever its log says of them.
        """
        job = OperationContext("read", path, self._choose_filesystem(filesystem))
        _check_path(job)
        dataset = open_dataset(locate(path, job.filesystem, ignore_table_format=ignore_table_format))
        if not dataset.schema.names:
            message = f"There are no Parquet files below {path}, so a relation would have no columns. Check the path."
            raise TargetPathError(message)
        with _translate_errors(job):
            return self.connection.from_arrow(dataset)

    def _merge(
        self,
        source: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: Sequence[str] | str,
        filesystem: Any,
        use_merge: bool | None,  # noqa: FBT001
        options: Options,
    ) -> MergeResult:
        job = OperationContext("merge", path, self._choose_filesystem(filesystem), strategy, key_columns)
        with translate_memory_errors(job.description), self._open_engine(job, use_merge) as engine:
            return driver.merge(engine, source, path, strategy, key_columns, job.filesystem, options)

    @contextmanager
    def _open_engine(self, context: OperationContext, use_merge: bool | None = None) -> Iterator[DuckDBEngine]:  # noqa: FBT001
        _check_path(context)
        limits = Limits()
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
    """The interface of the source documents, whose merge returns the counts only.

    >>> import tempfile
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
        """Close what was opened here; a connection that was given stays open."""
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
        """Merge with DuckDB and give the counts only."""
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
        """Write a dataset, or with a strategy merge into it, as `DuckDBDatasetIO.write_parquet_dataset` does."""
        return self._io.write_parquet_dataset(source, path, strategy, key_columns, mode, rewrite_mode, **options)


@contextmanager
def _translate_errors(context: OperationContext) -> Iterator[None]:
    """Say what was being done when DuckDB failed (D7)."""
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


def _check_path(context: OperationContext) -> None:
    """Refuse a path that should not stand in an SQL statement (D5); ours are bound, but they may be shown elsewhere."""
    if isinstance(context.path, str | os.PathLike) and (text := os.fspath(context.path)):
        if context.filesystem is None and "://" not in text:
            text = os.path.expanduser(text)
            text = text if os.path.isabs(text) else os.path.join(os.getcwd(), text)
        PathValidator.escape_for_sql(text)
