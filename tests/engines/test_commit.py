"""The commit: what is checked before it, the order of its steps, and what it keeps."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem
from tests.support import assert_unchanged, decide_here, load, put, read_rows, snapshot, wrap_verb

import merganser
from merganser.core.storage.local import LocalStore
from merganser.errors import CountMismatchError, DatasetMergeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO


def table(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.string())})


@pytest.fixture
def path(lake: str) -> str:
    """A dataset of three files of three rows."""
    for number in range(3):
        put(f"{lake}/t/f{number}.parquet", table([10 * number + row for row in range(3)], "old"))
    return f"{lake}/t"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every change of the disk that the driver makes: the method and the name of the file it is about."""
    seen: list[tuple[str, str]] = []

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(LocalStore, name)

        def method(self: LocalStore, first: Any, *others: str) -> Any:
            paths = [first] if isinstance(first, str) else list(first)
            seen.extend((name, others[0] if name == "replace" else path) for path in paths)
            return original(self, first if isinstance(first, str) else paths, *others)

        return method

    for name in ("flush", "write_small", "replace", "remove", "remove_folder", "make_folder"):
        monkeypatch.setattr(LocalStore, name, watched(name))
    return seen


def at(steps: list[tuple[str, str]], name: str, ending: str) -> int:
    return next(number for number, (step, path) in enumerate(steps) if step == name and path.endswith(ending))


def test_publication_follows_the_journal_and_removals_come_last(
    io: AnyDatasetIO, path: str, steps: list[tuple[str, str]]
) -> None:
    # C3
    result = io.merge(table([0, 10, 99], "new"), path, "full_merge", "id")
    assert len(result.removed_files) == 1
    journal = at(steps, "write_small", "/journal.json")
    staged = [number for number, (name, place) in enumerate(steps) if name == "flush" and place.endswith(".staged")]
    # Three files, and the mark of the folder.
    assert len(staged) == 4
    assert max(staged) < journal
    renames = [number for number, (name, place) in enumerate(steps) if name == "replace" and place.startswith(path)]
    assert len(renames) == 3
    assert journal < min(renames)
    # The journal's folder is flushed before anything is renamed, the dataset's after all of it.
    assert any(name == "flush" and ".staging_" in place for name, place in steps[journal : min(renames)])
    removal = at(steps, "remove", "/f2.parquet")
    assert max(renames) < removal
    assert removal < max(number for number, step in enumerate(steps) if step == ("flush", path))
    assert at(steps, "remove", "/journal.json") < at(steps, "remove_folder", "")
    assert steps[at(steps, "remove_folder", "") :][0][1].rpartition("/")[2].startswith(".staging_")


def test_a_journal_that_cannot_be_written_means_that_nothing_happened(
    io: AnyDatasetIO, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C3, C7
    def write_small(_: LocalStore, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path, len(data))

    monkeypatch.setattr(LocalStore, "write_small", write_small)
    with assert_unchanged(path), pytest.raises(OSError, match="No space left"):
        io.merge(table([0, 99], "new"), path, "upsert", "id")


def test_a_merge_that_stops_after_its_journal_says_so_and_is_finished_by_the_next(
    io: AnyDatasetIO, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C3, C4
    original = LocalStore.replace

    def refuse(self: LocalStore, source: str, target: str) -> None:
        if target.endswith("/f1.parquet"):
            raise PermissionError(errno.EACCES, "Permission denied", target)
        original(self, source, target)

    monkeypatch.setattr(LocalStore, "replace", refuse)
    with pytest.raises(DatasetMergeError, match=r"was journaled but not fully published.*f1\.parquet.*recover\(path\)"):
        io.merge(table([0, 10, 99], "new"), path, "upsert", "id")
    with pytest.raises(DatasetMergeError, match=r"recover\(path\)"):
        io.plan(table([0], "new"), path, "upsert", "id")
    monkeypatch.undo()
    result = io.merge(table([20], "newer"), path, "upsert", "id")
    assert (result.inserted, result.updated, result.target_count_before) == (0, 1, 10)
    values = {row["id"]: row["v"] for row in read_rows(io, path)}
    assert [values[key] for key in (0, 10, 99, 20, 1)] == ["new", "new", "new", "newer", "old"]
    assert merganser.recover(path) is False


def test_a_stale_checksum_goes_with_the_file_it_describes(
    io: AnyDatasetIO, path: str, steps: list[tuple[str, str]]
) -> None:
    # C3: Spark refuses a file whose checksum is another file's
    for number in range(3):
        Path(path, f".f{number}.parquet.crc").write_bytes(b"crc\0stale")
    io.merge(table([0, 30], "new"), path, "upsert", "id")
    assert sorted(name for name in os.listdir(path) if name.endswith(".crc")) == [".f1.parquet.crc", ".f2.parquet.crc"]
    assert at(steps, "remove", "/.f0.parquet.crc") < at(steps, "replace", "/f0.parquet")
    io.merge(table([0], "new"), path, "full_merge", "id")
    assert [name for name in os.listdir(path) if name.endswith(".crc")] == []


REWRITTEN, ADDED = 0, 1


def lie(io: AnyDatasetIO, about: int, twist: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine answer wrongly about the files that it rewrote, or about those that it added."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def stage(*arguments: Any) -> tuple[list[Any], list[Any]]:
            done = list(original(*arguments))
            done[about] = twist(done[about])
            return done[0], done[1]

        return stage

    wrap_verb(io, "stage", wrap, monkeypatch)


@pytest.mark.parametrize(
    ("about", "twist"),
    [
        (REWRITTEN, lambda done: [replace(done[0], replaced=done[0].replaced + 1), *done[1:]]),
        (REWRITTEN, lambda done: [replace(done[0], replaced=0), *done[1:]]),
        (REWRITTEN, lambda done: [replace(done[0], removed=done[0].removed + 1), *done[1:]]),
        (ADDED, lambda done: done[:-1]),
        (ADDED, lambda done: [*done, done[0]]),
    ],
)
def test_counts_that_do_not_add_up_change_nothing(
    io: AnyDatasetIO, path: str, about: int, twist: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # C2
    lie(decide_here(io), about, twist, monkeypatch)
    for strategy in ("upsert", "full_merge"):
        with assert_unchanged(path), pytest.raises(CountMismatchError, match="Nothing was published"):
            io.merge(table([0, 1, 10, 98, 99], "new"), path, strategy, "id")


@pytest.mark.parametrize("rows_staged", [0, 2, 4])
def test_a_staged_file_with_a_row_too_few_or_too_many_is_refused(
    io: AnyDatasetIO, path: str, rows_staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C2: what counts is the footer that was really written
    def tamper(done: list[Any]) -> list[Any]:
        pq.write_table(table(list(range(rows_staged)), "tampered"), done[0].staged_path)
        return done

    lie(decide_here(io), REWRITTEN, tamper, monkeypatch)
    with assert_unchanged(path), pytest.raises(CountMismatchError, match="do not add up"):
        io.merge(table([0, 99], "new"), path, "upsert", "id")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_counts_its_rows_too(io: AnyDatasetIO, path: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C2, O2
    lie(io, ADDED, lambda done: done[:-1], monkeypatch)
    with assert_unchanged(path), pytest.raises(CountMismatchError, match="Nothing was published"):
        io.write_dataset(table([50, 51], "new"), path, mode, max_rows_per_file=1)


@pytest.mark.parametrize("error", [RuntimeError("broken"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("verb", ["conform", "collect_facts", "match", "stage"])
def test_an_engine_that_fails_changes_nothing(
    io: AnyDatasetIO, path: str, verb: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C7
    def fail(*_: Any, **__: Any) -> None:
        raise error

    wrap_verb(io, verb, lambda _: fail, monkeypatch)
    with assert_unchanged(path), pytest.raises(type(error)):
        io.merge(table([0, 99], "new"), path, "upsert", "id")
    monkeypatch.undo()
    assert io.merge(table([0, 99], "new"), path, "upsert", "id").updated == 1


def test_mode_and_owner_of_a_rewritten_file_stay(io: AnyDatasetIO, path: str) -> None:
    # W6
    os.chmod(f"{path}/f0.parquet", 0o640)
    owner = 12345 if os.geteuid() == 0 else os.geteuid()
    os.chown(f"{path}/f0.parquet", owner, -1)
    io.merge(table([0], "new"), path, "upsert", "id")
    found = os.stat(f"{path}/f0.parquet")
    assert stat.S_IMODE(found.st_mode) == 0o640
    assert found.st_uid == owner
    assert read_rows(io, path)[0]["v"] == "new"


def test_new_files_are_shared_as_the_folder_is(io: AnyDatasetIO, lake: str) -> None:
    # C1, W6: group and permissions, whatever the umask; with Spark the files are written by executors
    path, group = f"{lake}/shared", 54300 if os.geteuid() == 0 else os.getegid()
    os.makedirs(path)
    os.chown(path, -1, group)
    Path(path).chmod(0o2770)
    for _ in range(2):
        io.merge(pa.table({"id": [1], "day": ["mon"]}), path, "upsert", "id", partition_columns=["day"], retain=1)
        io.write_dataset(pa.table({"id": [2], "day": ["tue"]}), path)
    found = [Path(path), *Path(path).rglob("*"), Path(f"{lake}/.shared.merganser")]
    found += Path(f"{lake}/.shared.merganser").rglob("*")
    access = {(one.is_dir(), stat.S_IMODE(one.stat().st_mode), one.stat().st_gid) for one in found}
    assert access == {(True, 0o2770, group), (False, 0o660, group)}


def test_an_owner_that_cannot_be_set_is_not_an_error(
    io: AnyDatasetIO, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W6: only root may give a file away
    def chown(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    os.chmod(f"{path}/f0.parquet", 0o600)
    io.merge(table([0], "new"), path, "upsert", "id")
    assert stat.S_IMODE(os.stat(f"{path}/f0.parquet").st_mode) == 0o600


@pytest.mark.parametrize("other_disk", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_a_linked_data_file_keeps_its_link(
    io: AnyDatasetIO, path: str, lake: str, other_disk: bool, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W6
    os.makedirs(f"{lake}/elsewhere")
    os.replace(f"{path}/f0.parquet", f"{lake}/elsewhere/real.parquet")
    link = "../elsewhere/real.parquet" if relative else f"{lake}/elsewhere/real.parquet"
    os.symlink(link, f"{path}/f0.parquet")
    if other_disk:
        original = os.replace

        def refuse(source: str, target: str) -> None:
            if os.path.dirname(target).endswith("/elsewhere") and "/elsewhere/" not in source:
                raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, target)
            original(source, target)

        monkeypatch.setattr(os, "replace", refuse)
    os.chmod(f"{lake}/elsewhere/real.parquet", 0o604)
    io.merge(table([0], "new"), path, "upsert", "id")
    assert os.readlink(f"{path}/f0.parquet") == link
    assert os.listdir(f"{lake}/elsewhere") == ["real.parquet"]
    assert pq.read_table(f"{lake}/elsewhere/real.parquet").to_pylist()[0] == {"id": 0, "v": "new"}
    assert stat.S_IMODE(os.stat(f"{lake}/elsewhere/real.parquet").st_mode) == 0o604
    assert [row["v"] for row in read_rows(io, path)].count("new") == 1


def test_a_linked_dataset_folder_is_the_folder(io: AnyDatasetIO, path: str, lake: str) -> None:
    # C1, C5: two spellings of one dataset share one lock
    os.symlink(path, f"{lake}/alias")
    io.merge(table([0, 99], "new"), f"{lake}/alias", "upsert", "id")
    assert read_rows(io, path)[0]["v"] == "new"
    assert sorted(os.listdir(lake)) == [".t.merganser", "alias", "t"]


def test_appending_touches_no_file(io: AnyDatasetIO, path: str) -> None:
    # O2
    before = snapshot(path)
    result = io.write_dataset(table([0, 50], "appended"), path, "append")
    after = snapshot(path)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    assert [file.operation for file in result.files] == ["inserted"]
    assert [row["v"] for row in read_rows(io, path) if row["id"] == 0] == ["old", "appended"]


def test_overwriting_replaces_data_files_and_keeps_every_other_file(
    io: AnyDatasetIO, path: str, steps: list[tuple[str, str]]
) -> None:
    # O2, C3, E6
    others = ["README.md", "_SUCCESS", ".hidden.parquet", "_logs/x.parquet", "notes/y.txt"]
    for name in [*others, "_metadata", "_common_metadata"]:
        Path(path, name).parent.mkdir(exist_ok=True)
        Path(path, name).write_bytes(b"keep me")
    result = io.write_dataset(pa.table({"other": ["a", "b"]}), path, "overwrite")
    assert result.removed_files == [f"{path}/f{number}.parquet" for number in range(3)]
    kept = snapshot(path)
    assert {name: data for name, data in kept.items() if name in others} == dict.fromkeys(others, b"keep me")
    assert len(kept) == len(others) + 1
    assert read_rows(io, path, ["other"]) == [{"other": "a"}, {"other": "b"}]
    journal = at(steps, "write_small", "/journal.json")
    assert journal < at(steps, "replace", ".parquet") < at(steps, "remove", "/f0.parquet")


def test_overwriting_with_nothing_keeps_the_schema(io: AnyDatasetIO, path: str) -> None:
    # O2, W3
    io.write_dataset(pa.table({"other": pa.array([], pa.int16())}), path, "overwrite")
    assert len(snapshot(path)) == 1
    assert load(io, path).schema.field("other").type == pa.int16()
    assert read_rows(io, path, ["other"]) == []


def test_overwriting_may_change_the_partitions(io: AnyDatasetIO, path: str) -> None:
    # O2
    io.write_dataset(pa.table({"id": [1, 2], "day": ["a", "b"]}), path, "overwrite", partition_columns="day")
    assert [name.split("/")[0] for name in snapshot(path)] == ["day=a", "day=b"]
    assert read_rows(io, path) == [{"id": 1, "day": "a"}, {"id": 2, "day": "b"}]
    io.write_dataset(pa.table({"id": [1, 2], "day": [7, 8]}), path, "overwrite", partition_columns="day")
    assert read_rows(io, path) == [{"id": 1, "day": 7}, {"id": 2, "day": 8}]


def test_overwriting_needs_nothing_of_what_it_replaces(io: AnyDatasetIO, path: str) -> None:
    # O2: also a dataset whose files cannot be read
    Path(path, "f1.parquet").write_bytes(b"not Parquet")
    io.write_dataset(table([1], "new"), path, "overwrite")
    assert read_rows(io, path) == [{"id": 1, "v": "new"}]


# Filesystems.


def flow(io: AnyDatasetIO, path: str, filesystem: Any = None) -> None:
    """Load, merge, plan, append, overwrite and read one dataset."""
    io.filesystem = filesystem
    loaded = io.merge(table([1, 2, 3], "one"), path, "upsert", "id", max_rows_per_file=2)
    assert (loaded.inserted, len(loaded.inserted_files)) == (3, 2)
    plan = io.plan(table([1, 9], "two"), path, "upsert", "id")
    assert (plan.inserted, plan.updated) == (1, 1)
    result = io.merge(table([1, 9], "two"), path, "upsert", "id")
    assert (result.inserted, result.updated, len(result.rewritten_files), len(result.preserved_files)) == (1, 1, 1, 1)
    assert all(file.path.startswith(path) for file in result.files)
    assert {row["id"]: row["v"] for row in read_rows(io, path)} == {1: "two", 2: "one", 3: "one", 9: "two"}
    assert io.merge(table([9], "three"), path, "full_merge", "id").deleted == 3
    io.write_dataset(table([5], "four"), path, "append")
    assert [row["id"] for row in read_rows(io, path)] == [5, 9]
    io.write_dataset(table([6], "five").append_column("day", pa.array(["x"])), path, "overwrite", "day")
    assert read_rows(io, path) == [{"id": 6, "v": "five", "day": "x"}]
    assert merganser.recover(path, filesystem=filesystem) is False


def test_a_dataset_may_live_in_memory(io: AnyDatasetIO) -> None:
    # C6
    name = uuid.uuid4().hex
    flow(io, f"memory://{name}/lake/t")
    memory = fsspec.filesystem("memory")
    assert not [path for path in memory.find(f"/{name}/lake/.t.merganser") if "staging" in path]
    assert all(path.endswith(".parquet") for path in memory.find(f"/{name}/lake/t"))
    memory.rm(f"/{name}", recursive=True)


def test_a_filesystem_may_be_given(io: AnyDatasetIO) -> None:
    # C6
    name = uuid.uuid4().hex
    flow(io, f"/{name}/lake/t", fsspec.filesystem("memory"))
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def test_a_filesystem_of_arrow_may_be_given(io: AnyDatasetIO, lake: str) -> None:
    # C6
    flow(io, f"{lake}/t", pafs.LocalFileSystem())
    assert sorted(os.listdir(lake)) == [".t.merganser", "t"]
    # It cannot create exclusively.
    sub = ArrowFSWrapper(pafs.SubTreeFileSystem(lake, pafs.LocalFileSystem()))
    sub.single_writer = True
    flow(io, "below/t", sub)
    assert sorted(os.listdir(f"{lake}/below")) == [".t.merganser", "t"]


def test_a_local_path_may_be_a_url(io: AnyDatasetIO, lake: str) -> None:
    # C1
    io.merge(table([1], "one"), f"file://{lake}/t", "upsert", "id")
    io.merge(table([1], "two"), Path(lake, "t"), "upsert", "id")
    assert read_rows(io, f"{lake}/t/") == [{"id": 1, "v": "two"}]
    assert sorted(os.listdir(lake)) == [".t.merganser", "t"]


def test_a_relative_path_is_relative_to_the_working_folder(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C1
    monkeypatch.chdir(lake)
    result = io.merge(table([1], "one"), "t", "upsert", "id")
    assert result.files[0].path.startswith("t/part-")
    assert sorted(os.listdir(lake)) == [".t.merganser", "t"]


class MoreOfOneFile(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that reports more about a single file than about the same file in a listing."""

    protocol = "more"
    cachable = False

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), "ETag": "abc"}


def test_files_reported_as_removed_are_gone_whatever_the_store_reports(io: AnyDatasetIO) -> None:
    # C6, O2
    root = f"/{uuid.uuid4().hex}"
    path, io.filesystem = f"{root}/t", MoreOfOneFile()
    io.write_dataset(table([1, 2], "x"), path)
    result = io.write_dataset(table([7], "x"), path, "overwrite")
    assert len(result.removed_files) == 1
    assert [row["id"] for row in read_rows(io, path)] == [7]
    io.write_dataset(table([8], "x"), path)
    merged = io.merge(table([8], "x"), path, "full_merge", "id")
    assert (merged.deleted, len(merged.removed_files)) == (1, 1)
    assert [row["id"] for row in read_rows(io, path)] == [8]
    io.filesystem.rm(root, recursive=True)
