"""Where bytes live: the local disk with real renames and fsync, or any fsspec filesystem through copy and delete.

Everything that changes a disk goes through a `Store`, so a test can fail any single step. Paths given to a store are
its own: absolute paths locally, protocol-free paths elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from merganser.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# The identity of a link that leads nowhere: perhaps to a disk that is not mounted.
DANGLING = "dangling"
FLUSHES = 8


@dataclass(frozen=True, slots=True)
class Location:
    """A dataset's folder: the store it lives in, its path there, and how the caller spells it."""

    store: Store
    root: str
    display: str

    def path(self, rel: str) -> str:
        """Give the store's path of a file below the root."""
        return f"{self.root}/{rel}"

    def shown(self, rel: str) -> str:
        """Give the path of a file below the root the way the caller spelled the root."""
        return f"{self.display}/{rel}"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed file, its path relative to the folder that was listed."""

    rel: str
    size: int
    identity: str


def locate(path: str | os.PathLike[str], filesystem: Any = None) -> Location:
    """Turn a path or fsspec URL, and perhaps a filesystem, into a location."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        message = f"path must be a non-empty string or path-like object, not {path!r}."
        raise InvalidArgumentError(message)
    text = os.fspath(path)
    if filesystem is None and "://" not in text:
        # Not through fsspec, to which "::" would mean a chain of filesystems.
        filesystem, native = LocalFileSystem(), os.path.expanduser(text)
    elif filesystem is None:
        filesystem, native = fsspec.core.url_to_fs(text)
    else:
        filesystem = _as_fsspec(filesystem)
        native = filesystem._strip_protocol(text)  # noqa: SLF001  fsspec has no public spelling of this
    display = text.rstrip("/") or text
    if isinstance(filesystem, LocalFileSystem):
        return Location(LocalStore(), os.path.realpath(native), display.removeprefix("file://"))
    return Location(RemoteStore(filesystem), native.rstrip("/"), display)


def _as_fsspec(filesystem: Any) -> fsspec.AbstractFileSystem:
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        return filesystem
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalFileSystem()
    if isinstance(filesystem, pafs.FileSystem):
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415  slow to import and seldom needed

        return ArrowFSWrapper(filesystem)
    message = f"filesystem must be an fsspec or pyarrow filesystem, not {type(filesystem).__name__}."
    raise InvalidArgumentError(message)


class Store(ABC):
    """The few operations a merge needs of storage; every one either happens or raises OSError."""

    local: bool

    @abstractmethod
    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        """Yield every file below the folder, not entering folders whose name `enter` refuses."""

    @abstractmethod
    def kind(self, path: str) -> str | None:
        """Say whether a path is a "file", a "directory" or absent (None)."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """List the names directly in a folder; an absent folder has none."""

    @abstractmethod
    def identity(self, path: str) -> str | None:
        """Describe a file so that any rewrite of it gives another text; None if it is absent."""

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

    @abstractmethod
    def flush(self, paths: Iterable[str]) -> None:
        """Force files or folders to disk, where that has a meaning."""

    @abstractmethod
    def replace(self, source: str, target: str) -> None:
        """Move a file onto a path, which may hold a file already."""

    @abstractmethod
    def same_content(self, one: str, other: str) -> bool:
        """Compare two files byte for byte."""

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
    def read_small(self, path: str) -> bytes | None:
        """Read a small file; None if it is absent."""

    @abstractmethod
    def arrow_filesystem(self) -> pafs.FileSystem:
        """Give the filesystem under which Arrow knows these paths."""

    @abstractmethod
    def keep_mode(self, old: str, staged: str) -> None:
        """Give a staged file the mode and owner of the file it will replace, where files have them."""


class LocalStore(Store):
    """The disk of this machine."""

    local = True

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        pending = [""]
        while pending:
            prefix = pending.pop()
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    rel = prefix + entry.name
                    if entry.is_dir():
                        if enter(entry.name):
                            pending.append(rel + "/")
                    elif entry.is_file():
                        status = entry.stat()
                        yield FileInfo(rel, status.st_size, _local_identity(status))
                    elif entry.is_symlink():
                        yield FileInfo(rel, 0, DANGLING)

    def kind(self, path: str) -> str | None:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return "directory" if stat.S_ISDIR(mode) else "file"

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def identity(self, path: str) -> str | None:
        try:
            return _local_identity(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "rb")

    def open_reader(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=0)

    def create(self, path: str) -> BinaryIO:
        return open(path, "xb")

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def flush(self, paths: Iterable[str]) -> None:
        # Disks take many such requests at once, and answer them together.
        with ThreadPoolExecutor(FLUSHES, thread_name_prefix="merganser-flush") as pool:
            for done in [pool.submit(_fsync, path) for path in paths]:
                done.result()

    def replace(self, source: str, target: str) -> None:
        # A data file may be a symlink, perhaps to another disk: the link stays, what it points at is replaced.
        real = os.path.realpath(target)
        try:
            os.replace(source, real)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Always the same name, so that a repeated attempt cleans up after a killed one.
            beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}.staged")
            try:
                shutil.copy2(source, beside)
                self.flush([beside])
                os.replace(beside, real)
            finally:
                self.remove(beside)
            os.remove(source)

    def same_content(self, one: str, other: str) -> bool:
        return filecmp.cmp(one, other, shallow=False)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def write_small(self, path: str, data: bytes) -> None:
        beside = f"{path}.{uuid.uuid4().hex}.new"
        try:
            with open(beside, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        finally:
            self.remove(beside)
        self.flush([os.path.dirname(path)])

    def read_small(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def arrow_filesystem(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem()

    def keep_mode(self, old: str, staged: str) -> None:
        status = os.stat(old)
        # Only root may give a file away; for everyone else the owner is already right or cannot be.
        with contextlib.suppress(PermissionError):
            os.chown(staged, status.st_uid, status.st_gid)
        os.chmod(staged, stat.S_IMODE(status.st_mode))


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _local_identity(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


class RemoteStore(Store):
    """Any fsspec filesystem: renames are copy and delete, folders exist by holding files."""

    local = False

    def __init__(self, filesystem: fsspec.AbstractFileSystem) -> None:
        self.filesystem = filesystem

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        self.filesystem.invalidate_cache(folder)
        skip = len(folder) + 1
        for info in self._files(folder, enter):
            rel = info["name"].removesuffix("/")[skip:]
            if all(enter(name) for name in rel.split("/")[:-1]):
                yield FileInfo(rel, int(info["size"] or 0), _remote_identity(info))

    def _files(self, folder: str, enter: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
        """List files below a folder in one request where the filesystem can, else folder by folder.

        fsspec's own walk leaves out folders that it cannot list, and so would lose their rows.
        """
        kind = type(self.filesystem)
        in_one = kind.find is not fsspec.AbstractFileSystem.find
        if issubclass(kind, AsyncFileSystem):
            in_one = kind._find is not AsyncFileSystem._find  # noqa: SLF001  fsspec's own extension point
        if in_one:
            yield from self.filesystem.find(folder, detail=True).values()
            return
        pending = [folder]
        while pending:
            for info in self.filesystem.ls(pending.pop(), detail=True):
                if info["type"] != "directory":
                    yield info
                elif enter(info["name"].rstrip("/").rpartition("/")[2]):
                    pending.append(info["name"])

    def kind(self, path: str) -> str | None:
        self.filesystem.invalidate_cache(path)
        try:
            return cast("str", self.filesystem.info(path)["type"])
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        self.filesystem.invalidate_cache(folder)
        try:
            found = self.filesystem.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in found})

    def identity(self, path: str) -> str | None:
        self.filesystem.invalidate_cache(path)
        try:
            return _remote_identity(self.filesystem.info(path))
        except FileNotFoundError:
            return None

    def open_input(self, path: str) -> pa.NativeFile:
        return self.arrow_filesystem().open_input_file(path)

    def open_reader(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self.filesystem.open(path, "rb"))

    def create(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self.filesystem.open(path, "wb"))

    def make_folder(self, path: str) -> None:
        self.filesystem.makedirs(path, exist_ok=True)

    def flush(self, paths: Iterable[str]) -> None:
        """Do nothing: an object is durable once its write returns."""

    def replace(self, source: str, target: str) -> None:
        self.filesystem.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        self.filesystem.cp_file(source, target)
        self.remove(source)

    def same_content(self, one: str, other: str) -> bool:
        return bool(self.filesystem.cat_file(one) == self.filesystem.cat_file(other))

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(path)

    def remove_folder(self, path: str) -> None:
        self.filesystem.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm(path, recursive=True)

    def write_small(self, path: str, data: bytes) -> None:
        self.filesystem.pipe_file(path, data)

    def read_small(self, path: str) -> bytes | None:
        self.filesystem.invalidate_cache(path)
        try:
            return cast("bytes", self.filesystem.cat_file(path))
        except FileNotFoundError:
            return None

    def arrow_filesystem(self) -> pafs.FileSystem:
        return pafs.PyFileSystem(pafs.FSSpecHandler(self.filesystem))

    def keep_mode(self, old: str, staged: str) -> None:
        """Do nothing: objects have neither."""


def _remote_identity(info: dict[str, Any]) -> str:
    marks = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "updated", "created")
    values = (f"{mark}={_instant(info[mark])}" for mark in marks if info.get(mark) is not None)
    return ":".join([str(info.get("size")), *values])


def _instant(value: Any) -> Any:
    # One filesystem may give the same instant as a number in a listing and as a datetime for a single file.
    return value.timestamp() if isinstance(value, datetime) else value
