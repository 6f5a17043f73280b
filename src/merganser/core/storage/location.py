"""Where a dataset lives: on the local disk, or on any fsspec filesystem."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import fsspec
import pyarrow.fs as pafs
from fsspec.implementations.local import LocalFileSystem

from merganser.core.storage.local import LocalStore
from merganser.core.storage.remote import RemoteStore
from merganser.errors import InvalidArgumentError, MissingExtraError
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from merganser.core.storage.store import FileInfo, Store

    Paths: TypeAlias = Iterable[str | os.PathLike[str]] | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Location:
    """A dataset's folder: the store it lives in, its path there, and how the caller spells it.

    `display` is what people get to see, without credentials; only `url` can be opened again. With `ignore_table_format`
    it counts as plain Parquet files, though another table format left its log there.
    """

    store: Store
    root: str
    url: str
    display: str
    ignore_table_format: bool = False

    def to_path(self, rel: str) -> str:
        """Give the store's path of a file below the root."""
        return f"{self.root}/{rel}"

    def to_display(self, rel: str) -> str:
        """Give the path of a file below the root as people get to see it."""
        return f"{self.display}/{rel}"

    def to_url(self, rel: str) -> str:
        """Give the path of a file below the root the way the caller spelled the root."""
        return f"{self.url}/{rel}"

    def list_all_files(self) -> dict[str, FileInfo]:
        """List every file below the root by its relative path, hidden ones too; an absent root has none.

        Other requests may tell other things of a file: identities are compared with those of a listing.
        """
        if self.store.get_path_type(self.root) is None:
            return {}
        return {info.rel: info for info in self.store.walk(self.root, enter=lambda _: True)}


def locate(path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False) -> Location:
    """Turn a path or fsspec URL, and perhaps a filesystem, into a location."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        message = f"path must be a non-empty string or path-like object, not {path!r}."
        raise InvalidArgumentError(message)
    text = os.fspath(path)
    if filesystem is None and "://" not in text:
        # Not through fsspec, to which "::" would mean a chain of filesystems.
        filesystem, native = LocalFileSystem(), os.path.expanduser(text)
    elif filesystem is None:
        filesystem, native = open_url(text)
    else:
        filesystem = _to_fsspec(filesystem)
        native = filesystem._strip_protocol(text)  # noqa: SLF001  fsspec has no public spelling of this
    url = text.rstrip("/") or text
    if isinstance(filesystem, LocalFileSystem):
        url, root = url.removeprefix("file://"), os.path.realpath(native)
        return Location(LocalStore(root), root, url, url, ignore_table_format)
    return Location(RemoteStore(filesystem), native.rstrip("/"), url, mask_credentials(url), ignore_table_format)


def list_paths(paths: Paths, argument: str) -> list[str]:
    """Take a path or several as a list of strings.

    >>> list_paths("lake/a.parquet", "files")
    ['lake/a.parquet']
    """
    given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    if not all(isinstance(path, str | os.PathLike) for path in given):
        message = f"{argument} must be a path or a list of paths, not {paths!r}."
        raise InvalidArgumentError(message)
    return [os.fspath(path) for path in given]


def open_url(text: str, **options: Any) -> tuple[fsspec.AbstractFileSystem, str]:
    """Open the filesystem of a URL, and tell the path there."""
    try:
        filesystem, native = fsspec.core.url_to_fs(text, **options)
    except ValueError as error:
        message = f"Cannot tell the filesystem of {text!r}: {error}. Give a path, or a URL that fsspec knows."
        raise InvalidArgumentError(message) from error
    except ImportError as error:
        message = f"Cannot open {text!r}: a package is missing ({error}). Install what it names, with pip."
        raise MissingExtraError(message) from error
    return filesystem, native


def _to_fsspec(filesystem: Any) -> fsspec.AbstractFileSystem:
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        return filesystem
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalFileSystem()
    if isinstance(filesystem, pafs.FileSystem):
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415  slow to import and seldom needed

        return ArrowFSWrapper(filesystem)
    message = f"filesystem must be an fsspec or pyarrow filesystem, not {type(filesystem).__name__}."
    raise InvalidArgumentError(message)
