"""Checks of schemas and source facts, all of which pass before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.model.keys import NullSafeKeys, check_key_type
from merganser.core.model.schema import format_value
from merganser.errors import (
    ColumnValueError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    PartitionMoveError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.core.model.engine import SourceFacts
    from merganser.core.model.strategy import Rule


# PyArrow's reader refuses a Parquet schema of over 100 levels, two of which are the root and the values.
_MAX_LEVELS = 98


def check_key_columns(schema: pa.Schema, keys: Iterable[str], side: str) -> None:
    """Refuse keys that the source or target lacks (K2) or cannot compare (K7)."""
    for name in keys:
        if name not in schema.names:
            message = f"Key column {name!r} is missing from the {side}. Its columns are: {', '.join(schema.names)}."
            raise KeyColumnError(message)
        check_key_type(schema.field(name).type, name)


def check_partition_columns(schema: pa.Schema, columns: Sequence[str], side: str) -> None:
    """Refuse partition columns that the source or target lacks."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"Partition column {missing[0]!r} is missing from the {side}. Its columns are: {', '.join(schema.names)}."
        )


def check_order_columns(schema: pa.Schema, columns: Sequence[str], argument: str, side: str) -> None:
    """Refuse columns to order by that do not exist or have no order."""
    for name in columns:
        if name not in schema.names:
            message = f"{argument} names {name!r}, which the {side} lacks. Its columns are: {', '.join(schema.names)}."
            raise InvalidArgumentError(message)
        check_key_type(schema.field(name).type, name)


def check_source_keys(facts: SourceFacts, keys: Sequence[str]) -> None:
    """Refuse NaN in the keys of a source, and NULL unless it equals NULL (K3, Q5)."""
    if isinstance(keys, NullSafeKeys):
        remedy = "null_keys='match' is about NULL only. Filter or fill those rows before merging."
        check_null_keys(facts.nan_keys, remedy, "NaN")
    elif facts.null_keys != facts.nan_keys:
        remedy = "Filter or fill those rows before merging, or pass null_keys='match' to let NULL equal NULL."
        check_null_keys(facts.null_keys, remedy)
    else:
        check_null_keys(facts.null_keys)


def check_null_keys(
    counts: Mapping[str, int],
    remedy: str = "Filter or fill those rows before merging.",
    values: str = "NULL or NaN",
) -> None:
    """Refuse NULL keys (K3)."""
    if counts:
        columns = ", ".join(f"{name!r} in {rows} row{'s' * (rows != 1)}" for name, rows in counts.items())
        raise KeyColumnError(f"The source has {values} in key columns: {columns}. {remedy}")


def check_duplicate_keys(count: int, sample: pa.Table, rule: Rule, *, has_clauses: bool) -> None:
    """Refuse two source rows with one key (K5)."""
    if count:
        # deduplicate is an upsert, so it is no remedy for strategies that do less.
        remedy = (
            "Use strategy='deduplicate' to keep one row per key, or set sequence_column to the column that orders them."
            if rule.replaces and rule.inserts and not rule.deletes_missing
            else "Set sequence_column to the column that orders them, or keep one row per key in the source."
        )
        if has_clauses:
            remedy = (
                "Set sequence_column to the column that orders them, with repeated_keys='apply_in_order' to apply all "
                "of them and not only the newest, or keep one row per key in the source."
            )
        raise DuplicateKeyError(
            f"The source has {count} duplicate key{'s' * (count != 1)}, for example {format_keys(sample)}. {remedy}"
        )


def check_repeated_keys(count: int, sample: pa.Table) -> None:
    """Refuse keys of which more than one source row would change or add a row (Q3)."""
    if count:
        raise DuplicateKeyError(
            f"Clauses apply to several source rows of {count} key{'s' * (count != 1)}, for example "
            f"{format_keys(sample)}. Let conditions exclude all but one row of a key, keep one in the source, or set "
            "sequence_column to the column that orders them, with repeated_keys='apply_in_order' to apply all of them "
            "and not only the newest."
        )


def check_tied_rows(count: int, sample: pa.Table, column: str) -> None:
    """Refuse rows of a key that are equal in the column that orders them, if nothing else does (Q8)."""
    if count:
        raise DuplicateKeyError(
            f"The rows of a DataFrame have no order, and {count} key{'s have' if count != 1 else ' has'} several rows "
            f"with the same {column!r}, for example {format_keys(sample)}. Let sequence_column differ within a key."
        )


def check_required(facts: SourceFacts, required: Iterable[str]) -> None:
    """Refuse NULL in a column that the target requires (S1)."""
    for name in required:
        if name in facts.columns_with_nulls:
            message = f"Column {name!r} holds NULL in the source, but the target declares it NOT NULL. Fill it first."
            raise ColumnValueError(message)


def check_insert_columns(missing: Sequence[str]) -> None:
    """Refuse new rows without a column that the target requires."""
    if missing:
        raise ColumnValueError(
            f"New rows lack {', '.join(map(repr, missing))}, which the target declares NOT NULL. Add it to the source, "
            "and to insert_columns if these are given."
        )


def check_moves(moved: int, sample: pa.Table, partition_columns: Sequence[str]) -> None:
    """Refuse to move rows between partitions (H4)."""
    if moved:
        raise PartitionMoveError(
            f"Partition columns cannot change for existing keys: {moved} row{'s' * (moved != 1)} of the target would "
            f"change {', '.join(map(repr, partition_columns))}, for example {format_keys(sample)}. Pass "
            "on_partition_move='move' to move them, or keep their partition values."
        )


def check_supported_types(schema: pa.Schema, side: str) -> None:
    """Refuse types that PyArrow cannot read back, or reads or casts wrongly across chunks (S5)."""
    for field in schema:
        # First, because the next check and the type's name recurse through all levels.
        if _count_levels(field.type) > _MAX_LEVELS:
            raise UnsupportedTypeError(
                f"Column {field.name!r} of the {side} is nested over {_MAX_LEVELS} levels deep, where a list counts "
                "as two; PyArrow could not read it back. Flatten it, or store it as a string."
            )
        if _is_unsupported(field.type):
            raise UnsupportedTypeError(
                f"Column {field.name!r} of the {side} has type {field.type}: a list view, or a dictionary inside a "
                "nested type, is not supported. Cast it to the plain list or value type first."
            )


def _count_levels(data_type: pa.DataType) -> int:
    deepest, pending = 0, [(data_type, 0)]
    while pending:
        inner, level = pending.pop()
        deepest = max(deepest, level)
        # In Parquet a list is a repeated group inside a group, so it has two levels.
        level += 1 if pa.types.is_struct(inner) or pa.types.is_map(inner) else 2
        pending += [(inner.field(at).type, level) for at in range(inner.num_fields)]
    return deepest


def _is_unsupported(data_type: pa.DataType, *, is_nested: bool = False) -> bool:
    if pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type):
        return True
    if pa.types.is_dictionary(data_type):
        return is_nested or pa.types.is_nested(data_type.value_type)
    return any(_is_unsupported(data_type.field(at).type, is_nested=True) for at in range(data_type.num_fields))


def check_storable(schema: pa.Schema) -> None:
    """Refuse types that Parquet cannot store (S5)."""
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowException, OSError) as error:
            message = f"Column {field.name!r} has type {field.type}, which Parquet cannot store: {error}. Cast it."
            raise UnsupportedTypeError(message) from error


def check_writable(column: str | None, path: str) -> None:
    """Refuse to write a column whose Parquet type PyArrow cannot write (S5)."""
    if column is not None:
        raise UnsupportedTypeError(
            f"Column {column!r} of {path} has a Parquet type that PyArrow cannot write (INTERVAL, GEOMETRY or "
            "VARIANT). Rewrite the dataset without it, or with another type."
        )


def format_keys(sample: pa.Table) -> str:
    """Format a few keys for a message."""
    rows = ([(name, sample.column(name)[row]) for name in sample.column_names] for row in range(sample.num_rows))
    return "; ".join(", ".join(f"{name}={format_value(value)}" for name, value in row) for row in rows)
