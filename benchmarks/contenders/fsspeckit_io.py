"""fsspeckit, which merges into plain Parquet files too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsspeckit.datasets import PyarrowDatasetIO

from benchmarks.contenders.plain import PlainTable, fill_missing_columns

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge


class Fsspeckit(PlainTable):
    """A merge by fsspeckit on PyArrow."""

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the dataset; it needs complete rows."""
        io = PyarrowDatasetIO()
        if merge.update_columns:
            batch = fill_missing_columns(batch, io.read_parquet(str(place / "t")), merge)
        io.merge(batch, str(place / "t"), "upsert", list(merge.keys))

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        batches: Iterable[pa.RecordBatch] = PyarrowDatasetIO().read_parquet(str(place / "t")).to_batches()
        return batches


def open_table(_variant: str) -> Fsspeckit:
    """Open the only variant."""
    return Fsspeckit()
