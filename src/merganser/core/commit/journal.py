"""The journal of a commit: every move and removal, and what goes with them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
    """A staged file and the data file it becomes; `replaces` is the identity of the file it takes the place of."""

    staged: str
    target: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """A data file that goes, and its identity, so that a later file of that name stays."""

    target: str
    identity: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything a commit does: the partition record if it changes, the batch if it has an id, moves, then removals.

    `feed` are moves to paths outside the dataset; `mark` is the identity of the mark of the staging folder, if one of
    them is where a copy of the dataset would find the original's.
    `history` tells what it did. The files that the last `retain` commits replaced or removed are kept; an undo keeps
    none, and forgets the batch that it undoes.
    """

    moves: Sequence[Move]
    removals: Sequence[Removal] = ()
    record: Mapping[str, Any] | None = None
    batch: Mapping[str, Any] | None = None
    feed: Sequence[Move] = ()
    history: HistoryRecord | None = None
    retain: int = 0
    forget: str | None = None
    mark: str | None = None

    @property
    def replaced(self) -> dict[str, str]:
        """The files that are replaced or removed, by path, with their identities."""
        replaced = {move.target: move.replaces for move in self.moves if move.replaces is not None}
        return replaced | {removal.target: removal.identity for removal in self.removals}

    def to_json(self) -> bytes:
        """Write the journal as text."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, default=datetime.isoformat).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Read a journal's text."""
        found = load_json(data)
        if found.pop("version") != VERSION:
            message = "An interrupted commit was made by another version of merganser. Recover with that version."
            raise DatasetMergeError(message)
        moves, feed = ([Move(**move) for move in found[name]] for name in ("moves", "feed"))
        removals = [Removal(**removal) for removal in found["removals"]]
        history = None if found["history"] is None else HistoryRecord.from_plain(found["history"])
        return cls(**{**found, "moves": moves, "feed": feed, "removals": removals, "history": history})


def _read_journal(staging: Staging) -> Journal | None:
    data = staging.location.store.read_small(staging.journal)
    try:
        return None if data is None else Journal.from_json(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        # Half a journal is none: it is written whole before anything is published.
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = (
            f"{staging.journal} is not a journal of merganser's: {error}. Move it out of the control folder to "
            "discard that commit."
        )
        raise UnreadableFileError(message) from error
