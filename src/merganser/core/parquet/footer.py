"""Parquet footers, each read with one ranged read, and the bounds of key columns that can be trusted.

A bound is trusted only if the footer declares the column order and the bound is exact, not NaN, and of the key's type.
Other bounds are None, which means unbounded.
"""

from __future__ import annotations

import math
import re
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.parquet import int96
from merganser.core.parquet.chunks import find_bounds, read_chunks
from merganser.core.parquet.thrift import ThriftError, encode_varint, scan_fields
from merganser.errors import MerganserError, UnreadableFileError, UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.core.parquet.chunks import Chunk, StoredBounds
    from merganser.core.storage.store import Store

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 8
_TAIL_READ_BYTES = 64 << 10
_LAYOUTS = {
    name: struct.Struct(layout)
    for name, layout in {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}.items()
}
_TYPE_DEFINED = b"\x1c\x00\x00"
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_DISTRUSTED = re.compile(r"parquet-mr version 1\.[0-9]\.|parquet-cpp version 1\.[0-2]\.")
_ENCRYPTION_FIELDS = {8, 9}
_EXTENSIONS = {"UUID", "JSON"}
_UNWRITABLE = {"INTERVAL", "GEOMETRY", "GEOGRAPHY", "VARIANT"}
_EXACT = Context(prec=80)
_BITS = {"INT32": 32, "INT64": 64}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True)
class Footer:
    """A parsed footer and its bytes; `display_path` is the path of the file in messages."""

    metadata: pq.FileMetaData
    raw: bytes
    size: int
    display_path: str
    _chunks: dict[int, list[Chunk]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # PyArrow's own serialisation aborts the process on some damaged footers.
        return parse_footer, (self.raw, self.size, self.display_path)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the file's columns, with INT96 as the instant that it is (S6)."""
        return to_arrow_schema(self.metadata)

    @cached_property
    def int96_columns(self) -> frozenset[str]:
        """The columns that are INT96 or contain it."""
        leaves = [self.metadata.schema.column(leaf).physical_type for leaf in range(self.metadata.num_columns)]
        if "INT96" not in leaves:
            return frozenset()
        ahead = iter(leaves)
        own = {field.name: {next(ahead) for _ in range(count_leaves(field.type))} for field in self.schema}
        return frozenset(name for name, types in own.items() if "INT96" in types)

    @cached_property
    def int96_as_bytes(self) -> pq.FileMetaData:
        """The footer with INT96 declared as twelve bytes."""
        if not self.int96_columns:
            return self.metadata
        try:
            return parse_footer(int96.retype_as_bytes(self.raw), self.size, self.display_path).metadata
        except ThriftError as error:
            raise _make_damaged_error(self.display_path, error) from error

    def decode_int96(self, table: pa.Table) -> pa.Table:
        """Decode the INT96 columns of rows that were read with `int96_as_bytes`."""
        if not self.int96_columns:
            return table
        return int96.decode_columns(table, self.int96_columns, self.schema, self.display_path)

    def load_chunks(self, row_groups: Iterable[int]) -> dict[int, list[Chunk]]:
        """Return the column chunks of some row groups."""
        wanted = set(row_groups)
        try:
            self._chunks.update(read_chunks(self.raw, wanted - self._chunks.keys()))
        except ThriftError as error:
            raise _make_damaged_error(self.display_path, error) from error
        found = {group: self._chunks[group] for group in wanted}
        if any(len(chunks) != self.metadata.num_columns for chunks in found.values()):
            raise _make_damaged_error(self.display_path, "a row group does not have the columns of the schema")
        return found


def read_footer(store: Store, path: str, display_path: str) -> Footer:
    """Read the footer of a file; damaged and encrypted files are refused."""
    with translate_read_errors(display_path), store.open_input(path) as stream:
        return load_footer(stream, display_path)


def load_footer(stream: pa.NativeFile, display_path: str) -> Footer:
    """Read the footer of an open file."""
    with translate_read_errors(display_path):
        size = stream.size()
        tail = stream.read_at(min(size, _TAIL_READ_BYTES), max(0, size - _TAIL_READ_BYTES))
        length = _read_footer_length(tail, size, display_path)
        if length + _TAIL_BYTES > len(tail):
            tail = stream.read_at(length + _TAIL_BYTES, size - length - _TAIL_BYTES)
    return parse_footer(tail[len(tail) - length - _TAIL_BYTES : -_TAIL_BYTES], size, display_path)


def parse_footer(raw: bytes, size: int, display_path: str) -> Footer:
    """Parse the bytes of a footer."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"".join((MAGIC, raw, struct.pack("<I", len(raw)), MAGIC))))
        # PyArrow decodes this lazily, and may fail.
        metadata.created_by  # noqa: B018
    except (OSError, pa.ArrowException, OverflowError, UnicodeDecodeError) as error:
        raise _make_damaged_error(display_path, error) from error
    footer = Footer(metadata, raw, size, display_path)
    if _read_column_orders(footer) is None:
        _refuse_encrypted(footer)
    return footer


@contextmanager
def translate_read_errors(display_path: str) -> Iterator[None]:
    """Name the file that cannot be read, and the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MerganserError):
            raise
        raise UnreadableFileError(f"Cannot read {display_path}: {error}. Restore or remove the file.") from error


def _make_damaged_error(path: str, reason: object) -> UnreadableFileError:
    return UnreadableFileError(f"The Parquet footer of {path} cannot be read: {reason}. Restore or remove the file.")


def _read_footer_length(tail: bytes, size: int, display_path: str) -> int:
    if size >= len(MAGIC) + _TAIL_BYTES and tail[-4:] == ENCRYPTED_MAGIC:
        raise make_encrypted_error(display_path)
    if size < len(MAGIC) + _TAIL_BYTES or tail[-4:] != MAGIC:
        message = f"{display_path} is not a Parquet file, or is truncated ({size} bytes). Restore or remove the file."
        raise UnreadableFileError(message)
    (length,) = struct.unpack("<I", tail[-8:-4])
    if length + _TAIL_BYTES + len(MAGIC) > size:
        message = f"The Parquet footer of {display_path} is longer than the file. Restore or remove the file."
        raise UnreadableFileError(message)
    return int(length)


def _refuse_encrypted(footer: Footer) -> None:
    try:
        fields = {number for number, _, _ in scan_fields(footer.raw)}
    except ThriftError as error:
        raise _make_damaged_error(footer.display_path, error) from error
    if fields & _ENCRYPTION_FIELDS:
        raise make_encrypted_error(footer.display_path)


def make_encrypted_error(path: str) -> UnsupportedFileError:
    """Make the error for an encrypted file."""
    return UnsupportedFileError(
        f"{path} is encrypted; rewriting it would write plaintext. Merge into an unencrypted copy of the dataset."
    )


def to_arrow_schema(metadata: pq.FileMetaData) -> pa.Schema:
    """Return the Arrow schema of a file, with INT96 as timestamp[us, UTC], and UUID and JSON as extension types."""
    schema = metadata.schema.to_arrow_schema()
    leaves = [metadata.schema.column(leaf) for leaf in range(metadata.num_columns)]
    if not any(leaf.physical_type == "INT96" or leaf.logical_type.type in _EXTENSIONS for leaf in leaves):
        return schema
    walked = iter(leaves)
    return pa.schema([_apply_logical_types(field, walked) for field in schema], schema.metadata)


def _apply_logical_types(field: pa.Field, leaves: Iterator[Any]) -> pa.Field:
    data_type = field.type
    if pa.types.is_struct(data_type):
        data_type = pa.struct([_apply_logical_types(child, leaves) for child in data_type])
    elif pa.types.is_map(data_type):
        data_type = pa.map_(
            _apply_logical_types(data_type.key_field, leaves), _apply_logical_types(data_type.item_field, leaves)
        )
    elif pa.types.is_list(data_type):
        data_type = pa.list_(_apply_logical_types(data_type.value_field, leaves))
    elif pa.types.is_large_list(data_type):
        data_type = pa.large_list(_apply_logical_types(data_type.value_field, leaves))
    elif pa.types.is_fixed_size_list(data_type):
        data_type = pa.list_(_apply_logical_types(data_type.value_field, leaves), data_type.list_size)
    else:
        data_type = _resolve_leaf_type(data_type, next(leaves))
    return field.with_type(data_type)


def _resolve_leaf_type(data_type: pa.DataType, leaf: Any) -> pa.DataType:
    if leaf.physical_type == "INT96":
        return int96.TIMESTAMP_UTC
    if leaf.logical_type.type == "UUID" and data_type == pa.binary(16):
        return pa.uuid()
    if leaf.logical_type.type == "JSON" and (pa.types.is_string(data_type) or pa.types.is_large_string(data_type)):
        return pa.json_(data_type)
    return data_type


def count_leaves(data_type: pa.DataType) -> int:
    """Count the column chunks of a column of this type."""
    if isinstance(data_type, pa.BaseExtensionType):
        return count_leaves(data_type.storage_type)
    if not pa.types.is_nested(data_type):
        return 1
    return sum(count_leaves(data_type.field(at).type) for at in range(data_type.num_fields))


def find_unwritable_column(metadata: pq.FileMetaData) -> str | None:
    """Find a column of a Parquet type that PyArrow reads as plain bytes and cannot write."""
    columns = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    return next((c.path for c in columns if {c.logical_type.type, c.converted_type} & _UNWRITABLE), None)


Bound = tuple[Any, Any] | None


def read_key_bounds(footer: Footer, column: str, data_type: pa.DataType) -> list[Bound]:
    """Return the canonical (min, max) of a key column in each row group, None if not trusted (P4)."""
    return read_key_statistics(footer, column, data_type)[0]


def read_key_statistics(footer: Footer, column: str, data_type: pa.DataType) -> tuple[list[Bound], list[bool]]:
    """Return the bounds of a key column in each row group, and whether NULL might be there."""
    metadata = footer.metadata
    unbounded: tuple[list[Bound], list[bool]]
    unbounded = [None] * metadata.num_row_groups, [True] * metadata.num_row_groups
    leaf = _find_leaf(metadata, column)
    orders = _read_column_orders(footer)
    if leaf is None or orders is None or not orders[leaf]:
        return unbounded
    described = metadata.schema.column(leaf)
    decode = _choose_decoder(described, data_type)
    if decode is None or (_DISTRUSTED.match(metadata.created_by or "") and not _has_signed_order(described)):
        return unbounded
    found = find_bounds(footer.raw, column, metadata.num_row_groups)
    if found is None:
        return unbounded
    physical = _PHYSICAL.index(described.physical_type)
    bounds = [
        None
        if stored is None or stored.physical_type != physical
        else _decode_bounds(stored, metadata.row_group(group).num_rows, described, decode)
        for group, stored in enumerate(found)
    ]
    # A count in statistics whose bounds are not trusted is not trusted either.
    return bounds, [
        stored is None or bound is None or stored.null_count != 0 for stored, bound in zip(found, bounds, strict=True)
    ]


def _decode_bounds(stored: StoredBounds, rows: int, column: Any, decode: Any) -> Bound:
    # All values are NULL and yet there are bounds: one of the two is wrong.
    if stored.null_count is not None and stored.null_count >= rows:
        return None
    layout = _LAYOUTS.get(column.physical_type)
    if layout is None:
        width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else None
        fits = width is None or len(stored.low) == len(stored.high) == width
        return _reject_unordered(decode(stored.low, stored.high)) if fits else None
    if not len(stored.low) == len(stored.high) == layout.size:
        return None
    return _reject_unordered(decode(layout.unpack(stored.low)[0], layout.unpack(stored.high)[0]))


def _reject_unordered(bound: tuple[Any, Any]) -> Bound:
    low, high = bound
    if any(isinstance(value, float) and math.isnan(value) for value in bound) or low > high:
        return None
    return bound


def _find_leaf(metadata: pq.FileMetaData, column: str) -> int | None:
    # A path joins names with dots, and the name of a plain column may contain dots.
    for leaf in range(metadata.num_columns):
        described = metadata.schema.column(leaf)
        if described.path == column and described.max_repetition_level == 0 and described.name == column:
            return leaf
    return None


def _read_column_orders(footer: Footer) -> Sequence[bool] | None:
    """Read the column orders at the end of the footer; None if they are not there in their usual form."""
    leaves = footer.metadata.num_columns
    end = len(footer.raw) - 1
    start = end - leaves * len(_TYPE_DEFINED)
    header = bytes([leaves << 4 | 0xC]) if leaves < 0xF else b"\xfc" + encode_varint(leaves)
    if start < len(header) + 1 or footer.raw[end:] != b"\x00" or footer.raw[start - len(header) : start] != header:
        return None
    return [footer.raw[at : at + 3] == _TYPE_DEFINED for at in range(start, end, 3)]


def _has_signed_order(column: Any) -> bool:
    logical = column.logical_type.type
    unsigned = "UINT" in column.converted_type or "isSigned=false" in str(column.logical_type)
    return "BYTE_ARRAY" not in column.physical_type and logical != "DECIMAL" and not unsigned


def _choose_decoder(column: Any, data_type: pa.DataType) -> Any:  # noqa: PLR0911  one line a type
    """Choose the decoder of a footer's (min, max) to the canonical form of a key of this type, if there is one."""
    physical = column.physical_type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa.types.is_decimal(data_type):
        return _make_decimal_decoder(column, data_type)
    if pa.types.is_float16(data_type):
        is_fixed = physical == "FIXED_LEN_BYTE_ARRAY"
        return _make_pair_decoder(lambda raw: float(np.frombuffer(raw, np.float16)[0]) + 0.0) if is_fixed else None
    if pa.types.is_floating(data_type):
        return _make_pair_decoder(lambda raw: float(raw) + 0.0) if physical in {"FLOAT", "DOUBLE"} else None
    if pa.types.is_boolean(data_type):
        return _make_pair_decoder(int) if physical == "BOOLEAN" else None
    if pa.types.is_integer(data_type):
        return _make_integer_decoder(physical, data_type)
    if pa.types.is_temporal(data_type):
        return _make_temporal_decoder(column, data_type)
    ordered = "BYTE_ARRAY" in physical and not {column.logical_type.type, column.converted_type} & _UNWRITABLE
    return _make_pair_decoder(bytes) if ordered else None


def _make_pair_decoder(decode_value: Any) -> Any:
    return lambda low, high: (decode_value(low), decode_value(high))


def _make_integer_decoder(physical: str, data_type: pa.DataType) -> Any:
    if physical not in _BITS:
        return None
    if pa.types.is_unsigned_integer(data_type):
        return _make_pair_decoder(lambda raw: int(raw) % (1 << _BITS[physical]))
    return _make_pair_decoder(int)


def _make_decimal_decoder(column: Any, data_type: pa.DataType) -> Any:
    if column.logical_type.type != "DECIMAL" or column.scale != data_type.scale:
        return None

    def decode(raw: int | bytes) -> Decimal:
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return _EXACT.scaleb(Decimal(unscaled), -data_type.scale)

    return _make_pair_decoder(decode)


def _make_temporal_decoder(column: Any, data_type: pa.DataType) -> Any:
    if column.physical_type not in _BITS:
        return None
    if pa.types.is_date(data_type):
        days = 1 if pa.types.is_date32(data_type) else 86_400_000
        return _make_pair_decoder(lambda raw: raw * days) if column.logical_type.type == "DATE" else None
    if pa.types.is_duration(data_type):
        return _make_pair_decoder(int)
    stored = next((unit for name, unit in _UNIT_NAMES.items() if f"timeUnit={name}" in str(column.logical_type)), None)
    if stored is None:
        return None
    wanted, have = _PER_SECOND[data_type.unit], _PER_SECOND[stored]
    # For a coarser key type, minima are rounded down and maxima up.
    return lambda low, high: (low * wanted // have, -(-high * wanted // have))
