"""The report of a run as files: a page for people, JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.core.storage.location import locate
from merganser.pipeline.report.page import report_page

if TYPE_CHECKING:
    from merganser.pipeline.run_result import RunOutcome


def write_report(outcome: RunOutcome, folder: str) -> list[str]:
    """Write the report into a folder, named after the run; gives the paths."""
    place = locate(folder)
    place.store.make_folder(place.root)
    texts = {f"{outcome.run_id}.html": report_page(outcome), f"{outcome.run_id}.json": outcome.to_json()}
    for name, text in texts.items():
        place.store.write_small(place.to_path(name), text.encode())
    return [place.to_display(name) for name in texts]
