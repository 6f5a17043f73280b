"""Changes that are staged side by side: the outcome is that of one after the other, in the order of their commits."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.support import list_data_files, load, open_dataset_io, put, snapshot

import merganser
from merganser.core.commit.commit import Session
from merganser.core.dataset import statistics_cache
from merganser.core.dataset.file_statistics import ReferenceFile
from merganser.core.merge import prepare
from merganser.core.merge.attempt import Stager
from merganser.core.storage.local import LocalStore
from merganser.errors import ConcurrentWriteError, DuplicateKeyError, LockTimeoutError, PartitionMoveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support import AnyDatasetIO

    from merganser.core.dataset.file_statistics import DataFile, FileSummary

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("day", pa.string())])
DAYS = ["mon", "tue", "wed"]
Rows = list[oracle.Row]


def rows(ids: Sequence[int], value: str, day: str | None = None) -> Rows:
    """Rows whose partition is that of their ids, or a given one."""
    return [{"id": key, "v": value, "day": day or DAYS[key // 10 % 3]} for key in ids]


def table(given: Rows) -> pa.Table:
    return pa.Table.from_pylist(given, SCHEMA)


@dataclass(frozen=True)
class Change:
    """One call: a strategy, or `append` or `overwrite`, or maintenance."""

    action: str
    rows: Rows = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, io: AnyDatasetIO, path: str) -> Any:
        """Make the change; an undo is that of a merge which it commits before."""
        if self.action in {"append", "overwrite"}:
            mode: Any = self.action
            return io.write_dataset(table(self.rows), path, mode, partition_columns="day", max_rows_per_file=4)
        if self.action == "compact":
            return merganser.compact(path, sort_by="id", row_group_size=4)
        if self.action == "undo":
            io.merge(table(self.rows), path, "upsert", "id", retain=1, on_partition_move="move")
            return merganser.undo(path)
        strategy: Any = self.action
        return io.merge(table(self.rows), path, strategy, "id", max_rows_per_file=4, **self.options)

    def expect(self, before: Rows) -> oracle.Outcome | None:
        """Say what a merge does to these rows; None for anything else."""
        if self.action not in oracle.STRATEGIES:
            return None
        scope = {name: [value] for name, value in self.options.get("scope", {}).items()}
        options = oracle.Options(SCHEMA.names, **(self.options | {"scope": scope}))
        return oracle.merge({"f": before}, self.rows, self.action, ["id"], ["day"], (), options)

    def apply(self, before: Rows) -> Rows:
        """Return the rows after this change."""
        if self.action in {"compact", "undo"}:
            return before
        if self.action in {"append", "overwrite"}:
            return [*(before if self.action == "append" else []), *self.rows]
        outcome = self.expect(before)
        assert outcome is not None
        return outcome.rows


def write_target(path: str, before: Rows) -> None:
    """Write two small files for each partition."""
    for day in DAYS:
        of_day = [{name: row[name] for name in ("id", "v")} for row in before if row["day"] == day]
        for number, part in enumerate((of_day[::2], of_day[1::2])):
            if part:
                schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("v")])
                put(f"{path}/day={day}/f{number}.parquet", pa.Table.from_pylist(part, schema), row_group_size=2)


@contextmanager
def between(run: Callable[[], object]) -> Iterator[list[str]]:
    """Run something after the next change is staged and before it is committed; yields how often that was staged."""
    original, seen = Stager.stage_early, list[str]()

    def stage_early(self: Stager[Any]) -> Any:
        if seen:
            # Another change, made in between.
            return original(self)
        stage = self._stage

        def count(source: Any, fitted: Any) -> Any:
            seen.append("staged")
            return stage(source, fitted)

        self._stage = count
        attempt = original(self)
        seen.append("between")
        run()
        return attempt

    with mock.patch.object(Stager, "stage_early", stage_early):
        yield seen


def check(io: AnyDatasetIO, path: str, before: Rows, other: Sequence[Change], own: Change) -> list[str]:
    """Make changes while another is staged, and compare with the serial order; returns when `own` was staged."""
    write_target(path, before)
    expected = before
    for change in other:
        expected = change.apply(expected)
    outcome, after, is_refused = None, expected, False
    try:
        outcome, after = own.expect(expected), own.apply(expected)
    except oracle.RefusedError:
        is_refused = True

    def run_others() -> None:
        # Their own staging is not to be interrupted.
        for change in other:
            change.run(io, path)

    result: Any = None
    with between(run_others) as seen:
        if is_refused:
            with pytest.raises(PartitionMoveError):
                own.run(io, path)
        else:
            try:
                result = own.run(io, path)
            except PartitionMoveError:
                assert "between" not in seen
    if "between" not in seen:
        # It was refused at once, so the others never began.
        assert result is None
        with pytest.raises(oracle.RefusedError):
            own.expect(before)
        after = before
    assert oracle.to_multiset(load(io, path).to_pylist()) == oracle.to_multiset(after)
    if outcome is not None and result is not None:
        counts = {"insert": result.inserted, "update": result.updated, "delete": result.deleted}
        assert counts == {name: outcome.count(name) for name in counts}
        assert (result.target_count_before, result.target_count_after) == (len(expected), len(after))
        listed = {*result.rewritten_files, *result.inserted_files, *result.preserved_files}
        assert listed == {f"{path}/{name}" for name in list_data_files(path)}
        assert sum(file.row_count for file in result.files) == len(after)
        changed = result.inserted + result.updated + result.deleted
        if changed:
            (newest, *_) = merganser.history(path)
            assert (newest.target_count_before, newest.target_count_after) == (len(expected), len(after))
    return seen


BEFORE = rows(range(24), "old")
MON = {"scope": {"day": "mon"}}
MOVE = {"on_partition_move": "move"}

# What others do, what is done beside it, and whether it has to be staged again.
CASES = {
    "other partitions": ([Change("upsert", rows([1, 2], "theirs"))], Change("upsert", rows([12, 13], "mine")), False),
    "new rows of both": ([Change("upsert", rows([101], "theirs"))], Change("upsert", rows([102], "mine")), False),
    "other files of a partition": ([Change("update", rows([0], "theirs"))], Change("update", rows([1], "mine")), False),
    "appends": ([Change("append", rows([0, 50], "theirs"))], Change("append", rows([0, 50], "mine")), False),
    "an append beside a merge": ([Change("full_merge", rows([5], "theirs"))], Change("append", rows([5], "m")), False),
    "no change": ([Change("upsert", rows([1], "theirs"))], Change("delete", rows([77], "mine")), False),
    "others delete what only they have": (
        [Change("delete", rows([1], ""))],
        Change("upsert", rows([22], "mine")),
        False,
    ),
    "a scope": ([Change("upsert", rows([12], "theirs"))], Change("full_merge", rows([1], "mine"), MON), False),
    "another scope": ([Change("upsert", rows([5], "theirs"))], Change("full_merge", rows([1], "mine"), MON), True),
    "one file": ([Change("update", rows([0], "theirs"))], Change("update", rows([2], "mine")), True),
    "one row": ([Change("update", rows([0], "theirs"))], Change("upsert", rows([0], "mine")), True),
    "one new key": ([Change("insert", rows([60], "theirs"))], Change("insert", rows([60, 61], "mine")), True),
    "one new key, replaced": ([Change("upsert", rows([60], "theirs"))], Change("upsert", rows([60], "mine")), True),
    "a key that others delete": ([Change("delete", rows([0], ""))], Change("update", rows([0], "mine")), True),
    "a key that is inserted again": ([Change("delete", rows([0], ""))], Change("insert", rows([0], "mine")), True),
    "a new row of a full merge": ([Change("insert", rows([60], "theirs"))], Change("full_merge", rows([1], "m")), True),
    "a row that others move": (
        [Change("upsert", rows([0], "theirs", "wed"), MOVE)],
        Change("upsert", rows([0], "mine", "tue"), MOVE),
        True,
    ),
    "a move that is refused": (
        [Change("upsert", rows([0], "theirs", "wed"), MOVE)],
        Change("upsert", rows([0], "mine"), {}),
        True,
    ),
    "everything deleted by others": (
        [Change("overwrite", rows([3], "theirs"))],
        Change("upsert", rows([1], "m")),
        True,
    ),
    "everything deleted here": ([Change("append", rows([99], "theirs"))], Change("full_merge", rows([], "")), True),
    "compaction": ([Change("compact")], Change("upsert", rows([1, 12], "mine")), True),
    "compaction of other rows": ([Change("compact")], Change("insert", rows([77], "mine")), False),
    "a file that is as it was": ([Change("undo", rows([0], "theirs"))], Change("upsert", rows([0], "mine")), True),
    "duplicates by an append": ([Change("append", rows([0], "theirs"))], Change("update", rows([0], "mine")), True),
}


# V1
@pytest.mark.parametrize("name", list(CASES))
def test_the_outcome_is_that_of_one_change_after_the_other(io: AnyDatasetIO, lake: str, name: str) -> None:
    other, own, is_staged_again = CASES[name]
    seen = check(io, f"{lake}/t", BEFORE, other, own)
    assert seen[:2] == ["staged", "between"], "it was staged without the lock, and others committed"
    assert ("staged" in seen[2:]) == is_staged_again


ACTIONS = [*oracle.STRATEGIES, "upsert", "append", "compact", "undo", "overwrite"]


def make_change(rnd: random.Random, *, is_own: bool) -> Change:
    """Make a change of a few keys; only a merge or an append is staged beside others."""
    action = rnd.choice([*oracle.STRATEGIES, "upsert", "append"] if is_own else ACTIONS)
    ids = rnd.sample(range(36), rnd.randint(1, 4))
    options: dict[str, Any] = {}
    if action in {"upsert", "update", "full_merge"} and rnd.random() < 0.4:
        options["on_partition_move"] = "move"
    if action == "full_merge" and rnd.random() < 0.7:
        day = rnd.choice(DAYS)
        return Change(action, rows(ids, f"r{rnd.random():.3f}", day), {"scope": {"day": day}, **options})
    if action in {"upsert", "update"} and rnd.random() < 0.3:
        options["skip_unchanged"] = True
    moved = rnd.choice(DAYS) if options.get("on_partition_move") and rnd.random() < 0.5 else None
    return Change(action, rows(ids, f"r{rnd.random():.3f}", moved), options)


# V1, C6
@pytest.mark.slow
def test_random_changes_have_a_serial_order(engine: str) -> None:
    count = 2 if engine.startswith("spark") else 50
    io = open_dataset_io(engine)

    def check_seed(seed: int) -> None:
        rnd = random.Random(seed)
        before = rows(rnd.sample(range(30), rnd.randint(5, 20)), "old")
        other = [make_change(rnd, is_own=False) for _ in range(rnd.randint(1, 3))]
        # Rows move only where that is asked for; whether others' moves are refused is tested elsewhere.
        other = [Change(one.action, one.rows, one.options | MOVE) if one.action in MOVING else one for one in other]
        # With the cache of statistics, and without.
        fewest = mock.patch.object(statistics_cache, "MIN_FILES", rnd.choice([2, statistics_cache.MIN_FILES]))
        with tempfile.TemporaryDirectory() as lake, fewest:
            check(io, f"{lake}/t", before, other, make_change(rnd, is_own=True))

    settings(max_examples=count)(given(seed=st.integers(0, 1 << 32))(check_seed))()


MOVING = {"upsert", "update", "full_merge", "deduplicate"}


# V1
def test_files_that_others_left_alone_are_not_read_again_under_the_lock(lake: str) -> None:
    # The first file, with which others are compared, is one that changes.
    write_target(path := f"{lake}/t", BEFORE)
    io, read = open_dataset_io("arrow"), list[str]()
    settle, summarise = Stager.settle, ReferenceFile.summarise

    def note(self: ReferenceFile, file: DataFile) -> FileSummary:
        read.append(file.rel)
        return summarise(self, file)

    def settle_noted(self: Stager[Any], attempt: Any) -> Any:
        with mock.patch.object(ReferenceFile, "summarise", note):
            return settle(self, attempt)

    others = between(lambda: io.merge(table(rows([0], "theirs")), path, "update", "id"))
    with others, mock.patch.object(Stager, "settle", settle_noted):
        io.merge(table(rows([12], "mine")), path, "upsert", "id")
    assert read == ["day=mon/f0.parquet"]


# V1
def test_statistics_are_saved_although_others_replaced_all_files_that_had_some(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_cache, "MIN_FILES", 2)
    write_target(path := f"{lake}/t", BEFORE)
    for name in list_data_files(path):
        os.utime(f"{path}/{name}", (1.7e9, 1.7e9))
    everything = [row["id"] for row in BEFORE]
    with between(lambda: io.merge(table(rows(everything, "theirs")), path, "update", "id")):
        io.merge(table(rows([101], "mine")), path, "upsert", "id")
    assert io.merge(table(rows([0, 101], "again")), path, "upsert", "id").updated == 2


# V1
def test_a_batch_that_another_writer_commits_meanwhile_is_not_merged_again(io: AnyDatasetIO, lake: str) -> None:
    path, batch = f"{lake}/t", table(rows([0, 60], "once"))
    write_target(path, BEFORE)
    with between(lambda: io.merge(batch, path, "upsert", "id", batch_id="monday")):
        result = io.merge(batch, path, "upsert", "id", batch_id="monday")
    assert result.replayed
    assert [record.batch_id for record in merganser.history(path)] == ["monday"]


# V1
def test_a_schema_that_another_writer_changes_meanwhile_is_refused(io: AnyDatasetIO, lake: str) -> None:
    path, after = f"{lake}/t", dict[str, bytes]()
    write_target(path, BEFORE)

    def alter() -> None:
        merganser.alter(path, rename={"v": "w"})
        after.update(snapshot(path))

    # Files in which a column was renamed have other names.
    with between(alter), pytest.raises((ConcurrentWriteError, merganser.core.SchemaMismatchError)):
        io.merge(table(rows([0], "mine")), path, "upsert", "id")
    assert snapshot(path) == after


# V1
def test_an_error_of_the_source_is_raised_without_the_lock(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_target(path, BEFORE)
    locked = mock.patch.object(Session, "lock", side_effect=LockTimeoutError("the lock was taken"))
    with locked, pytest.raises(DuplicateKeyError):
        io.merge(table(rows([1, 1], "mine")), path, "upsert", "id")


# V1
def test_a_reader_of_rows_is_read_once_although_the_merge_is_staged_again(lake: str) -> None:
    path, batch = f"{lake}/t", table(rows([0, 60], "mine"))
    write_target(path, BEFORE)
    for engine in ("duckdb", "arrow"):
        io = open_dataset_io(engine)
        with between(lambda: merganser.merge(table(rows([0], "theirs")), path, key_columns="id")) as seen:
            result = io.merge(batch.to_reader(), path, "upsert", "id")
        assert seen == ["staged", "between", "staged"]
        assert result.source_count == 2
        assert {row["v"] for row in load(io, path).to_pylist() if row["id"] in {0, 60}} == {"mine"}


# V1
def test_files_that_vanish_while_they_are_read_do_not_fail_a_merge(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    write_target(path, BEFORE)
    original, done = Stager._conform, list[int]()

    def conform(self: Stager[Any], fitted: Any) -> Any:
        source = original(self, fitted)
        if not done:
            done.append(1)
            merganser.compact(path, sort_by="id")
        return source

    with mock.patch.object(Stager, "_conform", conform):
        io.merge(table(rows([0, 11], "mine")), path, "upsert", "id")
    expected = oracle.merge({"f": BEFORE}, rows([0, 11], "mine"), "upsert", ["id"], ["day"]).rows
    assert oracle.to_multiset(load(io, path).to_pylist()) == oracle.to_multiset(expected)


# V1
def test_a_half_published_commit_of_a_writer_that_stalls_is_waited_for(lake: str) -> None:
    path, io, done = f"{lake}/t", merganser.PyArrowDatasetIO(), list[str]()
    write_target(path, BEFORE)
    original = LocalStore.replace

    def replace(self: LocalStore, source: str, target: str) -> None:
        original(self, source, target)
        if target.startswith(f"{path}/day=tue/") and not done:
            done.append(target)
            # For now, the row is in two partitions.
            with pytest.raises(LockTimeoutError, match="held by"):
                io.merge(table(rows([0], "mine", "tue")), path, "upsert", "id", lock_timeout=0.1)

    with mock.patch.object(LocalStore, "replace", replace):
        io.merge(table(rows([0], "theirs", "tue")), path, "upsert", "id", on_partition_move="move")
    assert done
    io.merge(table(rows([0], "mine", "tue")), path, "upsert", "id")
    assert [row for row in load(io, path).to_pylist() if row["id"] == 0] == rows([0], "mine", "tue")


# V1
def test_a_file_that_an_undo_gave_back_is_read_again(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Between listing and undo, its statistics are those of another file of that path.
    path, io = f"{lake}/t", merganser.PyArrowDatasetIO()
    for number, ids in enumerate(([0, 1], [10, 11, 12])):
        put(f"{path}/f{number}.parquet", pa.table({"id": ids, "v": ["old"] * len(ids)}))
    original, done = statistics_cache.summarise_files, list[str]()

    def summarise_files(*given: Any, **options: Any) -> Any:
        if done:
            return original(*given, **options)
        done.append("changed")
        merganser.merge({"id": [10]}, path, "delete", "id", retain=1)
        found = original(*given, **options)
        merganser.undo(path)
        return found

    monkeypatch.setattr(prepare, "summarise_files", summarise_files)
    result = io.merge({"id": [10], "v": ["mine"]}, path, "upsert", "id")
    assert (result.inserted, result.updated) == (0, 1)
    found = {row["id"]: row["v"] for row in load(io, path).to_pylist()}
    assert found == {0: "old", 1: "old", 10: "mine", 11: "old", 12: "old"}
    assert load(io, path).num_rows == len(found)
