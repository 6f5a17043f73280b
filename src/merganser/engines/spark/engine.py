"""The Spark engine: rows on executors, counts to the driver.

What crosses the network, stage by stage:

- footers of more than `MAX_DRIVER_FILES` files: what planning needs of them, to the driver; key filters likewise;
- the source, once, from wherever it is to the staging folder, where every later stage reads it;
- bounds of row groups to the tasks that test them, a bit for each back;
- source rows that are new or that replace others, to the one task that writes their file;
- counts and names of staged files to the driver.

A source of up to `BROADCAST_LIMIT` bytes is read from the staging folder by every task that needs it (`broadcast`); if
the target is small, too, one task does the whole merge up to the commit, as the PyArrow engine does. For a larger
source (`shuffle`), its keys are also sent to the tasks that match them, each with what identifies its row, and so are
the key columns of target rows that might match. No other column of the target ever leaves the task that reads it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.take import align_chunks
from merganser.core.columnar.threads import map_in_threads
from merganser.core.model.engine import TargetSize
from merganser.core.rows.table_source import ArrowSource, LocalEngine
from merganser.engines.spark.broadcast import BroadcastSource
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.shuffle import ShuffleSource
from merganser.engines.spark.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.engine import ConformedSource, Engine, SourceSpec
    from merganser.engines.spark.source import OpenedSource, Source
    from merganser.engines.spark.staged_source import StagedSource

# Bytes of source rows that each task may hold.
BROADCAST_LIMIT = 64 << 20
# Rows of a larger source and its target whose keys one task matches.
GROUP_ROWS = 500_000
# Files whose footers the driver reads by itself, and those that one task reads if there are more.
MAX_DRIVER_FILES = 2000
_FILES_PER_TASK = 500
_MAX_DRIVER_LARGE_FILES = 4
# The target of a merge that one task does: several jobs would wait for each other longer than they work.
TASK_LIMIT = TargetSize(files=500, rows=8_000_000, bytes=512 << 20)


class SparkEngine:
    """`merganser.core.model.engine.Engine` in Spark jobs."""

    name = "spark"

    def __init__(
        self,
        spark: SparkSession,
        broadcast_limit: int = BROADCAST_LIMIT,
        task_limit: TargetSize = TASK_LIMIT,
        group_rows: int = GROUP_ROWS,
    ) -> None:
        self.spark = spark
        self._broadcast_limit = broadcast_limit
        self._task_limit = task_limit
        self.group_rows = group_rows
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
        self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, large: bool = False, in_driver: bool = True
    ) -> list[ResultT]:
        few, size = (_MAX_DRIVER_LARGE_FILES, 1) if large else (MAX_DRIVER_FILES, _FILES_PER_TASK)
        if len(items) <= (few if in_driver else 0):
            return map_in_threads(task, items)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        found = run_tasks(self.spark, partial(map_in_threads, task), chunks, "inspect target files")
        return [result for some in found for result in some]

    def run_merge(
        self, work: Callable[[Engine, ConformedSource], ResultT], source: ConformedSource, target: TargetSize
    ) -> ResultT:
        if isinstance(source, BroadcastSource) and target.is_within(self._task_limit):
            (done,) = run_tasks(self.spark, partial(_run_merge, work, source.staged), [source.spec], "merge rows")
            return done  # type: ignore[no-any-return]
        return work(self, source)

    def choose_mode(self, source: Source, spec: SourceSpec) -> BroadcastSource | ShuffleSource:
        """Broadcast a source that one task can hold, and shuffle any other."""
        if source.staged is None:
            self.persisted.append(source.frame)
        elif source.staged.size <= self._broadcast_limit:
            return BroadcastSource(self, source.staged, source.stats, spec)
        return ShuffleSource(self, source, spec)


class _TaskEngine(LocalEngine):
    """`merganser.core.model.engine.Engine` within one task."""

    name = SparkEngine.name

    def open(self, source: Any) -> OpenedSource:
        raise NotImplementedError  # the source is staged before the task begins


def _run_merge(work: Callable[[Engine, ConformedSource], ResultT], staged: StagedSource, spec: SourceSpec) -> ResultT:
    return work(_TaskEngine(), ArrowSource(align_chunks(staged.read_table()), spec))
