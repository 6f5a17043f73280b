"""Progress reports of a running merge or write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["read", "plan", "rewrite", "add", "commit", "done"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The current stage, its files done and in total, and the rows of the source.

    The stages are `read` (the source, and the footers of the dataset), `plan` (keys are compared), `rewrite` (changed
    files are staged), `add` (new rows are staged), `commit` (files are published) and `done`. A total of 0 means
    unknown, or nothing to count.
    """

    stage: Stage
    done: int = 0
    total: int = 0
    rows: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore() -> None:
    """Do nothing."""


class ProgressReporter:
    """Reports progress to a callback, if there is one; thread-safe."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._current = Progress("read")
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[ProgressReporter], tuple[None]]:
        # The callback stays in this process.
        return ProgressReporter, (None,)

    def begin(self, stage: Stage, total: int = 0, rows: int | None = None) -> None:
        """Report the start of a stage."""
        with self._lock:
            self._report(Progress(stage, 0, total, self._current.rows if rows is None else rows))

    @property
    def on_file_done(self) -> Callable[[], None]:
        """The function to call for each finished file."""
        return ignore if self._callback is None else self._count_file

    def _count_file(self) -> None:
        """Report one more file; after the last rewrite, files are new ones."""
        with self._lock:
            current = self._current
            if current.stage == "rewrite" and current.done >= current.total:
                current = Progress("add", rows=current.rows)
            self._report(replace(current, done=current.done + 1))

    def _report(self, progress: Progress) -> None:
        self._current = progress
        if self._callback is not None:
            self._callback(progress)
