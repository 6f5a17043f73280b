"""What the keys of a configuration take, and how what is given is read and refused."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.errors import ConfigurationError
from merganser.graph.sqlite.sql import backquoted

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names become folders and batch ids.
_NAME = re.compile(r"[\w][\w .-]*", re.UNICODE)


def expressions(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Give an expression for each name; of columns by name, their names.

    >>> expressions(["url"]), expressions({"url": "lower(link)"})
    ({'url': '`url`'}, {'url': 'lower(link)'})
    """
    return PROPERTIES.read(given, "", "")


class Kind(ABC):
    """What a key takes."""

    @abstractmethod
    def read(self, given: Any, label: str, name: str) -> Any:
        """Give what was given in its one form, or refuse it."""


def _refused(given: Any, expected: str, label: str, name: str) -> ConfigurationError:
    return ConfigurationError(f"it takes {expected}, not {given!r}.", label, name)


@dataclass(frozen=True, slots=True)
class _Text(Kind):
    def read(self, given: Any, label: str, name: str) -> str:
        if not isinstance(given, str) or not given.strip():
            raise _refused(given, "a text", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Name(Kind):
    def read(self, given: Any, label: str, name: str) -> str:
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise _refused(given, "a name of letters, digits, '_', '-', '.' and spaces", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Texts(Kind):
    def read(self, given: Any, label: str, name: str) -> tuple[str, ...]:
        texts = (given,) if isinstance(given, str) else given
        if not isinstance(texts, Iterable) or isinstance(texts, Mapping):
            raise _refused(given, "a text or a list of texts", label, name)
        return tuple(TEXT.read(text, label, name) for text in texts)


@dataclass(frozen=True, slots=True)
class _Map(Kind):
    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _refused(given, "a table of names and texts", label, name)
        return {TEXT.read(one, label, name): TEXT.read(text, label, f"{name}.{one}") for one, text in given.items()}


@dataclass(frozen=True, slots=True)
class _Properties(Kind):
    """Columns by name, or names with an expression each."""

    def read(self, given: Any, label: str, name: str) -> dict[str, str]:
        if isinstance(given, Mapping):
            return MAP.read(given, label, name)
        return {one: backquoted(one) for one in TEXTS.read(given, label, name)}


@dataclass(frozen=True, slots=True)
class _Settings(Kind):
    def read(self, given: Any, label: str, name: str) -> dict[str, Any]:
        if given == ():
            return {}
        if not isinstance(given, Mapping):
            raise _refused(given, "a table of settings", label, name)
        return {TEXT.read(one, label, name): value for one, value in given.items()}


@dataclass(frozen=True, slots=True)
class _Flag(Kind):
    def read(self, given: Any, label: str, name: str) -> bool:
        if not isinstance(given, bool):
            raise _refused(given, "true or false", label, name)
        return given


@dataclass(frozen=True, slots=True)
class _Share(Kind):
    def read(self, given: Any, label: str, name: str) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise _refused(given, "a share of rows, from 0 to 1", label, name)
        return float(given)


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    def read(self, given: Any, label: str, name: str) -> str:
        """Give the word, or refuse what is none of them."""
        if given not in self.words:
            raise _refused(given, f"one of {', '.join(map(repr, self.words))}", label, name)
        return str(given)


@dataclass(frozen=True, slots=True)
class Tables(Kind):
    """Another table, or several."""

    table: type[Any]
    several: bool = False

    def read(self, given: Any, label: str, name: str) -> Any:
        """Give the table, or all of them."""
        listed = list(given) if self.several and isinstance(given, Iterable) else [given]
        wrong = next((one for one in listed if not isinstance(one, self.table)), None)
        if wrong is not None:
            raise _refused(wrong, f"a {self.table.__name__}", label, name)
        return tuple(listed) if self.several else given


TEXT, NAME, TEXTS, MAP = _Text(), _Name(), _Texts(), _Map()
PROPERTIES, SETTINGS, FLAG, SHARE = _Properties(), _Settings(), _Flag(), _Share()
