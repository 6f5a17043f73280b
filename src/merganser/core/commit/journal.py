"""The journal of a commit: its moves, removals and control files."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from merganser.core.commit.history import HistoryRecord
from merganser.errors import DatasetMergeError, UnreadableFileError
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.storage.staging import Staging


VERSION = 2


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
    no longer describe the data files, and are removed first.
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


def _read_journal(staging: Staging) -> Journal | None:
    data = staging.location.store.read_small(staging.journal)
    try:
        return None if data is None else Journal.from_json(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        # A truncated journal does not count: nothing is published before it is complete.
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableFileError(
            f"{staging.journal} is not a journal of merganser: {error}. Move it out of the control folder to discard "
            "that commit."
        ) from error
