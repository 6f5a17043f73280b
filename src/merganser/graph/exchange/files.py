"""Files that graphs are exchanged by: written whole or not at all, on the local disk or wherever fsspec reaches."""

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
    """Write a file that takes its place when all of it is written; if an exception leaves, nothing has changed."""
    store = location.store
    path = location.to_path(rel) if rel else location.root
    shown = location.to_display(rel) if rel else location.display
    if store.get_path_type(path) == "directory":
        message = f"{shown!r} is a folder; give the path of a file."
        raise InvalidArgumentError(message)
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}.{uuid.uuid4().hex}"
    with translate_os_errors("write", shown):
        if folder:
            store.make_folder(folder)
        try:
            with store.create(beside) as stream:
                yield stream
            store.flush([beside])
            store.replace(beside, path)
        finally:
            store.remove(beside)


def read_file(location: Location) -> bytes:
    """Read a whole file."""
    with translate_os_errors("read", location.display), location.store.open_reader(location.root) as stream:
        return stream.read()


@contextmanager
def translate_os_errors(verb: str, shown: str) -> Iterator[None]:
    """Give what storage says of a file an error of its own."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MerganserError):
            raise
        message = f"Cannot {verb} {shown!r}: {error}. Check the path and its permissions."
        raise GraphFileError(message) from error
