"""Memory and processor time of a process and its descendants, and the bytes they write; needs Linux."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Peak:
    """The peak memory of all processes of a run, in bytes, and the bytes they wrote to disk.

    `python` is every process but the JVM; `workers` are those of them that Spark started.
    """

    all: int = 0
    java: int = 0
    python: int = 0
    workers: int = 0
    written: int = 0


@contextmanager
def watch_processes(root: int) -> Iterator[Peak]:
    """Watch a Python process and its descendants; memory that forked workers share counts once for each."""
    peak = Peak()
    done = threading.Event()

    def look() -> None:
        parents = map_process_tree(root)
        jvms = {pid for pid in parents if find_program(pid) == "java"}
        # A child that the JVM is about to start shares its memory.
        memory = {pid: read_fact(pid, "status", "VmRSS") * 1024 for pid in parents if not {pid, parents[pid]} <= jvms}
        java = sum(used for pid, used in memory.items() if pid in jvms)
        python = sum(memory.values()) - java
        peak.all = max(peak.all, java + python)
        peak.java = max(peak.java, java)
        peak.python = max(peak.python, python)
        peak.workers = max(peak.workers, python - memory[root])
        # Bytes written by a process that ended are counted with its parent.
        peak.written = max(peak.written, sum(read_fact(pid, "io", "write_bytes") for pid in parents))

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


def map_process_tree(root: int) -> dict[int, int]:
    """Map a process and all its descendants to their parents; that of the first one is 0."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # The name of a program, in parentheses, may contain spaces; the parent's id is the second word after it.
            parent = read(entry / "stat").rpartition(")")[2].split()[1:2]
            children[int(parent[0]) if parent else 0].append(int(entry.name))
    found, parents = [root], {root: 0}
    for pid in found:
        found += children[pid]
        parents |= dict.fromkeys(children[pid], pid)
    return parents


def read_processor_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants, including those that ended and were waited for."""
    ticks = [read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[11:15] for pid in map_process_tree(root)]
    return sum(int(one) for of_process in ticks for one in of_process) / os.sysconf("SC_CLK_TCK")


def find_program(pid: int) -> str:
    """Return the name of the program that a process runs; it is empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


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
