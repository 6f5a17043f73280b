"""Of a row group that changes, only the columns whose values change are encoded; the others are the same bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import data_files, load, put

if TYPE_CHECKING:
    from tests.support import Door

ROWS = 1_000
# Which merganser does not write: a column that was encoded anew has other bytes.
SMALL_PAGES = {"data_page_size": 1, "write_batch_size": 1}


def target(lake: str) -> str:
    """Write a dataset of one file with two row groups."""
    ids = list(range(ROWS))
    table = pa.table(
        {
            "id": ids,
            "price": [n / 4 for n in ids],
            "name": [f"name {n % 50}" for n in ids],
            "tags": [[f"tag {n % 7}"] for n in ids],
            "zero": [0.0] * ROWS,
        }
    )
    return put(f"{lake}/t/a.parquet", table, row_group_size=ROWS // 2, **SMALL_PAGES)


def chunks(path: str, group: int) -> dict[str, bytes]:
    """Read the bytes of each column chunk of a row group."""
    metadata = pq.read_metadata(path).row_group(group)
    found = {}
    with open(path, "rb") as file:
        for number in range(metadata.num_columns):
            column = metadata.column(number)
            file.seek(column.dictionary_page_offset or column.data_page_offset)
            found[column.path_in_schema.partition(".")[0]] = file.read(column.total_compressed_size)
    return found


def changed_chunks(io: Door, lake: str, source: pa.Table, **options: object) -> list[set[str]]:
    """Merge into the dataset and name the columns of each row group whose bytes are others."""
    path = target(lake)
    expected = load(io, f"{lake}/t").to_pylist()
    for row in source.to_pylist():
        expected[row["id"]].update(row)
    before = [chunks(path, group) for group in (0, 1)]
    io.merge(source, f"{lake}/t", "update", key_columns="id", **options)  # type: ignore[arg-type]
    assert load(io, f"{lake}/t").to_pylist() == expected
    assert data_files(f"{lake}/t") == ["a.parquet"]
    return [{name for name, data in chunks(path, group).items() if data != before[group][name]} for group in (0, 1)]


@pytest.mark.splice
def test_columns_that_are_not_updated_are_copied(io: Door, lake: str) -> None:
    # W2
    source = pa.table({"id": [3, 700], "price": [-1.0, -2.0], "tags": [["a", "b"], None]})
    assert changed_chunks(io, lake, source, update_columns=["price", "tags"]) == [{"price", "tags"}] * 2


@pytest.mark.splice
def test_columns_that_come_out_equal_are_copied(io: Door, lake: str) -> None:
    # W2
    rows = {"price": [0.75, 175.0], "name": ["name 3", "other"], "tags": [["tag 3"], ["tag 0"]], "zero": [0.0, 0.0]}
    source = pa.table({"id": [3, 700], **rows})
    # Lists of strings are compared like all else.
    assert changed_chunks(io, lake, source) == [set(), {"name"}]


@pytest.mark.parametrize("value", [-0.0, math.nan, None])
def test_a_value_is_stored_to_the_bit(io: Door, lake: str, value: float | None) -> None:
    # W2
    target(lake)
    source = load(io, f"{lake}/t").slice(3, 1).set_column(4, "zero", pa.array([value], pa.float64()))
    io.merge(source, f"{lake}/t", "upsert", key_columns="id")
    stored = load(io, f"{lake}/t").column("zero")[3]
    assert repr(stored.as_py()) == repr(value)
    assert load(io, f"{lake}/t").column("zero")[2].as_py() == 0.0


def test_a_key_that_is_equal_in_another_way_is_stored_as_it_comes(io: Door, lake: str) -> None:
    # W2
    put(f"{lake}/t/a.parquet", pa.table({"id": [0.0, 1.0], "v": [1, 2]}))
    io.merge(pa.table({"id": [-0.0], "v": [1]}), f"{lake}/t", "upsert", key_columns="id")
    assert repr(load(io, f"{lake}/t").column("id")[0].as_py()) == "-0.0"


@pytest.mark.splice
def test_a_dataset_of_keys_alone_is_copied(io: Door, lake: str) -> None:
    # W2
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "day": ["a", "b"]}), **SMALL_PAGES)
    before = chunks(path, 0)
    result = io.merge(pa.table({"id": [2, 3], "day": ["b", "c"]}), f"{lake}/t", "upsert", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 1)
    assert chunks(path, 0) == before
    assert load(io, f"{lake}/t").num_rows == 3
