"""The truth table: what each strategy does with matched, new and missing rows, and what options add to that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from merganser.core.model.clauses import STRATEGY_CLAUSES, Side, select_clauses
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.model.clauses import Clause
    from merganser.core.model.ordered_clauses import OrderedClauses
    from merganser.core.model.row_clauses import RowClauses

MergeStrategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate", "delete"]


class Action(IntEnum):
    """What happens to a row; a number, so that arrays can hold it."""

    KEEP = 0
    REPLACE = 1
    DELETE = 2
    MOVE = 3  # from its file into a new one of its new partition
    INSERT = 4
    IGNORE = 5
    REPLACE_MISSING = 6  # with values that need no source row


@dataclass(frozen=True, slots=True)
class Rule:
    """One strategy: what happens to matched target rows, new source rows and missing target rows."""

    matched: Action
    new: Action
    missing: Action
    deduplicates: bool = False

    @classmethod
    def of(cls, clauses: Sequence[Clause], *, deduplicates: bool = False) -> Rule:
        """Find the rule of a list of clauses: the most that happens to a row of each kind."""
        actions = {side: {clause.action for clause in select_clauses(clauses, side)} for side in get_args(Side)}
        matched, missing = actions["matched"], select_clauses(clauses, "not_matched_by_source")[:1]
        return cls(
            Action.REPLACE if "update" in matched else Action.DELETE if "delete" in matched else Action.KEEP,
            Action.INSERT if "insert" in actions["not_matched"] else Action.IGNORE,
            Action.DELETE if any(one.where is None and one.action == "delete" for one in missing) else Action.KEEP,
            deduplicates,
        )

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
    def uses_matches(self) -> bool:
        """Whether files are rewritten by where their matched rows are."""
        return self.touches or self.deletes_missing

    @property
    def deletes_missing(self) -> bool:
        """Whether all target rows without a source row are deleted."""
        return self.missing is Action.DELETE


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """A rule, and what options change in it.

    The action of a match is that of the first condition which is configured and true:

    1. its value of `sequence_column` is lower than the target's: the target row is kept;
    2. its source row is true in the boolean column `delete_column`: the target row is deleted;
    3. its source row belongs to another partition: the target row moves;
    4. none of the conditions of `matched` is true: the target row is kept; else the first of them decides;
    5. it is equal in all `compared_columns`, some of the `columns` that a match replaces: the target row is kept;
    6. otherwise, that of the rule.
    """

    rule: Rule
    columns: frozenset[str]
    sequence_column: str | None = None
    delete_column: str | None = None
    compared_columns: frozenset[str] | None = None
    # Whether a match takes its partition from the source; if not, its row stays in its partition.
    takes_partition: bool = True
    # The conditions and expressions of clauses, where there are any, and the source column that marks rows to insert.
    matched: RowClauses | None = None
    missing: RowClauses | None = None
    insert_column: str | None = None
    # The clauses that apply to all source rows of a key, in order; `matched` is the same object, unless none applies to
    # matched rows.
    ordered: OrderedClauses | None = None

    @property
    def compares_values(self) -> bool:
        """Whether the values of matched target rows are compared."""
        has_conditions = self.matched is not None and self.matched.has_conditions
        compares = self.sequence_column is not None or self.compared_columns is not None
        return self.rule.touches and (compares or has_conditions)

    @property
    def compares_equal(self) -> bool:
        """Whether a row that would not change is kept."""
        return self.compared_columns is not None

    @property
    def deletes_keys(self) -> bool:
        """Whether a source row may delete the row with its key, in any partition; of several rows, any may."""
        has_delete = self.matched is not None and Action.DELETE in self.matched.actions
        return (
            self.rule.matched is Action.DELETE
            or self.delete_column is not None
            or has_delete
            or self.ordered is not None
        )

    @property
    def flag_column(self) -> str | None:
        """The boolean column of the source that decides which rows are not inserted."""
        return self.delete_column or self.insert_column

    @property
    def replaced_columns(self) -> frozenset[str]:
        """The columns that change in matched or missing rows."""
        return self.columns if self.missing is None else self.columns | self.missing.columns


def find_clauses(strategy: str) -> tuple[Clause, ...]:
    """Find the clauses of a strategy; the error for an unknown one lists the known ones (T6)."""
    clauses = STRATEGY_CLAUSES.get(strategy) if isinstance(strategy, str) else None
    if clauses is None:
        message = f"Unknown strategy {strategy!r}. Choose one of: {', '.join(get_args(MergeStrategy))}."
        raise InvalidArgumentError(message)
    return clauses


@cache
def find_rule(strategy: str) -> Rule:
    """Find the rule of a strategy."""
    return Rule.of(find_clauses(strategy), deduplicates=strategy == "deduplicate")
