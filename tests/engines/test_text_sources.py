"""CSV and JSON as sources: NULL and the empty string, types that are inferred, given, or those of the target (E7)."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, load, put, read_rows

from merganser.core import InvalidArgumentError
from merganser.errors import ColumnValueError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

TABLE = pa.table({"id": pa.array([2, 3], pa.int64()), "v": ["B", "c"]})


# E7
def test_null_and_the_empty_string_are_two_values_in_text(io: AnyDatasetIO, lake: str) -> None:
    Path(f"{lake}/1.csv").write_text('id,v,n\n1,,\n2,"",\n3,NA,5\n', "utf-8")
    Path(f"{lake}/2.json").write_text('{"id": 3, "v": ""}\n{"id": 4, "v": null, "n": 6}\n', "utf-8")
    for name in ("1.csv", "2.json"):
        io.merge(f"{lake}/{name}", f"{lake}/t", key_columns="id")
    assert [(row["v"], row["n"]) for row in read_rows(io, f"{lake}/t")] == [
        (None, None),
        ("", None),
        ("", None),
        (None, 6),
    ]


# E7
def test_text_is_inferred_alike_by_every_engine(io: AnyDatasetIO, lake: str) -> None:
    Path(f"{lake}/1.csv").write_text("id,day,at\n1,2025-01-06,2025-01-06T01:00:00.000+02:00\n", "utf-8")
    Path(f"{lake}/2.json").write_text('{"id": 2, "day": "2025-01-06", "at": "2025-01-05T23:00:00Z"}\n', "utf-8")
    for name in ("1.csv", "2.json"):
        io.merge(f"{lake}/{name}", f"{lake}/t", key_columns="id")
    found = load(io, f"{lake}/t")
    assert found.schema.types == [pa.int64(), pa.date32(), pa.timestamp("us", "UTC")]
    assert set(found.column("at").to_pylist()) == {dt.datetime(2025, 1, 5, 23, tzinfo=dt.UTC)}


# E7
def test_types_and_null_values_of_text_may_be_given(io: AnyDatasetIO, lake: str) -> None:
    Path(f"{lake}/1.csv").write_text('id,code,at,n\n1,12,2025-01-06,NA\n2,"-",-,5\n', "utf-8")
    types = {"code": "VARCHAR", "at": pa.timestamp("us"), "n": "decimal128(10, 1)", "absent": "BIGINT"}
    options: dict[str, Any] = {"column_types": types, "null_values": ["NA", "-"]}
    assert io.plan(f"{lake}/1.csv", f"{lake}/t", key_columns="id", **options).inserted == 2
    io.merge(f"{lake}/1.csv", f"{lake}/t", key_columns="id", **options)
    io.write_dataset(Path(f"{lake}/1.csv"), f"{lake}/w", "overwrite", **options)
    for path in (f"{lake}/t", f"{lake}/w"):
        assert load(io, path).schema.types == [pa.int64(), pa.string(), pa.timestamp("us"), pa.decimal128(10, 1)]
        assert [tuple(row.values()) for row in read_rows(io, path)] == [
            (1, "12", dt.datetime(2025, 1, 6), None),  # noqa: DTZ001  without a zone
            (2, "-", None, Decimal("5.0")),
        ]


# E7, S3
@pytest.mark.parametrize("name", ["1.csv", "1.json"])
def test_text_is_read_in_the_types_of_the_target(io: AnyDatasetIO, lake: str, name: str) -> None:
    table = pa.table(
        {
            "id": [1],
            "code": ["00123"],
            "amount": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "at": pa.array([0], pa.timestamp("ms", "UTC")),
            "plain": pa.array([0], pa.timestamp("us")),
        }
    )
    io.write_dataset(table, f"{lake}/t")
    texts = {"code": "2025-01-06", "amount": "2.25", "at": "2025-01-06T01:00:00+01:00", "plain": "2025-01-06"}
    if name == "1.csv":
        Path(f"{lake}/{name}").write_text(f"id,{','.join(texts)}\n1,{','.join(texts.values())}\n", "utf-8")
    else:
        Path(f"{lake}/{name}").write_text(json.dumps({"id": 1, **texts}) + "\n", "utf-8")
    for attempt in (io.merge, io.merge):
        attempt(f"{lake}/{name}", f"{lake}/t", key_columns="id")
    assert load(io, f"{lake}/t").schema == table.schema
    day = dt.datetime(2025, 1, 6)  # noqa: DTZ001  without a zone
    assert read_rows(io, f"{lake}/t") == [
        {"id": 1, "code": "2025-01-06", "amount": Decimal("2.25"), "at": day.replace(tzinfo=dt.UTC), "plain": day}
    ]


# E7
def test_times_with_and_without_offset_never_mix(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us"))}), f"{lake}/t")
    Path(f"{lake}/1.csv").write_text("id,at\n1,2025-01-06T10:00:00\n2,2025-01-06T10:00:00Z\n", "utf-8")
    message = "'at' holds '2025-01-06T10:00:00Z' in row 2, which is not timestamp"
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match=message):
        io.merge(f"{lake}/1.csv", f"{lake}/t", key_columns="id")


# E7
@pytest.mark.parametrize("option", [{"column_types": {"v": "string"}}, {"null_values": "NA"}], ids=str)
def test_options_of_text_are_refused_for_other_sources(io: AnyDatasetIO, lake: str, option: dict[str, Any]) -> None:
    put(f"{lake}/t/a.parquet", TABLE)
    put(f"{lake}/in/b.parquet", TABLE)
    for source in (TABLE, f"{lake}/in", f"{lake}/in/b.parquet"):
        with (
            assert_unchanged(f"{lake}/t"),
            pytest.raises(InvalidArgumentError, match=f"{next(iter(option))} is for CSV and JSON files"),
        ):
            io.merge(source, f"{lake}/t", key_columns="id", **option)


# E7
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"column_types": {"v": "number"}}, "Column 'v': 'number' is not a type"),
        ({"column_types": {"v": 5}}, "type of column 'v' must be an Arrow type"),
        ({"column_types": ["v"]}, "column_types must map columns to types"),
        ({"null_values": 5}, "null_values must be a string or a list of strings"),
        ({"null_values": "NA", "source": "1.json"}, "null_values is for CSV"),
        ({"column_types": {"v": "string"}, "source": TABLE.to_batches()}, "record batches have them"),
    ],
    ids=str,
)
def test_wrong_options_of_text_are_refused(io: AnyDatasetIO, lake: str, option: dict[str, Any], message: str) -> None:
    put(f"{lake}/t/a.parquet", TABLE)
    with assert_unchanged(f"{lake}/t"), pytest.raises(InvalidArgumentError, match=message):
        io.merge(**{"source": f"{lake}/1.csv", "path": f"{lake}/t", "key_columns": "id", **option})
