"""Read nodes or edges of several types as one DataFrame."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.errors import SchemaMismatchError
from merganser.graph.spark.columns import KEY_COLUMNS, TIME_COLUMNS
from merganser.graph.sqlite.sql import quote_spark_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def union_types(frames: Mapping[str, DataFrame], kind: str, type_column: str) -> DataFrame:
    """Union the frames of several types, with the type in a column; properties that a type lacks are NULL."""
    properties = _unify_properties(frames, kind, (*KEY_COLUMNS[kind], *TIME_COLUMNS))
    aligned = []
    for type_, frame in frames.items():
        values = [
            (to_column(name) if name in frame.columns else F.lit(None).cast(data_type)).alias(name)
            for name, data_type in properties.items()
        ]
        aligned.append(frame.select(*KEY_COLUMNS[kind], F.lit(type_).alias(type_column), *values, *TIME_COLUMNS))
    return reduce(lambda one, other: one.unionAll(other), aligned)


def _unify_properties(frames: Mapping[str, DataFrame], kind: str, own: tuple[str, ...]) -> dict[str, DataType]:
    """Find the type of every property; one with several types is refused, as a column has one."""
    found: dict[str, DataType] = {}
    first: dict[str, tuple[str, str]] = {}
    for type_, frame in frames.items():
        for field in frame.schema.fields:
            if field.name in own:
                continue
            name, before = first.setdefault(field.name.lower(), (field.name, type_))
            found.setdefault(name, field.dataType)
            if name != field.name or found[name].simpleString() != field.dataType.simpleString():
                raise SchemaMismatchError(
                    f"{before} has {name!r} as {found[name].simpleString()} and {type_} has {field.name!r} as "
                    f"{field.dataType.simpleString()}, which cannot be in one column. Read the {kind} of one type at a "
                    "time."
                )
    return found


def to_column(name: str) -> Column:
    """Refer to a column by its name, which may contain dots."""
    return F.col(quote_spark_identifier(name))
