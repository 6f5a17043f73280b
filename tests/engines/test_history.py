"""The history of commits, what they retain, and undo and vacuum (M9)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import pyarrow as pa
import pytest
from tests.support import assert_unchanged, load, open_dataset_io, put, read_rows, snapshot

import merganser
from merganser import history, recover, undo, vacuum
from merganser.core.commit import commit
from merganser.core.commit.history import make_record_id
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.errors import (
    ConcurrentWriteError,
    DatasetMergeError,
    InvalidArgumentError,
    StagingError,
    UndoError,
    UnreadableFileError,
)

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


def table(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.string())})


def broken(*_: Any) -> None:
    message = "the disk is gone"
    raise OSError(message)


@pytest.fixture
def path(lake: str) -> str:
    """A dataset of three files of three rows, last changed long ago."""
    for number in range(3):
        file = put(f"{lake}/t/f{number}.parquet", table([10 * number + row for row in range(3)], "old"))
        os.utime(file, ns=(number, 10**18 + number))
    return f"{lake}/t"


@pytest.fixture
def control(lake: str) -> Path:
    """The control folder of that dataset."""
    return Path(lake, ".t.merganser")


def read_control_files(control: Path) -> dict[str, bytes]:
    """Everything in the control folder but the lock."""
    return {name: data for name, data in snapshot(str(control)).items() if name != "lock"}


def kept(control: Path) -> list[str]:
    """The commits of which files are retained, the oldest first."""
    return sorted(folder.name for folder in control.glob("retained/*"))


def state(path: str) -> dict[str, tuple[bytes, int, int]]:
    """Every data file with its bytes, the time of its last change, and its mode."""
    found = {}
    for name, data in snapshot(path).items():
        status = os.stat(f"{path}/{name}")
        found[name] = (data, status.st_mtime_ns, stat.S_IMODE(status.st_mode))
    return found


# Records.


# M9
def test_a_record_has_the_options_and_the_result(io: AnyDatasetIO, path: str, control: Path) -> None:
    before = datetime.now(UTC)
    result = io.merge(table([0, 10, 99], "new"), path, "full_merge", "id", batch_id="b", compression="zstd", retain=2)
    (record,) = history(path)
    assert before <= record.committed_at <= datetime.now(UTC)
    assert 0 < record.duration < 60
    assert (record.operation, record.strategy, record.mode, record.key_columns) == ("merge", "full_merge", None, ["id"])
    assert record.options == {"compression": "zstd", "retain": 2}
    assert record.batch_id == "b"
    assert record.engine in {"arrow", "duckdb", "spark"}
    assert (record.source_count, record.target_count_before, record.target_count_after) == (3, 9, 3)
    assert (record.inserted, record.updated, record.deleted, record.skipped) == (1, 2, 7, 0)
    assert [(file.path, file.operation, file.rows_before, file.rows) for file in record.files] == [
        ("f0.parquet", "rewritten", 3, 1),
        ("f1.parquet", "rewritten", 3, 1),
        (os.path.basename(result.inserted_files[0]), "inserted", None, 1),
        ("f2.parquet", "removed", 3, None),
    ]
    for file in record.files[:3]:
        found = os.stat(f"{path}/{file.path}")
        assert (file.size, file.modified) == (found.st_size, found.st_mtime_ns)
    (text,) = (control / "history").iterdir()
    assert text.name == f"{record.committed_at:%Y%m%dT%H%M%S.%fZ}-{record.id[-8:]}.json"
    found = json.loads(text.read_text("utf-8"))
    assert (found["version"], found["id"], found["deleted"]) == (1, text.stem, 7)
    assert datetime.fromisoformat(found["committed_at"]) == record.committed_at
    assert len(text.read_text("utf-8").splitlines()) > 20


# M9
def test_every_commit_has_a_record_and_the_newest_comes_first(io: AnyDatasetIO, path: str) -> None:
    io.merge(table([0, 50], "new"), path, key_columns="id")
    io.write_dataset(table([60, 61], "new"), path)
    io.write_dataset(table([70], "new"), path, "overwrite")
    overwrite, append, merge = history(path)
    assert (merge.operation, merge.strategy, merge.inserted, merge.updated) == ("merge", "upsert", 1, 1)
    assert (append.operation, append.mode, append.strategy, append.source_count) == ("write_dataset", "append", None, 2)
    assert (append.target_count_before, append.target_count_after, append.deleted) == (10, 12, 0)
    assert [file.operation for file in append.files] == ["inserted"]
    # An overwrite never counts the rows that it removes.
    assert (overwrite.mode, overwrite.target_count_before, overwrite.target_count_after) == ("overwrite", None, 1)
    assert (overwrite.inserted, overwrite.deleted) == (1, None)
    assert [file.operation for file in overwrite.files] == ["inserted", *["removed"] * 5]
    assert all(file.size_before and file.rows_before is None for file in overwrite.files[1:])
    assert overwrite.id > append.id > merge.id


# M9
def test_a_change_that_fails_or_changes_nothing_leaves_no_record(io: AnyDatasetIO, path: str, control: Path) -> None:
    io.merge(table([0], "new"), path, key_columns="id", retain=1)
    before = read_control_files(control)
    with assert_unchanged(path), pytest.raises(DatasetMergeError):
        io.merge(table([1, 1], "twice"), path, key_columns="id", retain=1)
    with assert_unchanged(path):
        io.merge(table([99], "unknown"), path, "update", "id", retain=1)
    assert read_control_files(control) == before
    assert len(history(path)) == 1


# M9, M7
def test_a_batch_is_recorded_once(io: AnyDatasetIO, path: str, control: Path) -> None:
    io.merge(table([0], "new"), path, key_columns="id", batch_id="a", retain=1)
    before = read_control_files(control)
    with assert_unchanged(path):
        assert io.merge(table([0], "new"), path, key_columns="id", batch_id="a", retain=1).replayed
    assert read_control_files(control) == before
    io.merge(table([99], "unknown"), path, "update", "id", batch_id="nothing")
    record = history(path)[0]
    assert (record.batch_id, record.files, record.updated) == ("nothing", [], 0)


# M9
def test_a_dataset_without_commits_has_no_history(path: str, lake: str) -> None:
    assert history(path) == history(f"{lake}/absent") == []
    assert os.listdir(lake) == ["t"]


# M9
@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": [{"nosuch": 1}]}'])
def test_a_damaged_record_is_named_with_the_remedy(text: str, path: str, control: Path) -> None:
    open_dataset_io("arrow").merge(table([0], "new"), path, key_columns="id", retain=1)
    (record,) = (control / "history").iterdir()
    record.write_text(text)
    with pytest.raises(UnreadableFileError, match=rf"{record.name} is damaged: .*remove it"):
        history(path)
    with assert_unchanged(path), pytest.raises(UnreadableFileError, match=record.name):
        undo(path)
    record.write_text('{"version": 99}')
    with pytest.raises(UnreadableFileError, match=f"{record.name} was written by another version"):
        history(path)


# M9
def test_records_sort_by_commit_even_if_the_clock_went_back(path: str, control: Path) -> None:
    io = open_dataset_io("arrow")
    io.merge(table([0], "new"), path, key_columns="id")
    (first,) = history(path)
    for now in (first.committed_at, first.committed_at - timedelta(days=400)):
        later = make_record_id(LocalStore(), str(control), now)
        assert later > first.id
    (control / "history" / "notes.json").write_text("mine")
    (control / "history" / f"{first.id}.json.0123.new").write_text("{")
    ahead = f"{first.committed_at + timedelta(days=1):%Y%m%dT%H%M%S.%fZ}-00000000"
    (control / "history" / f"{first.id}.json").rename(control / "history" / f"{ahead}.json")
    io.merge(table([0], "newer"), path, key_columns="id")
    assert len(history(path)) == 2
    assert history(path)[0].id > ahead


# Undo.


# M9
def test_undo_restores_every_byte(io: AnyDatasetIO, path: str, control: Path) -> None:
    os.chmod(f"{path}/f0.parquet", 0o640)
    before = state(path)
    io.merge(table([0, 10, 98, 99], "new"), path, key_columns="id", retain=1, max_rows_per_file=1)
    assert state(path) != before
    merged = history(path)[0]
    assert undo(path) == merged
    assert state(path) == before
    assert (kept(control), list(control.glob(".staging_*"))) == ([], [])
    record = history(path)[0]
    assert (record.operation, record.undoes, record.engine) == ("undo", merged.id, None)
    assert (record.inserted, record.updated, record.deleted) == (0, 2, 2)
    assert [(file.operation, file.rows_before, file.rows) for file in record.files] == [
        *[("rewritten", 3, 3)] * 2,
        *[("removed", 1, None)] * 2,
    ]
    assert io.merge(table([0], "again"), path, key_columns="id").target_count_before == 9


# M9
def test_undo_restores_removed_files(io: AnyDatasetIO, path: str) -> None:
    before = state(path)
    result = io.merge(table([0, 99], "new"), path, "full_merge", "id", retain=1)
    assert len(result.removed_files) == 2
    undo(path)
    assert state(path) == before


# M9
@pytest.mark.parametrize("partition", [None, "v"])
def test_a_first_load_needs_nothing_retained(io: AnyDatasetIO, lake: str, partition: str | None) -> None:
    path = f"{lake}/t"
    io.merge(table([1, 2], "a"), path, key_columns="id", partition_columns=partition)
    undo(path)
    assert snapshot(path) == {}
    other = pa.table({"id": [1], "v": [7]})
    io.merge(other, path, key_columns="id", partition_columns=partition)
    assert read_rows(io, path) == [{"id": 1, "v": 7}]


# M9, H2
def test_undo_of_a_partitioned_merge(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    source = pa.table({"id": [1, 2, 3], "day": ["a", "b", "c"], "v": ["old"] * 3})
    io.merge(source, path, key_columns="id", partition_columns="day")
    before = state(path)
    io.merge(source.slice(1).set_column(2, "v", pa.array(["new"] * 2)), path, "full_merge", "id", retain=1)
    assert len(read_rows(io, path)) == 2
    undo(path)
    assert state(path) == before
    assert read_rows(io, path) == source.to_pylist()


# M9, O2, H2
def test_undo_of_an_overwrite_restores_partitions_and_their_types(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    old = pa.table({"id": [1, 2], "day": ["a", "b"]})
    io.write_dataset(old, path, partition_columns="day")
    before = state(path)
    io.write_dataset(pa.table({"id": [1, 2], "day": [7, 8]}), path, "overwrite", partition_columns="day", retain=1)
    assert read_rows(io, path)[0]["day"] == 7
    assert undo(path).mode == "overwrite"
    assert state(path) == before
    assert read_rows(io, path) == old.to_pylist()
    io.write_dataset(pa.table({"id": [3], "v": ["x"]}), path, "overwrite", retain=1)
    undo(path)
    assert load(io, path).schema.field("day").type == pa.string()


# M9
def test_undo_undoes_commits_one_by_one(io: AnyDatasetIO, path: str) -> None:
    states = []
    for number in range(3):
        states.append(state(path))
        io.merge(table([0, 50 + number], f"{number}"), path, key_columns="id", retain=3)
    for before in reversed(states):
        undo(path)
        assert state(path) == before
    with assert_unchanged(path), pytest.raises(UndoError, match=r"no commit to .* to undo"):
        undo(path)


# M9
def test_undo_skips_commits_that_are_already_undone(io: AnyDatasetIO, path: str) -> None:
    first = state(path)
    io.merge(table([0], "one"), path, key_columns="id", retain=5)
    second = state(path)
    io.merge(table([0, 1], "two"), path, key_columns="id", retain=5)
    undo(path)
    io.merge(table([10], "three"), path, key_columns="id", retain=5)
    undo(path)
    assert state(path) == second
    undo(path)
    assert state(path) == first
    assert [record.operation for record in history(path)] == ["undo", "undo", "merge", "undo", "merge", "merge"]


# M9, M7
def test_a_batch_that_was_undone_may_be_merged_again(io: AnyDatasetIO, path: str) -> None:
    io.merge(table([0], "new"), path, key_columns="id", batch_id="b", retain=1)
    assert undo(path).batch_id == "b"
    assert not io.merge(table([0], "again"), path, key_columns="id", batch_id="b", retain=1).replayed
    assert io.merge(table([0], "again"), path, key_columns="id", batch_id="b", retain=1).replayed
    assert read_rows(io, path)[0]["v"] == "again"


# M9
def test_a_batch_that_changed_nothing_is_undone_too(path: str) -> None:
    io = open_dataset_io("arrow")
    io.merge(table([99], "late"), path, "update", "id", batch_id="b")
    with assert_unchanged(path):
        undo(path)
    assert not io.merge(table([99], "late"), path, "update", "id", batch_id="b").replayed


# M9
def test_files_that_other_programs_added_stay(path: str) -> None:
    open_dataset_io("arrow").merge(table([0], "new"), path, key_columns="id", retain=1)
    put(f"{path}/other.parquet", table([77], "other"))
    Path(path, "README.md").write_text("mine")
    before = snapshot(path)
    undo(path)
    after = snapshot(path)
    assert {name for name in before if before[name] != after[name]} == {"f0.parquet"}


# M9
def test_what_is_not_retained_cannot_be_undone(io: AnyDatasetIO, path: str) -> None:
    io.merge(table([0], "new"), path, key_columns="id")
    with assert_unchanged(path), pytest.raises(UndoError, match=r"merge of 2.* not retained.*retain=1"):
        undo(path)
    # What came after it can.
    before = state(path)
    io.merge(table([50], "new"), path, "insert", "id")
    undo(path)
    assert state(path) == before


# M9
def test_there_is_nothing_to_undo_where_nothing_was_committed(path: str, lake: str) -> None:
    for absent in (path, f"{lake}/absent"):
        with pytest.raises(UndoError, match=f"no commit to {absent} to undo"):
            undo(absent)
    assert os.listdir(lake) == ["t"]


def _rewrite(file: str) -> None:
    put(file, table([0], "by another program"))


def _touch(file: str) -> None:
    os.utime(file)


# M9
@pytest.mark.parametrize("change", [_rewrite, _touch, os.remove])
@pytest.mark.parametrize("operation", ["rewritten", "inserted"])
def test_what_another_program_changed_is_not_undone(change: Any, operation: str, path: str) -> None:
    open_dataset_io("arrow").merge(table([0, 10, 99], "new"), path, "full_merge", "id", retain=1)
    name = next(file.path for file in history(path)[0].files if file.operation == operation)
    change(f"{path}/{name}")
    with assert_unchanged(path), pytest.raises(UndoError, match=f"{path}/{name} was changed by another program"):
        undo(path)


# M9
def test_a_file_that_came_back_is_not_overwritten(path: str) -> None:
    open_dataset_io("arrow").merge(table([0, 10], "new"), path, "full_merge", "id", retain=1)
    put(f"{path}/f2.parquet", table([5], "by another program"))
    with assert_unchanged(path), pytest.raises(UndoError, match=f"{path}/f2.parquet was changed by another program"):
        undo(path)


# M9, C3
def test_a_file_that_changed_after_the_journal_is_not_retained_instead_of_the_replaced_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        message = "the disk is gone"
        raise OSError(message)

    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", broken)
        with pytest.raises(DatasetMergeError, match="was journaled"):
            open_dataset_io("arrow").merge(table([0, 10], "new"), path, key_columns="id", retain=1)
    put(f"{path}/f0.parquet", table([0], "by another program"))
    with pytest.raises(ConcurrentWriteError, match=r"f0\.parquet"):
        recover(path)
    os.remove(f"{path}/f0.parquet")
    assert recover(path)
    with assert_unchanged(path), pytest.raises(UndoError, match="not retained"):
        undo(path)


# Retention.


# M9
def test_no_more_than_the_last_commits_are_retained(io: AnyDatasetIO, path: str, control: Path) -> None:
    for number in range(4):
        io.merge(table([0, 10], f"{number}"), path, key_columns="id", retain=2)
    newest = sorted(record.id for record in history(path)[:2])
    assert kept(control) == newest
    assert not [name for name in read_control_files(control) if name.endswith(".parquet")]
    undo(path)
    undo(path)
    with pytest.raises(UndoError, match="not retained"):
        undo(path)
    io.merge(table([0], "kept"), path, key_columns="id", retain=1)
    io.merge(table([0], "not kept"), path, key_columns="id")
    assert kept(control) == []


# M9
def test_retained_files_are_links(path: str, control: Path) -> None:
    nodes = {f"f{number}.parquet": os.stat(f"{path}/f{number}.parquet").st_ino for number in range(3)}
    open_dataset_io("arrow").merge(table([0, 10], "new"), path, "full_merge", "id", retain=1)
    (folder,) = (control / "retained").iterdir()
    names = {file.path: file.retained or "" for file in history(path)[0].files}
    assert {rel: os.stat(folder / name).st_ino for rel, name in names.items()} == nodes
    undo(path)
    found = [os.stat(f"{path}/{name}") for name in nodes]
    assert [one.st_ino for one in found] == list(nodes.values())
    assert {one.st_nlink for one in found} == {1}


# M9
@pytest.mark.parametrize("reason", [errno.EXDEV, errno.EPERM, errno.ENOTSUP])
def test_a_copy_is_retained_if_links_are_not_supported(
    reason: int, path: str, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.link

    def refuse(source: str, target: str) -> None:
        if source.endswith("f0.parquet"):
            raise OSError(reason, os.strerror(reason))
        original(source, target)

    monkeypatch.setattr(os, "link", refuse)
    before = state(path)
    open_dataset_io("arrow").merge(table([0, 10], "new"), path, "full_merge", "id", retain=1)
    assert sorted(os.stat(file).st_nlink for file in control.glob("retained/*/*.replaced")) == [1, 1, 1]
    undo(path)
    assert state(path) == before


# M9, W6
@pytest.mark.parametrize("other_disk", [False, True])
def test_a_linked_data_file_keeps_its_link(
    other_disk: bool, path: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = f"{lake}/elsewhere/real"
    os.makedirs(os.path.dirname(real))
    os.replace(f"{path}/f0.parquet", real)
    os.symlink(real, f"{path}/f0.parquet")
    before = state(path)
    if other_disk:
        for name in ("link", "replace"):
            original = getattr(os, name)

            def refuse(source: str, target: str, original: Any = original) -> None:
                if ("/elsewhere/" in source) != ("/elsewhere/" in target):
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                original(source, target)

            monkeypatch.setattr(os, name, refuse)
    open_dataset_io("arrow").merge(table([0, 10], "new"), path, key_columns="id", retain=1)
    assert state(path) != before
    undo(path)
    assert os.readlink(f"{path}/f0.parquet") == real
    assert os.listdir(f"{lake}/elsewhere") == ["real"]
    assert state(path) == before


# M9, C6
def test_a_dataset_in_memory_has_a_history_and_undo(io: AnyDatasetIO) -> None:
    memory, home = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}/lake"
    path, io.filesystem = f"{home}/t", memory

    def found() -> dict[str, bytes]:
        return {name: memory.cat_file(name) for name in memory.find(path)}

    states = []
    for number in range(3):
        io.merge(table([0, 10 + number], f"{number}"), path, "full_merge", "id", retain=2, batch_id=f"{number}")
        states.append(found())
    assert len(memory.ls(f"{home}/.t.merganser/retained")) == 2
    for number in (2, 1):
        assert undo(f"memory:/{path}").batch_id == f"{number}"
        assert found() == states[number - 1]
    put_back = table([0, 12], "2")
    assert not io.merge(put_back, path, "full_merge", "id", retain=1, batch_id="2").replayed
    assert len(history(path, filesystem=memory)) == 6
    (name,) = [file.path for file in history(path, filesystem=memory)[0].files if file.operation == "rewritten"]
    memory.pipe_file(f"{path}/{name}", b"by another program")
    with pytest.raises(UndoError, match=name):
        undo(path, filesystem=memory)
    assert len(vacuum(path, retain=0, filesystem=memory)) == 1
    assert not memory.find(f"{home}/.t.merganser/retained")
    memory.rm(home, recursive=True)


# M9, C1
def test_a_control_folder_inside_the_dataset_does_not_disturb_readers(io: AnyDatasetIO, path: str, lake: str) -> None:
    os.mkdir(f"{path}/.t.merganser")
    before = {name: one for name, one in state(path).items() if name.endswith(".parquet")}
    io.merge(table([0, 99], "new"), path, "full_merge", "id", retain=1)
    assert os.listdir(lake) == ["t"]
    assert len(kept(Path(path, ".t.merganser"))) == 1
    assert [row["id"] for row in read_rows(io, path)] == [0, 99]
    assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [f"{path}/**/*.parquet"]).fetchall() == [(2,)]
    undo(path)
    assert {name: one for name, one in state(path).items() if name.endswith(".parquet")} == before
    assert vacuum(path) == []


# M9
@pytest.mark.parametrize("retain", [-1, 1.5, "1", True, None])
def test_retain_is_a_number_of_commits(io: AnyDatasetIO, path: str, retain: Any) -> None:
    with (
        assert_unchanged(path),
        pytest.raises(InvalidArgumentError, match=r"retain must be an integer, 0 or more"),
    ):
        io.merge(table([0], "new"), path, key_columns="id", retain=retain)
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="retain"):
        io.write_dataset(table([0], "new"), path, "overwrite", retain=retain)


# M9
def test_every_dataset_io_retains(path: str, control: Path) -> None:
    dataset_io = merganser.DuckDBDatasetIO()
    dataset_io.write_parquet_dataset(table([0], "new"), path, "upsert", "id", retain=3)
    dataset_io.write_parquet_dataset(table([0], "new"), path, mode="overwrite", retain=3)
    merganser.merge(table([0], "newer"), path, key_columns="id", retain=3)
    assert [record.options.get("rewrite_all", False) for record in history(path)] == [False, False, True]
    assert len(kept(control)) == 3


# Vacuum.


@pytest.fixture
def retained(path: str) -> str:
    """That dataset after three commits, all of which can be undone."""
    for number in range(3):
        open_dataset_io("arrow").merge(table([0], f"{number}"), path, key_columns="id", retain=9)
    return path


# M9
def test_vacuum_leaves_what_undo_can_use(retained: str, control: Path) -> None:
    before = read_control_files(control)
    with assert_unchanged(retained):
        assert vacuum(retained) == []
    assert read_control_files(control) == before
    removed = vacuum(retained, retain=2)
    newest, middle, oldest = (record.id for record in history(retained))
    assert removed == [f"{control}/retained/{oldest}"]
    assert kept(control) == [middle, newest]
    undo(retained)
    undo(retained)
    with assert_unchanged(retained), pytest.raises(UndoError, match="not retained"):
        undo(retained)


# M9
def test_vacuum_of_everything(retained: str, control: Path, lake: str) -> None:
    assert len(vacuum(retained, retain=0)) == 3
    assert kept(control) == []
    assert vacuum(retained) == vacuum(f"{lake}/absent") == []
    assert sorted(os.listdir(lake)) == [".t.merganser", "t"]


# M9
def test_vacuum_removes_what_was_undone_and_what_nobody_knows(retained: str, control: Path, lake: str) -> None:
    newest, middle, oldest = (record.id for record in history(retained))
    shutil.copytree(control / "retained" / newest, f"{lake}/saved")
    undo(retained)
    # The removal failed, and an earlier commit's record was lost.
    os.rename(f"{lake}/saved", control / "retained" / newest)
    (control / "history" / f"{oldest}.json").unlink()
    assert vacuum(retained) == [f"{control}/retained/{one}" for one in (oldest, newest)]
    assert kept(control) == [middle]


# M9
def test_vacuum_removes_files_older_than_a_commit_that_cannot_be_undone(retained: str, control: Path) -> None:
    newest, middle, oldest = (record.id for record in history(retained))
    # An insert blocks nothing.
    open_dataset_io("arrow").merge(table([50], "new"), retained, "insert", "id", retain=9)
    assert vacuum(retained) == []
    # What an interrupted removal left: the list of the files, but not all of them.
    (control / "retained" / middle / "0.replaced").unlink()
    assert vacuum(retained) == [f"{control}/retained/{one}" for one in (oldest, middle)]
    assert kept(control) == [newest]


# M9, C4
def test_vacuum_removes_what_an_interrupted_commit_began_to_retain(retained: str, control: Path) -> None:
    newest = history(retained)[0].id
    (control / "retained" / newest / "0.replaced").unlink()
    with assert_unchanged(retained), pytest.raises(UndoError, match="not retained"):
        undo(retained)
    assert len(vacuum(retained)) == 3


# M9
@pytest.mark.parametrize("harm", ["shorter", "later"])
def test_a_retained_file_that_was_changed_is_not_restored(retained: str, control: Path, harm: str) -> None:
    (file,) = (control / "retained" / history(retained)[0].id).iterdir()
    if harm == "shorter":
        os.truncate(file, 10)
    else:
        os.utime(file)
    with assert_unchanged(retained), pytest.raises(UndoError, match="not retained unchanged"):
        undo(retained)


# M9, C4
def test_an_interrupted_undo_spares_what_another_program_wrote(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    io = open_dataset_io("arrow")
    io.merge(table([0, 10], "new"), path, "full_merge", "id", retain=1)
    (gone,) = (file.path for file in history(path)[0].files if file.operation == "removed")
    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", broken)
        with pytest.raises(DatasetMergeError, match="was journaled"):
            undo(path)
    put(f"{path}/{gone}", table([77], "theirs"))
    before = snapshot(path)
    with pytest.raises(DatasetMergeError, match=gone):
        recover(path)
    assert snapshot(path)[gone] == before[gone]


# M9, C7
def test_what_cannot_be_retained_is_known_before_anything_is_decided(
    path: str, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "duplicate", broken)
    with assert_unchanged(path), pytest.raises(StagingError, match="the disk is gone"):
        open_dataset_io("arrow").merge(table([0], "new"), path, key_columns="id", retain=1)
    monkeypatch.undo()
    assert kept(control) == []
    assert not recover(path)
    os.symlink("nowhere", f"{path}/z.parquet")
    open_dataset_io("arrow").write_dataset(table([1], "new"), path, "overwrite", retain=1)
    with pytest.raises(UndoError, match="not retained"):
        undo(path)


# M9
def test_unknown_folders_among_retained_ones_are_ignored(retained: str, control: Path) -> None:
    (control / "retained" / ".DS_Store").touch()
    kept_before = [one for one in kept(control) if not one.startswith(".")]
    open_dataset_io("arrow").merge(table([0], "again"), retained, key_columns="id", retain=2)
    left = [one for one in kept(control) if not one.startswith(".")]
    assert left == [kept_before[-1], history(retained)[0].id]
    assert vacuum(retained) == []


# M7
def test_a_dataset_that_was_removed_has_no_batches(lake: str) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t2"
    for _ in range(2):
        assert not io.merge(table([1], "new"), path, key_columns="id", batch_id="b").replayed
        shutil.rmtree(path)


# M9
@pytest.mark.parametrize("retain", [-1, True, "1"])
def test_vacuum_takes_a_number_of_commits(retain: Any, retained: str) -> None:
    with assert_unchanged(retained), pytest.raises(InvalidArgumentError, match="retain"):
        vacuum(retained, retain=retain)


# M9, C5
def test_undo_and_vacuum_wait_for_the_lock(retained: str) -> None:
    with commit.open_session(locate(retained)):
        for change in (undo, vacuum):
            with assert_unchanged(retained), pytest.raises(TimeoutError):
                change(retained, lock_timeout=0)
