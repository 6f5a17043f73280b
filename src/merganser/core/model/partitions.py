"""Hive partition paths: folder names that hold partition values as strings.

Only this module reads and writes them, so all engines agree. Only the ASCII characters that Spark escapes are
percent-encoded; other scripts stay raw, because Spark decodes percent-encoded UTF-8 wrongly.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from merganser.errors import PartitionValueError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
MAX_NAME_BYTES = 255
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


class Unknown:
    """The partition value of a file whose path does not contain it."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


def parse_hive_partition_path(
    file_path: str | os.PathLike[str], partition_columns: Sequence[str] | str | None = None
) -> dict[str, Any]:
    """Read the `name=value` folders of a path, in path order, as strings; the NULL folder gives None.

    Args:
        file_path: The path of a file. Its own name is not a folder.
        partition_columns: The column to return, or several; those that the path does not have are left out.

    >>> parse_hive_partition_path("/data/year=2024/month=12/part-0.parquet")
    {'year': '2024', 'month': '12'}
    >>> parse_hive_partition_path("/data/year=2024/month=12/part-0.parquet", ["month"])
    {'month': '12'}
    """
    values: dict[str, Any] = {}
    for segment in os.fspath(file_path).split("/")[:-1]:
        name, equals, text = segment.partition("=")
        if name and equals:
            values[_unescape(name)] = None if text == HIVE_NULL else _unescape(text)
    if partition_columns is None:
        return values
    columns = [partition_columns] if isinstance(partition_columns, str) else partition_columns
    return {name: values[name] for name in columns if name in values}


def make_folder_name(column: str, text: str | None) -> str:
    """Return the name of a partition folder; values that a folder name cannot hold are refused.

    >>> make_folder_name("day", "2025-01-01")
    'day=2025-01-01'
    >>> make_folder_name("path", "a/b=c")
    'path=a%2Fb%3Dc'
    """
    if text is None:
        text = HIVE_NULL
    elif text == "":
        message = f"Partition column {column!r} holds an empty string, which a folder name cannot hold. Use NULL."
        raise PartitionValueError(message)
    elif text == HIVE_NULL:
        message = f"Partition column {column!r} holds the string {HIVE_NULL!r}, which means NULL in a path. Use NULL."
        raise PartitionValueError(message)
    name = f"{_escape(column)}={_escape(text)}"
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        message = f"Partition column {column!r} holds a string that is not valid Unicode: {text!r}. Correct it."
        raise PartitionValueError(message) from error
    if length > MAX_NAME_BYTES:
        raise PartitionValueError(
            f"Partition column {column!r} holds a value whose folder name has {length} bytes, over the limit of "
            f"{MAX_NAME_BYTES}: {text[:40]!r}… Partition by a shorter column."
        )
    return name


def render(values: pa.ChunkedArray, column: str) -> list[str | None]:
    """Format partition values as in folder names, before escaping; each must parse back to itself."""
    check_partition_type(values.type, column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    strings: list[str | None] = [_to_string(value, column) for value in values.cast(pa.large_string())]
    if pa.types.is_timestamp(values.type):
        # As Spark does: one spelling of an instant, whatever the unit.
        strings = [text if text is None or "." not in text else text.rstrip("0").rstrip(".") for text in strings]
    for text, value in zip(strings, values, strict=True):
        if parse(text, values.type) != to_token(value):
            raise PartitionValueError(
                f"Partition column {column!r} holds {text}, which cannot be read back from a folder name. Change it."
            )
    return strings


def _to_string(value: pa.Scalar, column: str) -> str | None:
    try:
        return value.as_py()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        message = f"Partition column {column!r} holds a string that is not valid UTF-8: {error.object!r}. Correct it."
        raise PartitionValueError(message) from error


def parse(text: str | None, data_type: pa.DataType) -> Hashable | Unknown:
    """Parse the value in a folder name into a token; UNKNOWN if it is not of this type."""
    if text is None:
        return None
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return to_token(pa.scalar(text, pa.large_string()).cast(_to_plain_type(data_type)))
    return UNKNOWN


def to_token(value: pa.Scalar) -> Hashable:
    """Convert a partition value to a hashable token; tokens are equal exactly when the values are."""
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(value.type):
        value = value.value
    # Instants and days are numbers, because Python's calendar is shorter than Arrow's.
    return value.value if pa.types.is_temporal(value.type) else value.as_py()  # type: ignore[no-any-return]


def from_token(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Convert a token to a value of its type."""
    if value is None or not pa.types.is_temporal(data_type):
        return pa.scalar(value, data_type)
    return pa.array([value], to_integer_type(data_type)).view(data_type)[0]


def to_integer_type(temporal: pa.DataType) -> pa.DataType:
    """Return the integer type with which a temporal type is stored."""
    return pa.int32() if temporal.bit_width == pa.int32().bit_width else pa.int64()


def check_partition_type(data_type: pa.DataType, column: str) -> None:
    """Refuse types whose string form some reader would parse as another value."""
    plain = _to_plain_type(data_type)
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    is_zoneless = pa.types.is_timestamp(plain) and plain.tz is None
    exact = pa.types.is_integer(plain) or pa.types.is_boolean(plain) or pa.types.is_decimal(plain)
    if not (is_text or is_zoneless or exact or pa.types.is_date(plain)):
        raise UnsupportedTypeError(
            f"Partition column {column!r} has type {data_type}, which folder names cannot hold exactly. "
            "Partition by integers, strings, booleans, dates, decimals or timestamps without a time zone."
        )


def list_tokens(table: pa.Table, columns: Iterable[str]) -> list[tuple[Hashable, ...]]:
    """Return the tokens of each row of a table of partition values."""
    return list(zip(*([to_token(value) for value in table.column(name)] for name in columns), strict=True))


def _to_plain_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if data_type == pa.string_view():
        return pa.large_string()
    if pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type):
        return pa.decimal128(data_type.precision, data_type.scale)
    return data_type


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found.group()):02X}", text)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    with suppress(UnicodeDecodeError):
        return unquote_to_bytes(text).decode()
    return text
