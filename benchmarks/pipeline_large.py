"""One large day of postings into a Parquet graph, twice: `python -m benchmarks.pipeline FOLDER --large [--rows N]`.

A day of postings is generated in FOLDER, unless it exists. The pipeline of `benchmarks/postings.toml` reads it from
`{feed}/{date}` and writes to `{lake}`, on two cores with a driver of 2 GiB, first into an empty folder and then once
more. The second run must not change any data file: same path, inode, size and modification time.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq

from benchmarks.watch import Peak, watch_processes
from merganser.demo.feed import DayFacts, write_day

ROWS = 10_000_000
DAY = date(2026, 1, 1)
PIPELINE = Path(__file__).with_name("postings.toml")
# The expected number of rows in each dataset of the pipeline, by the name of a fact.
EXPECTED = {
    "graph/nodes/type=Job": "urls_so_far",
    "graph/nodes/type=Company": "companies_so_far",
    "graph/edges/type=POSTED_BY": "urls_so_far",
}
HEAD = (
    *("run", "seconds", "rows/s", "peak MB", "of it the JVM", "of it Python", "of it Python workers"),
    *("MB written", "written / input", "data files", "MB of data"),
)
MB = 1_000_000
# Inode, size and time of change of each file, by path.
State: TypeAlias = "dict[str, tuple[int, int, int]]"


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of a run, and the files that it left."""

    seconds: float
    peak: Peak
    files: State


def feed(folder: Path, rows: int) -> DayFacts:
    """Generate the day once; later calls reuse it."""
    done = folder / f"{DAY}-{rows}.facts"
    if done.exists():
        return DayFacts(**json.loads(done.read_text("utf-8")))
    for stale in folder.glob(f"{DAY}-*.facts"):
        stale.unlink()
    begin = time.perf_counter()
    facts = write_day(str(folder), DAY, rows)
    seconds = time.perf_counter() - begin
    print(f"generated {rows:,} rows in {seconds:.0f} s, {measure_feed(folder) / MB:,.0f} MB", flush=True)
    done.write_text(json.dumps(asdict(facts)), "utf-8")
    return facts


def measure_feed(folder: Path) -> int:
    """Return the bytes of the day's files."""
    return sum(file.stat().st_size for file in (folder / str(DAY)).iterdir())


def run(name: str, folder: Path, pipeline: Path) -> Run:
    """Run the pipeline in its own process."""
    settings = {"date": str(DAY), "feed": str(folder), "lake": str(folder / "lake")}
    command = [sys.executable, "-m", "merganser.cli", "run", str(pipeline)]
    for key, value in settings.items():
        command += ["--param", f"{key}={value}"]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=2g"]
    command += ["--report", str(folder / "reports"), "--run-id", name]
    log = folder / f"{name}.log"
    begin = time.perf_counter()
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as process,
        watch_processes(process.pid) as peak,
    ):
        status = process.wait()
    seconds = time.perf_counter() - begin
    assert status == 0, f"the {name} run ended with {status}, see {log}"
    assert (folder / "reports" / f"{name}.json").exists(), f"the {name} run left no report"
    return Run(seconds, peak, list_file_states(folder / "lake"))


def list_file_states(folder: Path) -> State:
    """List the data files, including staged and quarantined ones."""
    found = {str(file.relative_to(folder)): file.stat() for file in sorted(folder.rglob("*.parquet"))}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found.items()}


def check(lake: Path, facts: DayFacts) -> None:
    """Compare the rows of each dataset with the facts of the feed."""
    for dataset, name in EXPECTED.items():
        # Names that begin with a dot or an underscore are not data: staged and replaced files.
        files = [file for file in (lake / dataset).rglob("*.parquet") if not is_hidden(file.relative_to(lake))]
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        assert rows == getattr(facts, name), f"{dataset} has {rows:,} rows, not {getattr(facts, name):,}"


def is_hidden(path: Path) -> bool:
    """Return whether dataset readers skip a path."""
    return any(part.startswith((".", "_")) for part in path.parts)


def print_run(name: str, rows: int, size: int, ran: Run) -> None:
    """Print a line of the table; `size` are the bytes of the input."""
    peak = ran.peak
    memory = [f"{value / MB:,.0f}" for value in (peak.all, peak.java, peak.python, peak.workers, peak.written)]
    data = sum(size for _, size, _ in ran.files.values())
    cells = [name, f"{ran.seconds:.0f}", f"{rows / ran.seconds:,.0f}", *memory, f"{peak.written / size:.1f}"]
    print(f"| {' | '.join(cells)} | {len(ran.files):,} | {data / MB:,.0f} |", flush=True)


def run_twice(folder: Path, rows: int, pipeline: Path, *, feed_only: bool) -> None:
    """Print the measurements of both runs."""
    facts = feed(folder, rows)
    if feed_only:
        return
    for left in ("lake", "reports"):
        shutil.rmtree(folder / left, ignore_errors=True)
    os.sync()
    size = measure_feed(folder)
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; ", end="")
    print(f"{facts.rows:,} rows, {size / MB:,.0f} MB\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    runs = {}
    for name in ("first", "second"):
        runs[name] = run(name, folder, pipeline)
        check(folder / "lake", facts)
        print_run(name, facts.rows, size, runs[name])
    changed = dict(runs["first"].files.items() ^ runs["second"].files.items())
    assert not changed, f"the second run wrote or removed {len(changed)} data files, such as {min(changed)}"
    print("\nThe second run left every data file as it was.")
