"""What docs/command-line.md shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


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
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    # What was printed in between does not count as the last command.
    script = "last=0\n" + "".join(
        f"printf '$ %s\\n' {_quoted(line)}; (exit $last)\n{line}\nlast=$?\n" for line in lines
    )
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],  # noqa: S607
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert _told(done.stdout) == _told("".join(blocks))


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"


def _told(text: str) -> str:
    """Leave out what differs from run to run, times and the names of files, and how far a merge has come."""
    text = re.sub(r"^\d\d:\d\d:\d\d .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"part-[0-9a-f]{32}", "part-…", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "… UTC", text)
