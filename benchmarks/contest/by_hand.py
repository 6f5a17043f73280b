"""The demo's pipeline by hand."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.by_hand.day import FILE, RAW, run_day
from benchmarks.by_hand.tables import COMPANIES, COMPANY_NODES, EDGES, JOB_NODES, JOBS, QUARANTINE
from benchmarks.contest import MASTER, SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from benchmarks.by_hand.tables import Storage


@dataclass(frozen=True, slots=True)
class ByHand:
    """The session, the feed, and the folder of the tables and the graph."""

    spark: SparkSession
    feed: Path
    folder: Path
    storage: Storage

    def run_day(self, day: str, *, again: bool) -> None:  # noqa: ARG002 - nothing is remembered of a run
        """Run the program for a day."""
        run_day(self.storage, self.spark, self.feed, self.folder, day)

    def read_frames(self) -> dict[str, DataFrame]:
        """Read the tables."""
        return {
            "jobs": self.storage.read(JOBS),
            "companies": self.storage.read(COMPANIES),
            "quarantine": self.storage.read(QUARANTINE).select(F.col(FILE).alias("file"), F.col(RAW).alias("row")),
            "Company nodes": self.storage.read(COMPANY_NODES),
            "Job nodes": self.storage.read(JOB_NODES),
            "POSTED_BY edges": self.storage.read(EDGES).withColumnsRenamed({"src": "job", "dst": "company"}),
        }

    def graph_queries(self) -> dict[str, str]:
        """Read nodes and edges from SQLite."""
        return {
            "Company nodes": "SELECT key AS name, properties FROM node WHERE type = 'Company'",
            "Job nodes": "SELECT key AS url, properties FROM node WHERE type = 'Job'",
            "POSTED_BY edges": """
                SELECT job.key AS job, company.key AS company, edge.properties
                FROM edge JOIN node AS job ON job.id = source JOIN node AS company ON company.id = target
                WHERE edge.type = 'POSTED_BY'
            """,
        }

    def close(self) -> None:
        """Stop Spark."""
        self.spark.stop()


def open_contender(feed: Path, folder: Path, storage: str) -> ByHand:
    """Start Spark."""
    folder.mkdir(parents=True, exist_ok=True)
    module: Any = import_module(f"benchmarks.by_hand.{storage}")
    spark: SparkSession = module.start(SparkSession.builder.master(MASTER), SETTINGS)
    return ByHand(spark, feed, folder, module.Storage(spark, folder))
