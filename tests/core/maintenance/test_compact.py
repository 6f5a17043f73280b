"""Compaction: fewer files, the same rows, and nothing at all the second time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arrow_versions import bloom_filters, needs_bloom_filters
from tests.crash.faults import SCENARIOS, DatasetFolder, Fault, InjectedError, inject, make_dataset_folder
from tests.crash.killed import list_killed_steps, was_journaled
from tests.support import (
    FIXTURES,
    assert_unchanged,
    copy_fixture,
    list_data_files,
    load,
    open_dataset_io,
    put,
    snapshot,
    snapshot_without_locks,
    to_plain_rows,
)
from tests.values import NESTED, PLAIN, build, cells

import merganser
from merganser.core.columnar import spool
from merganser.core.commit import staged_files as staged
from merganser.core.commit.commit import open_session
from merganser.core.dataset.snapshot import check_listing
from merganser.core.maintenance.compact_writer import pack
from merganser.core.storage.location import locate
from merganser.errors import (
    ConcurrentWriteError,
    CountMismatchError,
    DatasetMergeError,
    InvalidArgumentError,
    LockTimeoutError,
    SchemaMismatchError,
    StagingError,
    TargetPathError,
    UnsupportedFileError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from merganser.progress import Progress

ARROW = open_dataset_io("arrow")


def table(start: int, rows: int = 4, **columns: Any) -> pa.Table:
    ids = list(range(start, start + rows))
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array([f"value {number}" for number in ids], pa.string()), **columns}
    )


@pytest.fixture
def path(lake: str) -> str:
    """Five small files of four rows."""
    for number in range(5):
        put(f"{lake}/t/f{number}.parquet", table(number * 10))
    return f"{lake}/t"


def rows_of(path: str) -> list[dict[str, Any]]:
    return to_plain_rows(load(ARROW, path))


def files(path: str) -> list[pq.FileMetaData]:
    return [pq.read_metadata(f"{path}/{name}") for name in list_data_files(path)]


def assert_done(path: str, **options: Any) -> None:
    """Run it once more: not a byte changes, in the dataset or beside it."""
    before = snapshot_without_locks(os.path.dirname(path))
    again = merganser.compact(path, **options)
    assert (again.inserted_files, again.removed_files) == ([], [])
    assert again.file_count_after == again.file_count_before
    assert snapshot_without_locks(os.path.dirname(path)) == before


def test_small_files_become_one_with_the_same_rows_in_the_same_order(path: str) -> None:
    before, names = rows_of(path), list_data_files(path)
    result = merganser.compact(path)
    assert rows_of(path) == before
    assert (result.row_count, result.file_count_before, result.file_count_after) == (20, 5, 1)
    assert result.removed_files == [f"{path}/{name}" for name in names]
    assert result.inserted_files == [f"{path}/{name}" for name in list_data_files(path)]
    assert [(file.row_count, file.operation) for file in result.files] == [(20, "inserted")]
    assert result.size_after == sum(os.path.getsize(f"{path}/{name}") for name in list_data_files(path))
    assert [metadata.num_row_groups for metadata in files(path)] == [1]
    assert_done(path)


def test_large_files_are_left_alone(path: str) -> None:
    put(f"{path}/large.parquet", table(100, 4000))
    large = snapshot(path)["large.parquet"]
    result = merganser.compact(path, target_file_bytes=len(large))
    assert result.preserved_files == [f"{path}/large.parquet"]
    assert snapshot(path)["large.parquet"] == large
    assert len(list_data_files(path)) == 2
    assert_done(path, target_file_bytes=len(large))


def test_a_file_alone_is_left_alone(lake: str) -> None:
    put(f"{lake}/t/f.parquet", table(0))
    for options in ({}, {"target_file_bytes": 1}):
        with assert_unchanged(f"{lake}/t"):
            assert_done(f"{lake}/t", **options)


def test_files_that_would_not_become_fewer_are_left_alone(path: str) -> None:
    size = os.path.getsize(f"{path}/f0.parquet")
    with assert_unchanged(path):
        assert_done(path, target_file_bytes=size + 1)


def test_files_end_at_the_size_or_row_limit(lake: str) -> None:
    path = f"{lake}/t"
    for number in range(40):
        put(f"{path}/f{number:02}.parquet", table(number * 100, 100))
    before = rows_of(path)
    merganser.compact(path, target_file_bytes=9000)
    sizes = [os.path.getsize(f"{path}/{name}") for name in list_data_files(path)]
    assert 1 < len(sizes) < 20
    assert sum(size < 9000 for size in sizes) <= 1
    assert max(sizes) < 20_000
    assert sorted(rows_of(path), key=lambda row: row["id"]) == before
    assert_done(path, target_file_bytes=9000)
    merganser.compact(path, max_rows_per_file=1500, row_group_size=600, compression="zstd")
    assert sorted(metadata.num_rows for metadata in files(path)) == [1000, 1500, 1500]
    groups = [[one.row_group(at).num_rows for at in range(one.num_row_groups)] for one in files(path)]
    assert max(itertools.chain.from_iterable(groups)) == 600
    assert {one.row_group(0).column(0).compression for one in files(path)} == {"ZSTD"}
    assert_done(path, max_rows_per_file=1500, row_group_size=600, compression="zstd")


def test_each_folder_is_compacted_separately(lake: str) -> None:
    path = f"{lake}/t"
    for number, (day, part) in enumerate(itertools.product(("a", "b%20c", "__HIVE_DEFAULT_PARTITION__"), range(2))):
        put(f"{path}/day={day}/f{part}.parquet", table(number * 10))
    put(f"{path}/day=alone/f.parquet", table(100))
    before = sorted(rows_of(path), key=lambda row: row["id"])
    result = merganser.compact(path)
    assert [os.path.dirname(name) for name in list_data_files(path)] == [
        "day=__HIVE_DEFAULT_PARTITION__",
        "day=a",
        "day=alone",
        "day=b%20c",
    ]
    assert result.preserved_files == [f"{path}/day=alone/f.parquet"]
    assert sorted(rows_of(path), key=lambda row: row["id"]) == before
    assert load(ARROW, path).schema.names == ["id", "v", "day"]
    assert_done(path)


def test_columns_that_the_path_lacks_stay_in_the_file(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=a/f.parquet", table(0))
    for number in range(2):
        put(f"{path}/g{number}.parquet", table(10 * number + 10, day=[f"{number}"] * 4))
    before = rows_of(path)
    with assert_unchanged(path):
        merganser.compact(path)
    for number in range(2):
        put(f"{path}/day=a/h{number}.parquet", table(10 * number + 50, day=["elsewhere"] * 4))
    before = sorted(rows_of(path), key=lambda row: row["id"])
    merganser.compact(path)
    assert len(list_data_files(path)) == 3
    # H1: the path wins, before as after
    assert sorted(rows_of(path), key=lambda row: row["id"]) == before
    assert_done(path)


def test_schema_and_metadata_are_those_of_the_first_file(lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False, metadata={"PARQUET:field_id": "7"}),
            pa.field("tags", pa.dictionary(pa.int32(), pa.string()), metadata={"unit": "kg"}),
            pa.field("nested", pa.struct([pa.field("x", pa.list_(pa.int8()), nullable=False)])),
            pa.field("at", pa.timestamp("ns", "Europe/Paris")),
        ],
        {"owner": "shop"},
    )
    for number in range(3):
        rows = [{"id": number, "tags": "a", "nested": {"x": [1, None]}, "at": 5}, {"id": 9}]
        put(f"{path}/f{number}.parquet", pa.Table.from_pylist(rows, schema), compression="gzip")
    first = pq.read_metadata(f"{path}/f0.parquet")
    merganser.compact(path)
    (now,) = files(path)
    assert now.schema.equals(first.schema)
    assert now.metadata == first.metadata
    assert pq.read_schema(f"{path}/{list_data_files(path)[0]}").field("id").metadata[b"PARQUET:field_id"] == b"7"
    assert pq.read_schema(f"{path}/{list_data_files(path)[0]}").equals(schema, check_metadata=False)


def test_files_of_other_schemas_are_combined_or_kept_apart(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table(0).cast(pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])))
    # Another order of columns, and a key that may be NULL.
    other = pa.table({"v": pa.array(["x", None], pa.large_string()), "id": pa.array([10, None], pa.int64())})
    put(f"{path}/b.parquet", other)
    # A list whose items are never NULL is another type.
    before = sorted(rows_of(path), key=lambda row: (row["id"] is None, row["id"]))
    merganser.compact(path)
    (name,) = list_data_files(path)
    assert pq.read_schema(f"{path}/{name}").names == ["id", "v"]
    assert sorted(rows_of(path), key=lambda row: (row["id"] is None, row["id"])) == before
    inner = [pa.list_(pa.field("item", pa.int8(), nullable=flag)) for flag in (True, False)]
    for number, kind in enumerate([*inner, *inner]):
        put(f"{lake}/u/f{number}.parquet", pa.table({"id": [number], "v": pa.array([[number]], kind)}))
    merganser.compact(f"{lake}/u")
    assert len(list_data_files(f"{lake}/u")) == 2
    assert sorted(row["id"] for row in rows_of(f"{lake}/u")) == [0, 1, 2, 3]
    assert_done(f"{lake}/u")


def test_files_that_disagree_about_columns_are_refused(path: str) -> None:
    put(f"{path}/more.parquet", table(90, w=[1, 2, 3, 4]))
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match=r"'w'.*more\.parquet"):
        merganser.compact(path)


def test_a_file_of_another_writer_keeps_its_values(lake: str) -> None:
    # What Arrow's datasets cannot read cannot be compared here.
    for name in sorted({one.name for one in FIXTURES.iterdir() if one.is_dir()} - {"arrow21_int96_far", "__pycache__"}):
        path = copy_fixture(name, lake)
        before = load(ARROW, path)
        merganser.compact(path, retain=1)
        after = load(ARROW, path)
        assert after.schema == before.schema
        order = [(before.schema.names[0], "ascending")]
        assert to_plain_rows(after.sort_by(order)) == to_plain_rows(before.sort_by(order)), name
        assert_done(path)


def test_compact_removes_empty_files_and_keeps_one_for_the_schema(path: str) -> None:
    put(f"{path}/empty.parquet", table(0, 0))
    merganser.compact(path)
    assert [metadata.num_rows for metadata in files(path)] == [20]
    empty = f"{path}2"
    for number in range(3):
        put(f"{empty}/f{number}.parquet", table(0, 0))
    merganser.compact(empty)
    assert [metadata.num_rows for metadata in files(empty)] == [0]
    assert load(ARROW, empty).schema.names == ["id", "v"]
    assert_done(empty)


# W3
def test_files_without_rows_go_from_every_folder(lake: str) -> None:
    path = f"{lake}/t"
    kept = put(f"{path}/day=1/f.parquet", table(0))
    gone = [put(f"{path}/day=__HIVE_DEFAULT_PARTITION__/f{number}.parquet", table(0, 0)) for number in range(2)]
    before = snapshot(path)
    planned = merganser.compact(path, dry_run=True)
    assert (planned.removed_files, planned.preserved_files, snapshot(path)) == (gone, [kept], before)
    result = merganser.compact(path, retain=1)
    assert (result.removed_files, result.inserted_files, result.preserved_files) == (gone, [], [kept])
    assert (result.file_count_before, result.file_count_after, result.row_count) == (3, 1, 4)
    assert list_data_files(path) == ["day=1/f.parquet"]
    assert [file.operation for file in merganser.history(path)[0].files] == ["removed", "removed"]
    assert_done(path)
    merganser.undo(path)
    assert snapshot(path) == before


# W3
def test_a_link_to_a_file_without_rows_stays(lake: str) -> None:
    put(f"{lake}/elsewhere/empty.parquet", table(0, 0))
    put(f"{lake}/t/f.parquet", table(0, 0))
    os.symlink(f"{lake}/elsewhere/empty.parquet", f"{lake}/t/link.parquet")
    merganser.compact(f"{lake}/t")
    assert list_data_files(f"{lake}/t") == ["link.parquet"]


def test_bounds_of_many_files_are_cached_and_the_second_run_writes_nothing(lake: str) -> None:
    path = f"{lake}/t"
    for number in range(70):
        put(f"{path}/day={number % 35}/f{number}.parquet", table(number * 10))
        os.utime(f"{path}/day={number % 35}/f{number}.parquet", (1, 1))
    before = sorted(rows_of(path), key=lambda row: row["id"])
    result = merganser.compact(path)
    assert (result.file_count_before, result.file_count_after) == (70, 35)
    assert sorted(rows_of(path), key=lambda row: row["id"]) == before
    assert_done(path)


@needs_bloom_filters
def test_bloom_filters_are_kept(lake: str) -> None:
    path = f"{lake}/t"
    for number in range(2):
        put(f"{path}/f{number}.parquet", table(number * 10), **bloom_filters(id=10))
    merganser.compact(path)
    (now,) = files(path)
    assert now.row_group(0).column(0).bloom_filter_offset is not None
    assert now.row_group(0).column(1).bloom_filter_offset is None


def test_sorted_files_are_marked_as_sorted(lake: str) -> None:
    path = f"{lake}/t"
    rows = [
        {"s": {"x": 1, "y": 2}, "a": value, "b": number}
        for number, value in enumerate([2.0, None, float("nan"), -0.0, 2.0, 1.0, None, 0.0])
    ]
    for number in range(4):
        put(f"{path}/f{number}.parquet", pa.Table.from_pylist(rows[number::4]))
    result = merganser.compact(path, sort_by=["a", "b"], row_group_size=3)
    assert result.sort_by == ["a", "b"]
    # NULL is lowest and NaN highest, as in `dedup_order_by`.
    assert [row["b"] for row in rows_of(path)] == [1, 6, 3, 7, 5, 0, 4, 2]
    (now,) = files(path)
    marks = [one for group in range(3) for one in now.row_group(group).sorting_columns]
    assert [(mark.column_index, mark.descending, mark.nulls_first) for mark in marks] == [
        (2, False, True),
        (3, False, True),
    ] * 3
    assert_done(path, sort_by=["a", "b"], row_group_size=3)
    assert_done(path, sort_by="a")
    assert merganser.compact(path, sort_by="b").inserted_files
    assert [row["b"] for row in rows_of(path)] == list(range(8))


def test_what_is_not_sorted_becomes_files_with_keys_of_their_own(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_MEMORY_BYTES", 10_000)
    path = f"{lake}/t"
    put(f"{path}/large.parquet", table(0, 5000).take(pa.array([(number * 37) % 5000 for number in range(5000)])))
    with assert_unchanged(path):
        merganser.compact(path, target_file_bytes=20_000)
    merganser.compact(path, sort_by="id", target_file_bytes=20_000)
    assert 1 < len(list_data_files(path)) < 6
    found = [pq.read_table(f"{path}/{name}").column("id").to_pylist() for name in list_data_files(path)]
    assert [number for ids in sorted(found) for number in ids] == list(range(5000))
    assert_done(path, sort_by="id", target_file_bytes=20_000)


def test_sorted_files_with_adjacent_keys_are_combined(lake: str) -> None:
    path = f"{lake}/t"
    # By name the keys are far apart, by their bounds they follow each other.
    for number in range(16):
        put(f"{path}/f{number:02}.parquet", table(number * 7 % 16 * 1000, 1000))
    merganser.compact(path, sort_by="id", max_rows_per_file=4000)
    ranges = sorted(
        (ids[0], ids[-1])
        for name in list_data_files(path)
        for ids in [pq.read_table(f"{path}/{name}")["id"].to_pylist()]
    )
    assert ranges == [(start, start + 3999) for start in range(0, 16_000, 4000)]
    assert_done(path, sort_by="id", max_rows_per_file=4000)


def test_after_a_merge_only_what_changed_is_sorted_again(lake: str) -> None:
    path = f"{lake}/t"
    for number in range(6):
        put(f"{path}/f{number}.parquet", table(number * 1000, 1000))
    options: dict[str, Any] = {"sort_by": "id", "max_rows_per_file": 3000}
    merganser.compact(path, **options)
    kept = snapshot(path)
    merganser.merge(table(100_000, 10), path, key_columns="id")
    result = merganser.compact(path, **options)
    assert result.preserved_files == [f"{path}/{name}" for name in sorted(kept)]
    assert len(result.removed_files) == 1
    assert_done(path, **options)


def test_a_dry_run_says_what_it_would_do_and_does_nothing(path: str) -> None:
    with assert_unchanged(path):
        result = merganser.compact(path, dry_run=True)
    assert not os.path.exists(os.path.join(os.path.dirname(path), ".t.merganser"))
    assert result.dry_run
    assert (result.file_count_before, result.file_count_after, result.size_after) == (5, None, None)
    assert result.removed_files == [f"{path}/{name}" for name in list_data_files(path)]
    merganser.compact(path)
    done = merganser.compact(path, dry_run=True)
    assert (done.file_count_after, done.removed_files) == (1, [])


def test_history_records_it_and_undo_restores_the_bytes(path: str) -> None:
    before = snapshot(path)
    merganser.compact(path, retain=1, sort_by="id", target_file_bytes=1 << 20)
    (record,) = merganser.history(path)
    assert (record.operation, record.target_count_before, record.target_count_after) == ("compact", 20, 20)
    assert (record.inserted, record.updated, record.deleted) == (0, 0, 0)
    assert record.options == {"retain": 1, "sort_by": ["id"], "target_file_bytes": 1 << 20}
    assert [file.operation for file in record.files] == ["inserted", *["removed"] * 5]
    assert merganser.undo(path).operation == "compact"
    assert snapshot(path) == before


def test_progress_is_reported(path: str) -> None:
    told: list[Progress] = []
    merganser.compact(path, progress=told.append)
    assert [(one.stage, one.done, one.total) for one in told] == [
        *(("rewrite", done, 5) for done in range(6)),
        ("commit", 0, 1),
        ("done", 0, 0),
    ]


def test_a_remote_dataset_is_compacted_too() -> None:
    place = make_dataset_folder("memory", "")
    for number in range(3):
        place.put(f"day=a/f{number}.parquet", [number, number + 10], "old")
    before = place.read_rows()
    result = merganser.compact(place.path)
    assert result.inserted_files[0].startswith("memory://")
    assert place.read_rows() == before
    assert len(place.read_files()) == 1
    given = fsspec.filesystem("memory")
    assert merganser.compact(place.path.removeprefix("memory:/"), filesystem=given).removed_files == []
    place.discard()


def test_bad_arguments_are_refused_before_anything_is_done(path: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target_file_bytes": 0}, "target_file_bytes must be a positive integer"),
        ({"target_file_bytes": 1.5}, "target_file_bytes must be a positive integer"),
        ({"sort_by": ["id", "id"]}, "sort_by names 'id' more than once"),
        ({"sort_by": "nobody"}, "sort_by names 'nobody', which the target lacks"),
        ({"compression": "zip"}, "Unknown compression"),
        ({"retain": -1}, "retain must be"),
    ]
    for options, told in cases:
        with assert_unchanged(path), pytest.raises(InvalidArgumentError, match=told):
            merganser.compact(path, **options)
    put(f"{path}2/day=a/f.parquet", table(0, n=[[1]] * 4))
    with assert_unchanged(f"{path}2"), pytest.raises(InvalidArgumentError, match="partition column 'day'"):
        merganser.compact(f"{path}2", sort_by="day")
    with assert_unchanged(f"{path}2"), pytest.raises(UnsupportedTypeError, match="'n'"):
        merganser.compact(f"{path}2", sort_by="n")


@pytest.mark.parametrize("dry_run", [False, True])
def test_nothing_is_created_if_no_dataset_exists(lake: str, dry_run: bool) -> None:
    os.makedirs(f"{lake}/empty")
    for name in ("absent", "empty"):
        with pytest.raises(TargetPathError, match=f"no Parquet files below .*{name}"):
            merganser.compact(f"{lake}/{name}", dry_run=dry_run)
    assert sorted(os.listdir(lake)) == ["empty"]


def test_a_writer_at_work_is_waited_for(path: str) -> None:
    with open_session(locate(path)), assert_unchanged(path), pytest.raises(LockTimeoutError):
        merganser.compact(path, lock_timeout=0.01)


def test_another_writers_change_before_publication_is_detected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_listing

    def interfere(target: Any) -> None:
        put(f"{path}/stranger.parquet", table(77))
        check(target)

    monkeypatch.setattr(staged, "check_listing", interfere)
    before = snapshot(path)
    with pytest.raises(ConcurrentWriteError, match="stranger"):
        merganser.compact(path)
    assert {name: data for name, data in snapshot(path).items() if name != "stranger.parquet"} == before


def test_rows_that_got_lost_are_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merganser.core.maintenance.compact.pack", lambda pieces, *others: pack(pieces[1:], *others))
    with assert_unchanged(path), pytest.raises(CountMismatchError, match="20 were planned"):
        merganser.compact(path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("compact", "local"), ("compact", "memory"), ("sorted_compact", "local")])
@pytest.mark.parametrize("mode", ["before", "dead"])
def test_a_fault_at_any_step_leaves_the_old_files_or_the_new_ones(
    name: str, kind: str, mode: Any, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C3, C4, C7
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seen: set[bool] = set()
    for step in itertools.count(1):
        place, fault = make_dataset_folder(kind, lake), Fault(step, mode)
        SCENARIOS[name].setup(place)
        before, rows = place.read_files(), place.read_rows()
        refusal: Exception | None = None
        with inject(fault):
            try:
                SCENARIOS[name].change(place)
            except (InjectedError, StagingError, DatasetMergeError) as error:
                refusal = error
        if isinstance(refusal, DatasetMergeError) and not isinstance(refusal, StagingError):
            # Publication may fail only after the journal, and the error reports that.
            assert fault.journaled or "not known whether the commit happened" in str(refusal)
            assert "recover(path)" in str(refusal)
        if not fault.journaled:
            assert place.read_files() == before
        place.expire_lease()
        merganser.recover(place.path)
        assert place.list_staging() == []
        assert place.read_rows() == rows
        kept = {rel for rel in place.read_files() if rel.endswith(".parquet")}
        assert kept == set(before) if not fault.journaled else len(kept) == 3
        assert len(merganser.history(place.path)) == fault.journaled
        if fault.journaled:
            merganser.undo(place.path)
            assert place.read_files() == before
        seen.add(fault.journaled)
        place.discard()
        if not fault.fired:
            break
    assert seen == {False, True}


@pytest.mark.slow
def test_a_process_that_ends_at_any_step_leaves_a_dataset_to_recover(lake: str) -> None:
    # C4, C5: real processes, ended without any cleanup, while they compact and again while they recover
    folder = os.path.join(lake, "killed")
    command = [sys.executable, "-m", "tests.crash.killed", "compact", "before", folder]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True, timeout=100)
    place = make_dataset_folder("local", lake)
    SCENARIOS["compact"].setup(place)
    old = place.read_rows()
    committed = []
    for step in list_killed_steps(folder):
        killed = DatasetFolder(f"{folder}/{step}/t")
        committed.append(was_journaled(folder, step))
        merganser.recover(killed.path)
        assert killed.list_staging() == []
        assert killed.read_rows() == old
        assert len(list_data_files(killed.path)) == (3 if committed[-1] else 6)
    assert set(committed) == {False, True}


def test_merges_at_the_same_time_wait_for_their_turn(path: str) -> None:
    # C5
    def merge() -> None:
        for number in range(6):
            merganser.merge(table(1000 + number, 1), path, key_columns="id", engine="arrow")

    other = threading.Thread(target=merge)
    other.start()
    while other.is_alive():
        merganser.compact(path)
    other.join()
    merganser.compact(path)
    assert len(list_data_files(path)) == 1
    assert sorted(row["id"] for row in rows_of(path) if row["id"] >= 1000) == list(range(1000, 1006))
    assert len(rows_of(path)) == 26


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Files by name, and options."""
    kinds = draw(st.lists(st.sampled_from([*PLAIN, *NESTED]), min_size=1, max_size=3))
    key = draw(st.sampled_from([pa.int64(), pa.string(), pa.float64(), pa.decimal128(9, 2), pa.timestamp("us")]))
    found = {}
    for number in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(0, 5))
        columns = {
            f"c{at}": build(draw(st.lists(st.none() | cells(kind), min_size=rows, max_size=rows)), kind)
            for at, kind in enumerate([key, *kinds])
        }
        folder = draw(st.sampled_from(["", "day=a/", "day=__HIVE_DEFAULT_PARTITION__/"]))
        found[f"{folder}f{number}.parquet"] = pa.table(columns)
    if len({"day" in name for name in found}) > 1:
        found = {
            name.replace("day=a/", "").replace("day=__HIVE_DEFAULT_PARTITION__/", ""): one
            for name, one in found.items()
        }
    options = {
        "target_file_bytes": draw(st.sampled_from([1, 700, 2000, 10_000, 1 << 27])),
        "max_rows_per_file": draw(st.sampled_from([1, 3, 7, 1000])),
        "row_group_size": draw(st.sampled_from([1, 2, 1000])),
        "sort_by": draw(st.sampled_from([(), "c0"])),
    }
    return found, options


@settings(max_examples=60, deadline=None)
@given(datasets())
def test_any_dataset_keeps_its_rows_and_is_done_at_once(drawn: tuple[dict[str, pa.Table], dict[str, Any]]) -> None:
    found, options = drawn
    with tempfile.TemporaryDirectory() as lake:
        path = f"{lake}/t"
        for name, one in found.items():
            put(f"{path}/{name}", one)
        before, bytes_before, schema = rows_of(path), snapshot(path), load(ARROW, path).schema
        result = merganser.compact(path, retain=1, **options)
        assert sorted(map(repr, rows_of(path))) == sorted(map(repr, before))
        assert load(ARROW, path).schema == schema
        assert result.file_count_after == len(list_data_files(path))
        # Files without rows are removed, except for the first if there is no other.
        filled = [name for name, one in found.items() if one.num_rows] or sorted(found)[:1]
        assert {os.path.dirname(name) for name in list_data_files(path)} == {os.path.dirname(name) for name in filled}
        if options["sort_by"]:
            assert all(
                pq.read_metadata(f"{path}/{name}").num_rows <= options["max_rows_per_file"] or name in found
                for name in list_data_files(path)
            )
        else:
            assert len(list_data_files(path)) <= len(found)
        assert_done(path, **options)
        if result.removed_files:
            merganser.undo(path)
        assert snapshot(path) == bytes_before


# ---- links


def linked(lake: str) -> str:
    path = f"{lake}/t"
    for number in range(3):
        put(f"{path}/2024/f{number}.parquet", table(number * 10, 10))
    return path


@pytest.mark.parametrize("link", ["folder", "file"])
@pytest.mark.parametrize("work", [merganser.compact, lambda path: merganser.dedupe(path, "id")])
def test_a_file_that_a_link_shows_twice_is_refused(link: str, work: Any, lake: str) -> None:
    path = linked(lake)
    if link == "folder":
        os.symlink(f"{path}/2024", f"{path}/latest")
    else:
        os.symlink(f"{path}/2024/f0.parquet", f"{path}/2024/z.parquet")
    with assert_unchanged(path), pytest.raises(UnsupportedFileError, match="are the same file, through a link"):
        work(path)


def test_linked_files_are_left_alone(lake: str) -> None:
    path = linked(lake)
    put(f"{lake}/elsewhere.parquet", table(100, 10))
    os.symlink(f"{lake}/elsewhere.parquet", f"{path}/2024/linked.parquet")
    result = merganser.compact(path)
    assert len(result.removed_files) == 3
    assert result.preserved_files == [f"{path}/2024/linked.parquet"]
    assert os.path.islink(f"{path}/2024/linked.parquet")
    assert sorted(row["id"] for row in rows_of(path)) == [*range(30), *range(100, 110)]


# ---- layout of the existing files


def test_a_file_that_changes_after_a_compaction_was_journaled_stops_it(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = linked(lake)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("merganser.core.commit.commit.publish", stop)
        with pytest.raises(KeyboardInterrupt):
            merganser.compact(path)
    put(f"{path}/2024/f1.parquet", table(500, 1))
    before = snapshot(path)
    with pytest.raises(ConcurrentWriteError, match=r"f1\.parquet was changed by another program"):
        merganser.recover(path)
    assert snapshot(path) == before
    os.rename(f"{path}/2024/f1.parquet", f"{lake}/strange.parquet")
    assert merganser.recover(path)
    assert sorted(row["id"] for row in rows_of(path)) == list(range(30))


def test_new_files_are_compressed_like_old_ones(lake: str) -> None:
    path = f"{lake}/t"
    for number in range(3):
        put(f"{path}/f{number}.parquet", table(number * 10, 10), compression="zstd")
    merganser.compact(path)
    (metadata,) = files(path)
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    put(f"{path}/z.parquet", table(100, 10), compression="zstd")
    merganser.compact(path, compression="gzip")
    (metadata,) = files(path)
    assert metadata.row_group(0).column(0).compression == "GZIP"


def test_a_file_of_sorted_row_groups_is_not_sorted(lake: str) -> None:
    path = f"{lake}/t"
    marks = [pq.SortingColumn(0, nulls_first=True)]
    put(f"{path}/a.parquet", pa.table({"id": [5, 6, 1, 2]}), row_group_size=2, sorting_columns=marks)
    merganser.compact(path, sort_by="id", target_file_bytes=1 << 20)
    assert [row["id"] for row in rows_of(path)] == [1, 2, 5, 6]
    assert_done(path, sort_by="id", target_file_bytes=1 << 20)


def test_a_type_that_cannot_be_written_is_refused_wherever_it_is(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"v": pa.array([b"x" * 12], pa.binary(12))}))
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT INTERVAL 1 DAY AS v) TO '{path}/b.parquet'")
    with assert_unchanged(path), pytest.raises(UnsupportedTypeError, match="'v'"):
        merganser.compact(path)


@pytest.mark.parametrize("work", [merganser.compact, lambda path: merganser.dedupe(path, "id")])
def test_a_file_is_not_a_dataset(work: Any, lake: str) -> None:
    put(f"{lake}/a.parquet", table(0, 1))
    with pytest.raises(TargetPathError, match="is a file; a dataset is a folder"):
        work(f"{lake}/a.parquet")


@pytest.mark.slow
def test_files_that_shrink_in_steps_end_in_one_run(lake: str) -> None:
    # What one run gives up on, the next one must not look at one step deeper.
    for seed in range(90, 96):
        rng, path = np.random.default_rng(seed), f"{lake}/{seed}"
        for number in range(int(rng.integers(2, 15))):
            values = rng.integers(0, int(rng.choice([20, 1000, 10**9])), int(rng.integers(1, 3000)))
            rows = pa.table({"p": values, "q": [f"x{value}" for value in values]})
            put(f"{path}/f{number:02}.parquet", rows, row_group_size=int(rng.choice([100, 1000, 10_000])))
        options: dict[str, Any] = {"sort_by": "p", "target_file_bytes": 3000, "max_rows_per_file": 500}
        merganser.compact(path, **options, compression="none")
        assert_done(path, **options, compression="none")
