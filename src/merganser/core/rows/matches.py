"""Matches: which target rows have a source row, where they are, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from merganser.core.model.engine import MatchCounts
from merganser.core.model.strategy import Action

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int32]
    Rows = npt.NDArray[np.int64]


_COLUMNS = ("file", "row_group", "position", "source_row", "action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Target rows that may change, in file order, each with its source row and its action; and rows to insert."""

    file: Numbers
    row_group: Numbers
    position: Rows
    source_row: Rows
    action: npt.NDArray[np.int8]
    new: Rows

    @classmethod
    def from_positions(cls, file: Numbers, row_group: Numbers, position: Rows, source_row: Rows, new: Rows) -> Matches:
        """Make matches whose action is not decided yet."""
        keep = np.full(len(file), Action.KEEP, np.int8)
        return cls(file=file, row_group=row_group, position=position, source_row=source_row, action=keep, new=new)

    @classmethod
    def of_new(cls, new: Rows) -> Matches:
        """Make matches of new rows alone."""
        numbers, positions = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return cls.from_positions(numbers, numbers, positions, positions, new)

    def find_group(self, file: int, group: int) -> slice:
        """Find the matches of one row group."""
        start, end = np.searchsorted(self.file, [file, file + 1])
        inner = np.searchsorted(self.row_group[start:end], [group, group + 1])
        return slice(start + inner[0], start + inner[1])

    def select(self, at: slice | npt.NDArray[np.bool_] | Rows) -> Matches:
        """Select some matches."""
        return replace(self, **{name: getattr(self, name)[at] for name in _COLUMNS})

    def append(self, *others: Matches) -> Matches:
        """Append other matches; new rows stay as they are."""
        arrays = {name: [getattr(one, name) for one in (self, *others)] for name in _COLUMNS}
        return replace(self, **{name: np.concatenate(some) for name, some in arrays.items()})

    @property
    def is_replaced(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows that get new values in their place."""
        return np.isin(self.action, [Action.REPLACE, Action.REPLACE_MISSING])

    @property
    def appended_rows(self) -> Rows:
        """The source rows that go to new files: those that are inserted, and one for each match that moves."""
        # The stable sort is fast on rows that are already in order.
        return np.sort(np.concatenate([self.new, self.source_row[self.action == Action.MOVE]]), kind="stable")


def split_by_group(file: Numbers, row_group: Numbers) -> list[slice]:
    """Split matches in file order by row group."""
    if not len(file):
        return []
    starts = np.flatnonzero((np.diff(file) != 0) | (np.diff(row_group) != 0)) + 1
    ends = [*starts.tolist(), len(file)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def count_groups(
    file: Numbers, row_group: Numbers, action: npt.NDArray[np.int8], *, new_rows: int, moved_sample: pa.Table
) -> MatchCounts:
    """Count the matches of each row group."""
    pairs, at = np.unique((file.astype(np.int64) << 32) | row_group, return_inverse=True)
    is_moved = action == Action.MOVE
    is_replaced = (action == Action.REPLACE) | (action == Action.REPLACE_MISSING)
    masks = (slice(None), is_replaced, is_moved | (action == Action.DELETE))
    rows, replaced, removed = (np.bincount(at[mask], minlength=len(pairs)) for mask in masks)
    return MatchCounts(
        file=(pairs >> 32).astype(np.int32),
        row_group=(pairs & 0xFFFFFFFF).astype(np.int32),
        rows=rows,
        replaced=replaced,
        removed=removed,
        new_rows=new_rows,
        moved=int(is_moved.sum()),
        moved_sample=moved_sample,
    )
