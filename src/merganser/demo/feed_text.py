"""Rows of a feed as text: one JSON object a line, joined from columns of ready pieces."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.demo.feed_numbers import MEDIAN_SALARIES, NULL_SALARY, SECONDS_PER_DAY, DayRows, Defect, Feed, IntArray
from merganser.demo.feed_words import COUNTRIES, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

_MINUTES = SECONDS_PER_DAY // 60
# A posting is two to fourteen days old when it is first seen.
_OLDEST, _AGES = 14, 12
# How many characters a cut line lacks at its end.
_TRUNCATIONS = (2, 90, 250)
_TRUNCATED, _NOT_JSON, _WRONG_TYPE = range(3)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes rows of a feed up to a day, from pieces that are made once."""

    feed: Feed
    companies: pa.Array
    posted: pa.Array
    scraped: pa.Array

    @classmethod
    def from_feed(cls, feed: Feed, day: int) -> Writer:
        """Make the pieces for days up to and with this one."""
        posted = _make_minutes(feed.find_start(-_OLDEST), day + _AGES, "posted_at")
        return cls(feed, _make_companies(feed, day), posted, _make_minutes(feed.find_start(-1), day + 2, "scraped_at"))

    def write_lines(self, rows: DayRows) -> Any:
        """Write each row as a line, its line break included."""
        feed, url = self.feed, rows.url
        company = feed.pick_company(url)
        country = feed.pick_country(url, company)
        since = rows.scraped - feed.find_start(-1)
        pieces = [
            self._write_urls(rows, country),
            self._write_titles(url, country),
            _take(self.companies, company),
            _take(_CITIES, country * _CITIES_EACH + feed.pick(url, "city", _CITIES_EACH)),
            _take(_REMOTE, feed.pick(url, "remote", len(_REMOTE))),
            *self._write_salaries(rows, country),
            _take(_CURRENCIES, country),
            _take(_SKILLS, feed.pick(url, "skills", len(_SKILLS))),
            _take(_DESCRIPTIONS, feed.pick(url, "description", len(_DESCRIPTIONS))),
            self._write_posted(rows, country),
            _take(self.scraped, since // 60),
            _take(_LAST_SECONDS, since % 60),
        ]
        return self._corrupt_lines(_join(*pieces), rows)

    def _write_urls(self, rows: DayRows, country: IntArray) -> Any:
        host = self.feed.pick(rows.url, "host", len(WORDS["hosts"]))
        # Numbers in no order, as real keys have none; the modulus is a prime, so that no two become one.
        number = pa.array((rows.url * 1_220_703_125 + 977) % 2_147_483_647).cast(pa.string())
        url = _join(_take(_HOSTS, host * len(COUNTRIES) + country), number, '"')
        missing = _take(_MISSING_URLS, self.feed.pick(rows.url, "no url", len(_MISSING_URLS)))
        return pc.if_else(rows.defect == Defect.NO_URL, missing, url)

    def _write_titles(self, url: IntArray, country: IntArray) -> Any:
        own = len(_TITLES) + (country - len(COUNTRIES)) * _TITLES_EACH + self.feed.pick(url, "own title", _TITLES_EACH)
        common = self.feed.pick(url, "common title", len(_TITLES) - len(COUNTRIES) * _TITLES_EACH)
        return _take(_TITLES, np.where(self.feed.pick(url, "title", 3) == 0, own, common))

    def _write_salaries(self, rows: DayRows, country: IntArray) -> tuple[Any, Any, Any, Any]:
        low, high = self.feed.pick_salary(rows.url, rows.revision, country)
        bad = rows.defect == Defect.BAD_SALARY
        pay = MEDIAN_SALARIES[country]
        # Either the lower one is above the higher one, or it is below zero.
        low = np.where(bad, np.where(self.feed.pick(rows.url, "bad salary", 2) == 0, pay, -pay), low)
        high = np.where(bad, pay // 2, high)
        text = _take(_INVALID_SALARIES, self.feed.pick(rows.url, "no salary", len(_INVALID_SALARIES)))
        wrong = (rows.defect == Defect.MALFORMED) & (self._pick_malformation(rows.url) == _WRONG_TYPE)
        return _SALARY_MIN, pc.if_else(wrong, text, _format_numbers(low)), _SALARY_MAX, _format_numbers(high)

    def _write_posted(self, rows: DayRows, country: IntArray) -> Any:
        feed, url = self.feed, rows.url
        minute = feed.find_first_days(url) * _MINUTES + feed.pick(url, "posted", _AGES * _MINUTES)
        zone = np.where(feed.pick(url, "zone", 4) == 0, len(COUNTRIES), country)
        second = feed.pick(url, "second", 60)
        moment = _join(_take(self.posted, minute), _take(_SECONDS, second * (len(COUNTRIES) + 1) + zone))
        wrong = _take(_INVALID_TIMES, feed.pick(url, "no time", len(_INVALID_TIMES)))
        return pc.if_else(rows.defect == Defect.BAD_TIME, wrong, moment)

    def _pick_malformation(self, url: IntArray) -> IntArray:
        return self.feed.pick(url, "malformed", 3)

    def _corrupt_lines(self, lines: Any, rows: DayRows) -> Any:
        malformed = rows.defect == Defect.MALFORMED
        url, chosen = rows.url[malformed], lines.filter(malformed)
        kind, cut = self._pick_malformation(url), self.feed.pick(url, "cut", len(_TRUNCATIONS))
        for place, length in enumerate(_TRUNCATIONS):
            rest = _join(pc.utf8_slice_codeunits(chosen, 0, -length), "\n")
            chosen = pc.if_else((kind == _TRUNCATED) & (cut == place), rest, chosen)
        text = _take(_INVALID_POSTINGS, self.feed.pick(url, "no posting", len(_INVALID_POSTINGS)))
        return pc.replace_with_mask(lines, malformed, pc.if_else(kind == _NOT_JSON, text, chosen))


def _take(pieces: Any, indices: IntArray) -> Any:
    return pieces.take(pa.array(indices))


def _join(*pieces: Any) -> Any:
    return pc.binary_join_element_wise(*pieces, "")


def _format_numbers(values: IntArray) -> Any:
    return pc.fill_null(pa.array(values, mask=values == NULL_SALARY).cast(pa.string()), "null")


def _make_members(label: str, values: Iterable[Any]) -> Any:
    return pa.array([f',"{label}":{json.dumps(value, ensure_ascii=False, separators=(",", ":"))}' for value in values])


def _make_minutes(start: int, days: int, label: str) -> Any:
    minutes = np.datetime64(start, "s").astype("datetime64[m]") + np.arange(days * _MINUTES)
    return _join(f',"{label}":"', pa.array(np.datetime_as_string(minutes)))


def _make_companies(feed: Feed, day: int) -> Any:
    """Name the companies, each in the words of its country and no two alike."""
    named: Counter[int] = Counter()
    names, codes = [], []
    for index in feed.pick_company_country(np.arange(feed.count_companies(day))).tolist():
        country, place = COUNTRIES[index], named[index]
        named[index] += 1
        turn, rest = divmod(place, len(country.names))
        name, field = country.names[rest], country.industries[(rest + turn) % len(country.industries)]
        turn //= len(country.industries)
        branch, city = divmod(turn, len(country.cities) + 1)
        parts = (name, field, ("", *country.cities)[city], str(branch + 1) if branch else "", country.legal_form)
        names.append(" ".join(part for part in parts if part))
        codes.append(country.code)
    return _join(_make_members("company", names), _make_members("company_country", codes))


def _draw_skill_sets() -> list[list[str]]:
    chance, skills = np.random.default_rng(0), WORDS["skills"]
    counts = chance.integers(0, 7, 1_000)
    return [[skills[place] for place in chance.permutation(len(skills))[:count]] for count in counts]


_CITIES_EACH = len(COUNTRIES[0].cities)
_TITLES_EACH = len(COUNTRIES[0].titles)
_HOSTS = pa.array(f'{{"url":"https://{host}/{one.code.lower()}/' for host, one in product(WORDS["hosts"], COUNTRIES))
_MISSING_URLS = pa.array(['{"url":null', '{"source":"import"'])
_TITLES = _make_members(
    "title",
    [*map("".join, product(WORDS["levels"], WORDS["titles"])), *(title for one in COUNTRIES for title in one.titles)],
)
_CITIES = _join(
    _make_members("city", (city for country in COUNTRIES for city in country.cities)),
    _make_members("country", (country.code for country in COUNTRIES for _ in country.cities)),
)
_REMOTE = _make_members("remote", (False, False, False, True))
_SALARY_MIN, _SALARY_MAX = pa.scalar(',"salary_min":'), pa.scalar(',"salary_max":')
_INVALID_SALARIES = pa.array([json.dumps(value) for value in WORDS["invalid_salaries"]])
_CURRENCIES = _make_members("currency", (country.currency for country in COUNTRIES))
_SKILLS = _make_members("skills", _draw_skill_sets())
_SENTENCES = product(WORDS["openings"], WORDS["middles"], WORDS["closings"])
_DESCRIPTIONS = _make_members("description", (" ".join(chosen).strip() for chosen in _SENTENCES))
_INVALID_TIMES = _make_members("posted_at", WORDS["invalid_times"])
_INVALID_POSTINGS = pa.array(f"{text}\n" for text in WORDS["invalid_postings"])
_ZONES = (*(country.zone for country in COUNTRIES), "Z")
_SECONDS = pa.array(f':{second:02}{zone}"' for second, zone in product(range(60), _ZONES))
_LAST_SECONDS = pa.array(f':{second:02}Z"}}\n' for second in range(60))
