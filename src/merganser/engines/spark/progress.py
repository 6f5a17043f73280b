"""How far executors have come with staged files, told while they write them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from merganser.progress import ignore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.core.storage.staging import Staging

# Seconds between two looks at the staging folder.
_POLL_SECONDS = 0.5


@contextmanager
def report_staged_files(staging: Staging, files: int) -> Iterator[None]:
    """Tell of so many files when they appear in the staging folder, and of those not seen in time in the end.

    Spark itself tells of its tasks only where there is no Connect.
    """
    if staging.on_file_done is ignore:
        yield
        return
    end = Event()
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(_poll_staging, staging, files, end)
        try:
            yield
        finally:
            end.set()
    for _ in range(files - watch.result()):
        staging.on_file_done()


def _poll_staging(staging: Staging, files: int, end: Event) -> int:
    """Look again and again; of how many was told."""
    store = staging.location.store
    before, told = len(store.list_names(staging.folder)), 0
    while not end.wait(_POLL_SECONDS):
        # What a lost attempt has left counts too, so there may be more.
        found = min(files, len(store.list_names(staging.folder)) - before)
        for _ in range(found - told):
            staging.on_file_done()
        told = max(told, found)
    return told
