"""The way for a source that one task can hold: each verb is one stage, whose tasks read the staged source themselves.

No row is shuffled and none passes through Spark's own memory; tasks call what the PyArrow engine calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.take import align_chunks, take
from merganser.core.model.engine import SAMPLE_SIZE, MatchCounts
from merganser.core.model.keys import SOURCE_ROW, find_latest_rows, to_canonical_keys
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows, list_inserted_rows
from merganser.core.rows.key_scan import POSITION_COLUMNS
from merganser.core.rows.match_actions import assign_actions, find_delete_rows, list_compared_columns
from merganser.core.rows.matches import Matches
from merganser.core.rows.table_engine import collect_key_facts, find_matches, make_unmatched, rewrite_rows
from merganser.engines.spark.execution import ExecutionMode
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.progress import report_staged_files
from merganser.engines.spark.source import make_source
from merganser.engines.spark.staged_source import StagedSource, write_staged_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import AppendedFile, AuditSpec, Layout, RewriteJob, RewrittenFile, ScanFile
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.rows.table_engine import KeyFacts
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Source
    from merganser.engines.spark.staged_source import StagedFile

# Rows of target keys that one task reads.
_ROWS_PER_TASK = 4_000_000


@dataclass(frozen=True, slots=True)
class BroadcastMatches:
    """Where the matches of each file are staged, which source rows are new, a bit each, and how many matches move."""

    paths: Mapping[int, str]
    new_bitmap: npt.NDArray[np.uint8]
    moved: int


class BroadcastMode(ExecutionMode[BroadcastMatches]):
    """Tasks that read the whole source."""

    def __init__(self, spark: SparkSession, source: Source, staged_source: StagedSource, staging: Staging) -> None:
        super().__init__(spark, source)
        self._staged = staged_source
        self._staging = staging

    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        kept = tuple(self._run_once(_keep_latest, keys, order_by, self._staging))
        return make_source(self._spark, StagedSource(self._staged.store, self._staged.schemas, kept), self._staging)

    def collect_facts(
        self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, policy: MergePolicy
    ) -> KeyFacts:
        found: KeyFacts = self._run_once(_compute_key_facts, keys, partition_columns, bounds, policy)
        return found

    def hash_keys(self, keys: Sequence[str]) -> Hashes:
        found: Hashes = self._run_once(_hash_source_keys, keys)
        return found

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, policy: MergePolicy
    ) -> tuple[BroadcastMatches, MatchCounts]:
        chunks = list(_chunk_files(files))
        task = partial(_match, self._staged, keys, store, partitions, policy, self._staging)
        found: list[_TaskMatches] = run_tasks(self._spark, task, chunks)
        new = np.packbits(np.ones(self._staged.rows if policy.rule.inserts else 0, np.bool_))
        paths: dict[int, str] = {}
        for chunk, one in zip(chunks, found, strict=True):
            paths |= {scan.number: one.path for scan in chunk}
            if policy.rule.inserts:
                new &= ~one.matched_bitmap
        counts = [one.counts for one in found]
        first = np.unique(np.concatenate([one.moved_rows for one in found]), return_index=True)[1][:SAMPLE_SIZE]
        sample = pa.concat_tables([one.moved_sample for one in counts]).take(pa.array(first))
        moved = sum(one.moved for one in counts)
        together = MatchCounts(
            np.concatenate([one.file for one in counts]),
            np.concatenate([one.row_group for one in counts]),
            np.concatenate([one.rows for one in counts]),
            np.concatenate([one.replaced for one in counts]),
            np.concatenate([one.removed for one in counts]),
            int(np.unpackbits(new).sum()),
            moved,
            sample,
        )
        return BroadcastMatches(paths, new, moved), together

    def stage(
        self,
        matches: BroadcastMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        # No path is no match in this file, none at all is no match in any.
        paths = [None if matches is None else matches.paths.get(job.number, "") for job in jobs]
        orders: list[Any] = [partial(_rewrite, job, path) for job, path in zip(jobs, paths, strict=True)]
        if layout is not None:
            orders.append(partial(_append, matches, layout, partitions, policy))
        with report_staged_files(staging, len(orders)):
            found = run_tasks(self._spark, partial(_run_task, self._staged, staging), orders)
        return found[: len(jobs)], [one for more in found[len(jobs) :] for one in more]

    def audit(
        self,
        matches: BroadcastMatches | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        paths = {} if matches is None else matches.paths
        orders: list[Any] = [partial(_list_inserted, matches, audit, policy)]
        orders += [partial(_list_changed, scan, paths.get(scan.number, ""), audit, policy) for scan in files]
        found = run_tasks(self._spark, partial(_run_task, self._staged, staging), orders)
        return [one for several in found for one in several]

    def _run_once(self, task: Any, *arguments: Any) -> Any:
        """Run a task in one place."""
        (found,) = run_tasks(self._spark, partial(_apply_arguments, task, self._staged), [arguments])
        return found


def _apply_arguments(task: Any, staged_source: StagedSource, arguments: Sequence[Any]) -> Any:
    return task(staged_source, *arguments)


def _keep_latest(
    staged_source: StagedSource, keys: Sequence[str], order_by: Sequence[str], staging: Staging
) -> list[StagedFile]:
    rows = find_latest_rows(staged_source.read_table(dict.fromkeys([*keys, *order_by])), keys, order_by)
    kept = take(align_chunks(staged_source.read_transport_rows()), rows)
    return list(write_staged_files(kept.to_batches(), staged_source.schemas, staging))


def _compute_key_facts(
    staged_source: StagedSource,
    keys: Sequence[str],
    partition_columns: Sequence[str],
    bounds: pa.Table | None,
    policy: MergePolicy,
) -> KeyFacts:
    table = align_chunks(staged_source.read_table(_collect_names(*keys, *partition_columns, policy.delete_column)))
    return collect_key_facts(table, keys, partition_columns, bounds, policy)


def _hash_source_keys(staged_source: StagedSource, keys: Sequence[str]) -> Hashes:
    return hash_keys(to_canonical_keys(staged_source.read_table(keys), keys).columns)


def _collect_names(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True, slots=True)
class _TaskMatches:
    """What one task has found: counts for the driver, positions for those who rewrite."""

    path: str
    counts: MatchCounts
    moved_rows: npt.NDArray[np.int64]
    # Which source rows match, or delete, so that they are not new, a bit each; where new rows do not count, none.
    matched_bitmap: npt.NDArray[np.uint8]


def _chunk_files(files: Sequence[ScanFile]) -> Iterator[list[ScanFile]]:
    chunk: list[ScanFile] = []
    rows = 0
    for file in files:
        chunk.append(file)
        rows += sum(after - first for first, after in file.spans)
        if rows >= _ROWS_PER_TASK:
            yield chunk
            chunk, rows = [], 0
    if chunk:
        yield chunk


def _match(
    staged_source: StagedSource,
    keys: Sequence[str],
    store: Store,
    partitions: pa.Table,
    policy: MergePolicy,
    staging: Staging,
    files: Sequence[ScanFile],
) -> _TaskMatches:
    seen = list_compared_columns(staged_source.schemas.target.names, keys, policy)
    table = align_chunks(
        staged_source.read_table(_collect_names(*keys, *partitions.column_names, policy.delete_column, *seen))
    )
    found = find_matches(table, keys, store, files)
    matched = find_delete_rows(table, policy) if policy.rule.inserts else np.zeros(0, np.bool_)
    if policy.rule.inserts:
        matched = matched.copy()
        matched[found.source_row] = True
    matches, counts = assign_actions(table, found, keys, store, files, partitions, policy)
    path = staging.make_path()
    columns = [matches.file, matches.row_group, matches.position, matches.source_row, matches.action]
    places = pa.table([pa.array(column) for column in columns], names=[*POSITION_COLUMNS, SOURCE_ROW, "action"])
    with staging.location.store.create(path) as stream, pa.ipc.new_file(stream, places.schema) as writer:
        writer.write_table(places)
    moved = np.unique(matches.source_row[matches.action == Action.MOVE])[:SAMPLE_SIZE]
    return _TaskMatches(path, counts, moved, np.packbits(matched))


def _read_matches(staging: Staging, paths: Sequence[str], new: npt.NDArray[np.int64]) -> Matches:
    """Read what tasks have found; no path is no match."""
    tables = []
    for path in filter(None, paths):
        with staging.location.store.open_input(path) as stream:
            tables.append(pa.ipc.open_file(stream).read_all())
    if not tables:
        return Matches.of_new(new)
    file, group, position, row, action = (column.to_numpy() for column in pa.concat_tables(tables).columns)
    return Matches(file, group, position, row, action, new)


def _run_task(staged_source: StagedSource, staging: Staging, task: Any) -> Any:
    return task(staged_source, staging)


def _rewrite(job: RewriteJob, path: str | None, staged_source: StagedSource, staging: Staging) -> RewrittenFile:
    table = align_chunks(
        staged_source.read_table([name for name in staged_source.schemas.target.names if name in job.columns])
    )
    matches = None if path is None else _read_matches(staging, [path], np.arange(0))
    return rewrite_rows(table, matches, job, staging)


def _append(
    matches: BroadcastMatches | None,
    layout: Layout,
    partitions: pa.Table,
    policy: MergePolicy,
    staged_source: StagedSource,
    staging: Staging,
) -> list[AppendedFile]:
    table = align_chunks(staged_source.read_table())
    return append_rows(
        table, _read_new_and_moved(matches, table, staging, policy).appended_rows, layout, partitions, staging
    )


def _read_new_and_moved(
    matches: BroadcastMatches | None, table: pa.Table, staging: Staging, policy: MergePolicy
) -> Matches:
    """Give what is new and what moves."""
    if matches is None:
        return make_unmatched(table, policy)
    new = np.flatnonzero(np.unpackbits(matches.new_bitmap))
    return _read_matches(staging, list(dict.fromkeys(matches.paths.values())) if matches.moved else [], new)


def _list_inserted(
    matches: BroadcastMatches | None,
    audit: AuditSpec,
    policy: MergePolicy,
    staged_source: StagedSource,
    staging: Staging,
) -> list[pa.Table | str]:
    table = align_chunks(staged_source.read_table(_list_audit_columns(audit, staged_source, policy)))
    return keep_tables(
        list_inserted_rows(table, _read_new_and_moved(matches, table, staging, policy).new, audit), audit, staging
    )


def _list_changed(
    scan: ScanFile, path: str, audit: AuditSpec, policy: MergePolicy, staged_source: StagedSource, staging: Staging
) -> list[pa.Table | str]:
    table = align_chunks(staged_source.read_table(_list_audit_columns(audit, staged_source, policy)))
    matches = _read_matches(staging, [path], np.arange(0))
    return keep_tables(list_changed_rows(table, matches, staging.location.store, scan, audit, policy), audit, staging)


def _list_audit_columns(audit: AuditSpec, staged_source: StagedSource, policy: MergePolicy) -> list[str]:
    """Name the source columns that an audit may list, and the one that says which rows delete."""
    return _collect_names(
        *(name for name in audit.columns if name in staged_source.schemas.target.names), policy.delete_column
    )
