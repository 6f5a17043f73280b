"""What a property may hold, what equals what, and what is refused by name."""

from __future__ import annotations

import decimal
import math
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.graph.graph_oracle import assert_unchanged, dump, list_nodes, to_comparable

from merganser.errors import PropertyTypeError, PropertyValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from merganser.graph import GraphDatabase

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

SCALARS: list[Any] = [
    "",
    "text",
    "1",
    "true",
    "null",
    "[1]",
    '"',
    '"1',
    'n"a"',
    "\\",
    "\\u0000",
    "\x00",
    "a\x00b",
    "line\nline",
    "it's",
    "Ärger",
    "東京",
    "🦆",
    "\ud7ff\uffff",
    0,
    1,
    -1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    0.1,
    0.1 + 0.2,
    1.5,
    1e22,
    1e300,
    5e-324,
    1.7976931348623157e308,
    2.0**63,
    True,
    False,
]
LISTS: list[Any] = [[], [1], [1, 2], [2, 1], ["1"], [True], [[1]], [[]], ["a", None], [None], [0.1], ["\x00"], ["]"]]


@pytest.mark.parametrize("indexed", [False, True])
def test_values_are_found_again_and_never_taken_for_another(db: GraphDatabase, indexed: bool) -> None:
    """G5."""
    if indexed:
        db.create_property_index("T", "v")
    values = SCALARS + LISTS
    made = [db.merge_node("T", {"v": value}) for value in values]
    assert [value for value, node in zip(values, made, strict=True) if not node.created] == []
    found = [db.merge_node("T", {"v": value}) for value in values]
    assert [node.id for node in found] == [node.id for node in made]
    assert [to_comparable(node.properties["v"]) for node in found] == [to_comparable(value) for value in values]
    assert [to_comparable(properties["v"]) for properties in list_nodes(db)] == [
        to_comparable(value) for value in values
    ]


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        (2**53, 2.0**53),
        (-(2**63), -(2.0**63)),
        (10**18, 1e18),
        ([1], [1.0]),
        ([[1], 2.0], [[1.0], 2]),
        ((1, 2), [1, 2]),
        (date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_equal_values_are_one_key_either_way(db: GraphDatabase, one: Any, other: Any, unique: bool) -> None:
    """G5."""
    db.create_property_index("T", "v", unique=unique)
    for first, second in ((one, other), (other, one)):
        made = db.merge_node("T", {"v": first})
        assert made.created
        assert db.merge_node("T", {"v": second}).id == made.id
        db.delete_node(made.id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (True, "true"),
        ([1], "[1]"),
        ([1], 1),
        ([1], [True]),
        ([1], ["1"]),
        (2**53, 2**53 + 1),
        (2**53 + 1, 2.0**53),
        (2**63 - 1, 2.0**63),
        (0.1, "0.1"),
        ("a", "A"),
        ("a", "a "),
        ("é", "e\u0301"),
        ("a", "a\x00"),
        ("\x00", 'n"\\u0000"'),
        (5e-324, 0),
        ([], "[]"),
        ([None], []),
    ],
)
def test_other_values_are_other_keys(db: GraphDatabase, one: Any, other: Any) -> None:
    """G5."""
    db.create_property_index("T", "v", unique=True)
    assert db.merge_node("T", {"v": one}).created
    assert db.merge_node("T", {"v": other}).created
    assert not db.merge_node("T", {"v": one}).created


def test_a_property_that_is_missing_is_not_matched_by_anything(db: GraphDatabase) -> None:
    """G5."""
    db.create_node("T", {"other": 1})
    db.create_node("T", {"v": {"a": 1}})
    for value in (*SCALARS, *LISTS):
        assert db.merge_node("T", {"v": value}).created


@pytest.mark.parametrize("value", [{}, {"a": 1}, [{"a": 1}], [[{}]]])
def test_a_dict_cannot_be_matched_on(db: GraphDatabase, value: Any) -> None:
    """G5."""
    with assert_unchanged(db), pytest.raises(ValueError, match="'v' is or holds a dict"):
        db.merge_node("T", {"v": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5), "03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006+00:00"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),  # noqa: DTZ001 - people have such times
    ],
)
def test_dates_and_times_are_iso_strings(db: GraphDatabase, value: Any, text: str) -> None:
    """G5."""
    made = db.merge_node("T", {"v": value}, {"also": [value]})
    assert made.properties == {"v": text, "also": [text]}
    assert list_nodes(db) == [{"v": text, "also": [text]}]
    assert db.merge_node("T", {"v": value}).id == made.id


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
REFUSED = [
    (math.nan, ValueError),
    (math.inf, ValueError),
    (-math.inf, ValueError),
    (2**63, ValueError),
    (-(2**63) - 1, ValueError),
    ("\ud800", ValueError),
    (pd.NaT, ValueError),
    (nested(2000), ValueError),
    (ITSELF, ValueError),
    (b"bytes", TypeError),
    ({1, 2}, TypeError),
    (object(), TypeError),
    (1j, TypeError),
    (decimal.Decimal(1), TypeError),
    (Path("x"), TypeError),
    ({"a": b"bytes"}, TypeError),
    ([math.nan], ValueError),
    ({"a": [2**63]}, ValueError),
]


@pytest.mark.parametrize("role", ["match", "base", "on_create", "on_match", "condition"])
@pytest.mark.parametrize(("value", "error"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_stored_is_refused_by_name(
    db: GraphDatabase, role: str, value: Any, error: type[Exception]
) -> None:
    """G5."""
    db.merge_node("T", {"k": 1})
    arguments: dict[str, Any] = {"match": {"k": 1}}
    arguments[role] = {**arguments.get(role, {}), "odd": value}
    with assert_unchanged(db), pytest.raises(error, match=rf"{role} property 'odd'"):
        db.merge_node("T", **arguments)


@pytest.mark.parametrize("role", ["match", "base", "on_create", "on_match", "condition"])
@pytest.mark.parametrize("name", [1, None, b"a", ("a",)])
def test_property_names_are_strings(db: GraphDatabase, role: str, name: Any) -> None:
    """G5."""
    arguments: dict[str, Any] = {"match": {"k": 1}}
    arguments[role] = {name: 1}
    with assert_unchanged(db), pytest.raises(TypeError, match="property name"):
        db.merge_node("T", **arguments)


def test_values_are_copied(db: GraphDatabase) -> None:
    """G5."""
    tags = ["a"]
    made = db.merge_node("T", {"k": 1}, {"tags": tags})
    tags.append("b")
    assert made.properties["tags"] == ["a"]
    before = dump(db)
    made.properties["tags"] = None
    assert dump(db) == before


def test_subclasses_are_stored_as_what_they_are(db: GraphDatabase) -> None:
    """G5."""

    class Name(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "not this"

    class Number(int):
        def __repr__(self) -> str:
            return "nor this"

    db.merge_node("T", {Name("k"): Name("v")}, {"n": Number(3)})
    assert list_nodes(db) == [{"k": "v", "n": 3}]
    assert not db.merge_node("T", {"k": "v"}).created


def test_numbers_of_numpy_are_numbers(db: GraphDatabase) -> None:
    """G5."""
    given = {
        "i": np.int64(7),
        "u": np.uint8(7),
        "f": np.float32(0.5),
        "h": np.float16(0.5),
        "d": np.float64(0.25),
        "b": np.bool_(True),
        "l": [np.int32(1)],
    }
    stored = db.create_node("N", given).properties
    assert stored == {"i": 7, "u": 7, "f": 0.5, "h": 0.5, "d": 0.25, "b": True, "l": [1]}
    assert [type(value) for value in stored.values()] == [int, int, float, float, float, bool, list]
    assert not db.merge_node("N", {"i": np.int16(7)}, warn_on_missing_index=False).created
    with pytest.raises(PropertyValueError, match="'u' is a number that does not fit 64 bits"):
        db.create_node("N", {"u": np.uint64(2**63)})
    with pytest.raises(PropertyValueError, match="'f' is NaN"):
        db.create_node("N", {"f": np.float32("nan")})
    for refused in (np.timedelta64(1, "s"), np.longdouble(1), np.complex64(1)):
        with pytest.raises(PropertyTypeError, match="'x' is of type"):
            db.create_node("N", {"x": refused})


FORMS: dict[str, Callable[[Any], Any]] = {
    "dicts": lambda value: [{"k": 1, "v": value}],
    "many dicts": lambda value: [{"k": number, "v": value} for number in range(200)],
    "table": lambda value: pa.table({"k": [1], "v": pa.array([value])}),
    "pandas": lambda value: pd.DataFrame({"k": [1], "v": pd.Series([value], dtype=object)}),
    "polars": lambda value: pl.DataFrame({"k": [1], "v": [value]}),
}
BERLIN = ZoneInfo("Europe/Berlin")
STORED: list[tuple[Any, Any]] = [
    (np.int64(7), 7),
    (np.uint8(7), 7),
    (np.float32(0.1), 0.10000000149011612),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (date(2026, 1, 2), "2026-01-02"),
    (time(3, 4, 5, 7), "03:04:05.000007"),
    (datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),  # noqa: DTZ001 - people have such times
    (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006+00:00"),
    (datetime(2026, 7, 2, 3, 4, tzinfo=BERLIN), "2026-07-02T03:04:00+02:00"),
    (pd.Timestamp("2026-01-02T03:04:05.000001"), "2026-01-02T03:04:05.000001"),
    (pd.Timestamp("2026-07-02T03:04", tz="Europe/Berlin"), "2026-07-02T03:04:00+02:00"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("value", "stored"), STORED, ids=[repr(value) for value, _ in STORED])
def test_a_value_is_stored_the_same_from_every_source(db: GraphDatabase, form: str, value: Any, stored: Any) -> None:
    """G5, G13."""
    db.bulk_merge_nodes("T", FORMS[form](value), match_on="k")
    found = list_nodes(db)[0]["v"]
    assert (found, type(found)) == (stored, type(stored))
    assert db.create_node("T", {"v": value}).properties == {"v": stored}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal("1.10"),
        decimal.Decimal(10) ** 30,
        [decimal.Decimal(1)],
        UUID(int=5),
        timedelta(seconds=1),
        b"x",
        pa.MonthDayNano([1, 2, 3]),
        [pa.MonthDayNano([1, 2, 3])],
    ],
    ids=repr,
)
def test_what_would_be_read_as_something_else_is_refused_from_every_source(
    db: GraphDatabase, form: str, value: Any
) -> None:
    """G5, G13."""
    if form == "polars" and "MonthDayNano" in repr(value):
        # Polars has no intervals.
        return
    with (
        assert_unchanged(db),
        pytest.raises(PropertyTypeError, match=r"row 0 property 'v' is of type .* give a string"),
    ):
        db.bulk_merge_nodes("T", FORMS[form](value), match_on="k")
    with assert_unchanged(db), pytest.raises(PropertyTypeError, match=r"'v' is of type .* give a string"):
        db.create_node("T", {"v": value})


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.datetime64("2026-01-02"), "2026-01-02"),
        (np.datetime64("2026-01"), "2026-01-01"),
        (np.datetime64("2026-01-02T03"), "2026-01-02T03:00:00"),
        (np.datetime64("2026-01-02T03:04:05.000001000", "ns"), "2026-01-02T03:04:05.000001"),
    ],
)
def test_times_of_numpy_are_times(db: GraphDatabase, value: Any, stored: str) -> None:
    """G5."""
    assert db.create_node("T", {"v": value}).properties == {"v": stored}
    if np.datetime_data(value)[0] in {"D", "ns"}:
        db.bulk_merge_nodes("U", pa.table({"v": pa.array(np.array([value]))}), match_on="v")
        assert list_nodes(db, "U") == [{"v": stored}]


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2026-01-02T03:04:05.000000001", "ns"),
        pd.Timestamp("2026-01-02T03:04:05.000000001"),
        np.datetime64("NaT", "s"),
        np.datetime64(20_000, "Y"),
    ],
)
def test_times_that_no_string_holds_exactly_are_refused(db: GraphDatabase, value: Any) -> None:
    """G5, G13."""
    with assert_unchanged(db), pytest.raises(PropertyValueError, match=r"'v' is .*, which is not a time"):
        db.create_node("T", {"v": value})
    if np.datetime_data(np.datetime64(value))[0] == "ns":
        with assert_unchanged(db), pytest.raises(PropertyValueError, match="'v' has a value that cannot be stored"):
            db.bulk_merge_nodes("T", pd.DataFrame({"k": [1], "v": [value]}), match_on="k")
