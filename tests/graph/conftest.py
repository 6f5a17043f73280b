"""A graph in memory, a path for one on disk, and a clock that does not advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from merganser.graph import GraphDatabase
from merganser.graph.sqlite import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Clock:
    """The time that the graph sees."""

    milliseconds: int = 1_767_225_600_123

    def time_ns(self) -> int:
        return self.milliseconds * 1_000_000 + 999_999


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    """An empty graph in memory."""
    with GraphDatabase(":memory:") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where a graph may be put."""
    return str(tmp_path / "graph.db")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that a test moves by hand."""
    stopped = Clock()
    monkeypatch.setattr(write, "time", stopped)
    return stopped
