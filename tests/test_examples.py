"""Every example runs, prints what it should, and may be run again."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import get_spark_session

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "daily_upsert.py": (
        "rows: 3; files: 1 new",
        "rows: 2 inserted, 1 updated, 0 deleted, 5 total; files: 1 rewritten, 1 new",
        "rows: 0 inserted, 3 updated, 0 deleted, 5 total; files: 2 rewritten",
        "the same 5 rows as before: True",
        "PartitionMoveError: Partition columns cannot change for existing keys",
        "DuplicateKeyError: The source has 1 duplicate key",
        "rows: 0 inserted, 3 updated, 2 deleted, 3 total; files: 2 rewritten",
        "2025-01-07  order 5  sent  3.00",
    ),
    "change_feed.py": (
        "The snapshot: 1='Alba' 2='Bona' 3='Cera'",
        "1 inserted, 1 updated, 1 deleted, 0 late\n   1='Alba' 2='Bona & Co' 4='Dora'",
        "1 inserted, 1 updated, 1 deleted, 0 late, merged before",
        "0 inserted, 1 updated, 0 deleted, 1 late\n   1='Alba Inc' 2='Bona & Co' 4='Dora'",
    ),
    "job_graph.py": (
        "2026-03-02: 5 new; 2 jobs, 1 companies",
        "2026-03-03: 3 new; 3 jobs, 2 companies",
        "2026-03-03: 0 new; 3 jobs, 2 companies",
        "Lead designer, first seen 2026-03-02, last seen 2026-03-03",
        "Who shares a company with /job/1:\n  /job/2\n",
    ),
    "flight_graph.py": (
        "2026-03-02 AL: 2 new, 0 changed, 0 cancelled",
        "2026-03-02 NO: 1 new, 0 changed, 0 cancelled",
        "2026-03-03 AL: 1 new, 1 changed, 1 cancelled",
        "Flights by carrier:\n  AL: 2\n  NO: 1\n",
        "Carriers at OSL:\n  Alpine\n  Northern\n",
        "From ZRH to TOS:\n  AL to OSL, then NO\n",
    ),
    "package_graph.py": (
        "again, packages: 0 new, 0 changed, 0 gone",
        "again, requirements: 0 new, 0 changed, 0 gone",
        "What merganser requires, directly or not:\n  duckdb filelock fsspec numpy pyarrow",
    ),
}
# What differs when an example meets the graph of an earlier run.
AGAIN = {
    "job_graph.py": ("2026-03-02: 0 new; 3 jobs, 2 companies", "2026-03-03: 0 new; 3 jobs, 2 companies"),
    "flight_graph.py": ("2026-03-02 AL: 1 new, 1 changed, 1 cancelled", "2026-03-02 NO: 0 new, 0 changed, 0 cancelled"),
}
ON_SPARK = {
    "spark_stream.py": (
        "  a 1.0\n  b 2.5\n  c 3.0\n",
        "  new commits: 0\n",
        "  a 1.5\n  b 2.5\n  c 3.0\n",
        "batch ids: readings:0 readings:1 readings:2",
    ),
}


def test_every_example_is_tested_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == {*EXPECTED, *ON_SPARK}


def run(example: Path, lake: Path) -> str:
    """Run it as a reader would, in its own process."""
    done = subprocess.run(
        [sys.executable, str(example), str(lake)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_its_steps_and_may_be_run_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(EXAMPLES / name, tmp_path / "lake")
    for line in EXPECTED[name]:
        assert line in first
    monkeypatch.setattr("sys.argv", [name, str(tmp_path / "lake")])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    again = capsys.readouterr().out
    if name not in AGAIN:
        # File names are unique, everything else is the same.
        assert re.sub("part-[0-9a-f]+", "part", first) == re.sub("part-[0-9a-f]+", "part", again)
    for line in AGAIN.get(name, ()):
        assert line in again
    assert os.listdir(tmp_path) == ["lake"]


@pytest.mark.parametrize("name", EXPECTED)
def test_without_a_folder_nothing_is_left_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert EXPECTED[name][0] in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ON_SPARK)
def test_an_example_on_spark_prints_its_steps_and_may_be_run_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main: Any = runpy.run_path(str(EXAMPLES / name))["main"]
    for _ in range(2):
        main(str(tmp_path), get_spark_session())
        output = capsys.readouterr().out
        for line in ON_SPARK[name]:
            assert line in output
