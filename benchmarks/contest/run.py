"""Contenders one after the other on the same feed, each in its own process, and the comparison of their lakes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contest import CONTENDERS, MASTER
from benchmarks.digest import Digest
from benchmarks.environments import ROOT, Failed, python_of, variables
from benchmarks.watch import Peak, watch_processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.contest.feed import Feed

MB = 1_000_000
Contents = dict[str, Digest]


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of a contender, and what its lake holds; `processor` are the seconds of all its processes by day."""

    start: float
    days: tuple[float, ...]
    processor: tuple[float, ...]
    peak: Peak
    contents: Contents


def hold_contest(root: Path, feed: Feed, contenders: Sequence[str]) -> dict[str, Run]:
    """Run the contenders and print their figures; a wrong result ends the benchmark."""
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, load average {load:.1f} at the start; {MASTER}; "
        f"{len(feed.days)} days of {next(iter(feed.days.values())).rows:,} rows, {feed.size / MB:,.0f} MB\n",
        flush=True,
    )
    runs = {contender: run_contender(root, feed, contender) for contender in contenders}
    print("\n".join(report_lines(list(feed.days), runs)), flush=True)
    for contender, run in runs.items():
        check_counts(contender, run.contents, feed.expected_rows)
    compare_contents({contender: run.contents for contender, run in runs.items()})
    print("\nEvery lake has the expected number of rows, and the same values.", flush=True)
    return runs


def run_contender(root: Path, feed: Feed, contender: str) -> Run:
    """Run all days in one process, then read the lake in another one."""
    shutil.rmtree(root / contender, ignore_errors=True)
    # Otherwise a commit that flushes its files would wait for files written before.
    os.sync()
    task = {"contender": contender, "folder": str(root / contender), "feed": str(feed.folder), "days": list(feed.days)}
    figures, peak = run_process({**task, "step": "run"}, root / f"{contender}.log")
    found, _ = run_process({**task, "step": "read"}, root / f"{contender}-read.log")
    contents = {name: Digest(**fields) for name, fields in found.items()}
    return Run(figures["start"], tuple(figures["days"]), tuple(figures["processor"]), peak, contents)


def run_process(task: dict[str, Any], log: Path) -> tuple[dict[str, Any], Peak]:
    """Run a step of a contender; its output goes to a log, whose last line is the result."""
    environment = CONTENDERS[task["contender"]].environment
    command = [python_of(environment), "-m", "benchmarks.contest.worker", json.dumps(task)]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=ROOT, env=variables(environment), stdout=output, stderr=output) as process,
        watch_processes(process.pid) as peak,
    ):
        status = process.wait()
    if status:
        raise Failed(f"{task['contender']} ended with status {status}, see {log}")
    result: dict[str, Any] = json.loads(log.read_text("utf-8").splitlines()[-1])
    return result, peak


def report_lines(days: Sequence[str], runs: dict[str, Run]) -> list[str]:
    """Write a table with a column for each contender and, of two, the ratio of the first to the second."""
    named = [*days, f"{days[-1]} again"]
    rows: dict[str, list[float]] = {"start of Spark, s": [run.start for run in runs.values()]}
    rows |= {f"{day}, s": [run.days[place] for run in runs.values()] for place, day in enumerate(named)}
    rows["all days, s"] = [sum(run.days) for run in runs.values()]
    rows["processor, all days, s"] = [sum(run.processor) for run in runs.values()]
    rows["peak of the JVM, MB"] = [run.peak.java / MB for run in runs.values()]
    rows["peak of Python, MB"] = [run.peak.python / MB for run in runs.values()]
    rows["written, MB"] = [run.peak.written / MB for run in runs.values()]
    head = ["", *(CONTENDERS[contender].name for contender in runs), *(["ratio"] if len(runs) == 2 else [])]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, figures in rows.items():
        cells = [f"{figure:.1f}" if name.endswith(", s") else f"{figure:,.0f}" for figure in figures]
        ratio = [f"{figures[0] / figures[1]:.2f}"] if len(figures) == 2 else []
        lines.append(f"| {' | '.join([name, *cells, *ratio])} |")
    return lines


def check_counts(contender: str, contents: Contents, expected: dict[str, int]) -> None:
    """Compare the rows of each table, in Parquet and in SQLite, with those that the feed must give."""
    for name, found in contents.items():
        rows = expected[name.removesuffix(", SQLite")]
        assert found.rows == rows, f"{contender}: {name} has {found.rows:,} rows, not {rows:,}"


def compare_contents(contents: dict[str, Contents]) -> None:
    """Compare every table of all contenders, and the graph in SQLite with the graph in tables."""
    wanted: dict[str, tuple[str, Digest]] = {}
    for contender, tables in contents.items():
        for name, found in tables.items():
            other, first = wanted.setdefault(name.removesuffix(", SQLite"), (f"{contender}, {name}", found))
            assert found == first, f"{contender}, {name} and {other} have different values"
