"""A process that dies in the middle of its work leaves all of it or nothing, and a rerun is exact."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import dump, list_nodes, read_graph

from merganser.graph import BulkResult, Endpoint, GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ROWS = 300

# One process imports everything, and forks one for each death.
PROGRAM = """
import json, os, shutil, signal, sys
from merganser.graph import GraphDatabase
from merganser.graph.sqlite import lookup
lookup.BATCH = 50
folder = sys.argv[1]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def rows(last):
    for number in range(300):
        if number == last:
            die()
        yield {"k": number, "from_id": 1, "to_id": number % 10 + 1, "v": number}
for number, (work, last) in enumerate(json.load(sys.stdin)):
    shutil.copy(f"{folder}/graph.db", f"{folder}/{number}.db")
    child = os.fork()
    if not child:
        db = GraphDatabase(f"{folder}/{number}.db")
        exec(work)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, work
"""
BULK_NODES = 'db.bulk_merge_nodes("N", rows(last), match_on="k", on_match="v")'
SYNC_NODES = 'db.bulk_merge_nodes("N", rows(last), match_on="k", missing="delete", detach=True)'
BULK_EDGES = 'db.bulk_merge_edges("E", rows(last), match_on="k", on_match="v")'
TRANSACTION = """
with db.transaction():
    for row in rows(last):
        db.merge_node("N", {"k": row["k"]}, row)
        db.merge_edge(1, "E", row["to_id"])
"""
NESTED = """
with db.transaction():
    db.bulk_merge_nodes("N", rows(-1), match_on="k")
    with db.transaction():
        db.delete_node(last % 10 + 1)
        db.create_property_index("N", "v")
    die()
"""
LOCKED = 'db.connection.execute("BEGIN IMMEDIATE"); db.create_node("N"); die()'
FINISHED = 'db.bulk_merge_nodes("N", rows(-1), match_on="k"); db.merge_node("N", {"k": -1}); die()'
BETWEEN = 'for row in rows(last): db.merge_node("N", {"k": row["k"]}, row, on_match={"v": row["v"]})'


@pytest.fixture
def graph(file: str) -> str:
    """A file with an index and ten nodes."""
    with GraphDatabase(file) as db:
        db.create_property_index("N", "k", unique=True)
        db.bulk_merge_nodes("N", [{"k": number} for number in range(10)], match_on="k")
    return file


def killed(graph: str, works: list[tuple[str, int]]) -> list[str]:
    """Run each work in a process that ends itself at a row; gives the copy of the graph that each worked on."""
    folder = Path(graph).parent
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100, input=json.dumps(works)
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [str(folder / f"{number}.db") for number in range(len(works))]


def is_sound(db: GraphDatabase) -> bool:
    checks = [db.connection.execute(f"PRAGMA {name}").fetchall() for name in ("integrity_check", "foreign_key_check")]
    return checks == [[("ok",)], []]


def rows() -> Iterator[dict[str, Any]]:
    return ({"k": number, "from_id": 1, "to_id": number % 10 + 1, "v": number} for number in range(ROWS))


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_of_what_it_had_not_finished(graph: str) -> None:
    """G11, G12, G13."""
    with GraphDatabase(graph) as db:
        before = dump(db)
    # One place inside the first batch, one at a border, some anywhere.
    lasts = [7, 100, *(random.randrange(1, ROWS) for _ in range(3))]
    kinds = (BULK_NODES, SYNC_NODES, BULK_EDGES, TRANSACTION, NESTED, LOCKED)
    for copy in killed(graph, [(work, last) for work in kinds for last in lasts]):
        # The lock died with its holder.
        with GraphDatabase(copy, timeout=0) as db:
            assert is_sound(db)
            assert dump(db) == before
            assert db.bulk_merge_nodes("N", rows(), match_on="k", on_match=["v"]) == BulkResult(
                ROWS - 10, 10, changed=10
            )
            assert db.bulk_merge_edges("E", rows(), match_on="k") == BulkResult(ROWS, 0)
            assert db.bulk_merge_edges("E", rows(), match_on="k") == BulkResult(0, ROWS)
            assert sorted(old["v"] for old in list_nodes(db)) == list(range(ROWS))
            assert is_sound(db)


@pytest.mark.slow
def test_what_was_finished_before_the_kill_is_kept(graph: str) -> None:
    """G11, G13."""
    finished, between = killed(graph, [(FINISHED, 0), (BETWEEN, 137)])
    with GraphDatabase(finished) as db:
        assert is_sound(db)
        assert len(read_graph(db).nodes) == ROWS + 1
    with GraphDatabase(between) as db:
        assert is_sound(db)
        assert sorted(old["v"] for old in list_nodes(db)) == list(range(137))
        assert db.bulk_merge_nodes("N", rows(), match_on="k", on_match=["v"]) == BulkResult(ROWS - 137, 137)


# Eight processes sync a feed each, forwards and backwards between two states, until SQLite has done so much work.
SYNCS = """
import json, os, signal, sys
from merganser.graph import Endpoint, GraphDatabase
from tests.graph.sqlite.test_crash import sync
def die():
    os.kill(os.getpid(), signal.SIGKILL)
children = []
for feed, steps in enumerate(json.load(sys.stdin)):
    child = os.fork()
    children.append(child)
    if not child:
        db = GraphDatabase(sys.argv[1])
        db.connection.set_progress_handler(die, steps)
        for turn in range(1_000_000):
            sync(db, feed, turn % 2)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""
FEEDS = 8


def make_feed(feed: int, state: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make the nodes and edges of a feed: half of the nodes, and all edges, are those of one state only."""
    nodes = [{"k": f"{feed}/{number}", "v": state} for number in range(state * 20, state * 20 + 40)]
    keys = [node["k"] for node in nodes]
    edges = [{"a": one, "b": other, "v": state} for one, other in zip(keys, keys[state + 1 :], strict=False)]
    return nodes, edges


def sync(db: GraphDatabase, feed: int, state: int) -> tuple[BulkResult, BulkResult]:
    nodes, edges = make_feed(feed, state)
    options: dict[str, Any] = {"missing": "delete", "scope": {"feed": feed}, "on_match": "*"}
    a, b = Endpoint("N", {"k": "a"}), Endpoint("N", {"k": "b"})
    with db.transaction():
        of_nodes = db.bulk_merge_nodes("N", nodes, match_on="k", detach=True, **options)
        of_edges = db.bulk_merge_edges("E", edges, from_node=a, to_node=b, **options)
    return of_nodes, of_edges


def read_feed(db: GraphDatabase, feed: int) -> tuple[list[Any], list[Any]]:
    found = read_graph(db)
    nodes = {key: old for key, (_, old) in found.nodes.items() if old.get("feed") == feed}
    edges = [
        (nodes[start]["k"], nodes[end]["k"], old["v"]) for _, start, end, old in found.edges.values() if start in nodes
    ]
    return sorted((old["k"], old["v"]) for old in nodes.values()), sorted(edges)


@pytest.mark.slow
def test_a_kill_during_a_sync_leaves_the_old_graph_or_the_new_one(graph: str) -> None:
    """G11, G12, G19, G20."""
    # The first dies within its first sync, the last after many.
    steps = [3_000, *(random.randrange(20_000, 300_000) for _ in range(FEEDS - 1))]
    command = [sys.executable, "-c", SYNCS, graph]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100, input=json.dumps(steps)
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The lock died with its holder.
    with GraphDatabase(graph, timeout=0) as db:
        assert is_sound(db)
        assert read_feed(db, 0) == ([], [])
        for feed in range(FEEDS):
            states = [
                (sorted((one["k"], one["v"]) for one in nodes), sorted((one["a"], one["b"], one["v"]) for one in edges))
                for nodes, edges in (make_feed(feed, 0), make_feed(feed, 1))
            ]
            assert read_feed(db, feed) in [([], []), *states]
            for state in (1, 0, 0):
                of_nodes, of_edges = sync(db, feed, state)
                assert read_feed(db, feed) == states[state]
            assert [(one.created, one.changed, one.missing) for one in (of_nodes, of_edges)] == [(0, 0, 0)] * 2
        assert is_sound(db)


@pytest.mark.slow
def test_a_kill_while_a_file_is_made_leaves_one_that_can_be_made(file: str) -> None:
    """G11, G12."""
    program = """
import os, signal, sqlite3, sys
from merganser.graph import GraphDatabase
from merganser.graph.sqlite import store, tables
tables.MIGRATIONS = ((*tables.MIGRATIONS[0], "SELECT die()"), *tables.MIGRATIONS[1:])
def define(connection):
    connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
store.define_functions = define
GraphDatabase(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", program, file], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with GraphDatabase(file) as db:
        assert is_sound(db)
        assert db.create_node("N").id == 1
