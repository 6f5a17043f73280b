"""Rows are folded into one record for each id, as if each row were merged after the other."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merganser.core.rows.faults import NOT_FINITE, OUTSIDE_YEARS, count_faults
from merganser.core.rows.fold import FoldCounts, FoldPlan, fold_rows

PLAN = FoldPlan(
    keys={"id": "id"},
    endpoints={},
    created={"key": "id", "same": "a", "both": "a"},
    matched={"same": "a", "both": "b", "late": "c"},
    order=["o", "a", "b", "c"],
    required={"match property 'key' of T": "id"},
    checked={"base property 'both' of T": "b"},
)
SCHEMA = pa.schema({"id": pa.string(), "o": pa.int64(), "a": pa.int64(), "b": pa.float64(), "c": pa.list_(pa.string())})
ROW = st.fixed_dictionaries(
    {
        "id": st.none() | st.sampled_from(["00", "1f", "a0", "ff"]),
        "o": st.none() | st.integers(0, 2),
        "a": st.none() | st.integers(0, 1),
        "b": st.none() | st.sampled_from([-1.5, 0.0, 2.0]),
        "c": st.none() | st.lists(st.none() | st.sampled_from("xy"), max_size=2),
    }
)


def sort_key(value: Any) -> Any:
    if isinstance(value, list):
        return (1, *map(sort_key, value))
    return (0,) if value is None else (1, value)


def merge_one_by_one(rows: list[dict[str, Any]], *, has_condition: bool) -> dict[str, dict[str, Any]]:
    """The oracle: merge each row into a dict of new records, and into another one of records that exist.

    The condition is that `same` is 0, which an existing record meets.
    """
    records: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: [sort_key(row[name]) for name in PLAN.order]):
        if row["id"] is None:
            continue
        update = {"same": row["a"], "both": row["b"], "late": row["c"]}
        record = records.get(row["id"])
        if record is None:
            new = {"key": row["id"], "same": row["a"], "both": row["a"], "late": None}
            records[row["id"]] = {"new": new, "found": update, "rows": 1}
        else:
            for form in ("new", "found"):
                if not has_condition or record[form]["same"] == 0:
                    record[form] = record[form] | update
            record["rows"] += 1
    return records


def read_records(table: pa.Table, plan: FoldPlan) -> dict[str, dict[str, Any]]:
    columns = plan.output_columns
    return {
        row["id"]: {
            "new": {name: row[column] for name, column in columns["new"].items()},
            "found": {name: row[column] for name, column in columns["found"].items()},
            "rows": row["rows"],
        }
        for row in table.to_pylist()
    }


# G24
@given(rows=st.lists(ROW, max_size=12), has_condition=st.booleans())
def test_folded_records_are_those_of_merging_one_by_one(rows: list[dict[str, Any]], has_condition: bool) -> None:
    # `both` is created from one column and overwritten by another of a different type, as an oracle can do.
    table = pa.Table.from_pylist(rows, SCHEMA)
    table = table.set_column(2, "a", table.column("a").cast(pa.float64()))
    plan = PLAN
    if has_condition:
        table = table.append_column("meets", pc.equal(table.column("a"), 0))
        plan = replace(PLAN, meets_condition=("meets", "meets"))
    folded, counts = fold_rows(table, plan)
    expected = merge_one_by_one(rows, has_condition=has_condition)
    assert read_records(folded, plan) == expected
    assert folded.column("id").to_pylist() == sorted(expected)
    without_id = sum(row["id"] is None for row in rows)
    assert (counts.rows, counts.skipped) == (len(rows), without_id)
    assert counts.differ == any(
        one["new"][name] != one["found"][name] for one in expected.values() for name in one["found"]
    )
    assert counts.faults == ({("match property 'key' of T", ""): without_id} if without_id else {})


def test_nan_is_the_last_and_null_the_first_in_order() -> None:
    plan = FoldPlan(
        keys={"id": "id"}, endpoints={}, created={}, matched={"x": "x"}, order=["x"], required={}, checked={}
    )
    values = pa.array([math.nan, None, math.inf], pa.float64())
    folded, _ = fold_rows(pa.table({"id": ["a"] * 3, "x": values}), plan)
    assert math.isnan(folded.column("found.x")[0].as_py())
    folded, _ = fold_rows(pa.table({"id": ["a"] * 2, "x": values.slice(1)}), plan)
    assert folded.column("found.x").to_pylist() == [math.inf]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pa.array([1.0, math.nan, math.inf, None]), {NOT_FINITE: 2}),
        (pa.array([[1.0], [math.nan, math.inf], None]), {NOT_FINITE: 1}),
        (pa.array([{"a": math.nan, "b": [math.inf]}, {"a": 1.0, "b": None}, None]), {NOT_FINITE: 1}),
        (pa.array([[("k", math.nan)], None], pa.map_(pa.string(), pa.float64())), {NOT_FINITE: 1}),
        (pa.array([date.min, date.max]), {OUTSIDE_YEARS: 0}),
        (pa.array([-719_163, 2_932_897, 0], pa.int32()).cast(pa.date32()), {OUTSIDE_YEARS: 2}),
        (pa.array([-62_135_596_800_000_000], pa.int64()).cast(pa.timestamp("us")), {OUTSIDE_YEARS: 0}),
        (pa.array([253_402_300_800_000_000], pa.int64()).cast(pa.timestamp("us", "UTC")), {OUTSIDE_YEARS: 1}),
        (pa.array(["x", None]), {}),
    ],
)
def test_values_that_no_graph_can_store_are_counted(values: pa.Array, found: dict[str, int]) -> None:
    assert count_faults(values) == found


def test_faults_of_rows_without_an_id_do_not_count() -> None:
    rows = pa.table({"id": [None, "a"], "x": [math.nan, 1.0]}, pa.schema({"id": pa.string(), "x": pa.float64()}))
    plan = FoldPlan(
        keys={"id": "id"}, endpoints={}, created={"x": "x"}, matched={}, order=[], required={}, checked={"x": "x"}
    )
    assert fold_rows(rows, plan)[1] == FoldCounts(rows=2, skipped=1, differ=False, faults={})


def test_counts_add_up() -> None:
    one = FoldCounts(2, 1, differ=False, faults={("x", NOT_FINITE): 1})
    other = FoldCounts(3, 0, differ=True, faults={("x", NOT_FINITE): 2, ("y", ""): 1})
    assert FoldCounts.add_up([one, other]) == FoldCounts(5, 1, differ=True, faults={("x", NOT_FINITE): 3, ("y", ""): 1})
