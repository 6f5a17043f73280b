"""Threads and processes that merge into one graph at once: nothing twice and nothing lost."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import list_nodes, read_graph

from merganser.graph import BulkResult, GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

ROOT = Path(__file__).parents[3]
THREADS = 8


def in_threads(works: list[Callable[[], object]]) -> list[BaseException]:
    """Run works side by side from one moment on; gives what they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(30)
            work()
        except Exception as error:  # noqa: BLE001 - the caller asserts on it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def run(program: str, *arguments: str) -> None:
    """Run a program of this test in a process of its own, and see that it has nothing to complain of."""
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(params=["file", "memory"])
def shared(request: pytest.FixtureRequest, file: str) -> Iterator[GraphDatabase]:
    """One database for all threads."""
    with GraphDatabase(file if request.param == "file" else ":memory:") as opened:
        yield opened


def test_threads_that_merge_the_same_keys_lose_nothing(shared: GraphDatabase) -> None:
    """G12. The specification's "Concurrent merge operations"."""
    shared.create_property_index("N", "k", unique=True)

    def work() -> None:
        for key in range(20):
            node = shared.merge_node("N", {"k": key}, {"n": 1}, on_match=lambda old: {"n": old["n"] + 1})
            shared.merge_edge(node.id, "E", 1, {"n": 1}, on_match=lambda old: {"n": old["n"] + 1})

    assert in_threads([work] * THREADS) == []
    found = read_graph(shared)
    assert sorted(old["k"] for _, old in found.nodes.values()) == list(range(20))
    assert {old["n"] for _, old in found.nodes.values()} == {THREADS}
    assert sorted(record[1] for record in found.edges.values()) == sorted(found.nodes)
    assert {record[3]["n"] for record in found.edges.values()} == {THREADS}


def test_each_key_is_created_once(shared: GraphDatabase) -> None:
    """G12. Without an index that would forbid a second one."""
    created: list[bool] = []
    assert in_threads([lambda: created.append(shared.merge_node("N", {"k": 1}).created)] * THREADS) == []
    assert sorted(created) == [False] * (THREADS - 1) + [True]
    assert list_nodes(shared) == [{"k": 1}]


def test_bulk_merges_of_threads_add_up(shared: GraphDatabase) -> None:
    """G12, G13."""
    results: list[BulkResult] = []
    rows = [{"k": key} for key in range(200)]
    assert in_threads([lambda: results.append(shared.bulk_merge_nodes("N", rows, match_on="k"))] * THREADS) == []
    assert sum(result.created for result in results) == 200
    assert sum(result.matched for result in results) == 200 * (THREADS - 1)
    assert len(list_nodes(shared)) == 200


def test_transactions_of_threads_do_not_mix(shared: GraphDatabase) -> None:
    """G11, G12."""

    def transfer(number: int) -> None:
        for _ in range(5):
            with contextlib.suppress(ZeroDivisionError), shared.transaction():
                old = list_nodes(shared, "Sum")[0]["n"]
                shared.create_node("Entry")
                shared.update_node(1, {"n": old + 1})
                if number % 2:
                    1 / 0  # noqa: B018

    shared.create_node("Sum", {"n": 0})
    assert in_threads([lambda number=number: transfer(number) for number in range(THREADS)]) == []  # type: ignore[misc]
    assert list_nodes(shared, "Sum") == [{"n": 5 * THREADS // 2}]
    assert len(list_nodes(shared, "Entry")) == 5 * THREADS // 2


# The processes are forked when everything is imported, and wait for one another, so that they truly meet.
WRITERS = """
import os, sys
from merganser.graph import GraphDatabase
wait, go = os.pipe()
def work():
    os.close(go)
    os.read(wait, 1)
    with GraphDatabase(sys.argv[1]) as db:
        if sys.argv[2] == "index":
            db.create_property_index("N", "k", unique=True)
        for key in range(200):
            node = db.merge_node("N", {"k": key}, {"n": 1}, on_match=lambda old: {"n": old["n"] + 1})
        for key in range(20):
            db.merge_edge(key + 1, "E", 1, {"n": 1}, on_match=lambda old: {"n": old["n"] + 1})
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        work()
        sys.exit()
    children.append(child)
os.close(go)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


@pytest.mark.slow
@pytest.mark.parametrize("index", ["index", "no index"])
def test_processes_that_open_a_new_file_at_once_lose_nothing(file: str, index: str) -> None:
    """G12. The specification's "Concurrent merge operations"."""
    run(WRITERS, file, index)
    with GraphDatabase(file) as db:
        found = read_graph(db)
    assert sorted(old["k"] for _, old in found.nodes.values()) == list(range(200))
    assert {old["n"] for _, old in found.nodes.values()} == {4}
    assert len(found.edges) == 20
    assert {record[3]["n"] for record in found.edges.values()} == {4}


def test_readers_in_memory_see_what_other_threads_wrote() -> None:
    """G12."""
    with GraphDatabase(":memory:") as db:
        seen: list[Any] = []
        db.create_node("N", {"k": 1})
        assert in_threads([lambda: seen.append(list_nodes(db))]) == []
        assert seen == [[{"k": 1}]]
        assert in_threads([lambda: db.create_node("N", {"k": 2})]) == []
        assert list_nodes(db) == [{"k": 1}, {"k": 2}]


def test_a_graph_in_memory_outlives_the_thread_that_opened_it() -> None:
    """G12."""
    opened: list[GraphDatabase] = []

    def work() -> None:
        opened.append(GraphDatabase(":memory:"))
        opened[0].create_node("N", {"k": 1})

    assert in_threads([work]) == []
    gc.collect()
    with opened[0] as db:
        assert list_nodes(db) == [{"k": 1}]


def test_the_connection_of_a_thread_ends_with_it(shared: GraphDatabase) -> None:
    """G12."""
    kept: list[sqlite3.Connection] = []

    def work() -> None:
        shared.create_node("N")
        kept.append(shared.connection)

    assert in_threads([work] * 3) == []
    gc.collect()
    assert len({id(connection) for connection in [*kept, shared.connection]}) == 4
    for connection in kept:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    assert len(list_nodes(shared)) == 3


def test_close_ends_the_connections_of_all_threads(file: str) -> None:
    """G12."""
    db = GraphDatabase(file)
    kept: list[sqlite3.Connection] = []
    looked, go_on = threading.Event(), threading.Event()

    def work() -> None:
        kept.append(db.connection)
        looked.set()
        go_on.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert looked.wait(30)
    db.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept[0].execute("SELECT 1")
    go_on.set()
    thread.join()
    assert [path.name for path in Path(file).parent.iterdir()] == ["graph.db"]


FORKED = """
import os, sys
from merganser.graph import GraphDatabase
db = GraphDatabase(sys.argv[1])
db.create_node("N", {"k": 0})
children = []
for number in range(3):
    child = os.fork()
    if not child:
        for _ in range(20):
            db.merge_node("N", {"k": 0}, on_match=lambda old: {"k": 0, "n": old.get("n", 0) + 1})
        db.close()
        os._exit(0)
    children.append(child)
for _ in range(20):
    db.merge_node("N", {"k": 0}, on_match=lambda old: {"k": 0, "n": old.get("n", 0) + 1})
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
db.merge_node("N", {"k": 0}, on_match=lambda old: {"n": old["n"] + 1})
db.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_database_may_be_used_after_a_fork(file: str) -> None:
    """G12."""
    run(FORKED, file)
    with GraphDatabase(file) as db:
        assert list_nodes(db) == [{"k": 0, "n": 81}]
        assert db.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


FORKED_INSIDE = """
import os, sys
from merganser.graph import GraphDatabase, GraphError
db = GraphDatabase(sys.argv[1])
try:
    with db.transaction():
        db.create_node("N", {"k": "parent"})
        child = os.fork()
except GraphError as ended:
    try:
        db.merge_node("N", {"k": "child"})
    except GraphError as refused:
        told = "forked inside a transaction"
        os._exit(0 if told in str(ended) and told in str(refused) else 3)
assert child
assert os.waitpid(child, 0)[1] == 0
db.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_transaction_is_its_process_s_own(file: str) -> None:
    """G12."""
    run(FORKED_INSIDE, file)
    with GraphDatabase(file) as db:
        assert list_nodes(db) == [{"k": "parent"}]
