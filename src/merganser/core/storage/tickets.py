"""The queue for a lock: waiting writers hold numbered tickets, and the lowest number of a living writer is next.

Only the lock decides who may write. The queue decides who tries to take it, so a ticket that is lost or cannot be
created costs its writer the place in the queue and nothing else.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from merganser.core.storage import liveness
from merganser.core.storage.liveness import HeartbeatMonitor, encode_heartbeat
from merganser.core.storage.store import CLIENT_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from filelock import FileLock

    from merganser.core.storage.local import LocalStore
    from merganser.core.storage.remote import RemoteStore

QUEUE = "queue"
# A suspended process keeps its ticket; after this time, or half the timeout of the next writer, it is skipped.
STALLED_SECONDS = 5.0
RENEW_SECONDS = 0.1  # how often a writer touches its ticket, to show that it is not suspended
MAX_ATTEMPTS = 16  # attempts to create a ticket: other writers may take the same number at the same time


class LocalQueue:
    """Tickets as files, each locked by its writer: the kernel unlocks that of a dead writer at once."""

    def __init__(self, store: LocalStore, folder: str, timeout: float = math.inf) -> None:
        self._store = store
        self._folder = f"{folder}/{QUEUE}"
        self._ticket: FileLock | None = None
        # A living writer's ticket is up to one renewal old, or more on a busy machine.
        self._stalled_seconds = min(STALLED_SECONDS, max(timeout / 2, 3 * RENEW_SECONDS))
        self._number = 0
        self._renewed_at = 0.0

    def is_empty(self) -> bool:
        return not self._list_numbers()

    def enter(self) -> None:
        """Take the last ticket, if one can be created."""
        # Without a ticket, on a full disk for example, a writer tries the lock at any time.
        with suppress(OSError):
            self._store.make_folder(self._folder)
            for _ in range(MAX_ATTEMPTS):
                number = max(self._list_numbers(), default=0) + 1
                self._ticket = self._take(number)
                if self._ticket is not None:
                    self._number = number
                    return

    def is_first(self) -> bool:
        """Check that no living writer waits before this one; tickets of dead writers are removed."""
        if self._ticket is None:
            return True
        try:
            oldest = self._renew(self._ticket.lock_file) - self._stalled_seconds
        except OSError:
            # The queue was removed.
            self._ticket.release()
            self._ticket = None
            self.enter()
            return False
        return not any(self._is_alive(number, oldest) for number in sorted(self._list_before(), reverse=True))

    def count_before(self) -> int:
        return len(self._list_before())

    def leave(self) -> None:
        if self._ticket is not None:
            with suppress(OSError):
                os.remove(self._ticket.lock_file)
            self._ticket.release()
            self._ticket = None

    def _renew(self, path: str) -> float:
        """Touch the ticket; returns its time, by the clock of the disk."""
        if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            os.utime(path)
            self._renewed_at = time.monotonic()
        return os.stat(path).st_mtime

    def _list_numbers(self) -> list[int]:
        with suppress(OSError):
            return _parse_numbers(os.listdir(self._folder))
        return []

    def _list_before(self) -> list[int]:
        return [number for number in self._list_numbers() if number < self._number]

    def _take(self, number: int) -> FileLock | None:
        from filelock import FileLock, Timeout  # noqa: PLC0415  executors, which never lock, need not have it

        path = f"{self._folder}/{number}"
        try:
            created = self._store.open_new(path)
        except FileExistsError:
            return None
        with created:
            ticket = FileLock(path, fallback_to_soft=False, thread_local=False)
            try:
                ticket.acquire(blocking=False)
            except Timeout:
                # Another writer is testing the new file, and will remove it; or this disk does not support locks.
                with suppress(OSError):
                    if os.path.samestat(os.stat(path), os.fstat(created.fileno())):
                        os.remove(path)
                return None
        return ticket

    def _is_alive(self, number: int, oldest: float) -> bool:
        path = f"{self._folder}/{number}"
        try:
            with open(path, "r+b", buffering=0) as ticket:
                if os.fstat(ticket.fileno()).st_mtime >= oldest:
                    fcntl.flock(ticket, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Only the lock's holder removes a ticket, because its number may be taken again at once.
                    if os.fstat(ticket.fileno()).st_nlink:
                        os.remove(path)
        except BlockingIOError:
            return True
        except OSError:
            # A ticket that cannot be tested must not block others forever.
            return False
        return False


class RemoteQueue:
    """Tickets as objects, created exclusively under the next number and rewritten as a heartbeat."""

    def __init__(self, store: RemoteStore, folder: str) -> None:
        self._store = store
        self._folder = f"{folder}/{QUEUE}"
        self._token = uuid.uuid4().hex
        self._number = 0
        self._beat = 0
        self._renewed_at = 0.0
        self._has_turn = False
        self._before: dict[int, HeartbeatMonitor] = {}

    def is_empty(self) -> bool:
        with suppress(*CLIENT_ERRORS):
            # To list a folder that does not exist, some clients send two requests.
            return QUEUE not in self._store.list_names(self._folder.rpartition("/")[0]) or not self._list_numbers()
        return True

    def enter(self) -> None:
        self._number = number = 0
        # Without a ticket, a writer tries the lock at any time.
        with suppress(*CLIENT_ERRORS):
            self._store.make_folder(self._folder)
            for _ in range(MAX_ATTEMPTS):
                number = max(number, *self._list_numbers(), 0) + 1
                if self._store.create_exclusively(self._make_path(number), encode_heartbeat(self._token, self._beat)):
                    self._number, self._renewed_at = number, time.monotonic()
                    return

    def is_first(self) -> bool:
        if not self._number:
            return True
        with suppress(*CLIENT_ERRORS):
            return self._check_turn()
        # A queue that cannot be listed for a moment must not fail a merge.
        return True

    def count_before(self) -> int:
        return len(self._before)

    def leave(self) -> None:
        if self._number:
            # Others remove a ticket that is no longer renewed.
            with suppress(*CLIENT_ERRORS):
                self._store.remove(self._make_path(self._number))
            self._number = 0

    def _list_numbers(self) -> list[int]:
        return _parse_numbers(self._store.list_names(self._folder))

    def _make_path(self, number: int) -> str:
        return f"{self._folder}/{number}"

    def _check_turn(self) -> bool:
        if not self._has_turn:
            numbers = self._list_numbers()
            if self._number not in numbers:
                # This writer was stalled, and others removed its ticket as a dead writer's.
                self.enter()
                return False
            self._before = {number: self._watch(number) for number in numbers if number < self._number}
            for number in [number for number, monitor in self._before.items() if monitor.is_dead()]:
                self._store.remove(self._before.pop(number).path)
            self._has_turn = not self._before
        self._renew()
        return self._has_turn

    def _watch(self, number: int) -> HeartbeatMonitor:
        monitor = self._before.get(number) or HeartbeatMonitor(self._store, self._make_path(number))
        monitor.poll(every=liveness.LEASE_SECONDS / 6)
        return monitor

    def _renew(self) -> None:
        if time.monotonic() - self._renewed_at >= liveness.LEASE_SECONDS / 3:
            self._beat += 1
            self._store.write_small(self._make_path(self._number), encode_heartbeat(self._token, self._beat))
            self._renewed_at = time.monotonic()


def _parse_numbers(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isascii() and name.isdecimal()]
