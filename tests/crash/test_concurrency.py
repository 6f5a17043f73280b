"""Two writers, dead writers and strangers: one commit at a time, and nothing is lost or overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fsspec
import pyarrow as pa
import pytest
from tests.crash.faults import DatasetFolder, make_dataset_folder

import merganser
from merganser.core.commit import staged_files as staged
from merganser.core.dataset.snapshot import check_listing
from merganser.core.merge.attempt import Stager
from merganser.core.storage import liveness, lock
from merganser.core.storage.lease import BEAT, LEASE, find_newest
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.staging import JOURNAL
from merganser.errors import ConcurrentWriteError, LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


def source(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [value] * len(ids)})


def values(place: DatasetFolder) -> dict[int, str]:
    return {key: value for _, key, value in place.read_rows()}


@contextlib.contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this test in a process of its own, ended with the block."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                os.kill(started.pid, signal.SIGKILL)


ROUNDS = 12
WRITER = """
import sys
import pyarrow as pa
import merganser
path, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(1, rounds + 1):
    rows = pa.table({"id": [me, 1000 * (me + 1) + number], "v": [f"round {number}", "added"]})
    merganser.merge(rows, path, "upsert", "id")
"""


@pytest.mark.slow
def test_two_processes_that_merge_at_the_same_time_lose_nothing(lake: str) -> None:
    # C5: the counter rows of both are in one file, so a lost update would show
    place = make_dataset_folder("local", lake)
    place.put("f.parquet", [0, 1], "round 0")
    with process(WRITER, place.path, "0", str(ROUNDS)) as one, process(WRITER, place.path, "1", str(ROUNDS)) as two:
        assert one.wait(100) == 0
        assert two.wait(100) == 0
    added = {1000 * (me + 1) + number: "added" for me in (0, 1) for number in range(1, ROUNDS + 1)}
    assert values(place) == {0: f"round {ROUNDS}", 1: f"round {ROUNDS}", **added}
    assert place.list_staging() == []


@pytest.mark.slow
def test_threads_of_one_process_exclude_each_other(lake: str) -> None:
    # C5
    for kind in ("local", "memory"):
        place = make_dataset_folder(kind, lake)
        place.put("f.parquet", [0, 1, 2], "round 0")

        def rounds(me: int, place: DatasetFolder = place) -> None:
            for number in range(1, 5):
                merganser.merge(source([me, 100 * (me + 1) + number], f"round {number}"), place.path, "upsert", "id")

        assert in_threads([lambda me=me: rounds(me) for me in range(3)]) == []  # type: ignore[misc]
        found = values(place)
        assert [found[me] for me in range(3)] == ["round 4"] * 3
        assert len(found) == 15


def in_threads(works: list[Callable[[], object]], seconds: float = 60) -> list[BaseException]:
    """Run works side by side to their ends; gives what they raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the caller asserts on it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive()
    return errors


SIDE_BY_SIDE = """
import sys, threading
import pyarrow as pa
import merganser
writers, io_threads = int(sys.argv[1]), int(sys.argv[2])
if io_threads:
    pa.set_io_thread_count(io_threads)
ids, updated = list(range(200)), []
for number in range(writers):
    rows = pa.table({"id": ids, "v": ["old"] * len(ids)})
    merganser.write_dataset(rows, f"memory://lake/t{number}", row_group_size=20)
start = threading.Barrier(writers)
def work(number):
    start.wait()
    rows = pa.table({"id": ids[::4], "v": ["new"] * len(ids[::4])})
    updated.append(merganser.merge(rows, f"memory://lake/t{number}", "upsert", "id").updated)
threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(updated)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("writers", "io_threads"), [(12, 0), (1, 1)])
def test_merges_never_wait_for_each_other_on_the_threads_of_arrow(writers: int, io_threads: int) -> None:
    # P1, W5: however many key scans run at once, and however few threads Arrow has, each comes to its end
    with process(SIDE_BY_SIDE, str(writers), str(io_threads)) as started:
        output, _ = started.communicate(timeout=30)
        assert started.returncode == 0
    assert json.loads(output) == [50] * writers


STALLED = """
import sys, time
import pyarrow as pa
import merganser
from merganser.core.storage.local import LocalStore
path, where = sys.argv[1:]
original, calls = getattr(LocalStore, where), []
def stalled(self, *arguments):
    calls.append(arguments)
    if len(calls) == (2 if where == "replace" else 1):
        print("stalled", flush=True)
        time.sleep(60)
    return original(self, *arguments)
setattr(LocalStore, where, stalled)
rows = pa.table({"id": [1, 11, 99], "v": ["killed"] * 3})
merganser.merge(rows, path, "upsert", "id")
"""


@pytest.mark.slow
def test_a_writer_that_stages_blocks_nobody_and_is_removed_once_it_is_killed(lake: str) -> None:
    # V1: others commit and recover beside it, and leave its staging folder to it
    place = make_dataset_folder("local", lake)
    place.put("f0.parquet", [0, 1], "old")
    with process(STALLED, place.path, "create") as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "stalled\n"
        merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=0.1)
        assert merganser.recover(place.path, lock_timeout=0.1) is False
        assert len(place.list_staging()) == 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
    assert merganser.recover(place.path) is True
    assert place.list_staging() == []
    assert values(place) == {0: "mine", 1: "old"}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["write_small", "replace"])
def test_a_killed_writer_does_not_block_and_its_commit_is_recovered(where: str, lake: str) -> None:
    # C4, C5, V1: while it commits the dataset is held, in its name; once it is dead the next merge settles what it left
    place = make_dataset_folder("local", lake)
    place.put("f0.parquet", [0, 1], "old")
    place.put("f1.parquet", [10, 11], "old")
    with process(STALLED, place.path, where) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "stalled\n"
        with pytest.raises(LockTimeoutError) as refused:
            merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=0.1)
        assert isinstance(refused.value, TimeoutError)
        assert f"process {writer.pid} on {socket.gethostname()}" in str(refused.value)
        assert place.path in str(refused.value)
        if where == "replace":
            with pytest.raises(LockTimeoutError):
                merganser.recover(place.path, lock_timeout=0.1)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
    started = time.monotonic()
    merganser.merge(source([0], "mine"), place.path, "upsert", "id")
    assert time.monotonic() - started < 10
    theirs = "killed" if where == "replace" else "old"
    expected = {0: "mine", 1: theirs, 10: "old", 11: theirs}
    assert values(place) == (expected | {99: "killed"} if where == "replace" else expected)
    assert place.list_staging() == []


def test_an_overwrite_holds_the_lock_from_before_the_listing_until_staging_is_gone(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # V1: what concerns every file waits for others, and others wait for it
    place = make_dataset_folder("local", lake)
    place.put("f.parquet", [0, 1], "old")
    # Before a first write one look is taken without the lock, which a refusal would leave behind (M10).
    os.makedirs(place.control)
    store, seen = LocalStore(), []

    def watched(name: str) -> Any:
        original = getattr(LocalStore, name)

        def method(self: LocalStore, *arguments: Any, **options: Any) -> Any:
            with pytest.raises(LockTimeoutError), lock.hold_lock(store, place.control, place.path, 0):
                pass
            seen.append(name)
            return original(self, *arguments, **options)

        return method

    for name in ("list_names", "walk", "replace", "remove_folder"):
        monkeypatch.setattr(LocalStore, name, watched(name))
    merganser.write_dataset(source([0, 9], "new"), place.path, mode="overwrite")
    assert seen[0] == "list_names"
    assert seen[-1] == "remove_folder"
    assert {"walk", "replace"} <= set(seen)
    with lock.hold_lock(store, place.control, place.path, 0):
        pass


def test_recovery_waits_for_the_lock(lake: str) -> None:
    # C5: no other process completes a commit that its writer is still publishing
    for kind in ("local", "memory"):
        place = make_dataset_folder(kind, lake)
        place.put("f.parquet", [0], "old")
        staged = place.control + "/.staging_theirs"
        fsspec.core.url_to_fs(place.path)[0].makedirs(staged)
        fsspec.core.url_to_fs(place.path)[0].pipe_file(f"{staged}/000000.staged", b"half")
        location = locate(place.path)
        with lock.hold_lock(location.store, place.control, place.path, 1), pytest.raises(LockTimeoutError):
            merganser.recover(place.path, lock_timeout=0.1)
        assert place.list_staging() == [".staging_theirs"]
        assert merganser.recover(place.path) is True
        assert place.list_staging() == []


@pytest.mark.parametrize("holder", [b"", b"{", b"[]", b'{"pid": 1', b"\xff\xfe"])
def test_a_holder_that_cannot_be_named_is_another_writer(lake: str, holder: bytes) -> None:
    # C5: the note about the holder is written after the lock is taken, so it may be missing or half there
    place = make_dataset_folder("local", lake)
    place.put("f.parquet", [0], "old")
    location = locate(place.path)
    os.makedirs(place.control)
    with lock.hold_lock(location.store, place.control, place.path, 1):
        Path(place.control, "holder.json").write_bytes(holder)
        with pytest.raises(LockTimeoutError, match="another writer"):
            merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=0.05)


def _add(place: DatasetFolder) -> None:
    place.put("stranger.parquet", [500], "stranger")


def _change(place: DatasetFolder) -> None:
    place.put("f0.parquet", [0, 1, 7], "stranger")


def _remove(place: DatasetFolder) -> None:
    filesystem, root = fsspec.core.url_to_fs(place.path)
    filesystem.rm_file(f"{root}/f1.parquet")


STRANGERS = [_add, _change, _remove]


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("action", ["upsert", "full_merge", "append"])
def test_another_programs_change_while_files_are_staged_is_merged_into(
    action: Any, stranger: Callable[[DatasetFolder], None], lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C6, V1: the outcome is that of a merge that began after the change
    place = make_dataset_folder("local", lake)
    place.put("f0.parquet", [0, 1], "old")
    place.put("f1.parquet", [10, 11], "old")
    original = Stager.stage_early

    def interfere(self: Stager[Any]) -> Any:
        attempt = original(self)
        assert attempt is not None
        stranger(place)
        return attempt

    monkeypatch.setattr(Stager, "stage_early", interfere)
    rows = source([1, 11, 99], "mine")
    if action == "append":
        expected = sorted([*list_rows_after(stranger), *((key, "mine") for key in (1, 11, 99))])
        merganser.write_dataset(rows, place.path)
    else:
        old = {} if action == "full_merge" else dict(list_rows_after(stranger))
        expected = sorted((old | dict.fromkeys([1, 11, 99], "mine")).items())
        merganser.merge(rows, place.path, action, "id")
    assert sorted((key, value) for _, key, value in place.read_rows()) == expected
    assert place.list_staging() == []


def list_rows_after(stranger: Callable[[DatasetFolder], None]) -> list[tuple[int, str]]:
    """Return the rows that a stranger leaves of the two files."""
    first = [(key, "stranger") for key in (0, 1, 7)] if stranger is _change else [(0, "old"), (1, "old")]
    second = [] if stranger is _remove else [(10, "old"), (11, "old")]
    return [*first, *second, *([(500, "stranger")] if stranger is _add else [])]


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(
    ("action", "kind"),
    [("overwrite", "local"), *((action, "memory") for action in ("upsert", "full_merge", "append", "overwrite"))],
)
def test_another_writers_change_between_listing_and_publication_is_detected(
    action: Any, kind: str, stranger: Callable[[DatasetFolder], None], lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C6
    place = make_dataset_folder(kind, lake)
    place.put("f0.parquet", [0, 1], "old")
    place.put("f1.parquet", [10, 11], "old")
    check = check_listing
    seen: list[dict[str, bytes]] = []

    def interfere(target: Any) -> None:
        stranger(place)
        seen.append(place.read_files())
        check(target)

    monkeypatch.setattr(staged, "check_listing", interfere)
    rows = source([1, 11, 99], "mine")
    change: Callable[..., object] = partial(merganser.merge, strategy=action, key_columns="id")
    if action in {"append", "overwrite"}:
        change = partial(merganser.write_dataset, mode=action)
    with pytest.raises(ConcurrentWriteError, match=r"(stranger|f0|f1)\.parquet was changed.*run the merge again"):
        change(rows, place.path)
    assert place.read_files() == seen[0]
    assert place.list_staging() == []


def test_a_file_that_changed_after_the_journal_is_not_overwritten(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C6, C4: between the journal and the rename, or between a crash and its recovery
    place = make_dataset_folder("local", lake)
    place.put("f0.parquet", [0, 1], "old")
    original = LocalStore.write_small

    def write_small(self: LocalStore, path: str, data: bytes) -> None:
        original(self, path, data)
        _change(place)

    monkeypatch.setattr(LocalStore, "write_small", write_small)
    with pytest.raises(ConcurrentWriteError, match=r"f0\.parquet was changed.*recover\(path\)"):
        merganser.merge(source([0], "mine"), place.path, "upsert", "id")
    monkeypatch.undo()
    assert values(place) == {0: "stranger", 1: "stranger", 7: "stranger"}
    with pytest.raises(ConcurrentWriteError, match=r"f0\.parquet was changed"):
        merganser.recover(place.path)
    os.remove(f"{place.path}/f0.parquet")
    assert merganser.recover(place.path) is True
    assert values(place) == {0: "mine", 1: "old"}


# The lease of object stores.


@pytest.fixture
def place(lake: str) -> DatasetFolder:
    found = make_dataset_folder("memory", lake)
    found.put("f.parquet", [0, 1], "old")
    return found


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(liveness, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.01)
    return 0.5


def lease_number(place: DatasetFolder) -> int:
    return find_newest(locate(place.path).store.list_names(place.control))


def lease_path(place: DatasetFolder) -> str:
    return f"{place.control}/{LEASE}{max(lease_number(place), 1)}"


def read_beat(place: DatasetFolder) -> bytes | None:
    return locate(place.path).store.read_small(f"{place.control}/{BEAT}{lease_number(place)}")


def take_over(place: DatasetFolder) -> None:
    """Take the lease of a living holder, as a writer does that saw no heartbeat for long."""
    store, number = locate(place.path).store, lease_number(place)
    assert cast("RemoteStore", store).create_exclusively(f"{place.control}/{LEASE}{number + 1}", b"{}")
    store.remove(f"{place.control}/{LEASE}{number}")


def leave_lease(place: DatasetFolder, pid: int, host: str, token: str = "theirs", **others: str) -> None:  # noqa: S107  not a secret
    memory = fsspec.filesystem("memory")
    memory.makedirs(place.control, exist_ok=True)
    since = "2025-01-01T00:00:00+00:00"
    content = {**liveness.describe_process(), "pid": pid, "host": host, "since": since, "token": token, **others}
    memory.pipe_file(lease_path(place), json.dumps(content).encode())


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(30)
    return ended.pid


def test_a_living_lease_is_waited_for_and_named(place: DatasetFolder) -> None:
    # C5, C6
    leave_lease(place, 4711, "elsewhere")
    with pytest.raises(LockTimeoutError, match="process 4711 on elsewhere") as refused:
        merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=0.1)
    assert place.path in str(refused.value)
    assert values(place) == {0: "old", 1: "old"}


def test_the_lease_of_a_dead_process_of_this_machine_does_not_block(place: DatasetFolder) -> None:
    # C5
    leave_lease(place, dead_pid(), socket.gethostname())
    merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=5)
    assert values(place) == {0: "mine", 1: "old"}
    assert [path for path in place.list_control_files() if "/history/" not in path] == []


def test_a_process_of_another_container_is_not_assumed_dead(place: DatasetFolder) -> None:
    # C5: containers may share a host name, but not the process ids
    leave_lease(place, dead_pid(), socket.gethostname(), space="pid:[1]")
    with pytest.raises(LockTimeoutError):
        merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=0.2)
    assert values(place) == {0: "old", 1: "old"}


def test_a_lease_that_is_no_longer_renewed_is_taken_over(place: DatasetFolder, short_lease: float) -> None:
    # C5, C6
    leave_lease(place, 4711, "elsewhere")
    started = time.monotonic()
    merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=10)
    assert time.monotonic() - started >= short_lease
    assert values(place) == {0: "mine", 1: "old"}


def test_each_lease_has_a_higher_number_than_all_before(place: DatasetFolder) -> None:
    # N1: the journal and the record of the commit carry it; lower leases are removed
    for number in (1, 2, 3):
        merganser.merge(source([0], f"{number}"), place.path, "upsert", "id")
        assert [record.lease for record in merganser.history(place.path)] == list(range(number, 0, -1))
        names = locate(place.path).store.list_names(place.control)
        assert [name for name in names if name.startswith((LEASE, BEAT))] == [f"{BEAT}{number}", f"{LEASE}{number}"]


def test_a_number_that_was_free_long_ago_is_not_taken(place: DatasetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    # N1: a writer is stalled between the listing that shows the highest lease and the creation of the next one
    original = RemoteStore.create_exclusively
    stalled: list[str] = []

    def create_exclusively(self: RemoteStore, path: str, data: bytes) -> bool:
        if not stalled and path.endswith(f"/{LEASE}2"):
            stalled.append(path)
            for number in (1, 2, 3):
                merganser.merge(source([number], "theirs"), place.path, "upsert", "id")
        return original(self, path, data)

    merganser.merge(source([0], "theirs"), place.path, "upsert", "id")
    monkeypatch.setattr(RemoteStore, "create_exclusively", create_exclusively)
    merganser.merge(source([9], "mine"), place.path, "upsert", "id")
    assert stalled
    assert [record.lease for record in merganser.history(place.path)] == [5, 4, 3, 2, 1]
    assert values(place) == {0: "theirs", 1: "theirs", 2: "theirs", 3: "theirs", 9: "mine"}


def test_leases_that_another_program_removed_do_not_block(place: DatasetFolder) -> None:
    # N1: as a rule of the store does that removes old objects; numbers go on from the heartbeats that are left
    for value in ("one", "two"):
        merganser.merge(source([0], value), place.path, "upsert", "id")
        locate(place.path).store.remove(lease_path(place))
    merganser.merge(source([0], "three"), place.path, "upsert", "id", lock_timeout=1)
    assert [record.lease for record in merganser.history(place.path)] == [3, 2, 1]


def test_a_stalled_holder_leaves_the_lease_of_its_successor_alone(place: DatasetFolder, short_lease: float) -> None:
    # N1, N2: neither its heartbeats nor its release
    store = locate(place.path).store
    with lock.hold_lock(store, place.control, place.path, 1) as still_held:
        still_held()
        take_over(place)
        time.sleep(short_lease)
        with pytest.raises(ConcurrentWriteError, match="Nothing was published; run again"):
            still_held()
    assert lease_number(place) == 2
    assert store.read_small(f"{place.control}/{LEASE}2") == b"{}"
    assert read_beat(place) is None


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("content", [b"", b"not json", b"[]"])
def test_an_unreadable_lease_is_taken_over_when_it_stays_the_same(place: DatasetFolder, content: bytes) -> None:
    # C5
    memory = fsspec.filesystem("memory")
    memory.makedirs(place.control, exist_ok=True)
    memory.pipe_file(lease_path(place), content)
    merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=10)
    assert values(place) == {0: "mine", 1: "old"}


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize(("waiters", "here"), [(2, True), (8, True), (8, False)])
def test_of_several_waiters_one_at_a_time_takes_a_dead_lease(place: DatasetFolder, waiters: int, here: bool) -> None:
    # C5: two writers never hold the lock together, whether the holder is known to be dead or only silent
    leave_lease(place, dead_pid(), socket.gethostname() if here else "elsewhere")
    location = locate(place.path)
    inside: list[int] = []
    most: list[int] = []

    def enter() -> None:
        with lock.hold_lock(location.store, place.control, place.path, 30) as still_held:
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            still_held()
            inside.pop()

    assert in_threads([enter] * waiters) == []
    assert most == [1] * waiters
    assert place.list_control_files() == []


@pytest.mark.slow
def test_a_lease_is_renewed_while_its_holder_works(place: DatasetFolder, short_lease: float) -> None:
    # C5: a holder that works longer than a lease lasts keeps it
    location = locate(place.path)
    with lock.hold_lock(location.store, place.control, place.path, 1) as still_held:
        with pytest.raises(LockTimeoutError):
            merganser.merge(source([0], "mine"), place.path, "upsert", "id", lock_timeout=3 * short_lease)
        assert read_beat(place) is not None
        still_held()
    assert place.list_control_files() == []


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_heartbeat_outlives_a_store_that_fails_for_a_moment(
    place: DatasetFolder, short_lease: float, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # C5: with whatever its client raises
    location = locate(place.path)
    failures = [1, 1]

    def write_small(self: RemoteStore, path: str, data: bytes) -> None:
        if failures:
            failures.pop()
            raise error("the network is gone")
        self.filesystem.pipe_file(path, data)

    monkeypatch.setattr(RemoteStore, "write_small", write_small)
    with lock.hold_lock(location.store, place.control, place.path, 1):
        time.sleep(2 * short_lease)
        assert failures == []
        assert read_beat(place) is not None


def test_a_holder_whose_lease_was_taken_publishes_nothing(
    place: DatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C6: a writer that was stalled for too long finds out before it changes anything
    before = place.read_files()
    original = RemoteStore.flush

    def flush(self: RemoteStore, paths: Any) -> None:
        original(self, paths)
        take_over(place)

    monkeypatch.setattr(RemoteStore, "flush", flush)
    with pytest.raises(ConcurrentWriteError, match=r"took over"):
        merganser.merge(source([0, 9], "mine"), place.path, "upsert", "id")
    assert place.read_files() == before
    assert place.list_staging() == []
    assert place.list_control_files() == []


@pytest.mark.parametrize("action", ["upsert", "full_merge", "append", "overwrite"])
def test_a_commit_whose_staged_files_are_gone_changes_nothing(
    action: Any, place: DatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C5, C6: between the last look at the lease and the journal another writer took over, recovered and finished
    place.put("g.parquet", [10, 11], "old")
    before = place.read_files()
    original = RemoteStore.create_exclusively

    def create_exclusively(self: RemoteStore, path: str, data: bytes) -> bool:
        if path.endswith(f"/{JOURNAL}"):
            self.remove_folder(path.rpartition("/")[0])
        return original(self, path, data)

    monkeypatch.setattr(RemoteStore, "create_exclusively", create_exclusively)
    change: Callable[..., object] = partial(merganser.merge, strategy=action, key_columns="id")
    if action in {"append", "overwrite"}:
        change = partial(merganser.write_dataset, mode=action)
    with pytest.raises(ConcurrentWriteError, match="Nothing was published; run again"):
        change(source([0, 9], "mine"), place.path)
    assert place.read_files() == before
    assert place.list_control_files() == []
    assert merganser.recover(place.path) is False
