"""Publish a journaled commit: safe to repeat, safe to interrupt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from merganser.core.commit.batches import encode_batch, forget_batch, make_batch_path, write_batch
from merganser.core.commit.history import save_record
from merganser.core.commit.journal import list_staged
from merganser.core.commit.replaced_files import ReplacedFiles, make_conflict_error
from merganser.core.commit.retained import find_unreachable, remove_retained
from merganser.core.storage.staging import PARTITION_RECORD, STAGED_BATCH, STAGED_RECORD
from merganser.errors import DatasetMergeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.commit.journal import Journal, Move, Removal
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


def publish(location: Location, control: str, staging: Staging, journal: Journal, *, recovering: bool = False) -> None:
    """Do what the journal lists and is not done yet."""
    store = location.store
    _write_control_files(location, control, staging, journal)
    replaced = ReplacedFiles(staging, journal.replaced)
    removed = _find_removed(location, replaced, journal.removals)
    for rel in journal.stale:
        _remove_with_checksum(location, rel)
    _move_files(location, staging, journal, replaced, recovering=recovering)
    _remove_files(location, removed)
    touched = [location.to_path(move.target) for move in journal.moves]
    touched += [location.to_path(removal.target) for removal in journal.removals]
    if journal.history is not None:
        save_record(store, control, journal.history)
    feed_folders = sorted({_get_parent(move.target) for move in journal.feed})
    store.flush([*_list_folders_to_flush(location, touched), *feed_folders, control])
    if journal.history is not None and journal.history.undoes is not None:
        remove_retained(store, control, [journal.history.undoes])
    elif journal.history is not None:
        unreachable = find_unreachable(store, control, journal.retain)
        # If another writer completed this commit while this one was stalled, later commits decide on their own files.
        remove_retained(store, control, [one for one in unreachable if one <= journal.history.id])


def stage_control_files(staging: Staging, journal: Journal) -> None:
    """On an object store, stage the control files that a commit replaces.

    There, all that is published under a name that may exist is copied from the staging folder. The writer that
    completes a commit removes the folder, so nothing that a stalled writer still does can bring back an older file.
    """
    store = staging.location.store
    if store.is_local:
        return
    if journal.record is not None:
        store.write_small(f"{staging.folder}/{STAGED_RECORD}", _encode_record(journal.record))
    if journal.batch is not None or journal.forget is not None:
        data = b"" if journal.batch is None else encode_batch(journal.batch)
        store.write_small(f"{staging.folder}/{STAGED_BATCH}", data)


def _write_control_files(location: Location, control: str, staging: Staging, journal: Journal) -> None:
    """Write the control files that must exist before the first file is replaced."""
    store = location.store
    batch_id = journal.forget if journal.batch is None else journal.batch["batch_id"]
    if not store.is_local:
        if journal.record is not None:
            store.duplicate(f"{staging.folder}/{STAGED_RECORD}", f"{control}/{PARTITION_RECORD}")
        if batch_id is not None:
            store.duplicate(f"{staging.folder}/{STAGED_BATCH}", make_batch_path(control, batch_id))
        return
    if journal.record is not None:
        store.write_small(f"{control}/{PARTITION_RECORD}", _encode_record(journal.record))
    if journal.batch is not None:
        write_batch(store, control, journal.batch)
    if journal.forget is not None:
        forget_batch(store, control, journal.forget)


def _encode_record(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()


def _move_files(
    location: Location, staging: Staging, journal: Journal, replaced: ReplacedFiles, *, recovering: bool
) -> None:
    store, staged = location.store, list_staged(staging, journal)
    folders = {_get_parent(path) for path in staged}
    pending = {f"{folder}/{name}" for folder in folders for name in store.list_names(folder)}
    targets = [location.to_path(move.target) for move in journal.moves] + [move.target for move in journal.feed]
    folders = {_get_parent(path) for path in targets}
    # During recovery, an existing folder may be one that the killed process made but did not flush.
    new = {folder for folder in folders if store.is_local and (recovering or store.get_path_type(folder) is None)}
    for folder in sorted(folders):
        store.make_folder(folder)
    # A file moved into a folder that is not on disk yet would be lost by a power failure.
    inside = [path for path in targets[: len(journal.moves)] if _get_parent(path) in new]
    feed_folders = {_get_parent(move.target) for move in journal.feed} & new
    store.flush([*_list_folders_to_flush(location, inside), *sorted(feed_folders)])
    steps = list(zip((*journal.moves, *journal.feed), staged, targets, strict=True))
    # A row that moves to a new file is there before it leaves its old one, so that no reader misses it.
    for move, path, target in sorted(steps, key=lambda step: step[0].replaces is not None):
        if path in pending:
            if move not in journal.feed:
                _check_replaced(location, staging, replaced, move)
            # Spark refuses a file with the checksum sidecar of its predecessor.
            store.remove(_make_checksum_path(target))
            store.replace(path, target)
        elif move not in journal.feed:
            _check_published(location, move)


def _find_removed(location: Location, replaced: ReplacedFiles, removals: Sequence[Removal]) -> dict[str, str]:
    """Find the files that still have to be removed, with their identities; refuse a file of another program."""
    found = location.list_all_files() if removals else {}
    remaining = {removal.target: found[removal.target].identity for removal in removals if removal.target in found}
    for rel, now in remaining.items():
        if not replaced.is_journaled_file(rel, now):
            raise make_conflict_error(location, rel, "the change")
    return remaining


def _remove_files(location: Location, removals: Mapping[str, str]) -> None:
    found = location.list_all_files() if removals else {}
    for rel, identity in removals.items():
        if rel in found and found[rel].identity == identity:
            _remove_with_checksum(location, rel)


def _remove_with_checksum(location: Location, rel: str) -> None:
    path = location.to_path(rel)
    location.store.remove(_make_checksum_path(path))
    location.store.remove(path)


def _check_replaced(location: Location, staging: Staging, replaced: ReplacedFiles, move: Move) -> None:
    # An object store copies files; a copy that stopped halfway is our own and is written again.
    if location.store.is_local:
        target = location.to_path(move.target)
        found = location.store.get_identity(target)
        if not (
            found is None
            or replaced.is_journaled_file(move.target, found)
            or location.store.has_same_content(f"{staging.folder}/{move.staged}", target)
        ):
            raise make_conflict_error(location, move.target, "its replacement")


def _check_published(location: Location, move: Move) -> None:
    """Refuse to go on if a staged file is missing, unless it was published before."""
    found = location.store.get_identity(location.to_path(move.target))
    if found is None or found == move.replaces:
        raise DatasetMergeError(
            f"A commit to {location.display} was journaled, but the staged file {move.staged} of "
            f"{location.to_display(move.target)} is missing. Restore it in the staging folder, then call recover(path)."
        )


def _list_folders_to_flush(location: Location, paths: Sequence[str]) -> list[str]:
    if not location.store.is_local:
        return []
    folders = {_get_parent(location.root)} if paths else set()
    for path in paths:
        folder = _get_parent(path)
        while folder not in folders and len(folder) >= len(location.root):
            folders.add(folder)
            folder = _get_parent(folder)
    return sorted(folder for folder in folders if location.store.get_path_type(folder) == "directory")


def _get_parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _make_checksum_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"
