"""DataFrames merged into an SQLite graph: counted, refused, interrupted and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import OnPurposeError, assert_unchanged, dump, list_nodes, read_graph

from merganser.errors import GraphError, InvalidArgumentError, KeyColumnError, NodeNotFoundError
from merganser.graph import Endpoint, GraphDatabase, GraphMergeResult, SqliteGraph
from merganser.graph.spark import collect as stream
from merganser.graph.sqlite import checkpoints as resume

if TYPE_CHECKING:
    from collections.abc import Iterator

# Spark's first steps take their time on a busy machine.
pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[3]
JOBS = "SELECT * FROM VALUES ('/1', 1, 'a'), ('/2', 2, NULL), ('/1', 3, 'c'), (NULL, 4, 'd') AS t (url, n, title)"
JOB, CITY = Endpoint("Job", {"url": "url"}), Endpoint("City", {"name": "city"})


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


def result(rows: int, created: int, changed: int, skipped: int = 0, *, replayed: bool = False) -> GraphMergeResult:
    return GraphMergeResult(
        rows=rows,
        created=created,
        matched=rows - created - skipped,
        changed=changed,
        skipped=skipped,
        files_written=0,
        files_preserved=0,
        replayed=replayed,
    )


def test_nodes_are_merged_as_if_row_by_row(spark: Any, db: GraphDatabase) -> None:
    """G1, G4, G17. Without a batch id, each merge is another one."""
    graph, frame = SqliteGraph(db), spark.sql(JOBS)
    given: dict[str, Any] = {
        "match": "url",
        "base": ["title"],
        "on_create": {"seen": "1"},
        "on_match": {"seen": "n * 10", "title": "title"},
        "order_by": "n",
        "skip_null_keys": True,
    }
    assert graph.merge_nodes(frame, "Job", **given) == result(4, created=2, changed=0, skipped=1)
    expected = [{"url": "/1", "seen": 30, "title": "c"}, {"url": "/2", "seen": 1}]
    assert sorted(list_nodes(db), key=lambda properties: properties["url"]) == expected
    assert [index.columns for index in db.list_indexes()] == [("url",)]
    assert graph.merge_nodes(frame, "Job", **given) == result(4, created=0, changed=1, skipped=1)
    with assert_unchanged(db):
        assert graph.merge_nodes(frame, "Job", **given) == result(4, created=0, changed=0, skipped=1)
    assert graph.merge_nodes(frame.limit(0), "Job", **given) == result(0, created=0, changed=0)
    # A graph that was given is the caller's to close.
    graph.close()
    assert {"seen": 20, "url": "/2"} in list_nodes(db)


def test_a_batch_is_merged_once(spark: Any, tmp_path: Path) -> None:
    """G17. For each type by itself, and in the next session as well."""
    file, frame = tmp_path / "graph.db", spark.sql(JOBS).where("url IS NOT NULL")
    given: dict[str, Any] = {"match": "url", "on_match": {"n": "n"}, "batch_id": "monday"}
    for replayed in (False, True):
        with SqliteGraph(file) as graph:
            assert graph.merge_nodes(frame, "Job", **given) == result(3, 2, 0, replayed=replayed)
            before = dump(graph.database)
    with SqliteGraph(file) as graph:
        assert dump(graph.database) == before
        assert not graph.merge_nodes(frame, "Page", **given).replayed
    with pytest.raises(GraphError, match="closed"):
        list_nodes(graph.database)
    with SqliteGraph(":memory:") as graph, pytest.raises(InvalidArgumentError, match="batch_id"):
        graph.merge_nodes(frame, "Job", match="url", batch_id=7)  # type: ignore[arg-type]


def test_what_cannot_be_merged_is_refused_before_anything_is_written(spark: Any, db: GraphDatabase) -> None:
    """G4, G17."""
    graph = SqliteGraph(db)
    for name in ("Oslo", "Rom"):
        db.merge_node("City", {"name": name}, warn_on_missing_index=False)
    with assert_unchanged(db), pytest.raises(KeyColumnError, match=r"'url' of Job.* 1 row"):
        graph.merge_nodes(spark.sql(JOBS), "Job", match="url", batch_id="b")
    towns = spark.range(8).selectExpr("'Oslo' AS url", "concat('x', id) AS city")
    ends: dict[str, Any] = {"from_node": Endpoint("City", {"name": "url"}), "to_node": CITY}
    with (
        assert_unchanged(db),
        pytest.raises(NodeNotFoundError, match="ROAD edges end at City nodes that do not exist: 8 keys") as caught,
    ):
        graph.merge_edges(towns, "ROAD", **ends, batch_id="b")
    assert str(caught.value).count("{'name': 'x") == 8
    assert db.list_indexes() == []
    with assert_unchanged(db), pytest.raises(InvalidArgumentError, match=r"missing is 'skip'.*on_missing_node"):
        graph.merge_edges(towns, "ROAD", **ends, missing="skip")  # type: ignore[arg-type]
    some = towns.unionByName(spark.sql("SELECT 'Oslo' AS url, explode(array('Rom', 'Rom')) AS city"))
    assert graph.merge_edges(some, "ROAD", **ends, on_missing_node="skip", batch_id="b") == result(10, 1, 0, skipped=8)
    assert list(read_graph(db).edges.values()) == [("ROAD", 1, 2, {})]


def test_edges_are_merged_as_if_row_by_row(spark: Any, db: GraphDatabase) -> None:
    """G2, G17. An endpoint may be found by columns that are or are not properties of the edge."""
    for url in ("/1", "/2"):
        db.merge_node("Job", {"url": url}, warn_on_missing_index=False)
    graph = SqliteGraph(db)
    frame = spark.sql(JOBS).where("url IS NOT NULL")
    given: dict[str, Any] = {
        "from_node": JOB,
        "to_node": Endpoint("Job", {"url": "'/1'"}),
        "match": {"url": "title IS NULL"},
        "base": ["n"],
        "on_match": {"n": "n + 1"},
    }
    assert graph.merge_edges(frame, "E", **given) == result(3, 2, 0)
    assert sorted(read_graph(db).edges.values(), key=str) == [
        ("E", 1, 1, {"url": False, "n": 4}),
        ("E", 2, 1, {"url": True, "n": 2}),
    ]
    assert graph.merge_edges(frame, "E", **given) == result(3, 0, 1)
    assert graph.merge_edges(frame, "F", from_node=JOB, to_node=JOB) == result(3, 2, 0)


def test_values_are_stored_as_a_single_merge_stores_them(spark: Any, db: GraphDatabase) -> None:
    """G5, G6, G17. Keys that have to be merged one by one are counted like others."""
    values = {
        "f": 0.5,
        "l": [1.5, 2.0],
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "d": date(2026, 1, 2),
        "a.b": {"x": [True, None]},
        "it's": 'n"',
        "q'": -1,
        "q": "ü",
    }
    frame = spark.sql(
        "SELECT 0.5D AS f, array(1.5D, 2D) AS l, TIMESTAMP'2026-01-02 03:04:05Z' AS at, DATE'2026-01-02' AS d, "
        "named_struct('x', array(true, NULL)) AS `a.b`, 'n\"' AS `it's`, -1 AS `q'`, 'ü' AS q"
    )
    graph, match = SqliteGraph(db), ["f", "l", "at", "d"]
    others = [name for name in values if name not in match]
    assert graph.merge_nodes(frame, "N", match=match, base=others, on_match=others) == result(1, 1, 0)
    (stored,) = list_nodes(db)
    key = {name: values[name] for name in match}
    assert not db.merge_node("N", key, touch=False).created
    other = {name: values[name] for name in others}
    assert stored == db.merge_node("M", key, other, warn_on_missing_index=False).properties
    assert graph.merge_nodes(frame, "N", match=match, on_match=others) == result(1, 0, 0)
    assert graph.merge_nodes(frame, "N", match=match, on_match={"q": "'u'"}) == result(1, 0, 1)
    ends: dict[str, Any] = {"from_node": Endpoint("N", dict(zip(match, match, strict=True)))}
    ends["to_node"] = Endpoint("N", {"f": "0.25D"})
    assert graph.merge_edges(frame, "E", **ends, on_missing_node="skip") == result(1, 0, 0, skipped=1)


def test_an_interrupted_batch_goes_on_where_it_stopped(
    spark: Any, db: GraphDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G17. A row that creates and one that matches are never merged again, nor are counts lost."""
    monkeypatch.setattr(stream, "ROWS", 10)
    frame = spark.range(60).selectExpr("id % 30 AS k", "id AS v", "id = 7 AS odd")
    given: dict[str, Any] = {
        "match": "k",
        "on_create": {"v": "0"},
        "on_match": {"v": "CAST(v AS int)", "odd": "odd"},
        "batch_id": "b",
    }
    db.bulk_merge_nodes("N", [{"k": number, "v": 1} for number in range(5)], match_on="k", warn_on_missing_index=False)
    before, graph = list_nodes(db), SqliteGraph(db)
    moves = []

    def fail(batch: resume.CheckpointedBatch, *points: resume.Checkpoint) -> None:
        moves.append(points)
        if len(moves) == 3:
            raise OnPurposeError
        move(batch, *points)

    move = resume.CheckpointedBatch.advance
    with monkeypatch.context() as patch:
        patch.setattr(resume.CheckpointedBatch, "advance", fail)
        with pytest.raises(OnPurposeError):
            graph.merge_nodes(frame, "N", **given)
    assert 5 < len(list_nodes(db)) < 30
    with GraphDatabase(":memory:") as whole:
        whole.bulk_merge_nodes("N", before, match_on="k", warn_on_missing_index=False)
        at_once = SqliteGraph(whole).merge_nodes(frame, "N", **given)
        assert graph.merge_nodes(frame, "N", **given) == at_once == result(60, 25, 5)
        assert sorted(list_nodes(db), key=str) == sorted(list_nodes(whole), key=str)
    point = resume.CheckpointedBatch(db._store, "nodes N", "b").read_checkpoint()
    with assert_unchanged(db), pytest.raises(GraphError, match="Another process"), db.transaction():
        resume.CheckpointedBatch(db._store, "nodes N", "b").advance(resume.Checkpoint(), point)


PROGRAM = """
import os, signal, sys
from tests.support import get_spark_session
from merganser.graph import Endpoint
from merganser.graph.sqlite import checkpoints
from merganser.graph.spark import collect
from merganser.graph.spark.sqlite_graph import SqliteGraph
collect.ROWS = 10
moves, move = [], checkpoints.CheckpointedBatch.advance
def die(batch, *points):
    moves.append(points)
    if len(moves) == 3 and batch.part == "edges E":
        os.kill(os.getpid(), signal.SIGKILL)
    move(batch, *points)
checkpoints.CheckpointedBatch.advance = die
frame = get_spark_session().sql("SELECT id AS k, id * 2 AS v FROM range(50)")
graph = SqliteGraph(sys.argv[1])
print(graph.merge_nodes(frame, "N", match="k", batch_id="b"))
moves.clear()
end = Endpoint("N", {"k": "k"})
graph.merge_edges(frame, "E", from_node=end, to_node=end, base="v", on_match={"v": "-v"}, batch_id="b")
"""


@pytest.mark.slow
def test_a_killed_process_resumes(spark: Any, tmp_path: Path) -> None:
    """G12, G17."""
    file = str(tmp_path / "graph.db")
    command = [sys.executable, "-c", PROGRAM, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]
    frame, end = spark.sql("SELECT id AS k, id * 2 AS v FROM range(50)"), Endpoint("N", {"k": "k"})
    with SqliteGraph(file) as graph:
        assert len(list_nodes(graph.database)) == 50
        assert 0 < len(read_graph(graph.database).edges) < 50
        assert graph.merge_nodes(frame, "N", match="k", batch_id="b") == result(50, 50, 0, replayed=True)
        given: dict[str, Any] = {"from_node": end, "to_node": end, "base": "v", "on_match": {"v": "-v"}}
        assert graph.merge_edges(frame, "E", **given, batch_id="b") == result(50, 50, 0)
        found = read_graph(graph.database).edges.values()
        assert sorted(old["v"] for _, _, _, old in found) == list(range(0, 100, 2))
