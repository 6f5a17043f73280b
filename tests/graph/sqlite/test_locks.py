"""Writers wait for each other, readers do not wait, and a wait that is too long ends with its own error."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes

from merganser.errors import GraphLockedError
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


@contextlib.contextmanager
def held(file: str) -> Iterator[None]:
    """Keep a file locked for writing, as another process would."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def works(db: GraphDatabase) -> dict[str, Callable[[], object]]:
    return {
        "merge_node": lambda: db.merge_node("N", {"k": 1}),
        "merge_edge": lambda: db.merge_edge(1, "E", 1),
        "bulk_merge_nodes": lambda: db.bulk_merge_nodes("N", [{"k": 1}], match_on="k"),
        "bulk_merge_edges": lambda: db.bulk_merge_edges("E", [{"from_id": 1, "to_id": 1}]),
        "create_node": lambda: db.create_node("N"),
        "update_node": lambda: db.update_node(1, {"k": 2}),
        "delete_node": lambda: db.delete_node(1),
        "create_property_index": lambda: db.create_property_index("N", "k"),
        "transaction": lambda: db.transaction().__enter__(),
    }


@pytest.mark.parametrize("name", list(works(GraphDatabase.__new__(GraphDatabase))))
def test_a_lock_beyond_the_timeout_has_its_own_error(file: str, name: str) -> None:
    """G12."""
    with GraphDatabase(file, timeout=0.05) as db:
        db.create_node("N", {"k": 1})
        with assert_unchanged(db), held(file), pytest.raises(GraphLockedError, match=r"graph\.db.*0\.05 s") as caught:
            works(db)[name]()
        assert isinstance(caught.value, TimeoutError)
        if name != "transaction":
            works(db)[name]()


@pytest.mark.parametrize("name", ["merge_node", "merge_edge", "bulk_merge_nodes", "create_node"])
def test_a_lock_in_a_transaction_of_the_callers_own_has_its_own_error(file: str, name: str) -> None:
    """G11, G12."""
    with GraphDatabase(file, timeout=0.05) as db:
        db.create_node("N", {"k": 1})
        db.connection.execute("BEGIN")
        with held(file), pytest.raises(GraphLockedError, match=r"graph\.db"):
            works(db)[name]()
        db.connection.execute("ROLLBACK")


def test_opening_a_file_that_stays_locked_has_its_own_error(file: str) -> None:
    """G12."""
    with held(file), pytest.raises(GraphLockedError, match=r"graph\.db"):
        GraphDatabase(file, timeout=0.05)
    GraphDatabase(file).close()


def test_a_writer_waits_for_another(file: str) -> None:
    """G12."""
    with GraphDatabase(file, timeout=20) as db:
        ready = threading.Event()

        def hold() -> None:
            with held(file):
                ready.set()
                time.sleep(0.3)

        thread = threading.Thread(target=hold)
        thread.start()
        assert ready.wait(10)
        start = time.monotonic()
        assert db.merge_node("N", {"k": 1}).created
        assert time.monotonic() - start > 0.1
        thread.join()


def test_readers_do_not_wait_for_a_writer(file: str) -> None:
    """G12."""
    with GraphDatabase(file, timeout=0.05) as db, GraphDatabase(file, timeout=0.05) as reader:
        node = db.create_node("N", {"k": 1})
        with db.transaction():
            db.update_node(node.id, {"k": 2})
            assert reader.get_node(node.id) == node
            assert list_nodes(reader) == [{"k": 1}]
            with GraphDatabase(file, timeout=0.05) as late:
                assert late.get_node(node.id) == node
                assert late.list_indexes() == []
        assert list_nodes(reader) == [{"k": 2}]


def test_a_writer_does_not_wait_for_readers(file: str) -> None:
    """G12."""
    with GraphDatabase(file, timeout=0.05) as db, GraphDatabase(file, timeout=0.05) as reader:
        db.create_node("N", {"k": 1})
        reader.connection.execute("BEGIN")
        assert list_nodes(reader) == [{"k": 1}]
        db.merge_node("N", {"k": 2})
        # A reader sees one state until it is done.
        assert list_nodes(reader) == [{"k": 1}]
        reader.connection.execute("COMMIT")
        assert list_nodes(reader) == [{"k": 1}, {"k": 2}]
