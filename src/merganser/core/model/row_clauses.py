"""Clauses with conditions or expressions, compiled for the columns of a source and a target.

Rows of both sides are given as tables of as many rows. Of the source, columns have the names of `SOURCE_PREFIX`; those
that a clause takes unchanged are already in the target's types, under the target's names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.expressions import evaluate
from merganser.core.model.casts import cast_column
from merganser.core.model.strategy import Action
from merganser.errors import ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.columnar.expressions import Expression

# Columns of a source that the target does not get.
RESERVED_PREFIX = "merganser:"
SOURCE_PREFIX = f"{RESERVED_PREFIX}s."
INSERT_COLUMN = f"{RESERVED_PREFIX}insert"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClause:
    """One clause: its condition, None if it always holds, its action, and what an update changes.

    Of the `columns` that an update changes, those with `values` are computed, the others are taken from the source,
    where that is not NULL if the clause `keeps_old`.
    """

    condition: Expression | None
    action: Action
    columns: frozenset[str]
    values: Mapping[str, Expression]
    keeps_old: bool = False

    @property
    def taken_columns(self) -> frozenset[str]:
        """The columns that an update takes from the source."""
        return self.columns - {*self.values}


@dataclass(frozen=True, slots=True)
class RowClauses:
    """The clauses of matched rows, or of rows without a match; `schema` has the columns that updates change."""

    clauses: tuple[RowClause, ...]
    schema: pa.Schema

    @property
    def actions(self) -> set[Action]:
        """The actions that a row may get."""
        return {clause.action for clause in self.clauses}

    @property
    def columns(self) -> frozenset[str]:
        """The columns that updates change."""
        return frozenset(self.schema.names)

    @property
    def taken_columns(self) -> frozenset[str]:
        """The columns that some update takes from the source."""
        return frozenset(name for one in self.clauses for name in one.taken_columns)

    @property
    def is_plain(self) -> bool:
        """Whether there is one clause, which always holds and needs nothing but the columns that it takes."""
        (first, *others) = self.clauses
        return not (others or first.condition is not None or first.values or first.keeps_old)

    @property
    def has_conditions(self) -> bool:
        """Whether the action of a row depends on its values."""
        return any(one.condition is not None for one in self.clauses)

    def list_source_columns(self, names: Collection[str] | None = None) -> list[str]:
        """List the source columns that conditions need and, with names, the new values of these columns."""
        found = [SOURCE_PREFIX + name for one in self._list_expressions(names) for name in one.list_columns("s")]
        taken = [name for name in names or () if name in self.taken_columns]
        return list(dict.fromkeys([*found, *taken]))

    def list_target_columns(self, names: Collection[str] | None = None) -> list[str]:
        """List the target columns that conditions need and, with names, the new values of these columns."""
        found = [name for one in self._list_expressions(names) for name in one.list_columns("t")]
        # A column that only some of the clauses change keeps its value in the rows of others.
        kept = [
            name
            for name in names or ()
            if any(name not in one.columns or (one.keeps_old and name in one.taken_columns) for one in self._updates)
        ]
        return list(dict.fromkeys([*found, *kept]))

    def _list_expressions(self, names: Collection[str] | None) -> Iterator[Expression]:
        for one in self.clauses:
            if one.condition is not None:
                yield one.condition
            yield from (value for name, value in one.values.items() if name in (names or ()))

    @property
    def _updates(self) -> list[RowClause]:
        return [one for one in self.clauses if one.action is Action.REPLACE]

    def number_rows(self, source: pa.Table, target: pa.Table, rows: int) -> npt.NDArray[np.int8]:
        """Find the first clause that holds for each row; -1 if none does."""
        numbers = np.full(rows, -1, np.int8)
        left = np.arange(rows)
        for number, clause in enumerate(self.clauses):
            if clause.condition is None:
                numbers[left] = number
                break
            holds = _test(clause.condition, _take(source, left, rows), _take(target, left, rows), len(left))
            numbers[left[holds]] = number
            left = left[~holds]
        return numbers

    def find_actions(self, source: pa.Table, target: pa.Table, rows: int) -> npt.NDArray[np.int8]:
        """Find the action of each row; it is kept if no clause holds."""
        actions = np.array([*(int(one.action) for one in self.clauses), int(Action.KEEP)], np.int8)
        return actions[self.number_rows(source, target, rows)]

    def compute_values(self, names: Sequence[str], source: pa.Table, target: pa.Table, rows: int) -> pa.Table:
        """Compute the new values of columns of rows that are updated."""
        updates = self._updates
        schema = pa.schema([self.schema.field(name) for name in names])
        if len(updates) == 1:
            return self._compute(updates[0], schema, source, target, rows)
        numbers, tables, places = self.number_rows(source, target, rows), [schema.empty_table()], [np.arange(0)]
        for number, clause in enumerate(self.clauses):
            at = np.flatnonzero(numbers == number)
            if len(at):
                some = _take(source, at, rows), _take(target, at, rows)
                tables.append(self._compute(clause, schema, *some, len(at)))
                places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        # A column may be nullable in the source, the target, or both.
        return pa.concat_tables(tables, promote_options="default").combine_chunks().take(pa.array(order))

    def _compute(self, clause: RowClause, schema: pa.Schema, source: pa.Table, target: pa.Table, rows: int) -> pa.Table:
        computed = [name for name in schema.names if name in clause.values]
        tables = {"s": _strip(source), "t": target}
        found = dict(zip(computed, evaluate([clause.values[name] for name in computed], tables, rows), strict=True))
        columns = []
        for field in schema:
            name = field.name
            column = found.get(name)
            if column is None:
                column = (source if name in clause.columns else target).column(name)
            column = _fit(column, field, clause)
            if clause.keeps_old and name in clause.taken_columns:
                column = _fill_nulls(column, cast_column(target.column(name), field.type, name))
            columns.append(_require(column, field, clause))
        return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))  # noqa: FBT003


def _test(condition: Expression, source: pa.Table, target: pa.Table, rows: int) -> npt.NDArray[np.bool_]:
    (answer,) = evaluate([condition], {"s": _strip(source), "t": target}, rows)
    if not pa.types.is_boolean(answer.type) and not pa.types.is_null(answer.type):
        raise ColumnTypeError(
            f"The condition {condition.text!r} has type {answer.type}, not boolean. Write a comparison."
        )
    return pc.fill_null(answer.cast(pa.bool_()), False).to_numpy()  # type: ignore[no-any-return]  # noqa: FBT003


def _fit(column: pa.ChunkedArray, field: pa.Field, clause: RowClause) -> pa.ChunkedArray:
    """Cast new values to the type of their column."""
    if field.name not in clause.values:
        return cast_column(column, field.type, field.name)
    return cast_column(column, field.type, field.name, "Correct the expression, or widen the column with alter.")


def _require(column: pa.ChunkedArray, field: pa.Field, clause: RowClause) -> pa.ChunkedArray:
    """Refuse NULL where the target requires a value."""
    if not field.nullable and column.null_count:
        text = clause.values[field.name].text if field.name in clause.values else f"s.{field.name}"
        raise ColumnValueError(
            f"{text!r} is NULL for column {field.name!r}, which the target declares NOT NULL. Give it a value."
        )
    return column


def _fill_nulls(new: pa.ChunkedArray, old: pa.ChunkedArray) -> pa.ChunkedArray:
    """Take old values where new ones are NULL, in any type: Arrow's `coalesce` does not support all of them."""
    if not new.null_count:
        return new
    rows = np.arange(len(new))
    chosen = np.where(new.is_null().to_numpy(), rows + len(new), rows)
    return pa.chunked_array([*new.chunks, *old.chunks], new.type).take(pa.array(chosen))


def _strip(source: pa.Table) -> pa.Table:
    """Select the columns that expressions use, under the names that the source has for them."""
    names = [name for name in source.column_names if name.startswith(SOURCE_PREFIX)]
    return source.select(names).rename_columns([name.removeprefix(SOURCE_PREFIX) for name in names])


def _take(table: pa.Table, rows: npt.NDArray[np.int64], count: int) -> pa.Table:
    return table if len(rows) == count or not table.num_columns else table.take(pa.array(rows))
