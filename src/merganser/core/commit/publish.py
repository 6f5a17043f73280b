"""Publish a journaled commit: safe to repeat, safe to interrupt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from merganser.core.commit.batches import forget_batch, write_batch
from merganser.core.commit.history import save_record
from merganser.core.commit.replaced_files import Replaced, held_back
from merganser.core.commit.retained import drop, unreachable
from merganser.core.storage.staging import (
    RECORD,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.commit.journal import Journal, Move, Removal
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


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
