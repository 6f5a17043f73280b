"""An edge is found by its ends, its type and its match, or created."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, read_graph

from merganser.errors import MergeConflictError, NodeNotFoundError, UniqueConstraintError
from merganser.graph import MergedEdge

if TYPE_CHECKING:
    from tests.graph.conftest import Clock

    from merganser.graph import GraphDatabase


@pytest.fixture
def ends(db: GraphDatabase) -> tuple[int, int]:
    return db.create_node("Job", {"url": "/1"}).id, db.create_node("Company", {"name": "TechCorp"}).id


def edges(db: GraphDatabase) -> list[tuple[str, int, int, dict[str, Any]]]:
    return list(read_graph(db).edges.values())


def test_a_missing_edge_is_created(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2. The specification's "mergeEdge creates when not exists"."""
    job, company = ends
    made = db.merge_edge(job, "POSTED_BY", company, {"source": "scraper"})
    assert made.created
    assert read_graph(db).edges == {made.id: ("POSTED_BY", job, company, {"source": "scraper"})}


def test_an_existing_edge_is_matched(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2. The specification's "mergeEdge matches when exists"."""
    job, company = ends
    made = db.merge_edge(job, "POSTED_BY", company, {"source": "scraper"})
    found = db.merge_edge(job, "POSTED_BY", company, {"source": "another"})
    assert (found.id, found.created) == (made.id, False)
    assert edges(db) == [("POSTED_BY", job, company, {"source": "scraper"})]


def test_on_create_applies_to_new_edges_and_on_match_to_existing_ones(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2. The specification's "mergeEdge applies onCreate/onMatch"."""
    job, company = ends
    for number in (1, 2):
        db.merge_edge(
            job, "POSTED_BY", company, {"p": 0, "q": 0}, on_create={"first": number, "q": 1}, on_match={"last": number}
        )
    assert edges(db) == [("POSTED_BY", job, company, {"p": 0, "q": 1, "first": 1, "last": 2})]


def test_the_record_is_what_is_stored(db: GraphDatabase, ends: tuple[int, int], clock: Clock) -> None:
    """G2, G8."""
    made = db.merge_edge(*with_type(ends), {"n": 1})
    clock.milliseconds += 7
    found = db.merge_edge(*with_type(ends), on_match=lambda old: {"n": old["n"] + 1})
    assert isinstance(found, MergedEdge)
    assert found == db.get_edge(found.id)
    assert (found.type, found.from_id, found.to_id, found.properties) == ("E", *ends, {"n": 2})
    assert found.created_at == made.created_at
    assert found.updated_at - made.updated_at == timedelta(milliseconds=7)


def test_without_touch_nothing_is_written_when_nothing_changes(
    db: GraphDatabase, ends: tuple[int, int], clock: Clock
) -> None:
    """G2, G8."""
    made = db.merge_edge(*with_type(ends), {"n": 1})
    clock.milliseconds += 1
    with assert_unchanged(db):
        assert db.merge_edge(*with_type(ends), on_match={"n": 1}, touch=False) == made
    assert db.merge_edge(*with_type(ends)).updated_at > made.updated_at


def test_a_condition_that_fails_leaves_the_edge_as_it_is(
    db: GraphDatabase, ends: tuple[int, int], clock: Clock
) -> None:
    """G2, G15."""
    made = db.merge_edge(*with_type(ends), {"n": 1}, condition={"n": 5})
    clock.milliseconds += 1
    with assert_unchanged(db):
        assert db.merge_edge(*with_type(ends), on_match={"n": 2}, condition={"n": 5}) == made
    assert db.merge_edge(*with_type(ends), on_match={"n": 2}, condition={"n": 1}).properties == {"n": 2}


def test_type_and_direction_make_other_edges(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2."""
    job, company = ends
    assert db.merge_edge(job, "A", company).created
    assert db.merge_edge(job, "a", company).created
    assert db.merge_edge(company, "A", job).created
    assert edges(db) == [("A", job, company, {}), ("a", job, company, {}), ("A", company, job, {})]


def test_both_ways_finds_an_edge_that_points_the_other_way(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2."""
    job, company = ends
    made = db.merge_edge(company, "E", job)
    found = db.merge_edge(job, "E", company, direction="both", on_match={"seen": 1})
    assert (found.id, found.from_id, found.to_id) == (made.id, company, job)
    assert edges(db) == [("E", company, job, {"seen": 1})]


def test_both_ways_creates_forwards(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2."""
    job, company = ends
    assert db.merge_edge(job, "E", company, direction="both").created
    assert not db.merge_edge(company, "E", job, direction="both").created
    assert edges(db) == [("E", job, company, {})]


def test_both_ways_may_find_two(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2, G3."""
    job, company = ends
    two = [db.create_edge(job, "E", company), db.create_edge(company, "E", job)]
    with assert_unchanged(db), pytest.raises(MergeConflictError) as caught:
        db.merge_edge(job, "E", company, direction="both")
    assert list(caught.value.conflicting_nodes) == two
    assert not db.merge_edge(job, "E", company).created


@pytest.mark.parametrize("direction", ["out", "both"])
def test_a_node_may_lead_to_itself(db: GraphDatabase, direction: Any) -> None:
    """G2."""
    node = db.create_node("N").id
    made = db.merge_edge(node, "E", node, direction=direction)
    assert (made.created, made.from_id, made.to_id) == (True, node, node)
    assert db.merge_edge(node, "E", node, direction=direction).id == made.id
    assert edges(db) == [("E", node, node, {})]


def test_the_match_distinguishes_parallel_edges(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2."""
    first = db.merge_edge(*with_type(ends), {"n": 1}, match={"year": 2025})
    assert db.merge_edge(*with_type(ends), {"n": 2}, match={"year": 2026}).created
    found = db.merge_edge(*with_type(ends), match={"year": 2025.0}, on_match={"n": 3})
    assert found.id == first.id
    assert [record[3] for record in edges(db)] == [{"year": 2025, "n": 3}, {"year": 2026, "n": 2}]


def test_more_than_one_match_is_refused(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2, G3."""
    twins = [db.create_edge(*with_type(ends), {"year": 1, "n": number}) for number in range(3)]
    for match in (None, {"year": 1}):
        with assert_unchanged(db), pytest.raises(MergeConflictError, match="Multiple edges") as caught:
            db.merge_edge(*with_type(ends), match=match, on_match={"n": 9})
        assert caught.value.node_type == "E"
        assert list(caught.value.conflicting_nodes) == twins
        assert caught.value.match_properties == {"from_id": ends[0], "to_id": ends[1], **(match or {})}
        assert "Found 3 matches" in str(caught.value)


@pytest.mark.parametrize("direction", ["out", "both"])
def test_an_unknown_node_is_refused(db: GraphDatabase, direction: Any) -> None:
    """G2."""
    node = db.create_node("N").id
    gone = db.create_node("N").id
    db.delete_node(gone)
    for ends in ((node, gone), (gone, node), (gone, gone)):
        with assert_unchanged(db), pytest.raises(NodeNotFoundError, match=rf"id {gone}\b"):
            db.merge_edge(ends[0], "E", ends[1], direction=direction)
    with assert_unchanged(db), pytest.raises(LookupError):
        db.merge_edge(-1, "E", node)


def test_an_unknown_node_inside_a_transaction_undoes_nothing_else(db: GraphDatabase) -> None:
    """G2, G11."""
    with db.transaction():
        node = db.create_node("N").id
        with pytest.raises(NodeNotFoundError):
            db.merge_edge(node, "E", 99)
        db.merge_edge(node, "E", node)
    assert edges(db) == [("E", node, node, {})]


@pytest.mark.parametrize("wrong", ["1", 1.0, None, True, 2**70])
def test_an_id_is_a_number_of_a_node(db: GraphDatabase, wrong: Any) -> None:
    """G2."""
    node = db.create_node("N").id
    for ends in ((node, wrong), (wrong, node)):
        with assert_unchanged(db), pytest.raises((ValueError, LookupError)):
            db.merge_edge(ends[0], "E", ends[1])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"match": {"k": None}}, "'k' is NULL"),
        ({"match": {"k": {}}}, "'k' is or holds a dict"),
        ({"match": {"k": 1}, "properties": {"k": 2}}, "'k'"),
        ({"match": {"k": 1}, "on_create": {"k": 2}}, "'k'"),
        ({"match": {"k": 1}, "on_match": {"k": 2}}, "'k'.*allow_key_change"),
        ({"direction": "in"}, "direction"),
        ({"type": ""}, "type"),
    ],
)
def test_nonsense_is_refused(db: GraphDatabase, ends: tuple[int, int], arguments: dict[str, Any], word: str) -> None:
    """G2, G4, G7."""
    db.merge_edge(*with_type(ends), match={"k": 1})
    with assert_unchanged(db), pytest.raises(ValueError, match=word):
        db.merge_edge(from_id=ends[0], to_id=ends[1], **{"type": "E", **arguments})


def test_the_key_can_be_changed_on_purpose(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2, G7."""
    db.merge_edge(*with_type(ends), match={"k": 1})
    db.merge_edge(*with_type(ends), match={"k": 1}, on_match={"k": 2}, allow_key_change=True)
    assert [record[3] for record in edges(db)] == [{"k": 2}]


def test_null_is_not_stored_and_removes(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2, G4."""
    db.merge_edge(*with_type(ends), {"a": None, "b": 1, "c": {"x": 1}}, on_create={"d": None})
    db.merge_edge(*with_type(ends), on_match={"b": None, "c": {"y": 1}})
    assert edges(db) == [("E", *ends, {"c": {"y": 1}})]


def test_a_unique_index_of_edges_holds(db: GraphDatabase, ends: tuple[int, int]) -> None:
    """G2, G10."""
    db.create_property_index("E", "code", unique=True, table="edges")
    job, company = ends
    db.merge_edge(job, "E", company, {"code": 1})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match=r"'code': 1.*idx_merge_E_code"):
        db.merge_edge(company, "E", job, {"code": 1.0})
    db.merge_edge(company, "E", job, {"code": 2})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError):
        db.merge_edge(company, "E", job, on_match={"code": 1})


def with_type(ends: tuple[int, int]) -> tuple[int, str, int]:
    return ends[0], "E", ends[1]


def test_nodes_may_be_given_instead_of_their_ids(db: GraphDatabase) -> None:
    """G2."""
    start, end = db.create_node("N"), db.merge_node("N", {"k": 1}, warn_on_missing_index=False)
    assert db.merge_edge(start, "E", end).created
    assert not db.merge_edge(start.id, "E", end).created
