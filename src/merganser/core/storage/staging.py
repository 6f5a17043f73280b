"""Where staged files wait: a control folder beside the dataset, where no reader looks.

Nothing here ends in `.parquet`: DuckDB's and Polars' globs enter hidden folders, and Polars refuses a dataset folder
that holds other files.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.columnar.memory import translate_memory_errors
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
# Whoever takes this folder for abandoned removes it, and a journal that comes later stands there without.
MARKER = "mark.staged"
# The links to what a commit replaces: in a folder of their own, where no staged file can have their names.
REPLACED_LINKS = ".replaced"
PARTITION_RECORD = "partitions.json"
HISTORY = "history"
# An empty file that the first commit leaves: whether the control folder is inside its dataset or beside it. The name
# tells, so that a listing is enough.
INSIDE, BESIDE = "dataset.inside", "dataset.beside"
_PREFIX, _SUFFIX = ".", ".merganser"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_DEFAULT_REMEDY = "check free space and permissions there"


def name_control_folder(name: str) -> str:
    """Name the control folder of a dataset."""
    return f"{_PREFIX}{name}{_SUFFIX}"


def choose_control_folder(location: Location) -> str:
    """Choose the dataset's control folder: beside it, or inside it where beside is impossible (C1)."""
    parent, _, name = location.root.rpartition("/")
    beside, inside = f"{parent}/{name_control_folder(name)}", f"{location.root}/{name_control_folder(name)}"
    if not isinstance(location.store, LocalStore):
        # The parent of a bucket is no place for files.
        return beside if parent.strip("/") else inside
    if os.path.isdir(beside):
        return beside
    if os.path.isdir(inside) and find_owner(location.store, inside) == location.root:
        return inside
    return beside if _can_rename_from(parent or "/", location.root) else inside


def name_place_marker(location: Location, control: str) -> str:
    """Name the file that tells where a dataset is, seen from its control folder."""
    return INSIDE if control.startswith(f"{location.root}/") else BESIDE


def list_control(store: Store, control: str) -> list[str]:
    """List a control folder; one that this user may not list counts as that of a dataset."""
    try:
        return store.list_names(control)
    except PermissionError:
        return [PARTITION_RECORD]


def find_owner(store: Store, control: str, names: Collection[str] | None = None) -> str:
    """Find the dataset, which may be gone, of a control folder with these names in it: around it or beside it."""
    names = list_control(store, control) if names is None else names
    around, _, own = control.rpartition("/")
    name = own.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    beside = f"{around}/{name}"
    # Older versions left no mark.
    if BESIDE in names or (INSIDE not in names and store.get_path_type(beside) == "directory"):
        return beside
    return around if INSIDE in names or around.rpartition("/")[2] == name else beside


def _can_rename_from(parent: str, root: str) -> bool:
    if not os.path.isdir(root):
        return True
    return os.access(parent, os.W_OK | os.X_OK) and os.stat(parent).st_dev == os.stat(root).st_dev


@dataclass(frozen=True, slots=True)
class Staging:
    """One merge's folder of staged files; `on_file_done` is called for each that is ready, in this process."""

    location: Location
    folder: str
    on_file_done: Callable[[], None] = ignore

    def __reduce__(self) -> tuple[type[Staging], tuple[Location, str]]:
        # Whoever listens is not where a task is sent.
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
        """The path of a file that is there until somebody clears this folder."""
        return f"{self.folder}/{MARKER}"

    def make_path(self) -> str:
        """Give a path for a staged file that no other thread, process or attempt gets."""
        return f"{self.folder}/{uuid.uuid4().hex}.staged"

    def remove(self) -> None:
        """Remove the journal, then everything else: what is left of an interrupted removal is no commit."""
        self.location.store.remove(self.journal)
        self.location.store.remove_folder(self.folder)


def explain_staging_errors(staging: Staging) -> AbstractContextManager[None]:
    """Say where files cannot be staged."""
    return explain_unwritable(staging.location.store, staging.location.display, staging.control)


@contextmanager
def explain_unwritable(store: Store, display: str, folder: str) -> Iterator[None]:
    """Name the folder in which something of a dataset cannot be written, what is in the way, and the remedy."""
    try:
        with translate_memory_errors(f"staging files for {display}"):
            yield
    except OSError as error:
        if isinstance(error, MerganserError):
            raise
        remedy = "keep the dataset on a disk that has file locks" if error.errno in _NO_LOCKS else _DEFAULT_REMEDY
        message = (
            f"Cannot write the lock or staged files of {display} in {folder}: {error}. Nothing was published; "
            f"{remedy}, then run again."
        )
        if not isinstance(error, PermissionError):
            raise StagingError(message) from error
        if store.is_local:
            message = (
                f"Cannot write the lock or staged files of {display} in {folder}: {error}. "
                f"{describe_owner(str(error.filename or folder))}. Nothing was published; ask the owner to let you "
                f"write there (a group that shares the dataset needs chgrp -R and chmod -R g+rwX on {folder}), or run "
                "as a user who may."
            )
        raise DatasetPermissionError(message) from error


@contextmanager
def explain_unreadable(location: Location, control: str) -> Iterator[None]:
    """Name the owner of a control folder that this user may not read, and the remedy."""
    try:
        yield
    except PermissionError as error:
        if isinstance(error, MerganserError):
            raise
        owner = f" {describe_owner(str(error.filename or control))}." if location.store.is_local else ""
        message = (
            f"Cannot read the control folder of {location.display}: {error}.{owner} Ask the owner to let you read "
            f"there (a group that shares the dataset needs chgrp -R and chmod -R g+rwX on {control}), or run as a user "
            "who may."
        )
        raise DatasetPermissionError(message) from error


def open_staging(location: Location, control: str, on_file_done: Callable[[], None] = ignore) -> Staging:
    """Make a new staging folder."""
    folder = f"{control}/{STAGING_PREFIX}{uuid.uuid4().hex}"
    with explain_unwritable(location.store, location.display, control):
        location.store.make_folder(folder)
    return Staging(location, folder, on_file_done)


def find_staging(location: Location, control: str, names: Collection[str] | None = None) -> list[Staging]:
    """Find what earlier merges left behind, by the names in the control folder."""
    if names is None:
        with explain_unreadable(location, control):
            names = location.store.list_names(control)
    return [Staging(location, f"{control}/{name}") for name in names if name.startswith(STAGING_PREFIX)]
