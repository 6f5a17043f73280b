"""Types of text: CSV cells and JSON strings get the same type for the same text, and never one that loses something."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.schema import is_list_like, is_text
from merganser.errors import ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Callable

# Arrow would read these as numbers, without their zeros, plus sign or base: 00123, +491234, 0x1F.
_CODE = r"^(\+|-?0[0-9xX])"
_LARGE = r"^[-+]?[0-9]{16,}$"  # integers with more digits than a double holds
_LARGE_VALUE = 1e15
_MAX_VALUE_WIDTH = 200
_NUMBER = re.compile(r"[-.0-9]|nan|inf", re.IGNORECASE)
_BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMES = [pa.date32(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))]


def infer_column(cells: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Infer the type of CSV cells: integers, floats, booleans, or what `infer_times` finds.

    An empty string is NULL in columns of other types.
    """
    if cells.null_count == len(cells):
        return pa.chunked_array([pa.nulls(len(cells))])
    filled = _clear(cells)
    sample = _find_sample(filled)
    if _NUMBER.match(sample):
        found = _infer_number(filled, name)
        if found is not None:
            return found
    if _BOOLEAN.fullmatch(sample):
        found = _try_parse(filled, pa.bool_())
        # Arrow would read 1 and 0 as well.
        if found is not None and not pc.any(pc.match_substring_regex(filled, "[01]")).as_py():
            return found
    return infer_times(cells)


def infer_times(strings: pa.ChunkedArray) -> pa.ChunkedArray:
    """Infer dates and timestamps; those with an offset become UTC. Other strings are returned as they are.

    Times of day stay strings, because not every engine has a type for them.
    """
    filled = _clear(strings)
    if not _DATE.match(_find_sample(filled)):
        return strings
    attempts = (_try_parse(filled, data_type) for data_type in _TIMES)
    return next((found for found in attempts if found is not None), strings)


def infer_nested(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Infer dates and timestamps in strings of JSON, inside lists and objects too."""
    return _map_strings(column, column.type, lambda strings, _: infer_times(strings))


def parse_column(cells: pa.ChunkedArray, data_type: pa.DataType, name: str) -> pa.ChunkedArray:
    """Parse CSV cells as a type that was given; the first row that is not of this type is reported."""
    remedy = "Correct it, set another type with column_types, or set null_values if it stands for NULL."
    return _parse_rows(cells, data_type, name, lambda some: _parse_given(some, data_type), remedy)


def parse_nested(column: pa.ChunkedArray, data_type: pa.DataType, name: str) -> pa.ChunkedArray:
    """Parse the strings of a JSON column whose type was given."""
    if pa.types.is_null(column.type):
        return column
    remedy = "Correct it, or set another type with column_types."
    return _parse_rows(column, data_type, name, lambda some: _map_strings(some, data_type, _parse_given), remedy)


def _parse_rows(
    column: pa.ChunkedArray,
    data_type: pa.DataType,
    name: str,
    parse: Callable[[pa.ChunkedArray], pa.ChunkedArray],
    remedy: str,
) -> pa.ChunkedArray:
    try:
        return parse(column)
    except pa.ArrowNotImplementedError as error:
        message = f"Column {name!r} cannot be read as {data_type} from text. Set its type to string with column_types."
        raise ColumnTypeError(message) from error
    except pa.ArrowInvalid as error:
        row = _find_misfit(column, parse)
        value = f"{column[row].as_py()!r:.{_MAX_VALUE_WIDTH}}"
        message = f"Column {name!r} holds {value} in row {row + 1:,}, which is not {data_type}. {remedy}"
        raise ColumnValueError(message) from error


def _parse_given(strings: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if strings.null_count == len(strings):
        # A nested column needs one chunk for each of its own.
        return pa.chunked_array([pa.nulls(len(chunk), data_type) for chunk in strings.chunks], data_type)
    return _parse(strings if is_text(data_type) else _clear(strings), data_type)


def _infer_number(cells: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    found = _try_parse(cells, pa.int64())
    is_integer = found is not None
    if not is_integer:
        found = _try_parse(cells, pa.float64())
    if found is None or pc.any(pc.match_substring_regex(_trim(cells), _CODE)).as_py():
        return None
    if not is_integer:
        _check_digits(cells, found, name)
    return found


def _check_digits(cells: pa.ChunkedArray, numbers: pa.ChunkedArray, name: str) -> None:
    """Refuse integers inferred as floats that do not hold all of their digits, and numbers that no float holds."""
    large = _trim(cells.filter(pc.greater_equal(pc.abs(numbers), _LARGE_VALUE)))
    endless = _trim(cells.filter(pc.is_inf(numbers)))
    for some, pattern in ((large, _LARGE), (endless, "[0-9]")):
        refused = some.filter(pc.match_substring_regex(some, pattern))
        if len(refused):
            refuse_digits(refused[0].as_py(), name, "string or decimal128(38, 0)")


def refuse_digits(number: str, name: str, types: str) -> None:
    """Refuse a number that would lose digits as a float, but not as one of some types."""
    raise ColumnValueError(
        f"Column {name!r} has numbers like {number}, which would lose digits as floats. Set the type of the column "
        f"with column_types to {types}."
    )


def refuse_encoding(label: str) -> NoReturn:
    """Refuse text that is not UTF-8."""
    raise pa.ArrowInvalid(f"{label} is not UTF-8; convert the file with iconv")


def holds_large_floats(column: pa.ChunkedArray) -> bool:
    """Check for floats that may be integers with lost digits."""
    return bool(pc.any(pc.greater_equal(pc.abs(column), _LARGE_VALUE)).as_py())


def _find_sample(strings: pa.ChunkedArray) -> str:
    """Return the first string that is not NULL, which every type of the column has to fit."""
    for chunk in strings.chunks:
        if chunk.null_count < len(chunk):
            return str(chunk.drop_null()[0].as_py()).strip()
    return ""


def _clear(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace empty strings with NULL."""
    is_empty = pc.equal(cells, "")
    return pc.if_else(is_empty, pa.scalar(None, cells.type), cells) if pc.any(is_empty).as_py() else cells


def _trim(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.ascii_trim_whitespace(cells)


def _try_parse(strings: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray | None:
    try:
        return _parse(strings, data_type)
    except pa.ArrowInvalid:
        return None


def _parse(strings: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if isinstance(data_type, pa.BaseExtensionType) or pa.types.is_nested(data_type):
        raise pa.ArrowNotImplementedError("a string is not parsed as this type")
    if is_text(data_type):
        return strings.cast(data_type)
    trimmed = _trim(strings)
    if pa.types.is_time(data_type):
        # Arrow parses a time only with a date.
        moments = pc.binary_join_element_wise("1970-01-01T", trimmed, "")
        return moments.cast(pa.timestamp("ns")).cast(data_type)
    return trimmed.cast(data_type)


def _find_misfit(strings: pa.ChunkedArray, parse: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> int:
    start, end = 0, len(strings)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            parse(strings.slice(start, middle - start))
            start = middle
        except pa.ArrowInvalid:
            end = middle
    return start


def _map_strings(
    column: pa.ChunkedArray,
    wanted: pa.DataType,
    change: Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray],
) -> pa.ChunkedArray:
    """Apply a change to the strings of a column, inside the lists and structs that JSON has too."""
    if pa.types.is_string(column.type):
        return change(column, wanted)
    if pa.types.is_struct(column.type) and pa.types.is_struct(wanted) and column.type.num_fields:
        known = {field.name: field.type for field in wanted}
        names = [field.name for field in column.type]
        children = [
            _map_strings(pc.struct_field(column, [at]), known.get(name, column.type.field(at).type), change)
            for at, name in enumerate(names)
        ]
        chunks = [
            pa.StructArray.from_arrays([child.chunk(at) for child in children], names, mask=chunk.is_null())
            for at, chunk in enumerate(column.chunks)
        ]
    elif pa.types.is_list(column.type) and is_list_like(wanted):
        flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
        values = _map_strings(flat, wanted.value_type, change)
        chunks = [_make_list(chunk, values.chunk(at)) for at, chunk in enumerate(column.chunks)]
    else:
        return column
    return pa.chunked_array(chunks, chunks[0].type) if chunks else column


def _make_list(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    lengths = pc.fill_null(lists.value_lengths(), 0)
    zero = pa.array([0], pa.int32())
    offsets = pa.concat_arrays([zero, pc.cumulative_sum(lengths).cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null())
