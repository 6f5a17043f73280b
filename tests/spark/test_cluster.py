"""Executors that are processes of their own, and that die (X3, X4)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.cluster import ROWS, SOURCE

# The first test waits for the whole run.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]


# In one process: another would start a cluster of its own.
pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What came of the merges."""
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-m", "tests.spark.cluster", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


# X4
def test_an_executor_killed_during_the_rewrite(outcome: Any) -> None:
    matched, new = ROWS // 100, 10
    assert outcome["rewrite"] == {
        "killed": True,
        "counts": [new, matched, ROWS + new],
        "files": 2,
        "right": matched + new,
        "kept": ROWS + new,
        "left": [],
    }


# X3
def test_a_random_source_is_evaluated_once(outcome: Any) -> None:
    assert outcome["random"] == {
        "killed": True,
        "counts": [SOURCE, 2, SOURCE + 2],
        "every row once": True,
        "one evaluation": True,
    }


# X1
def test_the_package_is_shipped(outcome: Any) -> None:
    (found,) = outcome["package"]
    assert "merganser.zip" in found["path"]
