"""Queries of nodes and edges, each compared with what a loop over dicts would find."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from merganser.errors import InvalidArgumentError, PropertyTypeError, PropertyValueError
from merganser.graph import EdgeQuery, GraphDatabase, NodeQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Rows = list[dict[str, Any]]
# A property's name, an operator and a value.
Condition = tuple[str, Any, Any]

NAMES = ["a", "a.b", 'q"q', "it's", "nul\0", "水", "", "$", "[0]", "back\\slash", "line\nbreak", "type"]
CHARACTERS = 'ab"\\\0.$n[{é水\ud7ff\ue000\U0010ffff%_'
TEXTS = st.text(CHARACTERS, max_size=4) | st.sampled_from(["true", "1", "[1]", "null", "\\u0000", 'n"a"', "a\0b", "a"])
NUMBERS = st.integers(-3, 3) | st.sampled_from(
    [-(2**63), 2**63 - 1, 2**53 + 1, 0.0, -0.0, 1.0, 1.5, -2.25, 0.1, 1e300, 5e-324, 2.0**53, 2.0**63]
)
SCALARS = st.booleans() | NUMBERS | TEXTS
LISTS = st.lists(SCALARS | st.none() | st.lists(SCALARS, max_size=2), max_size=3)
STORED = SCALARS | LISTS | st.dictionaries(TEXTS, SCALARS, max_size=2)


def rows_of(*names: str) -> st.SearchStrategy[Rows]:
    return st.lists(st.dictionaries(st.sampled_from(names), STORED, max_size=len(names)), max_size=8)


def conditions_of(names: Sequence[str], stored: Sequence[Any]) -> st.SearchStrategy[Condition]:
    """Conditions on properties, often with a value that one of them has."""
    scalars = [value for value in stored if not isinstance(value, list | dict)]
    texts = [value for value in scalars if isinstance(value, str)]
    ordered = [value for value in scalars if not isinstance(value, bool)]
    comparable = [value for value in stored if not isinstance(value, dict)]
    name = st.sampled_from(names)
    return st.one_of(
        st.tuples(name, st.sampled_from(["=", "!="]), st.none() | SCALARS | LISTS | some(comparable)),
        st.tuples(name, st.sampled_from(["<", "<=", ">", ">="]), NUMBERS | TEXTS | some(ordered)),
        st.tuples(name, st.just("in"), st.lists(SCALARS | some(scalars), max_size=4)),
        st.tuples(name, st.just("contains"), st.none() | SCALARS | st.lists(SCALARS, max_size=2) | some(scalars)),
        st.tuples(name, st.sampled_from(["starts_with", "ends_with"]), st.text(CHARACTERS, max_size=1) | some(texts)),
    )


def some(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(values) if values else st.nothing()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rows, list[Condition]]:
    # Few names, so that conditions often match.
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    rows = draw(rows_of(*names))
    stored = [value for row in rows for value in row.values()]
    return rows, draw(st.lists(conditions_of(names, stored), min_size=1, max_size=2))


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


def filled(rows: Sequence[dict[str, Any]]) -> GraphDatabase:
    opened = GraphDatabase(":memory:")
    fill(opened, rows)
    return opened


def fill(db: GraphDatabase, rows: Sequence[dict[str, Any]]) -> None:
    with db.transaction():
        for row in rows:
            db.create_node("T", row)


def ids(query: NodeQuery | EdgeQuery) -> list[int]:
    return [found.id for found in query.exec()]


def typed(value: Any) -> Any:
    """What two values are equal by."""
    if isinstance(value, list):
        return ("list", [typed(item) for item in value])
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return (kind, value)


def holds(row: dict[str, Any], name: str, operator: str, value: Any) -> bool:
    if value is None and operator in {"=", "!="}:
        return (name in row) == (operator == "!=")
    if name not in row:
        return False
    kind, own = typed(row[name])
    tests: dict[str, Callable[[], bool]] = {
        "=": lambda: typed(row[name]) == typed(value),
        "!=": lambda: typed(row[name]) != typed(value),
        "<": lambda: kind == typed(value)[0] and own < value,
        "<=": lambda: kind == typed(value)[0] and own <= value,
        ">": lambda: kind == typed(value)[0] and own > value,
        ">=": lambda: kind == typed(value)[0] and own >= value,
        "in": lambda: typed(row[name]) in [typed(item) for item in value],
        "contains": lambda: (
            (kind == "str" and isinstance(value, str) and value in own) or (kind == "list" and typed(value) in own)
        ),
        "starts_with": lambda: kind == "str" and own.startswith(value),
        "ends_with": lambda: kind == "str" and own.endswith(value),
    }
    return tests[operator]()


def place(row: dict[str, Any], name: str) -> tuple[int, Any]:
    """Where a value comes in an order."""
    kind, own = typed(row[name])
    rank = ["number", "str", "list", "bool", "dict"].index(kind)
    text = json.dumps(row[name], ensure_ascii=False, separators=(",", ":"))
    return (rank, text if kind in {"list", "dict"} else own)


@given(cases())
@settings(max_examples=200)
@example(([{"a": "\\u0000"}, {"a": "\0"}], [("a", "contains", "\0")]))
@example(([{"a": '"a'}, {"a": "a"}], [("a", "ends_with", '"a')]))
@example(([{"a": "a"}, {"a": ""}, {"a": "\0"}, {"a": 1}], [("a", "ends_with", "")]))
@example(([{"a": "a"}, {"a": 'a"'}], [("a", "contains", '"')]))
@example(([{"a": [1]}, {"a": [True]}, {"a": [[1]]}], [("a", "contains", True)]))
@example(([{"a": [[1]]}, {"a": [[True]]}, {"a": [1]}], [("a", "contains", [1.0])]))
@example(([{}, {"a": [1]}, {"a": 1}], [("a", "!=", [1])]))
@example(([{"a": "\ud7ff"}, {"a": "\ue000"}], [("a", "starts_with", "\ud7ff")]))
@example(([{"a": "\U0010ffff\U0010ffff"}], [("a", "starts_with", "\U0010ffff")]))
@example(([{"a": [True]}, {"a": [1]}, {"a": [1.0]}], [("a", "=", [1])]))
def test_where_agrees_with_a_loop_over_all_nodes(case: tuple[Rows, list[Condition]]) -> None:  # G5, G6, G16
    rows, terms = case
    expected = [number for number, row in enumerate(rows, 1) if all(holds(row, *term) for term in terms)]
    with filled(rows) as db:
        query = db.nodes("T")
        for term in terms:
            query = query.where(*term)
        assert ids(query) == expected
        assert query.count() == len(expected)
        assert query.exists() == bool(expected)


@given(
    rows=rows_of(*NAMES[:3]), match=st.dictionaries(st.sampled_from(NAMES[:3]), SCALARS | LISTS | st.none(), max_size=2)
)
@settings(max_examples=60)
def test_where_of_a_dict_means_all_of_it(rows: Rows, match: dict[str, Any]) -> None:  # G5
    expected = [
        number
        for number, row in enumerate(rows, 1)
        if all(holds(row, name, "=", value) for name, value in match.items())
    ]
    with filled(rows) as db:
        assert ids(db.nodes().where(match)) == expected


@given(
    rows=rows_of("a", 'q"q'),
    names=st.lists(st.sampled_from(["a", 'q"q']), min_size=1, max_size=2, unique=True),
    descending=st.booleans(),
    limit=st.none() | st.integers(0, 4),
    offset=st.none() | st.integers(0, 4),
)
@settings(max_examples=100)
@example(rows=[{"a": "b"}, {"a": "a\0"}, {"a": "a"}, {"a": "aa"}], names=["a"], descending=False, limit=None, offset=1)
def test_order_limit_and_offset(
    rows: Rows, names: list[str], descending: bool, limit: int | None, offset: int | None
) -> None:  # G16
    expected = list(enumerate(rows, 1))
    for name in reversed(names):
        present = sorted(
            (item for item in expected if name in item[1]),
            key=lambda item, name=name: place(item[1], name),  # type: ignore[misc]
            reverse=descending,
        )
        expected = present + [item for item in expected if name not in item[1]]
    numbers = [number for number, _ in expected][offset or 0 :][:limit]
    with filled(rows) as db:
        query = db.nodes("T")
        for name in names:
            query = query.order_by(name, descending=descending)
        query = query if limit is None else query.limit(limit)
        query = query if offset is None else query.offset(offset)
        assert ids(query) == numbers
        assert query.count() == len(numbers)
        assert query.exists() == bool(numbers)
        first = query.first()
        assert (first.id if first else None) == (numbers[0] if numbers else None)


def test_offset_without_limit_works(db: GraphDatabase) -> None:  # G16
    fill(db, [{}] * 5)
    assert ids(db.nodes().offset(3)) == [4, 5]
    assert db.nodes().offset(2**70).exec() == []
    assert ids(db.nodes().limit(2**70)) == [1, 2, 3, 4, 5]


def test_count_respects_filters_limit_and_offset(db: GraphDatabase) -> None:  # G16
    fill(db, [{"n": number} for number in range(10)])
    query = db.nodes("T").where("n", ">=", 4)
    assert query.count() == 6
    assert query.limit(4).count() == 4
    assert query.limit(4).offset(4).count() == 2
    assert query.connected_to().count() == 0


def test_unknown_types_and_ids_give_empty_results(db: GraphDatabase) -> None:  # G16
    fill(db, [{"n": 1}])
    db.create_edge(1, "SELF", 1)
    for query in (
        db.nodes("Nothing"),
        db.nodes("t"),
        db.nodes("T").connected_to("Nothing"),
        db.nodes("T").connected_to(edge_type="NOTHING"),
        db.edges("NOTHING"),
        db.edges(from_id=99),
    ):
        assert query.exec() == []
        assert query.first() is None
        assert query.count() == 0
        assert not query.exists()


def test_a_query_is_never_changed_by_a_call(db: GraphDatabase) -> None:  # G16
    fill(db, [{"n": 1}, {"n": 2}])
    query = db.nodes("T")
    narrow = query.where({"n": 1})
    query.limit(0)
    query.offset(1)
    query.order_by("n", descending=True)
    query.not_connected_to()
    assert ids(query) == [1, 2]
    assert ids(narrow) == [1]
    assert [found.id for found in query] == [1, 2]


def test_records_are_as_get_gives_them(db: GraphDatabase) -> None:  # G16
    a, b = db.create_node("A", {"x": [1, {"y": None}]}), db.create_node("B")
    edge = db.create_edge(a.id, "E", b.id, {"w": 0.5})
    assert db.nodes().exec() == [a, b]
    assert db.edges().exec() == [edge]


def test_edges_by_type_endpoints_and_properties(db: GraphDatabase) -> None:  # G16
    a, b = db.create_node("A").id, db.create_node("A").id
    ends = [(a, "X", b), (a, "Y", b), (b, "X", a), (a, "X", a)]
    for number, (start, type_, end) in enumerate(ends):
        db.create_edge(start, type_, end, {"n": number})
    assert ids(db.edges("X")) == [1, 3, 4]
    assert ids(db.edges("X", from_id=a)) == [1, 4]
    assert ids(db.edges(to_id=a)) == [3, 4]
    assert ids(db.edges(from_id=a, to_id=b)) == [1, 2]
    assert ids(db.edges("X").where("n", "<", 3).order_by("n", descending=True)) == [3, 1]


def test_dates_are_compared_as_they_are_stored(db: GraphDatabase) -> None:  # G5
    days = [date(2026, 1, 1), date(2026, 2, 1), datetime(2026, 2, 1, 12, tzinfo=UTC)]
    fill(db, [{"day": day} for day in days])
    assert ids(db.nodes().where("day", "<", date(2026, 2, 1))) == [1]
    assert ids(db.nodes().where("day", ">=", date(2026, 2, 1))) == [2, 3]
    assert ids(db.nodes().where("day", "in", [date(2026, 1, 1)])) == [1]
    assert ids(db.nodes().where({"day": datetime(2026, 2, 1, 12, tzinfo=UTC)})) == [3]


def test_in_takes_lists_longer_than_sqlite_has_variables(db: GraphDatabase) -> None:  # G16
    fill(db, [{"n": 49_999}, {"n": "49999"}, {"n": True}, {"n": 1.0}, {"n": 0.5}])
    assert ids(db.nodes().where("n", "in", range(50_000))) == [1, 4]
    assert ids(db.nodes().where("n", "in", [f"{number}" for number in range(50_000)])) == [2]
    assert ids(db.nodes().where("n", "in", {True, 0.5})) == [3, 5]
    assert ids(db.nodes().where("n", "in", [])) == []


@given(
    edges=st.lists(st.tuples(st.integers(1, 4), st.sampled_from("XY"), st.integers(1, 4)), max_size=6),
    node_type=st.sampled_from([None, "A", "B"]),
    edge_type=st.sampled_from([None, "X", "Y", ["X", "Y"]]),
    direction=st.sampled_from(["out", "in", "both"]),
    match=st.sampled_from([None, {"n": 1}, {"n": None}]),
)
@settings(max_examples=80)
def test_connected_and_not_connected(
    edges: list[tuple[int, str, int]],
    node_type: str | None,
    edge_type: str | list[str] | None,
    direction: Any,
    match: dict[str, Any] | None,
) -> None:  # G16
    nodes: dict[int, tuple[str, dict[str, Any]]] = {
        1: ("A", {"n": 1}),
        2: ("A", {}),
        3: ("B", {"n": 1.0}),
        4: ("B", {"n": True}),
    }
    hops = [(a, t, b) for a, t, b in edges if direction != "in"] + [
        (b, t, a) for a, t, b in edges if direction != "out"
    ]
    connected = {
        a
        for a, t, b in hops
        if (edge_type is None or t in edge_type)
        and (node_type is None or nodes[b][0] == node_type)
        and all(holds(nodes[b][1], name, "=", value) for name, value in (match or {}).items())
    }
    with GraphDatabase(":memory:") as db:
        with db.transaction():
            for type_, properties in nodes.values():
                db.create_node(type_, properties)
            for edge in edges:
                db.create_edge(*edge)
        query = db.nodes()
        found = query.connected_to(node_type, edge_type, direction=direction, match=match)
        others = query.not_connected_to(node_type, edge_type, direction=direction, match=match)
        assert set(ids(found)) == connected
        assert set(ids(others)) == set(nodes) - connected
        assert found.where({"n": 1}).count() == len(connected & {1, 3})


def test_not_connected_to_is_not_connected_to(db: GraphDatabase) -> None:  # G16
    job, other, company = (db.create_node(type_).id for type_ in ("Job", "Job", "Company"))
    db.create_edge(job, "POSTED_BY", company)
    # A job with some other edge is still not connected to a company by POSTED_BY.
    db.create_edge(other, "LIKE", job)
    assert ids(db.nodes("Job").connected_to("Company", "POSTED_BY")) == [job]
    assert ids(db.nodes("Job").not_connected_to("Company", "POSTED_BY")) == [other]
    assert ids(db.nodes().not_connected_to(direction="both")) == []
    assert ids(db.nodes("Job").connected_to("Company").connected_to("Job", direction="in")) == [job]


def plan(db: GraphDatabase, run: Callable[[], object]) -> str:
    """How SQLite goes about a query."""
    seen: list[str] = []
    db.connection.set_trace_callback(seen.append)
    run()
    db.connection.set_trace_callback(None)
    rows = [row for statement in seen for row in db.connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return " | ".join(row[3] for row in rows)


@pytest.mark.parametrize("value", ["x", 1, 1.5, True, [1]])
def test_equality_on_an_indexed_property_uses_the_index(db: GraphDatabase, value: Any) -> None:  # G16
    db.create_property_index("Job", "url")
    query = db.nodes("Job").where({"url": value})
    for run in (query.exec, query.first, query.count, query.exists, query.limit(5).exec):
        assert "USING INDEX idx_merge_Job_url" in plan(db, run)


def test_other_conditions_use_indexes_too(db: GraphDatabase) -> None:  # G16
    db.create_property_index("Job", "url")
    db.create_property_index("E", "w", table="edges")
    assert "idx_merge_Job_url" in plan(db, db.nodes("Job").where("url", "in", ["a", 1]).exec)
    assert "idx_merge_E_w" in plan(db, db.edges("E").where({"w": 1}).exec)
    assert "edges_out (from_id=? AND type=?)" in plan(db, db.edges("E", from_id=1).exec)
    assert "edges_in (to_id=? AND type=?)" in plan(db, db.nodes("Job").connected_to("C", "E", direction="in").exec)
    assert "nodes_by_type" in plan(db, db.nodes("Job").limit(3).exec)


@pytest.mark.parametrize(
    "build",
    [
        lambda db: db.nodes(""),
        lambda db: db.nodes(7),
        lambda db: db.edges(from_id="1"),
        lambda db: db.nodes().limit(-1),
        lambda db: db.nodes().limit(True),
        lambda db: db.nodes().offset(1.0),
        lambda db: db.nodes().where("a", "<", True),
        lambda db: db.nodes().where("a", ">=", [1]),
        lambda db: db.nodes().where("a", ">", {}),
        lambda db: db.nodes().where("a", "<=", None),
        lambda db: db.nodes().where("a", "in", "abc"),
        lambda db: db.nodes().where("a", "in", None),
        lambda db: db.nodes().where("a", "in", [None]),
        lambda db: db.nodes().where("a", "in", [[1]]),
        lambda db: db.nodes().where("a", "starts_with", 1),
        lambda db: db.nodes().where("a", "ends_with", None),
        lambda db: db.nodes().where("a", "contains", {}),
        lambda db: db.nodes().where({"a": {"b": 1}}),
        lambda db: db.nodes().where("a", "!=", [{}]),
        lambda db: db.nodes().where("a"),
        lambda db: db.nodes().where(None),
        lambda db: db.nodes().where({"a": 1}, "=", 1),
        lambda db: db.nodes().connected_to(direction="up"),
        lambda db: db.nodes().connected_to("T", []),
        lambda db: db.nodes().connected_to(match=["a"]),
    ],
)
def test_invalid_arguments_are_refused(db: GraphDatabase, build: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        build(db)


def test_an_unknown_operator_is_answered_with_those_there_are(db: GraphDatabase) -> None:
    query: Any = db.nodes()
    with pytest.raises(InvalidArgumentError, match=r"'LIKE'.* = != < <= > >= in contains starts_with ends_with"):
        query.where("a", "LIKE", "b%")


def test_values_that_cannot_be_stored_are_refused_by_name(db: GraphDatabase) -> None:  # G5
    with pytest.raises(PropertyValueError, match="where property 'a' is NaN"):
        db.nodes().where("a", "<", float("nan"))
    with pytest.raises(PropertyTypeError, match="where property 'a' is of type bytes"):
        db.nodes().where({"a": b""})
    with pytest.raises(PropertyTypeError, match="order_by has the property name 1"):
        db.nodes().order_by(1)  # type: ignore[arg-type]


def test_names_and_types_are_data_never_sql(db: GraphDatabase) -> None:  # G6
    fill(db, [{"') OR 1 --": 1}, {}])
    db.create_node("x' OR '1'='1")
    assert ids(db.nodes().where({"') OR 1 --": 1})) == [1]
    assert ids(db.nodes("x' OR '1'='1")) == [3]
    assert ids(db.nodes().order_by("a' DESC; DROP TABLE nodes; --")) == [1, 2, 3]
