"""Permissions to publish a commit, checked before the journal is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.core.commit.batches import BATCHES
from merganser.core.storage.local import describe_owner
from merganser.core.storage.staging import HISTORY
from merganser.errors import DatasetPermissionError

if TYPE_CHECKING:
    from merganser.core.commit.journal import Journal
    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store


def check_access(location: Location, control: str, journal: Journal) -> None:
    """Refuse a commit that this user could journal but not publish."""
    moved = [location.to_path(move.target) for move in journal.moves] + [move.target for move in journal.feed]
    folders = [location.to_path(removal.target).rpartition("/")[0] for removal in journal.removals]
    folders += [f"{control}/{HISTORY}"] * (journal.history is not None)
    folders += [f"{control}/{BATCHES}"] * (journal.batch is not None or journal.forget is not None)
    denied = location.store.find_unwritable(moved, folders)
    if denied is not None:
        raise DatasetPermissionError(
            f"Cannot publish a commit to {location.display}: this user may not write in {denied}. "
            f"{describe_owner(denied)}. Nothing was published; ask the owner to let you write there (a group that "
            f"shares the dataset needs chgrp -R and chmod -R g+rwX on {location.root}), or run as a user who may."
        )


def describe_denied(store: Store, error: Exception) -> str:
    """Describe the owner of what an operation was denied, and the remedy; "" for other errors."""
    if not (store.is_local and isinstance(error, PermissionError) and error.filename):
        return ""
    # The error of a move reports both paths, and not which of their folders denied it.
    paths = [str(path) for path in (error.filename, error.filename2) if path]
    denied = store.find_unwritable(paths, []) or paths[0]
    return f" {describe_owner(denied)}: ask the owner to give you access, or run as a user who has it."
