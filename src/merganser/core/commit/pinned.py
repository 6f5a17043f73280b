"""Reads a dataset from a snapshot that ends with the last object that reads it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow.fs as pafs

from merganser.core.commit.snapshots import Snapshot, pin_dataset
from merganser.core.dataset.read import open_dataset, to_arrow_dataset
from merganser.core.dataset.snapshot import load_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.dataset as pads

    from merganser.core.commit.states import AsOf
    from merganser.core.storage.location import Location
    from merganser.core.storage.remote import RemoteStore


def open_pinned_dataset(location: Location, as_of: AsOf | None = None) -> pads.Dataset:
    """Open one state of a dataset, which no commit changes, as an Arrow dataset.

    Where only copies could be made, the files are opened as they are, unless `as_of` asks for a past state.
    """
    pinned = pin_dataset(location, as_of)
    return open_dataset(location) if pinned is None else _open(pinned)


@contextmanager
def pinned_dataset(location: Location, as_of: AsOf | None = None) -> Iterator[pads.Dataset]:
    """Open a dataset as `open_pinned_dataset` does, until the block ends."""
    pinned = pin_dataset(location, as_of)
    try:
        yield open_dataset(location) if pinned is None else _open(pinned)
    finally:
        if pinned is not None:
            pinned.remove()


def _open(pinned: Snapshot) -> pads.Dataset:
    target = load_target(pinned.location, [], None, {})
    return to_arrow_dataset(target, pafs.PyFileSystem(_Holder(pinned)))


class _Holder(pafs.FSSpecHandler):  # type: ignore[misc]  # PyArrow has no types
    """Keeps a snapshot for as long as Arrow keeps a dataset, or a scanner of it.

    Arrow reads nothing through it: a thread of DuckDB that scans a dataset, and one of Arrow that calls Python for a
    file, would wait for each other.
    """

    def __init__(self, pinned: Snapshot) -> None:
        self.pinned = pinned

    @cached_property
    def fs(self) -> Any:
        """The filesystem of fsspec, for those who read the files of the dataset themselves."""
        store = self.pinned.location.store
        if not store.is_local:
            return cast("RemoteStore", store).filesystem
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  slow to load

        return LocalFileSystem()

    def __reduce__(self) -> tuple[type[pafs.FSSpecHandler], tuple[Any]]:
        # A pickled dataset reads the files of this one while this one exists.
        return pafs.FSSpecHandler, (self.fs,)
