"""Checks of clauses that need neither the source nor the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.core.columnar.expressions import parse_expression
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.model.clauses import Clause, Side

# The alias of the row that does not exist, what the row that exists is called, and the alias of that row.
_ONE_SIDED = {
    "not_matched": ("t", "not matched has no target row", "s"),
    "not_matched_by_source": ("s", "not matched by the source has no source row", "t"),
}


def check_expressions(clause: Clause) -> None:
    """Refuse expressions that cannot be evaluated for the rows of a clause."""
    for text in [*([] if clause.where is None else [clause.where]), *(clause.values or {}).values()]:
        check_expression(text, clause.side)


def check_expression(text: str, side: Side, source_columns: Sequence[str] | None = None) -> None:
    """Refuse an expression that is not SQL, or uses columns that rows of its side do not have."""
    absent, fault, default = _ONE_SIDED.get(side, ("", "", None if source_columns else "t"))
    found = parse_expression(text, {"s": source_columns, "t": None}, default)
    for name in found.list_columns(absent):
        raise InvalidArgumentError(
            f"{text!r} uses {absent}.{name}, but a row that is {fault}. Use columns of {default} only."
        )
