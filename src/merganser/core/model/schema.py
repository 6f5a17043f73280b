"""Schemas: which types can be cast, which hold the same values, and types in plain form.

A source column fits a target column when all of its values do (S3). `is_castable` decides from the types alone which
pairs are allowed; whether each value fits is decided by the cast.
"""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.arrow_versions import cast
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


def check_unique(schema: pa.Schema, side: str) -> None:
    """Refuse duplicate column names."""
    duplicates = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if duplicates:
        message = f"The {side} has several columns named {format_names(duplicates)}. Rename them to unique names."
        raise SchemaMismatchError(message)


def check_same_columns(first: pa.Schema, other: pa.Schema, first_path: str, other_path: str) -> None:
    """Refuse source files that do not have the same columns."""
    differing = sorted(set(first.names) ^ set(other.names))
    if differing:
        raise SchemaMismatchError(
            f"The source files {first_path} and {other_path} do not both have {format_names(differing)}. Pass them "
            "one by one."
        )


def to_plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type with the same values, all Arrow kernels and no 2 GB limit: no dictionaries, no views."""
    if pa.types.is_dictionary(data_type):
        data_type = to_plain_type(data_type.value_type)
    elif data_type in (pa.string(), pa.string_view()):
        data_type = pa.large_string()
    elif data_type in (pa.binary(), pa.binary_view()):
        data_type = pa.large_binary()
    elif pa.types.is_date64(data_type):
        # Parquet dates are days.
        data_type = pa.date32()
    return _map_children(data_type, _to_plain_field)


def _map_children(data_type: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Apply a change to the fields of a nested type; a list view becomes a list."""
    if pa.types.is_struct(data_type):
        data_type = pa.struct([change(field) for field in data_type])
    elif pa.types.is_map(data_type):
        data_type = pa.map_(change(data_type.key_field), change(data_type.item_field))
    elif pa.types.is_list(data_type) or pa.types.is_list_view(data_type):
        data_type = pa.list_(change(data_type.value_field))
    elif pa.types.is_large_list(data_type) or pa.types.is_large_list_view(data_type):
        data_type = pa.large_list(change(data_type.value_field))
    elif pa.types.is_fixed_size_list(data_type):
        data_type = pa.list_(change(data_type.value_field), data_type.list_size)
    return data_type


def remove_nested_metadata(data_type: pa.DataType) -> pa.DataType:
    """Return a type whose nested fields have no metadata: field ids belong to one file, and would clash in another."""
    return _map_children(data_type, lambda field: field.remove_metadata().with_type(remove_nested_metadata(field.type)))


def to_plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in plain types, with its metadata."""
    return pa.schema([_to_plain_field(field) for field in schema], schema.metadata)


def to_value_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values: a dictionary's value type, string for views, date32 for dates."""
    if pa.types.is_dictionary(data_type):
        return to_value_type(data_type.value_type)
    if pa.types.is_date64(data_type):
        return pa.date32()
    return pa.string() if data_type == pa.string_view() else data_type


def to_stored_schema(schema: pa.Schema, partition_columns: Collection[str]) -> pa.Schema:
    """Return a schema as files store it: milliseconds instead of seconds, which Parquet lacks."""
    fields = [field if field.name in partition_columns else _to_stored_field(field) for field in schema]
    return pa.schema(fields, schema.metadata)


def to_new_schema(schema: pa.Schema, partition_columns: Collection[str]) -> pa.Schema:
    """Return the schema of a new dataset: as stored, and without views, which PyArrow cannot filter, sort or join."""
    stored = to_stored_schema(schema, partition_columns)
    fields = [field if field.name in partition_columns else _remove_views(field) for field in stored]
    return pa.schema(fields, schema.metadata)


def remove_views(data_type: pa.DataType) -> pa.DataType:
    """Return a type with strings and bytes instead of views of them.

    >>> remove_views(pa.list_(pa.string_view()))
    ListType(list<item: string>)
    """
    if data_type == pa.string_view():
        return pa.string()
    if data_type == pa.binary_view():
        return pa.binary()
    if pa.types.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, remove_views(data_type.value_type), data_type.ordered)
    return _map_children(data_type, _remove_views)


def _remove_views(field: pa.Field) -> pa.Field:
    return field.with_type(remove_views(field.type))


def _to_stored_field(field: pa.Field) -> pa.Field:
    data_type = field.type
    if pa.types.is_timestamp(data_type) and data_type.unit == "s":
        data_type = pa.timestamp("ms", data_type.tz)
    elif data_type == pa.time32("s"):
        data_type = pa.time32("ms")
    elif pa.types.is_dictionary(data_type):
        value_type = _to_stored_field(pa.field("", data_type.value_type)).type
        data_type = pa.dictionary(data_type.index_type, value_type, data_type.ordered)
    return field.with_type(_map_children(data_type, _to_stored_field))


def make_key_values(schema: pa.Schema) -> dict[bytes, bytes]:
    """Return the key-value metadata of a new file: the schema's own, and the Arrow schema that readers restore."""
    return {**(schema.metadata or {}), b"ARROW:schema": encode_schema(schema).encode()}


def encode_schema(schema: pa.Schema) -> str:
    """Serialise a schema as a string; `decode_schema` reverses it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Read a schema that `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _to_plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(to_plain_type(field.type))


def is_same_logical_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Check whether two types hold the same values, whatever their Arrow layout."""
    one, other = _to_logical_type(one), _to_logical_type(other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [f.name for f in one] == [f.name for f in other] and _holds_pairwise(one, other, is_same_logical_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        pairs = ((one.key_type, other.key_type), (one.item_type, other.item_type))
        return all(is_same_logical_type(*pair) for pair in pairs)
    if is_list_like(one) and is_list_like(other):
        sizes = [data_type.list_size if pa.types.is_fixed_size_list(data_type) else None for data_type in (one, other)]
        return sizes[0] == sizes[1] and is_same_logical_type(one.value_type, other.value_type)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.precision == other.precision and one.scale == other.scale)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return bool(one.unit == other.unit and (one.tz is None) == (other.tz is None))
    return bool(one == other)


def _to_logical_type(data_type: pa.DataType) -> pa.DataType:
    data_type = to_plain_type(data_type.storage_type if isinstance(data_type, pa.JsonType) else data_type)
    if pa.types.is_large_string(data_type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(data_type) else data_type


def is_castable(have: pa.DataType, want: pa.DataType) -> bool:
    """Check whether a cast between two types either keeps each value or refuses it."""
    have, want = _to_logical_type(have), _to_logical_type(want)
    if have == want or pa.types.is_null(have):
        return True
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        return [f.name for f in have] == [f.name for f in want] and _holds_pairwise(have, want, _is_nested_castable)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return _is_nested_castable(have.key_type, want.key_type) and _is_nested_castable(have.item_type, want.item_type)
    if is_list_like(have) and is_list_like(want):
        sizes = {data_type.list_size for data_type in (have, want) if pa.types.is_fixed_size_list(data_type)}
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
    # Inside nested values, Arrow narrows floats silently and wants decimals with room for every integer.
    if pa.types.is_decimal(want) and pa.types.is_integer(have):
        return False
    if pa.types.is_floating(want) and not is_same_logical_type(have, want):
        return bool(pa.types.is_floating(have) and have.bit_width <= want.bit_width)
    return is_castable(have, want)


def _holds_pairwise(one: pa.DataType, other: pa.DataType, test: Callable[[pa.DataType, pa.DataType], bool]) -> bool:
    return all(test(left.type, right.type) for left, right in zip(one, other, strict=True))


def is_list_like(data_type: pa.DataType) -> bool:
    """Check for a list, large list or fixed-size list."""
    return any(check(data_type) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_text(data_type: pa.DataType) -> bool:
    """Check for strings or bytes, in any layout."""
    data_type = to_plain_type(data_type)
    return bool(pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type))


def to_storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace an extension type with its storage type, and a dictionary with its values."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return decode_dictionary(column) if pa.types.is_dictionary(column.type) else column


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a dictionary column; Arrow cannot cast a dictionary of views."""
    data_type = to_plain_type(column.type)
    chunks = [chunk.dictionary.cast(data_type).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, data_type)


def format_value(value: pa.Scalar) -> str:
    """Format a value for a message: instants beyond Python's calendar as numbers, invalid UTF-8 as bytes."""
    if isinstance(value, pa.DictionaryScalar):
        return format_value(value.value)
    try:
        return repr(value.as_py())
    except UnicodeDecodeError as error:
        return repr(error.object)
    except (OverflowError, ValueError):
        return "an instant beyond Python's calendar" if pa.types.is_nested(value.type) else str(value.value)


def format_names(names: Iterable[str]) -> str:
    """Format names for a message."""
    return ", ".join(map(repr, names)) or "none"


def get_plain_column(table: pa.Table, name: str, schema: pa.Schema) -> pa.ChunkedArray:
    """Return a column of a table, cast to its type in a schema."""
    column, data_type = table.column(name), schema.field(name).type
    return column if column.type == data_type else cast(column, data_type)


def select_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns."""
    return pa.schema([schema.field(name) for name in names])
