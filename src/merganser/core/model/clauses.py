"""Clauses of a MERGE: what happens to matched, new and missing rows, as SQL says it.

For each side, the first clause whose condition is true decides about a row; NULL is not true. A row without such a
clause stays as it is, or is not inserted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    column of the same name; `by_name` allows that the source lacks some of them. `is_exact` refuses a source whose
    columns the dialects of SQL take in different ways.
    """

    side: Side
    action: ClauseAction
    where: str | None = None
    values: Mapping[str, str] | None = None
    exclude: tuple[str, ...] = ()
    by_name: bool = False
    is_exact: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the clause holds for every row, and takes every column from the source or needs none."""
        return self.where is None and self.values is None and not self.exclude and not self.by_name


_UPDATE = Clause(side="matched", action="update")
_DELETE = Clause(side="matched", action="delete")
_INSERT = Clause(side="not_matched", action="insert")
_DELETE_MISSING = Clause(side="not_matched_by_source", action="delete")

# The clauses that each strategy stands for.
STRATEGY_CLAUSES: Mapping[str, tuple[Clause, ...]] = {
    "insert": (_INSERT,),
    "update": (_UPDATE,),
    "upsert": (_UPDATE, _INSERT),
    "full_merge": (_UPDATE, _INSERT, _DELETE_MISSING),
    "deduplicate": (_UPDATE, _INSERT),
    "delete": (_DELETE,),
}


def select_clauses(clauses: Sequence[Clause], side: Side) -> list[Clause]:
    """Select the clauses of one side, up to the first that holds for every row."""
    selected = []
    for clause in clauses:
        if clause.side == side:
            selected.append(clause)
            if clause.where is None:
                break
    return selected


def quote(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'
