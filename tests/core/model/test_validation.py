"""Validation: facts in; an error or nothing out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from tests.support import put

from merganser.core import (
    InvalidArgumentError,
    KeyColumnError,
    PartitionMoveError,
    SchemaMismatchError,
    TableLike,
    normalize_keys,
    parse_hive_partition_path,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


class Streamed:
    """Rows behind the Arrow PyCapsule interface, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def written(table: pa.Table) -> str:
    return put("./rows.parquet", table)


def encoded(table: pa.Table) -> pa.Table:
    """Return the keys as a dictionary, which holds their NULL."""
    keys = pa.DictionaryArray.from_arrays(list(range(table.num_rows)), table["id"].combine_chunks())
    return table.set_column(table.column_names.index("id"), "id", keys)


ROWS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "record batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(max_chunksize=1),
    "dataset": pads.dataset,
    "scanner": lambda table: pads.dataset(table).scanner(),
    "pandas": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.DataFrame,
    "relation": duckdb.from_arrow,
    "capsule": Streamed,
    "path": written,
    "dictionary": encoded,
}


# K2, K3, S2
@pytest.mark.parametrize("kind", ROWS)
def test_null_keys_are_found_in_all_that_a_merge_takes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make = ROWS[kind]
    good, bad = pa.table({"id": [1, 2], "day": ["a", "b"]}), pa.table({"id": [1, None], "day": ["a", "b"]})
    validate_keys_and_schema(make(good), good, "id")
    validate_keys_and_schema(good, make(good), "id")
    validate_no_null_keys(make(good), "id")
    with pytest.raises(KeyColumnError, match="'id' in 1 row"):
        validate_keys_and_schema(make(bad), None, "id")
    with pytest.raises(KeyColumnError, match="'id' in 1 row"):
        validate_no_null_keys(make(bad), ["day", "id"])
    with pytest.raises(KeyColumnError, match="'x' is missing from the source"):
        validate_no_null_keys(make(good), "x")
    with pytest.raises(SchemaMismatchError, match="missing from the source: 'v'"):
        validate_keys_and_schema(make(good), good.append_column("v", [[1, 2]]), "id")


# H4
@pytest.mark.parametrize("kind", ROWS)
def test_moved_partitions_are_found_in_all_that_a_merge_takes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, old = ROWS[kind], pa.table({"id": [1, 2], "day": ["a", "b"], "v": [1, 2]})
    new = pa.table({"v": [1, 2], "id": [3, 2], "day": ["c", "c"]})
    moved = r"1 row .*'day', for example id=2"
    with pytest.raises(PartitionMoveError, match=moved):
        validate_partition_column_immutability(make(new), old, "id", "day")
    with pytest.raises(PartitionMoveError, match=moved):
        validate_partition_column_immutability(new, make(old), "id", "day")
    validate_partition_column_immutability(make(old), old, "id", "day")


# H1, H4
def test_the_target_may_be_the_path_of_a_dataset(lake: str) -> None:
    put(f"{lake}/t/day=a/x.parquet", pa.table({"id": [1]}))
    validate_partition_column_immutability(pa.table({"id": [1], "day": ["a"]}), f"{lake}/t", "id", "day")
    with pytest.raises(PartitionMoveError, match="id=1"):
        validate_partition_column_immutability(pa.table({"id": [1], "day": ["b"]}), f"{lake}/t", "id", "day")


# K1, H4
def test_one_partition_column_may_be_given_by_its_name() -> None:
    table = pa.table({"id": [1], "day": ["a"], "d": ["x"]})
    validate_partition_column_immutability(table, table, "id", "day")
    assert parse_hive_partition_path("t/day=1/d=2/f.parquet", "day") == {"day": "1"}
    assert parse_hive_partition_path(Path("t/day=1/f.parquet")) == {"day": "1"}
    for bad in (["day", "day"], [1], 5):
        with pytest.raises(InvalidArgumentError, match="partition_columns"):
            validate_partition_column_immutability(table, table, "id", bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="Partition column 'hour' is missing from the source"):
        validate_partition_column_immutability(table, table, "id", "hour")


# K2
@pytest.mark.parametrize("bad", [5, None, [1], object()])
def test_what_is_not_a_table_is_refused(bad: Any) -> None:
    table = pa.table({"id": [1], "day": ["a"]})
    with pytest.raises(InvalidArgumentError, match="Cannot read the source from"):
        validate_keys_and_schema(bad, table, "id")
    with pytest.raises(InvalidArgumentError, match="Cannot read the source from"):
        validate_no_null_keys(bad, "id")
    with pytest.raises(InvalidArgumentError, match="Cannot read rows from"):
        validate_partition_column_immutability(bad, table, "id", "day")
    if bad is not None:
        with pytest.raises(InvalidArgumentError, match="Cannot read the target from"):
            validate_keys_and_schema(table, bad, "id")
