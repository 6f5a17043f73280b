"""What rows of a bulk merge write: columns only for new records, all columns, or nothing where a condition fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes, read_graph

from merganser.errors import InvalidArgumentError, PropertyTypeError
from merganser.graph import BulkResult, GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.graph.conftest import Clock

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

Row = dict[str, Any]
AS_ROWS = {"dicts": list, "many dicts": lambda rows: [*rows] * 60, "table": pa.Table.from_pylist}
as_rows = pytest.mark.parametrize("rows", AS_ROWS.values(), ids=AS_ROWS)
indexed = pytest.mark.parametrize("index", [True, False], ids=["index", "scan"])


# G24
@as_rows
@indexed
def test_all_columns_overwrite(db: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool) -> None:
    if index:
        db.create_property_index("N", "k")
    db.bulk_merge_nodes("N", [{"k": 1, "a": 1, "old": True}, {"k": 2, "a": 2}], match_on="k")
    given = rows([{"k": 1, "a": 5, "b": None}, {"k": 2, "a": 2, "b": "x"}, {"k": 3, "a": 3, "b": None}])
    done = db.bulk_merge_nodes("N", given, match_on="k", on_match="*")
    assert (done.created, done.changed) == (1, 2)
    assert list_nodes(db) == [{"k": 1, "a": 5, "old": True}, {"k": 2, "a": 2, "b": "x"}, {"k": 3, "a": 3}]
    assert db.bulk_merge_nodes("N", given, match_on="k", on_match="*").changed == 0


# G24
def test_all_columns_are_those_of_each_row_but_for_keys(db: GraphDatabase) -> None:
    db.bulk_merge_nodes("N", [{"k": 1, "a": 1, "b": 1}, {"k": 2, "a": 1, "b": 1}], match_on="k")
    rows: list[Row] = [{"k": 1, "a": 2}, {"k": 2, "b": 2, "*": 3, "first": 4}]
    done = db.bulk_merge_nodes("N", rows, match_on="k", on_match="*", on_create={"c": "first"})
    assert list_nodes(db) == [{"k": 1, "a": 2, "b": 1}, {"k": 2, "a": 1, "b": 2, "*": 3}]
    assert done == BulkResult(0, 2, changed=2)
    db.bulk_merge_nodes("N", [{"k": 2, "a": 9, "*": 4}], match_on="k", on_match=["*"])
    assert list_nodes(db)[1] == {"k": 2, "a": 1, "b": 2, "*": 4}
    edges = [{"from_id": 1, "to_id": 2, "w": 1, "x": 1}, {"from_id": 1, "to_id": 2, "w": 2}]
    assert db.bulk_merge_edges("E", edges, on_match="*") == BulkResult(1, 1)
    assert [record[3] for record in read_graph(db).edges.values()] == [{"w": 2, "x": 1}]
    with assert_unchanged(db), pytest.raises(PropertyTypeError, match="row 1 has the property name 7"):
        db.bulk_merge_nodes("N", [{"k": 1, "a": 7}, {"k": 2, 7: 7}], match_on="k", on_match="*")


# G24
@as_rows
@indexed
def test_columns_may_be_only_for_new_records(db: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool) -> None:
    if index:
        db.create_property_index("N", "k")
    db.create_node("N", {"k": 1, "seen": 0})
    given = rows(
        [{"k": 1, "seen": 1, "first": "mon", "last": "tue"}, {"k": 2, "seen": 1, "first": "mon", "last": "tue"}]
    )
    on_create = {"since": "first", "seen": "first", "k": "k"}
    done = db.bulk_merge_nodes("N", given, match_on="k", on_create=on_create, on_match={"seen": "last"})
    assert (done.created, done.changed) == (1, 1)
    new = "tue" if done.matched > 1 else "mon"
    assert list_nodes(db) == [{"k": 1, "seen": "tue"}, {"k": 2, "seen": new, "since": "mon"}]


# G24
@as_rows
@indexed
def test_a_condition_holds_for_each_row(
    db: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool, clock: Clock
) -> None:
    if index:
        db.create_property_index("N", "k")
    for key, status in ((1, "open"), (2, "closed"), (3, "open")):
        db.create_node("N", {"k": key, "status": status, "v": 0})
    clock.milliseconds += 1
    given = rows([{"k": 1, "v": 1}, {"k": 2, "v": 1}, {"k": 4, "v": 1}])
    done = db.bulk_merge_nodes("N", given, match_on="k", on_match="v", condition={"status": "open"})
    assert (done.created, done.changed) == (1, 1)
    assert [node["v"] for node in list_nodes(db)] == [1, 0, 0, 1]
    updated = [node.updated_at > node.created_at for node in db.nodes("N").order_by("id").exec()]
    assert updated == [True, False, False, False]


# G24
def test_a_condition_sees_what_earlier_rows_wrote(db: GraphDatabase) -> None:
    db.create_node("N", {"k": 1, "v": 0})
    rows = [{"k": 1, "v": 1}, {"k": 1, "v": 2}, {"k": 2, "v": 0}, {"k": 2, "v": 1}, {"k": 2, "v": 2}]
    assert db.bulk_merge_nodes("N", rows, match_on="k", on_match="v", condition={"v": 0}) == BulkResult(1, 4, changed=1)
    assert list_nodes(db) == [{"k": 1, "v": 1}, {"k": 2, "v": 1}]
    edges = [{"from_id": 1, "to_id": 2, "v": value} for value in (0, 1, 2)]
    assert db.bulk_merge_edges("E", edges, on_match="v", condition={"v": 0}) == BulkResult(1, 2)
    assert [record[3] for record in read_graph(db).edges.values()] == [{"v": 1}]


# G24
@as_rows
def test_wrong_columns_for_new_records_are_refused(db: GraphDatabase, rows: Callable[[list[Row]], Any]) -> None:
    given = rows([{"k": 1, "a": 1}])
    with (
        assert_unchanged(db),
        pytest.raises(InvalidArgumentError, match="on_create gives the match property 'k' another"),
    ):
        db.bulk_merge_nodes("N", given, match_on="k", on_create={"k": "a"})
    with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="column 'fist'"):
        db.bulk_merge_nodes("N", given, match_on="k", on_create={"b": "fist"})
    with assert_unchanged(db), pytest.raises(PropertyTypeError, match="condition property 'a' is of type bytes"):
        db.bulk_merge_nodes("N", given, match_on="k", condition={"a": b"x"})


# G24
@indexed
def test_changed_records_are_counted_once(db: GraphDatabase, index: bool) -> None:
    if index:
        db.create_property_index("N", "k")
    db.bulk_merge_nodes("N", [{"k": key, "v": 0} for key in range(200)], match_on="k")
    rows = [{"k": key, "v": key % 2} for key in range(300)]
    # Of records that this merge creates, none is counted.
    assert db.bulk_merge_nodes("N", rows * 2, match_on="k", on_match="v") == BulkResult(100, 500, changed=100)
    assert db.bulk_merge_nodes("N", rows, match_on="k", on_match="v") == BulkResult(0, 300)
    gone = [{"k": 1, "v": None}, {"k": 2, "v": 0.0}, {"k": 4, "v": 0}]
    assert db.bulk_merge_nodes("N", gone, match_on="k", on_match="v") == BulkResult(0, 3, changed=2)
