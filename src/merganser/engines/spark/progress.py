"""Progress of staged files, reported while executors write them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from merganser.progress import ignore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.core.storage.staging import Staging

# Seconds between two listings of the staging folder.
_POLL_SECONDS = 0.5


@contextmanager
def report_staged_files(staging: Staging, files: int) -> Iterator[None]:
    """Report files as they appear in the staging folder: Spark Connect does not report the progress of tasks."""
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
    store = staging.location.store
    before, reported = len(store.list_names(staging.folder)), 0
    while not end.wait(_POLL_SECONDS):
        # Files of a lost attempt count too, so there may be more.
        found = min(files, len(store.list_names(staging.folder)) - before)
        for _ in range(found - reported):
            staging.on_file_done()
        reported = max(reported, found)
    return reported
