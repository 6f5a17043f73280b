"""One writer at a time, in the order they came: a kernel lock on local disks, a renewed lease elsewhere.

A dead holder never blocks. The kernel drops its lock; a lease that is not renewed, or whose process is gone from this
machine, is taken over by whoever first creates the claim that names it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from filelock import FileLock, Timeout

from merganser.core.storage import liveness
from merganser.core.storage.liveness import HeartbeatMonitor, describe_process, read_description
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.staging import explain_unwritable
from merganser.core.storage.tickets import LocalQueue, RemoteQueue
from merganser.errors import ConcurrentWriteError, LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.storage.local import LocalStore
    from merganser.core.storage.store import Store
    from merganser.core.storage.tickets import TicketQueue

# Seconds that a writer waits for its turn unless the caller says otherwise.
LOCK_TIMEOUT = 60.0
# Between two looks at a lock: at a file, or at an object, each of which is a request.
LOCAL_POLL_SECONDS = 0.01
POLL_SECONDS = 0.05


@contextlib.contextmanager
def hold_lock(store: Store, folder: str, display: str, timeout: float) -> Iterator[Callable[[], None]]:
    """Hold the dataset whose control folder this is, which is made; yields a check that the hold is still ours."""
    with explain_unwritable(store, display, folder):
        store.make_durable_folder(folder)
        lock, queue = _open_lock(store, folder, timeout)
        _acquire(lock, queue, display, timeout)
    try:
        queue.leave()
        yield partial(lock.check, display)
    finally:
        lock.release()


class _Lock(Protocol):
    poll_seconds: float

    def try_acquire(self) -> bool:
        """Take the lock, if it is free or its holder is dead."""

    def watch(self) -> None:
        """Look whether the holder lives, while it is another writer's turn."""

    def describe_holder(self) -> bytes | None:
        """Give what the holder wrote about itself."""

    def check(self, display: str) -> None:
        """Raise if the lock was lost."""

    def release(self) -> None:
        """Give the lock back."""


def _open_lock(store: Store, folder: str, timeout: float) -> tuple[_Lock, TicketQueue]:
    if isinstance(store, RemoteStore):
        return _Lease(store, folder), RemoteQueue(store, folder)
    local = cast("LocalStore", store)
    return _KernelLock(local, folder), LocalQueue(local, folder, timeout)


def _acquire(lock: _Lock, queue: TicketQueue, display: str, timeout: float) -> None:
    """Take a lock when it is this writer's turn; the ticket is given back by whoever has the lock."""
    deadline = time.monotonic() + timeout
    if queue.is_empty() and lock.try_acquire():
        return
    with contextlib.ExitStack() as giving_up:
        giving_up.callback(queue.leave)
        queue.enter()
        while not (queue.is_first() and lock.try_acquire()):
            left = deadline - time.monotonic()
            if left <= 0:
                # Writers ahead may be stopped: a free lock is taken rather than reported as held.
                if lock.try_acquire():
                    break
                raise _make_timeout_error(display, timeout, lock.describe_holder(), queue.count_before())
            lock.watch()
            time.sleep(min(lock.poll_seconds, left))
        giving_up.pop_all()


def _make_timeout_error(display: str, timeout: float, holder: bytes | None, before: int) -> LockTimeoutError:
    who = read_description(holder)
    name = "another writer"
    if who:
        name = f"process {who.get('pid')} on {who.get('host')}, since {who.get('since')}"
    ahead = f" ({before} waiting ahead of this one)" if before else ""
    return LockTimeoutError(
        f"{display} is held by {name}{ahead}; gave up after {timeout:g} s. Wait for it to finish, or pass a longer "
        "lock_timeout."
    )


class _KernelLock:
    """A lock of the kernel's on a file, and beside it a note about the holder."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        self.poll_seconds = LOCAL_POLL_SECONDS
        self._store = store
        self._holder = f"{folder}/holder.json"
        path = f"{folder}/lock"
        with contextlib.suppress(FileExistsError):
            store.open_new(path).close()
        self._lock = FileLock(path, fallback_to_soft=False, thread_local=False)

    def try_acquire(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        # Only a courtesy to those who wait; another user's may be left, which cannot be overwritten but removed.
        with contextlib.suppress(OSError):
            self._store.remove(self._holder)
            with self._store.open_new(self._holder) as stream:
                stream.write(json.dumps(describe_process()).encode())
        return True

    def watch(self) -> None:
        """Do nothing: the kernel knows."""

    def describe_holder(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._store.read_small(self._holder)
        return None

    def check(self, display: str) -> None:
        """Do nothing: the kernel takes no lock away."""

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._store.remove(self._holder)
        self._lock.release()


class _Lease:
    """An object created exclusively, rewritten every few seconds, believed dead when it stays the same."""

    def __init__(self, store: RemoteStore, folder: str) -> None:
        self.poll_seconds = POLL_SECONDS
        self._store = store
        self._folder = folder
        self._path = f"{folder}/lease.json"
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat = 0
        self._holder = HeartbeatMonitor(store, self._path)
        self._claimer: HeartbeatMonitor | None = None
        self._renewer = threading.Thread(target=self._renew, name="merganser-lease", daemon=True)

    def try_acquire(self) -> bool:
        while not self._store.create_exclusively(self._path, self._encode_content()):
            current = self._holder.poll()
            if current is None or not self._holder.is_dead():
                return False
            claim = f"{self._folder}/claim-{read_description(current).get('token', 'unreadable')}"
            if self._store.create_exclusively(claim, self._encode_content()):
                self._remove_lease(current, claim)
                continue
            # Whoever claimed the lease may have died as well.
            if self._claimer is None or self._claimer.path != claim:
                self._claimer = HeartbeatMonitor(self._store, claim)
            if self._claimer.poll() is None or not self._claimer.is_dead():
                return False
            self._store.remove(claim)
        self._renewer.start()
        return True

    def watch(self) -> None:
        self._holder.poll(every=liveness.LEASE_SECONDS / 30)

    def describe_holder(self) -> bytes | None:
        return self._holder.poll()

    def check(self, display: str) -> None:
        if not self._is_mine():
            message = (
                f"Another writer took {display} over while this one was stalled. Nothing was published; run again."
            )
            raise ConcurrentWriteError(message)

    def release(self) -> None:
        self._stop.set()
        self._renewer.join()
        if self._is_mine():
            self._store.remove(self._path)

    def _is_mine(self) -> bool:
        return read_description(self._store.read_small(self._path)).get("token") == self._token

    def _encode_content(self) -> bytes:
        return json.dumps({**describe_process(), "token": self._token, "beat": self._beat}).encode()

    def _remove_lease(self, dead: bytes, claim: str) -> None:
        # Only the claim's creator may remove this lease, and only while it is still the dead one.
        if self._store.read_small(self._path) == dead:
            self._store.remove(self._path)
        self._store.remove(claim)

    def _renew(self) -> None:
        # Store clients raise what they like. Beats run in a pool, so that one that fails is followed by the next.
        with ThreadPoolExecutor(1, thread_name_prefix="merganser-lease") as pool:
            while not self._stop.wait(liveness.LEASE_SECONDS / 3):
                beat = pool.submit(self._renew_once)
                if beat.exception() is None and not beat.result():
                    return

    def _renew_once(self) -> bool:
        self._beat += 1
        if not self._is_mine():
            return False
        self._store.write_small(self._path, self._encode_content())
        return True
