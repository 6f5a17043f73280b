"""The folders of snapshots in the control folder, and who removes them.

A snapshot belongs to the process that claims its folder, or is kept until a time that a file in it holds. All others
are removed by the next writer. Object stores have no claims, so there each snapshot has such a time.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from merganser.core.storage.claims import CLAIM, Claim, claim_folder, seize_folder

if TYPE_CHECKING:
    from merganser.core.storage.store import Store

SNAPSHOTS = "snapshots"
_UNTIL = "until"


def open_snapshot_folder(store: Store, control: str, keep: timedelta) -> Claim:
    """Create and claim the folder of a snapshot; on an object store it is kept for a time instead."""
    claim = claim_folder(store, lambda: f"{control}/{SNAPSHOTS}/{uuid.uuid4().hex}")
    if not store.is_local:
        keep_for(store, claim.folder, keep)
    return claim


def keep_for(store: Store, folder: str, keep: timedelta) -> None:
    """Keep a snapshot for a time from now on, whether a process claims it or not."""
    store.write_small(f"{folder}/{_UNTIL}", (datetime.now(UTC) + keep).isoformat().encode())


def remove_snapshot(store: Store, folder: str) -> None:
    """Remove a snapshot, and the folder of all of them after the last; failures only cost space."""
    with suppress(*store.errors):
        store.remove_folder(folder)
        if store.is_local:
            remove_if_empty(folder.rpartition("/")[0])


def remove_if_empty(above: str) -> None:
    """Remove the folder of all snapshots if it is empty."""
    if os.path.basename(above) == SNAPSHOTS:
        with suppress(OSError):
            os.rmdir(above)


def is_in_snapshot(store: Store, root: str) -> bool:
    """Check whether a dataset's folder is that of a snapshot."""
    above = root.rpartition("/")[0]
    is_below = above.rpartition("/")[0].endswith(f".merganser/{SNAPSHOTS}")
    return is_below and any(store.get_path_type(f"{above}/{name}") is not None for name in (CLAIM, _UNTIL))


def remove_ended_snapshots(store: Store, control: str) -> None:
    """Remove snapshots that no living process claims and whose time is over; failures only cost space."""
    for name in store.list_names(f"{control}/{SNAPSHOTS}"):
        folder = f"{control}/{SNAPSHOTS}/{name}"
        with suppress(*store.errors):
            if not _is_kept(store, folder):
                with seize_folder(store, folder) as is_seized:
                    if is_seized and not _is_kept(store, folder):
                        remove_snapshot(store, folder)


def _is_kept(store: Store, folder: str) -> bool:
    data = store.read_small(f"{folder}/{_UNTIL}")
    if data is None:
        return False
    try:
        return datetime.now(UTC) < datetime.fromisoformat(data.decode())
    except (ValueError, TypeError):
        return False
