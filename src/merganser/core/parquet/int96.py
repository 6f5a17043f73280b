"""Decodes INT96 timestamps, because PyArrow's reader cannot decode all of them (S6).

An INT96 is a Julian day and the nanoseconds since its midnight, which PyArrow before 23 wrote as negative for instants
before 1970. PyArrow's reader treats them as unsigned when it makes microseconds, which moves 1965 to 2549; in
nanoseconds, instants before 1678 and after 2262 overflow. So the columns are read as twelve bytes, by a changed footer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.parquet import thrift
from merganser.core.parquet.chunks import get_field, get_list
from merganser.core.parquet.thrift import Struct
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

TIMESTAMP_UTC = pa.timestamp("us", "UTC")
_BYTES = pa.binary(12)
_LAYOUT = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_EPOCH = 2_440_588  # the Julian day of 1970-01-01
_DAY = 86_400_000_000
# Days from the epoch that 64 bits of microseconds hold, with room for any number of nanoseconds.
_MAX_DAYS = 106_000_000
_SCHEMA, _ROW_GROUPS, _COLUMNS, _META = 2, 4, 1, 3
_TYPE, _LENGTH, _CONVERTED, _LOGICAL, _STATISTICS = 1, 2, 6, 10, 12
_INT96, _FIXED = 3, 7


def retype_as_bytes(raw: bytes) -> bytes:
    """Return the footer with INT96 declared as twelve bytes; a damaged footer raises `ThriftError`."""
    tree = thrift.read_struct(raw)
    elements = get_list(tree, _SCHEMA, thrift.STRUCT)
    column = {_LENGTH: _BYTES.byte_width, _CONVERTED: None, _LOGICAL: None}
    elements[:] = [_retype(element, column) for element in elements]
    for group in get_list(tree, _ROW_GROUPS, thrift.STRUCT):
        for chunk in get_list(group, _COLUMNS, thrift.STRUCT):
            if (meta := get_field(chunk, _META, thrift.STRUCT)) is not None:
                chunk.values[_META] = _retype(meta, {_STATISTICS: None})
    return thrift.write_struct(tree)


def _retype(described: Struct, changes: Mapping[int, int | None]) -> Struct:
    if get_field(described, _TYPE, thrift.I32) != _INT96:
        return described
    changed = {_TYPE: _FIXED, **changes}
    return Struct(described.replace(changed).values, {**described.wires, **dict.fromkeys(changed, thrift.I32)})


def decode_columns(table: pa.Table, columns: Iterable[str], schema: pa.Schema, display_path: str) -> pa.Table:
    """Decode INT96 in these columns, wherever the schema has a timestamp."""
    for name in columns:
        number = table.schema.get_field_index(name)
        if number >= 0:
            data_type, column = schema.field(name).type, table.column(number)
            where = f"Column {name!r} of {display_path}"
            chunks = [_decode_array(chunk, data_type, where) for chunk in column.chunks or [pa.array([], column.type)]]
            table = table.set_column(number, name, pa.chunked_array(chunks))
    return table


def _decode_array(array: pa.Array, data_type: pa.DataType, where: str) -> pa.Array:
    if pa.types.is_timestamp(data_type):
        return _to_timestamps(array, where) if array.type == _BYTES else array
    if not pa.types.is_nested(data_type):
        return array
    # A copy without an offset, because its buffers are used below.
    array = pa.concat_arrays([array, array.slice(0, 0)])
    nulls = array.is_null()
    if pa.types.is_struct(data_type):
        children = [_decode_array(array.field(at), field.type, where) for at, field in enumerate(data_type)]
        fields = [field.with_type(child.type) for field, child in zip(array.type, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if pa.types.is_map(data_type):
        keys = _decode_array(array.keys, data_type.key_type, where)
        items = _decode_array(array.items, data_type.item_type, where)
        map_type = pa.map_(array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(array.offsets, keys, items, map_type, mask=nulls)
    return _decode_list(array, data_type, nulls, where)


def _decode_list(array: pa.Array, data_type: pa.DataType, nulls: pa.BooleanArray, where: str) -> pa.Array:
    values = _decode_array(array.values, data_type.value_type, where)
    item = array.type.value_field.with_type(values.type)
    if pa.types.is_fixed_size_list(data_type):
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(item, data_type.list_size), mask=nulls)
    if pa.types.is_large_list(data_type):
        return pa.LargeListArray.from_arrays(array.offsets, values, pa.large_list(item), mask=nulls)
    return pa.ListArray.from_arrays(array.offsets, values, pa.list_(item), mask=nulls)


def _to_timestamps(array: pa.Array, where: str) -> pa.Array:
    nanoseconds, days, missing = split_int96(array)
    if len(days) and np.abs(days).max() > _MAX_DAYS:
        raise UnsupportedFileError(
            f"{where} holds an INT96 instant {int(np.abs(days).max()) // 365} years from 1970, beyond the range "
            "of microseconds. Correct the value in the file."
        )
    # Truncated towards midnight, as DuckDB and Spark do.
    microseconds = np.sign(nanoseconds) * (np.abs(nanoseconds) // 1000)
    return pa.array(days * _DAY + microseconds, pa.int64(), mask=missing).cast(TIMESTAMP_UTC)


def find_int96_arrays(array: pa.Array, data_type: pa.DataType) -> Iterator[pa.Array]:
    """Yield the arrays of INT96 bytes in a column, wherever its type has a timestamp."""
    if array.type == _BYTES and pa.types.is_timestamp(data_type):
        yield array
    elif pa.types.is_struct(data_type):
        for child, field in zip(array.flatten(), data_type, strict=True):
            yield from find_int96_arrays(child, field.type)
    elif pa.types.is_map(data_type):
        yield from find_int96_arrays(array.keys, data_type.key_type)
        yield from find_int96_arrays(array.items, data_type.item_type)
    elif pa.types.is_nested(data_type):
        yield from find_int96_arrays(array.values, data_type.value_type)


def split_int96(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Split INT96 bytes into nanoseconds, days since 1970, and a mask of NULLs, where both are 0."""
    missing: Any = array.is_null().to_numpy(zero_copy_only=False)
    stored = array.buffers()[1]
    if stored is None:
        return np.zeros(len(array), np.int64), np.zeros(len(array), np.int64), missing
    values = np.frombuffer(stored, _LAYOUT, len(array), array.offset * _LAYOUT.itemsize)
    nanoseconds, days = values["nanoseconds"].copy(), values["day"].astype(np.int64) - _EPOCH
    nanoseconds[missing] = days[missing] = 0
    return nanoseconds, days, missing
