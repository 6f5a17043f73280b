"""The plan: which row groups might hold a source key, which do, and why (P1 to P4)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import copy_fixture, load, open_dataset_io, put, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import AnyDatasetIO

    from merganser.core import FilePlan, MergePlan

OUTSIDE = "no source key lies inside its bounds"
SCANNED = "its keys were scanned and none matches"
MATCHED = "it holds matched rows"


def keyed(ids: Sequence[Any] | pa.Array, kind: pa.DataType | None = None) -> pa.Table:
    made = pa.array(ids, kind)
    return pa.table({"id": made, "v": pa.nulls(len(made), pa.int64())})


def by_name(plan: MergePlan) -> dict[str, FilePlan]:
    return {os.path.basename(file.path): file for file in plan.files}


def candidates(io: AnyDatasetIO, path: str, source: pa.Table, keys: Sequence[str] = ("id",)) -> list[int]:
    return [file.candidate_groups for file in io.plan(source, path, "upsert", list(keys)).files]


# P1
def test_partition_then_bounds_then_scan(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/far.parquet", keyed([100, 200]))
    put(f"{lake}/t/day=mon/hit.parquet", keyed([1, 5]))
    put(f"{lake}/t/day=mon/near.parquet", keyed([2, 9]))
    put(f"{lake}/t/day=tue/other.parquet", keyed([1, 5]))
    source = pa.table({"id": [5], "v": [7], "day": ["mon"]})
    plan = io.plan(source, f"{lake}/t", "upsert", ["id", "day"])
    files = by_name(plan)
    assert {name: (file.action, file.reason) for name, file in files.items()} == {
        "far.parquet": ("preserve", OUTSIDE),
        "hit.parquet": ("rewrite", MATCHED),
        "near.parquet": ("preserve", SCANNED),
        "other.parquet": ("preserve", "the source has no row for its partition"),
    }
    assert {name: (file.candidate_groups, file.affected_groups) for name, file in files.items()} == {
        "far.parquet": (0, 0),
        "hit.parquet": (1, 1),
        "near.parquet": (1, 0),
        "other.parquet": (0, 0),
    }
    result = io.merge(source, f"{lake}/t", "upsert", ["id", "day"])
    assert [os.path.basename(path) for path in result.rewritten_files] == ["hit.parquet"]


# P1
def test_the_scan_reads_only_key_columns(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 3, 5], "v": ["x" * 50] * 3}), compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(Path(path).read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    Path(path).write_bytes(bytes(data))
    plan = io.plan(pa.table({"id": [3], "v": ["y"]}), f"{lake}/t", "update", "id")
    assert (plan.updated, plan.files[0].action) == (1, "rewrite")


# P1
def test_files_that_need_no_scan_are_not_opened_beyond_the_footer(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", keyed([10, 20]), compression="none")
    data = bytearray(Path(path).read_bytes())
    # Everything between the magic bytes and the footer.
    length = int.from_bytes(data[-8:-4], "little")
    data[4 : len(data) - 8 - length] = b"\xff" * (len(data) - 12 - length)
    Path(path).write_bytes(bytes(data))
    assert io.plan(keyed([15], pa.int64()).slice(0, 0), f"{lake}/t", "upsert", "id").files[0].candidate_groups == 0
    assert io.plan(keyed([5]), f"{lake}/t", "upsert", "id").files[0].reason == OUTSIDE


# P1, T2
def test_insert_reports_that_matched_rows_stay(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([1]))
    file = io.plan(keyed([1, 2]), f"{lake}/t", "insert", "id").files[0]
    assert (file.action, file.affected_groups, file.reason) == (
        "preserve",
        0,
        "it holds matched rows, which stay as they are",
    )


# P1, T5
def test_full_merge_reports_what_is_removed(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([1, 2]), row_group_size=1)
    put(f"{lake}/t/b.parquet", keyed([8, 9]), row_group_size=1)
    put(f"{lake}/t/c.parquet", keyed([], pa.int64()))
    plan = io.plan(keyed([1]), f"{lake}/t", "full_merge", "id")
    assert [(file.action, file.affected_groups, file.reason) for file in plan.files] == [
        ("rewrite", 2, MATCHED),
        ("remove", 2, "none of its rows is in the source"),
        ("preserve", 0, "it has no rows"),
    ]
    assert (plan.updated, plan.deleted, plan.target_count_after) == (1, 3, 1)


# P2
def test_row_groups_are_pruned_and_rewritten_one_by_one(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(list(range(40))), row_group_size=10)
    file = io.plan(keyed([12, 35]), f"{lake}/t", "upsert", "id").files[0]
    assert (file.row_groups, file.candidate_groups, file.affected_groups) == (4, 2, 2)
    before = pq.read_metadata(f"{lake}/t/a.parquet")
    io.merge(keyed([12, 35]), f"{lake}/t", "upsert", "id")
    after = pq.read_metadata(f"{lake}/t/a.parquet")
    assert [after.row_group(n).num_rows for n in range(4)] == [10] * 4
    # Row groups that nothing touched come out with the same encoded bytes.
    for group in (0, 2):
        assert _chunks(before, group) == _chunks(after, group)


def _chunks(metadata: Any, group: int) -> list[tuple[int, int]]:
    row_group = metadata.row_group(group)
    columns = [row_group.column(n) for n in range(row_group.num_columns)]
    return [(column.total_compressed_size, column.total_uncompressed_size) for column in columns]


# P2
def test_a_candidate_row_group_may_turn_out_unaffected(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([0, 2, 4, 10, 12, 14]), row_group_size=3)
    file = io.plan(keyed([3, 12]), f"{lake}/t", "upsert", "id").files[0]
    assert (file.candidate_groups, file.affected_groups) == (2, 1)


# P3
def test_a_gap_between_source_keys_prunes(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(list(range(10))))
    put(f"{lake}/t/b.parquet", keyed(list(range(100, 110))))
    put(f"{lake}/t/c.parquet", keyed(list(range(200, 210))))
    # The hull of 5 and 205 covers all three files; no source key lies inside b's bounds.
    assert candidates(io, f"{lake}/t", keyed([5, 205])) == [1, 0, 1]


# P3
@pytest.mark.parametrize(("key", "expected"), [(9, 0), (10, 1), (15, 1), (20, 1), (21, 0)])
def test_bounds_are_inclusive(io: AnyDatasetIO, lake: str, key: int, expected: int) -> None:
    put(f"{lake}/t/a.parquet", keyed([10, 20]))
    assert candidates(io, f"{lake}/t", keyed([key])) == [expected]


# P3, K10
def test_one_source_row_must_fit_every_key_column(io: AnyDatasetIO, lake: str) -> None:
    target = pa.table({"a": [1, 2], "b": ["m", "n"], "v": [0, 0]})
    put(f"{lake}/t/a.parquet", target)
    # Each column overlaps by itself, but no row fits both.
    apart = pa.table({"a": [1, 9], "b": ["z", "m"], "v": [0, 0]})
    assert candidates(io, f"{lake}/t", apart, ["a", "b"]) == [0]
    together = pa.table({"a": [1, 9], "b": ["n", "m"], "v": [0, 0]})
    assert candidates(io, f"{lake}/t", together, ["a", "b"]) == [1]


# P3, K10
def test_many_composite_keys_are_tested_in_pieces(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"a": [5000, 5001], "b": [0, 1]}))
    numbers = np.arange(10_000)
    miss = pa.table({"a": numbers, "b": np.full(10_000, 7)})
    assert candidates(io, f"{lake}/t", miss, ["a", "b"]) == [0]
    column = np.full(10_000, 7)
    column[5001] = 1
    assert candidates(io, f"{lake}/t", pa.table({"a": numbers, "b": column}), ["a", "b"]) == [1]


STATISTICS: list[tuple[str, pa.DataType, list[Any], list[Any]]] = [
    ("int32", pa.int32(), [-5, 5], [6]),
    ("uint32", pa.uint32(), [2**31 + 1, 2**32 - 1], [5]),
    ("uint64", pa.uint64(), [2**63 + 1, 2**64 - 1], [5]),
    ("float", pa.float64(), [-1.5, 1.5], [2.0]),
    ("string", pa.string(), ["b", "d"], ["a"]),
    ("text of other scripts", pa.string(), ["é", "ü"], ["z"]),
    ("binary", pa.binary(), [b"\x80", b"\xff"], [b"\x7f"]),
    ("boolean", pa.bool_(), [True, True], [False]),
    ("date", pa.date32(), [10, 20], [21]),
    ("timestamp", pa.timestamp("us"), [10, 20], [21]),
    ("zoned timestamp", pa.timestamp("ms", "Europe/Paris"), [10, 20], [21]),
    ("nanoseconds", pa.timestamp("ns"), [10, 20], [21]),
    ("time", pa.time64("ns"), [10, 20], [21]),
]


# P3
@pytest.mark.parametrize(
    ("kind", "have", "outside"), [case[1:] for case in STATISTICS], ids=[case[0] for case in STATISTICS]
)
def test_bounds_of_every_type_prune(
    io: AnyDatasetIO, lake: str, kind: pa.DataType, have: list[Any], outside: list[Any]
) -> None:
    put(f"{lake}/t/a.parquet", keyed(have, kind))
    assert candidates(io, f"{lake}/t", keyed(outside, kind)) == [0]
    for inside in have:
        assert candidates(io, f"{lake}/t", keyed([inside], kind)) == [1]


# P4
@pytest.mark.parametrize("options", [{"write_statistics": False}, {"write_statistics": ["v"]}])
def test_missing_statistics_prove_nothing(io: AnyDatasetIO, lake: str, options: dict[str, Any]) -> None:
    put(f"{lake}/t/a.parquet", keyed([10, 20]), **options)
    file = io.plan(keyed([99]), f"{lake}/t", "upsert", "id").files[0]
    assert (file.action, file.candidate_groups, file.reason) == ("preserve", 1, SCANNED)


# P4
def test_statistics_missing_in_one_row_group_keep_that_one(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": pa.array([1, 2, None, None, 5, 6]), "v": [0] * 6})
    put(f"{lake}/t/a.parquet", table, row_group_size=2)
    # A row group of NULLs alone has no bounds.
    assert candidates(io, f"{lake}/t", keyed([99])) == [1]
    assert candidates(io, f"{lake}/t", keyed([2])) == [2]


# P4
def test_nan_in_a_column_does_not_hide_its_rows(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([float("nan"), 1.0, 5.0]))
    put(f"{lake}/t/b.parquet", keyed([float("nan")]))
    plan = io.plan(keyed([5.0]), f"{lake}/t", "upsert", "id")
    assert (plan.updated, by_name(plan)["b.parquet"].candidate_groups) == (1, 1)


# P4
def test_int96_bounds_prove_nothing(io: AnyDatasetIO, lake: str) -> None:
    kind = pa.timestamp("us", "UTC")
    put(f"{lake}/t/a.parquet", keyed([10, 20], kind), use_deprecated_int96_timestamps=True)
    assert candidates(io, f"{lake}/t", keyed([10**15], kind)) == [1]


def _patch(path: str, old: bytes, new: bytes) -> None:
    """Replace bytes of a footer by as many others."""
    assert len(old) == len(new)
    data = Path(path).read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert old in footer
    Path(path).write_bytes(data[: -8 - length] + footer.replace(old, new) + data[-8:])


# P4
def test_inexact_bounds_prove_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", keyed(["bbb", "ddd"]))
    assert candidates(io, f"{lake}/t", keyed(["z"])) == [0]
    # The exactness marks of maximum and minimum follow the minimum: true, true, end.
    _patch(path, b"\x18\x03bbb\x11\x11", b"\x18\x03bbb\x12\x12")
    assert candidates(io, f"{lake}/t", keyed(["z"])) == [1]


# P4
def test_an_undeclared_column_order_proves_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", keyed(["bbb", "ddd"]))
    # Both columns declare the order of their type; another field number is an unknown order.
    _patch(path, b"\x2c\x1c\x00\x00\x1c\x00\x00\x00", b"\x2c\x2c\x00\x00\x2c\x00\x00\x00")
    assert candidates(io, f"{lake}/t", keyed(["z"])) == [1]


def _written_by(path: str, writer: str) -> None:
    """Claim another writer of the same length."""
    metadata = pq.read_metadata(path)
    _patch(path, metadata.created_by.encode(), writer.ljust(len(metadata.created_by)).encode())


# P4
@pytest.mark.parametrize(
    ("writer", "kind", "have", "outside", "trusted"),
    [
        ("parquet-mr version 1.8.3", pa.string(), ["b", "d"], ["z"], False),
        ("parquet-mr version 1.9.0", pa.binary(), [b"b", b"d"], [b"z"], False),
        ("parquet-mr version 1.9.0", pa.uint32(), [1, 2], [3], False),
        ("parquet-mr version 1.9.0", pa.decimal128(9, 2), ["1", "2"], ["3"], False),
        ("parquet-mr version 1.9.0", pa.int64(), [1, 2], [3], True),
        ("parquet-mr version 1.10.0", pa.string(), ["b", "d"], ["z"], True),
        ("parquet-mr version 1.15.1", pa.decimal128(9, 2), ["1", "2"], ["3"], True),
    ],
)
def test_old_parquet_mr_is_not_trusted_with_unsigned_orders(
    io: AnyDatasetIO, lake: str, writer: str, kind: pa.DataType, have: list[Any], outside: list[Any], trusted: bool
) -> None:
    def source(values: list[Any]) -> pa.Table:
        decimal = pa.types.is_decimal(kind)
        return keyed(pa.array(values).cast(kind) if decimal else pa.array(values, kind))

    path = put(f"{lake}/t/a.parquet", source(have))
    assert candidates(io, f"{lake}/t", source(outside)) == [0]
    _written_by(path, writer)
    expected = [0] if trusted else [1]
    # PyArrow itself withholds the bounds of some old writers; then nothing is proven either.
    assert candidates(io, f"{lake}/t", source(outside)) == expected
    assert candidates(io, f"{lake}/t", source(have)) == [1]


# P4
def test_files_of_spark_without_statistics_are_scanned_and_merged(io: AnyDatasetIO, lake: str) -> None:
    path = copy_fixture("spark_no_statistics", lake)
    table = load(io, path)
    plan = io.plan(table.slice(0, 1), path, "upsert", "id")
    assert (plan.updated, plan.inserted, plan.files[0].candidate_groups) == (1, 0, 1)


# P4
def test_a_decimal_of_another_scale_still_compares_by_value(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed(pa.array(["1.00", "2.00"]).cast(pa.decimal128(9, 2))))
    assert candidates(io, f"{lake}/t", keyed(pa.array(["1.5000"]).cast(pa.decimal128(9, 4)))) == [1]
    assert candidates(io, f"{lake}/t", keyed(pa.array(["2.5000"]).cast(pa.decimal128(9, 4)))) == [0]


# P4
def test_long_strings_are_found_whatever_their_bounds(io: AnyDatasetIO, lake: str) -> None:
    long = ["x" * 5000 + str(n) for n in range(4)]
    put(f"{lake}/t/a.parquet", keyed(long))
    result = io.merge(keyed([long[3]]), f"{lake}/t", "upsert", "id")
    assert (result.inserted, result.updated) == (0, 1)


# P4
def test_a_key_whose_name_is_a_path_into_a_struct_is_not_mistaken_for_it(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"a": [{"b": 100}, {"b": 200}], "a.b": [1, 2]})
    put(f"{lake}/t/a.parquet", table)
    result = io.merge(table.slice(1), f"{lake}/t", "upsert", "a.b")
    assert (result.inserted, result.updated) == (0, 1)


# P1, P5
def test_a_plan_prints_its_counts_and_a_line_for_each_file(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", keyed([1, 2]))
    put(f"{lake}/t/b.parquet", keyed([8, 9]))
    text = str(io.plan(keyed([2, 3]), f"{lake}/t", "upsert", "id"))
    head, *lines = text.splitlines()
    assert head.startswith(
        f"upsert of 2 rows into {lake}/t on id: 1 inserted, 1 updated, 0 deleted; 4 rows before, 5 after"
    )
    assert lines[0] == f"  rewrite  {lake}/t/a.parquet: {MATCHED} (1 of 1 row group, 2 rows)"
    assert lines[1] == f"  preserve {lake}/t/b.parquet: {OUTSIDE} (0 of 1 row group, 2 rows)"


# P1, P3
def test_pruning_never_changes_the_result(io: AnyDatasetIO, lake: str) -> None:
    values = list(range(0, 400, 4))
    for name, options in (("with", {}), ("without", {"write_statistics": False})):
        for number in range(4):
            put(f"{lake}/{name}/{number}.parquet", keyed(values[number::4]), row_group_size=5, **options)
    source = pa.table({"id": list(range(0, 400, 6)), "v": [1] * 67})
    results = [io.merge(source, f"{lake}/{name}", "upsert", "id") for name in ("with", "without")]
    assert (results[0].inserted, results[0].updated) == (results[1].inserted, results[1].updated)
    assert read_rows(io, f"{lake}/with") == read_rows(io, f"{lake}/without")


# P1
def test_the_footer_of_a_file_is_read_once(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{lake}/t"
    for number in range(3):
        put(f"{path}/f{number}.parquet", keyed([10 * number, 10 * number + 5]))
    opened: list[Any] = []

    def remembering(*arguments: Any, **options: Any) -> pq.ParquetFile:
        opened.append(options["metadata"])
        return original(*arguments, **options)

    original = pq.ParquetFile
    monkeypatch.setattr("merganser.core.rows.key_scan.pq.ParquetFile", remembering)
    result = open_dataset_io("arrow").merge(keyed([5, 12, 25]), path, "upsert", "id")
    assert (result.updated, result.inserted) == (2, 1)
    assert len(opened) >= 4
    assert None not in opened
