"""What docs/maintenance.md shows of the command line is what happens; its Python is run with all other pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_docs import _quoted, _told

PAGE = Path(__file__).parents[2] / "docs" / "maintenance.md"


@pytest.mark.slow
def test_every_command_on_the_page_prints_what_stands_there(tmp_path: Path) -> None:
    command = tmp_path / "merganser"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m merganser.cli "$@"\n')
    command.chmod(0o755)
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    script = "".join(f"printf '$ %s\\n' {_quoted(line)}\n{line}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],  # noqa: S607  as a reader has it
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert _told(done.stdout) == _told("".join(blocks))
