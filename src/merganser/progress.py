"""How far a merge or write has come, told while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["read", "plan", "rewrite", "add", "commit", "done"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, how many files of it are done, of how many, and how many rows the source has.

    The stages are `read` (the source, and the footers of the dataset), `plan` (keys are compared), `rewrite` (files
    that change are staged), `add` (new rows are staged), `commit` (files take their places) and `done`. A total of 0 is
    not known yet, or there is nothing to count.
    """

    stage: Stage
    done: int = 0
    total: int = 0
    rows: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore() -> None:
    """Listen to nothing."""


class ProgressReporter:
    """Tells a listener, if there is one, how far a merge has come; called from any thread."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._current = Progress("read")
        self._lock = Lock()

    def begin(self, stage: Stage, total: int = 0, rows: int | None = None) -> None:
        """Tell that a stage begins."""
        with self._lock:
            self._report(Progress(stage, 0, total, self._current.rows if rows is None else rows))

    @property
    def on_file_done(self) -> Callable[[], None]:
        """What to call for each file that is done."""
        return ignore if self._callback is None else self._count_file

    def _count_file(self) -> None:
        """Tell of one more file; those after all that are rewritten are new."""
        with self._lock:
            now = self._current
            if now.stage == "rewrite" and now.done >= now.total:
                now = Progress("add", rows=now.rows)
            self._report(replace(now, done=now.done + 1))

    def _report(self, progress: Progress) -> None:
        self._current = progress
        if self._callback is not None:
            self._callback(progress)
