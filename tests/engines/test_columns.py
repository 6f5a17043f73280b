"""Of a row group that changes, only the columns whose values change are encoded; the others are the same bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import list_data_files, load, put, runs_on_executors

from merganser.core.columnar import dictionaries

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

ROWS = 1_000
# merganser does not write these pages: a column that was encoded again has other bytes.
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


def changed_chunks(io: AnyDatasetIO, lake: str, source: pa.Table, **options: object) -> list[set[str]]:
    """Merge into the dataset and name the columns of each row group whose bytes are others."""
    path = target(lake)
    expected = load(io, f"{lake}/t").to_pylist()
    for row in source.to_pylist():
        expected[row["id"]].update(row)
    before = [chunks(path, group) for group in (0, 1)]
    io.merge(source, f"{lake}/t", "update", key_columns="id", **options)  # type: ignore[arg-type]
    assert load(io, f"{lake}/t").to_pylist() == expected
    assert list_data_files(f"{lake}/t") == ["a.parquet"]
    return [{name for name, data in chunks(path, group).items() if data != before[group][name]} for group in (0, 1)]


@pytest.mark.splice
def test_columns_that_are_not_updated_are_copied(io: AnyDatasetIO, lake: str) -> None:
    # W2
    source = pa.table({"id": [3, 700], "price": [-1.0, -2.0], "tags": [["a", "b"], None]})
    assert changed_chunks(io, lake, source, update_columns=["price", "tags"]) == [{"price", "tags"}] * 2


@pytest.mark.splice
def test_columns_that_come_out_equal_are_copied(io: AnyDatasetIO, lake: str) -> None:
    # W2
    rows = {"price": [0.75, 175.0], "name": ["name 3", "other"], "tags": [["tag 3"], ["tag 0"]], "zero": [0.0, 0.0]}
    source = pa.table({"id": [3, 700], **rows})
    # Lists of strings are compared like all else.
    assert changed_chunks(io, lake, source) == [set(), {"name"}]


@pytest.mark.parametrize("value", [-0.0, math.nan, None])
def test_a_value_is_stored_to_the_bit(io: AnyDatasetIO, lake: str, value: float | None) -> None:
    # W2
    target(lake)
    source = load(io, f"{lake}/t").slice(3, 1).set_column(4, "zero", pa.array([value], pa.float64()))
    io.merge(source, f"{lake}/t", "upsert", key_columns="id")
    stored = load(io, f"{lake}/t").column("zero")[3]
    assert repr(stored.as_py()) == repr(value)
    assert load(io, f"{lake}/t").column("zero")[2].as_py() == 0.0


def test_an_equal_key_with_another_representation_is_stored_as_given(io: AnyDatasetIO, lake: str) -> None:
    # W2
    put(f"{lake}/t/a.parquet", pa.table({"id": [0.0, 1.0], "v": [1, 2]}))
    io.merge(pa.table({"id": [-0.0], "v": [1]}), f"{lake}/t", "upsert", key_columns="id")
    assert repr(load(io, f"{lake}/t").column("id")[0].as_py()) == "-0.0"


@pytest.mark.splice
def test_a_dataset_of_keys_alone_is_copied(io: AnyDatasetIO, lake: str) -> None:
    # W2
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "day": ["a", "b"]}), **SMALL_PAGES)
    before = chunks(path, 0)
    result = io.merge(pa.table({"id": [2, 3], "day": ["b", "c"]}), f"{lake}/t", "upsert", key_columns=["id", "day"])
    assert (result.inserted, result.updated) == (1, 1)
    assert chunks(path, 0) == before
    assert load(io, f"{lake}/t").num_rows == 3


@pytest.mark.splice
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.string_view()], ids=str)
def test_a_sparse_dictionary_is_kept_without_unused_strings(io: AnyDatasetIO, lake: str, kind: pa.DataType) -> None:
    # W2
    secret = "a secret that is taken back"  # noqa: S105  not a password
    old = pa.array([secret, None, "red", "blue"] * 100, pa.string()).cast(kind)
    path = put(f"{lake}/t/a.parquet", pa.table({"id": range(400), "v": old}), compression="none")
    assert secret.encode() in Path(path).read_bytes()
    ids = [*range(0, 400, 4), 1, 2]
    new = pa.array([*["green", "blue"] * 50, "red", None], pa.string()).cast(kind)
    with mock.patch.object(
        dictionaries, "replace_dictionary_values", wraps=dictionaries.replace_dictionary_values
    ) as changed:
        io.merge(pa.table({"id": ids, "v": new}), f"{lake}/t", "upsert", key_columns="id")
    assert changed.called or runs_on_executors(io) or kind not in (pa.string(), pa.binary())
    expected = dict(enumerate(old.cast(pa.binary()).to_pylist()))
    expected |= dict(zip(ids, new.cast(pa.binary()).to_pylist(), strict=True))
    assert load(io, f"{lake}/t").column("v").cast(pa.binary()).to_pylist() == list(expected.values())
    chunk = pq.read_metadata(path).row_group(0).column(1)
    assert "RLE_DICTIONARY" in chunk.encodings
    assert (chunk.statistics.min, chunk.statistics.max) in (("blue", "red"), (b"blue", b"red"))
    assert chunk.statistics.null_count == 100
    assert secret.encode() not in Path(path).read_bytes()


VALUES = st.none() | st.sampled_from(["", "a", "b", "é", "long " * 9])


@given(
    old=st.lists(st.lists(VALUES, max_size=8), min_size=1, max_size=3),
    new=st.dictionaries(st.integers(0, 23), VALUES | st.text(max_size=2), min_size=1),
)
def test_new_strings_replace_old_ones_in_a_dictionary(old: list[list[str | None]], new: dict[int, str | None]) -> None:
    # W2
    chunks = [pa.array(values, pa.string()).dictionary_encode() for values in old]
    values = [value for part in old for value in part]
    places = {place: value for place, value in sorted(new.items()) if place < len(values)}
    column = dictionaries.replace_dictionary_values(
        pa.chunked_array(chunks),
        np.array([*places], np.int64),
        pa.chunked_array([pa.array([*places.values()], pa.string())]),
    )
    assert column.to_pylist() == [places.get(place, value) for place, value in enumerate(values)]
    held = column.chunk(0).dictionary.to_pylist()
    assert sorted(held) == sorted({*column.to_pylist()} - {None})
