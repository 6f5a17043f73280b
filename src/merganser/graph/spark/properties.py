"""Properties as Spark columns: how callers specify them, and the types in which they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as T  # noqa: N812 - as above

from merganser.errors import InvalidArgumentError, PropertyTypeError
from merganser.graph.merging.bulk_options import ALL_COLUMNS
from merganser.graph.spark.reading import to_column
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.values import MAX_INT64, MIN_INT64, Properties, Value, normalize_properties

# How a caller specifies properties: columns of the same name, or an expression for each.
PropertySpec: TypeAlias = "str | Sequence[str] | Mapping[str, str | Column] | None"

_STORED_TYPES: dict[type[T.DataType], T.DataType] = {
    **{one: one() for one in (T.NullType, T.BooleanType, T.StringType)},
    **{one: one() for one in (T.DateType, T.TimestampType, T.TimestampNTZType)},
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType, T.LongType), T.LongType()),
    **dict.fromkeys((T.FloatType, T.DoubleType), T.DoubleType()),
}


# Spark's own formats of times in JSON have no microseconds.
_JSON_TIME_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def read_properties(
    frame: DataFrame, given: PropertySpec, role: str, keys: Collection[str] | None = None
) -> dict[str, Column]:
    """Map each property to its expression; `"*"` means all columns but for those of keys, if these are given."""
    if given is None:
        return {}
    if keys is not None and isinstance(given, str) and given == ALL_COLUMNS:
        return {name: to_column(name) for name in frame.columns if name not in keys}
    if isinstance(given, Mapping):
        return {name: _parse_expression(given[name], name, role) for name in read_names(list(given), role)}
    return {name: find_column(frame, name, role) for name in read_names(given, role)}


def find_column(frame: DataFrame, name: str, role: str) -> Column:
    """Find a column by its name, which may contain dots."""
    if name not in frame.columns:
        message = f"{role} names {name!r}, which the DataFrame lacks. Its columns are: {', '.join(frame.columns)}."
        raise InvalidArgumentError(message)
    return to_column(name)


def _parse_expression(given: Any, name: str, role: str) -> Column:
    if isinstance(given, Column):
        return given
    if not isinstance(given, str):
        raise InvalidArgumentError(
            f"{role} sets the property {name!r} to {given!r}; give a Spark SQL expression, as a string or a Column."
        )
    return F.expr(given)


def check_roles(match: Mapping[str, Any], **others: Mapping[str, Any]) -> None:
    """Refuse properties that would change the key, and names that are the same to Spark."""
    for role, given in others.items():
        for name in given:
            if name in match:
                message = f"{role} names the match property {name!r}, which a merge never changes. Remove it there."
                raise InvalidArgumentError(message)
    seen: dict[str, str] = {}
    for name in [*match, *(name for given in others.values() for name in given)]:
        before = seen.setdefault(name.lower(), name)
        if before != name:
            message = f"The properties {before!r} and {name!r} differ only in case. Rename one of them."
            raise InvalidArgumentError(message)


def to_stored_type(data_type: T.DataType, name: str, role: str) -> T.DataType:
    """Choose the type in which a property is stored: integers of 64 bits, and floats of double precision.

    A type that `GraphDatabase` cannot store is refused, so that the same rows make the same graph everywhere (G5, G17).
    """
    simple = _STORED_TYPES.get(type(data_type))
    if simple is not None:
        return simple
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(to_stored_type(data_type.elementType, name, role))
    if isinstance(data_type, T.StructType):
        fields = data_type.fields
        return T.StructType([T.StructField(one.name, to_stored_type(one.dataType, name, role)) for one in fields])
    if isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        return T.MapType(T.StringType(), to_stored_type(data_type.valueType, name, role))
    raise PropertyTypeError(
        f"{role} property {name!r} has type {data_type.simpleString()}, which cannot be stored. Cast it to a string, a "
        "bigint, a double, a boolean, a date or timestamp, or a list or struct of these."
    )


def unify_types(data_types: Sequence[T.DataType], name: str) -> T.DataType:
    """Find the common type of a property that has several expressions."""
    typed = {one.simpleString(): one for one in data_types if not isinstance(one, T.NullType)}
    if len(typed) > 1:
        raise PropertyTypeError(
            f"The expressions of the property {name!r} have different types: {' and '.join(typed)}. Cast them to one "
            "type."
        )
    return next(iter(typed.values()), T.NullType())


def is_orderable(data_type: T.DataType) -> bool:
    """Tell whether Spark can order, and so compare, values of a type."""
    if isinstance(data_type, T.ArrayType):
        return is_orderable(data_type.elementType)
    if isinstance(data_type, T.StructType):
        return all(is_orderable(field.dataType) for field in data_type.fields)
    return not isinstance(data_type, T.MapType) and data_type.typeName() not in {"variant", "interval"}


def to_orderable(column: Column, data_type: T.DataType) -> Column:
    """Make a column by which rows can be ordered and compared: its JSON, if its type cannot be ordered."""
    return column if is_orderable(data_type) else F.to_json(F.struct(column), _JSON_TIME_FORMATS)


def build_condition(columns: Mapping[str, tuple[Column, T.DataType]], condition: Mapping[str, Value]) -> Column:
    """Build the condition that properties have these values, as `are_equal` compares them; absent ones are NULL."""
    holds = F.lit(True)  # noqa: FBT003 - Spark's own signature
    for name, value in condition.items():
        column, data_type = columns.get(name, (F.lit(None), T.NullType()))
        holds = holds & (column.isNull() if value is None else _build_equality(column, data_type, value))
    return holds


def _build_equality(column: Column, data_type: T.DataType, value: Value) -> Column:
    """Build the condition that a column has a value: never, if the value does not fit its type exactly."""
    literal: Any = None
    if isinstance(value, bool):
        literal = value if isinstance(data_type, T.BooleanType) else None
    elif isinstance(value, int | float) and isinstance(data_type, T.LongType):
        literal = int(value) if int(value) == value and MIN_INT64 <= value <= MAX_INT64 else None
    elif isinstance(value, int | float) and isinstance(data_type, T.DoubleType):
        literal = float(value) if float(value) == value else None
    elif isinstance(value, str):
        literal = _to_literal(value, data_type)
    return F.lit(False) if literal is None else column.eqNullSafe(F.lit(literal).cast(data_type))  # noqa: FBT003


def _to_literal(text: str, data_type: T.DataType) -> Any:
    """Convert a string to what equals it in a column; dates and times are strings in a graph."""
    if isinstance(data_type, T.StringType):
        return text
    try:
        if isinstance(data_type, T.DateType):
            return date.fromisoformat(text)
        if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
            moment = datetime.fromisoformat(text)
            return text if (moment.tzinfo is None) == isinstance(data_type, T.TimestampNTZType) else None
    except ValueError:
        pass
    return None


def read_condition(given: Mapping[str, Any] | None) -> Properties:
    """Check the properties that an existing record must have to be overwritten."""
    condition = normalize_properties(given, "condition")
    for name, value in condition.items():
        if isinstance(value, list | dict):
            raise InvalidArgumentError(f"condition has {value!r} for {name!r}; give a string, a number or a boolean.")
    return condition
