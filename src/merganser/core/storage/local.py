"""The store of a local disk: atomic renames, hard links and fsync."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import shutil
import stat
import uuid
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.fs as pafs

from merganser.core.columnar.threads import open_pool
from merganser.core.storage.store import FileInfo, Store, is_same_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

# The identity of a dangling link, perhaps to a disk that is not mounted.
DANGLING = "dangling"
FLUSH_THREADS = 8
REMOVE_THREADS = 4
_TEMPORARY = re.compile(r".+\.[0-9a-f]{32}\.new")


class LocalStore(Store):
    """The local disk; new files take group and permissions from `access_folder`, if given."""

    is_local = True

    def __init__(self, access_folder: str | None = None) -> None:
        self._access_folder = access_folder

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        pending = [("", False)]
        while pending:
            prefix, linked = pending.pop()
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    rel = prefix + entry.name
                    if entry.is_dir():
                        if enter(rel):
                            pending.append((rel + "/", linked or entry.is_symlink()))
                    elif entry.is_file():
                        status = entry.stat()
                        identity = _format_identity(status)
                        yield FileInfo(
                            rel,
                            status.st_size,
                            identity,
                            # Not the ctime: each snapshot changes it, by a link.
                            identity,
                            status.st_mtime_ns,
                            os.path.realpath(entry.path) if linked or entry.is_symlink() else None,
                        )
                    elif entry.is_symlink():
                        yield FileInfo(rel=rel, size=0, identity=DANGLING)

    def get_path_type(self, path: str) -> str | None:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return "directory" if stat.S_ISDIR(mode) else "file"

    def list_names(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(folder))
        return []

    def find_folders(self, folder: str, names: Collection[str]) -> set[str]:
        return {name for name in names if os.path.isdir(os.path.join(folder, name))}

    def get_identity(self, path: str) -> str | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return _format_identity(os.stat(path))
        return None

    def get_modified_time(self, path: str) -> int | None:
        return os.stat(path).st_mtime_ns

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "rb")

    def open_reader(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=0)

    def create(self, path: str) -> BinaryIO:
        return self.open_new(path)

    def open_new(self, path: str) -> BinaryIO:
        """Create a file, with the group and permissions of `access_folder`; fails if it exists."""
        stream = open(path, "xb")  # noqa: SIM115  the caller closes it
        self._inherit_access(path, stream.fileno())
        return stream

    def make_folder(self, path: str) -> None:
        if os.path.isdir(path):
            return
        self.make_folder(os.path.dirname(path) or ".")
        try:
            os.mkdir(path)
        except FileExistsError:
            # A folder may have been removed again.
            if os.path.lexists(path) and not os.path.isdir(path):
                raise
            return
        with contextlib.suppress(OSError), _open_descriptor(path) as descriptor:
            self._inherit_access(path, descriptor)

    def _inherit_access(self, path: str, descriptor: int) -> None:
        """Share a new file or folder as `access_folder` is, unless the disk has no groups or permissions."""
        if self._access_folder is None:
            return
        with contextlib.suppress(OSError):
            status, folder = os.stat(descriptor), self._access_folder
            while folder == path or not os.path.isdir(folder):
                folder = os.path.dirname(folder)
            access = _derive_access(status, os.stat(folder), exists=folder == self._access_folder)
            if access != (stat.S_IMODE(status.st_mode), status.st_gid):
                _set_access(descriptor, *access)

    def find_unwritable(self, files: Iterable[str], folders: Iterable[str]) -> str | None:
        # A link stays; the file behind it is replaced.
        real = (os.path.realpath(file) if os.path.islink(file) else file for file in files)
        for folder in sorted({*map(os.path.dirname, real), *folders}):
            existing = folder
            while not os.path.lexists(existing):
                existing = os.path.dirname(existing)
            if not os.access(existing, os.W_OK | os.X_OK):
                return existing
        return None

    def begin_flush(self, path: str) -> None:
        if hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                # Before it drops clean pages, Linux begins to write the dirty ones, and does not wait for them.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def flush(self, paths: Iterable[str]) -> None:
        # Disks serve many such requests at once.
        files = list(paths)
        with open_pool(len(files), FLUSH_THREADS, "flush") as pool:
            for done in [pool.submit(_fsync, path) for path in files]:
                done.result()

    def replace(self, source: str, target: str) -> None:
        # A data file may be a symlink, perhaps to another disk: the link stays, its target is replaced.
        real = os.path.realpath(target)
        try:
            os.replace(source, real)
            if real != target:
                self.flush([os.path.dirname(real)])
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A fixed name, so that a retry cleans up after a killed attempt.
            beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}.staged")
            try:
                shutil.copy2(source, beside)
                self.keep_mode(source, beside)
                self.flush([beside])
                os.replace(beside, real)
                # The source is removed only once the copy is durable.
                self.flush([os.path.dirname(real)])
            finally:
                self.remove(beside)
            os.remove(source)

    def can_reach(self, other: Store) -> bool:
        return other.is_local

    def link(self, path: str, link: str) -> bool:
        # `os.link` would link the symlink, not its target.
        real = os.path.realpath(path) if os.path.islink(path) else path
        try:
            try:
                os.link(real, link)
            except FileExistsError:
                self.remove(link)
                os.link(real, link)
        except OSError:
            # Another disk, no support for links, or another user's file. A stale link must not remain.
            self.remove(link)
            return False
        return True

    def is_copied(self, path: str, identity: str, kept: str) -> bool:
        try:
            found, reference = os.stat(path), os.stat(kept)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if os.path.samestat(found, reference):
            # Both are links to one file, which may have been changed in place: only the time can tell.
            size, modified, _ = map(int, identity.split(":"))
            return found.st_size == size and is_same_time(modified, found.st_mtime_ns)
        return self.has_same_content(path, kept)

    def duplicate(self, path: str, copy: str) -> None:
        if not self.link(path, copy):
            # An error that prevents both is raised by the copy.
            real = os.path.realpath(path)
            shutil.copy2(real, copy)
            self.keep_mode(real, copy)
            self.flush([copy])

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for _, _, names, folder in os.fwalk(path) if hasattr(os, "fwalk") else ():
                # Freeing the space of large files takes long; threads free several at once. Few are not worth a thread.
                with open_pool(len(names) // 4, REMOVE_THREADS, "remove") as pool:
                    for done in [pool.submit(os.unlink, name, dir_fd=folder) for name in names]:
                        done.result()
            shutil.rmtree(path)

    def write_small(self, path: str, data: bytes) -> None:
        beside = f"{path}.{uuid.uuid4().hex}.new"
        try:
            with self.open_new(beside) as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        finally:
            self.remove(beside)
        self.flush([os.path.dirname(path)])

    def remove_unfinished(self, folder: str) -> None:
        for name in self.list_names(folder):
            if _TEMPORARY.fullmatch(name):
                self.remove(f"{folder}/{name}")

    def read_small(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def to_arrow_filesystem(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem()

    def keep_mode(self, old: str, staged: str) -> None:
        status = os.stat(old)
        with _open_descriptor(staged) as descriptor:
            _set_access(descriptor, stat.S_IMODE(status.st_mode), status.st_gid, status.st_uid)


def describe_owner(path: str) -> str:
    """Describe owner, group and mode of a path, or of the nearest parent folder that exists."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    status = os.lstat(path)
    user, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return f"{path} belongs to user {user} and group {group}, with mode {stat.S_IMODE(status.st_mode):03o}"


def _derive_access(new: os.stat_result, folder: os.stat_result, *, exists: bool) -> tuple[int, int]:
    """Return mode and group of a new file or folder in a dataset."""
    # A group that can write to the dataset's folder can write to new files there. Apart from that, the folder only
    # narrows what the umask allows. Until it `exists`, `folder` is its parent, which narrows nothing.
    bits, own = stat.S_IMODE(folder.st_mode), stat.S_IMODE(new.st_mode)
    # In a sticky folder, each user has files of their own.
    sticky = bool(bits & stat.S_ISVTX)
    if not exists and (sticky or not bits & stat.S_IWGRP):
        return own, new.st_gid
    mode = own & bits if exists else own
    mode |= bits & (stat.S_ISGID | (stat.S_IRWXG if bits & stat.S_IWGRP else 0))
    if stat.S_ISDIR(new.st_mode):
        return mode | stat.S_IRWXU, folder.st_gid
    return mode & 0o666 | stat.S_IRUSR | stat.S_IWUSR, folder.st_gid


def _set_access(descriptor: int, mode: int, group: int, owner: int = -1) -> None:
    try:
        os.chown(descriptor, owner, group)
    except PermissionError:
        # Only root may change the owner, and other users may choose only groups of their own.
        with contextlib.suppress(PermissionError):
            os.chown(descriptor, -1, group)
        if os.stat(descriptor).st_gid != group:
            # The permissions were meant for another group: this one gets those of others.
            mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    os.chmod(descriptor, mode)


@contextlib.contextmanager
def _open_descriptor(path: str, flags: int = os.O_NOFOLLOW) -> Iterator[int]:
    """Open a file or folder, by default not a link that another user put in its place."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fsync(path: str) -> None:
    with _open_descriptor(path, flags=0) as descriptor:
        os.fsync(descriptor)


class HiddenFiles(LocalStore):
    """A disk whose Parquet files have another name, which patterns such as `**/*.parquet` do not find."""

    SUFFIX = ".hidden"

    def walk(self, folder: str, enter: Callable[[str], bool]) -> Iterator[FileInfo]:
        for info in super().walk(folder, enter):
            yield info._replace(rel=info.rel.removesuffix(self.SUFFIX))

    def to_stored_path(self, path: str) -> str:
        return path + self.SUFFIX

    def open_input(self, path: str) -> pa.NativeFile:
        return super().open_input(self.to_stored_path(path))

    def open_reader(self, path: str) -> BinaryIO:
        return super().open_reader(self.to_stored_path(path))


def _format_identity(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
