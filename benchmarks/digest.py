"""A fingerprint of a table's rows in any order; needs only NumPy and PyArrow.

Each row becomes one number, computed from the names and values of all its columns; the numbers are added up. So parts
of a table can be fingerprinted separately, and integers and strings have the same fingerprint in every width.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

SLICE = 1 << 17
NULL = np.uint64(0x5851F42D4C957F2D)
# An odd number has an inverse modulo 2**64.
STEP = 0x9E3779B97F4A7C15
BACK = pow(STEP, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows, and the sum of their fingerprints."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.total + other.total) % (1 << 64))


def digest(batches: Iterable[pa.RecordBatch]) -> Digest:
    """Fingerprint rows."""
    found = Digest()
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE):
            found += _digest_slice(batch.slice(start, SLICE))
    return found


def _digest_slice(batch: pa.RecordBatch) -> Digest:
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        total += _mix_bits(_to_words(column) + np.uint64(zlib.crc32(name.encode()) * STEP % (1 << 64)))
    return Digest(batch.num_rows, int(_mix_bits(total).sum(dtype=np.uint64)))


def _to_words(column: pa.Array) -> Words:
    """Map each value to a 64-bit number; equal values of different types have the same one."""
    kind = column.type
    if pa.types.is_integer(kind):
        words = _to_numbers(column.cast(pa.int64()), pa.int64()).view(np.uint64)
    elif pa.types.is_date(kind):
        words = _to_numbers(column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), pa.int64()).view(np.uint64)
    elif pa.types.is_floating(kind):
        words = _to_numbers(column.cast(pa.float64()), pa.float64()).view(np.uint64)
    else:
        words = _hash_strings(column.cast(pa.large_string()))
    if column.null_count:
        words = np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, words)
    return words


def _to_numbers(column: pa.Array, kind: pa.DataType) -> npt.NDArray[np.generic]:
    filled: npt.NDArray[np.generic] = pc.fill_null(column, pa.scalar(0, kind)).to_numpy(zero_copy_only=False)
    return filled


def _hash_strings(column: pa.LargeStringArray) -> Words:
    """Hash each string as the digits of a number, in one pass over the bytes of all strings."""
    if not len(column):
        return np.zeros(0, np.uint64)
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = offsets[0], offsets[-1]
    data = np.frombuffer(data_buffer, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    places = offsets - first
    digits = data.astype(np.uint64) + np.uint64(1)
    sums = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(digits * _compute_powers(STEP, len(data)), dtype=np.uint64)]
    )
    shifted = (sums[places[1:]] - sums[places[:-1]]) * _compute_powers(BACK, len(data) + 1)[places[:-1]]
    words: Words = shifted + np.diff(places).astype(np.uint64)
    return words


def _compute_powers(base: int, count: int) -> Words:
    known = _KNOWN_POWERS.get(base)
    if known is None or len(known) < count:
        steps = np.full(max(count, 1 << 20), base, np.uint64)
        steps[0] = 1
        known = _KNOWN_POWERS[base] = np.cumprod(steps, dtype=np.uint64)
    return known[:count]


_KNOWN_POWERS: dict[int, Words] = {}


def _mix_bits(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
