"""Batch ids: a batch that was committed before is not merged again (M7).

Each id has a small file in the control folder, written by the commit itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from merganser.core.commit.history import read_records
from merganser.core.dataset.listing import has_files
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
    """Make the record of a batch for `find_batch`, without preserved files."""
    changed = [file for file in result.files if file.operation != "preserved"]
    return asdict(replace(result, batch_id=batch_id, files=changed, preserved_files=[], audit=None))


def find_batch(store: Store, control: str, batch_id: str) -> MergeResult | None:
    """Return the result of a committed batch."""
    path = make_batch_path(control, batch_id)
    data = store.read_small(path)
    if not data:
        # On object stores, an empty object stands for a batch that was forgotten.
        return None
    try:
        found = load_json(data)
        files = [MergeFileMetadata(**file) for file in found["files"]]
        return MergeResult(**{**found, "files": files, "replayed": True})
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path} is damaged: {error}. Remove it if batch {batch_id!r} may be merged again."
        raise UnreadableFileError(message) from error


def find_committed_batch(path: str | os.PathLike[str], batch_id: str, filesystem: Any = None) -> MergeResult | None:
    """Return the result of a batch that was committed to a dataset, if its data files still exist.

    >>> find_committed_batch("no/such/dataset", "2026-01-02")
    """
    location = locate(path, filesystem)
    control = choose_control_folder(location)
    found = find_batch(location.store, control, batch_id)
    return None if found is None or is_data_missing(location, control) else found


def is_data_missing(location: Location, control: str) -> bool:
    """Check whether the data was removed: the last commit left rows, but there are no data files."""
    if has_files(location):
        return False
    last = next(read_records(location.store, control), None)
    if last is None or last.target_count_after is None:
        return location.store.get_path_type(location.root) is None
    return last.target_count_after > 0


def forget_lost_batches(location: Location, control: str) -> None:
    """Forget all batches if the data was removed, so that they can be merged again."""
    batches = f"{control}/{BATCHES}"
    if location.store.get_path_type(batches) is not None and is_data_missing(location, control):
        location.store.remove_folder(batches)


def write_batch(store: Store, control: str, batch: Mapping[str, Any]) -> None:
    """Write the record of a batch."""
    store.make_folder(f"{control}/{BATCHES}")
    store.write_small(make_batch_path(control, batch["batch_id"]), encode_batch(batch))


def encode_batch(batch: Mapping[str, Any]) -> bytes:
    """Write the record of a batch as JSON."""
    return json.dumps(batch, indent=1).encode()


def forget_batch(store: Store, control: str, batch_id: str) -> None:
    """Remove the record of a batch, if it exists, so that it can be merged again."""
    store.remove(make_batch_path(control, batch_id))
    if store.get_path_type(f"{control}/{BATCHES}") is not None:
        store.flush([f"{control}/{BATCHES}"])


def make_batch_path(control: str, batch_id: str) -> str:
    """Make the path of the record of a batch."""
    # Not every id is a valid file name.
    name = hashlib.sha256(batch_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{control}/{BATCHES}/{name}.json"
