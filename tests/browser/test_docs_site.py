"""The documentation site in a browser: every page opens from disk and by a server, and nothing leaves the machine."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tests.test_site import ROOT, build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
NARROW, WIDE = 400, 1200
# Pictures that were not loaded.
BROKEN = "() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


class Quiet(SimpleHTTPRequestHandler):
    """A server that does not log every request."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    """The address of the site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture(params=["file", "http"])
def home(request: pytest.FixtureRequest, site: Path) -> str:
    return site.as_uri() if request.param == "file" else str(request.getfixturevalue("server"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_errors_and_requests_nothing_else(browser: Browser, home: str, name: str) -> None:
    context = browser.new_context(viewport={"width": WIDE, "height": 800})
    page = context.new_page()
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: problems.append(f"{request.url}: {request.failure}"))
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(f"{home}/{name}.html", wait_until="networkidle")
    assert page.locator("h1").first.is_visible()
    assert page.evaluate(BROKEN) == []
    assert problems == []
    assert [url for url in asked if not url.startswith((home, "data:", "blob:"))] == []
    context.close()


def test_the_search_finds_a_page(browser: Browser, server: str) -> None:
    page = browser.new_page()
    page.goto(f"{server}/index.html", wait_until="networkidle")
    field = page.locator("input.md-search__input").first
    field.click()
    field.press_sequentially("PartitionMoveError")
    found = page.locator(".md-search-result__item").first
    found.wait_for(timeout=20_000)
    assert "Errors" in found.inner_text()
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_nothing_but_tables_and_code_scrolls_sideways(browser: Browser, server: str, name: str) -> None:
    context = browser.new_context(viewport={"width": NARROW, "height": 800})
    page = context.new_page()
    page.goto(f"{server}/{name}.html", wait_until="networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    context.close()
