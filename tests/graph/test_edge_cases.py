"""What was found wrong once, each with the smallest case of it."""

from __future__ import annotations

import asyncio
import threading
import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.graph.graph_oracle import assert_unchanged

from merganser.graph import (
    BulkResult,
    Endpoint,
    GraphDatabase,
    GraphError,
    GraphSchema,
    MergeConflictError,
    MergePerformanceWarning,
    NodeNotFoundError,
    NodeType,
    UniqueConstraintError,
)
from merganser.graph.merging import merge

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")


class Column(str, Enum):  # noqa: UP042 - a StrEnum is formatted as what it holds
    """Names as some programs keep them."""

    URL = "url"


def test_a_name_that_is_an_enum_is_the_name_that_it_holds(db: GraphDatabase) -> None:
    """G6."""
    assert db.create_property_index("Job", Column.URL).columns == ("url",)
    db.create_node("Job", {"url": "/1"})
    assert not db.merge_node("Job", {Column.URL: "/1"}).created
    assert not db.merge_node("Job", {"url": "/1"}).created
    assert db.bulk_merge_nodes("Job", [{Column.URL: "/1"}], match_on=Column.URL) == BulkResult(0, 1)
    assert db.nodes("Job").where({Column.URL: "/1"}).order_by(Column.URL).count() == 1


@pytest.mark.parametrize("width", [63, 64, 299, 301, 1100])
@pytest.mark.parametrize("touch", [True, False])
def test_a_wide_row_is_merged_into_properties(db: GraphDatabase, width: int, touch: bool) -> None:
    """G13."""
    names = [f"c{number}" for number in range(width)]
    for value in (1, 2, None):
        row = {"k": 1, **dict.fromkeys(names, value)}
        db.bulk_merge_nodes("T", [row], match_on="k", on_match=names, touch=touch)
        expected = {"k": 1} if value is None else row
        (found,) = db.nodes("T").exec()
        assert found.properties == expected


def test_a_merge_either_way_uses_the_indexes_of_edges(db: GraphDatabase) -> None:
    """G2."""
    statement = merge._build_edge_match_sql("E", (), is_undirected=True)
    plan = db.connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1, 2, 2, 1)).fetchall()
    used = " ".join(row[3] for row in plan)
    assert "edges_by_type" not in used
    assert "to_id=?" in used


def test_what_a_function_writes_to_its_own_node_is_kept(db: GraphDatabase) -> None:
    """G1."""
    job = db.create_node("Job", {"url": 1, "seen": 1})

    def bump(old: dict[str, Any]) -> dict[str, Any]:
        db.update_node(job.id, {"audited": True})
        return {"seen": old["seen"] + 1}

    merged = db.merge_node("Job", {"url": 1}, on_match=bump)
    assert merged.properties == {"url": 1, "seen": 2, "audited": True}
    assert db.get_node(job.id) == merged


@pytest.mark.parametrize("given", [{}, {"seen": 2}])
def test_a_function_that_deletes_its_own_node_is_an_error(db: GraphDatabase, given: dict[str, Any]) -> None:
    """G1."""
    job = db.create_node("Job", {"url": 1})

    def remove(_: dict[str, Any]) -> dict[str, Any]:
        db.delete_node(job.id)
        return given

    with assert_unchanged(db), pytest.raises(NodeNotFoundError, match=str(job.id)):
        db.merge_node("Job", {"url": 1}, on_match=remove)


def test_a_function_that_deletes_another_element_is_an_error(db: GraphDatabase) -> None:
    """G14."""
    parts: list[dict[str, Any]] = [
        {"type": "A", "match": {"k": 1}},
        {"type": "B", "match": {"k": 2}},
        {"edge": "E", "from": 0, "to": 1},
    ]
    _, other, _ = db.merge_pattern(parts, whole=True)

    def remove(_: dict[str, Any]) -> dict[str, Any]:
        db.delete_node(other.id)
        return {}

    with assert_unchanged(db), pytest.raises(NodeNotFoundError, match=str(other.id)):
        db.merge_pattern([{**parts[0], "on_match": remove}, *parts[1:]], whole=True)


def test_a_pattern_that_is_the_same_from_both_ends_is_found_once(db: GraphDatabase) -> None:
    """G14."""
    person = {"type": "Person", "match": {"kind": "friend"}}
    parts: list[dict[str, Any]] = [person, person, {"edge": "KNOWS", "from": 0, "to": 1, "direction": "both"}]
    assert [part.created for part in db.merge_pattern(parts, whole=True)] == [True] * 3
    assert [part.created for part in db.merge_pattern(parts, whole=True)] == [False] * 3


def test_the_key_of_an_element_may_be_changed_on_purpose(db: GraphDatabase) -> None:
    """G7."""
    part = {"type": "A", "match": {"k": 1}, "on_match": {"k": 2}}
    db.create_node("A", {"k": 1})
    with assert_unchanged(db), pytest.raises(ValueError, match="allow_key_change"):
        db.merge_pattern([part])
    (found,) = db.merge_pattern([{**part, "allow_key_change": True}])
    assert found.properties == {"k": 2}


@pytest.mark.parametrize(
    ("prepare", "rows", "error"),
    [
        (lambda db: [db.create_node("T", {"k": 1}) for _ in range(2)], [{"k": 0}, {"k": 1}], MergeConflictError),
        (lambda db: [db.create_node("T", {"k": [1]}) for _ in range(2)], [{"k": 0}, {"k": [1]}], MergeConflictError),
        (
            lambda db: db.create_property_index("T", "u", unique=True),
            [{"k": 0, "u": 1}, {"k": 1, "u": 1}],
            UniqueConstraintError,
        ),
    ],
)
def test_a_row_that_is_refused_is_named_by_its_number(
    db: GraphDatabase,
    prepare: Callable[[GraphDatabase], object],
    rows: list[dict[str, Any]],
    error: type[Exception],
) -> None:
    """G13."""
    prepare(db)
    with assert_unchanged(db), pytest.raises(error, match=r"^row 1: "):
        db.bulk_merge_nodes("T", rows, match_on="k")


def test_an_ambiguous_endpoint_is_named_by_its_row(db: GraphDatabase) -> None:
    """G13."""
    for number in (1, 2, 2):
        db.create_node("T", {"k": number})
    rows = [{"a": 1, "b": 1}, {"a": 1, "b": 2}]
    with assert_unchanged(db), pytest.raises(MergeConflictError, match=r"^row 1: "):
        db.bulk_merge_edges("E", rows, from_node=Endpoint("T", {"k": "a"}), to_node=Endpoint("T", {"k": "b"}))


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (pa.table([[1], [2], [3]], names=["k", "a", "a"]), "2 columns 'a'"),
        (pa.table({"k": [1], "d": pa.array([2**40], pa.timestamp("s"))}), "column 'd'"),
        (pa.table({"k": [1], "t": pa.array([1], pa.time64("ns"))}), "column 't'"),
        (pa.table({"a": [1]}), "no column 'k'"),
    ],
)
def test_a_column_that_cannot_be_stored_is_named(db: GraphDatabase, rows: pa.Table, word: str) -> None:
    """G13."""
    with assert_unchanged(db), pytest.raises(ValueError, match=word):
        db.bulk_merge_nodes("T", rows, match_on="k")


def test_a_map_of_arrow_is_a_dict(db: GraphDatabase) -> None:
    """G13."""
    maps = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    db.bulk_merge_nodes("T", pa.table({"k": [1], "m": maps}), match_on="k")
    assert [node.properties for node in db.nodes()] == [{"k": 1, "m": {"a": 1}}]


def test_without_an_index_rows_are_found_as_with_one(db: GraphDatabase) -> None:
    """G13."""
    rows = [{"a": number % 7, "b": str(number % 3), "n": number} for number in range(50)]
    assert db.bulk_merge_nodes("T", rows, match_on=["a", "b"], on_match=["n"]) == BulkResult(21, 29)
    first = [node.properties for node in db.nodes()]
    db.create_property_index("U", ["a", "b"])
    db.bulk_merge_nodes("U", rows, match_on=["a", "b"], on_match=["n"])
    assert [node.properties for node in db.nodes("U")] == first


def test_transactions_of_two_tasks_that_overlap_are_both_undone(db: GraphDatabase) -> None:
    """G11. No commit takes along what another task has not finished."""

    async def work(name: str, before: float, inside: float) -> None:
        await asyncio.sleep(before)
        with db.transaction():
            db.create_node(name)
            await asyncio.sleep(inside)

    async def both() -> list[Any]:
        return list(await asyncio.gather(work("A", 0, 0.1), work("B", 0.05, 0.1), return_exceptions=True))

    errors = asyncio.run(both())
    assert [type(error) for error in errors] == [GraphError, GraphError]
    assert "overlap" in str(errors[0])
    assert db.nodes().count() == 0
    with db.transaction():
        db.create_node("C")
    assert db.nodes().count() == 1


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_was_ended_inside_says_so(db: GraphDatabase, statement: str) -> None:
    """G11."""
    with pytest.raises(GraphError, match="ended inside its block"), db.transaction():
        db.connection.execute(statement)


def until_closed(work: Callable[[], object], errors: list[str]) -> None:
    try:
        while True:
            work()
    except GraphError as error:
        errors.append(str(error))


def count(db: GraphDatabase) -> object:
    return db.nodes("T").where("k", ">", 3).count()


def merge_many(db: GraphDatabase) -> object:
    return db.bulk_merge_nodes("T", [{"k": 1}], match_on="k")


def reach(db: GraphDatabase) -> object:
    return db.traverse(1, max_depth=None).nodes()


def merge_one(db: GraphDatabase) -> object:
    return db.merge_node("T", {"k": 5}, on_match=lambda old: {"n": old.get("n", 0) + 1})


def test_closing_does_not_wait_for_other_threads_and_breaks_none(file: str) -> None:
    """G12. They get an error that names the cause."""
    with GraphDatabase(file) as first:
        first.bulk_merge_nodes("T", ({"k": number} for number in range(2000)), match_on="k")
    for _ in range(10):
        db = GraphDatabase(file)
        errors: list[str] = []
        works = [partial(work, db) for work in (count, reach, merge_many, merge_one)]
        threads = [threading.Thread(target=until_closed, args=(work, errors)) for work in works]
        for thread in threads:
            thread.start()
        time.sleep(0.03)
        db.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert ["is closed" in error for error in errors] == [True] * 4


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, 3_000_000])
def test_a_very_long_timeout_is_waited_for(file: str, timeout: float) -> None:
    """G12."""
    with GraphDatabase(file) as one, GraphDatabase(file, timeout=timeout) as other:
        waiting = threading.Thread(target=lambda: other.create_node("T"))
        with one.transaction():
            one.create_node("T")
            waiting.start()
            time.sleep(0.2)
        waiting.join(30)
        assert one.nodes().count() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.merge_node("T", {"k": 10**5000}),
        lambda db: db.merge_node("T", {f"k{number}": 1 for number in range(999)}),
        lambda db: db.merge_edge(1, "E", 1, direction=["out"]),
        lambda db: db.create_property_index("T", "k", table=["nodes"]),
        lambda db: db.create_property_index("T", [["k"]]),
        lambda db: db.nodes().order_by(["a"]),
        lambda db: db.traverse(1, direction=["out"]).nodes(),
        lambda db: db.merge_pattern(None),
        lambda db: db.drop_index(None),
        lambda db: db.bulk_merge_nodes("T", [], match_on=[["k"]]),
        lambda db: db.bulk_merge_nodes("T", [], match_on="k", on_match=lambda old: old),
        lambda _: GraphDatabase(":memory:", schema={"nodes": {}}),  # type: ignore[arg-type]
        lambda _: GraphSchema(nodes={"T": {"required": ["k"]}}),  # type: ignore[dict-item]
        lambda _: GraphSchema(nodes={"T": NodeType()}, edges={"E": NodeType()}),  # type: ignore[dict-item]
    ],
)
def test_nonsense_is_refused_with_an_explanation(db: GraphDatabase, call: Callable[[GraphDatabase], object]) -> None:
    db.create_node("T")
    db.create_property_index("T", "other")
    with assert_unchanged(db), pytest.raises((ValueError, TypeError)) as caught:
        call(db)
    assert type(caught.value).__module__ == "merganser.errors"


def test_depth_may_be_any_number(db: GraphDatabase) -> None:
    """G16."""
    a, b = db.create_node("N"), db.create_node("N")
    db.create_edge(a.id, "E", b.id)
    assert len(db.traverse(a.id, max_depth=2**70).paths()) == 1
    assert db.traverse(a.id, max_depth=2**70).count() == 1


@pytest.mark.filterwarnings("error")
def test_the_warning_of_a_name_that_cannot_be_indexed_says_so(db: GraphDatabase) -> None:
    """G9."""
    with pytest.warns(MergePerformanceWarning, match="rename the property"):
        db.merge_node("T", {'q"': 1})


def test_indexes_are_dropped_by_their_very_names(db: GraphDatabase) -> None:
    """G9. `idx_merge_job_url` would be another index for SQLite, and none here."""
    db.create_property_index("Job", "url")
    db.create_property_index("job", "url")
    db.drop_index("idx_merge_job_url")
    assert [index.name for index in db.list_indexes()] == ["idx_merge_Job_url", "idx_merge_job_url_2"]
