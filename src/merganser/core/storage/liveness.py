"""Whether another writer lives, by an object that it rewrites: one that stays the same is a dead writer's."""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from merganser.safe_json import load_json

if TYPE_CHECKING:
    from merganser.core.storage.remote import RemoteStore

LEASE_SECONDS = 30.0


class HeartbeatMonitor:
    """An object of another writer, and since when it has not changed."""

    def __init__(self, store: RemoteStore, path: str) -> None:
        self.path = path
        self._store = store
        self._content: bytes | None = None
        self._changed_at = time.monotonic()
        self._polled_at = float("-inf")

    def poll(self, every: float = 0.0) -> bytes | None:
        """Read the object, unless that was done less than so many seconds ago; gives its content."""
        now = time.monotonic()
        if now - self._polled_at >= every:
            self._polled_at = now
            current = self._store.read_small(self.path)
            if current != self._content:
                self._content, self._changed_at = current, time.monotonic()
        return self._content

    def is_dead(self) -> bool:
        """Whether the object was not rewritten for a lease's time, or its process is gone from this machine."""
        return time.monotonic() - self._changed_at >= LEASE_SECONDS or _is_gone(read_description(self._content))


def describe_process() -> dict[str, object]:
    """Describe this process, for others to name it and to look whether it lives."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "space": _read_pid_namespace(), "since": since}


def read_description(data: bytes | None) -> dict[str, object]:
    """Read the description of a process; empty if there is none, or none that can be read."""
    try:
        found = load_json(data or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _read_pid_namespace() -> str | None:
    """Name the space in which process ids mean something: containers may share a host name, not this."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _is_gone(process: dict[str, object]) -> bool:
    pid = process.get("pid")
    here = (socket.gethostname(), _read_pid_namespace())
    if (process.get("host"), process.get("space")) != here or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
