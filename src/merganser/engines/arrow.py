"""The PyArrow engine: the source in memory, the target streamed by row group, several files at a time."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # noqa: F401  the examples below use it

from merganser.core.columnar.take import align_chunks
from merganser.core.commit.pinned import open_pinned_dataset
from merganser.core.merge.dataset_io import DatasetIO
from merganser.core.model.casts import conform
from merganser.core.rows.table_source import ArrowSource, LocalEngine, OpenedRows
from merganser.core.sources.source import read_source
from merganser.core.storage.location import locate

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow.dataset as pads

    from merganser.core.commit.states import AsOf
    from merganser.core.merge.operation import OperationContext
    from merganser.core.model.engine import Engine, SourceSpec
    from merganser.core.model.result import MergeStats
    from merganser.core.model.strategy import MergeStrategy


class PyArrowDatasetIO(DatasetIO):
    """Merge, plan, write and read Parquet datasets with PyArrow.

    Args:
        filesystem: fsspec filesystem that calls use by default.

    >>> import tempfile
    >>> lake = tempfile.mkdtemp()
    >>> io = PyArrowDatasetIO()
    >>> written = io.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", mode="overwrite")
    >>> result = io.merge(pa.table({"id": [2, 3], "v": ["B", "c"]}), f"{lake}/t", key_columns=["id"])
    >>> result.inserted, result.updated
    (1, 1)
    >>> io.read(f"{lake}/t").to_table().sort_by("id").column("v").to_pylist()
    ['a', 'B', 'c']
    """

    engine_name = "arrow"

    def read(
        self,
        path: str | os.PathLike[str],
        filesystem: Any = None,
        *,
        as_of: AsOf | None = None,
        ignore_table_format: bool = False,
    ) -> pads.Dataset:
        """Open the dataset's data files as a `pyarrow.dataset`, with partition columns in their recorded types.

        It is read from a snapshot, which no commit changes, and which ends with the last object that reads it.

        Args:
            path: Folder or URL of the dataset.
            filesystem: fsspec filesystem of the dataset; by default that of its URL.
            as_of: The state after a commit, by its id, the number of commits to go back, or a time; default now.
            ignore_table_format: Read all Parquet files, although the folder has the log of a Delta Lake or other table.

        >>> import tempfile
        >>> written = PyArrowDatasetIO().write_dataset(pa.table({"id": [1, 2]}), lake := tempfile.mkdtemp())
        >>> PyArrowDatasetIO().read(lake).count_rows()
        2
        """
        location = locate(path, self._choose_filesystem(filesystem), ignore_table_format=ignore_table_format)
        return open_pinned_dataset(location, as_of)

    def _open_engine(self, context: OperationContext) -> AbstractContextManager[Engine]:  # noqa: ARG002  the same for every operation
        return nullcontext(ArrowEngine())


def merge_parquet_dataset_pyarrow(
    source: Any,
    target_path: str | os.PathLike[str],
    key_columns: Sequence[str] | str,
    strategy: MergeStrategy = "upsert",
    dedup_order_by: Sequence[str] | str | None = None,
    compression: str = "snappy",
    filesystem: Any = None,
) -> MergeStats:
    """Merge with PyArrow and return only the counts.

    Args:
        source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
        target_path: Folder or URL of the dataset.
        key_columns: Columns that identify a row.
        strategy: What happens to matched, new and missing rows.
        dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
        compression: Codec for new files.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.

    >>> import tempfile
    >>> merge_parquet_dataset_pyarrow(pa.table({"id": [1]}), tempfile.mkdtemp(), "id")
    {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}
    """
    result = PyArrowDatasetIO(filesystem).merge(
        source, target_path, strategy, key_columns, dedup_order_by=dedup_order_by, compression=compression
    )
    return result.stats


class ArrowEngine(LocalEngine):
    """`merganser.core.model.engine.Engine` on Arrow tables."""

    name = "arrow"

    def open(self, source: Any) -> OpenedTable:
        return OpenedTable(read_source(source))


class OpenedTable(OpenedRows):
    """A source in memory."""

    def conform(self, spec: SourceSpec) -> ArrowSource:
        return ArrowSource(align_chunks(conform(self.rows, spec.schema)), spec)
