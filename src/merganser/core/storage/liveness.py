"""Detects dead writers: a writer rewrites its object on the store as a heartbeat while it lives."""

from __future__ import annotations

import json
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
    """Polls the object of another writer for changes; before its first heartbeat that is the object `first`."""

    def __init__(self, store: RemoteStore, path: str, first: str | None = None) -> None:
        self.path = path
        self._first = first
        self._store = store
        self._content: bytes | None = None
        self._changed_at = time.monotonic()
        self._polled_at = float("-inf")

    def poll(self, every: float = 0.0) -> bytes | None:
        """Return the object's content, read again if the last read was at least `every` seconds ago."""
        now = time.monotonic()
        if now - self._polled_at >= every:
            self._polled_at = now
            current = self._store.read_small(self.path)
            if current is None and self._first is not None:
                current = self._store.read_small(self._first)
            if current != self._content:
                self._content, self._changed_at = current, time.monotonic()
        return self._content

    def is_dead(self) -> bool:
        """Whether the lease expired, or the writer was a process of this machine that has ended."""
        return time.monotonic() - self._changed_at >= LEASE_SECONDS or _is_gone(read_description(self._content))


def describe_process() -> dict[str, object]:
    """Describe this process, so that others can name it and check whether it is alive."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "space": _read_pid_namespace(), "since": since}


def encode_heartbeat(token: str, beat: int) -> bytes:
    """Return the content of this writer's object, which changes with each beat."""
    return json.dumps({**describe_process(), "token": token, "beat": beat}).encode()


def read_description(data: bytes | None) -> dict[str, object]:
    """Read the description of a process; empty if it is missing or damaged."""
    try:
        found = load_json(data or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _read_pid_namespace() -> str | None:
    """Return the namespace of process ids, which tells apart containers that share a host name."""
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
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False
