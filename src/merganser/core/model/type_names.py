"""Types by name, as messages print them (`timestamp[us, tz=UTC]`, `list<item: string>`) and as SQL spells them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EXAMPLES = "string, int64, float64, bool, date32, timestamp[us, tz=UTC], decimal128(38, 0), list<string>, BIGINT"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"\s*(-?[0-9]+)\s*")
_LENGTH = re.compile(r"\s*\(\s*[0-9]+\s*\)")
_UNIT = re.compile(r"\[\s*(s|ms|us|ns|day)\s*(?:,\s*(?:tz=)?([^\]]+?)\s*)?\]")
_TIME_ZONE = re.compile(r"\s+(with|without)\s+time\s+zone", re.IGNORECASE)
_SPACES = re.compile(r"\s*")
_ITEM_NAME = re.compile(r"\s*\('([^']*)'\)")
_NOT_NULL = re.compile(r"\s+not\s+null", re.IGNORECASE)
# What SQL calls them, beside the names that Arrow has.
_SQL_NAMES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    "ubigint": pa.uint64(),
    "uinteger": pa.uint32(),
    "usmallint": pa.uint16(),
    "utinyint": pa.uint8(),
    "hugeint": pa.decimal128(38, 0),
    "real": pa.float32(),
    "boolean": pa.bool_(),
    **dict.fromkeys(("varchar", "char", "character", "text"), pa.string()),
    **dict.fromkeys(("blob", "bytea", "varbinary"), pa.binary()),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "datetime": pa.timestamp("us"),
    **dict.fromkeys(("timestamptz", "timestamp_tz", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    **{f"timestamp_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "timestamp_ntz": pa.timestamp("us"),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    # What Arrow prints for types that its aliases call otherwise.
    "halffloat": pa.float16(),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
}
_EXTENSIONS: Mapping[str, pa.DataType] = {"arrow.uuid": pa.uuid(), "arrow.json": pa.json_(), "arrow.bool8": pa.bool8()}
_LISTS: Mapping[str, Callable[[pa.Field], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
    "array": pa.list_,
}
_DECIMALS: Mapping[str, Callable[[int, int], pa.DataType]] = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
    **dict.fromkeys(("decimal", "numeric"), pa.decimal128),
}
_SQL_PRECISION = (18, 3)


def parse_type(name: str) -> pa.DataType:
    """Return the type of a name, as Arrow prints it or as SQL spells it.

    >>> parse_type("timestamp[us, tz=UTC]"), parse_type("DECIMAL(10,2)"), parse_type("list<string>")
    (TimestampType(timestamp[us, tz=UTC]), Decimal128Type(decimal128(10, 2)), ListType(list<item: string>))
    """
    with suppress(_NotATypeError, pa.ArrowException, ValueError, RecursionError):
        return _Reader(name.strip(), has_empty_structs=True).read_all()
    try:
        # The name of the first field of a struct may begin as a struct without fields ends.
        return _Reader(name.strip(), has_empty_structs=False).read_all()
    except (_NotATypeError, pa.ArrowException, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name!r} is not a type. Examples: {_EXAMPLES}.") from error


def to_type(given: Any, column: str) -> pa.DataType:
    """Return a type that was given as such or by name; errors name the column."""
    if isinstance(given, pa.DataType):
        return given
    if not isinstance(given, str):
        message = f"The type of column {column!r} must be an Arrow type or the name of one, not {given!r}."
        raise InvalidArgumentError(message)
    try:
        return parse_type(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"Column {column!r}: {error}") from error


class _NotATypeError(Exception):
    """The text is not the name of a type."""


class _Reader:
    """Reads types from left to right."""

    def __init__(self, text: str, *, has_empty_structs: bool) -> None:
        self._text = text
        self._at = 0
        self._has_empty_structs = has_empty_structs

    def read_all(self) -> pa.DataType:
        """Read the type that the whole text names."""
        found = self.read_type()
        if self._at < len(self._text):
            raise _NotATypeError
        return found

    def read_type(self) -> pa.DataType:
        self._match(_SPACES)
        word = self._expect(_WORD)[0].lower()
        found = self._read_named(word)
        # SQL's arrays: VARCHAR[], INTEGER[3].
        while self._skip("["):
            size = self._match(_NUMBER)
            self._need("]")
            found = pa.list_(found, int(size[1])) if size else pa.list_(found)
        return found

    def _read_named(self, word: str) -> pa.DataType:  # noqa: PLR0911  one for each form
        if word in _LISTS and self._skip("<"):
            return _LISTS[word](self._read_item())
        if word == "fixed_size_list" and self._skip("<"):
            return pa.list_(self._read_item(), self._read_size())
        if word in {"struct", "row"} and (end := self._open()):
            return pa.struct(self._read_fields(end))
        if word == "map" and (end := self._open()):
            return self._read_map(end)
        if word == "dictionary" and self._skip("<"):
            return self._read_dictionary()
        if word == "extension" and self._skip("<"):
            return self._read_extension()
        if word in _DECIMALS:
            return _DECIMALS[word](*self._read_precision())
        if word == "fixed_size_binary":
            return pa.binary(self._read_size())
        return self._read_plain(word)

    def _read_plain(self, word: str) -> pa.DataType:
        unit = self._match(_UNIT)
        if unit:
            if word == "timestamp":
                return pa.timestamp(unit[1], unit[2])
            return pa.type_for_alias(f"{word}[{unit[1]}]")
        zone = self._match(_TIME_ZONE) if word in {"timestamp", "time"} else None
        if word == "timestamp":
            return pa.timestamp("us", "UTC" if zone and zone[1].lower() == "with" else None)
        if word in {"varchar", "char", "character"}:
            self._match(_LENGTH)
        return _SQL_NAMES[word] if word in _SQL_NAMES else pa.type_for_alias(word)

    def _read_item(self) -> pa.Field:
        """Read the item of a list: a type, or a field with its name."""
        start = self._at
        try:
            data_type = self.read_type()
            field = pa.field("item", data_type, nullable=self._match(_NOT_NULL) is None)
            self._need(">")
        except (_NotATypeError, pa.ArrowException, ValueError):
            self._at = start
            field = self._read_field(">")
            self._need(">")
        return field

    def _read_fields(self, end: str) -> list[pa.Field]:
        if self._has_empty_structs and self._skip(end):
            return []
        fields = [self._read_field(end)]
        while not self._skip(end):
            self._need(",")
            fields.append(self._read_field(end))
        return fields

    def _read_field(self, end: str) -> pa.Field:
        """Read a name and a type; a name may contain colons and commas, so the first that a type follows ends it."""
        self._match(_SPACES)
        start = self._at
        for found in re.finditer(": " if end == ">" else r"\s+", self._text[start:]):
            self._at = start + found.end()
            try:
                data_type = self.read_type()
            except (_NotATypeError, pa.ArrowException, ValueError):
                continue
            nullable = self._match(_NOT_NULL) is None
            self._match(_SPACES)
            if self._text[self._at : self._at + 1] in {",", end}:
                return pa.field(self._text[start : start + found.start()], data_type, nullable=nullable)
        raise _NotATypeError

    def _read_map(self, end: str) -> pa.DataType:
        key = self._read_map_field("key")
        self._need(",")
        item = self._read_map_field("value")
        is_sorted = self._skip(",")
        if is_sorted:
            self._need("keys_sorted")
        self._need(end)
        return pa.map_(key.with_nullable(False), item, keys_sorted=is_sorted)  # noqa: FBT003  Arrow's own signature

    def _read_map_field(self, name: str) -> pa.Field:
        data_type = self.read_type()
        given = self._match(_ITEM_NAME)
        return pa.field(given[1] if given else name, data_type)

    def _read_dictionary(self) -> pa.DataType:
        self._need("values=")
        values = self.read_type()
        self._need(",")
        self._need("indices=")
        indices = self.read_type()
        self._need(",")
        self._need("ordered=")
        ordered = self._expect(_NUMBER)[1] == "1"
        self._need(">")
        return pa.dictionary(indices, values, ordered)

    def _read_extension(self) -> pa.DataType:
        for name, data_type in _EXTENSIONS.items():
            if self._skip(name):
                self._need(">")
                return data_type
        raise _NotATypeError

    def _read_precision(self) -> tuple[int, int]:
        if not self._skip("("):
            return _SQL_PRECISION
        precision, scale = int(self._expect(_NUMBER)[1]), 0
        if self._skip(","):
            scale = int(self._expect(_NUMBER)[1])
        self._need(")")
        return precision, scale

    def _read_size(self) -> int:
        self._need("[")
        size = int(self._expect(_NUMBER)[1])
        self._need("]")
        return size

    def _open(self) -> str | None:
        """Open the fields of a nested type; returns what closes them."""
        return next((end for start, end in (("<", ">"), ("(", ")")) if self._skip(start)), None)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _expect(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = self._match(pattern)
        if found is None:
            raise _NotATypeError
        return found

    def _skip(self, text: str) -> bool:
        start = self._at
        self._match(_SPACES)
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        self._at = start
        return False

    def _need(self, text: str) -> None:
        if not self._skip(text):
            raise _NotATypeError
