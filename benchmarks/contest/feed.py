"""The feed of the contest: the days of the demo, generated once for each number of rows."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from merganser.demo.feed import DayFacts, write_day
from merganser.demo.story import DAYS, FIRST_DAY

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Feed:
    """A folder with a folder for each day, and what each day has."""

    folder: Path
    days: dict[str, DayFacts]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*.json"))

    @property
    def expected_rows(self) -> dict[str, int]:
        """The number of rows that each table must have at the end."""
        last = list(self.days.values())[-1]
        return {
            "jobs": last.urls_so_far,
            "companies": last.companies_so_far,
            "quarantine": sum(facts.rows - facts.good for facts in self.days.values()),
            "Company nodes": last.companies_so_far,
            "Job nodes": last.urls_so_far,
            "POSTED_BY edges": last.urls_so_far,
        }


def make_feed(root: Path, rows: int) -> Feed:
    """Generate the feed in a folder of its own, unless it is complete."""
    folder = root / f"feed-{rows}"
    facts = folder.with_suffix(".facts")
    if not facts.exists():
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.perf_counter()
        days = [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
        written = {
            str(day): asdict(write_day(str(folder), day, rows, days_before=number)) for number, day in enumerate(days)
        }
        print(f"generated {DAYS} days of {rows:,} rows in {time.perf_counter() - begin:.0f} s", flush=True)
        facts.write_text(json.dumps(written), "utf-8")
    return Feed(folder, {day: DayFacts(**found) for day, found in json.loads(facts.read_text("utf-8")).items()})
