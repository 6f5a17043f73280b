"""Common types: the narrowest type that holds all values of two types, if a schema may widen to it without loss (E3).

The lattice: null → any type; integers → wider integers, of either sign → the next signed one; integers of up to 32 bits
→ float64, of up to 16 bits → float32; integers → decimals with room for them; decimals → more digits on either side, up
to 38; floats → wider floats; times, durations and timestamps → the finer unit; fixed-size binary → binary; lists, maps
and structs → by their parts, and structs with the fields of both. A timestamp with a zone has no common type with one
without, nor has a date with a timestamp: midnight is not the same as no time at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.model.schema import is_list_like, is_same_logical_type, to_value_type

if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_MAX_DIGITS = ((9, pa.decimal32), (18, pa.decimal64), (38, pa.decimal128), (76, pa.decimal256))
_UNITS = ("s", "ms", "us", "ns")
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
# Bits of an integer that a float of so many bits holds exactly.
_FLOAT_BITS = {16: 8, 32: 16, 64: 32}


def find_common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds the values of both, `one` itself if it does; None if there is none.

    >>> find_common_type(pa.int32(), pa.int64())
    DataType(int64)
    >>> find_common_type(pa.decimal128(5, 2), pa.int32())
    Decimal128Type(decimal128(12, 2))
    >>> find_common_type(pa.string(), pa.int64()) is None
    True
    """
    if is_same_logical_type(one, other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _join_structs(one, other)
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, item = _join_fields(one.key_field, other.key_field), _join_fields(one.item_field, other.item_field)
        return None if key is None or item is None else pa.map_(key, item)
    one, other = _to_plain_list(one), _to_plain_list(other)
    if is_list_like(one) and is_list_like(other):
        value = _join_fields(one.value_field, other.value_field)
        return None if value is None else _make_list(one, other, value)
    one, other = to_value_type(one), to_value_type(other)
    return next((found for join in _JOINS if (found := join(one, other) or join(other, one)) is not None), None)


def fill_null_types(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return `one` with the types of `other` wherever it has the type null, which has no values yet (E4).

    >>> fill_null_types(pa.list_(pa.null()), pa.list_(pa.int64()))
    ListType(list<item: int64>)
    """
    if pa.types.is_null(one):
        return other
    if not _has_null_type(one):
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        types = {field.name: field.type for field in other}
        return pa.struct([_fill_field(field, types.get(field.name, field.type)) for field in one])
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(_fill_field(one.key_field, other.key_type), _fill_field(one.item_field, other.item_type))
    one, other = _to_plain_list(one), _to_plain_list(other)
    if is_list_like(one) and is_list_like(other):
        return _make_list(one, one, _fill_field(one.value_field, other.value_type))
    return one


def _fill_field(field: pa.Field, data_type: pa.DataType) -> pa.Field:
    return field.with_type(fill_null_types(field.type, data_type))


def _has_null_type(data_type: pa.DataType) -> bool:
    if not pa.types.is_nested(data_type):
        return bool(pa.types.is_null(data_type))
    return any(_has_null_type(data_type.field(at).type) for at in range(data_type.num_fields))


def _join_structs(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    """Join the fields of two structs, those of `one` first; a field that one of them lacks is nullable."""
    left, right = ({field.name: field for field in struct} for struct in (one, other))
    joined = [
        _join_fields(field, right[name]) if name in right else field.with_nullable(True)  # noqa: FBT003  Arrow's own signature
        for name, field in left.items()
    ]
    added = [field.with_nullable(True) for name, field in right.items() if name not in left]  # noqa: FBT003  as above
    if any(field is None for field in joined) or len(left) < one.num_fields or len(right) < other.num_fields:
        return None
    return pa.struct([*joined, *added])


def _join_fields(one: pa.Field, other: pa.Field) -> pa.Field | None:
    data_type = find_common_type(one.type, other.type)
    return None if data_type is None else one.with_type(data_type).with_nullable(one.nullable or other.nullable)


def _to_plain_list(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_list_view(data_type):
        return pa.list_(data_type.value_field)
    return pa.large_list(data_type.value_field) if pa.types.is_large_list_view(data_type) else data_type


def _make_list(one: pa.DataType, other: pa.DataType, value: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other) and one.list_size == other.list_size:
        return pa.list_(value, one.list_size)
    return pa.large_list(value) if pa.types.is_large_list(one) else pa.list_(value)


def _join_integers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_integer(one) and pa.types.is_integer(other)):
        return None
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return max(one, other, key=_get_bits)
    signed, unsigned = (one, other) if pa.types.is_signed_integer(one) else (other, one)
    return _SIGNED.get(max(_get_bits(signed), 2 * _get_bits(unsigned)))


def _join_floats(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not pa.types.is_floating(one):
        return None
    if pa.types.is_floating(other):
        return max(one, other, key=_get_bits)
    if not pa.types.is_integer(other):
        return None
    floats = (kind for kind in (one, pa.float32(), pa.float64()) if _get_bits(kind) >= _get_bits(one))
    return next((kind for kind in floats if _get_bits(other) <= _FLOAT_BITS[_get_bits(kind)]), None)


def _join_decimals(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not pa.types.is_decimal(one):
        return None
    if pa.types.is_integer(other):
        # The largest unsigned integer has one digit more than the largest signed one.
        digits = _DIGITS[_get_bits(other)] + (other == pa.uint64())
        return _make_decimal(one, max(one.precision - one.scale, digits), max(one.scale, 0))
    if not pa.types.is_decimal(other):
        return None
    scale = max(one.scale, other.scale)
    return _make_decimal(
        max(one, other, key=_get_bits), max(one.precision - one.scale, other.precision - other.scale), scale
    )


def _make_decimal(at_least: pa.DataType, digits: int, scale: int) -> pa.DataType | None:
    # Most readers end at 38 digits, so only a wider decimal becomes wider still.
    precision, most_bits = digits + scale, max(_get_bits(at_least), 128)
    widths = (
        make
        for most, make in _MAX_DIGITS
        if precision <= most and _get_bits(at_least) <= _get_bits(make(1, 0)) <= most_bits
    )
    make: Callable[[int, int], pa.DataType] | None = next(widths, None)
    return None if make is None else make(precision, scale)


def _join_units(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Join times, durations and timestamps; a timestamp keeps the zone of the first."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and (one.tz is None) == (other.tz is None):
        return pa.timestamp(_find_finer_unit(one, other), one.tz)
    if pa.types.is_duration(one) and pa.types.is_duration(other):
        return pa.duration(_find_finer_unit(one, other))
    if pa.types.is_time(one) and pa.types.is_time(other):
        unit = _find_finer_unit(one, other)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    return None


def _find_finer_unit(one: pa.DataType, other: pa.DataType) -> str:
    return _UNITS[max(_UNITS.index(one.unit), _UNITS.index(other.unit))]


def _join_binaries(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not pa.types.is_fixed_size_binary(one):
        return None
    if pa.types.is_fixed_size_binary(other):
        return pa.binary()
    is_binary = pa.types.is_binary(other) or pa.types.is_large_binary(other) or other == pa.binary_view()
    return other if is_binary else None


_JOINS = (_join_integers, _join_floats, _join_decimals, _join_units, _join_binaries)


def _get_bits(data_type: pa.DataType) -> int:
    return int(data_type.bit_width)
