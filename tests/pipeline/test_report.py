"""A run result survives JSON, its counts are checked, and both reports show it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from tests.pipeline.run_results import (
    EMPTY,
    EXTREME,
    HOSTILE,
    ONE,
    USUAL,
    WRONG,
    ZERO,
    make_run,
    make_source,
    make_step,
)

from merganser.errors import InvalidArgumentError
from merganser.pipeline.report.charts import MIN_SEGMENT_PERCENT, compute_widths
from merganser.pipeline.report.page import report_page
from merganser.pipeline.report.terminal import WIDTH, measure_width, report_lines, shorten
from merganser.pipeline.run_result import RuleCount, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTCOMES = {"usual": USUAL, "zero": ZERO, "one": ONE, "empty": EMPTY, "extreme": EXTREME, "wrong": WRONG}
every_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)

STARTS = {"sources.0.": 1.5, "tasks.0.": 3.75, "steps.0.": 5.0, "steps.2.": 5.0, "steps.3.": 5.0}

TERMINAL = """\
Pipeline daily sales, run 2025-01-02-7f3a
started 2025-01-02 03:04:05 UTC, took 46.9 s, Spark 4.3.0 on local[2]
day = 2025-01-01

source       files       read  filtered  quarantined      clean  seconds
────────────────────────────────────────────────────────────────────────
orders           3  1,204,331     4,331        2,052  1,197,948     2.25
customers *      3     80,400         0           39     80,361     2.25
* staged by an earlier attempt

step                in  left out  deduplicated     merged   inserted  updated  skipped  deleted
───────────────────────────────────────────────────────────────────────────────────────────────
orders       1,197,948         0         1,200  1,196,748  1,000,000  150,000   46,000      748
customers *     80,361         0             0     80,361          0      361   80,000        0
Customer           361         0             0        361        361        0        0        0
placed          10,000       948             0      9,052      9,052        0        0        0

step         written  rewritten  preserved  removed  seconds  kind     source     target
─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
orders            12         31        957       31     41.6  dataset  orders     s3://lake/warehouse/orders
customers *        0          2          0        0     1.50  dataset  customers  s3://lake/warehouse/orders
Customer           0          0          0        0     0.00  nodes    orders     s3://lake/graph/nodes/type=Customer
placed             0          0          0        0     1.38  edges    orders     s3://lake/graph/edges/type=placed
* replayed: an earlier attempt had committed it

timeline              started  seconds  jobs  in jobs  merge  commit  waiting  steps  driver
────────────────────────────────────────────────────────────────────────────────────────────
whole run                0.00     46.9     0     0.00   0.00    0.00     0.00   45.2    1.62
source orders            1.50     2.25     1     2.00   0.00    0.12     0.00   0.00    0.12
records of the graph     3.75     1.38     1     1.25   0.00    0.00     0.00   0.00    0.12
orders                   5.00     41.6     3     39.0   0.00    1.00     1.50   0.00    0.12
Customer                 5.00     0.00     0     0.00   0.00    0.00     0.00   0.00    0.00
placed                   5.00     1.38     0     0.00   0.75    0.00     0.50   0.00    0.12

The accounting holds:
  1,284,731 read = 4,331 filtered + 2,091 quarantined + 1,278,309 clean
  1,288,670 into steps = 948 left out + 1,200 deduplicated + 1,286,522 merged

rule that failed   source      rows
───────────────────────────────────
amount > 0         orders     1,840
customer is known  orders       212
email has an @     customers     39
The rows are in s3://lake/quarantine/daily"""


@every_outcome
def test_a_run_result_survives_json(outcome: RunOutcome) -> None:
    assert RunOutcome.from_dict(json.loads(outcome.to_json())) == outcome
    assert outcome.to_json().isascii()


def test_a_changed_or_missing_field_is_refused_by_name() -> None:
    facts = USUAL.to_dict()
    facts["steps"][0]["tardy"] = facts["steps"][0].pop("skipped")
    with pytest.raises(
        InvalidArgumentError, match=r"not a StepOutcome: it lacks \['skipped'\] and has the unknown \['tardy'\]"
    ):
        RunOutcome.from_dict(facts)


def test_a_run_result_of_a_version_without_times_is_read() -> None:
    facts = USUAL.to_dict()
    del facts["tasks"]
    for part in (facts, *facts["sources"], *facts["steps"]):
        del part["spans"]
        part.pop("started", None)
    found = RunOutcome.from_dict(facts)
    parts: list[Any] = [*found.sources, *found.steps]
    assert [(part.started, part.spans) for part in parts] == [(None, ())] * 6
    assert not any(line.startswith("timeline") for line in report_lines(found))
    assert "No times were recorded." in [data for _, data in read(report_page(found)).text]


def test_a_span_with_an_unknown_field_is_refused_by_name() -> None:
    facts = USUAL.to_dict()
    facts["steps"][0]["spans"][0]["tardy"] = 1
    with pytest.raises(InvalidArgumentError, match=r"not a Span: it has the unknown \['tardy'\]"):
        RunOutcome.from_dict(facts)


def test_a_start_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2025-01-02T03:04:05 has no time zone"):
        replace(USUAL, started_at=datetime(2025, 1, 2, 3, 4, 5))  # noqa: DTZ001 - that is what is refused


def test_a_run_result_that_adds_up_is_balanced() -> None:
    assert USUAL.unbalanced() == []
    assert EXTREME.unbalanced() == []


def test_each_equation_that_does_not_hold_is_a_sentence() -> None:
    outcome = make_run(
        replace(make_source(read=1_000), rows_filtered=1),
        replace(make_source("customers", read=10), rows_clean=8),
        make_step("s", inserted=1, rows_in=99, rows_skipped_null=2, rows_deduplicated=3, rows_quarantined=4),
        make_step("fine", inserted=1),
    )
    assert outcome.unbalanced() == [
        "Source 'orders': rows_read 1,000 is not rows_filtered 1 + rows_in 1,000 = 1,001.",
        "Source 'customers': rows_in 10 is not rows_clean 8 + rows_quarantined 0 = 8.",
        (
            "Step 's': rows_in 99 is not rows_quarantined 4 + rows_deduplicated 3 + rows_merged 1 + "
            "rows_skipped_null 2 = 10."
        ),
    ]


def test_the_terminal_shows_sources_steps_accounting_and_failed_rules() -> None:
    assert "\n".join(report_lines(USUAL)) == TERMINAL


def test_columns_of_nothing_but_zeros_are_left_out() -> None:
    lines = report_lines(ONE)
    assert "source  files  read  clean  seconds" in lines
    assert not any("quarantined" in line or "deleted" in line or "rule" in line for line in lines)


def test_a_run_of_nothing_has_a_report() -> None:
    assert report_lines(EMPTY)[-1] == "  there were no rows"
    assert "  0 read = 0 clean" in report_lines(ZERO)


def test_the_terminal_says_what_does_not_add_up() -> None:
    lines = report_lines(WRONG)
    assert lines[lines.index("The accounting does not hold:") + 1 :] == [f"  {found}" for found in WRONG.unbalanced()]


def columns_of(lines: Sequence[str]) -> set[int]:
    """The position of the last character of each line, in terminal cells."""
    return {measure_width(line) for line in lines}


def test_names_of_any_script_align() -> None:
    names = ["orders", "注文データ", "заказы", "e\u0301te\u0301", "\uff48\uff41\uff4c\uff46", "a" * 90, "数" * 60]
    lines = report_lines(make_run(*(make_source(name, read=1_000, seconds=1.0) for name in names)))
    start = next(number for number, line in enumerate(lines) if line.startswith("source"))
    assert len(columns_of(lines[start : start + 2 + len(names)])) == 1


@every_outcome
def test_tables_fit_the_terminal(outcome: RunOutcome) -> None:
    start = 2 + len(outcome.parameters)
    assert max(columns_of(report_lines(outcome)[start:])) <= WIDTH


def test_a_name_cannot_move_the_cursor() -> None:
    lines = report_lines(make_run(make_source("a\n\x1b[2Jb\ud800", read=1), pipeline="x\r", parameters={"a\n": "b\t"}))
    text = "\n".join(lines)
    assert r"a\n\x1b[2Jb\ud800" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert text.encode("utf-8")


def test_a_long_path_keeps_both_ends() -> None:
    path = "s3://lake/" + "folder/" * 20 + "orders"
    short = shorten(path, 20)
    assert short == "s3://lake/…er/orders"
    assert measure_width(shorten("数" * 30, 20)) <= 20
    assert shorten("orders", 6) == "orders"


class Reader(HTMLParser):
    """Checks that every element is closed in its turn, and keeps text and attributes."""

    VOID = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@every_outcome
def test_the_page_is_well_formed(outcome: RunOutcome) -> None:
    page = report_page(outcome)
    assert page.encode("utf-8")
    tags = [tag for tag, _ in read(page).elements]
    assert tags.count("html") == tags.count("main") == tags.count("h1") == tags.count("script") == 1
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == tags.count("svg")
    for drawing in drawings:
        assert ET.fromstring(drawing).tag.endswith("svg")  # noqa: S314 - this project has just written it


@every_outcome
def test_the_page_shows_the_run_result(outcome: RunOutcome) -> None:
    (embedded,) = (data for tag, data in read(report_page(outcome)).text if tag == "script")
    assert RunOutcome.from_dict(json.loads(embedded)) == outcome


@every_outcome
def test_the_page_refers_to_nothing_outside(outcome: RunOutcome) -> None:
    reader = read(report_page(outcome))
    found = {attrs.get(name) for _, attrs in reader.elements for name in ("src", "href", "action", "data", "srcset")}
    assert found <= {None, "data:,"}
    (style,) = (data for tag, data in reader.text if tag == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_names_are_data() -> None:
    reader = read(report_page(EXTREME))
    assert {tag for tag, _ in reader.elements}.isdisjoint({"img", "b>"})
    written = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    names = [data for tag, data in reader.text if tag == "bdi"]
    assert written in names
    assert written * 2 in names
    assert not any(name.startswith("on") for _, attrs in reader.elements for name in attrs)


def test_the_page_says_what_does_not_add_up() -> None:
    texts = [data for _, data in read(report_page(WRONG)).text]
    assert "The accounting does not hold." in texts
    assert set(WRONG.unbalanced()) <= set(texts)
    assert "Every row is accounted for." in [data for _, data in read(report_page(USUAL)).text]


def test_the_timeline_is_in_the_order_of_starts_and_names_every_span() -> None:
    page = report_page(USUAL)
    chart = page[page.index('<section class="chart" id="timeline"') :].partition("</section>")[0]
    lines = re.findall(r'class="label"><bdi>(.*?)</bdi> <span class="note"><bdi>(.*?)</bdi>', chart)
    assert lines == [
        ("whole run", "began at 0.00 s"),
        ("source orders", "began at 1.50 s"),
        ("records of the graph", "began at 3.75 s"),
        ("orders", "began at 5.00 s"),
        ("Customer", "began at 5.00 s"),
        ("placed", "began at 5.00 s"),
    ]
    parts = re.findall(r'<li><i class="(.*?)"></i>(.*?) <b data-key="steps.0.(.*?)"', chart)
    assert parts == [
        ("span-waiting", "waiting: lock", "spans.0.seconds"),
        ("span-job", "job: match keys (2 times)", "spans.1.seconds"),
        ("span-job", "job: write files", "spans.2.seconds"),
        ("span-commit", "commit", "spans.3.seconds"),
        ("span-driver", "driver: other work", "spans.4.seconds"),
    ]


def test_bars_of_the_timeline_begin_where_their_step_began() -> None:
    page = report_page(USUAL)
    begins = re.findall(r'<rect class="span-\w+" x="([\d.]+)%"[^>]*data-key="(\w+\.\d\.)?spans.0.seconds"', page)
    assert {key: float(begin) for begin, key in begins} == {
        "": 0.0,
        **{key: pytest.approx(100 * at / USUAL.seconds, abs=0.001) for key, at in STARTS.items()},
    }


def test_a_late_bar_does_not_leave_its_chart() -> None:
    (late,) = (number for number, step in enumerate(EXTREME.steps) if step.name == "late")
    found = re.findall(
        rf'<rect class="span-job" x="([\d.]+)%" y="0" width="([\d.]+)%"[^>]*data-key="steps.{late}.spans',
        report_page(EXTREME),
    )
    assert len(found) == 7
    for begin, width in found:
        assert float(width) >= MIN_SEGMENT_PERCENT
        assert float(begin) + float(width) <= 100.001


def test_the_most_frequent_rule_comes_first() -> None:
    rules = tuple(RuleCount(f"rule {rows}", rows) for rows in (5, 0, 70, 6))
    page = report_page(make_run(make_source(read=100, quarantined=80, rules=rules)))
    shown_rules = re.findall(r"<bdi>(rule \d+)</bdi>", page)
    assert shown_rules == ["rule 70", "rule 6", "rule 5"]


@pytest.mark.parametrize(
    "values",
    [[0, 0], [1], [10**10, *[1] * 7], [1, 1, 1], [*[1] * 7, 10**10], [5, 0, 10**10]],
    ids=str,
)
@pytest.mark.parametrize("others", [1, 10**5, 10**12])
def test_no_part_is_invisible_and_none_leaves_its_bar(values: list[int], others: int) -> None:
    longest = max(sum(values), others)
    found = compute_widths(values, longest)
    assert sum(found) <= 100.001 or sum(values) == 0
    for value, share in zip(values, found, strict=True):
        assert (share >= MIN_SEGMENT_PERCENT) == (value > 0)
        assert share == pytest.approx(100 * value / longest, abs=1)
