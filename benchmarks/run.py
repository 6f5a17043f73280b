"""Run the scenarios: `python -m benchmarks.run [--rows N] [--repeat N] [scenario …]`.

Each contender merges into a fresh copy of the dataset in a process of its own, so that peak memory is its own too.
The best of several runs counts; the ratio is against the peer of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data import FILES, ROWS, build, rows

if TYPE_CHECKING:
    from collections.abc import Callable

SCENARIOS = {
    "A": "10,000 rows, all in one file",
    "B": "120,000 rows in two files",
    "C": "100,000 rows, in every file",
    "E": "100,000 new rows",
}


def source(scenario: str, row_count: int) -> pa.Table:
    """Make the incoming batch of a scenario."""
    size = row_count // FILES
    ids = {
        "A": lambda: np.arange(10_000) * (size // 10_000) + 7 * size,
        "B": lambda: np.concatenate([np.arange(60_000) + 3 * size, np.arange(60_000) + 20 * size]),
        "C": lambda: np.arange(100_000) * (row_count // 100_000),
        "E": lambda: np.arange(100_000) + row_count,
    }[scenario]()
    return rows(ids, seed=1_000)


def merganser_arrow(batch: pa.Table, path: str) -> None:
    """Merge with this library's PyArrow engine."""
    import merganser as mg  # noqa: PLC0415  one contender needs one of them

    mg.merge(batch, path, "upsert", "id", engine="arrow")


def merganser_duckdb(batch: pa.Table, path: str) -> None:
    """Merge with this library's DuckDB engine."""
    import merganser as mg  # noqa: PLC0415  one contender needs one of them

    mg.merge(batch, path, "upsert", "id", engine="duckdb")


def merganser_small(batch: pa.Table, path: str) -> None:
    """Merge with the DuckDB engine in little memory."""
    import duckdb  # noqa: PLC0415  one contender needs one of them

    import merganser as mg  # noqa: PLC0415  as above

    with duckdb.connect(config={"memory_limit": "300MB"}) as connection:
        mg.DuckDBDatasetIO(connection).merge(batch, path, "upsert", "id")


def affected_files_polars(batch: pa.Table, path: str) -> None:
    """Rewrite by hand the files whose range of ids meets the batch, and add the rest: no check, no commit."""
    import polars as pl  # noqa: PLC0415  one contender needs one of them

    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    ids = frame["id"].sort()
    seen = []
    for file in sorted(Path(path).glob("*.parquet")):
        bounds = pq.read_metadata(file).row_group(0).column(0).statistics
        at = ids.search_sorted(bounds.min)
        if at == len(ids) or ids[at] > bounds.max:
            continue
        old = pl.read_parquet(file)
        matched = frame.join(old.select("id"), on="id", how="semi")
        new = old.update(matched, on="id", how="left", include_nulls=True).select(old.columns)
        new.write_parquet(file, compression="snappy")
        seen.append(matched["id"])
    known = pl.concat(seen) if seen else pl.Series([], dtype=pl.Int64)
    fresh = frame.filter(~pl.col("id").is_in(known.implode()))
    if len(fresh):
        fresh.write_parquet(f"{path}/part-new.parquet", compression="snappy")


def whole_dataset_duckdb(batch: pa.Table, path: str) -> None:
    """Rewrite the whole dataset by hand with one SQL statement."""
    import duckdb  # noqa: PLC0415  one contender needs one of them

    with duckdb.connect() as connection:
        connection.register("batch", batch)
        query = (
            f"SELECT * FROM read_parquet('{path}/*.parquet') WHERE id NOT IN (SELECT id FROM batch) "  # noqa: S608
            "UNION ALL BY NAME SELECT * FROM batch"
        )
        connection.execute(f"COPY ({query}) TO '{path}-new' (FORMAT parquet, PER_THREAD_OUTPUT)")
    shutil.rmtree(path)
    Path(f"{path}-new").rename(path)


OURS = "merganser (duckdb)"
CONTENDERS: dict[str, Callable[[pa.Table, str], None]] = {
    OURS: merganser_duckdb,
    "merganser (duckdb, 300 MB)": merganser_small,
    "merganser (arrow)": merganser_arrow,
    "Polars by hand, affected files": affected_files_polars,
    "DuckDB by hand, whole dataset": whole_dataset_duckdb,
}


# Imported before the clock starts.
MODULES = {
    OURS: ["merganser.engines.duckdb"],
    "merganser (duckdb, 300 MB)": ["merganser.engines.duckdb"],
    "merganser (arrow)": ["merganser.engines.arrow", "pyarrow.acero"],
    "Polars by hand, affected files": ["polars"],
    "DuckDB by hand, whole dataset": ["duckdb"],
}


def check(scenario: str, row_count: int, path: str) -> None:
    """Compare the dataset with what the merge should have made of it."""
    batch = source(scenario, row_count)
    files = sorted(Path(path).rglob("*.parquet"))
    table = pa.concat_tables(pq.read_table(file, columns=["id", "amount"]) for file in files)
    expected = row_count + (len(batch) if scenario == "E" else 0)
    assert table.num_rows == expected == len(pc.unique(table["id"])), f"{table.num_rows} rows, not {expected}"
    found = table.filter(pc.is_in(table["id"], batch["id"].combine_chunks())).sort_by("id")
    assert found.equals(batch.select(["id", "amount"]).sort_by("id")), "the batch is not in the dataset"


def measure(scenario: str, contender: str, row_count: int, path: str) -> None:
    """Run one contender in this process and print its figures as JSON."""
    batch = source(scenario, row_count)
    for module in MODULES[contender]:
        import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        # A job starts its engine once and merges many times, so the first merge is not measured.
        small = Path(folder, "t")
        small.mkdir()
        pq.write_table(rows(np.arange(1_000), seed=0), small / "part.parquet")
        CONTENDERS[contender](rows(np.arange(500, 1_500), seed=1_000), str(small))
    start = time.perf_counter()
    CONTENDERS[contender](batch, path)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_mb": peak_memory()}))


def peak_memory() -> float:
    """Read this process's peak memory in MB; getrusage would tell the parent's, were it higher."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def run(scenario: str, contender: str, row_count: int, dataset: Path) -> dict[str, float]:
    """Measure a contender on a fresh copy."""
    with tempfile.TemporaryDirectory(dir=dataset.parent) as folder:
        copy = f"{folder}/t"
        shutil.copytree(dataset, copy)
        # Else a merge that flushes its files would wait for the copy to be written.
        os.sync()
        command = [sys.executable, "-m", "benchmarks.run", "--one", scenario, contender, copy, "--rows", str(row_count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        check(scenario, row_count, copy)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(scenario: str, row_count: int, dataset: Path, repeat: int) -> dict[str, dict[str, float]]:
    """Measure the contenders in turns, so that a slow minute hits all, and keep best time and highest memory."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for contender in CONTENDERS:
            found = run(scenario, contender, row_count, dataset)
            known = best.setdefault(contender, found)
            known["seconds"] = min(known["seconds"], found["seconds"])
            known["peak_mb"] = max(known["peak_mb"], found["peak_mb"])
    return best


def main() -> None:
    """Print a table of scenarios and contenders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=[], help=f"of {', '.join(SCENARIOS)}; all if none is named")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--one", nargs=3, metavar=("SCENARIO", "CONTENDER", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        scenario, contender, path = arguments.one
        measure(scenario, contender, arguments.rows, path)
        return
    dataset = build(arguments.data, arguments.rows)
    print(f"{arguments.rows:,} rows, {FILES} files, 7 columns; {os.cpu_count()} cores, {platform.machine()}, ", end="")
    print(f"Python {platform.python_version()}, PyArrow {pa.__version__}; best of {arguments.repeat}\n")
    print("| scenario | contender | seconds | peak MB | time of merganser (duckdb) / its time |\n|---|---|---|---|---|")
    for scenario in arguments.scenarios or SCENARIOS:
        figures = compare(scenario, arguments.rows, dataset, arguments.repeat)
        ours = figures[OURS]["seconds"]
        for name, found in figures.items():
            ratio = ours / found["seconds"]
            cells = [SCENARIOS[scenario], name, f"{found['seconds']:.3f}", f"{found['peak_mb']:.0f}", f"{ratio:.2f}"]
            print(f"| {scenario}: {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
