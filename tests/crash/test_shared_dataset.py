"""A team shares a dataset: real users, each in a child process; permissions that new files take from the dataset."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.crash.faults import simulate_other_disk
from tests.support import assert_unchanged, put, snapshot

import merganser
from merganser.core.storage.local import LocalStore
from merganser.errors import DatasetPermissionError, StagingError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ALICE, BOB, CAROL, TEAM = 54321, 54322, 54323, 54300
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

# The interpreter may be where only root can read: everything is loaded, by being used once, before the user changes.
BEGINNING = """
import json, os, sys, tempfile
import pyarrow as pa
import merganser
def upsert(ids, day="mon", **options):
    rows = pa.table({"id": ids, "day": [day] * len(ids), "by": [os.getuid()] * len(ids)})
    return merganser.merge(rows, path, "upsert", "id", partition_columns=["day"], engine="arrow", **options)
def count_rows():
    return merganser.PyArrowDatasetIO().read(path).count_rows()
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/t"
    upsert([1, 2], batch_id="one")
    upsert([2, 3], retain=1)
    merganser.undo(path)
    upsert([3])
    merganser.plan(pa.table({"id": [1], "day": ["mon"], "by": [0]}), path, "upsert", "id", engine="arrow")
    merganser.compact(path, retain=1)
    merganser.dedupe(path, "id")
    merganser.vacuum(path)
    count_rows()
    merganser.merge(pa.table({"id": [1]}), path, "delete", "id", engine="arrow")
    merganser.recover(path)
path, user, groups, umask = json.loads(sys.argv[1])
os.setgroups(groups)
os.setgid(user)
os.setuid(user)
os.umask(umask)
"""


def run_as(
    user: int, program: str, path: Path, umask: int = 0o022, groups: tuple[int, ...] = (TEAM,), ends: int = 0
) -> str:
    """Run a program as a user of these groups, see how it ends, and give what it printed."""
    given = json.dumps([str(path), user, groups, umask])
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == ends, done.stderr
    return done.stdout


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="merganser-shared-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def make_folder(path: Path, mode: int, owner: int = 0, group: int = 0) -> Path:
    path.mkdir()
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


def found_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the permissions and the group of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (stat.S_IMODE(status.st_mode), status.st_gid)
    return found


def files_and_folders(folder: Path) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the permissions and groups that files have, and those that folders have."""
    found = found_below(folder)
    files = {access for rel, access in found.items() if (folder / rel).is_file()}
    return files, set(found.values()) - files


FIRST = """
upsert([1, 2, 3], retain=3, batch_id="one")
upsert([4], day="tue", retain=3)
"""
SECOND = """
assert upsert([2], retain=3).updated == 1
upsert([5, 6], day="wed", retain=3, batch_id="two")
assert len(merganser.history(path)) == 4
assert merganser.undo(path).inserted == 2
upsert([7], retain=1)
upsert([8], retain=1)
merganser.compact(path, retain=1)
merganser.dedupe(path, "id")
assert len(merganser.vacuum(path, retain=0)) == 1
assert count_rows() == 6
"""
THIRD = """
assert upsert([1, 8, 9], retain=1).updated == 2
upsert([10], day="wed")
"""


@as_root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("exists", "mode", "umask"),
    [(True, 0o2775, 0o022), (False, 0o2775, 0o077), (True, 0o775, 0o077), (False, 0o775, 0o022)],
)
def test_two_users_of_a_group_take_turns(shared: Path, exists: bool, mode: int, umask: int) -> None:
    # C1, C5, W6: whatever their umask, and whether or not the folder hands its group on (set-group-ID)
    lake = make_folder(shared / "lake", mode, group=TEAM)
    path = lake / "t"
    if exists:
        make_folder(path, mode, group=TEAM)
    run_as(ALICE, FIRST, path, umask)
    run_as(BOB, SECOND, path, umask)
    assert BOB in {file.stat().st_uid for file in path.rglob("*.parquet")}
    run_as(ALICE, THIRD, path, umask)
    files, folders = files_and_folders(lake)
    others = 0o005 & ~umask
    assert files == {(0o660 | others & 0o004, TEAM)}
    given = {(mode, TEAM)} if exists else set()
    assert folders == given | {((mode & ~0o007) | others, TEAM)}


KILLED = """
from merganser.core.storage.local import LocalStore
LocalStore.replace = lambda *_: os._exit(7)
"""


@as_root
@pytest.mark.slow
def test_what_one_user_left_another_recovers(shared: Path) -> None:
    # C4, C5: the staged files, the journal and the note about the holder are a killed user's
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    run_as(ALICE, "upsert([1])", path)
    run_as(ALICE, f"upsert([2])\n{KILLED}\nupsert([1, 3])", path, ends=7)
    assert (path.parent / ".t.merganser" / "holder.json").exists()
    run_as(BOB, "assert merganser.recover(path)\nassert upsert([4]).target_count_after == 4", path)
    assert not list((path.parent / ".t.merganser").glob(".staging_*"))


@as_root
@pytest.mark.slow
def test_the_snapshot_of_a_reader_that_died_is_removed_by_another_user(shared: Path) -> None:
    # V6
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    read = "found = merganser.PyArrowDatasetIO().read(path)\nos._exit(7)"
    run_as(ALICE, f"upsert([1])\nupsert([2], day='tue')\n{read}", path, ends=7)
    snapshots = path.parent / ".t.merganser" / "snapshots"
    assert len(list(snapshots.rglob("*.hidden"))) == 2
    run_as(BOB, "upsert([1])", path)
    assert not snapshots.exists()


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_private_dataset_stays_private(shared: Path, umask: int) -> None:
    # C1: also what is kept beside it, in a folder that everybody can enter
    lake = make_folder(shared / "lake", 0o755, owner=ALICE)
    path = make_folder(lake / "t", 0o700, owner=ALICE, group=ALICE)
    run_as(ALICE, f"{FIRST}\nupsert([1, 5], retain=1)", path, umask)
    assert files_and_folders(lake) == ({(0o600, ALICE)}, {(0o700, ALICE)})


@as_root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("parent", "umask", "file", "folder"),
    [(0o755, 0o077, 0o600, 0o700), (0o755, 0o022, 0o644, 0o755), (0o1777, 0o022, 0o644, 0o755)],
)
def test_a_new_dataset_is_private_unless_its_folder_is_shared(
    shared: Path, parent: int, umask: int, file: int, folder: int
) -> None:
    # C1: in a folder such as /tmp everybody has datasets of his own, also in one that belongs to the user's group
    lake = make_folder(shared / "lake", parent, owner=ALICE, group=TEAM)
    run_as(ALICE, FIRST, lake / "t", umask)
    assert files_and_folders(lake) == ({(file, ALICE)}, {(folder, ALICE)})


@pytest.mark.parametrize(
    ("mode", "umask", "file", "folder"),
    [
        (0o755, 0o077, 0o600, 0o700),
        (0o755, 0o022, 0o644, 0o755),
        (0o750, 0o022, 0o640, 0o750),
        (0o750, 0o077, 0o600, 0o700),
        (0o700, 0o022, 0o600, 0o700),
        (0o777, 0o077, 0o660, 0o770),
        (0o777, 0o022, 0o664, 0o775),
        (0o775, 0o002, 0o664, 0o775),
    ],
)
def test_only_a_group_that_can_write_to_the_dataset_gets_more_than_the_umask_allows(
    tmp_path: Path, mode: int, umask: int, file: int, folder: int
) -> None:
    # C1: a folder that can be entered by everybody does not make its files readable by everybody
    path = tmp_path / "t"
    path.mkdir()
    path.chmod(mode)
    before = os.umask(umask)
    try:
        for ids in ([1], [1, 2]):
            rows = pa.table({"id": ids, "day": ["mon"] * len(ids)})
            merganser.merge(rows, str(path), "insert", "id", partition_columns=["day"], engine="arrow", retain=1)
    finally:
        os.umask(before)
    found = found_below(tmp_path)
    assert found.pop("t")[0] == mode
    assert {access for rel, (access, _) in found.items() if (tmp_path / rel).is_file()} == {file}
    assert {access for rel, (access, _) in found.items() if (tmp_path / rel).is_dir()} == {folder}


@as_root
@pytest.mark.slow
def test_permissions_for_a_group_are_not_given_to_another(shared: Path) -> None:
    # C1: a user who is not in the group of a dataset cannot give files to it
    lake = make_folder(shared / "lake", 0o755, owner=ALICE)
    path = make_folder(lake / "t", 0o775, owner=ALICE, group=TEAM)
    run_as(ALICE, FIRST, path, groups=())
    files, folders = files_and_folders(lake)
    assert files == {(0o644, ALICE)}
    assert folders == {(0o755, ALICE), (0o775, TEAM)}


READS = """
from merganser.core import DatasetPermissionError
assert count_rows() == 4
rows = pa.table({"id": [1, 9], "day": ["mon"] * 2, "by": [0, 0]})
assert merganser.plan(rows, path, "upsert", "id", engine="arrow").inserted == 1
assert len(merganser.history(path)) == 2
try:
    upsert([1, 9])
except DatasetPermissionError as error:
    print(error)
"""


@as_root
@pytest.mark.slow
def test_a_user_without_write_access_gets_an_error_with_the_owner(shared: Path) -> None:
    # C5, C7
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    run_as(ALICE, FIRST, path)
    before = snapshot(str(path.parent))
    said = run_as(CAROL, READS, path, groups=())
    assert f"Cannot write the lock or staged files of {path}" in said
    assert f"{path.parent}/.t.merganser belongs to user {ALICE} and group {TEAM}, with mode 2775." in said
    assert "ask the owner to let you write there (a group that shares the dataset needs chgrp -R and chmod" in said
    assert snapshot(str(path.parent)) == before


PARTLY = """
from merganser.core import DatasetPermissionError
rows = pa.table({"id": [1, 9], "day": ["mon", "tue"], "by": [0, 0]})
try:
    merganser.merge(rows, path, "upsert", "id", engine="arrow", batch_id="three")
except DatasetPermissionError as error:
    print(error)
"""


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("closed", ["t/day=tue", ".t.merganser/history", ".t.merganser/batches"])
def test_a_commit_that_could_not_be_published_is_not_journaled(shared: Path, closed: str) -> None:
    # C5, C7: one folder of an earlier writer stops a commit before it blocks all others
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    run_as(ALICE, FIRST, path)
    (path.parent / closed).chmod(0o2755)
    before = snapshot(str(path))
    said = run_as(BOB, PARTLY, path)
    assert f"Cannot publish a commit to {path}: this user may not write in {path.parent / closed}." in said
    assert f"{path.parent / closed} belongs to user {ALICE} and group {TEAM}, with mode 2755." in said
    assert "Nothing was published; ask the owner to let you write there" in said
    assert snapshot(str(path)) == before
    assert merganser.recover(path) is False
    run_as(ALICE, "assert upsert([1, 7]).target_count_after == 5", path)


JOURNALED = """
from merganser.core import DatasetMergeError
from merganser.core.storage.local import LocalStore
LocalStore.find_unwritable, find = lambda *_: None, LocalStore.find_unwritable
def replace(self, source, target, original=LocalStore.replace):
    LocalStore.find_unwritable = find
    original(self, source, target)
LocalStore.replace = replace
try:
    upsert([9], day="tue")
except DatasetMergeError as error:
    print(error)
"""


@as_root
@pytest.mark.slow
def test_what_prevents_a_journaled_commit_is_described(shared: Path) -> None:
    # C4, C7: permissions that were taken away in between
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    run_as(ALICE, FIRST, path)
    (path / "day=tue").chmod(0o2755)
    said = run_as(BOB, JOURNALED, path)
    assert f"A commit to {path} was journaled but not fully published: [Errno 13]" in said
    assert f"{path}/day=tue belongs to user {ALICE} and group {TEAM}, with mode 2755: ask the owner" in said
    assert "Fix the cause, then call recover(path) to complete it." in said
    run_as(ALICE, "assert merganser.recover(path)\nassert count_rows() == 5", path)


UNREADABLE = """
from merganser.core import DatasetPermissionError
rows = pa.table({"id": [1, 9], "day": ["mon"] * 2, "by": [0, 0]})
for call in (
    lambda: merganser.recover(path),
    lambda: merganser.history(path),
    lambda: merganser.plan(rows, path, "upsert", "id", engine="arrow"),
):
    try:
        call()
    except DatasetPermissionError as error:
        print(error)
"""


@as_root
@pytest.mark.slow
def test_a_control_folder_that_may_not_be_read_is_named(shared: Path) -> None:
    # C5, C7
    path = make_folder(shared / "lake", 0o2775, group=TEAM) / "t"
    run_as(ALICE, FIRST, path)
    control = path.parent / ".t.merganser"
    control.chmod(0o700)
    before = snapshot(str(path.parent))
    said = run_as(CAROL, UNREADABLE, path, groups=())
    assert said.count(f"Cannot read the control folder of {path}: [Errno 13]") == 3
    assert said.count(f"belongs to user {ALICE} and group {TEAM}, with mode") == 3
    assert snapshot(str(path.parent)) == before


REFUSED = """
try:
    merganser.merge(pa.table({"id": [1]}), path, "delete", "id", engine="arrow")
except PermissionError as error:
    print(type(error).__name__, error)
"""


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_the_first_merge_of_a_user_who_may_only_read(shared: Path, inside: bool) -> None:
    # C1: there is no control folder yet, and none can be created
    lake = make_folder(shared / "lake", 0o755, owner=ALICE)
    put(f"{lake}/t/f.parquet", pa.table({"id": [1], "day": ["mon"], "by": [0]}))
    os.chown(lake / "t", ALICE, TEAM)
    if not inside:
        lake.chmod(0o555)
    before = snapshot(str(lake))
    said = run_as(CAROL, REFUSED, lake / "t")
    assert said.startswith("DatasetPermissionError Cannot write the lock or staged files of")
    assert f"{lake}/t belongs to user {ALICE} and group {TEAM}, with mode 755." in said
    assert snapshot(str(lake)) == before


@pytest.mark.parametrize("what", ["lock", ".staging_"])
@pytest.mark.parametrize("problem", [PermissionError(errno.EACCES, "no"), OSError(errno.ENOSPC, "No space left")])
def test_what_cannot_be_made_is_named(lake: str, what: str, problem: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5, C7: the lock and the staging folder, with their folder's owner and a remedy; nothing changes
    path = f"{lake}/t"
    put(f"{path}/f.parquet", pa.table({"id": [1]}))
    original, name = (LocalStore.open_new, "open_new") if what == "lock" else (LocalStore.make_folder, "make_folder")

    def refuse(self: LocalStore, made: str) -> Any:
        if made.rpartition("/")[2].startswith(what):
            raise problem
        return original(self, made)

    monkeypatch.setattr(LocalStore, name, refuse)
    kind = DatasetPermissionError if isinstance(problem, PermissionError) else StagingError
    with (
        assert_unchanged(path),
        pytest.raises(kind, match=rf"{path} in {lake}/\.t\.merganser: .*Nothing was published") as told,
    ):
        merganser.merge(pa.table({"id": [1, 2]}), path, "upsert", "id")
    assert type(told.value) is kind
    owned = f"{lake}/.t.merganser belongs to user" in str(told.value)
    assert owned == isinstance(problem, PermissionError)


def test_a_disk_without_locks_is_refused(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5
    put(f"{lake}/t/f.parquet", pa.table({"id": [1]}))

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(StagingError, match="keep the dataset on a disk that has file locks"),
    ):
        merganser.merge(pa.table({"id": [1]}), f"{lake}/t", "upsert", "id")


def test_a_holder_note_that_cannot_be_written_does_not_stop_a_merge(lake: str) -> None:
    # C5: a folder of its name can neither be removed nor written, nor read by those who wait
    path = f"{lake}/t"
    merganser.merge(pa.table({"id": [1]}), path, "upsert", "id")
    os.makedirs(f"{lake}/.t.merganser/holder.json/full")
    assert merganser.merge(pa.table({"id": [1, 2]}), path, "upsert", "id").target_count_after == 2
    assert os.path.isdir(f"{lake}/.t.merganser/holder.json/full")


def test_a_linked_file_on_another_disk_keeps_mode_and_owner(lake: str) -> None:
    # W6
    path, real = f"{lake}/t", f"{lake}/another disk/real"
    put(real, pa.table({"id": [1], "v": ["old"]}))
    os.makedirs(path)
    os.symlink(real, f"{path}/f.parquet")
    owner = ALICE if os.geteuid() == 0 else os.geteuid()
    os.chown(real, owner, -1)
    os.chmod(real, 0o640)
    with simulate_other_disk():
        merganser.merge(pa.table({"id": [1], "v": ["new"]}), path, "upsert", "id")
    found = os.stat(real)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o640, owner)
