"""Generated rows and the Parquet datasets that hold them; needs only NumPy and PyArrow."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    Ids: TypeAlias = npt.NDArray[np.int64]
    MakeRows: TypeAlias = Callable[[Ids, int], pa.Table]

ROWS = 10_000_000
FILES = 40
WIDE = 50
# Where a UUID has its dashes.
DASHES = (8, 13, 18, 23)


def rows(ids: Ids, seed: int) -> pa.Table:
    """Generate orders for some ids."""
    return pa.table({"id": pa.array(ids, pa.int64()), **_order(ids, seed)})


def uuid_rows(ids: Ids, seed: int) -> pa.Table:
    """Generate orders whose ids are UUIDs, so that rows of one batch are scattered."""
    return pa.table({"id": uuids(ids), **_order(ids, seed)})


def wide_rows(ids: Ids, seed: int) -> pa.Table:
    """Generate measurements: an id and 49 numbers and strings."""
    chance = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
    for number in range(1, WIDE):
        if number % 7 == 0:
            columns[f"c{number}"] = pa.array(np.char.add("text ", chance.integers(0, 1_000, len(ids)).astype(str)))
        else:
            columns[f"c{number}"] = pa.array(chance.random(len(ids)))
    return pa.table(columns)


def uuids(ids: Ids) -> pa.Array:
    """Derive a UUID from each id, which looks random and is always the same."""
    words = np.stack([_scatter_bits(ids.astype(np.uint64) * np.uint64(2) + np.uint64(half)) for half in (0, 1)], axis=1)
    bytes_ = words.astype(">u8").view(np.uint8).reshape(len(ids), 16)
    digits = np.stack([bytes_ >> 4, bytes_ & 15], axis=2).reshape(len(ids), 32)
    text = np.full((len(ids), 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in DASHES]
    text[:, places] = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    offsets = np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def write(path: Path, make_rows: MakeRows, row_count: int, files: int, groups: int = 1) -> None:
    """Write a dataset sorted by number, with a given number of files and of row groups in each."""
    path.mkdir(parents=True)
    size = row_count // files
    for number in range(files):
        table = make_rows(np.arange(number * size, (number + 1) * size), number)
        pq.write_table(table, path / f"part-{number:05d}.parquet", row_group_size=-(-size // groups))


def build(root: Path, row_count: int = ROWS, files: int = FILES) -> Path:
    """Write the dataset of orders once; later calls reuse it."""
    return build_once(root / f"orders-{row_count}-{files}", lambda path: write(path, rows, row_count, files))


def build_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Create a folder atomically, unless it exists."""
    done = path.with_name(f"{path.name}.done")
    if not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        make(path)
        done.touch()
    return path


def _order(ids: Ids, seed: int) -> dict[str, pa.Array]:
    chance = np.random.default_rng(seed)
    count = len(ids)
    day = np.datetime64("2025-01-01", "D") + (ids // 40_000).astype("timedelta64[D]")
    return {
        "customer": pa.array(chance.integers(0, 1_000_000, count), pa.int32()),
        "amount": pa.array(chance.random(count) * 1000),
        "quantity": pa.array(chance.integers(0, 100, count), pa.int16()),
        "status": pa.array(np.array(["new", "paid", "sent", "back"])[chance.integers(0, 4, count)]),
        "note": pa.array(np.char.add("note ", chance.integers(0, 5_000_000, count).astype(str))),
        "day": pa.array(day, pa.date32()),
    }


def _scatter_bits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits of each word, so that neighbours are far apart and distinct words stay distinct."""
    words = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
