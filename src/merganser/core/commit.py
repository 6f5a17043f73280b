"""The commit: from the moment the journal is on disk the change will happen; before it, it never happened.

The journal lists every move and removal. Publishing does what it says and may stop anywhere; recovery does what is
still undone, any number of times.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from merganser.core.access import check_access, describe_denied
from merganser.core.batch import BATCHES, forget_batch, write_batch
from merganser.core.dataset import check_alone, check_target
from merganser.core.errors import ConcurrentWriteError, DatasetMergeError, MerganserError, UnreadableFileError
from merganser.core.feed import journal_feed, resolve_feed
from merganser.core.history import HISTORY, HistoryRecord, new_id, save_record
from merganser.core.json_text import load_json
from merganser.core.lock import exclusive
from merganser.core.memory import naming_memory
from merganser.core.progress import nobody
from merganser.core.replaced import Replaced, held_back
from merganser.core.retained import drop, retain_replaced, unreachable
from merganser.core.staging import (
    RECORD,
    control_folder,
    explain_unreadable,
    find_staging,
    open_staging,
    place_mark,
    storing,
)
from merganser.core.store import locate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.store import Location

VERSION = 2
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


@dataclass(frozen=True, slots=True)
class Session:
    """The right to change a dataset, while the lock is held; `marked` says that its control folder tells of it."""

    location: Location
    control: str
    still_held: Callable[[], None]
    started: float
    marked: bool = False

    @contextlib.contextmanager
    def staging(self, file_done: Callable[[], None] = nobody) -> Iterator[Staging]:
        """Open a staging folder that is gone afterwards, unless its commit is journaled and unfinished."""
        staging = open_staging(self.location, self.control, file_done)
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

    def commit(self, staging: Staging, journal: Journal, check: Callable[[], object] | None = None) -> None:
        """Make the staged files durable, look once more whether they still fit, journal the change, and publish it."""
        store = self.location.store
        check_access(self.location, self.control, journal)
        with store.create(staging.mark):
            pass
        links = Replaced(staging, journal.replaced).keep()
        staged = [f"{staging.folder}/{move.staged}" for move in (*journal.moves, *journal.feed)]
        store.flush([*staged, *links, staging.mark, staging.folder, self.control, _folder(self.control)])
        for folder in sorted({_folder(move.target) for move in journal.feed}):
            store.make_durable(folder)
        if journal.history is not None:
            journal = replace(journal, history=self._signed(journal.history, journal, staging))
        with _retaining(self.location, self.control, staging, journal.history):
            if check is not None:
                check()
            if not self.marked:
                store.write_small(f"{self.control}/{place_mark(self.location, self.control)}", b"")
            self.still_held()
            with _decided(self.location, staging):
                store.write_small(staging.journal, journal_feed(staging, journal).to_json())
                self._check_taken_over(staging)
                publish(self.location, self.control, staging, journal)
        # What is done must not be done again over a staged file that takes an old one's name.
        with contextlib.suppress(OSError):
            store.remove(staging.journal)

    def _check_taken_over(self, staging: Staging) -> None:
        """Leave a commit alone that another writer has removed, or will finish, because this one had stalled."""
        _check_staged(staging)
        try:
            self.still_held()
        except ConcurrentWriteError as error:
            message = (
                f"Another writer took {self.location.display} over just when this change was decided. It, or "
                "recover(path), finishes the change; do not run it again."
            )
            raise ConcurrentWriteError(message) from error

    def _signed(self, record: HistoryRecord, journal: Journal, staging: Staging) -> HistoryRecord:
        """Complete a record with what is known at this moment, the last before the commit is decided."""
        store, now = self.location.store, datetime.now(UTC)
        modified = {move.target: store.modified(f"{staging.folder}/{move.staged}") for move in journal.moves}
        kept = {rel: self.location.path(rel) for rel in (journal.replaced if journal.retain else ())}
        # A link that leads nowhere has nothing to retain.
        kept = {rel: path for rel, path in kept.items() if store.kind(path) == "file"}
        names = {rel: f"{number}.replaced" for number, rel in enumerate(kept)}
        before = {rel: store.modified(path) for rel, path in kept.items()}
        return replace(
            record,
            id=new_id(store, self.control, now),
            committed_at=now,
            duration=round(time.monotonic() - self.started, 6),
            files=[
                replace(
                    file,
                    modified=modified.get(file.path),
                    modified_before=before.get(file.path),
                    retained=names.get(file.path),
                )
                for file in record.files
            ],
            partitions_before=None if journal.record is None else _read_partitions(store, self.control),
        )


def _read_partitions(store: Store, control: str) -> dict[str, Any]:
    """Read the partition record as it is; without one, or with a damaged one, it is empty."""
    try:
        found = load_json(store.read_small(f"{control}/{RECORD}") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _retaining(location: Location, control: str, staging: Staging, record: HistoryRecord | None) -> Iterator[None]:
    """Keep what a commit is about to replace, unless it comes to nothing."""
    try:
        if record is not None:
            retain_replaced(location, control, record)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if record is not None and location.store.read_small(staging.journal) is None:
                drop(location.store, control, [record.id])
        raise


@contextlib.contextmanager
def _decided(location: Location, staging: Staging) -> Iterator[None]:
    """Say of an error that comes once the journal is there that the change will happen all the same."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MerganserError) or location.store.read_small(staging.journal) is None:
            raise
        message = (
            f"A commit to {location.display} was journaled but not fully published: {error}."
            f"{describe_denied(location.store, error)} Fix the cause, then call recover(path) to complete it."
        )
        raise DatasetMergeError(message) from error


def _check_staged(staging: Staging) -> None:
    if _abandoned(staging):
        staging.remove()
        message = f"Another writer removed the staged files of {staging.location.display}. Nothing changed; run again."
        raise ConcurrentWriteError(message)


@contextlib.contextmanager
def writing(
    location: Location, timeout: float = LOCK_TIMEOUT, started: float | None = None, *, checked: bool = False
) -> Iterator[Session]:
    """Hold a dataset exclusively, recovered from whatever an earlier writer left unfinished.

    `started` is when the work began that will be committed, by the monotonic clock; now, if it begins here. `checked`
    says that `check_target` or `check_alone` was called.
    """
    started = time.monotonic() if started is None else started
    if not checked:
        check_target(location)
    control = control_folder(location)
    with (
        naming_memory(f"a change of {location.display}"),
        exclusive(location.store, control, location.display, timeout) as still_held,
    ):
        names = location.store.names(control)
        _recover(location, control, names)
        yield Session(location, control, still_held, started, place_mark(location, control) in names)


def recover(path: str | os.PathLike[str], *, filesystem: Any = None, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Finish or remove what an interrupted merge left behind; True if there was anything.

    Every merge and write does this first; call it to have the dataset whole before reading it.

    >>> recover("no/such/dataset")
    False
    """
    # A commit that was journaled has to be finished, whatever came into the folder since.
    location = locate(path, filesystem, ignore_table_format=True)
    control = control_folder(location)
    if not find_staging(location, control):
        return False
    check_alone(location)
    with exclusive(location.store, control, location.display, lock_timeout):
        return _recover(location, control, location.store.names(control))


def pending_commit(location: Location) -> bool:
    """Say whether a journaled commit waits for recovery."""
    control = control_folder(location)
    with explain_unreadable(location, control):
        found = find_staging(location, control)
        return any(location.store.read_small(staging.journal) is not None for staging in found)


def check_settled(location: Location) -> None:
    """Refuse to plan while a commit is half published, by another process or by one that was killed."""
    if pending_commit(location):
        message = (
            f"A commit into {location.display} is being published, or was interrupted. Wait for it, or call "
            "recover(path), then plan again."
        )
        raise DatasetMergeError(message)


def _recover(location: Location, control: str, names: Collection[str]) -> bool:
    found = find_staging(location, control, names)
    # Below it only commits write small files, and one that was killed left its staging folder too.
    for folder in (control, *(f"{control}/{name}" for name in (HISTORY, BATCHES) if found)):
        # They only take room.
        with contextlib.suppress(OSError):
            location.store.remove_unfinished(folder)
    for staging in found:
        journal = _read_journal(staging)
        if journal is not None and not _abandoned(staging):
            with _decided(location, staging):
                publish(location, control, staging, resolve_feed(staging, journal), recovering=True)
        with storing(staging):
            staging.remove()
    return bool(found)


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


def _abandoned(staging: Staging) -> bool:
    """Say whether a journal came too late: another writer had cleared the folder that it is in."""
    return staging.location.store.kind(staging.mark) is None


def publish(location: Location, control: str, staging: Staging, journal: Journal, *, recovering: bool = False) -> None:
    """Do what the journal says and is still undone; safe to repeat, safe to interrupt."""
    store = location.store
    _note(location, control, journal)
    replaced = Replaced(staging, journal.replaced)
    removed = _find_removed(location, replaced, journal.removals)
    _move(location, staging, journal, replaced, recovering=recovering)
    _remove(location, removed)
    touched = [location.path(move.target) for move in journal.moves]
    touched += [location.path(removal.target) for removal in journal.removals]
    if journal.history is not None:
        save_record(store, control, journal.history)
    fed = sorted({_folder(move.target) for move in journal.feed})
    store.flush([*_folders_to_flush(location, touched), *fed, control])
    if journal.history is not None and journal.history.undoes is not None:
        drop(store, control, [journal.history.undoes])
    elif journal.history is not None:
        drop(store, control, unreachable(store, control, journal.retain))


def _note(location: Location, control: str, journal: Journal) -> None:
    """Write to the control folder what must be there before the first file is replaced."""
    store = location.store
    if journal.record is not None:
        store.write_small(f"{control}/{RECORD}", json.dumps(journal.record, indent=1).encode())
    if journal.batch is not None:
        write_batch(store, control, journal.batch)
    if journal.forget is not None:
        forget_batch(store, control, journal.forget)


def _move(location: Location, staging: Staging, journal: Journal, replaced: Replaced, *, recovering: bool) -> None:
    """Put the staged files that still wait in their places."""
    store, staged = location.store, [f"{staging.folder}/{move.staged}" for move in (*journal.moves, *journal.feed)]
    folders = {_folder(path) for path in staged}
    waiting = {f"{folder}/{name}" for folder in folders for name in store.names(folder)}
    goals = [location.path(move.target) for move in journal.moves] + [move.target for move in journal.feed]
    folders = {_folder(goal) for goal in goals}
    # One that exists in recovery was perhaps made by the process that was killed.
    new = {folder for folder in folders if store.local and (recovering or store.kind(folder) is None)}
    for folder in sorted(folders):
        store.make_folder(folder)
    # After a power cut a file could be in neither folder, if it was moved into one that is not yet on the disk.
    inside = [goal for goal in goals[: len(journal.moves)] if _folder(goal) in new]
    fed = {_folder(move.target) for move in journal.feed} & new
    store.flush([*_folders_to_flush(location, inside), *sorted(fed)])
    for move, path, goal in zip((*journal.moves, *journal.feed), staged, goals, strict=True):
        if path in waiting:
            if move not in journal.feed:
                _check_replaced(location, staging, replaced, move)
            # Spark refuses a file whose checksum sidecar tells of its predecessor.
            store.remove(_sidecar(goal))
            store.replace(path, goal)


def _find_removed(location: Location, replaced: Replaced, removals: Sequence[Removal]) -> dict[str, str]:
    """Give the files that are still to be removed, with their identities now; refuse another's file."""
    found = location.listing() if removals else {}
    still = {removal.target: found[removal.target].identity for removal in removals if removal.target in found}
    for rel, now in still.items():
        if not replaced.is_meant(rel, now):
            raise held_back(location, rel, "the change")
    return still


def _remove(location: Location, still: Mapping[str, str]) -> None:
    found = location.listing() if still else {}
    for rel, identity in still.items():
        if rel in found and found[rel].identity == identity:
            location.store.remove(_sidecar(location.path(rel)))
            location.store.remove(location.path(rel))


def _check_replaced(location: Location, staging: Staging, replaced: Replaced, move: Move) -> None:
    # Elsewhere than locally a copy may stop halfway, and what it left is ours to write again.
    if location.store.local:
        target = location.path(move.target)
        found = location.store.identity(target)
        if not (
            found is None
            or replaced.is_meant(move.target, found)
            or location.store.same_content(f"{staging.folder}/{move.staged}", target)
        ):
            raise held_back(location, move.target, "its replacement")


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
