"""Compiles the clauses of a MERGE for the columns of a source and a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.expressions import infer_types, parse_expression
from merganser.core.model.clause_source import list_values
from merganser.core.model.clauses import select_clauses
from merganser.core.model.row_clauses import RowClause, RowClauses
from merganser.core.model.schema import is_castable, to_plain_type
from merganser.core.model.strategy import Action
from merganser.errors import ColumnTypeError, InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from merganser.core.columnar.expressions import Expression
    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.clauses import Clause, Side

_ACTIONS = {"update": Action.REPLACE, "delete": Action.DELETE, "nothing": Action.KEEP}


def compile_clauses(
    side: Side,
    clauses: Sequence[Clause],
    derived: DerivedColumns,
    schema: pa.Schema,
    keys: Collection[str],
    required: Collection[str],
    constants: dict[str, str],
) -> RowClauses | None:
    """Compile the clauses of matched rows, or of rows without a match; None if there are none."""
    before = derived.schema_before
    given = {"s": before, "t": schema} if side == "matched" else {"t": schema}
    scope = {alias: one.names for alias, one in given.items()}
    default = None if side == "matched" else "t"
    compiled = []
    for clause in select_clauses(clauses, side):
        condition = None if clause.where is None else parse_expression(clause.where, scope, default, constants)
        values = {
            name: parse_expression(text, scope, default, constants)
            for name, text in _list_updates(clause, before, schema, keys, derived).items()
        }
        computed = {name: one for name, one in values.items() if not _is_taken(name, one, derived)}
        compiled.append(RowClause(condition, _ACTIONS[clause.action], frozenset(values), computed))
    if not compiled:
        return None
    changed = {name for one in compiled for name in one.columns}
    fields = [
        pa.field(one.name, to_plain_type(one.type), nullable=one.name not in required)
        for one in schema
        if one.name in changed
    ]
    found = RowClauses(tuple(compiled), pa.schema(fields))
    _check_types(found, given)
    return found


def _list_updates(
    clause: Clause, source: pa.Schema, schema: pa.Schema, keys: Collection[str], derived: DerivedColumns
) -> dict[str, str]:
    """List what an update changes; keys stay as they are."""
    if clause.action != "update":
        return {}
    given = list_values(clause, source)
    for name in [*(clause.values or ()), *clause.exclude]:
        if name not in schema.names:
            raise InvalidArgumentError(
                f"A clause names the column {name!r}, which the target lacks. Its columns are: "
                f"{', '.join(schema.names)}."
            )
    missing = [name for name in schema.names if name not in given and name not in clause.exclude]
    if clause.values is None and missing and not clause.by_name:
        raise SchemaMismatchError(
            f"An update of all columns needs {missing[0]!r}, which the source lacks. Exclude it, or map the columns "
            "to update to expressions."
        )
    if clause.values is not None:
        for name in [name for name in given if name in keys]:
            key = parse_expression(given[name], {"s": source.names, "t": schema.names}, "s")
            if key.columns != derived.columns[name].columns and key.columns != (("t", name),):
                raise InvalidArgumentError(
                    f"A clause updates the key column {name!r}. Keys identify rows: leave it out."
                )
    return {name: text for name, text in given.items() if name in schema.names and name not in keys}


def _is_taken(name: str, value: Expression, derived: DerivedColumns) -> bool:
    """Whether a value is a column that the derived source has under the target's name."""
    taken = derived.columns.get(name)
    return value.is_column and taken is not None and taken.is_column and taken.columns == value.columns


def _check_types(clauses: RowClauses, given: Mapping[str, pa.Schema]) -> None:
    """Let DuckDB bind every expression, and refuse types that cannot be cast without loss (S3)."""
    for clause in clauses.clauses:
        if clause.condition is not None:
            (data_type,) = infer_types([clause.condition], given)
            if not (pa.types.is_boolean(data_type) or pa.types.is_null(data_type)):
                raise ColumnTypeError(
                    f"The condition {clause.condition.text!r} has type {data_type}, not boolean. Write a comparison."
                )
        for name, value in clause.values.items():
            (data_type,) = infer_types([value], given)
            wanted = clauses.schema.field(name).type
            is_number = pa.types.is_decimal(data_type) and pa.types.is_floating(wanted)
            if not (is_castable(data_type, wanted) or is_number):
                raise ColumnTypeError(
                    f"{value.text!r} has type {data_type} and column {name!r} has type {wanted}, which it cannot be "
                    "cast to without loss. Cast it in the expression."
                )


def list_insert_columns(clauses: Sequence[Clause], derived: DerivedColumns, schema: pa.Schema) -> frozenset[str]:
    """List the columns that new rows get from the source; the others are NULL."""
    names = list(_list_inserts(clauses, derived.schema_before, schema))
    return frozenset(names)


def _list_inserts(clauses: Sequence[Clause], source: pa.Schema, schema: pa.Schema) -> Iterator[str]:
    for clause in select_clauses(clauses, "not_matched"):
        given = list_values(clause, source)
        if clause.values is None and clause.action == "insert":
            missing = [name for name in schema.names if name not in given and name not in clause.exclude]
            if missing and not clause.by_name:
                raise SchemaMismatchError(
                    f"An insert of all columns needs {missing[0]!r}, which the source lacks. Exclude it, or map the "
                    "columns to insert to expressions."
                )
            yield from (name for name in given if name in schema.names)
            continue
        for name in given:
            if name not in schema.names:
                raise InvalidArgumentError(
                    f"A clause names the column {name!r}, which the target lacks. Its columns are: "
                    f"{', '.join(schema.names)}."
                )
            yield name
