"""The truth table: what each strategy does with a row, by where its key stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from merganser.core.errors import InvalidArgumentError

MergeStrategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate"]


class Action(Enum):
    """What happens to a row."""

    KEEP = "keep"
    REPLACE = "replace"
    INSERT = "insert"
    IGNORE = "ignore"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Rule:
    """One strategy: what happens to matched target rows, new source rows and missing target rows."""

    matched: Action
    new: Action
    missing: Action
    one_row_per_key: bool = False

    @property
    def replaces(self) -> bool:
        """Whether a matched row is rewritten."""
        return self.matched is Action.REPLACE

    @property
    def inserts(self) -> bool:
        """Whether new rows are added."""
        return self.new is Action.INSERT

    @property
    def deletes_missing(self) -> bool:
        """Whether target rows without a source row go."""
        return self.missing is Action.DELETE


RULES: dict[str, Rule] = {
    "insert": Rule(Action.KEEP, Action.INSERT, Action.KEEP),
    "update": Rule(Action.REPLACE, Action.IGNORE, Action.KEEP),
    "upsert": Rule(Action.REPLACE, Action.INSERT, Action.KEEP),
    "full_merge": Rule(Action.REPLACE, Action.INSERT, Action.DELETE),
    "deduplicate": Rule(Action.REPLACE, Action.INSERT, Action.KEEP, one_row_per_key=True),
}


def rule_of(strategy: str) -> Rule:
    """Look a strategy up; an unknown one is an error that lists the known ones (T6)."""
    rule = RULES.get(strategy) if isinstance(strategy, str) else None
    if rule is None:
        message = f"Unknown strategy {strategy!r}. Choose one of: {', '.join(get_args(MergeStrategy))}."
        raise InvalidArgumentError(message)
    return rule
