"""Claimed folders: the kernel lock on a file in a folder shows that the process which made the folder lives.

The kernel releases the lock of a dead process at once, so others can tell which folders nobody uses any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        try:
            store.make_folder(folder)
        except FileNotFoundError:
            # Another process has just removed the folder above, which was empty.
            continue
        if not store.is_local:
            return Claim(folder, None)
        try:
            lock = _lock_new_file(cast("LocalStore", store), folder)
        except OSError:
            store.remove_folder(folder)
            raise
        if lock is not None:
            return Claim(folder, lock)
        store.remove_folder(folder)
    raise OSError(errno.ENOLCK, "no lock can be had on a new file", folder)


def is_claimed(store: Store, folder: str) -> bool:
    """Check whether a living process claims a folder; never true on object stores.

    The answer may be out of date at once: `seize_folder` before the folder is removed.
    """
    if not store.is_local:
        return False
    try:
        with open(f"{folder}/{CLAIM}", "rb", buffering=0) as lock:
            return not _try_lock(lock, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except PermissionError:
        # This user cannot tell, nor remove the folder.
        return True


@contextmanager
def seize_folder(store: Store, folder: str) -> Iterator[bool]:
    """Claim a folder that no living process claims, to remove it; yields whether that succeeded."""
    if not store.is_local:
        yield True
        return
    with ExitStack() as opened:
        try:
            # If its process has not made the file yet, it then finds that it exists.
            descriptor = os.open(f"{folder}/{CLAIM}", os.O_RDWR | os.O_CREAT, 0o666)
            lock = opened.enter_context(open(descriptor, "r+b", buffering=0))
            is_seized = _try_lock(lock, fcntl.LOCK_EX)
        except (FileNotFoundError, PermissionError):
            is_seized = False
        yield is_seized


def _lock_new_file(store: LocalStore, folder: str) -> BinaryIO | None:
    """Lock the claim of a new folder; None if another process took the folder for abandoned before that."""
    try:
        lock = store.open_new(f"{folder}/{CLAIM}")
    except (FileExistsError, FileNotFoundError):
        return None
    is_locked = False
    try:
        # Who seizes a folder keeps the lock until the file is removed.
        is_locked = _try_lock(lock, fcntl.LOCK_EX) and os.fstat(lock.fileno()).st_nlink > 0
    finally:
        if not is_locked:
            lock.close()
    return lock if is_locked else None


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
