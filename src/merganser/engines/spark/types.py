"""The Arrow types in which Spark transports rows between executors."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from merganser.core.model.schema import to_plain_type
from merganser.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NATIVE_TYPES = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.float32(), pa.float64(), pa.date32(), pa.duration("us")),
)
_MAX_PRECISION = 38
# Before 4.2, instants are always UTC.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def to_arrow_schema(frame: DataFrame) -> pa.Schema:
    """Convert the schema of a DataFrame to Arrow; instants are UTC, whatever the time zone of the session."""
    fields = []
    for field in frame.schema.fields:
        try:
            data_type = to_arrow_type(field.dataType, **_IN_UTC)
        except PySparkException as error:
            raise UnsupportedTypeError(
                f"Column {field.name!r} has type {field.dataType.simpleString()}, which has no Arrow equivalent. Cast "
                "it in the source."
            ) from error
        fields.append(pa.field(field.name, data_type, nullable=field.nullable))
    return pa.schema(fields)


def to_transport_schema(schema: pa.Schema) -> pa.Schema:
    """Choose the types in which the rows of a source are transported, each with the same values.

    >>> to_transport_schema(pa.schema({"id": pa.int32(), "v": pa.dictionary(pa.int8(), pa.large_string())})).types
    [DataType(int32), DataType(string)]
    """
    return pa.schema([pa.field(field.name, _to_transport_type(field.type, field)) for field in schema])


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Convert a transport schema to Spark's; every column may be NULL."""
    types = [from_arrow_type(data_type, prefer_timestamp_ntz=True) for data_type in schema.types]
    return StructType([StructField(name, one, nullable=True) for name, one in zip(schema.names, types, strict=True)])


def _to_transport_type(data_type: pa.DataType, column: pa.Field) -> pa.DataType:
    # Arrow cannot cast these inside another type.
    if isinstance(data_type, pa.UuidType | pa.JsonType) and data_type == column.type:
        data_type = data_type.storage_type
    data_type = to_plain_type(data_type)
    if data_type in _NATIVE_TYPES:
        return data_type
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.binary()
    if (
        pa.types.is_decimal(data_type)
        and data_type.precision <= _MAX_PRECISION
        and 0 <= data_type.scale <= data_type.precision
    ):
        return pa.decimal128(data_type.precision, data_type.scale)
    if pa.types.is_timestamp(data_type) and data_type.unit != "ns":
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    if pa.types.is_nested(data_type):
        return _to_transport_nested(data_type, column)
    raise UnsupportedTypeError(
        f"Column {column.name!r} has type {column.type}, which Spark does not support. Cast it in the source, or merge "
        "with another engine."
    )


def _to_transport_nested(data_type: pa.DataType, column: pa.Field) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        # Where a row is NULL, all its fields are NULL in Spark.
        return field.with_type(_to_transport_type(field.type, column)).with_nullable(True)  # noqa: FBT003  Arrow's own signature

    if pa.types.is_struct(data_type):
        return pa.struct([inner(field) for field in data_type])
    if pa.types.is_map(data_type):
        key = inner(data_type.key_field).with_nullable(False)  # noqa: FBT003  as above
        return pa.map_(key, inner(data_type.item_field))
    return pa.list_(inner(data_type.value_field))
