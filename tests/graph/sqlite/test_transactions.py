"""Transactions nest, an exception undoes what was done inside, and nothing is left half done."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import OnPurposeError, assert_unchanged, dump, expect_rollback, list_nodes, read_graph

from merganser.errors import GraphError, InvalidArgumentError, MergeConflictError
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


def names(db: GraphDatabase) -> list[Any]:
    return [properties["name"] for properties in list_nodes(db)]


def test_a_transaction_is_atomic(file: str) -> None:
    """G11."""
    with GraphDatabase(file) as db, GraphDatabase(file) as reader:
        with db.transaction():
            db.merge_node("N", {"name": "a"})
            db.merge_node("N", {"name": "b"})
            assert names(db) == ["a", "b"]
            assert names(reader) == []
        assert names(reader) == ["a", "b"]


def test_an_exception_undoes_everything(db: GraphDatabase) -> None:
    """G11."""
    node = db.create_node("N", {"name": "old"}).id
    with assert_unchanged(db), expect_rollback(db):
        db.merge_node("N", {"name": "new"})
        db.update_node(node, {"name": "changed"})
        db.merge_edge(node, "E", node)
        db.create_property_index("N", "name", unique=True)
        db.delete_node(node)
    assert names(db) == ["old"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_undoes_everything_too(db: GraphDatabase, error: type[BaseException]) -> None:
    """G11."""
    with assert_unchanged(db), expect_rollback(db, error):
        db.merge_node("N", {"name": "new"})


def test_merges_see_each_others_writes(db: GraphDatabase) -> None:
    """G11."""
    with db.transaction():
        made = db.merge_node("N", {"name": "a"}, {"n": 1})
        with db.transaction():
            found = db.merge_node("N", {"name": "a"}, on_match=lambda old: {"n": old["n"] + 1})
        edge = db.merge_edge(made.id, "E", found.id)
        assert not db.merge_edge(made.id, "E", found.id).created
    assert (made.id, found.created) == (found.id, False)
    assert read_graph(db).nodes == {made.id: ("N", {"name": "a", "n": 2})}
    assert read_graph(db).edges == {edge.id: ("E", made.id, made.id, {})}


def test_an_exception_inside_undoes_only_the_inner_one(db: GraphDatabase) -> None:
    """G11."""
    with db.transaction():
        db.merge_node("N", {"name": "before"})
        with expect_rollback(db):
            db.merge_node("N", {"name": "inner"})
            with db.transaction():
                db.merge_node("N", {"name": "innermost"})
        assert names(db) == ["before"]
        with db.transaction():
            db.merge_node("N", {"name": "second"})
        db.merge_node("N", {"name": "after"})
    assert names(db) == ["before", "second", "after"]


def test_an_inner_transaction_goes_with_the_outer_one(db: GraphDatabase) -> None:
    """G11."""
    with assert_unchanged(db), expect_rollback(db), db.transaction():
        db.merge_node("N", {"name": "inner"})


def test_deep_nesting_undoes_from_where_the_exception_was(db: GraphDatabase) -> None:
    """G11."""

    def descend(level: int) -> None:
        with db.transaction():
            db.create_node("N", {"name": level})
            if level == 20:
                raise OnPurposeError
            if level == 9:
                with pytest.raises(OnPurposeError):
                    descend(level + 1)
            else:
                descend(level + 1)

    descend(0)
    assert names(db) == list(range(10))


def test_a_transaction_of_the_callers_own_is_respected(db: GraphDatabase) -> None:
    """G11."""
    db.connection.execute("BEGIN")
    db.merge_node("N", {"name": "a"})
    with expect_rollback(db):
        db.merge_node("N", {"name": "b"})
    assert db.connection.in_transaction
    db.connection.execute("ROLLBACK")
    assert names(db) == []
    db.connection.execute("BEGIN")
    node = db.merge_node("N", {"name": "a"}).id
    db.merge_edge(node, "E", node)
    db.connection.execute("COMMIT")
    assert names(db) == ["a"]
    assert len(read_graph(db).edges) == 1


def test_a_transaction_that_its_body_ended_leaves_a_clean_state(db: GraphDatabase) -> None:
    """G11."""
    with expect_rollback(db):
        db.merge_node("N", {"name": "a"})
        db.connection.execute("COMMIT")
    assert names(db) == ["a"]
    assert not db.connection.in_transaction
    db.merge_node("N", {"name": "b"})
    assert names(db) == ["a", "b"]


def test_a_function_that_raises_changes_nothing(db: GraphDatabase) -> None:
    """G1, G11."""
    node = db.merge_node("N", {"name": "a"}).id
    db.merge_edge(node, "E", node)

    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise OnPurposeError

    works: list[Callable[[], object]] = [
        lambda: db.merge_node("N", {"name": "a"}, on_match=fail),
        lambda: db.merge_edge(node, "E", node, on_match=fail),
    ]
    for work in works:
        with assert_unchanged(db), pytest.raises(OnPurposeError):
            work()
        with db.transaction():
            db.update_node(node, {"name": "a"})
            with assert_unchanged(db), pytest.raises(OnPurposeError):
                work()


def test_a_function_that_writes_and_raises_changes_nothing(db: GraphDatabase) -> None:
    """G1, G11."""
    db.merge_node("N", {"name": "a"})

    def write_and_fail(_: dict[str, Any]) -> dict[str, Any]:
        db.create_node("N", {"name": "b"})
        raise OnPurposeError

    with assert_unchanged(db), pytest.raises(OnPurposeError):
        db.merge_node("N", {"name": "a"}, on_match=write_and_fail)


def test_a_refused_merge_inside_leaves_the_rest(db: GraphDatabase) -> None:
    """G3, G11."""
    with db.transaction():
        db.create_node("N", {"name": "twin"})
        db.create_node("N", {"name": "twin"})
        with pytest.raises(MergeConflictError):
            db.merge_node("N", {"name": "twin"})
        with pytest.raises(ValueError, match="NULL"):
            db.merge_node("N", {"name": None})
        db.merge_node("N", {"name": "other"})
    assert names(db) == ["twin", "twin", "other"]


def test_a_closed_database_refuses_to_work(file: str) -> None:
    """G11."""
    db = GraphDatabase(file)
    node = db.create_node("N", {"name": "a"}).id
    db.close()
    db.close()
    works: list[Callable[[], object]] = [
        lambda: db.merge_node("N", {"name": "a"}),
        lambda: db.merge_edge(node, "E", node),
        lambda: db.get_node(node),
        lambda: db.connection,
        db.list_indexes,
        lambda: db.transaction().__enter__(),
    ]
    for work in works:
        with pytest.raises(GraphError, match=r"graph\.db.* is closed"):
            work()
    with GraphDatabase(file) as again:
        assert names(again) == ["a"]


def test_the_end_of_the_block_closes_the_database(file: str) -> None:
    """G11."""
    with GraphDatabase(file) as db, expect_rollback(db):
        db.create_node("N", {"name": "a"})
    with pytest.raises(GraphError, match="closed"):
        db.get_node(1)


def test_closing_inside_a_transaction_undoes_it(file: str) -> None:
    """G11."""
    db = GraphDatabase(file)
    before = dump(db)
    db.connection.execute("BEGIN")
    db.create_node("N", {"name": "a"})
    db.close()
    with GraphDatabase(file) as again:
        assert dump(again) == before


def test_a_graph_in_memory_ends_with_its_database() -> None:
    """G11, G12."""
    with GraphDatabase(":memory:") as one, GraphDatabase(":memory:") as two:
        one.create_node("N", {"name": "a"})
        assert (names(one), names(two)) == (["a"], [])


@pytest.mark.parametrize("timeout", [-1, "5", None, True, float("nan")])
def test_a_timeout_is_a_number_of_seconds(file: str, timeout: Any) -> None:
    """G12."""
    with pytest.raises(InvalidArgumentError, match="timeout"):
        GraphDatabase(file, timeout=timeout)


def test_deleting_a_node_deletes_its_edges_and_can_be_undone(db: GraphDatabase) -> None:
    """G11, G16."""
    one, two = (db.create_node("N", {"name": name}).id for name in "ab")
    db.merge_edge(one, "E", two)
    db.merge_edge(two, "E", one)
    db.merge_edge(two, "E", two)
    with assert_unchanged(db), expect_rollback(db):
        db.delete_node(one)
        assert [record[1:3] for record in read_graph(db).edges.values()] == [(two, two)]
    assert len(read_graph(db).edges) == 3


def test_a_full_disk_leaves_the_graph_unchanged(file: str) -> None:
    """G11, G13."""
    rows = [{"k": number, "text": "x" * 1000} for number in range(1000)]
    with GraphDatabase(file) as db:
        db.create_node("N", {"name": "a"})
        # A file that may not grow is a disk that is full.
        ((pages,),) = db.connection.execute("PRAGMA page_count").fetchall()
        db.connection.execute(f"PRAGMA max_page_count = {pages}")
        with assert_unchanged(db), pytest.raises((sqlite3.OperationalError, GraphError), match="full"):
            db.bulk_merge_nodes("N", rows, match_on="k")
        with (
            assert_unchanged(db),
            pytest.raises((sqlite3.OperationalError, GraphError), match="full"),
            db.transaction(),
        ):
            db.bulk_merge_nodes("N", rows, match_on="k")
        db.connection.execute("PRAGMA max_page_count = 1000000")
        assert db.bulk_merge_nodes("N", rows, match_on="k").created == 1000
