"""Tables of plain Parquet: each upsert writes all rows to a new folder, which takes the place of the old one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.by_hand.tables import Table

# 0 in stored rows, 1 in new ones.
NEW = "_new"


def start(builder: Any, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark."""
    session: SparkSession = builder.config(map=dict(settings)).getOrCreate()
    return session


@dataclass(frozen=True, slots=True)
class Storage:
    """Folders of Parquet files."""

    spark: SparkSession
    folder: Path

    def read(self, table: Table) -> DataFrame:
        """Read a table."""
        return self.spark.read.parquet(str(self.folder / table.name))

    def upsert(self, rows: DataFrame, table: Table) -> None:
        """Merge rows into a table."""
        path = self.folder / table.name
        if not path.exists():
            write(rows, path, table)
            return
        stored = self.read(table).withColumn(NEW, F.lit(0))
        both = stored.unionByName(rows.withColumn(NEW, F.lit(1)))
        fresh = path.with_name(f"{path.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        write(keep_one_row_per_key(both, table), fresh, table)
        obsolete = path.rename(path.with_name(f"{path.name}.old"))
        fresh.rename(path)
        shutil.rmtree(obsolete)


def keep_one_row_per_key(both: DataFrame, table: Table) -> DataFrame:
    """Keep the stored row of each key, or the new one if it is later, with the columns to update from the new one."""
    order = [F.col(table.sequence).desc(), F.col(NEW)] if table.sequence else [F.col(NEW)]
    window = Window.partitionBy(*table.keys).orderBy(*order)
    frame = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    updated = {name: F.last(name).over(frame) for name in table.updates}
    numbered = both.withColumns({**updated, "_number": F.row_number().over(window)})
    return numbered.where("_number = 1").drop("_number", NEW)


def write(rows: DataFrame, path: Path, table: Table) -> None:
    """Write a folder."""
    writer = rows.write
    (writer.partitionBy(table.partition) if table.partition else writer).parquet(str(path))
