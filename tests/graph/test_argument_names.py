"""Arguments under their other names: of the source document, and of other methods for the same thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, read_graph

from merganser.errors import InvalidArgumentError
from merganser.graph import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from merganser.graph import GraphDatabase

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


def call(method: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Call a method with names that its signature does not have."""
    return method(*arguments, **given)


# G24
def test_names_of_the_source_document_are_accepted(db: GraphDatabase) -> None:
    made = call(db.create_property_index, node_type="Job", property="url", unique=True)
    job = call(
        db.merge_node,
        "Job",
        match_properties={"url": "/1"},
        base_properties={"title": "Cook"},
        on_create={"seen": 1},
        on_match={"seen": 2},
    )
    assert (job.created, job.properties) == (True, {"url": "/1", "title": "Cook", "seen": 1})
    assert (
        call(db.merge_node, node_type="Job", match_properties={"url": "/1"}, on_match={"seen": 2}).properties["seen"]
        == 2
    )
    assert call(db.drop_index, index_name=made.name) is None
    assert db.list_indexes() == []


# G24
def test_sqlite_and_spark_have_the_same_names(db: GraphDatabase) -> None:
    rows = [{"url": "/1", "seen": 1}, {"url": "/2", "seen": 1}]
    assert call(db.bulk_merge_nodes, "Job", frame=rows, match="url").created == 2
    jobs = db.nodes("Job").order_by("id").exec()
    edge = call(db.merge_edge, type="NEXT", from_node=jobs[0], to_node=jobs[1], base={"w": 1})
    assert (edge.from_id, edge.to_id, edge.properties) == (jobs[0].id, jobs[1].id, {"w": 1})
    ends = {"from_id": Endpoint("Job", {"url": "url"}), "to_id": Endpoint("Job", {"url": "url"})}
    assert call(db.bulk_merge_edges, "SELF", rows, match=["seen"], **ends).created == 2
    parts = db.merge_pattern(
        [
            {"type": "Job", "match_properties": {"url": "/3"}, "properties": {"seen": 3}},
            {"edge": "NEXT", "from": 0, "to": 0, "base": {"w": 2}},
        ]
    )
    assert [part.properties for part in parts] == [{"url": "/3", "seen": 3}, {"w": 2}]


# G24
@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (
            "merge_node",
            {"match": {"k": 1}, "onCreate": {}},
            r"unexpected keyword argument 'onCreate'. Did you mean on_create",
        ),
        (
            "merge_node",
            {"match": {"k": 1}, "match_properties": {"k": 1}},
            "another argument that means the same, 'match'",
        ),
        (
            "merge_node",
            {"match": {"k": 1}, "options": {"on_create": {"a": 1}, "touch": False}},
            "no argument 'options'. Did you mean its entries as arguments: on_create=…, touch=…",
        ),
        ("merge_node", {"match": {"k": 1}, "options": None}, "unexpected keyword argument 'options'"),
        ("bulk_merge_nodes", {"rows": [], "match_on": "k", "on_mach": "a"}, "Did you mean on_match"),
        ("merge_edge", {"from_id": 1, "to_id": 1, "propertys": {}}, "Did you mean properties"),
        ("create_property_index", {"property": "k", "uniqe": True}, "Did you mean unique"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_one(
    db: GraphDatabase, method: str, given: dict[str, Any], said: str
) -> None:
    db.create_node("N")
    with assert_unchanged(db), pytest.raises(TypeError, match=said):
        call(getattr(db, method), type="N", **given)


# G24
def test_a_part_of_a_pattern_has_each_argument_once(db: GraphDatabase) -> None:
    with (
        assert_unchanged(db),
        pytest.raises(InvalidArgumentError, match="has 'properties' and 'base', which mean the same"),
    ):
        db.merge_pattern([{"type": "N", "match": {"k": 1}, "base": {}, "properties": {}}])
    with pytest.raises(TypeError, match="multiple values for argument 'match'"):
        call(db.merge_node, "N", {"k": 1}, match_properties={"k": 1})
    assert read_graph(db).nodes == {}
