"""Waiting writers are served in the order of arrival; dead, suspended and lost waiters do not block others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from tests.crash.faults import DatasetFolder, make_dataset_folder
from tests.crash.test_concurrency import dead_pid, in_threads, process
from tests.support import assert_unchanged

import merganser
from merganser.core import IncrementalFileManager
from merganser.core.storage import liveness, lock, tickets
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.tickets import LocalQueue, RemoteQueue
from merganser.errors import LockTimeoutError, StagingError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

WRITERS, MERGES = 8, 20
KINDS = ["local", "memory"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, lake: str) -> DatasetFolder:
    return make_dataset_folder(request.param, lake)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(liveness, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.01)
    return 0.6


def hold(place: DatasetFolder, timeout: float = 60) -> contextlib.AbstractContextManager[object]:
    return lock.hold_lock(locate(place.path).store, place.control, place.path, timeout)


def waiting(place: DatasetFolder) -> list[int]:
    """Return the numbers of the tickets that there are."""
    return sorted(int(name) for name in locate(place.path).store.list_names(f"{place.control}/{tickets.QUEUE}"))


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def insert(place: DatasetFolder, key: int, **options: Any) -> merganser.MergeResult:
    return merganser.merge(pa.table({"id": [key]}), place.path, "upsert", "id", engine="arrow", **options)


def check_counter(place: DatasetFolder) -> None:
    """Assert that each merge raised the number of rows by one, from the number that the one before it left."""
    records = merganser.history(place.path)[::-1]
    assert [record.target_count_after for record in records] == list(range(1, WRITERS * MERGES + 1))
    keys = sorted(
        key
        for rel, data in place.read_files().items()
        for key in pq.read_table(pa.BufferReader(data))["id"].to_pylist()
    )
    assert keys == list(range(WRITERS * MERGES))
    assert waiting(place) == []


WRITER = """
import sys
import pyarrow as pa
import merganser
path, first, merges = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for key in range(first, first + merges):
    merganser.merge(pa.table({"id": [key]}), path, "upsert", "id", engine="arrow")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_eight_processes_with_twenty_merges_each_all_get_the_lock(lake: str) -> None:
    # C5: with the default lock_timeout
    place = make_dataset_folder("local", lake)
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(process(WRITER, place.path, str(number * MERGES), str(MERGES)))
            for number in range(WRITERS)
        ]
        assert [writer.wait(300) for writer in started] == [0] * WRITERS
    check_counter(place)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_eight_threads_with_twenty_merges_each_all_get_the_lock(place: DatasetFolder) -> None:
    # C5, C6

    def work(number: int) -> None:
        for key in range(number * MERGES, (number + 1) * MERGES):
            insert(place, key)

    assert in_threads([lambda number=number: work(number) for number in range(WRITERS)], 300) == []  # type: ignore[misc]
    check_counter(place)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_counter_that_each_writer_reads_and_raises_loses_nothing(place: DatasetFolder) -> None:
    # C5: read and written inside the lock
    filesystem, root = fsspec.core.url_to_fs(place.path)
    (first,) = merganser.write_dataset(pa.table({"n": [0]}), place.path).files
    file = f"{root}/{first.path.rpartition('/')[2]}"

    def read() -> int:
        with filesystem.open(file, "rb") as stream:
            return int(pq.read_table(io.BytesIO(stream.read()))["n"][0].as_py())

    def work() -> None:
        for _ in range(MERGES):
            with IncrementalFileManager() as manager:
                staged = f"{manager.create_staging_directory(place.path)}/0.staged"
                with filesystem.open(staged, "wb") as stream:
                    pq.write_table(pa.table({"n": [read() + 1]}), stream)
                manager.atomic_replace_files([staged], [file])

    assert in_threads([work] * WRITERS, 300) == []
    assert read() == WRITERS * MERGES


def test_writers_are_served_in_the_order_they_came(place: DatasetFolder) -> None:
    # C5: a writer that arrives when the lock is free queues behind those that wait
    served: list[int] = []

    def enter(number: int) -> None:
        with hold(place):
            served.append(number)
            if number == 0:
                until(lambda: len(waiting(place)) == WRITERS)
            time.sleep(0.02)

    with contextlib.ExitStack() as end:
        holding = end.enter_context(contextlib.ExitStack())
        holding.enter_context(hold(place))
        for number in range(WRITERS):
            thread = threading.Thread(target=enter, args=(number,))
            thread.start()
            end.callback(thread.join, 60)
            until(lambda number=number: len(waiting(place)) == number + 1)  # type: ignore[misc]
        holding.close()
        until(lambda: served)
        enter(WRITERS)
    assert served == list(range(WRITERS + 1))
    assert waiting(place) == []


WAITER = """
import sys
from merganser.core.storage import lock
from merganser.core.storage.location import locate
folder = sys.argv[1]
with lock.hold_lock(locate(folder).store, folder, "t", 60):
    print("served", flush=True)
"""


@contextlib.contextmanager
def waiter(place: DatasetFolder) -> Iterator[subprocess.Popen[str]]:
    """Let another process wait behind those that already wait."""
    before = len(waiting(place))
    with process(WAITER, place.control) as started:
        until(lambda: len(waiting(place)) > before)
        # A ticket that is renewed is locked: before that, others would take it for a dead writer's.
        ticket = Path(place.control, tickets.QUEUE, str(waiting(place)[-1]))
        created = ticket.stat().st_mtime_ns
        until(lambda: ticket.stat().st_mtime_ns > created)
        yield started


def test_a_killed_waiter_does_not_block_others(lake: str) -> None:
    # C5: the kernel reports its death at once; its ticket is removed at the next check, also by those who do not wait
    place = make_dataset_folder("local", lake)
    with contextlib.ExitStack() as running:
        holding = running.enter_context(contextlib.ExitStack())
        holding.enter_context(hold(place))
        # They are not reaped: they are zombies.
        for killed in [running.enter_context(waiter(place)) for _ in range(2)][::-1]:
            os.kill(killed.pid, signal.SIGKILL)
        holding.close()
        assert waiting(place) == [1, 2]
        with hold(place, timeout=2):
            assert waiting(place) == []


def test_a_stopped_waiter_is_passed_over_and_keeps_its_place(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5
    place = make_dataset_folder("local", lake)
    with contextlib.ExitStack() as running:
        holding = running.enter_context(contextlib.ExitStack())
        holding.enter_context(hold(place))
        stopped = running.enter_context(waiter(place))
        os.kill(stopped.pid, signal.SIGSTOP)
        with pytest.raises(LockTimeoutError, match=r"\(1 waiting ahead of this one\)"):
            insert(place, 1, lock_timeout=0.1)
        holding.close()
        monkeypatch.setattr(tickets, "STALLED_SECONDS", 0.3)
        assert insert(place, 1, lock_timeout=30).inserted == 1
        assert waiting(place) == [1]
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.communicate(timeout=60)[0] == "served\n"
    assert waiting(place) == []


def test_a_stopped_waiter_is_passed_over_in_half_the_time_of_a_short_wait(lake: str) -> None:
    # C5: so that there is time left for others who wait as well
    place = make_dataset_folder("local", lake)
    with contextlib.ExitStack() as running:
        holding = running.enter_context(contextlib.ExitStack())
        holding.enter_context(hold(place))
        stopped = running.enter_context(waiter(place))
        os.kill(stopped.pid, signal.SIGSTOP)
        holding.close()
        started = time.monotonic()
        with hold(place, timeout=4):
            assert time.monotonic() - started < 3.5
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.communicate(timeout=60)[0] == "served\n"


def test_a_living_waiter_is_not_passed_over_by_a_short_wait(lake: str) -> None:
    # C5: its ticket is renewed much more often than half of that wait
    place = make_dataset_folder("local", lake)
    store: Any = locate(place.path).store
    with hold(place):
        first, second = LocalQueue(store, place.control), LocalQueue(store, place.control, timeout=1.4)
        first.enter()
        ends = time.monotonic() + 1.9
        while time.monotonic() < ends:
            first.is_first()
            time.sleep(0.01)
        second.enter()
        assert not second.is_first()
        second.leave()
        first.leave()


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_free_lock_is_taken_rather_than_reported_as_held(place: DatasetFolder, timeout: float) -> None:
    # C5, C6: the lock is free, and the writer ahead does not take it
    store: Any = locate(place.path).store
    store.make_durable_folder(place.control)
    ahead: Any = (LocalQueue if store.is_local else RemoteQueue)(store, place.control)
    ahead.enter()
    assert insert(place, 1, lock_timeout=timeout).inserted == 1
    assert waiting(place) == [1]
    ahead.leave()


HOLDER = """
import sys, time
from merganser.core.storage import lock
from merganser.core.storage.location import locate
folder = sys.argv[1]
with lock.hold_lock(locate(folder).store, folder, "t", 60):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_timeout_does_not_name_a_holder_that_was_killed(lake: str) -> None:
    # C5: whose note is left
    place = make_dataset_folder("local", lake)
    os.makedirs(place.control)
    with process(HOLDER, place.control) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "held\n"
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(60)
        assert json.loads(Path(place.control, "holder.json").read_bytes())["pid"] == killed.pid
        with hold(place), pytest.raises(LockTimeoutError, match=f"held by process {os.getpid()} on "):
            insert(place, 1, lock_timeout=0.1)


def leave_ticket(place: DatasetFolder, number: int, pid: int, host: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.makedirs(f"{place.control}/{tickets.QUEUE}", exist_ok=True)
    content = {**liveness.describe_process(), "pid": pid, "host": host}
    memory.pipe_file(f"{place.control}/{tickets.QUEUE}/{number}", json.dumps(content).encode())


def test_tickets_of_dead_processes_of_this_machine_are_removed_from_an_object_store_at_once(lake: str) -> None:
    # C5, C6
    place = make_dataset_folder("memory", lake)
    for number in (3, 4, 7):
        leave_ticket(place, number, dead_pid(), liveness.describe_process()["host"])  # type: ignore[arg-type]
    insert(place, 1, lock_timeout=1)
    assert waiting(place) == []


def test_tickets_that_are_not_renewed_are_removed_all_at_the_same_time(lake: str, short_lease: float) -> None:
    # C5, C6: a machine with many waiting writers may die
    place = make_dataset_folder("memory", lake)
    for number in range(1, 9):
        leave_ticket(place, number, 4711, "elsewhere")
    started = time.monotonic()
    insert(place, 1, lock_timeout=60)
    assert short_lease <= time.monotonic() - started < 5 * short_lease
    assert waiting(place) == []


def test_a_living_waiter_keeps_its_place_for_longer_than_a_lease(lake: str, short_lease: float) -> None:
    # C5, C6: its ticket is renewed while it waits
    place = make_dataset_folder("memory", lake)
    served: list[int] = []

    def enter(number: int) -> None:
        with hold(place):
            served.append(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(3)]
    with hold(place):
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: len(waiting(place)) == number + 1)  # type: ignore[misc]
        time.sleep(3 * short_lease)
        assert waiting(place) == [1, 2, 3]
    for thread in threads:
        thread.join(60)
    assert served == [0, 1, 2]


def test_the_holder_is_watched_also_while_others_wait_ahead(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5, C6: else a dead holder would block for as long as each of those ahead gives up before a lease has run out
    monkeypatch.setattr(liveness, "LEASE_SECONDS", 3.0)
    place = make_dataset_folder("memory", lake)
    content = {**liveness.describe_process(), "host": "elsewhere", "token": "theirs"}
    fsspec.filesystem("memory").pipe_file(f"{place.control}/lease-1", json.dumps(content).encode())
    leave_ticket(place, 1, 4711, "elsewhere")
    with contextlib.ExitStack() as running:
        thread = threading.Thread(target=insert, args=(place, 1))
        thread.start()
        running.callback(thread.join, 60)
        until(lambda: waiting(place) == [1, 2])
        for beat in range(7):
            time.sleep(0.5)
            leave_ticket(place, 1, beat, "elsewhere")
        fsspec.filesystem("memory").rm_file(f"{place.control}/{tickets.QUEUE}/1")
        ahead_gone = time.monotonic()
        thread.join(60)
        assert time.monotonic() - ahead_gone < 1.5


def test_a_waiter_whose_ticket_was_removed_queues_again(lake: str) -> None:
    # C5, C6
    place = make_dataset_folder("memory", lake)
    memory = fsspec.filesystem("memory")
    leave_ticket(place, 1, 4711, "elsewhere")
    with contextlib.ExitStack() as running:
        thread = threading.Thread(target=insert, args=(place, 1))
        thread.start()
        running.callback(thread.join, 60)
        until(lambda: waiting(place) == [1, 2])
        leave_ticket(place, 5, 4711, "elsewhere")
        memory.rm_file(f"{place.control}/{tickets.QUEUE}/2")
        until(lambda: waiting(place) == [1, 5, 6])
        for number in (1, 5):
            memory.rm_file(f"{place.control}/{tickets.QUEUE}/{number}")
    assert [record.inserted for record in merganser.history(place.path)] == [1]
    assert waiting(place) == []


def test_a_writer_that_times_out_names_the_holder_and_leaves_the_queue(place: DatasetFolder) -> None:
    # C5
    with hold(place), contextlib.ExitStack() as running:
        giving_up: list[BaseException] = []

        def enter() -> None:
            with pytest.raises(LockTimeoutError) as error, hold(place, timeout=2):
                pass
            giving_up.append(error.value)

        thread = threading.Thread(target=enter)
        thread.start()
        running.callback(thread.join, 60)
        until(lambda: len(waiting(place)) == 1)
        with pytest.raises(
            LockTimeoutError, match=rf"process {os.getpid()} on .* \(1 waiting ahead of this one\); gave up"
        ):
            insert(place, 1, lock_timeout=0.2)
        assert len(waiting(place)) == 1
        until(lambda: giving_up)
        assert "waiting ahead" not in str(giving_up[0])
        assert waiting(place) == []


def test_a_lock_that_nobody_waits_for_costs_one_listing(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5, C6: neither ticket nor folder is made
    place = make_dataset_folder("memory", lake)
    with hold(place):
        pass
    asked: list[str] = []
    for name in ("list_names", "make_folder", "create_exclusively", "read_small", "remove", "write_small"):
        original = getattr(RemoteStore, name)

        def ask(self: RemoteStore, path: str, *others: Any, name: str = name, original: Any = original) -> Any:
            asked.append(f"{name} {path.removeprefix(place.control)}")
            return original(self, path, *others)

        monkeypatch.setattr(RemoteStore, name, ask)
    with hold(place):
        queue = [call for call in asked if tickets.QUEUE in call]
        # The listing of the control folder shows that there is no queue.
        assert queue == []
        # The second listing shows that no higher lease exists.
        assert [call for call in asked if call not in queue] == [
            "make_folder ",
            "list_names ",
            "list_names ",
            "read_small /beat-1",
            "create_exclusively /lease-2",
            "list_names ",
            "remove /lease-1",
            "remove /beat-1",
        ]


def test_without_a_queue_the_fastest_writer_gets_the_lock(lake: str) -> None:
    # C5: a file is in the place of its folder
    place = make_dataset_folder("local", lake)
    os.makedirs(place.control)
    Path(place.control, tickets.QUEUE).write_bytes(b"")
    with hold(place) as _, pytest.raises(LockTimeoutError):
        insert(place, 1, lock_timeout=0.1)
    holder = hold(place)
    holder.__enter__()
    threading.Timer(0.3, holder.__exit__, (None, None, None)).start()
    assert insert(place, 1).inserted == 1


def test_a_queue_that_somebody_removes_is_made_again(lake: str) -> None:
    # C5
    place = make_dataset_folder("local", lake)
    with contextlib.ExitStack() as running, hold(place):
        thread = threading.Thread(target=insert, args=(place, 1))
        thread.start()
        running.callback(thread.join, 60)
        until(lambda: waiting(place) == [1])
        shutil.rmtree(f"{place.control}/{tickets.QUEUE}")
        until(lambda: waiting(place) == [1])
    assert len(merganser.history(place.path)) == 1


def test_writers_that_ignore_the_queue_are_kept_out_too(lake: str) -> None:
    # C5: the lock is the file that it always was
    place = make_dataset_folder("local", lake)
    insert(place, 1)
    with FileLock(f"{place.control}/lock"), pytest.raises(LockTimeoutError):
        insert(place, 2, lock_timeout=0.1)
    with hold(place), pytest.raises(TimeoutError):
        FileLock(f"{place.control}/lock", timeout=0).acquire()
    assert insert(place, 2).inserted == 1


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_taken_once_however_many_come_together(kind: str, lake: str) -> None:
    # C5: removing a ticket removes no other
    place = make_dataset_folder(kind, lake)
    store: Any = locate(place.path).store
    start = threading.Barrier(WRITERS)
    taken: list[int] = []

    def come_and_go() -> None:
        for _ in range(10):
            queue: Any = (LocalQueue if kind == "local" else RemoteQueue)(store, place.control)
            start.wait(60)
            queue.enter()
            start.wait(60)
            numbers = waiting(place)
            assert len(numbers) == WRITERS
            assert queue._number in numbers
            queue.is_first()
            taken.append(queue._number)
            start.wait(60)
            queue.leave()

    assert in_threads([come_and_go] * WRITERS) == []
    assert waiting(place) == []
    assert all(len(set(taken[at : at + WRITERS])) == WRITERS for at in range(0, len(taken), WRITERS))


def test_a_disk_that_refuses_every_lock_ends_the_wait_in_time(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5: no ticket can be had, and none is left
    place = make_dataset_folder("local", lake)
    insert(place, 1)
    asked: list[int] = []

    def refuse(*_: Any) -> None:
        asked.append(1)
        # Ends the test where the code would ask for ever.
        assert len(asked) < 1000
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        assert_unchanged(place.path),
        pytest.raises(StagingError, match="keep the dataset on a disk that has file locks"),
    ):
        insert(place, 2, lock_timeout=0.3)
    with assert_unchanged(place.path), pytest.raises(LockTimeoutError):
        merganser.compact(place.path, lock_timeout=0.3)
    assert waiting(place) == []


def test_a_store_that_creates_no_ticket_ends_the_wait_in_time(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5, C6: every number is said to be taken
    place = make_dataset_folder("memory", lake)
    insert(place, 1)
    asked: list[str] = []
    original = RemoteStore.create_exclusively

    def refuse(self: RemoteStore, path: str, data: bytes) -> bool:
        if tickets.QUEUE not in path:
            return original(self, path, data)
        asked.append(path)
        assert len(asked) < 1000
        return False

    with hold(place):
        monkeypatch.setattr(RemoteStore, "create_exclusively", refuse)
        before = place.read_files()
        with pytest.raises(LockTimeoutError):
            insert(place, 2, lock_timeout=0.3)
        assert asked
        assert place.read_files() == before


@pytest.mark.parametrize(
    "name", ["make_folder", "list_names", "create_exclusively", "read_small", "write_small", "remove"]
)
def test_a_store_that_fails_for_tickets_costs_the_place_in_the_queue_and_nothing_else(
    lake: str, short_lease: float, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # C5, C6: whatever is asked of it; the wait is long enough for a ticket to be renewed
    place = make_dataset_folder("memory", lake)
    insert(place, 1)
    leave_ticket(place, 1, 4711, "elsewhere")
    refused: list[str] = []
    original = getattr(RemoteStore, name)

    def refuse(self: RemoteStore, path: str, *others: Any) -> Any:
        if f"/{tickets.QUEUE}" not in path:
            return original(self, path, *others)
        refused.append(path)
        raise OSError(errno.EIO, "503 Slow Down")

    holder = hold(place)
    # The ticket belongs to no process and is removed here; it is restored for the writer under test.
    holder.__enter__()
    leave_ticket(place, 1, 4711, "elsewhere")
    monkeypatch.setattr(RemoteStore, name, refuse)
    threading.Timer(short_lease, holder.__exit__, (None, None, None)).start()
    assert insert(place, 2, lock_timeout=30).inserted == 1
    assert refused
    monkeypatch.undo()
    assert [record.inserted for record in merganser.history(place.path)] == [1, 1]


def test_a_ticket_with_the_number_of_a_removed_one_stays(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C5: two writers find a dead ticket; before the second has locked it, the first removes it, and a third comes
    place = make_dataset_folder("local", lake)
    store: Any = locate(place.path).store
    with hold(place):
        dead = Path(place.control, tickets.QUEUE, "1")
        store.make_folder(str(dead.parent))
        dead.write_bytes(b"")
        second, third = LocalQueue(store, place.control), LocalQueue(store, place.control)
        second.enter()
        assert waiting(place) == [1, 2]

        def flock(ticket: Any, operation: int) -> None:
            dead.unlink()
            monkeypatch.undo()
            third._ticket = third._take(1)
            fcntl.flock(ticket, operation)

        monkeypatch.setattr(
            tickets, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
        )
        assert second.is_first()
        assert waiting(place) == [1, 2]
        assert not second.is_first()
        third.leave()
        second.leave()
