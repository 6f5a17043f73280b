"""How far a merge has come: a bar on a terminal, a line for each stage elsewhere; both on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from merganser.cli.command import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.core.progress import Listener, Progress

STAGES = {
    "read": "reading the source",
    "plan": "comparing keys",
    "rewrite": "rewriting files",
    "add": "writing new files",
    "commit": "putting files in place",
}
_CELLS = 24


@contextmanager
def watching() -> Iterator[Listener]:
    """Show what is told, until it ends."""
    shown = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield shown
    finally:
        shown.close()


class _Lines:
    """A line for each stage."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        if progress.stage != self._stage and progress.stage in STAGES:
            self._stage = progress.stage
            say(f"{time.strftime('%H:%M:%S')} {_told(progress)}")

    def close(self) -> None:
        """Leave what was printed."""


class _Bar:
    """One line that is written over again and again."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in STAGES:
            return
        if progress.stage != self._stage:
            self._stage, self._began = progress.stage, time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        line = f"{_cells(progress)} {_told(progress)}{self._left(progress)}"
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    def _left(self, progress: Progress) -> str:
        """Estimate how long the stage still takes, by how long it took so far."""
        if not 0 < progress.done < progress.total:
            return ""
        seconds = (time.monotonic() - self._began) * (progress.total / progress.done - 1)
        return f", {int(seconds // 60)}:{int(seconds % 60):02d} left"

    def close(self) -> None:
        """Take the line away."""
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)


def _told(progress: Progress) -> str:
    files = f", {progress.done:,} of {progress.total:,} files" if progress.total else ""
    rows = f", {progress.rows:,} rows" if progress.rows else ""
    return f"{STAGES[progress.stage]}{files}{rows}"


def _cells(progress: Progress) -> str:
    full = _CELLS * progress.done // progress.total if progress.total else 0
    return f"[{'█' * min(full, _CELLS)}{'·' * (_CELLS - min(full, _CELLS))}]"
