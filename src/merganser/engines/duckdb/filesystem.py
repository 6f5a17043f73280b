"""The files of a store that is not local, for DuckDB."""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb

    from merganser.core.storage.store import Store


@contextmanager
def register_store(connection: duckdb.DuckDBPyConnection, store: Store) -> Iterator[Callable[[str], str]]:
    """Register a store under a unique name; yields the function that converts a path for DuckDB.

    The caller's filesystems stay as they are, and no cache of DuckDB can hold an older version of a file.
    """
    protocol = f"merganser{uuid.uuid4().hex}"
    connection.register_filesystem(_StoreFileSystem(store, protocol))
    try:
        yield lambda path: f"{protocol}://{path}"
    finally:
        connection.unregister_filesystem(protocol)


class _StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a store, which are read and never listed."""

    cachable = False

    def __init__(self, store: Store, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol
        self._store = store
        self._opened = dt.datetime.now(dt.UTC)

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        return self._store.open_reader(path.removeprefix(f"{self.protocol}://"))

    def size(self, path: str) -> int:
        with self.open(path) as stream:
            return stream.seek(0, 2)  # type: ignore[no-any-return]

    def glob(self, path: str, *_: Any, **__: Any) -> list[str]:
        # A path is never a pattern.
        return [path]

    def modified(self, path: str) -> dt.datetime:  # noqa: ARG002  fsspec's signature
        return self._opened
