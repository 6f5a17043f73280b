"""Text queries: what they find and merge agrees with loops over dicts, and what they do not support is refused."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.graph.graph_oracle import assert_unchanged, dump

from merganser.errors import InvalidArgumentError, MergeConflictError, MergePerformanceWarning
from merganser.graph import Edges, GraphDatabase, Nodes, Paths, Rows
from merganser.graph.querying.text_parser import parse_query
from merganser.graph.querying.text_query import QueryOptions, run_query

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, Any]
# A condition as it is written, and what it gives for the properties of two nodes: True, False, or None if not known.
Test = tuple[str, "Callable[[Row, Row], bool | None]"]

VALUES = st.integers(-1, 2) | st.sampled_from([1.0, 0.5, "a", "ab", "", "a\0", '"', True, [1], [1.0], ["a"], {"k": 1}])
NODES = st.lists(
    st.tuples(st.sampled_from("AB"), st.dictionaries(st.sampled_from(["p", "q"]), VALUES, max_size=2)),
    min_size=1,
    max_size=4,
)
EDGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("XY"), st.integers(0, 3), st.integers(0, 2)), max_size=6)
LITERALS = [(-1, "-1"), (1, "1.0"), (0.5, "5e-1"), ("a", "'a'"), ("ab", '"ab"'), ("a\0", r"'a\u0000'"), ('"', "'\"'")]


def rank(value: Any) -> tuple[str, Any]:
    """The kind of a value and the value, by which equal ones are found."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, list):
        return ("list", [rank(item) for item in value])
    return (type(value).__name__, value)


def compare(own: Any, operator: str, value: Any) -> bool | None:
    """Compare as openCypher does: what is absent or of another kind is not known."""
    if own is None or value is None:
        return None
    (kind, left), (other, right) = rank(own), rank(value)
    if operator in {"=", "<>"}:
        return (rank(own) == rank(value)) == (operator == "=")
    if kind != other or kind not in {"number", "str"}:
        return None
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])


def contains(own: Any, value: Any) -> bool | None:
    if isinstance(own, list):
        return any(rank(item) == rank(value) for item in own)
    return value in own if isinstance(own, str) else None


def starts(own: Any, value: str) -> bool | None:
    return own.startswith(value) if isinstance(own, str) else None


def both_not(inner: Test) -> Test:
    def test(one: Row, other: Row) -> bool | None:
        found = inner[1](one, other)
        return None if found is None else not found

    return (f"NOT {inner[0]}", test)


def join(word: str, left: Test, right: Test) -> Test:
    deciding = word == "OR"

    def test(one: Row, other: Row) -> bool | None:
        found = [left[1](one, other), right[1](one, other)]
        return deciding if deciding in found else None if None in found else not deciding

    return (f"({left[0]} {word} {right[0]})", test)


def compare_properties(side: int, operator: str) -> Callable[[Row, Row], bool | None]:
    return lambda *rows: compare(rows[side].get("p"), operator, rows[1].get("q"))


def make_tests() -> list[Test]:
    tests: list[Test] = []
    for (side, name), operator, (value, text) in product(
        [(0, "a.p"), (1, "b.q")], ["=", "<>", "<", "<=", ">", ">="], LITERALS
    ):
        key = name[-1]
        tests.append(
            (
                f"{name} {operator} {text}",
                lambda *rows, s=side, k=key, o=operator, v=value: compare(rows[s].get(k), o, v),
            )
        )
    for operator in ("=", "<>", "<", "<=", ">", ">="):
        for side, name in ((0, "a.p"), (1, "b.p")):
            tests.append((f"{name} {operator} b.q", compare_properties(side, operator)))
    tests += [
        ("a.p IS NULL", lambda one, _: "p" not in one),
        ("b.q IS NOT NULL", lambda _, other: "q" in other),
        ("a.p IN [1, 'a', true]", lambda one, _: rank(one["p"]) in map(rank, [1, "a", True]) if "p" in one else None),
        ("b.q CONTAINS 'a'", lambda _, other: contains(other.get("q"), "a")),
        ("a.p CONTAINS 1", lambda one, _: contains(one.get("p"), 1) if not isinstance(one.get("p"), str) else False),
        ("a.p STARTS WITH 'a'", lambda one, _: starts(one.get("p"), "a")),
        ("a.p ENDS WITH ''", lambda one, _: starts(one.get("p"), "")),
        ("a = b", lambda one, other: one["id"] == other["id"]),
        ("a <> b", lambda one, other: one["id"] != other["id"]),
        ("id(a) < id(b)", lambda one, other: one["id"] < other["id"]),
        ("id(b) IN [1, 3]", lambda _, other: other["id"] in {1, 3}),
        ("type(a) = 'A'", lambda one, _: one["type"] == "A"),
        ("type(a) <> type(b)", lambda one, other: one["type"] != other["type"]),
        ("created_at(a) = created_at(b)", lambda one, other: one["at"] == other["at"]),
    ]
    return tests


TESTS = make_tests()
EXPRESSIONS = st.recursive(
    st.sampled_from(TESTS),
    lambda inner: st.one_of(inner.map(both_not), st.builds(join, st.sampled_from(["AND", "OR"]), inner, inner)),
    max_leaves=4,
)
BY_TEXT = dict(TESTS)


def fill(db: GraphDatabase, nodes: list[tuple[str, Row]], edges: list[tuple[int, str, int, int]]) -> list[Row]:
    """Create the graph; gives the nodes as rows of all they have."""
    with db.transaction():
        made = [db.create_node(type_, properties) for type_, properties in nodes]
        for start, type_, end, weight in edges:
            db.create_edge(made[start % len(made)].id, type_, made[end % len(made)].id, {"w": weight})
    return [{**node.properties, "id": node.id, "type": node.type, "at": node.created_at} for node in made]


@given(NODES, EXPRESSIONS)
@settings(max_examples=250)
@example([("A", {"p": [1]}), ("A", {"q": [1.0]})], ("a.p = b.q", BY_TEXT["a.p = b.q"]))
@example([("A", {"p": "a\0", "q": "b"})], ("b.p < b.q", BY_TEXT["b.p < b.q"]))
@example([("A", {"p": 1}), ("A", {})], both_not(("a.p STARTS WITH 'a'", BY_TEXT["a.p STARTS WITH 'a'"])))
def test_where_agrees_with_a_loop(nodes: list[tuple[str, Row]], expression: Test) -> None:  # L5
    text, holds = expression
    with GraphDatabase(":memory:") as db:
        rows = fill(db, nodes, [])
        expected = [{"x": one["id"], "y": other["id"]} for one in rows for other in rows if holds(one, other) is True]
        assert list(ask(db, f"MATCH (a), (b) WHERE {text} RETURN id(a) AS x, id(b) AS y")) == expected
        assert list(ask(db, f"MATCH (a), (b) WHERE {text} RETURN count(*)")) == [{"count(*)": len(expected)}]


# Patterns as they are written; for each, the variables of its nodes, and its edges with their ends and directions.
PATTERNS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
    ("(a)-[r]->(b)", "ab", [("r", "a", "b", "out")]),
    ("(a)<-[r:X]-(b)", "ab", [("r:X", "a", "b", "in")]),
    ("(a)-[r]-(b)", "ab", [("r", "a", "b", "both")]),
    ("(a)-[r]->(b)-[s]->(c)", "abc", [("r", "a", "b", "out"), ("s", "b", "c", "out")]),
    ("(a)-[r:X]->(b)<-[s:X|Y]-(c)", "abc", [("r:X", "a", "b", "out"), ("s", "b", "c", "in")]),
    ("(a)-[r]->(b)-[s]->(a)", "ab", [("r", "a", "b", "out"), ("s", "b", "a", "out")]),
    ("(a)-[r]->(b), (c)-[s]-(b)", "abc", [("r", "a", "b", "out"), ("s", "c", "b", "both")]),
    ("(a)-[r {w > 0}]->(b)", "ab", [("r>", "a", "b", "out")]),
    ("(a)-[r]->(a)", "a", [("r", "a", "a", "out")]),
]


def matches(rows: list[Row], edges: list[tuple[int, str, int, int]], names: str, hops: Any) -> list[tuple[int, ...]]:
    """The ids of nodes and edges of every match, by trying all of them."""
    ids = [row["id"] for row in rows]
    ended = [
        (number, ids[start % len(ids)], type_, ids[end % len(ids)], weight)
        for number, (start, type_, end, weight) in enumerate(edges, 1)
    ]
    found = []
    for nodes in product(ids, repeat=len(names)):
        at = dict(zip(names, nodes, strict=True))
        choices = []
        for name, start, end, direction in hops:
            ways = {"out": [(at[start], at[end])], "in": [(at[end], at[start])]}
            ways["both"] = ways["out"] + ways["in"]
            choices.append(
                [
                    number
                    for number, one, type_, other, weight in ended
                    if (one, other) in ways[direction]
                    and (":X" not in name or type_ == "X")
                    and (">" not in name or weight > 0)
                ]
            )
        found += [(*nodes, *chosen) for chosen in product(*choices) if len(set(chosen)) == len(chosen)]
    return found


@given(NODES, EDGES, st.sampled_from(PATTERNS), st.integers(0, 3), st.none() | st.integers(0, 4), st.booleans())
@settings(max_examples=150)
def test_patterns_agree_with_trying_everything(
    nodes: list[tuple[str, Row]],
    edges: list[tuple[int, str, int, int]],
    pattern: Any,
    skip: int,
    limit: int | None,
    down: bool,
) -> None:  # L5
    text, names, hops = pattern
    named = [*names, *(name[0] for name, *_ in hops)]
    with GraphDatabase(":memory:") as db:
        rows = fill(db, nodes, edges)
        expected = sorted(matches(rows, edges, names, hops))
        columns = ", ".join(f"id({name}) AS {name}{name}" for name in named)
        found = ask(db, f"MATCH {text} RETURN {columns}")
        assert sorted(tuple(row.values()) for row in found) == expected
        # Sorted by columns, the rows are in one order, of which SKIP and LIMIT take a part.
        word = "DESC" if down else "ASC"
        order = ", ".join(f"{name}{name} {word}" for name in named)
        part = f"SKIP {skip}" + ("" if limit is None else f" LIMIT {limit}")
        ordered = sorted(expected, reverse=down)[skip:][:limit]
        rows_ = ask(db, f"MATCH {text} RETURN {columns} ORDER BY {order} {part}")
        assert [tuple(row.values()) for row in rows_] == ordered
        places = {match[0] for match in expected}
        assert [node.id for node in ask(db, f"MATCH {text} RETURN DISTINCT a")] == sorted(places)
        counts = {row["n"]: row["c"] for row in ask(db, f"MATCH {text} RETURN id(a) AS n, count(DISTINCT r) AS c")}
        assert counts == {
            place: len({match[len(names)] for match in expected if match[0] == place}) for place in places
        }
        assert [node.id for node in ask(db, f"MATCH {text} RETURN a")] == [match[0] for match in expected]


def ask(db: GraphDatabase, text: str, /, **parameters: Any) -> Any:
    """Run a query whose kind of result the test knows."""
    return db.query(text, **parameters)


@pytest.fixture
def jobs(db: GraphDatabase) -> GraphDatabase:
    """Three jobs of two companies."""
    db.create_property_index("Job", "url", unique=True)
    db.create_property_index("Company", "name", unique=True)
    companies = [db.create_node("Company", {"name": name}).id for name in ("TechCorp", "DataWorks")]
    for number, company in enumerate((0, 0, 1), 1):
        job = db.create_node("Job", {"url": f"/{number}", "seen": number, "id": "own"})
        db.create_edge(job.id, "POSTED_BY", companies[company], {"since": 2023 + number})
    return db


def test_a_query_gives_what_it_asks_for(jobs: GraphDatabase) -> None:  # L5
    companies = ask(jobs, "(:Job)-[:POSTED_BY]->(c:Company {name: $name}) RETURN c", name="TechCorp")
    assert isinstance(companies, Nodes)
    assert companies == [jobs.get_node(1), jobs.get_node(1)]
    edges = ask(jobs, "MATCH (:Job)-[r]->() WHERE r.since > $year RETURN r", year=2024)
    assert isinstance(edges, Edges)
    assert [edge.id for edge in edges] == [2, 3]
    paths = ask(jobs, "(:Job {seen > 1})-[:POSTED_BY {since < 2026}]->(:Company)")
    assert isinstance(paths, Paths)
    assert paths.cells()[1] == [['(Job {url: "/2"})-[POSTED_BY]->(Company {name: "TechCorp"})']]
    # A path that is shown is a query for it.
    assert ask(jobs, paths.cells()[1][0][0]) == paths
    rows = ask(jobs, "MATCH (j:Job)-->(c) RETURN c.name, count(*) AS n, count(j.absent) AS none ORDER BY n DESC")
    assert isinstance(rows, Rows)
    assert list(rows) == [
        {"c.name": "TechCorp", "n": 2, "none": 0},
        {"c.name": "DataWorks", "n": 1, "none": 0},
    ]
    assert rows.to_arrow().to_pylist() == list(rows)
    assert [node.id for node in ask(jobs, "match (j:Job) where j.seen >= 2 return j order by j.seen desc limit 1")] == [
        5
    ]
    assert ask(jobs, "(Job) ORDER BY count LIMIT 1".replace(" ORDER BY count", "")) == jobs.nodes("Job").limit(1).exec()
    assert ask(jobs, "[POSTED_BY {since: 2024}]") == jobs.edges("POSTED_BY").where({"since": 2024}).exec()
    assert ask(jobs, "(#4)-[*1..2 {since > 2024}]-(:Company)") == [jobs.get_node(1)]
    assert [len(path) for path in ask(jobs, "(#3)-[*]-(:Job {url: '/2'})")] == [2]
    assert ask(jobs, "(#3)-[* {since > 2024}]-(:Job {url: '/2'})") == []


@pytest.mark.parametrize("name", ["count", '"in all"', "`in all`", "distinct", "asc", "j"])
def test_rows_are_sorted_by_a_column_of_any_name(jobs: GraphDatabase, name: str) -> None:  # L5
    found = ask(jobs, f"MATCH (j:Job) RETURN j.url AS url, count(*) AS {name} ORDER BY {name} DESC, url DESC")
    assert [row["url"] for row in found] == sorted((row["url"] for row in found), reverse=True)
    assert [*found[0]] == ["url", name.strip('"`')]


@pytest.mark.parametrize("text", ["(:Job)-->()", "(#1)", "(#1)-[*]-()", "(:Job)"])
def test_a_limit_below_zero_is_refused(jobs: GraphDatabase, text: str) -> None:  # L6
    with pytest.raises(InvalidArgumentError, match="limit is -1; give an integer of 0 or more"):
        run_query(jobs._store, parse_query(text, {}), QueryOptions(limit=-1))


def test_rows_hold_records_values_and_times(jobs: GraphDatabase) -> None:  # L5
    (row,) = ask(jobs, "MATCH (j:Job {url: '/3'})-[r]->(c) RETURN j, r, j.id, id(j), type(r), created_at(c), j.none;")
    assert row == {
        "j": jobs.get_node(5),
        "r": jobs.get_edge(3),
        "j.id": "own",
        "id(j)": 5,
        "type(r)": "POSTED_BY",
        "created_at(c)": ask(jobs, "(#2)")[0].created_at,
        "j.none": None,
    }
    found = ask(jobs, "MATCH (j:Job)-[r]->() RETURN j, r.since AS `in year` ORDER BY `in year` DESC")
    table = found.to_arrow()
    assert table.column_names == [
        "j.id",
        "j.type",
        "j.url",
        "j.seen",
        "j.property_id",
        "j.created_at",
        "j.updated_at",
        "in year",
    ]
    assert table.column("in year").to_pylist() == [2026, 2025, 2024]
    assert found.to_dict()["rows"][0]["j"]["properties"]["url"] == "/3"
    with pytest.raises(InvalidArgumentError, match=r"two columns 'j\.url'"):
        ask(jobs, "MATCH (j:Job) RETURN j, j.url").to_arrow()


def test_names_and_values_are_data_never_sql(jobs: GraphDatabase) -> None:  # L5
    bad = "x'); DROP TABLE nodes; --"
    jobs.create_node(bad, {bad: bad, 'q"\\': bad})
    quoted = f"`{bad}`"
    (row,) = ask(jobs, f"MATCH ({quoted}:{quoted} {{{quoted}: $v}}) RETURN {quoted}.{quoted} AS {quoted}", v=bad)
    assert row == {bad: bad}
    assert (
        len(
            ask(
                jobs,
                f"MATCH (n:{quoted}) WHERE n.{quoted} = \"{bad}\" AND n.`q\"\\` = '{bad[:1]}\\'{bad[2:]}' RETURN n",
            )
        )
        == 1
    )
    assert jobs.nodes().count() == 6


def test_parameters_take_the_place_of_every_value(jobs: GraphDatabase) -> None:  # L5
    found = ask(
        jobs,
        "MATCH (j:Job) WHERE j.seen IN $list AND id(j) <> $id RETURN j.seen ORDER BY j.seen SKIP $self LIMIT $text",
        list=[1, 2, 3],
        id=4,
        self=1,
        text=5,
    )
    assert list(found) == [{"j.seen": 3}]
    with pytest.raises(InvalidArgumentError, match="No query uses the parameter"):
        ask(jobs, "(:Job)", name=1)
    with pytest.raises(InvalidArgumentError, match=r"uses \$name, but no value"):
        ask(jobs, "(:Job {url: $name})")


# Each text, where it is refused, and why.
REFUSED = [
    ("MATCH (n) OPTIONAL MATCH (m) RETURN n", 11, "OPTIONAL is not supported here; use two queries"),
    ("MATCH (n) WITH n RETURN n", 11, "WITH is not supported here"),
    ("MATCH (n) MATCH (m) RETURN n", 11, "one MATCH with a comma"),
    ("MATCH (n) CREATE (m)", 11, "CREATE is not supported here; use MERGE"),
    ("MATCH (n) SET n.a = 1", 11, "SET is not supported here"),
    ("MATCH (n) DETACH DELETE n", 11, "DETACH is not supported here; use delete_node"),
    ("MATCH (n) RETURN n UNION MATCH (m) RETURN m", 20, "UNION is not supported here"),
    ("MATCH p = (a)-->(b) RETURN p", 7, "variables of paths"),
    ("MATCH (n:A:B) RETURN n", 11, "a node has one type"),
    ("MATCH (n:A|B) RETURN n", 11, "a node has one type"),
    ("MATCH (n $props) RETURN n", 10, "properties are given by name"),
    ("MATCH (a)-[r]->(b)-[r]->(c) RETURN a", 20, "'r' is used twice"),
    ("MATCH (a)-[a]->(b) RETURN a", 11, "'a' is used twice"),
    ("MATCH (a)-[*1..2]->(b) RETURN b", 10, "an edge with * is supported only in a pattern alone"),
    ("MATCH (a) WHERE (a)-->(b) RETURN a", 18, "a pattern or type in WHERE is not supported"),
    ("MATCH (a) WHERE a:Job RETURN a", 17, "a pattern or type in WHERE is not supported"),
    ("MATCH (a) WHERE a.x RETURN a", 21, "expected an operator"),
    ("MATCH (a) WHERE a.x =~ 'b' RETURN a", 21, "regular expressions are not supported"),
    ("MATCH (a) WHERE a.x = 1 XOR a.y = 1 RETURN a", 25, "XOR is not supported here; write it with AND, OR and NOT"),
    ("MATCH (a) WHERE a.x + 1 = 2 RETURN a", 21, "arithmetic is not supported"),
    ("MATCH (a) WHERE a.x = 1 + 1 RETURN a", 25, "arithmetic is not supported"),
    ("MATCH (a) WHERE 1 = a.x RETURN a", 17, "a comparison begins with a property"),
    ("MATCH (a) WHERE a.x = null RETURN a", 21, "write IS NULL"),
    ("MATCH (a) WHERE a = 7 RETURN a", 17, "a node or edge is compared with another"),
    ("MATCH (a) WHERE id(a) = a.x RETURN a", 23, "a property is compared with a property"),
    ("MATCH (a) WHERE id(a) = created_at(a) RETURN a", 23, "an id with an id"),
    ("MATCH (a), (b) WHERE a < b RETURN a", 24, "two of these are compared by != ="),
    ("MATCH (a) WHERE type(a) < 'b' RETURN a", 25, "a type is compared by"),
    ("MATCH (a) WHERE id(a) IS NULL RETURN a", 23, "only a property may be NULL"),
    ("MATCH (a) WHERE toLower(a.x) = 'b' RETURN a", 17, "the function toLower is not supported"),
    ("MATCH (a) WHERE b.x = 1 RETURN a", 17, "'b' is not a variable of a pattern (those are: a)"),
    ("(Job) RETURN Job", 14, "'Job' is not a variable of a pattern (those are: none); write it before a colon"),
    ("MATCH (a) RETURN *", 18, "RETURN takes variables"),
    ("MATCH (a) RETURN 1", 18, "RETURN takes variables"),
    ("MATCH (a) RETURN sum(a.x)", 18, "the function sum is not supported"),
    ("MATCH (a) RETURN a.x / 2", 22, "arithmetic is not supported"),
    ("MATCH (a) RETURN a.x, a.x", 26, "two columns are called 'a.x'"),
    ("MATCH (a) RETURN a ORDER BY b", 29, "'b' is not a variable"),
    ("MATCH (a) RETURN a.x ORDER BY count", 31, "'count' is not a variable"),
    ("MATCH (a)-[r]-() WHERE a = r RETURN a", 26, "a node is compared with a node, and an edge with an edge"),
    ("MATCH (a) WHERE a.x = 1\u0663 RETURN a", 24, "expected the end"),
    ("OPTIONAL MATCH (a) RETURN a", 1, "OPTIONAL is not supported here; use two queries"),
    ("CREATE (a:Job)", 1, "CREATE is not supported here; use MERGE, or create_node"),
    ("MERGE (a:Job {u: 1}) RETURN a.u, a.u", 37, "two columns are called 'a.u'"),
    ("MATCH (a) RETURN a LIMIT", 25, "expected a value"),
    ("MATCH (a {x: 'b\\q'}) RETURN a", 14, "the string has an unknown escape"),
    ("[X] RETURN x", 5, "put () at both ends"),
    (f"MATCH (a) WHERE {'(' * 9_000}a.x = 1{')' * 9_000} RETURN a", 68, "over 50 brackets in each other"),
    (f"MATCH (a) WHERE {'a.x = 1 OR ' * 200}a.x = 1 RETURN a", 2_217, "over 200 comparisons; use IN"),
    ("MERGE (a:Job {url: 1}) SET a.x = 1", 24, "SET is not supported here"),
    ("MERGE (a:Job {url: 1}) ON UPDATE SET a.x = 1", 24, "expected ON CREATE SET or ON MATCH SET"),
    ("MERGE (a:Job {url: 1}) ON MATCH SET a.x = a.x + 1", 43, "not to an expression"),
    ("MERGE (a:Job {url: 1}) ON MATCH SET a += 1", 37, "a += takes a dict"),
    ("MERGE (a:Job {url: 1}) ON MATCH SET b.x = 1", 37, "'b' is not a variable"),
    ("MERGE (a:Job {url > 1})", 7, "MERGE finds by values"),
    ("MERGE (a:Job {url: 1, url: 2})", 7, "give each once"),
    ("MERGE (a {url: 1})", 7, "a node to merge has a type"),
    ("MERGE (a:Job #7)", 7, "a node to merge has a type"),
    ("MERGE (a:Job {u: 1})-->(b:Job {u: 2})", 21, "an edge to merge has one type"),
    ("MERGE (a:Job {u: 1}) MERGE (a)-[:X]->(b:Job {u: 2})", 22, "must be the only MERGE"),
    ("MERGE (a:Job {u: 1})-[:X]->(b:Job {u: 2}) MERGE (a)-[:Y]->(b)", 1, "must be the only MERGE"),
    ("MERGE (a:Job {u: 1}) MERGE (a:Job {u: 1})", 28, "a is merged already"),
    ("MERGE (a:Job {u: 1}) MERGE (b:Job {u: 2}) ON MATCH SET a.x = 1", 22, "not of a"),
    ("MERGE (a:Job {u: 1}) RETURN count(*)", 22, "not counts"),
    ("MERGE (a:Job {u: 1}) RETURN a LIMIT 1", 31, "expected ON CREATE SET"),
    ("MATCH (a) MERGE (b:Job {u: 1})", 11, "MERGE is not supported here; a query either matches or merges"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "reason"), REFUSED)
def test_what_is_not_supported_is_refused_with_its_position(
    jobs: GraphDatabase, text: str, column: int, reason: str
) -> None:  # L6
    with assert_unchanged(jobs), pytest.raises(InvalidArgumentError) as caught:
        ask(jobs, text)
    assert f"at line 1, column {column}, " in str(caught.value)
    assert reason in str(caught.value)
    # On another line, the position is that of the line.
    with pytest.raises(InvalidArgumentError, match=f"at line 3, column {column}, "):
        ask(jobs, f"\n\n{text}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MATCH (a), (b)", "A query for several patterns needs RETURN"),
        ("MATCH (a) RETURN DISTINCT a.x ORDER BY a.y", "ORDER BY takes only what RETURN has"),
        ("MATCH (a) RETURN a.x ORDER BY count(*)", "ORDER BY takes only what RETURN has"),
        (f"MATCH {'()-->' * 32}() RETURN count(*)", "at most 64 nodes and edges, not 65"),
        ("MATCH (a) RETURN a LIMIT -1", "LIMIT is -1; give an integer of 0 or more"),
        ("MATCH (a) WHERE a.x < true RETURN a", "Property 'x' cannot be compared by < True"),
        ("MATCH (a) WHERE a.x IN 7 RETURN a", "Property 'x' cannot be in 7"),
        ("MATCH (a) WHERE type(a) = 7 RETURN a", "type is compared with 7"),
        ("MATCH (a) WHERE created_at(a) < 7 RETURN a", "created_at cannot be compared with 7"),
        (f"(:Job {{{', '.join(f'p{number}: 1' for number in range(1200))}}})", "The query is too large for SQLite"),
        (f"MATCH (a) RETURN {', '.join(f'a.p{number}' for number in range(2100))}", "Use fewer conditions or columns"),
    ],
)
def test_what_cannot_be_computed_is_refused(jobs: GraphDatabase, text: str, reason: str) -> None:  # L6
    with pytest.raises(InvalidArgumentError, match=re.escape(reason)):
        ask(jobs, text)
    with pytest.raises(InvalidArgumentError, match="The query is a int; give a string"):
        jobs.query(7)  # type: ignore[arg-type]


def test_the_longest_pattern_and_where_together_can_be_run(jobs: GraphDatabase) -> None:  # L5
    where = " AND ".join(["a.x IS NULL"] * 200)
    assert list(ask(jobs, f"MATCH (a){'-->()' * 31} WHERE {where} RETURN count(*)")) == [{"count(*)": 0}]
    # 32 nodes and as many edges.
    ring = f"(a){'-->()' * 31}-->(a)"
    assert list(ask(jobs, f"MATCH {ring} WHERE {'(' * 50}{where}{')' * 50} RETURN count(*)")) == [{"count(*)": 0}]


def test_merge_creates_or_matches(jobs: GraphDatabase) -> None:  # L7
    text = (
        "MERGE (j:Job {url: $url}) ON CREATE SET j.seen = 1, j.tags = ['a', $tag] "
        "ON MATCH SET j.seen = $seen, j += {day: '2026-03-02', id: null} RETURN j"
    )
    (made,) = ask(jobs, text, url="/9", tag="b", seen=2)
    assert (made.created, made.properties) == (True, {"url": "/9", "seen": 1, "tags": ["a", "b"]})
    (found,) = ask(jobs, text, url="/9", tag="b", seen=2)
    assert (found.created, found.id) == (False, made.id)
    assert found.properties == {"url": "/9", "seen": 2, "tags": ["a", "b"], "day": "2026-03-02"}
    assert list(ask(jobs, "MERGE (:Job {url: '/9'})")) == [{"created": 0, "matched": 1}]


def test_merge_connects_what_was_merged_before(jobs: GraphDatabase) -> None:  # L7
    text = (
        "MERGE (j:Job {url: $url}) ON CREATE SET j.seen = 1 MERGE (c:Company {name: $name}) "
        "MERGE (c)<-[r:POSTED_BY]-(j) ON CREATE SET r.since = 2026 RETURN j.url, id(c) AS company, type(r), r, r.none"
    )
    (row,) = ask(jobs, text, url="/9", name="TechCorp")
    edge = jobs.get_edge(4)
    assert edge is not None
    assert (edge.from_id, edge.to_id, edge.properties) == (6, 1, {"since": 2026})
    assert row == {"j.url": "/9", "company": 1, "type(r)": "POSTED_BY", "r": edge, "r.none": None} | {"r": row["r"]}
    before = dump(jobs)
    (again,) = ask(jobs, text, url="/9", name="TechCorp")
    assert again["r"].created is False
    assert len(dump(jobs)) == len(before)
    (edge_,) = ask(
        jobs, "MERGE (a:Job {url: '/9'}) MERGE (b:Company {name: 'TechCorp'}) MERGE (b)-[r:POSTED_BY]-(a) RETURN r"
    )
    assert edge_.id == edge.id


def test_merge_of_a_path_is_found_or_created_as_one(jobs: GraphDatabase) -> None:  # L7
    text = "MERGE (:Job {url: $url})-[:POSTED_BY]->(:Company {name: $name})"
    assert list(ask(jobs, text, url="/1", name="TechCorp")) == [{"created": 0, "matched": 3}]
    with pytest.warns(MergePerformanceWarning) as caught:
        assert list(jobs.query("MERGE (:Stop {n: 1})-[:NEXT]->(:Stop {n: 2})")) == [{"created": 3, "matched": 0}]
    # The warning names the line that calls the query.
    assert caught[0].filename == __file__
    for n in (1, 1):
        jobs.create_node("Place", {"n": n})
    jobs.create_property_index("Place", "n")
    with assert_unchanged(jobs), pytest.raises(MergeConflictError):
        ask(jobs, "MERGE (:Place {n: 1})")


def test_conditions_use_indexes(jobs: GraphDatabase) -> None:  # L5
    seen: list[str] = []
    jobs.connection.set_trace_callback(seen.append)
    ask(jobs, "MATCH (j:Job) WHERE j.url = $url AND NOT j.seen > 5 RETURN j", url="/1")
    ask(jobs, "MATCH (j:Job {url: $url})-[:POSTED_BY]->(c:Company) RETURN c.name", url="/1")
    jobs.connection.set_trace_callback(None)
    for statement in seen:
        plan = " | ".join(row[3] for row in jobs.connection.execute(f"EXPLAIN QUERY PLAN {statement}"))
        assert "USING INDEX idx_merge_Job_url" in plan
