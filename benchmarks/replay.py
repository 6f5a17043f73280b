"""Replay a batch with `skip_unchanged`: `python -m benchmarks.replay [--rows N] [--repeat N] [engine …]`.

Each engine merges 100,000 rows, in every file of the dataset, into a fresh copy, and then the same rows again. The
replay must write nothing; its time is printed beside that of the first run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import merganser as mg
from benchmarks.data import ROWS
from benchmarks.measure import State, list_file_states
from benchmarks.scenarios import SCENARIOS, orders

ENGINES = ("duckdb", "arrow", "spark")


def list_dataset_state(folder: str) -> State:
    """List every file of a dataset and its control folder except the lock."""
    return {path: facts for path, facts in list_file_states(Path(folder)).items() if path.name != "lock"}


def measure(engine: str, row_count: int, dataset: Path) -> tuple[float, float]:
    """Time a first run and its replay."""
    batch = SCENARIOS["C"].batch(orders(row_count))
    with tempfile.TemporaryDirectory(dir=dataset.parent) as folder:
        path = f"{folder}/t"
        shutil.copytree(dataset, path)
        os.sync()
        first, updated = time_merge(engine, batch, path)
        assert updated == batch.num_rows
        before = list_dataset_state(folder)
        again, updated = time_merge(engine, batch, path)
        assert updated == 0
        assert list_dataset_state(folder) == before, "the replay wrote something"
    return first, again


def time_merge(engine: str, batch: object, path: str) -> tuple[float, int]:
    """Merge, and return seconds and updated rows."""
    start = time.perf_counter()
    result = mg.merge(batch, path, "upsert", "id", engine=engine, skip_unchanged=True)
    return time.perf_counter() - start, result.updated


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    dataset = orders(arguments.rows).build(arguments.data)
    print("| engine | first run, s | replay, s | replay / first run |\n|---|---|---|---|")
    for engine in arguments.engines:
        runs = [measure(engine, arguments.rows, dataset) for _ in range(arguments.repeat)]
        first, again = (min(times) for times in zip(*runs, strict=True))
        print(f"| {engine} | {first:.2f} | {again:.2f} | {again / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
