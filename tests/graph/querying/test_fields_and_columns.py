"""Conditions on edges and on the fields of records, and results of values, compared with loops over dicts."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merganser.errors import InvalidArgumentError
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.graph.conftest import Clock

# An edge: from, type, to, and its minutes, if it has any.
Flight = tuple[int, str, int, int | None]
FLIGHTS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from("XY"), st.integers(1, 4), st.none() | st.integers(0, 3)), max_size=8
)
DIRECTIONS = st.sampled_from(["out", "in", "both"])
# Conditions on the minutes of an edge, and what they mean.
EDGE_CONDITIONS: list[tuple[Any, Callable[[int | None], bool]]] = [
    ({"minutes": 1}, lambda minutes: minutes == 1),
    ({"minutes": None}, lambda minutes: minutes is None),
    ([("minutes", "<", 2)], lambda minutes: minutes is not None and minutes < 2),
    ([("minutes", "!=", 1), ("minutes", ">=", 1)], lambda minutes: minutes is not None and minutes > 1),
    ([("minutes", "in", [0, 3])], lambda minutes: minutes in {0, 3}),
    ([], lambda _: True),
]
VALUES = st.none() | st.integers(-2, 2) | st.sampled_from(["a", "b", "a\0", '"', "", 1.0, -0.0, 0.5, True, 2**60 + 1])
NAMES = ["n", 'q"q', "a.b", ""]


def fly(flights: list[Flight]) -> GraphDatabase:
    db = GraphDatabase(":memory:")
    with db.transaction():
        for _ in range(4):
            db.create_node("A")
        for start, type_, end, minutes in flights:
            db.create_edge(start, type_, end, {"minutes": minutes})
    return db


def hops(flights: list[Flight], direction: str, holds: Callable[[int | None], bool]) -> list[tuple[int, int, int]]:
    kept = [(start, number, end) for number, (start, _, end, minutes) in enumerate(flights, 1) if holds(minutes)]
    back = [(end, number, start) for start, number, end in kept if direction == "in" or start != end]
    return (kept if direction != "in" else []) + (back if direction != "out" else [])


@given(FLIGHTS, DIRECTIONS, st.sampled_from(EDGE_CONDITIONS))
@settings(max_examples=80)
def test_conditions_on_edges_agree_with_a_loop(
    flights: list[Flight], direction: Any, given_: tuple[Any, Callable[[int | None], bool]]
) -> None:  # L1
    where, holds = given_
    steps = hops(flights, direction, holds)
    reached, nearest = {1}, {1}
    while nearest:
        nearest = {end for start, _, end in steps if start in nearest} - reached
        reached |= nearest
    with fly(flights) as db:
        walk = db.traverse(1, direction=direction, max_depth=None, edge_where=where)
        assert {node.id for node in walk.nodes()} == reached - {1}
        two = db.traverse(1, direction=direction, max_depth=2, edge_where=where).paths()
        assert sorted(tuple(edge.id for edge in path.edges) for path in two) == sorted(
            [(edge,) for start, edge, end in steps if start == 1 and end != 1]
            + [
                (one, other)
                for start, one, middle in steps
                for start2, other, end in steps
                if start == 1 and middle == start2 and middle != 1 and end not in {1, middle}
            ]
        )
        hop = {"out": db.pattern().out, "in": db.pattern().in_, "both": db.pattern().both}[direction]
        assert sorted(
            (path.nodes[0].id, path.edges[0].id, path.nodes[1].id) for path in hop(edge_where=where).exec()
        ) == (sorted(steps))
        neighbours = {start for start, _, _ in steps}
        for query, expected in (
            (db.nodes().connected_to(direction=direction, edge_where=where), neighbours),
            (db.nodes().not_connected_to(direction=direction, edge_where=where), {1, 2, 3, 4} - neighbours),
        ):
            assert {node.id for node in query} == expected
        for end in (2, 3):
            path = db.shortest_path(1, end, direction=direction, edge_where=where)
            assert (path is not None) == (end in reached)


def test_conditions_on_the_next_node_compare_too(db: GraphDatabase) -> None:  # L1
    for seen in (1, 2, 3):
        db.create_node("A", {"seen": seen})
    for end in (2, 3):
        db.create_edge(1, "X", end)
    where: Any = [("seen", ">", 2)]
    assert [path.nodes[1].id for path in db.pattern("A").out(where=where).exec()] == [3]
    assert [path.nodes[0].id for path in db.pattern("A", [("seen", "<", 2)]).out().exec()] == [1, 1]
    assert [node.id for node in db.nodes().connected_to(match=[("seen", "starts_with", "x")])] == []
    assert [node.id for node in db.nodes().connected_to(match=where)] == [1]


def test_a_traversal_keeps_its_conditions(db: GraphDatabase) -> None:  # L1
    for _ in range(2):
        db.create_node("A")
    db.create_edge(1, "X", 2, {"minutes": 1})
    where, types = {"minutes": 1}, ["X"]
    walk = db.traverse(1, types, edge_where=where)
    where["minutes"], types[0] = 2, "Y"
    assert walk.count() == 1


@pytest.fixture
def times(db: GraphDatabase, clock: Clock) -> list[datetime]:
    """Four nodes, each a second after the one before; the times of their creation."""
    found = []
    for _ in range(4):
        found.append(db.create_node("A", {"id": 7}).created_at)
        clock.milliseconds += 1_000
    db.update_node(1, {"seen": 1})
    return found


def ids(query: Any) -> list[int]:
    return [found.id for found in query.exec()]


def test_records_are_found_by_id_and_time(db: GraphDatabase, times: list[datetime]) -> None:  # L2
    assert ids(db.nodes("A").where("id", ">", 2)) == [3, 4]
    assert ids(db.nodes("A").where("id", "in", [4, 1, 9])) == [1, 4]
    assert ids(db.nodes("A").where("id", "!=", 2).where("id", "<=", 3)) == [1, 3]
    assert ids(db.nodes("A").where("created_at", "<", times[1])) == [1]
    assert ids(db.nodes("A").where("created_at", "=", times[1].isoformat())) == [2]
    assert ids(db.nodes("A").where("created_at", "in", times[2:])) == [3, 4]
    assert ids(db.nodes("A").where("updated_at", ">", times[3])) == [1]
    # A stored time has no microseconds, and none are lost in the comparison.
    soon = timedelta(microseconds=1)
    assert ids(db.nodes("A").where("created_at", "<", times[1] + soon)) == [1, 2]
    assert ids(db.nodes("A").where("created_at", ">=", times[1] + soon)) == [3, 4]
    assert ids(db.nodes("A").where("created_at", "=", times[1] + soon)) == []
    east = times[1].astimezone(timezone(timedelta(hours=5)))
    assert ids(db.nodes("A").where("created_at", "<=", east)) == [1, 2]
    db.create_edge(1, "X", 2)
    assert ids(db.edges().where("created_at", ">", times[3])) == [1]
    assert ids(db.edges().where([("id", "=", 1), ("updated_at", "<", times[3])])) == []


def test_a_dict_means_properties_even_of_the_names_of_fields(db: GraphDatabase, times: list[datetime]) -> None:  # L2
    assert len(times) == 4
    assert ids(db.nodes("A").where({"id": 7})) == [1, 2, 3, 4]
    assert ids(db.nodes("A").where("id", "=", 7)) == []


def test_records_are_sorted_by_id_and_time(db: GraphDatabase, times: list[datetime]) -> None:  # L2
    assert len(times) == 4
    assert ids(db.nodes("A").order_by("id", descending=True)) == [4, 3, 2, 1]
    assert ids(db.nodes("A").order_by("updated_at")) == [2, 3, 4, 1]
    assert ids(db.nodes("A").order_by("updated_at", descending=True).limit(1)) == [1]
    assert ids(db.nodes("A").order_by("created_at")) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (("id", "=", "7"), "'7' is not an id"),
        (("id", "<", True), "True is not an id"),
        (("id", "contains", 7), "id of a record is compared by one of = != < <= > >= in, not by 'contains'"),
        (("created_at", "=", None), "created_at cannot be compared with None"),
        (("created_at", "<", datetime(2026, 1, 1)), "give a datetime with a time zone"),  # noqa: DTZ001
        (("updated_at", "<", date(2026, 1, 1)), "give a datetime with a time zone"),
        (("updated_at", "<", "2026-01-01"), "give a datetime with a time zone"),
        (("updated_at", "<", "soon"), "give a datetime with a time zone"),
        (("updated_at", "in", "soon"), "cannot be in 'soon'"),
    ],
)
def test_fields_are_compared_with_their_own_values(db: GraphDatabase, condition: Any, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(reason)):
        db.nodes().where(*condition)


@pytest.mark.parametrize("given_", [["a"], [("a", "=")], [("a", "=", 1, 2)], "a", 7])
def test_a_list_holds_conditions(db: GraphDatabase, given_: Any) -> None:
    node = db.create_node("A").id
    for build in (
        lambda: db.pattern().out(edge_where=given_),
        lambda: db.nodes().connected_to(edge_where=given_),
        lambda: db.traverse(node, edge_where=given_),
    ):
        with pytest.raises(InvalidArgumentError, match="edge_where"):
            build()


def key_of(value: Any) -> object:
    """What a graph takes for one value."""
    return (isinstance(value, bool), isinstance(value, str), value)


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), max_size=10),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
)
@settings(max_examples=120)
def test_values_and_counts_agree_with_a_loop(rows: list[dict[str, Any]], names: list[str]) -> None:  # L3
    with GraphDatabase(":memory:") as db:
        with db.transaction():
            for row in rows:
                db.create_node("A", row)
        query = db.nodes("A")
        wanted = [{name: row.get(name) for name in names} for row in rows]
        assert json.dumps(list(query.values(*names))) == json.dumps(wanted)
        expected = Counter(tuple(key_of(row[name]) for name in names) for row in wanted)
        counted = query.count_by(*names)
        assert {tuple(key_of(row[name]) for name in names): row["count"] for row in counted} == dict(expected)
        assert [row["count"] for row in counted] == sorted(expected.values(), reverse=True)
        distinct = query.distinct(*names)
        assert Counter(tuple(key_of(row[name]) for name in names) for row in distinct) == Counter(set(expected))
        for found in (query.values(*names), counted, distinct):
            assert found.to_arrow().num_rows == len(found)
            assert found.to_arrow().column_names == found.columns


def test_values_follow_the_query(db: GraphDatabase, times: list[datetime]) -> None:  # L3
    query = db.nodes("A").where("id", ">", 1).order_by("id", descending=True)
    found = query.limit(2).offset(1).values("id", "seen", "created_at")
    assert list(found) == [
        {"id": 3, "seen": None, "created_at": times[2]},
        {"id": 2, "seen": None, "created_at": times[1]},
    ]
    table = found.to_arrow()
    assert table.schema.types == [pa.int64(), pa.null(), pa.timestamp("ms", tz="UTC")]
    assert found.to_dict()["rows"][0]["id"] == 3
    assert f"<td>{times[2].isoformat()}</td>" in found._repr_html_()
    assert list(db.nodes("A").count_by("seen")) == [{"seen": None, "count": 3}, {"seen": 1, "count": 1}]
    assert list(db.nodes("A").limit(1).offset(1).distinct("seen")) == [{"seen": None}]
    db.create_edge(1, "X", 2, {"minutes": [1, 2]})
    assert list(db.edges("X").values("minutes")) == [{"minutes": [1, 2]}]
    assert db.nodes("None").values("a").to_arrow().column_names == ["a"]


def test_results_are_data_frames(db: GraphDatabase) -> None:  # L3
    for value in (2**53 + 1, None):
        db.create_node("A", {"n": value, "ok": None if value else True})
    frame = db.nodes("A").exec().to_pandas()
    assert list(frame.columns) == ["id", "type", "n", "ok", "created_at", "updated_at"]
    assert frame["n"].tolist()[0] == 2**53 + 1
    assert frame["n"].isna().tolist() == [False, True]
    assert frame["ok"].isna().tolist() == [True, False]
    assert frame["created_at"][0].tzinfo is not None
    db.create_edge(1, "X", 2)
    assert db.edges().exec().to_pandas()["to_id"].tolist() == [2]
    assert db.pattern().out().exec().to_pandas()["nodes"][0].tolist() == [1, 2]
    assert db.nodes("A").count_by("ok").to_pandas()["count"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda query: query.values(), "values needs the name of a property"),
        (lambda query: query.count_by(), "count_by needs the name of a property"),
        (lambda query: query.distinct("a", "a"), "two columns 'a'"),
        (lambda query: query.count_by("count"), "a column 'count' of its own"),
        (lambda query: query.values(7), "property name 7"),
    ],
)
def test_columns_have_names_of_their_own(db: GraphDatabase, read: Callable[[Any], object], reason: str) -> None:
    with pytest.raises((InvalidArgumentError, TypeError), match=reason):
        read(db.nodes())


def test_paths_show_the_keys_of_unique_indexes(db: GraphDatabase) -> None:  # L4
    for type_, name, unique in (("Job", "url", True), ("Company", "name", False), ("Skill", "b", True)):
        db.create_property_index(type_, name, unique=unique)
    db.create_property_index("Skill", ["a", "c"], unique=True)
    job = db.create_node("Job", {"url": 'it"s'}).id
    company = db.create_node("Company", {"name": "TechCorp"}).id
    both, second, none = (
        db.create_node("Skill", properties).id
        for properties in ({"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3.5}, {"a": 9})
    )
    for end in (company, both, second, none):
        db.create_edge(job, "AT", end)
    _, shown = db.pattern("Job").out().exec().cells()
    start = '(Job {url: "it\\"s"})-[AT]->'
    assert [text for (text,) in shown] == [
        f"{start}(Company #2)",
        f"{start}(Skill {{b: 2}})",
        f"{start}(Skill {{a: 1, c: 3.5}})",
        f"{start}(Skill #5)",
    ]
    # The other ways to paths show the same.
    expected = f"{start}(Skill {{b: 2}})"
    assert db.traverse(job).paths().cells()[1][1] == [expected]


def test_utc_is_what_times_are_in(db: GraphDatabase, times: list[datetime]) -> None:
    (row,) = db.nodes().where("id", "=", 1).values("updated_at")
    assert row["updated_at"].tzinfo is UTC
    assert row["updated_at"] > times[3]
