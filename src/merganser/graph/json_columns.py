"""Arrow columns as properties: their values in Python, and as JSON.

The JSON of a column is exactly what `normalize_properties` and `encode` make of its values one by one. Columns of the
common types are encoded without a Python object for each value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.errors import MerganserError, PropertyValueError
from merganser.graph.values import MAX_INT64, encode, normalize_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

Encoder: TypeAlias = Callable[[pa.Array], pa.Array]
# Offsets of 64 bits, because the JSON of a batch may exceed 2 GiB.
TEXT = pa.large_string()
# What `encode_column` raises if a value cannot be stored; encoding the rows raises the same with their number.
ENCODING_ERRORS = (MerganserError, pa.ArrowException, OverflowError)

_UTC_NAMES = ("UTC", "Etc/UTC", "+00:00")
_FIRST_PRINTABLE, _QUOTE, _BACKSLASH = b' "\\'
# Arrow and Python format numbers of these magnitudes with the same digits, and without an exponent.
_MIN_PLAIN_FLOAT, _MAX_PLAIN_FLOAT = 1e-4, 1e10
# The days and microseconds since 1970 that Python's dates and datetimes can hold.
_DAYS, _MICROSECONDS = (
    np.array(["0001-01-01T00:00:00.000000", "9999-12-31T23:59:59.999999"], unit).astype(np.int64).tolist()
    for unit in ("datetime64[D]", "datetime64[us]")
)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
# The lengths of a timestamp and of a time without a fraction of a second.
_TIMESTAMP_LENGTH, _TIME_LENGTH = 19, 8


def to_python_values(column: pa.Array, field: pa.Field) -> list[Any]:
    """Convert a column to Python values, or raise why that is impossible."""
    try:
        data_type = field.type
        if pa.types.is_timestamp(data_type) and data_type.unit == "ns":
            column = column.cast(pa.timestamp("us", tz=data_type.tz))
        elif pa.types.is_time64(data_type) and data_type.unit == "ns":
            column = column.cast(pa.time64("us"))
        return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    except (ValueError, LookupError, OverflowError, NotImplementedError) as error:
        message = f"The column {field.name!r} has a value that cannot be stored: {error}. Cast the column."
        raise PropertyValueError(message) from error


def encode_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Encode each value as JSON, and NULL as NULL, or raise an error if a value cannot be stored.

    >>> encode_column(pa.array([1.0, None, 1e22]), pa.field("salary", pa.float64())).to_pylist()
    ['1.0', None, '1e+22']
    """
    if is_string_column(field.type) and pa.types.is_dictionary(field.type):
        column = column.dictionary_decode()
    encoder = _find_encoder(column.type)
    return _encode_one_by_one(column, field) if encoder is None else encoder(column)


def encode_objects(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Join encoded columns to one object for each row, without NULLs.

    >>> encode_objects({"id": pa.array(["1", "2"], TEXT), "seen": pa.array([None, "3"], TEXT)}, 2).to_pylist()
    ['{"id":1}', '{"id":2,"seen":3}']
    """
    if not columns:
        return pa.repeat(_scalar("{}"), rows)
    # A NULL leaves out its member. (Arrow's own skipping of NULLs loses rows in which all values are NULL.)
    members = [_concatenate(_scalar(f",{encode(name)}:"), column) for name, column in columns.items()]
    joined = pc.binary_join_element_wise(*members, _scalar(""), null_handling="replace", null_replacement="")
    return _concatenate(pc.binary_replace_slice(joined, 0, 1, "{"), _scalar("}"))


def is_string_column(data_type: pa.DataType) -> bool:
    """Check whether the values of a type are strings, or stored as strings."""
    if pa.types.is_dictionary(data_type):
        return _find_encoder(data_type.value_type) is _encode_strings
    return _find_encoder(data_type) in (_encode_strings, _encode_dates, _encode_times, _encode_timestamps)


def replace_values(column: pa.Array, mask: Mask, originals: pa.Array, replacement: Callable[[Any], str]) -> pa.Array:
    """Replace the strings of some rows by a function of the original values."""
    if not mask.any():
        return column
    values = [replacement(value) for value in originals.take(pa.array(np.flatnonzero(mask))).to_pylist()]
    return pc.replace_with_mask(column, pa.array(mask), pa.array(values, TEXT))


def _find_encoder(data_type: pa.DataType) -> Encoder | None:
    """Find the function that encodes a column of a type without Python objects, if there is one."""
    if pa.types.is_timestamp(data_type) and data_type.tz not in (None, *_UTC_NAMES):
        return None
    return next((encoder for is_type, encoder in _ENCODERS if is_type(data_type)), None)


def _encode_one_by_one(column: pa.Array, field: pa.Field) -> pa.Array:
    values = to_python_values(column, field)
    texts = [None if value is None else encode(normalize_value(value, field.name)) for value in values]
    return pa.array(texts, TEXT)


def _encode_plain(column: pa.Array) -> pa.Array:
    return column.cast(TEXT)


def _encode_integers(column: pa.Array) -> pa.Array:
    _check_range(column, None, MAX_INT64)
    return column.cast(TEXT)


def _encode_floats(column: pa.Array) -> pa.Array:
    column = column.cast(pa.float64())
    values = _to_numpy(column, np.float64)
    if not np.isfinite(values).all():
        raise PropertyValueError("A number is not finite.")
    texts = column.cast(TEXT)
    # Arrow formats 1.0 as 1.
    texts = pc.if_else(pa.array(values == np.floor(values)), _concatenate(texts, _scalar(".0")), texts)
    sizes = np.abs(values)
    is_plain = ((sizes >= _MIN_PLAIN_FLOAT) & (sizes < _MAX_PLAIN_FLOAT)) | (sizes == 0)
    return replace_values(texts, ~is_plain, column, encode)


def _encode_strings(column: pa.Array) -> pa.Array:
    column = column.cast(TEXT)
    # Refuses what is not UTF-8.
    column.validate(full=True)
    return replace_values(_quote(column), _find_escaped(column), column, encode)


def _find_escaped(column: pa.Array) -> Mask:
    """Find the strings that have a character which JSON escapes."""
    mask = np.zeros(len(column), np.bool_)
    _, starts, data = column.buffers()
    if data is None or not len(column):
        return mask
    offsets = np.frombuffer(starts, np.int64)[column.offset : column.offset + len(column) + 1]
    signs = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    places = np.flatnonzero((signs < _FIRST_PRINTABLE) | (signs == _QUOTE) | (signs == _BACKSLASH))
    mask[np.searchsorted(offsets - offsets[0], places, side="right") - 1] = True
    # Arrow leaves undefined what lies beneath a NULL.
    return mask & column.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _encode_dates(column: pa.Array) -> pa.Array:
    _check_range(column.cast(pa.int32()), *_DAYS)
    return _quote(column.cast(TEXT))


def _encode_times(column: pa.Array) -> pa.Array:
    column = column.cast(pa.time64("us"))
    ticks = column.cast(pa.int64())
    _check_range(ticks, 0, _DAY - 1)
    return _quote(_format_fractions(column, ticks, _TIME_LENGTH))


def _encode_timestamps(column: pa.Array) -> pa.Array:
    suffix = "" if column.type.tz is None else "+00:00"
    column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    ticks = column.cast(pa.int64())
    _check_range(ticks, *_MICROSECONDS)
    texts = _format_fractions(column, ticks, _TIMESTAMP_LENGTH)
    return _quote(_concatenate(pc.binary_replace_slice(texts, 10, 11, "T"), _scalar(suffix)))


def _format_fractions(column: pa.Array, ticks: pa.Array, length: int) -> pa.Array:
    """Format times, with a fraction of six digits only where it is not zero."""
    texts = column.cast(TEXT)
    is_whole = _to_numpy(ticks, np.int64) % _SECOND == 0
    return pc.if_else(pa.array(is_whole), pc.utf8_slice_codeunits(texts, 0, length), texts)


def _check_range(column: pa.Array, least: int | None, most: int) -> None:
    """Refuse values that Python or SQLite cannot hold."""
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (high > most or (least is not None and low < least)):
        raise PropertyValueError(f"A value is out of range: {low} to {high}.")


def _to_numpy(column: pa.Array, data_type: npt.DTypeLike) -> npt.NDArray[Any]:
    """Convert numbers, with 0 for NULL."""
    zero = pa.scalar(0, column.type)
    return pc.fill_null(column, zero).to_numpy().astype(data_type, copy=False)  # type: ignore[no-any-return]


def _quote(column: pa.Array) -> pa.Array:
    return _concatenate(_scalar('"'), column, _scalar('"'))


def _concatenate(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(""))


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, TEXT)


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Encoder], ...] = (
    (pa.types.is_string, _encode_strings),
    (pa.types.is_large_string, _encode_strings),
    (pa.types.is_string_view, _encode_strings),
    (pa.types.is_boolean, _encode_plain),
    (pa.types.is_null, _encode_plain),
    (pa.types.is_integer, _encode_integers),
    (pa.types.is_floating, _encode_floats),
    (pa.types.is_date32, _encode_dates),
    (pa.types.is_time, _encode_times),
    (pa.types.is_timestamp, _encode_timestamps),
)
