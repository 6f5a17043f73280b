"""The commit: once the journal is on disk the change will happen; before, it never happened.

The journal lists every move and removal. Publishing may stop anywhere; recovery does the rest, any number of times.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.commit.batches import BATCHES
from merganser.core.commit.change_feed import relativize_feed, resolve_feed
from merganser.core.commit.history import HistoryRecord, has_record, make_record_id
from merganser.core.commit.journal import (
    Journal,
    _read_journal,
    abandon,
    has_journal,
    is_abandoned,
    list_staged,
    write_journal,
)
from merganser.core.commit.permissions import check_access, describe_denied
from merganser.core.commit.publish import _get_parent, publish, stage_control_files
from merganser.core.commit.replaced_files import ReplacedFiles
from merganser.core.commit.retained import remove_retained, retain_replaced
from merganser.core.dataset.listing import check_not_nested, check_target
from merganser.core.storage.claims import seize_folder
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT, HeldLock, hold_lock
from merganser.core.storage.snapshot_folders import SNAPSHOTS, remove_ended_snapshots
from merganser.core.storage.staging import (
    HISTORY,
    PARTITION_RECORD,
    choose_control_folder,
    explain_staging_errors,
    explain_unreadable,
    find_staging,
    name_place_marker,
    open_staging,
)
from merganser.core.storage.store import CLIENT_ERRORS
from merganser.errors import ConcurrentWriteError, DatasetMergeError, MerganserError
from merganser.progress import ignore
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator

    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store


@dataclass(slots=True, kw_only=True)
class Session:
    """One change of a dataset: it may be staged beside other writers, and is committed while the lock is held.

    `started` is the monotonic time when the work began; `timeout` bounds the seconds that it waits for the lock, of
    which it has `waited` some.
    """

    location: Location
    control: str
    started: float
    timeout: float = LOCK_TIMEOUT
    check_lock: Callable[[], None] | None = None
    waited: float = 0.0
    _is_journaled: bool = False  # a journal was, or may have been, written
    _has_mark: bool = False  # the control folder has the place marker

    @property
    def is_locked(self) -> bool:
        """Whether this session holds the lock."""
        return self.check_lock is not None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock, unless this session does already, and recover what dead writers left."""
        if self.is_locked:
            yield
            return
        store, began = self.location.store, time.monotonic()
        with hold_lock(store, self.control, self.location.display, self.timeout, self.waited) as still_held:
            self.waited += time.monotonic() - began
            names = store.list_names(self.control)
            _recover(self.location, self.control, names)
            if SNAPSHOTS in names:
                remove_ended_snapshots(store, self.control)
            self._has_mark = name_place_marker(self.location, self.control) in names
            self.check_lock = still_held
            try:
                yield
            except CLIENT_ERRORS:
                # Without its lease, a writer misses what another one removed; but a journal may be published by both.
                if not self._is_journaled:
                    _report_takeover(still_held)
                raise
            finally:
                self.check_lock = None

    def _get_lease_number(self) -> int | None:
        return self.check_lock.number if isinstance(self.check_lock, HeldLock) else None

    def recover_dead(self) -> None:
        """Recover what dead writers left, if anything; the lock is held only for that."""
        if not all(staging.is_claimed() for staging in find_staging(self.location, self.control)):
            with self.lock():
                pass

    @contextlib.contextmanager
    def staging(self, file_done: Callable[[], None] = ignore) -> Iterator[Staging]:
        """Open a staging folder, removed at the end unless its commit is journaled and unfinished."""
        with open_staging(self.location, self.control, file_done) as staging:
            try:
                yield staging
            except BaseException:
                # If this fails, the next merge removes the folder.
                with contextlib.suppress(*self.location.store.errors):
                    if not has_journal(staging):
                        staging.remove()
                raise
            # The commit is published; the next merge removes what is left of the folder.
            with contextlib.suppress(*self.location.store.errors):
                staging.remove()

    def commit(
        self,
        staging: Staging,
        journal: Journal,
        check: Callable[[], object] | None = None,
        *,
        is_flushed: bool = False,
    ) -> None:
        """Flush the staged files, `check` that the dataset has not changed, write the journal, and publish."""
        store, check_lock = self.location.store, cast("Callable[[], None]", self.check_lock)
        check_access(self.location, self.control, journal)
        journal = replace(journal, lease=self._get_lease_number())
        with store.create(staging.marker):
            pass
        links = ReplacedFiles(staging, journal.replaced).link_files()
        staged = [] if is_flushed else list_staged(staging, journal)
        store.flush([*staged, *links, staging.marker, staging.folder, self.control, _get_parent(self.control)])
        for folder in sorted({_get_parent(move.target) for move in journal.feed}):
            store.make_durable_folder(folder)
        if journal.history is not None:
            journal = replace(journal, history=self._complete_record(journal.history, journal, staging))
        stage_control_files(staging, journal)
        with _retain_files(self.location, self.control, staging, journal.history):
            if check is not None:
                check()
            if not self._has_mark:
                store.write_small(f"{self.control}/{name_place_marker(self.location, self.control)}", b"")
            check_lock()
            self._is_journaled = True
            with (
                _translate_publish_errors(self.location, staging),
                _accept_completion(self.location.store, self.control, journal.history),
            ):
                if not write_journal(staging, relativize_feed(staging, journal).to_json()):
                    staging.remove()
                    raise ConcurrentWriteError(
                        "Another writer took this one for dead, and removed its staged files for "
                        f"{self.location.display}. Nothing was published; run again."
                    )
                publish(self.location, self.control, staging, journal)
        # A later staged file may reuse a name of this journal, which must not be published again.
        with contextlib.suppress(*store.errors):
            store.remove(staging.journal)

    def _complete_record(self, record: HistoryRecord, journal: Journal, staging: Staging) -> HistoryRecord:
        """Fill in what is known only just before the journal is written."""
        store, now = self.location.store, datetime.now(UTC)
        modified = {move.target: store.get_modified_time(f"{staging.folder}/{move.staged}") for move in journal.moves}
        kept = {rel: self.location.to_path(rel) for rel in (journal.replaced if journal.retain else ())}
        # A broken link has nothing to retain.
        kept = {rel: path for rel, path in kept.items() if store.get_path_type(path) == "file"}
        names = {rel: f"{number}.replaced" for number, rel in enumerate(kept)}
        before = {rel: store.get_modified_time(path) for rel, path in kept.items()}
        return replace(
            record,
            id=make_record_id(store, self.control, now),
            lease=journal.lease,
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


def _report_takeover(still_held: Callable[[], None]) -> None:
    """Raise an error if another writer took over; a store that does not answer leaves the error that it has raised."""
    try:
        still_held()
    except ConcurrentWriteError:
        raise
    except CLIENT_ERRORS:
        return


def _read_partitions(store: Store, control: str) -> dict[str, Any]:
    """Read the partition record; {} if it is missing or damaged."""
    try:
        found = load_json(store.read_small(f"{control}/{PARTITION_RECORD}") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _retain_files(location: Location, control: str, staging: Staging, record: HistoryRecord | None) -> Iterator[None]:
    """Retain the files that a commit replaces, and remove them again if it fails before its journal."""
    try:
        if record is not None:
            retain_replaced(location, control, record)
        yield
    except BaseException:
        with contextlib.suppress(*location.store.errors):
            if record is not None and not has_journal(staging):
                remove_retained(location.store, control, [record.id])
        raise


@contextlib.contextmanager
def _accept_completion(store: Store, control: str, record: HistoryRecord | None) -> Iterator[None]:
    """Accept that another writer, which took over after the journal was written, completed this commit."""
    try:
        yield
    except CLIENT_ERRORS:
        # The record is published last.
        if store.is_local or record is None or not has_record(store, control, record):
            raise


@contextlib.contextmanager
def _translate_publish_errors(location: Location, staging: Staging) -> Iterator[None]:
    """Report an error after the journal was written as an unfinished commit."""
    try:
        yield
    except location.store.errors as error:
        if isinstance(error, MerganserError) or not has_journal(staging):
            raise
        raise DatasetMergeError(
            f"A commit to {location.display} was journaled but not fully published: {error}."
            f"{describe_denied(location.store, error)} Fix the cause, then call recover(path) to complete it."
        ) from error


@contextlib.contextmanager
def open_session(
    location: Location,
    timeout: float = LOCK_TIMEOUT,
    started: float | None = None,
    *,
    checked: bool = False,
    locks_late: bool = False,
) -> Iterator[Session]:
    """Begin to change a dataset: lock it, and recover what dead writers left unfinished.

    `started`: when the work began, by the monotonic clock; default now. `checked`: `check_target` was called. With
    `locks_late` the caller takes the lock for the commit; on object stores it is held from the start all the same.
    """
    started = time.monotonic() if started is None else started
    if not checked:
        check_target(location)
    session = Session(location=location, control=choose_control_folder(location), started=started, timeout=timeout)
    with translate_memory_errors(f"a change of {location.display}"):
        if locks_late and location.store.is_local:
            session.recover_dead()
            yield session
        else:
            with session.lock():
                yield session


def recover(path: str | os.PathLike[str], *, filesystem: Any = None, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Complete or roll back an interrupted commit; returns whether there was anything to recover.

    Every merge and write does this first; call it before reading a dataset whose writer was killed.

    Args:
        path: Folder or URL of the dataset.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        lock_timeout: Seconds to wait for another writer.

    >>> recover("no/such/dataset")
    False
    """
    # A journaled commit must be completed, whatever was added to the folder since.
    location = locate(path, filesystem, ignore_table_format=True)
    control = choose_control_folder(location)
    if all(map(_is_in_use, find_staging(location, control))):
        return False
    check_not_nested(location)
    with hold_lock(location.store, control, location.display, lock_timeout):
        return _recover(location, control, location.store.list_names(control))


def has_pending_commit(location: Location) -> bool:
    """Check whether a journaled commit waits for recovery."""
    control = choose_control_folder(location)
    with explain_unreadable(location, control):
        found = find_staging(location, control)
        return any(map(has_journal, found))


def check_no_pending_commit(location: Location) -> None:
    """Refuse to plan while a commit is partly published, by a running or a killed process."""
    if has_pending_commit(location):
        raise DatasetMergeError(
            f"A commit to {location.display} is being published, or was interrupted. Wait for it, or call "
            "recover(path), then plan again."
        )


def _recover(location: Location, control: str, names: Collection[str]) -> bool:
    found = find_staging(location, control, names)
    # Temporary files in these subfolders come from commits, and a killed one also left a staging folder.
    for folder in (control, *(f"{control}/{name}" for name in (HISTORY, BATCHES) if found)):
        # Leftovers only take space.
        with contextlib.suppress(OSError):
            location.store.remove_unfinished(folder)
    recovered = False
    for staging in found:
        if not location.store.is_local and not location.store.list_names(staging.folder):
            # Some stores list a removed folder for a while.
            location.store.remove_folder(staging.folder)
            continue
        with seize_folder(location.store, staging.folder) as is_seized:
            journal = _read_journal(staging)
            if journal is None and not location.store.is_local and not abandon(staging):
                # It was written just now; or a tombstone is left of a recovery that was killed.
                journal = _read_journal(staging)
            if not is_seized and journal is None:
                # A living writer stages files; one that publishes them would hold the lock.
                continue
            if journal is not None and not is_abandoned(staging):
                with (
                    _translate_publish_errors(location, staging),
                    _accept_completion(location.store, control, journal.history),
                ):
                    publish(location, control, staging, resolve_feed(staging, journal), recovering=True)
                with explain_staging_errors(staging):
                    staging.remove()
            else:
                with explain_staging_errors(staging):
                    if location.store.is_local:
                        staging.remove()
                    else:
                        staging.discard()
            recovered = True
    return recovered


def _is_in_use(staging: Staging) -> bool:
    """Check for a living writer that stages files; one with a journal would hold the lock."""
    return staging.is_claimed() and staging.location.store.get_path_type(staging.journal) is None
