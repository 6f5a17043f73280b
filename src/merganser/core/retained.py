"""Retained files: what commits replaced or removed, kept in the control folder so that `undo` can bring it back.

Each commit has a folder of its own there, which is whole once it holds the list of its files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from merganser.core.history import HistoryRecord
    from merganser.core.storage import Store
    from merganser.core.store import Location

RETAINED = "retained"
WHOLE = "files.json"


def retained_path(control: str, commit: str, name: str) -> str:
    """Give the path of a file that is retained of a commit."""
    return f"{control}/{RETAINED}/{commit}/{name}"


def keep_replaced(location: Location, control: str, record: HistoryRecord, replaced: Mapping[str, str]) -> None:
    """Keep what a commit is about to replace or remove, given by path and identity.

    All of it is kept before the first file is replaced, so a folder that is not whole may be filled again, and one that
    is may not: by then there are new files.
    """
    store, whole = location.store, retained_path(control, record.id, WHOLE)
    names = {file.path: file.retained for file in record.files if file.retained is not None}
    if not names or store.read_small(whole) is not None:
        return
    found = location.listing()
    store.make_folder(whole.rpartition("/")[0])
    for rel, name in names.items():
        # What another program has put there since is not what this commit replaces.
        if rel in found and found[rel].identity == replaced[rel]:
            store.duplicate(location.path(rel), retained_path(control, record.id, name))
    store.write_small(whole, json.dumps(names, indent=1).encode())
    store.flush([f"{control}/{RETAINED}", control])


def is_whole(store: Store, control: str, record: HistoryRecord) -> bool:
    """Say whether everything that a commit replaced or removed is retained."""
    needed = [file.retained for file in record.files if file.operation != "inserted"]
    return not needed or {WHOLE, *needed} <= set(store.names(f"{control}/{RETAINED}/{record.id}"))


def retained_ids(store: Store, control: str) -> list[str]:
    """List the commits that have retained files, or what is left of them, the oldest first."""
    return store.names(f"{control}/{RETAINED}")


def drop(store: Store, control: str, ids: Iterable[str]) -> list[str]:
    """Remove what is retained of these commits; gives the folders removed."""
    folders = [f"{control}/{RETAINED}/{one}" for one in ids]
    for folder in folders:
        store.remove_folder(folder)
    return folders
