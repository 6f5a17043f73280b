"""The numbers behind a feed of postings: which rows a day has, and what follows from a url's number alone.

Nothing is kept between days. A url is a number; its company, country and salary are computed from it, so a later day
repeats a posting without having read the earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from merganser.demo.feed_words import COUNTRIES

if TYPE_CHECKING:
    from datetime import date

IntArray: TypeAlias = npt.NDArray[np.int64]
ShortArray: TypeAlias = npt.NDArray[np.int16]
SECONDS_PER_DAY = 86_400
# Stands for NULL among salaries.
NULL_SALARY = -1
MEDIAN_SALARIES = np.array([country.median_salary for country in COUNTRIES], np.int64)


class Defect(IntEnum):
    """What is wrong with a row; a row has one defect at most."""

    MALFORMED = 0
    NO_URL = 1
    BAD_SALARY = 2
    BAD_TIME = 3
    NONE = 4


# The shares of the defects in their order; the remaining rows have none.
_SHARES = (0.003, 0.002, 0.003, 0.002)


@dataclass(frozen=True, slots=True)
class DayRows:
    """The rows of a day in the order in which they are written.

    `revision` says which salary of its url a row has, `scraped` counts seconds from 1970.
    """

    url: IntArray
    scraped: IntArray
    revision: ShortArray
    defect: npt.NDArray[np.int8]

    def slice_rows(self, start: int, stop: int) -> DayRows:
        """Give some consecutive rows."""
        chosen = slice(start, stop)
        return DayRows(self.url[chosen], self.scraped[chosen], self.revision[chosen], self.defect[chosen])


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed of as many rows every day, from its first day on."""

    first_day: date
    rows: int
    seed: int

    @property
    def duplicates(self) -> int:
        """How many rows of a day repeat another one's url."""
        return self.rows * 2 // 100

    @property
    def distinct_count(self) -> int:
        """How many urls a day has."""
        return self.rows - self.duplicates

    @property
    def new_count(self) -> int:
        """How many urls of a later day are new; the first day's are all new."""
        return self.distinct_count * 4 // 10

    def count_urls_before(self, day: int) -> int:
        """Count the urls of all days before."""
        return 0 if day == 0 else self.distinct_count + (day - 1) * self.new_count

    def count_companies(self, day: int) -> int:
        """Count the companies up to and with a day; ten times as many rows have two and a half times as many."""
        start = self._count_first_companies()
        return start + day * self._count_daily_companies(start)

    def find_start(self, day: int) -> int:
        """Tell when a day starts, in seconds from 1970."""
        return int(np.datetime64(self.first_day, "s").astype(np.int64)) + day * SECONDS_PER_DAY

    def pick(self, numbers: IntArray, purpose: str, count: int) -> IntArray:
        """Pick one of `count` for each number: the same for the same purpose, independent of other purposes."""
        salt = (self.seed << 32 | crc32(purpose.encode())) % (1 << 64)
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        # Multiplying carries the low bits up, the shift brings the high ones down; twice is enough to look random.
        for factor in (0xD6E8FEB86659FD93, 0xCA4A7F8D5C2B1E35):
            mixed ^= mixed >> np.uint64(32)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(32)
        return (mixed % np.uint64(count)).astype(np.int64)

    def find_first_days(self, url: IntArray) -> IntArray:
        """Tell on which day a url comes first."""
        return np.maximum(0, 1 + (url - self.distinct_count) // max(1, self.new_count))

    def pick_company(self, url: IntArray) -> IntArray:
        """Tell a url's company: the second largest has half as many postings as the largest, and so on."""
        start = self._count_first_companies()
        fraction = self.pick(url, "company", 1 << 40) / float(1 << 40)
        old = np.minimum(np.exp(fraction * np.log(start + 1)).astype(np.int64), start) - 1
        added = self._count_daily_companies(start)
        new = start + (self.find_first_days(url) - 1) * added + self.pick(url, "new company", added)
        return np.where((self.find_first_days(url) > 0) & (self.pick(url, "from a new company", 32) == 0), new, old)

    def pick_company_country(self, company: IntArray) -> IntArray:
        """Tell a company's country; the largest country has three times as many as a middling one."""
        return self._draw_country(company, "company's country")

    def pick_country(self, url: IntArray, company: IntArray) -> IntArray:
        """Tell a posting's country, mostly its company's."""
        abroad = self.pick(url, "abroad", 8) == 0
        return np.where(abroad, self._draw_country(url, "country"), self.pick_company_country(company))

    def pick_salary(self, url: IntArray, revision: ShortArray, country: IntArray) -> tuple[IntArray, IntArray]:
        """Tell a posting's salaries, `NULL_SALARY` where it names none."""
        step = MEDIAN_SALARIES[country] // 100
        drawn = (url << 16) + revision
        low = step * (60 + self.pick(drawn, "low", 80))
        high = low + step * (5 + self.pick(drawn, "high", 40))
        named = self.pick(url, "salary named", 10)
        return np.where(named < 3, NULL_SALARY, low), np.where(named < 4, NULL_SALARY, high)  # noqa: PLR2004 - shares of ten

    def draw_day(self, day: int) -> DayRows:
        """Draw the rows of a day."""
        chance = np.random.default_rng([self.seed, day])
        known = self.count_urls_before(day)
        url = np.arange(known, known + (self.new_count if day else self.distinct_count), dtype=np.int64)
        late = 0
        if day:
            seen = chance.choice(known, self.distinct_count - self.new_count, replace=False)
            late = min(self.rows * 5 // 1000, len(seen))
            url = np.concatenate([seen, url])
        # The same url again, up to an hour later; never of a late row, which is late only while it is alone.
        again = late + chance.choice(self.distinct_count - late, self.duplicates, replace=False)
        first = self.pick(url, f"moment {day}", SECONDS_PER_DAY - 3600)
        moment = np.concatenate([first, first[again] + 1 + self.pick(again, f"pause {day}", 3600)])
        url = np.concatenate([url, url[again]])
        revision = self._find_revision(url, day)
        revision[self.distinct_count :][self.pick(again, f"salary again {day}", 3) == 0] = -2 - day
        revision[:late] = -1
        scraped = self.find_start(day) + moment
        # Nothing of a url was delivered before its first day, so what was scraped before that day is late.
        scraped[:late] = self.find_start(0) + (self.find_first_days(url[:late]) - 1) * SECONDS_PER_DAY + moment[:late]
        order = chance.permutation(self.rows)
        defect = np.searchsorted(np.cumsum(_SHARES), chance.random(self.rows), side="right").astype(np.int8)
        return DayRows(url[order], scraped[order], revision[order], defect)

    def _find_revision(self, url: IntArray, day: int) -> ShortArray:
        revision = np.zeros(len(url), np.int16)
        for earlier in range(1, day + 1):
            revision[self.pick(url, f"change {earlier}", 8) == 0] = earlier
        return revision

    def _draw_country(self, number: IntArray, purpose: str) -> IntArray:
        fraction = self.pick(number, purpose, 1 << 20) / float(1 << 20)
        return (len(COUNTRIES) * fraction**1.5).astype(np.int64)

    def _count_first_companies(self) -> int:
        return max(10, int(40 * self.rows**0.4))

    @staticmethod
    def _count_daily_companies(start: int) -> int:
        return max(1, start // 80)
