"""Exclusive creation on stores of different manners, and journals on stores that do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem
from tests.support import assert_unchanged

import merganser
from merganser.core.storage import remote
from merganser.core.storage.location import open_url
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.staging import JOURNAL
from merganser.errors import DatasetMergeError, InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2]})


class Server(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that answers as told."""

    cachable = False
    ignores_mode = False
    error: Exception | None = None
    is_done = True  # whether a request was carried out before its error
    failures = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create" and self.failures > 0:
            self.failures -= 1
            if self.is_done:
                super().pipe_file(path, value)
            assert self.error is not None
            raise self.error
        if mode == "create" and not self.ignores_mode and path in self.store:
            raise self.error or FileExistsError(path)
        super().pipe_file(path, value)


def wrap_arrow(folder: Path) -> ArrowFSWrapper:
    """Return a folder as one of PyArrow's filesystems, which cannot create exclusively."""
    return ArrowFSWrapper(pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(remote, "CREATE_WAITS", (0.0, 0.0))
    return Server()


@pytest.mark.parametrize(
    "error", [FileExistsError("x"), OSError(22, "pre-conditions"), OSError(5, "409"), KeyError("x")]
)
def test_what_is_there_decides_after_an_error(server: Server, error: Exception) -> None:
    # N2
    server.error, store = error, RemoteStore(server)
    assert store.create_exclusively("/b/new", b"mine")
    assert not store.create_exclusively("/b/new", b"theirs")
    assert store.read_small("/b/new") == b"mine"
    # The request was carried out, and its answer was lost.
    server.failures = 1
    assert store.create_exclusively("/b/lost", b"mine")
    # The request was lost.
    server.failures, server.is_done = 2, False
    assert store.create_exclusively("/b/late", b"mine")
    server.failures = 3
    with pytest.raises(type(error)):
        store.create_exclusively("/b/never", b"mine")
    assert store.read_small("/b/never") is None


def test_a_permission_error_is_not_tried_again(server: Server) -> None:
    server.error, server.failures, server.is_done = PermissionError("no"), 1, False
    with pytest.raises(PermissionError):
        RemoteStore(server).create_exclusively("/b/new", b"mine")
    assert server.failures == 0


def test_a_filesystem_that_cannot_create_exclusively_is_refused(tmp_path: Path) -> None:
    # N3
    path = f"{tmp_path}/t"
    merganser.merge(ROWS, path, key_columns="id")
    filesystem = ArrowFSWrapper(pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()))
    with (
        assert_unchanged(path),
        pytest.raises(InvalidArgumentError, match="ArrowFSWrapper cannot create a file only if"),
    ):
        merganser.merge(pa.table({"id": [3]}), path, key_columns="id", filesystem=filesystem)


def test_a_server_that_ignores_exclusive_creation_is_refused(server: Server) -> None:
    # N3
    server.ignores_mode = True
    with pytest.raises(InvalidArgumentError, match="this store replaces a file that exists although"):
        merganser.merge(ROWS, "/b/t", key_columns="id", filesystem=server)
    assert not server.find("/b")


@pytest.mark.parametrize("kind", ["filesystem", "server"])
def test_a_single_writer_needs_no_exclusive_creation(server: Server, tmp_path: Path, kind: str) -> None:
    # N3
    server.ignores_mode = True
    filesystem, path = (server, "/b/t") if kind == "server" else (wrap_arrow(tmp_path), "lake/t")
    filesystem.single_writer = True
    for number in (1, 2):
        rows = pa.table({"id": [number, 9]})
        result = merganser.merge(rows, path, key_columns="id", filesystem=filesystem)
        assert result.target_count_after == number + 1
    assert open_url("memory://b", single_writer="true")[0].single_writer is True


def test_a_commit_whose_fate_is_not_known_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # N4: the store answers neither the journal nor what would stand instead
    merganser.merge(ROWS, "/b/t", key_columns="id", filesystem=server)
    original = RemoteStore.create_exclusively

    def create_exclusively(self: RemoteStore, path: str, data: bytes) -> bool:
        if path.endswith(JOURNAL):
            raise OSError(5, "the network is gone")
        return original(self, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(RemoteStore, "create_exclusively", create_exclusively)
        with pytest.raises(DatasetMergeError, match=r"the network is gone.*not known whether .* see history"):
            merganser.merge(pa.table({"id": [3]}), "/b/t", key_columns="id", filesystem=server)
    assert merganser.merge(ROWS, "/b/t", key_columns="id", filesystem=server).target_count_after == 2


def test_a_journal_whose_answer_was_lost_is_committed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # N4
    merganser.merge(ROWS, "/b/t", key_columns="id", filesystem=server)
    original = RemoteStore.create_exclusively
    lost: list[str] = []

    def create_exclusively(self: RemoteStore, path: str, data: bytes) -> bool:
        done = original(self, path, data)
        if path.endswith(JOURNAL) and not lost:
            lost.append(path)
            raise OSError(5, "the network is gone")
        return done

    monkeypatch.setattr(RemoteStore, "create_exclusively", create_exclusively)
    result = merganser.merge(pa.table({"id": [3]}), "/b/t", key_columns="id", filesystem=server)
    assert lost
    assert result.target_count_after == 3
    assert merganser.recover("/b/t", filesystem=server) is False
