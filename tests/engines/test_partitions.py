"""Hive partitions: values that live in paths (H1 to H6)."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files, load, put, read_rows, snapshot

from merganser.core import PartitionMoveError, PartitionValueError, UnreadableFileError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# The ASCII characters that Spark percent-encodes in a partition's folder, beside the control characters.
SPARK_ESCAPES = "\"#%'*/:=?\\\x7f{[]^"


def days(ids: list[int], values: list[Any] | pa.Array, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{n}" for n in ids], "day": pa.array(values, kind)})


def folders(path: str) -> list[str]:
    return sorted({os.path.dirname(name) for name in list_data_files(path)})


# H1
@pytest.mark.parametrize("argument", ["partition_columns", "partition_by"])
@pytest.mark.parametrize("columns", ["day", ["day"], ("day",)])
def test_partition_columns_and_their_alias(io: AnyDatasetIO, lake: str, argument: str, columns: Any) -> None:
    io.merge(days([1, 2], ["mon", "tue"]), f"{lake}/t", key_columns="id", **{argument: columns})
    assert folders(f"{lake}/t") == ["day=mon", "day=tue"]
    io.write_dataset(days([3], ["wed"]), f"{lake}/u", **{argument: columns})
    assert folders(f"{lake}/u") == ["day=wed"]
    assert io.plan(days([1], ["mon"]), f"{lake}/t", key_columns="id", **{argument: columns}).updated == 1


# H1
def test_both_names_at_once_are_refused(io: AnyDatasetIO, lake: str) -> None:
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ValueError, match="partition_columns and partition_by mean the same"),
    ):
        io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day", partition_by="day")


# H1
def test_partition_columns_are_read_from_the_paths_by_default(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/year=2024/month=12/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    source = pa.table({"id": [1, 2], "v": ["A", "b"], "month": [12, 1], "year": [2024, 2025]})
    result = io.merge(source, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    assert folders(f"{lake}/t") == ["year=2024/month=12", "year=2025/month=1"]
    assert load(io, f"{lake}/t").schema.names == ["id", "v", "year", "month"]


# H1
@pytest.mark.parametrize("wrong", ["v", ["day", "v"], ["v", "day"], [], ["day", "hour"]])
def test_other_partition_columns_than_the_paths_are_refused(io: AnyDatasetIO, lake: str, wrong: Any) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=r"differ from those of .*\['day'\]"):
        io.merge(days([2], ["tue"]), f"{lake}/t", key_columns="id", partition_columns=wrong)


# H1
def test_the_order_of_partition_columns_is_the_order_of_folders(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1], "a": ["x"], "b": ["y"]})
    io.merge(table, f"{lake}/t", key_columns="id", partition_columns=["b", "a"])
    assert folders(f"{lake}/t") == ["b=y/a=x"]
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="differ from those of"):
        io.merge(table, f"{lake}/t", key_columns="id", partition_columns=["a", "b"])


# H1
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("nope", "'nope' is missing from the source"),
        (["day", "day"], "partition_columns names 'day' more than once"),
        ([3], "partition_columns must be"),
        (["id", "v", "day"], "Every column is a partition column"),
    ],
)
def test_invalid_partition_columns_are_refused(io: AnyDatasetIO, lake: str, columns: Any, message: str) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=message):
        io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns=columns)
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=message):
        io.write_dataset(days([1], ["mon"]), f"{lake}/t", partition_columns=columns)


# H1
def test_files_do_not_hold_the_partition_columns(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    assert pq.ParquetFile(f"{lake}/t/{list_data_files(f'{lake}/t')[0]}").schema_arrow.names == ["id", "v"]


# H1
def test_where_a_file_holds_the_column_too_the_path_wins(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=1/a.parquet", pa.table({"id": [1, 2], "day": [9, 9], "v": ["a", "b"]}))
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == ["1", "1"]
    source = pa.table({"id": [2, 3], "day": [1, 9], "v": ["B", "c"]})
    result = io.merge(source, f"{lake}/t", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 1)
    assert [(row["id"], row["day"], row["v"]) for row in read_rows(io, f"{lake}/t")] == [
        (1, 1, "a"),
        (2, 1, "B"),
        (3, 9, "c"),
    ]
    assert folders(f"{lake}/t") == ["day=1", "day=9"]


# H1, H4
def test_a_partition_column_inside_a_file_does_not_cause_a_move(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=1/a.parquet", pa.table({"id": [1], "day": [9], "v": ["a"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.merge(pa.table({"id": [1], "day": [9], "v": ["A"]}), f"{lake}/t", key_columns="id")
    assert io.merge(pa.table({"id": [1], "day": [1], "v": ["A"]}), f"{lake}/t", key_columns="id").updated == 1


# H1
def test_folders_above_the_dataset_are_not_partitions(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/region=eu/t"
    io.merge(pa.table({"id": [1], "v": ["a"]}), path, key_columns="id")
    assert read_rows(io, path) == [{"id": 1, "v": "a"}]


# H2
def test_007_is_a_string_in_a_string_column_and_7_in_an_integer_one(io: AnyDatasetIO, lake: str) -> None:
    for name in ("text", "number"):
        put(f"{lake}/{name}/day=007/a.parquet", pa.table({"id": [1], "v": ["v1"]}))
    io.merge(days([1, 2], ["007", "7"]), f"{lake}/text", key_columns="id")
    assert [row["day"] for row in read_rows(io, f"{lake}/text")] == ["007", "7"]
    assert folders(f"{lake}/text") == ["day=007", "day=7"]
    io.merge(days([1, 2], [7, 7]), f"{lake}/number", key_columns="id")
    assert [row["day"] for row in read_rows(io, f"{lake}/number")] == [7, 7]
    assert folders(f"{lake}/number") == ["day=007"]


# H2
def test_without_a_record_read_returns_strings(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=007/a.parquet", pa.table({"id": [1]}))
    put(f"{lake}/t/day={NULL_FOLDER}/a.parquet", pa.table({"id": [2]}))
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "day": "007"}, {"id": 2, "day": None}]
    assert load(io, f"{lake}/t").schema.field("day").type == pa.string()


# H2, S3
def test_recorded_types_hold_for_later_sources(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], [7], pa.int32()), f"{lake}/t", key_columns="id", partition_columns="day")
    io.merge(days([1, 2], [7, 8], pa.int64()), f"{lake}/t", key_columns="id")
    assert load(io, f"{lake}/t").schema.field("day").type == pa.int32()
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'day' has type string in the source and int32"):
        io.merge(days([3], ["9"]), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'day' holds 2147483648"):
        io.merge(days([3], [2**31]), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'day' has type string in the source and int32"):
        io.write_dataset(days([3], ["9"]), f"{lake}/t")


# H2
def test_the_first_source_decides_for_a_dataset_without_a_record(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=2025-01-01/a.parquet", pa.table({"id": [1], "v": ["v1"]}))
    assert io.merge(days([1], [dt.date(2025, 1, 1)]), f"{lake}/t", key_columns="id").updated == 1
    assert load(io, f"{lake}/t").schema.field("day").type == pa.date32()
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(TypeError, match="'day' has type string in the source and date32"),
    ):
        io.merge(days([1], ["2025-01-01"]), f"{lake}/t", key_columns="id")


# H2
def test_a_recreated_dataset_ignores_the_old_record(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    shutil.rmtree(f"{lake}/t")
    for _ in range(2):
        io.merge(days([1], [7]), f"{lake}/t", key_columns="id", partition_columns="day")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": "v1", "day": 7}]


# H2
def test_a_record_of_other_columns_is_replaced(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    shutil.rmtree(f"{lake}/t")
    put(f"{lake}/t/b=7/f.parquet", pa.table({"id": [1]}))
    io.merge(pa.table({"id": [2], "b": pa.array([7], pa.int16())}), f"{lake}/t", key_columns="id")
    assert load(io, f"{lake}/t").schema.field("b").type == pa.int16()
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "b": 7}, {"id": 2, "b": 7}]


# H2
@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff", b'{"schema": 3}', b'{"schema": "AAAA"}'])
def test_a_damaged_record_is_named_with_the_remedy(io: AnyDatasetIO, lake: str, content: bytes) -> None:
    io.merge(days([1], [7]), f"{lake}/t", key_columns="id", partition_columns="day")
    record = Path(f"{lake}/.t.merganser/partitions.json")
    record.write_bytes(content)
    attempts: list[Callable[[], object]] = [
        lambda: io.merge(days([2], [7]), f"{lake}/t", key_columns="id"),
        lambda: io.write_dataset(days([2], [7]), f"{lake}/t"),
        lambda: load(io, f"{lake}/t"),
    ]
    for attempt in attempts:
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(UnreadableFileError, match=r"partitions\.json is damaged.*Remove it"),
        ):
            attempt()
    record.unlink()
    assert io.merge(days([2], [7]), f"{lake}/t", key_columns="id").inserted == 1
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == [7, 7]


# H2
def test_the_null_folder(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1, 2], [7, None]), f"{lake}/t", key_columns="id", partition_columns="day")
    assert folders(f"{lake}/t") == ["day=7", f"day={NULL_FOLDER}"]
    result = io.merge(days([2, 3], [None, None], pa.int64()), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == [7, None, None]
    assert folders(f"{lake}/t") == ["day=7", f"day={NULL_FOLDER}"]


# H2, K4
def test_rows_of_the_null_folder_never_match_when_the_column_is_a_key(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day={NULL_FOLDER}/a.parquet", pa.table({"id": [1], "v": ["kept"]}))
    result = io.merge(days([1], ["mon"]), f"{lake}/t", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 0)
    assert {"id": 1, "v": "kept", "day": None} in read_rows(io, f"{lake}/t", ["id", "day"])


CARRIED: list[tuple[pa.DataType, list[Any], list[str]]] = [
    (pa.int8(), [-1, 7], ["-1", "7"]),
    (pa.uint64(), [0, 2**64 - 1], ["0", "18446744073709551615"]),
    (pa.bool_(), [False, True], ["false", "true"]),
    (pa.string(), ["b", "a"], ["b", "a"]),
    (pa.large_string(), ["b", "a"], ["b", "a"]),
    (pa.date32(), [dt.date(2025, 1, 1), dt.date(1969, 12, 31)], ["2025-01-01", "1969-12-31"]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-2.00")], ["1.50", "-2.00"]),
    (pa.timestamp("us"), [0, 1_500_000], ["1970-01-01 00%3A00%3A00", "1970-01-01 00%3A00%3A01.5"]),
    (pa.timestamp("s"), [0, 1], ["1970-01-01 00%3A00%3A00", "1970-01-01 00%3A00%3A01"]),
]


# H2, H3
@pytest.mark.parametrize(("kind", "values", "texts"), CARRIED, ids=[str(kind) for kind, _, _ in CARRIED])
def test_types_that_folder_names_carry(
    io: AnyDatasetIO, lake: str, kind: pa.DataType, values: list[Any], texts: list[str]
) -> None:
    source = days([1, 2], values, kind)
    io.merge(source, f"{lake}/t", key_columns="id", partition_columns="day")
    assert folders(f"{lake}/t") == sorted(f"day={text}" for text in texts)
    for keys in (["id"], ["id", "day"], ["day"]):
        result = io.merge(source, f"{lake}/t", key_columns=keys)
        assert (result.inserted, result.updated) == (0, 2)
    found = load(io, f"{lake}/t").sort_by("id")
    assert found.schema.field("day").type == kind
    assert found.column("day").to_pylist() == source.column("day").to_pylist()


# H2, S4
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
        (pa.string_view(), ["a", "b"]),
        (pa.decimal32(5, 2), [Decimal("1.50"), Decimal("2.00")]),
        (pa.decimal64(12, 2), [Decimal("1.50"), Decimal("2.00")]),
        (pa.date64(), [dt.date(2025, 1, 1), dt.date(2025, 1, 2)]),
    ],
    ids=str,
)
def test_other_layouts_of_partition_types_are_stored_by_value(
    io: AnyDatasetIO, lake: str, kind: pa.DataType, values: list[Any]
) -> None:
    source = days([1, 2], values, kind)
    for _ in range(2):
        io.merge(source, f"{lake}/t", key_columns="id", partition_columns="day")
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == values


# H2, S5
@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5]),
        pa.array([b"x"]),
        pa.array([0], pa.timestamp("us", "UTC")),
        pa.array([0], pa.time64("us")),
        pa.array([0], pa.duration("s")),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.nulls(1),
    ],
    ids=lambda values: str(values.type),
)
def test_types_that_folder_names_cannot_carry_are_refused(io: AnyDatasetIO, lake: str, values: pa.Array) -> None:
    source = pa.table({"id": [1], "day": values})
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedTypeError, match="'day' has type"):
        io.merge(source, f"{lake}/t", key_columns="id", partition_columns="day")
    for mode in ("append", "overwrite"):
        with assert_unchanged(f"{lake}/t"), pytest.raises(UnsupportedTypeError, match="'day' has type"):
            io.write_dataset(source, f"{lake}/t", mode, partition_columns="day")


# H3
def test_only_what_spark_escapes_is_percent_encoded(io: AnyDatasetIO, lake: str) -> None:
    ascii_values = [f"x{chr(code)}y" for code in range(1, 128)]
    io.merge(
        days(list(range(127)), ascii_values), f"{lake}/t", key_columns="id", partition_columns="day", row_group_size=1
    )
    expected = {
        f"day=x%{code:02X}y" if code < 32 or chr(code) in SPARK_ESCAPES else f"day=x{chr(code)}y"
        for code in range(1, 128)
    }
    assert set(os.listdir(f"{lake}/t")) == expected
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == ascii_values


# H3
def test_other_scripts_stay_raw(io: AnyDatasetIO, lake: str) -> None:
    values = ["東京", "Größe", "🦆", "e\u0301", "日=本"]
    io.merge(days([1, 2, 3, 4, 5], values), f"{lake}/t", key_columns="id", partition_columns="day")
    assert set(os.listdir(f"{lake}/t")) == {"day=東京", "day=Größe", "day=🦆", "day=e\u0301", "day=日%3D本"}
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == values


# H3
def test_column_names_are_escaped_like_values(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1], "a/b=c": ["x"]})
    for _ in range(2):
        io.merge(table, f"{lake}/t", key_columns="id", partition_columns="a/b=c")
    assert folders(f"{lake}/t") == ["a%2Fb%3Dc=x"]
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# H3
@pytest.mark.parametrize("folder", ["day=東京", "day=%E6%9D%B1%E4%BA%AC", "day=%e6%9d%b1京"])
def test_raw_and_percent_encoded_values_are_read_and_their_folder_reused(
    io: AnyDatasetIO, lake: str, folder: str
) -> None:
    put(f"{lake}/t/{folder}/a.parquet", pa.table({"id": [1], "v": ["v1"]}))
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == ["東京"]
    result = io.merge(days([1, 2], ["東京", "東京"]), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    assert folders(f"{lake}/t") == [folder]


# H3
@pytest.mark.parametrize(
    ("folder", "value"),
    [
        ("day=a%20b", "a b"),
        ("day=a b", "a b"),
        ("day=a%2bb", "a+b"),
        ("day=a+b", "a+b"),
        ("day=%2F", "/"),
        ("day=%252F", "%2F"),
        ("day=100%25", "100%"),
        ("day=100%", "100%"),
        ("day=a;b", "a;b"),
        ("day=a=b", "a=b"),
        ("day=%zz", "%zz"),
    ],
)
def test_spellings_of_other_writers(io: AnyDatasetIO, lake: str, folder: str, value: str) -> None:
    put(f"{lake}/t/{folder}/a.parquet", pa.table({"id": [1], "v": ["v1"]}))
    result = io.merge(days([1, 2], [value, value]), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)
    assert folders(f"{lake}/t") == [folder]
    assert [row["day"] for row in read_rows(io, f"{lake}/t")] == [value, value]


# H3
def test_one_value_under_two_spellings_is_one_partition(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=a b/x.parquet", pa.table({"id": [1], "v": ["v1"]}))
    put(f"{lake}/t/day=a%20b/x.parquet", pa.table({"id": [2], "v": ["v2"]}))
    result = io.merge(days([1, 2, 3], ["a b"] * 3), f"{lake}/t", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 2)
    assert folders(f"{lake}/t") == ["day=a b", "day=a%20b"]


# H3
def test_upper_folders_of_another_spelling_are_used_again(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a=x%20y/b=1/a.parquet", pa.table({"id": [1]}))
    io.merge(pa.table({"id": [2], "a": ["x y"], "b": ["2"]}), f"{lake}/t", key_columns="id")
    assert folders(f"{lake}/t") == ["a=x%20y/b=1", "a=x%20y/b=2"]


# H3
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "empty string"),
        (NULL_FOLDER, "means NULL"),
        ("x" * 252, "256 bytes, over the limit of 255"),
        ("東" * 84, "256 bytes, over the limit of 255"),
        ("%" * 84, "256 bytes, over the limit of 255"),
    ],
)
def test_values_that_no_folder_can_carry_are_refused(io: AnyDatasetIO, lake: str, value: str, message: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionValueError, match=f"'day' .*{message}") as caught:
        io.merge(days([2, 3], ["tue", value]), f"{lake}/t", key_columns="id")
    assert isinstance(caught.value, ValueError)
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionValueError, match=message):
        io.write_dataset(days([2], [value]), f"{lake}/t")


def numbered(values: list[int], kind: pa.DataType) -> pa.Array:
    """Days or instants by their numbers, also beyond Python's calendar."""
    return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


YEAR_10000 = 253_402_300_800


# H2, H3
@pytest.mark.parametrize(
    "far",
    [
        numbered([YEAR_10000], pa.timestamp("s")),
        numbered([YEAR_10000 * 10**6 + 1], pa.timestamp("us")),
        numbered([4_000_000], pa.date32()),
        numbered([4_000_000 * 86_400_000], pa.date64()),
    ],
    ids=lambda far: str(far.type),
)
def test_values_that_do_not_read_back_are_refused(io: AnyDatasetIO, lake: str, far: pa.Array) -> None:
    io.merge(days([1], numbered([0], far.type)), f"{lake}/t", key_columns="id", partition_columns="day")
    for path in (f"{lake}/t", f"{lake}/new"):
        with assert_unchanged(path), pytest.raises(PartitionValueError, match=r"'day' .*cannot be read back"):
            io.merge(days([2], far), path, key_columns="id", partition_columns="day")
        with assert_unchanged(path), pytest.raises(PartitionValueError, match=r"'day' .*cannot be read back"):
            io.write_dataset(days([2], far), path, partition_columns="day")
    assert not os.path.exists(f"{lake}/new")


# H2, H3
@pytest.mark.parametrize("day", [-800_000, -719_529, -719_163, -719_162, 2_932_896, 2_932_897])
def test_a_day_at_either_end_of_the_calendar_comes_back_or_is_refused(io: AnyDatasetIO, lake: str, day: int) -> None:
    source = days([1], numbered([day], pa.date32()))
    try:
        io.merge(source, f"{lake}/t", key_columns="id", partition_columns="day")
    except PartitionValueError:
        assert not os.path.exists(f"{lake}/t")
        assert not -719_162 <= day <= 2_932_896, "Python's own calendar is carried"
        return
    assert load(io, f"{lake}/t").column("day").cast(pa.int32()).to_pylist() == [day]
    result = io.merge(source, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (0, 1)


# H3
def test_strings_that_are_not_utf8_are_refused(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    for path in (f"{lake}/t", f"{lake}/new"):
        with assert_unchanged(path), pytest.raises(PartitionValueError, match=r"'day' .*not valid UTF-8.*xff"):
            io.merge(days([2], bad), path, key_columns="id", partition_columns="day")


# H3
def test_a_column_that_occurs_twice_in_a_path_takes_its_last_folder(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a=1/a=2/f.parquet", pa.table({"id": [1]}))
    io.merge(pa.table({"id": [2, 3], "a": [2, 1]}), f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "a": 2}, {"id": 2, "a": 2}, {"id": 3, "a": 1}]


# H3
def test_a_name_of_exactly_255_bytes_is_fine(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["x" * 251]), f"{lake}/t", key_columns="id", partition_columns="day")
    assert read_rows(io, f"{lake}/t")[0]["day"] == "x" * 251


# H3
@pytest.mark.parametrize("name", [".day", "_day", "day.of.week", "Day", "день", "a b", "[0]"])
def test_any_partition_column_is_found_again_or_refused(io: AnyDatasetIO, lake: str, name: str) -> None:
    table = pa.table({"id": [1, 2], name: ["x", "y"]})
    try:
        io.merge(table, f"{lake}/t", key_columns="id", partition_columns=name)
    except ValueError as error:
        # A folder that begins with a dot is hidden from every reader.
        assert (name, os.path.exists(f"{lake}/t")) == (".day", False)
        assert "'.day'" in str(error)  # noqa: PT017
    else:
        assert read_rows(io, f"{lake}/t") == table.to_pylist()


# H4
@pytest.mark.parametrize("strategy", ["update", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("goal", ["tue", "new", None])
def test_a_matched_key_may_not_change_its_partition(
    io: AnyDatasetIO, lake: str, strategy: Any, goal: str | None
) -> None:
    ids = list(range(1, 9))
    io.merge(days([*ids, 50], ["mon"] * 8 + ["tue"]), f"{lake}/t", key_columns="id", partition_columns="day")
    moved = days([*ids, 99], [goal] * 7 + ["mon", "mon"], pa.string())
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ValueError, match="Partition columns cannot change for existing keys") as c,
    ):
        io.merge(moved, f"{lake}/t", strategy, "id")
    message = str(c.value)
    assert isinstance(c.value, PartitionMoveError)
    assert "7 rows" in message
    assert "'day'" in message
    assert [f"id={n}" in message for n in ids] == [True] * 5 + [False] * 3


# H4
def test_a_refused_move_keeps_the_good_rows_of_the_source_out_too(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1, 2], ["mon", "mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.merge(days([1, 2, 3], ["mon", "tue", "wed"]), f"{lake}/t", key_columns="id")


# H4
def test_plan_refuses_the_move_as_well(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.plan(days([1], ["tue"]), f"{lake}/t", key_columns="id")


# H4
def test_one_of_several_partition_columns_is_enough(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1], "a": ["x"], "b": [1]})
    io.merge(table, f"{lake}/t", key_columns="id", partition_columns=["a", "b"])
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError, match="'a', 'b'"):
        io.merge(table.set_column(2, "b", pa.array([2])), f"{lake}/t", key_columns="id")


# H4, K8
def test_partition_columns_in_the_key_make_another_key_not_a_move(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns=["id", "day"], partition_columns="day")
    result = io.merge(days([1], ["tue"]), f"{lake}/t", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 0)


# H4, K8
def test_a_partition_column_outside_the_key_is_still_checked(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1], "a": ["x"], "b": ["y"]})
    io.merge(table, f"{lake}/t", key_columns=["id", "a"], partition_columns=["a", "b"])
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.merge(table.set_column(2, "b", pa.array(["z"])), f"{lake}/t", key_columns=["id", "a"])


# H4
def test_insert_keeps_the_target_row_without_an_error(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id", partition_columns="day")
    result = io.merge(days([1, 2], ["tue", "tue"]), f"{lake}/t", "insert", "id")
    assert (result.inserted, result.updated) == (1, 0)
    assert [(row["id"], row["day"]) for row in read_rows(io, f"{lake}/t")] == [(1, "mon"), (2, "tue")]


# H4
def test_deletes_reach_partitions_that_the_source_never_names(io: AnyDatasetIO, lake: str) -> None:
    io.merge(days([1, 2, 3], ["mon", "tue", "wed"]), f"{lake}/t", key_columns="id", partition_columns="day")
    for moves in (True, False):
        plan = io.plan(days([1], ["mon"]), f"{lake}/t", "full_merge", "id", check_partition_moves=moves)
        assert (plan.updated, plan.deleted) == (1, 2)
    result = io.merge(days([1], ["mon"]), f"{lake}/t", "full_merge", "id")
    assert (result.updated, result.deleted) == (1, 2)
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1]


# H4, K9
def test_a_key_in_two_partitions_of_the_target_is_a_move_for_one_of_them(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    put(f"{lake}/t/day=tue/a.parquet", pa.table({"id": [1], "v": ["b"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError, match=r": 1 row of the target"):
        io.merge(days([1], ["mon"]), f"{lake}/t", key_columns="id")


# H5
def test_other_partitions_are_scanned_for_moves_only_where_bounds_allow(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"id": [1, 2], "v": ["a", "b"]}))
    put(f"{lake}/t/day=tue/a.parquet", pa.table({"id": [1, 9], "v": ["c", "d"]}).slice(1))
    put(f"{lake}/t/day=tue/b.parquet", pa.table({"id": [0, 5], "v": ["e", "f"]}))
    plan = io.plan(days([2], ["mon"]), f"{lake}/t", "upsert", "id")
    seen = {os.path.relpath(file.path, f"{lake}/t"): file for file in plan.files}
    assert {name: file.candidate_groups for name, file in seen.items()} == {
        "day=mon/a.parquet": 1,
        "day=tue/a.parquet": 0,
        "day=tue/b.parquet": 1,
    }
    assert [name for name, file in seen.items() if file.action == "rewrite"] == ["day=mon/a.parquet"]


# H5
def test_check_partition_moves_false_skips_that_scan(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    put(f"{lake}/t/day=tue/a.parquet", pa.table({"id": [2], "v": ["b"]}))
    plan = io.plan(days([2], ["mon"]), f"{lake}/t", "upsert", "id", check_partition_moves=False)
    tuesday = next(file for file in plan.files if "day=tue" in file.path)
    assert (tuesday.candidate_groups, tuesday.reason) == (0, "the source has no row for its partition")
    before = snapshot(f"{lake}/t")
    # The caller promised that keys never move, so the key is new in its partition.
    result = io.merge(days([2], ["mon"]), f"{lake}/t", "upsert", "id", check_partition_moves=False)
    assert (result.inserted, result.updated) == (1, 0)
    assert before.items() <= snapshot(f"{lake}/t").items()


# H5
def test_check_partition_moves_false_still_refuses_moves_it_finds(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    put(f"{lake}/t/day=tue/a.parquet", pa.table({"id": [2], "v": ["b"]}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.merge(days([1, 2], ["mon", "mon"]).slice(0), f"{lake}/t", "upsert", "id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError):
        io.merge(days([2, 3], ["mon", "tue"]), f"{lake}/t", "upsert", "id", check_partition_moves=False)


# H5, P1
def test_partition_columns_in_the_key_prune_without_a_scan(io: AnyDatasetIO, lake: str) -> None:
    for day in ("mon", "tue", "wed"):
        put(f"{lake}/t/day={day}/a.parquet", pa.table({"id": [1, 9], "v": ["a", "b"]}))
    plan = io.plan(days([1], ["tue"]), f"{lake}/t", "upsert", ["id", "day"])
    assert [file.candidate_groups for file in plan.files] == [0, 1, 0]


# H6
@pytest.mark.parametrize("keys", [["id"], ["id", "day"]])
@pytest.mark.parametrize("moves", [True, False])
def test_a_file_outside_the_folders_is_never_pruned(io: AnyDatasetIO, lake: str, keys: list[str], moves: bool) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    put(f"{lake}/t/loose.parquet", pa.table({"id": [2], "v": ["b"], "day": ["tue"]}))
    source = pa.table({"id": [2], "v": ["B"], "day": ["tue"]})
    result = io.merge(source, f"{lake}/t", "upsert", keys, check_partition_moves=moves)
    assert (result.inserted, result.updated) == (0, 1)
    assert result.rewritten_files == [f"{lake}/t/loose.parquet"]
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": "a", "day": "mon"}, {"id": 2, "v": "B", "day": "tue"}]


# H6
def test_a_folder_whose_value_does_not_parse_is_never_pruned(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=7/a.parquet", pa.table({"id": [1], "v": ["a"]}))
    put(f"{lake}/t/day=seven/a.parquet", pa.table({"id": [2], "v": ["b"]}))
    plan = io.plan(days([3], [7]), f"{lake}/t", "insert", "id", check_partition_moves=False)
    assert {file.path.split("day=")[1]: file.reason for file in plan.files} == {
        "7/a.parquet": "no source key lies inside its bounds",
        "seven/a.parquet": "no source key lies inside its bounds",
    }
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(PartitionMoveError, match=r"day=seven/a\.parquet holds matched keys"),
    ):
        io.merge(days([2], [7]), f"{lake}/t", key_columns="id")
