"""The report's page in a browser, without script: it shows the run result, and requests nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.contrast import contrast, luminance
from tests.pipeline.run_results import EMPTY, EXTREME, ONE, USUAL, WRONG, ZERO

from merganser.pipeline.report.page import report_page
from merganser.pipeline.report.report_fields import format_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Dialog, Page

    from merganser.pipeline.run_result import RunOutcome

OUTCOMES = {"usual": USUAL, "zero": ZERO, "one": ONE, "empty": EMPTY, "extreme": EXTREME, "wrong": WRONG}
# The groups of outcomes that are on the timeline.
GROUPS = ("sources", "tasks", "steps")
# Besides the two usual widths: a very narrow one, and both sides of the width at which the layout changes.
WIDE, NARROW = 1200, 400
WIDTHS = (320, NARROW, 960, 961, WIDE)

# Boxes in pixels of the page, as [left, top, width, height].
BOXES = """() => {
  const box = element => {
    const found = element.getBoundingClientRect();
    return [found.x + scrollX, found.y + scrollY, found.width, found.height];
  };
  return [...document.querySelectorAll(".chart")].map(chart => ({
    id: chart.id,
    bars: [...chart.querySelectorAll("svg")].map(svg => ({
      box: box(svg),
      parts: [...svg.querySelectorAll("rect")].map(part => ({
        key: part.dataset.key,
        value: Number(part.dataset.value),
        box: box(part),
        seen: getComputedStyle(part).fill,
      })),
    })),
    labels: [...chart.querySelectorAll("h2, .about, .label, .total, .parts li, .empty, svg")].map(box),
  }));
}"""
FIGURES = """() => [...document.querySelectorAll("[data-key]")].map(element => ({
  key: element.dataset.key,
  value: Number(element.dataset.value),
  text: element instanceof SVGElement ? null : element.firstChild.textContent.trim(),
}))"""
# Every line of text that is to be seen, with its colour and that of the page behind it.
LINES = """() => {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const lines = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg")) continue;
    if (getComputedStyle(element.closest("thead") ?? element).clipPath !== "none") continue;
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const found of range.getClientRects()) {
      lines.push({
        text: walker.currentNode.data,
        box: [found.x + scrollX, found.y + scrollY, found.width, found.height],
        color: getComputedStyle(element).color,
        behind: getComputedStyle(behind).backgroundColor,
      });
    }
  }
  return lines;
}"""
BEYOND = """() => [...document.querySelectorAll("main *")].filter(element =>
  !element.closest("thead") && element.getBoundingClientRect().right > innerWidth + 0.5
).map(element => element.outerHTML.slice(0, 200))"""


@dataclass(frozen=True, slots=True)
class Opened:
    outcome: RunOutcome
    page: Page
    requests: list[str]
    problems: list[str]

    def charts(self) -> dict[str, Any]:
        return {chart["id"]: chart for chart in self.page.evaluate(BOXES)}


def opened(browser: Browser, folder: Path, name: str, width: int = WIDE, scheme: Any = "light") -> Opened:
    file = folder / "report.html"
    file.write_text(report_page(OUTCOMES[name]), "utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=False
    )
    page = context.new_page()
    found = Opened(OUTCOMES[name], page, [], [])
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.problems.append(message.text))
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.goto(file.as_uri(), wait_until="networkidle")
    return found


# A page is opened once for all tests of it.
@pytest.fixture(scope="module", params=WIDTHS)
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module", params=OUTCOMES)
def report(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory, width: int
) -> Iterator[Opened]:
    found = opened(browser, tmp_path_factory.mktemp("report"), request.param, width)
    yield found
    found.page.context.close()


def test_only_the_file_itself_is_requested(report: Opened) -> None:
    assert [url for url in report.requests if not url.startswith("data:")] == [report.page.url]
    assert report.page.url.startswith("file://")


def test_the_console_stays_empty(report: Opened) -> None:
    assert report.problems == []


def test_a_page_that_could_run_scripts_runs_none(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(EXTREME), "utf-8")
    page = browser.new_page()
    dialogs: list[str] = []
    asked: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri(), wait_until="networkidle")
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("img").count() == 0
    page.close()
    assert not dialogs
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]


def test_the_page_shows_the_complete_run_result(report: Opened) -> None:
    embedded = report.page.locator("script#outcome").text_content()
    assert json.loads(embedded or "") == report.outcome.to_dict()


def value_at(facts: Any, key: str) -> float:
    """The figure at `steps.0.skipped`, the sum at `steps.*.skipped`, or the sum of several such keys."""
    if " " in key:
        return sum(value_at(facts, one) for one in key.split())
    head, star, tail = key.partition(".*.")
    if star:
        return float(sum(item[tail] for item in facts[head]))
    return float(find_value(facts, key))


def find_value(facts: Any, key: str) -> Any:
    return reduce(lambda found, step: found[int(step) if step.isdigit() else step], key.split("."), facts)


def test_every_number_equals_the_run_result(report: Opened) -> None:
    facts = json.loads(report.outcome.to_json())
    figures = report.page.evaluate(FIGURES)
    assert len(figures) >= 6
    for figure in figures:
        assert figure["value"] == value_at(facts, figure["key"]), figure
        if figure["text"] is not None:
            whole = not figure["key"].endswith(("seconds", "started"))
            assert figure["text"] == format_number(int(figure["value"]) if whole else float(figure["value"])), figure


def test_every_count_of_a_source_or_step_is_in_a_table(report: Opened) -> None:
    cells = set(report.page.evaluate('() => [...document.querySelectorAll("td[data-key]")].map(td => td.dataset.key)'))
    facts = report.outcome.to_dict()
    assert cells == {
        f"{group}.{number}.{field}"
        for group in ("sources", "steps")
        for number, found in enumerate(facts[group])
        for field, value in found.items()
        # A source's rows_in is its clean rows and the quarantined ones, which are both there.
        if type(value) in {int, float} and (group, field) != ("sources", "rows_in")
    }


PARTS = {
    "went": ("sources", ("rows_clean", "rows_quarantined", "rows_filtered")),
    "rows": (
        "steps",
        (
            *("inserted", "updated", "skipped", "deleted"),
            *("rows_deduplicated", "rows_skipped_null", "rows_quarantined"),
        ),
    ),
    "files": ("steps", ("files_written", "files_rewritten", "files_preserved")),
}


def test_every_chart_has_a_bar_for_each_source_step_and_failed_rule(report: Opened) -> None:
    charts = report.charts()
    facts = report.outcome.to_dict()
    assert list(charts) == ["went", "rows", "rules", "files", "timeline"]
    drawn = {
        chart: [[part["key"] for part in bar["parts"]] for bar in found["bars"]] for chart, found in charts.items()
    }
    for chart, (group, fields) in PARTS.items():
        keys = [[f"{group}.{number}.{field}" for field in fields] for number in range(len(facts[group]))]
        # A chart of nothing but zeros is a sentence.
        anything = any(found[field] for found in facts[group] for field in fields)
        assert drawn[chart] == (keys if anything else [])
        assert report.page.locator(f"#{chart} .empty").count() == (not anything)
    failed = {
        f"sources.{number}.rules.{place}.rows": rule["rows"]
        for number, source in enumerate(facts["sources"])
        for place, rule in enumerate(source["rules"])
        if rule["rows"]
    }
    assert {key for (key,) in drawn["rules"]} == set(failed)
    rows = [failed[key] for (key,) in drawn["rules"]]
    assert rows == sorted(rows, reverse=True)


def find_start(facts: Any, bar: Any) -> float:
    """When a bar begins: that of a source or step where it began, any other at 0."""
    owner, _, _ = bar["parts"][0]["key"].rpartition("spans.")
    return float(find_value(facts, f"{owner}started")) if owner else 0.0


def test_the_timeline_has_a_bar_for_everything_that_ran_in_the_order_of_starts(report: Opened) -> None:
    facts = report.outcome.to_dict()
    owners = {f"{group}.{number}.": one for group in GROUPS for number, one in enumerate(facts[group])}
    expected = {
        f"{owner}spans.{number}.seconds"
        for owner, one in {"": facts, **owners}.items()
        for number in range(len(one["spans"]))
    }
    bars = report.charts()["timeline"]["bars"]
    assert {part["key"] for bar in bars for part in bar["parts"]} == expected
    assert report.page.locator("#timeline .empty").count() == (not expected)
    starts = [find_start(facts, bar) for bar in bars]
    assert starts == sorted(starts)


def find_longest(facts: Any, chart: Any) -> float:
    """The figure at the right edge of a chart."""
    ends = [find_start(facts, bar) + sum(part["value"] for part in bar["parts"]) for bar in chart["bars"]]
    return float(max(ends))


def test_bars_are_as_long_as_their_figures(report: Opened) -> None:
    facts = report.outcome.to_dict()
    for name, chart in report.charts().items():
        totals = [sum(part["value"] for part in bar["parts"]) for bar in chart["bars"]]
        for bar, total in zip(chart["bars"], totals, strict=True):
            whole = bar["box"][2]
            longest = total if name == "went" else find_longest(facts, chart)
            for part in bar["parts"]:
                expected = whole * part["value"] / longest if longest else 0
                assert abs(part["box"][2] - expected) <= max(1, whole / 100), part
                assert (part["box"][2] > 0) == (part["value"] > 0), part
                assert part["box"][3] == bar["box"][3]


def test_bars_of_a_chart_have_one_scale(report: Opened) -> None:
    for chart in report.charts().values():
        assert len({(round(bar["box"][0]), round(bar["box"][2])) for bar in chart["bars"]}) <= 1


def test_parts_of_a_bar_follow_each_other_from_its_start_inside_it(report: Opened) -> None:
    facts = report.outcome.to_dict()
    for chart in report.charts().values():
        for bar in chart["bars"]:
            left, _, whole, _ = bar["box"]
            boxes = [part["box"] for part in bar["parts"]]
            start = find_start(facts, bar)
            begin = left + whole * start / find_longest(facts, chart) if start else left
            # Bars at the end begin a little earlier, if their parts are too thin to be seen.
            assert boxes[0][0] == pytest.approx(begin, abs=whole / 100 if start else 0.1)
            assert boxes[-1][0] + boxes[-1][2] <= left + whole + 0.1
            for one, two in pairwise(boxes):
                assert two[0] == pytest.approx(one[0] + one[2], abs=0.1)


def overlapping(boxes: list[list[float]]) -> list[tuple[list[float], list[float]]]:
    """Pairs of boxes that share more than a pixel's edge."""
    found = []
    ordered = sorted(boxes, key=lambda box: box[1])
    for place, one in enumerate(ordered):
        for two in ordered[place + 1 :]:
            if two[1] >= one[1] + one[3] - 1:
                break
            if min(one[0] + one[2], two[0] + two[2]) - max(one[0], two[0]) > 1:
                found.append((one, two))
    return found


def test_labels_and_bars_do_not_overlap(report: Opened) -> None:
    for chart in report.charts().values():
        assert overlapping(chart["labels"]) == []


def test_no_labels_overlap(report: Opened) -> None:
    assert overlapping([line["box"] for line in report.page.evaluate(LINES)]) == []


def test_nothing_scrolls_sideways(report: Opened, width: int) -> None:
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
    assert report.page.evaluate(BEYOND) == []


@pytest.mark.parametrize("name", ["usual", "extreme", "wrong"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_bars_are_legible_in_both_color_schemes(
    browser: Browser, tmp_path: Path, scheme: str, name: str
) -> None:
    found = opened(browser, tmp_path, name, scheme=scheme)
    behind = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(behind) > 0.5) == (scheme == "light")
    weak = {line["text"]: line for line in found.page.evaluate(LINES) if contrast(line["color"], line["behind"]) < 4.5}
    assert weak == {}
    parts = [part for chart in found.charts().values() for bar in chart["bars"] for part in bar["parts"]]
    faint = {part["key"]: part["seen"] for part in parts if contrast(part["seen"], behind) < 3}
    assert faint == {}
    # Colours distinguish the parts of a bar; in the timeline, their kinds.
    facts = found.outcome.to_dict()
    for identity, chart in found.charts().items():
        for bar in chart["bars"]:
            keys = [part["key"] for part in bar["parts"]]
            kinds = (
                [find_value(facts, key.replace("seconds", "kind")) for key in keys] if identity == "timeline" else keys
            )
            assert len({part["seen"] for part in bar["parts"]}) == len(set(kinds))
    found.page.context.close()


def test_every_bar_and_table_has_an_accessible_name(report: Opened) -> None:
    bars = report.page.locator("svg")
    labelled = report.page.locator('svg[role="img"][aria-labelledby]')
    assert labelled.count() == bars.count()
    identities = report.page.evaluate("() => [...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(set(identities)) == len(identities)
    named = report.page.evaluate(
        "() => [...document.querySelectorAll('[aria-labelledby]')]"
        ".flatMap(element => element.getAttribute('aria-labelledby').split(' '))"
    )
    assert set(named) <= set(identities)
    assert report.page.locator("table:not(:has(caption))").count() == 0
    assert report.page.locator("h1").count() == 1
