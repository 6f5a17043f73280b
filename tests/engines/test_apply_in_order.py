"""Several source rows of one key that are applied one after the other, and what is refused instead (Q8)."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, load, snapshot

import merganser
from merganser.core.model.engine import ACTION_COLUMN
from merganser.errors import (
    ColumnValueError,
    DuplicateKeyError,
    InvalidArgumentError,
    MerganserError,
    PartitionMoveError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from merganser.core.merge.builder import MergeBuilder
    from merganser.core.merge.dataset_io import DatasetIO

STOCK = pa.table({"id": [1, 2, 3, 4], "qty": [10, 20, 30, 40], "seq": [5, 5, 5, 5], "note": ["a", "b", "c", "d"]})
COUNTER = {"qty": "t.qty + s.qty", "seq": "s.seq"}


def begin(io: DatasetIO, lake: str, source: Any, on: Any = "id", **options: Any) -> MergeBuilder:
    """Begin a merge into the stock that applies rows in order, two rows in a file."""
    path = f"{lake}/t"
    io.write_dataset(STOCK, path, max_rows_per_file=2)
    given = pa.table(source) if isinstance(source, dict) else source
    ordered: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    return io.merge_into(path, given, on, **{**ordered, **options})


def rows_by_id(io: DatasetIO, lake: str, *columns: str) -> dict[Any, Any]:
    rows = load(io, f"{lake}/t").to_pylist()
    return {row["id"]: row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows}


# Q8
def test_a_counter_adds_up_all_rows_of_a_key(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 9, 9, 9, 2], "qty": [1, 2, 3, 4, 5, 6], "seq": [7, 6, 1, 3, 2, 6]}
    merge = begin(io, lake, source, audit="rows").when_matched_update(COUNTER).when_not_matched_insert()
    plan = merge.plan()
    result = merge.execute()
    assert rows_by_id(io, lake, "qty", "seq") == {1: (13, 7), 2: (26, 6), 3: (30, 5), 4: (40, 5), 9: (12, 3)}
    # Each row counts once, however many source rows change it.
    assert (result.inserted, result.updated, result.deleted, result.skipped) == (1, 2, 0, 0)
    assert (plan.inserted, plan.updated, plan.deleted) == (1, 2, 0)
    assert (result.source_count, result.deduplicated) == (6, 0)
    assert result.audit is not None
    audited = {row["id"]: (row[ACTION_COLUMN], row["qty"]) for row in result.audit.to_pylist()}
    assert audited == {1: ("update", 13), 2: ("update", 26), 9: ("insert", 12)}


# Q8 M3
def test_a_row_older_than_the_target_is_late_whatever_else_its_key_has(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 1, 2, 2], "qty": [100, 1, 2, 100, 100], "seq": [4, 5, 6, 1, None]}
    result = begin(io, lake, source).when_matched_update(COUNTER).when_not_matched_insert().execute()
    assert rows_by_id(io, lake, "qty") == {1: 13, 2: 20, 3: 30, 4: 40}
    assert (result.updated, result.skipped) == (1, 1)


# Q8 M3
def test_late_is_told_by_the_stored_value_not_by_what_the_batch_does_to_it(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1], "qty": [1, 2], "seq": [6, 7]}
    begin(io, lake, source).when_matched_update({"qty": "t.qty + s.qty", "seq": "t.seq + 100"}).execute()
    assert rows_by_id(io, lake, "qty", "seq")[1] == (13, 205)


# Q8
def test_rows_that_tie_are_applied_in_the_order_of_the_source(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 1, 8, 8], "note": ["x", "y", "z", "p", "q"], "seq": [6, 6, 6, 1, 1]}
    merge = begin(io, lake, source).when_matched_update({"note": "t.note || s.note"})
    merge.when_not_matched_insert().execute()
    found = rows_by_id(io, lake, "note")
    assert (found[1], found[8]) == ("axyz", "pq")


# Q8 Q1
def test_conditions_see_what_earlier_rows_have_done(io: DatasetIO, lake: str) -> None:
    source = {"id": [1] * 4, "qty": [-4, -4, -4, -4], "seq": [6, 7, 8, 9]}
    merge = begin(io, lake, source).when_matched_update({"note": "t.note || '!'"}, where="t.qty + s.qty < 0")
    merge.when_matched_update({"qty": "t.qty + s.qty"}).execute()
    assert rows_by_id(io, lake, "qty", "note")[1] == (2, "a!!")


# Q8
def test_a_row_that_is_deleted_and_inserted_again_is_updated(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 1, 2, 2], "qty": [0, 7, 1, 5, 0], "seq": [6, 7, 8, 6, 7], "op": ["d", "i", "i", "i", "d"]}
    merge = begin(io, lake, source, audit=True).when_matched_delete("s.op = 'd'").when_matched_update(COUNTER)
    result = merge.when_not_matched_insert({"id": "s.id", "qty": "s.qty", "seq": "s.seq"}).execute()
    # The columns that the insert does not give are NULL.
    assert rows_by_id(io, lake, "qty", "seq", "note") == {1: (8, 8, None), 3: (30, 5, "c"), 4: (40, 5, "d")}
    assert (result.inserted, result.updated, result.deleted) == (0, 1, 1)


# Q8
def test_deletes_and_inserts_alone_replace_a_row(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 2], "qty": [0, 7, 0], "seq": [6, 7, 6], "note": ["d", "new", "d"]}
    merge = begin(io, lake, source).when_matched_delete("s.note = 'd'")
    result = merge.when_not_matched_insert_all(where="s.note <> 'd'").execute()
    assert rows_by_id(io, lake, "qty", "note") == {1: (7, "new"), 3: (30, "c"), 4: (40, "d")}
    assert (result.inserted, result.updated, result.deleted) == (0, 1, 1)


# Q8
def test_a_new_key_that_is_deleted_again_is_not_inserted(io: DatasetIO, lake: str) -> None:
    source = {"id": [8, 8, 9, 9, 9], "qty": [1, 0, 1, 0, 5], "seq": [1, 2, 1, 2, 3], "op": ["i", "d", "i", "d", "i"]}
    merge = begin(io, lake, source, audit=True).when_matched_delete("s.op = 'd'").when_matched_update(COUNTER)
    result = merge.when_not_matched_insert(where="s.op = 'i'").execute()
    assert rows_by_id(io, lake, "qty") == {1: 10, 2: 20, 3: 30, 4: 40, 9: 5}
    assert (result.inserted, result.updated, result.deleted) == (1, 0, 0)
    assert result.audit is not None
    assert result.audit.select(["id", ACTION_COLUMN]).to_pylist() == [{"id": 9, ACTION_COLUMN: "insert"}]


# Q8
def test_an_update_gives_a_new_row_columns_that_its_insert_left_out(io: DatasetIO, lake: str) -> None:
    source = {"id": [8, 8], "qty": [1, 2], "seq": [1, 2], "word": ["x", "y"]}
    merge = begin(io, lake, source, audit="rows").when_matched_update({"note": "coalesce(t.note, '-') || s.word"})
    result = merge.when_not_matched_insert({"id": "s.id", "seq": "s.seq"}).execute()
    assert rows_by_id(io, lake, "qty", "seq", "note")[8] == (None, 1, "-y")
    assert result.audit is not None
    assert result.audit.column("note").to_pylist() == ["-y"]


# Q8 K9
def test_each_target_row_of_a_key_gets_all_rows(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.write_dataset(pa.table({"id": [1, 1, 1], "qty": [10, 20, 30], "seq": [1, 3, 9]}), path, max_rows_per_file=2)
    source = pa.table({"id": [1, 1], "qty": [1, 5], "seq": [2, 4]})
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    result = io.merge_into(path, source, "id", **options).when_matched_update(COUNTER).execute()
    assert sorted(load(io, path).column("qty").to_pylist()) == [16, 25, 30]
    assert (result.updated, result.skipped) == (2, 1)


# Q8 Q4
def test_by_source_clauses_see_keys_without_any_source_row(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 2], "qty": [1, 1, 1], "seq": [6, 7, 1]}
    merge = begin(io, lake, source).when_matched_update(COUNTER)
    result = merge.when_not_matched_by_source_delete("t.id = 3").execute()
    assert rows_by_id(io, lake, "qty") == {1: 12, 2: 20, 4: 40}
    assert (result.updated, result.deleted) == (1, 1)


# Q8
def test_plain_clauses_leave_what_the_last_row_says(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 9, 9], "qty": [1, 2, 3, 4], "seq": [7, 6, 2, 1], "note": list("wxyz")}
    result = begin(io, lake, source).when_matched_update_all().when_not_matched_insert_all().execute()
    found = rows_by_id(io, lake, "qty", "seq", "note")
    assert (found[1], found[9]) == ((1, 7, "w"), (3, 2, "y"))
    assert (result.inserted, result.updated) == (1, 1)


# Q8
def test_with_inserts_alone_the_first_row_counts(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 9, 9], "qty": [1, 2, 3], "seq": [9, 2, 1], "note": ["x", "y", "z"]}
    result = begin(io, lake, source).when_not_matched_insert_all().execute()
    assert rows_by_id(io, lake, "note") == {1: "a", 2: "b", 3: "c", 4: "d", 9: "z"}
    assert (result.inserted, result.updated) == (1, 0)


# Q8 M5
def test_rows_that_end_as_they_began_are_skipped_on_request(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 2], "qty": [5, -5, 1], "seq": [6, 7, 6]}
    merge = begin(io, lake, source, skip_unchanged=True).when_matched_update({"qty": "t.qty + s.qty"})
    result = merge.execute()
    assert (rows_by_id(io, lake, "qty"), result.updated, result.skipped) == ({1: 10, 2: 21, 3: 30, 4: 40}, 1, 1)


# Q8 Q5
def test_rows_with_null_as_key_are_rows_of_one_key(io: DatasetIO, lake: str) -> None:
    source = {"id": pa.array([None, None, 1], pa.int64()), "qty": [1, 2, 3], "seq": [6, 7, 8]}
    merge = begin(io, lake, source, null_keys="match").when_matched_update(COUNTER).when_not_matched_insert()
    assert merge.execute().inserted == 1
    assert rows_by_id(io, lake, "qty") == {1: 13, 2: 20, 3: 30, 4: 40, None: 3}


# Q8 Q5
def test_keys_that_are_expressions_are_grouped_by_their_values(io: DatasetIO, lake: str) -> None:
    source = {"code": ["1", "01", "9"], "qty": [1, 2, 3], "seq": [6, 7, 8]}
    merge = begin(io, lake, source, {"id": "CAST(s.code AS BIGINT)"}).when_matched_update(COUNTER)
    merge = merge.when_not_matched_insert({"id": "CAST(s.code AS BIGINT)", "qty": "s.qty", "seq": "s.seq"})
    merge.execute()
    assert rows_by_id(io, lake, "qty") == {1: 13, 2: 20, 3: 30, 4: 40, 9: 3}


# Q8 S4
def test_values_of_any_type_pass_through_unchanged(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    columns = {
        "id": pa.array([1, 1, 2, 2], pa.int64()),
        "seq": pa.array([Decimal("1.5"), Decimal("0.5"), None, Decimal(0)], pa.decimal128(5, 1)),
        "text": pa.array(["a", None, "b", "c"], pa.dictionary(pa.int8(), pa.string())),
        "list": pa.array([[{"x": 1}], None, [], [{"x": None}, None]], pa.list_(pa.struct([("x", pa.int16())]))),
        "map": pa.array([[("k", b"v")], [], None, [("k", None)]], pa.map_(pa.string(), pa.binary())),
        "flag": [True, None, False, True],
        "at": pa.array([1, 2, None, 4], pa.timestamp("us", "UTC")),
        "n": pa.array([0, 1, 2, 3], pa.int64()),
    }
    source = pa.table(columns)
    io.write_dataset(source.slice(3).set_column(1, "seq", pa.array([Decimal(-1)], pa.decimal128(5, 1))), path)
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(path, source, "id", **options).when_matched_update_all(where="s.n >= 0")
    merge.when_not_matched_insert_all().execute()
    found = {row["id"]: row for row in load(io, path).to_pylist()}
    assert [found[1], found[2]] == [source.slice(0, 1).to_pylist()[0], source.slice(3).to_pylist()[0]]


# Q8 S4
def test_uuids_pass_through_unchanged(io: DatasetIO, lake: str) -> None:
    path, values = f"{lake}/t", [uuid.UUID(int=at).bytes for at in range(4)]
    keys = pa.array(values, pa.uuid())
    source = pa.table({"id": keys.take(pa.array([0, 1, 0, 1])), "other": keys, "seq": [1, 1, 2, 3]})
    io.write_dataset(source.slice(0, 1), path)
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(path, source, "id", **options).when_matched_update_all().when_not_matched_insert_all()
    merge.execute()
    assert (
        load(io, path).sort_by("seq").select(["id", "other"]).to_pylist()
        == source.slice(2).select(["id", "other"]).to_pylist()
    )


# Q8 H1
def test_new_rows_go_to_the_partition_that_their_last_row_gives_them(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.write_dataset(pa.table({"id": [1], "day": ["a"], "seq": [1]}), path, partition_columns=["day"])
    source = pa.table({"id": [2, 2, 1, 3], "day": ["a", "b", "a", "c"], "seq": [1, 2, 3, 1]})
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(path, source, "id", **options).when_matched_update_all().when_not_matched_insert_all()
    merge.execute()
    assert rows_by_id(io, lake, "day", "seq") == {1: ("a", 3), 2: ("b", 2), 3: ("c", 1)}
    assert {name.split("/")[0] for name in snapshot(path)} == {"day=a", "day=b", "day=c"}


# Q8 H4
@pytest.mark.parametrize("days", [["b", "b"], ["b", "a"]])
def test_a_row_that_would_leave_its_partition_is_refused(io: DatasetIO, lake: str, days: list[str]) -> None:
    path = f"{lake}/t"
    io.write_dataset(pa.table({"id": [1], "day": ["a"], "seq": [1]}), path, partition_columns=["day"])
    source = pa.table({"id": [1, 1], "day": days, "seq": [2, 3]})
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(path, source, "id", **options).when_matched_update_all().when_not_matched_insert_all()
    if days[-1] == "a":
        # Only where it ends counts.
        assert merge.execute().updated == 1
        return
    with assert_unchanged(path), pytest.raises(PartitionMoveError, match="would change 'day', for example id=1"):
        merge.execute()


# Q8
def test_a_key_of_many_rows_is_applied_to_the_end(io: DatasetIO, lake: str) -> None:
    count = 120
    source = pa.table({"id": [1] * count + [9] * count, "qty": [1] * (2 * count), "seq": [*range(6, 6 + count)] * 2})
    begin(io, lake, source).when_matched_update(COUNTER).when_not_matched_insert().execute()
    found = rows_by_id(io, lake, "qty")
    assert (found[1], found[9]) == (10 + count, count)


# Q8
def test_an_empty_source_changes_nothing(io: DatasetIO, lake: str) -> None:
    source = pa.table({"id": [1], "qty": [1], "seq": [9]}).slice(1)
    result = begin(io, lake, source).when_matched_update(COUNTER).when_not_matched_insert().execute()
    assert (result.inserted, result.updated, rows_by_id(io, lake, "qty")[1]) == (0, 0, 10)


# Q8 T4
def test_a_new_dataset_gets_what_the_rows_of_each_key_add_up_to(io: DatasetIO, lake: str) -> None:
    source = pa.table({"id": [1, 1, 2], "qty": [1, 2, 3], "seq": [1, 2, 3]})
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(f"{lake}/t", source, "id", **options).when_matched_update(COUNTER)
    result = merge.when_not_matched_insert_all().execute()
    assert (rows_by_id(io, lake, "qty"), result.inserted) == ({1: 3, 2: 3}, 2)


# Q8 M3
def test_without_it_the_newest_row_of_a_key_is_merged(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1], "qty": [1, 2], "seq": [7, 6]}
    begin(io, lake, source, repeated_keys="refuse").when_matched_update(COUNTER).execute()
    assert rows_by_id(io, lake, "qty")[1] == 11


# Q8
def test_clauses_that_would_fail_on_a_new_key_do_not_fail_on_a_known_one(io: DatasetIO, lake: str) -> None:
    source = {"id": [8, 8, *[1] * 3, 9, 9], "qty": [1, 1, 0, -9, 6, 2, 2], "seq": [6, 7, 6, 7, 8, 6, 7]}
    merge = begin(io, lake, source).when_matched_update({"qty": "CAST(sqrt(t.qty + s.qty + 5) * 2 AS BIGINT)"})
    merge = merge.when_not_matched_insert({"id": "s.id", "qty": "s.qty", "seq": "s.seq"})
    merge.execute()
    # From 10; a new row would be 0, then fail on the root of -4.
    assert rows_by_id(io, lake, "qty")[1] == 8


# Q8
def test_clauses_that_fail_on_a_new_key_change_nothing(io: DatasetIO, lake: str) -> None:
    source = {"id": [8, 8, 9, 9], "qty": [1, 1, -50, 1], "seq": [6, 7, 6, 7]}
    merge = begin(io, lake, source).when_matched_update({"qty": "CAST(sqrt(t.qty + s.qty) AS BIGINT)"})
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ColumnValueError, match=r"evaluated: .*(?i:out of range)"),
    ):
        merge.when_not_matched_insert({"id": "s.id", "qty": "s.qty", "seq": "s.seq"}).execute()


# Q8 E3
def test_columns_that_the_target_lacks_are_added_on_request(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 9, 9], "qty": [1, 2, 3, 4], "seq": [6, 7, 1, 2], "note": list("wxyz"), "more": [1, 2, 3, 4]}
    merge = begin(io, lake, source, schema_mode="evolve").when_matched_update({**COUNTER, "more": "s.more"})
    merge.when_not_matched_insert_all().execute()
    found = rows_by_id(io, lake, "qty", "more")
    assert (found[1], found[2], found[9]) == ((13, 2), (20, None), (7, 4))


# Q8
def test_a_value_that_fails_on_the_way_changes_nothing(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 1], "qty": [2**62, 2**62], "seq": [6, 7]}).when_matched_update(COUNTER)
    with assert_unchanged(f"{lake}/t"), pytest.raises(MerganserError, match="qty"):
        merge.execute()


# Q8 S1
def test_null_for_a_required_column_is_refused(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema([("id", pa.int64()), ("seq", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    io.write_dataset(pa.table([[1], [1], ["a"]], schema=schema), path)
    source = pa.table({"id": [1, 1], "seq": [2, 3], "name": pa.array(["x", None])})
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(path, source, "id", **options).when_matched_delete("s.seq = 2").when_not_matched_insert_all()
    with assert_unchanged(path), pytest.raises(ColumnValueError, match="inserted again have NULL in column 'name'"):
        merge.execute()


# Q8
def test_a_statement_of_sql_applies_rows_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    merganser.write_dataset(STOCK, path)
    merganser.sql(
        f"MERGE INTO '{path}' AS t USING moves AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET qty = t.qty + s.qty, seq = s.seq",
        moves=pa.table({"id": [1, 1], "qty": [1, 2], "seq": [7, 6]}),
        sequence_column="seq",
        repeated_keys="apply_in_order",
        batch_id="one",
    )
    found = merganser.PyArrowDatasetIO().read(path).to_table().sort_by("id")
    assert (found.column("qty")[0].as_py(), found.column("seq")[0].as_py()) == (13, 7)


# Q8
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_column": None}, "needs the sequence_column, which orders rows with the same key"),
        ({"on_partition_move": "move"}, "'move' does not go with repeated_keys='apply_in_order'"),
        ({"repeated_keys": "sum"}, "repeated_keys"),
        ({"sequence_column": "id"}, "is a key column"),
    ],
)
def test_what_does_not_go_with_it_is_refused(io: DatasetIO, lake: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        begin(io, lake, {"id": [1], "qty": [1], "seq": [6]}, **options).when_matched_update(COUNTER).execute()


# Q8
def test_a_strategy_is_refused_because_it_takes_the_newest_row(io: DatasetIO, lake: str) -> None:
    with pytest.raises(InvalidArgumentError, match="merges the newest row of a key if sequence_column is given"):
        io.merge(STOCK, f"{lake}/t", key_columns="id", sequence_column="seq", repeated_keys="apply_in_order")


# Q8 Q3
def test_the_refusal_of_repeated_keys_names_it(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1], "qty": [1, 2], "seq": [6, 7]}
    merge = begin(io, lake, source, repeated_keys="refuse", sequence_column=None)
    for one in (merge.when_matched_update(COUNTER), merge.when_matched_update(COUNTER, where="s.qty > 0")):
        with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match="repeated_keys='apply_in_order'"):
            one.execute()
