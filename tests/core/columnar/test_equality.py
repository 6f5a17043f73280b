"""Equality and order of values, as Python knows them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.support import to_plain_values
from tests.values import FLOATS, NESTED, PLAIN, build, cells

from merganser.core.columnar.equality import compare_rows
from merganser.core.model.casts import cast_column
from merganser.core.model.keys import is_at_least
from merganser.core.model.schema import to_plain_type


def column(values: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    """Build a column in plain types, in two chunks, the first of which begins in the middle of an array."""
    made = build([None, *values], kind)
    whole = cast_column(pa.chunked_array([made]), to_plain_type(made.type), "v")
    return pa.chunked_array([whole.slice(1, 2).combine_chunks(), *whole.slice(3).chunks], whole.type)


def unsigned(value: Any) -> Any:
    """Let -0.0 be 0.0, in nested values too."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list | tuple):
        return [unsigned(inner) for inner in value]
    if isinstance(value, dict):
        return {name: unsigned(inner) for name, inner in value.items()}
    return value


# M5
@pytest.mark.parametrize("kind", [*PLAIN, *FLOATS, *NESTED], ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_values_are_equal_as_in_python(kind: pa.DataType, data: st.DataObject) -> None:
    pool = [None, *data.draw(st.lists(cells(kind), min_size=1, max_size=4))]
    picks = st.lists(st.sampled_from(range(len(pool))), min_size=6, max_size=6)
    one, other = (column([pool[at] for at in data.draw(picks)], kind) for _ in range(2))
    frozen = ([oracle.freeze(unsigned(value)) for value in to_plain_values(side)] for side in (one, other))
    expected = [left == right for left, right in zip(*frozen, strict=True)]
    assert compare_rows(pa.table({"v": one}), pa.table({"v": other})).tolist() == expected


# M3
@pytest.mark.parametrize("kind", [*PLAIN, *FLOATS], ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_values_are_ordered_as_in_python(kind: pa.DataType, data: st.DataObject) -> None:
    pool = [None, *data.draw(st.lists(cells(kind), min_size=1, max_size=4))]
    picks = st.lists(st.sampled_from(range(len(pool))), min_size=6, max_size=6)
    one, other = (column([pool[at] for at in data.draw(picks)], kind) for _ in range(2))
    rows = zip(to_plain_values(one), to_plain_values(other), strict=True)
    expected = [oracle.rank({"v": new}, ["v"]) >= oracle.rank({"v": old}, ["v"]) for new, old in rows]
    assert is_at_least(one, other).tolist() == expected
