"""Datasets through Spark."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from merganser.core.commit.snapshots import pin_dataset
from merganser.core.merge.dataset_io import DatasetIO
from merganser.core.model.keys import normalize_keys
from merganser.engines.spark.engine import BROADCAST_LIMIT, GROUP_ROWS, TASK_LIMIT, SparkEngine
from merganser.engines.spark.exchange import decode_inputs
from merganser.engines.spark.input_splits import cast_to_transport, locate_shared, split_dataset
from merganser.engines.spark.java import check_java
from merganser.engines.spark.jobs import make_task_frame, tag_errors
from merganser.engines.spark.pins import hold_snapshot
from merganser.engines.spark.streaming import SparkMergeBuilder, make_sink
from merganser.engines.spark.types import to_spark_schema, to_transport_schema
from merganser.engines.spark.versions import check_executors
from merganser.errors import TargetPathError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from merganser.core.commit.states import AsOf
    from merganser.core.merge.operation import MergeOptions, OperationContext
    from merganser.core.model.strategy import MergeStrategy
    from merganser.core.storage.location import Location
    from merganser.engines.spark.streaming import BatchSink

    Batches = Iterator[pa.RecordBatch]


class SparkDatasetIO(DatasetIO):
    """Merge, plan, write and read Parquet datasets with Spark.

    Executors read and write the dataset's files themselves, so they need access to its storage and this package.

    Args:
        spark: Spark session; by default the active one.
        filesystem: fsspec filesystem that calls use by default.
    """

    engine_name = "spark"
    _broadcast_limit = BROADCAST_LIMIT
    _task_limit = TASK_LIMIT
    _group_rows = GROUP_ROWS

    def __init__(self, spark: SparkSession | None = None, filesystem: Any = None) -> None:
        super().__init__(filesystem)
        self._session = spark

    @property
    def spark(self) -> SparkSession:
        """The caller's session, or the active one, or a new one."""
        found = self._session or SparkSession.getActiveSession()
        if found is None:
            if "SPARK_REMOTE" not in os.environ:
                check_java()
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            found = SparkSession.builder.getOrCreate()
        return found

    def read(
        self,
        path: str | os.PathLike[str],
        filesystem: Any = None,
        *,
        as_of: AsOf | None = None,
        ignore_table_format: bool = False,
    ) -> DataFrame:
        """Open the dataset's data files as a DataFrame, with partition columns in their recorded types.

        Arrow reads the files on the executors, so settings of the session do not affect their values. They are read
        from a snapshot, which no commit changes; call it again after a merge to see its rows. A later call removes the
        snapshot once Java has collected the DataFrame, on Spark Connect the end of the process does.

        Args:
            path: Folder or URL of the dataset.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            as_of: The state after a commit, by its id, the number of commits to go back, or a time; default now.
            ignore_table_format: Read all Parquet files, although the folder has the log of a Delta Lake or other table.
        """
        location = locate_shared(path, self._choose_filesystem(filesystem))
        location = replace(location, ignore_table_format=ignore_table_format)
        pinned = pin_dataset(location, as_of)
        if pinned is None:
            return self._open_frame(location, None)
        frame = self._open_frame(pinned.location, None)
        hold_snapshot(frame, pinned)
        return frame

    def read_columns(
        self, path: str | os.PathLike[str], columns: Sequence[str] | str, filesystem: Any = None
    ) -> DataFrame:
        """Open some columns of a dataset as `read` does; the others are not read from the files.

        Args:
            path: Folder or URL of the dataset.
            columns: Columns to read.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
        """
        return self._open_frame(locate_shared(path, self._choose_filesystem(filesystem)), normalize_keys(columns))

    def _open_frame(self, location: Location, columns: Sequence[str] | None) -> DataFrame:
        splits = split_dataset(location, columns)
        if not splits.schema.names:
            raise TargetPathError(
                f"There are no Parquet files below {location.display}, so a DataFrame would have no columns. Check the "
                "path."
            )
        schema = to_transport_schema(splits.schema)
        frame = make_task_frame(self.spark, splits.splits)
        return frame.mapInArrow(tag_errors(_read_splits, splits.read, schema), to_spark_schema(schema))

    def foreach_batch(
        self,
        path: str | os.PathLike[str],
        strategy: MergeStrategy = "upsert",
        key_columns: Sequence[str] | str = (),
        *,
        query_name: str,
        **options: Unpack[MergeOptions],
    ) -> BatchSink:
        """Return the function that merges each micro-batch of a streaming query, for `foreachBatch`.

        Each batch of a query is merged once, however often Spark sends it. Spark restarts its batch numbers with each
        checkpoint, so a query with a new checkpoint needs a new `query_name`.

        Args:
            path: Folder or URL of the dataset.
            strategy: What happens to matched, new and missing rows.
            key_columns: Columns that identify a row.
            query_name: Name of the query and its checkpoint, unique among the queries of this dataset.
            **options: Options of `merge`, without `batch_id`.
        """
        return make_sink(self, path, key_columns, query_name, dict(options), strategy=strategy)

    def merge_into(
        self,
        path: str | os.PathLike[str],
        source: Any = None,
        on: Sequence[str] | Mapping[str, str] | str = (),
        **options: Unpack[MergeOptions],
    ) -> SparkMergeBuilder:
        """Begin a MERGE in clauses; see `merganser.merge_into`.

        Args:
            path: Folder or URL of the dataset.
            source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files. Leave
                it out for a stream, and end with `foreach_batch`.
            on: Key columns, or expressions over `s` by key column.
            **options: Options of `merge`; for a stream without `batch_id`.
        """
        return SparkMergeBuilder(self, path, source, on, dict(options))

    @contextmanager
    def _open_engine(self, context: OperationContext) -> Iterator[SparkEngine]:
        locate_shared(context.path, context.options.filesystem)
        check_executors(self.spark)
        engine = SparkEngine(self.spark, self._broadcast_limit, self._task_limit, self._group_rows)
        try:
            yield engine
        finally:
            engine.close()


def _read_splits(read: Callable[[Any], Batches], transport_schema: pa.Schema, batches: Batches) -> Batches:
    for _, split in decode_inputs(batches):
        yield from cast_to_transport(read(split), transport_schema)
