"""Checks of clauses that need neither the source nor the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.core.columnar.expressions import list_choices, parse_expression
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


def list_repeated_updates(clauses: Sequence[Clause], keys: Iterable[str]) -> list[str]:
    """List the assignments that may have another result each time the same rows are merged.

    They read a column that some clause updates. That a condition may then no longer be true does not count.

    >>> from merganser.core.model.clauses import Clause
    >>> counting = Clause(side="matched", action="update", values={"qty": "t.qty + s.qty", "price": "t.cost * 2"})
    >>> list_repeated_updates([counting], ["id"])
    ['qty = t.qty + s.qty']
    """
    updates = [clause for clause in clauses if clause.action == "update"]
    named = {name.lower() for clause in updates for name in clause.values or ()}
    kept = [{name.lower() for name in (*keys, *clause.exclude)} for clause in updates if clause.values is None]
    return [
        f"{name} = {text}"
        for clause in updates
        for name, text in (clause.values or {}).items()
        if any(read in named or any(read not in some for some in kept) for read in _list_reads(name, text))
    ]


def _list_reads(name: str, text: str) -> Iterator[str]:
    """List the target columns that the new value of a column is computed from; to keep its value does not count."""
    for choice in list_choices(text):
        found = parse_expression(choice, {"s": None, "t": None}, "t")
        reads = [read.lower() for read in found.list_columns("t")]
        if not (found.is_column and reads == [name.lower()]):
            yield from reads
