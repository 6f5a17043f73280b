"""Deduplication keeps the right row of each key, and rewrites only files that lose rows."""

from __future__ import annotations

import math
import os
import tempfile
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.crash.faults import make_dataset_folder
from tests.support import (
    assert_unchanged,
    list_data_files,
    load,
    open_dataset_io,
    put,
    record_opened_files,
    snapshot,
    snapshot_without_locks,
    to_plain_rows,
)
from tests.values import NESTED, PLAIN, build, cells

import merganser
from merganser.core.columnar import spool
from merganser.core.columnar.hashing import hash_keys
from merganser.core.commit import staged_files as staged
from merganser.core.commit.commit import open_session
from merganser.core.dataset.snapshot import check_listing
from merganser.core.maintenance import dedupe as driver
from merganser.core.maintenance import duplicates as repeats
from merganser.core.storage.location import locate
from merganser.errors import (
    ConcurrentWriteError,
    CountMismatchError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    LockTimeoutError,
    SchemaMismatchError,
    TargetPathError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from merganser.progress import Progress

ARROW = open_dataset_io("arrow")


def table(ids: list[int | None], versions: list[Any], **columns: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "version": versions, **columns})


@pytest.fixture
def path(lake: str) -> str:
    """Three files: two that share keys, and one that shares none."""
    put(f"{lake}/t/f0.parquet", table([1, 2, 3, 4], [1, 1, 1, 1]), row_group_size=2)
    put(f"{lake}/t/f1.parquet", table([2, 3, 3, 5], [2, 0, 2, 1]), row_group_size=2)
    put(f"{lake}/t/f2.parquet", table([6, 7], [1, 1]))
    return f"{lake}/t"


def rows_of(path: str) -> list[dict[str, Any]]:
    return to_plain_rows(load(ARROW, path))


def assert_done(path: str, keys: Any, order_by: Any = ()) -> None:
    """Run it once more: not a byte changes, in the dataset or beside it."""
    before = snapshot_without_locks(os.path.dirname(path))
    again = merganser.dedupe(path, keys, order_by)
    assert (again.duplicate_keys, again.deleted) == (0, 0)
    assert (again.rewritten_files, again.removed_files) == ([], [])
    assert snapshot_without_locks(os.path.dirname(path)) == before


def test_the_highest_row_of_each_key_stays(path: str) -> None:
    before = snapshot(path)
    result = merganser.dedupe(path, "id", order_by="version")
    assert {row["id"]: row["version"] for row in rows_of(path)} == {1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}
    assert (result.target_count_before, result.target_count_after) == (10, 7)
    assert (result.duplicate_keys, result.deleted) == (2, 3)
    assert result.rewritten_files == [f"{path}/f0.parquet", f"{path}/f1.parquet"]
    assert result.preserved_files == [f"{path}/f2.parquet"]
    assert result.removed_files == []
    assert [(file.row_count, file.operation) for file in result.files] == [
        (2, "rewritten"),
        (3, "rewritten"),
        (2, "preserved"),
    ]
    # W1: what stays is in its place
    assert [row["id"] for row in rows_of(path)] == [1, 4, 2, 3, 5, 6, 7]
    assert snapshot(path)["f2.parquet"] == before["f2.parquet"]
    assert_done(path, "id", "version")


def test_of_equal_rows_the_last_stays(lake: str) -> None:
    # T3: as in `dedup_order_by`
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 1], [5, 5], n=["first", "second"]))
    put(f"{path}/b.parquet", table([1, 2], [5, 5], n=["third", "other"]))
    result = merganser.dedupe(path, "id", order_by="version")
    assert result.removed_files == [f"{path}/a.parquet"]
    assert result.rewritten_files == []
    assert [row["n"] for row in rows_of(path)] == ["third", "other"]


def test_null_is_lowest_and_nan_highest(lake: str) -> None:
    # T3: as in `dedup_order_by`
    path, nan = f"{lake}/t", float("nan")
    ids: list[int | None] = [1, 1, 2, 2, 3, 3, 4, 4]
    put(f"{path}/f.parquet", table(ids, [None, -1.0, nan, 9.0, None, None, math.inf, nan], at=list(range(8))))
    merganser.dedupe(path, "id", order_by="version")
    assert [row["at"] for row in rows_of(path)] == [1, 2, 5, 7]


def test_columns_order_rows_in_their_order(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/f.parquet", table([1, 1, 1], [2, 2, 1], text=["a", "b", "c"]))
    merganser.dedupe(path, ["id"], order_by=["version", "text"])
    assert [row["text"] for row in rows_of(path)] == ["b"]


def test_a_key_with_null_or_nan_equals_no_other(lake: str) -> None:
    # K3, K4
    path, nan = f"{lake}/t", float("nan")
    rows = {"a": [None, None, nan, nan, 0.0, -0.0], "b": ["x"] * 6, "version": [1, 2, 1, 2, 1, 2]}
    put(f"{path}/f.parquet", pa.table(rows))
    result = merganser.dedupe(path, ["a", "b"], order_by="version")
    # K6: zero is zero, whatever its sign
    assert result.deleted == 1
    assert [row["version"] for row in rows_of(path)] == [1, 2, 1, 2, 2]


def test_composite_keys_are_not_joined_strings(lake: str) -> None:
    # K10
    path = f"{lake}/t"
    put(f"{path}/f.parquet", pa.table({"a": ["a", "ab", "a"], "b": ["bc", "c", "bc"]}))
    assert merganser.dedupe(path, ["a", "b"]).deleted == 1
    assert [row["a"] for row in rows_of(path)] == ["ab", "a"]


def test_without_an_order_only_equal_rows_go(lake: str) -> None:
    path, nan = f"{lake}/t", float("nan")
    kind = pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.int8()))]))
    nested = pa.array([[{"x": 1.5, "m": [("k", None)]}], None, [{"x": nan, "m": None}]], kind)
    one = pa.table({"id": [1, 2, 3], "n": nested, "f": [nan, None, -0.0]})
    put(f"{path}/f0.parquet", one)
    put(f"{path}/f1.parquet", pa.concat_tables([one, pa.table({"id": [4], "n": nested[:1], "f": [1.0]})]))
    result = merganser.dedupe(path, "id")
    assert (result.duplicate_keys, result.deleted, result.removed_files) == (3, 3, [f"{path}/f0.parquet"])
    assert sorted(row["id"] for row in rows_of(path)) == [1, 2, 3, 4]
    assert_done(path, "id")


def test_without_an_order_rows_that_differ_are_refused(path: str) -> None:
    put(f"{path}/f3.parquet", table([7, 7], [1, 1]))
    told = r"The dataset has 2 duplicate keys whose rows differ, for example id=2; id=3\. Set order_by"
    for dry_run in (False, True):
        with assert_unchanged(path), pytest.raises(DuplicateKeyError, match=told):
            merganser.dedupe(path, "id", dry_run=dry_run)
    nested = pa.table({"id": [1, 1], "n": [[{"x": 1}], [{"x": None}]]})
    put(f"{path}2/f.parquet", nested)
    with assert_unchanged(f"{path}2"), pytest.raises(DuplicateKeyError, match=r"1 duplicate key .* id=1\."):
        merganser.dedupe(f"{path}2", "id")


def test_keys_are_compared_across_partitions(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=1/f.parquet", table([1, 2, 3], [1, 1, 1]))
    put(f"{path}/day=2/f.parquet", table([1, 3], [2, 0]))
    put(f"{path}/day=__HIVE_DEFAULT_PARTITION__/f.parquet", table([2], [7]))
    with assert_unchanged(path), pytest.raises(DuplicateKeyError, match="3 duplicate keys"):
        merganser.dedupe(path, "id")
    # With the folder in the key, no key is duplicated; NULL equals no other key.
    assert_done(path, ["id", "day"])
    assert_done(path, ["day", "id"], "version")
    merganser.dedupe(path, "id", order_by="version")
    assert sorted((row["id"], row["day"]) for row in rows_of(path)) == sorted([(1, "2"), (2, None), (3, "1")])
    assert_done(path, "id")


def test_a_partition_column_may_order_rows(lake: str) -> None:
    path = f"{lake}/t"
    merganser.write_dataset(table([1, 1, 1], [1, 1, 1], day=[2, 10, 9]), path, partition_by="day")
    result = merganser.dedupe(path, "id", order_by="day")
    # The recorded type counts: 10 is more than 9.
    assert [row["day"] for row in rows_of(path)] == [10]
    assert len(result.removed_files) == 2


def test_files_with_the_columns_in_another_order_are_compared_too(lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"], pa.string())}))
    put(f"{path}/b.parquet", pa.table({"v": pa.array(["x"]).dictionary_encode(), "id": pa.array([1], pa.int64())}))
    assert merganser.dedupe(path, "id").deleted == 1
    assert list_data_files(path) == ["b.parquet"]


def test_files_that_disagree_about_columns_are_refused(path: str) -> None:
    put(f"{path}/more.parquet", table([1], [1], w=[1]))
    with assert_unchanged(path), pytest.raises(SchemaMismatchError, match=r"'w'.*more\.parquet"):
        merganser.dedupe(path, "id", order_by="version")


def test_only_keys_and_what_orders_rows_are_read_to_decide(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{path}2/f.parquet", table([1, 1], [1, 2], wide=["x" * 1000, "y" * 1000]))
    read: set[str] = set()
    original = pq.ParquetFile.read_row_group

    def note(self: Any, group: int, columns: Any = None, **others: Any) -> pa.Table:
        read.update(columns)
        return original(self, group, columns=columns, **others)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", note)
    merganser.dedupe(f"{path}2", "id", order_by="version", dry_run=True)
    assert read == {"id", "version"}


def test_files_without_a_repeated_key_are_opened_for_their_keys_only(path: str) -> None:
    with record_opened_files() as names:
        merganser.dedupe(path, "id", order_by="version")
    # Its footer, and its keys.
    assert names.count("f2.parquet") == 2


def test_a_dataset_larger_than_one_scan(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "ROWS_PER_PASS", 100)
    monkeypatch.setattr(spool, "MAX_MEMORY_BYTES", 1000)
    monkeypatch.setattr(repeats, "TARGET_CHUNK_ROWS", 7)
    path = f"{lake}/t"
    for number in range(5):
        ids = [(number * 100 + at) % 333 for at in range(300)]
        put(f"{path}/f{number}.parquet", table([*ids], [number] * 300), row_group_size=64)
    result = merganser.dedupe(path, "id", order_by="version")
    assert (result.target_count_after, result.duplicate_keys) == (333, 333)
    highest = {(number * 100 + at) % 333: number for number in range(5) for at in range(300)}
    assert {row["id"]: row["version"] for row in rows_of(path)} == highest
    put(f"{path}/g.parquet", table(list(range(333)), [highest[at] for at in range(333)]))
    assert merganser.dedupe(path, "id").deleted == 333


def test_keys_with_equal_hashes_are_distinguished(path: str) -> None:
    def same(columns: Any) -> Any:
        return hash_keys(columns) % 2

    with mock.patch.object(repeats, "hash_keys", same):
        result = merganser.dedupe(path, "id", order_by="version")
    assert (result.duplicate_keys, result.deleted) == (2, 3)


def test_a_dry_run_counts_and_does_nothing(path: str) -> None:
    with assert_unchanged(path):
        result = merganser.dedupe(path, "id", order_by="version", dry_run=True)
    assert not os.path.exists(os.path.join(os.path.dirname(path), ".t.merganser"))
    done = merganser.dedupe(path, "id", order_by="version")
    assert (result.dry_run, done.dry_run) == (True, False)
    for name in ("duplicate_keys", "deleted", "target_count_after", "rewritten_files", "removed_files"):
        assert getattr(result, name) == getattr(done, name)


def test_history_records_it_and_undo_restores_the_bytes(path: str) -> None:
    put(f"{path}/f3.parquet", table([1], [0]))
    before = snapshot(path)
    merganser.dedupe(path, "id", order_by="version", retain=1)
    (record,) = merganser.history(path)
    assert (record.operation, record.key_columns, record.options) == (
        "dedupe",
        ["id"],
        {"retain": 1, "order_by": ["version"]},
    )
    assert (record.inserted, record.updated, record.deleted) == (0, 0, 4)
    assert (record.target_count_before, record.target_count_after) == (11, 7)
    assert [(file.path, file.operation) for file in record.files] == [
        ("f0.parquet", "rewritten"),
        ("f1.parquet", "rewritten"),
        ("f3.parquet", "removed"),
    ]
    assert merganser.undo(path).operation == "dedupe"
    assert snapshot(path) == before


def test_progress_is_reported(path: str) -> None:
    told: list[Progress] = []
    merganser.dedupe(path, "id", order_by="version", progress=told.append)
    assert [(one.stage, one.done, one.total, one.rows) for one in told] == [
        ("plan", 0, 0, 10),
        *(("rewrite", done, 2, 10) for done in range(3)),
        ("commit", 0, 2, 10),
        ("done", 0, 0, 10),
    ]


def test_a_remote_dataset_is_deduplicated_too() -> None:
    place = make_dataset_folder("memory", "")
    place.put("day=a/f.parquet", [1, 2, 3], "old")
    place.put("day=b/f.parquet", [3, 4], "new")
    result = merganser.dedupe(place.path, "id", order_by="v")
    assert result.deleted == 1
    assert ("day=a", 3, "old") in place.read_rows()
    given = fsspec.filesystem("memory")
    assert merganser.dedupe(place.path.removeprefix("memory:/"), "id", filesystem=given).deleted == 0
    place.discard()


def test_an_empty_dataset_has_no_keys(lake: str) -> None:
    put(f"{lake}/t/f.parquet", table([], []))
    with assert_unchanged(f"{lake}/t"):
        assert_done(f"{lake}/t", "id", "version")


def test_bad_arguments_are_refused_before_anything_is_done(path: str) -> None:
    put(f"{path}/f2.parquet", table([6], [1]))
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ((), {}, InvalidArgumentError, "key_columns is empty"),
        ("nobody", {}, KeyColumnError, "'nobody' is missing from the target"),
        ("id", {"order_by": "nobody"}, InvalidArgumentError, "order_by names 'nobody', which the target lacks"),
        ("id", {"order_by": ["version", "version"]}, InvalidArgumentError, "order_by names 'version' more than once"),
        ("id", {"retain": -1}, InvalidArgumentError, "retain must be"),
    ]
    for keys, options, error, told in cases:
        with assert_unchanged(path), pytest.raises(error, match=told):
            merganser.dedupe(path, keys, **options)
    put(f"{path}2/f.parquet", pa.table({"id": [1], "n": [[1]]}))
    for keys, order_by in (("n", "id"), ("id", "n")):
        with assert_unchanged(f"{path}2"), pytest.raises(UnsupportedTypeError, match="'n'"):
            merganser.dedupe(f"{path}2", keys, order_by)


@pytest.mark.parametrize("dry_run", [False, True])
def test_nothing_is_created_if_no_dataset_exists(lake: str, dry_run: bool) -> None:
    with pytest.raises(TargetPathError, match="no Parquet files below"):
        merganser.dedupe(f"{lake}/absent", "id", dry_run=dry_run)
    assert os.listdir(lake) == []


def test_a_writer_at_work_is_waited_for(path: str) -> None:
    with open_session(locate(path)), assert_unchanged(path), pytest.raises(LockTimeoutError):
        merganser.dedupe(path, "id", order_by="version", lock_timeout=0.01)


def test_another_writers_change_before_publication_is_detected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_listing

    def interfere(target: Any) -> None:
        put(f"{path}/stranger.parquet", table([77], [1]))
        check(target)

    monkeypatch.setattr(staged, "check_listing", interfere)
    before = snapshot(path)
    with pytest.raises(ConcurrentWriteError, match="stranger"):
        merganser.dedupe(path, "id", order_by="version")
    assert {name: data for name, data in snapshot(path).items() if name != "stranger.parquet"} == before


def test_rows_that_got_lost_are_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = driver._plan_deletions

    def fewer(target: Any, found: repeats.Duplicates) -> Any:
        return losses(target, repeats.Duplicates(found.key_count, found.rows[1:]))

    monkeypatch.setattr(driver, "_plan_deletions", fewer)
    with (
        assert_unchanged(path),
        pytest.raises(CountMismatchError, match="2 rows would be deleted, 3 were planned"),
    ):
        merganser.dedupe(path, "id", order_by="version")


KEYS = (
    pa.int8(),
    pa.string(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal256(50, 2),
    pa.date32(),
    pa.timestamp("ns"),
)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, pa.Table], list[str], list[str]]:
    """Files by name, key columns and columns to order by."""
    kinds = {f"k{at}": draw(st.sampled_from(KEYS)) for at in range(draw(st.integers(1, 2)))}
    keys = [*kinds]
    kinds["o"] = draw(st.sampled_from([pa.int8(), pa.float32(), pa.string(), pa.bool_()]))
    kinds["n"] = draw(st.sampled_from([*PLAIN, *NESTED]))
    values = {name: draw(st.lists(st.none() | cells(kind), min_size=1, max_size=3)) for name, kind in kinds.items()}
    folders = draw(st.sampled_from([[""], ["day=a/", "day=b/", "day=__HIVE_DEFAULT_PARTITION__/"]]))
    found = {}
    for number in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 6))
        columns = {
            name: build(draw(st.lists(st.sampled_from(values[name]), min_size=rows, max_size=rows)), kind)
            for name, kind in kinds.items()
        }
        found[f"{draw(st.sampled_from(folders))}f{number}.parquet"] = pa.table(columns)
    placed = ["day"] if folders != [""] else []
    keys += draw(st.sampled_from([[], placed]))
    return found, keys, draw(st.sampled_from([[], ["o"], ["o", *placed], [*placed, "o"]]))


def identity(value: Any) -> Any:
    """What makes two values the same: NaN is NaN and -0.0 is 0.0, also inside others."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return [(name, identity(one)) for name, one in value.items()]
    return [identity(one) for one in value] if isinstance(value, list | tuple) else value


def height(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def expected(rows: list[dict[str, Any]], keys: list[str], order_by: list[str]) -> list[dict[str, Any]] | None:
    """Return which rows stay, in dicts and loops; None if that is undecided."""
    stays: dict[str, int] = {}
    for number, row in enumerate(rows):
        values = [row[name] for name in keys]
        if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in values):
            stays[f"no key {number}"] = number
            continue
        key = repr([identity(value) for value in values])
        if key in stays and not order_by and repr(identity(row)) != repr(identity(rows[stays[key]])):
            return None
        tall = [height(row[name]) for name in order_by]
        if key not in stays or tall >= [height(rows[stays[key]][name]) for name in order_by]:
            stays[key] = number
    return [rows[number] for number in sorted(stays.values())]


@settings(max_examples=120, deadline=None)
@given(datasets(), st.booleans())
def test_dedupe_agrees_with_the_oracle(drawn: tuple[dict[str, pa.Table], list[str], list[str]], in_parts: bool) -> None:
    found, keys, order_by = drawn
    with tempfile.TemporaryDirectory() as lake, mock.patch.object(repeats, "ROWS_PER_PASS", 3 if in_parts else 100):
        path = f"{lake}/t"
        for name, one in found.items():
            put(f"{path}/{name}", one, row_group_size=3)
        before, rows = snapshot(path), rows_of(path)
        kept = expected(rows, keys, order_by)
        if kept is None:
            with assert_unchanged(path), pytest.raises(DuplicateKeyError):
                merganser.dedupe(path, keys, order_by)
            return
        result = merganser.dedupe(path, keys, order_by, retain=1)
        assert repr(rows_of(path)) == repr(kept)
        assert (result.target_count_after, result.deleted) == (len(kept), len(rows) - len(kept))
        after = snapshot(path)
        assert [f"{path}/{name}" for name in before if after.get(name) == before[name]] == result.preserved_files
        assert sorted(after) == sorted(name for name in before if f"{path}/{name}" not in result.removed_files)
        assert_done(path, keys, order_by)
        if result.deleted:
            merganser.undo(path)
        assert snapshot(path) == before
