"""The Lance format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contenders.plain import flush
from benchmarks.task import ADDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from benchmarks.task import Merge


class Lance:
    """A Lance dataset in the folder `t`."""

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Append file by file."""
        for number, file in enumerate(files):
            lance.write_dataset(pq.read_table(file), place / "t", mode="append" if number else "create")

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the dataset."""
        merger = lance.dataset(place / "t").merge_insert(list(merge.keys)).when_matched_update_all()
        if not merge.update_columns:
            merger = merger.when_not_matched_insert_all()
        merger.execute(batch)

    def add_column(self, place: Path) -> None:
        """Add a column of NULLs to the schema in a new manifest: no data file changes."""
        known = {*place.rglob("*")}
        lance.dataset(place / "t").add_columns(pa.schema(ADDED.items()))
        new = {*place.rglob("*")} - known
        flush(new | {path.parent for path in new})

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        batches: Iterable[pa.RecordBatch] = lance.dataset(place / "t").to_batches()
        return batches


def open_table(_variant: str) -> Lance:
    """Open the only variant."""
    return Lance()
