"""Replacing data files by hand: staged, journaled, published, and nothing lost on a failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support import assert_unchanged, put, snapshot

import merganser
from merganser.core import (
    DatasetMergeError,
    IncrementalFileManager,
    InvalidArgumentError,
    StagingError,
    UnreadableFileError,
    list_dataset_files,
    recover,
)
from merganser.core.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence


def ids(values: Sequence[Any]) -> pa.Table:
    return pa.table({"id": values, "v": ["x"] * len(values)})


def read(path: str) -> list[int]:
    found: list[int] = pq.read_table(path, partitioning=None).column("id").to_pylist()
    return found


# C1, C3
def test_manager_stages_replaces_and_cleans_up(lake: str) -> None:
    old = [put(f"{lake}/t/{name}.parquet", ids([n])) for n, name in enumerate("ab")]
    keep = put(f"{lake}/t/keep.parquet", ids([7]))
    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    assert os.path.isdir(folder)
    assert os.path.basename(folder).startswith(".staging_")
    assert os.path.dirname(folder) == f"{lake}/.t.merganser"
    new = [put(f"{folder}/{n}.staged", ids([n + 100])) for n in range(2)]
    before = Path(keep).read_bytes()
    manager.atomic_replace_files(new, old)
    manager.cleanup_staging_files()
    assert [pq.read_table(path).column("id").to_pylist() for path in old] == [[100], [101]]
    assert Path(keep).read_bytes() == before
    assert not os.path.exists(folder)
    assert recover(f"{lake}/t") is False
    manager.cleanup_staging_files()


# C3
def test_manager_may_add_a_file_and_drops_a_stale_checksum(lake: str) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    Path(f"{lake}/t/.a.parquet.crc").write_bytes(b"crc of the old one")
    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    staged = [put(f"{folder}/0.staged", ids([2])), put(f"{folder}/1.staged", ids([3]))]
    manager.atomic_replace_files(staged, [old, f"{lake}/t/day=1/new.parquet"])
    manager.cleanup_staging_files()
    assert sorted(snapshot(f"{lake}/t")) == ["a.parquet", "day=1/new.parquet"]


# C7
def test_manager_cleans_up_after_a_failure(lake: str) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    manager = IncrementalFileManager()
    with assert_unchanged(f"{lake}/t"):
        folder = manager.create_staging_directory(f"{lake}/t")
        put(f"{folder}/half.staged", ids([2]))
        with pytest.raises((OSError, ValueError), match=r"missing\.staged"):
            manager.atomic_replace_files([f"{folder}/missing.staged"], [old])
        manager.cleanup_staging_files()
    assert not os.path.exists(folder)


# C3, C7
def test_manager_refuses_nonsense(lake: str) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    other = put(f"{lake}/u/a.parquet", ids([1]))
    manager = IncrementalFileManager()
    with assert_unchanged(f"{lake}/t"):
        with pytest.raises(ValueError, match="Call create_staging_directory first"):
            manager.atomic_replace_files([], [])
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = put(f"{folder}/0.staged", ids([2]))
        with pytest.raises(ValueError, match="Give one for each"):
            manager.atomic_replace_files([staged], [])
        with pytest.raises(ValueError, match="must be staged"):
            manager.atomic_replace_files([other], [old])
        with pytest.raises(ValueError, match="inside the dataset"):
            manager.atomic_replace_files([staged], [other])
        manager.cleanup_staging_files()


# C4
def test_a_merge_removes_what_a_manager_left_behind(lake: str) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    folder = IncrementalFileManager().create_staging_directory(f"{lake}/t")
    put(f"{folder}/0.staged", ids([2]))
    with assert_unchanged(f"{lake}/t"):
        assert recover(f"{lake}/t") is True
    assert not os.path.exists(folder)


# C4
@pytest.mark.parametrize("goal", ["a.parquet", "new.parquet"])
def test_a_staged_file_written_again_is_not_published_by_recovery(lake: str, goal: str) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    manager.atomic_replace_files([put(f"{folder}/0.staged", ids([2]))], [f"{lake}/t/{goal}"])
    put(f"{folder}/0.staged", ids([3]))
    # As if the process ended here: the lock goes, the staging folder stays.
    manager._held.close()
    with assert_unchanged(f"{lake}/t"):
        assert recover(f"{lake}/t") is True
    assert pq.read_table(f"{lake}/t/{goal}").column("id").to_pylist() == [2]


# C4, W6
def test_manager_replaces_what_a_link_leads_to_and_keeps_the_link(lake: str) -> None:
    real = put(f"{lake}/elsewhere/real", ids([1]))
    os.makedirs(f"{lake}/t")
    os.symlink(real, f"{lake}/t/a.parquet")
    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    manager.atomic_replace_files([put(f"{folder}/0.staged", ids([2]))], [f"{lake}/t/a.parquet"])
    manager.cleanup_staging_files()
    assert os.readlink(f"{lake}/t/a.parquet") == real
    assert pq.read_table(real).column("id").to_pylist() == [2]


# C4, C5
def test_manager_unlocks_the_dataset_even_if_cleaning_up_fails(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    put(f"{folder}/0.staged", ids([2]))

    def refuse(_: LocalStore, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(LocalStore, "remove_folder", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        manager.cleanup_staging_files()
    monkeypatch.undo()
    with assert_unchanged(f"{lake}/t"):
        assert recover(f"{lake}/t", lock_timeout=0.5) is True
    assert not os.path.exists(folder)


# C3
def test_a_staging_folder_serves_several_replacements(lake: str) -> None:
    old = [put(f"{lake}/t/{name}.parquet", ids([n])) for n, name in enumerate("abc")]
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        for number, path in enumerate([*old, old[0]]):
            manager.atomic_replace_files([put(f"{folder}/same.staged", ids([number + 100]))], [path])
            assert read(path) == [number + 100]
    assert [read(path) for path in old] == [[103], [101], [102]]
    assert not os.path.exists(folder)
    assert recover(f"{lake}/t") is False


# C3, C7
@pytest.mark.parametrize("spelling", ["same", "dots", "link", "folder link"])
def test_two_sources_onto_one_target_are_refused_before_anything_is_published(lake: str, spelling: str) -> None:
    old = put(f"{lake}/t/day=1/a.parquet", ids([1]))
    os.symlink(old, f"{lake}/t/day=1/b.parquet")
    os.symlink(f"{lake}/t/day=1", f"{lake}/t/day=2")
    other = {
        "same": old,
        "dots": f"{lake}/t/day=1/../day=1/./a.parquet",
        "link": f"{lake}/t/day=1/b.parquet",
        "folder link": f"{lake}/t/day=2/a.parquet",
    }[spelling]
    with assert_unchanged(f"{lake}/t"), IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = [put(f"{folder}/{n}.staged", ids([n])) for n in range(2)]
        with pytest.raises(InvalidArgumentError, match=r"The target .*t/day=.* is given 2 times"):
            manager.atomic_replace_files(staged, [old, other])
        assert [os.path.exists(path) for path in staged] == [True, True]
    assert recover(f"{lake}/t") is False


# C3, C7
def test_one_source_onto_two_targets_is_refused_before_anything_is_published(lake: str) -> None:
    old = [put(f"{lake}/t/{name}.parquet", ids([n])) for n, name in enumerate("ab")]
    with assert_unchanged(f"{lake}/t"), IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = put(f"{folder}/x/0.staged", ids([7]))
        with pytest.raises(InvalidArgumentError, match=r"staged file x/0\.staged is given 2 times"):
            manager.atomic_replace_files([staged, f"{folder}/x/../x/0.staged"], old)


# C3
def test_staged_files_may_be_in_folders_and_have_any_name(lake: str) -> None:
    old = put(f"{lake}/t/day=1/x.parquet", ids([1]))
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = [put(f"{folder}/{rel}", ids([5])) for rel in ("day=1/x.parquet", "day=2/hour=3/x.parquet", "x y")]
        targets = [old, f"{lake}/t/day=2/hour=3/x.parquet", f"{lake}/t/day=2/z.parquet"]
        manager.atomic_replace_files(staged, targets)
        assert not any(os.path.exists(path) for path in staged)
    assert [read(path) for path in targets] == [[5]] * 3
    assert list_dataset_files(f"{lake}/t") == targets


# C4
def test_recovery_publishes_staged_files_of_folders(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(f"{lake}/t/day=1/x.parquet", ids([1]))

    def refuse(*arguments: Any) -> None:
        raise PermissionError(13, "Permission denied", arguments[-1])

    with IncrementalFileManager() as manager, monkeypatch.context() as patch:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = put(f"{folder}/day=1/x.parquet", ids([2]))
        patch.setattr(LocalStore, "replace", refuse)
        with pytest.raises(DatasetMergeError, match="recover"):
            manager.atomic_replace_files([staged], [old])
    assert read(old) == [1]
    assert recover(f"{lake}/t") is True
    assert read(old) == [2]
    assert not os.path.exists(folder)


# C3, C4
def test_cleaning_up_leaves_a_half_published_replacement_to_recovery(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [put(f"{lake}/t/{name}.parquet", ids([n])) for n, name in enumerate("ab")]
    original = LocalStore.replace

    def refuse(self: LocalStore, source: str, target: str) -> None:
        if target == old[1]:
            raise PermissionError(13, "Permission denied", target)
        original(self, source, target)

    manager = IncrementalFileManager()
    folder = manager.create_staging_directory(f"{lake}/t")
    staged = [put(f"{folder}/{n}.staged", ids([n + 100])) for n in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "replace", refuse)
        with pytest.raises(DatasetMergeError, match="not fully published"):
            manager.atomic_replace_files(staged, old)
    assert [read(path) for path in old] == [[100], [1]]
    with pytest.raises(DatasetMergeError, match=r"not fully published. Call cleanup_staging_files\(\), then recover"):
        manager.atomic_replace_files([put(f"{folder}/2.staged", ids([9]))], [f"{lake}/t/c.parquet"])
    manager.cleanup_staging_files()
    assert recover(f"{lake}/t") is True
    assert [read(path) for path in old] == [[100], [101]]
    assert sorted(snapshot(f"{lake}/t")) == ["a.parquet", "b.parquet"]


# C5, C7
def test_the_end_of_a_with_block_removes_staged_files_and_unlocks(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    folders = []

    def stop() -> None:
        with IncrementalFileManager() as manager:
            folders.append(manager.create_staging_directory(f"{lake}/t"))
            put(f"{folders[-1]}/day=1/0.staged", ids([2]))
            raise RuntimeError("the reason")

    def refuse(_: LocalStore, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with assert_unchanged(f"{lake}/t"):
        with pytest.raises(RuntimeError, match="the reason"):
            stop()
        assert not os.path.exists(folders[0])
        # Cleaning up that fails does not hide the reason.
        monkeypatch.setattr(LocalStore, "remove_folder", refuse)
        with pytest.raises(RuntimeError, match="the reason"):
            stop()
        monkeypatch.undo()
        assert recover(f"{lake}/t", lock_timeout=0.5) is True
    merganser.merge(ids([1]), f"{lake}/t", key_columns="id", engine="arrow", lock_timeout=0.5)


# C7, P6
@pytest.mark.parametrize("content", [b"", b"PAR1 cut short"])
def test_a_staged_file_that_is_not_parquet_is_refused(lake: str, content: bytes) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    with assert_unchanged(f"{lake}/t"), IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        Path(f"{folder}/0.staged").write_bytes(content)
        with pytest.raises(UnreadableFileError, match=r"0\.staged"):
            manager.atomic_replace_files([f"{folder}/0.staged"], [old])


# C7, P7
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("notes.txt", "not the path of a data file"),
        (".hidden.parquet", "not the path of a data file"),
        ("_tmp/a.parquet", "not the path of a data file"),
        ("../u/a.parquet", "inside the dataset"),
        ("", "not the path of a data file"),
        ("folder.parquet", "cannot be a file and a folder"),
        ("a.parquet/b.parquet", "cannot be a file and a folder"),
    ],
)
def test_targets_that_cannot_be_data_files_are_refused(lake: str, target: str, message: str) -> None:
    put(f"{lake}/t/a.parquet", ids([1]))
    os.makedirs(f"{lake}/t/folder.parquet")
    with assert_unchanged(f"{lake}/t"), IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = [put(f"{folder}/{n}.staged", ids([n])) for n in range(2)]
        with pytest.raises(InvalidArgumentError, match=message):
            manager.atomic_replace_files(staged, [f"{lake}/t/new.parquet", f"{lake}/t/{target}"])
        with pytest.raises(InvalidArgumentError, match="cannot be a file and a folder"):
            manager.atomic_replace_files(staged, [f"{lake}/t/x.parquet", f"{lake}/t/x.parquet/y.parquet"])


# C7
@pytest.mark.parametrize("name", ["journal.json", "mark.staged", ".replaced", ".replaced/0.replaced"])
def test_names_that_a_commit_needs_are_refused(lake: str, name: str) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    with assert_unchanged(f"{lake}/t"), IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = put(f"{folder}/{name}", ids([2]))
        with pytest.raises(InvalidArgumentError, match="commits reserve that name"):
            manager.atomic_replace_files([staged], [old])
        os.remove(staged)


# C3
def test_one_path_is_one_path_and_any_iterable_is_many(lake: str) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(Path(lake) / "t")
        manager.atomic_replace_files(put(f"{folder}/0", ids([2])), Path(old))
        assert read(old) == [2]
        manager.atomic_replace_files(iter([Path(put(f"{folder}/0", ids([3])))]), iter([old]))
        assert read(old) == [3]
        manager.atomic_replace_files([], [])
        with pytest.raises(InvalidArgumentError, match="source_files must be a path"):
            manager.atomic_replace_files([1], [old])  # type: ignore[list-item]


# C7
def test_a_disk_that_fails_before_the_journal_changes_nothing(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(f"{lake}/t/a.parquet", ids([1]))

    def fill(*arguments: Any) -> None:
        raise OSError(28, "No space left on device", arguments[1])

    before = snapshot(f"{lake}/t")
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        staged = put(f"{folder}/0.staged", ids([2]))
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "write_small", fill)
            with pytest.raises(StagingError, match="No space left"):
                manager.atomic_replace_files([staged], [old])
        assert os.path.exists(staged)
        assert snapshot(f"{lake}/t") == before
        manager.atomic_replace_files([staged], [old])
    assert read(old) == [2]


# C6
@pytest.mark.parametrize("given", [True, False])
def test_manager_on_another_filesystem(monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    memory = fsspec.filesystem("memory")
    filesystem = memory if given else None
    root = "/lake/t" if given else "memory://lake/t"
    merganser.write_dataset(ids([1]), root, engine="arrow", filesystem=filesystem)
    (old,) = list_dataset_files(root, filesystem)
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(root, filesystem)
        for number in (2, 3):
            with memory.open(f"{folder}/day=1/x", "wb") as stream:
                pq.write_table(ids([number]), stream)
            manager.atomic_replace_files([f"{folder}/day=1/x"], [old])
            with memory.open(old, "rb") as stream:
                assert pq.read_table(stream).column("id").to_pylist() == [number]
    assert not memory.exists(folder)


# C3
@pytest.mark.parametrize(
    "names", [("x.staged", "0.replaced"), ("1.replaced", "0.replaced"), ("a/1.replaced", "1.replaced")]
)
def test_a_staged_file_of_any_name_is_what_is_published(lake: str, names: tuple[str, str]) -> None:
    old = [put(f"{lake}/t/{name}.parquet", ids([n])) for n, name in enumerate("ab")]
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(f"{lake}/t")
        # Later commits from the same folder have the same names, and links of their own.
        for number in (10, 20):
            staged = [put(f"{folder}/{name}", ids([number, n])) for n, name in enumerate(names)]
            manager.atomic_replace_files(staged, old)
            assert [read(path) for path in old] == [[number, 0], [number, 1]]
        staged = [put(f"{folder}/0.replaced", ids([30]))]
        manager.atomic_replace_files(staged, old[1:])
    assert [read(path) for path in old] == [[20, 0], [30]]
    assert recover(f"{lake}/t") is False
