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
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from filelock import FileLock, Timeout

from merganser.core.errors import ConcurrentWriteError, LockTimeoutError
from merganser.core.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.storage import Store

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
        # Only a courtesy to those who wait: it must not keep the lock, nor fail what is done.
        with contextlib.suppress(OSError):
            store.remove(holder)
        lock.release()


def _myself() -> dict[str, object]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "space": _process_space(), "since": since}


def _process_space() -> str | None:
    """Name the space in which process ids mean something: containers may share a host name, not this."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


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
        holder, claimer = _Watched(self._store, self._path), None
        while not self._create():
            current = holder.look()
            if current is not None and holder.dead():
                claim = f"{self._folder}/claim-{_read(current).get('token', 'unreadable')}"
                if self._claimed(claim):
                    self._remove_lease(current, claim)
                    continue
                # Whoever claimed the lease may have died as well.
                claimer = claimer if claimer is not None and claimer.path == claim else _Watched(self._store, claim)
                if claimer.look() is not None and claimer.dead():
                    self._store.remove(claim)
                    continue
            if time.monotonic() >= deadline:
                raise _timed_out(shown, timeout, current)
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

    def _claimed(self, claim: str) -> bool:
        try:
            self._store.filesystem.pipe_file(claim, self._content(), mode="create")
        except FileExistsError:
            return False
        return True

    def _remove_lease(self, dead: bytes, claim: str) -> None:
        # Only the claim's creator may remove this lease, and only while it is still the dead one.
        if self._store.read_small(self._path) == dead:
            self._store.remove(self._path)
        self._store.remove(claim)

    def _renew(self) -> None:
        # Store clients raise what they like. Beats run in a pool, so that one that fails is followed by the next.
        with ThreadPoolExecutor(1, thread_name_prefix="merganser-lease") as pool:
            while not self._stop.wait(LEASE_SECONDS / 3):
                beat = pool.submit(self._renew_once)
                if beat.exception() is None and not beat.result():
                    return

    def _renew_once(self) -> bool:
        self._beat += 1
        if _read(self._store.read_small(self._path)).get("token") != self._token:
            return False
        self._store.write_small(self._path, self._content())
        return True


class _Watched:
    """A lease or claim of someone else's, and since when it has not changed."""

    def __init__(self, store: RemoteStore, path: str) -> None:
        self.path = path
        self._store = store
        self._content: bytes | None = None
        self._since = time.monotonic()

    def look(self) -> bytes | None:
        current = self._store.read_small(self.path)
        if current != self._content:
            self._content, self._since = current, time.monotonic()
        return current

    def dead(self) -> bool:
        return time.monotonic() - self._since >= LEASE_SECONDS or _process_gone(_read(self._content))


def _process_gone(who: dict[str, object]) -> bool:
    pid = who.get("pid")
    here = (socket.gethostname(), _process_space())
    if (who.get("host"), who.get("space")) != here or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
