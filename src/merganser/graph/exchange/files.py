"""Files of imports and exports, local or at fsspec URLs; writes are atomic."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from merganser.errors import GraphFileError, InvalidArgumentError, MerganserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.core.storage.location import Location


@contextmanager
def write_atomically(location: Location, rel: str = "") -> Iterator[BinaryIO]:
    """Write a file atomically: if the block raises, nothing has changed."""
    store = location.store
    path = location.to_path(rel) if rel else location.root
    display = location.to_display(rel) if rel else location.display
    if store.get_path_type(path) == "directory":
        raise InvalidArgumentError(f"{display!r} is a folder; give the path of a file.")
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
    with translate_os_errors("write", display):
        if folder:
            store.make_folder(folder)
        try:
            with store.create(temporary) as stream:
                yield stream
            store.flush([temporary])
            store.replace(temporary, path)
        finally:
            store.remove(temporary)


def read_file(location: Location) -> bytes:
    """Read a whole file."""
    with translate_os_errors("read", location.display), location.store.open_reader(location.root) as stream:
        return stream.read()


@contextmanager
def translate_os_errors(verb: str, path: str) -> Iterator[None]:
    """Raise errors of storage as `GraphFileError`, with the path."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MerganserError):
            raise
        raise GraphFileError(f"Cannot {verb} {path!r}: {error}. Check the path and its permissions.") from error
