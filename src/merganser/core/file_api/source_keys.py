"""Source keys of the file-level functions: any form a caller gives becomes one table."""

from __future__ import annotations

import datetime as dt
import inspect
import os
from collections.abc import Iterable, Mapping
from numbers import Number
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.model.casts import cast_column, conform
from merganser.core.model.keys import count_null_keys
from merganser.core.model.schema import check_unique, decode_dictionary, to_plain_type
from merganser.core.model.schema_checks import check_types
from merganser.core.model.validation import check_key_columns, check_null_keys
from merganser.errors import ColumnTypeError, InvalidArgumentError, KeyColumnError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Values of one family have one Arrow type. Arrow would cast mixed families, and may truncate a time to a date.
_FAMILIES: tuple[type, ...] = (bool, Number, dt.datetime, dt.date, dt.time, dt.timedelta, str, bytes)
_EXPECTED = (
    "Give a list of values (of tuples or dicts for several key columns), an Arrow array or table, a pandas or Polars "
    "frame, or a path"
)


def read_keys(source_keys: Any, keys: Sequence[str], partition_schema: pa.Schema | None = None) -> pa.Table:
    """Read the key columns, string ones in the types of a partition schema; NULL and NaN are refused (K3)."""
    found = _to_table(source_keys, keys)
    check_unique(found.schema, "source")
    check_key_columns(found.schema, keys, "source")
    table = decode_columns(found, keys)
    check_null_keys(count_null_keys(table, keys))
    return pa.table([_read_as(table.column(name), name, partition_schema) for name in keys], names=list(keys))


def decode_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Select columns and decode dictionaries, whose NULL values are not counted."""
    columns = [table.column(name) for name in names]
    return pa.table([decode_dictionary(c) if pa.types.is_dictionary(c.type) else c for c in columns], names=list(names))


def conform_keys(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Cast keys as a merge casts them (S3), where the target's type is known."""
    goal = pa.schema([(field.name, types.get(field.name, field.type)) for field in table.schema])
    check_types(table.schema, goal)
    return conform(table, goal)


def check_partition_schema(partition_schema: object) -> None:
    """Refuse what is not a schema."""
    if partition_schema is not None and not isinstance(partition_schema, pa.Schema):
        raise InvalidArgumentError(f"partition_schema must be a pyarrow.Schema, not {type(partition_schema).__name__}.")


def infer_array(values: Sequence[Any]) -> pa.Array:
    """Let Arrow infer the type of Python values; large integers become uint64."""
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:
        return pa.array(values, pa.uint64(), from_pandas=True)


def _to_table(source_keys: Any, keys: Sequence[str]) -> pa.Table:
    if hasattr(source_keys, "__arrow_c_stream__") or hasattr(source_keys, "__arrow_c_array__"):
        array = read_arrow(source_keys)
        if not pa.types.is_struct(array.type):
            return _to_single_column(array, keys)
        return pa.table(array.flatten(), names=[field.name for field in array.type])
    if isinstance(source_keys, str | os.PathLike) or not isinstance(source_keys, Iterable):
        # Imported here because PyArrow's datasets import pandas, which `import merganser.core` must not.
        from merganser.core.sources.source import read_source  # noqa: PLC0415

        return read_source(source_keys)
    if isinstance(source_keys, Mapping | bytes | bytearray):
        message = f"source_keys is a {type(source_keys).__name__}, which is not a list of keys. {_EXPECTED}."
        raise InvalidArgumentError(message)
    if inspect.isgenerator(source_keys) and inspect.getgeneratorstate(source_keys) == inspect.GEN_CLOSED:
        raise InvalidArgumentError("source_keys is an exhausted generator. Give a list, which can be read again.")
    # Arrays of NumPy and pandas; objects may be tuples.
    if getattr(getattr(source_keys, "dtype", None), "kind", "O") != "O":
        return _to_single_column(_to_array(source_keys, keys[0]), keys)
    return _from_rows(list(source_keys), keys)


def read_arrow(source_keys: Any) -> pa.ChunkedArray:
    """Read an object with the Arrow PyCapsule interface: a column, or a table as a column of structs."""
    try:
        if hasattr(source_keys, "__arrow_c_stream__"):
            return pa.chunked_array(source_keys)
        return pa.chunked_array([pa.array(source_keys)])
    except pa.ArrowException as error:
        message = f"Cannot read keys from {type(source_keys).__name__}: {error}. {_EXPECTED}."
        raise InvalidArgumentError(message) from error


def _to_single_column(column: pa.Array | pa.ChunkedArray, keys: Sequence[str]) -> pa.Table:
    if len(keys) > 1:
        raise InvalidArgumentError(
            f"source_keys is one column, but the key has {len(keys)}: {', '.join(keys)}. Give a table with these, or a "
            "list of tuples."
        )
    return pa.table([column], names=list(keys))


def _from_rows(rows: list[Any], keys: Sequence[str]) -> pa.Table:
    types = set(map(type, rows))
    if types and all(issubclass(one, Mapping) for one in types):
        columns = [_pick_values(rows, name) for name in keys]
    elif types and all(issubclass(one, tuple | list) for one in types):
        columns = [list(map(itemgetter(at), rows)) for at in _find_positions(rows, keys)]
    elif rows and (len(keys) > 1 or any(issubclass(one, Mapping | tuple) for one in types)):
        raise InvalidArgumentError(
            f"source_keys holds {_format_types(types)}; the key columns are {', '.join(keys)}. Give all keys as "
            "tuples of their values, or all as dicts."
        )
    else:
        columns = [rows for _ in keys]
    return pa.table([_to_array(column, name) for column, name in zip(columns, keys, strict=True)], names=list(keys))


def _find_positions(rows: list[Any], keys: Sequence[str]) -> Sequence[int]:
    """Find the position of each key column in the tuples; named tuples and Spark rows have field names."""
    fields: list[str] = list(getattr(rows[0], "_fields", None) or getattr(rows[0], "__fields__", None) or [])
    if set(keys) <= {*fields} and len(set(map(type, rows))) == 1:
        return [fields.index(name) for name in keys]
    if set(map(len, rows)) != {len(keys)}:
        wrong = next(row for row in rows if len(row) != len(keys))
        message = f"The key {wrong!r} should have {len(keys)} values, one for each of {', '.join(keys)}. Correct it."
        raise InvalidArgumentError(message)
    return range(len(keys))


def _pick_values(rows: list[Any], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError as error:
        row = next(row for row in rows if name not in row)
        message = f"Key column {name!r} is missing from the key {row!r}. Give every key a value of that name."
        raise KeyColumnError(message) from error


def _to_array(values: Any, name: str) -> pa.Array:
    """Convert Python values to the type that Arrow infers; refuse mixed types."""
    types = set(map(type, values)) - {type(None)} if isinstance(values, list) else set()
    try:
        found = _keep_nanoseconds(infer_array(values), values, types)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        message = f"The values of key column {name!r} have no common type: {error}. Give values of one type."
        raise ColumnTypeError(message) from error
    # NULL is refused later; pandas has several types for it.
    if not found.null_count:
        families = {next((family for family in _FAMILIES if issubclass(one, family)), one) for one in types}
        zones = {value.tzinfo is None for value in values} if families == {dt.datetime} else set()
        if len(families) > 1 or len(zones) > 1:
            what = _format_types(types) if len(families) > 1 else "times with a zone and without one"
            raise ColumnTypeError(f"The values of key column {name!r} are {what}. Give values of one type.")
    return found


def _keep_nanoseconds(found: pa.Array, values: Any, types: set[type]) -> pa.Array:
    """Keep the nanoseconds of pandas times; Arrow infers microseconds."""
    names = ("nanosecond", "nanoseconds")
    attribute = next((name for name in names if any(hasattr(one, name) for one in types)), None)
    if attribute is None or not any(getattr(value, attribute, 0) for value in values):
        return found
    fine = pa.timestamp("ns", found.type.tz) if pa.types.is_timestamp(found.type) else pa.duration("ns")
    return pa.array(values, fine, from_pandas=True)


def _read_as(column: pa.ChunkedArray, name: str, partition_schema: pa.Schema | None) -> pa.ChunkedArray:
    """Cast strings to the type of their partition column."""
    if partition_schema is None or name not in partition_schema.names:
        return column
    strings = cast_column(column, to_plain_type(column.type), name)
    if not pa.types.is_large_string(strings.type):
        return column
    return cast_column(strings, to_plain_type(partition_schema.field(name).type), name)


def _format_types(types: Iterable[type]) -> str:
    return " and ".join(sorted(one.__name__ for one in types))
