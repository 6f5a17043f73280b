"""The types of the keys of a configuration: each checks a given value and normalizes it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from merganser.errors import ConfigurationError
from merganser.graph.sqlite.sql import quote_spark_identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Names become folders and batch ids.
_NAME = re.compile(r"[\w][\w .-]*", re.UNICODE)


def to_expressions(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Map each name to its expression; a column given by name is its own expression.

    >>> to_expressions(["url"]), to_expressions({"url": "lower(link)"})
    ({'url': '`url`'}, {'url': 'lower(link)'})
    """
    return PROPERTIES.read(given, "", "")


def suggest_name(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name with the known one that is like it, or with all of them."""
    known = sorted(known)
    similar = get_close_matches(name, known, 1)
    return f". Did you mean {similar[0]!r}?" if similar else f". Available: {', '.join(known)}."


class FieldType(ABC):
    """The type of a key."""

    @abstractmethod
    def read(self, given: Any, label: str, name: str) -> Any:
        """Normalize a value, or refuse it with the label of its table and the name of its key."""


def _make_error(given: Any, expected: str, label: str, name: str) -> ConfigurationError:
    return ConfigurationError(f"it must be {expected}, not {given!r}.", label, name)


@dataclass(frozen=True, slots=True)
class _Scalar(FieldType):
    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda given: given

    def read(self, given: Any, label: str, name: str) -> Any:
        if not self.accepts(given):
            raise _make_error(given, self.expected, label, name)
        return self.convert(given)


def choice(choices: tuple[str, ...]) -> FieldType:
    """Make the type of a key whose value is one of several strings."""
    return _Scalar(f"one of {', '.join(map(repr, choices))}", choices.__contains__, str)


class _Strings(FieldType):
    def read(self, given: Any, label: str, name: str) -> tuple[str, ...]:
        strings = (given,) if isinstance(given, str) else given
        if not isinstance(strings, Iterable) or isinstance(strings, Mapping):
            raise _make_error(given, "a string or a list of strings", label, name)
        return tuple(STRING.read(string, label, name) for string in strings)


class _Settings(FieldType):
    expected = "a table of settings"

    def read(self, given: Any, label: str, name: str) -> dict[str, Any]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _make_error(given, self.expected, label, name)
        return {STRING.read(key, label, name): value for key, value in given.items()}


class _StringMap(_Settings):
    expected = "a table of names and strings"

    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        return {key: STRING.read(one, label, f"{name}.{key}") for key, one in super().read(given, label, name).items()}


class _Properties(FieldType):
    """Columns by name, or names with an expression each."""

    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if isinstance(given, Mapping):
            return STRING_MAP.read(given, label, name)
        return {one: quote_spark_identifier(one) for one in STRINGS.read(given, label, name)}


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


STRING = _Scalar("a non-empty string", lambda given: isinstance(given, str) and bool(given.strip()))
NAME = _Scalar(
    "a name of letters, digits, '_', '-', '.' and spaces",
    lambda given: isinstance(given, str) and _NAME.fullmatch(given) is not None,
)
BOOLEAN = _Scalar("true or false", lambda given: isinstance(given, bool))
FRACTION = _Scalar(
    "a share of rows, from 0 to 1",
    lambda given: isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1,
    float,
)
MISSING = _Scalar(
    "'keep', 'delete' or a table of properties",
    lambda given: given in ("keep", "delete") or (isinstance(given, Mapping) and bool(given)),
)
SCOPE = _Scalar("a table of properties", lambda given: isinstance(given, Mapping) and bool(given))
DETACH = _Scalar("true, false or 'keep'", lambda given: isinstance(given, bool) or given == "keep")
STRINGS, STRING_MAP, PROPERTIES, SETTINGS = _Strings(), _StringMap(), _Properties(), _Settings()
