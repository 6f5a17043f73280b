"""The journal of a commit: its moves, removals and control files."""

from __future__ import annotations

import json
import uuid
from dataclasses import KW_ONLY, asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from merganser.core.commit.history import HistoryRecord
from merganser.core.storage.store import CLIENT_ERRORS
from merganser.errors import DatasetMergeError, UnreadableFileError
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.storage.remote import RemoteStore
    from merganser.core.storage.staging import Staging


VERSION = 2
# What stands instead of a journal, once another writer decided that the change will not be committed.
_TOMBSTONE = b"abandoned "


@dataclass(frozen=True, slots=True)
class Move:
    """A staged file and the data file that it becomes; `replaces` is the identity of the file it overwrites."""

    staged: str
    target: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """A data file to remove, and its identity, so that a later file of that name is not removed."""

    target: str
    identity: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything a commit does.

    `record` is the new partition record, if it changes, and `batch` that of a batch with an id; an undo has the id to
    `forget`. `feed` are moves to change feeds outside the dataset; `mark` is the identity of the staging folder's
    marker, by which recovery of a copied dataset knows that a feed is the original's. `history` is the record of the
    commit. The files that the last `retain` commits replaced or removed are retained. `stale` are summary files that
    no longer describe the data files, and are removed first. `lease` is the number of the writer's lease.
    """

    moves: Sequence[Move]
    removals: Sequence[Removal] = ()
    record: Mapping[str, Any] | None = None
    _: KW_ONLY
    batch: Mapping[str, Any] | None = None
    feed: Sequence[Move] = ()
    history: HistoryRecord | None = None
    retain: int = 0
    forget: str | None = None
    stale: Sequence[str] = ()
    mark: str | None = None
    lease: int | None = None

    @property
    def replaced(self) -> dict[str, str]:
        """The identities of the replaced or removed files, by path."""
        replaced = {move.target: move.replaces for move in self.moves if move.replaces is not None}
        return replaced | {removal.target: removal.identity for removal in self.removals}

    def to_json(self) -> bytes:
        """Write the journal as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, default=datetime.isoformat).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Read a journal from JSON."""
        found = load_json(data)
        if found.pop("version") != VERSION:
            message = "An interrupted commit was made by another version of merganser. Recover with that version."
            raise DatasetMergeError(message)
        moves, feed = ([Move(**move) for move in found[name]] for name in ("moves", "feed"))
        removals = [Removal(**removal) for removal in found["removals"]]
        history = None if found["history"] is None else HistoryRecord.from_plain(found["history"])
        return cls(**{**found, "moves": moves, "feed": feed, "removals": removals, "history": history})


def list_staged(staging: Staging, journal: Journal) -> list[str]:
    """List the paths of the staged files that a commit publishes."""
    return [f"{staging.folder}/{move.staged}" for move in (*journal.moves, *journal.feed)]


def write_journal(staging: Staging, data: bytes) -> bool:
    """Write the journal, which decides that the change will happen; returns whether it did.

    On an object store, whichever object is created first decides: the journal, or the tombstone of another writer. The
    marker is removed before a tombstone is, so a journal that was created after that does not count.
    """
    store = staging.location.store
    if store.is_local:
        store.write_small(staging.journal, data)
    else:
        try:
            is_mine = cast("RemoteStore", store).create_exclusively(staging.journal, data)
        except CLIENT_ERRORS as error:
            is_mine = _settle_lost_journal(staging, data, error)
        if not is_mine:
            return False
    return not is_abandoned(staging)


def _settle_lost_journal(staging: Staging, data: bytes, error: Exception) -> bool:
    """Find out whether a journal was written, or make sure that it does not arrive late."""
    try:
        if not abandon(staging):
            return staging.location.store.read_small(staging.journal) == data
    except CLIENT_ERRORS:
        raise DatasetMergeError(
            f"The store did not answer while a commit to {staging.location.display} was journaled ({error}), so it is "
            "not known whether the commit happened. Call recover(path), then see history(path)."
        ) from error
    raise error


def abandon(staging: Staging) -> bool:
    """Decide that a change on an object store will not be committed; False if its journal came first."""
    store = cast("RemoteStore", staging.location.store)
    return store.create_exclusively(staging.journal, _TOMBSTONE + uuid.uuid4().hex.encode())


def has_journal(staging: Staging) -> bool:
    """Check for a journal, complete or not."""
    data = staging.location.store.read_small(staging.journal)
    return data is not None and not data.startswith(_TOMBSTONE)


def is_abandoned(staging: Staging) -> bool:
    """Check for a journal without its marker: recovery deletes an abandoned folder's marker with it."""
    return staging.location.store.get_path_type(staging.marker) is None


def _read_journal(staging: Staging) -> Journal | None:
    data = staging.location.store.read_small(staging.journal)
    if data is None or data.startswith(_TOMBSTONE):
        return None
    try:
        return Journal.from_json(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        # A truncated journal does not count: nothing is published before it is complete.
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableFileError(
            f"{staging.journal} is not a journal of merganser: {error}. Move it out of the control folder to discard "
            "that commit."
        ) from error
