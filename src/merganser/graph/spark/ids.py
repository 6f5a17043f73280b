"""Ids derived from keys: the same node or edge has the same id in every run, on every cluster.

An id is the first half of the SHA-256 of an encoding of the type and the match properties. Strings are prefixed by
their length, so that different keys never have the same encoding. Values that are equal by G5 are encoded alike: 1 and
1.0, or a date and its ISO string, but not 1, "1" and true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as T  # noqa: N812 - as above

from merganser.errors import PropertyTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

# 128 bits, as hex digits.
_DIGITS = 32
_TWO_TO_63 = float(2**63)


def make_node_id(type_: str, match: Mapping[str, tuple[Column, T.DataType]]) -> Column:
    """Compute the id of a node; NULL where a match property is NULL."""
    return _hash([F.lit("node" + _encode_string(type_)), *_encode_properties(match)])


def make_edge_id(type_: str, src: Column, dst: Column, match: Mapping[str, tuple[Column, T.DataType]]) -> Column:
    """Compute the id of an edge between two node ids; NULL where one of them or a match property is NULL."""
    return _hash([F.lit("edge" + _encode_string(type_)), src, dst, *_encode_properties(match)])


def _hash(encoded: list[Column]) -> Column:
    return F.substring(F.sha2(F.concat(*encoded), 256), 1, _DIGITS)


def _encode_properties(match: Mapping[str, tuple[Column, T.DataType]]) -> list[Column]:
    encoded = []
    for name in sorted(match):
        column, data_type = match[name]
        encoded += [F.lit(_encode_string(name)), _encode_value(column, data_type, name)]
    return encoded


def _encode_string(text: str) -> str:
    return f"s{len(text)}:{text}"


def _encode_value(column: Column, data_type: T.DataType, name: str) -> Column:
    """Encode values so that two encodings are equal exactly where the values are; NULL stays NULL."""
    if isinstance(data_type, T.BooleanType):
        return F.when(column, "b1").when(~column, "b0")
    if isinstance(data_type, T.LongType):
        return F.concat(F.lit("n"), column.cast("string"), F.lit(";"))
    if isinstance(data_type, T.DoubleType):
        return F.concat(F.lit("n"), _format_number(column), F.lit(";"))
    if isinstance(data_type, T.NullType):
        return column.cast("string")
    if isinstance(data_type, T.ArrayType):
        element = data_type.elementType
        items = F.transform(column, lambda item: F.coalesce(_encode_value(item, element, name), F.lit("z")))
        return F.concat(F.lit("l"), F.size(column).cast("string"), F.lit(":"), F.array_join(items, ""))
    text = _format_string(column, data_type)
    if text is None:
        raise PropertyTypeError(
            f"The match property {name!r} has type {data_type.simpleString()}, which cannot be matched. Match on its "
            "fields."
        )
    return F.concat(F.lit("s"), F.length(text).cast("string"), F.lit(":"), text)


def _format_number(column: Column) -> Column:
    """Format an integral number as an integer, any other exactly, in hexadecimal."""
    is_integral = (column == F.rint(column)) & (column >= -_TWO_TO_63) & (column < _TWO_TO_63)
    integer, exact = column.cast("bigint").cast("string"), F.format_string("%a", column)
    return F.when(is_integral, integer).when(column.isNotNull(), exact)


def _format_string(column: Column, data_type: T.DataType) -> Column | None:
    if isinstance(data_type, T.StringType):
        return column
    if isinstance(data_type, T.DateType):
        return column.cast("string")
    if isinstance(data_type, T.TimestampNTZType):
        return _format_iso(column)
    if isinstance(data_type, T.TimestampType):
        # Counted from an epoch without a zone: every other function uses the session's time zone.
        epoch = F.to_timestamp_ntz(F.lit("1970-01-01 00:00:00"))
        return F.concat(_format_iso(F.timestamp_add("MICROSECOND", F.unix_micros(column), epoch)), F.lit("+00:00"))
    return None


def _format_iso(column: Column) -> Column:
    """Format a time without a zone as Python's `isoformat` does: with six fractional digits, or none."""
    text = F.replace(column.cast("string"), F.lit(" "), F.lit("T"))
    fraction = F.rpad(F.substring_index(text, ".", -1), 6, "0")
    padded = F.concat_ws(".", F.substring_index(text, ".", 1), fraction)
    return F.when(F.contains(text, F.lit(".")), padded).otherwise(text)
