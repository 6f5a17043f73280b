"""The documentation site builds without a warning, has every public name, and loads nothing from the network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import merganser
from merganser import graph, pipeline

ROOT = Path(__file__).parents[1]
# One process builds the site for all of them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("site")]
FILE_LEVEL = (
    "ConservativeMembershipChecker",
    "IncrementalFileManager",
    "IncrementalRewritePlan",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "PathValidator",
    "TableLike",
    "compute_merge_stats",
    "confirm_affected_files",
    "list_dataset_files",
    "normalize_keys",
    "parse_hive_partition_path",
    "plan_incremental_rewrite",
    "validate_keys_and_schema",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
)
# What a browser fetches by itself; where a link leads is the reader's own choice.
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("use", "href")}


def build(site: Path, configuration: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-W", "error", "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--config-file", str(configuration), "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("INFO ")] == []
    return folder


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# One\n\n[none](none.md) [nowhere](#nowhere)\n", "utf-8")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert "none.md" in done.stderr
    assert "nowhere" in done.stderr


class Page(HTMLParser):
    """What a page names, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.fetched += [value or "" for name, value in attrs if (tag, name) in FETCHED]
        if tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.fetched.append(given.get("href") or "")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = {anchor for page in site.glob("api*.html") for anchor in Page(page.read_text("utf-8")).anchors}
    for module in (merganser, graph, pipeline):
        for name in dir(merganser) if module is merganser else module.__all__:
            # What `merganser` has as well is described there.
            place = merganser if name in dir(merganser) else module
            assert f"{place.__name__}.{name}" in anchors or name == "__version__", name
    # Of the core, what is meant to be called from outside.
    assert {f"merganser.core.{name}" for name in FILE_LEVEL} - anchors == set()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in index or page.stem == "index"


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        outside = [url for url in Page(page.read_text("utf-8")).fetched if "//" in url]
        assert outside == [], page.name
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", sheet.read_text("utf-8")) == [], sheet.name
