"""The location of a dataset: a store, a path in it, and its spelling by the caller."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.fs as pafs

from merganser.core.storage.local import LocalStore
from merganser.errors import InvalidArgumentError, MissingExtraError
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    import fsspec

    from merganser.core.storage.store import FileInfo, Store

    Paths: TypeAlias = Iterable[str | os.PathLike[str]] | str | os.PathLike[str]

# The extras that install the filesystems of URLs.
EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "adl": "azure",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A dataset's folder: its store, its path there, and the caller's `url`."""

    store: Store
    root: str
    url: str
    display: str  # the URL without credentials, for messages
    ignore_table_format: bool = False  # treat a table of another format as plain Parquet files

    def to_path(self, rel: str) -> str:
        """Return the store's path of a file in the dataset."""
        return f"{self.root}/{rel}"

    def to_display(self, rel: str) -> str:
        """Return the path of a file in the dataset for messages."""
        return f"{self.display}/{rel}"

    def to_url(self, rel: str) -> str:
        """Return the path of a file in the dataset, spelled as the caller spelled the root."""
        return f"{self.url}/{rel}"

    def list_all_files(self) -> dict[str, FileInfo]:
        """List all files by relative path, hidden ones too; a missing root has none."""
        # Identities of listings are comparable with each other; single requests may return other attributes.
        if self.store.get_path_type(self.root) is None:
            return {}
        return {info.rel: info for info in self.store.walk(self.root, enter=lambda _: True)}


def locate(path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False) -> Location:
    """Make the location of a path or fsspec URL, on a filesystem if given."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgumentError(f"path must be a non-empty string or path-like object, not {path!r}.")
    text = os.fspath(path)
    if filesystem is None and "://" not in text:
        # Not through fsspec, where "::" means a chain of filesystems, and which takes as long to load as a small merge.
        return _make_local(text, os.path.expanduser(text), ignore_table_format)
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  as above

    from merganser.core.storage.remote import RemoteStore  # noqa: PLC0415  it imports fsspec

    if filesystem is None:
        filesystem, native = open_url(text)
    else:
        filesystem = _to_fsspec(filesystem)
        native = filesystem._strip_protocol(text)  # noqa: SLF001  fsspec has no public spelling of this
    if isinstance(filesystem, LocalFileSystem):
        return _make_local(text.removeprefix("file://"), native, ignore_table_format)
    url = text.rstrip("/") or text
    return Location(RemoteStore(filesystem), native.rstrip("/"), url, mask_credentials(url), ignore_table_format)


def _make_local(text: str, native: str, ignore_table_format: bool) -> Location:  # noqa: FBT001
    url, root = text.rstrip("/") or text, os.path.realpath(native)
    return Location(LocalStore(root), root, url, url, ignore_table_format)


def list_paths(paths: Paths, argument: str) -> list[str]:
    """Convert a path or several to a list of strings.

    >>> list_paths("lake/a.parquet", "files")
    ['lake/a.parquet']
    """
    given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    if not all(isinstance(path, str | os.PathLike) for path in given):
        raise InvalidArgumentError(f"{argument} must be a path or a list of paths, not {paths!r}.")
    return [os.fspath(path) for path in given]


def open_url(text: str, **options: Any) -> tuple[fsspec.AbstractFileSystem, str]:
    """Open the filesystem of a URL; returns it with the path there.

    `single_writer` is an option of every filesystem: no other process writes there at the same time.
    """
    from fsspec.core import url_to_fs  # noqa: PLC0415  slow to load

    single_writer = str(options.pop("single_writer", False)).lower() == "true"
    try:
        filesystem, native = url_to_fs(text, **options)
    except ValueError as error:
        message = f"Unknown filesystem of {text!r}: {error}. Give a path, or a URL that fsspec supports."
        raise InvalidArgumentError(message) from error
    except ImportError as error:
        extra = EXTRAS.get(text.partition("://")[0])
        remedy = "Install it with pip." if extra is None else f"Install it with: pip install 'merganser[{extra}]'."
        # The URL may contain a password.
        message = f"Cannot open {mask_credentials(text)!r}: a package is missing ({error}). {remedy}"
        raise MissingExtraError(message) from error
    if single_writer:
        filesystem.single_writer = True
    return filesystem, native


def _to_fsspec(filesystem: Any) -> fsspec.AbstractFileSystem:
    import fsspec  # noqa: PLC0415  slow to load
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  as above

    if isinstance(filesystem, fsspec.AbstractFileSystem):
        return filesystem
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalFileSystem()
    if isinstance(filesystem, pafs.FileSystem):
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415  slow to import and seldom needed

        return ArrowFSWrapper(filesystem)
    raise InvalidArgumentError(f"filesystem must be an fsspec or pyarrow filesystem, not {type(filesystem).__name__}.")
