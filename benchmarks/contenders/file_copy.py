"""All files copied and flushed, without any change: what a change of every file costs at least."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from benchmarks.contenders.plain import PlainTable, flush

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa


class FileCopy(PlainTable):
    """A copy in a folder beside the dataset."""

    def add_column(self, place: Path) -> None:
        """Copy the files as they are."""
        new = place / "new"
        new.mkdir()
        for file in (place / "t").glob("*.parquet"):
            shutil.copyfile(file, new / file.name)
        flush([*new.iterdir(), new])

    widen_column = add_column

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows of the copy."""
        batches: Iterable[pa.RecordBatch] = ds.dataset(place / "new").to_batches()
        return batches


def open_table(_variant: str) -> FileCopy:
    """Open the only variant."""
    return FileCopy()
