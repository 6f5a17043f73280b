"""Run one step of a contender in this process: `python -m benchmarks.worker TASK`, in the contender's environment.

Figures are the last line on standard output, as JSON. A step that takes too long or too much memory ends the process
with its own exit code.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contenders import ALTERING, CONTENDERS
from benchmarks.digest import digest
from benchmarks.task import CHANGED_TYPES, OUT_OF_MEMORY, OUT_OF_TIME, Measured, Task

if TYPE_CHECKING:
    from benchmarks.contenders import Table

# The share of the machine's memory that one contender may use.
MEMORY_SHARE = 0.6


def main() -> None:
    """Run the task in the argument."""
    print(json.dumps(asdict(run_step(Task.from_json(sys.argv[1])))), flush=True)


def run_step(task: Task) -> Measured:
    """Run a step; only a measured one has figures."""
    contender = (CONTENDERS | ALTERING)[task.contender]
    table = contender.open()
    if task.step == "measure":
        return measure(task, table, {package: version(package) for package in contender.packages})
    if task.step == "prepare":
        table.prepare(_files(task.files), Path(task.place))
    else:
        table.merge(pq.read_table(task.batch), Path(task.place), task.merge)
    return Measured()


def measure(task: Task, table: Table, versions: dict[str, str]) -> Measured:
    """Take the time of an action, then of reading all rows."""
    batch = pq.read_table(task.batch)
    place = Path(task.place)
    _warm_up(task, table)
    seconds = _time_action(task, table, batch, place)
    peak = peak_memory()
    if task.action == "plan":
        return Measured(seconds, peak, versions=versions)
    start = time.perf_counter()
    rows, schema = 0, pa.schema([])
    for part in table.read(place):
        rows += part.num_rows
        schema = part.schema
    scanned = time.perf_counter() - start
    total = digest(table.read(place)).total if task.compare else None
    types = {field.name: str(field.type) for field in schema}
    return Measured(seconds, peak, scanned, rows, total, types, versions)


def peak_memory() -> float:
    """Read the peak memory of this process and its children in MB; getrusage may report the parent's."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return sum(_memory(pid, "VmHWM") for pid in ["self", *children])


def _warm_up(task: Task, table: Table) -> None:
    """Do the same with a few rows: a job starts its engine once and merges many times, so the first is not measured."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "warm")
        table.prepare(_files(task.warm_files), place)
        _act(task, table, pq.read_table(task.warm_batch), place)


def _time_action(task: Task, table: Table, batch: pa.Table, place: Path) -> float:
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(task.limit, finished), daemon=True)
    watch.start()
    start = time.perf_counter()
    _act(task, table, batch, place)
    seconds = time.perf_counter() - start
    finished.set()
    watch.join()
    return seconds


def _act(task: Task, table: Any, batch: pa.Table, place: Path) -> None:
    action = getattr(table, task.action)
    if task.action in CHANGED_TYPES:
        action(place)
    else:
        action(batch, place, task.merge)


def _watch(limit: float, finished: threading.Event) -> None:
    """End this process when it exceeds its time or memory."""
    most = MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    end = time.monotonic() + limit
    while not finished.wait(0.1):
        if time.monotonic() > end:
            os._exit(OUT_OF_TIME)
        if _memory("self", "VmRSS") > most:
            os._exit(OUT_OF_MEMORY)


def _memory(pid: str, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(f"{name}:")), 0.0)


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.parquet"))


if __name__ == "__main__":
    main()
