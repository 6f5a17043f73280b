"""Write the report of a run: an HTML page for people, JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.core.storage.location import locate
from merganser.pipeline.report.page import report_page

if TYPE_CHECKING:
    from merganser.pipeline.run_result import RunOutcome


def write_report(outcome: RunOutcome, folder: str) -> list[str]:
    """Write the report as HTML and JSON files named after the run id, and return their paths.

    Args:
        outcome: The outcome of the run.
        folder: Path or fsspec URL of the folder; it is created if it does not exist.

    >>> write_report(outcome, "reports")  # doctest: +SKIP
    ['reports/jobs-2026-01-05-1f0c.html', 'reports/jobs-2026-01-05-1f0c.json']
    """
    location = locate(folder)
    location.store.make_folder(location.root)
    texts = {f"{outcome.run_id}.html": report_page(outcome), f"{outcome.run_id}.json": outcome.to_json()}
    for name, text in texts.items():
        location.store.write_small(location.to_path(name), text.encode())
    return [location.to_display(name) for name in texts]
