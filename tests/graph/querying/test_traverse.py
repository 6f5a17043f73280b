"""Traversals, paths and patterns, each compared with a walk over a list of edges in Python."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merganser.errors import InvalidArgumentError, NodeNotFoundError
from merganser.graph import GraphDatabase, Path

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator


class Hop(NamedTuple):
    """An edge as it is walked: where from, of which id, where to."""

    start: int
    edge: int
    end: int


class Graph(NamedTuple):
    """The types of the nodes 1, 2, …, and the edges 1, 2, … between them."""

    nodes: list[str]
    edges: list[tuple[int, str, int]]

    def hops(self, types: str | list[str] | None, direction: str) -> list[Hop]:
        found = []
        for number, (start, type_, end) in enumerate(self.edges, 1):
            if types is None or type_ in types:
                if direction != "in":
                    found.append(Hop(start, number, end))
                if direction == "in" or (direction == "both" and start != end):
                    found.append(Hop(end, number, start))
        return found

    def opened(self) -> GraphDatabase:
        db = GraphDatabase(":memory:")
        with db.transaction():
            for type_ in self.nodes:
                db.create_node(type_, {"odd": len(type_) % 2 == 1})
            for edge in self.edges:
                db.create_edge(*edge)
        return db


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = draw(st.lists(st.sampled_from(["A", "BB"]), min_size=1, max_size=5))
    ends = st.integers(1, len(nodes))
    return Graph(nodes, draw(st.lists(st.tuples(ends, st.sampled_from(["X", "Y"]), ends), max_size=9)))


EDGE_TYPES = st.sampled_from([None, "X", ["X", "Y"], ["Y", "Z"]])
NODE_TYPES = st.sampled_from([None, "A", "BB", "None"])
DIRECTIONS = st.sampled_from(["out", "in", "both"])


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


def ring(db: GraphDatabase, length: int) -> list[int]:
    with db.transaction():
        ids = [db.create_node("N").id for _ in range(length)]
        for start, end in pairwise([*ids, ids[0]]):
            db.create_edge(start, "NEXT", end)
    return ids


def distances(hops: list[Hop], start: int) -> dict[int, int]:
    found, frontier, depth = {start: 0}, {start}, 0
    while frontier:
        depth += 1
        frontier = {hop.end for hop in hops if hop.start in frontier} - found.keys()
        found |= dict.fromkeys(frontier, depth)
    return found


def simple_paths(
    hops: list[Hop], way: list[int], edges: list[int], longest: int
) -> Iterator[tuple[list[int], list[int]]]:
    yield way, edges
    if len(edges) < longest:
        for hop in hops:
            if hop.start == way[-1] and hop.end not in way:
                yield from simple_paths(hops, [*way, hop.end], [*edges, hop.edge], longest)


def steps(path: Path) -> tuple[list[int], list[int]]:
    """The ids along a path, whose edges must fit its nodes."""
    for edge, ends in zip(path.edges, pairwise(path.nodes), strict=True):
        assert {edge.from_id, edge.to_id} == {end.id for end in ends}
    return [node.id for node in path.nodes], [edge.id for edge in path.edges]


@given(graphs(), EDGE_TYPES, DIRECTIONS, st.integers(1, 2), st.none() | st.integers(0, 3), NODE_TYPES)
@settings(max_examples=80)
def test_nodes_are_those_of_a_breadth_first_search(
    graph: Graph, edge_type: Any, direction: Any, least: int, more: int | None, node_type: str | None
) -> None:  # G16
    most = None if more is None else least + more
    reached = distances(graph.hops(edge_type, direction), 1)
    expected = [
        node
        for depth, node in sorted((depth, node) for node, depth in reached.items())
        if depth >= least and (most is None or depth <= most) and node_type in {None, graph.nodes[node - 1]}
    ]
    with graph.opened() as db:
        found = db.traverse(1, edge_type, direction=direction, min_depth=least, max_depth=most, node_type=node_type)
        assert [node.id for node in found.nodes()] == expected
        assert found.count() == len(expected)
        assert [db.get_node(node.id) for node in found.nodes()] == found.nodes()


@given(graphs(), EDGE_TYPES, DIRECTIONS, st.integers(1, 2), st.integers(0, 2), NODE_TYPES)
@settings(max_examples=80)
def test_paths_are_all_that_visit_no_node_twice(
    graph: Graph, edge_type: Any, direction: Any, least: int, more: int, node_type: str | None
) -> None:  # G16
    every = simple_paths(graph.hops(edge_type, direction), [1], [], least + more)
    expected = [
        (way, edges) for way, edges in every if len(edges) >= least and node_type in {None, graph.nodes[way[-1] - 1]}
    ]
    expected.sort(key=lambda path: (len(path[1]), path))
    with graph.opened() as db:
        found = db.traverse(
            1, edge_type, direction=direction, min_depth=least, max_depth=least + more, node_type=node_type
        ).paths()
        assert [steps(path) for path in found] == expected
        assert all(db.get_node(node.id) == node for path in found for node in path.nodes)
        assert all(db.get_edge(edge.id) == edge for path in found for edge in path.edges)


@given(graphs(), EDGE_TYPES, DIRECTIONS, st.none() | st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=80)
def test_shortest_path_has_the_fewest_edges(
    graph: Graph, edge_type: Any, direction: Any, most: int | None, to_id: int
) -> None:  # G16
    to_id = min(to_id, len(graph.nodes))
    hops = graph.hops(edge_type, direction)
    distance = distances(hops, 1).get(to_id)
    with graph.opened() as db:
        path = db.shortest_path(1, to_id, edge_type, direction=direction, max_depth=most)
        again = db.traverse(1, edge_type, direction=direction, max_depth=most).shortest_path(to_id)
    assert path == again
    if distance is None or (most is not None and distance > most):
        assert path is None
        return
    assert path is not None
    nodes, edges = steps(path)
    assert (nodes[0], nodes[-1], len(path)) == (1, to_id, distance)
    assert all(hop in hops for hop in map(Hop, nodes, edges, nodes[1:]))


@given(
    graphs(),
    st.none() | st.integers(1, 5),
    NODE_TYPES,
    st.lists(st.tuples(DIRECTIONS, EDGE_TYPES, NODE_TYPES, st.sampled_from([None, True])), max_size=3),
    st.none() | st.integers(0, 4),
)
@settings(max_examples=100)
def test_patterns_agree_with_nested_loops(
    graph: Graph,
    start: int | None,
    start_type: str | None,
    hops: list[tuple[str, Any, str | None, bool | None]],
    limit: int | None,
) -> None:  # G16
    expected: list[tuple[list[int], list[int]]] = [
        ([number], [])
        for number, type_ in enumerate(graph.nodes, 1)
        if start in {None, number} and start_type in {None, type_}
    ]
    for direction, edge_type, node_type, odd in hops:
        expected = [
            ([*nodes, hop.end], [*edges, hop.edge])
            for nodes, edges in expected
            for hop in graph.hops(edge_type, direction)
            if hop.start == nodes[-1]
            and hop.edge not in edges
            and node_type in {None, graph.nodes[hop.end - 1]}
            and odd in {None, graph.nodes[hop.end - 1] == "A"}
        ]
    expected = sorted(expected, key=lambda path: (path[0][0], path[1]))[:limit]
    with graph.opened() as db:
        pattern = db.pattern(start_type, start_id=start)
        for direction, edge_type, node_type, odd in hops:
            go = {"out": pattern.out, "in": pattern.in_, "both": pattern.both}[direction]
            pattern = go(edge_type, node_type, None if odd is None else {"odd": odd})
        pattern = pattern if limit is None else pattern.limit(limit)
        assert [steps(path) for path in pattern.exec()] == expected
        assert pattern.count() == len(expected)


def test_a_path_to_the_start_has_one_node_and_no_edge(db: GraphDatabase) -> None:  # G16
    a, *_ = ring(db, 3)
    path = db.shortest_path(a, a)
    assert path is not None
    assert steps(path) == ([a], [])
    assert len(path) == 0


def test_of_parallel_edges_each_is_a_path_but_the_node_is_one(db: GraphDatabase) -> None:  # G16
    a, b = db.create_node("N").id, db.create_node("N").id
    for _ in range(3):
        db.create_edge(a, "E", b)
    assert len(db.traverse(a).paths()) == 3
    assert db.traverse(a).count() == 1
    assert db.pattern(start_id=a).out().count() == 3


def test_node_type_filters_the_results_not_the_path(db: GraphDatabase) -> None:  # G16
    a, b, c = (db.create_node(type_).id for type_ in ("A", "B", "A"))
    db.create_edge(a, "E", b)
    db.create_edge(b, "E", c)
    assert [node.id for node in db.traverse(a, max_depth=2, node_type="A").nodes()] == [c]
    assert [steps(path)[0] for path in db.traverse(a, max_depth=2, node_type="A").paths()] == [[a, b, c]]


def test_in_one_match_an_edge_is_used_once_and_a_node_may_come_again(db: GraphDatabase) -> None:  # G16
    a, b = db.create_node("N").id, db.create_node("N").id
    db.create_edge(a, "E", b)
    assert db.pattern(start_id=a).both().both().exec() == []
    db.create_edge(b, "E", a)
    assert [steps(path) for path in db.pattern(start_id=a).out().out().exec()] == [([a, b, a], [1, 2])]


def test_a_pattern_is_never_changed_by_a_call_and_unknown_names_find_nothing(db: GraphDatabase) -> None:  # G16
    a, _ = ring(db, 2)
    pattern = db.pattern("N", {"x": None})
    longer = pattern.out("NEXT")
    pattern.limit(0)
    assert (pattern.count(), longer.count()) == (2, 2)
    assert db.pattern("Nothing").exec() == []
    assert db.pattern(start_id=99).out().exec() == []
    assert db.pattern(start_id=a).out("NOTHING").count() == 0
    assert db.traverse(a, "NOTHING", max_depth=None).nodes() == []


def test_a_pattern_begins_at_an_indexed_property_wherever_it_is(db: GraphDatabase) -> None:  # G16
    db.create_property_index("Job", "url")
    pattern = db.pattern("Person").both("LIKES", "Job", {"url": "/1"}).in_("LIKES", "Person")
    seen: list[str] = []
    db.connection.set_trace_callback(seen.append)
    pattern.count()
    db.connection.set_trace_callback(None)
    (statement,) = seen
    plan = [row[3] for row in db.connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert "SEARCH n1 USING INDEX idx_merge_Job_url (<expr>=?)" in plan
    assert not any(step.startswith("SCAN n") or "by_type" in step for step in plan)


def test_a_pattern_has_as_many_hops_as_sqlite_can_join(db: GraphDatabase) -> None:
    a, *_ = ring(db, 40)
    pattern = db.pattern(start_id=a)
    for _ in range(31):
        pattern = pattern.out()
    (path,) = pattern.exec()
    assert len(path) == 31
    with pytest.raises(InvalidArgumentError, match="at most 31 hops; use traverse"):
        pattern.out()


def test_reaching_is_linear_in_edges_also_in_cycles(db: GraphDatabase) -> None:  # G16
    a, *_ = ring(db, 2000)
    found = db.traverse(a, max_depth=None, direction="both")
    assert found.count() == 1999
    path = db.shortest_path(a, a + 1500)
    assert path is not None
    assert len(path) == 1500
    # In a graph where everything is connected to everything there are more paths than anyone could walk.
    with GraphDatabase(":memory:") as dense:
        with dense.transaction():
            ids = [dense.create_node("N").id for _ in range(40)]
            for start in ids:
                for end in ids:
                    dense.create_edge(start, "E", end)
        assert dense.traverse(ids[0], min_depth=2, max_depth=None).count() == 0
        assert dense.traverse(ids[0], max_depth=30, direction="both").count() == 39


def test_a_traversal_leaves_nothing_for_the_next(db: GraphDatabase) -> None:
    a, b, _ = ring(db, 3)
    lone = db.create_node("N").id
    with db.transaction():
        assert db.traverse(a, max_depth=None).count() == 2
        assert db.traverse(lone, max_depth=None).nodes() == []
        assert db.shortest_path(lone, b) is None
    assert db.traverse(lone, max_depth=None).nodes() == []
    with suppress(ZeroDivisionError), db.transaction():
        db.create_edge(lone, "NEXT", a)
        # A transaction sees its own writes, and undoing it takes them out of the next traversal.
        assert db.traverse(lone, max_depth=None).count() == 3
        raise ZeroDivisionError
    assert db.traverse(lone, max_depth=None).count() == 0
    assert not db.connection.in_transaction
    assert db.connection.execute("SELECT count(*) FROM temp.merganser_reached").fetchall() == [(0,)]


def test_a_failed_traversal_in_a_transaction_leaves_nothing_for_the_next(db: GraphDatabase) -> None:
    a, b, c = ring(db, 3)
    with db.transaction():
        with pytest.raises(NodeNotFoundError):
            db.traverse(a, max_depth=None).shortest_path(99)
        assert [node.id for node in db.traverse(b).nodes()] == [c]


def test_threads_traverse_at_once(tmp_path: pathlib.Path) -> None:  # G12
    counts: dict[int, set[int]] = {}
    with GraphDatabase(tmp_path / "graph.db") as db:
        starts = {ring(db, length)[0]: length for length in (3, 30, 100)}

        def work(start: int) -> None:
            counts[start] = {db.traverse(start, max_depth=None).count() for _ in range(10)}

        threads = [threading.Thread(target=work, args=(start,)) for start in starts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == {start: {length - 1} for start, length in starts.items()}


def test_unknown_nodes_are_refused(db: GraphDatabase) -> None:  # G16
    a, b = ring(db, 2)
    for run in (lambda: db.traverse(99), lambda: db.shortest_path(99, a), lambda: db.shortest_path(a, 99)):
        with pytest.raises(NodeNotFoundError, match="no node with the id 99"):
            run()
    stale = db.traverse(b)
    db.delete_node(b)
    for read in (stale.nodes, stale.count, stale.paths):
        with pytest.raises(NodeNotFoundError, match=f"no node with the id {b}"):
            read()


@pytest.mark.parametrize(
    "build",
    [
        lambda db: db.traverse("1"),
        lambda db: db.traverse(1, ""),
        lambda db: db.traverse(1, []),
        lambda db: db.traverse(1, ["E", 1]),
        lambda db: db.traverse(1, direction="up"),
        lambda db: db.traverse(1, min_depth=0),
        lambda db: db.traverse(1, min_depth=3, max_depth=2),
        lambda db: db.traverse(1, max_depth=2.0),
        lambda db: db.traverse(1, max_depth=True),
        lambda db: db.traverse(1, node_type=""),
        lambda db: db.traverse(1, max_depth=None).paths(),
        lambda db: db.traverse(1).shortest_path(None),
        lambda db: db.shortest_path(1, 1, max_depth=0),
        lambda db: db.pattern(""),
        lambda db: db.pattern(start_id="1"),
        lambda db: db.pattern(where=["a"]),
        lambda db: db.pattern().out(node_type=""),
        lambda db: db.pattern().both([]),
        lambda db: db.pattern().limit(-1),
    ],
)
def test_invalid_arguments_are_refused(db: GraphDatabase, build: Callable[[Any], object]) -> None:
    db.create_node("N")
    with pytest.raises(InvalidArgumentError):
        build(db)
