"""The made-up feed: its facts are what a plain reading of its lines counts, and it is the same every time."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from merganser.demo import feed as feed_module
from merganser.demo.feed import DayFacts, write_day
from merganser.demo.feed_numbers import Feed
from merganser.demo.feed_text import Writer
from merganser.demo.feed_words import COUNTRIES
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

Posting: TypeAlias = "dict[str, Any]"
FIRST = date(2026, 1, 1)
ROWS = 6_000
TYPES: dict[str, tuple[type, ...]] = {
    "url": (str, type(None)),
    "title": (str,),
    "company": (str,),
    "company_country": (str,),
    "city": (str,),
    "country": (str,),
    "remote": (bool,),
    "salary_min": (int, type(None)),
    "salary_max": (int, type(None)),
    "currency": (str,),
    "skills": (list,),
    "description": (str,),
    "posted_at": (str,),
    "scraped_at": (str,),
}


def posting(line: str) -> Posting | None:
    """Read a line; None if it is not a posting."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    fits = isinstance(row, dict) and all(isinstance(row.get(name), types) for name, types in TYPES.items())
    return {"url": None} | row if fits else None


def is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def has_bad_salary(row: Posting) -> bool:
    low, high = row["salary_min"], row["salary_max"]
    return (low is not None and low < 0) or (low is not None and high is not None and high < low)


@dataclass
class Reader:
    """Counts what a day holds with dicts and loops, and remembers what earlier days delivered."""

    delivered: dict[str, Posting] = field(default_factory=dict)
    companies: set[str] = field(default_factory=set)

    def read(self, folder: Path) -> DayFacts:
        lines = [line for file in sorted(folder.iterdir()) for line in file.read_text("utf-8").splitlines()]
        rows = [row for row in map(posting, lines) if row is not None]
        with_url = [row for row in rows if row["url"] is not None]
        paid = [row for row in with_url if not has_bad_salary(row)]
        good = [row for row in paid if is_time(row["posted_at"])]
        by_url: dict[str, list[Posting]] = defaultdict(list)
        for row in good:
            by_url[row["url"]].append(row)
        last = {url: max(several, key=lambda row: row["scraped_at"]) for url, several in by_url.items()}
        seen = {url: self.delivered[url] for url in last if url in self.delivered}
        late = [row for row in good if row["url"] in seen and row["scraped_at"] < seen[row["url"]]["scraped_at"]]
        assert all(len(by_url[row["url"]]) == 1 for row in late)
        late_urls = {row["url"] for row in late}
        current = {url: row for url, row in last.items() if url not in late_urls}
        salary = ("salary_min", "salary_max")
        changed = [
            url for url in seen if url in current and any(current[url][name] != seen[url][name] for name in salary)
        ]
        self.delivered |= current
        companies = {row["company"] for row in good}
        self.companies |= companies
        return DayFacts(
            rows=len(lines),
            malformed=len(lines) - len(rows),
            null_urls=len(rows) - len(with_url),
            bad_salaries=len(with_url) - len(paid),
            bad_times=len(paid) - len(good),
            duplicates=len(good) - len(last),
            late=len(late),
            urls=len(last),
            companies=len(companies),
            seen_urls=len(seen),
            changed_salaries=len(changed),
            urls_so_far=len(self.delivered),
            companies_so_far=len(self.companies),
        )


def write_days(folder: Path, days: int, rows: int = ROWS, seed: int = 7) -> list[DayFacts]:
    return [write_day(str(folder), FIRST + timedelta(day), rows, seed=seed, days_before=day) for day in range(days)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[DayFacts]]:
    folder = tmp_path_factory.mktemp("feed")
    return folder, write_days(folder, 4)


@pytest.fixture(scope="module")
def good(written: tuple[Path, list[DayFacts]]) -> list[Posting]:
    lines = [line for file in sorted(written[0].rglob("*.json")) for line in file.read_text("utf-8").splitlines()]
    return [row for row in map(posting, lines) if row is not None and row["url"] and not has_bad_salary(row)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_facts_are_what_a_plain_reading_counts(written: tuple[Path, list[DayFacts]]) -> None:
    folder, facts = written
    reader = Reader()
    assert [reader.read(day) for day in sorted(folder.iterdir())] == facts


@pytest.mark.parametrize(("rows", "seed"), [(1, 7), (3, 0), (60, 1), (700, 2**40)])
def test_small_feeds_of_any_seed_have_exact_facts(tmp_path: Path, rows: int, seed: int) -> None:
    facts = write_days(tmp_path, 3, rows, seed)
    reader = Reader()
    assert [reader.read(day) for day in sorted(tmp_path.iterdir())] == facts


def test_the_same_call_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "ROWS_PER_FILE", 500)
    facts = write_days(tmp_path / "one", 2)
    assert write_days(tmp_path / "two", 2) == facts
    assert write_days(tmp_path / "one", 2) == facts
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert len(content(tmp_path / "one")) == 24


def test_another_seed_makes_another_feed(tmp_path: Path) -> None:
    write_days(tmp_path / "one", 1, rows=100, seed=1)
    write_days(tmp_path / "two", 1, rows=100, seed=2)
    assert content(tmp_path / "one") != content(tmp_path / "two")


def test_a_later_day_can_be_written_alone(written: tuple[Path, list[DayFacts]], tmp_path: Path) -> None:
    folder, facts = written
    day = FIRST + timedelta(3)
    assert write_day(str(tmp_path), day, ROWS, days_before=3) == facts[3]
    assert content(tmp_path / day.isoformat()) == content(folder / day.isoformat())


def test_a_file_has_fifty_thousand_lines_and_surplus_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / FIRST.isoformat()
    write_day(str(tmp_path), FIRST, 100_001)
    lines = {file.name: file.read_bytes().count(b"\n") for file in folder.iterdir()}
    assert lines == {"postings-0000.json": 50_000, "postings-0001.json": 50_000, "postings-0002.json": 1}
    write_day(str(tmp_path), FIRST, 10)
    assert [file.name for file in folder.iterdir()] == ["postings-0000.json"]


def test_every_kind_of_defect_occurs_at_its_expected_rate(written: tuple[Path, list[DayFacts]]) -> None:
    first, *later = written[1]
    assert (first.late, first.seen_urls, first.changed_salaries) == (0, 0, 0)
    for facts in later:
        assert facts.rows == ROWS
        assert 0.001 < facts.malformed / facts.rows < 0.006
        assert 0.0005 < facts.null_urls / facts.rows < 0.004
        assert 0.001 < facts.bad_salaries / facts.rows < 0.006
        assert 0.0005 < facts.bad_times / facts.rows < 0.004
        assert 0.015 < facts.duplicates / facts.rows < 0.025
        assert 0.003 < facts.late / facts.rows < 0.007
        assert 0.55 < facts.seen_urls / facts.urls < 0.65
        assert 0.07 < facts.changed_salaries / facts.seen_urls < 0.15


def test_lines_are_malformed_in_many_ways(written: tuple[Path, list[DayFacts]]) -> None:
    lines = [line for file in written[0].rglob("*.json") for line in file.read_text("utf-8").splitlines()]
    bad = [line for line in lines if posting(line) is None]
    cut = {line[-1] for line in bad if line.startswith('{"url"') and not line.endswith("}")}
    text = {line for line in bad if not line.startswith("{")}
    wrong = {str(json.loads(line)["salary_min"]) for line in bad if line.endswith("}")}
    assert len(cut) > 5
    assert len(text) > 2
    assert wrong == {"negotiable", "45k", "{'amount': 45000}"}
    # A reader would take an empty line for none.
    assert all(line.strip() for line in lines)


def test_a_url_keeps_its_country_and_company_and_a_company_its_country(good: list[Posting]) -> None:
    for key, kept in (("url", ("country", "company", "posted_at")), ("company", ("company_country",))):
        values: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for row in good:
            if is_time(row["posted_at"]):
                values[row[key]].add(tuple(row[name] for name in kept))
        assert {len(found) for found in values.values()} == {1}


def test_postings_are_of_many_kinds_and_scripts(good: list[Posting]) -> None:
    cities = {row["city"] for row in good}
    assert cities >= {"東京", "القاهرة", "Αθήνα", "Київ", "München", "서울", "बेंगलुरु"}
    assert {row["country"] for row in good} == {country.code for country in COUNTRIES}
    assert {"ソフトウェアエンジニア", 'Technical Writer ("docs as code")'} <= {row["title"] for row in good}
    assert {row["remote"] for row in good} == {True, False}
    assert {len(row["skills"]) for row in good} == set(range(7))
    assert any("🚀" in row["description"] for row in good)
    assert any("\n" in row["description"] for row in good)
    assert {(row["salary_min"] is None, row["salary_max"] is None) for row in good} == {
        (True, True),
        (False, True),
        (False, False),
    }


def test_descriptions_have_fifty_to_two_hundred_characters(good: list[Posting]) -> None:
    lengths = {len(row["description"]) for row in good}
    assert min(lengths) >= 50
    assert max(lengths) <= 200


def test_postings_are_scraped_after_they_are_posted(good: list[Posting]) -> None:
    for row in good:
        if is_time(row["posted_at"]):
            assert datetime.fromisoformat(row["posted_at"]) < datetime.fromisoformat(row["scraped_at"])


def test_few_companies_have_most_postings(good: list[Posting]) -> None:
    sizes: dict[str, int] = defaultdict(int)
    for row in good:
        sizes[row["company"]] += 1
    ordered = sorted(sizes.values(), reverse=True)
    assert len(ordered) > 1_000
    assert sum(ordered[:100]) > 0.5 * len(good)


def test_no_two_companies_of_a_large_feed_have_one_name() -> None:
    feed = Feed(FIRST, 10_000_000, 7)
    names = Writer.from_feed(feed, 3).companies
    assert len(names) == feed.count_companies(3) > 20_000
    assert len(names.unique()) == len(names)


def test_every_country_has_as_many_words() -> None:
    counts = {(len(c.cities), len(c.names), len(c.industries), len(c.titles)) for c in COUNTRIES}
    assert counts == {(6, 8, 8, 4)}


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"seed": -1}, {"days_before": -1}])
def test_arguments_that_make_no_day_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        write_day(str(tmp_path), FIRST, **wrong)
    assert not list(tmp_path.iterdir())


def test_good_rows_are_those_without_a_defect(written: tuple[Path, list[DayFacts]]) -> None:
    for facts in written[1]:
        counts = asdict(facts)
        defects = [counts[name] for name in ("malformed", "null_urls", "bad_salaries", "bad_times")]
        assert facts.good == facts.rows - sum(defects)
