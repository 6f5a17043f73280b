"""The demo's pipeline by merganser, as `merganser demo` runs it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.contest import MASTER, SETTINGS
from merganser.demo.story import run_day
from merganser.engines.spark import SparkDatasetIO
from merganser.graph.spark import ParquetGraph
from merganser.pipeline.runner.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Merganser:
    """The session, and the folder of the datasets and the graph."""

    spark: SparkSession
    folder: Path
    stack: ExitStack

    def run_day(self, day: str, *, again: bool) -> None:
        """Run the pipeline for a day, under a run id of its own."""
        run_day(self.spark, str(self.folder), date.fromisoformat(day), f"{day}-again" if again else None)

    def read_frames(self) -> dict[str, DataFrame]:
        """Read the datasets and the graph."""
        io, graph = SparkDatasetIO(self.spark), ParquetGraph(self.folder / "graph", self.spark)
        jobs, companies = graph.nodes("Job"), graph.nodes("Company")
        sources = jobs.select(F.col("id").alias("src"), F.col("url").alias("job"))
        targets = companies.select(F.col("id").alias("dst"), F.col("name").alias("company"))
        return {
            "jobs": io.read(self.folder / "jobs"),
            "companies": io.read(self.folder / "companies"),
            "quarantine": io.read(self.folder / "quarantine").withColumnRenamed("source_file", "file"),
            "Company nodes": companies,
            "Job nodes": jobs,
            "POSTED_BY edges": graph.edges("POSTED_BY").join(sources, "src").join(targets, "dst"),
        }

    def graph_queries(self) -> dict[str, str]:
        """Read nodes and edges from SQLite."""
        return {
            "Company nodes": "SELECT properties ->> 'name' AS name, properties FROM nodes WHERE type = 'Company'",
            "Job nodes": "SELECT properties ->> 'url' AS url, properties FROM nodes WHERE type = 'Job'",
            "POSTED_BY edges": """
                SELECT job.properties ->> 'url' AS job, company.properties ->> 'name' AS company, edges.properties
                FROM edges JOIN nodes AS job ON job.id = from_id JOIN nodes AS company ON company.id = to_id
                WHERE edges.type = 'POSTED_BY'
            """,
        }

    def close(self) -> None:
        """Stop Spark."""
        self.stack.close()


def open_contender(feed: Path, folder: Path, _storage: None) -> Merganser:
    """Start Spark; the pipeline expects the feed in its own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "feed").is_symlink():
        (folder / "feed").symlink_to(feed, target_is_directory=True)
    stack = ExitStack()
    return Merganser(stack.enter_context(open_session("demo", MASTER, SETTINGS, progress=False)), folder, stack)
