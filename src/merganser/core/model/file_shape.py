"""The shape of a data file: how its columns are read, and written, in a schema other than its own.

A column of the new schema is copied from one of the file, cast from one, or the same value in every row. Key scans read
files in the schema of the dataset this way, and a rewrite gives a file its new schema (E1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.columnar.take import null_array
from merganser.core.model.casts import cast_column
from merganser.core.model.schema import encode_schema, is_same_logical_type, remove_nested_metadata, to_plain_type
from merganser.core.parquet.encode import rename_options
from merganser.core.parquet.reshape import ARROW_SCHEMA, update_key_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShape:
    """One column of the new schema: `origin` is the column of the file that has its values, if there is one."""

    field: pa.Field
    origin: str | None
    is_copied: bool  # the column of the file is of this type already
    default: pa.Array | None = None  # the one value of a column without origin; None for NULL

    @property
    def name(self) -> str:
        """The name of the column in the new schema."""
        return str(self.field.name)


@dataclass(frozen=True, slots=True)
class FileShape:
    """The columns of a file in its new schema, in order."""

    columns: tuple[ColumnShape, ...]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the file afterwards, without metadata."""
        return pa.schema([column.field for column in self.columns])

    @property
    def encoded(self) -> list[str]:
        """The columns whose chunks cannot be copied."""
        return [column.name for column in self.columns if not column.is_copied]

    @property
    def origins(self) -> dict[str, str]:
        """The column of the file that has the values of each column, by its new name."""
        return {column.name: column.origin for column in self.columns if column.origin is not None}

    @property
    def kept(self) -> list[str]:
        """The columns of the file that keep their names."""
        return [column.name for column in self.columns if column.name == column.origin]

    def copies(self, name: str) -> bool:
        """Whether a column is in the file, under this name and in this type."""
        return any(column.is_copied and column.name == column.origin == name for column in self.columns)

    def select(self, names: Sequence[str] | None) -> list[ColumnShape]:
        """Return the shapes of some columns, or of all, in this order."""
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in (by_name if names is None else names)]


def make_shape(
    own: pa.Schema,
    wanted: Iterable[pa.Field],
    origins: Mapping[str, str] | None = None,
    defaults: Mapping[str, pa.Array] | None = None,
    *,
    optional: Collection[str] = (),
    is_ordered: bool = False,
) -> FileShape | None:
    """Make the shape that gives a file of schema `own` the wanted columns; None if it has them already.

    `origins` has the old name of each column that is not new, by its new name; by default, names do not change. Columns
    that are `optional` become nullable. With `is_ordered`, columns in another order are others.
    """
    fields = {field.name: field for field in own}
    columns = []
    for field in wanted:
        name = field.name if origins is None else origins.get(field.name)
        origin = None if name is None else fields.get(name)
        becomes_nullable = origin is not None and not origin.nullable and field.name in optional
        is_copied = origin is not None and not becomes_nullable and is_same_logical_type(origin.type, field.type)
        made = _make_field(field, origin, is_copied=is_copied)
        columns.append(
            ColumnShape(
                field=made.with_nullable(made.nullable or becomes_nullable),
                origin=None if origin is None else name,
                is_copied=is_copied,
                default=None if defaults is None else defaults.get(field.name),
            )
        )
    names, compare = [column.name for column in columns], list if is_ordered else sorted
    is_same = all(column.is_copied and column.name == column.origin for column in columns)
    return None if is_same and compare(names) == compare(own.names) else FileShape(tuple(columns))


def _make_field(field: pa.Field, origin: pa.Field | None, *, is_copied: bool) -> pa.Field:
    """Make the field of a column: as in the file, but for its name and, if it is not copied, its type."""
    if origin is not None and is_copied:
        return origin.with_name(field.name)
    data_type = remove_nested_metadata(field.type)
    return pa.field(field.name, data_type) if origin is None else origin.with_name(field.name).with_type(data_type)


def apply_shape(table: pa.Table, columns: Sequence[ColumnShape], rows: int, path: str) -> pa.Table:
    """Convert rows of a file to columns of its new schema; a value that does not fit is an error."""
    arrays = [_make_column(table, column, rows, path) for column in columns]
    return pa.table(arrays, names=[column.name for column in columns])


def _make_column(table: pa.Table, column: ColumnShape, rows: int, path: str) -> pa.ChunkedArray:
    data_type = to_plain_type(column.field.type)
    if column.origin is None:
        if column.default is None:
            return pa.chunked_array([null_array(rows, data_type)])
        return cast_column(pa.chunked_array([pa.repeat(column.default[0], rows)]), data_type, column.name)
    found = table.column(column.origin)
    if column.is_copied:
        return found
    return cast_column(found, data_type, column.name, f"Correct or remove that row of {path} first.")


def shape_options(options: Mapping[str, Any], shape: FileShape) -> dict[str, Any]:
    """Convert the writer options of a file to those of its new schema."""
    return rename_options(options, shape.origins, shape.encoded)


def make_shaped_key_values(old: Mapping[bytes, bytes], shape: FileShape) -> dict[bytes, bytes]:
    """Return the key-value metadata of a file with its new schema; see `make_evolved_key_values`."""
    copied = {column.name: column.origin for column in shape.columns if column.is_copied and column.origin is not None}
    return make_evolved_key_values(old, shape.schema, copied)


def make_evolved_key_values(
    old: Mapping[bytes, bytes], schema: pa.Schema, copied: Mapping[str, str]
) -> dict[bytes, bytes]:
    """Return the key-value metadata for a new schema: copies of the schema agree with it or are left out (E6).

    Arrow's copy is there if the file had one, or if a new column needs it to keep its type.
    """
    kept = update_key_values(old, copied)
    if ARROW_SCHEMA in old or any(_needs_arrow_schema(field.type) for field in schema if field.name not in copied):
        kept[ARROW_SCHEMA] = encode_schema(pa.schema(list(schema), kept)).encode()
    return kept


def _needs_arrow_schema(data_type: pa.DataType) -> bool:
    """Whether Parquet itself has no such type."""
    if pa.types.is_duration(data_type) or pa.types.is_fixed_size_list(data_type):
        return True
    nested = (data_type.field(at).type for at in range(data_type.num_fields)) if pa.types.is_nested(data_type) else ()
    return any(map(_needs_arrow_schema, nested))
