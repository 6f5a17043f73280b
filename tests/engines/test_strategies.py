"""Strategies: what happens to matched, new and missing rows (T1 to T6)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, list_data_files, load, put, read_rows, snapshot

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]


def pairs(ids: list[int], values: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})


# T1, T2, T3
@pytest.mark.parametrize(
    ("strategy", "after", "counts"),
    [
        ("insert", {1: "a", 2: "b", 3: "C"}, (1, 0, 0)),
        ("update", {1: "a", 2: "B"}, (0, 1, 0)),
        ("upsert", {1: "a", 2: "B", 3: "C"}, (1, 1, 0)),
        ("full_merge", {2: "B", 3: "C"}, (1, 1, 1)),
        ("deduplicate", {1: "a", 2: "B", 3: "C"}, (1, 1, 0)),
    ],
)
def test_the_truth_table(
    io: AnyDatasetIO, lake: str, strategy: Any, after: dict[int, str], counts: tuple[int, int, int]
) -> None:
    io.merge(pairs([1, 2], ["a", "b"]), f"{lake}/t", key_columns="id")
    result = io.merge(pairs([2, 3], ["B", "C"]), f"{lake}/t", strategy, "id")
    assert {row["id"]: row["v"] for row in read_rows(io, f"{lake}/t")} == after
    assert (result.inserted, result.updated, result.deleted) == counts


# T1, T2
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_running_it_twice_is_running_it_once(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    io.merge(pairs([1, 2], ["a", "b"]), f"{lake}/t", key_columns="id")
    io.merge(pairs([2, 3], ["B", "C"]), f"{lake}/t", strategy, "id")
    once = read_rows(io, f"{lake}/t")
    again = io.merge(pairs([2, 3], ["B", "C"]), f"{lake}/t", strategy, "id")
    assert read_rows(io, f"{lake}/t") == once
    assert (again.inserted, again.deleted) == (0, 0)


# T1
@pytest.mark.parametrize("strategy", ["update", "upsert", "full_merge", "deduplicate"])
def test_a_replaced_row_takes_every_column(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    old = pa.table({"id": [1], "a": ["old"], "b": [1.5], "c": [[1, 2]]})
    new = pa.table(
        {"id": [1], "a": pa.array([None], pa.string()), "b": [2.5], "c": pa.array([[]], pa.list_(pa.int64()))}
    )
    io.merge(old, f"{lake}/t", key_columns="id")
    io.merge(new, f"{lake}/t", strategy, "id")
    assert read_rows(io, f"{lake}/t") == new.to_pylist()


# T2
def test_insert_never_rewrites_an_existing_file(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 2], ["a", "b"]))
    before = snapshot(f"{lake}/t")
    result = io.merge(pairs([1, 2, 3], ["x", "y", "z"]), f"{lake}/t", "insert", "id")
    after = snapshot(f"{lake}/t")
    assert {name: after[name] for name in before} == before
    assert (result.rewritten_files, result.removed_files, len(result.inserted_files)) == ([], [], 1)
    assert read_rows(io, f"{lake}/t") == pairs([1, 2, 3], ["a", "b", "z"]).to_pylist()


# T2
def test_insert_of_existing_keys_writes_nothing(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 2], ["a", "b"]))
    with assert_unchanged(f"{lake}/t"):
        result = io.merge(pairs([1, 2], ["x", "y"]), f"{lake}/t", "insert", "id")
    assert (result.inserted, result.updated, result.target_count_after) == (0, 0, 2)


# T2
def test_update_never_adds_a_file(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 2], ["a", "b"]))
    put(f"{lake}/t/b.parquet", pairs([3], ["c"]))
    result = io.merge(pairs([2, 3, 4], ["B", "C", "new"]), f"{lake}/t", "update", "id")
    assert list_data_files(f"{lake}/t") == ["a.parquet", "b.parquet"]
    assert (result.inserted, result.updated, result.inserted_files) == (0, 2, [])


# T2
def test_update_of_missing_keys_writes_nothing(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 5], ["a", "b"]))
    with assert_unchanged(f"{lake}/t"):
        result = io.merge(pairs([3], ["x"]), f"{lake}/t", "update", "id")
    assert (result.inserted, result.updated, result.source_count) == (0, 0, 1)


# T3
def test_deduplicate_keeps_the_last_in_source_order(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1, 2, 1, 2, 1], ["a", "b", "c", "d", "e"]), f"{lake}/t", "deduplicate", "id")
    assert read_rows(io, f"{lake}/t") == pairs([1, 2], ["e", "d"]).to_pylist()


# T3
@pytest.mark.parametrize("order_by", ["rank", ["rank"], ("rank",)])
def test_deduplicate_keeps_the_highest_in_dedup_order_by(io: AnyDatasetIO, lake: str, order_by: Any) -> None:
    source = pa.table({"id": [1, 1, 1], "rank": [2, 3, 1], "v": ["b", "c", "a"]})
    io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by=order_by)
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "rank": 3, "v": "c"}]


# T3
def test_deduplicate_compares_columns_in_order_and_null_is_lowest(io: AnyDatasetIO, lake: str) -> None:
    source = pa.table(
        {
            "id": [1, 1, 1, 2, 2, 3, 3],
            "day": pa.array([1, 2, 2, None, -5, None, None], pa.int64()),
            "seq": pa.array([9, 1, 3, 9, 1, None, None], pa.int64()),
            "v": ["x", "x", "win1", "x", "win2", "x", "win3"],
        }
    )
    io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by=["day", "seq"])
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["win1", "win2", "win3"]


# T3
def test_deduplicate_breaks_ties_by_the_last_in_source_order(io: AnyDatasetIO, lake: str) -> None:
    source = pa.table({"id": [1] * 4, "rank": [5, 5, 5, 4], "v": ["a", "b", "c", "d"]})
    io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by="rank")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["c"]


# T3
@pytest.mark.parametrize(
    "ranks",
    [
        pa.array(["a", "b", "B"]),
        pa.array([0, 10**9, 5], pa.timestamp("ns")),
        pa.array([False, True, False]),
        pa.array([-1.5, float("inf"), 0.0]),
        pa.array([-1, 200, 3], pa.int16()),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([b"\x01", b"\xff", b"\x02"]),
    ],
)
def test_deduplicate_orders_by_any_plain_type(io: AnyDatasetIO, lake: str, ranks: pa.Array) -> None:
    source = pa.table({"id": [1, 1, 1], "rank": ranks, "v": ["a", "win", "c"]})
    io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by="rank")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["win"]


# T3
def test_deduplicate_may_order_by_several_chunks(io: AnyDatasetIO, lake: str) -> None:
    chunks = [pa.table({"id": [n % 3], "rank": [-n], "v": [n]}) for n in range(9)]
    io.merge(pa.concat_tables(chunks), f"{lake}/t", "deduplicate", "id", dedup_order_by="rank")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == [0, 1, 2]


# T3
@pytest.mark.parametrize(
    ("order_by", "error", "message"),
    [
        ("nope", ValueError, "dedup_order_by names 'nope'"),
        (["v", "v"], ValueError, "dedup_order_by names 'v' more than once"),
        ([1], ValueError, "dedup_order_by must be"),
        ("tags", TypeError, "'tags' has type"),
    ],
)
def test_invalid_dedup_order_by_is_refused(
    io: AnyDatasetIO, lake: str, order_by: Any, error: type[Exception], message: str
) -> None:
    source = pa.table({"id": [1], "v": [1], "tags": [["a"]]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(error, match=message):
        io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by=order_by)


# T3
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_dedup_order_by_belongs_to_deduplicate(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    with pytest.raises(ValueError, match="dedup_order_by does not go with strategy"):
        io.merge(pairs([1], ["a"]), f"{lake}/t", strategy, "id", dedup_order_by="v")


# T4
@pytest.mark.parametrize("strategy", ["insert", "upsert", "deduplicate", "full_merge"])
@pytest.mark.parametrize("there", ["absent", "empty folder", "no rows"])
def test_first_load_takes_every_row(io: AnyDatasetIO, lake: str, strategy: Any, there: str) -> None:
    if there == "empty folder":
        os.makedirs(f"{lake}/t")
    if there == "no rows":
        put(f"{lake}/t/a.parquet", pairs([], []))
    result = io.merge(pairs([1, 2], ["a", "b"]), f"{lake}/t", strategy, "id")
    assert (result.inserted, result.updated, result.deleted) == (2, 0, 0)
    assert (result.target_count_before, result.target_count_after) == (0, 2)
    assert read_rows(io, f"{lake}/t") == pairs([1, 2], ["a", "b"]).to_pylist()


# T4
@pytest.mark.parametrize("there", ["empty folder", "no rows"])
def test_update_of_nothing_does_nothing(io: AnyDatasetIO, lake: str, there: str) -> None:
    if there == "empty folder":
        os.makedirs(f"{lake}/t")
    if there == "no rows":
        put(f"{lake}/t/a.parquet", pairs([], []))
    with assert_unchanged(f"{lake}/t"):
        result = io.merge(pairs([1, 2], ["a", "b"]), f"{lake}/t", "update", "id")
    assert (result.inserted, result.updated, result.deleted, result.target_count_after) == (0, 0, 0, 0)
    assert result.source_count == 2


# T4
def test_a_missing_target_is_created_with_its_parents(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/deep/er/t", key_columns="id")
    assert read_rows(io, f"{lake}/deep/er/t") == [{"id": 1, "v": "a"}]


# T5
def test_full_merge_of_an_empty_source_empties_the_target(io: AnyDatasetIO, lake: str) -> None:
    for name, ids in (("a", [1, 2]), ("b", [3]), ("c", [4, 5, 6])):
        put(f"{lake}/t/{name}.parquet", pairs(ids, ["x"] * len(ids)))
    result = io.merge(pairs([], []), f"{lake}/t", "full_merge", "id")
    assert (result.inserted, result.updated, result.deleted) == (0, 0, 6)
    assert (result.target_count_before, result.target_count_after) == (6, 0)
    assert len(list_data_files(f"{lake}/t")) == 1
    assert load(io, f"{lake}/t").schema.equals(pairs([], []).schema)


# T5
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate"])
def test_an_empty_source_does_nothing_with_other_strategies(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    put(f"{lake}/t/a.parquet", pairs([1], ["x"]))
    with assert_unchanged(f"{lake}/t"):
        result = io.merge(pairs([], []), f"{lake}/t", strategy, "id")
    assert (result.source_count, result.inserted, result.updated, result.deleted) == (0, 0, 0, 0)
    assert result.target_count_after == 1


# T5
def test_an_empty_source_may_have_columns_of_no_type(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 2], ["a", "b"]))
    nothing = pa.table({"id": [], "v": []})
    with assert_unchanged(f"{lake}/t"):
        assert io.merge(nothing, f"{lake}/t", "upsert", "id").source_count == 0
    assert io.merge(nothing, f"{lake}/t", "full_merge", "id").deleted == 2


# T5
def test_full_merge_into_an_emptied_target_loads_again(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1, 2], ["a", "b"]), f"{lake}/t", key_columns="id")
    io.merge(pairs([], []), f"{lake}/t", "full_merge", "id")
    again = io.merge(pairs([], []), f"{lake}/t", "full_merge", "id")
    assert (again.deleted, again.target_count_after) == (0, 0)
    assert io.merge(pairs([3], ["c"]), f"{lake}/t", "full_merge", "id").inserted == 1
    assert read_rows(io, f"{lake}/t") == [{"id": 3, "v": "c"}]


# T5, H2
def test_full_merge_of_an_empty_source_keeps_partition_columns(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1, 2], "day": [7, 8]})
    io.merge(table, f"{lake}/t", key_columns="id", partition_columns="day")
    assert io.merge(table.slice(0, 0), f"{lake}/t", "full_merge", "id").deleted == 2
    assert load(io, f"{lake}/t").schema.names == ["id", "day"]
    io.merge(table, f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# T6
@pytest.mark.parametrize("strategy", ["merge", "UPSERT", "", None, 3, ["upsert"]])
def test_an_unknown_strategy_lists_the_known_ones(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    put(f"{lake}/t/a.parquet", pairs([1], ["x"]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="Unknown strategy") as caught:
        io.merge(pairs([1], ["a"]), f"{lake}/t", strategy, "id")
    assert all(name in str(caught.value) for name in STRATEGIES)
    with pytest.raises(ValueError, match="Unknown strategy"):
        io.plan(pairs([1], ["a"]), f"{lake}/t", strategy, "id")


# T3
def test_nan_is_the_highest_order_and_null_the_lowest(io: AnyDatasetIO, lake: str) -> None:
    order = pa.array([None, float("nan"), float("inf"), 1.0, None, float("-inf")])
    source = pa.table({"id": [1, 1, 1, 2, 2, 3], "at": order, "v": ["a", "b", "c", "d", "e", "f"]})
    io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by="at")
    assert {row["id"]: row["v"] for row in read_rows(io, f"{lake}/t")} == {1: "b", 2: "d", 3: "f"}
