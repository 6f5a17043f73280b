"""Tables of Delta Lake; its jar comes from Maven."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta import DeltaTable, configure_spark_with_delta_pip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.by_hand.tables import Table

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default suits a cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Jars are kept with the environment.
    "spark.jars.ivy": str(Path(sys.prefix, "ivy")),
}


def start(builder: Any, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with Delta Lake."""
    session: SparkSession = configure_spark_with_delta_pip(builder.config(map={**settings, **SETTINGS})).getOrCreate()
    return session


@dataclass(frozen=True, slots=True)
class Storage:
    """Delta tables in a folder."""

    spark: SparkSession
    folder: Path

    def read(self, table: Table) -> DataFrame:
        """Read a table."""
        return self.spark.read.format("delta").load(str(self.folder / table.name))

    def upsert(self, rows: DataFrame, table: Table) -> None:
        """Merge rows into a table."""
        path = str(self.folder / table.name)
        if not DeltaTable.isDeltaTable(self.spark, path):
            writer = rows.write.format("delta")
            (writer.partitionBy(table.partition) if table.partition else writer).save(path)
            return
        on = " AND ".join(f"t.{key} = s.{key}" for key in table.keys)
        merge = DeltaTable.forPath(self.spark, path).alias("t").merge(rows.alias("s"), on)
        if table.sequence:
            merge = merge.whenMatchedUpdateAll(f"s.{table.sequence} > t.{table.sequence}")
        elif table.updates:
            # Without the condition, a replay would rewrite every file.
            differs = " OR ".join(f"NOT s.{name} <=> t.{name}" for name in table.updates)
            merge = merge.whenMatchedUpdate(differs, {name: f"s.{name}" for name in table.updates})
        merge.whenNotMatchedInsertAll().execute()
