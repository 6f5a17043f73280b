"""Matches: which target rows have a source row, where they are, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from merganser.core.model.strategy import Action

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Matches:
    """Target rows in file order, each with its source row and its action; and the source rows that are inserted.

    Where a strategy does nothing with matched rows, or does not insert new ones, there are none of them here.
    """

    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    position: npt.NDArray[np.int64]
    source_row: npt.NDArray[np.int64]
    action: npt.NDArray[np.int8]
    new: npt.NDArray[np.int64]

    @classmethod
    def from_positions(
        cls,
        file: npt.NDArray[np.int32],
        row_group: npt.NDArray[np.int32],
        position: npt.NDArray[np.int64],
        source_row: npt.NDArray[np.int64],
        new: npt.NDArray[np.int64],
    ) -> Matches:
        """Give matches of which nothing is decided yet."""
        return cls(file, row_group, position, source_row, np.full(len(file), Action.KEEP, np.int8), new)

    @classmethod
    def of_new(cls, new: npt.NDArray[np.int64]) -> Matches:
        """Give new rows alone."""
        none, places = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return cls.from_positions(none, none, places, places, new)

    def find_group(self, file: int, group: int) -> slice:
        """Find the matches of one row group."""
        start, end = np.searchsorted(self.file, [file, file + 1])
        inner = np.searchsorted(self.row_group[start:end], [group, group + 1])
        return slice(start + inner[0], start + inner[1])

    @property
    def appended_rows(self) -> npt.NDArray[np.int64]:
        """The source rows that go to new files: those that are inserted, and one for each match that moves."""
        # The stable sort is quick where all is in order.
        return np.sort(np.concatenate([self.new, self.source_row[self.action == Action.MOVE]]), kind="stable")


def split_by_group(file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]) -> list[slice]:
    """Cut matches in file order by row group."""
    if not len(file):
        return []
    starts = np.flatnonzero((np.diff(file) != 0) | (np.diff(row_group) != 0)) + 1
    ends = [*starts.tolist(), len(file)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def count_groups(
    file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32], action: npt.NDArray[np.int8]
) -> tuple[
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]:
    """Count the rows of each row group, as `MatchCounts` lists them."""
    pairs, at = np.unique((file.astype(np.int64) << 32) | row_group, return_inverse=True)
    replaced = action == Action.REPLACE
    removed = (action == Action.DELETE) | (action == Action.MOVE)
    rows, new, gone = (np.bincount(at[mask], minlength=len(pairs)) for mask in (slice(None), replaced, removed))
    return (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), rows, new, gone
