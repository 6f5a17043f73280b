"""A schema holds for every way to write: creates, merges, bulk merges and updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes, read_graph

from merganser.errors import GraphError, GraphSchemaError, NodeNotFoundError
from merganser.graph import BulkResult, EdgeType, GraphDatabase, GraphSchema, NodeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

SCHEMA = GraphSchema(
    nodes={"Job": NodeType(required=["url", "title"]), "Company": NodeType()},
    edges={
        "POSTED_BY": EdgeType(from_types=["Job"], to_types=["Company"], required=["since"]),
        "LIKE": EdgeType(),
        "TO_COMPANY": EdgeType(to_types="Company"),
    },
)


@pytest.fixture
def strict() -> Iterator[GraphDatabase]:
    """A graph with the schema, a job with the id 1 and a company with the id 2."""
    with GraphDatabase(":memory:", schema=SCHEMA) as opened:
        opened.create_node("Job", {"url": "/1", "title": "Cook"})
        opened.create_node("Company", {"name": "A"})
        yield opened


def test_what_the_schema_allows_is_merged(strict: GraphDatabase) -> None:
    """G18. The specification's "Schema validation with merge"."""
    assert strict.merge_node("Job", {"url": "/2"}, {"title": "Waiter"}).created
    assert strict.merge_node("Job", {"url": "/3"}, on_create={"title": "Waiter"}).created
    assert not strict.merge_node("Job", {"url": "/1"}, on_match={"title": "Chef", "extra": 1}).created
    assert strict.merge_edge(1, "POSTED_BY", 2, {"since": 2020}).created
    assert not strict.merge_edge(1, "POSTED_BY", 2, on_match={"since": 2021}).created
    assert strict.merge_edge(2, "LIKE", 1).created


@pytest.mark.parametrize("way", ["create", "merge", "bulk"])
@pytest.mark.parametrize(
    ("type_", "properties", "word"),
    [
        ("Person", {"url": "/2"}, "no node type 'Person'.*Company, Job"),
        ("job", {"url": "/2", "title": "x"}, "no node type 'job'"),
        ("Job", {"url": "/2"}, "needs the property 'title'"),
        ("Job", {"url": "/2", "title": None}, "needs the property 'title'"),
        ("POSTED_BY", {"url": "/2"}, "no node type"),
    ],
)
def test_a_node_that_the_schema_does_not_allow_is_refused(
    strict: GraphDatabase, way: str, type_: str, properties: dict[str, Any], word: str
) -> None:
    """G18."""
    ways: dict[str, Callable[[], object]] = {
        "create": lambda: strict.create_node(type_, properties),
        "merge": lambda: strict.merge_node(type_, {"url": properties["url"]}, properties),
        "bulk": lambda: strict.bulk_merge_nodes(type_, [{"url": "/9", "title": "fine"}, properties], match_on="url"),
    }
    with assert_unchanged(strict), pytest.raises(GraphSchemaError, match=word):
        ways[way]()


@pytest.mark.parametrize("way", ["create", "merge", "bulk"])
@pytest.mark.parametrize(
    ("ends", "type_", "properties", "word"),
    [
        ((1, 2), "KNOWS", {}, "no edge type 'KNOWS'"),
        ((1, 2), "POSTED_BY", {}, "needs the property 'since'"),
        ((1, 2), "POSTED_BY", {"since": None}, "needs the property 'since'"),
        ((2, 1), "POSTED_BY", {"since": 1}, "from Job, not from Company"),
        ((1, 1), "POSTED_BY", {"since": 1}, "to Company, not to Job"),
        ((2, 1), "TO_COMPANY", {}, "to Company, not to Job"),
        ((1, 2), "Job", {}, "no edge type"),
    ],
)
def test_an_edge_that_the_schema_does_not_allow_is_refused(
    strict: GraphDatabase, way: str, ends: tuple[int, int], type_: str, properties: dict[str, Any], word: str
) -> None:
    """G18."""
    start, end = ends
    ways: dict[str, Callable[[], object]] = {
        "create": lambda: strict.create_edge(start, type_, end, properties),
        "merge": lambda: strict.merge_edge(start, type_, end, properties),
        "bulk": lambda: strict.bulk_merge_edges(type_, [{"from_id": start, "to_id": end, **properties}]),
    }
    with assert_unchanged(strict), pytest.raises(GraphSchemaError, match=word):
        ways[way]()


def test_a_required_property_cannot_be_removed(strict: GraphDatabase) -> None:
    """G18."""
    edge = strict.create_edge(1, "POSTED_BY", 2, {"since": 1}).id
    refusals: list[Callable[[], object]] = [
        lambda: strict.merge_node("Job", {"url": "/1"}, on_match={"title": None}),
        lambda: strict.merge_node("Job", {"url": "/1"}, on_match=lambda _: {"title": None}),
        lambda: strict.bulk_merge_nodes("Job", [{"url": "/1", "title": None}], match_on="url", on_match="title"),
        lambda: strict.update_node(1, {"title": None}),
        lambda: strict.update_node(1, {"title": "x"}, replace=True),
        lambda: strict.merge_edge(1, "POSTED_BY", 2, on_match={"since": None}),
        lambda: strict.bulk_merge_edges("POSTED_BY", [{"from_id": 1, "to_id": 2, "since": None}], on_match="since"),
        lambda: strict.update_edge(edge, {"since": None}),
        lambda: strict.update_edge(edge, {}, replace=True),
    ]
    for work in refusals:
        with assert_unchanged(strict), pytest.raises(GraphSchemaError, match="needs the property"):
            work()


def test_a_bulk_merge_holds_the_schema_row_by_row(strict: GraphDatabase) -> None:
    """G13, G18. A later row cannot mend what an earlier one would break."""
    rows = [{"url": "/1", "title": None}, {"url": "/1", "title": "Chef"}]
    with assert_unchanged(strict), pytest.raises(GraphSchemaError):
        strict.bulk_merge_nodes("Job", rows, match_on="url", on_match="title")
    assert strict.bulk_merge_nodes("Job", rows[1:], match_on="url", on_match="title") == BulkResult(0, 1, changed=1)
    assert list_nodes(strict, "Job") == [{"url": "/1", "title": "Chef"}]


def test_a_bulk_merge_of_allowed_edges_works(strict: GraphDatabase) -> None:
    """G13, G18."""
    rows = [{"from_id": 1, "to_id": 2, "since": since} for since in (1, 2)]
    assert strict.bulk_merge_edges("POSTED_BY", rows, on_match="since") == BulkResult(1, 1)
    assert read_graph(strict).edges == {1: ("POSTED_BY", 1, 2, {"since": 2})}


def test_an_unknown_node_is_still_an_unknown_node(strict: GraphDatabase) -> None:
    """G2, G18."""
    for ends in ((1, 99), (99, 2)):
        with assert_unchanged(strict), pytest.raises(NodeNotFoundError, match="99"):
            strict.merge_edge(ends[0], "POSTED_BY", ends[1], {"since": 1})


def test_a_refusal_inside_a_transaction_leaves_the_rest(strict: GraphDatabase) -> None:
    """G11, G18."""
    with strict.transaction():
        strict.create_node("Company", {"name": "B"})
        with pytest.raises(GraphError):
            strict.merge_node("Job", {"url": "/2"})
    assert list_nodes(strict, "Company") == [{"name": "A"}, {"name": "B"}]


def test_without_a_schema_everything_is_allowed(db: GraphDatabase) -> None:
    """G18."""
    node = db.merge_node("Anything", {"k": 1}).id
    assert db.merge_edge(node, "ANYTHING", node).created


def test_an_edge_type_names_node_types_of_the_schema() -> None:
    """G18."""
    with pytest.raises(GraphSchemaError, match=r"'E'.*'Person'"):
        GraphSchema({"Job": NodeType()}, {"E": EdgeType(from_types=["Job"], to_types=["Person"])})


def test_an_edge_that_is_found_backwards_keeps_its_endpoints(strict: GraphDatabase) -> None:
    """G2, G18."""
    strict.create_edge(1, "POSTED_BY", 2, {"since": 1})
    found = strict.merge_edge(2, "POSTED_BY", 1, direction="both", on_match={"since": 2})
    assert (found.created, found.from_id, found.properties) == (False, 1, {"since": 2})
