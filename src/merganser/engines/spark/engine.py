"""The Spark engine: rows on executors, counts to the driver.

What crosses the network, stage by stage:

- footers of more than `MAX_DRIVER_FILES` files: what planning needs of them, to the driver; filters of keys likewise;
- the source, once, from wherever it is to the staging folder, where every later stage reads it;
- bounds of row groups to the tasks that test them, a bit for each back;
- source rows that are new or that replace others, to the one task that writes their file;
- counts and names of staged files to the driver.

A source of up to `BROADCAST_LIMIT` bytes is read from the staging folder by every task that needs it (`near`). For a
larger one (`far`), Spark also shuffles its keys, each with twelve bytes that say which row it is of, and the key
columns of target rows that might match. No other column of the target ever leaves the task that reads it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.threads import map_in_threads
from merganser.engines.spark.broadcast import BroadcastMode
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.shuffle import ShuffleMode
from merganser.engines.spark.source import open_source, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.engine import (
        AppendedFile,
        AuditSpec,
        Layout,
        MatchCounts,
        RewriteJob,
        RewrittenFile,
        ScanFile,
        SourceFacts,
    )
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.execution import ExecutionMode
    from merganser.engines.spark.source import OpenedSource, Source

# Bytes of source rows that each task may hold.
BROADCAST_LIMIT = 64 << 20
# Files whose footers the driver reads by itself, and those that one task reads where they are more.
MAX_DRIVER_FILES = 2000
_FILES_PER_TASK = 500
_MAX_DRIVER_LARGE_FILES = 4


class SparkEngine:
    """The verbs of `merganser.core.model.engine.Engine` as Spark jobs."""

    name = "spark"

    def __init__(self, spark: SparkSession, broadcast_limit: int = BROADCAST_LIMIT) -> None:
        self._spark = spark
        self._broadcast_limit = broadcast_limit
        self._modes: list[ExecutionMode[Any]] = []

    def close(self) -> None:
        """Let go of what Spark keeps for this call."""
        for way in self._modes:
            # A session that is gone has let go already; what the call has done or refused is what counts.
            with suppress(Exception):
                way.close()

    def open(self, source: Any) -> OpenedSource:
        return open_source(self._spark, source)

    def read_schema(self, given: OpenedSource) -> pa.Schema:
        return given.schema

    def is_ordered(self, given: OpenedSource) -> bool:
        return given.ordered

    def run_tasks(
        self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, large: bool = False
    ) -> list[ResultT]:
        few, size = (_MAX_DRIVER_LARGE_FILES, 1) if large else (MAX_DRIVER_FILES, _FILES_PER_TASK)
        if len(items) <= few:
            return map_in_threads(task, items)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        return [answer for found in run_tasks(self._spark, partial(map_in_threads, task), chunks) for answer in found]

    def conform(self, given: OpenedSource, schema: pa.Schema, staging: Staging | None) -> ExecutionMode[Any]:
        return self._choose_mode(stage(self._spark, given, schema, staging))

    def _choose_mode(self, source: Source) -> ExecutionMode[Any]:
        parts, staging = source.staged, source.staging
        if parts is not None and staging is not None and parts.size <= self._broadcast_limit:
            return BroadcastMode(self._spark, source, parts, staging)
        way = ShuffleMode(self._spark, source)
        self._modes.append(way)
        return way

    def deduplicate(
        self, handle: ExecutionMode[Any], keys: Sequence[str], order_by: Sequence[str]
    ) -> ExecutionMode[Any]:
        return self._choose_mode(handle.deduplicate(keys, order_by))

    def collect_facts(
        self,
        handle: ExecutionMode[Any],
        keys: Sequence[str],
        partition_columns: Sequence[str],
        bounds: pa.Table | None,
        policy: MergePolicy,
    ) -> SourceFacts:
        profile = handle.source.stats
        missing = {key: profile.null_counts.get(key, 0) + profile.nan_counts.get(key, 0) for key in keys}
        null_keys = {key: count for key, count in missing.items() if count}
        facts = handle.collect_facts(keys, partition_columns, bounds, policy)
        return facts.to_source_facts(profile.rows, profile.deletes, null_keys, profile.columns_with_nulls)

    def hash_keys(self, handle: ExecutionMode[Any], keys: Sequence[str]) -> Hashes:
        return handle.hash_keys(keys)

    def match(
        self,
        handle: ExecutionMode[Any],
        keys: Sequence[str],
        store: Store,
        files: Sequence[ScanFile],
        partitions: pa.Table,
        policy: MergePolicy,
    ) -> tuple[Any, MatchCounts]:
        return handle.match(keys, store, files, partitions, policy)

    def stage(
        self,
        handle: ExecutionMode[Any],
        matches: Any | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        return handle.stage(matches, jobs, layout, partitions, staging, policy)

    def audit(
        self,
        handle: ExecutionMode[Any],
        matches: Any | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        return handle.audit(matches, files, audit, staging, policy)
