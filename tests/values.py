"""Values of every type that Parquet holds: strategies that draw them, and arrays made of them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.arrow_versions import HAS_NULL_FIXED_LISTS

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS = ("s", "ms", "us", "ns")
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
FLOATS = (pa.float16(), pa.float32(), pa.float64())
DECIMALS = (
    pa.decimal32(1, 0),
    pa.decimal32(9, 4),
    pa.decimal64(18, 2),
    pa.decimal128(5, 2),
    pa.decimal128(18, 18),
    pa.decimal128(38, 10),
    pa.decimal256(30, 0),
    pa.decimal256(76, 40),
)
STRINGS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5), pa.uuid())
TIMES = (
    pa.date32(),
    pa.date64(),
    *(pa.time32(unit) for unit in UNITS[:2]),
    *(pa.time64(unit) for unit in UNITS[2:]),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", "Europe/Paris", "+05:30")),
    *(pa.duration(unit) for unit in UNITS),
)
PLAIN = (*INTEGERS, *FLOATS, *DECIMALS, pa.bool_(), *STRINGS, *BYTES, *TIMES)
NESTED = (
    pa.list_(pa.int16()),
    pa.list_(pa.string_view()),
    pa.large_list(pa.float16()),
    *((pa.list_(pa.string_view(), 2),) if HAS_NULL_FIXED_LISTS else ()),
    pa.list_(pa.list_(pa.decimal64(12, 3))),
    pa.struct([("a", pa.timestamp("ns", "UTC")), ("b", pa.large_string()), ("c", pa.uuid())]),
    pa.struct([("d", pa.large_binary()), ("t", pa.time64("ns"))]),
    pa.struct([("inner", pa.struct([("x", pa.uint64()), ("y", pa.list_(pa.bool_()))]))]),
    pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.int8()))])),
    pa.map_(pa.string(), pa.list_(pa.decimal32(4, 1))),
    pa.map_(pa.int32(), pa.struct([("f", pa.float32()), ("w", pa.binary(3))])),
)


def is_carried_by_spark(kind: pa.DataType) -> bool:
    """Return whether Spark has a type for these values."""
    if pa.types.is_nested(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return all(is_carried_by_spark(one) and not isinstance(one, pa.BaseExtensionType) for one in inner)
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= 38)
    if pa.types.is_unsigned_integer(kind) or pa.types.is_float16(kind) or pa.types.is_time(kind):
        return False
    if pa.types.is_duration(kind):
        return bool(kind.unit == "us")
    return not (pa.types.is_timestamp(kind) and kind.unit == "ns")


def cells(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, in the form that `build` takes; never NULL, except inside nested ones."""
    if pa.types.is_nested(kind):
        return collections(kind)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_temporal(kind):
        return instants(kind)
    if kind in BYTES or pa.types.is_fixed_size_binary(kind):
        return byte_strings(kind)
    return strings() if kind in STRINGS else numbers(kind)


def numbers(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_floating(kind):
        odd = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -2.0])
        return odd | st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        high = 10**kind.precision - 1
        low = -high
    else:
        low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
        high = low + (1 << kind.bit_width) - 1
    whole = st.integers(max(low, -4), min(high, 12)) | st.sampled_from([low, high]) | st.integers(low, high)
    if pa.types.is_decimal(kind):
        return whole.map(lambda unscaled: Decimal((unscaled < 0, digits(unscaled), -kind.scale)))
    return whole


def strings() -> st.SearchStrategy[str]:
    long = "a" * 70
    known = ["", "a", "A", "b", "東京", "Ω\u0301", long, long + "b", long * 4, long * 4 + "b", "\U0010ffff" * 20]
    return st.sampled_from(known) | st.text(st.characters(codec="utf-8"), max_size=6)


def byte_strings(kind: pa.DataType) -> st.SearchStrategy[bytes]:
    width = 16 if kind == pa.uuid() else kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    if width is not None:
        return st.sampled_from([bytes(width), b"\xff" * width]) | st.binary(min_size=width, max_size=width)
    known = [b"", b"\x00", b"\xff" * 70, b"\xff" * 71, b"x" * 300]
    return st.sampled_from(known) | st.binary(max_size=6)


def collections(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({inner.name: optional(inner.type) for inner in kind})
    if pa.types.is_map(kind):
        entries = st.tuples(cells(kind.key_type), optional(kind.item_type))
        return st.lists(entries, max_size=2, unique_by=lambda pair: pair[0])
    low, high = (kind.list_size, kind.list_size) if pa.types.is_fixed_size_list(kind) else (0, 3)
    return st.lists(optional(kind.value_type), min_size=low, max_size=high)


def digits(unscaled: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(unscaled))))


def instants(kind: pa.DataType) -> st.SearchStrategy[int]:
    near = st.integers(-3, 3)
    if pa.types.is_date32(kind):
        return near | st.integers(-200_000, 200_000)
    if pa.types.is_date64(kind):
        return (near | st.integers(-200_000, 200_000)).map(lambda days: days * 86_400_000)
    per_second = 10 ** (3 * UNITS.index(kind.unit))
    if pa.types.is_time(kind):
        return st.integers(0, 3) | st.integers(0, 86_400 * per_second - 1)
    # Seconds are stored as milliseconds, so they may not be larger than those can be.
    far = (1 << 62) // 1000
    return near | near.map(lambda seconds: seconds * per_second) | st.integers(-far, far)


def optional(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | cells(kind)


def build(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make an array; PyArrow cannot make every one from Python values by itself."""
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    if kind == pa.large_list(pa.float16()):
        return pa.array([value and [None if x is None else np.float16(x) for x in value] for value in values], kind)
    if pa.types.is_struct(kind):
        children = [build([value and value[inner.name] for value in values], inner.type) for inner in kind]
        return pa.StructArray.from_arrays(
            children, fields=list(kind), mask=pa.array([v is None for v in values], pa.bool_())
        )
    return pa.array(values, kind)


def to_new_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column in a new dataset, which has no views."""
    views = {
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.list_(pa.string_view()): pa.list_(pa.string()),
        pa.list_(pa.string_view(), 2): pa.list_(pa.string(), 2),
    }
    return views.get(kind, to_stored_type(kind))


def to_stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that Parquet gives back: it has no seconds, and its dates are days."""
    if kind == pa.date64():
        return pa.date32()
    if pa.types.is_time(kind) and kind.unit == "s":
        return pa.time32("ms")
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return kind
