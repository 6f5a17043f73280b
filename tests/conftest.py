"""One suite, every engine: `io` is the door of each engine in turn."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support import DOORS, open_door

if TYPE_CHECKING:
    from pathlib import Path

    from merganser.core.io import DatasetIO

# Two busy cores make single examples slow now and then; that is no failure. Whether a change may land does not depend
# on chance; everywhere else every run tries new examples.
settings.register_profile(
    "merganser", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("merganser")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", action="append", choices=list(DOORS), help="run with this engine only; repeatable")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", metafunc.config.getoption("--engine") or list(DOORS), scope="session")


@pytest.fixture
def io(engine: str) -> DatasetIO[Any, Any]:
    """The door of the engine under test."""
    return open_door(engine)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A folder for datasets; a dataset of its own is `f"{lake}/t"`."""
    return str(tmp_path)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
