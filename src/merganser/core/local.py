"""The disk of this machine: real renames, and fsync."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.fs as pafs

from merganser.core.storage import FileInfo, Store
from merganser.core.threads import open_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# The identity of a link that leads nowhere: perhaps to a disk that is not mounted.
DANGLING = "dangling"
FLUSHES = 8


class LocalStore(Store):
    """The disk of this machine."""

    local = True

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        pending = [("", False)]
        while pending:
            prefix, linked = pending.pop()
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    rel = prefix + entry.name
                    if entry.is_dir():
                        if enter(entry.name):
                            pending.append((rel + "/", linked or entry.is_symlink()))
                    elif entry.is_file():
                        status = entry.stat()
                        identity = _local_identity(status)
                        version = f"{identity}:{status.st_ctime_ns}"
                        changed = max(status.st_mtime_ns, status.st_ctime_ns)
                        real = os.path.realpath(entry.path) if linked or entry.is_symlink() else None
                        yield FileInfo(rel, status.st_size, identity, version, changed, real)
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

    def modified(self, path: str) -> int | None:
        return os.stat(path).st_mtime_ns

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
        files = list(paths)
        with open_pool(len(files), FLUSHES, "flush") as pool:
            for done in [pool.submit(_fsync, path) for path in files]:
                done.result()

    def replace(self, source: str, target: str) -> None:
        # A data file may be a symlink, perhaps to another disk: the link stays, what it points at is replaced.
        real = os.path.realpath(target)
        try:
            os.replace(source, real)
            if real != target:
                self.flush([os.path.dirname(real)])
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Always the same name, so that a repeated attempt cleans up after a killed one.
            beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}.staged")
            try:
                shutil.copy2(source, beside)
                self.flush([beside])
                os.replace(beside, real)
                # The other copy goes only once this one lasts.
                self.flush([os.path.dirname(real)])
            finally:
                self.remove(beside)
            os.remove(source)

    def reaches(self, other: Store) -> bool:
        return other.local

    def duplicate(self, path: str, copy: str) -> None:
        real = os.path.realpath(path)
        self.remove(copy)
        try:
            os.link(real, copy)
        except OSError:
            # Another disk, a disk without links, a file that is not ours; what stands against a copy too is told by it.
            shutil.copy2(real, copy)
            self.keep_mode(real, copy)
            self.flush([copy])

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
