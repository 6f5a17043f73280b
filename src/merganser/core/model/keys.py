"""Keys: their names, their canonical form, and exact vectorised matching.

Two keys are equal when their canonical forms are: strings as bytes, instants as integers, floats without a negative
zero. Footers are decoded into the same form, so one comparison serves matching and pruning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.schema import decode_dictionary
from merganser.errors import InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    import numpy.typing as npt

SOURCE_ROW = "source_row"
# Bytes of the widest decimals.
_WIDTH = 32


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
        message = "key_columns is empty. Name at least one column that identifies a row."
        raise InvalidArgumentError(message)
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        message = f"key_columns names {', '.join(map(repr, repeated))} more than once. Name each column once."
        raise InvalidArgumentError(message)
    return list(names)


def check_key_type(kind: pa.DataType, column: str) -> None:
    """Refuse key types that have no equality."""
    if pa.types.is_nested(kind):
        message = f"Key column {column!r} has type {kind}; a key must be a plain value. Choose another key column."
        raise UnsupportedTypeError(message)


def to_canonical_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of the canonical form of a key column."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind):
        wide = pa.types.is_decimal256(kind)
        return pa.decimal256(76, kind.scale) if wide else pa.decimal128(38, kind.scale)
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_uint64(kind):
        return pa.uint64()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        return pa.int64()
    return pa.large_binary()


def to_canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give the canonical form of a key column: equal bytes mean equal keys, and order is the footer's order."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = decode_dictionary(column)
    goal = to_canonical_type(column.type)
    if pa.types.is_temporal(column.type):
        narrow = pa.int32() if column.type.bit_width == pa.int32().bit_width else pa.int64()
        column = pa.chunked_array([chunk.view(narrow) for chunk in column.chunks], narrow)
    column = column.cast(goal)
    if pa.types.is_floating(goal):
        # Adding zero turns -0.0 into 0.0 and leaves every other value alone.
        column = pc.add(column, 0.0)
    return column


def to_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give a canonical column in a type that other systems compare as Arrow does: their decimals end at 38 digits.

    >>> [value.as_py()[0] for value in to_comparable(pa.chunked_array([pa.array([-1, 1], pa.decimal256(76, 0))]))]
    [127, 128]
    """
    if not pa.types.is_decimal256(column.type):
        return column
    return pa.chunked_array([_to_ordered_bytes(chunk) for chunk in column.chunks], pa.binary(_WIDTH))


def to_comparable_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of what `to_comparable` makes."""
    return pa.binary(_WIDTH) if pa.types.is_decimal256(kind) else kind


def _to_ordered_bytes(decimals: pa.Array) -> pa.Array:
    """Write the integers under decimals with the highest byte first and the sign turned round: bytes in their order."""
    validity, data = decimals.buffers()
    raw = np.frombuffer(data, np.uint8).reshape(-1, _WIDTH)[decimals.offset : decimals.offset + len(decimals)]
    turned = raw[:, ::-1].copy()
    turned[:, 0] ^= 0x80
    plain = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_WIDTH), len(decimals), [None, pa.py_buffer(turned)])
    return plain if validity is None else pc.if_else(decimals.is_valid(), plain, None)


def to_python_value(value: Any, kind: pa.DataType) -> Any:
    """Give a canonical value of a key of this type as the Python value that people know, or None if there is none."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if pa.types.is_boolean(kind):
        return bool(value)
    if not pa.types.is_temporal(kind):
        return value
    narrow = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
    try:
        return pa.array([value], narrow).view(kind)[0].as_py()
    except (OverflowError, ValueError):
        return None


def to_canonical_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Give the key columns in canonical form, named by position so that any column name may be a key."""
    return pa.table([to_canonical(table.column(name)) for name in keys], names=name_key_columns(len(keys)))


def name_key_columns(count: int) -> list[str]:
    """Name canonical key columns by their position."""
    return [f"key_{number}" for number in range(count)]


def count_null_keys(table: pa.Table, keys: Sequence[str]) -> dict[str, int]:
    """Count the rows of each key column that are NULL or NaN; columns without any are left out."""
    counts = {}
    for name in keys:
        column = table.column(name)
        nulls = column.null_count
        if pa.types.is_floating(column.type):
            nulls += pc.sum(pc.is_nan(column)).as_py() or 0
        if nulls:
            counts[name] = nulls
    return counts


def find_duplicate_keys(table: pa.Table, keys: Sequence[str], limit: int) -> tuple[int, pa.Table]:
    """Count the keys that stand in more than one row, and show the first of them in row order."""
    names, found = name_key_columns(len(keys)), to_canonical_keys(table, keys)
    if any(map(_is_ascending, found.columns)):
        return 0, table.select(keys).slice(0, 0)
    numbered = found.append_column(SOURCE_ROW, number_rows(table.num_rows))
    groups = numbered.group_by(names).aggregate([(SOURCE_ROW, "count"), (SOURCE_ROW, "min")])
    twice = groups.filter(pc.greater(groups.column(f"{SOURCE_ROW}_count"), 1))
    first = np.sort(twice.column(f"{SOURCE_ROW}_min").to_numpy())[:limit]
    return twice.num_rows, table.select(keys).take(first)


def _is_ascending(column: pa.ChunkedArray) -> bool:
    """Say whether whole numbers rise from row to row, as those of an export often do: then no two are the same."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    numbers = column.to_numpy()
    return bool((numbers[1:] > numbers[:-1]).all())


def find_latest_rows(table: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> npt.NDArray[np.int64]:
    """Find the row that counts for each key: the highest in `order_by`, then the last; rows in table order.

    NULL is lowest and NaN highest, as in DuckDB and Spark.
    """
    ordered = sort_rows(table, order_by)
    rank = np.empty(table.num_rows, np.int64)
    rank[ordered] = np.arange(table.num_rows)
    ranked = to_canonical_keys(table, keys).append_column("rank", pa.array(rank))
    highest = ranked.group_by(name_key_columns(len(keys))).aggregate([("rank", "max")])
    return np.sort(ordered[highest.column("rank_max").to_numpy()])


def sort_rows(table: pa.Table, order_by: Sequence[str]) -> npt.NDArray[np.int64]:
    """Give the rows from the lowest to the highest in these columns; equal ones keep their order.

    NULL is lowest and NaN highest.
    """
    if not order_by:
        return np.arange(table.num_rows)
    columns = [part for name in order_by for part in _to_sort_columns(table.column(name))]
    names = name_key_columns(len(columns))
    sort_keys = [(name, "ascending", "at_start") for name in names]
    indices = pc.sort_indices(pa.table(columns, names=names), sort_keys=sort_keys)
    return indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _to_sort_columns(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Give a column in forms that Arrow orders as we do, the first of which counts most: NaN is the highest number."""
    column = to_canonical(column)
    if not pa.types.is_floating(column.type):
        return [column]
    nan = pc.is_nan(column)
    return [nan.cast(pa.int8()), pc.if_else(nan, 0.0, column)]


def is_at_least(new: pa.ChunkedArray, old: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Say of each value whether it is at least the one beside it, in the order of `find_latest_rows`.

    >>> column = lambda *values: pa.chunked_array([pa.array(values, pa.float64())])
    >>> is_at_least(column(2, 1, None, 1, None), column(2, 2, 2, None, None)).tolist()
    [True, False, False, True, True]
    """
    tied, higher = np.ones(len(new), np.bool_), np.zeros(len(new), np.bool_)
    for left, right in zip(_to_sort_columns(new), _to_sort_columns(old), strict=True):
        above, equal = (_to_mask(compare(left, right)) for compare in (pc.greater, pc.equal))
        nothing, instead = (column.is_null().to_numpy() for column in (left, right))
        higher |= tied & (above | (instead & ~nothing))
        tied &= equal | (instead & nothing)
    return higher | tied


def _to_mask(answers: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return pc.fill_null(answers, False).to_numpy()  # type: ignore[no-any-return]  # noqa: FBT003


def join_keys(target: pa.RecordBatchReader, source: pa.Table, positions: Sequence[str]) -> pa.Table:
    """Match canonical target keys, streamed, against canonical source keys.

    The target streams `positions` columns beside its keys; the result holds them and the `source_row` of each match,
    in no order. NULL matches nothing. Several target rows with one key are several matches.
    """
    # Imported here: where pandas is installed this brings it along, which `import merganser` must not.
    from pyarrow import acero  # noqa: PLC0415

    names = name_key_columns(source.num_columns - 1)
    options = acero.HashJoinNodeOptions(
        "inner", left_keys=names, right_keys=names, left_output=list(positions), right_output=[SOURCE_ROW]
    )
    probe = acero.Declaration("record_batch_reader_source", acero.RecordBatchReaderSourceNodeOptions(target))
    build = acero.Declaration("table_source", acero.TableSourceNodeOptions(source))
    return acero.Declaration("hashjoin", options, inputs=[probe, build]).to_table(use_threads=True)


def number_rows(count: int) -> pa.Array:
    """Number rows from zero."""
    return pa.array(np.arange(count, dtype=np.int64))
