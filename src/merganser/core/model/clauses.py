"""Clauses of a MERGE: what happens to matched, new and missing rows, as SQL says it.

For each side, the first clause whose condition is true decides about a row; NULL is not true. A row without such a
clause stays as it is, or is not inserted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Side = Literal["matched", "not_matched", "not_matched_by_source"]
ClauseAction = Literal["update", "insert", "delete", "nothing"]

# The actions that a side can have.
ACTIONS: Mapping[Side, tuple[ClauseAction, ...]] = {
    "matched": ("update", "delete", "nothing"),
    "not_matched": ("insert", "nothing"),
    "not_matched_by_source": ("update", "delete", "nothing"),
}


SQL_SIDES: Mapping[Side, str] = {
    "matched": "MATCHED",
    "not_matched": "NOT MATCHED",
    "not_matched_by_source": "NOT MATCHED BY SOURCE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One WHEN of a MERGE, with expressions of DuckDB over the aliases `s` (source) and `t` (target).

    `values` maps target columns to expressions. None takes `columns`, by default all, except those of `exclude`, from
    the source columns of the same names; `by_name` allows that the source lacks some of them, and `is_exact` refuses
    columns that the dialects of SQL take in different ways. With `keeps_old`, a column keeps its value where that of
    the source is NULL.
    """

    side: Side
    action: ClauseAction
    where: str | None = None
    values: Mapping[str, str] | None = None
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    by_name: bool = False
    keeps_old: bool = False
    is_exact: bool = False

    @property
    def is_evaluated(self) -> bool:
        """Whether the clause has a condition or expressions."""
        return self.where is not None or self.values is not None

    def gives(self, column: str) -> bool:
        """Whether an update or insert gives a column a value, if the source has what it needs."""
        if self.action not in ("update", "insert"):
            return False
        if self.values is not None:
            return column in self.values
        return (self.columns is None or column in self.columns) and column not in self.exclude


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


def check_clauses(clauses: Sequence[Clause]) -> None:
    """Refuse clauses that cannot be, or that no row can reach."""
    if not clauses:
        raise InvalidArgumentError("A MERGE needs a clause. Add one, such as when_matched_update_all().")
    for at, clause in enumerate(clauses):
        name = f"WHEN {SQL_SIDES[clause.side]}" if clause.side in SQL_SIDES else repr(clause.side)
        if clause.action not in ACTIONS.get(clause.side, ()):
            raise InvalidArgumentError(f"{name} has no action {clause.action!r}.")
        if any(one.side == clause.side and one.where is None for one in clauses[:at]):
            raise InvalidArgumentError(
                f"A clause {name} stands behind one without a condition, so no row can reach it. Put the clause "
                "without a condition last."
            )


def quote(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


def format_clause(clause: Clause) -> str:
    """Write a clause as SQL, for people to read.

    >>> format_clause(Clause(side="matched", action="update", where="s.ts > t.ts", values={"qty": "s.qty"}))
    'WHEN MATCHED AND s.ts > t.ts THEN UPDATE SET qty = s.qty'
    """
    condition = "" if clause.where is None else f" AND {clause.where}"
    return f"WHEN {SQL_SIDES[clause.side]}{condition} THEN {_format_action(clause)}"


def _format_action(clause: Clause) -> str:
    verb, values = clause.action.upper(), clause.values
    if clause.action == "nothing":
        return "DO NOTHING"
    if clause.action == "delete":
        return verb
    if values is None:
        everything = (
            f"{verb} BY NAME" if clause.by_name else "UPDATE SET *" if clause.action == "update" else "INSERT *"
        )
        return f"{everything} EXCEPT ({_format_names(clause.exclude)})" if clause.exclude else everything
    if clause.action == "update":
        return f"UPDATE SET {', '.join(f'{_format_names([name])} = {text}' for name, text in values.items())}"
    return f"{verb} ({_format_names(values)}) VALUES ({', '.join(values.values())})"


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(name if _PLAIN_NAME.fullmatch(name) else quote(name) for name in names)
