"""The benchmark dataset: 10 million rows of 7 columns in 40 files, sorted by `id`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 10_000_000
FILES = 40


def rows(ids: np.ndarray, seed: int) -> pa.Table:  # type: ignore[type-arg]
    """Make up rows for some ids."""
    chance = np.random.default_rng(seed)
    count = len(ids)
    day = np.datetime64("2025-01-01", "D") + (ids // 40_000).astype("timedelta64[D]")
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(chance.integers(0, 1_000_000, count), pa.int32()),
            "amount": chance.random(count) * 1000,
            "quantity": pa.array(chance.integers(0, 100, count), pa.int16()),
            "status": pa.array(np.array(["new", "paid", "sent", "back"])[chance.integers(0, 4, count)]),
            "note": pa.array(np.char.add("note ", chance.integers(0, 5_000_000, count).astype(str))),
            "day": pa.array(day, pa.date32()),
        }
    )


def build(root: Path, row_count: int = ROWS, files: int = FILES) -> Path:
    """Write the dataset once; later calls find it."""
    path = root / f"orders-{row_count}-{files}"
    done = root / f"orders-{row_count}-{files}.done"
    if not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        size = row_count // files
        for number in range(files):
            ids = np.arange(number * size, (number + 1) * size)
            pq.write_table(rows(ids, number), path / f"part-{number:03d}.parquet")
        done.touch()
    return path
