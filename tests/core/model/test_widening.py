"""The lattice of types: the narrowest type that holds two types, and every value of both survives the cast (E3, E4)."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support import to_plain_values
from tests.values import BYTES, DECIMALS, FLOATS, INTEGERS, NESTED, PLAIN, STRINGS, TIMES, UNITS, build, cells

from merganser.core.model.casts import cast_column
from merganser.core.model.schema import is_same_logical_type, to_plain_type
from merganser.core.model.widening import fill_null_types, find_common_type
from merganser.errors import ColumnValueError


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


MORE = (
    pa.null(),
    pa.json_(),
    pa.binary(16),
    pa.decimal128(38, 0),
    pa.decimal128(3, -2),
    pa.list_(pa.null()),
    pa.list_(pa.int8(), 2),
    pa.list_(pa.int32(), 3),
    struct(a=pa.int8()),
    struct(a=pa.int16(), b=pa.string()),
    struct(b=pa.string(), a=pa.uint8()),
    pa.map_(pa.string(), pa.int64()),
)
ALL = (*PLAIN, *NESTED, *MORE)
types = st.sampled_from(ALL)
TIME_TYPES = [kind for kind in TIMES if not pa.types.is_date(kind)]


def is_same(one: pa.DataType | None, other: pa.DataType | None) -> bool:
    """Compare types; the fields of structs may be in any order."""
    if one is None or other is None:
        return one is other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in other}
        return {field.name for field in one} == fields.keys() and all(is_same(f.type, fields[f.name]) for f in one)
    return is_same_logical_type(one, other)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.uint64(), pa.uint64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int64(), pa.uint32(), pa.int64()),
        (pa.int64(), pa.uint64(), None),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int8(), pa.float16(), pa.float16()),
        (pa.int16(), pa.float16(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.float16(), pa.float64(), pa.float64()),
        (pa.int64(), pa.decimal128(5, 2), pa.decimal128(21, 2)),
        (pa.uint64(), pa.decimal128(1, 0), pa.decimal128(20, 0)),
        (pa.int64(), pa.decimal128(38, 20), None),
        (pa.int8(), pa.decimal128(3, -2), pa.decimal128(5, 0)),
        (pa.decimal128(5, 2), pa.decimal128(7, 5), pa.decimal128(8, 5)),
        (pa.decimal32(9, 0), pa.decimal32(9, 9), pa.decimal64(18, 9)),
        (pa.decimal128(38, 0), pa.decimal128(38, 1), None),
        (pa.decimal256(76, 40), pa.decimal128(38, 0), None),
        (pa.decimal256(60, 10), pa.decimal128(38, 2), pa.decimal256(60, 10)),
        (pa.decimal128(5, 2), pa.float64(), None),
        (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.timestamp("us"), pa.date32(), None),
        (pa.timestamp("us", "UTC"), pa.date32(), None),
        (pa.time32("ms"), pa.time64("us"), pa.time64("us")),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.duration("s"), pa.duration("ns"), pa.duration("ns")),
        (pa.binary(3), pa.binary(4), pa.binary()),
        (pa.binary(3), pa.large_binary(), pa.large_binary()),
        (pa.string(), pa.binary(), None),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.string(), pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), pa.int64()),
        (pa.uuid(), pa.binary(16), None),
        (pa.list_(pa.int8()), pa.large_list(pa.int32()), pa.list_(pa.int32())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), None),
        (struct(a=pa.int8()), struct(b=pa.string(), a=pa.int64()), struct(a=pa.int64(), b=pa.string())),
        (struct(a=pa.int8()), struct(a=pa.string()), None),
        (pa.list_(struct(a=pa.null())), pa.list_(struct(a=pa.date32())), pa.list_(struct(a=pa.date32()))),
        (pa.list_(pa.int8()), struct(a=pa.int8()), None),
    ],
)
def test_the_lattice_is_as_documented(one: pa.DataType, other: pa.DataType, expected: pa.DataType | None) -> None:
    # E3
    found = find_common_type(one, other)
    assert (found is None) == (expected is None)
    assert expected is None or is_same_logical_type(found, expected)


def test_joins_are_symmetric_upper_bounds() -> None:
    # E3
    for one, other in itertools.combinations_with_replacement(ALL, 2):
        found, back = find_common_type(one, other), find_common_type(other, one)
        assert is_same(found, back), (one, other)
        if found is not None:
            assert is_same(find_common_type(found, one), found), (one, other)
            assert is_same(find_common_type(found, other), found), (one, other)


@given(types)
def test_a_type_joined_with_itself_or_with_null_stays(one: pa.DataType) -> None:
    # E3, E4
    assert find_common_type(one, one) == one
    assert find_common_type(one, pa.null()) == one
    assert find_common_type(pa.null(), one) == one


@pytest.mark.parametrize("kinds", [INTEGERS, FLOATS, DECIMALS, STRINGS, BYTES, TIME_TYPES], ids=str)
def test_joins_of_one_kind_are_associative_where_they_are_defined(kinds: list[pa.DataType]) -> None:
    # E3
    for one, two, three in itertools.product(kinds, repeat=3):
        left, right = find_common_type(one, two), find_common_type(two, three)
        if left is not None and right is not None:
            assert is_same(find_common_type(left, three), find_common_type(one, right)), (one, two, three)


def test_a_zone_is_never_added_or_dropped() -> None:
    # E3
    for one, other in itertools.product(TIMES, repeat=2):
        found = find_common_type(one, other)
        if found is not None and pa.types.is_timestamp(one):
            assert pa.types.is_timestamp(other)
            assert (found.tz is None) == (one.tz is None) == (other.tz is None)


def to_comparable(value: object) -> object:
    """Replace NaN, which equals nothing, and sort the fields of structs, which may be in another order."""
    if isinstance(value, float) and value != value:  # noqa: PLR0124  NaN only
        return "NaN"
    if isinstance(value, dict):
        return {name: to_comparable(inner) for name, inner in sorted(value.items()) if inner is not None}
    return [to_comparable(inner) for inner in value] if isinstance(value, list | tuple) else value


def to_finest(kind: pa.DataType) -> int:
    return 10 ** (9 - 3 * UNITS.index(kind.unit)) if pa.types.is_temporal(kind) and not pa.types.is_date(kind) else 1


COMPATIBLE = [
    (one, other)
    for one, other in itertools.permutations(ALL, 2)
    if find_common_type(one, other) is not None and one not in (pa.json_(), pa.decimal128(3, -2), pa.date64())
]


@given(st.sampled_from(COMPATIBLE), st.data())
def test_every_value_survives_the_cast_to_the_common_type(
    pair: tuple[pa.DataType, pa.DataType], data: st.DataObject
) -> None:
    # E3
    have, common = pair[0], find_common_type(*pair)
    assert common is not None
    cell: st.SearchStrategy[Any] = st.none()
    if have == pa.list_(pa.null()):
        cell |= st.lists(st.none(), max_size=2)
    elif not pa.types.is_null(have):
        cell |= cells(have)
    before = pa.chunked_array([build(data.draw(st.lists(cell, max_size=4)), have)])
    try:
        after = cast_column(before, to_plain_type(common), "v")
    except ColumnValueError:
        # A finer unit of 64 bits reaches less far: such a value is refused, never changed.
        assume(not pa.types.is_temporal(have))
        raise
    assert is_same_logical_type(after.type, common)
    factor = to_finest(have) // to_finest(common)
    expected = [value * factor if isinstance(value, int) and factor > 1 else value for value in to_plain_values(before)]
    assert to_comparable(to_plain_values(after)) == to_comparable(expected)


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_nulls_can_be_cast_to_every_type(kind: pa.DataType) -> None:
    # E4
    plain = to_plain_type(kind)
    for rows in (0, 3):
        found = cast_column(pa.chunked_array([pa.nulls(rows)]), plain, "v")
        assert (found.type, found.null_count, len(found)) == (plain, rows, rows)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.null(), pa.string(), pa.string()),
        (pa.int8(), pa.int64(), pa.int8()),
        (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.null()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.null(), 2), pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 2)),
        (pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.date32()), pa.map_(pa.string(), pa.date32())),
        (
            struct(a=pa.null(), b=pa.int8()),
            struct(b=pa.int64(), a=pa.string(), c=pa.int8()),
            struct(a=pa.string(), b=pa.int8()),
        ),
        (struct(a=pa.null()), struct(b=pa.int8()), struct(a=pa.null())),
        (struct(a=pa.list_(struct(x=pa.null()))), struct(a=pa.list_(struct(x=pa.uuid()))), None),
        (pa.list_(pa.null()), pa.string(), pa.list_(pa.null())),
        (pa.null(), pa.null(), pa.null()),
    ],
)
def test_null_types_are_filled_and_no_other_type_changes(
    one: pa.DataType, other: pa.DataType, expected: pa.DataType | None
) -> None:
    # E4
    assert fill_null_types(one, other) == (other if expected is None else expected)


@given(types, types)
def test_filling_changes_nothing_but_null_types(one: pa.DataType, other: pa.DataType) -> None:
    # E4
    found = fill_null_types(one, other)
    if one in (pa.null(), pa.list_(pa.null())):
        assert fill_null_types(found, other) == found
    else:
        assert found == one
