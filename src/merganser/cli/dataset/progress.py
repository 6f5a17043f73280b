"""Progress on standard error: a bar on a terminal, otherwise nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from merganser.cli.command import shows_progress
from merganser.display import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.progress import Progress, ProgressCallback

STAGES = {
    "read": "reading the source",
    "plan": "comparing keys",
    "rewrite": "rewriting files",
    "add": "writing new files",
    "commit": "publishing files",
}
_BAR_WIDTH = 24


@contextmanager
def show_progress() -> Iterator[ProgressCallback | None]:
    """Give a callback that displays progress; None without a terminal, or with `--quiet`."""
    if not shows_progress():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    """Shows a progress bar that disappears at the end."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  only for terminals
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415  as above
        from rich.progress import Progress as Bars  # noqa: PLC0415  as above

        columns = BarColumn(_BAR_WIDTH), TextColumn("{task.description}", markup=False), TimeRemainingColumn()
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bars.add_task("", total=None)
        self._stage = ""
        self._bars.start()

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in STAGES:
            return
        if progress.stage != self._stage:
            # The remaining time is estimated for each stage.
            self._stage = progress.stage
            self._bars.reset(self._task)
        self._bars.update(
            self._task, description=_format_progress(progress), completed=progress.done, total=progress.total or None
        )

    def close(self) -> None:
        """Remove the bar."""
        self._bars.stop()


def _format_progress(progress: Progress) -> str:
    files = f", {progress.done:,} of {pluralize(progress.total, 'file')}" if progress.total else ""
    rows = f", {pluralize(progress.rows, 'row')}" if progress.rows else ""
    return f"{STAGES[progress.stage]}{files}{rows}"
