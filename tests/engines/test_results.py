"""Results: counts that are exact, files as their footers describe them, the audit (R1 to R5)."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import list_data_files, put, read_rows

from merganser import merge_parquet_dataset_pyarrow
from merganser.core import InvalidArgumentError, MergeResult, MergeStats, compute_merge_stats
from merganser.engines import ENGINES, open_engine
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]


def pairs(ids: list[int], value: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [value] * len(ids)})


def three_files(path: str) -> None:
    put(f"{path}/a.parquet", pairs([1, 2, 3]))
    put(f"{path}/b.parquet", pairs([10, 20]))
    put(f"{path}/c.parquet", pairs([30]))


# R1
@pytest.mark.parametrize(
    ("strategy", "counts", "file_counts"),
    [
        ("insert", (2, 0, 0), {"preserved": 3, "inserted": 1}),
        ("update", (0, 3, 0), {"preserved": 1, "rewritten": 2}),
        ("upsert", (2, 3, 0), {"preserved": 1, "rewritten": 2, "inserted": 1}),
        ("full_merge", (2, 3, 3), {"rewritten": 2, "inserted": 1}),
        ("deduplicate", (2, 3, 0), {"preserved": 1, "rewritten": 2, "inserted": 1}),
    ],
)
def test_counts_and_files_of_every_strategy(
    io: AnyDatasetIO, lake: str, strategy: Any, counts: tuple[int, int, int], file_counts: dict[str, int]
) -> None:
    three_files(f"{lake}/t")
    result = io.merge(pairs([2, 3, 10, 15, 99], "new"), f"{lake}/t", strategy, "id")
    assert isinstance(result, MergeResult)
    assert (result.strategy, result.source_count, result.target_count_before) == (strategy, 5, 6)
    assert (result.inserted, result.updated, result.deleted) == counts
    assert result.target_count_after == 6 + counts[0] - counts[2] == len(read_rows(io, f"{lake}/t"))
    assert Counter(file.operation for file in result.files) == file_counts
    assert result.removed_files == ([f"{lake}/t/c.parquet"] if strategy == "full_merge" else [])


# R1
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_lists_of_paths_are_the_files_by_operation(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    three_files(f"{lake}/t")
    result = io.merge(pairs([2, 15]), f"{lake}/t", strategy, "id")
    lists = {
        "rewritten": result.rewritten_files,
        "inserted": result.inserted_files,
        "preserved": result.preserved_files,
    }
    for operation, paths in lists.items():
        assert [file.path for file in result.files if file.operation == operation] == paths
    assert sorted(file.path for file in result.files) == [f"{lake}/t/{name}" for name in list_data_files(f"{lake}/t")]
    assert not {file.path for file in result.files} & set(result.removed_files)
    assert not [path for path in result.removed_files if os.path.exists(path)]


# R1, T3
def test_source_count_is_the_rows_given_before_deduplication(io: AnyDatasetIO, lake: str) -> None:
    result = io.merge(pairs([1, 1, 1, 2]), f"{lake}/t", "deduplicate", "id")
    assert (result.source_count, result.inserted) == (4, 2)


# R1
def test_paths_are_spelled_as_the_caller_spelled_the_target(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake)
    result = io.merge(pairs([1]), "t", key_columns="id")
    assert result.inserted_files[0].startswith("t/part-")
    assert os.path.exists(result.inserted_files[0])


# R2
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_file_metadata_equals_the_footers_of_the_published_files(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    three_files(f"{lake}/t")
    result = io.merge(pairs([2, 3, 15, 16, 17], "a longer text"), f"{lake}/t", strategy, "id", max_rows_per_file=2)
    for file in result.files:
        assert file.row_count == pq.read_metadata(file.path).num_rows
        assert file.size_bytes == os.path.getsize(file.path)
    assert sum(file.row_count for file in result.files) == result.target_count_after


# R2, W4
def test_inserted_files_follow_max_rows_per_file(io: AnyDatasetIO, lake: str) -> None:
    result = io.merge(pairs(list(range(7))), f"{lake}/t", key_columns="id", max_rows_per_file=3)
    assert [(file.operation, file.row_count) for file in result.files] == [("inserted", n) for n in (3, 3, 1)]


# R3
@pytest.mark.spark
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_engines_agree(lake: str, strategy: Any) -> None:
    outcomes = []
    for name in ENGINES:
        path = f"{lake}/{name}"
        three_files(path)
        dataset_io = open_engine(name)
        result = dataset_io.merge(pairs([2, 3, 10, 15, 99], "new"), path, strategy, "id")
        outcomes.append(
            (
                read_rows(dataset_io, path),
                result.stats,
                *(
                    sorted(os.path.relpath(found, path) for found in paths)
                    for paths in (result.rewritten_files, result.preserved_files, result.removed_files)
                ),
            )
        )
    assert all(outcome == outcomes[0] for outcome in outcomes)


# R3, P5
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_does_what_its_plan_reported(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    three_files(f"{lake}/t")
    source = pairs([2, 3, 10, 15, 99], "new")
    plan = io.plan(source, f"{lake}/t", strategy, "id")
    result = io.merge(source, f"{lake}/t", strategy, "id")
    assert (plan.inserted, plan.updated, plan.deleted) == (result.inserted, result.updated, result.deleted)
    assert (plan.target_count_before, plan.target_count_after) == (
        result.target_count_before,
        result.target_count_after,
    )
    found: dict[str, list[str]] = {"rewrite": [], "preserve": [], "remove": []}
    for file in plan.files:
        found[file.action].append(file.path)
    assert found == {
        "rewrite": result.rewritten_files,
        "preserve": result.preserved_files,
        "remove": result.removed_files,
    }


# R4
def test_merge_stats_is_a_dict_with_attributes(io: AnyDatasetIO, lake: str) -> None:
    three_files(f"{lake}/t")
    stats = io.merge(pairs([1, 99]), f"{lake}/t", "full_merge", "id").stats
    assert stats == {"inserted": 1, "updated": 1, "deleted": 5, "total": 2}
    assert (stats.inserted, stats.updated, stats.deleted, stats.total) == (1, 1, 5, 2)
    assert isinstance(stats, MergeStats)
    assert isinstance(stats, dict)
    with pytest.raises(AttributeError, match="moved"):
        _ = stats.moved


# R4
def test_the_older_function_returns_the_counts(lake: str) -> None:
    three_files(f"{lake}/t")
    stats = merge_parquet_dataset_pyarrow(pairs([1, 99, 99]), f"{lake}/t", ["id"], "deduplicate", "v", "zstd")
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 7}


def stats_of(strategy: Any, before: int, after: int, inserted: int, updated: int, deleted: int) -> MergeStats:
    return compute_merge_stats(
        strategy=strategy,
        target_before=before,
        target_after=after,
        inserted_rows=inserted,
        updated_rows=updated,
        deleted_rows=deleted,
    )


# R4
@pytest.mark.parametrize(
    "numbers",
    [
        ("insert", 5, 7, 2, 0, 0),
        ("update", 5, 5, 0, 5, 0),
        ("upsert", 0, 3, 3, 0, 0),
        ("full_merge", 5, 3, 1, 2, 3),
        ("full_merge", 5, 0, 0, 0, 5),
        ("deduplicate", 1, 2, 1, 1, 0),
    ],
)
def test_numbers_that_add_up(numbers: tuple[Any, int, int, int, int, int]) -> None:
    stats = stats_of(*numbers)
    assert (stats.total, stats.inserted, stats.updated, stats.deleted) == numbers[2:]


# R4
@pytest.mark.parametrize("bad", [None, "1", 1.0])
def test_a_count_that_is_not_an_integer_is_refused_by_name(bad: Any) -> None:
    one: Any = np.int64(1)
    assert stats_of("upsert", 5, 6, one, 0, 0) == {"inserted": 1, "updated": 0, "deleted": 0, "total": 6}
    with pytest.raises(InvalidArgumentError, match="The count of inserted must be an integer"):
        stats_of("upsert", 5, 6, bad, 0, 0)
    with pytest.raises(InvalidArgumentError, match="The count of target_before must be an integer"):
        stats_of("upsert", bad, 6, 1, 0, 0)


# R4
@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        (("upsert", 5, 6, 2, 0, 0), "does not equal the rows after"),
        (("full_merge", 5, 5, 1, 0, 0), "does not equal the rows after"),
        (("upsert", 5, 4, -1, 0, 0), "negative"),
        (("upsert", 5, 5, 0, -1, 0), "negative"),
        (("full_merge", 5, 6, 0, 0, -1), "negative"),
        (("upsert", -1, 0, 1, 0, 0), "negative"),
        (("full_merge", 1, -1, 0, 0, 2), "negative"),
        (("upsert", 5, 5, 0, 6, 0), "more rows changed than the 5"),
        (("full_merge", 5, 2, 0, 3, 3), "more rows changed than the 5"),
        (("insert", 5, 5, 0, 1, 0), "'insert' does not allow these inserts or updates"),
        (("update", 5, 6, 1, 0, 0), "'update' does not allow these inserts or updates"),
        (("upsert", 5, 4, 0, 0, 1), "'upsert' deletes nothing"),
        (("insert", 5, 4, 0, 0, 1), "'insert' deletes nothing"),
        (("deduplicate", 5, 4, 0, 0, 1), "'deduplicate' deletes nothing"),
    ],
)
def test_numbers_that_cannot_be_true_are_refused(numbers: tuple[Any, int, int, int, int, int], reason: str) -> None:
    with pytest.raises(CountMismatchError, match=reason):
        stats_of(*numbers)


# R4, T6
def test_stats_of_an_unknown_strategy_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown strategy 'sideways'"):
        stats_of("sideways", 0, 0, 0, 0, 0)


# R5
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("insert", {("insert", 15), ("insert", 99)}),
        ("update", {("update", 2), ("update", 10)}),
        ("upsert", {("update", 2), ("update", 10), ("insert", 15), ("insert", 99)}),
        (
            "full_merge",
            {
                *(("update", n) for n in (2, 10)),
                *(("insert", n) for n in (15, 99)),
                *(("delete", n) for n in (1, 3, 20, 30)),
            },
        ),
    ],
)
def test_the_audit_lists_every_row_changed(
    io: AnyDatasetIO, lake: str, strategy: Any, expected: set[tuple[str, int]]
) -> None:
    three_files(f"{lake}/t")
    result = io.merge(pairs([2, 10, 15, 99], "new"), f"{lake}/t", strategy, "id", audit=True)
    audit = result.audit
    assert audit is not None
    assert audit.column_names == ["id", "merge_action"]
    assert audit.schema.field("id").type == pa.int64()
    found = [(row["merge_action"], row["id"]) for row in audit.to_pylist()]
    assert len(found) == len(expected)
    assert set(found) == expected
    actions = Counter(action for action, _ in found)
    assert (actions["insert"], actions["update"], actions["delete"]) == (
        result.inserted,
        result.updated,
        result.deleted,
    )


# R5
def test_without_audit_there_is_none(io: AnyDatasetIO, lake: str) -> None:
    assert io.merge(pairs([1]), f"{lake}/t", key_columns="id").audit is None


# R5, K9, K10, H1
def test_the_audit_of_composite_keys_with_a_partition_column(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pairs([1, 1, 2]))
    put(f"{lake}/t/day=tue/a.parquet", pairs([1]))
    source = pa.table({"id": [1, 7], "v": ["n", "n"], "day": ["mon", "wed"]})
    result = io.merge(source, f"{lake}/t", "full_merge", ["day", "id"], audit=True)
    assert result.audit is not None
    found = Counter((row["day"], row["id"], row["merge_action"]) for row in result.audit.to_pylist())
    assert found == {
        ("mon", 1, "update"): 2,
        ("wed", 7, "insert"): 1,
        ("mon", 2, "delete"): 1,
        ("tue", 1, "delete"): 1,
    }


# R5, T4, T5
def test_the_audit_of_loads_and_of_nothing(io: AnyDatasetIO, lake: str) -> None:
    first = io.merge(pairs([1, 2]), f"{lake}/t", key_columns="id", audit=True)
    assert first.audit is not None
    assert first.audit.to_pylist() == [{"id": 1, "merge_action": "insert"}, {"id": 2, "merge_action": "insert"}]
    nothing = io.merge(pairs([]), f"{lake}/t", "update", "id", audit=True)
    assert nothing.audit is not None
    assert (nothing.audit.num_rows, nothing.audit.column_names) == (0, ["id", "merge_action"])
    gone = io.merge(pairs([]), f"{lake}/t", "full_merge", "id", audit=True)
    assert gone.audit is not None
    assert [row["merge_action"] for row in gone.audit.to_pylist()] == ["delete", "delete"]


# R5, T4
def test_the_audit_of_an_update_of_nothing_is_empty_not_missing(io: AnyDatasetIO, lake: str) -> None:
    os.makedirs(f"{lake}/t")
    result = io.merge(pairs([1]), f"{lake}/t", "update", "id", audit=True)
    assert result.audit is not None
    assert result.audit.num_rows == 0


# R5, K4
def test_the_audit_lists_deleted_null_keys(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1, None], pa.int64()), "v": ["a", "b"]}))
    result = io.merge(pairs([1]), f"{lake}/t", "full_merge", "id", audit=True)
    assert result.audit is not None
    assert {"id": None, "merge_action": "delete"} in result.audit.to_pylist()
