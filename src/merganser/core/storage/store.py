"""The storage interface: every change of a disk goes through it, so that tests can make any step fail.

Paths are those of the store: absolute on a local disk, without protocol elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    import pyarrow as pa
    import pyarrow.fs as pafs

COMPARE_BUFFER_BYTES = 1 << 20
# What a request to an object store may raise: each client has errors of its own, which have no other class in common.
CLIENT_ERRORS = (Exception,)


class FileInfo(NamedTuple):
    """A listed file, by its path relative to the listed folder; a tuple, because a listing makes very many."""

    rel: str
    size: int
    identity: str  # changes with the content, but not with a link or a move
    # Changes with the content, and maybe with a link or a move; None if the storage cannot tell. Two changes within one
    # clock tick may have the same version.
    version: str | None = None
    changed: int = 0  # when the file last changed, in nanoseconds; 0 if `version` does not depend on a clock
    real: str | None = None  # the path behind a symbolic link


def is_same_time(recorded: int | None, found: int | None) -> bool:
    """Compare two times in nanoseconds; `found` may be truncated, as some tools copy only seconds."""
    if recorded is None or found is None:
        return recorded == found
    return any(found == recorded - recorded % unit for unit in (1, 10**3, 10**6, 10**9))


class Store(Protocol):
    """The operations of a storage; each succeeds or raises one of `errors`."""

    is_local: bool
    errors: tuple[type[Exception], ...] = (OSError,)
    # One listing shows all files below a folder, and none if the folder does not exist.
    lists_flat: bool = False

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        """Yield every file below a folder, without entering folders whose relative path `enter` refuses."""

    def get_path_type(self, path: str) -> str | None:
        """Return "file", "directory", or None if the path does not exist."""

    def list_names(self, folder: str) -> list[str]:
        """List the names in a folder; a missing folder has none."""

    def find_folders(self, folder: str, names: Collection[str]) -> set[str]:
        """Return those of the names that are folders in a folder; none if it cannot be listed."""

    def get_identity(self, path: str) -> str | None:
        """Return a string that changes whenever the file is rewritten; None if it is missing."""

    def get_modified_time(self, path: str) -> int | None:
        """Return when a file was last changed, in nanoseconds; None if moving a file changes that."""

    def to_stored_path(self, path: str) -> str:
        """Return the path under which other programs, such as Arrow, find a data file."""
        return path

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access by Arrow."""

    def open_reader(self, path: str) -> BinaryIO:
        """Open a file as a seekable Python stream."""

    def create(self, path: str) -> BinaryIO:
        """Open a new file for writing."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents, if missing."""

    def make_durable_folder(self, folder: str) -> None:
        """Create a folder and its parents, and flush new ones to disk."""
        new, above = [], folder
        while self.is_local and self.get_path_type(above) is None:
            new.append(above)
            above = above.rpartition("/")[0] or "/"
        self.make_folder(folder)
        if new:
            self.flush([*new, above])

    def find_unwritable(self, files: Iterable[str], folders: Iterable[str]) -> str | None:  # noqa: ARG002  as below
        """Return a folder that cannot be written to; None if there is none, or only an attempt can show it."""
        return None

    def begin_flush(self, path: str) -> None:
        """Let the system begin to write a file to disk, which a later `flush` waits for."""
        del path  # the default: there is nothing to begin

    def flush(self, paths: Iterable[str]) -> None:
        """Flush files or folders to disk, where the store has that."""

    def replace(self, source: str, target: str) -> None:
        """Move a file to a path, replacing a file there."""

    def can_reach(self, other: Store) -> bool:
        """Check whether the paths of another store are valid here."""

    def link(self, path: str, link: str) -> bool:  # noqa: ARG002  the default
        """Hard-link a file, replacing what is at `link`; False where that is impossible."""
        return False

    def is_copied(self, path: str, identity: str, kept: str) -> bool:  # noqa: ARG002  as above
        """Check whether a file is a copy of the one with this identity, of which `kept` is a link or a copy."""
        return False

    def duplicate(self, path: str, copy: str) -> None:
        """Link or, where that is impossible, copy a file, replacing what is at `copy`."""

    def has_same_content(self, one: str, other: str) -> bool:
        """Compare two files byte for byte."""
        with self.open_reader(one) as left, self.open_reader(other) as right:
            while (block := left.read(COMPARE_BUFFER_BYTES)) == right.read(COMPARE_BUFFER_BYTES):
                if not block:
                    return True
        return False

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and its contents, if it exists."""

    def write_small(self, path: str, data: bytes) -> None:
        """Write a small file atomically and durably."""

    def remove_unfinished(self, folder: str) -> None:
        """Remove temporary files of killed `write_small` calls; only the folder's single writer may call this."""

    def read_small(self, path: str) -> bytes | None:
        """Read a small file; None if it is missing."""

    def to_arrow_filesystem(self) -> pafs.FileSystem:
        """Return the Arrow filesystem for these paths."""

    def keep_mode(self, old: str, staged: str) -> None:
        """Copy mode and owner of a file to the staged file that will replace it, where files have them."""
