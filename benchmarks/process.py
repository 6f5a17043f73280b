"""One step of a contender, in its own process and environment."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmarks.environments import ROOT, Failed, python_of, reason, variables
from benchmarks.task import OUT_OF_MEMORY, OUT_OF_TIME, Measured

if TYPE_CHECKING:
    from benchmarks.contenders import Contender
    from benchmarks.task import Task

# The process itself limits the time of the merge; creating a table and reading it back may take longer.
PATIENCE = 10


def in_process(contender: Contender, task: Task) -> Measured:
    """Run a step until it ends or its time is up."""
    command = [python_of(contender.environment), "-m", "benchmarks.worker", task.to_json()]
    over = f"over {task.limit:.0f}"
    limit = task.limit + 30 if task.step == "merge" else PATIENCE * task.limit
    environment = variables(contender.environment)
    # Otherwise a merge that flushes its files would wait for their copies to be written.
    os.sync()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise Failed(over) from None
    if done.returncode == OUT_OF_TIME:
        raise Failed(over)
    if done.returncode == OUT_OF_MEMORY:
        raise Failed("more than its share of memory")
    # Some libraries end the process with an error after the figures were printed.
    figures = parse_measured(done.stdout)
    if figures is None:
        raise Failed(reason(done.stderr).replace(task.place, ""))
    return figures


def parse_measured(output: str) -> Measured | None:
    """Read the figures, which are the last line; a step that fails has none."""
    with suppress(IndexError, TypeError, ValueError):
        return Measured(**json.loads(output.splitlines()[-1]))
    return None
