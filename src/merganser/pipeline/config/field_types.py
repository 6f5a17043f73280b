"""What the keys of a configuration take, and how what is given is read and refused."""

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
    """Give an expression for each name; of columns by name, their names.

    >>> to_expressions(["url"]), to_expressions({"url": "lower(link)"})
    ({'url': '`url`'}, {'url': 'lower(link)'})
    """
    return PROPERTIES.read(given, "", "")


class FieldType(ABC):
    """What a key takes."""

    @abstractmethod
    def read(self, given: Any, label: str, name: str) -> Any:
        """Give what was given in its one form, or refuse it."""


def _make_error(given: Any, expected: str, label: str, name: str) -> ConfigurationError:
    return ConfigurationError(f"it takes {expected}, not {given!r}.", label, name)


@dataclass(frozen=True, slots=True)
class _String(FieldType):
    def read(self, given: Any, label: str, name: str) -> str:
        if not isinstance(given, str) or not given.strip():
            raise _make_error(given, "a text", label, name)
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
        texts = (given,) if isinstance(given, str) else given
        if not isinstance(texts, Iterable) or isinstance(texts, Mapping):
            raise _make_error(given, "a text or a list of texts", label, name)
        return tuple(STRING.read(text, label, name) for text in texts)


@dataclass(frozen=True, slots=True)
class _StringMap(FieldType):
    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _make_error(given, "a table of names and texts", label, name)
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
    """One of some words."""

    choices: tuple[str, ...]

    def read(self, given: Any, label: str, name: str) -> str:
        """Give the word, or refuse what is none of them."""
        if given not in self.choices:
            raise _make_error(given, f"one of {', '.join(map(repr, self.choices))}", label, name)
        return str(given)


@dataclass(frozen=True, slots=True)
class NestedTables(FieldType):
    """Another table, or several."""

    table: type[Any]
    is_repeated: bool = False

    def read(self, given: Any, label: str, name: str) -> Any:
        """Give the table, or all of them."""
        listed = list(given) if self.is_repeated and isinstance(given, Iterable) else [given]
        wrong = next((one for one in listed if not isinstance(one, self.table)), None)
        if wrong is not None:
            raise _make_error(wrong, f"a {self.table.__name__}", label, name)
        return tuple(listed) if self.is_repeated else given


STRING, NAME, STRINGS, STRING_MAP = _String(), _Name(), _Strings(), _StringMap()
PROPERTIES, SETTINGS, BOOLEAN, FRACTION = _Properties(), _Settings(), _Boolean(), _Fraction()
