"""One writer at a time: a kernel lock on local disks, a renewed lease elsewhere.

A dead holder never blocks. The kernel drops its lock; a lease that is not renewed, or whose process is gone from this
machine, is taken over by whoever first creates the claim that names it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from filelock import FileLock, Timeout

from merganser.core.errors import ConcurrentWriteError, LockTimeoutError
from merganser.core.store import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.store import Store

LEASE_SECONDS = 30.0
POLL_SECONDS = 0.05


@contextlib.contextmanager
def exclusive(store: Store, folder: str, shown: str, timeout: float) -> Iterator[Callable[[], None]]:
    """Hold the dataset whose control folder this is; yields a check that the hold is still ours."""
    if isinstance(store, RemoteStore):
        lease = _Lease(store, folder)
        lease.acquire(shown, timeout)
        try:
            yield lambda: lease.check(shown)
        finally:
            lease.release()
        return
    lock = FileLock(f"{folder}/lock", timeout=timeout, fallback_to_soft=False, thread_local=False)
    holder = f"{folder}/holder.json"
    try:
        lock.acquire()
    except Timeout as error:
        raise _timed_out(shown, timeout, store.read_small(holder)) from error
    try:
        with open(holder, "w", encoding="utf-8") as stream:
            json.dump(_myself(), stream)
        yield lambda: None
    finally:
        store.remove(holder)
        lock.release()


def _myself() -> dict[str, object]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _timed_out(shown: str, timeout: float, holder: bytes | None) -> LockTimeoutError:
    who = _read(holder)
    name = "another writer"
    if who:
        name = f"process {who.get('pid')} on {who.get('host')}, since {who.get('since')}"
    return LockTimeoutError(
        f"{shown} is held by {name}; gave up after {timeout:g} s. Wait for it to finish, or pass a longer lock_timeout."
    )


def _read(data: bytes | None) -> dict[str, object]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


class _Lease:
    """An object created exclusively, rewritten every few seconds, believed dead when it stays the same."""

    def __init__(self, store: RemoteStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._path = f"{folder}/lease.json"
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat = 0
        self._renewing = threading.Thread(target=self._renew, name="merganser-lease", daemon=True)

    def acquire(self, shown: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        seen: tuple[bytes | None, float] = (None, time.monotonic())
        while not self._create():
            current = self._store.read_small(self._path)
            if current != seen[0]:
                seen = (current, time.monotonic())
            if current is not None and _believed_dead(current, time.monotonic() - seen[1]):
                self._take_over(current)
            elif time.monotonic() >= deadline:
                raise _timed_out(shown, timeout, current)
            else:
                time.sleep(POLL_SECONDS)
        self._renewing.start()

    def check(self, shown: str) -> None:
        if _read(self._store.read_small(self._path)).get("token") != self._token:
            message = f"Another writer took {shown} over while this one was stalled. Nothing was published; run again."
            raise ConcurrentWriteError(message)

    def release(self) -> None:
        self._stop.set()
        self._renewing.join()
        if _read(self._store.read_small(self._path)).get("token") == self._token:
            self._store.remove(self._path)

    def _content(self) -> bytes:
        return json.dumps({**_myself(), "token": self._token, "beat": self._beat}).encode()

    def _create(self) -> bool:
        try:
            self._store.filesystem.pipe_file(self._path, self._content(), mode="create")
        except FileExistsError:
            return False
        # Some filesystems accept the mode and ignore it: the one whose content stands has the lease.
        return _read(self._store.read_small(self._path)).get("token") == self._token

    def _take_over(self, dead: bytes) -> None:
        claim = f"{self._folder}/claim-{_read(dead).get('token', 'unreadable')}"
        try:
            self._store.filesystem.pipe_file(claim, self._token.encode(), mode="create")
        except FileExistsError:
            time.sleep(POLL_SECONDS)
            return
        # Only the claim's creator may remove this lease, and only while it is still the dead one.
        if self._store.read_small(self._path) == dead:
            self._store.remove(self._path)
        self._store.remove(claim)

    def _renew(self) -> None:
        while not self._stop.wait(LEASE_SECONDS / 3):
            self._beat += 1
            if _read(self._store.read_small(self._path)).get("token") != self._token:
                return
            self._store.write_small(self._path, self._content())


def _believed_dead(lease: bytes, unchanged: float) -> bool:
    if unchanged >= LEASE_SECONDS:
        return True
    who = _read(lease)
    pid = who.get("pid")
    if who.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
