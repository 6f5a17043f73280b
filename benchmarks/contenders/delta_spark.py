"""Delta Lake on Spark; its jar comes from Maven, so the contender does not start if Maven cannot be reached."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta import DeltaTable, configure_spark_with_delta_pip
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from benchmarks.task import Merge

SETTINGS = {
    "spark.driver.memory": "6g",
    # Reading all rows returns more than Spark allows by default.
    "spark.driver.maxResultSize": "0",
    # The defaults suit a cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Jars are kept with the environment.
    "spark.jars.ivy": str(Path(sys.prefix, "ivy")),
}


class DeltaSpark:
    """A Delta table in the folder `t`, created from the Parquet files without rewriting them."""

    def __init__(self) -> None:
        builder = SparkSession.builder.master("local[*]")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        self.spark: Any = configure_spark_with_delta_pip(builder).getOrCreate()

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Copy the files and write a log for them."""
        (place / "t").mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, place / "t" / file.name)
        DeltaTable.convertToDelta(self.spark, f"parquet.`{place}/t`")

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the table."""
        on = " AND ".join(f"t.{key} = s.{key}" for key in merge.keys)
        target = DeltaTable.forPath(self.spark, f"{place}/t").alias("t")
        merger = target.merge(self.spark.createDataFrame(batch).alias("s"), on)
        if merge.update_columns:
            merger.whenMatchedUpdate(set={name: f"s.{name}" for name in merge.update_columns}).execute()
        else:
            merger.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        frame = self.spark.read.format("delta").load(f"{place}/t")
        batches: Iterable[pa.RecordBatch] = frame.toArrow().to_batches()
        return batches


def open_table(_variant: str) -> DeltaSpark:
    """Start Spark."""
    return DeltaSpark()
