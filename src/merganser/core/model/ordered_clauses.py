"""Clauses applied to several source rows of one key, one after the other, as if each row were merged by itself (Q8).

Such a source has one row for each key: its column `ROWS_COLUMN` lists all rows of the key, in order. In round number k
the row of that number of every key is applied, so there are as many rounds as the most frequent key has rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.equality import compare_rows
from merganser.core.columnar.take import null_array, to_array
from merganser.core.model.casts import cast_column
from merganser.core.model.keys import is_at_least
from merganser.core.model.row_clauses import INSERT_COLUMN, RESERVED_PREFIX, RowClauses
from merganser.core.model.schema import to_plain_type
from merganser.core.model.strategy import Action
from merganser.errors import ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

ROWS_COLUMN = f"{RESERVED_PREFIX}rows"
# Why the clauses fail on a key that the target lacks; no fault of the merge if the target has the key.
FAULT_COLUMN = f"{RESERVED_PREFIX}fault"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What rows have become: whether each exists, whether any clause gave it values, and its values, if it exists."""

    exists: Mask
    changed: Mask
    values: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedClauses(RowClauses):
    """The clauses of matched rows and of inserts, applied to lists of source rows.

    `schema` has the columns that may change in a matched row, `target` all columns, in plain types. Inserts give
    `insert_columns`, none if there is no insert.
    """

    updates: RowClauses | None
    insert_columns: frozenset[str]
    target: pa.Schema
    sequence_column: str
    partition_columns: tuple[str, ...]

    @classmethod
    def of(
        cls,
        updates: RowClauses | None,
        insert_columns: frozenset[str],
        target: pa.Schema,
        required: Collection[str],
        sequence_column: str,
        partition_columns: Iterable[str],
    ) -> OrderedClauses:
        """Find the columns that may change; a row that is deleted and inserted again changes in all of them."""
        plain = pa.schema([pa.field(one.name, to_plain_type(one.type), one.name not in required) for one in target])
        is_replaceable = updates is not None and Action.DELETE in updates.actions and bool(insert_columns)
        changed = frozenset() if updates is None else updates.columns
        return cls(
            () if updates is None else updates.clauses,
            pa.schema([one for one in plain if is_replaceable or one.name in changed]),
            updates=updates,
            insert_columns=insert_columns,
            target=plain,
            sequence_column=sequence_column,
            partition_columns=tuple(partition_columns),
        )

    @property
    def new_columns(self) -> frozenset[str]:
        """The columns that new rows have, after later source rows of their keys have updated them."""
        updated = frozenset() if self.updates is None else self.updates.columns
        return self.insert_columns | updated if self.insert_columns else frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether rows can be taken from the source as they are: never, because they are in lists."""
        return False

    @property
    def has_conditions(self) -> bool:
        """Whether the action of a row depends on its values: always, because some source rows may be late."""
        return True

    def list_source_columns(self, names: Collection[str] | None = None) -> list[str]:  # noqa: ARG002  the lists have all
        """List the source columns that are needed: the lists."""
        return [ROWS_COLUMN]

    def list_target_columns(self, names: Collection[str] | None = None) -> list[str]:
        """List the target columns that conditions need and, with names, the new values of these columns."""
        wanted = self._list_moving_columns() if names is None else names
        return list(dict.fromkeys([*self._list_read_columns(wanted), self.sequence_column]))

    def find_actions(self, source: pa.Table, target: pa.Table, rows: int) -> npt.NDArray[np.int8]:
        """Find the net action of each row; a row that would leave its partition moves."""
        names = self._list_moving_columns()
        found = self._apply_to_target(source, target, rows, names)
        actions = np.where(found.changed, np.int8(Action.REPLACE), np.int8(Action.KEEP))
        if names:
            new = found.values.select(names)
            old = pa.table(
                [cast_column(target.column(name), new.schema.field(name).type, name) for name in names], names
            )
            actions[found.changed & ~compare_rows(new, old)] = Action.MOVE
        actions[~found.exists] = Action.DELETE
        return actions

    def compute_values(self, names: Sequence[str], source: pa.Table, target: pa.Table, rows: int) -> pa.Table:
        """Compute the last values of columns of rows that still exist."""
        values = self._apply_to_target(source, target, rows, names).values.select(list(names))
        for name in names:
            if values.column(name).null_count and not self.schema.field(name).nullable:
                raise ColumnValueError(
                    f"Rows that are inserted again have NULL in column {name!r}, which the target declares NOT NULL. "
                    "Give it a value."
                )
        return values

    def apply_to_nothing(self, lists: pa.Array, names: Collection[str]) -> Outcome:
        """Apply lists of source rows to keys that the target lacks."""
        read = self._list_read_columns(names)
        values = pa.table({name: null_array(len(lists), self.target.field(name).type) for name in read})
        return self._apply(lists, values, np.zeros(len(lists), np.bool_), None)

    def make_failed(self, rows: int) -> Outcome:
        """Make rows on which the clauses have failed; they are to be inserted, which will be refused."""
        exists, read = np.ones(rows, np.bool_), self._list_read_columns(self.new_columns)
        return Outcome(
            exists, exists, pa.table({name: null_array(rows, self.target.field(name).type) for name in read})
        )

    def _list_moving_columns(self) -> list[str]:
        """List the partition columns whose values may change."""
        return [name for name in self.partition_columns if name in self.schema.names]

    def _list_read_columns(self, names: Iterable[str]) -> list[str]:
        """List columns and those that conditions and new values of all these read, in any round."""
        found = dict.fromkeys(names)
        updates = self.updates
        while updates is not None:
            more = updates.list_target_columns([name for name in found if name in updates.columns])
            if found.keys() >= {*more}:
                break
            found |= dict.fromkeys(more)
        return list(found)

    def _apply_to_target(self, source: pa.Table, target: pa.Table, rows: int, names: Iterable[str]) -> Outcome:
        """Apply lists of source rows to target rows, without the source rows that are late."""
        read = self._list_read_columns(names)
        types = {name: self.target.field(name).type for name in read}
        values = pa.table({name: cast_column(target.column(name), one, name) for name, one in types.items()})
        lists, stored = to_array(source.column(ROWS_COLUMN)), target.column(self.sequence_column)
        return self._apply(lists, values, np.ones(rows, np.bool_), stored)

    def _apply(self, lists: pa.Array, values: pa.Table, exists: Mask, stored: pa.ChunkedArray | None) -> Outcome:
        """Apply the lists in rounds; rows whose list has ended are put aside, so that a round costs what it changes."""
        source = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pc.list_flatten(lists))])
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        first = np.cumsum(lengths) - lengths
        if stored is not None:
            late = self._count_late_rows(source, lengths, stored)
            first, lengths = first + late, lengths - late
        changed, left, number = np.zeros(len(lists), np.bool_), np.arange(len(lists)), 0
        tables, places = [values.slice(0, 0)], [left[:0]]
        while len(left):
            is_done = lengths[left] <= number
            if is_done.any():
                tables.append(_take(values, np.flatnonzero(is_done)))
                places.append(left[is_done])
                left, values = left[~is_done], _take(values, np.flatnonzero(~is_done))
            if len(left):
                rows = source.take(pa.array(first[left] + number))
                values = self._apply_round(rows, values, left, exists, changed)
            number += 1
        return Outcome(exists, changed, _merge(tables, places))

    def _count_late_rows(self, source: pa.Table, lengths: Rows, stored: pa.ChunkedArray) -> Rows:
        """Count the rows of each list that are older than the target row; they are the first ones of it."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        new = source.column(self.sequence_column)
        old = cast_column(stored, new.type, self.sequence_column).take(pa.array(owner))
        return np.bincount(owner[~is_at_least(new, old)], minlength=len(lengths))

    def _apply_round(self, source: pa.Table, values: pa.Table, left: Rows, exists: Mask, changed: Mask) -> pa.Table:
        """Apply one source row to each of the rows that are `left`; returns their values."""
        is_present = exists[left]
        is_new = ~is_present & source.column(INSERT_COLUMN).to_numpy()
        present, new = np.flatnonzero(is_present), np.flatnonzero(is_new)
        tables, places, kept = [], [], ~is_new
        if len(present) and self.updates is not None:
            rows, old = _take(source, present), _take(values, present)
            actions = self.updates.find_actions(rows, old, len(present))
            updated = np.flatnonzero(actions == Action.REPLACE)
            exists[left[present[actions == Action.DELETE]]] = False
            changed[left[present[updated]]] = True
            names = [name for name in values.column_names if name in self.updates.columns]
            if len(updated) and names:
                some = _take(old, updated)
                computed = self.updates.compute_values(names, _take(rows, updated), some, len(updated))
                columns = {
                    name: computed.column(name) if name in names else some.column(name) for name in values.column_names
                }
                tables.append(pa.table(columns, schema=values.schema))
                places.append(present[updated])
                kept[present[updated]] = False
        if len(new):
            exists[left[new]] = changed[left[new]] = True
            tables.append(self._make_new_rows(_take(source, new), values.schema))
            places.append(new)
        if not tables:
            return values
        rest = np.flatnonzero(kept)
        return _merge([_take(values, rest), *tables], [rest, *places])

    def _make_new_rows(self, source: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = [
            cast_column(source.column(one.name), one.type, one.name)
            if one.name in self.insert_columns
            else null_array(source.num_rows, one.type)
            for one in schema
        ]
        return pa.table(columns, schema=schema)


def _take(table: pa.Table, rows: Rows) -> pa.Table:
    is_whole = len(rows) == table.num_rows or not table.num_columns
    return table if is_whole else table.take(pa.array(rows))


def check_faults(rows: pa.Table) -> None:
    """Refuse to insert rows on which clauses have failed."""
    for fault in rows.column(FAULT_COLUMN).drop_null().slice(0, 1).to_pylist():
        raise ColumnValueError(fault)


def _merge(tables: Sequence[pa.Table], places: Sequence[Rows]) -> pa.Table:
    """Put rows of several tables in the order of their places."""
    together = pa.concat_tables(tables)
    order = np.argsort(np.concatenate(places), kind="stable")
    return together.combine_chunks().take(pa.array(order)) if together.num_columns else together
