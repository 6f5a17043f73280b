"""A graph in Parquet and a graph in SQLite, merged into one another: what goes over, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes, read_graph
from tests.support import snapshot

from merganser.core.storage.local import LocalStore
from merganser.core.storage.lock import hold_lock
from merganser.errors import (
    InvalidArgumentError,
    KeyColumnError,
    LockTimeoutError,
    NodeNotFoundError,
    PropertyTypeError,
    UniqueConstraintError,
)
from merganser.graph import Endpoint, GraphDatabase, ParquetGraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.graph import GraphMergeResult
    from merganser.graph.spark.exchange import ExchangeResult

# Spark's first steps take their time on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
JOB, DAY = Endpoint("Job", {"url": "url"}), Endpoint("Day", {"day": "day"})
JOBS = """
    SELECT concat('/', id) AS url, DATE'2026-01-01' AS day, id AS n, 'x' AS type, named_struct('a.b', array(id)) AS o,
        if(id = 0, NULL, named_struct('at', array(TIMESTAMP'2026-01-01 10:00:00.000001Z', NULL))) AS seen,
        map('on', named_struct('day', DATE'2026-01-01')) AS days
    FROM range(3)
"""


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


@pytest.fixture
def graph(spark: Any, lake: str) -> ParquetGraph:
    return ParquetGraph(f"{lake}/graph", spark)


def counts(result: ExchangeResult) -> dict[Any, tuple[int, int]]:
    """Return what was created and what was changed of each type."""
    found: dict[Any, GraphMergeResult] = {**result.nodes, **result.edges}
    return {key: (of.created, of.changed) for key, of in found.items()}


def test_a_graph_survives_a_round_trip(spark: Any, graph: ParquetGraph, db: GraphDatabase) -> None:
    """G17. Dates, dicts and names that Parquet keeps for itself included; a second time, nothing changes."""
    frame = spark.sql(JOBS)
    graph.merge_nodes(frame, "Job", match="url", base=["n", "type", "o", "seen", "days"])
    graph.merge_nodes(frame, "Day", match="day")
    graph.merge_edges(frame, "ON", from_node=JOB, to_node=DAY, base={"src": "n"})
    graph.merge_edges(frame.limit(2), "ON", from_node=JOB, to_node=JOB)
    all_of_it = {"Day": (1, 0), "Job": (3, 0), ("Job", "ON", "Day"): (3, 0), ("Job", "ON", "Job"): (2, 0)}
    assert counts(graph.to_sqlite(db)) == all_of_it
    assert list_nodes(db, "Day") == [{"day": "2026-01-01"}]
    job = next(found for found, (_, properties) in read_graph(db).nodes.items() if properties.get("url") == "/1")
    assert read_graph(db).nodes[job][1] == {
        "url": "/1",
        "n": 1,
        "type": "x",
        "o": {"a.b": [1]},
        "seen": {"at": ["2026-01-01T10:00:00.000001+00:00", None]},
        "days": {"on": {"day": "2026-01-01"}},
    }
    assert sorted(old.get("src", -1) for _, _, _, old in read_graph(db).edges.values()) == [-1, -1, 0, 1, 2]
    db.update_node(job, {"n": None, "own": 1})
    nothing = dict.fromkeys(all_of_it, (0, 0))
    # As a process leaves it that is killed.
    incoming = Path(graph.path, ".merganser/incoming")
    Path(incoming, "graph_0/0").mkdir(parents=True)
    with hold_lock(LocalStore(), str(incoming), "", 1), pytest.raises(LockTimeoutError, match="incoming is held by"):
        ParquetGraph(graph.path, spark, lock_timeout=0).from_sqlite(db)
    assert counts(graph.from_sqlite(db)) == {**nothing, "Job": (0, 1)}
    assert {path.name for path in incoming.iterdir()} == {"lock", "queue"}
    with assert_unchanged(db):
        assert counts(graph.to_sqlite(db)) == nothing
    for wrong in ("soon", "2026-01-01 10:00:00Z"):
        db.update_node(job, {"seen": {"at": [wrong]}})
        with pytest.raises(PropertyTypeError, match="'seen' of Job nodes"):
            graph.from_sqlite(db)


def test_what_would_not_be_the_same_graph_is_refused(graph: ParquetGraph, db: GraphDatabase) -> None:
    """G5, G17. Nothing is written then."""
    first, _ = (db.create_node("N", {"k": key, "v": value}) for key, value in ((1, 1), (2, {"x": 1})))
    match = {"N": ["k"]}
    with pytest.raises(InvalidArgumentError, match=r"N nodes.*match={'N'"):
        graph.from_sqlite(db)
    with pytest.raises(InvalidArgumentError, match="match of N is empty"):
        graph.from_sqlite(db, match={"N": []})
    with pytest.raises(
        InvalidArgumentError, match=r"names the type 'M', which SQLite does not have\. Its types are: N"
    ):
        graph.from_sqlite(db, match={**match, "M": ["k"]})
    with pytest.raises(PropertyTypeError, match="'v' of N nodes"):
        graph.from_sqlite(db, match=match)
    db.update_node(first.id, {"v": {"x": 1, "y": 2}})
    with pytest.raises(PropertyTypeError, match="some values would change"):
        graph.from_sqlite(db, match=match)
    db.update_node(first.id, {"v": {"x": 1.5}})
    with pytest.raises(InvalidArgumentError, match="'other'"):
        graph.from_sqlite(db, match={"N": ["other"]})
    twin = db.create_node("N", {"k": 1.0})
    with pytest.raises(UniqueConstraintError, match=f"ids {first.id},{twin.id} are equal in k"):
        graph.from_sqlite(db, match=match)
    db.delete_node(twin.id)
    edges = [db.create_edge(first.id, "E", first.id, {"w": weight}) for weight in (1, 2)]
    with pytest.raises(UniqueConstraintError, match=f"ids {edges[0].id},{edges[1].id} are equal in their nodes"):
        graph.from_sqlite(db, match=match)
    with pytest.raises(InvalidArgumentError, match="edge_match names the type 'N'"):
        graph.from_sqlite(db, match=match, edge_match={"N": ["w"]})
    lost = db.create_node("N")
    with pytest.raises(KeyColumnError, match=f"1 of the N nodes in SQLite lack the match property 'k'.* id {lost.id}"):
        graph.from_sqlite(db, match=match, edge_match={"E": ["w"]})
    db.delete_node(lost.id)
    assert {name for name in snapshot(str(graph.path)) if not name.endswith("/lock")} == set()
    assert counts(graph.from_sqlite(db, match=match, edge_match={"E": ["w"]})) == {"N": (2, 0), ("N", "E", "N"): (2, 0)}
    with pytest.raises(InvalidArgumentError, match=r"match of N names \['v'\].*merged by \['k'\]"):
        graph.from_sqlite(db, match={"N": ["v"]})
    with pytest.raises(InvalidArgumentError, match=r"edge_match of E names \[\].*merged by \['w'\]"):
        graph.from_sqlite(db, edge_match={"E": []})
    # Its column is of numbers now.
    db.update_node(first.id, {"v": True})
    with pytest.raises(PropertyTypeError, match="'v' of N nodes"):
        graph.from_sqlite(db)


def test_an_incomplete_parquet_graph_is_refused(spark: Any, graph: ParquetGraph, db: GraphDatabase) -> None:
    """G17."""
    frame = spark.sql(JOBS)
    graph.merge_nodes(frame, "Job", match="url")
    graph.merge_edges(frame, "NEXT", from_node=JOB, to_node=JOB)
    shutil.rmtree(f"{graph.path}/.merganser")
    with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="nodes of type 'Job'"):
        graph.to_sqlite(db)
    graph.merge_nodes(frame, "Job", match="url")
    graph.merge_edges(frame, "NEXT", from_node=JOB, to_node=JOB)
    graph.merge_nodes(frame, "Day", match="day")
    shutil.rmtree(f"{graph.path}/nodes/type=Job")
    with pytest.raises(NodeNotFoundError, match="3 edges of type 'NEXT'"):
        graph.to_sqlite(db)
    shutil.rmtree(f"{graph.path}/nodes/type=Day")
    with pytest.raises(NodeNotFoundError, match="3 edges of type 'NEXT'"):
        graph.to_sqlite(db)
