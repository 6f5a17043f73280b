"""Merges on Spark against a full outer join by hand: `python -m benchmarks.spark [--rows N …] [--repeat N] [--memory]`.

All runs share one warm local session, each on a fresh copy of a dataset of files of a million rows; the contenders take
turns and the best time counts. `--memory` merges fifty million generated rows on a cluster of two executors instead,
with a driver of 1 GiB, and prints the driver's memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from benchmarks.data import build, rows
from merganser import SparkDatasetIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.data import Ids

FILE = 1_000_000
SCENARIOS = {"A": "10,000 rows, all in one file", "C": "100,000 rows, in every file"}


def start(master: str, memory: str) -> SparkSession:
    """Start the session of this process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def ids(scenario: str, row_count: int) -> Ids:
    """Choose the rows that change."""
    if scenario == "A":
        return np.arange(10_000) * (FILE // 10_000) + 7 * FILE
    return np.arange(100_000) * (row_count // 100_000)


def merganser(source: DataFrame, path: str) -> None:
    """Merge with this library."""
    SparkDatasetIO(source.sparkSession).merge(source, path, "upsert", "id")


def outer_join(source: DataFrame, path: str) -> None:
    """Rewrite the whole dataset by hand: no check, no commit."""
    old = source.sparkSession.read.parquet(path)
    new = source.select("id", F.struct("*").alias("new"))
    joined = old.join(new, "id", "full_outer")
    values = [F.when(F.col("new").isNotNull(), F.col(f"new.{name}")).otherwise(F.col(name)) for name in old.columns]
    chosen = [value.alias(name) for value, name in zip(values, old.columns, strict=True)]
    joined.select(*chosen).write.parquet(f"{path}-new")
    shutil.rmtree(path)
    Path(f"{path}-new").rename(path)


CONTENDERS: dict[str, Callable[[DataFrame, str], None]] = {
    "merganser (spark)": merganser,
    "full outer join by hand": outer_join,
}


def check(source: DataFrame, path: str, row_count: int) -> None:
    """Compare the dataset with the expected rows."""
    after = source.sparkSession.read.parquet(path)
    same = after.join(source, ["id", "amount", "note"]).count()
    assert (after.count(), same) == (row_count, source.count())


def run(contender: str, source: DataFrame, dataset: Path, row_count: int) -> float:
    """Measure a contender on a fresh copy."""
    with tempfile.TemporaryDirectory(dir=dataset.parent) as folder:
        copy = f"{folder}/t"
        shutil.copytree(dataset, copy)
        os.sync()
        begin = time.perf_counter()
        CONTENDERS[contender](source, copy)
        seconds = time.perf_counter() - begin
        check(source, copy, row_count)
    return seconds


def compare(spark: SparkSession, row_count: int, data: Path, repeat: int) -> None:
    """Print the figures of one size."""
    dataset = build(data, row_count, row_count // FILE)
    for scenario, description in SCENARIOS.items():
        source = spark.createDataFrame(rows(ids(scenario, row_count), seed=1_000))
        best: dict[str, float] = {}
        for _ in range(repeat):
            for contender in CONTENDERS:
                seconds = run(contender, source, dataset, row_count)
                best[contender] = min(seconds, best.get(contender, seconds))
        ours, theirs = best.values()
        print(
            f"| {row_count:,} | {scenario}: {description} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |",
            flush=True,
        )


@contextmanager
def watch_memory() -> Iterator[dict[str, float]]:
    """Watch the memory of this process and of the driver's JVM, its child."""
    peak = {"python": 0.0, "jvm": 0.0}
    done = threading.Event()

    def children() -> list[int]:
        listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def resident(pid: int) -> float:
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    def watch() -> None:
        while not done.wait(0.2):
            peak["python"] = max(peak["python"], resident(os.getpid()))
            peak["jvm"] = max([peak["jvm"], *(resident(pid) for pid in children())])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def memory(row_count: int, data: Path) -> None:
    """Merge generated rows, half of them known, and print the driver's peak memory."""
    spark = start("local-cluster[2,1,3072]", "1g")
    columns = ["id", "id % 1000000 customer", "id / 7 amount", "concat('note ', id) note"]
    with tempfile.TemporaryDirectory(dir=data) as folder:
        io = SparkDatasetIO(spark)
        io.merge(spark.range(row_count // 2).selectExpr(*columns), f"{folder}/t", key_columns="id")
        begin = time.perf_counter()
        with watch_memory() as peak:
            result = io.merge(spark.range(row_count).selectExpr(*columns), f"{folder}/t", key_columns="id")
        seconds = time.perf_counter() - begin
    assert (result.updated, result.inserted) == (row_count // 2, row_count // 2)
    print(f"{row_count:,} generated rows into {row_count // 2:,}: {seconds:.0f} s, driver's peak: ", end="")
    print(f"{peak['python']:.0f} MB Python, {peak['jvm']:.0f} MB JVM")
    spark.stop()


def main() -> None:
    """Print a table of sizes and scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10 * FILE, 50 * FILE])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    arguments.data.mkdir(parents=True, exist_ok=True)
    if arguments.memory:
        memory(max(arguments.rows), arguments.data)
        return
    spark = start("local[*]", "6g")
    with tempfile.TemporaryDirectory(dir=arguments.data) as folder:
        # The first merge and the first join include compilation.
        small = build(Path(folder), 2000, 2)
        for contender in CONTENDERS.values():
            contender(spark.createDataFrame(rows(np.arange(1000), seed=1)), str(small))
    print("| rows | scenario | merganser, s | full outer join, s | ratio |\n|---|---|---|---|---|")
    for row_count in arguments.rows:
        compare(spark, row_count, arguments.data, arguments.repeat)
    spark.stop()


if __name__ == "__main__":
    main()
