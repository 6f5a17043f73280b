"""The source of a MERGE in clauses: the columns that its clauses need, computed from those of the given source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.expressions import Expression, evaluate, infer_types, parse_expression
from merganser.core.model.clauses import quote, select_clauses
from merganser.core.model.row_clauses import INSERT_COLUMN, SOURCE_PREFIX
from merganser.errors import ColumnTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.model.clauses import Clause

_UNKNOWN = {"s": None, "t": None}
# The widest integers that doubles hold, and the most digits.
_EXACT_BITS = 32
_EXACT_DIGITS = 15


@dataclass(frozen=True)
class DerivedColumns:
    """Columns that are computed from those of a source, row by row."""

    schema_before: pa.Schema
    columns: Mapping[str, Expression]

    @cached_property
    def inputs(self) -> list[str]:
        """The columns of the source that are needed; at least one, to count rows."""
        names = dict.fromkeys(name for one in self.columns.values() for name in one.list_columns("s"))
        return list(names) or self.schema_before.names[:1]

    def mark_inserts(self, clauses: Sequence[Clause]) -> DerivedColumns:
        """Mark in any case which rows are to be inserted."""
        if INSERT_COLUMN in self.columns:
            return self
        inserts = any(clause.action == "insert" for clause in clauses)
        return replace(self, columns={**self.columns, INSERT_COLUMN: parse_expression(str(inserts), {})})

    @cached_property
    def schema(self) -> pa.Schema:
        """The derived columns and their types."""
        types = infer_types(list(self.columns.values()), {"s": self.schema_before})
        if INSERT_COLUMN in self.columns:
            flag = types[list(self.columns).index(INSERT_COLUMN)]
            if not pa.types.is_boolean(flag):
                text = self.columns[INSERT_COLUMN].text
                raise ColumnTypeError(f"The condition {text!r} has type {flag}, not boolean. Write a comparison.")
        return pa.schema(list(zip(self.columns, types, strict=True)))

    def derive(self, table: pa.Table) -> pa.Table:
        """Compute the derived columns of some rows."""
        found = evaluate(list(self.columns.values()), {"s": table}, table.num_rows)
        made = pa.table(found, schema=self.schema)
        if INSERT_COLUMN not in self.columns:
            return made
        at = made.schema.get_field_index(INSERT_COLUMN)
        return made.set_column(at, INSERT_COLUMN, pc.fill_null(made.column(at), False))  # noqa: FBT003

    def derive_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Compute the derived columns of a batch."""
        table = self.derive(pa.Table.from_batches([batch])).combine_chunks()
        return next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], table.schema))


def needs_derivation(clauses: Sequence[Clause], on: Mapping[str, str]) -> bool:
    """Whether clauses or keys need more of a source than its columns."""
    is_evaluated = any(clause.is_evaluated for clause in clauses if clause.side != "not_matched_by_source")
    return is_evaluated or any(text != quote(name) for name, text in on.items())


def derive_source(
    clauses: Sequence[Clause],
    on: Mapping[str, str],
    order_by: Sequence[str],
    schema: pa.Schema,
    constants: dict[str, str],
) -> DerivedColumns:
    """Find the columns that clauses need of a source.

    Columns with the names of the target have the keys, the values that new rows take or, where new rows take none,
    those that matched rows take unchanged. The others are for conditions and expressions over both sides.
    """
    scope = {"s": schema.names}
    for clause in clauses:
        # Each by itself, before they are combined.
        for text in [clause.where, *(clause.values or {}).values()]:
            _ = None if text is None else parse_expression(text, _UNKNOWN, "s", constants)
    keys = {name: parse_expression(text, scope, "s", constants) for name, text in on.items()}
    inserts, updates = select_clauses(clauses, "not_matched"), select_clauses(clauses, "matched")
    for clause in inserts:
        _check_inserted_keys(clause, keys, schema)
    columns = _combine_inserts(inserts, schema, constants) | keys
    for clause in updates:
        if clause.values is None:
            for name in list_values(clause, schema):
                columns.setdefault(name, parse_expression(quote(name), scope, "s"))
    for name in order_by:
        columns.setdefault(name, parse_expression(quote(name), scope, "s"))
        if columns[name].columns != (("s", name),) or not columns[name].is_column:
            raise InvalidArgumentError(
                f"An insert computes the column {name!r}, which orders rows with the same key. Insert it as it is: "
                f"s.{quote(name)}."
            )
    needed = _list_source_columns(updates, schema, columns)
    columns |= {SOURCE_PREFIX + name: parse_expression(quote(name), scope, "s") for name in needed}
    if any(clause.action == "nothing" or clause.where is not None for clause in inserts):
        holds = _choose(inserts, ["true"] * len(inserts), "false")
        columns[INSERT_COLUMN] = parse_expression(holds, scope, "s", constants)
    return DerivedColumns(schema, columns)


def _check_inserted_keys(clause: Clause, keys: Mapping[str, Expression], schema: pa.Schema) -> None:
    """Refuse to insert a row that its own source row would not match afterwards."""
    if clause.action != "insert":
        return
    given = list_values(clause, schema)
    for name, key in keys.items():
        value = None if name not in given else parse_expression(given[name], {"s": schema.names}, "s")
        if value is None or value.uncast != key.uncast:
            fault = "leaves out" if value is None else f"gives {value.text!r} to"
            raise InvalidArgumentError(
                f"An insert {fault} the key column {name!r}, so its rows would be inserted again by the next merge. "
                f"Give the column the value that it is joined with: {key.text}."
            )


def is_taken(name: str, value: Expression, columns: Mapping[str, Expression]) -> bool:
    """Whether a value is the column that the derived source has under the target's name."""
    taken = columns.get(name)
    return value.is_column and taken is not None and taken.is_column and taken.columns == value.columns


def _list_source_columns(
    clauses: Sequence[Clause], schema: pa.Schema, columns: Mapping[str, Expression]
) -> dict[str, None]:
    """List the source columns that conditions and values of clauses use, each once, without those that are taken."""
    scope, found = {**_UNKNOWN, "s": schema.names}, []
    for clause in clauses:
        if clause.where is not None:
            found.append(parse_expression(clause.where, scope))
        values = {name: parse_expression(text, scope) for name, text in list_values(clause, schema).items()}
        found += [value for name, value in values.items() if not is_taken(name, value, columns)]
    return dict.fromkeys(name for one in found for name in one.list_columns("s"))


def list_bounded_columns(clauses: Sequence[Clause]) -> list[str]:
    """List the target columns whose bounds may tell that a clause changes no row of a row group."""
    texts = [one.where for one in select_clauses(clauses, "not_matched_by_source") if one.where is not None]
    found = [parse_expression(text, {"t": None}, "t") for text in texts]
    return list(dict.fromkeys(one.column for expression in found for one in expression.bounds))


def list_values(clause: Clause, schema: pa.Schema) -> dict[str, str]:
    """List the values of an update or insert by column; without a mapping, columns of the source as they are."""
    if clause.values is not None:
        return dict(clause.values)
    return {name: f"s.{quote(name)}" for name in schema.names if clause.gives(name)}


def _combine_inserts(clauses: Sequence[Clause], schema: pa.Schema, constants: dict[str, str]) -> dict[str, Expression]:
    """Combine the values of several clauses: each row is inserted by the first that holds."""
    scope, found = {"s": schema.names}, {}
    listed = [list_values(clause, schema) for clause in clauses]
    inserting = [values for clause, values in zip(clauses, listed, strict=True) if clause.action == "insert"]
    for name in dict.fromkeys(name for values in listed for name in values):
        values = [parse_expression(one.get(name, "NULL"), scope, "s", constants) for one in inserting]
        found[name] = values[0]
        if not values[0].is_column or any(one.columns != values[0].columns or not one.is_column for one in values):
            # Evaluated where the clause holds only: it may fail on other rows.
            text = _choose(clauses, [one.get(name, "NULL") for one in listed], "NULL")
            found[name] = parse_expression(text, scope, "s", constants)
            _check_combined(name, values, found[name], schema)
    return found


def _check_combined(name: str, values: Sequence[Expression], combined: Expression, schema: pa.Schema) -> None:
    """Refuse values of several types of which DuckDB finds a common one that cannot hold all of them."""
    *types, common = infer_types([*values, combined], {"s": schema})
    for value, data_type in zip(values, types, strict=True):
        if pa.types.is_floating(common) and not _is_exact_in_double(data_type):
            raise ColumnTypeError(
                f"Inserts give column {name!r} values of several types: {value.text!r} has type {data_type}, and would "
                f"be rounded to {common} because of another. Cast them to one type."
            )


def _is_exact_in_double(data_type: pa.DataType) -> bool:
    """Whether a double holds the values of a type as they are, or as they are written."""
    if pa.types.is_integer(data_type):
        return bool(data_type.bit_width <= _EXACT_BITS)
    return not pa.types.is_decimal(data_type) or data_type.precision <= _EXACT_DIGITS


def _choose(clauses: Sequence[Clause], texts: Sequence[str], other: str) -> str:
    """Write an expression that is the text of the first clause that holds; a row that is not inserted has `other`."""
    cases: list[str] = []
    for clause, text in zip(clauses, texts, strict=True):
        value = other if clause.action == "nothing" else text
        if clause.where is None:
            return f"CASE {' '.join(cases)} ELSE (\n{value}\n) END" if cases else value
        cases.append(f"WHEN (\n{clause.where}\n) THEN (\n{value}\n)")
    return f"CASE {' '.join(cases)} ELSE {other} END"
