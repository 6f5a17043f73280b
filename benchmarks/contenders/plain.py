"""Shared code of contenders that work on a folder of plain Parquet files."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge

FLUSH_THREADS = 8


class PlainTable:
    """A folder of Parquet files, `t` in the contender's folder, so that files beside it are counted too."""

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Copy the files."""
        (place / "t").mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, place / "t" / file.name)


def flush(paths: Iterable[Path]) -> None:
    """Write files and folders to disk, several at once."""
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(_fsync, paths))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fill_missing_columns(batch: pa.Table, old: pa.Table, merge: Merge) -> pa.Table:
    """Add the missing columns to rows, for contenders that need complete rows."""
    key = merge.keys[-1]
    found = old.take(pc.index_in(batch[key], old[key].combine_chunks()))
    for name in merge.update_columns:
        found = found.set_column(found.schema.get_field_index(name), name, batch[name])
    return found
