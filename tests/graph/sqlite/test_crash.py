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

from merganser.graph import BulkResult, GraphDatabase

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
    kinds = (BULK_NODES, BULK_EDGES, TRANSACTION, NESTED, LOCKED)
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
