"""Scenario M, several writers: python -m benchmarks.writers [--writers 4] [--merges 30] [--rows 10000] [--adjacent].

Each writer merges into its own partition, side by side and behind one lock; all rows are counted afterwards. The keys
of a batch are spread over the partition, or adjacent, so that a batch changes one file only. Then one merge stages for
a long time, and the commit of another is timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.merge import driver
from merganser.core.merge.attempt import Stager

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
FILES = 5
_BEGIN = "begin"


def make_batch(given: argparse.Namespace, writer: int, number: int) -> pa.Table:
    """Make one batch of a writer: most rows are updates, one in ten is new."""
    random, rows, held = np.random.default_rng(writer * 1000 + number), given.rows, given.partition_rows
    start = int(random.integers(0, held - rows))
    ids = np.arange(start, start + rows) if given.adjacent else random.choice(held, rows, replace=False)
    new = np.arange(rows // 10)
    ids[new] = held + number * rows + new
    return make_rows(writer, ids, float(number))


def make_rows(writer: int, ids: Any, amount: float) -> pa.Table:
    """Make rows of a writer's partition."""
    texts = pa.array(ids % 977).cast(pa.string())
    return pa.table({"id": ids, "p": np.full(len(ids), writer), "amount": np.full(len(ids), amount), "text": texts})


def write_first(path: str, writers: int, partition_rows: int) -> None:
    """Write several files for each writer."""
    for writer in range(writers):
        rows = make_rows(writer, np.arange(partition_rows), 0.0)
        options: Any = {"max_rows_per_file": partition_rows // FILES, "row_group_size": 50_000}
        merganser.merge(rows, path, "upsert", ["p", "id"], partition_columns="p", engine="arrow", **options)


def merge_batches(given: argparse.Namespace) -> None:
    """Merge the batches of one writer, once it is told to begin."""
    batches = [make_batch(given, given.writer, number) for number in range(given.merges)]
    engine: Any = given.engine
    merge = partial(merganser.merge, strategy="upsert", key_columns=["p", "id"], engine=engine, lock_timeout=3600)
    merge(batches[0].slice(0, 0), given.path)
    print(_BEGIN, flush=True)
    sys.stdin.readline()

    def lock_first(*arguments: Any, locks_late: bool, **options: Any) -> Any:
        return open_session(*arguments, locks_late=locks_late and not given.locked, **options)

    with mock.patch.object(driver, "open_session", lock_first):
        for batch in batches:
            merge(batch, given.path)


def time_writers(given: argparse.Namespace, *, locked: bool) -> float:
    """Let the writers merge all batches; returns the seconds."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        write_first(path := f"{folder}/t", given.writers, given.partition_rows)
        numbers = {"--merges": given.merges, "--rows": given.rows, "--partition-rows": given.partition_rows}
        options = ["--engine", given.engine, *(str(one) for pair in numbers.items() for one in pair)]
        flags = [f"--{name}" for name, is_set in (("locked", locked), ("adjacent", given.adjacent)) if is_set]
        command = [sys.executable, "-m", "benchmarks.writers", *options, *flags]
        running = [
            processes.enter_context(
                subprocess.Popen(
                    [*command, "--path", path, "--writer", str(writer)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for writer in range(given.writers)
        ]
        for one in running:
            assert one.stdout is not None
            assert one.stdout.readline().strip() == _BEGIN
        start = time.perf_counter()
        for one in running:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        codes = [one.wait() for one in running]
        if any(codes):
            raise RuntimeError("a writer failed")
        seconds = time.perf_counter() - start
        expected = given.writers * (given.partition_rows + given.merges * (given.rows // 10))
        if (found := merganser.PyArrowDatasetIO().read(path).count_rows()) != expected:
            raise RuntimeError(f"{found} rows instead of {expected}")
    return seconds


def time_commit_beside_staging(given: argparse.Namespace) -> tuple[float, float]:
    """Time a merge alone, and one beside another that stages for some seconds."""
    original, is_staging = Stager.stage_early, threading.Event()

    def stage_early(self: Stager[Any]) -> Any:
        attempt = original(self)
        if threading.current_thread().name == "slow":
            is_staging.set()
            time.sleep(given.stage_seconds)
        return attempt

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Stager, "stage_early", stage_early):
        write_first(path := f"{folder}/t", 2, given.partition_rows)

        def merge(writer: int, number: int) -> float:
            batch, start = make_batch(given, writer, number), time.perf_counter()
            merganser.merge(batch, path, "upsert", ["p", "id"], engine=given.engine)
            return time.perf_counter() - start

        merge(1, 0)
        alone = min(merge(1, number) for number in range(1, 4))
        slow = threading.Thread(target=merge, args=(0, 0), name="slow")
        slow.start()
        is_staging.wait()
        beside = max(merge(1, number) for number in range(4, 7))
        if not slow.is_alive():
            raise RuntimeError("the other merge did not stage for long enough")
        slow.join()
    return alone, beside


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--merges", type=int, default=30)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--partition-rows", type=int, default=500_000)
    parser.add_argument("--engine", default="arrow")
    parser.add_argument("--stage-seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--adjacent", action="store_true")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.path:
        merge_batches(given)
        return
    for _ in range(given.repeat):
        locked, free = (time_writers(given, locked=one) for one in (True, False))
        print(f"behind one lock {locked:.1f} s, side by side {free:.1f} s: {free / locked:.2f} of it")
    alone, beside = time_commit_beside_staging(given)
    print(f"a merge alone {alone:.2f} s, beside one that stages for {given.stage_seconds:g} s {beside:.2f} s")


if __name__ == "__main__":
    main()
