"""The write lock of a dataset, first come first served: a kernel lock on local disks, a renewed lease elsewhere.

A dead holder never blocks. The kernel releases its lock; an expired lease, or one of a process of this machine that has
ended, is taken over.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from merganser.core.storage.lease import Lease
from merganser.core.storage.liveness import describe_process, read_description
from merganser.core.storage.staging import explain_unwritable
from merganser.core.storage.tickets import LocalQueue, RemoteQueue
from merganser.errors import LockTimeoutError
from merganser.timeline import record_span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.core.storage.local import LocalStore
    from merganser.core.storage.remote import RemoteStore
    from merganser.core.storage.store import Store

LOCK_TIMEOUT = 60.0  # the default of `lock_timeout`, in seconds
# Between two attempts, at most: at a file, and at an object, where each is a request.
LOCAL_POLL_SECONDS = 0.01
POLL_SECONDS = 0.05
# At a file, the first attempts follow each other sooner: this part of the time that was waited before.
_PART_OF_WAITED = 0.05
_MIN_POLL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that is held; the call raises an error if it was lost.

    `number` is the fencing token of a lease, higher than those of all holders before; None for a kernel lock.
    """

    _lock: _KernelLock | Lease
    _display: str

    def __call__(self) -> None:
        """Raise an error if another writer took over."""
        self._lock.check(self._display)

    @property
    def number(self) -> int | None:
        """The fencing token."""
        return self._lock.number


@contextlib.contextmanager
def hold_lock(store: Store, folder: str, display: str, timeout: float, waited: float = 0.0) -> Iterator[HeldLock]:
    """Create the control folder and hold the lock in it.

    `waited`: seconds of the timeout that the caller has waited before.
    """
    with explain_unwritable(store, display, folder):
        store.make_durable_folder(folder)
        lock, queue = _open_lock(store, folder, timeout)
        _acquire(lock, queue, display, timeout, waited)
    try:
        queue.leave()
        yield HeldLock(lock, display)
    finally:
        lock.release()


def _open_lock(store: Store, folder: str, timeout: float) -> tuple[_KernelLock | Lease, LocalQueue | RemoteQueue]:
    if store.is_local:
        local = cast("LocalStore", store)
        return _KernelLock(local, folder), LocalQueue(local, folder, timeout)
    remote = cast("RemoteStore", store)
    return Lease(remote, folder, POLL_SECONDS), RemoteQueue(remote, folder)


def _acquire(
    lock: _KernelLock | Lease, queue: LocalQueue | RemoteQueue, display: str, timeout: float, waited: float
) -> None:
    """Take the lock when it is this writer's turn; the caller then leaves the queue."""
    start = time.monotonic()
    deadline = start + timeout - waited
    if queue.is_empty() and lock.try_acquire():
        return
    with record_span("waiting", "lock"), contextlib.ExitStack() as on_failure:
        on_failure.callback(queue.leave)
        queue.enter()
        while not (queue.is_first() and lock.try_acquire()):
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                # Writers ahead may be suspended: take a free lock rather than report it as held.
                if lock.try_acquire():
                    break
                raise _make_timeout_error(display, timeout, lock.describe_holder(), queue.count_before())
            lock.watch()
            time.sleep(min(_choose_pause(lock, now - start), left))
        on_failure.pop_all()


def _choose_pause(lock: _KernelLock | Lease, waited: float) -> float:
    """Choose the seconds until the next attempt: a kernel lock that is held for milliseconds is passed on in less."""
    if isinstance(lock, Lease):
        return lock.poll_seconds
    return min(LOCAL_POLL_SECONDS, max(_MIN_POLL_SECONDS, waited * _PART_OF_WAITED))


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

    number = None

    def __init__(self, store: LocalStore, folder: str) -> None:
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
