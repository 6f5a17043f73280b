"""Every block of the README and the docs is true: Python runs, shell commands name real targets and files."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from tests.support import spark_session

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")})
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def blocks(*languages: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        parts = BLOCK.findall(page.read_text("utf-8"))
        chosen = [text for language, text in parts if language in languages]
        found += [(f"{page.name}-{number}", text) for number, text in enumerate(chosen)]
    return found


def pages(language: str) -> list[Path]:
    return [page for page in PAGES if any(found == language for found, _ in BLOCK.findall(page.read_text("utf-8")))]


SPARK = [ROOT / "docs" / name for name in ("pipeline.md", "spark.md")]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.spark] * (page in SPARK)) for page in pages("python")],
    ids=lambda page: page.name,
)
def test_python_blocks_run_and_print_what_stands_below(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if page in SPARK:
        # The session that the page gets.
        spark_session()
        (tmp_path / "arrivals").mkdir()
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for language, text in BLOCK.findall(page.read_text("utf-8")):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                # The page is this project's own, and running it is the point.
                exec(compile(text, page.name, "exec"), namespace)  # noqa: S102
            printed = out.getvalue()
        elif language in {"text", "output"}:
            assert printed.strip() == text.strip()


@pytest.mark.parametrize(("name", "text"), blocks("sh", "console", "bash"), ids=lambda item: item[:24])
def test_shell_blocks_name_real_targets_and_files(name: str, text: str) -> None:
    lines = text.replace("\\\n> ", "").splitlines()
    # Where commands have a prompt, the other lines are what they print.
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    commands = prompted or [line for line in lines if line.strip()]
    for command in commands:
        words = shlex.split(command, comments=True)
        if not words:
            continue
        if words[0] == "make":
            named = [word for word in words[1:] if "=" not in word]
            assert set(named) <= TARGETS, (name, command)
        for word in words:
            if "/" in word and not word.startswith((".venv", "http", "-")) and "=" not in word:
                assert (ROOT / word).exists(), (name, command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for goal in LINK.findall(page.read_text("utf-8")):
        if "://" not in goal:
            assert (page.parent / goal).exists(), goal


def test_the_readme_names_what_a_reader_needs() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for needed in ("pip install merganser", "make test", "make demo", "docs/behaviours.md", "CONTRIBUTING.md"):
        assert needed in text
