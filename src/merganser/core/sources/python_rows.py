"""Rows of Python: lists of dicts, dicts of columns, iterables of record batches, and frames of pandas and Polars."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from merganser.core.columnar.arrow_versions import cast
from merganser.core.sources.python_values import check_values
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError, SchemaMismatchError

_FIRST_POLARS_WITH_ERRORS_IN_BATCHES = (1, 37)
Types = Mapping[str, pa.DataType]
_ACCEPTED = (
    "Give an Arrow table or reader, a pandas or Polars frame, a DuckDB relation, a list of dicts, a dict of columns, "
    "an iterable of record batches, any object with __arrow_c_stream__, or a path to Parquet, CSV, JSON or Arrow."
)


def convert_rows(source: Any, types: Types) -> pa.Table | pa.RecordBatchReader:
    """Convert rows of Python to Arrow; other objects are refused by their type."""
    if _is_instance(source, "polars", "LazyFrame"):
        return _stream_lazy_frame(source)
    if _is_instance(source, "pandas", "DataFrame"):
        return _convert_frame(source)
    if isinstance(source, Mapping):
        return _convert_columns(source, types)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | pa.Array | pa.ChunkedArray):
        return _convert_items(source, types)
    raise InvalidArgumentError(f"Cannot read rows from {type(source).__name__}. {_ACCEPTED}")


def is_frame(source: Any) -> bool:
    """Check for a frame that is converted here, and not by the Arrow interface."""
    return _is_instance(source, "polars", "LazyFrame") or _is_instance(source, "pandas", "DataFrame")


def _is_instance(source: Any, module: str, name: str) -> bool:
    """Check for a class of a library that may not be loaded."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(source, getattr(loaded, name))


def _stream_lazy_frame(frame: Any) -> pa.RecordBatchReader:
    """Stream the rows of a Polars query, in order, while it runs."""
    import polars as pl  # noqa: PLC0415  the caller has it

    schema = pl.DataFrame(schema=frame.collect_schema()).to_arrow().schema
    # Before, the batches of a query that fails simply end.
    streams = tuple(map(int, pl.__version__.split(".")[:2])) >= _FIRST_POLARS_WITH_ERRORS_IN_BATCHES
    parts = frame.collect_batches() if streams else [frame.collect(engine="streaming")]
    batches = chain.from_iterable(part.to_arrow().cast(schema).to_batches() for part in parts)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _convert_frame(frame: Any) -> pa.Table:
    """Convert a pandas frame; the named levels of its index are columns, the others are dropped."""
    levels = [name for name in frame.index.names if name is not None]
    clash = [name for name in levels if name in frame.columns]
    if clash:
        message = f"The index of the DataFrame and one of its columns are both named {clash[0]!r}. Rename one of them."
        raise InvalidArgumentError(message)
    frame = frame.reset_index(level=levels) if levels else frame
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        message = f"Cannot read rows from DataFrame: {error}. Give each column one type, and one name."
        raise InvalidArgumentError(message) from error
    for at, field in enumerate(table.schema):
        is_checked = pa.types.is_nested(field.type) or pa.types.is_temporal(field.type)
        if is_checked and str(frame.dtypes.iloc[at]) == "object":
            check_values(frame.iloc[:, at].tolist(), field.type, field.name, is_given=False)
    return table


def _convert_columns(columns: Mapping[Any, Any], types: Types) -> pa.Table:
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"Cannot read rows from a dict with the key {name!r}. Name columns by strings.")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            message = f"Column {name!r} of the dict is of type {type(values).__name__}. Give a list or array of values."
            raise InvalidArgumentError(message)
    arrays = {name: _make_array(values, types.get(name), name) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length:,}" for name, length in lengths.items())
        raise InvalidArgumentError(f"Columns of the source differ in length: {listed}. Give one value for each row.")
    if not arrays:
        raise InvalidArgumentError("Cannot read rows from an empty dict, which has no columns. Give it columns.")
    return pa.table(arrays)


def _convert_items(items: Iterable[Any], types: Types) -> pa.Table | pa.RecordBatchReader:
    iterator = iter(items)
    first = next(iterator, None)
    if isinstance(first, pa.RecordBatch):
        if types:
            message = "column_types is for rows without types; record batches have them. Leave it out."
            raise InvalidArgumentError(message)
        return pa.RecordBatchReader.from_batches(first.schema, _check_batches(first, iterator))
    if isinstance(first, Mapping) and isinstance(items, Sequence):
        return _convert_dicts(items, types)
    kind = type(items).__name__
    if first is None:
        message = f"Cannot read rows from an empty {kind}, which has no columns. Give an empty table with columns."
        raise InvalidArgumentError(message)
    raise InvalidArgumentError(f"Cannot read rows from a {kind} of {type(first).__name__}. {_ACCEPTED}")


def _check_batches(first: pa.RecordBatch, rest: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(chain([first], rest), 1):
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgumentError(f"Item {number:,} of the source is of type {type(batch).__name__}. {_ACCEPTED}")
        if batch.schema != first.schema:
            raise SchemaMismatchError(
                f"Record batch {number:,} of the source has other columns or types than the first: "
                f"{_format_schema(batch.schema)} instead of {_format_schema(first.schema)}. Give all one schema."
            )
        yield batch


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _convert_dicts(rows: Sequence[Mapping[Any, Any]], types: Types) -> pa.Table:
    """Convert rows to columns; a row without a key is NULL there."""
    wrong = next((row for row in rows if not isinstance(row, Mapping)), None)
    if wrong is not None:
        message = f"A row of the source is of type {type(wrong).__name__}, but the first is a dict. Give dicts only."
        raise InvalidArgumentError(message)
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return _convert_columns({name: [row.get(name) for row in rows] for name in names}, types)


def _make_array(values: Any, data_type: pa.DataType | None, name: str) -> pa.Array | pa.ChunkedArray:
    from_pandas = _is_instance(values, "pandas", "Series") or None
    is_list = not hasattr(values, "__array__") or str(getattr(values, "dtype", "")) == "object"
    try:
        if not is_list:
            array = values if isinstance(values, pa.ChunkedArray) else pa.array(values, from_pandas=from_pandas)
            return array if data_type is None else _cast(array, data_type)
        values = values if isinstance(values, list) else list(values)
        array = pa.array(values, data_type, from_pandas=from_pandas)
    except OverflowError as error:
        message = (
            f"Column {name!r} holds an integer beyond 64 bits. Set its type with column_types to decimal128(38, 0), or "
            "give strings."
        )
        raise ColumnValueError(message) from error
    except (pa.ArrowException, ValueError, TypeError) as error:
        problem = "has no single type" if data_type is None else f"does not fit {data_type}"
        message = f"Column {name!r} of the source {problem}: {str(error).rstrip('.')}. Correct it, or set column_types."
        raise ColumnTypeError(message) from error
    check_values(values, array.type, name, is_given=data_type is not None)
    return array


def _cast(array: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast values that have a type, without loss."""
    if pa.types.is_timestamp(array.type):
        has_zone = pa.types.is_timestamp(data_type) and data_type.tz is not None
        if pa.types.is_date(data_type) or has_zone != (array.type.tz is not None):
            raise TypeError(f"{array.type} would lose something")
    return cast(array, data_type)
