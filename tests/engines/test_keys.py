"""Keys: how they are named, what is refused, and when two of them are equal (K1 to K10)."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, put, read_rows

from merganser.core import DuplicateKeyError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]


def pairs(ids: list[Any], values: list[str], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, kind), "v": values})


# K1
@pytest.mark.parametrize("keys", ["id", ["id"], ("id",)])
def test_one_name_or_a_sequence_of_names(io: AnyDatasetIO, lake: str, keys: Any) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns=keys)
    assert io.merge(pairs([1], ["b"]), f"{lake}/t", key_columns=keys).updated == 1


# K1
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), "key_columns is empty"),
        ([], "key_columns is empty"),
        ("", "must be a column name"),
        (["id", ""], "must be a column name"),
        (["id", "id"], "'id' more than once"),
        ([1], "must be a column name"),
        (None, "must be a column name"),
        ({"id"}, "must be a column name"),
        (b"id", "must be a column name"),
        (7, "must be a column name"),
    ],
)
def test_invalid_key_columns_are_refused(io: AnyDatasetIO, lake: str, keys: Any, message: str) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=message):
        io.merge(pairs([1], ["b"]), f"{lake}/t", key_columns=keys)


# K2
def test_key_missing_from_the_source_names_column_and_side(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'code' is missing from the source"):
        io.merge(pairs([1], ["b"]), f"{lake}/t", key_columns=["id", "code"])


# K2
def test_key_missing_from_the_target_names_column_and_side(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns="id")
    source = pa.table({"code": [1], "v": ["b"]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'code' is missing from the target"):
        io.merge(source, f"{lake}/t", key_columns="code")


# K2
def test_key_names_are_case_sensitive(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'ID' is missing from the source"):
        io.merge(pairs([1], ["b"]), f"{lake}/t", key_columns="ID")


# K3
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_null_in_a_source_key_is_refused_with_columns_and_rows(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "v": [1, 2, 3]})
    io.merge(table, f"{lake}/t", key_columns=["a", "b"])
    source = pa.table({"a": [1, None, None], "b": ["x", "y", None], "v": [7, 8, 9]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'a' in 2 rows, 'b' in 1 row"):
        io.merge(source, f"{lake}/t", strategy, ["a", "b"])


# K3
def test_null_in_a_dictionary_key_is_found(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs(["a"], ["x"]), f"{lake}/t", key_columns="id")
    # The index is valid, the value it points at is not.
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'id' in 1 row"):
        io.merge(pa.table({"id": hidden, "v": ["p", "q"]}), f"{lake}/t", key_columns="id")


# K3
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_in_a_source_key_is_refused(io: AnyDatasetIO, lake: str, kind: pa.DataType) -> None:
    io.merge(pairs([1.0], ["a"], kind), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="NULL or NaN in key columns: 'id' in 1 row"):
        io.merge(pairs([1.0, float("nan")], ["b", "c"], kind), f"{lake}/t", key_columns="id")


# K3, T4
def test_null_keys_are_refused_on_a_first_load_and_leave_no_dataset(io: AnyDatasetIO, lake: str) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'id' in 1 row"):
        io.merge(pairs([None, 1], ["a", "b"], pa.int64()), f"{lake}/t", key_columns="id")


# K4
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate"])
def test_target_row_with_a_null_key_is_kept(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, None, 2], ["a", "kept", "c"]))
    io.merge(pairs([1, 3], ["A", "d"]), f"{lake}/t", strategy, "id")
    assert {"id": None, "v": "kept"} in read_rows(io, f"{lake}/t")


# K4
def test_full_merge_deletes_a_target_row_with_a_null_key(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, None], ["a", "gone"]))
    result = io.merge(pairs([1], ["A"]), f"{lake}/t", "full_merge", "id")
    assert (result.updated, result.deleted) == (1, 1)
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": "A"}]


# K4, K10
def test_composite_target_key_with_one_null_never_matches(io: AnyDatasetIO, lake: str) -> None:
    target = pa.table({"a": pa.array([1, None], pa.int64()), "b": pa.array([None, "x"], pa.string()), "v": [1, 2]})
    put(f"{lake}/t/a.parquet", target)
    result = io.merge(pa.table({"a": [1], "b": ["x"], "v": [9]}), f"{lake}/t", key_columns=["a", "b"])
    assert (result.inserted, result.updated) == (1, 0)


# K4
def test_nan_key_in_the_target_never_matches_and_is_kept(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([float("nan"), 1.0], ["nan", "one"]))
    result = io.merge(pairs([1.0], ["ONE"]), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated, result.target_count_after) == (0, 1, 2)
    assert sorted(row["v"] for row in read_rows(io, f"{lake}/t", ["v"])) == ["ONE", "nan"]


# K5
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_two_source_rows_with_one_key_are_refused(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    io.merge(pairs([1], ["a"]), f"{lake}/t", key_columns="id")
    ids = [n for n in range(7) for _ in (0, 1)] + [99]
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError) as caught:
        io.merge(pairs(ids, ["x"] * len(ids)), f"{lake}/t", strategy, "id")
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert message.startswith("The source has 7 duplicate keys, for example ")
    assert [f"id={n}" in message for n in range(7)] == [True] * 5 + [False] * 2
    assert "sequence_column" in message
    # Its advice never changes what the strategy means: deduplicate is an upsert.
    assert ("deduplicate" in message) is (strategy == "upsert")


# K5: what the message advises works
@pytest.mark.parametrize(
    ("strategy", "after", "done"),
    [
        ("insert", {1: "a", 2: "y"}, (1, 0, 0)),
        ("update", {1: "b"}, (0, 1, 0)),
        ("upsert", {1: "b", 2: "y"}, (1, 1, 0)),
        ("full_merge", {1: "b", 2: "y"}, (1, 1, 0)),
    ],
)
def test_a_sequence_column_decides_between_rows_with_one_key(
    io: AnyDatasetIO, lake: str, strategy: Any, after: dict[int, str], done: tuple[int, int, int]
) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": ["a"], "at": [0]}))
    source = pa.table({"id": [1, 2, 1, 2], "v": ["b", "x", "A", "y"], "at": [2, 1, 1, 2]})
    result = io.merge(source, f"{lake}/t", strategy, "id", sequence_column="at")
    assert (result.inserted, result.updated, result.deleted) == done
    assert {row["id"]: row["v"] for row in read_rows(io, f"{lake}/t")} == after


# K5, M1, K9: nothing is ambiguous, and counts count target rows
@pytest.mark.parametrize("partitioned", [False, True])
def test_delete_takes_repeated_keys(io: AnyDatasetIO, lake: str, partitioned: bool) -> None:
    folder = "day=1/" if partitioned else ""
    put(f"{lake}/t/{folder}a.parquet", pairs([1, 2, 3], ["a", "b", "c"]))
    put(f"{lake}/t/{folder}b.parquet", pairs([2, 4], ["B", "d"]))
    source = pa.table({"id": [2, 9, 2, 4, 9, 2], **({"day": [1, 1, 2, 3, 1, 1]} if partitioned else {})})
    assert io.plan(source, f"{lake}/t", "delete", "id").deleted == 3
    result = io.merge(source, f"{lake}/t", "delete", "id", audit=True)
    assert (result.source_count, result.deleted, result.target_count_after) == (6, 3, 2)
    assert result.audit is not None
    assert sorted(result.audit.column("id").to_pylist()) == [2, 2, 4]
    assert sorted(row["v"] for row in read_rows(io, f"{lake}/t", ["v"])) == ["a", "c"]


# K5, K10
def test_duplicates_of_a_composite_key_show_every_part(io: AnyDatasetIO, lake: str) -> None:
    source = pa.table({"a": [1, 1, 1], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match=r"1 duplicate key, .*a=1, b='x'"):
        io.merge(source, f"{lake}/t", key_columns=["a", "b"])


# K5
def test_duplicate_strings_that_are_not_utf8_are_shown_as_bytes(io: AnyDatasetIO, lake: str) -> None:
    bad = pa.array([b"\xff", b"\xff", b"a"], pa.binary()).view(pa.string())
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match=r"1 duplicate key, .*id=b'\\xff'"):
        io.merge(pa.table({"id": bad}), f"{lake}/t", key_columns="id")


# K5
def test_deduplicate_takes_repeated_keys(io: AnyDatasetIO, lake: str) -> None:
    result = io.merge(pairs([1, 1], ["a", "b"]), f"{lake}/t", "deduplicate", "id")
    assert (result.inserted, result.source_count) == (1, 2)


# K5, K6
def test_negative_zero_and_zero_are_one_key_in_the_source_too(io: AnyDatasetIO, lake: str) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match=r"^The source has 1 duplicate key,"):
        io.merge(pairs([0.0, -0.0], ["a", "b"]), f"{lake}/t", key_columns="id")


# K6
def test_strings_compare_exactly_and_by_case(io: AnyDatasetIO, lake: str) -> None:
    names = ["a", "A", " a", "a ", "", "é", "e\u0301", "ß", "ss", "a\x00"]
    io.merge(pairs(names, ["old"] * len(names)), f"{lake}/t", key_columns="id")
    assert len(read_rows(io, f"{lake}/t")) == len(names)
    for name in names:
        result = io.merge(pairs([name], ["new"]), f"{lake}/t", key_columns="id")
        assert (result.inserted, result.updated) == (0, 1), name
    assert io.merge(pairs(["É"], ["new"]), f"{lake}/t", "insert", "id").inserted == 1


# K6
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (-0.0, 0.0)])
def test_negative_zero_equals_zero(io: AnyDatasetIO, lake: str, kind: pa.DataType, old: float, new: float) -> None:
    io.merge(pairs([old, 5.0], ["a", "b"], kind), f"{lake}/t", key_columns="id")
    result = io.merge(pairs([new], ["A"], kind), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (0, 1)


# K6
@pytest.mark.parametrize(
    ("have", "given"),
    [
        (pa.decimal128(9, 2), pa.decimal128(20, 6)),
        (pa.decimal128(9, 2), pa.decimal256(40, 2)),
        (pa.decimal128(9, 2), pa.decimal32(7, 2)),
        (pa.decimal256(50, 4), pa.decimal128(9, 2)),
        (pa.decimal64(12, 2), pa.decimal128(9, 3)),
    ],
)
def test_decimals_compare_by_value(io: AnyDatasetIO, lake: str, have: pa.DataType, given: pa.DataType) -> None:
    io.merge(pairs([Decimal("1.50"), Decimal("-7.00")], ["a", "b"], have), f"{lake}/t", key_columns="id")
    result = io.merge(pairs([Decimal("1.50"), Decimal("2.00")], ["A", "c"], given), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)


# K6
def test_integers_of_other_widths_compare_by_value(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1, -2], ["a", "b"], pa.int32()), f"{lake}/t", key_columns="id")
    for kind in (pa.int8(), pa.int64()):
        result = io.merge(pairs([1, -2], ["a", "b"], kind), f"{lake}/t", key_columns="id")
        assert (result.inserted, result.updated) == (0, 2)


# K6
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_zoned_timestamps_compare_by_instant(io: AnyDatasetIO, lake: str, unit: str) -> None:
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    io.merge(pairs([0, 3600 * 10**6], ["a", "b"], pa.timestamp("us", "UTC")), f"{lake}/t", key_columns="id")
    source = pairs([0, 7200 * second], ["A", "c"], pa.timestamp(unit, "America/New_York"))
    result = io.merge(source, f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)


# K6
@pytest.mark.parametrize(("have", "given"), [("UTC", None), (None, "UTC"), (None, "Europe/Paris")])
def test_zoned_and_naive_timestamps_never_compare(
    io: AnyDatasetIO, lake: str, have: str | None, given: str | None
) -> None:
    io.merge(pairs([0], ["a"], pa.timestamp("us", have)), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match=r"'id'.*cannot be compared"):
        io.merge(pairs([0], ["b"], pa.timestamp("us", given)), f"{lake}/t", key_columns="id")


# K6
def test_binary_keys_compare_by_bytes(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([b"\x00", b"\x00\x00", b"\xff"], ["a", "b", "c"]), f"{lake}/t", key_columns="id")
    result = io.merge(pairs([b"\x00", b"\xff\x00"], ["A", "d"]), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated) == (1, 1)


# K7
@pytest.mark.parametrize(
    "nested",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[1]], pa.list_(pa.int64(), 1)),
        pa.array([[1]], pa.large_list(pa.int64())),
    ],
)
def test_nested_keys_are_refused(io: AnyDatasetIO, lake: str, nested: pa.Array) -> None:
    table = pa.table({"id": [1], "k": nested})
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'k' has type"):
        io.merge(table, f"{lake}/t", key_columns="k")
    put(f"{lake}/t/a.parquet", table)
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'k' has type"):
        io.merge(table, f"{lake}/t", key_columns=["id", "k"])


# K7
def test_nested_key_of_the_target_alone_is_refused(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"k": pa.array([[1]])}))
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'k' has type"):
        io.merge(pa.table({"k": [1]}), f"{lake}/t", key_columns="k")


# K8
@pytest.mark.parametrize("keys", [["id"], ["id", "day"], ["day", "id"], ["day"], ["day", "hour"], ["hour", "id"]])
def test_a_key_may_hold_some_all_or_no_partition_columns(io: AnyDatasetIO, lake: str, keys: list[str]) -> None:
    table = pa.table({"id": [1, 2], "v": ["a", "b"], "day": ["mon", "tue"], "hour": [7, 8]})
    io.merge(table, f"{lake}/t", key_columns=keys, partition_columns=["day", "hour"])
    change = pa.table({"id": [2, 3], "v": ["B", "c"], "day": ["tue", "wed"], "hour": [8, 9]})
    result = io.merge(change, f"{lake}/t", key_columns=keys)
    assert (result.inserted, result.updated) == (1, 1)
    assert [(row["id"], row["v"]) for row in read_rows(io, f"{lake}/t")] == [(1, "a"), (2, "B"), (3, "c")]


# K8, K9
def test_a_key_of_partition_columns_alone_replaces_every_row_there(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=mon/a.parquet", pa.table({"v": [1, 2, 3]}))
    put(f"{lake}/t/day=tue/a.parquet", pa.table({"v": [4]}))
    result = io.merge(pa.table({"v": [9], "day": ["mon"]}), f"{lake}/t", "update", "day")
    assert (result.updated, len(result.rewritten_files), len(result.preserved_files)) == (3, 1, 1)
    assert [row["v"] for row in read_rows(io, f"{lake}/t", ["v"])] == [4, 9, 9, 9]


# K9
def test_every_target_row_of_a_key_is_a_match_and_counts(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 1, 2], ["a", "b", "c"]), row_group_size=1)
    put(f"{lake}/t/b.parquet", pairs([3, 1], ["d", "e"]))
    result = io.merge(pairs([1], ["X"]), f"{lake}/t", key_columns="id")
    assert (result.inserted, result.updated, result.deleted) == (0, 3, 0)
    assert [(row["id"], row["v"]) for row in read_rows(io, f"{lake}/t")] == [(1, "X")] * 3 + [(2, "c"), (3, "d")]


# K9
def test_repeated_target_keys_stay_under_insert_and_full_merge_counts_rows(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1, 1, 2, 2], ["a", "b", "c", "d"]))
    assert io.merge(pairs([1], ["X"]), f"{lake}/t", "insert", "id").inserted == 0
    result = io.merge(pairs([1], ["X"]), f"{lake}/t", "full_merge", "id")
    assert (result.updated, result.deleted, result.target_count_after) == (2, 2, 2)


# K10
def test_composite_keys_are_tuples_not_joined_strings(io: AnyDatasetIO, lake: str) -> None:
    target = pa.table({"a": ["a", "x|", ""], "b": ["bc", "y", "z"], "v": [1, 2, 3]})
    io.merge(target, f"{lake}/t", key_columns=["a", "b"])
    source = pa.table({"a": ["ab", "x", "z"], "b": ["c", "|y", ""], "v": [7, 8, 9]})
    result = io.merge(source, f"{lake}/t", key_columns=["a", "b"])
    assert (result.inserted, result.updated) == (3, 0)
    assert len(read_rows(io, f"{lake}/t", ["a", "b"])) == 6


# K10
def test_composite_keys_of_many_columns_and_types(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table(
        {
            "i": pa.array([1, 1, 2], pa.int8()),
            "s": ["x", "y", "x"],
            "t": pa.array([0, 0, 1], pa.timestamp("ms", "UTC")),
            "d": pa.array([Decimal("1.0")] * 3, pa.decimal128(5, 1)),
            "b": [True, True, False],
            "v": ["a", "b", "c"],
        }
    )
    keys = ["i", "s", "t", "d", "b"]
    io.merge(table, f"{lake}/t", key_columns=keys)
    result = io.merge(table.set_column(1, "s", pa.array(["x", "z", "x"])), f"{lake}/t", key_columns=keys)
    assert (result.inserted, result.updated) == (1, 2)


# K1, K10
def test_the_order_of_key_columns_does_not_matter(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "v": [1, 2]})
    io.merge(table, f"{lake}/t", key_columns=["a", "b"])
    assert io.merge(table, f"{lake}/t", key_columns=["b", "a"]).updated == 2


# K1
def test_any_column_name_may_be_a_key(io: AnyDatasetIO, lake: str) -> None:
    for name in ("a.b", "with space", "source_row", "position", "key_0", 'quo"te', "列", "[0]", ".x"):
        table = pa.table({name: [1, 2], "v": [1, 2]})
        path = f"{lake}/t{abs(hash(name))}"
        io.merge(table, path, key_columns=name)
        assert io.merge(table, path, key_columns=name).updated == 2, name
