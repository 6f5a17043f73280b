"""What docs/graph.md shows of the command line is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from merganser.cli.graph import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "graph.md"


@pytest.mark.slow
def test_every_command_on_the_page_prints_what_stands_there(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    command = tools / "merganser"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m merganser.cli "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    # One shell for the whole page, as one reader has.
    lines = re.findall(r"^\$ (.*(?:\n> .*)*)", "".join(blocks), re.MULTILINE)
    script = "\n".join(
        f"printf '$ %s\\n' {shlex.quote(line)}\n{line.replace(chr(10) + '> ', chr(10))}" for line in lines
    )
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],  # noqa: S607  the reader's shell
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert _told(done.stdout) == _told("".join(blocks))


def _told(text: str) -> str:
    """Leave out the size of a file, which is SQLite's business."""
    return re.sub(r"[\d,]+ bytes", "… bytes", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_the_page(name: str) -> None:
    assert f"merganser graph {name}" in PAGE.read_text(encoding="utf-8")
