"""With a hundred thousand nodes an index pays, and a merge does what people did by hand before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import list_nodes

from merganser.graph import BulkResult, GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 100_000
MANY = """
    INSERT INTO nodes (type, properties, created_at, updated_at)
    WITH RECURSIVE counted (k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM counted WHERE k < ? - 1)
    SELECT 'N', json_object('k', k, 'name', 'node ' || k), 0, 0 FROM counted
"""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.slow
def test_an_index_pays_with_a_hundred_thousand_nodes(db: GraphDatabase) -> None:
    """G9. The specification's "Merge with index vs without (100k nodes)" and "Performance with/without indexes"."""
    db.connection.execute(MANY, (NODES,))

    def merges() -> None:
        for key in range(0, NODES, NODES // 5):
            assert not db.merge_node("N", {"k": key}, warn_on_missing_index=False).created
            assert db.merge_node("N", {"k": -1 - key}, warn_on_missing_index=False).created
            db.delete_node(db.merge_node("N", {"k": -1 - key}, warn_on_missing_index=False).id)

    without = seconds(merges)
    db.create_property_index("N", "k", unique=True)
    # It is hundreds of times faster; ten leave room for a busy machine.
    assert seconds(merges) < without / 10
    assert db.connection.execute("SELECT count(*) FROM nodes").fetchone() == (NODES,)


@pytest.mark.slow
def test_a_bulk_merge_among_a_hundred_thousand_nodes_is_exact(db: GraphDatabase) -> None:
    """G13. The specification's "Bulk merge operations (10k+ records)"."""
    db.connection.execute(MANY, (NODES,))
    db.create_property_index("N", "k", unique=True)
    rows = [{"k": key, "name": "merged"} for key in range(NODES - 6_000, NODES + 6_000)]
    assert db.bulk_merge_nodes("N", rows, match_on="k", on_match="name") == BulkResult(6_000, 6_000, changed=6_000)
    counted = "SELECT count(*), count(DISTINCT properties ->> 'k'), sum(properties ->> 'name' = 'merged') FROM nodes"
    assert db.connection.execute(counted).fetchone() == (NODES + 6_000, NODES + 6_000, 12_000)


def by_hand(db: GraphDatabase, key: Any, new: dict[str, Any]) -> None:
    """Do what the specification's migration guide begins with."""
    lookup = "SELECT id FROM nodes WHERE type = 'Company' AND json_extract(properties, '$.name') = ? LIMIT 1"
    with db.transaction():
        found = db.connection.execute(lookup, (key,)).fetchone()
        if found:
            db.update_node(found[0], new)
        else:
            db.create_node("Company", {"name": key, **new})


def test_a_merge_does_what_was_done_by_hand() -> None:
    """G1. The specification's "Compare to manual transaction pattern"."""
    with GraphDatabase(":memory:") as hand, GraphDatabase(":memory:") as merged:
        for db in (hand, merged):
            db.create_property_index("Company", "name")
        for number in range(60):
            name, new = f"company {number % 25}", {"seen": number, f"p{number % 3}": number}
            by_hand(hand, name, new)
            merged.merge_node("Company", {"name": name}, new, on_match=new)
        assert list_nodes(merged) == list_nodes(hand)
        assert len(list_nodes(merged)) == 25
