"""Compiles the clauses of a MERGE for the columns of a source and a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.expressions import infer_types, parse_expression
from merganser.core.model.clause_source import is_taken
from merganser.core.model.clauses import quote, select_clauses
from merganser.core.model.row_clauses import RowClause, RowClauses
from merganser.core.model.schema import is_castable, to_plain_type
from merganser.core.model.strategy import Action
from merganser.errors import ColumnTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from merganser.core.columnar.expressions import Expression
    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.clauses import Clause, Side

_ACTIONS = {"update": Action.REPLACE, "delete": Action.DELETE, "nothing": Action.KEEP}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseColumns:
    """The columns that clauses work on: those of the `source` as it is given, and those of the target.

    If the source is `derived`, its columns with the names of the target are not those that were given.
    """

    source: Sequence[str]
    derived: DerivedColumns | None
    target: pa.Schema
    keys: Collection[str]
    partition_columns: Collection[str]
    required: Collection[str]
    constants: dict[str, str]

    def list_values(self, clause: Clause, names: Sequence[str]) -> dict[str, str]:
        """List the values of an update by column, but for columns that a source which is not derived has."""
        if clause.values is not None:
            return dict(clause.values)
        return {} if self.derived is None else {name: f"s.{quote(name)}" for name in names if name in self.source}

    def list_given(self, clause: Clause) -> list[str]:
        """List the target columns that a clause gives a value."""
        excluded = [name for name in clause.exclude if name not in self.source]
        for name in [*(clause.values or ()), *(clause.columns or ()), *excluded]:
            if name not in self.target.names:
                raise InvalidArgumentError(
                    f"A clause names the column {name!r}, which the target lacks. Its columns are: "
                    f"{', '.join(self.target.names)}."
                )
        given = [name for name in self.target.names if clause.gives(name)]
        if clause.values is not None or not clause.by_name:
            return given
        # The partition of a new row must be known.
        needed = self.partition_columns if clause.action == "insert" else ()
        return [name for name in given if name in self.source or name in needed]


def compile_clauses(side: Side, clauses: Sequence[Clause], columns: ClauseColumns) -> RowClauses | None:
    """Compile the clauses of matched rows, or of rows without a match; None if there are none."""
    target = columns.target
    given = {"t": target}
    if side == "matched" and columns.derived is not None:
        given = {"s": columns.derived.schema_before, "t": target}
    scope = {alias: one.names for alias, one in given.items()}
    default = None if side == "matched" else "t"
    compiled = []
    for clause in select_clauses(clauses, side):
        condition = None if clause.where is None else parse_expression(clause.where, scope, default, columns.constants)
        names = columns.list_given(clause)
        values = {
            name: parse_expression(text, scope, default, columns.constants)
            for name, text in columns.list_values(clause, names).items()
        }
        _check_keys({} if clause.values is None else values, columns)
        derived = {} if columns.derived is None else columns.derived.columns
        computed = {name: one for name, one in values.items() if not is_taken(name, one, derived)}
        changed = frozenset(name for name in names if clause.values is None or name not in columns.keys)
        compiled.append(
            RowClause(
                condition=condition,
                action=_ACTIONS[clause.action],
                columns=changed,
                values={name: computed[name] for name in computed if name in changed},
                keeps_old=clause.keeps_old,
            )
        )
    if not compiled:
        return None
    changed = frozenset(name for one in compiled for name in one.columns)
    fields = [
        pa.field(one.name, to_plain_type(one.type), nullable=one.name not in columns.required)
        for one in target
        if one.name in changed
    ]
    found = RowClauses(tuple(compiled), pa.schema(fields))
    _check_types(found, given)
    return found


def _check_keys(values: Mapping[str, Expression], columns: ClauseColumns) -> None:
    """Refuse to change a key; to give it the value that it has changes nothing."""
    for name, value in values.items():
        if name in columns.keys and value.columns != (("t", name),):
            key = None if columns.derived is None else columns.derived.columns[name]
            if key is None or key.uncast != value.uncast:
                raise InvalidArgumentError(
                    f"A clause updates the key column {name!r}. Keys identify rows: leave it out."
                )


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


def list_insert_columns(clauses: Sequence[Clause], columns: ClauseColumns) -> frozenset[str]:
    """List the columns that new rows get from the source; the others are NULL."""
    given = [columns.list_given(clause) for clause in select_clauses(clauses, "not_matched")]
    return frozenset(name for names in given for name in names)
