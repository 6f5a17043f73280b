"""A node is found by its match or created: which properties are overwritten, new or refused."""

from __future__ import annotations

import pickle
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes, read_graph

from merganser.errors import GraphError, InvalidArgumentError, MergeConflictError
from merganser.graph import MergedNode, Node

if TYPE_CHECKING:
    from tests.graph.conftest import Clock

    from merganser.graph import GraphDatabase

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


def test_a_missing_node_is_created(db: GraphDatabase) -> None:
    """G1. The specification's "mergeNode creates when not exists"."""
    made = db.merge_node("Job", {"url": "/1"}, {"title": "Engineer"})
    assert made.created
    assert made.type == "Job"
    assert read_graph(db).nodes == {made.id: ("Job", {"url": "/1", "title": "Engineer"})}


def test_an_existing_node_is_matched(db: GraphDatabase) -> None:
    """G1. The specification's "mergeNode matches when exists"."""
    made = db.merge_node("Job", {"url": "/1"}, {"title": "Engineer"})
    found = db.merge_node("Job", {"url": "/1"}, {"title": "Another"})
    assert (found.id, found.created) == (made.id, False)
    assert read_graph(db).nodes == {made.id: ("Job", {"url": "/1", "title": "Engineer"})}


def test_on_create_applies_only_to_new_nodes(db: GraphDatabase) -> None:
    """G1. The specification's "mergeNode applies onCreate only on create"."""
    db.merge_node("Job", {"url": "/1"}, on_create={"first": True})
    db.merge_node("Job", {"url": "/1"}, on_create={"second": True})
    assert list_nodes(db) == [{"url": "/1", "first": True}]


def test_on_match_applies_only_to_existing_nodes(db: GraphDatabase) -> None:
    """G1. The specification's "mergeNode applies onMatch only on match"."""
    db.merge_node("Job", {"url": "/1"}, {"old": 1}, on_match={"seen": 1})
    assert list_nodes(db) == [{"url": "/1", "old": 1}]
    db.merge_node("Job", {"url": "/1"}, on_match={"seen": 2})
    assert list_nodes(db) == [{"url": "/1", "old": 1, "seen": 2}]


def test_of_base_and_on_create_the_later_wins(db: GraphDatabase) -> None:
    """G1."""
    made = db.merge_node("Job", {"url": "/1"}, {"state": "base", "from": "base"}, on_create={"state": "new"})
    assert made.properties == {"url": "/1", "state": "new", "from": "base"}


@pytest.mark.parametrize("role", ["base", "on_create"])
def test_a_new_node_cannot_get_another_value_of_a_match_property(db: GraphDatabase, role: str) -> None:
    """G1."""
    given: dict[str, Any] = {role: {"url": "/2"}}
    with assert_unchanged(db), pytest.raises(ValueError, match=rf"{role} .*'url'.*'/2'.*'/1'"):
        db.merge_node("Job", {"url": "/1"}, **given)


def test_a_base_may_repeat_the_match(db: GraphDatabase) -> None:
    """G1. The specification's examples do so."""
    assert db.merge_node("Company", {"name": "TechCorp"}, {"name": "TechCorp", "founded": 2020}).created
    assert not db.merge_node("Company", {"name": "TechCorp"}, {"name": "TechCorp", "founded": 2020}).created
    assert list_nodes(db) == [{"name": "TechCorp", "founded": 2020}]


def test_a_function_on_match_gets_the_old_properties(db: GraphDatabase) -> None:
    """G1."""
    for _ in range(3):
        db.merge_node("Job", {"url": "/1"}, {"seen": 1}, on_match=lambda old: {"seen": old["seen"] + 1})
    assert list_nodes(db) == [{"url": "/1", "seen": 3}]


def test_a_function_on_match_is_not_called_for_a_new_node(db: GraphDatabase) -> None:
    """G1."""
    calls: list[dict[str, Any]] = []

    def counted(old: dict[str, Any]) -> dict[str, Any]:
        calls.append(old)
        old["spoiled"] = True
        return {}

    db.merge_node("Job", {"url": "/1"}, on_match=counted)
    assert calls == []
    db.merge_node("Job", {"url": "/1"}, on_match=counted)
    assert calls == [{"url": "/1", "spoiled": True}]
    # What the function does to the dict that it is given is its own affair.
    assert list_nodes(db) == [{"url": "/1"}]


@pytest.mark.parametrize("wrong", [{"x": object()}, {"url": "/2"}, [1]], ids=["value", "key", "no dict"])
def test_what_a_function_gives_is_checked_too(db: GraphDatabase, wrong: Any) -> None:
    """G1, G5, G7."""
    db.merge_node("Job", {"url": "/1"})
    with assert_unchanged(db), pytest.raises((TypeError, ValueError), match="on_match"):
        db.merge_node("Job", {"url": "/1"}, on_match=lambda _: wrong)


def test_the_record_is_what_is_stored(db: GraphDatabase, clock: Clock) -> None:
    """G1, G8."""
    made = db.merge_node("Job", {"url": "/1"}, {"tags": ("a", "b")})
    clock.milliseconds += 5
    found = db.merge_node("Job", {"url": "/1"}, on_match={"seen": 1})
    assert isinstance(found, MergedNode)
    assert found == db.get_node(found.id)
    start = datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    later = start + timedelta(milliseconds=5)
    assert made == Node(made.id, "Job", {"url": "/1", "tags": ["a", "b"]}, start, start)
    assert found == Node(made.id, "Job", {"url": "/1", "tags": ["a", "b"], "seen": 1}, start, later)


def test_types_keep_nodes_apart(db: GraphDatabase) -> None:
    """G1."""
    ids = {db.merge_node(type_, {"name": "x"}).id for type_ in ("Job", "job", "Job ", "Company")}
    assert len(ids) == 4


def test_every_match_property_counts(db: GraphDatabase) -> None:
    """G1. The specification's "Complex match criteria (multiple properties)"."""
    first = db.merge_node("Job", {"site": "a", "number": 1})
    assert db.merge_node("Job", {"site": "a", "number": 2}).created
    assert db.merge_node("Job", {"site": "b", "number": 1}).created
    assert db.merge_node("Job", {"site": "a", "number": 1, "part": 1}).created
    db.delete_node(first.id + 3)
    assert db.merge_node("Job", {"number": 1, "site": "a"}).id == first.id


def test_more_than_one_match_is_refused(db: GraphDatabase) -> None:
    """G3. The specification's "mergeNode throws on multiple matches"."""
    twins = [db.create_node("Job", {"url": "/1", "n": number}) for number in range(2)]
    with assert_unchanged(db), pytest.raises(MergeConflictError) as caught:
        db.merge_node("Job", {"url": "/1"}, on_match={"seen": 1})
    error = caught.value
    assert error.node_type == "Job"
    assert error.match_properties == {"url": "/1"}
    assert list(error.conflicting_nodes) == twins
    for part in ("Job", "'url': '/1'", "Found 2 matches", "uniquely identify", "unique index"):
        assert part in str(error)


def test_a_conflict_can_be_sent_to_another_process(db: GraphDatabase) -> None:
    """G3."""
    for _ in range(2):
        db.create_node("Job", {"url": "/1"})
    with pytest.raises(MergeConflictError) as caught:
        db.merge_node("Job", {"url": "/1"})
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made here
    assert (str(again), again.conflicting_nodes) == (str(caught.value), caught.value.conflicting_nodes)


@pytest.mark.parametrize("type_", ["", None, 7])
def test_a_type_is_a_name(db: GraphDatabase, type_: Any) -> None:
    """G4."""
    with assert_unchanged(db), pytest.raises(ValueError, match="type"):
        db.merge_node(type_, {"url": "/1"}, warn_on_missing_index=False)


@pytest.mark.parametrize("match", [{}, None, "url", ["url"]])
def test_a_match_is_a_dict_that_is_not_empty(db: GraphDatabase, match: Any) -> None:
    """G4."""
    with assert_unchanged(db), pytest.raises(ValueError, match="match"):
        db.merge_node("Job", match)


@pytest.mark.parametrize(("type_", "match"), [("", {"url": 1}), ("Job", {}), ("Job", {"url": None})])
def test_what_is_refused_is_not_warned_about(db: GraphDatabase, type_: str, match: dict[str, Any]) -> None:
    """G4, G9."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidArgumentError):
            db.merge_node(type_, match)


def test_null_in_the_match_is_refused(db: GraphDatabase) -> None:
    """G4."""
    with assert_unchanged(db), pytest.raises(ValueError, match="'site' is NULL"):
        db.merge_node("Job", {"url": "/1", "site": None})


def test_null_for_a_new_node_is_not_stored(db: GraphDatabase) -> None:
    """G4."""
    made = db.merge_node("Job", {"url": "/1"}, {"a": None, "b": 1}, on_create={"b": None, "c": None})
    assert made.properties == {"url": "/1"}
    assert list_nodes(db) == [{"url": "/1"}]


def test_null_on_match_removes_a_property(db: GraphDatabase) -> None:
    """G4."""
    db.merge_node("Job", {"url": "/1"}, {"a": 1, "b": 2})
    found = db.merge_node("Job", {"url": "/1"}, on_match={"a": None, "never": None})
    assert found.properties == {"url": "/1", "b": 2}
    assert list_nodes(db) == [{"url": "/1", "b": 2}]


def test_properties_are_merged_shallowly(db: GraphDatabase) -> None:
    """G6."""
    db.merge_node("Job", {"url": "/1"}, {"place": {"city": "Bern", "zip": 3000}, "tags": ["a", "b"], "kept": {"x": 1}})
    db.merge_node("Job", {"url": "/1"}, on_match={"place": {"city": "Basel"}, "tags": ["c"]})
    assert list_nodes(db) == [{"url": "/1", "place": {"city": "Basel"}, "tags": ["c"], "kept": {"x": 1}}]


def test_on_match_cannot_change_the_key(db: GraphDatabase) -> None:
    """G7."""
    db.merge_node("Job", {"url": "/1"})
    for new in ("/2", None):
        with assert_unchanged(db), pytest.raises(ValueError, match=r"'url'.*allow_key_change"):
            db.merge_node("Job", {"url": "/1"}, on_match={"url": new})
    db.merge_node("Job", {"url": "/1"}, on_match={"url": "/1", "seen": 1})
    assert list_nodes(db) == [{"url": "/1", "seen": 1}]


def test_the_key_can_be_changed_on_purpose(db: GraphDatabase) -> None:
    """G7."""
    made = db.merge_node("Job", {"url": "/1"})
    db.merge_node("Job", {"url": "/1"}, on_match={"url": "/2"}, allow_key_change=True)
    assert db.merge_node("Job", {"url": "/2"}).id == made.id
    assert list_nodes(db) == [{"url": "/2"}]


def test_a_match_is_seen_in_updated_at(db: GraphDatabase, clock: Clock) -> None:
    """G8."""
    made = db.merge_node("Job", {"url": "/1"})
    clock.milliseconds += 1
    found = db.merge_node("Job", {"url": "/1"})
    assert found.created_at == made.created_at == made.updated_at
    assert found.updated_at - made.updated_at == timedelta(milliseconds=1)
    assert db.get_node(made.id) == found


def test_without_touch_nothing_is_written_when_nothing_changes(db: GraphDatabase, clock: Clock) -> None:
    """G8."""
    made = db.merge_node("Job", {"url": "/1"}, {"a": 1})
    clock.milliseconds += 1
    with assert_unchanged(db):
        assert db.merge_node("Job", {"url": "/1"}, on_match={"a": 1, "b": None}, touch=False) == made
    found = db.merge_node("Job", {"url": "/1"}, on_match={"a": 2}, touch=False)
    assert found.updated_at > made.updated_at
    assert db.get_node(made.id) == found


def test_a_condition_that_fails_leaves_the_node_as_it_is(db: GraphDatabase, clock: Clock) -> None:
    """G15. The specification's "Conditional Merge"."""
    made = db.merge_node("Job", {"url": "/1"}, {"status": "closed"}, condition={"status": "active"})
    assert made.created
    clock.milliseconds += 1
    calls: list[dict[str, Any]] = []

    def counted(old: dict[str, Any]) -> dict[str, Any]:
        calls.append(old)
        return {"n": 1}

    for condition in ({"status": "active"}, {"missing": 1}, {"status": "closed", "url": "/2"}):
        with assert_unchanged(db):
            found = db.merge_node("Job", {"url": "/1"}, on_match=counted, condition=condition)
        assert (found.created, found) == (False, made)
    assert calls == []


def test_a_condition_that_holds_changes_nothing_else(db: GraphDatabase, clock: Clock) -> None:
    """G15."""
    made = db.merge_node("Job", {"url": "/1"}, {"status": "active", "n": 1})
    clock.milliseconds += 1
    found = db.merge_node("Job", {"url": "/1"}, on_match={"seen": 1}, condition={"status": "active", "n": 1.0})
    assert found.properties == {"url": "/1", "status": "active", "n": 1, "seen": 1}
    assert found.updated_at > made.updated_at


def test_every_error_is_one_of_the_graphs(db: GraphDatabase) -> None:
    """G3, G4, G5."""
    db.create_node("Job", {"url": "/1"})
    db.create_node("Job", {"url": "/1"})
    for match in ({"url": "/1"}, {"url": object()}, {"url": 2**70}):
        with pytest.raises(GraphError):
            db.merge_node("Job", match)
