"""Validation: facts in; an error or nothing out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from merganser.core import (
    PartitionMoveError,
    TableLike,
    normalize_keys,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Described:
    """A table of which only the description can be asked; touching rows fails."""

    def __init__(self, schema: pa.Schema, rows: int, nulls: Mapping[str, int]) -> None:
        self._schema, self._rows, self._nulls = schema, rows, nulls
        self.asked: list[str] = []

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def num_rows(self) -> int:
        return self._rows

    def null_count(self, column: str) -> int:
        self.asked.append(column)
        return self._nulls.get(column, 0)

    def __getattr__(self, name: str) -> Any:
        message = f"validation must not touch {name}"
        raise AssertionError(message)


class Bare:
    """The least that is a TableLike."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.num_rows = 3


SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.float64())])


# K1
@pytest.mark.parametrize(
    ("given", "names"), [("id", ["id"]), (["id"], ["id"]), (("a", "b"), ["a", "b"]), (["列"], ["列"])]
)
def test_normalize_keys(given: Any, names: list[str]) -> None:
    assert normalize_keys(given) == names


# K1
@pytest.mark.parametrize("given", ["", [], (), [""], [1], None, 5, ["a", "a"], {"a": 1}, ["a", None], b"id"])
def test_normalize_keys_refuses(given: Any) -> None:
    with pytest.raises(ValueError, match="key_columns"):
        normalize_keys(given)


# K1
def test_normalize_keys_gives_a_new_list() -> None:
    given = ["a", "b"]
    normalize_keys(given).append("c")
    assert given == ["a", "b"]


# K3
def test_no_null_keys_passes_and_refuses() -> None:
    table = pa.table({"id": [1, 2], "day": ["a", None]})
    validate_no_null_keys(table, ["id"])
    validate_no_null_keys(table, "id")
    with pytest.raises(ValueError, match="'day' in 1 row"):
        validate_no_null_keys(table, ["id", "day"])
    with pytest.raises(ValueError, match="'x' is missing from the source"):
        validate_no_null_keys(table, ["x"])
    validate_no_null_keys(table.slice(0, 0), ["day"])


# K3
def test_nan_counts_as_null_in_a_key() -> None:
    with pytest.raises(ValueError, match="'id' in 2 rows"):
        validate_no_null_keys(pa.table({"id": [1.0, float("nan"), None]}), "id")


# K3
def test_null_keys_are_counted_across_chunks_and_slices() -> None:
    column = pa.chunked_array([[1, None], [None, 4]])
    with pytest.raises(ValueError, match="'id' in 2 rows"):
        validate_no_null_keys(pa.table({"id": column}), "id")
    validate_no_null_keys(pa.table({"id": column}).slice(3), "id")


def immutable(source: dict[str, list[Any]], target: dict[str, list[Any]], keys: Any = "id") -> None:
    validate_partition_column_immutability(pa.table(source), pa.table(target), keys, ["day"])


# H4
def test_equal_partition_values_pass() -> None:
    immutable({"id": [1, 2], "day": ["a", "b"]}, {"id": [2, 1], "day": ["b", "a"]})
    immutable({"id": [9], "day": ["z"]}, {"id": [1], "day": ["a"]})
    nothing = pa.table({"id": [1], "day": pa.nulls(1, pa.string())})
    validate_partition_column_immutability(nothing, nothing, "id", ["day"])


# H4
@pytest.mark.parametrize(("new", "old"), [("b", "a"), (None, "a"), ("a", None), ("A", "a"), ("07", "7")])
def test_other_partition_values_are_refused(new: str | None, old: str | None) -> None:
    source = pa.table({"id": [1], "day": pa.array([new], pa.string())})
    target = pa.table({"id": [1], "day": pa.array([old], pa.string())})
    with pytest.raises(ValueError, match=r"cannot change for existing keys: 1 row .*id=1"):
        validate_partition_column_immutability(source, target, ["id"], ["day"])


# H4
def test_up_to_five_moved_keys_are_shown() -> None:
    many = list(range(8))
    with pytest.raises(PartitionMoveError, match="8 rows") as caught:
        immutable({"id": many, "day": ["b"] * 8}, {"id": many, "day": ["a"] * 8})
    assert [f"id={n}" in str(caught.value) for n in many] == [True] * 5 + [False] * 3


# H4, K10
def test_several_partition_columns_and_composite_keys() -> None:
    source = pa.table({"a": [1, 1], "b": ["x", "y"], "day": ["m", "m"], "hour": [1, 2]})
    target = pa.table({"a": [1, 1], "b": ["x", "y"], "day": ["m", "m"], "hour": [1, 3]})
    validate_partition_column_immutability(source, target, ["a", "b"], ["day"])
    with pytest.raises(ValueError, match="a=1, b='y'"):
        validate_partition_column_immutability(source, target, ["a", "b"], ["day", "hour"])
    validate_partition_column_immutability(source, target, ["a", "b", "hour"], ["day", "hour"])
    validate_partition_column_immutability(source, target, ["a", "b"], [])


# H4, S3
def test_values_compare_in_the_types_of_the_target() -> None:
    source = pa.table({"id": pa.array([1], pa.int8()), "day": pa.array(["a"]).dictionary_encode()})
    target = pa.table({"id": [1], "day": pa.array(["a"], pa.large_string())})
    validate_partition_column_immutability(source, target, "id", ["day"])
    with pytest.raises(TypeError, match="'day'"):
        validate_partition_column_immutability(pa.table({"id": [1], "day": [1]}), target, "id", ["day"])


# K2
def test_immutability_names_missing_columns() -> None:
    table = pa.table({"id": [1], "day": ["a"]})
    with pytest.raises(ValueError, match="'day' is missing from the target"):
        validate_partition_column_immutability(table, table.select(["id"]), "id", ["day"])
    with pytest.raises(ValueError, match="'x' is missing from the source"):
        validate_partition_column_immutability(table, table, "x", ["day"])


# K9, H4
def test_each_of_several_target_rows_is_compared() -> None:
    with pytest.raises(PartitionMoveError, match="1 row"):
        immutable({"id": [1], "day": ["a"]}, {"id": [1, 1], "day": ["a", "b"]})


# K2, K3, S2, S3
def test_keys_and_schema_pass() -> None:
    table = pa.table({"id": [1], "day": ["a"], "v": [1.5]})
    validate_keys_and_schema(table, None, "id")
    validate_keys_and_schema(table, table, ["id", "day"])
    validate_keys_and_schema(table.select(["v", "day", "id"]), table, ["id"])
    validate_keys_and_schema(table, table.slice(0, 0), ["id"])


# K2, K3, K6, K7, S2, S3
@pytest.mark.parametrize(
    ("source", "target", "keys", "error", "message"),
    [
        ({"v": [1]}, None, "id", ValueError, "'id' is missing from the source"),
        ({"id": [1]}, {"v": [1]}, "id", ValueError, "'id' is missing from the target"),
        ({"id": [None, 1]}, None, "id", ValueError, "'id' in 1 row"),
        ({"id": [[1]]}, None, "id", TypeError, "'id' has type"),
        ({"id": [1], "a": [1]}, {"id": [1], "b": [1]}, "id", ValueError, "missing from the source: 'b'"),
        ({"id": ["1"]}, {"id": [1]}, "id", TypeError, "string in the source and int64 in the target"),
        ({"id": [1]}, None, [], ValueError, "key_columns is empty"),
    ],
)
def test_keys_and_schema_refuse(source: Any, target: Any, keys: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        validate_keys_and_schema(pa.table(source), None if target is None else pa.table(target), keys)


# K3
def test_a_description_with_null_count_is_enough() -> None:
    good = Described(SCHEMA, 10, {"v": 5})
    validate_keys_and_schema(good, Described(SCHEMA, 99, {}), ["id", "day"])
    assert good.asked == ["id", "day"]
    with pytest.raises(ValueError, match="'day' in 4 rows"):
        validate_keys_and_schema(Described(SCHEMA, 10, {"day": 4}), None, ["id", "day"])


# K2, K3
def test_a_description_without_null_count_is_checked_by_schema() -> None:
    bare: TableLike = Bare(SCHEMA)
    validate_keys_and_schema(bare, bare, "id")
    with pytest.raises(ValueError, match="'x' is missing from the source"):
        validate_keys_and_schema(bare, None, "x")
