"""The projection of a source: the columns that matched and new rows take from it, and the policy that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from merganser.core.model.clause_projection import ClauseColumns, compile_clauses, list_insert_columns
from merganser.core.model.ordered_clauses import OrderedClauses
from merganser.core.model.row_clauses import INSERT_COLUMN, RESERVED_PREFIX
from merganser.core.model.strategy import Action, MergePolicy
from merganser.errors import InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from merganser.core.model.options import Options, Request
    from merganser.core.model.row_clauses import RowClauses


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a merge reads from the source, those that rows of new files take, and whether there are any."""

    policy: MergePolicy
    columns: frozenset[str]
    insert_columns: frozenset[str]
    appends: bool


def uses_column(request: Request, name: str) -> bool:
    """Whether a merge reads a column from the source, if both have it."""
    if name.startswith(RESERVED_PREFIX):
        return False
    return name in request.keys or name in request.order_by or any(clause.gives(name) for clause in request.clauses)


def find_projection(
    request: Request,
    source: pa.Schema,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    required: frozenset[str],
) -> Projection:
    """Find the columns that matched and new rows take from the source."""
    options, rule, derived, keys = request.options, request.rule, request.derived, frozenset(request.keys)
    _check_named(options, schema)
    columns = ClauseColumns(
        source=source.names if derived is None else derived.schema_before.names,
        derived=derived,
        target=schema,
        keys=keys,
        partition_columns=partition_columns,
        required=required,
        constants=request.constants,
    )
    matched = compile_clauses("matched", request.clauses, columns)
    missing = compile_clauses("not_matched_by_source", request.clauses, columns)
    updates = frozenset() if matched is None else matched.columns
    inserts = list_insert_columns(request.clauses, columns) | (keys if rule.inserts else frozenset())
    movable = frozenset(partition_columns) - keys
    _check_partial(updates, inserts, movable, request)
    _check_computed([one for one in (matched, missing) if one is not None], partition_columns, missing)
    moves = options.on_partition_move == "move"
    if moves and (derived is not None or (matched is not None and not matched.is_plain)):
        raise InvalidArgumentError(
            "on_partition_move='move' does not go with conditions and expressions, because a row that moves takes all "
            "columns from the source. Leave it out."
        )
    # The row work of a derived source checks what is required; see `RowClauses`.
    is_plain = matched is None or (matched.is_plain and (derived is None or not required & matched.columns))
    policy = MergePolicy(
        rule=rule,
        columns=updates,
        sequence_column=options.sequence_column,
        delete_column=options.operation_column,
        compared_columns=_find_compared_columns(options.skip_unchanged, updates - keys),
        takes_partition=movable <= updates,
        matched=None if is_plain else matched,
        missing=None if rule.deletes_missing else missing,
        insert_column=INSERT_COLUMN if derived is not None and INSERT_COLUMN in derived.columns else None,
    )
    taken = frozenset() if matched is None else matched.taken_columns
    read = (keys | inserts | taken | {*request.order_by}) & {*schema.names}
    found = Projection(policy, read, updates if moves else inserts, appends=rule.inserts or moves)
    if not request.applies_in_order:
        return found
    given = inserts if rule.inserts else frozenset()
    ordered = OrderedClauses.of(matched, given, schema, required, request.order_by[0], sorted(movable))
    return _apply_in_order(found, ordered, request)


def _apply_in_order(found: Projection, ordered: OrderedClauses, request: Request) -> Projection:
    """Let clauses apply to all rows of a key."""
    policy, changed = found.policy, ordered.columns
    rule = replace(policy.rule, matched=Action.REPLACE) if changed else policy.rule
    policy = replace(
        policy,
        rule=rule,
        columns=changed,
        # Rows that are older than that of the target are left out of their list.
        sequence_column=None,
        compared_columns=_find_compared_columns(request.options.skip_unchanged, changed - {*request.keys}),
        takes_partition=False,
        matched=ordered if rule.touches else None,
        insert_column=INSERT_COLUMN,
        ordered=ordered,
    )
    return replace(found, policy=policy, insert_columns=found.insert_columns | ordered.new_columns)


def _check_named(options: Options, schema: pa.Schema) -> None:
    for argument in ("update_columns", "insert_columns"):
        for name in getattr(options, argument) or ():
            if name not in schema.names:
                raise InvalidArgumentError(
                    f"{argument} names {name!r}, which the target lacks. Its columns are: {', '.join(schema.names)}."
                )


def _check_computed(sides: Sequence[RowClauses], partition_columns: Sequence[str], missing: RowClauses | None) -> None:
    """Refuse to compute a partition column: its row would leave its folder."""
    computed = {name for side in sides for clause in side.clauses for name in clause.values}
    computed |= frozenset() if missing is None else missing.columns
    for name in partition_columns:
        if name in computed:
            raise InvalidArgumentError(
                f"A clause computes the partition column {name!r}, so rows would leave their folder. Leave it out."
            )


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
