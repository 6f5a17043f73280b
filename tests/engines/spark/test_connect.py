"""Spark Connect: the same tests, in a process whose session is a client's (X2)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[3]
CORE = "truth_table or empties_the_target or 007 or settings or frame_is_merged or edges_are_between or with_the_reason"


# X2
def test_the_core_scenarios_run_on_connect() -> None:
    files = ["tests/engines/test_strategies.py", "tests/engines/test_batches.py"]
    files += ["tests/engines/spark/test_source.py", "tests/graph/spark/test_parquet_graph.py"]
    files += ["tests/pipeline/test_run.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--engine", "spark", *files, "-k", CORE]
    environment = {**os.environ, "SPARK_TEST_REMOTE": "local[2]"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
