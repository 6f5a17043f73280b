"""Rows of Python and frames as sources: what fits, what is NULL, and what is refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.support import assert_unchanged, load, put, read_rows

import merganser
from merganser.errors import ColumnTypeError, ColumnValueError, MerganserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

TABLE = pa.table({"id": [1, 2], "v": ["a", "b"]})


# S3
def test_a_row_without_a_key_of_another_is_null_there(io: AnyDatasetIO, lake: str) -> None:
    io.merge([{"id": 1}, {"v": "b", "id": 2}], f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": None}, {"id": 2, "v": "b"}]


# E7
def test_types_of_python_rows_may_be_given(io: AnyDatasetIO, lake: str) -> None:
    types = {"id": "int32", "n": "decimal128(38, 0)"}
    rows = [{"id": 1, "n": 2**70}, {"id": 2, "n": None}]
    for source in (rows, {"id": [1, 2], "n": [2**70, None]}):
        io.write_dataset(source, f"{lake}/t", "overwrite", column_types=types)
        assert load(io, f"{lake}/t").schema.types == [pa.int32(), pa.decimal128(38, 0)]
        assert [row["n"] for row in read_rows(io, f"{lake}/t")] == [Decimal(2**70), None]


NOON = dt.datetime(2025, 1, 6, 12, 0, 0, 5)  # noqa: DTZ001  without a zone
DAY = dt.date(2025, 1, 6)
# Values that Arrow would change on the way to a type, inferred from them if there is none.
CHANGED: dict[str, tuple[list[Any] | Any, str | None]] = {
    "a fraction as an integer": ([1, 2.5], "int64"),
    "a decimal as an integer": ([Decimal("2.5")], "int64"),
    "a fraction in a list": ([[1, 2.5]], "list<int64>"),
    "a fraction in a map": ([{"a": 2.5}], "map<string, int64>"),
    "a time as a date": ([NOON], "date32"),
    "an offset without a zone": ([NOON.replace(tzinfo=dt.UTC)], "timestamp[us]"),
    "a time in a zone": ([NOON], "timestamp[us, tz=UTC]"),
    "microseconds as seconds": ([NOON], "timestamp[s]"),
    "a time of day as seconds": ([NOON.time()], "time32[s]"),
    "a time of day with an offset": ([NOON.time().replace(tzinfo=dt.UTC)], None),
    "a duration as seconds": ([dt.timedelta(microseconds=5)], "duration[s]"),
    "nanoseconds of pandas": ([pd.Timestamp("2025-01-06 10:11:12.123456789")], None),
    "dates and times in a list": ([[DAY, NOON]], None),
    "times in two zones and none": ([{"at": NOON}, {"at": NOON.replace(tzinfo=dt.UTC)}], None),
    "an array of times as dates": (np.array(["2025-01-06T12:00"], "datetime64[s]"), "date32"),
    "an array in a zone": (np.array(["2025-01-06T12:00"], "datetime64[s]"), "timestamp[s, tz=UTC]"),
    "a series without its zone": (pd.Series([pd.Timestamp("2025-01-06", tz="UTC")]), "timestamp[ns]"),
    "objects of two kinds": (np.array([DAY, NOON], object), None),
}


# S3, E7
@pytest.mark.parametrize("name", CHANGED)
def test_no_value_changes_on_the_way_to_a_type(lake: str, name: str) -> None:
    values, data_type = CHANGED[name]
    types = None if data_type is None else {"v": data_type}
    with pytest.raises((ColumnValueError, ColumnTypeError), match="Column 'v' of the source"):
        merganser.write_dataset({"v": values}, f"{lake}/t", column_types=types)
    assert not Path(f"{lake}/t").exists()


# S3, E7
def test_values_that_a_type_holds_are_taken(lake: str) -> None:
    stamp = pd.Timestamp("2025-01-06 10:11:12.123456789")
    cases: list[tuple[Any, str, list[Any]]] = [
        ([1, 2.0, None], "int64", [1, 2, None]),
        ([DAY], "date32", [DAY]),
        ([NOON, None], "timestamp[us]", [NOON, None]),
        ([stamp], "timestamp[ns]", [stamp]),
        ([NOON.replace(microsecond=0)], "timestamp[ms]", [NOON.replace(microsecond=0)]),
        (pa.chunked_array([[1], [2]]), "int32", [1, 2]),
        (pd.Series([1.0, None]), "int64", [1, None]),
        (pd.Series([1, np.nan, pd.NA], dtype=object), "int64", [1, None, None]),
        ([dt.timedelta(seconds=5)], "duration[s]", [dt.timedelta(seconds=5)]),
        (
            pd.Series([NOON.replace(tzinfo=dt.UTC), pd.NaT], dtype=object),
            "timestamp[us, tz=UTC]",
            [NOON.replace(tzinfo=dt.UTC), None],
        ),
    ]
    for at, (values, data_type, expected) in enumerate(cases):
        merganser.write_dataset({"v": values}, f"{lake}/{at}", column_types={"v": data_type})
        assert merganser.read(f"{lake}/{at}").column("v").to_pylist() == expected


# S3
def test_named_levels_of_an_index_are_columns(io: AnyDatasetIO, lake: str) -> None:
    index = pd.MultiIndex.from_tuples([(1, "x", 7), (2, "y", 8)], names=["id", "part", None])
    io.merge(pd.DataFrame({"v": ["a", "b"]}, index), f"{lake}/t", key_columns=["id", "part"])
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "part": "x", "v": "a"}, {"id": 2, "part": "y", "v": "b"}]


# S3
@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame({"id": [1, 2], "v": [np.nan, np.nan]}),
        lambda: {"id": [1, 2], "v": np.array([np.nan, np.nan])},
        lambda: [{"id": 1, "v": float("nan")}, {"id": 2, "v": None}],
        lambda: pa.table({"id": [1, 2], "v": pa.array([None, None], pa.float64())}),
    ],
    ids=["pandas", "dict", "list", "arrow"],
)
def test_floats_without_a_number_are_null_in_a_column_of_another_type(
    io: AnyDatasetIO, lake: str, make: Callable[[], Any]
) -> None:
    io.write_dataset(TABLE, f"{lake}/t")
    io.merge(make(), f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": None}, {"id": 2, "v": None}]
    assert load(io, f"{lake}/t").schema.field("v").type == pa.string()


# S3
def test_floats_with_a_number_do_not_fit_a_column_of_strings(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(TABLE, f"{lake}/t")
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="'v'"):
        io.merge(pd.DataFrame({"id": [1, 2], "v": [np.nan, 1.5]}), f"{lake}/t", key_columns="id")


# S3
def test_nan_stays_nan_in_a_column_of_floats(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pa.table({"id": [1], "v": [1.5]}), f"{lake}/t")
    io.merge({"id": [1], "v": [float("nan")]}, f"{lake}/t", key_columns="id")
    assert np.isnan(read_rows(io, f"{lake}/t")[0]["v"])


# S3, C7
def test_a_polars_query_that_fails_changes_nothing(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(TABLE, f"{lake}/t")
    query = pl.LazyFrame({"id": ["1", "2", "x"], "v": ["a", "b", "c"]}).with_columns(pl.col("id").cast(pl.Int64))
    with assert_unchanged(f"{lake}/t"), pytest.raises(pl.exceptions.InvalidOperationError, match="x"):
        io.merge(query, f"{lake}/t", "full_merge", "id")


# W5
def test_a_polars_query_is_streamed(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from merganser import DuckDBDatasetIO  # noqa: PLC0415  the engine that streams

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the query must not be collected")

    query = pl.LazyFrame({"id": range(1000)}).with_columns(v=pl.col("id") * 2).filter(pl.col("id") >= 10)
    monkeypatch.setattr(pl.LazyFrame, "collect", refuse)
    assert DuckDBDatasetIO().merge(query, f"{lake}/t", key_columns="id").inserted == 990


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a dict of scalars": (lambda: {"id": 1}, "Column 'id' of the dict is of type int"),
    "a dict of a string": (lambda: {"id": "abc"}, "Column 'id' of the dict is of type str"),
    "an empty dict": (dict, "empty dict, which has no columns"),
    "a key that is not a string": (lambda: [{1: 2}], "the key 1"),
    "columns of two lengths": (lambda: {"id": [1], "v": ["a", "b"]}, "'id' has 1, 'v' has 2"),
    "an empty list": (list, "empty list, which has no columns"),
    "a list of tuples": (lambda: [(1, "a")], "a list of tuple"),
    "a row that is not a dict": (lambda: [{"id": 1}, 5], "A row of the source is of type int"),
    "an item that is not a batch": (lambda: [*TABLE.to_batches(), 5], "Item 2 of the source is of type int"),
    "batches of two schemas": (
        lambda: [*TABLE.to_batches(), pa.record_batch({"id": [1]})],
        "Record batch 2 of the source has other columns or types than the first: id int64 instead of id int64, v s",
    ),
    "values of two types": (lambda: [{"id": 1, "v": "a"}, {"id": 2, "v": 5}], "Column 'v' of the source has no single"),
    "an integer beyond 64 bits": (lambda: [{"id": 2**70, "v": "a"}], "Column 'id' holds an integer beyond 64 bits"),
    "times with and without a zone": (
        lambda: {"id": [1, 2], "v": [dt.datetime(2025, 1, 1), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)]},  # noqa: DTZ001
        "'v' of the source mixes times with a zone and times without a zone",
    ),
    "dates and times": (
        lambda: {"id": [1, 2], "v": [dt.date(2025, 1, 1), dt.datetime(2025, 1, 1, 5)]},  # noqa: DTZ001
        "'v' of the source mixes dates and times without a zone",
    ),
    "floats of one name twice": (
        lambda: pa.table([pa.array([1]), *[pa.nulls(1, pa.float64())] * 2], ["id", "v", "v"]),
        "'v'",
    ),
    "an index with the name of a column": (
        lambda: pd.DataFrame({"id": [1], "v": ["a"]}, pd.Index([5], name="id")),
        "both named 'id'",
    ),
    "a frame with one name twice": (lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]), "Duplicate column names"),
    "a frame of dates and times": (
        lambda: pd.DataFrame({"id": [1, 2], "v": [DAY, NOON]}, dtype=object),
        "'v' of the source mixes dates and times without a zone",
    ),
    "a frame with integers beyond 64 bits": (
        lambda: pd.DataFrame({"id": [2**70], "v": ["a"]}),
        "Cannot read rows from",
    ),
    "a frame with two types in a column": (lambda: pd.DataFrame({"id": [1, 2], "v": [1, "a"]}), "for column v"),
}


# S3
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(io: AnyDatasetIO, lake: str, name: str) -> None:
    make, message = REFUSED[name]
    put(f"{lake}/t/a.parquet", TABLE)
    with assert_unchanged(f"{lake}/t"), pytest.raises(MerganserError, match=message):
        io.merge(make(), f"{lake}/t", key_columns="id")
