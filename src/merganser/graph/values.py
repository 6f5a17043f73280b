"""Property values: which may be stored, their JSON text, and their equality.

A value is `None`, a bool, a 64-bit integer, a finite float, a string, or a list or dict of these. Dates and times are
converted to ISO strings, and NumPy's numbers and booleans to Python's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from json.encoder import encode_basestring
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from merganser.errors import GraphFileError, InvalidArgumentError, PropertyTypeError, PropertyValueError

# Any stands for the values inside lists and dicts.
Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
Properties: TypeAlias = dict[str, Value]

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
# Deeper than records in practice, and less than Python or SQLite can parse.
_MAX_DEPTH = 100

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
# json creates its C encoder anew for each text; created once, it takes half the time. Other Pythons have none.
_make_c_encoder = getattr(json.encoder, "c_make_encoder", None)
_c_encoder = _make_c_encoder and _make_c_encoder(
    None, _ENCODER.default, encode_basestring, None, ":", ",", *(False, False, False)
)
_decode = json.JSONDecoder().decode


def decode(text: str) -> Any:
    """Parse what `encode` wrote; a graph file that something else wrote may hold anything.

    >>> decode('{"sizes":[1,1.0]}')
    {'sizes': [1, 1.0]}
    """
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        message = f"The graph holds a value that cannot be read as JSON: {error}. Restore the file."
        raise GraphFileError(message) from error


def encode(value: Value) -> str:
    """Encode a value as JSON, always with the same text for the same value.

    >>> encode({"name": "Ångström", "sizes": [1, 1.0]})
    '{"name":"Ångström","sizes":[1,1.0]}'
    """
    return "".join(_c_encoder(value, 0)) if _c_encoder else _ENCODER.encode(value)


def format_value(value: Any) -> str:
    """Format a property for people: a string as it is, other values as JSON."""
    return value if isinstance(value, str) else encode(value)


def normalize_properties(given: Mapping[str, Any] | None, role: str) -> Properties:
    """Copy properties as they will be stored, and refuse values that cannot be stored.

    >>> normalize_properties({"day": date(2026, 1, 2), "tags": ("a", "b")}, "match")
    {'day': '2026-01-02', 'tags': ['a', 'b']}
    """
    if given is None:
        return {}
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{role} is {type(given).__name__}; give a dict of property names and values.")
    found: Properties = dict(given)
    has_odd_name = False
    for name, value in given.items():
        cls = type(value)
        # Most names and values are simple, and need no call.
        is_simple = value.isascii() if cls is str else cls is bool or (cls is int and MIN_INT64 <= value <= MAX_INT64)
        if not is_simple and value is not None:
            found[name] = _normalize_value(value, name, role, 0)
        if type(name) is not str or not name.isascii():
            has_odd_name = True
    return {normalize_name(name, role): value for name, value in found.items()} if has_odd_name else found


def normalize_value(value: Any, name: str) -> Value:
    """Return the value of a property as it will be stored, and refuse one that cannot be stored.

    >>> normalize_value(date(2026, 1, 2), "day")
    '2026-01-02'
    """
    return _normalize_value(value, name, "properties", 0)


def drop_nulls(properties: Properties) -> Properties:
    """Leave out NULLs, which are not stored."""
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
    """Check whether overwriting old properties with new ones changes what is stored.

    >>> has_changes({"a": 1}, {"a": 1, "b": None}), has_changes({"a": 1}, {"a": 1.0})
    (False, True)
    """
    for name, value in new.items():
        before = old.get(name)
        if type(before) is not type(value) or before != value:
            return True
        # 0.0 equals -0.0, and a list of them another.
        if isinstance(value, list | dict | float) and encode(before) != encode(value):
            return True
    return False


def are_equal(left: Value, right: Value) -> bool:
    """Check whether two values are equal: 1 equals 1.0, but booleans, numbers, strings and lists never each other.

    >>> are_equal(1, 1.0), are_equal(1, True), are_equal("1", 1), are_equal([1, [2.0]], [1.0, [2]])
    (True, False, False, True)
    """
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(are_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_equal(value, right[name]) for name, value in left.items())
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def has_dict(value: Value) -> bool:
    """Check whether a value is a dict, or a list that contains one."""
    return isinstance(value, dict) or (isinstance(value, list) and any(map(has_dict, value)))


def normalize_name(name: Any, role: str) -> str:
    """Return the name of a property as it is stored."""
    if not isinstance(name, str):
        message = f"{role} has the property name {name!r}, a {type(name).__name__}; property names are strings."
        raise PropertyTypeError(message)
    _check_string(name, name, role)
    return str.__str__(name)


def _normalize_value(value: Any, name: str, role: str, depth: int) -> Value:
    if value is None or isinstance(value, bool):
        return value
    # An interval is a tuple.
    if isinstance(value, list | tuple | Mapping) and not isinstance(value, pa.MonthDayNano):
        if depth >= _MAX_DEPTH:
            message = f"{_describe(name, role)} is nested over {_MAX_DEPTH} levels deep, or within itself; flatten it."
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
            message = f"{_describe(name, role)} is a number that does not fit 64 bits; give it as a string."
            raise PropertyValueError(message)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PropertyValueError(
                f"{_describe(name, role)} is {'NaN' if math.isnan(value) else value}, which is not a finite number; "
                "give another, or leave it out."
            )
        return float(value)
    if isinstance(value, np.bool_ | np.integer | np.float16 | np.float32):
        return _normalize_value(value.item(), name, role, 0)
    if isinstance(value, datetime | date | time | np.datetime64):
        return _format_time(value, name, role)
    raise PropertyTypeError(
        f"{_describe(name, role)} is of type {type(value).__name__}, which cannot be stored; give a string, a number, "
        "a boolean, a date or time, or a list or dict of these."
    )


def _format_time(value: Any, name: str, role: str) -> str:
    # pandas' and NumPy's NaT are equal to nothing.
    if value != value:  # noqa: PLR0124
        message = f"{_describe(name, role)} is {value!r}, which is not a time; give another, or leave it out."
        raise PropertyValueError(message)
    exact: Any = value
    if isinstance(value, np.datetime64):
        in_microseconds = value.astype("datetime64[us]")
        # Beyond Python's years, NumPy gives a number.
        exact = value.item() if isinstance(value.item(), date) else in_microseconds.item()
        if in_microseconds != value or not isinstance(exact, date):
            exact = None
    # pandas' timestamps have nanoseconds.
    if exact is None or getattr(exact, "nanosecond", None):
        message = f"{_describe(name, role)} is {value!r}, which is not a time in microseconds; round it."
        raise PropertyValueError(message)
    return str(exact.isoformat())


def _describe(name: str, role: str) -> str:
    return f"Property {name!r}" if role == "properties" else f"{role} property {name!r}"


def _check_string(text: str, name: str, role: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{_describe(name, role)} has a lone surrogate, which is not a character; decode the string again."
        raise PropertyValueError(message) from error
