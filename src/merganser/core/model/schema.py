"""Schemas: which columns go together, and casts that lose nothing.

A source column may enter a target column when every one of its values can (S3). Which pairs of types are allowed at
all is decided from the types alone; whether each value fits is decided by the cast.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.errors import ColumnTypeError, ColumnValueError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

_OPERATIONS = b"merganser:operations"


def check_columns(source: pa.Schema, target: pa.Schema, needed: Collection[str] | None = None) -> None:
    """Refuse a source that lacks a column of the target, or of the few that are needed, or has another one (S2)."""
    have, want = set(source.names), set(target.names)
    missing = [name for name in target.names if name not in have and (needed is None or name in needed)]
    unknown = [name for name in source.names if name not in want]
    if missing or unknown:
        message = (
            f"Source and target columns differ: missing from the source: {_format_names(missing)}; "
            f"unknown to the target: {_format_names(unknown)}. Select, rename or add columns in the source."
        )
        raise SchemaMismatchError(message)


def check_unique(schema: pa.Schema, side: str) -> None:
    """Refuse columns that no name tells apart."""
    twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if twice:
        message = f"The {side} has several columns named {_format_names(twice)}. Rename them so that each is unique."
        raise SchemaMismatchError(message)


def check_types(source: pa.Schema, target: pa.Schema) -> None:
    """Refuse type pairs that no value could cross without loss (S3, K6)."""
    for field in target:
        have = source.field(field.name).type
        if not is_castable(have, field.type):
            hint = ""
            if pa.types.is_timestamp(have) and pa.types.is_timestamp(field.type):
                hint = " A timestamp with a zone and one without never compare."
            message = (
                f"Column {field.name!r} has type {have} in the source and {field.type} in the target, which cannot be "
                f"cast without loss.{hint} Cast the column in the source."
            )
            raise ColumnTypeError(message)


def check_same_schema(first: pa.Schema, other: pa.Schema, first_path: str, other_path: str) -> None:
    """Refuse a dataset whose files disagree about their columns."""
    if set(first.names) == set(other.names):
        differing = [
            name for name in first.names if not is_same_logical_type(first.field(name).type, other.field(name).type)
        ]
    else:
        differing = sorted(set(first.names) ^ set(other.names))
    if differing:
        name = differing[0]
        kinds = [str(s.field(name).type) if name in s.names else "absent" for s in (first, other)]
        message = (
            f"The files of the dataset disagree about column {name!r}: {kinds[0]} in {first_path}, {kinds[1]} in "
            f"{other_path}. Rewrite the dataset with one schema first (write_dataset with mode='overwrite')."
        )
        raise SchemaMismatchError(message)


def check_same_columns(first: pa.Schema, other: pa.Schema, first_path: str, other_path: str) -> None:
    """Refuse source files that do not have the same columns."""
    differing = sorted(set(first.names) ^ set(other.names))
    if differing:
        message = (
            f"The source files {first_path} and {other_path} do not both have {_format_names(differing)}. Read "
            "them apart."
        )
        raise SchemaMismatchError(message)


def to_plain_type(kind: pa.DataType) -> pa.DataType:
    """Give the type that holds the same values, has every Arrow kernel and no 2 GB limit: no dictionaries, no views."""
    if pa.types.is_dictionary(kind):
        kind = to_plain_type(kind.value_type)
    elif kind in (pa.string(), pa.string_view()):
        kind = pa.large_string()
    elif kind in (pa.binary(), pa.binary_view()):
        kind = pa.large_binary()
    elif pa.types.is_date64(kind):
        # Parquet has days only.
        kind = pa.date32()
    return _map_children(kind, _to_plain_field)


def _map_children(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Change what is inside a nested type; a list view becomes the list."""
    if pa.types.is_struct(kind):
        kind = pa.struct([change(field) for field in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(change(kind.key_field), change(kind.item_field))
    elif pa.types.is_list(kind) or pa.types.is_list_view(kind):
        kind = pa.list_(change(kind.value_field))
    elif pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        kind = pa.large_list(change(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(change(kind.value_field), kind.list_size)
    return kind


def to_plain_schema(schema: pa.Schema) -> pa.Schema:
    """Give a schema in plain types, with its metadata."""
    return pa.schema([_to_plain_field(field) for field in schema], schema.metadata)


def to_value_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of single values of a column: what a dictionary holds, strings for views, days for dates."""
    if pa.types.is_dictionary(kind):
        return to_value_type(kind.value_type)
    if pa.types.is_date64(kind):
        return pa.date32()
    return pa.string() if kind == pa.string_view() else kind


def to_stored_schema(schema: pa.Schema, partition_columns: Collection[str]) -> pa.Schema:
    """Give the schema that a first file of these columns gets: Parquet has no seconds, only milliseconds and finer."""
    fields = [field if field.name in partition_columns else _to_stored_field(field) for field in schema]
    return pa.schema(fields, schema.metadata)


def _to_stored_field(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        kind = pa.timestamp("ms", kind.tz)
    elif kind == pa.time32("s"):
        kind = pa.time32("ms")
    elif pa.types.is_dictionary(kind):
        kind = pa.dictionary(kind.index_type, _to_stored_field(pa.field("", kind.value_type)).type, kind.ordered)
    return field.with_type(_map_children(kind, _to_stored_field))


def make_key_values(schema: pa.Schema) -> dict[bytes, bytes]:
    """Give the key-value metadata of a new file: the schema's own, and the Arrow schema that readers restore."""
    stored = base64.b64encode(schema.serialize().to_pybytes())
    return {**(schema.metadata or {}), b"ARROW:schema": stored}


def _to_plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(to_plain_type(field.type))


def is_same_logical_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Say whether two types hold the same values, however Arrow lays them out."""
    one, other = _to_logical_type(one), _to_logical_type(other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [f.name for f in one] == [f.name for f in other] and _holds_pairwise(one, other, is_same_logical_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return is_same_logical_type(one.key_type, other.key_type) and is_same_logical_type(
            one.item_type, other.item_type
        )
    if _is_listlike(one) and _is_listlike(other):
        sizes = [kind.list_size if pa.types.is_fixed_size_list(kind) else None for kind in (one, other)]
        return sizes[0] == sizes[1] and is_same_logical_type(one.value_type, other.value_type)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.precision == other.precision and one.scale == other.scale)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return bool(one.unit == other.unit and (one.tz is None) == (other.tz is None))
    return bool(one == other)


def _to_logical_type(kind: pa.DataType) -> pa.DataType:
    kind = to_plain_type(kind.storage_type if isinstance(kind, pa.JsonType) else kind)
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def is_castable(have: pa.DataType, want: pa.DataType) -> bool:
    """Say whether values of one type can become another type, each losing nothing or being refused."""
    have, want = _to_logical_type(have), _to_logical_type(want)
    if have == want or pa.types.is_null(have):
        return True
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        return [f.name for f in have] == [f.name for f in want] and _holds_pairwise(have, want, _is_nested_castable)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return _is_nested_castable(have.key_type, want.key_type) and _is_nested_castable(have.item_type, want.item_type)
    if _is_listlike(have) and _is_listlike(want):
        sizes = {kind.list_size for kind in (have, want) if pa.types.is_fixed_size_list(kind)}
        return len(sizes) < 2 and _is_nested_castable(have.value_type, want.value_type)  # noqa: PLR2004  two sizes differ
    return _is_plain_castable(have, want)


def _is_plain_castable(have: pa.DataType, want: pa.DataType) -> bool:
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        return (have.tz is None) == (want.tz is None)
    groups: tuple[Callable[[pa.DataType], bool], ...] = (
        lambda kind: pa.types.is_integer(kind) or pa.types.is_decimal(kind),
        lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
        lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.uuid(),
        pa.types.is_date,
        pa.types.is_time,
        pa.types.is_duration,
    )
    return any(group(have) and group(want) for group in groups)


def _is_nested_castable(have: pa.DataType, want: pa.DataType) -> bool:
    # Arrow narrows floats silently, and asks a decimal for room for every integer; inside a nested value neither can be
    # helped.
    if pa.types.is_decimal(want) and pa.types.is_integer(have):
        return False
    if pa.types.is_floating(want) and not is_same_logical_type(have, want):
        return bool(pa.types.is_floating(have) and have.bit_width <= want.bit_width)
    return is_castable(have, want)


def _holds_pairwise(one: pa.DataType, other: pa.DataType, test: Callable[[pa.DataType, pa.DataType], bool]) -> bool:
    return all(test(left.type, right.type) for left, right in zip(one, other, strict=True))


def _is_listlike(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Order and cast columns to a target schema, in plain types; a value that does not fit is an error (S3).

    A field of `make_operation_field` becomes a column that says of each row whether it deletes.
    """
    columns = [_conform_column(table.column(field.name), field) for field in schema]
    return pa.table(columns, schema=conform_schema(schema))


def _conform_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    operations = (field.metadata or {}).get(_OPERATIONS)
    if operations is None:
        return cast_column(column, to_plain_type(field.type), field.name)
    return _decode_operations(column, json.loads(operations), field.name)


def make_operation_field(name: str, values: Mapping[str, Sequence[Any]]) -> pa.Field:
    """Describe the column that tells what a row does, by the values that it has for each operation."""
    return pa.field(name, pa.bool_(), metadata={_OPERATIONS: json.dumps(values)})


def find_operation_column(schema: pa.Schema) -> str | None:
    """Find the field of `make_operation_field` in a schema that rows are to be conformed to."""
    return next((field.name for field in schema if _OPERATIONS in (field.metadata or {})), None)


def _decode_operations(column: pa.ChunkedArray, values: Mapping[str, Sequence[Any]], name: str) -> pa.ChunkedArray:
    # A column that holds nothing but NULL may not know its type.
    column = column.cast(pa.large_string()) if pa.types.is_null(column.type) else _unwrap(column)
    known = [value for some in values.values() for value in some]
    try:
        column = column.cast(to_plain_type(column.type))
        is_known, deletes = (
            pc.is_in(column, pa.array(some, column.type)) for some in (known, values.get("delete", ()))
        )
    except (pa.ArrowException, TypeError, OverflowError) as error:
        message = (
            f"Operation column {name!r} has type {column.type}, which cannot hold all of {_format_names(known)}. "
            "Name its "
            "values with operation_values."
        )
        raise ColumnTypeError(message) from error
    strange = column.filter(pc.invert(is_known))
    if len(strange):
        message = (
            f"Operation column {name!r} holds {format_value(strange[0])}, which is none of {_format_names(known)}. "
            "Correct "
            "it, or name its meaning with operation_values."
        )
        raise ColumnValueError(message)
    return deletes


def conform_schema(schema: pa.Schema) -> pa.Schema:
    """Give the schema that `conform` casts to."""
    # A required target column may still get NULL from a source; validation speaks of that, not the cast.
    return pa.schema([pa.field(field.name, to_plain_type(field.type)) for field in schema])


def cast_column(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast one column, or say which value stands in the way."""
    if column.type == kind:
        return column
    try:
        return _cast(column, kind)
    except pa.ArrowNotImplementedError as error:
        message = f"Column {name!r} cannot be cast from {column.type} to {kind}: {error}. Cast it in the source."
        raise ColumnTypeError(message) from error
    except (pa.ArrowInvalid, OverflowError) as error:
        value = _find_misfit(column, kind)
        message = (
            f"Column {name!r} holds {value} ({column.type}), which does not fit the target's {kind}. "
            "Correct the value, or cast the column in the source."
        )
        raise ColumnValueError(message) from error


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if isinstance(kind, pa.BaseExtensionType):
        storage = _cast(column, kind.storage_type)
        return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in storage.chunks], kind)
    column = _cast_through_decimal(_unwrap(column), kind)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_fixed_size_binary(column.type):
        _check_width(column, kind)
    result = column.cast(kind, safe=True)
    if pa.types.is_float16(kind) or (pa.types.is_float32(kind) and pa.types.is_float64(column.type)):
        _check_narrowing(column, result)
    if pa.types.is_date64(column.type) and not result.cast(column.type).equals(column):
        message = "a date64 is not a whole day"
        raise pa.ArrowInvalid(message)
    if pa.types.is_time32(column.type) and not result.cast(column.type, safe=False).equals(column):
        message = "a time is beyond its type"
        raise pa.ArrowInvalid(message)
    if _has_null_where_required(result, kind):
        message = "a nested value is NULL where the target declares it never NULL"
        raise pa.ArrowInvalid(message)
    return result


def _has_null_where_required(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        present = column.filter(column.is_valid())
        children = [(field, pc.struct_field(present, [at])) for at, field in enumerate(kind)]
    elif pa.types.is_map(kind):
        entries = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return _has_null_where_required(column.cast(entries), entries)
    elif _is_listlike(kind):
        children = [(kind.value_field, pc.list_flatten(column))]
    else:
        return False
    return any(
        (not field.nullable and values.null_count > 0) or _has_null_where_required(values, field.type)
        for field, values in children
    )


def _unwrap(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = decode_dictionary(column)
    if pa.types.is_nested(column.type):
        # Arrow casts all values under a list, those outside a slice as well: taking leaves them behind. It takes no
        # views, so these go first.
        column = column.cast(to_plain_type(column.type)).take(pa.array(np.arange(len(column))))
    return column


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give the values of a dictionary column; Arrow has no cast for a dictionary of views."""
    kind = to_plain_type(column.type)
    chunks = [pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind)) for chunk in column.chunks]
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def _cast_through_decimal(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Go by way of a decimal that Arrow can cast exactly from and to."""
    if pa.types.is_decimal32(column.type) or pa.types.is_decimal64(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        # Arrow demands room for every value of the integer type; we only ask that these values fit.
        column = column.cast(pa.decimal128(20, 0))
    if pa.types.is_integer(kind) and pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal256(76, 0)).cast(pa.decimal128(38, 0))
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    return column


def _check_width(column: pa.ChunkedArray, kind: pa.DataType) -> None:
    if pc.all(pc.equal(pc.binary_length(column), kind.byte_width)).as_py() is False:
        message = f"a value is not {kind.byte_width} bytes long"
        raise pa.ArrowInvalid(message)


def _check_narrowing(column: pa.ChunkedArray, result: pa.ChunkedArray) -> None:
    back = result.cast(column.type)
    same = pc.or_(pc.equal(back, column), pc.is_nan(column))
    if pc.all(same).as_py() is False:
        message = "a value is not exact in the narrower float"
        raise pa.ArrowInvalid(message)


def _find_misfit(column: pa.ChunkedArray, kind: pa.DataType) -> str:
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _cast(column.slice(start, middle - start), kind)
            start = middle
        except (pa.ArrowInvalid, OverflowError):
            end = middle
    return format_value(column[start])


def format_value(value: pa.Scalar) -> str:
    """Show a value in a message; instants beyond Python's calendar as numbers, text that is none as bytes."""
    if isinstance(value, pa.DictionaryScalar):
        return format_value(value.value)
    try:
        return repr(value.as_py())
    except UnicodeDecodeError as error:
        return repr(error.object)
    except (OverflowError, ValueError):
        return "an instant beyond Python's calendar" if pa.types.is_nested(value.type) else str(value.value)


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def get_plain_column(table: pa.Table, name: str, schema: pa.Schema) -> pa.ChunkedArray:
    """Give a column of a table in the type of a schema."""
    column, kind = table.column(name), schema.field(name).type
    return column if column.type == kind else column.cast(kind)


def select_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Give the part of a schema that these columns make."""
    return pa.schema([schema.field(name) for name in names])
