"""The same results with every supported PyArrow; what replaces a newer one's functions runs on the newer one, too."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyarrow import acero

from merganser.core.columnar import arrow_versions
from merganser.core.columnar.arrow_versions import (
    PYARROW,
    cast,
    check_fixed_lists,
    find_read_remedy,
    join_stream,
    make_bloom_options,
    make_bytes_options,
    sort_nulls_first,
)
from merganser.errors import ColumnValueError

MAP = pa.map_(pa.string(), pa.int32())
FIXED = pa.list_(pa.int32(), 2)


@pytest.fixture(params=["this", "oldest"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param == "oldest":
        monkeypatch.setattr(arrow_versions, "PYARROW", 23)
    return int(arrow_versions.PYARROW)


@pytest.mark.parametrize("rows", [0, 1, 5, 6, 40])
@pytest.mark.usefixtures("version")
def test_a_stream_is_joined_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_versions, "_TABLE_ROWS", 6)
    columns = {"k": [number % 7 for number in range(rows)], "at": range(rows)}
    stream = pa.table(columns, pa.schema({"k": pa.int64(), "at": pa.int64()}))
    build = pa.table({"k": [1, 3, 3, None], "row": [10, 30, 31, 0]})
    options = acero.HashJoinNodeOptions("inner", ["k"], ["k"], left_output=["at"], right_output=["row"])
    reader = pa.RecordBatchReader.from_batches(stream.schema, stream.to_batches(max_chunksize=2))
    found = join_stream(reader, build, options)
    expected = [(at, row) for at in range(rows) for row, key in ((10, 1), (30, 3), (31, 3)) if at % 7 == key]
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == expected


def test_null_is_sorted_first_and_equal_rows_stay_in_order() -> None:
    table = pa.table({"a": [2, None, 1, None, 2, 1], "b": ["x", "y", None, None, "x", "a"]})
    assert sort_nulls_first(table).tolist() == [3, 1, 2, 5, 0, 4]


# S3
@pytest.mark.parametrize("change", ["none", "take", "filter", "slice", "nothing"])
@pytest.mark.parametrize("layout", ["map", "struct", "list", "fixed list", "map of maps"])
@pytest.mark.usefixtures("version")
def test_maps_are_cast_wherever_they_come_from(layout: str, change: str) -> None:
    value = [("a", 1), ("b", None)]
    wide = pa.map_(pa.large_string(), pa.int64())
    values, have, want = {
        "map": ([value, None, []], MAP, wide),
        "struct": ([{"m": value}, None, {"m": None}], pa.struct([("m", MAP)]), pa.struct([("m", wide)])),
        "list": ([[value], None, [None, []]], pa.list_(MAP), pa.list_(wide)),
        "fixed list": ([[value], [None], [[]]], pa.list_(MAP, 1), pa.list_(wide, 1)),
        "map of maps": ([[("x", value)], None, [("y", None)]], pa.map_(pa.string(), MAP), pa.map_(pa.string(), wide)),
    }[layout]
    array = pa.array(values, have)
    array = {
        "none": lambda: array,
        "take": lambda: array.take(pa.array([2, 0])),
        "filter": lambda: array.filter(pa.array([True, False, True])),
        "slice": lambda: array.take(pa.array([0, 1, 2])).slice(1),
        "nothing": lambda: array.filter(pa.array([False] * 3)),
    }[change]()
    for one in (array, pa.chunked_array([array, array]), pa.chunked_array([], have)):
        result = cast(one, want)
        result.validate(full=True)
        assert result.type == want
        assert result.to_pylist() == one.to_pylist()


# S5
@pytest.mark.parametrize(
    ("values", "kind", "is_refused"),
    [
        ([[1, None], [2, 3]], FIXED, False),
        ([[1, 2], None], FIXED, True),
        ([{"f": [1, 2]}, None], pa.struct([("f", FIXED)]), True),
        ([{"f": None}], pa.struct([("f", FIXED)]), True),
        ([[[1, 2]], [], None], pa.list_(FIXED), False),
        ([[[1, 2], None]], pa.list_(FIXED), True),
        ([[("a", [1, 2])], None], pa.map_(pa.string(), FIXED), False),
        ([[("a", None)]], pa.map_(pa.string(), FIXED), True),
        ([[[1, 2]]], pa.list_(FIXED, 1), False),
        ([[None]], pa.list_(FIXED, 1), True),
        ([None], pa.list_(pa.int32()), False),
        ([[{"x": 1}, None]], pa.list_(pa.struct([("x", pa.int32())]), 2), False),
    ],
)
def test_null_in_a_fixed_size_list_is_refused_where_it_cannot_be_read_back(
    values: list[Any], kind: pa.DataType, is_refused: bool, version: int
) -> None:
    table = pa.table({"id": range(len(values)), "v": pa.array(values, kind)})
    if is_refused and version < 26:
        with pytest.raises(
            ColumnValueError, match=r"Column 'v' .* holds NULL in a fixed-size list.*Install PyArrow 26"
        ):
            check_fixed_lists(table)
        return
    check_fixed_lists(table)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert pq.read_table(io.BytesIO(sink.getvalue())).column("v").to_pylist() == values


def test_null_in_a_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_versions, "PYARROW", 25)
    kind = pa.fixed_shape_tensor(pa.float32(), (1, 2))
    storage = pa.array([[1.0, 2.0], None], kind.storage_type)
    check_fixed_lists(pa.table({"v": pa.ExtensionArray.from_storage(kind, storage.slice(0, 1))}))
    with pytest.raises(ColumnValueError, match="Column 'v'"):
        check_fixed_lists(pa.table({"v": pa.ExtensionArray.from_storage(kind, storage)}))


def test_the_remedy_names_the_version_that_can_read_a_file(version: int) -> None:
    error = pa.ArrowInvalid("Expected all lists to be of size=2 but index 1 had size=0")
    assert ("install PyArrow 26" in find_read_remedy(error)) == (version < 26)
    assert find_read_remedy(pa.ArrowInvalid("Unexpected end of stream")) == "Restore or remove the file."


@pytest.mark.usefixtures("version")
def test_all_columns_of_csv_are_bytes() -> None:
    text = b"a,b\n1,2026-01-01\n"
    options = make_bytes_options(lambda: pacsv.open_csv(io.BytesIO(text)).schema.names)
    found = pacsv.read_csv(io.BytesIO(text), convert_options=pacsv.ConvertOptions(**options))
    assert found.to_pylist() == [{"a": b"1", "b": b"2026-01-01"}]


def test_bloom_filters_are_written_where_pyarrow_can(version: int) -> None:
    options = make_bloom_options({"id"}, ndv=100, fpp=0.01)
    assert (options != {}) == (version >= 24)
    sink = io.BytesIO()
    if options == {} or PYARROW >= 24:
        pq.write_table(pa.table({"id": np.arange(100)}), sink, **options)
        assert pq.read_table(io.BytesIO(sink.getvalue())).num_rows == 100
    assert make_bloom_options((), ndv=100, fpp=0.01) == {}
