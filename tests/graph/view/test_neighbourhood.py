"""The neighbourhood of nodes, and the page that draws it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from merganser.errors import InvalidArgumentError
from merganser.graph import NodeNotFoundError

if TYPE_CHECKING:
    from merganser.graph import GraphDatabase


def chain(db: GraphDatabase, count: int) -> list[int]:
    with db.transaction():
        ids = [db.create_node("Stop", {"n": number}).id for number in range(count)]
        for one, two in pairwise(ids):
            db.create_edge(one, "NEXT", two)
    return ids


def test_a_neighbourhood_holds_nodes_within_its_depth(db: GraphDatabase) -> None:
    chain(db, 6)
    found = db.neighbourhood(3, depth=2)
    assert [node.id for node in found.nodes] == [3, 2, 4, 1, 5]
    assert found.distances == (0, 1, 1, 2, 2)
    assert found.beyond == (0, 0, 0, 0, 1)
    assert (len(found.edges), found.nodes_left_out, found.edges_left_out) == (4, 1, 0)
    assert found.to_arrow().column("n").to_pylist() == [2, 1, 3, 0, 4]
    assert [node.id for node in db.neighbourhood(3, direction="out").nodes] == [3, 4]
    assert [node.id for node in db.neighbourhood(3, direction="in", depth=9).nodes] == [3, 2, 1]
    assert [node.id for node in db.neighbourhood(3, ["NEXT", "B"]).nodes] == [3, 2, 4]
    assert [node.id for node in db.neighbourhood(3, "B").nodes] == [3]
    assert [node.id for node in db.neighbourhood([5, 1, 5], depth=0).nodes] == [5, 1]
    assert db.neighbourhood([]).nodes == []


def test_a_neighbourhood_has_no_more_than_its_limit_and_says_what_is_left_out(db: GraphDatabase) -> None:
    hub = db.create_node("Hub").id
    with db.transaction():
        for _ in range(20):
            db.create_edge(hub, "TO", db.create_node("Leaf").id)
    found = db.neighbourhood(hub, limit=8)
    assert (len(found.nodes), len(found.edges), found.nodes_left_out) == (8, 7, 13)
    assert found.beyond[0] == 13
    # A start that is left out, and is a neighbour too, counts once.
    assert db.neighbourhood([hub, 2, 3], limit=1).nodes_left_out == 20
    leaf = found.nodes[1].id
    with db.transaction():
        for _ in range(30):
            db.create_edge(leaf, "AGAIN", hub)
    crowded = db.neighbourhood([hub, leaf], depth=0, limit=2)
    assert (len(crowded.edges), crowded.edges_left_out) == (20, 11)


def test_a_neighbourhood_of_a_missing_node_is_refused(db: GraphDatabase) -> None:
    with pytest.raises(NodeNotFoundError, match="7"):
        db.neighbourhood(7)
    node = db.create_node("A").id
    wrong: list[dict[str, Any]] = [{"depth": -1}, {"limit": 0}, {"direction": "up"}, {"edge_type": []}]
    for given in wrong:
        with pytest.raises(InvalidArgumentError):
            db.neighbourhood(node, **given)
    with pytest.raises(InvalidArgumentError, match="not an id"):
        db.neighbourhood("a")  # type: ignore[arg-type]


def test_a_page_has_exact_integers_and_hides_distant_nodes(db: GraphDatabase) -> None:
    ids = chain(db, 3)
    db.update_node(ids[0], {"big": 2**62, "10": "a", "9": "b"})
    page = db.neighbourhood(ids[0], depth=2).to_html("<i>", depth=1, note="n")
    held = json.loads(page.partition('id="graph">')[2].partition("</script>")[0])
    assert (held["title"], held["note"], held["depth"]) == ("<i>", "n", 1)
    assert held["nodes"][0]["properties"] == [["n", "0"], ["big", str(2**62)], ["10", "a"], ["9", "b"]]
    assert "<title>&lt;i&gt;</title>" in page
