"""The types of the keys of a configuration: each checks a given value and normalizes it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.errors import ConfigurationError
from merganser.graph.sqlite.sql import quote_spark_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names become folders and batch ids.
_NAME = re.compile(r"[\w][\w .-]*", re.UNICODE)


def to_expressions(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Map each name to its expression; a column given by name is its own expression.

    >>> to_expressions(["url"]), to_expressions({"url": "lower(link)"})
    ({'url': '`url`'}, {'url': 'lower(link)'})
    """
    return PROPERTIES.read(given, "", "")


class FieldType(ABC):
    """The type of a key."""

    @abstractmethod
    def read(self, given: Any, label: str, name: str) -> Any:
        """Normalize a value, or refuse it with the label of its table and the name of its key."""


def _make_error(given: Any, expected: str, label: str, name: str) -> ConfigurationError:
    return ConfigurationError(f"it must be {expected}, not {given!r}.", label, name)


@dataclass(frozen=True, slots=True)
class _String(FieldType):
    def read(self, given: Any, label: str, name: str) -> str:
        if not isinstance(given, str) or not given.strip():
            raise _make_error(given, "a non-empty string", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Name(FieldType):
    def read(self, given: Any, label: str, name: str) -> str:
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise _make_error(given, "a name of letters, digits, '_', '-', '.' and spaces", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Strings(FieldType):
    def read(self, given: Any, label: str, name: str) -> tuple[str, ...]:
        strings = (given,) if isinstance(given, str) else given
        if not isinstance(strings, Iterable) or isinstance(strings, Mapping):
            raise _make_error(given, "a string or a list of strings", label, name)
        return tuple(STRING.read(string, label, name) for string in strings)


@dataclass(frozen=True, slots=True)
class _StringMap(FieldType):
    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _make_error(given, "a table of names and strings", label, name)
        return {STRING.read(one, label, name): STRING.read(text, label, f"{name}.{one}") for one, text in given.items()}


@dataclass(frozen=True, slots=True)
class _Properties(FieldType):
    """Columns by name, or names with an expression each."""

    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if isinstance(given, Mapping):
            return STRING_MAP.read(given, label, name)
        return {one: quote_spark_identifier(one) for one in STRINGS.read(given, label, name)}


@dataclass(frozen=True, slots=True)
class _Settings(FieldType):
    def read(self, given: Any, label: str, name: str) -> dict[str, Any]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _make_error(given, "a table of settings", label, name)
        return {STRING.read(one, label, name): value for one, value in given.items()}


@dataclass(frozen=True, slots=True)
class _Boolean(FieldType):
    def read(self, given: Any, label: str, name: str) -> bool:
        if not isinstance(given, bool):
            raise _make_error(given, "true or false", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Fraction(FieldType):
    def read(self, given: Any, label: str, name: str) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise _make_error(given, "a share of rows, from 0 to 1", label, name)
        return float(given)


@dataclass(frozen=True, slots=True)
class Choice(FieldType):
    """One of several strings."""

    choices: tuple[str, ...]

    def read(self, given: Any, label: str, name: str) -> str:
        """Refuse what is not one of the choices."""
        if given not in self.choices:
            raise _make_error(given, f"one of {', '.join(map(repr, self.choices))}", label, name)
        return str(given)


@dataclass(frozen=True, slots=True)
class NestedTables(FieldType):
    """A nested table, or several."""

    table: type[Any]
    is_repeated: bool = False

    def read(self, given: Any, label: str, name: str) -> Any:
        """Refuse what is not such a table; several become a tuple."""
        listed = list(given) if self.is_repeated and isinstance(given, Iterable) else [given]
        wrong = next((one for one in listed if not isinstance(one, self.table)), None)
        if wrong is not None:
            raise _make_error(wrong, f"a {self.table.__name__}", label, name)
        return tuple(listed) if self.is_repeated else given


STRING, NAME, STRINGS, STRING_MAP = _String(), _Name(), _Strings(), _StringMap()
PROPERTIES, SETTINGS, BOOLEAN, FRACTION = _Properties(), _Settings(), _Boolean(), _Fraction()
