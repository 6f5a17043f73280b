"""A MERGE in clauses as a commit: what its records show, undo, batch ids, and the warning that it counts twice."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.support import assert_unchanged, read_rows, snapshot

from merganser import RepeatedUpdateWarning, history, undo
from merganser.cli.app import app
from merganser.core.merge.plan_chart import format_plan

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

    from merganser.core.merge.builder import MergeBuilder

CLAUSES = [
    "WHEN MATCHED AND s.qty IS NULL THEN DELETE",
    "WHEN MATCHED AND s.qty <> 0 THEN UPDATE SET qty = t.qty + s.qty",
    "WHEN NOT MATCHED THEN INSERT *",
    "WHEN NOT MATCHED BY SOURCE AND t.qty = 0 THEN DELETE",
]


@pytest.fixture
def path(io: AnyDatasetIO, lake: str) -> str:
    io.merge(pa.table({"id": [1, 2, 3, 4], "qty": [10, 20, 0, 40]}), f"{lake}/t", key_columns="id")
    return f"{lake}/t"


def count(io: AnyDatasetIO, path: str, source: pa.Table | None = None, **options: Any) -> MergeBuilder:
    """A counter: of the stock, 1 gets more, 2 ends, 5 is new, 3 has none left, and 4 stays."""
    rows = pa.table({"id": [1, 2, 5], "qty": pa.array([1, None, 5], pa.int64())}) if source is None else source
    return (
        io.merge_into(path, rows, "id", **options)
        .when_matched_delete("s.qty IS NULL")
        .when_matched_update({"qty": "t.qty + s.qty"}, "s.qty <> 0")
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.qty = 0")
    )


COUNTED = [{"id": 1, "qty": 11}, {"id": 4, "qty": 40}, {"id": 5, "qty": 5}]


# M9
def test_the_history_has_the_clauses_as_sql(io: AnyDatasetIO, path: str) -> None:
    count(io, path, batch_id="b", retain=1).execute()
    record = history(path)[0]
    assert (record.operation, record.strategy, record.key_columns, record.batch_id) == ("merge", "merge", ["id"], "b")
    assert record.options == {"retain": 1, "clauses": CLAUSES}
    assert (record.inserted, record.updated, record.deleted) == (1, 1, 2)
    printed = CliRunner().invoke(app, ["history", path], catch_exceptions=False).stdout.splitlines()
    assert printed[0].endswith("UTC  merge by clauses: 1 inserted, 1 updated, 2 deleted (batch b)")
    assert printed[1:5] == [f"    {clause}" for clause in CLAUSES]
    assert printed[5].endswith("merge upsert: 4 inserted")


# M9
def test_the_history_has_the_expressions_of_keys_and_no_passwords(io: AnyDatasetIO, path: str) -> None:
    rows = pa.table({"number": ["1"], "qty": [7]})
    merge = io.merge_into(path, rows, {"id": "CAST(s.number AS BIGINT)"})
    merge.when_matched_update({"qty": "s.qty"}, "s.number <> 'ftp://ada:secret@example.org/x'").execute()
    assert history(path)[0].options == {
        "clauses": [
            "WHEN MATCHED AND s.number <> 'ftp://***@example.org/x' THEN UPDATE SET qty = s.qty",
        ],
        "on": {"id": "CAST(s.number AS BIGINT)"},
    }
    assert not [file for file in Path(path).parent.rglob("*.json") if b"secret" in file.read_bytes()]


def test_the_result_and_the_plan_show_the_clauses(io: AnyDatasetIO, path: str) -> None:
    with assert_unchanged(path):
        plan = count(io, path).plan()
        text = count(io, path).explain()
    assert (plan.strategy, plan.clauses) == ("merge", tuple(CLAUSES))
    lines = [f"  {clause}" for clause in CLAUSES]
    assert text.splitlines()[1:5] == lines
    assert list(format_plan(plan, 100))[1:5] == lines
    result = count(io, path, batch_id="b").execute()
    assert (result.strategy, result.clauses) == ("merge", CLAUSES)
    assert result.to_dict()["clauses"] == CLAUSES
    assert io.merge(pa.table({"id": [9], "qty": [9]}), path, key_columns="id").clauses == []


# M9
def test_a_merge_in_clauses_can_be_undone(io: AnyDatasetIO, path: str) -> None:
    before = snapshot(path)
    count(io, path, batch_id="b", retain=1).execute()
    assert read_rows(io, path) == COUNTED
    undo(path)
    assert snapshot(path) == before
    again = count(io, path, batch_id="b").execute()
    assert (again.replayed, again.updated) == (False, 1)
    assert read_rows(io, path) == COUNTED


# M7
def test_a_batch_of_a_counter_counts_once(io: AnyDatasetIO, path: str) -> None:
    first = count(io, path, batch_id="monday").execute()
    with assert_unchanged(path):
        again = count(io, path, batch_id="monday").execute()
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.stats, again.skipped, again.clauses) == (first.stats, first.skipped, CLAUSES)
    assert read_rows(io, path) == COUNTED
    assert not count(io, path, batch_id="tuesday").execute().replayed
    assert read_rows(io, path)[0] == {"id": 1, "qty": 12}


# M7
def test_a_batch_may_only_delete_although_its_clauses_update(io: AnyDatasetIO, path: str) -> None:
    ends = pa.table({"id": [2], "qty": pa.array([None], pa.int64())})
    merge = io.merge_into(path, ends, "id", batch_id="b", skip_unchanged=True).when_matched_delete("s.qty IS NULL")
    result = merge.when_matched_update({"qty": "t.qty + s.qty"}).when_not_matched_insert_all().execute()
    assert (result.deleted, result.updated, result.inserted) == (1, 0, 0)
    assert [row["id"] for row in read_rows(io, path)] == [1, 3, 4]


# M7
def test_a_batch_is_the_same_whatever_clauses_or_strategy_it_comes_with(io: AnyDatasetIO, path: str) -> None:
    first = count(io, path, batch_id="monday").execute()
    with assert_unchanged(path):
        other = io.merge_into(path, pa.table({"id": [1]}), "id", batch_id="monday").when_matched_delete().execute()
        strategy = io.merge(pa.table({"id": [1], "qty": [0]}), path, key_columns="id", batch_id="monday")
    assert (other.replayed, other.stats, other.clauses) == (True, first.stats, CLAUSES)
    assert (strategy.replayed, strategy.stats, strategy.strategy) == (True, first.stats, "merge")


def test_a_counter_without_a_batch_id_warns_once_at_the_line_that_runs_it(io: AnyDatasetIO, path: str) -> None:
    with pytest.warns(RepeatedUpdateWarning) as caught:
        result = count(io, path).execute()
    text = f"MERGE INTO '{path}' AS t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET qty = t.qty + s.qty"
    with pytest.warns(RepeatedUpdateWarning) as caught_by_sql:
        io.sql(text, s=pa.table({"id": [1], "qty": [0]}))
    (warning,), (other,) = caught, caught_by_sql
    assert warning.filename == other.filename == __file__
    assert str(warning.message) == (
        "Running this MERGE twice applies it twice, because new values depend on old ones: qty = t.qty + s.qty. Pass "
        "batch_id, so that the same batch is merged once."
    )
    assert pickle.loads(pickle.dumps(warning.message)).updates == ("qty = t.qty + s.qty",)  # noqa: S301  our own
    assert result.updated == 1


def test_a_warning_that_is_an_error_comes_before_anything_is_written(io: AnyDatasetIO, path: str) -> None:
    merge = count(io, path)
    with assert_unchanged(path), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RepeatedUpdateWarning, match="batch_id"):
            merge.execute()


def test_what_has_the_same_result_twice_does_not_warn(io: AnyDatasetIO, path: str) -> None:
    # A warning is an error here.
    rows = pa.table({"id": [1, 2], "qty": pa.array([None, 7], pa.int64())})
    merge = io.merge_into(path, rows, "id").when_matched_update({"qty": "coalesce(s.qty, t.qty)"}, "t.qty < 1000")
    for _ in range(2):
        merge.execute()
        assert [row["qty"] for row in read_rows(io, path)] == [10, 7, 0, 40]
