"""MERGE in clauses: conditions, expressions, repeated keys, and what is refused before anything changes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, break_pages, load, put, snapshot

from merganser.core.model.engine import ACTION_COLUMN
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    DuplicateKeyError,
    InvalidArgumentError,
    MerganserError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from merganser.core.merge.builder import MergeBuilder
    from merganser.core.merge.dataset_io import DatasetIO

STOCK = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, None], pa.int64()),
        "qty": pa.array([10, 20, None, 40, 50], pa.int32()),
        "name": ["a", "b", "c", None, "e"],
        "seen": [dt.date(2026, 11, day) for day in (1, 2, 3, 4, 5)],
    }
)


def begin(io: DatasetIO, lake: str, source: dict[str, Any] | pa.Table, on: Any = "id", **options: Any) -> MergeBuilder:
    """Begin a merge into the stock, two rows in a row group and three in a file."""
    path = f"{lake}/t"
    io.write_dataset(STOCK, path, max_rows_per_file=3, row_group_size=2)
    table = source if isinstance(source, pa.Table) else pa.table(source)
    return io.merge_into(path, table, on, batch_id="one", **options)


def rows_by_id(io: DatasetIO, lake: str, *columns: str) -> dict[Any, Any]:
    rows = load(io, f"{lake}/t").to_pylist()
    return {row["id"]: row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows}


# Q1
def test_the_first_clause_that_holds_decides(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 2, 3, 4, 9], "qty": [1, 2, 3, 4, 9]})
    result = (
        merge.when_matched_delete("s.qty = 1")
        .when_matched_do_nothing("s.qty = 2")
        .when_matched_update({"qty": "-1"}, where="t.qty > 1")
        .when_matched_update({"qty": "s.qty"})
        .when_not_matched_insert(where="s.qty > 8")
        .execute()
    )
    assert rows_by_id(io, lake, "qty") == {2: 20, 3: 3, 4: -1, None: 50, 9: 9}
    assert (result.inserted, result.updated, result.deleted) == (1, 2, 1)


# Q1
def test_a_condition_that_is_null_does_not_hold(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 3, 8], "qty": pa.array([None, 5, None], pa.int32())})
    merge = merge.when_matched_delete("t.qty > 0 AND s.qty > 0").when_not_matched_insert(where="s.qty IN (1)")
    result = merge.when_not_matched_by_source_delete("t.name = 'zz' OR NULL").execute()
    assert (result.inserted, result.updated, result.deleted) == (0, 0, 0)
    assert load(io, f"{lake}/t").num_rows == STOCK.num_rows


# Q1 Q2
def test_an_update_reads_old_values_and_an_insert_leaves_columns_null(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [2, 3, 7], "qty": [5, 6, 7], "ts": [dt.date(2026, 11, 9)] * 3}, audit="rows")
    result = (
        merge.when_matched_update({"qty": "coalesce(t.qty, 0) + s.qty", "seen": "greatest(s.ts, t.seen)"})
        .when_not_matched_insert({"id": "s.id", "qty": "s.qty * 2"})
        .execute()
    )
    found = rows_by_id(io, lake, "qty", "name", "seen")
    assert found[2] == (25, "b", dt.date(2026, 11, 9))
    assert found[3] == (6, "c", dt.date(2026, 11, 9))
    assert found[7] == (14, None, None)
    assert result.audit is not None
    audited = {row["id"]: (row[ACTION_COLUMN], row["qty"]) for row in result.audit.to_pylist()}
    assert audited == {2: ("update", 25), 3: ("update", 6), 7: ("insert", 14)}


# Q4 K4
def test_by_source_clauses_see_every_target_row_without_a_match(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 2]})
    result = (
        merge.when_not_matched_by_source_update({"name": "'gone'"}, where="t.qty >= 40 AND t.id IS NOT NULL")
        .when_not_matched_by_source_delete()
        .execute()
    )
    assert rows_by_id(io, lake, "name") == {1: "a", 2: "b", 4: "gone"}
    assert (result.updated, result.deleted) == (1, 2)


# Q4
def test_a_full_deletion_of_unmatched_rows_keeps_the_matched(io: DatasetIO, lake: str) -> None:
    result = begin(io, lake, {"id": [1, 4]}).when_not_matched_by_source_delete().execute()
    assert rows_by_id(io, lake, "qty") == {1: 10, 4: 40}
    assert result.deleted == 3


# Q4 M6
def test_by_source_clauses_change_rows_in_scope_only(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    table = pa.table({"day": ["a", "a", "b"], "id": [1, 2, 3], "v": [1, 2, 3]})
    io.write_dataset(table, path, partition_columns=["day"])
    merge = io.merge_into(path, pa.table({"day": ["a"], "id": [1]}), ["day", "id"], scope={"day": "a"}, batch_id="x")
    result = merge.when_not_matched_by_source_update({"v": "t.v * 10"}).execute()
    assert (result.updated, sorted(load(io, path).column("v").to_pylist())) == (1, [1, 3, 20])


# Q4
@pytest.mark.splice
def test_bounds_and_partitions_leave_files_out(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    days = [dt.date(2026, 11, day) for day in (1, 2, 3)]
    for day in days:
        rows = pa.table({"day": [day] * 3, "id": range(day.day * 10, day.day * 10 + 3), "v": [1, 2, 3]})
        io.write_dataset(rows, path, partition_columns=["day"])
    nothing = pa.table({"id": pa.array([], pa.int64())})
    merge = io.merge_into(path, nothing, "id", batch_id="one")
    by_day = merge.when_not_matched_by_source_update({"v": "t.v + 1"}, where="t.day = DATE '2026-11-02'")
    assert [file.action for file in by_day.plan().files].count("rewrite") == 1
    by_id = merge.when_not_matched_by_source_delete("t.id >= 30 AND t.v < 3")
    before = snapshot(path)
    result = by_id.execute()
    assert (result.deleted, len(result.rewritten_files)) == (2, 1)
    untouched = [name for name in before if "day=2026-11-03" not in name]
    assert {name: snapshot(path)[name] for name in untouched} == {name: before[name] for name in untouched}


# Q2 Q4
@pytest.mark.splice
@pytest.mark.parametrize("kind", ["matched", "by source"])
def test_only_named_columns_of_concerned_row_groups_are_read(io: DatasetIO, lake: str, kind: str) -> None:
    file = f"{lake}/t/a.parquet"
    count = 2_000
    keys = list(range(count))
    put(file, pa.table({"id": keys, "qty": keys, "name": [f"n{key}" for key in keys]}), row_group_size=1_000)
    for group, column in ((0, 2), (1, 2), (1, 1)):
        break_pages(file, group, column, kind="ones")
    merge = io.merge_into(f"{lake}/t", pa.table({"id": [7], "more": [100]}), "id", batch_id="one")
    if kind == "matched":
        result = merge.when_matched_update({"qty": "t.qty + s.more"}, where="t.qty < 10").execute()
        changed = {7: 107}
    else:
        merge = merge.when_not_matched_by_source_update({"qty": "t.qty + 1"}, where="t.id < 3")
        result = merge.execute()
        changed = {0: 1, 1: 2, 2: 3}
    assert result.updated == len(changed)
    kept = pq.ParquetFile(file).read_row_group(0, columns=["id", "qty"]).to_pylist()
    assert kept == [{"id": key, "qty": changed.get(key, key)} for key in keys[:1_000]]


# Q3
def test_a_target_row_that_two_source_rows_change_is_refused(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 2, 2, 3], "qty": [1, 2, 3, 4]}
    merge = begin(io, lake, source).when_matched_update({"qty": "s.qty"}, where="s.qty > 1")
    with assert_unchanged(lake), pytest.raises(DuplicateKeyError, match=r"1 key, for example id=2\..*sequence_column"):
        merge.execute()


# Q3
@pytest.mark.skipif(duckdb.__version__ < "2", reason="earlier versions take any of two source rows, or have no MERGE")
def test_duckdb_refuses_the_same_row_too_but_not_two_new_ones() -> None:
    source = "(VALUES (1, 5), (1, 6)) AS s(id, v)"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 0 AS v")
        with pytest.raises(duckdb.Error, match="same target row"):
            connection.execute(f"MERGE INTO t USING {source} ON t.id = s.id WHEN MATCHED AND s.v > 0 THEN UPDATE")
        connection.execute(f"MERGE INTO t USING {source} ON t.id = s.id + 9 WHEN NOT MATCHED THEN INSERT")
        assert connection.sql("FROM t").fetchall() == [(1, 0), (1, 5), (1, 6)]


# Q3
def test_repeated_keys_are_fine_where_one_of_their_rows_applies(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 1, 2, 2, 8, 8, 3], "qty": [100, 1, 2, 200, 3, 800, 5], "op": [*"UxxUxUx"]}
    merge = begin(io, lake, source)
    result = (
        merge.when_matched_update({"qty": "s.qty"}, where="s.op = 'U'")
        .when_not_matched_insert({"id": "s.id", "qty": "s.qty"}, where="s.op = 'U'")
        .when_not_matched_by_source_delete()
        .execute()
    )
    assert rows_by_id(io, lake, "qty") == {1: 100, 2: 200, 3: None, 8: 800}
    assert (result.inserted, result.updated, result.deleted, result.source_count) == (1, 2, 2, 7)


# Q3
def test_two_new_rows_with_one_key_are_refused(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [8, 7, 8, 1], "qty": [1, 2, 3, 4]})
    merge = merge.when_matched_update({"qty": "s.qty"}, where="s.qty > 0").when_not_matched_insert()
    with assert_unchanged(lake), pytest.raises(DuplicateKeyError, match="for example id=8"):
        merge.execute()
    with pytest.raises(DuplicateKeyError, match="for example id=8"):
        merge.plan()


# K5 Q3
def test_repeated_keys_are_refused_at_once_without_conditions(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [8, 8], "qty": [1, 2]}).when_matched_update({"qty": "s.qty"})
    with assert_unchanged(lake), pytest.raises(DuplicateKeyError, match="1 duplicate key"):
        merge.execute()


# Q5
def test_keys_may_be_expressions_over_the_source(io: DatasetIO, lake: str) -> None:
    source = {"code": ["k-1", "k-9"], "amount": [7, 8]}
    merge = begin(io, lake, source, on={"id": "CAST(substr(s.code, 3) AS BIGINT)"})
    key = "CAST(substr(s.code, 3) AS BIGINT)"
    result = (
        merge.when_matched_update({"qty": "s.amount"})
        .when_not_matched_insert({"id": key, "qty": "s.amount", "name": "s.code"})
        .execute()
    )
    found = rows_by_id(io, lake, "qty", "name")
    assert (found[1], found[9], result.inserted) == ((7, "a"), (8, "k-9"), 1)


# Q5
def test_an_insert_gives_keys_the_values_they_are_joined_with(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [9], "qty": [1]})
    for values, fault in (({"qty": "s.qty"}, "leaves out"), ({"id": "s.id + 1", "qty": "1"}, r"gives 's.id \+ 1' to")):
        with assert_unchanged(lake), pytest.raises(InvalidArgumentError, match=f"{fault} the key column 'id'"):
            merge.when_not_matched_insert(values).execute()
    merge = merge.when_not_matched_insert({"id": "CAST(s.id AS INTEGER)"})
    assert merge.execute().inserted == 1


# Q1
def test_keys_do_not_change_in_an_update(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1], "qty": [1]})
    with assert_unchanged(lake), pytest.raises(InvalidArgumentError, match="updates the key column 'id'"):
        merge.when_matched_update({"id": "s.id + 1"}).execute()
    assert merge.when_matched_update({"id": "s.id", "qty": "s.qty"}).execute().updated == 1


# Q6
def test_clauses_of_all_columns_are_the_strategies(io: DatasetIO, lake: str) -> None:
    source = pa.table({"id": [1, 9], "qty": pa.array([1, 9], pa.int32()), "name": ["x", "y"], "seen": [None, None]})
    source = source.cast(STOCK.schema)
    merge = begin(io, lake, source).when_matched_update_all().when_not_matched_insert_all()
    result = merge.when_not_matched_by_source_delete().execute()
    io.write_dataset(STOCK, f"{lake}/other", max_rows_per_file=3, row_group_size=2)
    same = io.merge(source, f"{lake}/other", "full_merge", "id")
    assert load(io, f"{lake}/t").sort_by("id").equals(load(io, f"{lake}/other").sort_by("id"))
    assert result.stats == same.stats


FEED = pa.table(
    {
        "id": [1, 2, 3, 8, 9, 9],
        "qty": pa.array([11, None, 33, 88, 99, 90], pa.int32()),
        "name": ["x", None, "z", "y", "n", "o"],
        "seen": [dt.date(2026, 11, day) for day in (7, 1, 8, 9, 9, 7)],
        "op": [*"UUDDII"],
    }
)
NEWEST = FEED.slice(0, 5)
# Options of an upsert, and the clauses that they are names for; a row is late if its date is before the target's.
OPTIONS: dict[str, tuple[pa.Table, dict[str, Any], Any]] = {
    "update_columns": (
        NEWEST.drop_columns("op"),
        {"update_columns": ["qty", "seen"], "insert_columns": ["name"]},
        lambda merge: merge.when_matched_update({"qty": "s.qty", "seen": "s.seen"}).when_not_matched_insert(
            {"id": "s.id", "name": "s.name"}
        ),
    ),
    "update_mode": (
        NEWEST.drop_columns("op"),
        {"update_mode": "non_null"},
        lambda merge: merge.when_matched_update(
            {name: f"coalesce(s.{name}, t.{name})" for name in ("qty", "name", "seen")}
        ).when_not_matched_insert_all(),
    ),
    "sequence_column": (
        FEED.drop_columns("op"),
        {"sequence_column": "seen"},
        lambda merge: merge.when_matched_update_all("s.seen >= t.seen").when_not_matched_insert_all("s.qty <> 90"),
    ),
    "operation_column": (
        NEWEST,
        {"operation_column": "op"},
        lambda merge: (
            merge.when_matched_delete("s.op = 'D'").when_matched_update_all().when_not_matched_insert_all("s.op <> 'D'")
        ),
    ),
    "skip_unchanged": (
        STOCK.slice(0, 2).append_column("op", pa.array(["U", "U"])).drop_columns("op"),
        {"skip_unchanged": True},
        lambda merge: merge.when_matched_update_all(
            "(s.qty, s.name, s.seen) IS DISTINCT FROM (t.qty, t.name, t.seen)"
        ).when_not_matched_insert_all(),
    ),
}


# Q6 M2 M3 M4 M5
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_a_strategy_are_names_for_clauses_too(io: DatasetIO, lake: str, option: str) -> None:
    source, options, build = OPTIONS[option]
    by_clauses = build(begin(io, lake, source)).execute()
    io.write_dataset(STOCK, f"{lake}/other", max_rows_per_file=3, row_group_size=2)
    by_option = io.merge(source, f"{lake}/other", "upsert", "id", **options)
    assert load(io, f"{lake}/t").sort_by("id").equals(load(io, f"{lake}/other").sort_by("id"))
    assert by_clauses.stats == by_option.stats


# Q6
def test_all_columns_may_have_exceptions(io: DatasetIO, lake: str) -> None:
    source = pa.table({"id": [1, 9], "qty": [1, 9], "name": ["x", "y"], "seen": [None, None], "more": [1, 2]})
    source = source.set_column(3, "seen", pa.nulls(2, pa.date32()))
    merge = begin(io, lake, source).when_matched_update_all(exclude="name", where="s.more > 0")
    merge.when_not_matched_insert_all(exclude=["qty"]).execute()
    assert rows_by_id(io, lake, "qty", "name", "seen")[1] == (1, "a", None)
    assert rows_by_id(io, lake, "qty", "name", "seen")[9] == (None, "y", None)


# S2 Q1
def test_all_columns_need_those_of_the_target(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1], "qty": [1]}).when_matched_update_all(where="s.qty > 0")
    with assert_unchanged(lake), pytest.raises(SchemaMismatchError, match="missing from the source: 'name', 'seen'"):
        merge.execute()


# E3
def test_clauses_add_columns_and_widen_types_if_asked(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 9], "qty": [1 << 40, 9], "colour": ["red", "blue"]}
    merge = begin(io, lake, source, schema_mode="evolve").when_matched_update_all(where="s.qty > 10")
    merge.when_not_matched_insert_all().execute()
    assert rows_by_id(io, lake, "qty", "name", "colour")[1] == (1 << 40, "a", "red")
    assert rows_by_id(io, lake, "qty", "name", "colour")[9] == (9, None, "blue")
    assert rows_by_id(io, lake, "qty", "name", "colour")[2] == (20, "b", None)


# Q2 S3
def test_values_are_cast_without_loss_or_refused(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 2], "qty": [1, 2]})
    with assert_unchanged(lake), pytest.raises(ColumnValueError, match=r"(?s)qty.*0\.5"):
        merge.when_matched_update({"qty": "s.qty / 2"}).execute()
    with assert_unchanged(lake), pytest.raises(ColumnTypeError, match=r"'s\.qty = 1' has type bool and column 'qty'"):
        merge.when_matched_update({"qty": "s.qty = 1"}).execute()
    with (
        assert_unchanged(lake),
        pytest.raises(ColumnTypeError, match=r"condition 's\.qty' has type int64, not boolean"),
    ):
        merge.when_matched_delete("s.qty").execute()
    assert merge.when_matched_update({"qty": "s.qty / 1"}).execute().updated == 2


# Q2 S3
def test_inserts_of_several_types_are_not_rounded(io: DatasetIO, lake: str) -> None:
    source = pa.table({"id": [8, 9], "big": pa.array([(1 << 53) + 1] * 2, pa.int64()), "rate": [1.5, 2.0]})
    io.write_dataset(pa.table({"id": [1], "big": pa.array([1], pa.int64())}), f"{lake}/t")
    merge = io.merge_into(f"{lake}/t", source, "id").when_not_matched_insert_all("s.id = 8", exclude=["rate"])
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(ColumnTypeError, match=r"'s\.\"big\"' has type int64, and would be rounded to double"),
    ):
        merge.when_not_matched_insert({"id": "s.id", "big": "s.rate"}).execute()
    merge.when_not_matched_insert({"id": "s.id", "big": "s.rate::BIGINT"}).execute()
    assert rows_by_id(io, lake, "big") == {1: 1, 8: (1 << 53) + 1, 9: 2}


# Q2
def test_an_error_in_any_row_changes_nothing(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 2, 4], "qty": [1, 2, 3], "text": ["1", "2", "x"]})
    with assert_unchanged(lake), pytest.raises(MerganserError, match="Could not convert string 'x'"):
        merge.when_matched_update({"qty": "CAST(s.text AS INTEGER)"}).execute()
    with assert_unchanged(lake), pytest.raises(MerganserError, match="Could not convert string 'a'"):
        merge.when_not_matched_by_source_do_nothing("t.id IS NULL").when_matched_delete(
            "CAST(t.name AS INTEGER) = s.qty"
        ).execute()


# Q2
def test_an_expression_is_evaluated_only_where_its_clause_holds(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 8, 9], "text": ["x", "8", "z"]})
    merge = merge.when_matched_update({"qty": "CAST(s.text AS INTEGER)"}, where="s.text <> 'x'")
    merge = merge.when_not_matched_insert({"id": "s.id", "qty": "CAST(s.text AS INTEGER)"}, where="s.text = '8'")
    assert (merge.execute().inserted, rows_by_id(io, lake, "qty")[8]) == (1, 8)


# Q2
def test_a_required_column_stays_required(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    io.write_dataset(pa.table({"id": [1, 2], "v": [1, 2]}, schema=schema), path)
    source = pa.table({"id": [1, 7], "w": pa.array([None, None], pa.int64()), "op": ["U", "D"]})
    merge = io.merge_into(path, source, "id", batch_id="one")
    with assert_unchanged(lake), pytest.raises(ColumnValueError, match=r"'s\.w' is NULL for column 'v'"):
        merge.when_matched_update({"v": "s.w"}).execute()
    with assert_unchanged(lake), pytest.raises(ColumnValueError, match=r"NULL in column 'v'"):
        merge.when_not_matched_insert({"id": "s.id", "v": "s.w"}).execute()
    with assert_unchanged(lake), pytest.raises(ColumnValueError, match="lack 'v'"):
        merge.when_not_matched_insert({"id": "s.id"}).execute()
    # The row that would be NULL is not inserted.
    merge = merge.when_not_matched_insert({"id": "s.id", "v": "s.w"}, where="s.op = 'I'")
    assert merge.when_matched_update({"v": "coalesce(s.w, t.v + 1)"}).execute().updated == 1


# Q2
def test_functions_of_time_have_one_value_in_a_merge(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    stamp = pa.timestamp("us", "UTC")
    table = pa.table({"id": range(6), "at": pa.nulls(6, stamp), "day": pa.nulls(6, pa.date32())})
    io.write_dataset(table, path, max_rows_per_file=2)
    merge = io.merge_into(path, pa.table({"id": [0, 3, 7]}), "id", batch_id="one")
    merge = merge.when_matched_update({"at": "now()", "day": "current_date"})
    merge = merge.when_not_matched_insert({"id": "s.id", "at": "now()", "day": "today()"})
    merge.when_not_matched_by_source_update({"at": "now()", "day": "current_date"}).execute()
    found = load(io, path)
    assert len(set(found.column("at").to_pylist())) == len(set(found.column("day").to_pylist())) == 1
    assert found.column("at").null_count == 0


REFUSED = {
    "random() > 0.5": "another value at every call",
    "uuid() IS NULL": "another value at every call",
    "nextval('x') > 1": "another value at every call",
    "(SELECT max(qty) FROM t) > 1": "a subquery",
    "EXISTS (FROM '/etc/passwd')": "a subquery",
    "sum(t.qty) > 1": "not a function of one row",
    "row_number() OVER () > 1": "a window function",
    "read_text('/etc/passwd') IS NULL": "read_text",
    "getenv('HOME') = ''": "getenv",
    "1 = 1) OR (1 = 1": "is not",
    "true; DROP TABLE t": "is not",
    "true FROM range(3": "is not",
    "$1 = 1": "a parameter",
    "#1 = 1": "a column by position",
    "s.nothing = 1": "no such column",
    "qty = 1": "names no table",
    "x.qty = 1": "x",
    "": "must be a string of SQL",
}


# Q2 M11
@pytest.mark.parametrize("condition", REFUSED, ids=lambda text: text.partition("(")[0] or "empty")
def test_what_a_row_cannot_evaluate_by_itself_is_refused(io: DatasetIO, lake: str, condition: str) -> None:
    merge = begin(io, lake, {"id": [1], "qty": [1]}).when_matched_delete(condition)
    with assert_unchanged(lake), pytest.raises(MerganserError) as refused:
        merge.execute()
    assert REFUSED[condition] in str(refused.value)


# Q1
def test_impossible_clauses_are_refused(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1], "qty": [1]})
    with pytest.raises(InvalidArgumentError, match="needs a clause"):
        merge.execute()
    with pytest.raises(InvalidArgumentError, match="no row can reach it"):
        merge.when_matched_delete().when_matched_update({"qty": "1"}).execute()
    with pytest.raises(InvalidArgumentError, match="'nope', which the target lacks"):
        merge.when_matched_update({"nope": "1"}).execute()
    with pytest.raises(InvalidArgumentError, match="mapping of target columns"):
        merge.when_matched_update({})
    with pytest.raises(InvalidArgumentError, match="does not go with clauses"):
        io.merge_into(f"{lake}/t", pa.table({"id": [1]}), "id", update_columns=["qty"]).when_matched_delete().execute()
    with pytest.raises(TypeError, match="Did you mean retain"):
        io.merge_into(f"{lake}/t", pa.table({"id": [1]}), "id", retian=1).when_matched_delete().execute()  # type: ignore[call-arg]


# H4 Q1
def test_partition_columns_are_not_computed(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.write_dataset(pa.table({"day": ["a", "b"], "id": [1, 2], "v": [1, 2]}), path, partition_columns=["day"])
    merge = io.merge_into(path, pa.table({"id": [1, 3], "day": ["a", "c"], "v": [5, 6]}), "id", batch_id="one")
    with assert_unchanged(lake), pytest.raises(InvalidArgumentError, match="computes the partition column 'day'"):
        merge.when_matched_update({"day": "upper(s.day)"}).execute()
    with assert_unchanged(lake), pytest.raises(InvalidArgumentError, match="computes the partition column 'day'"):
        merge.when_not_matched_by_source_update({"day": "'x'"}).execute()
    merge = merge.when_matched_update({"v": "t.v + s.v"}).when_not_matched_insert()
    merge.when_not_matched_by_source_update({"v": "length(t.day)"}).execute()
    found = {row["id"]: (row["day"], row["v"]) for row in load(io, path).to_pylist()}
    assert found == {1: ("a", 6), 2: ("b", 1), 3: ("c", 6)}


# T4 Q1
def test_clauses_load_an_absent_target(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/new"
    source = pa.table({"id": [1, 2], "price": [Decimal("1.50"), None], "op": ["I", "D"]})
    merge = io.merge_into(path, source, "id", batch_id="one").when_matched_delete("s.op = 'D'")
    result = merge.when_not_matched_insert_all("s.op <> 'D'", exclude="op").execute()
    assert (result.inserted, load(io, path).to_pylist()) == (1, [{"id": 1, "price": Decimal("1.50")}])


# M5
def test_updates_that_change_nothing_are_skipped_if_asked(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 2], "qty": [10, 21]}, skip_unchanged=True)
    merge = merge.when_matched_update({"qty": "s.qty", "name": "lower(t.name)"})
    result = merge.when_not_matched_by_source_update({"qty": "coalesce(t.qty, 0)"}).execute()
    assert (result.updated, result.skipped) == (2, 1)
    assert rows_by_id(io, lake, "qty") == {1: 10, 2: 21, 3: 0, 4: 40, None: 50}


# M3
def test_late_rows_are_skipped_before_clauses_apply(io: DatasetIO, lake: str) -> None:
    source = {"id": [1, 2, 2], "seen": [dt.date(2026, 10, 1), dt.date(2026, 11, 8), dt.date(2026, 11, 9)]}
    merge = begin(io, lake, {**source, "qty": [1, 2, 3]}, sequence_column="seen")
    result = merge.when_matched_update({"qty": "t.qty + s.qty", "seen": "s.seen"}).execute()
    assert (result.updated, rows_by_id(io, lake, "qty")[2], rows_by_id(io, lake, "qty")[1]) == (1, 23, 10)


# P5
def test_a_plan_and_an_explanation_change_nothing(io: DatasetIO, lake: str) -> None:
    merge = begin(io, lake, {"id": [1, 9], "qty": [1, 9]}).when_matched_update({"qty": "t.qty + 1"}, where="s.qty < 5")
    merge = merge.when_not_matched_insert()
    with assert_unchanged(lake):
        plan, text = merge.plan(), merge.explain()
    assert (plan.inserted, plan.updated, plan.strategy) == (1, 1, "merge")
    clauses = ["WHEN MATCHED AND s.qty < 5 THEN UPDATE SET qty = t.qty + 1", "WHEN NOT MATCHED THEN INSERT BY NAME"]
    assert [line.strip() for line in text.splitlines()[1:3]] == clauses


# Q2
def test_columns_are_found_whatever_their_names(io: DatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    table = pa.table({"id": [1, 2], "a b": [1, 2], "select": ["x", "y"], "Größe": [1, 2], "名": [1, 2], 'q"': [1, 2]})
    io.write_dataset(table, path)
    values = {
        "a b": 't."a b" + s."A B"',
        "select": 's."select"',
        "Größe": "t.größe + 1",
        "名": "t.名 + 1",
        'q"': 't."q""" + 1',
    }
    io.merge_into(path, table, "id", batch_id="one").when_matched_update(values).execute()
    assert load(io, path).sort_by("id").to_pylist()[1] == {
        "id": 2,
        "a b": 4,
        "select": "y",
        "Größe": 3,
        "名": 3,
        'q"': 3,
    }
