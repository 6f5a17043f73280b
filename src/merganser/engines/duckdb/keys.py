"""Canonical keys as DuckDB can compare them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WIDTH = 32


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give a canonical column that DuckDB compares as Arrow does: its own decimals end at 38 digits.

    >>> [value.as_py()[0] for value in comparable(pa.chunked_array([pa.array([-1, 1], pa.decimal256(76, 0))]))]
    [127, 128]
    """
    if not pa.types.is_decimal256(column.type):
        return column
    return pa.chunked_array([_ordered_bytes(chunk) for chunk in column.chunks], pa.binary(_WIDTH))


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of what `comparable` makes."""
    return pa.binary(_WIDTH) if pa.types.is_decimal256(kind) else kind


def _ordered_bytes(decimals: pa.Array) -> pa.Array:
    """Write the integers under decimals with the highest byte first and the sign turned round: bytes in their order."""
    validity, data = decimals.buffers()
    raw = np.frombuffer(data, np.uint8).reshape(-1, _WIDTH)[decimals.offset : decimals.offset + len(decimals)]
    turned = raw[:, ::-1].copy()
    turned[:, 0] ^= 0x80
    plain = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_WIDTH), len(decimals), [None, pa.py_buffer(turned)])
    return plain if validity is None else pc.if_else(decimals.is_valid(), plain, None)
