"""Whether two values are the same, row by row: NULL is NULL, NaN is NaN, -0.0 is 0.0, nested values by content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    same = np.ones(one.num_rows, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        same &= compare_arrays(to_array(left), to_array(right))
    return same


def compare_arrays(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Compare two arrays of one plain type."""
    data_type = one.type
    if isinstance(data_type, pa.BaseExtensionType):
        return compare_arrays(one.storage, other.storage)
    present, there = _get_validity(one), _get_validity(other)
    both: npt.NDArray[np.bool_] = present == there
    if pa.types.is_null(data_type):
        return both
    if pa.types.is_struct(data_type):
        inside = _compare_fields(one.flatten(), other.flatten(), len(one))
    elif pa.types.is_map(data_type):
        entries = pa.list_(pa.struct([data_type.key_field, data_type.item_field]))
        return compare_arrays(one.cast(entries), other.cast(entries))
    elif pa.types.is_nested(data_type):
        return _compare_lists(one, other, present, there)
    else:
        inside = _compare_plain(one, other)
    return np.where(present & there, inside, both)


def is_identical(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Say whether two columns of one plain type are the same to the bit: -0.0 is not 0.0 here.

    Of floats inside others it is not known, so the answer is no.
    """
    data_type = one.type
    if pa.types.is_floating(data_type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[data_type.bit_width]
        return bool(to_array(one).view(bits).equals(to_array(other).view(bits)))
    return not _has_floats(data_type) and bool(one.equals(other))


def _has_floats(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_floats(data_type.storage_type)
    inner = (data_type.field(number).type for number in range(data_type.num_fields))
    return pa.types.is_floating(data_type) or any(_has_floats(one) for one in inner)


def _compare_fields(one: Sequence[pa.Array], other: Sequence[pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    same = np.ones(rows, np.bool_)
    for left, right in zip(one, other, strict=True):
        same &= compare_arrays(left, right)
    return same


def _compare_lists(
    one: pa.Array, other: pa.Array, present: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    lengths = [pc.fill_null(pc.list_value_length(lists), -1).to_numpy() for lists in (one, other)]
    same: npt.NDArray[np.bool_] = (present == there) & (lengths[0] == lengths[1])
    rows = np.flatnonzero(same & present)
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
