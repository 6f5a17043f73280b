"""Retained files: what commits replaced or removed, kept in the control folder for `undo`.

Each commit has its own folder, filled before its journal is written; its history record lists the contents.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from merganser.core.commit.history import is_record_id, read_records, skip_undone
from merganser.core.storage.store import is_same_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from merganser.core.commit.history import HistoryRecord
    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

RETAINED = "retained"


def make_retained_path(control: str, commit: str, name: str) -> str:
    """Make the path of a retained file of a commit."""
    return f"{control}/{RETAINED}/{commit}/{name}"


def retain_replaced(location: Location, control: str, record: HistoryRecord) -> None:
    """Retain the files that a commit is about to replace or remove."""
    names = {file.path: file.retained for file in record.files if file.retained is not None}
    if not names:
        return
    store, folder = location.store, f"{control}/{RETAINED}/{record.id}"
    store.make_folder(folder)
    for rel, name in names.items():
        store.duplicate(location.to_path(rel), make_retained_path(control, record.id, name))
    store.flush([folder, f"{control}/{RETAINED}", control])


def is_fully_retained(store: Store, control: str, record: HistoryRecord) -> bool:
    """Check whether all files that a commit replaced or removed are retained unchanged."""
    needed = [file for file in record.files if file.operation != "inserted"]
    if not needed:
        return True
    folder = f"{control}/{RETAINED}/{record.id}"
    if store.get_path_type(folder) is None:
        return False
    sizes = {info.rel: info.size for info in store.walk(folder, enter=lambda _: False)}
    return all(
        file.retained is not None
        and sizes.get(file.retained) == file.size_before
        and is_same_time(file.modified_before, store.get_modified_time(f"{folder}/{file.retained}"))
        for file in needed
    )


def list_retained_ids(store: Store, control: str) -> list[str]:
    """List the ids of commits with retained files, the oldest first."""
    return [name for name in store.list_names(f"{control}/{RETAINED}") if is_record_id(name)]


def find_unreachable(store: Store, control: str, limit: int | None) -> list[str]:
    """List the commits whose retained files undo cannot use, or that are older than the newest `limit`."""
    ids = list_retained_ids(store, control)
    kept = set(islice(_find_reachable(store, control, set(ids)), limit)) if ids and limit != 0 else set()
    return [one for one in ids if one not in kept]


def _find_reachable(store: Store, control: str, remaining: set[str]) -> Iterator[str]:
    """List the commits whose retained files undo can use, the newest first, up to one that cannot be undone."""
    for record in skip_undone(read_records(store, control)):
        if not remaining or not is_fully_retained(store, control, record):
            return
        if record.id in remaining:
            remaining.remove(record.id)
            yield record.id


def remove_retained(store: Store, control: str, ids: Iterable[str]) -> list[str]:
    """Remove the retained files of commits, and return the removed folders; failures only cost space."""
    removed = []
    for one in ids:
        with suppress(*store.errors):
            store.remove_folder(f"{control}/{RETAINED}/{one}")
            removed.append(f"{control}/{RETAINED}/{one}")
    return removed
