"""Many rows into nodes at once: as if merged one by one, all or nothing, from whatever holds rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.graph.graph_oracle import assert_unchanged, expect_rollback, list_nodes, read_graph

from merganser.errors import (
    GraphError,
    InvalidArgumentError,
    MergeConflictError,
    MergePerformanceWarning,
    UniqueConstraintError,
)
from merganser.graph import BulkResult, GraphDatabase
from merganser.graph.sqlite import lookup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.graph.conftest import Clock

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

JOBS: list[dict[str, Any]] = [
    {"url": "/1", "title": "Engineer", "seen": 1},
    {"url": "/2", "title": "Cook", "seen": 1},
    {"url": "/1", "title": "Other", "seen": 2},
]


def test_a_bulk_import_can_be_repeated(db: GraphDatabase) -> None:
    """G13. The specification's "Bulk import with merge (idempotent)" and "Batch Merge"."""
    assert db.bulk_merge_nodes("Job", JOBS, match_on="url") == BulkResult(created=2, matched=1)
    expected = [{"url": "/1", "title": "Engineer", "seen": 1}, {"url": "/2", "title": "Cook", "seen": 1}]
    assert list_nodes(db, "Job") == expected
    assert db.bulk_merge_nodes("Job", JOBS, match_on="url") == BulkResult(created=0, matched=3)
    assert list_nodes(db, "Job") == expected


def test_columns_of_on_match_overwrite_properties(db: GraphDatabase) -> None:
    """G13. Two rows with one key: the first creates, the second matches."""
    db.bulk_merge_nodes("Job", JOBS, match_on="url", on_match=["seen"])
    assert list_nodes(db) == [{"url": "/1", "title": "Engineer", "seen": 2}, {"url": "/2", "title": "Cook", "seen": 1}]
    db.bulk_merge_nodes("Job", [{"url": "/2", "title": "Chef", "seen": 9}], match_on="url", on_match="title")
    assert list_nodes(db)[1] == {"url": "/2", "title": "Chef", "seen": 1}


def test_on_match_may_name_other_columns_than_the_properties(db: GraphDatabase) -> None:
    """G13. Such a column is not a property of a new node."""
    on_match = {"seen": "seen again", "last": "day", "day": "day", "url": "url"}
    rows = [
        {"url": "/1", "seen": 1, "seen again": 2, "day": "mon"},
        {"url": "/2", "seen": 1, "seen again": 2, "day": "mon"},
        {"url": "/1", "seen": 1, "seen again": 3, "day": "tue"},
    ]
    db.bulk_merge_nodes("Job", rows, match_on="url", on_match=on_match)
    first = {"url": "/1", "seen": 3, "day": "tue", "last": "tue"}
    assert list_nodes(db) == [first, {"url": "/2", "seen": 1, "day": "mon"}]
    db.bulk_merge_nodes("Job", pa.Table.from_pylist(rows), match_on="url", on_match=on_match)
    assert list_nodes(db) == [first, {"url": "/2", "seen": 2, "day": "mon", "last": "mon"}]
    removed = [{"url": "/1", "day": "wed"}, {"url": "/2", "day": None, "seen again": 2}]
    db.bulk_merge_nodes("Job", removed, match_on="url", on_match=on_match)
    assert list_nodes(db) == [{**first, "day": "wed", "last": "wed"}, {"url": "/2", "seen": 2}]


def test_null_is_not_stored_and_removes(db: GraphDatabase) -> None:
    """G4, G13."""
    rows = [{"k": 1, "a": None, "b": 1}, {"k": 1, "a": 2, "b": None}, {"k": 2, "a": 1}, {"k": 2}]
    assert db.bulk_merge_nodes("N", rows, match_on="k", on_match=["a", "b"]) == BulkResult(2, 2)
    assert list_nodes(db) == [{"k": 1, "a": 2}, {"k": 2, "a": 1}]
    db.bulk_merge_nodes("N", [{"k": 2, "a": None}], match_on="k", on_match=["a"])
    assert list_nodes(db)[1] == {"k": 2}


def test_a_key_may_be_several_columns(db: GraphDatabase) -> None:
    """G13. The specification's "Complex match criteria (multiple properties)"."""
    db.create_property_index("N", ["a", "b"], unique=True)
    rows = [{"a": a, "b": b} for a in (1, "1", True, 1.0, [1]) for b in ("x", "y")]
    assert db.bulk_merge_nodes("N", rows, match_on=["b", "a"]) == BulkResult(created=8, matched=2)


@pytest.mark.parametrize("unique", [None, False, True])
def test_keys_are_equal_as_in_a_single_merge(db: GraphDatabase, unique: bool | None) -> None:
    """G5, G13."""
    if unique is not None:
        db.create_property_index("N", "k", unique=unique)
    values = [1, 1.0, True, "1", "true", 0, -0.0, False, 2**53, 2.0**53, 2**53 + 1, "", "\x00", "a\x00", "a", 'n"a"']
    assert db.bulk_merge_nodes("N", [{"k": value} for value in values], match_on="k") == BulkResult(13, 3)
    fractions = [0.1, 0.1, 1e300, 5e-324, [1], [1.0], ["1"], "[1]", 1]
    assert db.bulk_merge_nodes("N", [{"k": value} for value in fractions], match_on="k") == BulkResult(6, 3)


def test_a_match_is_seen_in_updated_at(db: GraphDatabase, clock: Clock) -> None:
    """G8, G13."""
    db.bulk_merge_nodes("Job", JOBS[:2], match_on="url")
    clock.milliseconds += 1
    with assert_unchanged(db):
        db.bulk_merge_nodes("Job", JOBS[:1], match_on="url", on_match=["seen"], touch=False)
    db.bulk_merge_nodes("Job", JOBS[:1], match_on="url")
    db.bulk_merge_nodes("Job", [{"url": "/2", "seen": 5}], match_on="url", on_match="seen", touch=False)
    for node_id in (1, 2):
        node = db.get_node(node_id)
        assert node is not None
        assert node.updated_at - node.created_at == timedelta(milliseconds=1)


SOURCES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": iter,
    "table": pa.Table.from_pylist,
    "chunked table": lambda rows: pa.concat_tables([pa.Table.from_pylist([row]) for row in rows]),
    "batch": pa.RecordBatch.from_pylist,
    "reader": lambda rows: pa.Table.from_pylist(rows).to_reader(max_chunksize=2),
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
}


@pytest.mark.parametrize("kind", list(SOURCES))
def test_rows_come_from_any_tabular_object(db: GraphDatabase, kind: str) -> None:
    """G13."""
    source = SOURCES[kind]
    assert db.bulk_merge_nodes("Job", source(JOBS), match_on="url", on_match=["seen"]) == BulkResult(2, 1)
    assert list_nodes(db) == [{"url": "/1", "title": "Engineer", "seen": 2}, {"url": "/2", "title": "Cook", "seen": 1}]


def test_rows_come_from_a_file(db: GraphDatabase, tmp_path: Path) -> None:
    """G13."""
    path = str(tmp_path / "jobs.parquet")
    pq.write_table(pa.Table.from_pylist(JOBS), path)
    assert db.bulk_merge_nodes("Job", path, match_on="url") == BulkResult(2, 1)


@pytest.mark.parametrize("kind", list(SOURCES))
def test_no_rows_merge_nothing(db: GraphDatabase, kind: str) -> None:
    """G13."""
    rows = JOBS[:1] if kind == "chunked table" else []
    source = SOURCES[kind](rows)
    source = source.slice(0, 0) if rows else source
    with assert_unchanged(db):
        assert db.bulk_merge_nodes("Job", source, match_on="url") == BulkResult(0, 0)


def test_a_frames_nulls_are_nulls(db: GraphDatabase) -> None:
    """G4, G13."""
    frame = pd.DataFrame({"k": ["a", "b"], "n": [1.5, None], "t": [None, pd.Timestamp("2026-01-02")]})
    db.bulk_merge_nodes("N", frame, match_on="k")
    assert [sorted(properties) for properties in list_nodes(db)] == [["k", "n"], ["k", "t"]]
    assert list_nodes(db)[1]["t"].startswith("2026-01-02T00:00:00")
    assert db.bulk_merge_nodes("N", pl.DataFrame({"k": ["a"], "n": [None]}), match_on="k", on_match="n").matched == 1
    assert list_nodes(db)[0] == {"k": "a"}


@pytest.mark.parametrize("rows", [7, None, {"k": 1}, [1], ["k"], [("k", 1)]])
def test_a_source_that_is_not_an_iterable_of_rows_is_refused(db: GraphDatabase, rows: Any) -> None:
    """G13."""
    with assert_unchanged(db), pytest.raises(ValueError, match="row"):
        db.bulk_merge_nodes("N", rows, match_on="k")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"k": None}, "'k'"),
    ({"v": 1}, "'k'"),
    ({"k": float("nan")}, "'k'"),
    ({"k": 1, "v": float("inf")}, "'v'"),
    ({"k": 1, "v": b"bytes"}, "'v'"),
    ({"k": 1, "v": [2**64]}, "'v'"),
]


@pytest.mark.parametrize("batch", [1, 3, 10_000])
@pytest.mark.parametrize("place", [0, 1, 5, 6])
@pytest.mark.parametrize(("row", "word"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_a_bad_row_anywhere_changes_nothing(
    db: GraphDatabase, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], word: str, place: int, batch: int
) -> None:
    """G13."""
    monkeypatch.setattr(lookup, "BATCH", batch)
    db.bulk_merge_nodes("N", [{"k": 1, "v": 0}], match_on="k")
    rows: list[dict[str, Any]] = [{"k": number, "v": number} for number in range(6)]
    rows.insert(place, row)
    with assert_unchanged(db), pytest.raises((TypeError, ValueError), match=rf"row {place}\b.*{word}"):
        db.bulk_merge_nodes("N", iter(rows), match_on="k", on_match=["v"])


@pytest.mark.parametrize("key", [{}, [{}]])
def test_a_dict_as_a_key_is_named_with_its_row(db: GraphDatabase, key: Any) -> None:
    """G5, G13."""
    with assert_unchanged(db), pytest.raises(ValueError, match=r"row 1\b.*'k'"):
        db.bulk_merge_nodes("N", [{"k": 1}, {"k": key}], match_on="k")


def test_rows_that_fail_to_load_change_nothing(db: GraphDatabase) -> None:
    """G13."""

    def rows() -> Any:
        yield {"k": 1}
        raise ConnectionError

    with assert_unchanged(db), pytest.raises(ConnectionError):
        db.bulk_merge_nodes("N", rows(), match_on="k")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"type": ""}, "type"),
        ({"match_on": []}, "match_on"),
        ({"match_on": ""}, "row 0"),
        ({"match_on": ["k", 1]}, "match_on"),
        ({"match_on": ["k", "k"]}, "match_on"),
        ({"on_match": [1]}, "on_match"),
        ({"on_match": {"v": 1}}, "on_match"),
        ({"on_match": {1: "v"}}, "on_match"),
        ({"on_match": {"k": "v"}}, "match property 'k'"),
    ],
)
def test_nonsense_is_refused(db: GraphDatabase, arguments: dict[str, Any], word: str) -> None:
    """G4, G13."""
    with assert_unchanged(db), pytest.raises((TypeError, ValueError), match=word):
        db.bulk_merge_nodes(**{"type": "N", "rows": [{"k": 1}], "match_on": "k", **arguments})


@pytest.mark.parametrize("key", [1, 0.5, [1]], ids=["joined", "fraction", "list"])
def test_more_than_one_match_is_refused(db: GraphDatabase, key: Any) -> None:
    """G3, G13."""
    twins = [db.create_node("N", {"k": key}) for _ in range(2)]
    with assert_unchanged(db), pytest.raises(MergeConflictError) as caught:
        db.bulk_merge_nodes("N", [{"k": 7}, {"k": key, "v": 1}, {"k": 8}], match_on="k")
    assert list(caught.value.conflicting_nodes) == twins
    assert (caught.value.node_type, caught.value.match_properties) == ("N", {"k": key})


def test_another_unique_index_holds(db: GraphDatabase) -> None:
    """G10, G13."""
    db.create_property_index("N", "k", unique=True)
    db.create_property_index("N", "code", unique=True)
    db.bulk_merge_nodes("N", [{"k": 1, "code": 1}, {"k": 2, "code": 2}], match_on="k")
    for rows in (
        [{"k": 3, "code": 3}, {"k": 4, "code": 1}],
        [{"k": 3, "code": 3}, {"k": 4, "code": 3}],
        [{"k": 3, "code": 3}, {"k": 2, "code": 1}],
    ):
        with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="code"):
            db.bulk_merge_nodes("N", rows, match_on="k", on_match=["code"])
    # Row after row, the value is free when it is taken again.
    swapped = [{"k": 1, "code": 9}, {"k": 2, "code": 1}, {"k": 1, "code": 2}]
    db.bulk_merge_nodes("N", swapped, match_on="k", on_match=["code"])
    assert list_nodes(db) == [{"k": 1, "code": 2}, {"k": 2, "code": 1}]


def test_a_unique_index_of_more_than_the_match_holds(db: GraphDatabase) -> None:
    """G10, G13."""
    db.create_property_index("N", ["k", "part"], unique=True)
    db.bulk_merge_nodes("N", [{"k": 1, "part": 1}, {"k": 2, "part": 2}], match_on="part")
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="part"):
        db.bulk_merge_nodes("N", [{"k": 3, "part": 3, "x": 1}, {"k": 1, "part": 1, "x": 2}], match_on="x")


def test_a_bulk_merge_inside_a_transaction_goes_with_it(db: GraphDatabase) -> None:
    """G11, G13."""
    with assert_unchanged(db), expect_rollback(db):
        db.bulk_merge_nodes("Job", JOBS, match_on="url")
        assert len(list_nodes(db)) == 2


def test_a_failed_bulk_merge_undoes_itself_only(db: GraphDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11, G13."""
    monkeypatch.setattr(lookup, "BATCH", 1)
    for begin, expected in (("BEGIN", BulkResult(1, 0)), ("BEGIN IMMEDIATE", BulkResult(0, 1))):
        db.connection.execute(begin)
        db.create_node("Kept")
        with assert_unchanged(db), pytest.raises(ValueError, match="row 1"):
            db.bulk_merge_nodes("N", [{"k": 1}, {"k": None}], match_on="k")
        assert db.bulk_merge_nodes("N", [{"k": 1}], match_on="k") == expected
        db.connection.execute("COMMIT")
    assert [type_ for type_, _ in read_graph(db).nodes.values()] == ["Kept", "N", "Kept"]


def test_a_generator_may_read_what_is_there(db: GraphDatabase) -> None:
    """G11, G13."""
    db.create_node("Seed", {"k": 5})
    rows = ({"k": properties["k"] + extra} for properties in list_nodes(db, "Seed") for extra in range(3))
    assert db.bulk_merge_nodes("N", rows, match_on="k") == BulkResult(3, 0)
    assert [properties["k"] for properties in list_nodes(db, "N")] == [5, 6, 7]


def test_a_bulk_merge_without_an_index_warns_once(db: GraphDatabase) -> None:
    """G9, G13."""
    with pytest.warns(MergePerformanceWarning) as caught:
        db.bulk_merge_nodes("Job", JOBS, match_on="url")
    assert [entry.filename for entry in caught] == [__file__]
    with pytest.raises(pytest.fail.Exception), pytest.warns(MergePerformanceWarning):
        db.bulk_merge_nodes("Job", JOBS, match_on="url")
    with pytest.raises(pytest.fail.Exception), pytest.warns(MergePerformanceWarning):
        db.bulk_merge_nodes("Job", JOBS, match_on="title", warn_on_missing_index=False)


def test_odd_names_are_data(db: GraphDatabase) -> None:
    """G6, G13."""
    for name in ("", "'", '"', "a.b", "$", "\x00", "\\", "c0", "slot", "k.c0", "'); DROP TABLE nodes; --"):
        rows = [{name: 1, "v": 1}, {name: 1, "v": 2}, {name: "'", "v": 3}]
        assert db.bulk_merge_nodes(name or "N", rows, match_on=name, on_match="v") == BulkResult(2, 1)
        assert list_nodes(db, name or "N") == [{name: 1, "v": 2}, {name: "'", "v": 3}]


@pytest.mark.slow
def test_ten_thousand_rows_and_more_are_one_merge(file: str) -> None:
    """G13. The specification's "Bulk merge operations (10k+ records)"."""
    rows = [{"k": number % 15_000, "v": number} for number in range(25_000)]
    with GraphDatabase(file) as db:
        db.create_property_index("N", "k", unique=True)
        assert db.bulk_merge_nodes("N", rows, match_on="k", on_match=["v"]) == BulkResult(15_000, 10_000)
        expected = {row["k"]: row["v"] for row in rows}
        assert {properties["k"]: properties["v"] for properties in list_nodes(db)} == expected
        with pytest.raises(GraphError):
            db.create_node("N", {"k": 0})


@pytest.mark.parametrize("count", [2, 200])
def test_a_column_on_match_that_no_row_has_is_refused(db: GraphDatabase, count: int) -> None:
    """G13. A column that some rows lack is not a mistake."""
    rows = [{"k": number, "title": "Cook"} for number in range(count)]
    with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="on_match names the column 'titel'"):
        db.bulk_merge_nodes("N", rows, match_on="k", on_match=["titel"], warn_on_missing_index=False)
    some = [*rows, {"k": -1, "town": "Bern"}]
    assert (
        db.bulk_merge_nodes("N", some, match_on="k", on_match="town", warn_on_missing_index=False).created == count + 1
    )
    assert db.bulk_merge_nodes("N", [], match_on="k", on_match="town", warn_on_missing_index=False).created == 0
