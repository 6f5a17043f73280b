"""How a staged source is worked on; the two ways are `near` and `far`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from merganser.core.model.engine import MatchesT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import (
        AppendedFile,
        AuditSpec,
        Layout,
        MatchCounts,
        RewriteJob,
        RewrittenFile,
        ScanFile,
    )
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.rows.table_engine import KeyFacts
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Source


class ExecutionMode(ABC, Generic[MatchesT]):
    """The verbs of `merganser.core.model.engine.Engine` that look at rows."""

    def __init__(self, spark: SparkSession, source: Source) -> None:
        self._spark = spark
        self.source = source

    def close(self) -> None:
        """Let go of what Spark keeps in memory."""

    @abstractmethod
    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        """Stage the one row of each key that counts."""

    @abstractmethod
    def collect_facts(
        self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, policy: MergePolicy
    ) -> KeyFacts:
        """Look at all keys together."""

    @abstractmethod
    def hash_keys(self, keys: Sequence[str]) -> Hashes:
        """Hash the keys of a source of few rows."""

    @abstractmethod
    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, policy: MergePolicy
    ) -> tuple[MatchesT, MatchCounts]:
        """Find every target row whose key is a source key, and what happens to it."""

    @abstractmethod
    def stage(
        self,
        matches: MatchesT | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        """Stage replacements and new files."""

    @abstractmethod
    def audit(
        self,
        matches: MatchesT | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        """List every row changed."""
