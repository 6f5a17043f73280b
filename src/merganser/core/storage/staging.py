"""The control folder of a dataset, and the staging folders in it.

It is beside the dataset, because Polars refuses a dataset folder that holds other files. Nothing in it ends in
`.parquet`, because globs of DuckDB and Polars enter hidden folders.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.storage.claims import claim_folder, is_claimed
from merganser.core.storage.local import LocalStore, describe_owner
from merganser.errors import DatasetPermissionError, MerganserError, StagingError
from merganser.progress import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

STAGING_PREFIX = ".staging_"
JOURNAL = "journal.json"
# Recovery deletes this marker with an abandoned folder, so a journal written afterwards has no marker and is ignored.
MARKER = "mark.staged"
# The folder of links to the files that a commit replaces, apart from staged files with the same names.
REPLACED_LINKS = ".replaced"
PARTITION_RECORD = "partitions.json"
HISTORY = "history"
# The first commit creates one of these empty files, so that a listing shows whether the control folder is inside its
# dataset or beside it.
INSIDE, BESIDE = "dataset.inside", "dataset.beside"
# On an object store: the partition record, and that of a batch, as they will be.
STAGED_RECORD, STAGED_BATCH = "record.staged", "batch.staged"
_PREFIX, _SUFFIX = ".", ".merganser"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_DEFAULT_REMEDY = "check free space and permissions there"


def name_control_folder(name: str) -> str:
    """Return the name of the control folder of a dataset of this name."""
    return f"{_PREFIX}{name}{_SUFFIX}"


def choose_control_folder(location: Location) -> str:
    """Return the path of the control folder: beside the dataset, or inside it where that is impossible (C1)."""
    parent, _, name = location.root.rpartition("/")
    beside, inside = f"{parent}/{name_control_folder(name)}", f"{location.root}/{name_control_folder(name)}"
    if not isinstance(location.store, LocalStore):
        # A bucket has no parent to hold files.
        return beside if parent.strip("/") else inside
    if os.path.isdir(beside):
        return beside
    if os.path.isdir(inside) and find_owner(location.store, inside) == location.root:
        return inside
    return beside if _can_rename_from(parent or "/", location.root) else inside


def name_place_marker(location: Location, control: str) -> str:
    """Return the name of the marker for the place of this control folder."""
    return INSIDE if control.startswith(f"{location.root}/") else BESIDE


def list_control(store: Store, control: str) -> list[str]:
    """List a control folder; one that this user may not list counts as one with commits."""
    try:
        return store.list_names(control)
    except PermissionError:
        return [PARTITION_RECORD]


def find_owner(store: Store, control: str, names: Collection[str] | None = None) -> str:
    """Find the dataset of a control folder with these names in it; it may not exist any more."""
    names = list_control(store, control) if names is None else names
    around, _, own = control.rpartition("/")
    name = own.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    beside = f"{around}/{name}"
    # Older versions left no marker.
    if BESIDE in names or (INSIDE not in names and store.get_path_type(beside) == "directory"):
        return beside
    return around if INSIDE in names or around.rpartition("/")[2] == name else beside


def _can_rename_from(parent: str, root: str) -> bool:
    if not os.path.isdir(root):
        return True
    return os.access(parent, os.W_OK | os.X_OK) and os.stat(parent).st_dev == os.stat(root).st_dev


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of staged files of one merge; `on_file_done` is called for each file staged in this process."""

    location: Location
    folder: str
    on_file_done: Callable[[], None] = ignore

    def __reduce__(self) -> tuple[type[Staging], tuple[Location, str]]:
        # The callback stays in this process.
        return Staging, (self.location, self.folder)

    @property
    def control(self) -> str:
        """The control folder."""
        return self.folder.rpartition("/")[0]

    @property
    def journal(self) -> str:
        """The path of the journal that makes this staging a commit."""
        return f"{self.folder}/{JOURNAL}"

    @property
    def marker(self) -> str:
        """The path of the marker, which exists until recovery removes the folder."""
        return f"{self.folder}/{MARKER}"

    def make_path(self) -> str:
        """Return a unique path for a staged file."""
        return f"{self.folder}/{uuid.uuid4().hex}.staged"

    def is_claimed(self) -> bool:
        """Whether a living writer works here."""
        return is_claimed(self.location.store, self.folder)

    def remove(self) -> None:
        """Remove the journal, then the rest, so that an interrupted removal leaves no commit."""
        self.location.store.remove(self.journal)
        self.location.store.remove_folder(self.folder)

    def discard(self) -> None:
        """Remove a folder with a tombstone: that last, and the marker first, so that no journal can count any more."""
        store = self.location.store
        for name in sorted(store.list_names(self.folder), key=lambda name: (name == JOURNAL, name != MARKER)):
            store.remove(f"{self.folder}/{name}")
        store.remove_folder(self.folder)


def explain_staging_errors(staging: Staging) -> AbstractContextManager[None]:
    """Translate OSErrors of staging; see `explain_unwritable`."""
    return explain_unwritable(staging.location.store, staging.location.display, staging.control)


@contextmanager
def explain_unwritable(store: Store, display: str, folder: str) -> Iterator[None]:
    """Translate OSErrors to a StagingError that names the folder, its owner and the remedy."""
    try:
        with translate_memory_errors(f"staging files for {display}"):
            yield
    except OSError as error:
        if isinstance(error, MerganserError):
            raise
        problem = f"Cannot write the lock or staged files of {display} in {folder}: {error}."
        remedy = "keep the dataset on a disk that has file locks" if error.errno in _NO_LOCKS else _DEFAULT_REMEDY
        message = f"{problem} Nothing was published; {remedy}, then run again."
        if not isinstance(error, PermissionError):
            raise StagingError(message) from error
        if store.is_local:
            message = (
                f"{problem} {describe_owner(str(error.filename or folder))}. Nothing was published; ask the owner to "
                f"let you write there (a group that shares the dataset needs chgrp -R and chmod -R g+rwX on {folder}), "
                "or run as a user who may."
            )
        raise DatasetPermissionError(message) from error


@contextmanager
def explain_unreadable(location: Location, control: str) -> Iterator[None]:
    """Translate a PermissionError to one that names the owner of the control folder and the remedy."""
    try:
        yield
    except PermissionError as error:
        if isinstance(error, MerganserError):
            raise
        owner = f" {describe_owner(str(error.filename or control))}." if location.store.is_local else ""
        raise DatasetPermissionError(
            f"Cannot read the control folder of {location.display}: {error}.{owner} Ask the owner to let you read "
            f"there (a group that shares the dataset needs chgrp -R and chmod -R g+rwX on {control}), or run as a user "
            "who may."
        ) from error


@contextmanager
def open_staging(location: Location, control: str, on_file_done: Callable[[], None] = ignore) -> Iterator[Staging]:
    """Create a staging folder, and claim it while it is open; the caller removes it."""
    with explain_unwritable(location.store, location.display, control):
        location.store.make_durable_folder(control)
        claim = claim_folder(location.store, lambda: f"{control}/{STAGING_PREFIX}{uuid.uuid4().hex}")
    try:
        yield Staging(location, claim.folder, on_file_done)
    finally:
        claim.release()


def find_staging(location: Location, control: str, names: Collection[str] | None = None) -> list[Staging]:
    """Find the staging folders that earlier merges left in the control folder."""
    if names is None:
        with explain_unreadable(location, control):
            names = location.store.list_names(control)
    return [Staging(location, f"{control}/{name}") for name in names if name.startswith(STAGING_PREFIX)]
