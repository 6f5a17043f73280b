"""The projection of a source: the columns that matched and new rows take from it, and the policy that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.model.clause_projection import compile_clauses, list_insert_columns
from merganser.core.model.row_clauses import INSERT_COLUMN, RESERVED_PREFIX
from merganser.core.model.strategy import MergePolicy
from merganser.errors import InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.options import Options, Request


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a merge reads from the source, those that rows of new files take, and whether there are any."""

    policy: MergePolicy
    columns: frozenset[str]
    insert_columns: frozenset[str]
    appends: bool


def uses_column(request: Request, name: str) -> bool:
    """Whether a merge reads a column from the source, if both have it."""
    options, rule = request.options, request.rule
    if request.clauses:
        return not name.startswith(RESERVED_PREFIX)
    return (
        name in request.keys
        or name in request.order_by
        or (rule.replaces and (options.update_columns is None or name in options.update_columns))
        or (rule.inserts and (options.insert_columns is None or name in options.insert_columns))
    )


def find_projection(
    request: Request, schema: pa.Schema, partition_columns: Sequence[str], given: frozenset[str] | None = None
) -> Projection:
    """Find the columns that matched and new rows take from the source: all unless the caller names some (M2).

    Where the schema evolves, all are those `given` by the source.
    """
    options, rule, keys = request.options, request.rule, frozenset(request.keys)
    for argument in ("update_columns", "insert_columns"):
        for name in getattr(options, argument) or ():
            if name not in schema.names:
                raise InvalidArgumentError(
                    f"{argument} names {name!r}, which the target lacks. Its columns are: {', '.join(schema.names)}."
                )
    moves = options.on_partition_move == "move"
    everything = frozenset(schema.names if given is None else [*given.intersection(schema.names), *partition_columns])
    updates, inserts = (
        frozenset() if not wanted else everything if named is None else frozenset(named)
        for wanted, named in ((rule.replaces, options.update_columns), (rule.inserts or moves, options.insert_columns))
    )
    inserts |= keys if rule.inserts else frozenset()
    movable = frozenset(partition_columns) - keys
    _check_partial(updates, inserts, movable, request)
    policy = MergePolicy(
        rule=rule,
        columns=updates,
        sequence_column=options.sequence_column,
        delete_column=options.operation_column,
        compared_columns=_find_compared_columns(options.skip_unchanged, updates - keys),
        takes_partition=movable <= updates,
    )
    named = {*request.keys, *request.order_by, *(options.update_columns or ()), *(options.insert_columns or ())}
    columns = frozenset(name for name in everything | named if uses_column(request, name))
    return Projection(policy, columns, inserts, appends=rule.inserts or moves)


def find_clause_projection(
    request: Request,
    derived: DerivedColumns,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    required: frozenset[str],
) -> Projection:
    """Find what clauses take from the source, compiled for the columns of both sides."""
    options, keys = request.options, frozenset(request.keys)
    matched, missing = (
        compile_clauses(side, request.clauses, derived, schema, keys, required, request.constants)
        for side in ("matched", "not_matched_by_source")
    )
    rule, movable = request.rule, frozenset(partition_columns) - keys
    updates = frozenset() if matched is None else matched.columns
    inserts = list_insert_columns(request.clauses, derived, schema) | (keys if rule.inserts else frozenset())
    _check_partial(updates, inserts, movable, request)
    computed = (
        {} if matched is None else {name: one for clause in matched.clauses for name, one in clause.values.items()}
    )
    fixed = frozenset() if missing is None else missing.columns
    for name in partition_columns:
        if name in computed or name in fixed:
            raise InvalidArgumentError(
                f"A clause computes the partition column {name!r}, so rows would leave their folder. Leave it out."
            )
    is_plain = (
        matched is not None and not computed and len(matched.clauses) == 1 and matched.clauses[0].condition is None
    )
    if options.on_partition_move == "move" and not is_plain:
        raise InvalidArgumentError("on_partition_move='move' needs clauses that take all columns from the source.")
    policy = MergePolicy(
        rule=rule,
        columns=updates,
        sequence_column=options.sequence_column,
        compared_columns=_find_compared_columns(options.skip_unchanged, updates - keys),
        takes_partition=bool(movable) and movable <= updates,
        matched=None if is_plain or not rule.touches else matched,
        missing=None if rule.deletes_missing else missing,
        insert_column=INSERT_COLUMN if INSERT_COLUMN in derived.columns else None,
    )
    taken = {name for clause in (matched.clauses if matched else ()) for name in clause.columns - {*clause.values}}
    columns = keys | inserts | taken | {*request.order_by}
    return Projection(policy, columns & {*schema.names}, inserts, appends=rule.inserts)


def _find_compared_columns(skip_unchanged: bool | Sequence[str], replaced: frozenset[str]) -> frozenset[str] | None:  # noqa: FBT001
    """Find the columns in which a matched row must be equal to be kept; None if every match is replaced (M5)."""
    if isinstance(skip_unchanged, bool):
        return replaced if skip_unchanged else None
    for name in skip_unchanged:
        if name not in replaced:
            raise InvalidArgumentError(
                f"skip_unchanged names {name!r}, which matched rows do not take from the source. Columns that they "
                f"take: {', '.join(sorted(replaced))}."
            )
    return frozenset(skip_unchanged)


def _check_partial(updates: frozenset[str], inserts: frozenset[str], movable: frozenset[str], request: Request) -> None:
    """Refuse to write rows of which only some partition columns are known."""
    if request.rule.inserts and not movable <= inserts:
        raise InvalidArgumentError(
            f"insert_columns leaves out the partition column {min(movable - inserts)!r}, so the partition of new "
            "rows is unknown. Add it."
        )
    if movable & updates and not movable <= updates:
        raise InvalidArgumentError(
            f"update_columns has the partition column {min(movable & updates)!r} but not {min(movable - updates)!r}. "
            "Name all of them, or none."
        )


def drop_operation_column(have: pa.Schema, schema: pa.Schema | None, options: Options) -> pa.Schema:
    """Drop the operation column from the source's columns, since it is not stored."""
    name = options.operation_column
    if name is None:
        return have
    if name not in have.names:
        message = f"Operation column {name!r} is missing from the source. Its columns are: {', '.join(have.names)}."
        raise SchemaMismatchError(message)
    if schema is not None and name in schema.names:
        raise SchemaMismatchError(
            f"Operation column {name!r} is not stored, but the target has a column of that name. Rename the column in "
            "the source."
        )
    return have.remove(have.get_field_index(name))
