"""Checks of Python values whose conversion to Arrow would change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.model.schema import is_list_like
from merganser.errors import ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TIMES = (dt.date, dt.time, dt.timedelta)
_DATES, _NAIVE, _ZONED = "dates", "times without a zone", "times with a zone"


def check_values(values: Sequence[Any], data_type: pa.DataType, name: str, *, is_given: bool) -> None:
    """Refuse values that Arrow changes on the way to a type, which was inferred from them or given."""
    if pa.types.is_struct(data_type):
        dicts = [value for value in values if isinstance(value, Mapping)]
        for field in data_type:
            check_values([one.get(field.name) for one in dicts], field.type, name, is_given=is_given)
    elif pa.types.is_map(data_type):
        pairs = list(_flatten(value.items() if isinstance(value, Mapping) else value for value in values))
        check_values([key for key, _ in pairs], data_type.key_type, name, is_given=is_given)
        check_values([item for _, item in pairs], data_type.item_type, name, is_given=is_given)
    elif is_list_like(data_type):
        check_values(list(_flatten(values)), data_type.value_type, name, is_given=is_given)
    elif pa.types.is_integer(data_type) and is_given:
        _check_integers(values, data_type, name)
    elif pa.types.is_temporal(data_type):
        times = [value for value in values if isinstance(value, _TIMES) and _is_valid(value)]
        _check_kinds(times, data_type if is_given else None, name)
        _check_digits(times, data_type, name)


def _flatten(values: Iterable[Any]) -> Iterable[Any]:
    return chain.from_iterable(value for value in values if value is not None)


def _is_valid(value: Any) -> bool:
    """Check for NaN and NaT, which do not equal themselves."""
    return bool(value == value)  # noqa: PLR0124  as said


def _check_integers(values: Sequence[Any], data_type: pa.DataType, name: str) -> None:
    for value in values:
        if isinstance(value, float | Decimal) and _is_valid(value) and value % 1:
            _refuse(value, data_type, name)


def _check_kinds(times: Sequence[Any], data_type: pa.DataType | None, name: str) -> None:
    """Refuse what Arrow would mix: dates with times, and times with and without a time zone."""
    kinds = {_name_kind(value) for value in times}
    if data_type is None and len(kinds) > 1:
        message = f"Column {name!r} of the source mixes {' and '.join(sorted(kinds))}. Give all values one kind."
        raise ColumnTypeError(message)
    fitting = {_NAIVE}
    if data_type is not None and pa.types.is_date(data_type):
        fitting = {_DATES}
    elif data_type is not None and pa.types.is_timestamp(data_type) and data_type.tz is not None:
        fitting = {_ZONED}
    elif data_type is None and not any(isinstance(value, dt.time) for value in times):
        fitting = kinds
    for value in times:
        if _name_kind(value) not in fitting:
            _refuse(value, data_type or pa.time64("us"), name)


def _name_kind(value: dt.date | dt.time | dt.timedelta) -> str:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return _DATES
    return _NAIVE if getattr(value, "tzinfo", None) is None else _ZONED


def _check_digits(times: Sequence[Any], data_type: pa.DataType, name: str) -> None:
    """Refuse times with more digits than the unit of their type; those of pandas have nanoseconds."""
    if pa.types.is_date(data_type) or pa.types.is_interval(data_type) or data_type.unit == "ns":
        return
    step = {"s": 1_000_000, "ms": 1_000, "us": 1}[data_type.unit]
    for value in times:
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) or _get_micros(value) % step:
            _refuse(value, data_type, name)


def _get_micros(value: Any) -> int:
    return int(getattr(value, "microsecond", 0) or getattr(value, "microseconds", 0))


def _refuse(value: Any, data_type: pa.DataType, name: str) -> None:
    raise ColumnValueError(
        f"Column {name!r} of the source holds {value!r}, which {data_type} would change. Correct it, or set another "
        "type with column_types."
    )
