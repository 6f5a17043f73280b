"""By-source clauses change the rows that their condition holds for, whatever bounds leave out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from tests.support import open_dataset_io, read_table

if TYPE_CHECKING:
    from pathlib import Path

_DAYS = [0, 1, 20_000, -5, 4_000_000]
_INSTANTS = [0, 1, 1_763_287_200_000_000, 1_763_287_200_000_001, -5]
# A row group for each row; constants are close to the values, or such that DuckDB compares in another way than Arrow.
COLUMNS = {
    "big": pa.array([(1 << 53) + 1, 1 << 53, -5, 0, 1 << 62, None], pa.int64()),
    "natural": pa.array([0, 1, 1 << 63, (1 << 64) - 1, 5, None], pa.uint64()),
    "Name": pa.array(["a", "A", "b", "é", "", None]),
    "rate": pa.array([0.0, -0.0, float("nan"), float("inf"), 1.1, None]),
    "half": pa.array([0.0, -0.0, float("nan"), 16777216.0, 1.1, None], pa.float32()),
    "price": pa.array(["9007199254740993.11", "1.50", "0", "-1.5", "99.99", None]).cast(pa.decimal128(18, 2)),
    "day": pa.array([*_DAYS, None], pa.int32()).cast(pa.date32()),
    "seen": pa.array([*_INSTANTS, None], pa.timestamp("us")),
    "zoned": pa.array([*_INSTANTS, None], pa.timestamp("us", "Europe/Paris")),
    "fine": pa.array([*(value % 10**15 * 1000 for value in _INSTANTS), None], pa.timestamp("ns")),
    "clock": pa.array([0, 1, 86_399_999_999, 5, 7, None], pa.time64("us")),
    "active": pa.array([True, False, True, False, None, None]),
    "raw": pa.array([b"", b"\x00", b"\xff", b"a", b"A", None]),
}
CONSTANTS = {
    "big": ["9007199254740992e0", "9007199254740992", "1.5", "-5.0", "'-5'", "1e300", "1" * 38, "CAST(3 AS FLOAT)"],
    "natural": ["-1", "18446744073709551615", "18446744073709551616", "1e0", "9223372036854775808e0"],
    "Name": ["'a'", "'A' COLLATE NOCASE", "'e' COLLATE NOACCENT", "'é'", "''", "'a'::BLOB", "lower('A')"],
    "rate": ["0", "-0.0", "'nan'::DOUBLE", "'-inf'::DOUBLE", "1.1", "1.1::FLOAT", "9007199254740993", "'1.1'"],
    "half": ["0", "'nan'::FLOAT", "'inf'::DOUBLE", "1.1", "1.1e0", "16777217", "16777216.5"],
    "price": ["9007199254740992e0", "9007199254740993.11", "1.5", "1.501", "1e30", "99.99e0", "'1.5'"],
    "day": [
        "'1970-01-02'",
        "DATE 'infinity'",
        "DATE '-infinity'",
        "DATE '10000-01-01'",
        "TIMESTAMP '1970-01-02 12:00'",
    ],
    "seen": ["'2025-11-16 10:00'", "TIMESTAMP 'infinity'", "DATE 'infinity'", "DATE '2025-11-16'", "now()"],
    "zoned": ["'2025-11-16 10:00'", "'2025-11-16 12:00+02'", "TIMESTAMPTZ '-infinity'", "TIMESTAMP '2025-11-16 10:00'"],
    "fine": ["TIMESTAMP_NS '1970-01-01 00:00:00.000001001'", "'1970-01-01 00:00:00.000001'", "TIMESTAMP '3000-01-01'"],
    "clock": ["TIME '24:00:00'", "TIME '23:59:59.999999'", "'00:00:00.000001'"],
    "active": ["true", "false", "1", "NULL"],
    "raw": ["'a'", "'\\x00'::BLOB", "''::BLOB"],
}
FORMS = [
    *("t.{0} = {1}", "t.{0} < {1}", "t.{0} <= {1}", "t.{0} > {1}", "t.{0} >= {1}", "{1} < t.{0}", "{1} >= t.{0}"),
    *("t.{0} <> {1}", "NOT (t.{0} = {1})", "t.{0} BETWEEN {1} AND {1}", "t.{0} IN ({1})", "t.{0} = {1} AND t.id < 3"),
    *("t.{0} IS DISTINCT FROM {1}", "t.{0} < {1} OR t.id = 5", "CASE WHEN t.{0} >= {1} THEN true ELSE false END"),
]


# Q4
@pytest.mark.parametrize("name", COLUMNS)
def test_bounds_leave_out_no_row_that_a_condition_holds_for(name: str, tmp_path: Path) -> None:
    io, rnd = open_dataset_io("arrow"), random.Random(name)
    table = pa.table({"id": range(6), name: COLUMNS[name]})
    target = str(tmp_path / "t")
    io.write_dataset(table, target, row_group_size=1, max_rows_per_file=3)
    source = pa.table({"id": pa.array([], pa.int64())})
    conditions = [form.format(name, constant) for constant in CONSTANTS[name] for form in FORMS]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", read_table(io, target))
        compared = 0
        for condition in rnd.sample(conditions, min(20, len(conditions))):
            try:
                expected = connection.sql("FROM given").set_alias("t").filter(condition).count("*").fetchall()[0][0]
            except duckdb.Error:
                continue  # DuckDB does not compare these
            merge = io.merge_into(target, source, "id").when_not_matched_by_source_delete(condition)
            assert merge.plan().deleted == expected, condition
            compared += 1
    assert compared > 9


def test_a_constant_that_cannot_be_computed_leaves_nothing_out(tmp_path: Path) -> None:
    io = open_dataset_io("arrow")
    table = pa.table({"id": range(6), "big": COLUMNS["big"]})
    io.write_dataset(table, tmp_path / "t", row_group_size=1)
    merge = io.merge_into(tmp_path / "t", pa.table({"id": pa.array([], pa.int64())}), "id")
    assert merge.when_not_matched_by_source_delete("t.id < 0 AND t.big = CAST('x' AS INT)").plan().deleted == 0
    with pytest.raises(ValueError, match="Could not convert string 'x' to INT32"):
        merge.when_not_matched_by_source_delete("t.big = CAST('x' AS INT)").plan()
