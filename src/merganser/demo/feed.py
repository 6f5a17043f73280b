"""A made-up feed of job postings as a scraper would deliver it: the same bytes for the same arguments.

A day is a folder of files of JSON lines. Some lines are malformed, some rows lack what they need, repeat a url or come
late; `DayFacts` says exactly how many, so that whoever reads the feed can be held to it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt

from merganser.demo.feed_numbers import DayRows, Defect, Feed, IntArray
from merganser.demo.feed_text import Writer
from merganser.errors import InvalidArgumentError

ROWS_PER_FILE = 50_000


@dataclass(frozen=True, slots=True)
class DayFacts:
    """What a day of a feed holds.

    A good row is one without a defect, and a row has one defect at most. What was delivered earlier are the good rows
    of the days before; of several good rows with one url the one scraped last counts.
    """

    rows: int
    malformed: int
    """Lines that are no JSON object, or have a value of the wrong type."""
    null_urls: int
    bad_salaries: int
    bad_times: int
    """Rows whose `posted_at` is no time."""
    duplicates: int
    """Good rows beyond one for each url."""
    late: int
    """Good rows scraped before what was delivered of their url earlier; such a url has no other good row that day."""
    urls: int
    """Distinct urls of good rows, as for all that follow."""
    companies: int
    seen_urls: int
    """Urls that were delivered earlier, also those of late rows."""
    changed_salaries: int
    """Urls delivered earlier whose salary is another one now; late rows change nothing."""
    urls_so_far: int
    companies_so_far: int

    @property
    def good(self) -> int:
        """The rows without a defect."""
        return self.urls + self.duplicates


def write_day(folder: str, day: date, rows: int = 100_000, *, seed: int = 7, days_before: int = 0) -> DayFacts:
    """Write the postings of a day to files in `folder/<YYYY-MM-DD>`.

    `days_before` says how many days the feed had before this one, each of as many rows and of the same seed; they need
    not have been written.
    """
    if rows < 1 or seed < 0 or days_before < 0:
        raise InvalidArgumentError(
            f"rows={rows}, seed={seed}, days_before={days_before}: give one row or more, and no negative number"
        )
    feed = Feed(day - timedelta(days=days_before), rows, seed)
    drawn = feed.draw_day(days_before)
    _write(f"{folder}/{day.isoformat()}", drawn, Writer.from_feed(feed, days_before))
    return _count_day(feed, days_before, drawn)


def _write(folder: str, drawn: DayRows, writer: Writer) -> None:
    os.makedirs(folder, exist_ok=True)
    starts = range(0, len(drawn.url), ROWS_PER_FILE)
    names = [f"postings-{place:04}.json" for place in range(len(starts))]

    def write(name: str, start: int) -> None:
        lines = writer.write_lines(drawn.slice_rows(start, start + ROWS_PER_FILE))
        # The lines lie one behind the other in memory, as they shall in the file.
        _, offsets, text = lines.buffers()
        ends = np.frombuffer(offsets, np.int32, len(lines) + 1, lines.offset * 4)
        with open(f"{folder}/{name}", "wb") as file:
            file.write(memoryview(text)[ends[0] : ends[-1]])

    for name in set(os.listdir(folder)).difference(names):
        if name.startswith("postings-"):
            os.remove(f"{folder}/{name}")
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="merganser-feed") as pool:
        list(pool.map(write, names, starts))


@dataclass(frozen=True, slots=True)
class _Delivered:
    """What has been delivered of each url, by its number: nothing where `scraped` is `_NEVER`."""

    scraped: IntArray
    low: IntArray
    high: IntArray
    companies: npt.NDArray[np.bool_]


_NEVER = np.iinfo(np.int64).min


def _count_day(feed: Feed, day: int, drawn: DayRows) -> DayFacts:
    urls = feed.count_urls_before(day + 1)
    low, high = np.zeros(urls, np.int64), np.zeros(urls, np.int64)
    before = _Delivered(np.full(urls, _NEVER), low, high, np.zeros(feed.count_companies(day), np.bool_))
    for earlier in range(day):
        _deliver(feed, feed.draw_day(earlier), before)
    count = {defect: int(np.count_nonzero(drawn.defect == defect)) for defect in Defect}
    last = _find_latest_rows(drawn)
    url, scraped = drawn.url[last], drawn.scraped[last]
    company = feed.pick_company(url)
    seen = before.scraped[url] != _NEVER
    late = scraped < before.scraped[url]
    current = np.flatnonzero(seen & ~late)
    low, high = feed.pick_salary(
        url[current], drawn.revision[last][current], feed.pick_country(url[current], company[current])
    )
    changed = (low != before.low[url[current]]) | (high != before.high[url[current]])
    today = np.zeros_like(before.companies)
    today[company] = True
    return DayFacts(
        rows=len(drawn.url),
        malformed=count[Defect.MALFORMED],
        null_urls=count[Defect.NO_URL],
        bad_salaries=count[Defect.BAD_SALARY],
        bad_times=count[Defect.BAD_TIME],
        duplicates=count[Defect.NONE] - len(url),
        late=int(np.count_nonzero(late)),
        urls=len(url),
        companies=int(np.count_nonzero(today)),
        seen_urls=int(np.count_nonzero(seen)),
        changed_salaries=int(np.count_nonzero(changed)),
        urls_so_far=int(np.count_nonzero(before.scraped != _NEVER) + np.count_nonzero(~seen)),
        companies_so_far=int(np.count_nonzero(before.companies | today)),
    )


def _deliver(feed: Feed, drawn: DayRows, before: _Delivered) -> None:
    last = _find_latest_rows(drawn)
    last = last[drawn.scraped[last] >= before.scraped[drawn.url[last]]]
    url = drawn.url[last]
    company = feed.pick_company(url)
    before.scraped[url] = drawn.scraped[last]
    before.low[url], before.high[url] = feed.pick_salary(url, drawn.revision[last], feed.pick_country(url, company))
    before.companies[company] = True


def _find_latest_rows(drawn: DayRows) -> IntArray:
    """Find, among the good rows, the one of each url that was scraped last."""
    good = np.flatnonzero(drawn.defect == Defect.NONE)
    order = good[np.argsort(drawn.scraped[good], kind="stable")]
    last = np.full(int(drawn.url.max()) + 1, -1, np.int64)
    # Of several values for one place the last one stays.
    last[drawn.url[order]] = order
    return last[last >= 0]
