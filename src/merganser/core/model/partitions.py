"""Hive paths: partition values live in folder names, as text.

The text is read and written here and nowhere else, so that every engine agrees on it. Only the ASCII characters that
Spark escapes are percent-encoded; other scripts stay raw, because Spark decodes percent-encoded UTF-8 wrongly.
"""

from __future__ import annotations

import os
import re
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
    """The partition value of a file whose path does not tell it."""

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
    """Spell one partition folder; values that no folder can carry are refused.

    >>> make_folder_name("day", "2025-01-01")
    'day=2025-01-01'
    >>> make_folder_name("path", "a/b=c")
    'path=a%2Fb%3Dc'
    """
    if text is None:
        text = HIVE_NULL
    elif text == "":
        message = f"Partition column {column!r} holds an empty string, which a folder name cannot carry. Use NULL."
        raise PartitionValueError(message)
    elif text == HIVE_NULL:
        message = f"Partition column {column!r} holds the text {HIVE_NULL!r}, which stands for NULL. Use NULL itself."
        raise PartitionValueError(message)
    name = f"{_escape(column)}={_escape(text)}"
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        message = f"Partition column {column!r} holds text that is not valid Unicode: {text!r}. Clean it first."
        raise PartitionValueError(message) from error
    if length > MAX_NAME_BYTES:
        message = (
            f"Partition column {column!r} holds a value whose folder name has {length} bytes, over the limit of "
            f"{MAX_NAME_BYTES}: {text[:40]!r}… Partition by a shorter column."
        )
        raise PartitionValueError(message)
    return name


def render(values: pa.ChunkedArray, column: str) -> list[str | None]:
    """Turn partition values into the text of their folders, before escaping; each must read back as itself."""
    check_partition_type(values.type, column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    texts: list[str | None] = [_to_string(value, column) for value in values.cast(pa.large_string())]
    if pa.types.is_timestamp(values.type):
        # Spark writes no trailing zeros; one spelling for one instant, whatever the unit.
        texts = [text if text is None or "." not in text else text.rstrip("0").rstrip(".") for text in texts]
    for text, value in zip(texts, values, strict=True):
        if parse(text, values.type) != to_token(value):
            message = (
                f"Partition column {column!r} holds {text}, which does not read back from a folder name. Change it."
            )
            raise PartitionValueError(message)
    return texts


def _to_string(value: pa.Scalar, column: str) -> str | None:
    try:
        return value.as_py()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        message = f"Partition column {column!r} holds text that is not valid UTF-8: {error.object!r}. Clean it first."
        raise PartitionValueError(message) from error


def parse(text: str | None, kind: pa.DataType) -> Hashable | Unknown:
    """Turn one folder's text into a value that compares equal exactly when the typed values do."""
    if text is None:
        return None
    try:
        return to_token(pa.scalar(text, pa.large_string()).cast(_to_plain_type(kind)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return UNKNOWN


def to_token(value: pa.Scalar) -> Hashable:
    """Give a hashable Python value for a partition value, equal exactly when the typed values are equal."""
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(value.type):
        value = value.value
    # Instants and days as numbers: Python's calendar is shorter than Arrow's.
    return value.value if pa.types.is_temporal(value.type) else value.as_py()  # type: ignore[no-any-return]


def from_token(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Give a token back its type."""
    if value is None or not pa.types.is_temporal(kind):
        return pa.scalar(value, kind)
    narrow = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
    return pa.array([value], narrow).view(kind)[0]


def check_partition_type(kind: pa.DataType, column: str) -> None:
    """Refuse types whose text form would not come back as the same value everywhere."""
    plain = _to_plain_type(kind)
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    is_zoneless = pa.types.is_timestamp(plain) and plain.tz is None
    exact = pa.types.is_integer(plain) or pa.types.is_boolean(plain) or pa.types.is_decimal(plain)
    if not (is_text or is_zoneless or exact or pa.types.is_date(plain)):
        message = (
            f"Partition column {column!r} has type {kind}, which folder names cannot carry exactly. "
            "Partition by integers, strings, booleans, dates, decimals or timestamps without a zone."
        )
        raise UnsupportedTypeError(message)


def list_tokens(table: pa.Table, columns: Iterable[str]) -> list[tuple[Hashable, ...]]:
    """Give the partition tuple of every row of a small table of distinct partition values."""
    return list(zip(*([to_token(value) for value in table.column(name)] for name in columns), strict=True))


def _to_plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind == pa.string_view():
        return pa.large_string()
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found.group()):02X}", text)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return text
