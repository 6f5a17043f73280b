"""Which row groups can hold a row for which the condition of a clause is true, by the bounds of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.expressions import evaluate_constant
from merganser.core.model.keys import to_canonical
from merganser.core.model.strategy import Action
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from merganser.core.columnar.expressions import Comparison
    from merganser.core.dataset.target import Target
    from merganser.core.model.row_clauses import RowClauses

    Mask = npt.NDArray[np.bool_]

# All integers below the one, and decimals of as many digits as the other, are doubles of their own.
_EXACT_DOUBLE = 1 << 53
_EXACT_DIGITS = 15


def find_changeable_groups(target: Target, clauses: RowClauses) -> Mask:
    """Make a mask of the row groups, in the order of the bounds, that may hold a row which a clause changes."""
    found = np.zeros(len(target.group_file), np.bool_)
    for clause in clauses.clauses:
        holds = np.ones(len(found), np.bool_)
        for comparison in () if clause.condition is None else clause.condition.bounds:
            holds &= _might_hold(target, comparison)
        if clause.action is not Action.KEEP:
            found |= holds
    return found


def _might_hold(target: Target, comparison: Comparison) -> Mask:
    everything = np.ones(len(target.group_file), np.bool_)
    if comparison.column not in target.bounded_columns:
        return everything
    try:
        constant, data_type = evaluate_constant(comparison.constant), target.get_key_type(comparison.column)
    except InvalidArgumentError:
        # It fails for the rows that it is evaluated for, if there are any.
        return everything
    if constant.null_count:
        # NULL compares as true with nothing.
        return ~everything
    value = _convert(constant, data_type)
    # NaN is above all other values, and not in the bounds.
    is_above = comparison.operator.startswith("COMPARE_GREATER")
    if value is None or (pa.types.is_floating(data_type) and (is_above or not np.isfinite(value.as_py()))):
        return everything
    bounds = target.get_bounds([comparison.column])
    low, high = bounds.column("min_0"), bounds.column("max_0")
    answers = {
        "COMPARE_EQUAL": [pc.less_equal(low, value), pc.greater_equal(high, value)],
        "COMPARE_LESSTHAN": [pc.less(low, value)],
        "COMPARE_LESSTHANOREQUALTO": [pc.less_equal(low, value)],
        "COMPARE_GREATERTHAN": [pc.greater(high, value)],
        "COMPARE_GREATERTHANOREQUALTO": [pc.greater_equal(high, value)],
    }[comparison.operator]
    for answer in answers:
        # Without a bound, nothing is known.
        everything &= pc.fill_null(answer, True).to_numpy()  # noqa: FBT003
    return everything


def _convert(constant: pa.ChunkedArray, data_type: pa.DataType) -> Any:
    """Convert a constant to canonical form, if DuckDB would compare it in the type of the column; None if not."""
    given = constant.type
    is_text = pa.types.is_string(given) or pa.types.is_large_string(given)
    is_parsed = is_text and (
        pa.types.is_temporal(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string(data_type)
    )
    is_day = pa.types.is_date(given) and pa.types.is_timestamp(data_type)
    if not (given == data_type or is_parsed or is_day or _is_exact_number(constant, data_type)):
        return None
    try:
        value = constant.cast(data_type)
        is_exact = pa.types.is_temporal(data_type) or value.cast(given).equals(constant)
    except pa.ArrowException:
        return None
    return to_canonical(value)[0] if is_exact else None


def _is_exact_number(constant: pa.ChunkedArray, data_type: pa.DataType) -> bool:
    """Whether DuckDB compares a number with those of another type as they are, and not rounded to doubles."""
    given = constant.type
    if not all(_is_number(one) for one in (given, data_type)):
        return False
    if pa.types.is_floating(given) and not pa.types.is_floating(data_type):
        return bool(pa.types.is_integer(data_type) and abs(constant[0].as_py()) < _EXACT_DOUBLE)
    return not (pa.types.is_decimal(given) and pa.types.is_floating(data_type)) or given.precision <= _EXACT_DIGITS


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_decimal(data_type) or pa.types.is_floating(data_type))
