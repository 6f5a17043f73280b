"""The lock of a dataset on an object store: numbered leases, of which the highest number is the lock.

A lease is an object that is created exclusively, under the number after the highest one, once that was released or its
holder is dead; it is never rewritten. Its number is the fencing token: it only grows, as the highest lease is never
removed. The holder of a number removes all lower leases before it does anything else, so a writer that was stalled
finds its own lease gone, however long it slept. Heartbeats are objects of their own: what a stalled writer still writes
concerns its own number only.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from merganser.core.storage import liveness
from merganser.core.storage.liveness import HeartbeatMonitor, describe_process, encode_heartbeat, read_description
from merganser.errors import ConcurrentWriteError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from merganser.core.storage.remote import RemoteStore

LEASE, BEAT = "lease-", "beat-"
_NUMBERED = re.compile(rf"(?:{LEASE}|{BEAT})(\d+)")


class Lease:
    """One writer's part in the lock of a folder."""

    def __init__(self, store: RemoteStore, folder: str, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.number = 0
        self._store = store
        self._folder = folder
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat = 0
        self._holder: tuple[int, HeartbeatMonitor] | None = None
        self._renewer = threading.Thread(target=self._renew, name="merganser-lease", daemon=True)

    def try_acquire(self) -> bool:
        """Take the next number if the highest one was released, or its holder is dead."""
        number, content = 0, None
        if self._holder is not None:
            number, content = self._holder[0], self._holder[1].poll()
            if content is not None and not self._is_free(content):
                return False
        newest = self._find_holder()
        if newest != number:
            content = None if self._holder is None else self._holder[1].poll()
        if newest and (content is None or not self._is_free(content)):
            return False
        self._store.check_exclusive_creation(self._folder, is_first=not newest)
        if not self._store.create_exclusively(self._get_path(newest + 1), encode_heartbeat(self._token, self._beat)):
            return False
        self.number = newest + 1
        if not self._is_newest():
            return False
        self._renewer.start()
        return True

    def watch(self) -> None:
        """Poll the holder's heartbeat, while it is another writer's turn."""
        if self._holder is None:
            self._find_holder()
        if self._holder is not None:
            self._holder[1].poll(every=liveness.LEASE_SECONDS / 30)

    def describe_holder(self) -> bytes | None:
        """Return what describes the process of the holder."""
        return None if self._holder is None else self._holder[1].poll()

    def check(self, display: str) -> None:
        """Raise an error if another writer took over."""
        if not self._is_mine():
            raise ConcurrentWriteError(
                f"Another writer took over {display} while this one was stalled. Nothing was published; run again."
            )

    def release(self) -> None:
        """Let others take the next number; if this fails, the lease expires."""
        self._stop.set()
        self._renewer.join()
        # Store clients raise any exception.
        with contextlib.suppress(Exception):
            if self._is_mine():
                content = json.dumps({**describe_process(), "token": self._token, "released": True})
                self._store.write_small(self._make_path(BEAT, self.number), content.encode())

    def _find_holder(self) -> int:
        """Find the number of the highest lease, and watch its holder."""
        newest = find_newest(self._store.list_names(self._folder))
        if newest and (self._holder is None or self._holder[0] != newest):
            monitor = HeartbeatMonitor(self._store, self._make_path(BEAT, newest), self._get_path(newest))
            self._holder = newest, monitor
        return newest

    def _is_free(self, content: bytes) -> bool:
        return is_released(content) or (self._holder is not None and self._holder[1].is_dead())

    def _is_newest(self) -> bool:
        """Check that no writer took a higher number before this one was created, and remove all lower leases."""
        numbers = sorted(_list_numbers(names := self._store.list_names(self._folder)))
        if numbers[-1:] != [self.number]:
            # A listing before a long stall showed an older lease as the highest.
            self._store.remove(self._get_path(self.number))
            return False
        for number in numbers[:-1]:
            for path in (self._get_path(number), self._make_path(BEAT, number)):
                if path.rpartition("/")[2] in names:
                    self._store.remove(path)
        return True

    def _is_mine(self) -> bool:
        return read_description(self._store.read_small(self._get_path(self.number))).get("token") == self._token

    def _get_path(self, number: int) -> str:
        return self._make_path(LEASE, number)

    def _make_path(self, kind: str, number: int) -> str:
        return f"{self._folder}/{kind}{number}"

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
        self._store.write_small(self._make_path(BEAT, self.number), encode_heartbeat(self._token, self._beat))
        return True


def find_newest(names: Iterable[str]) -> int:
    """Return the highest number of a lease or heartbeat in a folder; 0 if there is none."""
    return max(_list_numbers(names), default=0)


def is_released(content: bytes | None) -> bool:
    """Check whether the holder of a lease released it."""
    return read_description(content).get("released") is True


def _list_numbers(names: Iterable[str]) -> set[int]:
    return {int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name)) is not None}
