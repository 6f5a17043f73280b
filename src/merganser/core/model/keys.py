"""Keys: names, canonical form, order and vectorised matching.

Two keys are equal when their canonical forms are: strings as bytes, instants as integers, floats without negative zero.
Footer statistics are decoded into the same form, so matching and pruning compare alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.arrow_versions import join_stream, sort_nulls_first
from merganser.core.model.partitions import from_token, to_integer_type
from merganser.core.model.schema import to_storage
from merganser.errors import InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    import numpy.typing as npt

SOURCE_ROW = "source_row"
_DECIMAL_BYTES = pa.decimal256(1, 0).byte_width
# The bits of a signed integer, less its sign and one to spare.
MAX_NULL_SAFE_KEYS = 62


class NullSafeKeys(tuple[str, ...]):
    """Names of key columns in which NULL equals NULL (Q5); in other sequences of names it matches nothing.

    Their canonical form has no NULL, so it is joined, hashed and grouped like any other: a constant stands for NULL,
    and one more column of integers has a bit for each key column, set where that one is NULL.
    """

    __slots__ = ()


def normalize_keys(key_columns: Sequence[str] | str) -> list[str]:
    """Turn a column name or a sequence of names into a list of names.

    Args:
        key_columns: The key column, or several different ones.

    >>> normalize_keys("id")
    ['id']
    >>> normalize_keys(("id", "day"))
    ['id', 'day']
    """
    names = [key_columns] if isinstance(key_columns, str) else key_columns
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        message = f"key_columns must be a column name or a sequence of column names, not {key_columns!r}."
        raise InvalidArgumentError(message)
    if not names:
        raise InvalidArgumentError("key_columns is empty. Name at least one column that identifies a row.")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        message = f"key_columns names {', '.join(map(repr, repeated))} more than once. Name each column once."
        raise InvalidArgumentError(message)
    return list(names)


def check_key_type(data_type: pa.DataType, column: str) -> None:
    """Refuse nested types as keys."""
    if pa.types.is_nested(data_type):
        message = f"Key column {column!r} has type {data_type}; a key must be a plain value. Choose another key column."
        raise UnsupportedTypeError(message)


def to_canonical_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a key column's canonical form."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_decimal(data_type):
        wide = pa.types.is_decimal256(data_type)
        return pa.decimal256(76, data_type.scale) if wide else pa.decimal128(38, data_type.scale)
    if pa.types.is_floating(data_type):
        return pa.float64()
    if pa.types.is_uint64(data_type):
        return pa.uint64()
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type) or pa.types.is_temporal(data_type):
        return pa.int64()
    return pa.large_binary()


def to_canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a key column in canonical form: equal keys have equal bytes, and order as in footer statistics."""
    column = to_storage(column)
    canonical_type = to_canonical_type(column.type)
    if pa.types.is_temporal(column.type):
        integer = to_integer_type(column.type)
        column = pa.chunked_array([chunk.view(integer) for chunk in column.chunks], integer)
    column = column.cast(canonical_type)
    if pa.types.is_floating(canonical_type):
        # Adding zero turns -0.0 into 0.0 and changes no other value.
        column = pc.add(column, 0.0)
    return column


def to_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a canonical column in a type that DuckDB and Spark order as Arrow does: their decimals end at 38 digits.

    >>> [value.as_py()[0] for value in to_comparable(pa.chunked_array([pa.array([-1, 1], pa.decimal256(76, 0))]))]
    [127, 128]
    """
    if not pa.types.is_decimal256(column.type):
        return column
    return pa.chunked_array([_to_ordered_bytes(chunk) for chunk in column.chunks], pa.binary(_DECIMAL_BYTES))


def to_comparable_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the columns that `to_comparable` returns."""
    return pa.binary(_DECIMAL_BYTES) if pa.types.is_decimal256(data_type) else data_type


def _to_ordered_bytes(decimals: pa.Array) -> pa.Array:
    """Encode the integers under decimals big-endian with the sign bit flipped, so that bytes sort as the numbers do."""
    validity, data = decimals.buffers()
    raw = np.frombuffer(data, np.uint8).reshape(-1, _DECIMAL_BYTES)[decimals.offset : decimals.offset + len(decimals)]
    flipped = raw[:, ::-1].copy()
    flipped[:, 0] ^= 0x80
    buffers = [None, pa.py_buffer(flipped)]
    encoded = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_DECIMAL_BYTES), len(decimals), buffers)
    return encoded if validity is None else pc.if_else(decimals.is_valid(), encoded, None)


def to_python_value(value: Any, data_type: pa.DataType) -> Any:
    """Convert a canonical key value to the Python value of this type, or None where Python has none."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or data_type == pa.string_view():
        with suppress(UnicodeDecodeError):
            return value.decode()
        return None
    if pa.types.is_boolean(data_type):
        return bool(value)
    if not pa.types.is_temporal(data_type):
        return value
    with suppress(OverflowError, ValueError):
        return from_token(value, data_type).as_py()
    return None


def to_canonical_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the key columns in canonical form, named by position to avoid clashes with other columns."""
    columns = [to_canonical(table.column(name)) for name in keys]
    return pa.table(fill_null_keys(columns, keys), names=list_key_names(keys))


def fill_null_keys(columns: Sequence[pa.ChunkedArray], keys: Sequence[str]) -> list[pa.ChunkedArray]:
    """Complete the canonical form of keys: where NULL equals NULL, fill it and add the column that marks it.

    >>> ids = pa.chunked_array([pa.array([7, None])])
    >>> [column.to_pylist() for column in fill_null_keys([ids], NullSafeKeys(["id"]))]
    [[7, 0], [0, 1]]
    """
    if not isinstance(keys, NullSafeKeys):
        return list(columns)
    masks = (column.is_null().to_numpy() if column.null_count else None for column in columns)
    marks = mark_nulls(masks, len(columns[0]))
    filled = (pc.fill_null(column, make_fill(column.type)) if column.null_count else column for column in columns)
    return [*filled, pa.chunked_array([marks])]


def mark_nulls(masks: Iterable[npt.NDArray[np.bool_] | None], rows: int) -> npt.NDArray[np.int64]:
    """Make the column that has a bit for each key column, from a mask of each, or None where no row is NULL."""
    marks = np.zeros(rows, np.int64)
    for bit, mask in enumerate(masks):
        if mask is not None:
            marks |= mask.astype(np.int64) << bit
    return marks


def make_fill(data_type: pa.DataType) -> pa.Scalar:
    """Make the value that stands for NULL in a canonical column of this type."""
    return pa.scalar(b"" if pa.types.is_large_binary(data_type) else 0, data_type)


def name_key_columns(count: int) -> list[str]:
    """Name canonical key columns by their position."""
    return [f"key_{number}" for number in range(count)]


def list_key_names(keys: Sequence[str]) -> list[str]:
    """List the names of the canonical columns of keys."""
    return name_key_columns(len(keys) + isinstance(keys, NullSafeKeys))


def list_key_types(schema: pa.Schema, keys: Sequence[str]) -> list[pa.DataType]:
    """List the types of the canonical columns of keys."""
    types = [to_canonical_type(schema.field(name).type) for name in keys]
    return [*types, pa.int64()] if isinstance(keys, NullSafeKeys) else types


def rename_keys(keys: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return other names of the same key columns."""
    return NullSafeKeys(names) if isinstance(keys, NullSafeKeys) else names


def count_null_keys(table: pa.Table, keys: Sequence[str]) -> dict[str, int]:
    """Count NULL and NaN in each key column that has any."""
    nans = count_nan_keys(table, keys)
    counts = {name: table.column(name).null_count + nans.get(name, 0) for name in keys}
    return {name: count for name, count in counts.items() if count}


def count_nan_keys(table: pa.Table, keys: Sequence[str]) -> dict[str, int]:
    """Count NaN in each key column that has any."""
    floats = [name for name in keys if pa.types.is_floating(table.schema.field(name).type)]
    counts = {name: pc.sum(pc.is_nan(table.column(name))).as_py() for name in floats}
    return {name: count for name, count in counts.items() if count}


def find_duplicate_keys(table: pa.Table, keys: Sequence[str], limit: int) -> tuple[int, pa.Table]:
    """Count the keys of more than one row, and return up to `limit` of them in row order."""
    names, found = list_key_names(keys), to_canonical_keys(table, keys)
    if any(map(_is_ascending, found.columns)):
        return 0, table.select(keys).slice(0, 0)
    numbered = found.append_column(SOURCE_ROW, number_rows(table.num_rows))
    groups = numbered.group_by(names).aggregate([(SOURCE_ROW, "count"), (SOURCE_ROW, "min")])
    duplicates = groups.filter(pc.greater(groups.column(f"{SOURCE_ROW}_count"), 1))
    first = np.sort(duplicates.column(f"{SOURCE_ROW}_min").to_numpy())[:limit]
    return duplicates.num_rows, table.select(keys).take(first)


def drop_duplicate_rows(table: pa.Table) -> pa.Table:
    """Keep the first of equal rows, in table order, which grouping alone does not keep."""
    names = name_key_columns(table.num_columns)
    numbered = table.rename_columns(names).append_column(SOURCE_ROW, number_rows(table.num_rows))
    first = numbered.group_by(names, use_threads=False).aggregate([(SOURCE_ROW, "min")])
    return table.take(np.sort(first.column(f"{SOURCE_ROW}_min").to_numpy()))


def _is_ascending(column: pa.ChunkedArray) -> bool:
    """Check for strictly ascending integers, common in exports, which cannot have duplicates."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    numbers = column.to_numpy()
    return bool((numbers[1:] > numbers[:-1]).all())


def find_latest_rows(table: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> npt.NDArray[np.int64]:
    """Find the latest row of each key: the highest in `order_by`, of equal ones the last. Rows are in table order."""
    # NULL is lowest and NaN highest, as in DuckDB and Spark.
    ordered = sort_rows(table, order_by)
    rank = np.empty(table.num_rows, np.int64)
    rank[ordered] = np.arange(table.num_rows)
    ranked = to_canonical_keys(table, keys).append_column("rank", pa.array(rank))
    highest = ranked.group_by(list_key_names(keys)).aggregate([("rank", "max")])
    return np.sort(ordered[highest.column("rank_max").to_numpy()])


def sort_rows(table: pa.Table, order_by: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return row numbers sorted by these columns, stably and ascending; NULL is lowest and NaN highest."""
    if not order_by:
        return np.arange(table.num_rows)
    columns = [column for name in order_by for column in _to_sort_columns(table.column(name))]
    names = name_key_columns(len(columns))
    return sort_nulls_first(pa.table(columns, names=names))


def _to_sort_columns(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return columns to sort by, the first before the second: NaN is the highest number, unlike in Arrow."""
    column = to_canonical(column)
    if not pa.types.is_floating(column.type):
        return [column]
    nan = pc.is_nan(column)
    return [nan.cast(pa.int8()), pc.if_else(nan, 0.0, column)]


def is_at_least(new: pa.ChunkedArray, old: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Compare two columns row by row, `new >= old`, in the order of `find_latest_rows`.

    >>> column = lambda *values: pa.chunked_array([pa.array(values, pa.float64())])
    >>> is_at_least(column(2, 1, None, 1, None), column(2, 2, 2, None, None)).tolist()
    [True, False, False, True, True]
    """
    tied, higher = np.ones(len(new), np.bool_), np.zeros(len(new), np.bool_)
    for left, right in zip(_to_sort_columns(new), _to_sort_columns(old), strict=True):
        both = (pc.fill_null(compare(left, right), False) for compare in (pc.greater, pc.equal))  # noqa: FBT003
        above, equal = (answers.to_numpy() for answers in both)
        is_new_null, is_old_null = (column.is_null().to_numpy() for column in (left, right))
        higher |= tied & (above | (is_old_null & ~is_new_null))
        tied &= equal | (is_old_null & is_new_null)
    return higher | tied


def join_keys(target: pa.RecordBatchReader, source: pa.Table, positions: Sequence[str]) -> pa.Table:
    """Join a stream of canonical target keys with canonical source keys.

    The result has the target's `positions` columns and the `source_row` of each match, in no order. NULL matches
    nothing. Several target rows with one key are several matches.
    """
    from pyarrow import acero  # noqa: PLC0415  late, as in `join_stream`

    names = name_key_columns(source.num_columns - 1)
    options = acero.HashJoinNodeOptions(
        "inner", left_keys=names, right_keys=names, left_output=list(positions), right_output=[SOURCE_ROW]
    )
    return join_stream(target, source, options)


def number_rows(count: int) -> pa.Array:
    """Number rows from zero."""
    return pa.array(np.arange(count, dtype=np.int64))
