"""Values that no graph can store: numbers that are not finite, and days that Python does not have."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

NOT_FINITE = "is not a finite number"
OUTSIDE_YEARS = "is or holds a day outside the years 1 to 9999"
# The first and last day that Python has, in days since 1970, and the microseconds of a day.
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_DAY = 24 * 60 * 60 * 1_000_000


def count_faults(values: pa.Array) -> dict[str, int]:
    """Count the values that have each fault, or hold one that has it."""
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    for reason, positions in _find_faults(values):
        found.setdefault(reason, []).append(positions)
    return {reason: len(np.unique(np.concatenate(positions))) for reason, positions in found.items()}


def _find_faults(values: pa.Array) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """Find the positions of values with a fault; one position may be found several times."""
    data_type = values.type
    if pa.types.is_floating(data_type):
        return [(NOT_FINITE, _find_true(pc.invert(pc.is_finite(values))))]
    if pa.types.is_date32(data_type):
        return [(OUTSIDE_YEARS, _find_outside(values.cast(pa.int32()), _FIRST_DAY, _LAST_DAY))]
    if pa.types.is_timestamp(data_type):
        instants = values.cast(pa.timestamp("us", data_type.tz)).cast(pa.int64())
        return [(OUTSIDE_YEARS, _find_outside(instants, _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1))]
    if pa.types.is_struct(data_type):
        return [fault for field in values.flatten() for fault in _find_faults(field)]
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        if pa.types.is_map(data_type):
            values = pa.ListArray.from_arrays(values.offsets, values.items, mask=values.is_null())
        parents = pc.list_parent_indices(values).to_numpy()
        return [(reason, parents[positions]) for reason, positions in _find_faults(pc.list_flatten(values))]
    return []


def _find_outside(numbers: pa.Array, lowest: int, highest: int) -> npt.NDArray[np.int64]:
    return _find_true(pc.or_(pc.less(numbers, lowest), pc.greater(numbers, highest)))


def _find_true(condition: pa.Array) -> npt.NDArray[np.int64]:
    return np.flatnonzero(pc.fill_null(condition, False).to_numpy(zero_copy_only=False))  # noqa: FBT003  Arrow's own
