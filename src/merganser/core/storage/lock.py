"""The write lock of a dataset, first come first served: a kernel lock on local disks, a renewed lease elsewhere.

A dead holder never blocks. The kernel releases its lock; an expired lease, or one of a process of this machine that has
ended, is taken over by the first writer that creates a claim on it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, cast

from merganser.core.storage import liveness
from merganser.core.storage.liveness import HeartbeatMonitor, describe_process, encode_heartbeat, read_description
from merganser.core.storage.staging import explain_unwritable
from merganser.core.storage.tickets import LocalQueue, RemoteQueue
from merganser.errors import ConcurrentWriteError, LockTimeoutError
from merganser.timeline import record_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.storage.local import LocalStore
    from merganser.core.storage.remote import RemoteStore
    from merganser.core.storage.store import Store

LOCK_TIMEOUT = 60.0  # the default of `lock_timeout`, in seconds
# Between two attempts: at a file, and at an object, where each is a request.
LOCAL_POLL_SECONDS = 0.01
POLL_SECONDS = 0.05


@contextlib.contextmanager
def hold_lock(
    store: Store, folder: str, display: str, timeout: float, waited: float = 0.0
) -> Iterator[Callable[[], None]]:
    """Create the control folder and hold the lock in it; yields a check that raises if the lock was lost.

    `waited`: seconds of the timeout that the caller has waited before.
    """
    with explain_unwritable(store, display, folder):
        store.make_durable_folder(folder)
        lock, queue = _open_lock(store, folder, timeout)
        _acquire(lock, queue, display, timeout, waited)
    try:
        queue.leave()
        yield partial(lock.check, display)
    finally:
        lock.release()


def _open_lock(store: Store, folder: str, timeout: float) -> tuple[_KernelLock | _Lease, LocalQueue | RemoteQueue]:
    if store.is_local:
        local = cast("LocalStore", store)
        return _KernelLock(local, folder), LocalQueue(local, folder, timeout)
    remote = cast("RemoteStore", store)
    return _Lease(remote, folder), RemoteQueue(remote, folder)


def _acquire(
    lock: _KernelLock | _Lease, queue: LocalQueue | RemoteQueue, display: str, timeout: float, waited: float
) -> None:
    """Take the lock when it is this writer's turn; the caller then leaves the queue."""
    deadline = time.monotonic() + timeout - waited
    if queue.is_empty() and lock.try_acquire():
        return
    with record_span("waiting", "lock"), contextlib.ExitStack() as on_failure:
        on_failure.callback(queue.leave)
        queue.enter()
        while not (queue.is_first() and lock.try_acquire()):
            left = deadline - time.monotonic()
            if left <= 0:
                # Writers ahead may be suspended: take a free lock rather than report it as held.
                if lock.try_acquire():
                    break
                raise _make_timeout_error(display, timeout, lock.describe_holder(), queue.count_before())
            lock.watch()
            time.sleep(min(lock.poll_seconds, left))
        on_failure.pop_all()


def _make_timeout_error(display: str, timeout: float, holder: bytes | None, before: int) -> LockTimeoutError:
    process = read_description(holder)
    name = "another writer"
    if process:
        name = f"process {process.get('pid')} on {process.get('host')}, since {process.get('since')}"
    ahead = f" ({before} waiting ahead of this one)" if before else ""
    return LockTimeoutError(
        f"{display} is held by {name}{ahead}; gave up after {timeout:g} s. Wait for it to finish, or pass a longer "
        "lock_timeout."
    )


class _KernelLock:
    """A kernel lock on a file, and beside it a file that describes the holder."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        self.poll_seconds = LOCAL_POLL_SECONDS
        self._store = store
        self._holder = f"{folder}/holder.json"
        path = f"{folder}/lock"
        with contextlib.suppress(FileExistsError):
            store.open_new(path).close()
        from filelock import FileLock  # noqa: PLC0415  executors, which never lock, need not have it

        self._lock = FileLock(path, fallback_to_soft=False, thread_local=False)

    def try_acquire(self) -> bool:
        from filelock import Timeout  # noqa: PLC0415  as above

        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        # Only for messages. Another user's file may be left, which can be removed but not overwritten.
        with contextlib.suppress(OSError):
            self._store.remove(self._holder)
            with self._store.open_new(self._holder) as stream:
                stream.write(json.dumps(describe_process()).encode())
        return True

    def watch(self) -> None:
        """Do nothing: the kernel releases the lock of a dead holder."""

    def describe_holder(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._store.read_small(self._holder)
        return None

    def check(self, display: str) -> None:
        """Do nothing: a kernel lock cannot be lost."""

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._store.remove(self._holder)
        self._lock.release()


class _Lease:
    """An object created exclusively and rewritten as a heartbeat; without one it expires."""

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
        while not self._store.create_exclusively(self._path, encode_heartbeat(self._token, self._beat)):
            current = self._holder.poll()
            if current is None or not self._holder.is_dead():
                return False
            claim = f"{self._folder}/claim-{read_description(current).get('token', 'unreadable')}"
            if self._store.create_exclusively(claim, encode_heartbeat(self._token, self._beat)):
                self._remove_lease(current, claim)
                continue
            # The claim's creator may have died as well.
            if self._claimer is None or self._claimer.path != claim:
                self._claimer = HeartbeatMonitor(self._store, claim)
            if self._claimer.poll() is None or not self._claimer.is_dead():
                return False
            self._store.remove(claim)
        self._renewer.start()
        return True

    def watch(self) -> None:
        """Poll the holder's heartbeat, while it is another writer's turn."""
        self._holder.poll(every=liveness.LEASE_SECONDS / 30)

    def describe_holder(self) -> bytes | None:
        return self._holder.poll()

    def check(self, display: str) -> None:
        if not self._is_mine():
            raise ConcurrentWriteError(
                f"Another writer took over {display} while this one was stalled. Nothing was published; run again."
            )

    def release(self) -> None:
        self._stop.set()
        self._renewer.join()
        if self._is_mine():
            self._store.remove(self._path)

    def _is_mine(self) -> bool:
        return read_description(self._store.read_small(self._path)).get("token") == self._token

    def _remove_lease(self, dead: bytes, claim: str) -> None:
        # Only the claim's creator may remove the lease, and only if it did not change.
        if self._store.read_small(self._path) == dead:
            self._store.remove(self._path)
        self._store.remove(claim)

    def _renew(self) -> None:
        # Store clients raise any exception. In a pool, a failed beat does not stop the next.
        with ThreadPoolExecutor(1, thread_name_prefix="merganser-lease") as pool:
            while not self._stop.wait(liveness.LEASE_SECONDS / 3):
                beat = pool.submit(self._renew_once)
                if beat.exception() is None and not beat.result():
                    return

    def _renew_once(self) -> bool:
        self._beat += 1
        if not self._is_mine():
            return False
        self._store.write_small(self._path, encode_heartbeat(self._token, self._beat))
        return True
