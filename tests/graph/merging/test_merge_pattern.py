"""Nodes and edges merged as one pattern: part by part, or as a whole as Cypher does it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, expect_rollback, read_graph

from merganser.errors import GraphSchemaError, MergeConflictError, MergePerformanceWarning, UniqueConstraintError
from merganser.graph import EdgeType, GraphDatabase, GraphSchema, MergedEdge, MergedNode, NodeType

if TYPE_CHECKING:
    from tests.graph.conftest import Clock

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

JOB: dict[str, Any] = {"type": "Job", "match": {"url": "/1"}}
COMPANY: dict[str, Any] = {"type": "Company", "match": {"name": "A"}}
POSTED: dict[str, Any] = {"edge": "POSTED_BY", "from": 0, "to": 1}


def types(db: GraphDatabase) -> list[str]:
    return [type_ for type_, _ in read_graph(db).nodes.values()]


def made(parts: tuple[MergedNode | MergedEdge, ...]) -> list[bool]:
    return [part.created for part in parts]


@pytest.mark.parametrize("whole", [False, True])
def test_a_missing_pattern_is_created(db: GraphDatabase, whole: bool) -> None:
    """G14. The specification's "Pattern Merge"."""
    job, company, posted = db.merge_pattern(
        [
            {**JOB, "base": {"title": "Cook"}, "on_create": {"n": 1}, "on_match": {"n": 2}},
            COMPANY,
            {**POSTED, "properties": {"p": 1}, "match": {"year": 1}, "on_create": {"q": 2}, "on_match": {"q": 3}},
        ],
        whole=whole,
    )
    assert isinstance(job, MergedNode)
    assert isinstance(company, MergedNode)
    assert isinstance(posted, MergedEdge)
    assert (job.created, company.created, posted.created) == (True, True, True)
    assert (posted.from_id, posted.to_id) == (job.id, company.id)
    found = read_graph(db)
    assert found.nodes == {
        job.id: ("Job", {"url": "/1", "title": "Cook", "n": 1}),
        company.id: ("Company", {"name": "A"}),
    }
    assert found.edges == {posted.id: ("POSTED_BY", job.id, company.id, {"year": 1, "p": 1, "q": 2})}


@pytest.mark.parametrize("whole", [False, True])
def test_an_existing_pattern_is_matched(db: GraphDatabase, clock: Clock, whole: bool) -> None:
    """G14."""
    pattern = [
        {**JOB, "base": {"title": "Cook"}, "on_match": lambda old: {"title": old["title"] + "!"}},
        {**COMPANY, "on_match": {"seen": 1}},
        {**POSTED, "properties": {"p": 1}, "on_match": {"p": None, "seen": 1}},
    ]
    first = db.merge_pattern(pattern, whole=whole)
    clock.milliseconds += 1
    second = db.merge_pattern(pattern, whole=whole)
    assert made(second) == [False, False, False]
    assert [part.id for part in second] == [part.id for part in first]
    assert [part.properties for part in second] == [
        {"url": "/1", "title": "Cook!"},
        {"name": "A", "seen": 1},
        {"seen": 1},
    ]
    assert all(part.updated_at > part.created_at for part in second)
    assert second == (db.get_node(first[0].id), db.get_node(first[1].id), db.get_edge(first[2].id))


def test_element_by_element_only_missing_ones_are_created(db: GraphDatabase) -> None:
    """G14."""
    company = db.create_node("Company", {"name": "A"}).id
    parts = db.merge_pattern([JOB, COMPANY, POSTED])
    assert made(parts) == [True, False, True]
    assert parts[1].id == company
    assert types(db) == ["Company", "Job"]


def test_as_a_whole_an_incomplete_match_creates_everything(db: GraphDatabase) -> None:
    """G14."""
    company = db.create_node("Company", {"name": "A"}).id
    job = db.create_node("Job", {"url": "/1"}).id
    db.create_edge(company, "POSTED_BY", job)
    db.create_edge(job, "OTHER", company)
    parts = db.merge_pattern([JOB, {**COMPANY, "on_match": {"seen": 1}}, POSTED], whole=True)
    assert made(parts) == [True, True, True]
    assert types(db) == ["Company", "Job", "Job", "Company"]
    assert read_graph(db).nodes[company] == ("Company", {"name": "A"})
    assert made(db.merge_pattern([JOB, COMPANY, POSTED], whole=True)) == [False, False, False]


def test_as_a_whole_the_edges_decide_which_nodes_are_meant(db: GraphDatabase) -> None:
    """G14. Several jobs and companies are alike, and one pair is connected."""
    jobs = [db.create_node("Job", {"url": "/1"}).id for _ in range(3)]
    companies = [db.create_node("Company", {"name": "A"}).id for _ in range(3)]
    edge = db.create_edge(jobs[1], "POSTED_BY", companies[2]).id
    parts = db.merge_pattern([JOB, COMPANY, POSTED], whole=True)
    assert [part.id for part in parts] == [jobs[1], companies[2], edge]
    with assert_unchanged(db), pytest.raises(MergeConflictError):
        db.merge_pattern([JOB, COMPANY, POSTED])


def test_as_a_whole_more_than_one_match_is_refused(db: GraphDatabase) -> None:
    """G3, G14."""
    for _ in range(2):
        job = db.create_node("Job", {"url": "/1"}).id
        db.create_edge(job, "POSTED_BY", db.create_node("Company", {"name": "A"}).id)
    with assert_unchanged(db), pytest.raises(MergeConflictError, match="2"):
        db.merge_pattern([{**JOB, "on_match": {"seen": 1}}, COMPANY, POSTED], whole=True)


def test_as_a_whole_the_match_of_an_edge_counts(db: GraphDatabase) -> None:
    """G14."""
    first = db.merge_pattern([JOB, COMPANY, {**POSTED, "match": {"year": 1}}], whole=True)
    second = db.merge_pattern([JOB, COMPANY, {**POSTED, "match": {"year": 2}}], whole=True)
    assert made(second) == [True, True, True]
    third = db.merge_pattern([JOB, COMPANY, {**POSTED, "match": {"year": 1.0}}], whole=True)
    assert [part.id for part in third] == [part.id for part in first]


@pytest.mark.parametrize("whole", [False, True])
def test_a_path_of_several_hops_and_a_loop(db: GraphDatabase, whole: bool) -> None:
    """G14."""
    pattern: list[dict[str, Any]] = [
        {"type": "N", "match": {"k": 1}},
        {"type": "N", "match": {"k": 2}},
        {"edge": "TO", "from": 0, "to": 1},
        {"type": "N", "match": {"k": 3}},
        {"edge": "TO", "from": 1, "to": 3},
        {"edge": "TO", "from": 3, "to": 0},
        {"edge": "SELF", "from": 1, "to": 1},
    ]
    first = db.merge_pattern(pattern, whole=whole)
    assert made(first) == [True] * 7
    one, two, three = (first[place].id for place in (0, 1, 3))
    assert [record[:3] for record in read_graph(db).edges.values()] == [
        ("TO", one, two),
        ("TO", two, three),
        ("TO", three, one),
        ("SELF", two, two),
    ]
    second = db.merge_pattern(pattern, whole=whole)
    assert made(second) == [False] * 7
    assert [part.id for part in second] == [part.id for part in first]


def test_element_by_element_a_node_may_occur_twice(db: GraphDatabase) -> None:
    """G14. The second part sees what the first one wrote."""
    parts = db.merge_pattern([JOB, {**JOB, "on_match": {"seen": 1}}, POSTED])
    assert made(parts) == [True, False, True]
    assert read_graph(db).edges[parts[2].id][1:3] == (parts[0].id, parts[0].id)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "Job", "match": {}},
        {"type": "Job"},
        {"type": "", "match": {"k": 1}},
        {"type": "Job", "match": {"k": None}},
        {"type": "Job", "match": {"k": 1}, "base": {"k": 2}},
        {"type": "Job", "match": {"k": 1}, "on_match": {"k": 2}},
        {"type": "Job", "match": {"k": 1}, "base": {"v": b"raw"}},
        {"type": "Job", "match": {"k": 1}, "bsae": {}},
        {"edge": "E", "from": 0},
        {"edge": "E", "to": 0},
        {"edge": "E", "from": 0, "to": 9},
        {"edge": "E", "from": 0, "to": -1},
        {"edge": "E", "from": 0, "to": 2},
        {"edge": "E", "from": 0, "to": "1"},
        {"edge": "E", "from": 0, "to": True},
        {"edge": "E", "from": 0, "to": 1.0},
        {"edge": "E", "from": 0, "to": [1]},
        {"edge": "", "from": 0, "to": 1},
        {"type": "Job", "match": {"k": 1}, "edge": "E", "from": 0, "to": 1},
        {},
        "Job",
    ],
    ids=repr,
)
def test_an_invalid_element_of_a_pattern_changes_nothing(db: GraphDatabase, wrong: Any, whole: bool) -> None:
    """G4, G14."""
    db.merge_pattern([JOB])
    with assert_unchanged(db), pytest.raises((TypeError, ValueError)):
        db.merge_pattern([{**JOB, "on_match": {"seen": 1}}, COMPANY, POSTED, wrong], whole=whole)


@pytest.mark.parametrize("whole", [False, True])
def test_an_empty_pattern_is_refused_or_nothing(db: GraphDatabase, whole: bool) -> None:
    """G14."""
    with assert_unchanged(db), pytest.raises(ValueError, match="pattern"):
        db.merge_pattern([], whole=whole)


@pytest.mark.parametrize("whole", [False, True])
def test_a_pattern_that_breaks_a_unique_index_changes_nothing(db: GraphDatabase, whole: bool) -> None:
    """G10, G14."""
    db.create_property_index("Company", "code", unique=True)
    db.create_node("Company", {"name": "B", "code": 1})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError):
        db.merge_pattern([JOB, {**COMPANY, "base": {"code": 1}}, POSTED], whole=whole)
    with db.transaction():
        db.create_node("Kept")
        with assert_unchanged(db), pytest.raises(UniqueConstraintError):
            db.merge_pattern([JOB, {**COMPANY, "base": {"code": 1}}, POSTED], whole=whole)
    assert types(db) == ["Company", "Kept"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_pattern_goes_with_the_transaction_around_it(db: GraphDatabase, whole: bool) -> None:
    """G11, G14."""
    with assert_unchanged(db), expect_rollback(db):
        db.merge_pattern([JOB, COMPANY, POSTED], whole=whole)
        assert made(db.merge_pattern([JOB, COMPANY, POSTED], whole=whole)) == [False] * 3


@pytest.mark.parametrize("whole", [False, True])
def test_the_schema_holds_for_a_pattern(whole: bool) -> None:
    """G14, G18."""
    schema = GraphSchema({"Job": NodeType(), "Company": NodeType()}, {"POSTED_BY": EdgeType("Job", "Company")})
    with GraphDatabase(":memory:", schema=schema) as db:
        with assert_unchanged(db), pytest.raises(GraphSchemaError):
            db.merge_pattern([JOB, COMPANY, {"edge": "POSTED_BY", "from": 1, "to": 0}], whole=whole)
        assert made(db.merge_pattern([JOB, COMPANY, POSTED], whole=whole)) == [True] * 3


@pytest.mark.parametrize("whole", [False, True])
def test_an_edge_of_a_pattern_may_point_either_way(db: GraphDatabase, whole: bool) -> None:
    """G2, G14."""
    job, company, posted = db.merge_pattern([JOB, COMPANY, {**POSTED, "from": 1, "to": 0}])
    found = db.merge_pattern([JOB, COMPANY, {**POSTED, "direction": "both"}], whole=whole)
    assert [part.id for part in found] == [job.id, company.id, posted.id]
    assert made(found) == [False] * 3


@pytest.mark.parametrize("whole", [False, True])
def test_an_element_whose_condition_fails_is_unchanged(db: GraphDatabase, clock: Clock, whole: bool) -> None:
    """G14, G15."""
    first = db.merge_pattern([{**JOB, "base": {"n": 1}}, COMPANY, POSTED])
    clock.milliseconds += 1
    condition = {"on_match": {"n": 2}, "condition": {"n": 5}}
    second = db.merge_pattern([{**JOB, **condition}, COMPANY, {**POSTED, **condition}], whole=whole)
    assert (second[0], second[2]) == (first[0], first[2])
    assert second[1].updated_at > first[1].updated_at


@pytest.mark.parametrize("whole", [False, True])
def test_without_touch_nothing_is_written_when_nothing_changes(db: GraphDatabase, clock: Clock, whole: bool) -> None:
    """G8, G14."""
    first = db.merge_pattern([JOB, COMPANY, POSTED])
    clock.milliseconds += 1
    with assert_unchanged(db):
        assert db.merge_pattern([JOB, COMPANY, POSTED], whole=whole, touch=False) == first


def test_a_pattern_warns_of_each_missing_index(db: GraphDatabase) -> None:
    """G9, G14."""
    db.create_property_index("Job", "url")
    with pytest.warns(MergePerformanceWarning) as caught:
        db.merge_pattern([JOB, COMPANY, POSTED])
    assert [(str(entry.message)[:23], entry.filename) for entry in caught] == [("MERGE on Company.name w", __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db.merge_pattern([{**COMPANY, "type": "Firm"}], warn_on_missing_index=False)


@pytest.mark.parametrize(("length", "whole"), [(40, False), (32, True)])
def test_a_long_pattern_works(db: GraphDatabase, length: int, whole: bool) -> None:
    """G14. SQLite joins 64 tables at most."""
    nodes = [{"type": "N", "match": {"k": number}} for number in range(length)]
    edges = [{"edge": "E", "from": number, "to": number + 1} for number in range(length - 1)]
    assert made(db.merge_pattern([*nodes, *edges], whole=whole)) == [True] * (2 * length - 1)
    assert made(db.merge_pattern([*nodes, *edges], whole=whole)) == [False] * (2 * length - 1)


def test_what_cannot_be_found_as_a_whole_is_refused(db: GraphDatabase) -> None:
    """G14."""
    nodes = [{"type": "N", "match": {"k": number}} for number in range(33)]
    edges = [{"edge": "E", "from": number, "to": number + 1} for number in range(32)]
    with assert_unchanged(db), pytest.raises(ValueError, match="more than 64 parts"):
        db.merge_pattern([*nodes, *edges], whole=True)
    with assert_unchanged(db), pytest.raises(ValueError, match="No edge connects part 3 of the pattern"):
        db.merge_pattern([*nodes[:4], *edges[:2]], whole=True)


def test_as_a_whole_two_elements_are_never_one_edge(db: GraphDatabase) -> None:
    """G14. As in Cypher; two parts may be one node."""
    db.merge_pattern([JOB, COMPANY, POSTED])
    assert made(db.merge_pattern([JOB, COMPANY, POSTED, POSTED], whole=True)) == [True] * 4
    loop = db.create_node("Loop", {"k": 1}).id
    db.create_edge(loop, "E", loop)
    ends = [{"type": "Loop", "match": {"k": 1}}] * 2
    found = db.merge_pattern([*ends, {"edge": "E", "from": 0, "to": 1}], whole=True)
    assert [part.id for part in found[:2]] == [loop, loop]
