"""Properties: what may be stored, how it is written as JSON, and when two values are equal.

A value is `None`, a bool, a 64-bit integer, a finite float, a string, or a list or dict of these. Dates and times
become ISO text on the way in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from json.encoder import encode_basestring
from typing import Any, TypeAlias

from merganser.errors import GraphFileError, InvalidArgumentError, PropertyTypeError, PropertyValueError

# Any stands for the values inside lists and dicts.
Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
Properties: TypeAlias = dict[str, Value]

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
# Deeper than any record that people make, and less than Python or SQLite can read.
_MAX_DEPTH = 100

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
# The encoder in C that json makes anew for each text: made once, it takes half the time. Other Pythons have none.
_make_c_encoder = getattr(json.encoder, "c_make_encoder", None)
_c_encoder = _make_c_encoder and _make_c_encoder(
    None, _ENCODER.default, encode_basestring, None, ":", ",", *(False, False, False)
)
_decode = json.JSONDecoder().decode


def decode(text: str) -> Any:
    """Read what `encode` wrote; a graph file that something else wrote may hold anything.

    >>> decode('{"sizes":[1,1.0]}')
    {'sizes': [1, 1.0]}
    """
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        message = f"The graph holds a value that cannot be read as JSON: {error}. Restore the file."
        raise GraphFileError(message) from error


def encode(value: Value) -> str:
    """Write a value as JSON, the same text for the same value.

    >>> encode({"name": "Ångström", "sizes": [1, 1.0]})
    '{"name":"Ångström","sizes":[1,1.0]}'
    """
    return "".join(_c_encoder(value, 0)) if _c_encoder else _ENCODER.encode(value)


def normalize_properties(given: Mapping[str, Any] | None, role: str) -> Properties:
    """Copy properties as they will be stored; what cannot be stored is refused by name.

    >>> normalize_properties({"day": date(2026, 1, 2), "tags": ("a", "b")}, "match")
    {'day': '2026-01-02', 'tags': ['a', 'b']}
    """
    if given is None:
        return {}
    if type(given) is not dict and not isinstance(given, Mapping):
        message = f"{role} is {type(given).__name__}; give a dict of property names and values."
        raise InvalidArgumentError(message)
    found: Properties = dict(given)
    odd = False
    for name, value in given.items():
        kind = type(value)
        # What most names and values are needs no call.
        simple = value.isascii() if kind is str else kind is bool or (kind is int and MIN_INT64 <= value <= MAX_INT64)
        if not simple and value is not None:
            found[name] = _normalize_value(value, name, role, 0)
        if type(name) is not str or not name.isascii():
            odd = True
    return {normalize_name(name, role): value for name, value in found.items()} if odd else found


def drop_nulls(properties: Properties) -> Properties:
    """Leave out what is NULL: a NULL is not stored."""
    if None in properties.values():
        return {name: value for name, value in properties.items() if value is not None}
    return properties


def apply_properties(old: Properties, new: Properties) -> Properties:
    """Lay new properties over old ones, whole values at a time; NULL removes a property.

    >>> apply_properties({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'d': 3}}
    """
    return drop_nulls({**old, **new})


def has_changes(old: Properties, new: Properties) -> bool:
    """Tell whether new properties, laid over old ones, would be stored any differently.

    >>> has_changes({"a": 1}, {"a": 1, "b": None}), has_changes({"a": 1}, {"a": 1.0})
    (False, True)
    """
    for name, value in new.items():
        before = old.get(name)
        if type(before) is not type(value) or before != value:
            return True
        if isinstance(value, list | dict) and encode(before) != encode(value):
            return True
    return False


def are_equal(left: Value, right: Value) -> bool:
    """Tell whether two values are the same: 1 is 1.0; booleans, numbers, strings and lists are never one another.

    >>> are_equal(1, 1.0), are_equal(1, True), are_equal("1", 1), are_equal([1, [2.0]], [1.0, [2]])
    (True, False, False, True)
    """
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(are_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_equal(value, right[name]) for name, value in left.items())
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def has_dict(value: Value) -> bool:
    """Tell whether a value is a dict, or a list with one inside."""
    return isinstance(value, dict) or (isinstance(value, list) and any(map(has_dict, value)))


def normalize_name(name: Any, role: str) -> str:
    """Give a property's name as it is stored."""
    if not isinstance(name, str):
        message = f"{role} has the property name {name!r}, a {type(name).__name__}; property names are strings."
        raise PropertyTypeError(message)
    _check_string(name, name, role)
    return str.__str__(name)


def _normalize_value(value: Any, name: str, role: str, depth: int) -> Value:
    """Copy one value as it will be stored."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple | Mapping):
        if depth >= _MAX_DEPTH:
            message = f"{role} property {name!r} is nested over {_MAX_DEPTH} levels deep, or within itself; flatten it."
            raise PropertyValueError(message)
        if isinstance(value, Mapping):
            return {
                normalize_name(key, role): _normalize_value(item, name, role, depth + 1) for key, item in value.items()
            }
        return [_normalize_value(item, name, role, depth + 1) for item in value]
    return _normalize_scalar(value, name, role)


def _normalize_scalar(value: Any, name: str, role: str) -> Value:
    if isinstance(value, str):
        _check_string(value, name, role)
        return str.__str__(value)
    if isinstance(value, int):
        if not MIN_INT64 <= value <= MAX_INT64:
            message = f"{role} property {name!r} is a number that does not fit 64 bits; give it as a string."
            raise PropertyValueError(message)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            message = f"{role} property {name!r} is {value}, which is no finite number; give another, or leave it out."
            raise PropertyValueError(message)
        return float(value)
    if isinstance(value, datetime | date | time):
        # pandas' NaT is a datetime, and equal to nothing.
        if value != value:  # noqa: PLR0124
            message = f"{role} property {name!r} is {value!r}, which is no time; give another, or leave it out."
            raise PropertyValueError(message)
        return value.isoformat()
    message = (
        f"{role} property {name!r} is a {type(value).__name__}, which cannot be stored; give a string, a number, a "
        "boolean, a date or time, or a list or dict of these."
    )
    raise PropertyTypeError(message)


def _check_string(text: str, name: str, role: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{role} property {name!r} has a lone surrogate, which is no character; decode the text anew."
        raise PropertyValueError(message) from error
