"""Many rows into edges at once, with their nodes named by id or found by what they are."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.graph.graph_oracle import assert_unchanged, expect_rollback, read_graph

from merganser.errors import MergeConflictError, NodeNotFoundError, UniqueConstraintError
from merganser.graph import BulkResult, Endpoint
from merganser.graph.sqlite import lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.graph.conftest import Clock

    from merganser.graph import GraphDatabase

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

JOB, COMPANY = Endpoint("Job", {"url": "job"}), Endpoint("Company", {"name": "company", "city": "city"})
POSTED: list[dict[str, Any]] = [
    {"job": 1, "company": "A", "city": "Bern", "source": "x"},
    {"job": 2, "company": "A", "city": "Bern", "source": "x"},
    {"job": 1, "company": "A", "city": "Bern", "source": "y"},
]


@pytest.fixture
def ids(db: GraphDatabase) -> list[int]:
    return [db.create_node("N", {"k": number}).id for number in range(3)]


@pytest.fixture
def companies(db: GraphDatabase) -> None:
    db.bulk_merge_nodes("Job", [{"url": number} for number in (1, 2)], match_on="url")
    db.bulk_merge_nodes("Company", [{"name": "A", "city": city} for city in ("Bern", "Rom")], match_on=["name", "city"])


def edges(db: GraphDatabase) -> list[tuple[str, int, int, dict[str, Any]]]:
    return list(read_graph(db).edges.values())


def test_edges_by_ids_can_be_merged_again(db: GraphDatabase, ids: list[int]) -> None:
    """G13."""
    a, b, c = ids
    rows = [
        {"from_id": a, "to_id": b, "w": 1},
        {"from_id": b, "to_id": a, "w": 2},
        {"from_id": a, "to_id": b, "w": 3},
        {"from_id": c, "to_id": c, "w": 4},
    ]
    assert db.bulk_merge_edges("E", rows) == BulkResult(created=3, matched=1)
    assert edges(db) == [("E", a, b, {"w": 1}), ("E", b, a, {"w": 2}), ("E", c, c, {"w": 4})]
    assert db.bulk_merge_edges("E", rows, on_match=["w"]) == BulkResult(created=0, matched=4, changed=1)
    assert edges(db) == [("E", a, b, {"w": 3}), ("E", b, a, {"w": 2}), ("E", c, c, {"w": 4})]


def test_the_columns_of_ids_may_have_other_names(db: GraphDatabase, ids: list[int]) -> None:
    """G13."""
    rows = [{"src": ids[0], "dst": ids[1], "from_id": "kept"}]
    assert db.bulk_merge_edges("E", rows, from_node="src", to_node="dst").created == 1
    assert edges(db) == [("E", ids[0], ids[1], {"from_id": "kept"})]


def test_nodes_are_found_by_what_they_are(db: GraphDatabase, companies: None) -> None:  # noqa: ARG001 - the nodes must exist
    """G13. The specification's "Bulk Import with Merge"."""
    for expected in (BulkResult(2, 1), BulkResult(0, 3)):
        assert db.bulk_merge_edges("POSTED_BY", POSTED, from_node=JOB, to_node=COMPANY, on_match="source") == expected
        assert edges(db) == [("POSTED_BY", 1, 3, {"source": "y"}), ("POSTED_BY", 2, 3, {"source": "x"})]


def test_on_match_may_name_other_columns_than_the_properties(db: GraphDatabase, companies: None) -> None:  # noqa: ARG001
    """G13. A column that identifies a node may also overwrite a property; it is not a property of a new edge."""
    on_match = {"source": "later", "job": "job", "town": "city"}
    rows = [{**row, "later": row["source"] * 2} for row in POSTED]
    assert db.bulk_merge_edges("E", rows, from_node=JOB, to_node=COMPANY, on_match=on_match) == BulkResult(2, 1)
    assert edges(db) == [
        ("E", 1, 3, {"job": 1, "source": "yy", "town": "Bern"}),
        ("E", 2, 3, {"job": 2, "source": "x"}),
    ]


def test_an_id_and_a_node_that_is_found(db: GraphDatabase, companies: None) -> None:  # noqa: ARG001
    """G13."""
    rows = [{"to": 4, "job": 2.0}, {"to": 2, "job": 2}]
    assert db.bulk_merge_edges("E", rows, from_node=JOB, to_node="to") == BulkResult(2, 0)
    assert edges(db) == [("E", 2, 4, {}), ("E", 2, 2, {})]


def test_one_column_may_identify_both_endpoints(db: GraphDatabase, companies: None) -> None:  # noqa: ARG001
    """G13."""
    assert db.bulk_merge_edges("E", [{"job": 1}], from_node=JOB, to_node=JOB).created == 1
    assert edges(db) == [("E", 1, 1, {})]


@pytest.mark.parametrize("key", [5, 0.5, [5]], ids=["joined", "fraction", "list"])
def test_a_node_that_is_missing_is_named_with_its_row(db: GraphDatabase, key: Any) -> None:
    """G13."""
    db.create_node("Job", {"url": 1})
    with assert_unchanged(db), pytest.raises(NodeNotFoundError) as caught:
        db.bulk_merge_edges("E", [{"job": 1}, {"job": key}], from_node=JOB, to_node=JOB)
    for part in ("row 1", "Job", f"'url': {key}"):
        assert part in str(caught.value)


@pytest.mark.parametrize("key", [5, 0.5, [5]], ids=["joined", "fraction", "list"])
def test_a_duplicate_node_is_refused(db: GraphDatabase, key: Any) -> None:
    """G3, G13."""
    db.create_node("Job", {"url": 1})
    twins = [db.create_node("Job", {"url": key}) for _ in range(2)]
    with assert_unchanged(db), pytest.raises(MergeConflictError) as caught:
        db.bulk_merge_edges("E", [{"job": 1}, {"job": key}], from_node=JOB, to_node=JOB)
    assert list(caught.value.conflicting_nodes) == twins
    assert (caught.value.node_type, caught.value.match_properties) == ("Job", {"url": key})


@pytest.mark.parametrize("column", ["from_id", "to_id"])
@pytest.mark.parametrize("wrong", [99, -1, None, "1", 1.0, True, 2**63 - 1])
def test_a_wrong_id_is_named_with_its_row_and_column(
    db: GraphDatabase, ids: list[int], column: str, wrong: Any
) -> None:
    """G13."""
    rows = [{"from_id": ids[0], "to_id": ids[1]} for _ in range(3)]
    rows[2][column] = wrong
    with assert_unchanged(db), pytest.raises((ValueError, LookupError), match=rf"row 2\b.*'{column}'"):
        db.bulk_merge_edges("E", rows)


@pytest.mark.parametrize("batch", [1, 2, 10_000])
@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"to_id": 1, "k": 1}, "'from_id'"),
        ({"from_id": 1, "k": 1}, "'to_id'"),
        ({"from_id": 1, "to_id": 1}, "'k'"),
        ({"from_id": 1, "to_id": 1, "k": None}, "'k'"),
        ({"from_id": 1, "to_id": 1, "k": 1, "v": float("nan")}, "'v'"),
    ],
)
def test_a_bad_row_changes_nothing(
    db: GraphDatabase, monkeypatch: pytest.MonkeyPatch, ids: list[int], row: dict[str, Any], word: str, batch: int
) -> None:
    """G13."""
    monkeypatch.setattr(lookup, "BATCH", batch)
    rows = [{"from_id": ids[0], "to_id": other, "k": 1} for other in ids]
    with assert_unchanged(db), pytest.raises(ValueError, match=rf"row 3\b.*{word}"):
        db.bulk_merge_edges("E", [*rows, row, *rows], match_on="k")


def test_the_match_distinguishes_parallel_edges(db: GraphDatabase, ids: list[int]) -> None:
    """G2, G13."""
    rows = [{"from_id": ids[0], "to_id": ids[1], "year": year, "n": n} for n, year in enumerate([1, 2, 1.0, "1", [1]])]
    assert db.bulk_merge_edges("E", rows[:4], match_on="year", on_match="n") == BulkResult(3, 1)
    assert [record[3] for record in edges(db)] == [{"year": 1, "n": 2}, {"year": 2, "n": 1}, {"year": "1", "n": 3}]
    assert db.bulk_merge_edges("E", rows, match_on="year") == BulkResult(1, 4)


def test_both_ways_is_one_edge(db: GraphDatabase, ids: list[int]) -> None:
    """G2, G13."""
    a, b, c = ids
    db.create_edge(b, "E", a)
    rows = [{"from_id": start, "to_id": end} for start, end in ((a, b), (c, a), (a, c), (b, a), (c, c), (c, c))]
    assert db.bulk_merge_edges("E", rows, direction="both") == BulkResult(created=2, matched=4)
    assert [record[1:3] for record in edges(db)] == [(b, a), (c, a), (c, c)]
    db.create_edge(a, "E", b)
    with assert_unchanged(db), pytest.raises(MergeConflictError, match="Multiple edges"):
        db.bulk_merge_edges("E", rows, direction="both")
    assert db.bulk_merge_edges("E", rows).created == 1


def test_more_than_one_match_is_refused(db: GraphDatabase, ids: list[int]) -> None:
    """G3, G13."""
    twins = [db.create_edge(ids[0], "E", ids[1]) for _ in range(2)]
    rows = [{"from_id": ids[1], "to_id": ids[0]}, {"from_id": ids[0], "to_id": ids[1]}]
    with assert_unchanged(db), pytest.raises(MergeConflictError) as caught:
        db.bulk_merge_edges("E", rows)
    assert list(caught.value.conflicting_nodes) == twins


def test_a_match_is_seen_in_updated_at(db: GraphDatabase, ids: list[int], clock: Clock) -> None:
    """G8, G13."""
    rows = [{"from_id": ids[0], "to_id": ids[1], "v": 1}]
    db.bulk_merge_edges("E", rows)
    clock.milliseconds += 3
    with assert_unchanged(db):
        db.bulk_merge_edges("E", rows, on_match="v", touch=False)
    db.bulk_merge_edges("E", rows)
    edge = db.get_edge(1)
    assert edge is not None
    assert edge.updated_at - edge.created_at == timedelta(milliseconds=3)


def test_a_unique_index_of_edges_holds(db: GraphDatabase, ids: list[int]) -> None:
    """G10, G13."""
    db.create_property_index("E", "code", unique=True, table="edges")
    rows = [{"from_id": ids[0], "to_id": other, "code": 1} for other in ids]
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="code"):
        db.bulk_merge_edges("E", rows)
    # As a match it is not a key by itself either: the nodes differ.
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="code"):
        db.bulk_merge_edges("E", rows, match_on="code")
    assert db.bulk_merge_edges("E", rows[:1] * 2, match_on="code") == BulkResult(1, 1)


def test_a_bulk_merge_inside_a_transaction_goes_with_it(db: GraphDatabase) -> None:
    """G11, G13."""
    with assert_unchanged(db), expect_rollback(db):
        node = db.create_node("N").id
        db.bulk_merge_edges("E", [{"from_id": node, "to_id": node}])
        assert edges(db) == [("E", node, node, {})]


@pytest.mark.parametrize("source", [pa.Table.from_pylist, pd.DataFrame, pl.DataFrame, iter])
def test_rows_come_from_any_tabular_object(
    db: GraphDatabase, ids: list[int], source: Callable[[list[dict[str, Any]]], Any]
) -> None:
    """G13."""
    rows = [{"from_id": ids[0], "to_id": other, "w": None if other == ids[1] else 0.5} for other in ids]
    assert db.bulk_merge_edges("E", source(rows)) == BulkResult(3, 0)
    assert edges(db) == [
        ("E", ids[0], ids[0], {"w": 0.5}),
        ("E", ids[0], ids[1], {}),
        ("E", ids[0], ids[2], {"w": 0.5}),
    ]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"type": ""}, "type"),
        ({"direction": "in"}, "direction"),
        ({"from_node": 7}, "from_node"),
        ({"from_node": None}, "from_node"),
        ({"match_on": None}, "match_on"),
        ({"on_match": {"w": 1}}, "on_match"),
        ({"on_match": ["w", "w"]}, "on_match"),
    ],
)
def test_nonsense_is_refused(db: GraphDatabase, ids: list[int], arguments: dict[str, Any], word: str) -> None:
    """G13."""
    rows = [{"from_id": ids[0], "to_id": ids[1]}]
    with assert_unchanged(db), pytest.raises((TypeError, ValueError), match=word):
        db.bulk_merge_edges(**{"type": "E", "rows": rows, **arguments})


@pytest.mark.parametrize(
    ("type_", "match"), [("", {"k": "c"}), ("N", {}), ("N", "k"), ("N", None), ("N", {"k": 7}), ("N", {7: "c"})]
)
def test_an_endpoint_that_makes_no_sense_is_refused(type_: str, match: Any) -> None:
    """G13."""
    with pytest.raises((TypeError, ValueError), match=r"type|match of"):
        Endpoint(type_, match)


def test_a_column_that_identifies_a_node_may_be_a_property_too(db: GraphDatabase, companies: None) -> None:  # noqa: ARG001
    """G13. It is a property if it is part of the key, or listed in `on_match`; otherwise it is not."""
    rows = [{"job": 1, "city": "Bern", "company": "A"}]
    db.bulk_merge_edges("KEY", rows, from_node=JOB, to_node=COMPANY, match_on="city")
    db.bulk_merge_edges("OVER", rows, from_node=JOB, to_node=COMPANY, on_match="company")
    assert edges(db) == [("KEY", 1, 3, {"city": "Bern"}), ("OVER", 1, 3, {"company": "A"})]
