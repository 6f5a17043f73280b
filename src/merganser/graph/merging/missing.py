"""What happens to the records that no row of a merge matches: they are kept, deleted or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.errors import InvalidArgumentError
from merganser.graph.json_columns import to_python_values
from merganser.graph.sqlite.chosen import Deletion, check_detach, delete_chosen, update_chosen
from merganser.graph.sqlite.sql import build_equality_sql, build_type_sql, quote_literal
from merganser.graph.values import Properties, Value, are_equal, normalize_properties, normalize_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from merganser.graph.sqlite.chosen import DetachPolicy
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store

# Keep missing records, delete them, or overwrite these properties.
MissingPolicy: TypeAlias = Literal["keep", "delete"] | Mapping[str, Any]

# Merges may nest, because the rows of one may come from a generator that merges others.
_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingOptions:
    """What happens to missing records; `updates` is None if they are deleted."""

    updates: Properties | None
    scope: Properties
    detach: DetachPolicy


def read_missing_options(
    missing: MissingPolicy, scope: Mapping[str, Any] | None, detach: DetachPolicy, names: Sequence[str]
) -> MissingOptions | None:
    """Check what a caller wants of missing records; None if they are kept."""
    check_detach(detach)
    is_known = isinstance(missing, str) and missing in {"keep", "delete"}
    if not is_known and (not isinstance(missing, Mapping) or not missing):
        message = f"missing is {missing!r}; give 'keep', 'delete', or the properties that missing records get."
        if missing in ("skip", "refuse"):
            message += " What happens to edges whose nodes do not exist is on_missing_node."
        raise InvalidArgumentError(message)
    if scope is not None and missing == "keep":
        message = "scope limits which records may be missing, and missing='keep' keeps all. Leave out scope, or set "
        raise InvalidArgumentError(f"{message}missing to 'delete' or to properties.")
    if detach and missing != "delete":
        raise InvalidArgumentError("detach applies to nodes that missing='delete' deletes. Leave it out, or delete.")
    if missing == "keep":
        return None
    updates = normalize_properties(missing, "missing") if isinstance(missing, Mapping) else None
    for name in names:
        if updates is not None and name in updates:
            raise InvalidArgumentError(f"missing sets the match property {name!r}, which never changes. Leave it out.")
    return MissingOptions(updates=updates, scope=_read_scope(scope), detach=detach)


def _read_scope(given: Mapping[str, Any] | None) -> Properties:
    if given is None:
        return {}
    scope = normalize_properties(given, "scope")
    if not scope:
        message = "scope is empty; give the properties of the records that the rows cover, or leave it out."
        raise InvalidArgumentError(message)
    for name, value in scope.items():
        if value is None or isinstance(value, list | dict):
            raise InvalidArgumentError(f"scope has {value!r} for {name!r}; give a string, a number or a boolean.")
    return scope


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """Finds the records of a type that no row of a bulk merge matched or created, inside its transaction.

    The matched ids are staged in a temporary table. Ids grow, so records above the highest id before are new.
    """

    store: Store
    table: Table
    type: str
    # The types of the nodes at both ends of an edge, where rows identify nodes of one type there.
    endpoint_types: tuple[str | None, ...]
    options: MissingOptions
    highest_id: int
    matched: str

    def add(self, ids: Iterable[int]) -> None:
        """Add the ids of matched records."""
        statement = f"INSERT OR IGNORE INTO temp.{self.matched} VALUES (?)"
        self.store.connection.executemany(statement, ((one,) for one in ids))

    def apply(self) -> Deletion:
        """Delete or change the missing records."""
        conditions = [build_type_sql(self.type, "r."), f"r.id NOT IN (SELECT id FROM temp.{self.matched})"]
        conditions.append(f"r.id <= {self.highest_id}")
        parameters = []
        for name, value in self.options.scope.items():
            sql, parameter = build_equality_sql(name, value, "r.")
            conditions.append(sql)
            parameters.append(parameter)
        for column, type_ in zip(("from_id", "to_id"), self.endpoint_types, strict=False):
            if type_ is not None:
                node = f"SELECT 1 FROM nodes n WHERE n.id = r.{column} AND n.type = {quote_literal(type_)}"
                conditions.append(f"EXISTS ({node})")
        query = f"SELECT r.id FROM {self.table} r WHERE {' AND '.join(conditions)}"
        if self.options.updates is None:
            done = delete_chosen(self.store, self.table, query, parameters, self.options.detach)
        else:
            done = Deletion(update_chosen(self.store, self.table, query, parameters, self.options.updates))
        self.store.connection.execute(f"DROP TABLE temp.{self.matched}")
        return done


def start_missing_records(
    store: Store, table: Table, type_: str, endpoint_types: tuple[str | None, ...], options: MissingOptions
) -> MissingRecords:
    """Start to record which records are matched."""
    matched = f"merganser_matched_{next(_numbers)}"
    store.connection.execute(f"CREATE TEMP TABLE {matched} (id INTEGER PRIMARY KEY)")
    (highest,) = store.connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
    return MissingRecords(
        store=store,
        table=table,
        type=type_,
        endpoint_types=endpoint_types,
        options=options,
        highest_id=highest,
        matched=matched,
    )


def put_in_scope(
    batch: pa.RecordBatch | Sequence[Mapping[str, Any]], scope: Properties, first: int
) -> pa.RecordBatch | Sequence[Mapping[str, Any]]:
    """Give rows the properties of the scope that they lack, and refuse rows outside it; `first` numbers the rows."""
    for name, value in scope.items():
        if not isinstance(batch, pa.RecordBatch):
            batch = [row if name in row else {**row, name: value} for row in batch]
            given: Iterable[Any] = enumerate((row[name] for row in batch), first)
            given = ((number, found) for number, found in given if found is not value)
        elif name not in batch.schema.names:
            batch = batch.append_column(name, pa.array([value] * len(batch)))
            continue
        else:
            given = _list_distinct(batch, name, first)
        for number, found in given:
            _check_in_scope(name, value, found, number)
    return batch


def _list_distinct(batch: pa.RecordBatch, name: str, first: int) -> Iterable[tuple[int, Any]]:
    """List the distinct values of a column, each with the number of its first row."""
    column, field = batch.column(name), batch.schema.field(name)
    if pa.types.is_nested(field.type):
        return enumerate(to_python_values(column, field), first)
    if pa.types.is_dictionary(field.type):
        column = column.dictionary_decode()
    codes = pc.dictionary_encode(column, null_encoding="encode")
    _, numbers = np.unique(codes.indices.to_numpy(zero_copy_only=False), return_index=True)
    found = to_python_values(codes.dictionary, field.with_type(column.type))
    return zip((first + number for number in numbers.tolist()), found, strict=True)


def _check_in_scope(name: str, value: Value, found: Any, number: int) -> None:
    if not are_equal(normalize_value(found, name), value):
        raise InvalidArgumentError(
            f"row {number} is outside the scope: its {name!r} is {found!r}, not {value!r}. Filter such rows out, or "
            "widen the scope."
        )
