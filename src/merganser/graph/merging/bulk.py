"""MERGE of many rows in one transaction, with the same result as merging them one by one.

A batch of rows is looked up by one join, decided in memory row after row, and written by one statement for new records
and one for matched ones. Rows are merged one by one where that could differ (another unique index, keys that are lists
or fractions) or where a schema has to see complete records. Arrow data is merged by column (`bulk_columns`), except for
batches with duplicate keys or anything else that needs a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from merganser.errors import InvalidArgumentError
from merganser.graph.merging import merge
from merganser.graph.merging.bulk_columns import NodeIds, can_merge_columns, merge_columns
from merganser.graph.merging.missing import put_in_scope, read_missing_options, start_missing_records
from merganser.graph.records import BulkResult, MergedEdge, MergedNode
from merganser.graph.sqlite import write
from merganser.graph.sqlite.chosen import Deletion
from merganser.graph.sqlite.indexes import list_indexes, read_names, warn_without_index
from merganser.graph.sqlite.lookup import (
    extract_keys,
    find_by_keys,
    find_first_positions,
    list_columns,
    read_batches,
    split_rows,
    to_record_batch,
)
from merganser.graph.sqlite.sql import Table, has_json_path
from merganser.graph.values import (
    apply_properties,
    drop_nulls,
    encode,
    normalize_properties,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from merganser.graph.merging.bulk_options import BulkOptions, Endpoint, RowChanges
    from merganser.graph.merging.missing import MissingOptions, MissingRecords
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

    # Ids of records.
    Rows = npt.NDArray[np.int64]

# Properties that one statement overwrites; SQLite's expressions have at most 1,000 levels.
_MAX_UPDATED_PROPERTIES = 300

# The ids of the nodes that each row connects; None for a row whose nodes are missing.
Endpoints: TypeAlias = "list[tuple[int, ...] | None]"


def bulk_merge_nodes(store: Store, type_: str, rows: Any, options: BulkOptions) -> BulkResult:
    """Merge rows into nodes; see `GraphDatabase.bulk_merge_nodes`."""
    write.check_type(type_)
    names = read_names(options.match_on, "match_on")
    if not names:
        raise InvalidArgumentError(f"match_on is empty; name the columns that identify a {type_}.")
    if options.warn_on_missing_index:
        warn_without_index(store, type_, names)
    missing = read_missing_options(options.missing, options.scope, options.detach, names)
    return BulkNodes(store, type_, names, options.read_changes(names), missing=missing).run(rows)


@dataclass(slots=True)
class _Record:
    """The record of a key: a new one with its properties, or a stored one, by its id, with those to overwrite."""

    id: int | None
    properties: Properties
    endpoint_ids: tuple[int, ...] = ()
    matched: bool = False


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Rows with their numbers in the source, the ids of the nodes that they connect, and their keys."""

    numbers: Sequence[int]
    rows: list[Properties]
    endpoints: Endpoints
    # None if they cannot be joined on.
    keys: list[Key] | None

    def drop_unconnected(self) -> NumberedRows:
        """Drop the rows whose nodes are missing."""
        has_nodes = [found is not None for found in self.endpoints]
        return NumberedRows(
            list(compress(self.numbers, has_nodes)),
            list(compress(self.rows, has_nodes)),
            list(compress(self.endpoints, has_nodes)),
            None if self.keys is None else list(compress(self.keys, has_nodes)),
        )


class BulkNodes:
    """A bulk merge of nodes; a row is its properties, as they will be stored."""

    table: Table = "nodes"
    insert_sql = write.INSERT_NODE
    # The SQL condition on the ids that precede the match properties in a key.
    endpoint_sql = ""
    endpoints: tuple[str | Endpoint, ...] = ()
    is_undirected = False

    def __init__(
        self,
        store: Store,
        type_: str,
        names: tuple[str, ...],
        changes: RowChanges,
        *,
        missing: MissingOptions | None = None,
    ) -> None:
        self.store = store
        self.type = type_
        self.names = names
        self.columns = dict(zip(names, names, strict=True))
        self.changes = changes
        # For each property that a match overwrites, the column with its value.
        self.on_match_columns = changes.on_match
        named = [*changes.on_create.items(), *changes.on_match.items()]
        # A column that only sets a property of another name is not stored as a property itself.
        self.property_columns = {*names, *(name for name, column in named if name == column)}
        self.missing = missing
        if missing is not None:
            # New records have the properties of the scope, from a column of theirs or from the scope itself.
            self.property_columns.update(missing.scope)
        self.named_columns = {column for _, column in named}
        self.non_property_columns = self.named_columns - self.property_columns
        self.touch = changes.touch
        # The records that no row matched, if something happens to them: in this merge or, of several, in the last.
        self.missing_records: MissingRecords | None = None
        # Rows whose nodes are missing: their number, and the reasons of the first ones.
        self.skipped = 0
        self.skip_reasons: list[str] = []
        self.nodes_created = 0
        # The ids of changed records, in arrays for each batch; those above the highest id before are new ones.
        self.changed_ids: list[Rows] = []
        self.highest_id = 0

    def run(self, given: Any) -> BulkResult:
        """Merge all rows, or none if one is refused."""
        created = count = 0
        needed = self.non_property_columns | self.property_columns
        required = needed - ({*(self.missing.scope if self.missing else ())} - {*self.names, *self.named_columns})
        with self.store.transaction():
            (self.highest_id,) = self.store.connection.execute(
                f"SELECT coalesce(max(id), 0) FROM {self.table}"
            ).fetchone()
            started = None if self.missing is None else self.start_missing_records(self.missing)
            if started is not None:
                self.missing_records = started
            node_ids = NodeIds(self.store)
            unseen = set(self.named_columns)
            for given_batch in read_batches(given, required):
                if unseen or self.changes.overwrites_all:
                    found_columns = list_columns(given_batch)
                    unseen -= found_columns
                    self.choose_on_match(found_columns)
                batch = given_batch if self.missing is None else put_in_scope(given_batch, self.missing.scope, count)
                one_by_one = self.needs_row_by_row()
                by_column = not one_by_one and can_merge_columns(self)
                columns = to_record_batch(batch, needed) if by_column else None
                found = None if columns is None else merge_columns(self, columns, node_ids)
                if found is None:
                    found = self.merge_rows(count, batch, one_by_one=one_by_one)
                created += found
                count += len(batch)
            if unseen and count:
                self.refuse_column(min(unseen))
            self.check_skipped()
            done = Deletion(()) if started is None else started.apply()
        return BulkResult(
            created,
            count - created - self.skipped,
            changed=self.count_changed(),
            missing=len(done.ids),
            kept=done.kept,
            detached=done.detached,
            skipped=self.skipped,
            nodes_created=self.nodes_created,
            missing_ids=done.ids,
            skipped_rows=tuple(self.skip_reasons),
        )

    def choose_on_match(self, columns: Iterable[Any]) -> None:
        """Choose the properties that a match overwrites, if these are all that rows have."""
        if self.changes.overwrites_all:
            others = self.non_property_columns.union(self.names)
            self.on_match_columns = {name: name for name in columns if isinstance(name, str) and name not in others}

    def refuse_column(self, column: str) -> NoReturn:
        """Refuse a column that no row has."""
        role = "on_match" if column in self.changes.on_match.values() else "on_create"
        raise InvalidArgumentError(f"{role} names the column {column!r}, which no row has. Correct it.")

    def count_changed(self) -> int:
        """Count the records that existed before the merge and were changed, each once."""
        ids = np.concatenate([np.zeros(0, np.int64), *self.changed_ids])
        return len(np.unique(ids[ids <= self.highest_id]))

    def start_missing_records(self, options: MissingOptions) -> MissingRecords:
        """Start to record which records are matched, of all that could be missing."""
        return start_missing_records(self.store, self.table, self.type, (), options)

    def check_skipped(self) -> None:
        """Refuse rows whose nodes are missing, unless they may be skipped."""

    def merge_rows(self, first: int, batch: pa.RecordBatch | Sequence[Mapping[str, Any]], *, one_by_one: bool) -> int:
        """Merge a batch as rows, and count the records that it creates."""
        created = 0
        for given in split_rows(batch):
            rows = [normalize_properties(row, f"row {number}") for number, row in enumerate(given, first)]
            keys = extract_keys(rows, self.columns, first)
            numbered = NumberedRows(range(first, first + len(rows)), rows, self.resolve_endpoints(rows, first), keys)
            first += len(rows)
            if None in numbered.endpoints:
                numbered = numbered.drop_unconnected()
            if one_by_one or numbered.keys is None:
                created += self.merge_row_by_row(numbered)
            else:
                created += self.merge_batch(numbered, self.prepend_endpoints(numbered.endpoints, numbered.keys))
        return created

    def needs_row_by_row(self) -> bool:
        """Check whether keys and updates alone do not decide the result, so that whole records are needed."""
        return (
            self.store.schema is not None
            or bool(self.changes.condition)
            or not all(map(has_json_path, self.on_match_columns))
            or len(self.on_match_columns) > _MAX_UPDATED_PROPERTIES
            or any(
                found.unique and (self.endpoint_sql or set(found.properties) != set(self.names))
                for found in list_indexes(self.store)
                if (found.table, found.type) == (self.table, self.type)
            )
        )

    def resolve_endpoints(self, rows: list[Properties], first: int) -> Endpoints:  # noqa: ARG002 - edges need it
        """Find the ids of the nodes that each row connects; None for a row that is skipped, because one is missing."""
        return [()] * len(rows)

    def prepend_endpoints(self, endpoints: Endpoints, keys: list[Key]) -> list[Key]:  # noqa: ARG002 - as above
        """Put the ids of the endpoints before each key."""
        return keys

    def merge_row_by_row(self, rows: NumberedRows) -> int:
        """Merge a batch row after row, and count the records that it creates."""
        return sum(map(self.merge_row, rows.numbers, rows.rows, rows.endpoints))

    def merge_row(self, number: int, row: Properties, endpoints: tuple[int, ...] | None) -> bool:
        """Merge one row, and return whether it created a record."""
        match = {name: row[name] for name in self.names}
        condition = self.changes.condition
        change = merge.MatchUpdate(self.select_updates(row), match, condition, allow_key_change=False, touch=self.touch)
        merged = write.call_with_label(
            f"row {number}", self.merge_record, match, self.select_new_properties(row), change, endpoints or ()
        )
        if self.missing_records is not None:
            self.missing_records.add([merged.id])
        if change.changed:
            self.changed_ids.append(np.array([merged.id]))
        return merged.created

    def merge_record(
        self,
        match: Properties,
        new: Properties,
        change: merge.MatchUpdate,
        endpoints: tuple[int, ...],  # noqa: ARG002 - as above
    ) -> MergedNode | MergedEdge:
        """Merge one record."""
        return merge.merge_one_node(self.store, self.type, match, new, change)

    def select_updates(self, row: Properties) -> Properties:
        """Select the properties that a row overwrites in its match."""
        return {name: row[column] for name, column in self.on_match_columns.items() if column in row}

    def select_new_properties(self, row: Properties) -> Properties:
        """Select the properties of the record that a row creates."""
        new = row
        if self.non_property_columns:
            new = {name: value for name, value in row.items() if name not in self.non_property_columns}
        if self.changes.on_create:
            new = new | {name: row[column] for name, column in self.changes.on_create.items() if column in row}
        return drop_nulls(new)

    def merge_batch(self, rows: NumberedRows, keys: list[Key]) -> int:
        """Merge a batch at once, and count the records that it creates."""
        records = self.find_records(rows, keys)
        created = 0
        for row, endpoint_ids, key in zip(rows.rows, rows.endpoints, keys, strict=True):
            record = records.get(key)
            if record is None:
                records[key] = _Record(None, self.select_new_properties(row), endpoint_ids or ())
                created += 1
                continue
            if self.on_match_columns and record.id is None:
                record.properties = apply_properties(record.properties, self.select_updates(row))
            elif self.on_match_columns:
                record.properties = {**record.properties, **self.select_updates(row)}
            record.matched = True
        self.write_records(records.values())
        return created

    def find_records(self, rows: NumberedRows, keys: list[Key]) -> dict[Key, _Record]:
        """Find the stored record of each key."""
        positions = find_first_positions(keys)
        distinct = list(positions)
        records: dict[Key, _Record] = {}
        for slot, record_id in find_by_keys(self.store, self.table, self.type, self.names, distinct, self.endpoint_sql):
            key = distinct[slot]
            if key in records:
                # Merging the row alone meets the same conflict, and raises it.
                position = positions[key]
                self.merge_row(rows.numbers[position], rows.rows[position], rows.endpoints[position])
            records[key] = _Record(record_id, {})
        if self.missing_records is not None:
            self.missing_records.add(record.id for record in records.values() if record.id is not None)
        return records

    def write_records(self, records: Iterable[_Record]) -> None:
        """Insert the new records, and update the matched ones."""
        moment = write.current_milliseconds()
        new: list[tuple[Any, ...]] = []
        touched: list[int] = []
        changed: list[int] = []
        for record in records:
            if record.id is None:
                new.append((self.type, *record.endpoint_ids, encode(record.properties), moment, moment))
            elif record.matched:
                is_changed = False
                if record.properties:
                    signature = tuple((name, value is None) for name, value in record.properties.items())
                    values = [encode(value) for value in record.properties.values() if value is not None]
                    statement = write.build_update_sql(self.table, signature, touch=False)
                    done = self.store.connection.execute(statement, (*values, moment, record.id, *values))
                    is_changed = done.rowcount > 0
                (changed if is_changed else touched).append(record.id)
        self.store.connection.executemany(self.insert_sql, new)
        self.changed_ids.append(np.array(changed, np.int64))
        if self.touch:
            write.touch_records(self.store, self.table, touched)
