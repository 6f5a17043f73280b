"""The bounds of keys in every row group, in the form in which engines test them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.keys import NullSafeKeys, make_fill, mark_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.dataset.target import Target

    Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBounds:
    """A table with the bounds of canonical keys: a row for each row group, as `Target.get_bounds` returns them.

    Where NULL equals NULL, these rows are the bounds of keys without NULL, and more rows follow: the bounds of keys
    with NULL in each row group that might have any. So neither kind of key widens the bounds of the other.
    """

    table: pa.Table
    nullable_groups: npt.NDArray[np.int64]  # the row group of each row that follows
    has_only_null: Mask  # the row groups in which every key has NULL

    def to_group_mask(self, found: Mask) -> Mask:
        """Make a mask of row groups from one of the rows; an empty one, of rows that were not tested, stays empty."""
        if not len(found) or not len(self.has_only_null):
            return found
        count = len(self.has_only_null)
        mask = found[:count] & ~self.has_only_null
        mask[self.nullable_groups] |= found[count:]
        return mask


def make_key_bounds(target: Target, keys: Sequence[str]) -> KeyBounds:
    """Collect the bounds of keys in every row group of a dataset."""
    table = target.get_bounds(keys)
    if not isinstance(keys, NullSafeKeys):
        return KeyBounds(table=table, nullable_groups=np.zeros(0, np.int64), has_only_null=np.zeros(0, np.bool_))
    flags = [target.flag_nullable(name) for name in keys]
    might, must = (mark_nulls(side, table.num_rows) for side in zip(*flags, strict=True))
    at = np.flatnonzero(might)
    marks, none = len(keys), pa.array(np.zeros(table.num_rows, np.int64))
    rows = table.append_column(f"min_{marks}", none).append_column(f"max_{marks}", none)
    columns = {name: table.column(name).take(pa.array(at)) for name in ("file", "row_group")}
    for number, (some, every) in enumerate(flags):
        sides = [table.column(f"{side}_{number}").take(pa.array(at)) for side in ("min", "max")]
        columns[f"min_{number}"], columns[f"max_{number}"] = _include_fill(sides[0], sides[1], some[at], every[at])
    columns[f"min_{marks}"] = pa.chunked_array([np.maximum(must[at], 1)])
    columns[f"max_{marks}"] = pa.chunked_array([might[at]])
    return KeyBounds(
        table=pa.concat_tables([rows, pa.table(columns)]).combine_chunks(),
        nullable_groups=at,
        has_only_null=must > 0,
    )


def _include_fill(
    low: pa.ChunkedArray, high: pa.ChunkedArray, some: Mask, every: Mask
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Widen the bounds of a column to the value that stands for NULL, where it might hold or holds only NULL."""
    fill = make_fill(low.type)
    is_below = pc.fill_null(pc.less(fill, low), False).to_numpy() & some  # noqa: FBT003  it is the value of a scalar
    is_above = pc.fill_null(pc.greater(fill, high), False).to_numpy() & some  # noqa: FBT003  as above
    return (
        pc.if_else(pa.array(is_below | every), fill, low),
        pc.if_else(pa.array(is_above | every), fill, high),
    )
