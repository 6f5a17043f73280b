"""Clauses of a MERGE: what happens to matched, new and missing rows, as SQL says it.

For each side, the first clause whose condition is true decides about a row; NULL is not true. A row without such a
clause stays as it is, or is not inserted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Side = Literal["matched", "not_matched", "not_matched_by_source"]
ClauseAction = Literal["update", "insert", "delete", "nothing"]

# The actions that a side can have.
ACTIONS: Mapping[Side, tuple[ClauseAction, ...]] = {
    "matched": ("update", "delete", "nothing"),
    "not_matched": ("insert", "nothing"),
    "not_matched_by_source": ("update", "delete", "nothing"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One WHEN of a MERGE, with expressions of DuckDB over the aliases `s` (source) and `t` (target).

    `values` maps target columns to expressions. None takes every column, except those of `exclude`, from the source
    column of the same name.
    """

    side: Side
    action: ClauseAction
    where: str | None = None
    values: Mapping[str, str] | None = None
    exclude: tuple[str, ...] = field(default=())

    @property
    def is_plain(self) -> bool:
        """Whether the clause holds for every row, and takes every column from the source or needs none."""
        return self.where is None and self.values is None and not self.exclude
