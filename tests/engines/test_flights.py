"""Flights, day by day, as CSV, JSON, Parquet and pandas: one dataset of one schema, with the rows of an oracle.

The columns are those of nycflights13, the rows are synthetic.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import list_data_files, load, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

    Row = dict[str, Any]

SCHEMA = pa.schema(
    {
        "day": pa.date32(),
        "flight": pa.int64(),
        "carrier": pa.string(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dep_delay": pa.int64(),
        "air_time": pa.float64(),
        "cancelled": pa.bool_(),
        "remark": pa.string(),
        "time_hour": pa.timestamp("us", "UTC"),
    }
)
# Columns that come and go: the days on which the feed has them.
DAYS = {
    "remark": [*range(4), *range(7, 24)],
    "gate": [2, *range(13, 24)],
    "seats": range(5, 24),
    "reason": range(7, 24),
}
LATER = {"gate": pa.string(), "seats": pa.int32(), "reason": pa.string()}
KEYS = ["day", "flight"]
FIRST = dt.date(2013, 1, 1)
NEW_YORK = dt.timezone(dt.timedelta(hours=-5))
FLIGHTS = 12


def make_row(number: int, flight: int, version: int) -> Row:
    """One flight of a day; a later version corrects it. Strings are NULL, empty, and look like other types."""
    seed = number * 7 + flight * 3 + version
    hour = dt.datetime.combine(FIRST + dt.timedelta(number), dt.time(flight, 30), NEW_YORK)
    cancelled = seed % 6 == 0
    return {
        "day": FIRST + dt.timedelta(number),
        "flight": flight,
        "carrier": ["UA", "NA", "9E", "B6"][seed % 4],
        "tailnum": [f"{seed:05}", "N14228", "", None][seed % 4],
        "origin": ["EWR", "null", "JFK"][seed % 3],
        "dep_delay": None if cancelled else seed % 90 - 20,
        "air_time": None if cancelled else seed / 4 + 100,
        "cancelled": cancelled,
        # On some days nobody remarks anything.
        "remark": None if number % 5 == 1 else ["", None, "2013-01-01", "true"][seed % 4],
        "time_hour": hour.astimezone(dt.UTC),
    }


def make_evolving_feed(number: int) -> list[Row]:
    """The flights of a day with columns that come and go; seats outgrow 32 bits, and reasons are NULL at first."""
    rows = []
    for row in make_feed(number):
        seed = row["flight"] + number
        later = {
            "gate": ["A1", "", None, "007"][seed % 4],
            "seats": 2**40 if number > 16 else seed,
            "reason": None if number < 11 else [None, "", "weather"][seed % 3],
        }
        rows.append({name: value for name, value in (row | later).items() if number in DAYS.get(name, [number])})
    return rows


def make_feed(number: int) -> list[Row]:
    """The flights of a day, and corrections of some of the day before."""
    corrected = [make_row(number - 1, flight, 1) for flight in range(0, FLIGHTS, 3)] if number else []
    return [*corrected, *(make_row(number, flight, 0) for flight in range(FLIGHTS))]


def to_csv(rows: list[Row], path: str) -> str:
    """NULL is an empty cell; strings are quoted, the empty one too; times have the offset of New York."""
    lines = [",".join(rows[0])]
    lines += [",".join("" if value is None else to_text(value, '"{}"') for value in row.values()) for row in rows]
    Path(f"{path}.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return f"{path}.csv"


def to_json(rows: list[Row], path: str) -> str:
    plain = [
        {name: to_text(value, "{}") if isinstance(value, dt.date) else value for name, value in row.items()}
        for row in rows
    ]
    Path(f"{path}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in plain), "utf-8")
    return f"{path}.jsonl"


def to_text(value: Any, quoted: str) -> str:
    if isinstance(value, dt.datetime):
        return value.astimezone(NEW_YORK).isoformat(timespec="milliseconds")
    return quoted.format(value) if isinstance(value, str) else str(value).lower()


def to_parquet(rows: list[Row], path: str) -> str:
    types = {field.name: field.type for field in SCHEMA} | LATER
    if any(row.get("seats", 0) >= 2**31 for row in rows):
        types["seats"] = pa.int64()
    schema = pa.schema({name: types[name] for name in rows[0]})
    pq.write_table(pa.Table.from_pylist(rows, schema), f"{path}.parquet")
    return f"{path}.parquet"


def to_pandas(rows: list[Row], _: str) -> pd.DataFrame:
    """Integers with NULL are floats in pandas, and a column without a value is NaN; the key is the index."""
    frame = pd.DataFrame(rows)
    empty = [name for name in frame.columns if frame[name].isna().all()]
    frame[empty] = float("nan")
    return frame.set_index(KEYS)


FORMATS: list[Callable[[list[Row], str], Any]] = [to_parquet, to_csv, to_json, to_pandas]


# E3, E4, E7
@pytest.mark.slow
def test_a_feed_that_changes_shape_is_one_dataset_of_one_schema(io: AnyDatasetIO, lake: str) -> None:
    # A merge by Spark takes seconds.
    days = [0, 2, 5, 7, 8, 11, 17] if io.engine_name == "spark" else range(24)
    expected: dict[tuple[dt.date, int], Row] = {}
    columns: dict[str, None] = {}
    for number in days:
        rows = make_evolving_feed(number)
        source = FORMATS[number % len(FORMATS)](rows, f"{lake}/{number}")
        partitions = "day" if number == 0 else None
        result = io.merge(source, f"{lake}/t", key_columns=KEYS, partition_by=partitions, schema_mode="evolve")
        keys = {(row["day"], row["flight"]): row for row in rows}
        assert (result.inserted, result.updated) == (len(keys - expected.keys()), len(keys.keys() & expected.keys()))
        # Matched rows keep what the feed does not have.
        expected |= {key: expected.get(key, {}) | row for key, row in keys.items()}
        columns |= dict.fromkeys(rows[0])
        schemas = {str(pq.read_schema(f"{lake}/t/{name}").remove_metadata()) for name in list_data_files(f"{lake}/t")}
        assert len(schemas) == 1
    found = load(io, f"{lake}/t").select(list(columns))
    types = {field.name: field.type for field in SCHEMA} | LATER | {"seats": pa.int64()}
    assert found.schema.types == [types[name] for name in columns]
    rows = sorted(found.to_pylist(), key=lambda row: (row["day"], row["flight"]))
    assert rows == [{name: expected[key].get(name) for name in columns} for key in sorted(expected)]
    texts = ("tailnum", "remark", "gate", "reason")
    assert all({None, ""} <= {row[name] for row in rows} for name in texts)


# E7, M5
@pytest.mark.parametrize("format_rows", FORMATS)
def test_a_day_means_the_same_in_every_format(
    io: AnyDatasetIO, lake: str, format_rows: Callable[[list[Row], str], Any]
) -> None:
    io.merge(to_parquet(make_feed(3), f"{lake}/first"), f"{lake}/t", key_columns=KEYS)
    before = snapshot(f"{lake}/t")
    source = format_rows(make_feed(3), f"{lake}/again")
    result = io.merge(source, f"{lake}/t", key_columns=KEYS, skip_unchanged=True)
    assert (result.inserted, result.updated, result.skipped) == (0, 0, len(make_feed(3)))
    assert snapshot(f"{lake}/t") == before
