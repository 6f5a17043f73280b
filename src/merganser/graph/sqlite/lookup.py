"""Bulk lookups: rows are read in batches, and their keys joined with the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import coalesce_batches
from merganser.core.sources.source import is_source, stream_source
from merganser.errors import InvalidArgumentError
from merganser.graph.json_columns import (
    ENCODING_ERRORS,
    encode_column,
    is_string_column,
    replace_values,
    to_python_values,
)
from merganser.graph.sqlite.indexes import has_index
from merganser.graph.sqlite.sql import Parameter, Table, bind_key, build_match_sql
from merganser.graph.values import Properties, Value, decode, has_dict

if TYPE_CHECKING:
    from merganser.graph.sqlite.store import Store

BATCH = 10_000
# Rows of Arrow data that are merged at once.
ARROW_BATCH = 50_000

# Fewer rows are merged faster as rows.
COLUMN_ROWS = 100
_ARROW_TYPES = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

# The values of match properties in a row, as SQLite compares them.
Key: TypeAlias = tuple[Parameter, ...]


def read_batches(given: Any, required: Iterable[str]) -> Iterator[pa.RecordBatch | Sequence[Mapping[str, Any]]]:
    """Read rows in batches from Arrow data, a path, or any iterable of mappings.

    >>> [len(batch) for batch in read_batches(({"id": number} for number in range(BATCH + 1)), ["id"])]
    [10000, 1]
    """
    if is_source(given):
        rows = stream_source(given)
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        for batch in coalesce_batches(batches, rows.schema):
            _check_names(batch.schema.names, required)
            for start in range(0, batch.num_rows, ARROW_BATCH):
                yield batch.slice(start, ARROW_BATCH)
        return
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        message = f"rows is a {type(given).__name__}; give an iterable of dicts, an Arrow table or a data frame."
        raise InvalidArgumentError(message)
    rows = iter(given)
    while batch := list(islice(rows, BATCH)):
        yield batch


def list_columns(batch: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> set[str]:
    """List the columns of rows; each row may have others."""
    return set(batch.schema.names) if isinstance(batch, pa.RecordBatch) else set().union(*batch)


def to_record_batch(
    batch: pa.RecordBatch | Sequence[Mapping[str, Any]], required: Iterable[str]
) -> pa.RecordBatch | None:
    """Convert rows to Arrow if they have the same names, and strings, numbers or booleans alone in each column.

    >>> to_record_batch([{"k": 1}, {"k": "a"}] * COLUMN_ROWS, ["k"]) is None
    True
    """
    if isinstance(batch, pa.RecordBatch):
        return batch
    if len(batch) < COLUMN_ROWS or set(map(type, batch)) != {dict} or len(set(map(len, batch))) > 1:
        return None
    names = list(batch[0])
    if set(map(type, names)) != {str} or not {*required}.issubset(names):
        return None
    try:
        columns = [_to_array(list(map(itemgetter(name), batch))) for name in names]
        return None if None in columns else pa.RecordBatch.from_arrays(columns, names)
    except (KeyError, ValueError, OverflowError, pa.ArrowException):
        return None


def _to_array(values: list[Any]) -> pa.Array | None:
    """Convert values of one simple type to Arrow."""
    types = set(map(type, values)) - {type(None)}
    data_type = _ARROW_TYPES.get(types.pop()) if len(types) == 1 else None
    return None if data_type is None or types else pa.array(values, data_type)


def extract_keys(rows: list[Properties], columns: Mapping[str, str], first: int) -> list[Key] | None:
    """Extract the key of each row from the columns of its match properties.

    Returns None if a key cannot be joined on, because it has a list, or a number that SQLite has to parse.
    """
    check_columns(rows, columns.values(), first)
    by_column = []
    for column in columns.values():
        keys = [_to_join_key(row[column]) for row in rows]
        if None in keys:
            for number, row in enumerate(rows, first):
                if has_dict(row[column]):
                    message = f"row {number}: the match column {column!r} is or holds a dict; match on its values."
                    raise InvalidArgumentError(message)
            return None
        by_column.append(keys)
    return list(zip(*by_column, strict=True)) if by_column else [()] * len(rows)


def find_join_keys(column: pa.Array, encoded: pa.Array) -> list[Any] | None:
    """Find the key of each value, as `extract_keys` does, in a column whose JSON is given.

    Returns None if a key is NULL or cannot be joined on.
    """
    if column.null_count:
        return None
    if is_string_column(column.type):
        # A key is the string after a quote, which is its JSON without the last quote if nothing is escaped.
        escaped = pc.match_substring(encoded, "\\").to_numpy(zero_copy_only=False)
        keys = pc.utf8_slice_codeunits(encoded, 0, -1)
        return replace_values(keys, escaped, encoded, lambda text: str(bind_key(decode(text))[1])).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_boolean(column.type):
        return encoded.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_integer(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(column.type):
        found = [_to_join_key(value) for value in column.to_pylist()]
        return None if None in found else found
    return None


def find_column_keys(columns: Iterable[tuple[pa.Array, pa.Field]]) -> list[Key] | None:
    """Find the key of each row of some columns, or return None if `extract_keys` is needed, or refuses a row."""
    try:
        by_column = [find_join_keys(column, encode_column(column, field)) for column, field in columns]
    except ENCODING_ERRORS:
        return None
    found = [keys for keys in by_column if keys is not None]
    return list(zip(*found, strict=True)) if len(found) == len(by_column) else None


def find_first_positions(keys: Sequence[Key]) -> dict[Key, int]:
    """Return the first position of each key."""
    return dict(zip(reversed(keys), reversed(range(len(keys))), strict=True))


def check_columns(rows: list[Properties], columns: Iterable[str], first: int) -> None:
    """Refuse rows that have no value in one of these columns."""
    for column in columns:
        for number, row in enumerate(rows, first):
            if row.get(column) is None:
                missing = "is NULL" if column in row else "is missing"
                raise InvalidArgumentError(
                    f"row {number}: the match column {column!r} {missing}. Leave out such rows, or match on others."
                )


def split_rows(batch: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Convert a batch to Python rows, in batches for the row path."""
    if not isinstance(batch, pa.RecordBatch):
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH):
        yield _to_python_rows(batch.slice(start, BATCH))


def _to_python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [to_python_values(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _check_names(names: list[str], required: Iterable[str]) -> None:
    for name in required:
        if name not in names:
            raise InvalidArgumentError(f"The rows have no column {name!r}; they have: {', '.join(names)}.")
    for name in names:
        if names.count(name) > 1:
            message = f"The rows have {names.count(name)} columns {name!r}; have one, and rename the others."
            raise InvalidArgumentError(message)


def _to_join_key(value: Value) -> Parameter | None:
    other, parameter = bind_key(value)
    return parameter if other == "?" and not isinstance(value, list | dict) else None


def find_by_keys(
    store: Store, table: Table, type_: str, names: Sequence[str], keys: Sequence[Key], endpoint_sql: str = ""
) -> list[tuple[int, int]]:
    """Find the records of each key: pairs of the position of the key and the id of a record.

    The match properties are the last values of a key; `endpoint_sql` uses the ones before as `k.c0` and so on.
    """
    if not keys:
        return []
    width = len(keys[0])
    # With an index, SQLite looks up each key; without one, it scans the records once and looks up their keys.
    is_indexed = bool(endpoint_sql) or has_index(store, type_, names)
    staged = stage_keys(store, width, keys, is_sorted=not is_indexed)
    joined = f"{staged} k CROSS JOIN {table} r" if is_indexed else f"{table} r CROSS JOIN {staged} k"
    first = width - len(names)
    matched = build_match_sql(type_, [(name, f"k.c{position}") for position, name in enumerate(names, first)], "r.")
    return store.connection.execute(f"SELECT k.slot - 1, r.id FROM {joined} WHERE {endpoint_sql}{matched}").fetchall()


def stage_keys(store: Store, width: int, keys: Iterable[Key], *, is_sorted: bool = False) -> str:
    """Write keys to a temporary table with the columns `slot`, `c0` and so on, and return its name.

    It has an index of the keys if it is sorted; then they must be distinct.
    """
    fields = ", ".join(f"c{position}" for position in range(width))
    name, unique = (
        (f"merganser_sorted_{width}", f", UNIQUE ({fields})") if is_sorted else (f"merganser_keys_{width}", "")
    )
    connection = store.connection
    connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} (slot INTEGER PRIMARY KEY, {fields}{unique})")
    connection.execute(f"DELETE FROM temp.{name}")
    marks = ", ".join("?" * width)
    # SQLite numbers the slots from 1.
    connection.executemany(f"INSERT INTO temp.{name} ({fields}) VALUES ({marks})", keys)
    return f"temp.{name}"
