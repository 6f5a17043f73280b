"""Casts of source columns to the target's types: a value that would lose something is an error (S3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.arrow_versions import cast
from merganser.core.columnar.take import null_array
from merganser.core.model.schema import format_names, format_value, is_list_like, to_plain_type, to_storage
from merganser.errors import ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPERATIONS = b"merganser:operations"
_REMEDY = "Correct the value, cast the column in the source, or widen it in the target with alter."


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Order and cast columns to a target schema, in plain types; see `make_operation_field` for its exception."""
    columns = [_conform_column(table.column(field.name), field) for field in schema]
    return pa.table(columns, schema=conform_schema(schema))


def _conform_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    operations = (field.metadata or {}).get(_OPERATIONS)
    if operations is None:
        return cast_column(column, to_plain_type(field.type), field.name)
    return _decode_operations(column, json.loads(operations), field.name)


def make_operation_field(name: str, values: Mapping[str, Sequence[Any]]) -> pa.Field:
    """Describe the column of operations by their values; `conform` makes it boolean: whether the row is a delete."""
    return pa.field(name, pa.bool_(), metadata={_OPERATIONS: json.dumps(values)})


def find_operation_column(schema: pa.Schema) -> str | None:
    """Return the name of the field that `make_operation_field` made, if the schema has one."""
    return next((field.name for field in schema if _OPERATIONS in (field.metadata or {})), None)


def _decode_operations(column: pa.ChunkedArray, values: Mapping[str, Sequence[Any]], name: str) -> pa.ChunkedArray:
    # A column of NULLs only may have the null type.
    column = column.cast(pa.large_string()) if pa.types.is_null(column.type) else _unwrap(column)
    known = [value for some in values.values() for value in some]
    try:
        column = column.cast(to_plain_type(column.type))
        sets = (pa.array(some, column.type) for some in (known, values.get("delete", ())))
        is_known, deletes = (pc.is_in(column, some) for some in sets)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ColumnTypeError(
            f"Operation column {name!r} has type {column.type}, which cannot hold all of {format_names(known)}. "
            "Set operation_values to the values that it has."
        ) from error
    unknown = column.filter(pc.invert(is_known))
    if len(unknown):
        raise ColumnValueError(
            f"Operation column {name!r} holds {format_value(unknown[0])}, which is not one of {format_names(known)}. "
            "Correct it, or map it to an operation with operation_values."
        )
    return deletes


def conform_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `conform` casts to."""
    # NULL in a required column is reported by validation, which knows more than the cast: nullable here.
    return pa.schema([pa.field(field.name, to_plain_type(field.type)) for field in schema])


def cast_column(column: pa.ChunkedArray, data_type: pa.DataType, name: str, remedy: str = _REMEDY) -> pa.ChunkedArray:
    """Cast one column, or raise an error that quotes the first value that does not fit."""
    if column.type == data_type:
        return column
    try:
        return _cast(column, data_type)
    except pa.ArrowNotImplementedError as error:
        message = f"Column {name!r} cannot be cast from {column.type} to {data_type}: {error}. Cast it in the source."
        raise ColumnTypeError(message) from error
    except (pa.ArrowInvalid, OverflowError) as error:
        value = _find_misfit(column, data_type)
        raise ColumnValueError(
            f"Column {name!r} holds {value} ({column.type}), which does not fit the target's {data_type}. {remedy}"
        ) from error


def _cast(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_null(column.type):
        # Arrow has no such cast to all types, for example to float16.
        return pa.chunked_array([null_array(len(column), data_type)], data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        storage = _cast(column, data_type.storage_type)
        chunks = [pa.ExtensionArray.from_storage(data_type, chunk) for chunk in storage.chunks]
        return pa.chunked_array(chunks, data_type)
    column = _cast_through_decimal(_unwrap(column), data_type)
    if pa.types.is_fixed_size_binary(data_type) and not pa.types.is_fixed_size_binary(column.type):
        _check_width(column, data_type)
    result = cast(column, data_type)
    if pa.types.is_float16(data_type) or (pa.types.is_float32(data_type) and pa.types.is_float64(column.type)):
        _check_narrowing(column, result)
    if pa.types.is_date64(column.type) and not result.cast(column.type).equals(column):
        raise pa.ArrowInvalid("a date64 has a time of day")
    if pa.types.is_time32(column.type) and not result.cast(column.type, safe=False).equals(column):
        raise pa.ArrowInvalid("a time is out of the range of its type")
    if _has_null_where_required(result, data_type):
        raise pa.ArrowInvalid("a nested value is NULL where the target declares it NOT NULL")
    return result


def _has_null_where_required(column: pa.ChunkedArray, data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        present = column.drop_null()
        children = [(field, pc.struct_field(present, [at])) for at, field in enumerate(data_type)]
    elif pa.types.is_map(data_type):
        entries = pa.list_(pa.struct([data_type.key_field, data_type.item_field]))
        return _has_null_where_required(cast(column, entries), entries)
    elif is_list_like(data_type):
        children = [(data_type.value_field, pc.list_flatten(column))]
    else:
        return False
    return any(
        (not field.nullable and values.null_count > 0) or _has_null_where_required(values, field.type)
        for field, values in children
    )


def _unwrap(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = to_storage(column)
    if pa.types.is_nested(column.type):
        # Arrow casts all values under a list, even those outside a slice, which `take` drops. `take` does not support
        # views, so these are cast first.
        column = cast(column, to_plain_type(column.type)).take(pa.array(np.arange(len(column))))
    return column


def _cast_through_decimal(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Cast to an intermediate decimal where Arrow has no exact direct cast."""
    if pa.types.is_decimal32(column.type) or pa.types.is_decimal64(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    if pa.types.is_decimal(data_type) and pa.types.is_integer(column.type):
        # Arrow demands room for every value of the integer type; here only the values present have to fit.
        column = column.cast(pa.decimal128(20, 0))
    if pa.types.is_integer(data_type) and pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal256(76, 0)).cast(pa.decimal128(38, 0))
    if pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type):
        column = column.cast(pa.decimal128(data_type.precision, data_type.scale))
    return column


def _check_width(column: pa.ChunkedArray, data_type: pa.DataType) -> None:
    if pc.all(pc.equal(pc.binary_length(column), data_type.byte_width)).as_py() is False:
        raise pa.ArrowInvalid(f"a value is not {data_type.byte_width} bytes long")


def _check_narrowing(column: pa.ChunkedArray, result: pa.ChunkedArray) -> None:
    same = pc.or_(pc.equal(result.cast(column.type), column), pc.is_nan(column))
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid("a value cannot be represented exactly in the narrower float type")


def _find_misfit(column: pa.ChunkedArray, data_type: pa.DataType) -> str:
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _cast(column.slice(start, middle - start), data_type)
            start = middle
        except (pa.ArrowInvalid, OverflowError):
            end = middle
    return format_value(column[start])
