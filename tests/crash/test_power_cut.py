"""What is on the disk, and in which order: a power cut must never lose a file, nor a kill leave one for ever."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.crash.faults import SCENARIOS, DatasetFolder, Fault, InjectedError, inject, make_dataset_folder

import merganser
from merganser.core.storage.local import LocalStore
from merganser.core.storage.staging import JOURNAL
from merganser.errors import DatasetMergeError

if TYPE_CHECKING:
    from collections.abc import Iterator

Events = list[tuple[str, str]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """What is asked of the system, in order: `fsync` of a path, `replace` onto one, `remove` of one."""
    seen: Events = []
    replace, remove = os.replace, os.remove

    def fsync(descriptor: int) -> None:
        seen.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def replaced(source: str, goal: str) -> None:
        replace(source, goal)
        seen.append(("replace", goal))

    def removed(path: str) -> None:
        remove(path)
        seen.append(("remove", path))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "remove", removed)
    return seen


def above(place: DatasetFolder, file: str) -> list[str]:
    """Return the folders of a file, up to the one that the dataset is in."""
    folders = [os.path.dirname(file)]
    while len(folders[-1]) >= len(place.path):
        folders.append(os.path.dirname(folders[-1]))
    return folders


def check_order(place: DatasetFolder, events: Events, before: dict[str, bytes], *, trusted: bool = False) -> int:
    """Check that a new file is moved only into folders that are on the disk; gives how many there were.

    With `trusted`, folders that had files before are on the disk.
    """
    new, known = 0, {os.path.dirname(f"{place.path}/{rel}") for rel in before} if trusted else set()
    for at, (event, path) in enumerate(events):
        if event == "replace" and path.startswith(f"{place.path}/") and path[len(place.path) + 1 :] not in before:
            new += 1
            for folder in above(place, path) if os.path.dirname(path) not in known else ():
                assert ("fsync", folder) in events[:at], folder
    return new


LOADS = ["first_load", "partitioned_load", "partitioned_merge", "append", "partitioned_overwrite", "compact"]


@pytest.mark.parametrize("name", LOADS)
def test_new_folders_are_on_the_disk_before_files_are_moved_there(name: str, lake: str, events: Events) -> None:
    # C3
    place = make_dataset_folder("local", f"{lake}/new/folders")
    SCENARIOS[name].setup(place)
    before = place.read_files()
    events.clear()
    SCENARIOS[name].change(place)
    assert check_order(place, events, before, trusted=True) > 0


def test_folders_that_exist_are_flushed_once(lake: str, events: Events) -> None:
    # C3: after the moves; waiting for the disk is what a commit to many partitions takes its time for
    path, days = f"{lake}/t", [f"d{number}" for number in range(20)]

    def upsert(ids: range, days: list[str]) -> None:
        rows = pa.table({"id": list(ids), "day": days})
        merganser.merge(rows, path, "upsert", "id", partition_columns="day", engine="arrow")

    upsert(range(20), days)
    events.clear()
    upsert(range(20, 41), [*days, "new"])
    flushed = Counter(path for event, path in events if event == "fsync")
    assert [flushed[f"{path}/day={day}"] for day in days] == [1] * 20
    assert flushed[f"{path}/day=new"] == 2


def test_folders_above_the_dataset_are_on_the_disk_before_the_journal(lake: str, events: Events) -> None:
    # C3
    place = DatasetFolder(f"{lake}/a/b/c/t")
    SCENARIOS["first_load"].change(place)
    (journal,) = [at for at, (event, path) in enumerate(events) if event == "replace" and path.endswith(JOURNAL)]
    for folder in ("", "/a", "/a/b", "/a/b/c", "/a/b/c/.t.merganser"):
        assert ("fsync", f"{lake}{folder}") in events[:journal]


@pytest.mark.parametrize("name", ["partitioned_load", "partitioned_merge"])
def test_a_folder_that_a_killed_process_made_is_not_trusted(name: str, lake: str, events: Events) -> None:
    # C3, C4: it exists, but perhaps not on the disk
    made = 0
    for step in itertools.count(1):
        place, fault = make_dataset_folder("local", lake), Fault(step, "dead")
        SCENARIOS[name].setup(place)
        before = place.read_files()
        with inject(fault), contextlib.suppress(InjectedError, DatasetMergeError):
            SCENARIOS[name].change(place)
        if not fault.fired:
            break
        known = place.read_files()
        made += len([path for path in Path(place.path).glob("day=*") if not any(path.iterdir())])
        events.clear()
        merganser.recover(place.path)
        check_order(place, events, {**before, **known})
    assert made > 0


@pytest.mark.parametrize("name", [*LOADS, "full_merge", "overwrite", "undo", "dedupe"])
def test_the_journal_is_removed_once_its_changes_are_on_the_disk(name: str, lake: str, events: Events) -> None:
    # C3, C4
    place = make_dataset_folder("local", lake)
    SCENARIOS[name].setup(place)
    events.clear()
    SCENARIOS[name].change(place)
    written = max(at for at, (event, path) in enumerate(events) if event == "replace" and path.endswith(JOURNAL))
    gone = next(at for at, (event, path) in enumerate(events) if event == "remove" and path.endswith(JOURNAL))
    changes = [
        (at, os.path.dirname(path))
        for at, (event, path) in enumerate(events)
        if event != "fsync" and path.startswith(f"{place.path}/")
    ]
    assert changes
    for at, folder in changes:
        assert written < at < gone
        # The journal is on the disk first, and later changes are before it is removed.
        assert ("fsync", os.path.dirname(events[written][1])) in events[written:at]
        assert ("fsync", folder) in events[at:gone]


@contextlib.contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """End all changes of the disk just before a small file takes its name for the so manieth time; gives its path."""
    ended: list[str] = []
    seen = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        originals = {(module, name): getattr(module, name) for module, name in CHANGES}

        def change(original: Any, path: Any, *others: Any, **more: Any) -> Any:
            if str(path).endswith(".new") and others and next(seen) == number:
                ended.append(str(path))
            if ended:
                raise InjectedError("killed")
            return original(path, *others, **more)

        for (module, name), original in originals.items():
            patch.setattr(module, name, lambda *given, _original=original, **more: change(_original, *given, **more))
        yield ended


CHANGES = [(os, "replace"), (os, "remove"), (os, "link"), (os, "mkdir"), (shutil, "rmtree")]


def unfinished(place: DatasetFolder) -> list[str]:
    return [path for path in place.list_control_files() if path.endswith(".new")]


@pytest.mark.parametrize("name", ["retained_merge", "partitioned_load", "undo"])
@pytest.mark.parametrize("next_writer", ["merge", "recover"])
def test_the_next_writer_removes_temporary_files(
    name: str, next_writer: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C4
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folders = set()
    for number in itertools.count(1):
        place = make_dataset_folder("local", lake)
        SCENARIOS[name].setup(place)
        with killed_at(number) as ended, contextlib.suppress(InjectedError, DatasetMergeError):
            SCENARIOS[name].change(place)
        if not ended:
            break
        assert unfinished(place) == ended
        folders.add(os.path.relpath(os.path.dirname(ended[0]), place.control).partition("_")[0])
        if next_writer == "merge":
            SCENARIOS["upsert" if name == "undo" else name].change(place)
        else:
            merganser.recover(place.path)
        assert unfinished(place) == []
    assert (
        folders
        == {
            "retained_merge": {".staging", "batches", "history"},
            "partitioned_load": {".staging", ".", "history"},
            "undo": {".staging", "history"},
        }[name]
    )


def test_temporary_files_that_cannot_be_removed_do_not_stop_a_writer(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C4
    place = make_dataset_folder("local", lake)
    SCENARIOS["first_load"].change(place)
    remove, left = LocalStore.remove, Path(place.control, f"partitions.json.{'0f' * 16}.new")
    left.write_text("{")

    def refuse(self: LocalStore, path: str) -> None:
        if path == str(left):
            raise PermissionError("not yours")
        remove(self, path)

    monkeypatch.setattr(LocalStore, "remove", refuse)
    SCENARIOS["upsert"].change(place)
    assert len(merganser.history(place.path)) == 2


def test_only_temporary_files_are_removed(lake: str) -> None:
    # C4: what a version before this one left, and what is another's
    place = make_dataset_folder("local", lake)
    SCENARIOS["first_load"].change(place)
    left = Path(place.control, f"partitions.json.{'0f' * 16}.new")
    others = [Path(place.control, name) for name in ("notes.new", f"{'0f' * 16}.new")]
    for file in (left, *others):
        file.write_text("{")
    SCENARIOS["upsert"].change(place)
    assert not left.exists()
    assert all(file.exists() for file in others)
