"""The truth table: what each strategy does with matched, new and missing rows, and what options add to that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, get_args

from merganser.errors import InvalidArgumentError

MergeStrategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate", "delete"]


class Action(IntEnum):
    """What happens to a row; a number, so that arrays can hold it."""

    KEEP = 0
    REPLACE = 1
    DELETE = 2
    MOVE = 3  # from its file into a new one of its new partition
    INSERT = 4
    IGNORE = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """One strategy: what happens to matched target rows, new source rows and missing target rows."""

    matched: Action
    new: Action
    missing: Action
    deduplicates: bool = False

    @property
    def replaces(self) -> bool:
        """Whether a matched row is rewritten."""
        return self.matched is Action.REPLACE

    @property
    def touches(self) -> bool:
        """Whether anything happens to a matched row."""
        return self.matched is not Action.KEEP

    @property
    def inserts(self) -> bool:
        """Whether new rows are added."""
        return self.new is Action.INSERT

    @property
    def deletes_missing(self) -> bool:
        """Whether target rows without a source row are deleted."""
        return self.missing is Action.DELETE


RULES: dict[str, Rule] = {
    "insert": Rule(Action.KEEP, Action.INSERT, Action.KEEP),
    "update": Rule(Action.REPLACE, Action.IGNORE, Action.KEEP),
    "upsert": Rule(Action.REPLACE, Action.INSERT, Action.KEEP),
    "full_merge": Rule(Action.REPLACE, Action.INSERT, Action.DELETE),
    "deduplicate": Rule(Action.REPLACE, Action.INSERT, Action.KEEP, deduplicates=True),
    "delete": Rule(Action.DELETE, Action.IGNORE, Action.KEEP),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """A rule, and what options change in it.

    The action of a match is that of the first condition which is configured and true:

    1. its value of `sequence_column` is lower than the target's: the target row is kept;
    2. its source row is true in the boolean column `delete_column`: the target row is deleted;
    3. its source row belongs to another partition: the target row moves;
    4. it is equal in all `compared_columns`, some of the `columns` that a match replaces: the target row is kept;
    5. otherwise, that of the rule.
    """

    rule: Rule
    columns: frozenset[str]
    sequence_column: str | None = None
    delete_column: str | None = None
    compared_columns: frozenset[str] | None = None
    # Whether a match takes its partition from the source; if not, its row stays in its partition.
    takes_partition: bool = True

    @property
    def compares_values(self) -> bool:
        """Whether the values of matched target rows are compared."""
        return self.rule.touches and (self.sequence_column is not None or self.compared_columns is not None)

    @property
    def deletes_keys(self) -> bool:
        """Whether a source row may delete the row with its key, in any partition."""
        return self.rule.matched is Action.DELETE or self.delete_column is not None


def find_rule(strategy: str) -> Rule:
    """Find the rule of a strategy; the error for an unknown one lists the known ones (T6)."""
    rule = RULES.get(strategy) if isinstance(strategy, str) else None
    if rule is None:
        message = f"Unknown strategy {strategy!r}. Choose one of: {', '.join(get_args(MergeStrategy))}."
        raise InvalidArgumentError(message)
    return rule
