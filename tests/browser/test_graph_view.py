"""The picture of a graph in a browser: what can be done with it, and that nothing leaves it or gets into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.contrast import contrast, luminance

from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Dialog, Locator, Page

    from merganser.graph import Neighbourhood

BAD = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SCALE = "() => Number(/scale\\(([^)]+)\\)/.exec(document.querySelector('#world').getAttribute('transform'))[1])"
VISIBLE_NODES = "() => [...document.querySelectorAll('.node')].map(node => node.dataset.id)"
# Where every node is in the picture, whatever the zoom.
PLACES = """() => Object.fromEntries([...document.querySelectorAll('.node')].map(node => {
  const [x, y] = node.getAttribute('transform').match(/-?[\\d.]+/g).map(Number);
  return [node.dataset.id, [x, y]];
}))"""
# The visible labels outside the drawing, with their colours and backgrounds.
TEXTS = """() => [...document.querySelectorAll("#side *, #details *, #tools *")].filter(element =>
  [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && element.checkVisibility()
).map(element => {
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [element.textContent, getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
})"""
DOTS = """() => [...document.querySelectorAll(".node .body")].map(one => getComputedStyle(one).fill)"""


def small() -> Neighbourhood:
    """TechCorp with three jobs, each of which needs skills that are not shown at first; more is left out."""
    with GraphDatabase(":memory:") as db:
        corp = db.create_node("Company", {"name": "TechCorp", "note": BAD}).id
        skills = [db.create_node("Skill", {"name": name}).id for name in ("Python", "SQL", "Arrow")]
        for number, skill in enumerate(skills):
            job = db.create_node("Job", {"title": f"Job {number}", BAD: number}).id
            db.create_edge(job, "POSTED_BY", corp, {"since": "2026-03-02"})
            db.create_edge(job, "NEEDS", skill)
            db.create_edge(db.create_node("Person", {"name": f"P{number}"}).id, "HAS", skill)
        db.create_edge(corp, "OWNS", corp)
        return db.neighbourhood(corp, depth=2)


def large(count: int) -> Neighbourhood:
    """A ring with chords."""
    with GraphDatabase(":memory:") as db, db.transaction():
        ids = [db.create_node(f"Kind {number % 14}", {"name": f"n{number}"}).id for number in range(count)]
        for number in range(count):
            db.create_edge(ids[number], "NEXT", ids[(number + 1) % count])
            db.create_edge(ids[number], "NEAR", ids[(number * 7) % count])
        return db.neighbourhood(ids, limit=count)


@dataclass(frozen=True, slots=True)
class Opened:
    page: Page
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def node(self, name: str) -> Locator:
        return self.page.locator(f".node:has(.caption:text-is('{name}'))")

    def middle(self, name: str) -> tuple[float, float]:
        box = self.node(name).locator(".body").bounding_box()
        assert box is not None
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def list_visible_nodes(self) -> set[str]:
        return set(self.page.evaluate(VISIBLE_NODES))

    def rest(self) -> None:
        """Wait until nothing moves any more."""
        self.page.wait_for_function(
            "() => { const now = document.querySelector('#nodes').outerHTML; "
            "const same = window.before === now; window.before = now; return same; }",
            polling=150,
        )


def dismiss(dialog: Dialog, problems: list[str]) -> None:
    problems.append(dialog.message)
    dialog.dismiss()


def opened(browser: Browser, folder: Path, html: str, **context: Any) -> Opened:
    file = folder / "graph.html"
    file.write_text(html, "utf-8")
    page = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **context}).new_page()
    found = Opened(page)
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.problems.append(message.text))
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("dialog", lambda dialog: dismiss(dialog, found.problems))
    page.goto(file.as_uri(), wait_until="networkidle")
    found.rest()
    return found


@pytest.fixture
def graph(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """The small graph, which ends without a word in the console and without a request for anything else."""
    found = opened(browser, tmp_path, small().to_html("jobs.db", depth=1))
    yield found
    assert found.problems == []
    assert [url for url in found.requests if not url.startswith("data:")] == [(tmp_path / "graph.html").as_uri()]
    found.page.context.close()


def test_a_view_first_shows_the_nearest_nodes(graph: Opened) -> None:
    assert graph.page.locator(".node").count() == 4
    assert graph.page.locator(".edge").count() == 4
    assert graph.page.locator("#title").inner_text() == "jobs.db"
    assert graph.page.locator("#told").inner_text() == "4 nodes and 4 edges are shown; expanding nodes brings 3 more."
    assert graph.page.locator("#left-out").inner_text() == "Not in this file: 3 nodes next to these."
    assert graph.page.locator("#legend li").all_inner_texts() == ["Job\n3 nodes", "Skill\n3 nodes", "Company\n1 node"]
    for name in ("TechCorp", "Job 0", "Job 1", "Job 2"):
        x, y = graph.middle(name)
        assert 296 < x < 1200
        assert 0 < y < 800


def test_a_node_is_dragged_and_stays_where_it_is_put(graph: Opened) -> None:
    x, y = graph.middle("Job 1")
    other = graph.middle("TechCorp")
    graph.page.mouse.move(x, y)
    graph.page.mouse.down()
    graph.page.mouse.move(x + 90, y + 40, steps=6)
    graph.page.mouse.move(x + 180, y + 80, steps=6)
    graph.page.mouse.up()
    graph.rest()
    assert graph.middle("Job 1") == pytest.approx((x + 180, y + 80), abs=3)
    # Its neighbour follows, by itself.
    assert graph.middle("TechCorp") != pytest.approx(other, abs=3)
    assert graph.page.locator("#details").is_hidden()
    graph.node("Job 1").locator(".body").click()
    graph.page.get_by_role("button", name="Let it move").click()
    graph.rest()
    assert graph.middle("Job 1") != pytest.approx((x + 180, y + 80), abs=3)


def test_a_click_shows_hidden_neighbours(graph: Opened) -> None:
    before = graph.list_visible_nodes()
    assert graph.node("Job 0").locator(".more text").text_content() == "+1"
    graph.node("Job 0").locator(".body").click()
    graph.rest()
    assert len(graph.list_visible_nodes() - before) == 1
    assert before < graph.list_visible_nodes()
    assert graph.node("Python").count() == 1
    assert not graph.node("Job 0").locator(".more").is_visible()
    assert graph.page.locator(".edge").count() == 5
    # The new node has a neighbour that is not in this file.
    graph.node("Python").locator(".body").click()
    assert "1 more edge leads to nodes that are not in this file." in graph.page.locator("#details").inner_text()
    graph.page.get_by_role("button", name="Hide").click()
    assert graph.list_visible_nodes() == before
    graph.node("Job 2").locator(".body").click()
    assert len(graph.list_visible_nodes()) == 5
    graph.page.get_by_role("button", name="Hide 1 neighbour again").click()
    assert graph.list_visible_nodes() == before
    graph.node("Job 2").locator(".body").click()
    graph.page.get_by_role("button", name="Reset").click()
    assert graph.list_visible_nodes() == before


def test_the_start_is_marked_and_edge_types_are_counted(graph: Opened) -> None:
    assert graph.page.locator(".node.start").evaluate_all("all => all.map(one => one.dataset.id)") == ["1"]
    assert graph.node("TechCorp").locator(".star").is_visible()
    assert graph.page.locator("#start-note").inner_text() == "★ marks the start"
    assert graph.page.locator("#edge-legend li").all_inner_texts() == [
        "NEEDS\n3 edges", "POSTED_BY\n3 edges", "OWNS\n1 edge",
    ]  # fmt: skip
    strokes = graph.page.locator(".edge .thin").evaluate_all("all => all.map(one => getComputedStyle(one).stroke)")
    assert len(set(strokes)) == 2
    posted = graph.page.locator("#edge-legend button", has_text="POSTED_BY")
    posted.click()
    assert posted.get_attribute("aria-pressed") == "false"
    assert graph.page.locator(".edge").count() == 1
    assert len(graph.list_visible_nodes()) == 4
    posted.click()
    assert graph.page.locator(".edge").count() == 4


def test_the_wheel_and_buttons_zoom_and_the_background_moves(graph: Opened) -> None:
    scale = graph.page.evaluate(SCALE)
    x, y = graph.middle("TechCorp")
    graph.page.mouse.move(x, y)
    graph.page.mouse.wheel(0, -200)
    graph.page.wait_for_function(f"({SCALE})() > {scale * 1.1}")
    assert graph.middle("TechCorp") == pytest.approx((x, y), abs=2)
    graph.page.get_by_role("button", name="Zoom out").click()
    assert graph.page.evaluate(SCALE) < scale * 1.4
    places = graph.page.evaluate(PLACES)
    x, y = graph.middle("TechCorp")
    graph.page.mouse.move(330, 700)
    graph.page.mouse.down()
    graph.page.mouse.move(380, 670, steps=4)
    graph.page.mouse.up()
    assert graph.middle("TechCorp") == pytest.approx((x + 50, y - 30), abs=2)
    assert graph.page.evaluate(PLACES) == places
    graph.page.get_by_role("button", name="Fit").click()
    assert graph.page.evaluate(SCALE) == pytest.approx(scale, rel=0.2)


def test_hovering_and_clicking_show_properties_as_text(graph: Opened) -> None:
    x, y = graph.middle("TechCorp")
    graph.page.mouse.move(x, y)
    tip = graph.page.locator("#tip")
    assert "TechCorp" in tip.inner_text()
    assert BAD in tip.inner_text()
    graph.page.mouse.click(x, y)
    details = graph.page.locator("#details")
    assert details.locator("dd").all_inner_texts() == ["TechCorp", BAD]
    assert details.locator(".type").inner_text() == "Company #1"
    assert details.locator("#around button").count() == 4
    assert graph.page.locator("img").count() == 0
    assert graph.page.evaluate("document.scripts.length") == 2
    details.locator("#around button").first.click()
    assert details.locator("dt").all_inner_texts() == ["title", BAD]
    edge = graph.page.locator(".edge .wide").first
    edge.locator("xpath=..").dispatch_event("pointerenter")
    assert "2026-03-02" in tip.inner_text()
    graph.page.keyboard.press("Escape")
    assert details.is_hidden()


def test_a_search_finds_what_is_hidden_and_shows_it(graph: Opened) -> None:
    graph.page.keyboard.press("/")
    graph.page.keyboard.type("arr")
    hits = graph.page.locator("#hits button")
    assert hits.all_inner_texts() == ["Arrow\nnot shown"]
    graph.page.keyboard.press("Enter")
    assert graph.node("Arrow").count() == 1
    assert graph.page.locator("#details h2").inner_text() == "Arrow"
    graph.page.locator("#search").fill("#1")
    assert hits.all_inner_texts() == ["TechCorp\nCompany"]
    graph.page.locator("#search").fill("nothing has this")
    assert graph.page.locator("#hits").inner_text() == "No node in this file has that."
    graph.page.locator("#search").fill("job")
    assert hits.count() == 3


def test_a_search_finds_keys_first(browser: Browser, tmp_path: Path) -> None:
    with GraphDatabase(":memory:") as db:
        db.create_property_index("Job", "url", unique=True)
        ids = [db.create_node("Job", {"title": f"See /job/{n}", "url": f"/job/{10 - n}"}).id for n in range(10)]
        found = opened(browser, tmp_path, db.neighbourhood(ids).to_html())
    hits = found.page.locator("#hits button")
    found.page.locator("#search").fill("/job/3")
    # The key is that of the eighth job, and the title that of the fourth.
    assert hits.all_inner_texts() == ["See /job/7\n/job/3\nJob", "See /job/3\n/job/7\nJob"]
    found.page.locator("#search").fill("URL = /job/3")
    assert hits.all_inner_texts() == ["See /job/7\n/job/3\nJob"]
    found.page.locator("#search").fill("title=/job/3")
    assert hits.all_inner_texts() == ["See /job/3\n/job/7\nJob"]
    found.page.keyboard.press("Enter")
    assert found.page.locator("#details h2").inner_text() == "See /job/3"
    assert found.problems == []
    found.page.context.close()


def test_the_legend_takes_a_type_away_and_brings_it_back(graph: Opened) -> None:
    job = graph.page.locator("#legend button", has_text="Job")
    job.click()
    assert job.get_attribute("aria-pressed") == "false"
    assert graph.list_visible_nodes() == {"1"}
    assert graph.page.locator(".edge").count() == 1
    job.click()
    assert len(graph.list_visible_nodes()) == 4


def test_everything_can_be_done_with_the_keyboard(graph: Opened) -> None:
    focused = "() => document.activeElement.dataset?.id ?? document.activeElement.id"
    for _ in range(12):
        graph.page.keyboard.press("Tab")
        if graph.page.evaluate("() => document.activeElement.classList.contains('node')"):
            break
    assert graph.page.evaluate(focused) == "1"
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        graph.page.keyboard.press(key)
        if graph.page.evaluate(focused) != "1":
            break
    job = graph.page.evaluate(focused)
    assert job in graph.list_visible_nodes() - {"1"}
    graph.page.keyboard.press("Enter")
    assert graph.page.locator("#details").is_visible()
    assert graph.page.locator(f".node[data-id='{job}']").get_attribute("aria-pressed") == "true"
    assert len(graph.list_visible_nodes()) == 5
    assert graph.page.evaluate(focused) == job
    scale = graph.page.evaluate(SCALE)
    graph.page.keyboard.press("+")
    assert graph.page.evaluate(SCALE) > scale
    graph.page.keyboard.press("Escape")
    assert graph.page.locator("#details").is_hidden()
    assert graph.page.locator(".node:not([aria-label])").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_view_is_legible_in_both_color_schemes(browser: Browser, tmp_path: Path, scheme: str) -> None:
    found = opened(browser, tmp_path, large(28).to_html("Ring"), color_scheme=scheme)
    behind = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(behind) > 0.5) == (scheme == "light")
    found.page.locator("#search").fill("n1")
    found.page.locator(".node .body").first.click()
    weak = [text for text, color, back in found.page.evaluate(TEXTS) if contrast(color, back) < 4.5]
    assert weak == []
    fills = set(found.page.evaluate(DOTS))
    # Ten types have a colour of their own, and the others share the last.
    assert len(fills) == 10
    assert [fill for fill in fills if contrast(fill, behind) < 3] == []
    assert found.problems == []
    found.page.context.close()


@pytest.mark.parametrize("width", [320, 400, 735, 1200])
def test_nothing_scrolls_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    found = opened(browser, tmp_path, small().to_html("a" * 200, depth=1), viewport={"width": width, "height": 700})
    found.page.evaluate("() => document.querySelector('.node').focus()")
    found.page.keyboard.press("Enter")
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.page.evaluate("document.documentElement.scrollHeight") <= 700
    box = found.page.locator("#details").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert found.problems == []
    found.page.context.close()


def test_reduced_motion_is_respected(browser: Browser, tmp_path: Path) -> None:
    found = opened(browser, tmp_path, small().to_html(depth=1), reduced_motion="reduce")
    found.node("Job 0").locator(".body").click()
    places = found.page.evaluate(PLACES)
    found.page.wait_for_timeout(300)
    assert found.page.evaluate(PLACES) == places
    assert found.problems == []
    found.page.context.close()


def hub(count: int) -> Neighbourhood:
    """One company in the middle, jobs around it, and skills that many of them need."""
    with GraphDatabase(":memory:") as db, db.transaction():
        start = db.create_node("Company", {"name": "TechCorp"}).id
        skills = [db.create_node("Skill", {"name": f"Skill {number}"}).id for number in range(max(1, count // 12))]
        for number in range(count - 1 - len(skills)):
            job = db.create_node("Job", {"title": f"Job {number}"}).id
            db.create_edge(job, "POSTED_BY", start)
            db.create_edge(job, "NEEDS", skills[number * 7 % len(skills)])
        return db.neighbourhood(start, depth=3, limit=count)


# The boxes of the captions that are to be read, on the screen.
CAPTIONS = """() => [...document.querySelectorAll(".node:not(.mute) .caption")].map(one => {
  const {x, y, width, height} = one.getBoundingClientRect();
  return [one.textContent, x, y, width, height];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("count", [10, 150, 2_000])
def test_captions_survive_density(browser: Browser, tmp_path: Path, count: int, scheme: str) -> None:
    found = opened(browser, tmp_path, hub(count).to_html(), color_scheme=scheme, reduced_motion="reduce")
    page = found.page
    assert page.locator(".node").count() == count
    before = page.evaluate(CAPTIONS)
    # The start has its caption, of about the size of text, and in the colour of text.
    (start,) = (box for box in before if box[0] == "TechCorp")
    assert 9 < start[4] < 24
    behind = page.evaluate("getComputedStyle(document.body).backgroundColor")
    colors = page.evaluate("getComputedStyle(document.querySelector('.start .caption')).fill")
    assert contrast(colors, behind) >= 4.5
    assert (luminance(behind) > 0.5) == (scheme == "light")
    # No caption lies over another.
    for place, (text, x, y, width, height) in enumerate(before):
        for other, x2, y2, width2, height2 in before[place + 1 :]:
            apart = x + width <= x2 + 3 or x2 + width2 <= x + 3 or y + height <= y2 + 3 or y2 + height2 <= y + 3
            assert apart, (text, other)
    assert len(before) == count if count == 10 else len(before) > 20
    # Closer in, more of them have a place, and they are as large as before.
    page.evaluate("() => { for (let turn = 0; turn < 8; turn += 1) zoom(1.5); }")
    after = page.evaluate(CAPTIONS)
    assert len(after) > len(before) or len(before) == count
    assert max(box[4] for box in after) < 2 * start[4]
    assert found.problems == []
    page.context.close()


def test_a_large_graph_is_drawn_apart(browser: Browser, tmp_path: Path) -> None:
    found = opened(browser, tmp_path, large(600).to_html())
    places = list(found.page.evaluate(PLACES).values())
    assert len(places) == 600
    close = sum(
        abs(x - a) < 12 and abs(y - b) < 12 for place, (x, y) in enumerate(places) for a, b in places[place + 1 :]
    )
    assert close <= 6
    assert found.problems == []
    found.page.context.close()


def test_an_empty_neighbourhood_is_a_page_too(browser: Browser, tmp_path: Path) -> None:
    with GraphDatabase(":memory:") as db:
        found = opened(browser, tmp_path, db.neighbourhood([]).to_html())
    assert found.page.locator("#told").inner_text() == "0 nodes and 0 edges are shown."
    assert found.problems == []
    found.page.context.close()


def test_a_notebook_shows_it_in_a_frame_of_its_own(browser: Browser, tmp_path: Path) -> None:
    html = (
        f"<!DOCTYPE html><html><head><link rel='icon' href='data:,'></head><body>{small()._repr_html_()}</body></html>"
    )
    file = tmp_path / "graph.html"
    file.write_text(html, "utf-8")
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri(), wait_until="networkidle")
    frame = page.frame_locator("iframe")
    frame.locator(".node").first.wait_for()
    assert frame.locator(".node").count() == 7
    assert problems == []
    page.close()


def test_no_script_that_is_put_into_the_page_runs(browser: Browser, tmp_path: Path) -> None:
    html = small().to_html().replace("</body>", "<script>document.title = 'broken'</script></body>")
    found = opened(browser, tmp_path, html)
    assert found.page.title() == "Graph"
    assert any("Content Security Policy" in problem for problem in found.problems)
    found.page.context.close()
