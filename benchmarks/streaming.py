"""Micro-batches of a stream: `python -m benchmarks.streaming FOLDER [--rows N]`.

The days of the demo's feed, generated in FOLDER unless they exist, are cut into files of 10,000 postings. A streaming
query reads one file per batch and `SparkDatasetIO.foreach_batch` merges it into one dataset by url, on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.by_hand.day import CORRUPT, SCHEMA
from benchmarks.contest import MASTER, SETTINGS
from benchmarks.contest.feed import make_feed
from merganser.engines.spark import SparkDatasetIO
from merganser.pipeline.runner.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.contest.feed import Feed

ROWS = 100_000
BATCH = 10_000
DDL = f"{SCHEMA}, {CORRUPT} STRING"
# Batches before the steady state: Spark compiles and starts its workers.
FIRST = 5
# Spark forgets the times of batches beyond this number.
PROGRESS = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}


@dataclass
class TimedSink:
    """A sink that takes the time of each merge."""

    merge: Callable[[DataFrame, int], None]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Merge a batch."""
        begin = time.perf_counter()
        self.merge(frame, batch_id)
        self.seconds.append(time.perf_counter() - begin)


def cut_files(feed: Feed, folder: Path) -> int:
    """Cut the feed into files of a batch each, and return their number; Spark reads them by modification time."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    count = 0
    for file in sorted(feed.folder.rglob("*.json")):
        with file.open("rb") as lines:
            while chunk := list(islice(lines, BATCH)):
                target = folder / f"{count:04}.json"
                target.write_bytes(b"".join(chunk))
                os.utime(target, (count, count))
                count += 1
    return count


def choose_rows(frame: DataFrame) -> DataFrame:
    """Choose the rows that have a key, with the time that orders them."""
    good = frame.where(f"{CORRUPT} IS NULL AND url IS NOT NULL").drop(CORRUPT)
    return good.withColumn("scraped_at", F.col("scraped_at").cast("timestamp"))


def run_stream(spark: SparkSession, arrivals: Path, folder: Path) -> list[tuple[float, float]]:
    """Run the query until all files are merged; return the seconds of each batch, and of its merge."""
    shutil.rmtree(folder, ignore_errors=True)
    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    rows = choose_rows(reader.json(str(arrivals)))
    io = SparkDatasetIO(spark)
    merge = io.foreach_batch(folder / "jobs", "upsert", "url", query_name="jobs", sequence_column="scraped_at")
    sink = TimedSink(merge)
    query = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["numInputRows"]]
    return list(zip(batches, sink.seconds, strict=True))


def check_rows(spark: SparkSession, arrivals: Path, folder: Path) -> None:
    """Compare the dataset with the latest row of each url in all files."""
    # Persisted with all columns: a value of the wrong type in a column that is not read would not count as malformed.
    rows = choose_rows(spark.read.schema(DDL).json(str(arrivals))).persist()
    latest = rows.groupBy("url").agg(F.max("scraped_at").alias("scraped_at"))
    stored = SparkDatasetIO(spark).read(folder / "jobs").select("url", "scraped_at")
    expected, found, same = latest.count(), stored.count(), stored.join(latest, ["url", "scraped_at"]).count()
    assert (found, same) == (expected, expected), f"{found:,} rows, {same:,} of them expected, not {expected:,}"


def main() -> None:
    """Print the seconds of each batch, the median and the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the feed, the dataset and the checkpoint")
    parser.add_argument("--rows", type=int, default=ROWS, help="postings a day")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    feed = make_feed(folder, arguments.rows)
    count = cut_files(feed, folder / "arrivals")
    load_average = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load average {load_average:.1f} at the start; {MASTER}; {count} batches\n")
    with open_session("streaming", MASTER, {**SETTINGS, **PROGRESS}, progress=False) as spark:
        batches = run_stream(spark, folder / "arrivals", folder / "stream")
        check_rows(spark, folder / "arrivals", folder / "stream")
    assert len(batches) == count, f"{len(batches)} batches were merged, not {count}"
    print("| batch | seconds | of it the merge |\n|---|---|---|")
    for number, (whole, merge) in enumerate(batches[FIRST:], FIRST + 1):
        print(f"| {number} | {whole:.2f} | {merge:.2f} |")
    for name, figure in (("median", statistics.median), ("worst", max)):
        whole, merge = (figure(one) for one in zip(*batches[FIRST:], strict=True))
        print(f"| {name} | {whole:.2f} | {merge:.2f} |")


if __name__ == "__main__":
    main()
