"""Rows that changed since a commit: the difference of two states, whatever happened between them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.engines.test_snapshots import CHANGES, table, write_first
from tests.support import put

import merganser
from merganser.core.maintenance import changes as changes_module
from merganser.errors import (
    ColumnTypeError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
    NotRetainedError,
    TargetPathError,
)

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

Row = dict[str, Any]


def read_by_key(path: str, as_of: Any = None) -> dict[Any, Row]:
    return {row["id"]: row for row in merganser.read(path, as_of=as_of).to_pylist()}


def expect(before: dict[Any, Row], after: dict[Any, Row], names: list[str]) -> list[tuple[Any, ...]]:
    """Compare two states row by row: the key, the action, and the row before and after."""
    found: list[tuple[Any, ...]] = []
    for key in before.keys() | after.keys():
        old = None if key not in before else {name: before[key].get(name) for name in names}
        new = after.get(key)
        if old != new:
            action = "insert" if old is None else "delete" if new is None else "update"
            found.append((key, action, old, new))
    return sorted(found, key=repr)


def to_tuples(found: pa.Table) -> list[tuple[Any, ...]]:
    rows = []
    for row in found.to_pylist():
        action, old = row.pop("merge_action"), row.pop("merge_old")
        if action == "delete":
            assert [name for name, value in row.items() if value is not None] == ["id"]
        rows.append((row["id"], action, old, None if action == "delete" else row))
    return sorted(rows, key=repr)


# V7
def test_changes_are_the_difference_of_two_states(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_first(io, path)
    for number, change in enumerate(CHANGES, start=1):
        change(io, path)
        names = merganser.read(path).column_names
        for since in {1, min(number, 5), number}:
            try:
                before = read_by_key(path, since)
            except NotRetainedError:
                with pytest.raises(NotRetainedError):
                    merganser.changes(path, since)
                continue
            found = merganser.changes(path, since)
            assert to_tuples(found) == expect(before, read_by_key(path), names)
            assert found.column_names == [*names, "merge_action", "merge_old"]
    records = merganser.history(path)
    for same in (records[0].id, 0, records[0].committed_at):
        assert merganser.changes(path, same).num_rows == 0


# V7
def test_only_files_that_differ_are_read(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{lake}/t"
    io = merganser.PyArrowDatasetIO()
    write_first(io, path)
    io.merge(table([1], "b"), path, "update", "id", retain=1)
    original, seen = changes_module._choose_differing, list[str]()

    def choose(*states: Any) -> Any:
        chosen = original(*states)
        seen.extend(chosen.paths)
        return chosen

    monkeypatch.setattr(changes_module, "_choose_differing", choose)
    assert merganser.changes(path, 1).num_rows == 1
    assert sorted(name.partition("/")[0] for name in seen) == ["after", "before"]


# V7, K6
def test_keys_that_are_null_or_nan_are_matched(lake: str) -> None:
    path = f"{lake}/t"
    rows = pa.table({"id": [1.0, 2.0], "w": pa.array([None, 1], pa.int64()), "v": ["a", "a"]})
    merganser.write_dataset(rows, path)
    more = pa.table({"id": [math.nan, 0.0], "w": pa.array([None, 1], pa.int64()), "v": ["a", "a"]})
    merganser.write_dataset(more, path)
    merganser.compact(path, retain=1)
    assert merganser.changes(path, 1, ["id", "w"]).num_rows == 0
    newer = pa.table({"id": [-0.0], "w": [1], "v": ["b"]})
    merganser.merge(newer, path, "upsert", ["id", "w"], retain=2)
    (found,) = merganser.changes(path, 1).to_pylist()
    assert (found["merge_action"], found["merge_old"]["v"], found["v"]) == ("update", "a", "b")


# V7
def test_changes_on_an_object_store(lake: str) -> None:
    path = f"memory://{Path(lake).name}/t"
    io = merganser.PyArrowDatasetIO()
    write_first(io, path)
    for change in CHANGES[:3]:
        change(io, path)
    before = read_by_key(path, 3)
    assert to_tuples(merganser.changes(path, 3)) == expect(before, read_by_key(path), ["id", "v", "day"])


# V7
def test_what_has_no_keys_or_not_one_row_per_key_is_refused(lake: str) -> None:
    path = f"{lake}/t"
    merganser.write_dataset(table([1, 2], "a"), path)
    merganser.write_dataset(table([2, 2, 3], "a"), path)
    with pytest.raises(InvalidArgumentError, match=r"No commit to .*/t had key columns"):
        merganser.changes(path, 1)
    with pytest.raises(DuplicateKeyError, match=r"1 duplicate key, for example id=2.*Run dedupe"):
        merganser.changes(path, 1, "id")
    with pytest.raises(KeyColumnError, match="nope"):
        merganser.changes(path, 1, "nope")
    with pytest.raises(NotRetainedError):
        merganser.changes(path, 2)
    assert merganser.changes(path, 0, "id").num_rows == 0
    for since in (None, "yesterday"):
        with pytest.raises(InvalidArgumentError, match="is not a commit: give the id"):
            merganser.changes(path, since, "id")  # type: ignore[arg-type]


# V7
def test_a_column_with_a_name_of_the_changes_is_refused(lake: str) -> None:
    rows = pa.table({"id": [1], "merge_old": [1]})
    for _ in range(2):
        merganser.merge(rows, f"{lake}/t", key_columns="id", retain=1)
    with pytest.raises(InvalidArgumentError, match="'merge_old', a name that audits reserve"):
        merganser.changes(f"{lake}/t", 1)


# V7
def test_files_that_another_program_added_are_no_changes(lake: str) -> None:
    path = f"{lake}/t"
    merganser.merge(pa.table({"id": [1], "v": ["a"]}), path, key_columns="id", retain=1)
    merganser.merge(pa.table({"id": [1], "v": ["b"]}), path, key_columns="id", retain=1)
    put(f"{path}/g.parquet", pa.table({"id": [9], "v": ["z"]}))
    # The history does not know when they came.
    assert [row["id"] for row in merganser.changes(path, 1).to_pylist()] == [1]


# V7
def test_a_key_or_type_that_the_past_state_did_not_have_is_refused(lake: str) -> None:
    path = f"{lake}/t"
    merganser.merge(pa.table({"id": [1, 2], "v": ["a", "5"]}), path, key_columns="id", retain=9)
    merganser.alter(path, rename={"id": "k", "v": "w"}, retain=9)
    with pytest.raises(KeyColumnError, match="'k' did not exist as of 1, so rows"):
        merganser.changes(path, 1, "k")
    merganser.merge(pa.table({"k": [2], "w": ["b"]}), path, "full_merge", "k", retain=9)
    merganser.alter(path, drop=["w"], retain=9)
    merganser.alter(path, add={"w": "int64"}, retain=9)
    with pytest.raises(ColumnTypeError, match=r"'w' was string as of 2 and is int64 now.*since a later commit"):
        merganser.changes(path, 2)
    # A state without rows has no columns to miss.
    merganser.merge(pa.table({"k": [2]}), path, "delete", "k", retain=9)
    merganser.alter(path, rename={"k": "id"}, retain=9)
    merganser.merge(pa.table({"id": [3], "w": [1]}), path, key_columns="id", retain=9)
    assert [row["merge_action"] for row in merganser.changes(path, 2).to_pylist()] == ["insert"]


# V7
def test_columns_added_since_to_several_files_are_null_before(lake: str) -> None:
    path = f"{lake}/t"
    rows = {"id": list(range(6)), "day": list("aabbcc")}
    merganser.merge(rows, path, key_columns="id", partition_columns="day", retain=9)
    merganser.alter(path, add={"n": "int64", "s": pa.struct([pa.field("x", pa.int64(), nullable=False)])}, retain=9)
    merganser.merge(
        {"id": [0, 3], "n": [1, 2], "s": [{"x": 1}] * 2, "day": ["a", "b"]}, path, key_columns="id", retain=9
    )
    found = merganser.changes(path, 2).sort_by("id").to_pylist()
    assert [(row["id"], row["n"], row["s"], row["merge_old"]) for row in found] == [
        (0, 1, {"x": 1}, {"id": 0, "n": None, "s": None, "day": "a"}),
        (3, 2, {"x": 1}, {"id": 3, "n": None, "s": None, "day": "b"}),
    ]


# V7
def test_changes_from_and_to_a_state_without_files(lake: str) -> None:
    path = f"{lake}/t"
    merganser.merge({"id": [1, 2]}, path, key_columns="id", retain=9)
    merganser.undo(path)
    # There is no schema to list changes with.
    with pytest.raises(TargetPathError, match="no Parquet files"):
        merganser.changes(path, 0)
    merganser.merge({"id": [3]}, path, key_columns="id", retain=9)
    (found,) = merganser.changes(path, 1).to_pylist()
    assert (found["id"], found["merge_action"]) == (3, "insert")


# V7
def test_partitions_of_the_past_state_have_their_types_of_then(lake: str) -> None:
    path = f"{lake}/t"
    for day in (["1", "02"], [1, 2]):
        rows = pa.table({"id": [1, 2], "day": day})
        merganser.write_dataset(rows, path, "overwrite", partition_columns="day", retain=9)
    # "02" is another string than "2", but the same number.
    assert merganser.changes(path, 1, "id").num_rows == 0
    merganser.write_dataset(pa.table({"id": [1, 2], "day": ["x", "02"]}), path, "overwrite", retain=9)
    found = merganser.changes(path, 1, "id").sort_by("id").to_pylist()
    assert [(row["day"], row["merge_old"]["day"]) for row in found] == [("x", "1"), ("02", "2")]
    merganser.write_dataset(pa.table({"id": [1], "day": [1]}), path, "overwrite", retain=9)
    with pytest.raises(ColumnTypeError, match="'day' was string as of 1 and is int64 now"):
        merganser.changes(path, 1, "id")
