"""Vectorised XXH64, the hash of Parquet's bloom filters, for key columns.

Values of equal length are rows of a byte matrix, so that each step of the hash is one NumPy operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Hashes: TypeAlias = npt.NDArray[np.uint64]
    Matrix: TypeAlias = npt.NDArray[np.uint8]

_U = np.uint64
_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)
_SEEDS = (_U(int(_P1) + int(_P2) & 0xFFFFFFFFFFFFFFFF), _P2, _U(0), _U((1 << 64) - int(_P1)))
_STRIPE, _WORD, _HALF = 32, 8, 4
_BLOCK_ROWS = 1 << 13


def hash_keys(keys: Sequence[pa.ChunkedArray]) -> Hashes:
    """Hash the rows of canonical key columns, none of which is NULL.

    >>> [f"{one:016x}" for one in hash_keys([pa.chunked_array([pa.array([b"", b"abc"], pa.large_binary())])])]
    ['ef46db3751d8e999', '44bc2cf5ad770999']
    """
    columns = [np.concatenate([np.empty(0, _U), *map(_hash_array, column.chunks)]) for column in keys]
    return columns[0] if len(columns) == 1 else xxh64(np.stack(columns, axis=1).view(np.uint8))


def _hash_array(values: pa.Array) -> Hashes:
    if pa.types.is_large_binary(values.type):
        return _hash_binary(values)
    data = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    width = values.type.bit_width // 8
    return _hash_in_blocks(data[values.offset * width : (values.offset + len(values)) * width].reshape(-1, width))


def _hash_binary(values: pa.LargeBinaryArray) -> Hashes:
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets or bytes(_WORD), np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data or b"", np.uint8)
    lengths = np.diff(ends)
    order = np.argsort(lengths, kind="stable")
    found, starts = np.unique(lengths[order], return_index=True)
    if len(found) == 1:
        return _hash_in_blocks(content[ends[0] : ends[-1]].reshape(len(values), found[0]))
    hashes = np.empty(len(values), _U)
    for length, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
        hashes[rows] = xxh64(content[ends[rows][:, None] + np.arange(length)])
    return hashes


def _hash_in_blocks(data: Matrix) -> Hashes:
    """Hash a large matrix in blocks that fit into the processor's cache."""
    blocks = (xxh64(data[at : at + _BLOCK_ROWS]) for at in range(0, len(data), _BLOCK_ROWS))
    return np.concatenate([np.empty(0, _U), *blocks])


def xxh64(data: Matrix) -> Hashes:
    """Hash every row of a matrix of bytes."""
    count, length = data.shape
    words = np.ascontiguousarray(data[:, : length // _WORD * _WORD]).view("<u8").T
    used = length // _STRIPE * (_STRIPE // _WORD)
    if used:
        lanes = [np.full(count, seed, _U) for seed in _SEEDS]
        for start in range(0, used, len(lanes)):
            lanes = [_mix_lane(lane, words[start + at]) for at, lane in enumerate(lanes)]
        rotated = [_rotate_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
        hashes: Hashes = np.sum(rotated, axis=0)
        for lane in lanes:
            hashes = (hashes ^ _mix_lane(_U(0), lane)) * _P1 + _P4
    else:
        hashes = np.full(count, _P5, _U)
    hashes = hashes + _U(length)
    for word in words[used:]:
        hashes = _rotate_left(hashes ^ _mix_lane(_U(0), word), 27) * _P1 + _P4
    at = len(words) * _WORD
    if length - at >= _HALF:
        half = np.ascontiguousarray(data[:, at : at + _HALF]).view("<u4")[:, 0].astype(_U)
        hashes = _rotate_left(hashes ^ half * _P1, 23) * _P2 + _P3
        at += _HALF
    for column in range(at, length):
        hashes = _rotate_left(hashes ^ data[:, column] * _P5, 11) * _P1
    for shift, factor in ((33, _P2), (29, _P3)):
        hashes = (hashes ^ hashes >> _U(shift)) * factor
    return hashes ^ hashes >> _U(32)


def _mix_lane(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    return _rotate_left(lane + word * _P2, 31) * _P1


def _rotate_left(values: Hashes, by: int) -> Hashes:
    return values << _U(by) | values >> _U(64 - by)
