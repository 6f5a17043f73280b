"""Combinations of options: those that have no effect with a strategy, or contradict each other, are refused."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from merganser.core.model.keys import MAX_NULL_SAFE_KEYS
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.model.options import Request

OPERATIONS = {"insert": ["c", "r", "I", "insert"], "update": ["u", "U", "update"], "delete": ["d", "D", "delete"]}

# What an option requires of the strategy, and why it is refused with others.
REQUIREMENTS: dict[str, tuple[Callable[[Request], bool], str]] = {
    "dedup_order_by": (
        lambda request: request.rule.deduplicates,
        "does not choose between source rows with the same key",
    ),
    "update_columns": (lambda request: request.rule.replaces, "replaces no row"),
    "update_mode": (lambda request: request.rule.replaces, "replaces no row"),
    "insert_columns": (lambda request: request.rule.inserts, "adds no row"),
    "skip_unchanged": (lambda request: "update" in request.actions, "replaces no row, so there is none to skip"),
    "on_partition_move": (lambda request: request.rule.replaces, "replaces no row, so none can move"),
    "scope": (
        lambda request: request.changes_missing,
        "deletes no missing rows, which is what a scope limits",
    ),
    "repeated_keys": (
        lambda request: not request.has_strategy,
        "merges the newest row of a key if sequence_column is given",
    ),
    "operation_column": (
        lambda request: request.rule.replaces and not request.rule.deletes_missing,
        "applies one action to all source rows, or also deletes missing rows",
    ),
}


def check_combination(request: Request) -> None:
    """Refuse options that have no effect with the strategy, or contradict another option."""
    options = request.options
    for message in _find_clause_conflicts(request):
        raise InvalidArgumentError(message)
    given = {name for name in REQUIREMENTS if getattr(options, name) not in (None, False, (), [], "refuse", "all")}
    for name in sorted(given):
        fits, fault = REQUIREMENTS[name]
        if not fits(request):
            subject = f"strategy {request.strategy!r}, which" if request.has_strategy else "these clauses: the merge"
            message = f"{name} does not go with {subject} {fault}. Leave one of them out."
            raise InvalidArgumentError(message)
    for message in chain(_find_order_conflicts(request), _find_conflicts(request), _find_operation_conflicts(request)):
        raise InvalidArgumentError(message)


def _find_conflicts(request: Request) -> Iterator[str]:
    options, column = request.options, request.options.sequence_column
    listed = [name for name in ("update_columns", "insert_columns") if getattr(options, name) is not None]
    named = [*listed, *(["skip_unchanged"] if isinstance(options.skip_unchanged, list | tuple) else [])]
    partial = next((name for name in named if column is not None and column not in getattr(options, name)), None)
    moves = options.on_partition_move == "move"
    if column is not None and options.dedup_order_by:
        yield "sequence_column and dedup_order_by both order rows with the same key. Pass one of them."
    if column in request.keys:
        yield f"sequence_column {column!r} is a key column, so it cannot order rows with the same key. Choose another."
    if options.null_keys == "match" and len(request.keys) > MAX_NULL_SAFE_KEYS:
        yield f"null_keys='match' allows up to {MAX_NULL_SAFE_KEYS} key columns, not {len(request.keys)}. Use fewer."
    if partial is not None:
        yield f"{partial} leaves out the sequence_column {column!r}, which orders rows with the same key. Add it."
    if moves and listed:
        yield "Leave update_columns and insert_columns out with on_partition_move='move', which takes all columns."
    if moves and options.update_mode != "all":
        yield "Leave update_mode out with on_partition_move='move', which takes all values from the source."
    if moves and not options.check_partition_moves:
        wrong = "check_partition_moves=False with on_partition_move='move'"
        yield f"Do not pass {wrong}: the check finds the rows to move."
    if options.skip_unchanged and options.rewrite_all:
        yield "rewrite_mode='full' rewrites every file, skip_unchanged as few as possible. Pass one of them."


def _find_order_conflicts(request: Request) -> Iterator[str]:
    options = request.options
    if request.applies_in_order and options.sequence_column is None:
        yield "repeated_keys='apply_in_order' needs the sequence_column, which orders rows with the same key. Pass it."
    if request.applies_in_order and options.on_partition_move == "move":
        yield "on_partition_move='move' does not go with repeated_keys='apply_in_order'. Leave one of them out."


def _find_clause_conflicts(request: Request) -> Iterator[str]:
    options = request.options
    if not request.has_strategy:
        for name in ("update_columns", "insert_columns", "operation_column", "dedup_order_by"):
            if getattr(options, name) is not None:
                yield f"{name} does not go with clauses, which list what they change. Leave it out."


def _find_operation_conflicts(request: Request) -> Iterator[str]:
    column, given = request.options.operation_column, request.options.operation_values
    unknown = sorted(set(given or ()) - set(OPERATIONS))
    values = [value for some in (given or {}).values() for value in some]
    if given is not None and column is None:
        yield "operation_values map the values of an operation_column to operations. Pass operation_column too."
    if unknown:
        yield f"operation_values names {', '.join(map(repr, unknown))}. The operations are insert, update and delete."
    if len(values) != len(set(map(repr, values))) or not all(isinstance(one, str | int) for one in values):
        yield "operation_values must be strings or integers, each for one operation."
    if column is not None and column in request.keys:
        yield f"operation_column {column!r} is a key column, which has to be stored. Choose another."
