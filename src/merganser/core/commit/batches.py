"""Batches by id: a merge under an id that was committed before is not done again (M7).

Each id has a small file in the control folder, written by the commit itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from merganser.core.commit.history import read_records
from merganser.core.dataset.snapshot import has_files
from merganser.core.model.result import MergeFileMetadata, MergeResult
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import UnreadableFileError
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

BATCHES = "batches"


def make_batch(batch_id: str, result: MergeResult) -> dict[str, Any]:
    """Describe a merge so that `find_batch` can say what it did; files that it left alone are not listed."""
    changed = [file for file in result.files if file.operation != "preserved"]
    return asdict(replace(result, batch_id=batch_id, files=changed, preserved_files=[], audit=None))


def find_batch(store: Store, control: str, batch_id: str) -> MergeResult | None:
    """Give the result of the batch of this id, if it was committed."""
    path = _make_path(control, batch_id)
    data = store.read_small(path)
    if data is None:
        return None
    try:
        found = load_json(data)
        files = [MergeFileMetadata(**file) for file in found["files"]]
        return MergeResult(**{**found, "files": files, "replayed": True})
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path} is damaged: {error}. Remove it if batch {batch_id!r} may be merged again."
        raise UnreadableFileError(message) from error


def find_committed_batch(path: str | os.PathLike[str], batch_id: str, filesystem: Any = None) -> MergeResult | None:
    """Give the result of the batch of this id, if it was committed to the dataset and its rows are still there.

    >>> find_committed_batch("no/such/dataset", "2026-01-02")
    """
    location = locate(path, filesystem)
    control = choose_control_folder(location)
    found = find_batch(location.store, control, batch_id)
    return None if found is None or is_data_missing(location, control) else found


def is_data_missing(location: Location, control: str) -> bool:
    """Say whether somebody removed the data: the last commit left rows, but there is no data file."""
    if has_files(location):
        return False
    last = next(read_records(location.store, control), None)
    if last is None or last.target_count_after is None:
        return location.store.get_path_type(location.root) is None
    return last.target_count_after > 0


def forget_lost_batches(location: Location, control: str) -> None:
    """Let every batch be merged again, if what was in them is gone."""
    batches = f"{control}/{BATCHES}"
    if location.store.get_path_type(batches) is not None and is_data_missing(location, control):
        location.store.remove_folder(batches)


def write_batch(store: Store, control: str, batch: Mapping[str, Any]) -> None:
    """Keep a batch's record."""
    store.make_folder(f"{control}/{BATCHES}")
    store.write_small(_make_path(control, batch["batch_id"]), json.dumps(batch, indent=1).encode())


def forget_batch(store: Store, control: str, batch_id: str) -> None:
    """Let a batch be merged again; fine if it is not known."""
    store.remove(_make_path(control, batch_id))
    if store.get_path_type(f"{control}/{BATCHES}") is not None:
        store.flush([f"{control}/{BATCHES}"])


def _make_path(control: str, batch_id: str) -> str:
    # Any text may be an id, but not any text a file's name.
    name = hashlib.sha256(batch_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{control}/{BATCHES}/{name}.json"
