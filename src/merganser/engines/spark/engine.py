"""The Spark engine: rows on executors, counts to the driver.

What crosses the network, stage by stage:

- footers of more than `FEW` files: what planning needs of them, to the driver; filters of keys likewise;
- the source, once, from wherever it is to the staging folder, where every later stage reads it;
- bounds of row groups to the tasks that test them, a bit for each back;
- source rows that are new or that replace others, to the one task that writes their file;
- counts and names of staged files to the driver.

A source of up to `NEAR` bytes is read from the staging folder by every task that needs it (`near`). For a larger one
(`far`), Spark also shuffles its keys, each with twelve bytes that say which row it is of, and the key columns of target
rows that might match. No other column of the target ever leaves the task that reads it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.threads import in_threads
from merganser.engines.spark.broadcast import Near
from merganser.engines.spark.jobs import spread
from merganser.engines.spark.shuffle import Far
from merganser.engines.spark.source import open_source, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import Answer, Item
    from merganser.core.model.engine import (
        Appended,
        AuditTerms,
        Layout,
        MatchCounts,
        RewriteJob,
        Rewritten,
        ScanFile,
        SourceFacts,
    )
    from merganser.core.model.strategy import Terms
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.execution import Way
    from merganser.engines.spark.source import Given, Source

# Bytes of source rows that each task may hold.
NEAR = 64 << 20
# Files whose footers the driver reads by itself, and those that one task reads where they are more.
FEW = 2000
_CHUNK = 500
_FEW_LARGE = 4


class SparkEngine:
    """The verbs of `merganser.core.model.engine.Engine` as Spark jobs."""

    name = "spark"

    def __init__(self, spark: SparkSession, near: int = NEAR) -> None:
        self._spark = spark
        self._near = near
        self._ways: list[Way[Any]] = []

    def close(self) -> None:
        """Let go of what Spark keeps for this call."""
        for way in self._ways:
            # A session that is gone has let go already; what the call has done or refused is what counts.
            with suppress(Exception):
                way.close()

    def open(self, source: Any) -> Given:
        return open_source(self._spark, source)

    def schema(self, given: Given) -> pa.Schema:
        return given.schema

    def ordered(self, given: Given) -> bool:
        return given.ordered

    def each(self, task: Callable[[Item], Answer], items: Sequence[Item], *, large: bool = False) -> list[Answer]:
        few, size = (_FEW_LARGE, 1) if large else (FEW, _CHUNK)
        if len(items) <= few:
            return in_threads(task, items)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        return [answer for found in spread(self._spark, partial(in_threads, task), chunks) for answer in found]

    def conform(self, given: Given, schema: pa.Schema, staging: Staging | None) -> Way[Any]:
        return self._way(stage(self._spark, given, schema, staging))

    def _way(self, source: Source) -> Way[Any]:
        parts, staging = source.parts, source.staging
        if parts is not None and staging is not None and parts.size <= self._near:
            return Near(self._spark, source, parts, staging)
        way = Far(self._spark, source)
        self._ways.append(way)
        return way

    def deduplicate(self, handle: Way[Any], keys: Sequence[str], order_by: Sequence[str]) -> Way[Any]:
        return self._way(handle.deduplicate(keys, order_by))

    def facts(
        self,
        handle: Way[Any],
        keys: Sequence[str],
        partition_columns: Sequence[str],
        bounds: pa.Table | None,
        terms: Terms,
    ) -> SourceFacts:
        profile = handle.source.profile
        missing = {key: profile.nulls.get(key, 0) + profile.nans.get(key, 0) for key in keys}
        null_keys = {key: count for key, count in missing.items() if count}
        facts = handle.facts(keys, partition_columns, bounds, terms)
        return facts.told(profile.rows, profile.deletes, null_keys, profile.lacking)

    def hashes(self, handle: Way[Any], keys: Sequence[str]) -> Hashes:
        return handle.hashes(keys)

    def match(
        self,
        handle: Way[Any],
        keys: Sequence[str],
        store: Store,
        files: Sequence[ScanFile],
        partitions: pa.Table,
        terms: Terms,
    ) -> tuple[Any, MatchCounts]:
        return handle.match(keys, store, files, partitions, terms)

    def stage(
        self,
        handle: Way[Any],
        matches: Any | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        terms: Terms,
    ) -> tuple[list[Rewritten], list[Appended]]:
        return handle.stage(matches, jobs, layout, partitions, staging, terms)

    def audit(
        self,
        handle: Way[Any],
        matches: Any | None,
        files: Sequence[ScanFile],
        audit: AuditTerms,
        staging: Staging,
        terms: Terms,
    ) -> list[pa.Table | str]:
        return handle.audit(matches, files, audit, staging, terms)
