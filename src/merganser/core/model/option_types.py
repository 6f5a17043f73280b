"""Types of options: which values an option takes, and the form in which they are stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.model.keys import normalize_keys
from merganser.core.model.type_names import to_type
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

CODECS = ("snappy", "zstd", "gzip", "brotli", "lz4", "none")


@dataclass(frozen=True, slots=True, eq=False)
class OptionType:
    """The values that an option takes: `read(value, name)` returns the stored form, or refuses the value."""

    read: Callable[[Any, str], Any]
    choices: Sequence[str] = ()


def _expect(expected: str, accepts: Callable[[Any], bool]) -> OptionType:
    def read(value: Any, name: str) -> Any:
        if not accepts(value):
            raise InvalidArgumentError(f"{name} must be {expected}, not {value!r}.")
        return value

    return OptionType(read)


def choose_from(*choices: str, ignore_case: bool = False) -> OptionType:
    """Make the type of an option with a fixed set of values."""

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, str) or (value.lower() if ignore_case else value) not in choices:
            raise InvalidArgumentError(f"Unknown {name} {value!r}. Choose one of: {', '.join(choices)}.")
        return value

    return OptionType(read, choices)


def to_column_names(columns: Sequence[str] | str | None, argument: str) -> list[str]:
    """Return one column name, several or none as a list; errors name the argument."""
    try:
        return normalize_keys(columns) if columns else []
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("key_columns", argument)) from None


def _to_names_or_none(columns: Any, name: str) -> list[str] | None:
    return None if columns is None else to_column_names(columns, name)


def _to_nonempty_names(columns: Any, name: str) -> list[str] | None:
    names = _to_names_or_none(columns, name)
    if names == []:
        raise InvalidArgumentError(f"{name} is empty. Name at least one column, or leave it out.")
    return names


def _to_names_or_bool(columns: Any, name: str) -> bool | list[str]:
    if isinstance(columns, bool):
        return columns
    if not isinstance(columns, str | list | tuple):
        raise InvalidArgumentError(f"{name} must be True, False or a list of column names, not {columns!r}.")
    return _to_nonempty_names(columns, name) or []


def _to_types(given: Any, name: str) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{name} must map columns to types, not {given!r}.")
    return {column: to_type(data_type, column) for column, data_type in given.items()}


def _to_strings(given: Any, name: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    strings = (given,) if isinstance(given, str) else given
    if not isinstance(strings, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in strings):
        raise InvalidArgumentError(f"{name} must be a string or a list of strings, not {given!r}.")
    return tuple(strings)


def _to_value_lists(given: Any, name: str) -> Mapping[str, list[Any]] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise InvalidArgumentError(f"{name} must map names to a value or a list of values, not {given!r}.")
    several = (list, tuple, set, frozenset)
    return {key: list(values) if isinstance(values, several) else [values] for key, values in given.items()}


def _is_integer(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_nonempty_string(value: object) -> bool:
    return isinstance(value, str) and bool(value)


ANY = OptionType(lambda value, _: value)
# The engine that has such an option checks it.
OPTIONAL_BOOLEAN = OptionType(lambda value, _: value)
BOOLEAN = _expect("True or False", lambda value: isinstance(value, bool))
POSITIVE = _expect("a positive integer", lambda value: _is_integer(value, 1))
COMMITS = _expect("an integer, 0 or more", lambda value: _is_integer(value, 0))
SECONDS = _expect("a number of seconds", _is_number)
CODEC = choose_from(*CODECS, ignore_case=True)
COLUMN = _expect("the name of one column", lambda value: value is None or _is_nonempty_string(value))
COLUMNS = OptionType(_to_names_or_none)
ORDER = OptionType(lambda value, name: to_column_names(value, name) or None)
SOME_COLUMNS = OptionType(_to_nonempty_names)
COMPARED_COLUMNS = OptionType(_to_names_or_bool)
VALUES = OptionType(_to_value_lists)
OPERATION_VALUES = OptionType(_to_value_lists)
COLUMN_TYPES = OptionType(_to_types)
STRINGS = OptionType(_to_strings)
BATCH_ID = _expect(
    "a string that identifies this batch and no other", lambda value: value is None or _is_nonempty_string(value)
)
AUDIT = _expect(
    "True, 'rows' or the path of a folder",
    lambda value: isinstance(value, bool | os.PathLike) or _is_nonempty_string(value),
)
CALLBACK = _expect("a function that is called with each step", lambda value: value is None or callable(value))
