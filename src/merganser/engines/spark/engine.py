"""The Spark engine: rows on executors, counts to the driver.

What crosses the network, stage by stage:

- footers of more than `MAX_DRIVER_FILES` files: what planning needs of them, to the driver; key filters likewise;
- the source, once, from wherever it is to the staging folder, where every later stage reads it;
- bounds of row groups to the tasks that test them, a bit for each back;
- source rows that are new or that replace others, to the one task that writes their file;
- counts and names of staged files to the driver.

A source of up to `BROADCAST_LIMIT` bytes is read from the staging folder by every task that needs it (`broadcast`). For
a larger one (`shuffle`), Spark also shuffles its keys, each with twelve bytes that identify its row, and the key
columns of target rows that might match. No other column of the target ever leaves the task that reads it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.threads import map_in_threads
from merganser.engines.spark.broadcast import BroadcastSource
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.shuffle import ShuffleSource
from merganser.engines.spark.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.engine import SourceSpec
    from merganser.engines.spark.source import OpenedSource, Source

# Bytes of source rows that each task may hold.
BROADCAST_LIMIT = 64 << 20
# Files whose footers the driver reads by itself, and those that one task reads if there are more.
MAX_DRIVER_FILES = 2000
_FILES_PER_TASK = 500
_MAX_DRIVER_LARGE_FILES = 4


class SparkEngine:
    """`merganser.core.model.engine.Engine` in Spark jobs."""

    name = "spark"

    def __init__(self, spark: SparkSession, broadcast_limit: int = BROADCAST_LIMIT) -> None:
        self.spark = spark
        self._broadcast_limit = broadcast_limit
        # DataFrames that Spark keeps in memory for this call.
        self.persisted: list[DataFrame] = []

    def close(self) -> None:
        for frame in self.persisted:
            # A session that has ended has released it already; the outcome of the call is what counts.
            with suppress(Exception):
                frame.unpersist()

    def open(self, source: Any) -> OpenedSource:
        return open_source(self, source)

    def run_tasks(
        self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, large: bool = False
    ) -> list[ResultT]:
        few, size = (_MAX_DRIVER_LARGE_FILES, 1) if large else (MAX_DRIVER_FILES, _FILES_PER_TASK)
        if len(items) <= few:
            return map_in_threads(task, items)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        return [result for some in run_tasks(self.spark, partial(map_in_threads, task), chunks) for result in some]

    def choose_mode(self, source: Source, spec: SourceSpec) -> BroadcastSource | ShuffleSource:
        """Broadcast a source that one task can hold, and shuffle any other."""
        if source.staged is None:
            self.persisted.append(source.frame)
        elif source.staged.size <= self._broadcast_limit:
            return BroadcastSource(self, source.staged, source.stats, spec)
        return ShuffleSource(self, source, spec)
