"""Tests against real object stores: SeaweedFS by default, and the others of `servers.py` with --all-stores."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import fsspec
import fsspec.config
import pytest
from tests.object_stores.servers import RUNNERS, MissingServerError, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

S3 = ("seaweedfs", "versitygw")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        # One process starts the servers and runs all of these tests.
        item.add_marker(pytest.mark.xdist_group("object stores"))
        item.add_marker(pytest.mark.slow)
    if not config.getoption("--all-stores"):
        left = [item for item in here if item.get_closest_marker("all_stores") is not None]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" not in metafunc.fixturenames:
        return
    names = ["seaweedfs"]
    if metafunc.config.getoption("--all-stores"):
        names = list(S3 if metafunc.definition.get_closest_marker("s3_only") else RUNNERS)
    metafunc.parametrize("server", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running object store; this process and those that it starts find it by their environment."""
    with contextlib.ExitStack() as opened:
        folder = Path(tempfile.mkdtemp(prefix="store-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        try:
            found = opened.enter_context(RUNNERS[request.param](folder))
        except MissingServerError as missing:
            folder.rmdir()
            if not request.config.getoption("--all-stores"):
                # The server of the default run is a requirement of the tests.
                raise
            pytest.skip(str(missing))
        opened.enter_context(mock.patch.dict(os.environ, found.environment))
        opened.enter_context(mock.patch.dict(fsspec.config.conf))
        fsspec.config.set_conf_env(fsspec.config.conf)
        # Clients of a server before this one are kept by fsspec.
        fsspec.get_filesystem_class(found.url.partition(":")[0]).clear_instance_cache()
        yield found


@pytest.fixture
def lake(server: Server) -> str:
    """The URL of an empty folder on the store; it takes the place of the folder on a disk."""
    return f"{server.url}/{uuid.uuid4().hex}"
