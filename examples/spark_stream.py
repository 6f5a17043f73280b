"""A stream of files on Spark, merged batch by batch; each batch exactly once, even after a failure.

Needs `merganser[spark]` and Java 17. Pass a folder to keep the result: `python examples/spark_stream.py lake`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from merganser import SparkDatasetIO, history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(lake: str, spark: SparkSession) -> None:
    """Run all steps in a folder; results of an earlier run are replaced."""
    for name in ("arrivals", "readings", ".readings.merganser", "checkpoint"):
        shutil.rmtree(os.path.join(lake, name), ignore_errors=True)
    path = os.path.join(lake, "readings")

    print("Two files have arrived; the query merges each as a separate batch.")
    write_arrival(lake, "1.json", [{"sensor": "a", "value": 1.0}, {"sensor": "b", "value": 2.0}])
    write_arrival(lake, "2.json", [{"sensor": "b", "value": 2.5}, {"sensor": "c", "value": 3.0}])
    drain(lake, spark)
    show(path, spark)

    print("The query is killed before Spark records its last batch, and started again: the batch is not merged twice.")
    for name in ("1", ".1.crc"):
        os.remove(os.path.join(lake, "checkpoint", "commits", name))
    before = len(history(path))
    drain(lake, spark)
    print(f"  new commits: {len(history(path)) - before}")

    print("Another file arrives.")
    write_arrival(lake, "3.json", [{"sensor": "a", "value": 1.5}])
    drain(lake, spark)
    show(path, spark)
    print("batch ids:", *sorted(str(record.batch_id) for record in history(path)))


def drain(lake: str, spark: SparkSession) -> None:
    """Merge the files that arrived since the last run, one per batch, and stop."""
    io = SparkDatasetIO(spark)
    sink = io.foreach_batch(os.path.join(lake, "readings"), "upsert", "sensor", query_name="readings")

    def merge(frame: DataFrame, number: int) -> None:
        # Transform the batch here; the sink passes the merge a batch_id, "readings:0" and so on.
        sink(frame.where("value IS NOT NULL"), number)

    stream = spark.readStream.schema("sensor STRING, value DOUBLE").option("maxFilesPerTrigger", 1)
    query = (
        stream.json(os.path.join(lake, "arrivals"))
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", os.path.join(lake, "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_arrival(lake: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Write a file of readings to the folder of the stream."""
    folder = os.path.join(lake, "arrivals")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    # Spark reads files by age, and these are written at the same moment.
    age = int(name.partition(".")[0])
    os.utime(path, (age, age))


def show(path: str, spark: SparkSession) -> None:
    """Print the newest value of each sensor."""
    for row in SparkDatasetIO(spark).read(path).orderBy("sensor").collect():
        print(f"  {row.sensor} {row.value}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A stream of files on Spark, merged batch by batch.")
    parser.add_argument("lake", nargs="?", help="folder for the dataset; without it, a temporary one")
    lake = parser.parse_args().lake
    # Spark's workers use the Python that runs this.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[2]").getOrCreate()
    if lake:
        main(os.path.abspath(lake), session)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-stream-") as folder:
            main(folder, session)
    session.stop()
