"""Row-by-row equality of values: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.arrow_versions import cast
from merganser.core.columnar.take import to_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def compare_rows(one: pa.Table, other: pa.Table) -> npt.NDArray[np.bool_]:
    """Compare two tables of the same columns and plain types row by row.

    >>> lists = pa.table({"v": [[1.0, None], [2.0], None]})
    >>> compare_rows(lists, pa.table({"v": [[1.0, None], [2.0, 2.0], None]})).tolist()
    [True, False, True]
    """
    left, right = ([to_array(column) for column in table.columns] for table in (one, other))
    return _compare_fields(left, right, one.num_rows)


def compare_arrays(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Compare two arrays of one plain type value by value."""
    data_type = one.type
    if isinstance(data_type, pa.BaseExtensionType):
        return compare_arrays(one.storage, other.storage)
    is_valid, is_other_valid = _get_validity(one), _get_validity(other)
    same_validity: npt.NDArray[np.bool_] = is_valid == is_other_valid
    if pa.types.is_null(data_type):
        return same_validity
    if pa.types.is_struct(data_type):
        same_values = _compare_fields(one.flatten(), other.flatten(), len(one))
    elif pa.types.is_map(data_type):
        entries = pa.list_(pa.struct([data_type.key_field, data_type.item_field]))
        return compare_arrays(cast(one, entries), cast(other, entries))
    elif pa.types.is_nested(data_type):
        return _compare_lists(one, other, is_valid, is_other_valid)
    else:
        same_values = _compare_plain(one, other)
    return np.where(is_valid & is_other_valid, same_values, same_validity)


def is_identical(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Check whether two columns of one plain type have equal bits (-0.0 is not 0.0); nested floats count as unequal."""
    data_type = one.type
    if pa.types.is_floating(data_type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[data_type.bit_width]
        return bool(to_array(one).view(bits).equals(to_array(other).view(bits)))
    return not _has_floats(data_type) and bool(one.equals(other))


def _has_floats(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_floats(data_type.storage_type)
    children = (data_type.field(number).type for number in range(data_type.num_fields))
    return pa.types.is_floating(data_type) or any(map(_has_floats, children))


def _compare_fields(one: Sequence[pa.Array], other: Sequence[pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    same = np.ones(rows, np.bool_)
    for left, right in zip(one, other, strict=True):
        same &= compare_arrays(left, right)
    return same


def _compare_lists(
    one: pa.Array, other: pa.Array, is_valid: npt.NDArray[np.bool_], is_other_valid: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    lengths = [pc.fill_null(pc.list_value_length(lists), -1).to_numpy() for lists in (one, other)]
    same: npt.NDArray[np.bool_] = (is_valid == is_other_valid) & (lengths[0] == lengths[1])
    rows = np.flatnonzero(same & is_valid)
    left, right = (lists.take(pa.array(rows)).flatten() for lists in (one, other))
    owner = np.repeat(rows, lengths[0][rows])
    same[owner[~compare_arrays(left, right)]] = False
    return same


def _compare_plain(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_float16(one.type):
        one, other = one.cast(pa.float32()), other.cast(pa.float32())
    same = pc.fill_null(pc.equal(one, other), False)  # noqa: FBT003
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))  # noqa: FBT003
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _get_validity(values: pa.Array) -> npt.NDArray[np.bool_]:
    return values.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
