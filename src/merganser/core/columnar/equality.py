"""Whether two values are the same, row by row: NULL is NULL, NaN is NaN, -0.0 is 0.0, nested values by content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def same_rows(one: pa.Table, other: pa.Table) -> npt.NDArray[np.bool_]:
    """Compare two tables of the same columns and plain types row by row.

    >>> lists = pa.table({"v": [[1.0, None], [2.0], None]})
    >>> same_rows(lists, pa.table({"v": [[1.0, None], [2.0, 2.0], None]})).tolist()
    [True, False, True]
    """
    same = np.ones(one.num_rows, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        same &= same_values(whole(left), whole(right))
    return same


def same_values(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Compare two arrays of one plain type."""
    kind = one.type
    if isinstance(kind, pa.BaseExtensionType):
        return same_values(one.storage, other.storage)
    present, there = _valid(one), _valid(other)
    both: npt.NDArray[np.bool_] = present == there
    if pa.types.is_null(kind):
        return both
    if pa.types.is_struct(kind):
        inside = _same_fields(one.flatten(), other.flatten(), len(one))
    elif pa.types.is_map(kind):
        entries = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return same_values(one.cast(entries), other.cast(entries))
    elif pa.types.is_nested(kind):
        return _same_lists(one, other, present, there)
    else:
        inside = _same_plain(one, other)
    return np.where(present & there, inside, both)


def identical(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Say whether two columns of one plain type are the same to the bit: -0.0 is not 0.0 here.

    Of floats inside others it is not known, so the answer is no.
    """
    kind = one.type
    if pa.types.is_floating(kind):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        return bool(whole(one).view(bits).equals(whole(other).view(bits)))
    return not _holds_floats(kind) and bool(one.equals(other))


def _holds_floats(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_floats(kind.storage_type)
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(_holds_floats(one) for one in inner)


def _same_fields(one: Sequence[pa.Array], other: Sequence[pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    same = np.ones(rows, np.bool_)
    for left, right in zip(one, other, strict=True):
        same &= same_values(left, right)
    return same


def _same_lists(
    one: pa.Array, other: pa.Array, present: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    lengths = [pc.fill_null(pc.list_value_length(lists), -1).to_numpy() for lists in (one, other)]
    same: npt.NDArray[np.bool_] = (present == there) & (lengths[0] == lengths[1])
    rows = np.flatnonzero(same & present)
    left, right = (lists.take(pa.array(rows)).flatten() for lists in (one, other))
    owner = np.repeat(rows, lengths[0][rows])
    same[owner[~same_values(left, right)]] = False
    return same


def _same_plain(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_float16(one.type):
        one, other = one.cast(pa.float32()), other.cast(pa.float32())
    same = pc.fill_null(pc.equal(one, other), False)  # noqa: FBT003
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))  # noqa: FBT003
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    return values.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
