"""Reads JSON, one object per line: strings that are dates or times get the types that CSV gives them."""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from merganser.core.model.schema import is_list_like
from merganser.core.sources.inference import (
    holds_large_floats,
    infer_nested,
    parse_nested,
    refuse_digits,
    refuse_encoding,
)
from merganser.core.sources.rewind import rewind
from merganser.safe_json import DepthLimitedJson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from merganser.core.sources.read_options import ReadOptions

_CHANGED = re.compile(r"JSON parse error: Column\((.*)\) changed from (\w+) to (\w+) in row (\d+)")
_ROW = re.compile(r"\.? in row (\d+)$")
# The largest that Arrow takes.
_MAX_BLOCK_BYTES = (1 << 31) - 1


def read_json(stream: Any, options: ReadOptions) -> pa.Table:
    """Read a stream of JSON; a type that is not given is inferred from all values of the column."""
    start = stream.read(64).lstrip()
    if start.startswith(b"["):
        raise pa.ArrowInvalid("it is an array; convert it to one object per line, with jq -c '.[]'")
    try:
        return _read_columns(stream, options)
    except UnicodeDecodeError:
        refuse_encoding("the name of a column")


def _read_columns(stream: Any, options: ReadOptions) -> pa.Table:
    given = {name: _to_read_type(data_type) for name, data_type in options.types.items()}
    table = _parse(stream, given)
    # Arrow takes some strings for times, and drops their offsets: these columns are read again as strings.
    times = {field.name: text for field in table.schema if (text := _to_text_type(field.type)) != field.type}
    names = _list_names(stream, table, given)
    if times:
        table = _parse(stream, given | times)
    columns = {}
    for name in names:
        column, data_type = table.column(name), options.types.get(name)
        _check_encoding(column, name)
        columns[name] = infer_nested(column) if data_type is None else parse_nested(column, data_type, name)
        if data_type is None:
            _check_digits(stream, column, name)
    return pa.table(columns)


def _parse(stream: Any, types: Mapping[str, pa.DataType]) -> pa.Table:
    parsing = pajson.ParseOptions(explicit_schema=pa.schema(dict(types)) if types else None)
    with suppress(pa.ArrowInvalid), rewind(stream) as start:
        return pajson.read_json(DepthLimitedJson(start), parse_options=parsing)
    # Arrow counts rows from the start of a block, and a row may be longer than one.
    with rewind(stream) as start:
        data = start.read()
    reading = pajson.ReadOptions(use_threads=False, block_size=min(max(1, len(data)), _MAX_BLOCK_BYTES))
    try:
        return pajson.read_json(DepthLimitedJson(io.BytesIO(data)), reading, parsing)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(_count_from_one(str(error))) from error


def _count_from_one(message: str) -> str:
    """Number rows from 1, as CSV errors do."""
    changed = _CHANGED.match(message)
    if changed:
        name = changed[1].removeprefix("/")
        return f"column {name!r} holds a {changed[3]} in row {int(changed[4]) + 1:,}, where a {changed[2]} is expected"
    return _ROW.sub(lambda found: f" in row {int(found[1]) + 1:,}", message)


def _to_read_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow's reader reads values of a type: it does not parse times as CSV does."""
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_to_read_type(field.type)) for field in data_type])
    if is_list_like(data_type):
        return pa.list_(_to_read_type(data_type.value_type))
    if pa.types.is_dictionary(data_type):
        return _to_read_type(data_type.value_type)
    is_number = pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type)
    return data_type if is_number or pa.types.is_boolean(data_type) else pa.string()


def _to_text_type(data_type: pa.DataType) -> pa.DataType:
    """Replace timestamps with strings."""
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_to_text_type(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(_to_text_type(data_type.value_type))
    return pa.string() if pa.types.is_timestamp(data_type) else data_type


def _list_names(stream: Any, table: pa.Table, given: Mapping[str, pa.DataType]) -> list[str]:
    """List the columns in the order of the file: Arrow begins with those of given types, even if no line has them."""
    names: list[str] = table.column_names
    if any(table.column(name).null_count == len(table) for name in given):
        names = _parse(stream, {}).column_names
    elif given:
        with suppress(pa.ArrowInvalid), rewind(stream) as start, pajson.open_json(start) as reader:
            first = reader.schema.names
            names = [*first, *(name for name in names if name not in first)]
    return names


def _check_encoding(column: pa.ChunkedArray, name: str) -> None:
    # Arrow's reader takes strings as they are.
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        refuse_encoding(f"column {name!r}")


def _check_digits(stream: Any, column: pa.ChunkedArray, name: str) -> None:
    """Refuse integers inferred as floats that do not hold all of their digits."""
    for field, numbers in _list_floats(column, name):
        if holds_large_floats(numbers):
            with rewind(stream) as start:
                found = _find_integers(field).search(start.read())
            if found:
                # JSON numbers are not read as strings.
                refuse_digits(found["number"].decode(), name, "decimal128(38, 0)")


def _find_integers(field: str) -> re.Pattern[bytes]:
    """Make a pattern of integers with many digits in a field, or in a list there."""
    name = "".join(map(_spell, field))
    number = r"(?P<number>-?[0-9]{16,})"
    return re.compile(rf'"{name}"\s*:\s*(?:\[(?:[^"{{}}]*[\[,\s])?)?{number}\s*[,}}\]]'.encode())


def _spell(character: str) -> str:
    """Make a pattern of a character as JSON has it: as it is, or escaped."""
    units = character.encode("utf-16-be").hex()
    numbers = "".join(rf"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    plain = re.escape(json.dumps(character, ensure_ascii=False)[1:-1])
    return rf"(?:{plain}|(?i:{numbers})|\\/)" if character == "/" else rf"(?:{plain}|(?i:{numbers}))"


def _list_floats(column: pa.ChunkedArray, name: str) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """List the floats of a column, with the name of their field."""
    if pa.types.is_floating(column.type):
        yield name, column
    elif pa.types.is_struct(column.type):
        for at, field in enumerate(column.type):
            yield from _list_floats(pc.struct_field(column, [at]), field.name)
    elif pa.types.is_list(column.type):
        yield from _list_floats(pc.list_flatten(column), name)
