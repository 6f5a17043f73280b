"""Footers: one ranged read each, the row groups they describe, and the bounds of key columns that can be trusted.

A bound is trusted only when the footer proves it: declared column order, exact, no NaN, of the key's own type. What
is not trusted becomes None, which means "unbounded".
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.errors import UnreadableFileError, UnsupportedFileError
from merganser.core.thrift import ThriftError, scan_fields, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.core.storage import Store

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
_TAIL = 8
_GUESS = 64 << 10
# What follows the minimum: the deprecated one by null or distinct count or the newer maximum, an unmarked one by the
# end of the statistics or the count of NaN.
_AFTER_DEPRECATED = {b"\x16", b"\x26", b"\x38"}
_NO_MARKS = {b"\x00", b"\x36"}
_LAYOUTS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
_TYPE_DEFINED = b"\x1c\x00\x00"
_OLD_PARQUET_MR = re.compile(r"parquet-mr version 1\.[0-9]\.")
_ENCRYPTION_FIELDS = {8, 9}
_EXTENSIONS = {"UUID", "JSON"}
_UNWRITABLE = {"INTERVAL", "GEOMETRY", "GEOGRAPHY", "VARIANT"}
_EXACT = Context(prec=80)
_BITS = {"INT32": 32, "INT64": 64}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class Footer:
    """A parsed footer with the bytes it came from."""

    metadata: pq.FileMetaData
    raw: bytes
    size: int

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the file's columns, with INT96 as the instant that it is (S6)."""
        return arrow_schema(self.metadata)


def read_footer(store: Store, path: str, shown: str) -> Footer:
    """Read one footer; a file that cannot be read or must not be rewritten is an error that names it."""
    try:
        with store.open_input(path) as stream:
            size = stream.size()
            guess = stream.read_at(min(size, _GUESS), max(0, size - _GUESS))
            length = _footer_length(guess, size, shown)
            if length + _TAIL > len(guess):
                guess = stream.read_at(length + _TAIL, size - length - _TAIL)
    except OSError as error:
        if isinstance(error, UnreadableFileError):
            raise
        message = f"Cannot read {shown}: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    raw = guess[len(guess) - length - _TAIL :]
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + raw))
    except (OSError, pa.ArrowException, OverflowError) as error:
        message = f"The Parquet footer of {shown} cannot be read: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    footer = Footer(metadata, raw[:-_TAIL], size)
    if _declared_orders(footer) is None:
        _refuse_encrypted(footer, shown)
    return footer


def _footer_length(tail: bytes, size: int, shown: str) -> int:
    if size >= len(MAGIC) + _TAIL and tail[-4:] == ENCRYPTED_MAGIC:
        raise _encrypted(shown)
    if size < len(MAGIC) + _TAIL or tail[-4:] != MAGIC:
        message = f"{shown} is not a Parquet file, or is cut short ({size} bytes). Restore or remove the file."
        raise UnreadableFileError(message)
    (length,) = struct.unpack("<I", tail[-8:-4])
    if length + _TAIL + len(MAGIC) > size:
        message = f"The Parquet footer of {shown} is longer than the file. Restore or remove the file."
        raise UnreadableFileError(message)
    return int(length)


def _refuse_encrypted(footer: Footer, shown: str) -> None:
    try:
        fields = {number for number, _, _ in scan_fields(footer.raw)}
    except ThriftError as error:
        message = f"The Parquet footer of {shown} cannot be read: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    if fields & _ENCRYPTION_FIELDS:
        raise _encrypted(shown)


def _encrypted(shown: str) -> UnsupportedFileError:
    return UnsupportedFileError(
        f"{shown} is encrypted; rewriting it would write plaintext. Merge into an unencrypted copy of the dataset."
    )


def arrow_schema(metadata: pq.FileMetaData) -> pa.Schema:
    """Give the Arrow schema that reading a file gives, INT96 as timestamp[us, UTC], UUID and JSON as such."""
    schema = metadata.schema.to_arrow_schema()
    leaves = [metadata.schema.column(leaf) for leaf in range(metadata.num_columns)]
    if not any(leaf.physical_type == "INT96" or leaf.logical_type.type in _EXTENSIONS for leaf in leaves):
        return schema
    walked = iter(leaves)
    return pa.schema([_with_meaning(field, walked) for field in schema], schema.metadata)


def _with_meaning(field: pa.Field, leaves: Iterator[Any]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_meaning(child, leaves) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_meaning(kind.key_field, leaves), _with_meaning(kind.item_field, leaves))
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_meaning(kind.value_field, leaves))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_with_meaning(kind.value_field, leaves))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_with_meaning(kind.value_field, leaves), kind.list_size)
    else:
        kind = _leaf_type(kind, next(leaves))
    return field.with_type(kind)


def _leaf_type(kind: pa.DataType, leaf: Any) -> pa.DataType:
    if leaf.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    if leaf.logical_type.type == "UUID" and kind == pa.binary(16):
        return pa.uuid()
    if leaf.logical_type.type == "JSON" and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return pa.json_(kind)
    return kind


def unwritable(metadata: pq.FileMetaData) -> str | None:
    """Name a column whose Parquet type PyArrow reads as bare bytes and cannot write, if there is one."""
    columns = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    return next((c.path for c in columns if {c.logical_type.type, c.converted_type} & _UNWRITABLE), None)


Bound = tuple[Any, Any] | None


def key_bounds(footer: Footer, column: str, kind: pa.DataType) -> list[Bound]:
    """Give the canonical (min, max) of a key column in each row group, None where nothing is proven (P4)."""
    metadata = footer.metadata
    unproven: list[Bound] = [None] * metadata.num_row_groups
    leaf = _leaf(metadata, column)
    orders = _declared_orders(footer)
    if leaf is None or orders is None or not orders[leaf]:
        return unproven
    described = metadata.schema.column(leaf)
    decode = _decoder(described, kind)
    if decode is None or (_distrusted_writer(metadata) and not _plain_signed(described)):
        return unproven
    bounds: list[Bound] = []
    position = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        statistics = chunk.statistics
        bound = None
        if statistics is not None and statistics.has_min_max:
            low, high = statistics.min_raw, statistics.max_raw
            position = _find_chunk(footer.raw, position, column)
            exact, position = _find_exact(footer.raw, position, *(_stored(raw, described) for raw in (low, high)))
            # Bounds of no values at all: one of the two claims is wrong.
            empty = statistics.has_null_count and statistics.null_count >= chunk.num_values
            bound = _ordered(decode(low, high)) if exact and not empty else None
        bounds.append(bound)
    return bounds


def _ordered(bound: tuple[Any, Any]) -> Bound:
    low, high = bound
    if any(isinstance(value, float) and math.isnan(value) for value in bound) or low > high:
        return None
    return bound


def _leaf(metadata: pq.FileMetaData, column: str) -> int | None:
    # A leaf's path joins names with dots, and a plain column's name may hold dots itself.
    for leaf in range(metadata.num_columns):
        described = metadata.schema.column(leaf)
        if described.path == column and described.max_repetition_level == 0 and described.name == column:
            return leaf
    return None


def _declared_orders(footer: Footer) -> Sequence[bool] | None:
    """Read the column orders off the end of the footer; None if they do not stand there in their usual form."""
    leaves = footer.metadata.num_columns
    end = len(footer.raw) - 1
    start = end - leaves * len(_TYPE_DEFINED)
    header = bytes([leaves << 4 | 0xC]) if leaves < 0xF else b"\xfc" + varint(leaves)
    if start < len(header) + 1 or footer.raw[end:] != b"\x00" or footer.raw[start - len(header) : start] != header:
        return None
    entries = footer.raw[start:end]
    return [entries[3 * leaf : 3 * leaf + 3] == _TYPE_DEFINED for leaf in range(leaves)]


def _distrusted_writer(metadata: pq.FileMetaData) -> bool:
    return bool(_OLD_PARQUET_MR.match(metadata.created_by or ""))


def _plain_signed(column: Any) -> bool:
    logical = column.logical_type.type
    unsigned = "UINT" in column.converted_type or "isSigned=false" in str(column.logical_type)
    return "BYTE_ARRAY" not in column.physical_type and logical != "DECIMAL" and not unsigned


def _stored(raw: Any, column: Any) -> bytes:
    """Give a bound back the bytes that the footer holds."""
    if isinstance(raw, bytes):
        return raw
    return struct.pack(_LAYOUTS[column.physical_type], raw)


def _find_chunk(raw: bytes, start: int, column: str) -> int:
    """Find the next column chunk of a plain column by its path, which stands before its statistics."""
    name = column.encode()
    found = raw.find(b"\x19\x18" + varint(len(name)) + name, start)
    return found if found >= 0 else len(raw)


def _find_exact(raw: bytes, start: int, low: bytes, high: bytes) -> tuple[bool, int]:
    """Say whether the next bounds of these bytes in a footer are whole values, and where to look on from.

    Writers may cut long values and mark them inexact. PyArrow hides the marks, and parsing every footer in Python
    costs a hundred times more than finding the bounds in it: in Thrift's compact form the maximum stands before the
    minimum, and the marks follow. Bounds that cannot be found so are taken for inexact.
    """
    needle = varint(len(high)) + high + b"\x18" + varint(len(low)) + low
    found = raw.find(needle, start)
    while found >= 0 and raw[found + len(needle) : found + len(needle) + 1] in _AFTER_DEPRECATED:
        found = raw.find(needle, found + 1)
    if found < 0:
        return False, start
    end = found + len(needle)
    return raw[end : end + 1] in _NO_MARKS or raw[end : end + 2] == b"\x11\x11", end


def _decoder(column: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911  pyarrow's column schema; one line a type
    """Choose how a footer's raw (min, max) becomes the canonical form of a key of this Arrow type."""
    physical = column.physical_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_decimal(kind):
        return _decimal_decoder(column, kind)
    if pa.types.is_float16(kind):
        return (
            _both(lambda raw: float(np.frombuffer(raw, np.float16)[0]) + 0.0)
            if physical == "FIXED_LEN_BYTE_ARRAY"
            else None
        )
    if pa.types.is_floating(kind):
        return _both(lambda raw: float(raw) + 0.0) if physical in {"FLOAT", "DOUBLE"} else None
    if pa.types.is_boolean(kind):
        return _both(int) if physical == "BOOLEAN" else None
    if pa.types.is_integer(kind):
        return _integer_decoder(physical, kind)
    if pa.types.is_temporal(kind):
        return _temporal_decoder(column, kind)
    return _both(bytes) if "BYTE_ARRAY" in physical else None


def _both(one: Any) -> Any:
    return lambda low, high: (one(low), one(high))


def _integer_decoder(physical: str, kind: pa.DataType) -> Any:
    if physical not in _BITS:
        return None
    if pa.types.is_unsigned_integer(kind):
        return _both(lambda raw: int(raw) % (1 << _BITS[physical]))
    return _both(int)


def _decimal_decoder(column: Any, kind: pa.DataType) -> Any:
    if column.logical_type.type != "DECIMAL" or column.scale != kind.scale:
        return None

    def one(raw: int | bytes) -> Decimal:
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return _EXACT.scaleb(Decimal(unscaled), -kind.scale)

    return _both(one)


def _temporal_decoder(column: Any, kind: pa.DataType) -> Any:
    if column.physical_type not in _BITS:
        return None
    if pa.types.is_date(kind):
        days = 1 if pa.types.is_date32(kind) else 86_400_000
        return _both(lambda raw: raw * days) if column.logical_type.type == "DATE" else None
    if pa.types.is_duration(kind):
        return _both(int)
    stored = next((unit for name, unit in _UNIT_NAMES.items() if f"timeUnit={name}" in str(column.logical_type)), None)
    if stored is None:
        return None
    wanted, have = _PER_SECOND[kind.unit], _PER_SECOND[stored]
    # A coarser key type takes the floor of a minimum and the ceiling of a maximum.
    return lambda low, high: (low * wanted // have, -(-high * wanted // have))
