"""Claimed folders: the kernel lock on a file in a folder shows that the process which made the folder lives.

The kernel releases the lock of a dead process at once, so others can tell which folders nobody uses any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from merganser.core.storage.local import LocalStore
    from merganser.core.storage.store import Store

CLAIM = "claim"
MAX_ATTEMPTS = 16  # attempts to claim a folder: another process may test each of them just then


@dataclass(frozen=True, slots=True)
class Claim:
    """A folder that this process uses, until it releases it or ends."""

    folder: str
    _lock: BinaryIO | None

    def release(self) -> None:
        """Let others remove the folder."""
        if self._lock is not None:
            self._lock.close()


def claim_folder(store: Store, make_path: Callable[[], str]) -> Claim:
    """Create a folder under a new path and claim it; object stores have no such locks, so there it is only created."""
    for _ in range(MAX_ATTEMPTS):
        folder = make_path()
        store.make_folder(folder)
        if not store.is_local:
            return Claim(folder, None)
        try:
            lock = _lock_file(cast("LocalStore", store), folder)
        except OSError:
            store.remove_folder(folder)
            raise
        if lock is not None:
            return Claim(folder, lock)
        store.remove_folder(folder)
    raise OSError(errno.ENOLCK, "no lock can be had on a new file", folder)


def is_claimed(store: Store, folder: str) -> bool:
    """Check whether a living process claims a folder; never true on object stores."""
    if not store.is_local:
        return False
    try:
        with open(f"{folder}/{CLAIM}", "rb", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        # The folder of another user may be one that this one cannot tell, nor remove.
        return True
    except FileNotFoundError:
        return False
    return False


def _lock_file(store: LocalStore, folder: str) -> BinaryIO | None:
    """Lock the claim of a new folder; None if another process took the folder for abandoned before it was locked."""
    path = f"{folder}/{CLAIM}"
    try:
        lock = store.open_new(path)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except BaseException:
        lock.close()
        raise
    # The folder may have been removed just before.
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(lock.fileno())):
            return lock
    lock.close()
    return None
