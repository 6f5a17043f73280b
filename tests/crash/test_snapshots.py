"""Snapshots beside writers and crashes: one state each, and nobody waits for a reader that died."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.crash.faults import DatasetFolder, Fault, InjectedError, inject
from tests.support import put

import merganser
from merganser.core import IncrementalFileManager
from merganser.core.commit import publish, snapshots
from merganser.core.commit.snapshots import keep_snapshot
from merganser.core.storage import local
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.errors import ConcurrentWriteError, LockTimeoutError, StagingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.faults import Mode

ROOT = Path(__file__).parents[2]
IDS = [0, 1, 10, 11, 20, 21]


@pytest.fixture
def path(lake: str) -> str:
    """A dataset of three files, one of which the second of two commits replaced."""
    for number in range(3):
        put(f"{lake}/t/f{number}.parquet", source([number * 10, number * 10 + 1], "old"))
    merge(f"{lake}/t", "first")
    return f"{lake}/t"


def source(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids)})


def merge(path: str, value: str) -> None:
    """Change every row, in three files."""
    merganser.merge(source(IDS, value), path, "update", "id", engine="arrow", retain=50)


def list_snapshots(path: str) -> list[str]:
    folder = f"{os.path.dirname(path)}/.t.merganser/snapshots"
    return os.listdir(folder) if os.path.isdir(folder) else []


def read_values(folder: str) -> set[str]:
    """Read the values of all rows with another reader; a state of the dataset has one."""
    found = ds.dataset(folder, format="parquet").to_table()
    assert sorted(found["id"].to_pylist()) == IDS
    return set(found["v"].to_pylist())


# V6, V2
@pytest.mark.parametrize("mode", ["before", "after", "dead"])
@pytest.mark.parametrize("as_of", [None, 1])
def test_a_fault_at_any_step_of_a_snapshot_leaves_nothing(path: str, mode: Mode, as_of: int | None) -> None:
    merge(path, "second")
    place, expected = DatasetFolder(path), "second" if as_of is None else "first"
    before, outcomes = place.read_files(), set[bool]()
    for step in itertools.count(1):
        fault, is_made = Fault(step, mode), False
        with inject(fault):
            try:
                with merganser.snapshot(path, as_of=as_of) as folder:
                    is_made = True
                    assert read_values(folder) == {expected}
            except (InjectedError, StagingError):
                assert fault.fired
        outcomes.add(is_made)
        assert place.read_files() == before
        if not fault.fired:
            break
    assert outcomes == {False, True}
    merganser.merge(source([0], "second"), path, "update", "id", engine="arrow", retain=50)
    assert list_snapshots(path) == []


# V6, V3
@pytest.mark.parametrize("mode", ["before", "after", "dead"])
def test_a_reader_reads_whatever_step_of_its_snapshot_fails(path: str, mode: Mode) -> None:
    for step in itertools.count(1):
        with inject(Fault(step, mode)) as fault:
            assert set(merganser.PyArrowDatasetIO().read(path).to_table()["v"].to_pylist()) == {"first"}
        if not fault.fired:
            break
    assert step > 3


KILLED = """
import os, sys, itertools
import merganser
from tests.crash.faults import Fault, inject
merganser.read(sys.argv[1])
for step in itertools.count(1):
    child = os.fork()
    if child == 0:
        with inject(Fault(step, sys.argv[2], exits=True)), merganser.snapshot(sys.argv[1]):
            pass
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 7), code
    if code == 0:
        print(step)
        break
"""


# V6
def test_a_process_that_ends_at_any_step_of_a_snapshot_leaves_it_to_the_next_writer(path: str) -> None:
    before = DatasetFolder(path).read_files()
    command = [sys.executable, "-c", KILLED, path, "after"]
    steps = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(steps) > 5
    assert DatasetFolder(path).read_files() == before
    # Each process removed what the ones before it left.
    assert len(list_snapshots(path)) <= 1
    merge(path, "second")
    assert list_snapshots(path) == []
    assert read_values(path) == {"second"}


HOLDER = """
import sys, time
import merganser
with merganser.snapshot(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


# V6
@pytest.mark.slow
def test_a_holder_that_is_stopped_or_dies_blocks_nobody(path: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    folder = holder.stdout.readline().strip()
    try:
        os.kill(holder.pid, signal.SIGSTOP)
        merganser.merge(source(IDS, "second"), path, "update", "id", lock_timeout=20)
        assert read_values(folder) == {"first"}
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert os.path.isdir(folder)
    merganser.merge(source(IDS, "third"), path, "update", "id", lock_timeout=20)
    assert list_snapshots(path) == []


# V6
def test_a_kept_snapshot_stays_until_its_time(path: str) -> None:
    folder = keep_snapshot(locate(path), None, 60, timedelta(hours=1))
    for value in ("second", "third"):
        merge(path, value)
        with merganser.snapshot(path):
            assert read_values(folder) == {"first"}
    until = Path(folder).parent / "until"
    until.write_text((datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    merge(path, "fourth")
    assert list_snapshots(path) == []


# V6
@pytest.mark.parametrize("damage", [b"", b"soon", b"\xff"])
def test_a_kept_snapshot_without_a_readable_time_is_removed(path: str, damage: bytes) -> None:
    folder = keep_snapshot(locate(path), None, 60, timedelta(hours=1))
    (Path(folder).parent / "until").write_bytes(damage)
    merge(path, "second")
    assert list_snapshots(path) == []


# V6
def test_a_forked_process_does_not_end_a_snapshot(path: str) -> None:
    with merganser.snapshot(path) as folder:
        child = os.fork()
        if child == 0:
            with mock.patch.object(os, "_exit", os._exit):
                import weakref  # noqa: PLC0415  what the interpreter calls at its end

                weakref.finalize._exitfunc()  # type: ignore[attr-defined]
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_values(folder) == {"first"}


# V6
def test_a_forked_process_that_leaves_the_block_does_not_end_a_snapshot(path: str) -> None:
    manager = merganser.snapshot(path)
    folder = manager.__enter__()
    child = os.fork()
    if child == 0:
        manager.__exit__(None, None, None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read_values(folder) == {"first"}
    manager.__exit__(None, None, None)
    assert list_snapshots(path) == []


# V2, V3
@pytest.mark.parametrize("at", [0, 1])
def test_a_snapshot_is_made_while_the_last_other_one_ends(path: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder of all snapshots is removed while it is created, or before a new one is created in it.
    original, calls = os.mkdir, list[str]()

    def mkdir(folder: str, *others: Any, **named: Any) -> None:
        if ".t.merganser/snapshots" in folder:
            calls.append(folder)
            if len(calls) == at + 1:
                if at == 0:
                    raise FileExistsError(17, "exists, and is removed at once", folder)
                os.rmdir(os.path.dirname(folder))
        original(folder, *others, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)
    found = merganser.PyArrowDatasetIO().read(path)
    assert len(list_snapshots(path)) == 1
    assert len(calls) > 2
    assert found.count_rows() == len(IDS)


# V3
def test_a_snapshot_that_is_collected_at_any_moment_waits_for_no_lock(path: str) -> None:
    found = merganser.PyArrowDatasetIO().read(path)
    refuse = mock.Mock(side_effect=AssertionError("a lock may be held"))
    with mock.patch.object(LocalStore, "remove_folder", refuse):
        del found
        gc.collect()
        for _ in range(500):
            if not list_snapshots(path):
                break
            time.sleep(0.01)
    assert list_snapshots(path) == []


def run_at(name: str, at: int, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run something once, before the call number `at` of a method of the local store; gives the calls."""
    original, calls = getattr(LocalStore, name), list[int]()

    def method(self: LocalStore, *arguments: Any, **options: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == at:
            run()
        return original(self, *arguments, **options)

    monkeypatch.setattr(LocalStore, name, method)
    return calls


def replace_by_hand(path: str) -> None:
    """Replace two files by the manager of files, which leaves no record in the history."""
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(path)
        staged = [put(f"{folder}/{number}.parquet", source(IDS[2 * number :][:2], "second")) for number in range(3)]
        manager.atomic_replace_files(staged, [f"{path}/f{number}.parquet" for number in range(3)])


# V2
@pytest.mark.parametrize("change", [lambda path: merge(path, "second"), replace_by_hand])
def test_a_commit_at_any_point_of_a_snapshot_is_in_it_or_not(
    path: str, change: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[str]()
    for name in ("list_names", "walk", "link", "get_path_type"):
        for at in itertools.count(1):
            with monkeypatch.context() as patch:
                calls = run_at(name, at, lambda: change(path), patch)
                with merganser.snapshot(path) as folder:
                    (value,) = read_values(folder)
                    seen.add(value)
            if len(calls) < at:
                break
            merge(path, "first")
    assert seen == {"first", "second"}


# V2, V3
@pytest.mark.parametrize("at", range(1, 7))
def test_a_file_that_vanishes_while_files_are_listed_is_no_error(
    path: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = local._format_identity, list[int]()

    def format_identity(status: os.stat_result) -> str:
        calls.append(at)
        if len(calls) == at:
            merganser.compact(path)
        return original(status)

    monkeypatch.setattr(local, "_format_identity", format_identity)
    with merganser.snapshot(path) as folder:
        assert read_values(folder) == {"first"}
    merge(path, "second")
    calls.clear()
    found = merganser.PyArrowDatasetIO().read(path)
    assert len(list_snapshots(path)) == 1
    assert sorted(found.to_table()["id"].to_pylist()) == IDS


# V2
def test_a_snapshot_beside_dense_commits_is_made_between_two(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, number, done = snapshots._try_to_fill, itertools.count(), list[bool]()

    def attempt(plan: Any, made: Any) -> bool:
        if not done:
            # The first attempt is without the lock.
            with monkeypatch.context() as patch:
                run_at("link", 2, lambda: merge(path, f"{next(number)}"), patch)
                done.append(original(plan, made))
                return done[-1]
        done.append(original(plan, made))
        with pytest.raises(LockTimeoutError):
            merganser.merge(source(IDS, "no"), path, "update", "id", lock_timeout=0)
        return done[-1]

    monkeypatch.setattr(snapshots, "_try_to_fill", attempt)
    with merganser.snapshot(path) as folder:
        assert read_values(folder) == {"0"}
    assert done == [False, True]


# V2
def test_a_program_that_waits_for_no_lock_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, number = snapshots._fill_folder, itertools.count()

    def fill(*arguments: Any) -> None:
        put(f"{path}/f{next(number)}.parquet", source([0], "other"))
        original(*arguments)

    monkeypatch.setattr(snapshots, "_fill_folder", fill)
    with pytest.raises(ConcurrentWriteError, match="another program, which does not wait for locks"):
        merganser.snapshot(path).__enter__()
    assert list_snapshots(path) == []


# V2, C4
def test_a_snapshot_completes_the_commit_of_a_dead_writer(path: str) -> None:
    fault = mock.patch.object(publish, "_move_files", side_effect=OSError("dead"))
    with fault, pytest.raises(merganser.DatasetMergeError, match="recover"):
        merge(path, "second")
    assert read_values(path) == {"first"}
    with merganser.snapshot(path) as folder:
        assert read_values(folder) == read_values(path) == {"second"}


# V2
@pytest.mark.slow
def test_a_snapshot_waits_for_a_commit_that_is_being_published(path: str) -> None:
    original, is_publishing, may_end = publish._remove_files, threading.Event(), threading.Event()

    def remove_files(*arguments: Any) -> None:
        is_publishing.set()
        assert may_end.wait(30)
        original(*arguments)

    with mock.patch.object(publish, "_remove_files", remove_files):
        writer = threading.Thread(target=merge, args=(path, "second"))
        writer.start()
        assert is_publishing.wait(30)
        with pytest.raises(LockTimeoutError, match=r"gave up after 0\.1 s"):
            merganser.snapshot(path, lock_timeout=0.1).__enter__()
        threading.Timer(0.5, may_end.set).start()
        with merganser.snapshot(path) as folder:
            assert read_values(folder) == {"second"}
        writer.join()
    assert list_snapshots(path) == []
