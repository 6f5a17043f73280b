"""Brings rows to tasks by number, on versions of Spark that cannot do it by themselves, too."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.engines.spark.columns import NUMBER

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import DataFrame

_HASH_SEED = 42  # of Spark's hash partitioning
_MAX_CACHED = 64


def repartition_by_number(frame: DataFrame, count: int) -> DataFrame:
    """Bring the rows of each number below `count` to the partition of that number."""
    if hasattr(type(frame), "repartitionById"):
        return frame.repartitionById(count, NUMBER)
    return repartition_by_salt(frame, count)


def repartition_by_salt(frame: DataFrame, count: int) -> DataFrame:
    """Do the same before Spark 4.1, which partitions by hash only: by integers whose hashes are the numbers."""
    salts = F.array(*map(F.lit, choose_salts(count)))
    return frame.repartition(count, F.element_at(salts, F.col(NUMBER) + 1))


@lru_cache(_MAX_CACHED)
def choose_salts(count: int) -> tuple[int, ...]:
    """Choose for each partition an integer that Spark's hash partitioning brings to it.

    >>> choose_salts(4)
    (12, 6, 2, 0)
    """
    found = np.full(count, -1, np.int64)
    first, size = 0, max(64, 8 * count)
    while (found < 0).any():
        candidates = np.arange(first, first + size, dtype=np.int32)
        partitions, at = np.unique(hash_integers(candidates).astype(np.int64) % count, return_index=True)
        is_new = found[partitions] < 0
        found[partitions[is_new]] = candidates[at[is_new]]
        first += size
    return tuple(found.tolist())


def hash_integers(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Hash integers as Spark's `hash` does, by Murmur3.

    >>> hash_integers(np.array([0, 1], np.int32)).tolist()
    [933211791, -559580957]
    """
    mixed = _rotate(values.view(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = _rotate(np.uint32(_HASH_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed ^= np.uint32(values.itemsize)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (hashed ^ (hashed >> np.uint32(16))).view(np.int32)


def _rotate(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
