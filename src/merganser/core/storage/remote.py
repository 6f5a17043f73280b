"""The store of any fsspec filesystem."""

from __future__ import annotations

import contextlib
import io
import time
import uuid
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from merganser.core.storage.store import CLIENT_ERRORS, FileInfo, Store
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    import fsspec

# Filesystems whose `find` is one flat listing that raises its errors.
S3_PROTOCOLS = {"s3", "s3a"}
FLAT_LISTING_PROTOCOLS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}

# Packages of filesystems that pass exclusive creation on to the store; others ignore it, or look before they write.
EXCLUSIVE_PACKAGES = {"s3fs", "gcsfs", "adlfs"}
# Seconds between attempts to create a file, while the store does not answer.
CREATE_WAITS = (0.1, 0.4, 1.6)

# Names under which filesystems report a tag of the content, and the time of the last change.
_TAGS = ("ETag", "etag", "md5Hash")
_TIMES = ("LastModified", "last_modified", "mtime", "updated")


class RemoteStore(Store):
    """Any fsspec filesystem: a rename is a copy and a delete, and empty folders may not exist."""

    is_local = False
    errors = CLIENT_ERRORS

    def __init__(self, filesystem: fsspec.AbstractFileSystem) -> None:
        self.filesystem = filesystem
        self.lists_flat = bool(FLAT_LISTING_PROTOCOLS & self._protocols)

    @property
    def _protocols(self) -> set[str]:
        protocol = self.filesystem.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        self.filesystem.invalidate_cache(folder)
        skip = len(folder) + 1

        @cache
        def enters(rel: str) -> bool:
            above = rel.rpartition("/")[0]
            return (not above or enters(above)) and enter(rel)

        for info in self._list_files(folder, enters):
            rel = info["name"].removesuffix("/")[skip:]
            parent = rel.rpartition("/")[0]
            if not parent or enters(parent):
                identity, changed = _format_identity(info), _read_change_time(info)
                version = None if changed is None else identity
                size = int(info["size"] or 0)
                yield FileInfo(rel=rel, size=size, identity=identity, version=version, changed=changed or 0)

    def _list_files(self, folder: str, enter: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
        """List files below a folder in one request where the filesystem can, else folder by folder."""
        if self.lists_flat:
            yield from self.filesystem.find(folder, detail=True).values()
            return
        # fsspec's own walk skips folders that it cannot list, which would lose their rows.
        pending = [folder]
        while pending:
            for info in self.filesystem.ls(pending.pop(), detail=True):
                if info["type"] != "directory":
                    yield info
                elif enter(info["name"].rstrip("/")[len(folder) + 1 :]):
                    pending.append(info["name"])

    def get_path_type(self, path: str) -> str | None:
        self.filesystem.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            return cast("str", self.filesystem.info(path)["type"])
        return None

    def list_names(self, folder: str) -> list[str]:
        self.filesystem.invalidate_cache(folder)
        try:
            found = self.filesystem.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        except KeyError:
            # A filesystem in memory cannot list a folder from which another thread is removing a file.
            return self.list_names(folder)
        # A folder that lost its last file may be listed for a while, as an object of its own.
        paths = {path.rstrip("/") for path in found} - {folder}
        return sorted({path.rsplit("/", 1)[-1] for path in paths})

    def find_folders(self, folder: str, names: Collection[str]) -> set[str]:
        self.filesystem.invalidate_cache(folder)
        try:
            found = self.filesystem.ls(folder, detail=True)
        except OSError:
            # Credentials may be limited to a prefix of the bucket, which stores report with different errors.
            return set()
        folders = (info["name"].rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory")
        return set(names).intersection(folders)

    def get_identity(self, path: str) -> str | None:
        self.filesystem.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            return _format_identity(self.filesystem.info(path))
        return None

    def get_modified_time(self, path: str) -> int | None:  # noqa: ARG002  a move is a new object
        return None

    @property
    def is_in_memory(self) -> bool:
        """Whether files are in the memory of this process."""
        filesystem = self.filesystem
        while filesystem is not None and not isinstance(filesystem, MemoryFileSystem):
            # A filesystem may wrap another.
            filesystem = getattr(filesystem, "fs", None)
        return filesystem is not None

    def open_input(self, path: str) -> pa.NativeFile:
        if self.is_in_memory:
            return pa.PythonFile(self.open_reader(path), mode="r")
        return self.to_arrow_filesystem().open_input_file(path)

    def open_reader(self, path: str) -> BinaryIO:
        stream = self.filesystem.open(path, "rb")
        # All openers of a file in memory get the same object, and would share its position.
        return io.BytesIO(stream.getvalue()) if isinstance(stream, io.BytesIO) else cast("BinaryIO", stream)

    def create(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self.filesystem.open(path, "wb"))

    def create_exclusively(self, path: str, data: bytes) -> bool:
        """Create a small file unless it exists; returns whether this call created it.

        After any error, the content tells who did, so `data` must be the caller's alone.
        """
        if self.has_single_writer and not self.creates_exclusively:
            if self.read_small(path) is None:
                self.write_small(path, data)
            return self.read_small(path) == data
        for wait in (*CREATE_WAITS, None):
            try:
                self.filesystem.pipe_file(path, data, mode="create")
            except CLIENT_ERRORS as error:
                # Clients and servers have many errors for an object that exists, and for a request that was lost.
                found = self.read_small(path)
                if found is not None:
                    return found == data
                if wait is None or isinstance(error, PermissionError):
                    raise
                time.sleep(wait)
            else:
                return True
        raise AssertionError

    @property
    def creates_exclusively(self) -> bool:
        """Whether the filesystem can create a file unless it exists, in one request."""
        filesystem = self.filesystem
        while isinstance(filesystem, DirFileSystem):
            filesystem = filesystem.fs
        packages = {base.__module__.partition(".")[0] for base in type(filesystem).__mro__}
        return isinstance(filesystem, MemoryFileSystem | LocalFileSystem) or not packages.isdisjoint(EXCLUSIVE_PACKAGES)

    @property
    def has_single_writer(self) -> bool:
        """Whether the caller says of this filesystem that no other process writes there at the same time."""
        return getattr(self.filesystem, "single_writer", False) is True

    def check_exclusive_creation(self, folder: str, *, is_first: bool) -> None:
        """Refuse a filesystem, or at the first lease in a folder a server, that lets two writers create one file."""
        if self.has_single_writer:
            return
        problem = f"{type(self.filesystem).__name__} cannot create a file only if it does not exist"
        if self.creates_exclusively:
            if not is_first:
                return
            path, contents = f"{folder}/{uuid.uuid4().hex}.probe", (b"one", b"other")
            try:
                if [self.create_exclusively(path, content) for content in contents] == [True, False]:
                    return
            finally:
                self.remove(path)
            problem = "this store replaces a file that exists although it was asked not to"
        raise InvalidArgumentError(
            f"Cannot lock {folder}: {problem}, so two writers could lose each other's changes. Nothing was published. "
            "Use s3fs, gcsfs or adlfs; or if no other process writes at the same time, pass as filesystem one whose "
            "attribute single_writer is True."
        )

    def make_folder(self, path: str) -> None:
        # S3 has no folders; s3fs would ask for the bucket.
        if not S3_PROTOCOLS & self._protocols:
            self.filesystem.makedirs(path, exist_ok=True)

    def flush(self, paths: Iterable[str]) -> None:
        """Do nothing: an object is durable once its write returns."""

    def replace(self, source: str, target: str) -> None:
        self.duplicate(source, target)
        self.remove(source)

    def can_reach(self, other: Store) -> bool:
        return isinstance(other, RemoteStore) and bool(self.filesystem == other.filesystem)

    def duplicate(self, path: str, copy: str) -> None:
        self.make_folder(copy.rsplit("/", 1)[0])
        self.filesystem.cp_file(path, copy)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(path)

    def remove_folder(self, path: str) -> None:
        self.filesystem.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm(path, recursive=True)

    def write_small(self, path: str, data: bytes) -> None:
        self.filesystem.pipe_file(path, data)

    def remove_unfinished(self, folder: str) -> None:
        """Do nothing: writes of objects are atomic."""

    def read_small(self, path: str) -> bytes | None:
        self.filesystem.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            # With more, s3fs would first ask for the size.
            options = {"max_concurrency": 1} if S3_PROTOCOLS & self._protocols else {}
            return cast("bytes", self.filesystem.cat_file(path, **options))
        return None

    def to_arrow_filesystem(self) -> pafs.FileSystem:
        return pafs.PyFileSystem(pafs.FSSpecHandler(self.filesystem))

    def keep_mode(self, old: str, staged: str) -> None:
        """Do nothing: objects have no mode or owner."""


def _format_identity(info: dict[str, Any]) -> str:
    names = (name for name in (*_TAGS, *_TIMES, "created") if info.get(name) is not None)
    values = (f"{name}={_to_timestamp(info[name])}" for name in names)
    return ":".join([str(info.get("size")), *values])


def _read_change_time(info: dict[str, Any]) -> int | None:
    """Return when a file last changed, in nanoseconds: 0 if its content has a tag, None if unknown."""
    if any(info.get(name) is not None for name in _TAGS):
        return 0
    # The time of creation does not help: some filesystems keep it when a file changes.
    times = [info[name] for name in _TIMES if info.get(name) is not None]
    # Without a time zone, a time may be hours off.
    known = [_to_timestamp(time) for time in times if getattr(time, "tzinfo", UTC) is not None]
    return max((int(time * 1e9) for time in known if isinstance(time, int | float)), default=None)


def _to_timestamp(value: Any) -> Any:
    # A filesystem may return the same instant as a number in a listing and as a datetime for one file.
    return value.timestamp() if isinstance(value, datetime) else value
