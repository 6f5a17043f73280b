"""The commit: from the moment the journal is on disk the change will happen; before it, it never happened.

The journal lists every move and removal. Publishing does what it says and may stop anywhere; recovery does what is
still undone, any number of times.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.batch import write_batch
from merganser.core.errors import ConcurrentWriteError, DatasetMergeError
from merganser.core.lock import exclusive
from merganser.core.staging import RECORD, control_folder, find_staging, open_staging
from merganser.core.store import locate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from merganser.core.staging import Staging
    from merganser.core.store import Location

VERSION = 1
LOCK_TIMEOUT = 60.0


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

    `feed` are moves to paths outside the dataset.
    """

    moves: Sequence[Move]
    removals: Sequence[Removal] = ()
    record: Mapping[str, Any] | None = None
    batch: Mapping[str, Any] | None = None
    feed: Sequence[Move] = ()

    def to_json(self) -> bytes:
        """Write the journal as text."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Read a journal's text."""
        found = json.loads(data)
        if found["version"] != VERSION:
            message = "An interrupted commit was made by another version of merganser. Recover with that version."
            raise DatasetMergeError(message)
        moves, feed = ([Move(**move) for move in found[name]] for name in ("moves", "feed"))
        removals = [Removal(**removal) for removal in found["removals"]]
        return cls(moves, removals, found["record"], found["batch"], feed)


@dataclass(frozen=True, slots=True)
class Session:
    """The right to change a dataset, while the lock is held."""

    location: Location
    control: str
    still_held: Callable[[], None]

    @contextlib.contextmanager
    def staging(self) -> Iterator[Staging]:
        """Open a staging folder that is gone afterwards, unless its commit is journaled and unfinished."""
        staging = open_staging(self.location, self.control)
        try:
            yield staging
        except BaseException:
            # If even this fails, the next merge removes it.
            with contextlib.suppress(OSError):
                if self.location.store.read_small(staging.journal) is None:
                    staging.remove()
            raise
        # What is published stays published; leftovers are the next merge's to remove.
        with contextlib.suppress(OSError):
            staging.remove()

    def commit(self, staging: Staging, journal: Journal, check: Callable[[], None] | None = None) -> None:
        """Make the staged files durable, look once more whether they still fit, journal the change, and publish it."""
        store = self.location.store
        staged = [f"{staging.folder}/{move.staged}" for move in (*journal.moves, *journal.feed)]
        store.flush([*staged, staging.folder, self.control, _folder(self.control)])
        if check is not None:
            check()
        self.still_held()
        try:
            store.write_small(staging.journal, journal.to_json())
            # Whoever took a stalled writer's place has recovered: this commit is gone, or is theirs to finish.
            _check_staged(staging, journal)
            self.still_held()
            publish(self.location, self.control, staging, journal)
        except OSError as error:
            if store.read_small(staging.journal) is None:
                raise
            message = (
                f"The merge into {self.location.display} is decided but not yet fully published: {error}. Remove the "
                "cause, then call recover(path) or merge again; either finishes it."
            )
            raise DatasetMergeError(message) from error
        # What is done must not be done again over a staged file that takes an old one's name.
        with contextlib.suppress(OSError):
            store.remove(staging.journal)


def _check_staged(staging: Staging, journal: Journal) -> None:
    waiting = set(staging.location.store.names(staging.folder))
    if not {move.staged for move in (*journal.moves, *journal.feed)} <= waiting:
        staging.remove()
        message = f"Another writer removed the staged files of {staging.location.display}. Nothing changed; run again."
        raise ConcurrentWriteError(message)


@contextlib.contextmanager
def writing(location: Location, timeout: float = LOCK_TIMEOUT) -> Iterator[Session]:
    """Hold a dataset exclusively, recovered from whatever an earlier writer left unfinished."""
    control = control_folder(location)
    location.store.make_folder(control)
    with exclusive(location.store, control, location.display, timeout) as still_held:
        _recover(location, control)
        yield Session(location, control, still_held)


def recover(path: str | os.PathLike[str], *, filesystem: Any = None, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Finish or remove what an interrupted merge left behind; True if there was anything.

    Every merge and write does this first; call it to have the dataset whole before reading it.

    >>> recover("no/such/dataset")
    False
    """
    location = locate(path, filesystem)
    control = control_folder(location)
    if not find_staging(location, control):
        return False
    with exclusive(location.store, control, location.display, lock_timeout):
        return _recover(location, control)


def pending_commit(location: Location) -> bool:
    """Say whether a journaled commit waits for recovery."""
    found = find_staging(location, control_folder(location))
    return any(location.store.read_small(staging.journal) is not None for staging in found)


def _recover(location: Location, control: str) -> bool:
    found = find_staging(location, control)
    for staging in found:
        data = location.store.read_small(staging.journal)
        # Half a journal is none: it is written whole before anything is published.
        with contextlib.suppress(json.JSONDecodeError):
            journal = None if data is None else Journal.from_json(data)
            if journal is not None and not _abandoned(staging, journal):
                publish(location, control, staging, journal)
        staging.remove()
    return bool(found)


def _abandoned(staging: Staging, journal: Journal) -> bool:
    """Say whether a journal came too late: another writer had removed all that it was to move."""
    store, location = staging.location.store, staging.location
    waiting = set(store.names(staging.folder))
    return bool(journal.moves) and not any(
        move.staged in waiting or store.identity(location.path(move.target)) not in (None, move.replaces)
        for move in journal.moves
    )


def publish(location: Location, control: str, staging: Staging, journal: Journal) -> None:
    """Do what the journal says and is still undone; safe to repeat, safe to interrupt."""
    store = location.store
    waiting = set(store.names(staging.folder))
    if journal.record is not None:
        store.write_small(f"{control}/{RECORD}", json.dumps(journal.record, indent=1).encode())
    if journal.batch is not None:
        write_batch(store, control, journal.batch)
    for folder in sorted({_folder(location.path(move.target)) for move in journal.moves}):
        store.make_folder(folder)
    for move in journal.moves:
        if move.staged in waiting:
            target = location.path(move.target)
            _check_replaced(location, staging, move)
            # Spark refuses a file whose checksum sidecar tells of its predecessor.
            store.remove(_sidecar(target))
            store.replace(f"{staging.folder}/{move.staged}", target)
    _remove(location, journal.removals)
    for move in journal.feed:
        if move.staged in waiting:
            store.make_folder(_folder(move.target))
            store.replace(f"{staging.folder}/{move.staged}", move.target)
    touched = [location.path(move.target) for move in journal.moves]
    touched += [location.path(removal.target) for removal in journal.removals]
    store.flush([*_folders_to_flush(location, touched), *sorted({_folder(move.target) for move in journal.feed})])


def _remove(location: Location, removals: Sequence[Removal]) -> None:
    if not removals:
        return
    # Identities come from a listing, as those in the journal did: other requests may tell other things of a file.
    found = {info.rel: info.identity for info in location.store.walk(location.root, enter=lambda _: True)}
    for removal in removals:
        if found.get(removal.target) == removal.identity:
            target = location.path(removal.target)
            location.store.remove(_sidecar(target))
            location.store.remove(target)


def _check_replaced(location: Location, staging: Staging, move: Move) -> None:
    # Elsewhere than locally a copy may stop halfway, and what it left is ours to write again.
    if location.store.local and move.replaces is not None:
        target = location.path(move.target)
        found = location.store.identity(target)
        ours = found in (None, move.replaces) or location.store.same_content(f"{staging.folder}/{move.staged}", target)
        if not ours:
            message = (
                f"{location.shown(move.target)} was changed by another program after this merge was decided, so its "
                "replacement is held back. Move that file out of the dataset, then call recover(path)."
            )
            raise ConcurrentWriteError(message)


def _folders_to_flush(location: Location, paths: Sequence[str]) -> list[str]:
    if not location.store.local:
        return []
    folders = {_folder(location.root)} if paths else set()
    for path in paths:
        folder = _folder(path)
        while folder not in folders and len(folder) >= len(location.root):
            folders.add(folder)
            folder = _folder(folder)
    return sorted(folder for folder in folders if location.store.kind(folder) == "directory")


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _sidecar(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"
