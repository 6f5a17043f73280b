"""Every block of README, CONTRIBUTING and the docs runs, and prints the output shown below it.

The blocks of a page run in its order, in one folder and one Python process, as a reader would run them:

- `python` is executed; a `text` block right below is what it prints.
- `console` is run by bash: lines that begin with `$ ` are commands, which go on with `> ` after a backslash, the others
  what they print.
- `toml` is the configuration of a pipeline, and is loaded.
- `sh` sets something up, as `make` and `pip` do. It is not run, but what it names must exist.

In output, `…` matches anything in that line. Other blocks are listed in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support import get_spark_session

from merganser.cli.app import COMMANDS
from merganser.pipeline import load

ROOT = Path(__file__).parents[1]
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")})
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# Blocks that are not code, by page and first line.
NOT_RUN = {
    ("how-it-works.md", "lake/"): "a drawing of what lies on disk",
}


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    language: str
    text: str

    @property
    def name(self) -> tuple[str, str]:
        return self.page.name, self.text.partition("\n")[0]


def blocks_of(page: Path) -> list[Block]:
    return [Block(page, language, text) for language, text in BLOCK.findall(page.read_text("utf-8"))]


BLOCKS = {page: blocks_of(page) for page in PAGES}


def on_spark(page: Path) -> bool:
    return any(block.language == "python" and "pyspark" in block.text for block in BLOCKS[page])


def cases() -> list[object]:
    """Return the pages that have something to run."""
    found: list[object] = []
    for page, blocks in BLOCKS.items():
        languages = {block.language for block in blocks}
        if languages & {"python", "console", "toml"}:
            marks = [pytest.mark.spark] * on_spark(page) + [pytest.mark.slow] * ("console" in languages)
            found.append(pytest.param(page, id=page.name, marks=marks))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", cases())
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Each page has its own memory filesystem.
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    if on_spark(page):
        # The session that the page gets.
        get_spark_session()
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = None
    for block in BLOCKS[page]:
        if block.name in NOT_RUN:
            printed = None
        elif block.language == "python":
            printed = run_python(block, namespace)
        elif block.language == "console":
            expect(run_console(block, tmp_path), block.text)
        elif block.language == "toml":
            load_pipeline(block)
        elif block.language == "text":
            assert printed is not None, f"{block.name} stands below no Python"
            expect(printed, block.text)
            printed = None


def run_python(block: Block, namespace: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        # The page is this project's own, and running it is the point.
        exec(compile(block.text, block.page.name, "exec"), namespace)  # noqa: S102
    return out.getvalue()


def run_console(block: Block, folder: Path) -> str:
    """Run the commands of a block in one shell, with the command `merganser` of this Python."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    ours = tools / "merganser"
    ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m merganser.cli "$@"\n', "utf-8")
    ours.chmod(0o755)
    lines = re.findall(r"^\$ (.*(?:\n> .*)*)", block.text, re.MULTILINE)
    commands = [line.replace("\n> ", "\n") for line in lines]
    # What a command has left in `$?` stays there for the next.
    shown = [f"{{ left=$?; echo {shlex.quote(f'$ {line}')}; (exit $left); }}" for line in lines]
    script = "\n".join(f"{telling}\n{command}" for telling, command in zip(shown, commands, strict=True))
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],  # noqa: S607 - as a reader has it on the path
        cwd=folder,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    # Progress is printed now and then, with the time.
    return re.sub(r"^\d\d:\d\d:\d\d .*\n", "", done.stdout, flags=re.MULTILINE)


def load_pipeline(block: Block) -> None:
    Path("pipeline.toml").write_text(block.text, "utf-8")
    names = tomllib.loads(block.text)["pipeline"].get("parameters", [])
    assert load("pipeline.toml", dict.fromkeys(names, "2026-01-05")).name


def expect(printed: str, shown: str) -> None:
    """Compare line by line what was printed with what a page shows."""
    said, lines = printed.strip("\n").splitlines(), shown.strip("\n").splitlines()
    wanted = [".+".join(re.escape(part) for part in line.rstrip().split("…")) for line in lines]
    alike = len(said) == len(wanted) and all(
        re.fullmatch(pattern, line.rstrip()) for pattern, line in zip(wanted, said, strict=True)
    )
    assert alike, f"\n{printed}\nis not what the page shows:\n\n{shown}"


def test_every_block_is_of_a_language_that_is_checked() -> None:
    every = [block for blocks in BLOCKS.values() for block in blocks]
    known = {"python", "console", "toml", "sh", "text"}
    assert [block.name for block in every if block.language not in known] == []
    assert set(NOT_RUN) <= {block.name for block in every}
    # An indented block would not be run.
    for page in PAGES:
        rest = BLOCK.sub("", page.read_text("utf-8"))
        assert re.findall(r"\n\n((?: {4}|\t)\S.*)", rest) == [], page.name


SH = [
    pytest.param(block, id="-".join(block.name))
    for blocks in BLOCKS.values()
    for block in blocks
    if block.language == "sh"
]


@pytest.mark.parametrize("block", SH)
def test_setup_blocks_name_existing_targets_and_packages(block: Block) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        known = WORDS.get(" ".join(words[:2])) or WORDS.get(words[0])
        assert known is not None, f"{line!r} is neither run nor checked: make it a console block"
        assert known(words), line


def is_made(words: list[str]) -> bool:
    return {word for word in words[1:] if "=" not in word} <= TARGETS


def is_installed(words: list[str]) -> bool:
    names = [re.fullmatch(r"(\w+)(?:\[([\w,]+)\])?", word) for word in words[2:]]
    return all(
        found
        and found[1] == PROJECT["name"]
        and (not found[2] or set(found[2].split(",")) <= set(PROJECT["optional-dependencies"]))
        for found in names
    )


def is_command(words: list[str]) -> bool:
    return words[1] in COMMANDS


def is_module(words: list[str]) -> bool:
    return find_spec(words[2]) is not None and all((ROOT / word).exists() for word in words[3:] if "/" in word)


def is_file(words: list[str]) -> bool:
    return (ROOT / words[1]).is_file()


# What a line of `sh` may begin with, and what has to hold of it.
WORDS = {
    "make": is_made,
    "pip install": is_installed,
    "merganser": is_command,
    "python -m": is_module,
    ".venv/bin/python -m": is_module,
    "bash": is_file,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for goal in LINK.findall(page.read_text("utf-8")):
        if "://" not in goal:
            assert (page.parent / goal).exists(), goal


def test_the_readme_names_what_a_reader_needs() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for needed in ("pip install merganser", "make test", "make demo", "docs/behaviours.md", "CONTRIBUTING.md"):
        assert needed in text
