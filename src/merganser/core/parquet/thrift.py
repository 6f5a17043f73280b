"""The Thrift compact protocol, as far as Parquet footers need it.

A footer is read into a tree of `Struct` and `ThriftList`, changed, and written; the rest of it keeps its meaning. A
`StructSpec` lists the fields that a struct may have. Reading with one refuses other fields, because an unknown field
could hold an offset that has to move. The specs of Parquet's structs are at the end of the module.

Whatever the bytes are, reading ends in a tree or in a `ThriftError`, within memory proportional to the input.
"""

from __future__ import annotations

import struct as binary
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STOP, TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)

MAX_DEPTH = 32  # the deepest field of a Parquet footer is at depth 8
_MAX_FIELD, _NIBBLE = 32_767, 15
_CONTINUATION_BIT = 128  # set in all bytes of a varint but the last
_INT_BITS = {I16: 16, I32: 32, I64: 64}
_DOUBLE = binary.Struct("<d")


class ThriftError(ValueError):
    """The bytes are not a Thrift struct, or do not match the spec."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field: its wire type, that of a list's elements, and the spec of structs inside."""

    wire: int
    element: int = STOP
    spec: StructSpec | None = None


@dataclass(frozen=True, slots=True)
class StructSpec:
    """The fields that a struct may have, those it must have, and whether it holds exactly one (a union)."""

    fields: dict[int, FieldType]
    required: set[int] | frozenset[int] = frozenset()
    union: bool = False
    wires: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wires", {number: field.wire for number, field in self.fields.items()})


_ANY, _UNKNOWN = FieldType(STOP), FieldType(-1)


@dataclass(slots=True)
class Struct:
    """A Thrift struct: the value and the wire type of each field by its number."""

    values: dict[int, Any]
    wires: Mapping[int, int] = field(compare=False)

    def __contains__(self, number: int) -> bool:
        return number in self.values

    def __getitem__(self, number: int) -> Any:
        return self.values[number]

    def get(self, number: int, default: Any = None) -> Any:
        """Return the value of a field, or `default` if it is missing."""
        return self.values.get(number, default)

    def replace(self, changes: Mapping[int, Any]) -> Struct:
        """Return a copy with some fields changed; `None` removes a field. Nested values are shared."""
        values = {**self.values, **changes}
        return Struct({number: value for number, value in values.items() if value is not None}, self.wires)


class ThriftList(list[Any]):
    """A Thrift list with the wire type of its elements."""

    __slots__ = ("element",)

    def __init__(self, element: int, values: list[Any]) -> None:
        super().__init__(values)
        self.element = element


def read_struct(data: bytes, spec: StructSpec | None = None) -> Struct:
    """Read the struct at the start of `data`; without a spec any field is accepted."""
    return read_struct_at(data, 0, spec)[0]


def read_struct_at(data: bytes, start: int, spec: StructSpec | None = None) -> tuple[Struct, int]:
    """Read the struct that begins at `start` and return it with the position after it."""
    try:
        return _read_struct(data, start, spec, 0)
    except IndexError:
        raise ThriftError("the bytes end inside a struct") from None


def write_struct(tree: Struct) -> bytes:
    """Encode a tree, fields in ascending order; reading it returns an equal tree."""
    out = bytearray()
    _write_struct(out, tree)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """Encode an unsigned integer, as in the lengths of strings and lists."""
    out = bytearray()
    _write_varint(out, value)
    return bytes(out)


def scan_fields(data: bytes, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (number, wire type, position of the value) of each field of a struct, lazily and without a tree."""
    position, number = start, 0
    try:
        while data[position] != STOP:
            number, wire, position = _read_header(data, position, number)
            yield number, wire, position
            position = _skip(data, position, wire, 1)
    except IndexError:
        raise ThriftError("the bytes end inside a struct") from None


def skip_struct(data: bytes, start: int) -> int:
    """Return the position after the struct that begins at `start`."""
    try:
        return _skip(data, start, STRUCT, 1)
    except IndexError:
        raise ThriftError("the bytes end inside a struct") from None


def find_list(data: bytes, start: int, wanted: int) -> tuple[int, int]:
    """Return length and position of the first element of a list field, or (0, 0) if the struct has no such list."""
    for number, wire, position in scan_fields(data, start):
        if (number, wire) == (wanted, LIST):
            return _read_list_header(data, position)[1:]
    return 0, 0


def _read_struct(  # noqa: C901, PLR0912  a call for each field would double the time
    data: bytes, position: int, spec: StructSpec | None, depth: int
) -> tuple[Struct, int]:
    if depth > MAX_DEPTH:
        raise ThriftError(f"structs are nested more than {MAX_DEPTH} deep")
    field_types = None if spec is None else spec.fields
    values: dict[int, Any] = {}
    wires: dict[int, int] = {}
    number = 0
    while (header := data[position]) != STOP:
        delta = header >> 4
        if delta:
            number, wire, position = number + delta, header & 15, position + 1
        else:
            number, wire, position = _read_header(data, position, number)
        if number in values:
            raise ThriftError(f"field {number} occurs twice")
        if field_types is None:
            field_type = _ANY
            wires[number] = wire
        else:
            field_type = field_types.get(number, _UNKNOWN)
            if wire != field_type.wire and (wire, field_type.wire) != (FALSE, TRUE):
                raise ThriftError(f"field {number} of wire type {wire} is not known here")
        if (wire in (I64, I32)) and data[position] < 128:
            values[number] = (data[position] >> 1) ^ -(data[position] & 1)
            position += 1
        elif wire == STRUCT:
            values[number], position = _read_struct(data, position, field_type.spec, depth + 1)
        elif wire == LIST:
            values[number], position = _read_list(data, position, field_type, depth + 1)
        else:
            values[number], position = _read_scalar(data, position, wire)
    if spec is None:
        return Struct(values, wires), position + 1
    if not spec.required <= values.keys() or (spec.union and len(values) != 1):
        raise ThriftError(f"a struct has the fields {sorted(values)} only, or too many")
    return Struct(values, spec.wires), position + 1


def _read_scalar(data: bytes, position: int, wire: int) -> tuple[Any, int]:
    """Read a value other than a struct or a list; a bool is a field, whose header holds its value."""
    if wire in _INT_BITS:
        raw, position = _read_varint(data, position)
        if raw >> _INT_BITS[wire]:
            raise ThriftError(f"an integer does not fit {_INT_BITS[wire]} bits")
        return (raw >> 1) ^ -(raw & 1), position
    if wire in (TRUE, FALSE):
        return wire == TRUE, position
    if wire == BINARY:
        length, position = _read_varint(data, position)
    else:
        length = {I8: 1, DOUBLE: 8}.get(wire, -1)
    end = position + length
    if end > len(data):
        raise ThriftError("the bytes end inside a value")
    if wire == BINARY:
        return data[position:end], end
    if wire == I8:
        return (data[position] ^ 128) - 128, end
    if wire == DOUBLE:
        return _DOUBLE.unpack_from(data, position)[0], end
    raise ThriftError(f"wire type {wire} is not supported")


def _read_list(data: bytes, position: int, field_type: FieldType, depth: int) -> tuple[ThriftList, int]:
    if depth > MAX_DEPTH:
        raise ThriftError(f"lists are nested more than {MAX_DEPTH} deep")
    wire, length, position = _read_list_header(data, position)
    if length and field_type.element and wire != field_type.element:
        raise ThriftError(f"a list holds wire type {wire}, not {field_type.element}")
    items: list[Any] = []
    if wire in (TRUE, FALSE):
        # Unlike a bool field, a bool in a list is a byte.
        end = position + length
        if not set(data[position:end]) <= {STOP, TRUE, FALSE}:
            raise ThriftError("a list of bools holds something else")
        items, position = [byte == TRUE for byte in data[position:end]], end
    else:
        item: Any
        for _ in range(length):
            if wire == STRUCT:
                item, position = _read_struct(data, position, field_type.spec, depth + 1)
            elif wire == LIST:
                item, position = _read_list(data, position, _ANY, depth + 1)
            else:
                item, position = _read_scalar(data, position, wire)
            items.append(item)
    return ThriftList(wire, items), position


def _read_header(data: bytes, position: int, number: int) -> tuple[int, int, int]:
    header = data[position]
    position += 1
    if header >> 4:
        number += header >> 4
    else:
        raw, position = _read_varint(data, position)
        number = (raw >> 1) ^ -(raw & 1)
    if not -_MAX_FIELD <= number <= _MAX_FIELD:
        raise ThriftError(f"field number {number} is out of range")
    return number, header & 15, position


def _read_list_header(data: bytes, position: int) -> tuple[int, int, int]:
    if position >= len(data):
        raise ThriftError("the bytes end before a list")
    wire, length = data[position] & _NIBBLE, data[position] >> 4
    position += 1
    if length == _NIBBLE:
        length, position = _read_varint(data, position)
    # An element takes at least a byte: a longer list is damaged, and must not allocate memory.
    if length > len(data) - position:
        raise ThriftError("the bytes end inside a list")
    return wire, length, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    if data[position] < _CONTINUATION_BIT:
        return data[position], position + 1
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            raise ThriftError("the bytes end inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < _CONTINUATION_BIT and not value >> 64:
            return value, position
    raise ThriftError("a number does not fit 64 bits")


def _skip(data: bytes, position: int, wire: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ThriftError(f"values are nested more than {MAX_DEPTH} deep")
    if wire == STRUCT:
        number = 0
        while data[position] != STOP:
            number, inner, position = _read_header(data, position, number)
            position = _skip(data, position, inner, depth + 1)
        return position + 1
    if wire == LIST:
        inner, length, position = _read_list_header(data, position)
        if inner in (TRUE, FALSE):
            return position + length
        for _ in range(length):
            position = _skip(data, position, inner, depth + 1)
        return position
    return _read_scalar(data, position, wire)[1]


def _write_struct(out: bytearray, tree: Struct) -> None:
    last = 0
    for number in sorted(tree.values):
        value, wire = tree.values[number], tree.wires[number]
        if wire in (TRUE, FALSE):
            wire = TRUE if value else FALSE
        if 0 < number - last <= _NIBBLE:
            out.append((number - last) << 4 | wire)
        else:
            out.append(wire)
            _write_varint(out, (number << 1) ^ (number >> 63))
        if wire not in (TRUE, FALSE):
            _write_value(out, wire, value)
        last = number
    out.append(STOP)


def _write_value(out: bytearray, wire: int, value: Any) -> None:
    if wire in _INT_BITS:
        raw = (value << 1) ^ (value >> 63)
        if raw < 0 or raw >> _INT_BITS[wire]:
            raise ThriftError(f"{value} does not fit {_INT_BITS[wire]} bits")
        _write_varint(out, raw)
    elif wire == BINARY:
        _write_varint(out, len(value))
        out += value
    elif wire == STRUCT:
        _write_struct(out, value)
    elif wire == LIST:
        if len(value) < _NIBBLE:
            out.append(len(value) << 4 | value.element)
        else:
            out.append(0xF0 | value.element)
            _write_varint(out, len(value))
        for item in value:
            _write_value(out, value.element, item)
    elif wire in (TRUE, FALSE, I8):
        out.append(value & 0xFF if wire == I8 else (TRUE if value else FALSE))
    elif wire == DOUBLE:
        out += _DOUBLE.pack(value)
    else:
        raise ThriftError(f"wire type {wire} is not supported")


def _write_varint(out: bytearray, value: int) -> None:
    while value >= _CONTINUATION_BIT:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _list_of(spec: StructSpec) -> FieldType:
    return FieldType(LIST, STRUCT, spec)


def _struct_of(spec: StructSpec) -> FieldType:
    return FieldType(STRUCT, spec=spec)


def _union_of(*numbers: int) -> StructSpec:
    return StructSpec(dict.fromkeys(numbers, _struct_of(StructSpec({}))), union=True)


_each = dict.fromkeys
_bool, _i8, _i16, _i32, _i64, _double, _binary = (FieldType(wire) for wire in (TRUE, I8, I16, I32, I64, DOUBLE, BINARY))
_i32_list, _i64_list, _binary_list = (FieldType(LIST, wire) for wire in (I32, I64, BINARY))
_any_struct = FieldType(STRUCT)
_TIME = _struct_of(StructSpec({1: _bool, 2: _struct_of(_union_of(1, 2, 3))}, {1, 2}))
_LOGICAL_TYPE_DETAILS = {
    5: _struct_of(StructSpec({1: _i32, 2: _i32}, {1, 2})),
    **_each((7, 8), _TIME),
    10: _struct_of(StructSpec({1: _i8, 2: _bool}, {1, 2})),
    16: _struct_of(StructSpec({1: _i8})),
    17: _struct_of(StructSpec({1: _binary})),
    18: _struct_of(StructSpec({1: _binary, 2: _i32})),
}
_LOGICAL_TYPE = StructSpec(_union_of(1, 2, 3, 4, 6, 11, 12, 13, 14, 15).fields | _LOGICAL_TYPE_DETAILS, union=True)
_SCHEMA_ELEMENT = StructSpec(_each((1, 2, 3, 5, 6, 7, 8, 9), _i32) | {4: _binary, 10: _struct_of(_LOGICAL_TYPE)}, {4})
_KEY_VALUES = _list_of(StructSpec({1: _binary, 2: _binary}, {1}))
_STATISTICS = StructSpec(_each((1, 2, 5, 6), _binary) | _each((3, 4, 9), _i64) | _each((7, 8), _bool))
_ENCODING_STATS = StructSpec({1: _i32, 2: _i32, 3: _i32}, {1, 2, 3})
_SIZE_STATISTICS = StructSpec({1: _i64, 2: _i64_list, 3: _i64_list})
_GEOSPATIAL_STATISTICS = StructSpec({1: _struct_of(StructSpec(_each(range(1, 9), _double))), 2: _i32_list})
_COLUMN_METADATA = StructSpec(
    _each((5, 6, 7, 9, 10, 11, 14), _i64)
    | _each((1, 4, 15), _i32)
    | {2: _i32_list, 3: _binary_list, 8: _KEY_VALUES, 12: _struct_of(_STATISTICS), 13: _list_of(_ENCODING_STATS)}
    | {16: _struct_of(_SIZE_STATISTICS), 17: _struct_of(_GEOSPATIAL_STATISTICS)},
    {1, 2, 3, 4, 5, 6, 7, 9},
)
_COLUMN_CHUNK = StructSpec(
    _each((1, 9), _binary)
    | _each((2, 4, 6), _i64)
    | _each((5, 7), _i32)
    | {3: _struct_of(_COLUMN_METADATA), 8: _any_struct},
    {2},
)
_SORTING_COLUMN = StructSpec({1: _i32, 2: _bool, 3: _bool}, {1, 2, 3})
_ROW_GROUP = StructSpec(
    {1: _list_of(_COLUMN_CHUNK), 2: _i64, 3: _i64, 4: _list_of(_SORTING_COLUMN), 5: _i64, 6: _i64, 7: _i16}, {1, 2, 3}
)
_PAGE_LOCATION = StructSpec({1: _i64, 2: _i32, 3: _i64}, {1, 2, 3})

FILE_METADATA = StructSpec(
    {1: _i32, 2: _list_of(_SCHEMA_ELEMENT), 3: _i64, 4: _list_of(_ROW_GROUP), 5: _KEY_VALUES, 6: _binary}
    | {7: _list_of(_union_of(1)), 8: _any_struct, 9: _binary},
    {1, 2, 3, 4},
)
OFFSET_INDEX = StructSpec({1: _list_of(_PAGE_LOCATION), 2: _i64_list}, {1})
BLOOM_FILTER_HEADER = StructSpec({1: _i32} | _each((2, 3, 4), _struct_of(_union_of(1))), {1, 2, 3, 4})
