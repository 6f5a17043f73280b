"""What Spark can carry: the Arrow types of rows that travel between executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from merganser.core.model.schema import plain
from merganser.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AS_THEY_ARE = (
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.duration("us"),
)
_MOST_DIGITS = 38


def frame_schema(frame: DataFrame) -> pa.Schema:
    """Give the Arrow schema of a DataFrame; its instants are UTC, whatever the zone of the session."""
    fields = []
    for field in frame.schema.fields:
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException as error:
            message = (
                f"Column {field.name!r} has type {field.dataType.simpleString()}, which has no Arrow type. Cast it in "
                "the source."
            )
            raise UnsupportedTypeError(message) from error
        fields.append(pa.field(field.name, kind, nullable=field.nullable))
    return pa.schema(fields)


def carried_schema(schema: pa.Schema) -> pa.Schema:
    """Give the types in which rows of a source travel, each holding the same values.

    >>> carried_schema(pa.schema({"id": pa.int32(), "v": pa.dictionary(pa.int8(), pa.large_string())})).types
    [DataType(int32), DataType(string)]
    """
    return pa.schema([pa.field(field.name, _carried(field.type, field)) for field in schema])


def spark_schema(schema: pa.Schema) -> StructType:
    """Give Spark's schema for one that it can carry; every column may be NULL."""
    kinds = [from_arrow_type(kind, prefer_timestamp_ntz=True) for kind in schema.types]
    return StructType([StructField(name, kind, nullable=True) for name, kind in zip(schema.names, kinds, strict=True)])


def _carried(kind: pa.DataType, column: pa.Field) -> pa.DataType:
    # Inside of another type Arrow cannot cast these.
    if isinstance(kind, pa.UuidType | pa.JsonType) and kind == column.type:
        kind = kind.storage_type
    kind = plain(kind)
    if kind in _AS_THEY_ARE:
        return kind
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_nested(kind):
        return _carried_nested(kind, column)
    message = (
        f"Column {column.name!r} has type {column.type}, which Spark cannot carry. Cast it in the source, or merge "
        "with another engine."
    )
    raise UnsupportedTypeError(message)


def _carried_nested(kind: pa.DataType, column: pa.Field) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        # Where a row is NULL, Spark has NULL in all its fields, too.
        return field.with_type(_carried(field.type, column)).with_nullable(True)  # noqa: FBT003  Arrow's own signature

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_map(kind):
        key = inner(kind.key_field).with_nullable(False)  # noqa: FBT003  as above
        return pa.map_(key, inner(kind.item_field))
    return pa.list_(inner(kind.value_field))
