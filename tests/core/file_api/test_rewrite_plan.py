"""The file-level functions: each is one step of a merge."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, put

from merganser.core import (
    ConservativeMembershipChecker,
    IncrementalRewritePlan,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    UnreadableFileError,
    confirm_affected_files,
    list_dataset_files,
    parse_hive_partition_path,
    plan_incremental_rewrite,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def ids(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array(values, kind), "v": ["x"] * len(values)})


def described(path: str) -> ParquetFileMetadata:
    """Describe the only file of a dataset."""
    (file,) = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    return file


# P7
def test_list_dataset_files_lists_visible_parquet_files_in_order(lake: str) -> None:
    for name in ("b.parquet", "a.parquet", "day=1/c.parquet", "_d=2/d.parquet"):
        put(f"{lake}/t/{name}", ids([1]))
    for name in ("_x.parquet", ".y.parquet", "_tmp/z.parquet", ".git/z.parquet"):
        put(f"{lake}/t/{name}", ids([1]))
    Path(f"{lake}/t/notes.txt").write_text("text", "utf-8")
    expected = ["_d=2/d.parquet", "a.parquet", "b.parquet", "day=1/c.parquet"]
    assert list_dataset_files(f"{lake}/t") == [f"{lake}/t/{name}" for name in expected]
    assert list_dataset_files(Path(lake) / "t") == [f"{lake}/t/{name}" for name in expected]


# P6
def test_list_dataset_files_of_nothing(lake: str) -> None:
    assert list_dataset_files(f"{lake}/absent") == []
    os.makedirs(f"{lake}/empty")
    assert list_dataset_files(f"{lake}/empty") == []
    put(f"{lake}/file.parquet", ids([1]))
    with pytest.raises(ValueError, match="is a file"):
        list_dataset_files(f"{lake}/file.parquet")


# H1, H3
@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/data/year=2024/month=12/file.parquet", {"year": "2024", "month": "12"}),
        ("year=2024/file.parquet", {"year": "2024"}),
        ("s3://bucket/t/day=2025-01-01/part-0.parquet", {"day": "2025-01-01"}),
        ("/data/file.parquet", {}),
        ("file.parquet", {}),
        ("", {}),
        ("/data/day=1/", {"day": "1"}),
        ("/data/a=1/plain/b=2/f.parquet", {"a": "1", "b": "2"}),
        ("/data/day=007/f.parquet", {"day": "007"}),
        ("/data/day=/f.parquet", {"day": ""}),
        ("/data/=x/f.parquet", {}),
        ("/data/a=b=c/f.parquet", {"a": "b=c"}),
        (f"/data/day={NULL_FOLDER}/f.parquet", {"day": None}),
        ("/data/day=a%2Fb%3Dc/f.parquet", {"day": "a/b=c"}),
        ("/data/day=two words/f.parquet", {"day": "two words"}),
        ("/data/day=東京/f.parquet", {"day": "東京"}),
        ("/data/day=%E6%9D%B1%E4%BA%AC/f.parquet", {"day": "東京"}),
        ("/data/a%3Db=x/f.parquet", {"a=b": "x"}),
        ("/data/day=%FF/f.parquet", {"day": "%FF"}),
        ("/data/day=100%/f.parquet", {"day": "100%"}),
        ("/data/day=1/x=y.parquet", {"day": "1"}),
        ("//data//day=1//f.parquet", {"day": "1"}),
    ],
)
def test_parse_hive_partition_path(path: str, values: dict[str, str | None]) -> None:
    assert parse_hive_partition_path(path) == values
    assert list(parse_hive_partition_path(path)) == list(values)


# H1, H6
def test_parse_hive_partition_path_with_columns() -> None:
    path = "/lake/region=eu/t/year=2024/month=12/f.parquet"
    assert parse_hive_partition_path(path, ["month", "year"]) == {"month": "12", "year": "2024"}
    assert parse_hive_partition_path(path, ["day"]) == {}
    assert parse_hive_partition_path(path, []) == {}


# P4
def test_analyzer_with_statistics(lake: str) -> None:
    table = pa.table({"id": [3, 1, None, 9], "name": ["b", "a", "d", "c"], "tags": [[1]] * 4})
    put(f"{lake}/t/day=mon/a.parquet", table, row_group_size=2)
    file = described(f"{lake}/t")
    assert (file.path, file.row_group_count, file.total_rows) == (f"{lake}/t/day=mon/a.parquet", 2, 4)
    assert file.partition_values == {"day": "mon"}
    assert file.column_stats["id"] == {"min": 1, "max": 9, "null_count": 1}
    assert file.column_stats["name"] == {"min": "a", "max": "d", "null_count": 0}
    assert "tags" not in file.column_stats


# P4
@pytest.mark.parametrize("options", [{"write_statistics": False}, {"write_statistics": ["v"]}])
def test_analyzer_without_statistics(lake: str, options: dict[str, Any]) -> None:
    put(f"{lake}/t/a.parquet", ids([1, 2]), **options)
    file = described(f"{lake}/t")
    assert file.column_stats["id"] == {"min": None, "max": None, "null_count": None}
    assert (file.total_rows, file.partition_values) == (2, None)


# P4
def test_analyzer_where_one_row_group_proves_nothing(lake: str) -> None:
    put(f"{lake}/t/a.parquet", ids([1, 2, None, None]), row_group_size=2)
    assert described(f"{lake}/t").column_stats["id"] == {"min": None, "max": None, "null_count": 2}


# P4
def test_analyzer_of_files_without_rows_and_of_no_files(lake: str) -> None:
    put(f"{lake}/t/a.parquet", ids([], pa.int64()))
    assert (described(f"{lake}/t").total_rows, described(f"{lake}/t").column_stats["id"]["min"]) == (0, None)
    assert ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/absent") == []


# P6
def test_analyzer_names_a_file_that_it_cannot_read(lake: str) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    Path(f"{lake}/t/b.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(UnreadableFileError, match=r"b\.parquet"):
        ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")


def analysed(lake: str, folders: Sequence[str]) -> list[ParquetFileMetadata]:
    for folder in folders:
        put(f"{lake}/t/{folder}/a.parquet", ids([1]))
    return ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")


def kept(lake: str, files: Sequence[ParquetFileMetadata], keys: Any, values: Any, schema: Any = None) -> list[str]:
    found = PartitionPruner().identify_candidate_files(files, keys, values, schema)
    return [os.path.dirname(os.path.relpath(path, f"{lake}/t")) for path in found]


# H5, P1
def test_pruner_with_one_partition_column(lake: str) -> None:
    files = analysed(lake, ["day=mon", "day=tue", "day=wed"])
    assert kept(lake, files, ["day"], ["tue", "sun"]) == ["day=tue"]
    assert kept(lake, files, "day", ["mon", "wed"]) == ["day=mon", "day=wed"]
    assert kept(lake, files, ["id", "day"], [(1, "tue"), (2, "wed")]) == ["day=tue", "day=wed"]
    assert kept(lake, files, ["id"], [1]) == ["day=mon", "day=tue", "day=wed"]
    assert kept(lake, files, ["day"], []) == []


# H5, P3
def test_pruner_with_several_partition_columns(lake: str) -> None:
    files = analysed(lake, ["year=2024/month=1", "year=2024/month=2", "year=2025/month=1"])
    keys = ["year", "month"]
    assert kept(lake, files, keys, [("2024", "2"), ("2025", "1")]) == ["year=2024/month=2", "year=2025/month=1"]
    # One row must fit both columns: 2025 and 2 are in different rows.
    assert kept(lake, files, keys, [("2025", "9"), ("2023", "2")]) == []
    assert kept(lake, files, ["month", "id"], [("1", 7)]) == ["year=2024/month=1", "year=2025/month=1"]


# H2
def test_pruner_parses_path_values_in_the_type_of_the_schema(lake: str) -> None:
    files = analysed(lake, ["day=007", "day=7", "day=8"])
    assert kept(lake, files, ["day"], ["7"]) == ["day=7"]
    assert kept(lake, files, ["day"], [7]) == ["day=007", "day=7"]
    assert kept(lake, files, ["day"], ["7"], pa.schema([("day", pa.string())])) == ["day=7"]
    assert kept(lake, files, ["day"], [7], pa.schema([("day", pa.int32())])) == ["day=007", "day=7"]
    assert kept(lake, files, ["day"], ["7"], pa.schema([("day", pa.int64())])) == ["day=007", "day=7"]


# H6
def test_pruner_keeps_files_whose_path_lacks_the_column(lake: str) -> None:
    put(f"{lake}/t/loose.parquet", ids([1]))
    files = analysed(lake, ["day=1", "day=two", f"day={NULL_FOLDER}"])
    assert kept(lake, files, ["day"], [5]) == [f"day={NULL_FOLDER}", "day=two", ""]


# H1
def test_pruner_takes_arrow_keys(lake: str) -> None:
    files = analysed(lake, ["day=mon", "day=tue"])
    table = pa.table({"id": [1], "day": ["tue"], "more": [0]})
    assert kept(lake, files, ["day"], pa.array(["tue"])) == ["day=tue"]
    assert kept(lake, files, ["day"], pa.chunked_array([["tue"]])) == ["day=tue"]
    assert kept(lake, files, ["id", "day"], table) == ["day=tue"]


MIGHT: list[tuple[pa.DataType | None, list[Any], list[Any], bool]] = [
    (None, [10, 20], [9], False),
    (None, [10, 20], [10], True),
    (None, [10, 20], [20], True),
    (None, [10, 20], [15], True),
    (None, [10, 20], [21], False),
    (None, [10, 20], [5, 25], False),
    (None, [10, 20], [5, 12, 25], True),
    (None, [10, 20], [], False),
    (None, [10, None, 20], [9], False),
    (pa.string(), ["b", "d"], ["a"], False),
    (pa.string(), ["b", "d"], ["c"], True),
    (pa.string(), ["b", "d"], ["B"], False),
    (pa.string(), ["é"], ["z"], False),
    (pa.float64(), [-1.5, 1.5], [0.0], True),
    (pa.float64(), [-1.5, 1.5], [1.6], False),
    (pa.float64(), [-1.0, -0.0], [0.0], True),
    (pa.float64(), [float("nan")], [7.0], True),
    (pa.uint64(), [2**63, 2**64 - 1], [5], False),
    (pa.uint64(), [2**63, 2**64 - 1], [2**63 + 1], True),
    (pa.bool_(), [True], [False], False),
    (pa.date32(), [dt.date(2025, 1, 1)], [dt.date(2025, 1, 2)], False),
    (pa.date32(), [dt.date(2025, 1, 1)], [dt.date(2025, 1, 1)], True),
    (pa.timestamp("us", "UTC"), [0, 10**6], [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)], True),
    (pa.timestamp("us", "UTC"), [0, 10**6], [dt.datetime(1971, 1, 1, tzinfo=dt.UTC)], False),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("2.00")], [Decimal("1.5")], True),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("2.00")], [Decimal("2.5")], False),
    (pa.binary(), [b"\x80"], [b"\x7f"], False),
]


# P3, P4
@pytest.mark.parametrize(("kind", "have", "keys", "answer"), MIGHT)
def test_checker_by_type(lake: str, kind: pa.DataType | None, have: list[Any], keys: list[Any], answer: bool) -> None:
    put(f"{lake}/t/a.parquet", ids(have, kind))
    assert ConservativeMembershipChecker().file_might_contain_keys(described(f"{lake}/t"), ["id"], keys) is answer


# P3
def test_checker_of_composite_keys_needs_one_row_that_fits(lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"a": [1, 2], "b": ["m", "n"]}))
    file, check = described(f"{lake}/t"), ConservativeMembershipChecker().file_might_contain_keys
    assert check(file, ["a", "b"], [(1, "z"), (9, "m")]) is False
    assert check(file, ["a", "b"], [(9, "z"), (2, "m")]) is True
    assert check(file, ["a", "b"], pa.table({"b": ["n"], "a": [1]})) is True


# P4
def test_checker_keeps_unknown_values_as_candidates(lake: str) -> None:
    check = ConservativeMembershipChecker().file_might_contain_keys
    bare = ParquetFileMetadata("x.parquet", 1, 5, {})
    assert check(bare, ["id"], [1]) is True
    half = ParquetFileMetadata("x.parquet", 1, 5, {"id": {"min": 3, "max": None, "null_count": 0}})
    assert check(half, ["id"], [9]) is True
    put(f"{lake}/t/a.parquet", ids([1, 2]), write_statistics=False)
    assert check(described(f"{lake}/t"), ["id"], [99]) is True
    put(f"{lake}/t/a.parquet", ids([1, 2]))
    assert check(described(f"{lake}/t"), ["other"], [99]) is True


# P4, S3
@pytest.mark.parametrize(
    ("kind", "key", "answer"), [(pa.int8(), 300, False), (pa.int64(), 1.5, True), (pa.int64(), "1", True)]
)
def test_bounds_of_another_type_than_the_keys_prove_nothing(
    lake: str, kind: pa.DataType, key: Any, answer: bool
) -> None:
    put(f"{lake}/t/a.parquet", ids([1], kind))
    assert ConservativeMembershipChecker().file_might_contain_keys(described(f"{lake}/t"), ["id"], [key]) is answer


# P4
def test_analyzer_of_strings_that_are_not_utf8(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)}))
    file = described(f"{lake}/t")
    assert file.column_stats["id"] == {"min": "a", "max": None, "null_count": 0}
    assert ConservativeMembershipChecker().file_might_contain_keys(file, "id", ["b"]) is True
    assert plan_incremental_rewrite(f"{lake}/t", ["a"], "id").affected_files == [path]


# P1
def test_confirm_gives_the_files_that_hold_a_key(lake: str) -> None:
    paths = [
        put(f"{lake}/t/{name}.parquet", ids(values)) for name, values in (("a", [1, 3]), ("b", [2, 4]), ("c", [9]))
    ]
    assert confirm_affected_files(paths, ["id"], [2, 9]) == [paths[1], paths[2]]
    assert confirm_affected_files(paths, "id", [7]) == []
    assert confirm_affected_files(paths, "id", []) == []
    assert confirm_affected_files([], "id", [1]) == []
    assert confirm_affected_files(paths, "id", pa.array([1])) == [paths[0]]


# P1, K10
def test_confirm_compares_tuples_and_takes_partition_columns_from_the_path(lake: str) -> None:
    mon = put(f"{lake}/t/day=mon/a.parquet", ids([1]))
    tue = put(f"{lake}/t/day=tue/a.parquet", ids([1]))
    assert confirm_affected_files([mon, tue], ["id", "day"], [(1, "tue"), (2, "mon")]) == [tue]
    assert confirm_affected_files([mon, tue], ["day"], ["mon"]) == [mon]
    loose = put(f"{lake}/t/a.parquet", ids([1]))
    assert confirm_affected_files([loose, tue], ["id", "day"], [(1, "mon")]) == []


# P1
def test_confirm_reads_only_key_columns(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "v": ["x" * 99, "y"]}), compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(Path(path).read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    Path(path).write_bytes(bytes(data))
    with pytest.raises((OSError, pa.ArrowInvalid)):
        pq.read_table(path)
    assert confirm_affected_files([path], ["id"], [2]) == [path]


# P6
def test_confirm_names_a_missing_file(lake: str) -> None:
    with pytest.raises(UnreadableFileError, match=r"none\.parquet"):
        confirm_affected_files([f"{lake}/none.parquet"], ["id"], [1])


# P1, P5
def test_plan_incremental_rewrite(lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", ids([1, 5]))
    put(f"{lake}/t/day=mon/b.parquet", ids([2, 4, 6]))
    put(f"{lake}/t/day=tue/c.parquet", ids([3, 5]))
    with assert_unchanged(f"{lake}/t"):
        plan = plan_incremental_rewrite(f"{lake}/t", [5, 99], ["id"])
    a, b, c = (f"{lake}/t/{name}.parquet" for name in ("day=mon/a", "day=mon/b", "day=tue/c"))
    assert plan == IncrementalRewritePlan([a, c], [b], [], 4)
    schema = pa.schema([("day", pa.string())])
    narrow = plan_incremental_rewrite(f"{lake}/t", [(5, "tue")], ["id", "day"], partition_schema=schema)
    assert narrow == IncrementalRewritePlan([c], [a, b], [], 2)
    assert plan_incremental_rewrite(f"{lake}/none", [1], ["id"]) == IncrementalRewritePlan([], [], [], 0)


# P1, H1
def test_plan_incremental_rewrite_where_the_file_holds_the_partition_column_too(lake: str) -> None:
    path = put(f"{lake}/t/day=1/a.parquet", pa.table({"id": [7], "day": [9]}))
    assert plan_incremental_rewrite(f"{lake}/t", [(7, 1)], ["id", "day"]).affected_files == [path]
    assert plan_incremental_rewrite(f"{lake}/t", [(7, 9)], ["id", "day"]).affected_files == []


# P2, P3
@pytest.mark.parametrize(
    ("have", "given"),
    [
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("s")),
        (pa.timestamp("us", "UTC"), pa.timestamp("ns", "+02:00")),
        (pa.date32(), pa.date64()),
        (pa.int64(), pa.int16()),
        (pa.string(), pa.large_string()),
    ],
    ids=str,
)
def test_keys_of_another_unit_or_width_find_their_file(lake: str, have: pa.DataType, given: pa.DataType) -> None:
    moments = [dt.datetime(2024, 1, 2, tzinfo=dt.UTC), dt.datetime(2024, 3, 4, tzinfo=dt.UTC)]
    values = pa.array(moments if pa.types.is_temporal(have) else [12, 34]).cast(have)
    path = put(f"{lake}/t/a.parquet", pa.table({"id": values}))
    keys = values.slice(1).cast(given)
    for source in (keys, pa.chunked_array([keys]), pa.table({"id": keys})):
        assert ConservativeMembershipChecker().file_might_contain_keys(described(f"{lake}/t"), "id", source)
        assert confirm_affected_files([path], "id", source) == [path]
        assert plan_incremental_rewrite(f"{lake}/t", source, "id").affected_files == [path]


# P1, H1
def test_folders_above_the_dataset_do_not_affect_its_keys(lake: str) -> None:
    root = f"{lake}/id=5/t"
    path = put(f"{root}/a.parquet", ids([1, 2]))
    assert plan_incremental_rewrite(root, [1], "id").affected_files == [path]
    assert plan_incremental_rewrite(root, [5], "id").affected_files == []
