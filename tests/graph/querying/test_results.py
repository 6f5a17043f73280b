"""What graph calls give, as plain values, as Arrow, and as a notebook shows it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from merganser.graph import Endpoint, GraphDatabase

if TYPE_CHECKING:
    from pathlib import Path

    from tests.graph.conftest import Clock

BAD = "<b>&</b>"
MOMENT = datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)


@pytest.fixture
def jobs(db: GraphDatabase, clock: Clock) -> GraphDatabase:
    """Two jobs of one company, one of which another job is like."""
    assert clock.milliseconds
    company = db.create_node("Company", {"name": BAD}).id
    first, second = (db.create_node("Job", {"title": title, "pay": pay}).id for title, pay in (("a", 1), ("b", None)))
    db.create_edge(first, "POSTED_BY", company, {"since": 2026})
    db.create_edge(second, "POSTED_BY", company)
    db.create_edge(first, "LIKE", second)
    return db


def test_nodes_and_edges_are_tables(jobs: GraphDatabase) -> None:
    nodes = jobs.nodes("Job").exec()
    assert nodes.to_arrow().to_pylist() == [
        {"id": 2, "type": "Job", "title": "a", "pay": 1, "created_at": MOMENT, "updated_at": MOMENT},
        {"id": 3, "type": "Job", "title": "b", "pay": None, "created_at": MOMENT, "updated_at": MOMENT},
    ]
    edges = jobs.edges("POSTED_BY").exec().to_arrow()
    assert edges.column_names == ["id", "type", "from_id", "to_id", "since", "created_at", "updated_at"]
    assert edges.column("since").to_pylist() == [2026, None]
    assert jobs.nodes("None").exec().to_arrow().schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("type", pa.string(), nullable=False),
            pa.field("created_at", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("updated_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        ]
    )


def test_properties_of_several_kinds_or_of_a_reserved_name_have_columns_too(db: GraphDatabase) -> None:
    for value in (1, "one", {"a": 1}):
        db.create_node("Mixed", {"id": value})
    assert db.nodes().exec().to_arrow().column("property_id").to_pylist() == ["1", '"one"', '{"a":1}']


def test_a_list_of_records_is_a_list(jobs: GraphDatabase) -> None:
    nodes = jobs.nodes("Job").exec()
    assert nodes == [jobs.get_node(2), jobs.get_node(3)]
    assert jobs.traverse(2, max_depth=None).nodes() == [jobs.get_node(1), jobs.get_node(3)]
    assert isinstance(nodes, list)
    assert nodes.to_dict()["rows"][1] == {
        "id": 3,
        "type": "Job",
        "properties": {"title": "b"},
        "created_at": MOMENT,
        "updated_at": MOMENT,
    }


def test_paths_are_drawn_and_counted(jobs: GraphDatabase) -> None:
    paths = jobs.pattern("Company").in_("POSTED_BY").both("LIKE").exec()
    assert paths.to_arrow().to_pylist() == [
        {"nodes": [1, 2, 3], "edges": [1, 3]},
        {"nodes": [1, 3, 2], "edges": [2, 3]},
    ]
    shown = paths._repr_html_()
    assert "(Company #1)&lt;-[POSTED_BY]-(Job #2)-[LIKE]-&gt;(Job #3)" in shown
    assert list(paths.to_dict()["rows"][0]) == ["nodes", "edges"]
    assert paths == jobs.pattern("Company").in_("POSTED_BY").both("LIKE").exec()


def results(db: GraphDatabase) -> list[Any]:
    db.create_property_index("Job", "title")
    db.create_property_index("Company", "name")
    ends = {"from_node": Endpoint("Job", {"title": "title"}), "to_node": Endpoint("Company", {"name": "name"})}
    db.export_json("graph.json")
    return [
        db.get_node(1),
        db.get_edge(1),
        db.merge_node("Company", {"name": BAD}),
        db.merge_edge(2, "POSTED_BY", 1),
        db.shortest_path(2, 1),
        db.bulk_merge_nodes("Job", [{"title": "a"}], match_on="title"),
        db.bulk_merge_edges("POSTED_BY", [{"title": "a", "name": BAD}], **ends),  # type: ignore[arg-type]
        db.list_indexes()[0],
        db.stats(),
        db.import_json("graph.json"),
        db.neighbourhood(1),
        db.nodes().exec(),
        db.edges().exec(),
        db.traverse(1, direction="both").paths(),
    ]


def test_every_result_is_plain_values_and_shows_itself(
    jobs: GraphDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for result in results(jobs):
        assert json.loads(json.dumps(result.to_dict(), default=str))
        shown = result._repr_html_()
        assert shown.startswith(("<table>", "<iframe"))
        assert BAD not in shown


def test_a_notebook_shows_no_more_than_fits(db: GraphDatabase, tmp_path: Path) -> None:
    with db.transaction():
        for number in range(60):
            db.create_node(f"T{number}", {"n": number})
    assert "… 10 more" in db.nodes().exec()._repr_html_()
    assert db.nodes().exec()._repr_html_().count("<tr>") == 51
    assert "… 10 more" in db.stats()._repr_html_()
    db.export_json(tmp_path / "graph.json")
    with GraphDatabase(":memory:") as copy:
        assert "… 10 more" in copy.import_json(tmp_path / "graph.json")._repr_html_()


def test_stats_count_by_type(jobs: GraphDatabase) -> None:
    jobs.create_property_index("Job", ["title", "pay"], unique=True)
    found = jobs.stats()
    assert (found.node_count, found.edge_count) == (3, 3)
    assert found.nodes == {"Company": 1, "Job": 2}
    assert found.edges == {"LIKE": 1, "POSTED_BY": 2}
    assert [index.columns for index in found.indexes] == [("title", "pay")]
    assert found.to_arrow().to_pylist()[0] == {"table": "nodes", "type": "Company", "count": 1}
    with GraphDatabase(":memory:") as empty:
        assert empty.stats().to_arrow().num_rows == 0
