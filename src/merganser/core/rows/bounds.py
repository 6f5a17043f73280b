"""Pruning: which row groups might hold a source key, and which cannot.

The question is whether any source key lies inside the bounds, not whether two ranges overlap. Bounds that are unknown
exclude nothing, so the row group stays.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

CANNOT_MATCH = False
MIGHT_MATCH = True
_PIECE = 4096


def might_match(bounds: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Test every row group's canonical bounds against canonical source keys (P3)."""
    answer = np.full(bounds.num_rows, CANNOT_MATCH)
    if keys.num_rows == 0 or bounds.num_rows == 0:
        return answer
    columns = [
        _RankedColumn(keys.column(number), bounds.column(f"min_{number}"), bounds.column(f"max_{number}"))
        for number in range(keys.num_columns)
    ]
    if not np.logical_and.reduce([column.overlaps() for column in columns]).any():
        return answer
    widths = np.stack([end - start for start, end in (column.places for column in columns)])
    narrowest = widths.argmin(axis=0)
    some = widths.min(axis=0) > 0
    if len(columns) == 1:
        answer[some] = MIGHT_MATCH
        return answer
    # A composite key needs one row that fits every column: test only the rows that fit the most selective one.
    for group in np.flatnonzero(some).tolist():
        selective = columns[narrowest[group]]
        start, end = selective.places
        rows = selective.order[start[group] : end[group]]
        others = [column for column in columns if column is not selective]
        answer[group] = _has_fitting_row(rows, others, group)
    return answer


def _has_fitting_row(rows: npt.NDArray[np.int64], columns: list[_RankedColumn], group: int) -> bool:
    for start in range(0, len(rows), _PIECE):
        piece = rows[start : start + _PIECE]
        fits = np.ones(len(piece), np.bool_)
        for column in columns:
            ranks = column.ranks[piece]
            fits &= (ranks >= column.low[group]) & (ranks <= column.high[group])
        if fits.any():
            return MIGHT_MATCH
    return CANNOT_MATCH


def rank_bounds(low: pa.ChunkedArray, high: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rank known bounds of any type on one scale of integers."""
    scale = pc.rank(pa.chunked_array([*low.chunks, *high.chunks], low.type), tiebreaker="dense").to_numpy()
    return scale[: len(low)].astype(np.int64), scale[len(low) :].astype(np.int64)


class _RankedColumn:
    """One key column and its bounds on one integer scale, whatever their type."""

    def __init__(self, keys: pa.ChunkedArray, low: pa.ChunkedArray, high: pa.ChunkedArray) -> None:
        count = len(keys)
        together = pa.chunked_array([*keys.chunks, *low.chunks, *high.chunks], keys.type)
        if pa.types.is_signed_integer(keys.type) and not keys.null_count:
            scale = pc.fill_null(together, 0).to_numpy().astype(np.int64, copy=False)
        else:
            scale = pc.rank(together, tiebreaker="dense").to_numpy().astype(np.int64)
        self.ranks = scale[:count]
        self.low = np.where(_is_null(low), np.iinfo(np.int64).min, scale[count : count + len(low)])
        self.high = np.where(_is_null(high), np.iinfo(np.int64).max, scale[count + len(low) :])

    def overlaps(self) -> npt.NDArray[np.bool_]:
        """Mask the bounds that overlap the range of all keys, without sorting these."""
        found: npt.NDArray[np.bool_] = (self.low <= self.ranks.max()) & (self.high >= self.ranks.min())
        return found

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """The keys in ascending order."""
        return np.argsort(self.ranks, kind="stable")

    @cached_property
    def places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The places in this order of the first key inside each bounds, and after the last one."""
        ordered = self.ranks[self.order]
        return np.searchsorted(ordered, self.low, side="left"), np.searchsorted(ordered, self.high, side="right")


def _is_null(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return pc.is_null(column).to_numpy()  # type: ignore[no-any-return]
