"""The clauses of a merge in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.model.clause_checks import check_expression
from merganser.core.model.clauses import ACTIONS, Clause
from merganser.errors import MerganserError
from merganser.pipeline.config import field_types as types
from merganser.pipeline.config.table import Table, declare_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.core.model.clauses import ClauseAction


@dataclass(frozen=True, slots=True, kw_only=True)
class When(Table):
    """A clause of the merge into a dataset: what happens to rows of one kind, in expressions of DuckDB.

    >>> When(matched="update", set={"qty": "t.qty + s.qty"}, where="s.at > t.at").clause.where
    's.at > t.at'
    """

    title = "[[dataset.when]]"

    matched: ClauseAction | None = declare_key(types.choice(ACTIONS["matched"]), None)
    not_matched: ClauseAction | None = declare_key(types.choice(ACTIONS["not_matched"]), None)
    not_matched_by_source: ClauseAction | None = declare_key(types.choice(ACTIONS["not_matched_by_source"]), None)
    where: str | None = declare_key(types.STRING, None)
    set: Mapping[str, str] | None = declare_key(types.STRING_MAP, None)
    values: Mapping[str, str] | None = declare_key(types.STRING_MAP, None)
    exclude: Sequence[str] = declare_key(types.STRINGS, ())

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        given = [side for side in ACTIONS if getattr(self, side) is not None]
        if len(given) != 1:
            known = " or ".join(ACTIONS)
            message = f"a clause has one of the keys {known}, not {' and '.join(given) or 'none of them'}. Set one."
            raise self.make_error(given[1] if given else "matched", message)
        for key, message in self._find_conflicts():
            raise self.make_error(key, message)
        self.check_expressions()

    @property
    def clause(self) -> Clause:
        """The clause as `merge_into` takes it."""
        side = next(side for side in ACTIONS if getattr(self, side) is not None)
        values = self.values if self.set is None else self.set
        action, exclude = getattr(self, side), tuple(self.exclude)
        return Clause(side=side, action=action, where=self.where, values=values, exclude=exclude)

    def check_expressions(self, columns: Sequence[str] | None = None) -> None:
        """Refuse expressions that are not SQL, or use what their rows lack; `columns` are those of the source."""
        texts = {} if self.where is None else {"where": self.where}
        for key in ("set", "values"):
            texts |= {f"{key}.{name}": text for name, text in (getattr(self, key) or {}).items()}
        for key, text in texts.items():
            try:
                check_expression(text, self.clause.side, columns)
            except MerganserError as error:
                raise self.make_error(key, str(error)) from error

    def _find_conflicts(self) -> Iterator[tuple[str, str]]:
        """Find the keys that do not go with the action, with the remedy."""
        side, action = self.clause.side, self.clause.action
        for key, fits in (("set", "update"), ("values", "insert")):
            given = getattr(self, key)
            if given is not None and action != fits:
                other = {"insert": "Use values.", "update": "Use set."}.get(action, "Remove it.")
                yield key, f"it is for the action {fits!r}, not {action!r}. {other}"
            elif given is not None and not given:
                yield key, "it is empty. Name a column and its expression, or remove it."
            if given is not None and self.exclude:
                yield "exclude", f"it is for clauses that take all columns; this one has {key}. Remove one of them."
        if self.exclude and action not in ("update", "insert"):
            yield "exclude", f"it is for the actions 'update' and 'insert', not {action!r}. Remove it."
        if (side, action, self.set) == ("not_matched_by_source", "update", None):
            yield "set", "it is missing: these rows have no source row to take columns from. Add it."


def label_clause(dataset: object, number: int) -> str:
    """Name a clause in errors, by the name of its dataset and its number from 1."""
    return f"{When.title} {number} of {dataset!r}"
