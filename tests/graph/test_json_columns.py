"""The JSON of Arrow columns is the JSON of their values, one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.values import FLOATS, NESTED, PLAIN, build, optional

from merganser.errors import MerganserError
from merganser.graph import json_columns
from merganser.graph.json_columns import encode_column, encode_objects, to_python_values
from merganser.graph.values import drop_nulls, encode, normalize_properties

STRINGS = ["", '"', "\\", "\\u0000", "\x00", "\n", "\x1f", "\x7f", "é", "東京", "\u2028", "😀", 'a"b', "plain"]
NUMBERS = [1e22, -0.0, 0.0, 1e-7, 1e-5, 1e-4, 0.1, 123456789012345680.0, 3.0, 1e10, 9999999999.5, 1e16, -2.5, 5e-324]
MOMENTS = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 1, 2, 3, 4, 5, 60)]  # noqa: DTZ001
ARRAYS = [
    *(pa.array([*STRINGS, None], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    pa.array([*STRINGS, None]).dictionary_encode(),
    pa.array([*NUMBERS, None]),
    pa.array([0.1, 3.0, None], pa.float32()),
    pa.array(np.array([0.1, 3.0], np.float16)),
    pa.array([-(2**63), 2**63 - 1, None]),
    pa.array([0, 2**63 - 1, None], pa.uint64()),
    pa.array([True, False, None]),
    pa.nulls(2),
    pa.array([date.min, date.max, None]),
    pa.array([time(0, 0), time(23, 59, 59), time(1, 2, 3, 4), None]),
    pa.array([time(0, 0), time(1, 2, 3, 4000), None], pa.time32("ms")),
    *(pa.array([*MOMENTS, None], pa.timestamp("us", zone)) for zone in (None, "UTC", "Etc/UTC", "+00:00")),
    pa.array([*MOMENTS[1:], None], pa.timestamp("us", "Europe/Zurich")),
    pa.array([datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), None], pa.timestamp("s", "UTC")),
    pa.array([date(2026, 1, 2), None], pa.date64()),
    pa.array([[1, None], None, []]),
    pa.array([{"a": 1.5, "b": None}, None]),
    pa.array([[("a", "\n")], None], pa.map_(pa.string(), pa.string())),
]


def encode_by_hand(column: pa.Array) -> list[str | None]:
    """Encode the values one by one."""
    rows = [{"n": value} for value in to_python_values(column, pa.field("n", column.type))]
    values = [normalize_properties(row, "row")["n"] for row in rows]
    return [None if value is None else encode(value) for value in values]


def encode_array(column: pa.Array) -> Any:
    return encode_column(column, pa.field("n", column.type)).to_pylist()


@pytest.mark.parametrize("column", ARRAYS, ids=lambda column: str(column.type))
def test_a_column_is_encoded_as_its_values_are(column: pa.Array) -> None:
    """G5."""
    for given_column in (column, column[1:], column[:0], pa.concat_arrays([column, column])[1:-1]):
        assert encode_array(given_column) == encode_by_hand(given_column)


@settings(max_examples=300)
@given(data=st.data(), kind=st.sampled_from([*PLAIN, *NESTED]))
def test_any_column_is_encoded_as_its_values_are(data: st.DataObject, kind: pa.DataType) -> None:
    """G5."""
    column = build(data.draw(st.lists(optional(kind), max_size=4)), kind)
    try:
        expected = encode_by_hand(column)
    except MerganserError:
        with pytest.raises((MerganserError, pa.ArrowException)):
            encode_array(column)
    else:
        assert encode_array(column) == expected


@settings(max_examples=200)
@given(data=st.data(), kind=st.sampled_from(FLOATS))
def test_any_number_is_encoded_as_python_does(data: st.DataObject, kind: pa.DataType) -> None:
    """G5."""
    finite = st.floats(allow_nan=False, allow_infinity=False, width=kind.bit_width)
    column = build(data.draw(st.lists(finite | st.sampled_from([0.0, -0.0, 1.5]), max_size=20)), kind)
    assert encode_array(column) == encode_by_hand(column)


def test_numbers_of_common_magnitudes_are_encoded_as_python_does() -> None:
    """G5. Prices, ratios and counts, between the magnitudes that Arrow formats with an exponent."""
    random = np.random.default_rng(7)
    numbers = 10 ** random.uniform(-6, 12, 20_000) * random.choice([-1, 1], 20_000)
    column = pa.array(np.concatenate([numbers, np.round(numbers, 2), np.round(numbers), np.nextafter(numbers, 0)]))
    assert encode_array(column) == [repr(value) for value in column.to_pylist()]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan")]),
        pa.array([float("inf")]),
        pa.array([2**63], pa.uint64()),
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([2**61], pa.int64()).cast(pa.timestamp("us")),
        pa.array([1], pa.int64()).cast(pa.timestamp("ns")),
        pa.array([b"bytes"]),
        pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xed\xa0\x80"]).buffers()),
    ],
    ids=["nan", "inf", "uint64", "date", "timestamp", "nanoseconds", "bytes", "surrogate"],
)
def test_a_value_that_cannot_be_stored_is_refused(column: pa.Array) -> None:
    """G5."""
    with pytest.raises(MerganserError):
        encode_by_hand(column)
    with pytest.raises((MerganserError, pa.ArrowException)):
        encode_array(column)


def test_what_lies_beneath_a_null_is_ignored() -> None:
    """G5."""
    _, offsets, data = pa.array(['"', "a"]).buffers()
    column = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    assert column.to_pylist() == [None, "a"]
    assert encode_array(column) == [None, '"a"']


@given(rows=st.lists(st.fixed_dictionaries({name: st.none() | st.sampled_from(STRINGS) for name in ("a", '"', "é\\")})))
def test_objects_are_encoded_as_dicts_are(rows: list[dict[str, Any]]) -> None:
    """G4, G6. NULLs are left out, even if there is nothing else in a row."""
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in ("a", '"', "é\\")}
    encoded = {name: encode_column(column, pa.field(name, pa.string())) for name, column in columns.items()}
    assert encode_objects(encoded, len(rows)).to_pylist() == [
        encode(drop_nulls({name: row[name] for name in columns})) for row in rows
    ]
    assert encode_objects({}, len(rows)).to_pylist() == ["{}"] * len(rows)


@pytest.mark.parametrize("column", ARRAYS[:18], ids=lambda column: str(column.type))
def test_common_types_need_no_python_value(column: pa.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """G13."""
    monkeypatch.setattr(json_columns, "to_python_values", lambda *_: pytest.fail("the values were converted"))
    encode_array(column)
