"""Postings through the pipeline into a Parquet graph, twice: `python -m benchmarks.pipeline FOLDER [--rows N]`.

A day of postings is generated in FOLDER, unless it exists. The pipeline of `benchmarks/postings.toml` reads it from
`{feed}/{date}` and writes to `{lake}`, on two cores with a driver of 2 GiB, first into an empty folder and then once
more. The second run must not change any data file: same path, inode, size and modification time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.parquet as pq

from merganser.demo.feed import DayFacts, write_day

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = date(2026, 1, 1)
PIPELINE = Path(__file__).with_name("postings.toml")
# The expected number of rows in each dataset of the pipeline, by the name of a fact.
EXPECTED = {
    "graph/nodes/type=Job": "urls_so_far",
    "graph/nodes/type=Company": "companies_so_far",
    "graph/edges/type=POSTED_BY": "urls_so_far",
}
MB = 1_000_000
# Inode, size and time of change of each file, by path.
State: TypeAlias = "dict[str, tuple[int, int, int]]"


@dataclass
class Peak:
    """The peak memory of all processes of a run, in bytes, and the bytes they wrote to disk."""

    all: int = 0
    java: int = 0
    python: int = 0
    written: int = 0


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
    size = sum(file.stat().st_size for file in (folder / str(DAY)).iterdir())
    print(f"made up {rows:,} rows in {seconds:.0f} s, {size / MB:,.0f} MB", flush=True)
    done.write_text(json.dumps(asdict(facts)), "utf-8")
    return facts


def list_process_tree(root: int) -> list[int]:
    """List a process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # The name of a program, in parentheses, may contain spaces; the parent's id is the second word after it.
            parent = read(entry / "stat").rpartition(")")[2].split()[1:2]
            children[int(parent[0]) if parent else 0].append(int(entry.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def read(file: Path) -> str:
    """Read a file of a process; it is empty if the process has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


def read_fact(pid: int, file: str, name: str) -> int:
    """Return a number that the kernel reports about a process."""
    lines = read(Path(f"/proc/{pid}/{file}")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def watch_processes(root: int) -> Iterator[Peak]:
    """Watch the processes of a run; memory that forked workers share counts once for each."""
    peak = Peak()
    done = threading.Event()

    def look() -> None:
        pids = list_process_tree(root)
        memory = {pid: read_fact(pid, "status", "VmRSS") * 1024 for pid in pids}
        java = sum(memory[pid] for pid in pids if read(Path(f"/proc/{pid}/comm")).strip() == "java")
        peak.all = max(peak.all, sum(memory.values()))
        peak.java = max(peak.java, java)
        peak.python = max(peak.python, sum(memory.values()) - java)
        # Bytes written by a process that ended are counted with its parent.
        peak.written = max(peak.written, sum(read_fact(pid, "io", "write_bytes") for pid in pids))

    def watch() -> None:
        while not done.wait(0.2):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


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


def print_run(name: str, rows: int, ran: Run) -> None:
    """Print a line of the table."""
    size = sum(size for _, size, _ in ran.files.values())
    memory = [f"{value / MB:,.0f}" for value in (ran.peak.all, ran.peak.java, ran.peak.python, ran.peak.written)]
    cells = [name, f"{ran.seconds:.0f}", f"{rows / ran.seconds:,.0f}", *memory, f"{len(ran.files):,}"]
    print(f"| {' | '.join(cells)} | {size / MB:,.0f} |", flush=True)


def main() -> None:
    """Print the measurements of both runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the feed, the lake, reports and logs")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--pipeline", type=Path, default=PIPELINE)
    parser.add_argument("--feed-only", action="store_true", help="make up the feed and stop")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    facts = feed(folder, arguments.rows)
    if arguments.feed_only:
        return
    for left in ("lake", "reports"):
        shutil.rmtree(folder / left, ignore_errors=True)
    os.sync()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; {facts.rows:,} rows\n")
    print("| run | seconds | rows/s | peak MB | of it the JVM | of it Python | MB written | data files | MB of data |")
    print("|---|---|---|---|---|---|---|---|---|")
    runs = {}
    for name in ("first", "second"):
        runs[name] = run(name, folder, arguments.pipeline)
        check(folder / "lake", facts)
        print_run(name, facts.rows, runs[name])
    changed = dict(runs["first"].files.items() ^ runs["second"].files.items())
    assert not changed, f"the second run wrote or removed {len(changed)} data files, such as {min(changed)}"
    print("\nThe second run left every data file as it was.")


if __name__ == "__main__":
    main()
