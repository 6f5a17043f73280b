"""Executors that are processes of their own, and that die."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.engines.spark.cluster import POSTINGS, ROWS, SOURCE
from tests.pipeline.postings import load_demo, read_datasets

from merganser.demo.feed import write_day
from merganser.pipeline import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[3]


# X1, X3, X4, X9
def test_executors_of_their_own_that_die(tmp_path: Path, spark: Any) -> None:
    # One test, so that no two processes start the cluster.
    command = [sys.executable, "-m", "tests.engines.spark.cluster", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    # Executors without merganser were refused before anything was written; without filelock, all else works.
    message, *left = outcome["lacking"]
    assert "has no package 'merganser'. Call merganser.engines.spark.ship(spark)" in message
    assert left == ["bare"]
    # An executor was killed during the rewrite.
    matched, new = ROWS // 100, 10
    assert outcome["rewrite"] == {
        "killed": True,
        "counts": [new, matched, ROWS + new],
        "files": 2,
        "right": matched + new,
        "kept": ROWS + new,
        "left": [],
    }
    # A random source was evaluated once.
    assert outcome["random"] == {
        "killed": True,
        "counts": [SOURCE, 2, SOURCE + 2],
        "every row once": True,
        "one evaluation": True,
    }
    # A pipeline leaves there what it leaves in this process.
    write_day(str(tmp_path / "here/feed"), date(2026, 1, 5), POSTINGS)
    here = run(load_demo(tmp_path / "here"), spark=spark, run_id="day")
    assert outcome["pipeline"] == [[step.rows_in, step.rows_merged, step.inserted] for step in here.steps]
    assert read_datasets(tmp_path / "postings") == read_datasets(tmp_path / "here")
    # The package was shipped.
    (found,) = outcome["package"]
    assert "merganser.zip" in found["path"]
