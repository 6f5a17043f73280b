"""The example runs, says what it should, and may be run again."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "orders.py"


def run(lake: Path) -> str:
    """Run it the way a reader would, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(lake)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_the_example_tells_its_story_and_may_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path / "lake")
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), str(tmp_path / "lake")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    # File names are unique, everything else is the same.
    assert re.sub("part-[0-9a-f]+", "part", first) == re.sub("part-[0-9a-f]+", "part", capsys.readouterr().out)
    for line in (
        "rows: 3; files: 1 new",
        "rows: 2 inserted, 1 updated, 0 deleted, 5 total; files: 1 rewritten, 1 new",
        "rows: 0 inserted, 3 updated, 0 deleted, 5 total; files: 2 rewritten",
        "the same 5 rows as before: True",
        "PartitionMoveError: Partition columns cannot change for existing keys",
        "DuplicateKeyError: 1 key",
        "rows: 0 inserted, 3 updated, 2 deleted, 3 total; files: 2 rewritten",
        "2025-01-07  order 5  sent  3.00",
    ):
        assert line in first
    assert os.listdir(tmp_path) == ["lake"]


def test_without_a_folder_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "What is left in" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []
