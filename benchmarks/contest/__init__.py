"""Who runs the demo's pipeline: merganser, and the same work by hand on two kinds of tables.

A module of a contender has a function `open_contender`. It runs in the contender's own environment, so of this project
only `ours` imports merganser.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

MASTER = "local[2]"
# Of every contender's session.
SETTINGS = {
    "spark.driver.memory": "4g",
    # The default of 200 suits a cluster.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Otherwise each exchange with Python waits 40 ms for TCP's delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}


class Contender(Protocol):
    """A pipeline with its session, and the contents of its lake."""

    def run_day(self, day: str, *, again: bool) -> None:
        """Run the pipeline for a day; `again` if it was run before."""

    def read_frames(self) -> dict[str, DataFrame]:
        """Read the datasets and the graph's tables, by the names in `contents.TABLES`."""

    def graph_queries(self) -> dict[str, str]:
        """Return the queries that read nodes and edges from SQLite, by the same names."""

    def close(self) -> None:
        """Stop Spark."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender: `environment` names its requirements in `benchmarks/peers`, None is this project's own."""

    name: str
    module: str
    environment: str | None = None
    storage: str | None = None


CONTENDERS = {
    "merganser": Entry("merganser", "ours"),
    "delta": Entry("by hand, Delta", "by_hand", "delta-spark", "delta"),
    "overwrite": Entry("by hand, overwriting", "by_hand", None, "overwrite"),
}


def open_contender(id_: str, feed: Path, folder: Path) -> Contender:
    """Start the session of a contender in this process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    entry = CONTENDERS[id_]
    module: Any = import_module(f"benchmarks.contest.{entry.module}")
    contender: Contender = module.open_contender(feed, folder, entry.storage)
    return contender
