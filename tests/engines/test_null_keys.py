"""NULL in keys with `null_keys="match"`, where it equals NULL (Q5), beside the default, where it is refused (K3)."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.clause_oracle import needs_merge
from tests.support import (
    assert_unchanged,
    decide_here,
    edit_footer,
    load,
    open_dataset_io,
    put,
    snapshot,
    snapshot_without_locks,
)
from tests.values import is_carried_by_spark

import merganser
from merganser.core.dataset import file_statistics, statistics_cache
from merganser.core.dataset.snapshot import load_target
from merganser.core.merge import filter_pruning
from merganser.core.model.keys import MAX_NULL_SAFE_KEYS
from merganser.core.storage.location import locate
from merganser.errors import (
    ColumnValueError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    PartitionMoveError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support import AnyDatasetIO

    from merganser.core.model.strategy import MergeStrategy

MATCH: dict[str, Any] = {"null_keys": "match"}
OUTSIDE = "no source key lies inside its bounds"
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# What stands for NULL inside is a value like any other.
FILLS = {pa.int64(): 0, pa.string(): "", pa.float64(): 0.0, pa.date32(): dt.date(1970, 1, 1), pa.bool_(): False}


def rows_of(ids: Sequence[Any], values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, kind or pa.int64()), "v": pa.array(values, pa.string())})


def values_of(io: AnyDatasetIO, path: str, key: str = "id") -> list[tuple[Any, Any]]:
    return sorted(((row[key], row["v"]) for row in load(io, path).to_pylist()), key=repr)


def count(result: Any) -> tuple[int, int, int]:
    return result.inserted, result.updated, result.deleted


# Q5 T1 K4
@pytest.mark.parametrize(
    ("strategy", "counts", "values"),
    [
        ("upsert", (1, 1, 0), ["new", "b", "c", "3"]),
        ("update", (0, 1, 0), ["new", "b", "c"]),
        ("insert", (1, 0, 0), ["a", "b", "c", "3"]),
        ("deduplicate", (1, 1, 0), ["new", "b", "c", "3"]),
        ("full_merge", (1, 1, 2), ["new", "3"]),
        ("delete", (0, 0, 1), ["b", "c"]),
    ],
)
def test_null_matches_null_with_every_strategy(
    io: AnyDatasetIO, lake: str, strategy: MergeStrategy, counts: tuple[int, int, int], values: list[str]
) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, 0], ["a", "b"]))
    put(f"{lake}/t/two.parquet", rows_of([1], ["c"]))
    source = rows_of([None, 3], ["new", "3"])
    planned = io.plan(source, f"{lake}/t", strategy, "id", **MATCH)
    result = io.merge(source, f"{lake}/t", strategy, "id", **MATCH)
    assert count(result) == count(planned) == counts
    assert sorted(value for _, value in values_of(io, f"{lake}/t")) == sorted(values)


# Q5 K9
def test_every_target_row_with_null_is_a_match(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, 1, None], ["a", "b", "c"]))
    put(f"{lake}/t/two.parquet", rows_of([None], ["d"]))
    assert count(io.merge(rows_of([None], ["new"]), f"{lake}/t", "upsert", "id", **MATCH)) == (0, 3, 0)
    assert values_of(io, f"{lake}/t") == [(1, "b"), (None, "new"), (None, "new"), (None, "new")]


# Q5
@pytest.mark.parametrize("kind", FILLS, ids=str)
def test_no_value_equals_null(io: AnyDatasetIO, lake: str, kind: pa.DataType) -> None:
    put(f"{lake}/t/one.parquet", rows_of([FILLS[kind]], ["value"], kind))
    result = io.merge(rows_of([None], ["null"], kind), f"{lake}/t", "upsert", "id", **MATCH)
    assert count(result) == (1, 0, 0)
    result = io.merge(rows_of([FILLS[kind], None], ["x", "y"], kind), f"{lake}/t", "upsert", "id", **MATCH)
    assert count(result) == (0, 2, 0)
    assert values_of(io, f"{lake}/t") == sorted([(FILLS[kind], "x"), (None, "y")], key=repr)


# Q5 K10
def test_null_matches_in_each_column_of_a_composite_key(io: AnyDatasetIO, lake: str) -> None:
    keys = [(None, "x"), (0, None), (None, None), (0, ""), (0, "x"), (None, "")]
    table = pa.table(
        {"a": pa.array([a for a, _ in keys], pa.int64()), "b": [b for _, b in keys], "v": [f"{key}" for key in keys]}
    )
    put(f"{lake}/t/one.parquet", table, row_group_size=2)
    for key in [*keys, (1, None), (None, "y")]:
        source = pa.table({"a": pa.array([key[0]], pa.int64()), "b": pa.array([key[1]], pa.string()), "v": ["new"]})
        planned = io.plan(source, f"{lake}/t", "upsert", ["a", "b"], **MATCH)
        assert count(planned) == ((0, 1, 0) if key in keys else (1, 0, 0)), key
    source = table.set_column(2, "v", pa.array(["new"] * 6)).slice(1, 3)
    assert count(io.merge(source, f"{lake}/t", "upsert", ["b", "a"], **MATCH)) == (0, 3, 0)
    found = {(row["a"], row["b"]): row["v"] for row in load(io, f"{lake}/t").to_pylist()}
    assert found == {key: "new" if key in keys[1:4] else f"{key}" for key in keys}


# Q5 K5
def test_two_source_rows_with_null_are_duplicates(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([1], ["a"]))
    source = rows_of([None, 2, None], ["x", "y", "z"])
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match=r"has 1 duplicate key, .* id=None"):
        io.merge(source, f"{lake}/t", "upsert", "id", **MATCH)
    pairs = pa.table({"a": pa.array([1, 1, None, None], pa.int64()), "b": pa.array([None, 0, 0, None], pa.int64())})
    assert count(io.merge(pairs, f"{lake}/pairs", "upsert", ["a", "b"], **MATCH)) == (4, 0, 0)


# Q5 T3 M1
def test_deduplicate_and_delete_keep_one_row_with_null(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, 1, 2], ["a", "b", "c"]))
    source = rows_of([None, 2, None, 3], ["x", "y", "z", "w"])
    result = io.merge(source, f"{lake}/t", "deduplicate", "id", **MATCH)
    assert (count(result), result.deduplicated) == ((1, 2, 0), 1)
    assert values_of(io, f"{lake}/t") == [(1, "b"), (2, "y"), (3, "w"), (None, "z")]
    result = io.merge(source, f"{lake}/t", "deduplicate", "id", dedup_order_by="v", **MATCH)
    assert dict(values_of(io, f"{lake}/t"))[None] == "z"
    assert count(io.merge(rows_of([None, None], [None, None]), f"{lake}/t", "delete", "id", **MATCH)) == (0, 0, 1)
    assert values_of(io, f"{lake}/t") == [(1, "b"), (2, "y"), (3, "w")]


# Q5 M3 M4
def test_a_feed_with_sequence_and_operations_matches_null(io: AnyDatasetIO, lake: str) -> None:
    path, keys = f"{lake}/t", ["a", "b"]
    columns = [("a", pa.int64()), ("b", pa.string()), ("at", pa.int64()), ("v", pa.string())]
    held = [(None, "x", 5, "old"), (1, None, 5, "old"), (None, None, 5, "old")]
    put(
        f"{path}/one.parquet",
        pa.Table.from_pylist([dict(zip("abtv", row, strict=True)) for row in held])
        .rename_columns([name for name, _ in columns])
        .cast(pa.schema(columns)),
    )
    feed = pa.table(
        {
            "a": pa.array([None, None, 1, None, 2], pa.int64()),
            "b": pa.array(["x", "x", None, None, None], pa.string()),
            "at": [7, 6, 4, 6, 1],
            "v": ["newest", "newer", "late", None, "first"],
            "op": ["u", "u", "u", "d", "c"],
        }
    )
    result = io.merge(feed, path, "upsert", keys, sequence_column="at", operation_column="op", **MATCH)
    assert (count(result), result.skipped) == ((1, 1, 1), 1)
    found = sorted(((row["a"], row["b"], row["v"]) for row in load(io, path).to_pylist()), key=repr)
    assert found == sorted([(None, "x", "newest"), (1, None, "old"), (2, None, "first")], key=repr)


# Q5 M5 C7
def test_a_replay_with_null_keys_writes_nothing(io: AnyDatasetIO, lake: str) -> None:
    source = rows_of([None, 1], ["a", "b"])
    assert count(io.merge(source, f"{lake}/t", "upsert", "id", skip_unchanged=True, **MATCH)) == (2, 0, 0)
    before = snapshot_without_locks(lake)
    result = io.merge(source, f"{lake}/t", "upsert", "id", skip_unchanged=True, **MATCH)
    assert (count(result), result.skipped) == ((0, 0, 0), 2)
    assert snapshot_without_locks(lake) == before


# Q5 R5 M9
def test_audit_and_history_have_rows_with_null_keys(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, 1], ["a", "b"]))
    result = io.merge(rows_of([None, 2], ["x", "y"]), f"{lake}/t", "full_merge", "id", audit="rows", retain=1, **MATCH)
    assert result.audit is not None
    found = {(row["merge_action"], row["id"]): row["merge_old"] for row in result.audit.to_pylist()}
    old = {"update": {"id": None, "v": "a"}, "insert": None}
    assert {pair: row for pair, row in found.items() if pair[0] != "delete"} == {
        ("update", None): old["update"],
        ("insert", 2): None,
    }
    assert ("delete", 1) in found
    record = merganser.history(f"{lake}/t")[0]
    assert (record.options["null_keys"], record.inserted, record.updated, record.deleted) == ("match", 1, 1, 1)
    merganser.undo(f"{lake}/t")
    assert values_of(io, f"{lake}/t") == [(1, "b"), (None, "a")]


# Q5 K4
@pytest.mark.parametrize("strategy", ["upsert", "update", "insert", "full_merge", "deduplicate", "delete"])
def test_a_source_without_null_is_merged_as_by_default(io: AnyDatasetIO, lake: str, strategy: MergeStrategy) -> None:
    for name in ("t", "u"):
        put(f"{lake}/{name}/day=1/one.parquet", rows_of([None, 1, 5], ["a", "b", "c"]), row_group_size=1)
        put(f"{lake}/{name}/day=1/two.parquet", rows_of([None, None], ["d", "e"]))
        put(f"{lake}/{name}/day={NULL_FOLDER}/three.parquet", rows_of([1, None], ["f", "g"]), write_statistics=False)
    source = rows_of([0, 1], ["x", "y"]).append_column("day", pa.array([1, 1], pa.int64()))
    keys = ["id", "day"]
    asked: list[tuple[str, dict[str, Any]]] = [("t", {"null_keys": "refuse"}), ("u", MATCH)]
    plans = [
        str(io.plan(source, f"{lake}/{name}", strategy, keys, **options)).replace(f"{lake}/{name}", "")
        for name, options in asked
    ]
    assert plans[0] == plans[1]
    results = [io.merge(source, f"{lake}/{name}", strategy, keys, **options) for name, options in asked]
    assert count(results[0]) == count(results[1])
    assert values_of(io, f"{lake}/t") == values_of(io, f"{lake}/u")


# K3
def test_null_is_refused_by_default_with_the_option_as_remedy(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([1], ["a"], pa.float64()))
    default: dict[str, Any] = {}
    for options in (default, {"null_keys": "refuse"}):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(KeyColumnError, match=r"'id' in 2 rows.*, or pass null_keys='match' to let NULL equal NULL"),
        ):
            io.merge(rows_of([None, math.nan], ["x", "y"], pa.float64()), f"{lake}/t", "upsert", "id", **options)
    with pytest.raises(KeyColumnError, match=r"'id' in 1 row. Filter or fill those rows before merging\.$"):
        io.merge(rows_of([math.nan], ["y"], pa.float64()), f"{lake}/t", "upsert", "id")


# K3 Q5
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_nan_in_a_source_key_stays_refused(io: AnyDatasetIO, lake: str, kind: pa.DataType) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, math.nan, 0.0], ["a", "b", "c"], kind))
    source = rows_of([None, math.nan], ["x", "y"], kind)
    for call in (io.plan, io.merge):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(KeyColumnError, match="has NaN in key columns: 'id' in 1 row"),
        ):
            call(source, f"{lake}/t", "upsert", "id", **MATCH)
    assert count(io.merge(source.slice(0, 1), f"{lake}/t", "full_merge", "id", **MATCH)) == (0, 1, 2)


def test_other_values_and_too_many_keys_are_refused(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([1], ["a"]))
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(InvalidArgumentError, match=r"Unknown null_keys 'equal'. Choose one of: refuse"),
    ):
        io.merge(rows_of([1], ["b"]), f"{lake}/t", "upsert", "id", null_keys=cast("Any", "equal"))
    names = [f"k{number}" for number in range(MAX_NULL_SAFE_KEYS + 1)]
    values: list[int | None] = [None] * len(names)
    wide = pa.table({name: pa.array([value], pa.int64()) for name, value in zip(names, values, strict=True)})
    with pytest.raises(InvalidArgumentError, match=r"allows up to 62 key columns, not 63. Use fewer"):
        io.merge(wide, f"{lake}/wide", "upsert", names, **MATCH)
    for _ in range(2):
        result = io.merge(wide, f"{lake}/wide", "upsert", names[:-1], **MATCH)
    assert count(result) == (0, 1, 0)


# Q5 S1
def test_null_in_a_required_key_is_refused(io: AnyDatasetIO, lake: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    put(f"{lake}/t/one.parquet", pa.table({"id": [1], "v": ["a"]}, schema=schema))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match=r"'id' holds NULL.*NOT NULL"):
        io.merge(rows_of([None], ["x"]), f"{lake}/t", "upsert", "id", **MATCH)


# -------------------- pruning


# Q5 P1 P3
def test_only_row_groups_with_null_are_read_for_null(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/both.parquet", rows_of([100, 101, None, 103], ["a", "b", "c", "d"]), row_group_size=2)
    put(f"{lake}/t/null.parquet", rows_of([None, None], ["e", "f"]))
    put(f"{lake}/t/without.parquet", rows_of([-5, 0, 5], ["g", "h", "i"]))
    files = {
        file.path.rsplit("/", 1)[1]: file
        for file in io.plan(rows_of([None], ["x"]), f"{lake}/t", "upsert", "id", **MATCH).files
    }
    assert [files[f"{name}.parquet"].candidate_groups for name in ("both", "null", "without")] == [1, 1, 0]
    assert files["without.parquet"].reason == OUTSIDE
    # What stands for NULL widens no bounds for values: 50 is between it and the keys of `both`.
    plan = io.plan(rows_of([50, 0], ["x", "y"]), f"{lake}/t", "upsert", "id", **MATCH)
    files = {file.path.rsplit("/", 1)[1]: file for file in plan.files}
    assert [files[f"{name}.parquet"].candidate_groups for name in ("both", "null", "without")] == [0, 1, 1]


# Q5 P3
def test_other_columns_of_a_key_with_null_prune(io: AnyDatasetIO, lake: str) -> None:
    for number in range(4):
        ids, notes = [10 * number, 10 * number + 5], [None, "x"]
        put(f"{lake}/t/f{number}.parquet", pa.table({"a": ids, "b": notes, "v": ["old"] * 2}))
    source = pa.table({"a": [20], "b": pa.array([None], pa.string()), "v": ["new"]})
    plan = io.plan(source, f"{lake}/t", "upsert", ["a", "b"], **MATCH)
    # NULL might be in column a as well, so that its bounds hold what stands for NULL there: 0.
    nulls = [file.candidate_groups for file in plan.files]
    assert (nulls[:2], nulls[2], plan.updated) == ([0, 0], 1, 1)


# Q5 P4
@pytest.mark.parametrize("missing", ["statistics", "null count", "bounds"])
def test_statistics_without_a_null_count_prove_nothing(io: AnyDatasetIO, lake: str, missing: str) -> None:
    for name, ids in (("null", [7, None]), ("values", [7, 9])):
        path = put(f"{lake}/t/{name}.parquet", rows_of(ids, ["a", "b"]), write_statistics=missing != "statistics")
        with edit_footer(path) as tree:
            for group in tree[4] if missing != "statistics" else []:
                chunk = group[1][0][3]
                gone = {3: None} if missing == "null count" else {5: None, 6: None, 1: None, 2: None}
                chunk.values[12] = chunk[12].replace(gone)
    plan = io.plan(rows_of([None], ["x"]), f"{lake}/t", "upsert", "id", **MATCH)
    assert [file.candidate_groups for file in plan.files] == [1, 1]
    assert count(io.merge(rows_of([None], ["x"]), f"{lake}/t", "upsert", "id", **MATCH)) == (0, 1, 0)
    assert values_of(io, f"{lake}/t") == [(7, "a"), (7, "a"), (9, "b"), (None, "x")]


@pytest.fixture
def eager_caches() -> Iterator[None]:
    """Use the statistics cache and key filters for small files, at once."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(file_statistics, "SETTLE_NANOSECONDS", 0))
        patches.enter_context(mock.patch.object(statistics_cache, "MIN_FILES", 1))
        patches.enter_context(mock.patch.multiple(filter_pruning, MIN_TOTAL_ROWS=1, MIN_FILE_ROWS=1))
        yield


# Q5 P1
@pytest.mark.usefixtures("eager_caches")
def test_key_filters_made_by_default_lose_no_row_with_null(io: AnyDatasetIO, lake: str) -> None:
    decide_here(io)
    for number in range(6):
        ids = [None if at == number else 1000 * at + number for at in range(10)]
        put(f"{lake}/t/f{number}.parquet", rows_of(ids, ["old"] * 10), row_group_size=5)
    # Filters of keys without NULL are stored for every file.
    assert io.merge(rows_of([4_444], ["new"]), f"{lake}/t", "upsert", "id").inserted == 1
    source = rows_of([None, 1003, 4_445], ["new"] * 3)
    assert count(io.plan(source, f"{lake}/t", "upsert", "id", **MATCH)) == (1, 7, 0)
    # And null-safe ones of the same columns, for files without a match.
    assert count(io.merge(rows_of([4_446], ["new"]), f"{lake}/t", "upsert", "id", **MATCH)) == (1, 0, 0)
    assert count(io.plan(source, f"{lake}/t", "upsert", "id", **MATCH)) == (1, 7, 0)
    assert count(io.merge(source, f"{lake}/t", "upsert", "id", **MATCH)) == (1, 7, 0)
    assert sum(value == "new" for _, value in values_of(io, f"{lake}/t")) == 10
    # The null-safe ones answer for keys with and without NULL, and the others are still right.
    assert count(io.merge(source, f"{lake}/t", "upsert", "id", **MATCH)) == (0, 8, 0)
    assert count(io.merge(rows_of([2003, 5_000_000], ["x"] * 2), f"{lake}/t", "upsert", "id")) == (1, 1, 0)


# Q5 P1
@pytest.mark.usefixtures("eager_caches")
def test_null_safe_key_filters_prune(io: AnyDatasetIO, lake: str) -> None:
    decide_here(io)
    for number in range(4):
        ids = [*range(number, 400, 4), *([None] if number == 2 else [])]
        table = pa.table({"a": ids, "b": pa.array([None] * len(ids), pa.string()), "v": ["old"] * len(ids)})
        put(f"{lake}/t/f{number}.parquet", table)
    source = pa.table(
        {"a": pa.array([201, None], pa.int64()), "b": pa.array([None, None], pa.string()), "v": ["new"] * 2}
    )
    reason = "no source key passes the filter of its keys"
    for _ in range(2):
        plan = io.plan(source, f"{lake}/t", "upsert", ["a", "b"], **MATCH)
        assert [file.reason == reason for file in plan.files] == [True, False, False, True]
        # The second time, the filters are stored.
        other = pa.table({"a": [4_000], "b": pa.array([None], pa.string()), "v": ["x"]})
        io.merge(other, f"{lake}/t", "update", ["a", "b"], **MATCH)
    assert count(io.merge(source, f"{lake}/t", "upsert", ["a", "b"], **MATCH)) == (0, 2, 0)


# Q5 P1
def test_cached_statistics_know_where_null_might_be(lake: str) -> None:
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(file_statistics, "SETTLE_NANOSECONDS", 0))
        patches.enter_context(mock.patch.object(statistics_cache, "MIN_FILES", 1))
        io = open_dataset_io("arrow")
        for number in range(4):
            put(f"{lake}/t/f{number}.parquet", rows_of([number, None if number % 2 else 9], ["a", "b"]))
        io.merge(rows_of([50], ["x"]), f"{lake}/t", "upsert", "id")
        for cached in (True, False):
            with mock.patch.object(statistics_cache, "MIN_FILES", 1 if cached else 64):
                target = load_target(locate(f"{lake}/t"), ["id"], None, {})
                might, only = target.flag_nullable("id")
                assert (sum(might.tolist()), sum(only.tolist())) == (2, 0)
                plan = io.plan(rows_of([None], ["x"]), f"{lake}/t", "upsert", "id", **MATCH)
                assert (plan.updated, sum(file.candidate_groups for file in plan.files)) == (2, 2)


# -------------------- partitions


# Q5 K8 H2
def test_a_partition_column_that_is_null_matches(io: AnyDatasetIO, lake: str) -> None:
    for day, ids in (("1", [1, 2]), (NULL_FOLDER, [1, None]), ("2", [1])):
        put(f"{lake}/t/day={day}/one.parquet", rows_of(ids, ["old"] * len(ids)))
    source = rows_of([1, None, 2], ["new"] * 3).append_column("day", pa.array([None, None, 1], pa.int64()))
    plan = io.plan(source, f"{lake}/t", "upsert", ["day", "id"], **MATCH)
    assert [(file.action, file.reason) for file in plan.files] == [
        ("rewrite", "it holds matched rows"),
        ("preserve", "the source has no row for its partition"),
        ("rewrite", "it holds matched rows"),
    ]
    assert count(io.merge(source, f"{lake}/t", "upsert", ["day", "id"], **MATCH)) == (0, 3, 0)
    found = sorted(((row["day"], row["id"], row["v"]) for row in load(io, f"{lake}/t").to_pylist()), key=repr)
    expected = [(1, 1, "old"), (1, 2, "new"), (None, 1, "new"), (None, None, "new"), (2, 1, "old")]
    assert found == sorted(expected, key=repr)
    # A file of the NULL partition is left out where no source key has NULL in that column.
    kept = io.plan(source.slice(2), f"{lake}/t", "upsert", ["day", "id"], **MATCH).files[2]
    assert (kept.action, kept.reason) == ("preserve", "its 'day' is NULL, which no key matches")


# Q5 K8
def test_a_key_of_partition_columns_alone_matches_null(io: AnyDatasetIO, lake: str) -> None:
    for day in ("a", NULL_FOLDER):
        put(f"{lake}/t/day={day}/one.parquet", pa.table({"v": ["old", "old"]}))
    source = pa.table({"v": ["new"], "day": pa.array([None], pa.string())})
    assert count(io.merge(source, f"{lake}/t", "upsert", "day", **MATCH)) == (0, 2, 0)
    assert values_of(io, f"{lake}/t", "day") == sorted(
        [("a", "old"), ("a", "old"), (None, "new"), (None, "new")], key=repr
    )
    assert count(io.merge(source, f"{lake}/t", "full_merge", "day", **MATCH)) == (0, 2, 2)
    assert count(io.merge(source, f"{lake}/t", "delete", "day", **MATCH)) == (0, 0, 2)


# Q5 H6
def test_a_file_outside_the_folders_matches_by_its_own_null(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=1/one.parquet", rows_of([1], ["a"]))
    outside = rows_of([1, 2], ["b", "c"]).append_column("day", pa.array([None, 1], pa.int64()))
    put(f"{lake}/t/outside.parquet", outside)
    source = rows_of([1], ["new"]).append_column("day", pa.array([None], pa.int64()))
    assert count(io.plan(source, f"{lake}/t", "delete", ["id", "day"], **MATCH)) == (0, 0, 1)


# Q5 H4 M8
def test_a_row_with_a_null_key_may_move(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=1/one.parquet", rows_of([None, 1], ["a", "b"]))
    put(f"{lake}/t/day={NULL_FOLDER}/two.parquet", rows_of([2], ["c"]))
    source = rows_of([None, 2], ["x", "y"]).append_column("day", pa.array([2, 3], pa.int64()))
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError, match=r"2 rows of the target .*id=None"):
        io.merge(source, f"{lake}/t", "upsert", "id", **MATCH)
    result = io.merge(source, f"{lake}/t", "upsert", "id", on_partition_move="move", **MATCH)
    assert count(result) == (0, 2, 0)
    found = sorted(((row["day"], row["id"], row["v"]) for row in load(io, f"{lake}/t").to_pylist()), key=repr)
    assert found == sorted([(1, 1, "b"), (2, None, "x"), (3, 2, "y")], key=repr)


# Q5 M6
def test_a_scope_with_the_null_partition(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=1/one.parquet", rows_of([None], ["a"]))
    put(f"{lake}/t/day={NULL_FOLDER}/two.parquet", rows_of([None, 2], ["b", "c"]))
    source = rows_of([None], ["x"]).append_column("day", pa.array([None], pa.int64()))
    result = io.merge(source, f"{lake}/t", "full_merge", ["day", "id"], scope={"day": None}, **MATCH)
    assert count(result) == (0, 1, 1)
    assert values_of(io, f"{lake}/t") == [(None, "a"), (None, "x")]


# Q5 E5
def test_a_file_that_lacks_a_key_column_has_null_there(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/f0.parquet", rows_of([1, 2], ["a", "b"]).append_column("zone", pa.array(["x", None])))
    put(f"{lake}/t/f1.parquet", rows_of([1, 3], ["c", "d"]))
    source = rows_of([1, 2], ["new", "new"]).append_column("zone", pa.array([None, None], pa.string()))
    result = io.merge(source, f"{lake}/t", "upsert", ["id", "zone"], schema_mode="evolve", **MATCH)
    assert count(result) == (0, 2, 0)
    assert values_of(io, f"{lake}/t") == [(1, "a"), (1, "new"), (2, "new"), (3, "d")]


# -------------------- clauses, command line, pipeline


# Q5 Q1 Q4
def test_clauses_match_null(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/one.parquet", rows_of([None, 1, 2], ["a", "b", "c"]))
    source = pa.table({"key": ["", "1", "5"], "w": ["x", "y", "z"]})
    merge = (
        io.merge_into(f"{lake}/t", source, on={"id": "nullif(s.key, '')::BIGINT"}, **MATCH, batch_id="one")
        .when_matched_update({"v": "t.v || s.w"}, where="t.id IS NULL")
        .when_matched_delete("t.id = 1")
        .when_not_matched_insert({"id": "nullif(s.key, '')::BIGINT", "v": "s.w"})
        .when_not_matched_by_source_update({"v": "'gone'"})
    )
    assert merge.plan().updated == 2
    assert count(merge.execute()) == (1, 2, 1)
    assert values_of(io, f"{lake}/t") == [(2, "gone"), (5, "z"), (None, "ax")]


def test_the_command_line_takes_the_option(lake: str) -> None:
    from click.testing import CliRunner  # noqa: PLC0415  an extra

    from merganser.cli.app import app  # noqa: PLC0415  as above

    put(f"{lake}/t/one.parquet", rows_of([None], ["a"]))
    source = put(f"{lake}/source.parquet", rows_of([None], ["b"]))
    arguments = ["merge", source, f"{lake}/t", "--key", "id"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0
    result = CliRunner().invoke(app, [*arguments, "--null-keys", "match"], catch_exceptions=False)
    assert result.exit_code == 0
    assert values_of(open_dataset_io("arrow"), f"{lake}/t") == [(None, "b")]


# -------------------- against DuckDB's own MERGE

KEY_CELLS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -7],
    pa.int8(): [0, 1, -7],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.string(): ["", "a", "ü"],
    pa.float64(): [0.0, 1.5, math.inf],
    pa.float32(): [0.0, 1.5, -math.inf],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(2025, 1, 1)],
    pa.timestamp("us"): [dt.datetime(1970, 1, 1), dt.datetime(2025, 1, 1)],  # noqa: DTZ001
    pa.timestamp("us", "UTC"): [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)],
    pa.decimal128(9, 2): [Decimal("0.00"), Decimal("-1.50")],
    pa.bool_(): [False, True],
    pa.binary(): [b"", b"\x00"],
}
FOLDER_CELLS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1],
    pa.string(): ["a", "b"],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(2025, 1, 1)],
}
MATCHED = ["DELETE", "UPDATE SET v = s.v", "UPDATE SET v = s.v || coalesce(t.v, '-')"]
NEW = [None, "INSERT BY NAME"]
MISSING = [None, "DELETE", "UPDATE SET v = t.v || '!'"]
MISSING_WHERE = "t.v = 'p' OR t.k0 IS NULL"


@st.composite
def null_safe_merges(draw: st.DrawFn, engine: str) -> dict[str, Any]:
    """Draw keys of types that the engine carries, target files, a source without duplicates, and clauses."""
    carried = [kind for kind in KEY_CELLS if not engine.startswith("spark") or is_carried_by_spark(kind)]
    kinds = draw(st.lists(st.sampled_from(carried), min_size=1, max_size=3))
    folder = draw(st.none() | st.sampled_from(list(FOLDER_CELLS)))
    fields = [pa.field(f"k{at}", kind) for at, kind in enumerate(kinds)]
    cells: dict[str, list[Any]] = {field.name: [None, *KEY_CELLS[field.type]] for field in fields}
    if folder is not None:
        fields.append(pa.field("day", folder))
        cells["day"] = [None, *FOLDER_CELLS[folder]]
    key = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in cells.items()})
    value = {"v": st.sampled_from([None, "p", "q"])}
    target = [one[0] | one[1] for one in draw(st.lists(st.tuples(key, st.fixed_dictionaries(value)), max_size=12))]
    for name in (field.name for field in fields if pa.types.is_floating(field.type)):
        target += [dict.fromkeys(cells) | {name: math.nan, "v": "nan"}] * draw(st.integers(0, 1))
    unique = st.lists(
        st.tuples(key, st.fixed_dictionaries(value)), max_size=8, unique_by=lambda one: repr(sorted(one[0].items()))
    )
    conditions = st.sampled_from(["TRUE", "s.v = 'p'", "k0 IS NULL"])
    return {
        "schema": pa.schema([*fields, ("v", pa.string())]),
        "keys": draw(st.permutations(list(cells))),
        "target": target,
        "files": draw(st.lists(st.integers(0, 2), min_size=len(target), max_size=len(target))),
        "group_rows": draw(st.integers(1, 4)),
        "has_statistics": draw(st.booleans()),
        "source": [one[0] | one[1] for one in draw(unique)],
        "matched": draw(st.sampled_from(MATCHED)),
        "new": draw(st.sampled_from(NEW)),
        "missing": draw(st.sampled_from(MISSING)),
        "where": draw(conditions),
    }


def check_against_duckdb(engine: str, drawn: dict[str, Any]) -> None:
    schema, io = drawn["schema"], open_dataset_io(engine)
    columns = [name for name in schema.names if name != "day"]
    with tempfile.TemporaryDirectory() as lake:
        path, source = f"{lake}/t", pa.Table.from_pylist(drawn["source"], schema)
        # Sets the types of partition columns.
        partitions = ["day"] if "day" in schema.names else None
        io.write_dataset(schema.empty_table(), path, "overwrite", partition_columns=partitions)
        places: dict[tuple[Any, int], list[dict[str, Any]]] = {}
        for row, file in zip(drawn["target"], drawn["files"] + [0] * len(drawn["target"]), strict=False):
            places.setdefault((row.get("day"), file), []).append(row)
        for number, ((day, _), rows) in enumerate(places.items()):
            folder = f"day={NULL_FOLDER if day is None else day}/" if partitions else ""
            table = pa.Table.from_pylist(rows, schema).select(columns)
            options = {"row_group_size": drawn["group_rows"], "write_statistics": drawn["has_statistics"]}
            put(f"{path}/{folder}f{number}.parquet", table, **options)
        expected, counts = merge_natively(drawn, source)
        merge = io.merge_into(path, source, on=drawn["keys"], **MATCH, batch_id="one")
        for name, arguments in list_clauses(drawn):
            merge = getattr(merge, name)(*arguments)
        before = snapshot(path)
        plan = merge.plan()
        assert snapshot(path) == before
        assert count(plan) == count(merge.execute()) == counts
        found = load(io, path)
        assert oracle.to_multiset(found.to_pylist()) == oracle.to_multiset(expected.to_pylist())


def list_clauses(drawn: dict[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """List the methods of the builder that say what the statement says."""
    matched, where = drawn["matched"], drawn["where"].replace("k0", "t.k0")
    found: list[tuple[str, tuple[Any, ...]]] = []
    if matched == "DELETE":
        found.append(("when_matched_delete", (where,)))
    else:
        found.append(("when_matched_update", ({"v": matched.partition(" = ")[2]}, where)))
    if drawn["new"]:
        found.append(("when_not_matched_insert_all", ()))
    if drawn["missing"] == "DELETE":
        found.append(("when_not_matched_by_source_delete", (MISSING_WHERE,)))
    elif drawn["missing"] is not None:
        found.append(
            ("when_not_matched_by_source_update", ({"v": drawn["missing"].partition(" = ")[2]}, MISSING_WHERE))
        )
    return found


def merge_natively(drawn: dict[str, Any], source: pa.Table) -> tuple[pa.Table, tuple[int, int, int]]:
    """Run DuckDB's own MERGE on a table with all rows."""
    target, where = pa.Table.from_pylist(drawn["target"], drawn["schema"]), drawn["where"].replace("k0", "t.k0")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", target)
        connection.register("source", source)
        connection.execute("CREATE TABLE target AS FROM given")
        lines = [
            f"WHEN MATCHED AND {where} THEN {drawn['matched']}",
            f"WHEN NOT MATCHED THEN {drawn['new']}" if drawn["new"] else "",
            f"WHEN NOT MATCHED BY SOURCE AND ({MISSING_WHERE}) THEN {drawn['missing']}" if drawn["missing"] else "",
        ]
        on = " AND ".join(f"t.{name} IS NOT DISTINCT FROM s.{name}" for name in drawn["keys"])
        statement = f"MERGE INTO target AS t USING source AS s ON {on} {' '.join(lines)} RETURNING merge_action"
        actions = [action for (action,) in connection.execute(statement).fetchall()]
        found = connection.sql("FROM target").to_arrow_table().cast(drawn["schema"])
    return found, (actions.count("INSERT"), actions.count("UPDATE"), actions.count("DELETE"))


# Q5 Q1
@needs_merge
@settings(max_examples=8)
@given(data=st.data())
def test_null_safe_clauses_agree_with_duckdb(engine: str, data: st.DataObject) -> None:
    check_against_duckdb(engine, data.draw(null_safe_merges(engine)))


# Q5 Q1
@pytest.mark.slow
def test_many_null_safe_clauses_agree_with_duckdb(engine: str, example_count: int) -> None:
    check = given(merge=null_safe_merges(engine))(lambda merge: check_against_duckdb(engine, merge))
    settings(max_examples=min(example_count, 400))(check)()
