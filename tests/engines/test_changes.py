"""Changes: deletes, chosen columns, sequences, operations, unchanged rows, scopes, moves, and audits of whole rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import oracle
from tests.support import (
    assert_unchanged,
    list_data_files,
    load,
    open_dataset_io,
    put,
    read_rows,
    snapshot,
    snapshot_without_locks,
    to_plain_rows,
)

from merganser.errors import (
    ColumnValueError,
    DatasetMergeError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    MerganserError,
    PartitionMoveError,
    PartitionValueError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import AnyDatasetIO

    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.model.result import MergeResult

NAN, INFINITY = float("nan"), float("inf")


def pairs(ids: Sequence[int | None], values: Sequence[str | None]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})


def days(ids: Sequence[int], values: Sequence[str | None], day: Sequence[int | None]) -> pa.Table:
    """Rows to partition by day."""
    return pairs(ids, values).append_column("day", pa.array(day, pa.int64()))


def spread(io: AnyDatasetIO, path: str) -> None:
    """Write a dataset of three days, with two rows each, the third day being NULL."""
    table = days([1, 2, 3, 4, 5, 6], ["a", "b", "c", "d", "e", "f"], [1, 1, 2, 2, None, None])
    io.write_dataset(table, path, partition_columns="day")


def counts(result: MergeResult | MergePlan) -> tuple[int, int, int, int]:
    assert result.target_count_after == result.target_count_before + result.inserted - result.deleted
    return result.inserted, result.updated, result.deleted, result.skipped


def values(io: AnyDatasetIO, path: str, column: str = "v") -> dict[int, Any]:
    """Return one column of a dataset by its ids, which are unique."""
    found = [(row["id"], row[column]) for row in read_rows(io, path)]
    assert len(dict(found)) == len(found)
    return dict(found)


def places(io: AnyDatasetIO, path: str) -> list[tuple[int, str, int | None]]:
    return sorted(((row["id"], row["v"], row["day"]) for row in load(io, path).to_pylist()), key=repr)


def names(files: Sequence[str]) -> list[str]:
    return sorted(Path(file).name for file in files)


# -------------------- delete


# M1, T2, W3
def test_delete_needs_only_keys_and_removes_matched_rows(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, None, 3, 2, 2], ["a", "null", "c", "b", "b again"]))
    put(f"{path}/b.parquet", pairs([4, 5], ["d", "e"]))
    put(f"{path}/c.parquet", pairs([6], ["f"]))
    source = pa.table({"id": pa.array([5, 2, 4, 99], pa.int32())})
    plan = io.plan(source, path, "delete", "id")
    result = io.merge(source, path, "delete", "id", audit=True)
    assert counts(result) == counts(plan) == (0, 0, 4, 0)
    assert (names(result.rewritten_files), names(result.removed_files)) == (["a.parquet"], ["b.parquet"])
    assert (names(result.preserved_files), result.inserted_files) == (["c.parquet"], [])
    # Every row of a key goes, a NULL key matches nothing, and what stays keeps its order.
    assert pq.read_table(f"{path}/a.parquet").to_pylist() == pairs([1, None, 3], ["a", "null", "c"]).to_pylist()
    assert result.audit is not None
    assert sorted(result.audit.to_pylist(), key=str) == [{"id": key, "merge_action": "delete"} for key in (2, 2, 4, 5)]
    before = snapshot_without_locks(lake)
    assert counts(io.merge(source, path, "delete", "id")) == (0, 0, 0, 0)
    assert snapshot_without_locks(lake) == before


# M1, T4, W3
def test_delete_may_empty_a_dataset_and_does_nothing_to_an_empty_folder(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    Path(path).mkdir()
    assert counts(io.merge(pa.table({"id": [1]}), path, "delete", "id")) == (0, 0, 0, 0)
    assert list_data_files(path) == []
    put(f"{path}/a.parquet", pairs([1, 2], ["a", "b"]))
    put(f"{path}/b.parquet", pairs([3], ["c"]))
    result = io.merge(pa.table({"id": [1, 2, 3]}), path, "delete", "id")
    assert (counts(result), result.target_count_after) == ((0, 0, 3, 0), 0)
    assert list_data_files(path) == ["a.parquet"]
    assert load(io, path).schema.equals(pairs([], []).schema)


# M1, S2, K3
def test_delete_ignores_other_columns(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, 2], ["a", "b"]))
    odd = pa.table({"id": [1], "v": [[1.5]]})
    refused: list[tuple[pa.Table, type[Exception], str]] = [
        (odd.rename_columns(["id", "vv"]), SchemaMismatchError, "vv"),
        (pa.table({"v": ["a"]}), KeyColumnError, "id"),
        (pairs([1, None], ["a", "b"]), KeyColumnError, "NULL"),
    ]
    for source, error, message in refused:
        with assert_unchanged(path), pytest.raises(error, match=message):
            io.merge(source, path, "delete", "id")
    assert counts(io.merge(odd, path, "delete", "id")) == (0, 0, 1, 0)
    assert values(io, path) == {2: "b"}


# M1, H4
def test_delete_finds_a_key_in_whatever_partition(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    # The day of the source is ignored.
    source = pa.table({"id": [1, 4, 5, 6], "day": ["", None, "x", "y"]})
    result = io.merge(source, path, "delete", "id")
    assert (counts(result), len(result.removed_files)) == ((0, 0, 4, 0), 1)
    assert places(io, path) == [(2, "b", 1), (3, "c", 2)]
    assert counts(io.merge(pa.table({"id": [2, 3], "day": [1, 1]}), path, "delete", ["id", "day"])) == (0, 0, 1, 0)
    assert places(io, path) == [(3, "c", 2)]


# M1, H2
def test_a_source_without_partition_columns_does_not_set_their_types(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/day=1/a.parquet", pairs([1, 2], ["a", "b"]))
    assert counts(io.merge(pa.table({"id": [1]}), path, "delete", "id")) == (0, 0, 1, 0)
    io.merge(days([2, 3], ["B", "c"], [1, 7]), path, "upsert", "id")
    assert places(io, path) == [(2, "B", 1), (3, "c", 7)]


# -------------------- columns


# M2
def test_a_row_may_keep_its_values_where_the_source_has_null(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "n": [1, 2, None],
            "s": ["a", None, "c"],
            "l": [[1], [2], None],
            "t": pa.array(["x", "y", "z"]),
        }
    )
    table = table.set_column(4, "t", table.column("t").dictionary_encode())
    put(f"{lake}/t/a.parquet", table)
    source = pa.table({"id": [1, 2, 9], "n": [None, 5, None], "s": ["b", "b", None], "l": [None, [None], None]})
    source = source.append_column("t", pa.array([None, "q", None], pa.string())).cast(
        pa.schema(
            [("id", pa.int64()), ("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64())), ("t", pa.string())]
        )
    )
    result = io.merge(source, f"{lake}/t", key_columns="id", update_mode="non_null", skip_unchanged=True)
    found = {row.pop("id"): tuple(row.values()) for row in load(io, f"{lake}/t").to_pylist()}
    assert found == {
        1: (1, "b", [1], "x"),
        2: (5, "b", [None], "q"),
        3: (None, "c", None, "z"),
        9: (None, None, None, None),
    }
    assert (result.updated, result.inserted) == (2, 1)
    again = io.merge(source, f"{lake}/t", key_columns="id", update_mode="non_null", skip_unchanged=True)
    assert (again.updated, again.skipped, again.rewritten_files) == (0, 3, [])


# M2
def test_a_match_takes_some_columns_and_a_new_row_others(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    target = pa.table({"id": [1, 2], "name": ["Ada", "Bob"], "tags": [["a"], ["b"]], "seen": [10, 20]})
    put(f"{path}/a.parquet", target)
    source = pa.table({"seen": [21, 30], "name": ["Robert", "Cyd"], "id": [2, 3]})
    options: dict[str, Any] = {"update_columns": "seen", "insert_columns": ["name", "seen"]}
    assert counts(io.plan(source, path, "upsert", "id", **options)) == (1, 1, 0, 0)
    assert counts(io.merge(source, path, "upsert", "id", **options)) == (1, 1, 0, 0)
    assert read_rows(io, path) == [
        {"id": 1, "name": "Ada", "tags": ["a"], "seen": 10},
        {"id": 2, "name": "Bob", "tags": ["b"], "seen": 21},
        {"id": 3, "name": "Cyd", "tags": None, "seen": 30},
    ]
    assert load(io, path).schema.equals(target.schema)


# M2
@pytest.mark.parametrize(
    ("strategy", "after", "done"),
    [
        ("update", {1: ("a", 1.0), 2: ("b", 9.0)}, (0, 1, 0, 0)),
        ("upsert", {1: ("a", 1.0), 2: ("b", 9.0), 3: ("C", 8.0)}, (1, 1, 0, 0)),
        ("full_merge", {2: ("b", 9.0), 3: ("C", 8.0)}, (1, 1, 1, 0)),
        ("deduplicate", {1: ("a", 1.0), 2: ("b", 9.0), 3: ("C", 8.0)}, (1, 1, 0, 0)),
    ],
)
def test_every_strategy_that_replaces_may_replace_some_columns(
    io: AnyDatasetIO, lake: str, strategy: Any, after: dict[int, tuple[str, float]], done: tuple[int, ...]
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "v": ["a", "b"], "w": [1.0, 2.0]}))
    source = pa.table({"id": [2, 3], "v": ["B", "C"], "w": [9.0, 8.0]})
    # A new row takes every column, so only an update can do without one.
    source = source.drop_columns("v") if strategy == "update" else source
    assert counts(io.merge(source, path, strategy, "id", update_columns=["w"])) == done
    assert {row["id"]: (row["v"], row["w"]) for row in read_rows(io, path)} == after


# M2, K6
def test_a_key_keeps_its_spelling_unless_it_is_named(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [0.0, 1.0], "v": ["a", "b"]}))
    source = pa.table({"id": [-0.0], "v": ["A"]})
    io.merge(source, path, "upsert", "id", update_columns="v")
    assert [repr(key) for key in load(io, path)["id"].to_pylist()] == ["0.0", "1.0"]
    io.merge(source, path, "upsert", "id", update_columns=["id", "v"])
    assert [repr(key) for key in load(io, path)["id"].to_pylist()] == ["-0.0", "1.0"]


# M2
def test_an_insert_may_take_some_columns(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], "v": ["a"], "w": [1.0]}))
    source = pa.table({"id": [1, 2], "w": [7.0, 8.0], "v": [{"not": "asked"}] * 2})
    assert counts(io.merge(source, path, "insert", "id", insert_columns=["w"])) == (1, 0, 0, 0)
    assert read_rows(io, path) == [{"id": 1, "v": "a", "w": 1.0}, {"id": 2, "v": None, "w": 8.0}]


# M2, H4
def test_columns_without_the_partition_are_replaced_where_the_row_is(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    narrow = pairs([1, 4, 5, 9], ["A", "D", "E", "new"])
    assert counts(io.merge(narrow, path, "update", "id", update_columns="v")) == (0, 3, 0, 0)
    assert places(io, path)[:5] == [(1, "A", 1), (2, "b", 1), (3, "c", 2), (4, "D", 2), (5, "E", None)]
    # The day of a new row counts, that of a matched one does not.
    moved = days([1, 7], ["AA", "g"], [2, 2])
    assert counts(io.merge(moved, path, "upsert", "id", update_columns="v")) == (1, 1, 0, 0)
    assert {(1, "AA", 1), (7, "g", 2)} <= set(places(io, path))
    with assert_unchanged(path), pytest.raises(PartitionMoveError, match="id=1"):
        io.merge(moved, path, "upsert", "id", update_columns=["v", "day"])


# M2
@pytest.mark.parametrize(
    ("drop", "strategy", "options", "error", "message"),
    [
        ([], "upsert", {"update_columns": ["v", "nope"]}, InvalidArgumentError, "update_columns.*'nope'"),
        ([], "upsert", {"insert_columns": ["nope", "must", "day"]}, InvalidArgumentError, "insert_columns.*'nope'"),
        ([], "upsert", {"update_columns": ["v", "v"]}, InvalidArgumentError, "update_columns.*'v'"),
        ([], "upsert", {"update_columns": [7]}, InvalidArgumentError, "update_columns"),
        ([], "upsert", {"insert_columns": ["v", "must"]}, InvalidArgumentError, "'day'"),
        ([], "upsert", {"insert_columns": ["v", "day"]}, ColumnValueError, "'must'"),
        (["v"], "update", {"update_columns": "v"}, SchemaMismatchError, "v"),
        (["w"], "upsert", {"update_columns": "v"}, SchemaMismatchError, "w"),
        (["day"], "upsert", {"update_columns": "v"}, SchemaMismatchError, "day"),
        (["v"], "upsert", {"update_columns": "w", "insert_columns": ["v", "must", "day"]}, SchemaMismatchError, "v"),
    ],
)
def test_columns_that_cannot_be_taken_are_refused(
    lake: str, drop: list[str], strategy: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    fields = [pa.field("id", pa.int64()), ("v", pa.string()), ("w", pa.float64()), ("day", pa.int64())]
    schema = pa.schema([*fields, pa.field("must", pa.string(), nullable=False)])
    table = pa.table([[1, 2], ["a", "b"], [1.0, 2.0], [1, 2], ["x", "y"]], schema=schema)
    io.write_dataset(table, path, partition_columns="day")
    source = table.drop_columns(drop)
    with assert_unchanged(path), pytest.raises(error, match=message):
        io.merge(source, path, strategy, "id", **options)
    with pytest.raises(error, match=message):
        io.plan(source, path, strategy, "id", **options)


# -------------------- sequences

# Of each type a few values, from the lowest to the highest.
ORDERED: list[pa.Array] = [
    pa.array([None, -INFINITY, -1.5, 0.0, 2.0, INFINITY, NAN]),
    pa.array([None, -5, 0, 7, 1 << 40], pa.int64()),
    pa.array([None, "", "A", "a", "é", "東京"]),
    pa.array([None, Decimal("-1.50"), Decimal("0.00"), Decimal("10.25")], pa.decimal128(9, 2)),
    pa.array([None, dt.date(1969, 1, 1), dt.date(2025, 1, 1)]),
    pa.array([None, -1, 0, 10**15], pa.timestamp("us", "UTC")),
    pa.array([None, b"", b"\x00", b"\x7f", b"\xff"]),
    pa.array([None, False, True]),
]


# M3: one comparator, for a row of the source beside another and for a row of the source beside one of the target
@pytest.mark.parametrize("order", ORDERED, ids=lambda order: str(order.type))
def test_what_is_late_in_the_source_is_late_in_the_target(io: AnyDatasetIO, lake: str, order: pa.Array) -> None:
    both = list(product(range(len(order)), repeat=2))
    ids = list(range(len(both)))
    first = pa.table({"id": ids, "at": order.take(pa.array([one for one, _ in both])), "v": ["first"] * len(both)})
    second = pa.table({"id": ids, "at": order.take(pa.array([two for _, two in both])), "v": ["second"] * len(both)})
    io.merge(first, f"{lake}/apart", "upsert", "id")
    apart = io.merge(second, f"{lake}/apart", "upsert", "id", sequence_column="at")
    together = io.merge(pa.concat_tables([first, second]), f"{lake}/together", "upsert", "id", sequence_column="at")
    late = sum(two < one for one, two in both)
    assert counts(apart) == (0, len(both) - late, 0, late)
    assert (counts(together), together.source_count) == ((len(both), 0, 0, 0), 2 * len(both))
    winners = {number: "first" if two < one else "second" for number, (one, two) in enumerate(both)}
    assert values(io, f"{lake}/apart") == values(io, f"{lake}/together") == winners


# M3
@pytest.mark.parametrize(
    ("strategy", "after", "done"),
    [
        ("insert", {1: "a", 2: "b", 3: "c", 5: "E"}, (1, 0, 0, 0)),
        ("update", {1: "A", 2: "b", 3: "c"}, (0, 1, 0, 1)),
        ("upsert", {1: "A", 2: "b", 3: "c", 5: "E"}, (1, 1, 0, 1)),
        # The row that came late is not missing.
        ("full_merge", {1: "A", 2: "b", 5: "E"}, (1, 1, 1, 1)),
        ("deduplicate", {1: "A", 2: "b", 3: "c", 5: "E"}, (1, 1, 0, 1)),
        ("delete", {2: "b", 3: "c"}, (0, 0, 1, 1)),
    ],
)
def test_every_strategy_takes_a_sequence(
    io: AnyDatasetIO, lake: str, strategy: Any, after: dict[int, str], done: tuple[int, ...]
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2, 3], "at": [5, 5, 5], "v": ["a", "b", "c"]}))
    source = pa.table({"id": [5, 1, 2, 1, 5], "at": [2, 5, 4, 1, 1], "v": ["E", "A", "late", "older", "older"]})
    source = source.drop_columns("v") if strategy == "delete" else source
    plan = io.plan(source, path, strategy, "id", sequence_column="at")
    result = io.merge(source, path, strategy, "id", sequence_column="at", audit=True)
    assert counts(result) == counts(plan) == done
    assert values(io, path) == after
    # What was skipped is not in the audit.
    assert result.audit is not None
    assert len(result.audit) == sum(done[:3])


# M3, W1: a merge that comes late touches nothing
def test_batches_may_come_in_any_order(io: AnyDatasetIO, lake: str) -> None:
    batches = [
        pa.table({"id": [1, 2], "at": [1, 1], "v": ["a1", "b1"]}),
        pa.table({"id": [1, 3], "at": [2, 2], "v": ["a2", "c2"]}),
        pa.table({"id": [1, 2], "at": [3, 3], "v": ["a3", "b3"]}),
    ]
    path = f"{lake}/t"
    for batch in reversed(batches):
        io.merge(batch, path, "upsert", "id", sequence_column="at")
    assert values(io, path) == {1: "a3", 2: "b3", 3: "c2"}
    with assert_unchanged(path):
        assert counts(io.merge(batches[0], path, "upsert", "id", sequence_column="at")) == (0, 0, 0, 2)


# M3, H4
def test_a_late_row_is_not_a_partition_move(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    target = pa.table({"id": [1, 2], "at": [5, 5], "v": ["a", "b"], "day": [1, 1]})
    io.write_dataset(target, path, partition_columns="day")
    late = pa.table({"id": [1, 2], "at": [4, 5], "v": ["late", "B"], "day": [2, 1]})
    assert counts(io.merge(late, path, "upsert", "id", sequence_column="at")) == (0, 1, 0, 1)
    timely = late.set_column(1, "at", pa.array([5, 6]))
    with assert_unchanged(path), pytest.raises(PartitionMoveError, match="id=1"):
        io.merge(timely, path, "upsert", "id", sequence_column="at")
    # The day itself may be the sequence.
    assert counts(io.merge(late, path, "upsert", "id", sequence_column="day", on_partition_move="move")) == (0, 2, 0, 0)
    back = late.set_column(3, "day", pa.array([1, 1]))
    assert counts(io.merge(back, path, "upsert", "id", sequence_column="day")) == (0, 1, 0, 1)
    assert places(io, path) == [(1, "late", 2), (2, "B", 1)]


# M3, K9
def test_each_row_of_a_key_has_its_own_sequence(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 1, 1], "at": [1, 3, 2], "v": ["a", "b", "c"]}))
    source = pa.table({"id": [1], "at": [2], "v": ["new"]})
    assert counts(io.merge(source, path, "upsert", "id", sequence_column="at")) == (0, 2, 0, 1)
    assert load(io, path)["v"].to_pylist() == ["new", "b", "new"]


# -------------------- operations


def changed(ids: Sequence[int], texts: Sequence[str | None], operations: Sequence[Any]) -> pa.Table:
    return pairs(ids, texts).append_column("op", pa.array(operations))


# M4
def test_a_batch_of_changes_is_one_merge(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    first = changed([1, 2, 3, 9], ["a", "b", "c", None], ["r", "r", "c", "d"])
    # A first load stores every row but those that delete, and not the column.
    assert counts(io.merge(first, path, "upsert", "id", operation_column="op")) == (3, 0, 0, 0)
    assert load(io, path).schema.equals(pairs([], []).schema)
    batch = changed([1, 2, 4, 5, 6], ["A", None, "D", "E", None], ["u", "d", "c", "u", "d"])
    plan = io.plan(batch, path, "upsert", "id", operation_column="op")
    result = io.merge(batch, path, "upsert", "id", operation_column="op", audit=True)
    assert counts(result) == counts(plan) == (2, 1, 1, 0)
    assert values(io, path) == {1: "A", 3: "c", 4: "D", 5: "E"}
    assert result.audit is not None
    assert {row["id"]: row["merge_action"] for row in result.audit.to_pylist()} == {
        1: "update",
        2: "delete",
        4: "insert",
        5: "insert",
    }
    again = io.merge(batch, path, "upsert", "id", operation_column="op")
    assert counts(again) == (0, 3, 0, 0)
    assert values(io, path) == {1: "A", 3: "c", 4: "D", 5: "E"}


# M4
@pytest.mark.parametrize(
    ("given", "operations"),
    [
        (None, ["I", "U", "D"]),
        (None, ["insert", "update", "delete"]),
        ({"insert": "+I", "update": ["+U", "-U"], "delete": ("-D",)}, ["+I", "-U", "-D"]),
        ({"insert": 0, "update": [1, 2], "delete": 3}, [0, 2, 3]),
        # Where a value means a new or a changed row alike.
        ({"update": "set", "delete": "unset"}, ["set", "set", "unset"]),
    ],
    ids=str,
)
def test_operations_may_have_any_known_spelling(io: AnyDatasetIO, lake: str, given: Any, operations: list[Any]) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, 2], ["a", "b"]))
    options: dict[str, Any] = {"operation_column": "op", "operation_values": given}
    # Whether a row inserts or updates makes no difference.
    batch = changed([3, 1, 2], ["C", "A", "B"], operations)
    assert counts(io.merge(batch, path, "upsert", "id", **options)) == (1, 1, 1, 0)
    assert values(io, path) == {1: "A", 3: "C"}


# M4
@pytest.mark.parametrize(
    ("operations", "given", "shown"),
    [
        (["c", "x"], None, "'?x'?"),
        (["c", ""], None, "''|\"\""),
        (["c", None], None, "NULL|None"),
        (["Delete", "d"], None, "Delete"),
        # Given values replace the default ones.
        (["c", "-"], {"delete": "-"}, "'?c'?"),
        ([1, 7], {"insert": [1], "delete": [2]}, "7"),
    ],
)
def test_an_unknown_operation_is_refused(lake: str, operations: list[Any], given: Any, shown: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1], ["a"]))
    batch = changed([1, 2], ["A", "B"], operations)
    with assert_unchanged(path), pytest.raises(ColumnValueError, match=f"'op'.*({shown})|({shown}).*'op'"):
        io.merge(batch, path, "upsert", "id", operation_column="op", operation_values=given)


# M4
def test_an_unknown_operation_changes_nothing(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1], ["a"]))
    for operation in ("x", None):
        with assert_unchanged(path), pytest.raises(ColumnValueError, match="'op'"):
            io.merge(changed([1, 2], ["A", "B"], ["u", operation]), path, "upsert", "id", operation_column="op")


# M4, T2
@pytest.mark.parametrize(
    ("strategy", "after", "done"),
    [
        ("update", {1: "A"}, (0, 1, 1, 0)),
        ("upsert", {1: "A", 3: "C"}, (1, 1, 1, 0)),
        ("deduplicate", {1: "A", 3: "C"}, (1, 1, 1, 0)),
    ],
)
def test_rows_that_do_not_delete_do_what_the_strategy_does(
    io: AnyDatasetIO, lake: str, strategy: Any, after: dict[int, str], done: tuple[int, ...]
) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, 2], ["a", "b"]))
    batch = changed([1, 2, 3, 4], ["A", "B", "C", "D"], ["c", "d", "u", "d"])
    if strategy == "deduplicate":
        # The last row of a key decides what happens to it.
        batch = pa.concat_tables([changed([1, 2], [None, "no"], ["d", "u"]), batch])
    assert counts(io.merge(batch, path, strategy, "id", operation_column="op")) == done
    assert values(io, path) == after


# M4, H3, H4, S1
def test_a_row_that_deletes_needs_nothing_but_its_key(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False), ("day", pa.string())])
    target = pa.table([[1, 2, 3], ["a", "b", "c"], ["mon", "tue", None]], schema=schema)
    io.write_dataset(target, path, partition_columns="day")
    batch = pa.table(
        {
            "id": [1, 2, 3, 4, 5],
            "v": [None, None, "other", None, "new"],
            # The third value cannot be a folder name, and no row has the fourth.
            "day": [None, "wed", "", "thu", "mon"],
            "op": ["d", "d", "d", "d", "c"],
        }
    )
    result = io.merge(batch, path, "upsert", "id", operation_column="op")
    assert counts(result) == (1, 0, 3, 0)
    assert read_rows(io, path) == [{"id": 5, "v": "new", "day": "mon"}]
    assert {Path(name).parent.name for name in list_data_files(path)} == {"day=mon"}
    null = batch.set_column(3, "op", pa.array(["u", "d", "d", "d", "c"]))
    with assert_unchanged(path), pytest.raises(ColumnValueError, match="'v'"):
        io.merge(null, path, "upsert", "id", operation_column="op")
    no_key = batch.set_column(0, "id", pa.array([1, 2, 3, None, 5]))
    with assert_unchanged(path), pytest.raises(KeyColumnError, match="'id' in 1 row"):
        io.merge(no_key, path, "upsert", "id", operation_column="op")


# M4, M3
def test_changes_with_a_sequence_may_come_in_any_order(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2, 3], "at": [10, 10, 10], "v": ["a", "b", "c"]}))
    batch = pa.table(
        {
            "id": [1, 4, 1, 2, 5, 3, 4, 5],
            "at": [12, 13, 11, 9, 1, 10, 12, 2],
            "v": [None, "D", "A", None, "E", None, None, None],
            # 1: updated, then deleted; 4: deleted, then inserted again; 5: inserted, then deleted; 2: a late delete.
            "op": ["d", "c", "u", "d", "c", "d", "d", "d"],
        }
    )
    options: dict[str, Any] = {"operation_column": "op", "sequence_column": "at"}
    assert counts(io.plan(batch, path, "upsert", "id", **options)) == (1, 0, 2, 1)
    assert counts(io.merge(batch, path, "upsert", "id", **options)) == (1, 0, 2, 1)
    assert values(io, path) == {2: "b", 4: "D"}
    with assert_unchanged(path), pytest.raises(DuplicateKeyError, match="sequence_column"):
        io.merge(batch, path, "upsert", "id", operation_column="op")


# M4
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operation_column": "v"}, "'v'"),
        ({"operation_column": "id"}, "'id'"),
        ({"operation_column": "nope"}, "'nope'"),
        ({"operation_column": 7}, "operation_column"),
        ({"operation_column": "op", "operation_values": {"upsert": "u"}}, "upsert"),
        ({"operation_column": "op", "operation_values": ["c", "u", "d"]}, "operation_values"),
        ({"operation_values": {"delete": "x"}}, "operation_values|'op'"),
        # One value cannot mean two things.
        (
            {"operation_column": "op", "operation_values": {"update": ["u", "x"], "delete": "x"}},
            "each for one operation",
        ),
    ],
)
def test_invalid_operations_are_refused(lake: str, options: dict[str, Any], message: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1], ["a"]))
    with assert_unchanged(path), pytest.raises(ValueError, match=message):
        io.merge(changed([1, 2], ["A", "B"], ["u", "u"]), path, "upsert", "id", **options)


# -------------------- unchanged rows


# M5
@pytest.mark.parametrize("strategy", ["update", "upsert", "full_merge", "deduplicate"])
def test_an_existing_row_is_not_written(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, 2], ["a", "b"]))
    put(f"{path}/b.parquet", pairs([3, 4], ["c", "d"]))
    source = pairs([1, 2, 3, 4], ["a", "b", "C", "d"])
    plan = io.plan(source, path, strategy, "id", skip_unchanged=True)
    result = io.merge(source, path, strategy, "id", skip_unchanged=True, audit=True)
    assert counts(result) == counts(plan) == (0, 1, 0, 3)
    assert (names(result.rewritten_files), names(result.preserved_files)) == (["b.parquet"], ["a.parquet"])
    assert pq.read_table(f"{path}/b.parquet").to_pylist() == pairs([3, 4], ["C", "d"]).to_pylist()
    assert result.audit is not None
    assert result.audit.to_pylist() == [{"id": 3, "merge_action": "update"}]


# M5: dataset, journal, batches and history
@pytest.mark.parametrize("strategy", ["upsert", "full_merge", "deduplicate", "update"])
def test_a_replay_writes_no_byte(io: AnyDatasetIO, lake: str, strategy: Any) -> None:
    path = f"{lake}/t"
    io.write_dataset(days([1, 2, 3], ["a", "b", "c"], [1, 1, 2]), path, partition_columns="day")
    source = days([2, 3, 4], ["B", "c", "D"], [1, 2, 3])
    done = counts(io.merge(source, path, strategy, "id", skip_unchanged=True))
    assert done == (int(strategy != "update"), 1, int(strategy == "full_merge"), 1)
    before = snapshot_without_locks(lake)
    result = io.merge(source, path, strategy, "id", skip_unchanged=True, audit=f"{lake}/audit")
    assert (counts(result), result.audit_files) == ((0, 0, 0, 3 - (strategy == "update")), [])
    assert snapshot_without_locks(lake) == before


KINDS = {
    "text": pa.string(),
    "number": pa.float64(),
    "list": pa.list_(pa.float32()),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
    "map": pa.map_(pa.string(), pa.float64()),
    "deep": pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.int8()))])),
}
# Each is another value than every other of its column.
DIFFERENT: dict[str, list[Any]] = {
    "text": [None, "", "a", "A", "a ", "NULL"],
    "number": [None, NAN, 0.0, INFINITY, 1.0],
    "list": [None, [], [None], [NAN], [0.0], [0.0, 0.0], [1.0, 2.0], [2.0, 1.0]],
    "struct": [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": []}, {"a": 1, "b": [None]}],
    "map": [None, [], [("a", None)], [("a", NAN)], [("a", 0.0)], [("b", 0.0)], [("a", 0.0), ("b", 1.0)]],
    "deep": [None, [], [None], [{"x": None, "m": None}], [{"x": NAN, "m": []}], [{"x": NAN, "m": [("k", None)]}]],
}


# M5
@pytest.mark.parametrize("column", KINDS)
def test_equal_means_the_same_content(io: AnyDatasetIO, lake: str, column: str) -> None:
    pool = DIFFERENT[column]
    both = list(product(range(len(pool)), repeat=2))

    def table(side: int) -> pa.Table:
        cells = pa.array([pool[pair[side]] for pair in both], KINDS[column])
        return pa.table({"id": range(len(both)), column: cells})

    put(f"{lake}/t/a.parquet", table(0), row_group_size=7)
    result = io.merge(table(1), f"{lake}/t", "upsert", "id", skip_unchanged=True, audit=True)
    assert counts(result) == (0, len(both) - len(pool), 0, len(pool))
    assert result.audit is not None
    wanted = [number for number, (old, new) in enumerate(both) if old != new]
    assert sorted(result.audit["id"].to_pylist()) == wanted
    assert oracle.to_multiset(to_plain_rows(load(io, f"{lake}/t"))) == oracle.to_multiset(to_plain_rows(table(1)))


# M5, K6, S3: -0.0 equals 0.0 everywhere, and a narrower type, another unit or a dictionary is not a difference
def test_equal_values_in_another_form_are_unchanged(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    target = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "f": [0.0, NAN],
            "list": pa.array([[-0.0], [0.0, NAN]], pa.list_(pa.float64())),
            "map": pa.array([[("a", 0.0)], [("a", -0.0)]], pa.map_(pa.string(), pa.float64())),
            "at": pa.array([1_000_000, None], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "v": ["a", "b"],
        }
    )
    put(f"{path}/a.parquet", target)
    source = pa.table(
        {
            "v": pa.array(["a", "b"]).dictionary_encode(),
            "price": pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)),
            "at": pa.array([1000, None], pa.timestamp("ms", "UTC")),
            "map": pa.array([[("a", -0.0)], [("a", 0.0)]], pa.map_(pa.string(), pa.float64())),
            "list": pa.array([[0.0], [-0.0, NAN]], pa.list_(pa.float64())),
            "f": [-0.0, NAN],
            "id": pa.array([1, 2], pa.int16()),
        }
    )
    with assert_unchanged(path):
        assert counts(io.merge(source, path, "upsert", "id", skip_unchanged=True)) == (0, 0, 0, 2)


# M5, M2, M3, M4
def test_unchanged_rows_among_other_changes(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    table = {"id": [1, 2, 3, 4], "at": [5, 5, 5, 5], "v": ["a", "b", "c", "d"], "w": ["", "", "", ""]}
    put(f"{path}/a.parquet", pa.table(table))
    # 1 differs in a column that is not taken, 2 comes late, 3 is newer and else the same, 4 goes though it is the same.
    source = pa.table(
        {
            "id": [1, 2, 3, 4],
            "at": [5, 4, 6, 5],
            "v": ["a", "b", "c", "d"],
            "w": ["x", "x", "x", ""],
            "op": ["u", "u", "u", "d"],
        }
    )
    options: dict[str, Any] = {
        "sequence_column": "at",
        "operation_column": "op",
        "update_columns": ["v", "at"],
        "skip_unchanged": True,
    }
    assert counts(io.merge(source, path, "upsert", "id", **options)) == (0, 1, 1, 2)
    assert load(io, path).to_pylist() == [
        {"id": 1, "at": 5, "v": "a", "w": ""},
        {"id": 2, "at": 5, "v": "b", "w": ""},
        {"id": 3, "at": 6, "v": "c", "w": ""},
    ]


# M5, M2: a new load time is not a change
@pytest.mark.parametrize("named", ["v", ["v", "w"]], ids=["one", "two"])
def test_rows_that_are_equal_in_some_columns_are_unchanged(io: AnyDatasetIO, lake: str, named: Any) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1, 2], "v": ["a", None], "w": [1, 2], "seen": [5, 5]}))
    put(f"{path}/b.parquet", pa.table({"id": [3, 4], "v": ["c", "d"], "w": [3, 4], "seen": [5, 5]}))
    source = pa.table({"id": [1, 2, 3, 5], "v": ["a", None, "C", "e"], "w": [1, 2, 3, 5], "seen": [6, 6, 6, 6]})
    plan = io.plan(source, path, "upsert", "id", skip_unchanged=named)
    result = io.merge(source, path, "upsert", "id", skip_unchanged=named)
    assert counts(result) == counts(plan) == (1, 1, 0, 2)
    assert (names(result.rewritten_files), names(result.preserved_files)) == (["b.parquet"], ["a.parquet"])
    assert {row["id"]: (row["v"], row["seen"]) for row in read_rows(io, path)} == {
        1: ("a", 5),
        2: (None, 5),
        3: ("C", 6),
        4: ("d", 5),
        5: ("e", 6),
    }


# M5, W3
def test_missing_rows_go_from_a_file_where_nothing_else_changes(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1, 2, None], ["a", "b", "null"]))
    put(f"{path}/b.parquet", pairs([3], ["c"]))
    put(f"{path}/c.parquet", pairs([4], ["d"]))
    result = io.merge(pairs([2, 4], ["b", "d"]), path, "full_merge", "id", skip_unchanged=True)
    assert counts(result) == (0, 0, 3, 2)
    assert (names(result.rewritten_files), names(result.removed_files)) == (["a.parquet"], ["b.parquet"])
    assert (names(result.preserved_files), values(io, path)) == (["c.parquet"], {2: "b", 4: "d"})


# -------------------- scope


# M6
@pytest.mark.parametrize(
    ("scope", "source", "left"),
    [
        (1, days([2], ["B"], [1]), [(2, "B", 1), (3, "c", 2), (4, "d", 2), (5, "e", None), (6, "f", None)]),
        ([1, 2], days([2, 7], ["B", "g"], [1, 2]), [(2, "B", 1), (5, "e", None), (6, "f", None), (7, "g", 2)]),
        (None, days([5], ["E"], [None]), [(1, "a", 1), (2, "b", 1), (3, "c", 2), (4, "d", 2), (5, "E", None)]),
        ([None, 2], days([3], ["C"], [2]), [(1, "a", 1), (2, "b", 1), (3, "C", 2)]),
        # As in the folder's name, and a day that nothing is known of.
        (["1", 9], days([9], ["i"], [9]), [(3, "c", 2), (4, "d", 2), (5, "e", None), (6, "f", None), (9, "i", 9)]),
        # Nothing came: the day is empty.
        ("2", days([], [], []), [(1, "a", 1), (2, "b", 1), (5, "e", None), (6, "f", None)]),
    ],
    ids=["one", "several", "NULL", "NULL and one", "text", "no rows"],
)
def test_only_rows_in_scope_can_be_missing(
    io: AnyDatasetIO, lake: str, scope: Any, source: pa.Table, left: list[Any]
) -> None:
    path = f"{lake}/t"
    spread(io, path)
    plan = io.plan(source, path, "full_merge", "id", scope={"day": scope})
    result = io.merge(source, path, "full_merge", "id", scope={"day": scope})
    assert counts(result) == counts(plan)
    assert result.deleted == 6 + result.inserted - len(left)
    assert places(io, path) == left
    again = io.merge(source, path, "full_merge", "id", scope={"day": scope}, skip_unchanged=True)
    assert counts(again) == (0, 0, 0, len(source))


# M6, H2
def test_a_scope_of_several_columns_and_types(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    monday, tuesday = dt.date(2025, 1, 6), dt.date(2025, 1, 7)
    table = pa.table(
        {
            "id": [1, 2, 3, 4],
            "day": [monday, monday, tuesday, tuesday],
            "shop": ["a/b", "07", "a/b", "07"],
        }
    )
    io.write_dataset(table, path, partition_columns=["day", "shop"])
    none = table.slice(0, 0)
    scope: dict[str, Any] = {"shop": "a/b", "day": [monday, "2025-01-08"]}
    assert io.merge(none, path, "full_merge", "id", scope=scope).deleted == 1
    # "7" is another shop than "07".
    assert io.merge(none, path, "full_merge", "id", scope={"shop": ["7"]}).deleted == 0
    assert [row["id"] for row in read_rows(io, path)] == [2, 3, 4]
    assert io.merge(none, path, "full_merge", "id", scope={"day": "2025-01-07"}).deleted == 2
    assert [row["id"] for row in read_rows(io, path)] == [2]


# M6
@pytest.mark.parametrize("scope", [1, [1], [1, None]], ids=str)
def test_a_source_row_out_of_scope_is_refused(io: AnyDatasetIO, lake: str, scope: Any) -> None:
    path = f"{lake}/t"
    spread(io, path)
    source = days([1, 3], ["A", "C"], [1, 2])
    with assert_unchanged(path), pytest.raises(PartitionValueError, match="scope"):
        io.merge(source, path, "full_merge", "id", scope={"day": scope})
    with pytest.raises(PartitionValueError, match="scope"):
        io.plan(source, path, "full_merge", "id", scope={"day": scope})


# M6
@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ({"v": "a"}, "'v'"),
        ({"nope": 1}, "'nope'"),
        ({"day": "monday"}, "monday"),
        ({"day": [1, 1.5]}, "1.5"),
        ({}, "scope"),
        ({"day": []}, "scope"),
        ("day", "scope"),
        (["day"], "scope"),
    ],
    ids=str,
)
def test_an_invalid_scope_is_refused(lake: str, scope: Any, message: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    spread(io, path)
    with assert_unchanged(path), pytest.raises((ValueError, TypeError), match=message) as caught:
        io.merge(days([1], ["a"], [1]), path, "full_merge", "id", scope=scope)
    assert isinstance(caught.value, MerganserError)


# M6
def test_a_dataset_without_partitions_has_no_scope(lake: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    put(f"{path}/a.parquet", pairs([1], ["a"]))
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="'v'"):
        io.merge(pairs([1], ["a"]), path, "full_merge", "id", scope={"v": "a"})


# M6, H4, M8: rows outside are not missing, but they match
def test_a_key_that_is_out_of_scope_may_move_into_it(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    source = days([2, 3], ["b", "C"], [1, 1])
    with assert_unchanged(path), pytest.raises(PartitionMoveError, match="id=3"):
        io.merge(source, path, "full_merge", "id", scope={"day": 1})
    result = io.merge(source, path, "full_merge", "id", scope={"day": 1}, on_partition_move="move", skip_unchanged=True)
    assert counts(result) == (0, 1, 1, 1)
    assert places(io, path) == [(2, "b", 1), (3, "C", 1), (4, "d", 2), (5, "e", None), (6, "f", None)]


# -------------------- moves


# M8, W3
def test_a_row_moves_to_its_new_partition(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    # 1 stays, 2 moves to a new day, 3 and 4 leave their day without rows, 5 comes from NULL, 6 moves not though named.
    source = days([1, 2, 3, 4, 5, 6, 7], ["A", "B", "C", "D", "E", "F", "G"], [1, 3, 1, None, 1, None, 3])
    with assert_unchanged(path), pytest.raises(PartitionMoveError, match="on_partition_move"):
        io.merge(source, path, "upsert", "id")
    plan = io.plan(source, path, "upsert", "id", on_partition_move="move")
    result = io.merge(source, path, "upsert", "id", on_partition_move="move", audit=True)
    assert counts(result) == counts(plan) == (1, 6, 0, 0)
    assert places(io, path) == [
        (1, "A", 1),
        (2, "B", 3),
        (3, "C", 1),
        (4, "D", None),
        (5, "E", 1),
        (6, "F", None),
        (7, "G", 3),
    ]
    assert [Path(name).parent.name for name in result.removed_files] == ["day=2"]
    assert len(result.rewritten_files) == 2
    assert result.audit is not None
    assert {row["id"]: row["merge_action"] for row in result.audit.to_pylist()} == {
        **dict.fromkeys(range(1, 7), "update"),
        7: "insert",
    }
    assert counts(io.merge(source, path, "upsert", "id", skip_unchanged=True)) == (0, 0, 0, 7)


# M8, K9
def test_every_row_of_a_key_moves(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.write_dataset(days([1, 1, 1, 1, 2], ["a", "b", "c", "d", "e"], [1, 1, 2, 3, 1]), path, partition_columns="day")
    source = days([1], ["new"], [2])
    result = io.merge(source, path, "upsert", "id", on_partition_move="move")
    assert counts(result) == (0, 4, 0, 0)
    assert places(io, path) == [*[(1, "new", 2)] * 4, (2, "e", 1)]
    before = snapshot_without_locks(lake)
    again = io.merge(source, path, "upsert", "id", on_partition_move="move", skip_unchanged=True)
    assert counts(again) == (0, 0, 0, 4)
    assert snapshot_without_locks(lake) == before


# M8
@pytest.mark.parametrize(
    ("strategy", "left", "done"),
    [
        ("update", [(1, "A", 2), (2, "b", 1), (3, "c", 2), (4, "d", 2), (5, "e", None), (6, "f", None)], (0, 1, 0, 0)),
        ("full_merge", [(1, "A", 2), (9, "I", 1)], (1, 1, 5, 0)),
        (
            "deduplicate",
            [(1, "A", 2), (2, "b", 1), (3, "c", 2), (4, "d", 2), (5, "e", None), (6, "f", None), (9, "I", 1)],
            (1, 1, 0, 0),
        ),
    ],
)
def test_every_strategy_that_replaces_may_move(
    io: AnyDatasetIO, lake: str, strategy: Any, left: list[Any], done: tuple[int, ...]
) -> None:
    path = f"{lake}/t"
    spread(io, path)
    result = io.merge(days([1, 9], ["A", "I"], [2, 1]), path, strategy, "id", on_partition_move="move")
    assert (counts(result), places(io, path)) == (done, left)


# M8, W3
def test_a_dataset_may_move_as_a_whole(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    io.write_dataset(days([1, 2], ["a", "b"], [1, 2]), path, partition_columns="day")
    result = io.merge(days([1, 2], ["a", "b"], [2, 1]), path, "upsert", "id", on_partition_move="move")
    assert (counts(result), len(result.removed_files), result.rewritten_files) == ((0, 2, 0, 0), 2, [])
    assert places(io, path) == [(1, "a", 2), (2, "b", 1)]
    assert not set(result.removed_files) & {f"{path}/{name}" for name in list_data_files(path)}


# M8, M4
def test_a_delete_is_not_a_move(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    source = days([1, 3], ["A", None], [2, 1]).append_column("op", pa.array(["u", "d"]))
    options: dict[str, Any] = {"operation_column": "op", "on_partition_move": "move"}
    assert counts(io.merge(source, path, "upsert", "id", **options)) == (0, 1, 1, 0)
    assert places(io, path)[:3] == [(1, "A", 2), (2, "b", 1), (4, "d", 2)]


# -------------------- what does not go together

EVERY = ["insert", "update", "upsert", "full_merge", "deduplicate", "delete"]
APART: list[tuple[str, dict[str, Any], str]] = [
    *((strategy, {"skip_unchanged": True}, "skip_unchanged") for strategy in ("insert", "delete")),
    *((strategy, {"operation_column": "op"}, "operation_column") for strategy in ("insert", "full_merge", "delete")),
    *((strategy, {"scope": {"day": 1}}, "scope") for strategy in EVERY if strategy != "full_merge"),
    *((strategy, {"on_partition_move": "move"}, "on_partition_move") for strategy in ("insert", "delete")),
    ("upsert", {"on_partition_move": "move", "check_partition_moves": False}, "check_partition_moves"),
    ("upsert", {"on_partition_move": "move", "update_columns": ["v", "day"]}, "update_columns"),
    ("upsert", {"on_partition_move": "move", "insert_columns": ["v", "day"]}, "insert_columns"),
    ("upsert", {"on_partition_move": "allow"}, "on_partition_move"),
    ("deduplicate", {"sequence_column": "at", "dedup_order_by": "at"}, "dedup_order_by"),
    ("upsert", {"sequence_column": "id"}, "sequence_column"),
    ("upsert", {"sequence_column": "nope"}, "'nope'"),
    ("upsert", {"sequence_column": ["at"]}, "sequence_column"),
    ("upsert", {"sequence_column": "at", "update_columns": ["v"]}, "sequence_column|'at'"),
    ("upsert", {"sequence_column": "at", "insert_columns": ["v", "day"]}, "sequence_column|'at'"),
    ("upsert", {"audit": 3}, "audit"),
    ("upsert", {"update_columns": []}, "update_columns is empty"),
    ("upsert", {"insert_columns": []}, "insert_columns is empty"),
    ("upsert", {"skip_unchanged": "no"}, "skip_unchanged names 'no'"),
    ("upsert", {"skip_unchanged": 1}, "skip_unchanged must be"),
    ("upsert", {"skip_unchanged": []}, "skip_unchanged is empty"),
    ("upsert", {"skip_unchanged": ["id"]}, "skip_unchanged names 'id'"),
    ("upsert", {"skip_unchanged": ["v", "at"], "update_columns": ["v"]}, "skip_unchanged names 'at'"),
    ("insert", {"skip_unchanged": ["v"]}, "skip_unchanged does not go"),
    ("upsert", {"audit": ""}, "audit"),
]


# M1 M2 M3 M4 M5 M6 M8 R5
@pytest.mark.parametrize(("strategy", "options", "message"), APART, ids=str)
def test_options_that_do_not_go_together_are_refused(
    lake: str, strategy: Any, options: dict[str, Any], message: str
) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    table = days([1, 2], ["a", "b"], [1, 2]).append_column("at", pa.array([1, 2]))
    io.write_dataset(table, path, partition_columns="day")
    source = table.append_column("op", pa.array(["u", "u"])) if "operation_column" in options else table
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match=message):
        io.merge(source, path, strategy, "id", **options)
    if "audit" not in options:
        with pytest.raises(InvalidArgumentError, match=message):
            io.plan(source, path, strategy, "id", **options)


# M3
def test_a_sequence_has_an_order(lake: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    table = pa.table({"id": [1], "at": [[1, 2]]})
    put(f"{path}/a.parquet", table)
    with assert_unchanged(path), pytest.raises((TypeError, ValueError), match="'at'") as caught:
        io.merge(table, path, "upsert", "id", sequence_column="at")
    assert isinstance(caught.value, MerganserError)


# -------------------- audits


# R5, M4, M2
def test_an_audit_of_rows_holds_them_before_and_after(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    table = pa.table(
        {
            "v": ["a", "b", "c"],
            "id": pa.array([1, 2, 3], pa.int32()),
            "tags": [["x"], None, []],
            "day": pa.array([1, 1, 2], pa.int16()),
        }
    )
    io.write_dataset(table, path, partition_columns="day")
    batch = pa.table(
        {"id": [1, 2, 4], "v": ["A", None, "D"], "tags": [[], None, ["y"]], "day": [1, 1, 7], "op": ["u", "d", "c"]}
    )
    options: dict[str, Any] = {"operation_column": "op", "update_columns": "v"}
    result = io.merge(batch, path, "upsert", "id", audit="rows", **options)
    audit = result.audit
    assert audit is not None
    assert audit.schema.names == ["v", "id", "tags", "day", "merge_action", "merge_old"]
    assert [audit.schema.field(name).type for name in table.schema.names] == table.schema.types
    assert [(one.name, one.type) for one in audit.schema.field("merge_old").type] == [
        (one.name, one.type) for one in table.schema
    ]
    old = table.to_pylist()
    assert sorted(audit.to_pylist(), key=lambda row: row["id"]) == [
        {"v": "A", "id": 1, "tags": ["x"], "day": 1, "merge_action": "update", "merge_old": old[0]},
        {"v": None, "id": 2, "tags": None, "day": None, "merge_action": "delete", "merge_old": old[1]},
        {"v": "D", "id": 4, "tags": ["y"], "day": 7, "merge_action": "insert", "merge_old": None},
    ]
    assert result.audit_files == []


# R5, T4, M5
def test_an_audit_of_no_changes_has_no_rows(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    Path(path).mkdir()
    empty = io.merge(pairs([1], ["a"]), path, "update", "id", audit=f"{lake}/audit")
    assert (empty.audit, empty.audit_files) == (None, [])
    first = io.merge(pairs([1], ["a"]), path, "upsert", "id", audit="rows").audit
    assert first is not None
    assert first.to_pylist() == [{"id": 1, "v": "a", "merge_action": "insert", "merge_old": None}]
    none = io.merge(pairs([1], ["a"]), path, "upsert", "id", audit="rows", skip_unchanged=True).audit
    assert none is not None
    assert (none.schema, none.num_rows) == (first.schema, 0)
    before = snapshot_without_locks(lake)
    result = io.merge(pairs([1], ["a"]), path, "upsert", "id", audit=f"{lake}/audit", skip_unchanged=True)
    assert (result.audit, result.audit_files) == (None, [])
    assert snapshot_without_locks(lake) == before


# R5, M8, M3, M4: what an audit lists is what another dataset needs to become the same
def test_an_audit_in_files_can_be_merged_into_another_dataset(io: AnyDatasetIO, lake: str) -> None:
    path, copy, audit = f"{lake}/t", f"{lake}/copy", Path(lake) / "audit"
    steps: list[tuple[str, pa.Table, dict[str, Any]]] = [
        ("upsert", days([1, 2, 3, 4], ["a", "b", "c", "d"], [1, 1, 2, None]), {"partition_columns": "day"}),
        ("upsert", days([2, 3, 5], ["B", "c", "e"], [3, 2, 1]), {"on_partition_move": "move", "skip_unchanged": True}),
        ("delete", pa.table({"id": [1, 4]}), {}),
        ("full_merge", days([6, 5], ["f", None], [2, 1]), {"scope": {"day": [1, 2]}}),
    ]
    seen: set[str] = set()
    for strategy, source, options in steps:
        method: Any = strategy
        result = io.merge(source, path, method, "id", audit=audit, **options)
        assert result.audit is None
        assert seen < set(result.audit_files) | seen == {str(file) for file in audit.iterdir()}
        # No other file was touched.
        new = pa.concat_tables([pq.read_table(file) for file in result.audit_files])
        assert len(new) == result.inserted + result.updated + result.deleted
        seen |= set(result.audit_files)
        io.merge(
            new.drop_columns("merge_old"),
            copy,
            "upsert",
            "id",
            partition_columns="day",
            operation_column="merge_action",
            on_partition_move="move",
        )
        assert places(io, copy) == places(io, path)
    assert places(io, path) == [(2, "B", 3), (5, None, 1), (6, "f", 2)]


# R5, H1: partition columns are last on a first load too
def test_an_audit_of_rows_has_the_columns_as_the_dataset_has_them(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    source = days([1], ["a"], [1]).select(["day", "v", "id"])
    for _ in range(2):
        audit = io.merge(source, path, "upsert", "id", partition_columns="day", audit="rows").audit
        assert audit is not None
        assert audit.schema.names[:-2] == load(io, path).schema.names == ["v", "id", "day"]


# R5, C7
def test_a_refused_merge_leaves_no_audit(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    spread(io, path)
    with assert_unchanged(path), pytest.raises(DuplicateKeyError):
        io.merge(days([1, 1], ["A", "B"], [1, 1]), path, "upsert", "id", audit=f"{lake}/audit")
    with assert_unchanged(path), pytest.raises(PartitionMoveError):
        io.merge(days([1, 9], ["A", "B"], [2, 1]), path, "upsert", "id", audit=f"{lake}/audit")
    assert not snapshot(f"{lake}/audit")


# R5
@pytest.mark.parametrize("column", ["merge_action", "merge_old"])
def test_a_column_cannot_have_the_name_of_one_of_the_audit(lake: str, column: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    put(f"{path}/a.parquet", pa.table({"id": [1], column: ["a"]}))
    source = pa.table({"id": [1, 2], column: ["A", "B"]})
    for audit in ("rows", f"{lake}/audit"):
        with assert_unchanged(path), pytest.raises(InvalidArgumentError, match=column):
            io.merge(source, path, "upsert", "id", audit=audit)
    assert io.merge(source, path, "upsert", "id", audit=True).audit is not None


# -------------------- found cases


# M1, H2
def test_an_ignored_column_does_not_define_partitions(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/day=x/f.parquet", pa.table({"id": [1, 2], "v": [1, 2]}))
    io.merge(pa.table({"id": [1], "v": [7], "day": [3.5]}), f"{lake}/t", "update", "id", update_columns="v")
    io.merge(pa.table({"id": [2], "day": [3]}), f"{lake}/t", "delete", "id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": 7, "day": "x"}]


# M1, M4, M3, H4
def test_rows_of_a_file_without_a_known_partition_may_be_deleted_or_skipped(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/f.parquet", pa.table({"id": [1, 2], "v": [5, 5]}))
    put(f"{lake}/t/day=1/g.parquet", pa.table({"id": [3], "v": [5]}))
    source = pa.table({"id": [1, 2], "v": [9, 1], "day": ["1", "1"], "op": ["d", "u"]})
    done = io.merge(source, f"{lake}/t", "upsert", "id", operation_column="op", sequence_column="v")
    assert (done.deleted, done.skipped, done.target_count_after) == (1, 1, 2)
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError, match=r"t/f\.parquet holds matched keys"):
        io.merge(pa.table({"id": [2], "v": [9], "day": ["1"]}), f"{lake}/t", "upsert", "id")


# H4, H6
def test_a_path_with_only_some_partition_columns_takes_no_new_partition_values(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a=1/f.parquet", pa.table({"id": [1], "a": ["1"], "b": ["x"], "v": [1]}))
    put(f"{lake}/t/a=1/b=x/g.parquet", pa.table({"id": [2], "v": [1]}))
    source = pa.table({"id": [1], "a": ["2"], "b": ["y"], "v": [2]})
    with assert_unchanged(f"{lake}/t"), pytest.raises(PartitionMoveError, match="its path lacks some of a, b"):
        io.merge(source, f"{lake}/t", "upsert", "id")


# M2, W1
def test_rows_that_stay_keep_values_of_every_type(io: AnyDatasetIO, lake: str) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    there = pa.table({"id": [1, 2], "w": ["a", "b"], "s": pa.array([{"a": 1}, {"a": 2}], inner), "v": [1, 2]})
    io.merge(there, f"{lake}/t", "upsert", "id")
    source = pa.table({"id": [2, 3], "v": [5, 6]})
    options: dict[str, Any] = {"update_columns": "v", "insert_columns": "v", "audit": f"{lake}/feed"}
    io.merge(source, f"{lake}/t", "full_merge", "id", **options)
    assert read_rows(io, f"{lake}/t") == [
        {"id": 2, "w": "b", "s": {"a": 2}, "v": 5},
        {"id": 3, "w": None, "s": None, "v": 6},
    ]


# M2, S4
def test_views_are_kept_where_only_replaced_rows_stay(lake: str) -> None:
    io = open_dataset_io("arrow")
    io.merge(
        pa.table({"id": [1, 2], "w": pa.array(["a", "b"], pa.string_view()), "v": [1, 2]}), f"{lake}/t", "upsert", "id"
    )
    source = pa.table({"id": [2], "v": [5]})
    io.merge(source, f"{lake}/t", "full_merge", "id", update_columns="v", insert_columns="v")
    assert read_rows(io, f"{lake}/t") == [{"id": 2, "w": "b", "v": 5}]


# M1, S2: what is not needed is not looked at, not even by an engine that could not carry it
def test_columns_that_are_not_needed_may_have_any_type(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pa.table({"id": [1, 2], "at": [1, 2]}), f"{lake}/t", "upsert", "id")
    source = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))})
    assert io.merge(source, f"{lake}/t", "delete", "id").deleted == 1


# M1, H3
def test_a_delete_of_a_key_that_no_folder_could_hold_is_ignored(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pa.table({"id": [1], "day": ["a"]}), f"{lake}/t", "upsert", ["id", "day"], partition_columns="day")
    done = io.merge(pa.table({"id": [1, 2], "day": ["", "b"]}), f"{lake}/t", "delete", ["id", "day"])
    assert (done.deleted, done.target_count_after) == (0, 1)


# M3, S1
def test_a_delete_may_lack_the_sequence_that_the_target_requires(io: AnyDatasetIO, lake: str) -> None:
    fields = [pa.field("id", pa.int64()), pa.field("at", pa.int64(), nullable=False)]
    io.merge(pa.table({"id": [1], "at": [1]}, schema=pa.schema(fields)), f"{lake}/t", "upsert", "id")
    source = pa.table({"id": [1], "at": pa.array([None], pa.int64())})
    done = io.merge(source, f"{lake}/t", "delete", "id", sequence_column="at")
    assert (done.deleted, done.skipped) == (0, 1)


# M5, P5
def test_rows_of_nothing_but_keys_are_unchanged(io: AnyDatasetIO, lake: str) -> None:
    source = pa.table({"id": [1, 2]})
    io.merge(source, f"{lake}/t", "upsert", "id")
    assert io.plan(source, f"{lake}/t", "upsert", "id", skip_unchanged=True).skipped == 2
    assert io.merge(source, f"{lake}/t", "upsert", "id", skip_unchanged=True).skipped == 2


# M3
def test_a_missing_order_by_column_is_reported(lake: str) -> None:
    io, source = open_dataset_io("arrow"), pa.table({"id": [1], "at": [1]})
    with pytest.raises(InvalidArgumentError, match="'nosuch', which the source lacks"):
        io.merge(source, f"{lake}/t", "upsert", "id", sequence_column="nosuch")
    io.merge(pa.table({"id": [1], "v": [1]}), f"{lake}/t", "upsert", "id")
    with pytest.raises(InvalidArgumentError, match="'at', which the target lacks"):
        io.merge(source, f"{lake}/t", "upsert", "id", sequence_column="at")


# M6
def test_the_folder_of_null_is_a_scope(lake: str) -> None:
    io = open_dataset_io("arrow")
    io.merge(pa.table({"id": [1, 2], "day": [None, "a"]}), f"{lake}/t", "upsert", "id", partition_columns="day")
    none = pa.schema([("id", pa.int64()), ("day", pa.string())]).empty_table()
    done = io.merge(none, f"{lake}/t", "full_merge", "id", scope={"day": "__HIVE_DEFAULT_PARTITION__"})
    assert (done.deleted, read_rows(io, f"{lake}/t")) == (1, [{"id": 2, "day": "a"}])


# R5, C7
@pytest.mark.parametrize("where", ["t", "t/feed", ".t.merganser", ".t.merganser/feed", "", "file"])
def test_a_feed_has_a_folder_of_its_own(lake: str, where: str) -> None:
    io, source = open_dataset_io("arrow"), pa.table({"id": [1]})
    io.merge(source, f"{lake}/t", "upsert", "id")
    Path(lake, "file").touch()
    with assert_unchanged(f"{lake}/t"), pytest.raises(InvalidArgumentError, match="audit"):
        io.merge(source, f"{lake}/t", "upsert", "id", audit=f"{lake}/{where}")


# R5, C7
def test_a_feed_that_cannot_be_written_changes_nothing(lake: str) -> None:
    io, source = open_dataset_io("arrow"), pa.table({"id": [1]})
    io.merge(source, f"{lake}/t", "upsert", "id")
    Path(lake, "file").touch()
    with assert_unchanged(f"{lake}/t"), pytest.raises(DatasetMergeError, match="file"):
        io.merge(source, f"{lake}/t", "upsert", "id", audit=f"{lake}/file/feed")
    assert io.merge(source, f"{lake}/t", "upsert", "id").updated == 1


def test_an_unknown_option_is_refused_with_a_suggestion(io: AnyDatasetIO, lake: str) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(TypeError, match="Did you mean update_columns"):
        io.merge(pairs([1], ["a"]), f"{lake}/t", "upsert", "id", update_column="v")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'audit'"):
        io.plan(pairs([1], ["a"]), f"{lake}/t", "upsert", "id", audit=True)  # type: ignore[call-arg]
