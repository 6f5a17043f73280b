"""A dataset that was copied or restored with an interrupted commit in it: recovery does there what it does in place."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.crash.faults import SCENARIOS, DatasetFolder, Fault, InjectedError, inject, make_dataset_folder
from tests.crash.test_crash_sweep import data_files, settled, sweep, undisturbed

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.commit.journal import Journal, Move
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.core.storage.staging import open_staging
from merganser.errors import ConcurrentWriteError, DatasetMergeError


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses what is not yet on the disk, and waiting for the disk is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass(frozen=True)
class Copy:
    """What a way of copying keeps: links between files as links, and times of change to so many nanoseconds."""

    name: str
    links: bool
    unit: int | None

    def __call__(self, place: DatasetFolder) -> DatasetFolder:
        """Copy a dataset with all that is beside it."""
        old = os.path.dirname(place.path)
        new = f"{old}-{self.name}"
        known: dict[int, str] = {}
        for folder, _, names in os.walk(old):
            goal = new + folder[len(old) :]
            os.mkdir(goal)
            for name in names:
                self._copy(f"{folder}/{name}", f"{goal}/{name}", known)
        return DatasetFolder(f"{new}/t")

    def _copy(self, file: str, goal: str, known: dict[int, str]) -> None:
        status = os.stat(file)
        if self.links and status.st_ino in known:
            os.link(known[status.st_ino], goal)
            return
        shutil.copyfile(file, goal)
        known[status.st_ino] = goal
        if self.unit is not None:
            os.utime(goal, ns=(status.st_mtime_ns // self.unit * self.unit,) * 2)


COPIES = [
    Copy("archived", links=True, unit=1),
    Copy("packed", links=True, unit=10**9),
    Copy("apart", links=False, unit=1),
    Copy("untimed", links=False, unit=None),
]
every_copy = pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.name)
every_place = pytest.mark.parametrize("copy", [None, *COPIES], ids=lambda copy: copy.name if copy else "in place")


@pytest.mark.parametrize(
    "name",
    [
        "full_merge",
        pytest.param("partitioned_merge", marks=pytest.mark.slow),
        pytest.param("partitioned_overwrite", marks=pytest.mark.slow),
        pytest.param("first_load", marks=pytest.mark.slow),
        pytest.param("retained_merge", marks=pytest.mark.slow),
        pytest.param("undo", marks=pytest.mark.slow),
        pytest.param("dedupe", marks=pytest.mark.slow),
    ],
)
def test_a_copy_of_any_state_recovers_as_the_dataset_does(name: str, lake: str) -> None:
    # C4
    outcome = undisturbed(name, "local", lake)
    seen: set[bool] = set()
    for place, fault, old in sweep(name, "local", lake, "dead"):
        for copy in COPIES:
            other = copy(place)
            merganser.recover(other.path)
            settled(other, outcome, old, committed=fault.journaled)
            other.discard()
        # What is done in copies is not done to what they are copies of.
        merganser.recover(place.path)
        settled(place, outcome, old, committed=fault.journaled)
        seen.add(fault.journaled)
    assert seen == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full_merge", "undo"])
@pytest.mark.parametrize("copy", [COPIES[0], COPIES[-1]], ids=lambda copy: copy.name)
def test_recovery_of_a_copy_may_fail_at_every_step(name: str, copy: Copy, lake: str) -> None:
    # C4
    outcome = undisturbed(name, "local", lake)
    for place, fault, old in sweep(name, "local", lake, "dead"):
        other = copy(place)
        for step in itertools.count(1):
            again = Fault(step, "dead")
            with inject(again), contextlib.suppress(InjectedError, DatasetMergeError):
                merganser.recover(other.path)
            if not again.fired:
                break
        settled(other, outcome, old, committed=fault.journaled)
        other.discard()


def decided(name: str, lake: str) -> DatasetFolder:
    """Kill a change just after its journal is written, before any file is published."""
    place, fault = make_dataset_folder("local", lake), Fault(sys.maxsize, "dead")

    def die_next() -> None:
        fault.at = fault.steps + 1

    fault.on_journal = die_next
    SCENARIOS[name].setup(place)
    before = place.read_files()
    with inject(fault), pytest.raises((InjectedError, DatasetMergeError)):
        SCENARIOS[name].change(place)
    assert place.read_files() == before
    assert fault.journaled
    return place


def other_bytes(file: Path) -> bytes:
    """Return what a file holds with one byte changed in the middle, so that size and footer stay."""
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 0xFF
    return bytes(data)


# f0 and f1 are replaced, f2 is removed.
@pytest.mark.parametrize("name", ["f0.parquet", "f2.parquet"])
@every_copy
def test_a_file_that_changed_in_a_copy_is_not_overwritten(name: str, copy: Copy, lake: str) -> None:
    # C3, C4
    new = undisturbed("full_merge", "local", lake).new
    place = copy(decided("full_merge", lake))
    file = Path(place.path, name)
    changed, time = other_bytes(file), file.stat().st_mtime_ns
    # Another file under its name, of its size and of its time.
    file.with_name("beside").write_bytes(changed)
    os.utime(file.with_name("beside"), ns=(time, time))
    file.with_name("beside").rename(file)
    for _ in range(2):
        with pytest.raises(ConcurrentWriteError, match=rf"{name} was changed by another program"):
            merganser.recover(place.path)
        assert file.read_bytes() == changed
    file.rename(f"{lake}/kept")
    assert merganser.recover(place.path) is True
    assert place.read_rows() == new


@pytest.mark.parametrize("name", ["f0.parquet", "f2.parquet"])
@every_place
def test_a_file_that_is_changed_in_place_is_not_overwritten(name: str, copy: Copy | None, lake: str) -> None:
    # C3, C4: a link to the file sees the change as well
    place = decided("full_merge", lake)
    place = place if copy is None else copy(place)
    file = Path(place.path, name)
    changed = other_bytes(file)
    with file.open("r+b") as stream:
        stream.write(changed)
    # Within the same second, by the clock of the disk.
    os.utime(file, ns=(file.stat().st_mtime_ns + 10**6 + 1,) * 2)
    with pytest.raises(ConcurrentWriteError, match=rf"{name} was changed by another program"):
        merganser.recover(place.path)
    assert file.read_bytes() == changed


@every_place
def test_a_journal_without_links_recovers_in_its_own_place(copy: Copy | None, lake: str) -> None:
    # C4: a disk that has no links, or a journal of a version that made none
    new = undisturbed("full_merge", "local", lake).new
    place = decided("full_merge", lake)
    links = list(Path(place.control).glob("*/.replaced/*.replaced"))
    assert len(links) == 3
    for link in links:
        link.unlink()
    if copy is None:
        assert merganser.recover(place.path) is True
        assert place.read_rows() == new
        return
    place = copy(place)
    before = place.read_files()
    with pytest.raises(ConcurrentWriteError, match=r"Move that file out of the dataset, then call recover\(path\)"):
        merganser.recover(place.path)
    assert place.read_files() == before
    for name in data_files(before):
        os.replace(f"{place.path}/{name}", f"{lake}/{name}")
    assert merganser.recover(place.path) is True
    assert place.read_rows() == new


def test_a_disk_without_links_takes_commits(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C3
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    undisturbed("full_merge", "local", lake)


def test_what_cannot_be_linked_takes_the_place_of_an_old_link_without_changing_its_file(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C3, M9
    store, old, new, link = LocalStore(), Path(lake, "old"), Path(lake, "new"), Path(lake, "link")
    old.write_text("old")
    new.write_text("new")
    assert store.link(str(old), str(link)) is True
    # Links are followed, and existing files are replaced.
    Path(lake, "symlink").symlink_to(new)
    assert store.link(f"{lake}/symlink", str(link)) is True
    assert link.samefile(new)
    assert not link.is_symlink()

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("no links here")

    assert store.link(str(old), str(link)) is True
    monkeypatch.setattr(os, "link", refused)
    assert store.link(str(new), str(link)) is False
    assert not link.exists()
    monkeypatch.undo()
    assert store.link(str(old), str(link)) is True
    monkeypatch.setattr(os, "link", refused)
    store.duplicate(str(new), str(link))
    assert (link.read_text(), old.read_text()) == ("new", "old")


@pytest.mark.parametrize("copy", COPIES[:-1], ids=lambda copy: copy.name)
def test_a_commit_can_be_undone_in_a_copy_that_kept_times(copy: Copy, lake: str) -> None:
    # M9, C4: one that is done, and one that recovery finishes there
    for done in (True, False):
        place = make_dataset_folder("local", lake)
        if done:
            SCENARIOS["retained_merge"].setup(place)
            before = place.read_files()
            SCENARIOS["retained_merge"].change(place)
        else:
            place = decided("retained_merge", lake)
            before = place.read_files()
        other = copy(place)
        assert merganser.undo(other.path).strategy == "full_merge"
        assert data_files(other.read_files()) == data_files(before)
        assert len(merganser.history(place.path)) == 1 + done


def test_the_archive_that_cp_makes_recovers(lake: str) -> None:
    # C4: what the other tests imitate
    new = undisturbed("full_merge", "local", lake).new
    place = decided("full_merge", lake)
    command = shutil.which("cp") or ""
    subprocess.run([command, "-a", os.path.dirname(place.path), f"{lake}/archive"], check=True)
    assert merganser.recover(f"{lake}/archive/t") is True
    assert DatasetFolder(f"{lake}/archive/t").read_rows() == new


@pytest.mark.parametrize("copy", [None, COPIES[-1]], ids=["in place", "untimed"])
def test_a_file_that_changed_before_the_journal_is_not_mistaken_for_the_listed_one(
    copy: Copy | None, lake: str
) -> None:
    # C3, C4
    place = make_dataset_folder("local", lake)
    place.put("f0.parquet", [0], "old")
    location = locate(place.path)
    listed = location.store.get_identity(location.to_path("f0.parquet"))
    place.put("f0.parquet", [0], "another's")
    before = place.read_files()
    with open_session(location) as session, open_staging(location, session.control) as staging:
        DatasetFolder(staging.folder).put("0.staged", [0], "new")
        with pytest.raises(ConcurrentWriteError, match=r"f0\.parquet was changed by another program"):
            session.commit(staging, Journal([Move("0.staged", "f0.parquet", listed)]))
    place = place if copy is None else copy(place)
    with pytest.raises(ConcurrentWriteError, match=r"f0\.parquet was changed by another program"):
        merganser.recover(place.path)
    assert place.read_files() == before


def test_an_unrelated_file_does_not_stop_recovery(lake: str) -> None:
    # C4, M9: a merge refuses Parquet data under another name
    place = decided("retained_merge", lake)
    before = place.read_files()
    stray = Path(place.path, "x.bak")
    stray.write_bytes(Path(place.path, "f0.parquet").read_bytes())
    assert merganser.recover(place.path) is True
    assert len(merganser.history(place.path)) == 2
    assert merganser.vacuum(place.path) == []
    merganser.undo(place.path)
    stray.unlink()
    assert data_files(place.read_files()) == data_files(before)


AUDITS = ["lake/audit", "lake/deep/er/audit", "elsewhere"]


def stopped_with_feed(lake: str, feed: str) -> None:
    """Leave a journaled merge with a change feed, after one that was published."""

    def merge(ids: list[int]) -> None:
        merganser.merge(pa.table({"id": ids}), f"{lake}/lake/t", "upsert", "id", engine="arrow", audit=feed)

    def die(*_: Any) -> None:
        raise InjectedError("killed")

    merge([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "replace", die)
        with pytest.raises(DatasetMergeError):
            merge([1, 2])
    assert len(os.listdir(feed)) == 1


@pytest.mark.parametrize("audit", AUDITS)
def test_a_copy_publishes_its_own_change_feed(audit: str, lake: str) -> None:
    # C4, R5: one that is not copied along is the original's
    feed = f"{lake}/{audit}"
    stopped_with_feed(lake, feed)
    shutil.copytree(f"{lake}/lake", f"{lake}/backup")
    assert merganser.recover(f"{lake}/backup/t") is True
    assert merganser.PyArrowDatasetIO().read(f"{lake}/backup/t").count_rows() == 2
    assert len(os.listdir(feed)) == 1
    if audit != "elsewhere":
        assert len(os.listdir(feed.replace("/lake/", "/backup/", 1))) == 2
    assert merganser.recover(f"{lake}/lake/t") is True
    assert len(os.listdir(feed)) == 2


@pytest.mark.parametrize("audit", AUDITS)
def test_a_dataset_that_was_moved_publishes_its_change_feed(audit: str, lake: str) -> None:
    # C4, R5
    feed = f"{lake}/{audit}"
    stopped_with_feed(lake, feed)
    os.rename(f"{lake}/lake", f"{lake}/moved")
    assert merganser.recover(f"{lake}/moved/t") is True
    assert len(os.listdir(feed.replace("/lake/", "/moved/", 1))) == 2


@pytest.mark.parametrize("audit", AUDITS)
def test_a_journal_with_absolute_paths_of_a_change_feed_recovers(audit: str, lake: str) -> None:
    # C4, R5: of a version before this one
    feed = f"{lake}/{audit}"
    stopped_with_feed(lake, feed)
    (journal,) = Path(lake, "lake", ".t.merganser").glob("*/journal.json")
    found = json.loads(journal.read_bytes())
    for move in found["feed"]:
        move["target"] = f"{feed}/{os.path.basename(move['target'])}"
    del found["mark"]
    journal.write_text(json.dumps(found))
    assert merganser.recover(f"{lake}/lake/t") is True
    assert len(os.listdir(feed)) == 2
