"""What a merge needs of storage, so that every change of a disk goes through one door and a test can fail any step.

Paths given to a store are its own: absolute paths locally, protocol-free paths elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    import pyarrow as pa
    import pyarrow.fs as pafs

COMPARE_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed file, its path relative to the folder that was listed.

    `version` is a text that every change of the content changes, None where storage tells no such thing; a link or a
    move may change it too, but not the identity. Within a tick of a clock a version may stay the same: `changed` is
    when the file last changed, in nanoseconds, or 0 where no clock counts. `real` is where a file is that was reached
    through a link, and None for all others.
    """

    rel: str
    size: int
    identity: str
    version: str | None = None
    changed: int = 0
    real: str | None = None


def is_same_time(recorded: int | None, found: int | None) -> bool:
    """Say whether a file has the time that was told of it, in nanoseconds; some tools copy only the seconds."""
    if recorded is None or found is None:
        return recorded == found
    return any(found == recorded - recorded % unit for unit in (1, 10**3, 10**6, 10**9))


class Store(ABC):
    """The few operations a merge needs of storage; every one either happens or raises OSError."""

    is_local: bool

    @abstractmethod
    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        """Yield every file below the folder, not entering folders whose relative path `enter` refuses."""

    @abstractmethod
    def get_path_type(self, path: str) -> str | None:
        """Say whether a path is a "file", a "directory" or absent (None)."""

    @abstractmethod
    def list_names(self, folder: str) -> list[str]:
        """List the names directly in a folder; an absent folder has none."""

    @abstractmethod
    def find_folders(self, folder: str, names: Collection[str]) -> set[str]:
        """Find which of these names are folders directly in a folder; none where that may not be looked into."""

    @abstractmethod
    def get_identity(self, path: str) -> str | None:
        """Describe a file so that any rewrite of it gives another text; None if it is absent."""

    @abstractmethod
    def get_modified_time(self, path: str) -> int | None:
        """Tell when a file was last changed, in nanoseconds; None where moving a file changes that."""

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for Arrow's random access."""

    @abstractmethod
    def open_reader(self, path: str) -> BinaryIO:
        """Open a file as a seekable Python stream."""

    @abstractmethod
    def create(self, path: str) -> BinaryIO:
        """Open a new file for writing."""

    @abstractmethod
    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; fine if it exists."""

    def make_durable_folder(self, folder: str) -> None:
        """Create a folder and its parents, and force those that are new to disk."""
        new, above = [], folder
        while self.is_local and self.get_path_type(above) is None:
            new.append(above)
            above = above.rpartition("/")[0] or "/"
        self.make_folder(folder)
        if new:
            self.flush([*new, above])

    def find_unwritable(self, files: Iterable[str], folders: Iterable[str]) -> str | None:  # noqa: ARG002  as below
        """Find a folder that files cannot be moved into, or that denies changes; None where only a try reports that."""
        return None

    @abstractmethod
    def flush(self, paths: Iterable[str]) -> None:
        """Force files or folders to disk, where that has a meaning."""

    @abstractmethod
    def replace(self, source: str, target: str) -> None:
        """Move a file onto a path, which may hold a file already."""

    @abstractmethod
    def can_reach(self, other: Store) -> bool:
        """Say whether the paths of another store are also this one's."""

    def link(self, path: str, link: str) -> bool:  # noqa: ARG002  what most stores do
        """Give a file a second path, in the place of whatever is there, without a copy; False where that cannot be."""
        return False

    def is_copied(self, path: str, identity: str, kept: str) -> bool:  # noqa: ARG002  as above
        """Say whether a file is the copy of the one that had an identity, by the copy of a link to that one, `kept`."""
        return False

    @abstractmethod
    def duplicate(self, path: str, copy: str) -> None:
        """Give a file a second path, in the place of whatever is there: by a link where that can be, else by a copy."""

    def has_same_content(self, one: str, other: str) -> bool:
        """Compare two files byte for byte."""
        with self.open_reader(one) as left, self.open_reader(other) as right:
            while (piece := left.read(COMPARE_BUFFER_BYTES)) == right.read(COMPARE_BUFFER_BYTES):
                if not piece:
                    return True
        return False

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone."""

    @abstractmethod
    def remove_folder(self, path: str) -> None:
        """Remove a folder and everything in it; fine if it is gone."""

    @abstractmethod
    def write_small(self, path: str, data: bytes) -> None:
        """Write a small file all at once: a reader, or a crash, meets the old content or the new."""

    @abstractmethod
    def remove_unfinished(self, folder: str) -> None:
        """Remove what killed writers of small files left in a folder; only its one writer may do so."""

    @abstractmethod
    def read_small(self, path: str) -> bytes | None:
        """Read a small file; None if it is absent."""

    @abstractmethod
    def to_arrow_filesystem(self) -> pafs.FileSystem:
        """Give the filesystem under which Arrow knows these paths."""

    @abstractmethod
    def keep_mode(self, old: str, staged: str) -> None:
        """Give a staged file the mode and owner of the file it will replace, where files have them."""
