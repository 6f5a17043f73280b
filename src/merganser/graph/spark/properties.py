"""Properties as Spark columns: how callers name them, which types they may have, how those are stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from merganser.errors import InvalidArgumentError, PropertyTypeError
from merganser.graph.spark.reading import quoted
from merganser.graph.sqlite.indexes import read_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

# How a caller names properties: columns of the same name, or an expression for each.
Given: TypeAlias = "str | Sequence[str] | Mapping[str, str | Column] | None"

_SIMPLE: dict[type[DataType], DataType] = {
    **{kind: kind() for kind in (NullType, BooleanType, DateType, TimestampType, TimestampNTZType, StringType)},
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), LongType()),
    **dict.fromkeys((FloatType, DoubleType), DoubleType()),
}


# The days of the years 1 to 9999, counted from 1970, and the microseconds of a day.
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_DAY = 24 * 60 * 60 * 1_000_000
# Spark's own formats of times in JSON end at the millisecond.
_TO_THE_MICROSECOND = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def read_properties(frame: DataFrame, given: Given, role: str) -> dict[str, Column]:
    """Give each property its expression."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        names = read_names(list(given), role)
        return {name: _expression(given[name], name, role) for name in names}
    return {name: named(frame, name, role) for name in read_names(given, role)}


def named(frame: DataFrame, name: str, role: str) -> Column:
    """Give a column by its name, which may hold dots."""
    if name not in frame.columns:
        message = f"{role} names {name!r}, which the DataFrame lacks. Its columns are: {', '.join(frame.columns)}."
        raise InvalidArgumentError(message)
    return quoted(name)


def _expression(given: Any, name: str, role: str) -> Column:
    if isinstance(given, Column):
        return given
    if not isinstance(given, str):
        message = f"{role} gives the property {name!r} {given!r}; give a Spark SQL expression, as a text or a Column."
        raise InvalidArgumentError(message)
    return F.expr(given)


def check_roles(match: Mapping[str, Any], **others: Mapping[str, Any]) -> None:
    """Refuse properties that would change the key, and names that Spark would take for one another."""
    for role, given in others.items():
        for name in given:
            if name in match:
                message = f"{role} names the match property {name!r}, which a merge never changes. Leave it out."
                raise InvalidArgumentError(message)
    seen: dict[str, str] = {}
    for name in [*match, *(name for given in others.values() for name in given)]:
        before = seen.setdefault(name.lower(), name)
        if before != name:
            message = f"The properties {before!r} and {name!r} differ only in case. Rename one of them."
            raise InvalidArgumentError(message)


def stored_type(kind: DataType, name: str, role: str) -> DataType:
    """Give the type in which a property is stored: whole numbers of 64 bits and floats of double precision.

    What `GraphDatabase` could not store is refused, so that the same rows make the same graph everywhere (G5, G17).
    """
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, ArrayType):
        return ArrayType(stored_type(kind.elementType, name, role))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, stored_type(field.dataType, name, role)) for field in kind.fields])
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return MapType(StringType(), stored_type(kind.valueType, name, role))
    message = (
        f"{role} property {name!r} has type {kind.simpleString()}, which cannot be stored. Cast it to a string, a "
        "bigint, a double, a boolean, a date or timestamp, or a list or struct of these."
    )
    raise PropertyTypeError(message)


def one_type(kinds: Sequence[DataType], name: str) -> DataType:
    """Give the type of a property that has several expressions."""
    typed = {kind.simpleString(): kind for kind in kinds if not isinstance(kind, NullType)}
    if len(typed) > 1:
        message = (
            f"The property {name!r} would be {' in one case and '.join(typed)} in the other. Cast its expressions to "
            "one type."
        )
        raise PropertyTypeError(message)
    return next(iter(typed.values()), NullType())


def is_orderable(kind: DataType) -> bool:
    """Say whether Spark can tell which of two values is less, and so whether they are equal."""
    if isinstance(kind, ArrayType):
        return is_orderable(kind.elementType)
    if isinstance(kind, StructType):
        return all(is_orderable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType) and kind.typeName() not in {"variant", "interval"}


def orderable(column: Column, kind: DataType) -> Column:
    """Give a column by which rows can be ordered and compared: its text, where its type has no order."""
    return column if is_orderable(kind) else F.to_json(F.struct(column), _TO_THE_MICROSECOND)


def not_finite(column: Column, kind: DataType) -> Column | None:
    """Give the condition that a value is, or holds, a number that is not finite; None if its type has none such."""
    return _holds(column, kind, _not_finite)


def not_in_years(column: Column, kind: DataType) -> Column | None:
    """Give the condition that a value is, or holds, a day outside the years 1 to 9999, which are all that Python has.

    An instant is taken as it is in UTC, in which it would be stored.
    """
    return _holds(column, kind, _not_in_years)


def _not_finite(column: Column, kind: DataType) -> Column | None:
    return F.isnan(column) | (F.abs(column) == float("inf")) if isinstance(kind, DoubleType) else None


def _not_in_years(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, TimestampType):
        return ~F.unix_micros(column).between(_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1)
    if isinstance(kind, DateType | TimestampNTZType):
        return ~F.unix_date(column.cast("date")).between(_FIRST_DAY, _LAST_DAY)
    return None


def _holds(column: Column, kind: DataType, fault: Callable[[Column, DataType], Column | None]) -> Column | None:
    """Give the condition that a value has a fault, or one inside it does; None if its type cannot have it."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        if _holds(column, element, fault) is None:
            return None
        return F.exists(column, lambda item: F.coalesce(_must(_holds(item, element, fault)), F.lit(False)))  # noqa: FBT003
    if isinstance(kind, MapType):
        return _holds(F.map_values(column), ArrayType(kind.valueType), fault)
    if isinstance(kind, StructType):
        found = [_holds(column.getField(field.name), field.dataType, fault) for field in kind.fields]
        parts = [F.coalesce(part, F.lit(False)) for part in found if part is not None]  # noqa: FBT003
        return F.array_contains(F.array(*parts), True) if parts else None  # noqa: FBT003
    return fault(column, kind)


def _must(condition: Column | None) -> Column:
    assert condition is not None  # noqa: S101 - the type has been asked before
    return condition
