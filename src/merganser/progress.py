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


Listener: TypeAlias = Callable[[Progress], None]


def nobody() -> None:
    """Listen to nothing."""


class Teller:
    """Tells a listener, if there is one, how far a merge has come; called from any thread."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._now = Progress("read")
        self._turn = Lock()

    def begin(self, stage: Stage, total: int = 0, rows: int | None = None) -> None:
        """Tell that a stage begins."""
        with self._turn:
            self._tell(Progress(stage, 0, total, self._now.rows if rows is None else rows))

    @property
    def file_done(self) -> Callable[[], None]:
        """What to call for each file that is done."""
        return nobody if self._listener is None else self._file_done

    def _file_done(self) -> None:
        """Tell of one more file; those after all that are rewritten are new."""
        with self._turn:
            now = self._now
            if now.stage == "rewrite" and now.done >= now.total:
                now = Progress("add", rows=now.rows)
            self._tell(replace(now, done=now.done + 1))

    def _tell(self, progress: Progress) -> None:
        self._now = progress
        if self._listener is not None:
            self._listener(progress)
