"""One test for each scenario of the incremental Parquet merge, on every engine, by its plainest example."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files, put, read_rows, snapshot

from merganser import core
from merganser.engines import open_engine

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


def abc(ids: list[int], a: str = "a", b: int = 0) -> pa.Table:
    return pa.table({"id": ids, "a": [a] * len(ids), "b": [b] * len(ids)})


# P1, H5
def test_partition_pruning_reduces_candidate_files(io: AnyDatasetIO, lake: str) -> None:
    for day in ("2025-01-01", "2025-01-02", "2025-01-03"):
        put(f"{lake}/t/day={day}/x.parquet", abc([1, 2, 3]))
    source = abc([2]).append_column("day", pa.array(["2025-01-02"]))
    plan = io.plan(source, f"{lake}/t", "insert", "id", check_partition_moves=False)
    assert [file.candidate_groups for file in plan.files] == [0, 1, 0]


# P1, H6
def test_partition_pruning_keeps_files_of_unknown_partitions(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=2025-01-01/x.parquet", abc([1, 2, 3]))
    put(f"{lake}/t/loose.parquet", abc([1, 2, 3]).append_column("day", pa.array(["2025-01-09"] * 3)))
    source = abc([2]).append_column("day", pa.array(["2025-01-02"]))
    plan = io.plan(source, f"{lake}/t", "insert", "id", check_partition_moves=False)
    assert [file.candidate_groups for file in plan.files] == [0, 1]


# P3
def test_statistics_pruning_excludes_non_overlapping_files(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1, 2, 3]))
    put(f"{lake}/t/b.parquet", abc([10, 20]))
    plan = io.plan(abc([2]), f"{lake}/t", "update", "id")
    assert [file.candidate_groups for file in plan.files] == [1, 0]


# P4
def test_missing_or_inexact_stats_treated_as_unknown_membership(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1, 2, 3]), write_statistics=False)
    assert io.plan(abc([99]), f"{lake}/t", "update", "id").files[0].candidate_groups == 1


# T1
def test_update_replaces_full_rows(io: AnyDatasetIO, lake: str) -> None:
    io.merge(abc([1], "old", 1), f"{lake}/t", key_columns=["id"])
    source = pa.table({"id": [1], "a": pa.array([None], pa.string()), "b": [2]})
    io.merge(source, f"{lake}/t", "update", ["id"])
    assert read_rows(io, f"{lake}/t") == source.to_pylist()


# H4
def test_reject_partition_movement_on_update(io: AnyDatasetIO, lake: str) -> None:
    old = abc([1]).append_column("day", pa.array(["2025-01-01"]))
    io.merge(old, f"{lake}/t", key_columns=["id"], partition_by=["day"])
    new = abc([1]).append_column("day", pa.array(["2025-01-02"]))
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ValueError, match=r"[Pp]artition columns cannot change for existing keys"),
    ):
        io.merge(new, f"{lake}/t", "update", key_columns=["id"], partition_by=["day"])


# O2
def test_append_writes_new_parquet_files_only(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1]))
    before = snapshot(f"{lake}/t")
    io.write_dataset(abc([2]), f"{lake}/t", mode="append")
    after = snapshot(f"{lake}/t")
    assert before.items() <= after.items()
    assert len(after) == 2


# O2
def test_overwrite_replaces_parquet_data_files(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1]))
    Path(f"{lake}/t/README.txt").write_text("kept", "utf-8")
    result = io.write_dataset(abc([2]), f"{lake}/t", mode="overwrite")
    assert list_data_files(f"{lake}/t") == [os.path.relpath(result.files[0].path, f"{lake}/t")]
    assert list_data_files(f"{lake}/t") != ["a.parquet"]
    assert Path(f"{lake}/t/README.txt").read_text("utf-8") == "kept"


# O1
def test_append_returns_written_file_metadata(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1]))
    result = io.write_dataset(abc([2, 3, 4]), f"{lake}/t", mode="append", max_rows_per_file=2)
    assert [(os.path.exists(file.path), file.row_count) for file in result.files] == [(True, 2), (True, 1)]


# T2
def test_insert_appends_only_new_keys(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1], "old"))
    before = snapshot(f"{lake}/t")
    result = io.merge(abc([1, 2], "new"), f"{lake}/t", strategy="insert", key_columns=["id"])
    (new,) = result.inserted_files
    assert pq.read_table(new).column("id").to_pylist() == [2]
    assert before.items() <= snapshot(f"{lake}/t").items()


# T1
def test_update_preserves_unaffected_rows(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1, 2], "old"))
    io.merge(abc([2], "new"), f"{lake}/t", strategy="update", key_columns=["id"])
    assert [(row["id"], row["a"]) for row in read_rows(io, f"{lake}/t")] == [(1, "old"), (2, "new")]


# K10
def test_composite_keys_work_for_upsert(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "category": ["A", "B"], "v": [1, 2]}))
    source = pa.table({"id": [1, 1, 2], "category": ["A", "B", "A"], "v": [7, 8, 9]})
    result = io.merge(source, f"{lake}/t", strategy="upsert", key_columns=["id", "category"])
    assert (result.inserted, result.updated) == (2, 1)
    found = {(row["id"], row["category"]): row["v"] for row in read_rows(io, f"{lake}/t")}
    assert found == {(1, "A"): 7, (1, "B"): 8, (2, "A"): 9, (2, "B"): 2}


# P1
def test_conservative_pruning_and_key_scan_confirmation(io: AnyDatasetIO, lake: str) -> None:
    for number in range(12):
        options: dict[str, Any] = {"write_statistics": number % 2 == 0}
        put(f"{lake}/t/{number:02}.parquet", abc([number, number + 100]), **options)
    before = snapshot(f"{lake}/t")
    plan = io.plan(abc([3, 8], "new"), f"{lake}/t", "update", ["id"])
    assert [file.candidate_groups for file in plan.files] == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1]
    result = io.merge(abc([3, 8], "new"), f"{lake}/t", "update", ["id"])
    assert [os.path.basename(path) for path in result.rewritten_files] == ["03.parquet", "08.parquet"]
    after = snapshot(f"{lake}/t")
    assert {name for name in before if before[name] != after[name]} == {"03.parquet", "08.parquet"}


# R1, R2
def test_upsert_returns_metadata_for_rewritten_and_inserted_files(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1, 2]))
    put(f"{lake}/t/b.parquet", abc([8]))
    result = io.merge(abc([2, 3, 4]), f"{lake}/t", strategy="upsert", key_columns=["id"])
    found = {(file.operation, file.row_count) for file in result.files}
    assert found == {("rewritten", 2), ("inserted", 2), ("preserved", 1)}


# R2
def test_parquet_metadata_is_the_default_metadata_source(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1, 2]))
    for file in io.merge(abc([2, 3]), f"{lake}/t", key_columns=["id"]).files:
        assert (file.row_count, file.size_bytes) == (pq.read_metadata(file.path).num_rows, os.path.getsize(file.path))


# P1, T2
def test_update_rewrites_only_affected_files(io: AnyDatasetIO, lake: str) -> None:
    for name, ids in (("a", [1, 5]), ("b", [2, 6]), ("c", [3, 7])):
        put(f"{lake}/t/{name}.parquet", abc(ids))
    before = snapshot(f"{lake}/t")
    result = io.merge(abc([2, 4], "new"), f"{lake}/t", strategy="update", key_columns=["id"])
    after = snapshot(f"{lake}/t")
    assert [os.path.basename(path) for path in result.rewritten_files] == ["b.parquet"]
    assert {name for name in after if after[name] != before.get(name)} == {"b.parquet"}
    assert set(after) == set(before)
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1, 2, 3, 5, 6, 7]


# D8
@pytest.mark.parametrize("strategy", ["update", "upsert"])
def test_write_parquet_dataset_incremental_delegates_to_merge(lake: str, strategy: str) -> None:
    dataset_io: Any = open_engine("duckdb")
    for name in ("one", "two"):
        put(f"{lake}/{name}/a.parquet", abc([1, 2]))
        put(f"{lake}/{name}/b.parquet", abc([8]))
    merged = dataset_io.merge(abc([2, 3], "new"), f"{lake}/one", strategy, ["id"])
    written = dataset_io.write_parquet_dataset(
        abc([2, 3], "new"), f"{lake}/two", strategy=strategy, key_columns=["id"], rewrite_mode="incremental"
    )
    assert merged.stats == written.stats
    assert len(merged.rewritten_files) == len(written.rewritten_files) == 1
    assert read_rows(dataset_io, f"{lake}/one") == read_rows(dataset_io, f"{lake}/two")


# K3
def test_null_keys_are_rejected_at_once(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", abc([1]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="NULL"):
        io.merge(abc([1, 2]).set_column(0, "id", pa.array([1, None])), f"{lake}/t", key_columns=["id"])


# P6
def test_filesystem_errors_reach_the_caller_with_context(io: AnyDatasetIO, lake: str) -> None:
    Path(f"{lake}/t").mkdir()
    Path(f"{lake}/t/broken.parquet").write_bytes(b"not parquet at all")
    with assert_unchanged(f"{lake}/t"), pytest.raises(OSError, match=r"broken\.parquet"):
        io.merge(abc([1]), f"{lake}/t", key_columns=["id"])


# C1
def test_staging_folders_are_named_staging(lake: str) -> None:
    manager = core.IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    assert os.path.basename(folder).startswith(".staging_")
    manager.cleanup_staging_files()
    assert not os.path.exists(folder)
