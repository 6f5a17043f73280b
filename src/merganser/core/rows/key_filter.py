"""Key filters: fingerprints of the keys of a row group, which prove that a key is absent.

The hash of a key selects a bucket and leaves 16 bits, its fingerprint. A filter has one bucket for every two keys. It
stores the number of keys in each bucket and their fingerprints, which takes 20 bits per key. The false positive rate is
about 1 in 30,000; that of a Parquet Bloom filter of the same size is about 1 in 2,300.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes

# To be raised with every change of what is stored, of the hash, or of the canonical form of keys.
VERSION = 1
_U = np.uint64
_REMAINDER_MASK = np.uint64(0xFFFF)
_DIGEST = 32
_NUMBERS = np.dtype("<i8")
_REMAINDER = np.dtype("<u2")


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """How many keys each bucket has, and what is left of their hashes, by bucket."""

    counts: npt.NDArray[np.uint8]
    remainders: npt.NDArray[np.uint16]

    def might_hold(self, hashes: Hashes) -> bool:
        """Say whether any of some keys might be here."""
        buckets = _find_buckets(hashes, len(self.counts))
        ends = np.cumsum(self.counts, dtype=np.int64)
        lengths = self.counts[buckets].astype(np.int64)
        # Every key is compared with all of its bucket: where that begins, again and again, and the next ones.
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        held = self.remainders[np.repeat(ends[buckets] - lengths, lengths) + within]
        return bool((held == np.repeat((hashes & _REMAINDER_MASK).astype(_REMAINDER), lengths)).any())


def make_filter(hashes: Hashes) -> KeyFilter | None:
    """Make a filter of keys; None where one bucket has too many, which only chosen keys can bring about."""
    count = max(1, len(hashes) // 2)
    placed = np.sort(_find_buckets(hashes, count) << 16 | (hashes & _REMAINDER_MASK).astype(np.int64))
    placed = placed[np.append(True, np.diff(placed) > 0)[: len(placed)]]
    counts = np.bincount(placed >> 16, minlength=count)
    if counts.max() > np.iinfo(np.uint8).max:
        return None
    return KeyFilter(counts.astype(np.uint8), (placed & 0xFFFF).astype(_REMAINDER))


def encode_filters(filters: Mapping[int, KeyFilter], name: str) -> bytes:
    """Write the filters of some row groups of a file under a name."""
    sizes = [(group, len(one.counts), len(one.remainders)) for group, one in filters.items()]
    head = np.array([len(sizes), *(number for size in sizes for number in size)], _NUMBERS)
    arrays = (array for one in filters.values() for array in (one.remainders, one.counts))
    content = b"".join(array.tobytes() for array in (head, *arrays))
    return _digest(content, name) + content


def decode_filters(data: bytes, name: str) -> dict[int, KeyFilter]:
    """Read the filters of a file by row group; none where they were not written under this name, or not whole."""
    content = memoryview(data)[_DIGEST:]
    if data[:_DIGEST] != _digest(content, name):
        return {}
    count = int(np.frombuffer(content, _NUMBERS, 1)[0])
    sizes = np.frombuffer(content, _NUMBERS, 3 * count, _NUMBERS.itemsize).reshape(count, 3)
    filters = {}
    at = _NUMBERS.itemsize * (1 + sizes.size)
    for group, buckets, keys in sizes.tolist():
        rest = np.frombuffer(content, _REMAINDER, keys, at)
        at += rest.nbytes
        filters[group] = KeyFilter(np.frombuffer(content, np.uint8, buckets, at), rest)
        at += buckets
    return filters


def _find_buckets(hashes: Hashes, count: int) -> npt.NDArray[np.int64]:
    """Spread the upper half of each hash over so many buckets."""
    buckets: npt.NDArray[np.int64] = ((hashes >> _U(32)) * _U(count) >> _U(32)).astype(np.int64)
    return buckets


def _digest(content: bytes | memoryview, name: str) -> bytes:
    # Arrow decodes keys, so that its version belongs to the rules.
    made = hashlib.sha256(f"{VERSION} {pa.__version__} {name} ".encode())
    made.update(content)
    return made.digest()
