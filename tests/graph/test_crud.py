"""Create, get, update and delete: the plain calls beside MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged

from merganser.graph import Edge, EdgeNotFoundError, Node, NodeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from merganser.graph import GraphDatabase


def test_a_record_is_read_as_it_was_created(db: GraphDatabase) -> None:
    """G16."""
    job = db.create_node("Job", {"title": "Engineer", "closed": None, "days": [1, 2.5, True]})
    company = db.create_node("Company")
    edge = db.create_edge(job.id, "POSTED_BY", company.id, {"since": 2026})
    assert (type(job), type(edge)) == (Node, Edge)
    assert job.properties == {"title": "Engineer", "days": [1, 2.5, True]}
    assert company.properties == {}
    assert job.created_at == job.updated_at
    assert db.get_node(job.id) == job
    assert db.get_edge(edge.id) == edge
    assert (edge.from_id, edge.to_id) == (job.id, company.id)


def test_creating_never_matches(db: GraphDatabase) -> None:
    """G16. Unlike a merge."""
    ids = {db.create_node("Job", {"url": "/1"}).id for _ in range(3)}
    edges = {db.create_edge(min(ids), "SAME", max(ids)).id for _ in range(3)}
    assert (len(ids), len(edges)) == (3, 3)


def test_an_update_merges_or_replaces_properties(db: GraphDatabase, clock: Any) -> None:
    """G16."""
    job = db.create_node("Job", {"a": 1, "b": {"c": 2}, "d": 3})
    loop = db.create_edge(job.id, "SAME", job.id, {"a": 1, "d": 3})
    clock.milliseconds += 1
    updated = db.update_node(job.id, {"b": {"e": 4}, "d": None})
    assert updated.properties == {"a": 1, "b": {"e": 4}}
    assert updated.created_at == job.created_at
    assert updated.updated_at > job.updated_at
    assert db.get_node(job.id) == updated
    assert db.update_node(job.id, {"z": 1, "y": None}, replace=True).properties == {"z": 1}
    relinked = db.update_edge(loop.id, {"a": 2, "d": None})
    assert relinked.properties == {"a": 2}
    assert relinked.updated_at > loop.updated_at
    assert db.update_edge(loop.id, {"z": 1}, replace=True).properties == {"z": 1}
    assert db.get_edge(loop.id) == db.edges("SAME").first()


def test_deleting_a_node_takes_its_edges_along(db: GraphDatabase) -> None:
    """G16."""
    a, b, c = (db.create_node("N").id for _ in range(3))
    for ends in ((a, b), (b, a), (a, a), (b, c)):
        db.create_edge(ends[0], "E", ends[1])
    db.delete_node(a)
    assert db.get_node(a) is None
    assert [(edge.from_id, edge.to_id) for edge in db.edges()] == [(b, c)]
    (edge,) = db.edges().exec()
    db.delete_edge(edge.id)
    assert db.get_edge(edge.id) is None
    assert db.nodes().count() == 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda db: db.update_node(99, {}), NodeNotFoundError),
        (lambda db: db.delete_node(99), NodeNotFoundError),
        (lambda db: db.create_edge(1, "E", 99), NodeNotFoundError),
        (lambda db: db.create_edge(99, "E", 1), NodeNotFoundError),
        (lambda db: db.update_edge(99, {}), EdgeNotFoundError),
        (lambda db: db.delete_edge(99), EdgeNotFoundError),
    ],
)
def test_what_is_missing_is_named(
    db: GraphDatabase, call: Callable[[GraphDatabase], object], error: type[Exception]
) -> None:
    """G16."""
    db.create_node("N")
    with assert_unchanged(db), pytest.raises(error, match="99") as caught:
        call(db)
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("wrong", ["1", 1.0, True, None, 2**70])
def test_an_id_is_an_integer(db: GraphDatabase, wrong: Any) -> None:
    """G16."""
    for call in (db.get_node, db.get_edge, db.delete_node, db.delete_edge):
        with pytest.raises(ValueError, match="is not an id"):
            call(wrong)
