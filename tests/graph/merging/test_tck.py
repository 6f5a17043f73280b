"""The scenarios for MERGE of openCypher's conformance tests that apply to calls instead of a language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes, read_graph

from merganser.errors import MergeConflictError

if TYPE_CHECKING:
    from merganser.graph import GraphDatabase

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


def list_endpoints(db: GraphDatabase) -> list[tuple[str, int, int]]:
    return [record[:3] for record in read_graph(db).edges.values()]


def test_the_first_merge_creates_and_the_second_finds(db: GraphDatabase) -> None:
    """G1."""
    assert [db.merge_node("Person", {"name": "Ada"}).created for _ in range(2)] == [True, False]
    assert list_nodes(db) == [{"name": "Ada"}]


def test_a_node_of_another_type_or_value_is_not_found(db: GraphDatabase) -> None:
    """G1."""
    db.create_node("Robot", {"name": "Ada"})
    db.create_node("Person", {"name": "Bob"})
    db.create_node("Person")
    assert db.merge_node("Person", {"name": "Ada"}).created


def test_a_node_with_more_properties_than_the_match_is_found(db: GraphDatabase) -> None:
    """G1."""
    made = db.create_node("Person", {"name": "Ada", "born": 1815})
    found = db.merge_node("Person", {"name": "Ada"})
    assert (found.id, found.properties) == (made.id, {"name": "Ada", "born": 1815})


def test_each_merge_of_a_loop_reads_what_the_last_one_wrote(db: GraphDatabase) -> None:
    """G1, G11."""
    names = ["a", "b", "a", "c", "b", "a"]
    with db.transaction():
        created = [db.merge_node("Person", {"name": name}).created for name in names]
    assert created == [True, True, False, True, False, False]


def test_merges_of_two_types_in_turn_read_their_own_writes(db: GraphDatabase) -> None:
    """G1, G2, G11."""
    with db.transaction():
        for city in (1, 2, 1, 2):
            person = db.merge_node("Person", {"name": "Ada"})
            place = db.merge_node("City", {"number": city})
            db.merge_edge(person.id, "IN", place.id)
    assert [type_ for type_, _ in read_graph(db).nodes.values()] == ["Person", "City", "City"]
    assert list_endpoints(db) == [("IN", 1, 2), ("IN", 1, 3)]


def test_a_deleted_node_is_never_found(db: GraphDatabase) -> None:
    """G1, G16."""
    with db.transaction():
        for number in range(3):
            old = db.merge_node("A", {"k": 1}, {"number": number})
            assert old.created
            db.delete_node(old.id)
    assert list_nodes(db) == []
    assert db.merge_node("A", {"k": 1}).id > old.id


def test_a_deleted_edge_is_never_found(db: GraphDatabase) -> None:
    """G2, G16."""
    one, two = db.create_node("A").id, db.create_node("B").id
    with db.transaction():
        old = db.create_edge(one, "T", two, {"name": "old"})
        db.delete_edge(old.id)
        new = db.merge_edge(one, "T", two, {"name": "new"})
    assert new.created
    assert read_graph(db).edges == {new.id: ("T", one, two, {"name": "new"})}


def test_an_edge_whose_node_was_deleted_is_gone(db: GraphDatabase) -> None:
    """G2, G16."""
    one, two = db.merge_node("A", {"k": 1}).id, db.create_node("B").id
    db.merge_edge(one, "T", two)
    db.delete_node(one)
    again = db.merge_node("A", {"k": 1}).id
    assert db.merge_edge(again, "T", two).created
    assert list_endpoints(db) == [("T", again, two)]


def test_an_updated_node_is_found_by_what_it_is_now(db: GraphDatabase) -> None:
    """G1, G16."""
    made = db.merge_node("A", {"k": 1})
    db.update_node(made.id, {"k": 2})
    assert db.merge_node("A", {"k": 2}).id == made.id
    assert db.merge_node("A", {"k": 1}).created


def test_on_create_and_on_match_row_by_row(db: GraphDatabase) -> None:
    """G1. One key comes several times: created once, then matched each time."""
    for row, key in enumerate(["x", "y", "x", "x"]):
        db.merge_node("A", {"key": key}, on_create={"made": row}, on_match={"seen": row})
    assert list_nodes(db) == [{"key": "x", "made": 0, "seen": 3}, {"key": "y", "made": 1}]


def test_on_match_may_copy_from_another_node(db: GraphDatabase) -> None:
    """G1."""
    source = db.create_node("A", {"a": 1, "b": [1, 2], "c": "x"})
    db.create_node("B", {"k": 1, "a": 9, "own": True})
    found = db.merge_node("B", {"k": 1}, on_match=source.properties)
    assert found.properties == {"k": 1, "a": 1, "b": [1, 2], "c": "x", "own": True}


@pytest.mark.parametrize("action", ["on_create", "on_match"])
def test_an_action_may_be_a_null(db: GraphDatabase, action: str) -> None:
    """G4."""
    if action == "on_match":
        db.create_node("A", {"k": 1, "num": 42})
    actions: dict[str, Any] = {action: {"num": None}}
    assert db.merge_node("A", {"k": 1}, **actions).properties == {"k": 1}


def test_a_null_key_is_an_error(db: GraphDatabase) -> None:
    """G4. For nodes and for edges."""
    node = db.create_node("A").id
    with assert_unchanged(db), pytest.raises(ValueError, match="NULL"):
        db.merge_node("A", {"num": None})
    with assert_unchanged(db), pytest.raises(ValueError, match="NULL"):
        db.merge_edge(node, "T", node, match={"num": None})


@pytest.mark.parametrize("name", ["numbers", "odd[name]"])
def test_list_properties_are_found_by_their_elements(db: GraphDatabase, name: str) -> None:
    """G5."""
    node = db.create_node("A").id
    assert db.merge_node("L", {name: [42, 43]}).created
    assert not db.merge_node("L", {name: [42, 43]}).created
    assert db.merge_node("L", {name: [43, 42]}).created
    assert db.merge_node("L", {name: [42]}).created
    assert db.merge_edge(node, "T", node, match={name: [42, 43]}).created
    assert not db.merge_edge(node, "T", node, match={name: [42, 43]}).created


def test_an_edge_is_merged_between_each_pair_once(db: GraphDatabase) -> None:
    """G2."""
    left = [db.create_node("A").id for _ in range(2)]
    right = [db.create_node("B").id for _ in range(2)]
    for _ in range(2):
        for start in left:
            for end in right:
                db.merge_edge(start, "T", end)
    assert list_endpoints(db) == [("T", start, end) for start in left for end in right]


def test_an_edge_is_found_among_many_others(db: GraphDatabase) -> None:
    """G2."""
    one, two, three = (db.create_node("A").id for _ in range(3))
    wanted = db.create_edge(one, "T", two, {"name": "r1"})
    db.create_edge(one, "T", three)
    db.create_edge(three, "T", two)
    db.create_edge(one, "U", two)
    db.create_edge(two, "T", one)
    assert db.merge_edge(one, "T", two).id == wanted.id


def test_an_edge_with_other_properties_is_another_edge(db: GraphDatabase) -> None:
    """G2. Parallel edges are distinguished by the match alone."""
    one, two = db.create_node("A").id, db.create_node("B").id
    db.create_edge(one, "T", two, {"name": "r1"})
    assert db.merge_edge(one, "T", two, match={"name": "r2"}).created
    assert not db.merge_edge(one, "T", two, match={"name": "r1"}).created
    with assert_unchanged(db), pytest.raises(MergeConflictError):
        db.merge_edge(one, "T", two)


def test_an_edge_the_other_way_is_another_edge(db: GraphDatabase) -> None:
    """G2."""
    one, two = db.create_node("A").id, db.create_node("B").id
    db.create_edge(two, "T", one)
    assert db.merge_edge(one, "T", two).created
    assert list_endpoints(db) == [("T", two, one), ("T", one, two)]


def test_an_undirected_merge_finds_either_and_creates_forwards(db: GraphDatabase) -> None:
    """G2."""
    one, two, three = (db.create_node("A").id for _ in range(3))
    backwards = db.create_edge(two, "T", one)
    assert db.merge_edge(one, "T", two, direction="both").id == backwards.id
    assert db.merge_edge(one, "T", three, direction="both").created
    assert list_endpoints(db) == [("T", two, one), ("T", one, three)]


def test_an_undirected_merge_in_a_loop_creates_one_edge_for_a_pair(db: GraphDatabase) -> None:
    """G2, G11."""
    nodes = [db.create_node("A").id for _ in range(3)]
    with db.transaction():
        made = [db.merge_edge(a, "T", b, direction="both").created for a in nodes for b in nodes]
    assert sum(made) == 6
    assert list_endpoints(db) == [("T", 1, 1), ("T", 1, 2), ("T", 1, 3), ("T", 2, 2), ("T", 2, 3), ("T", 3, 3)]


def test_a_loop_is_one_edge_whichever_way(db: GraphDatabase) -> None:
    """G2."""
    node = db.create_node("A").id
    loop = db.merge_edge(node, "T", node)
    assert db.merge_edge(node, "T", node, direction="both").id == loop.id
    assert list_endpoints(db) == [("T", node, node)]


def test_the_same_node_may_be_both_endpoints_by_two_merges(db: GraphDatabase) -> None:
    """G1, G2."""
    start = db.merge_node("A", {"k": 1})
    end = db.merge_node("A", {"k": 1})
    assert db.merge_edge(start.id, "T", end.id).created
    assert list_endpoints(db) == [("T", start.id, start.id)]
