"""The execution mode for a source that one task can hold: each verb is one stage, whose tasks read the staged source.

No row is shuffled and none passes through Spark's own memory; tasks call what the PyArrow engine calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.take import align_chunks, take
from merganser.core.model.engine import SAMPLE_SIZE, AppendedFile, MatchCounts, SourceFacts
from merganser.core.model.keys import SOURCE_ROW, find_duplicate_keys, find_latest_rows, to_canonical_keys
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows, list_inserted_rows
from merganser.core.rows.clause_rows import list_value_columns
from merganser.core.rows.key_scan import POSITION_COLUMNS
from merganser.core.rows.match_actions import assign_actions, check_new_rows, find_excluded_rows, list_compared_columns
from merganser.core.rows.matches import Matches
from merganser.core.rows.ordered_rows import fold_keys, fold_spec
from merganser.core.rows.table_source import collect_key_facts, find_matches, make_unmatched, rewrite_rows
from merganser.engines.spark.columns import ACTION
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.progress import report_staged_files
from merganser.engines.spark.source import find_stats, make_source
from merganser.engines.spark.staged_source import SourceSchemas, StagedSource, write_staged_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import AuditSpec, Layout, RewriteJob, RewrittenFile, ScanFile, SourceSpec
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.rows.table_source import KeyFacts, StagedFiles
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.engine import SparkEngine
    from merganser.engines.spark.shuffle import ShuffleSource
    from merganser.engines.spark.staged_source import SourceStats, StagedFile

    # The files of one task: those to be matched, and those with rows that may change without a match.
    _Chunk = tuple[list[ScanFile], list[ScanFile]]

# Rows of target keys that one task reads.
_ROWS_PER_TASK = 4_000_000


class BroadcastSource:
    """`merganser.core.model.engine.ConformedSource` whose tasks read the entire source."""

    def __init__(self, engine: SparkEngine, staged: StagedSource, stats: SourceStats | None, spec: SourceSpec) -> None:
        self._engine = engine
        self._stats = stats
        self.staged = staged
        self.spec = spec

    def deduplicate(self, order_by: Sequence[str]) -> BroadcastSource | ShuffleSource:
        spark = self._engine.spark
        (files,) = self.run([partial(_keep_latest, order_by)], "deduplicate rows")
        return self._engine.choose_mode(make_source(spark, self.staged.with_files(files)), self.spec)

    def fold_keys(self, *, is_ordered: bool) -> BroadcastSource | ShuffleSource:
        (files,) = self.run([partial(_fold_keys, is_ordered)], "order rows")
        spec = fold_spec(self.spec)
        staged = StagedSource(self.staged.staging, SourceSchemas(spec.schema, spec.schema), tuple(files))
        return self._engine.choose_mode(make_source(self._engine.spark, staged), spec)

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        (found,) = self.run([partial(_compute_key_facts, bounds)], "check rows")
        self._stats = self._stats or find_stats(self._engine.spark, self.staged)
        return self._stats.to_source_facts(found, self.spec.keys)

    def find_duplicate_keys(self) -> tuple[int, pa.Table]:
        return self.run([_find_duplicate_keys], "check keys")[0]  # type: ignore[no-any-return]

    def hash_keys(self) -> Hashes:
        return self.run([_hash_source_keys], "hash keys")[0]  # type: ignore[no-any-return]

    def match(
        self, files: Sequence[ScanFile], facts: SourceFacts, missing: Sequence[ScanFile] = ()
    ) -> BroadcastMatches:
        inserts = self.spec.policy.rule.inserts
        repeats = facts.repeated_keys > 0
        if not files and not missing:
            if repeats:
                self.run([partial(_check_new_rows, None)], "check keys")
            counts = MatchCounts.of_unmatched(facts, self.spec.policy.rule)
            return BroadcastMatches(self, facts.partitions, None, counts)
        chunks = list(_chunk_files(files, missing))
        task = partial(_match, self.staged, self.spec, facts.partitions, repeats)
        found: list[_TaskMatches] = run_tasks(self._engine.spark, task, chunks, "match keys")
        new = np.packbits(np.ones(self.staged.rows if inserts else 0, np.bool_))
        paths: dict[int, str] = {}
        for chunk, one in zip(chunks, found, strict=True):
            paths |= {scan.number: one.path for scan in chain(*chunk)}
            if inserts:
                new &= ~one.matched_bitmap
        counts = _add_counts(found, new_rows=int(np.unpackbits(new).sum()))
        if repeats:
            self.run([partial(_check_new_rows, new)], "check keys")
        return BroadcastMatches(self, facts.partitions, StagedMatches(paths, new, counts.moved), counts)

    def run(self, tasks: Sequence[Callable[[StagedSource, SourceSpec], Any]], name: str) -> list[Any]:
        return run_tasks(self._engine.spark, partial(_run_on_source, self.staged, self.spec), tasks, name)


@dataclass(frozen=True, slots=True)
class StagedMatches:
    """The staged matches of each file, a bitmap of the source rows that are new, and the number of moved matches."""

    paths: Mapping[int, str]
    new_bitmap: npt.NDArray[np.uint8]
    moved: int


@dataclass(frozen=True, slots=True)
class BroadcastMatches:
    """`merganser.core.model.engine.MatchedSource` whose tasks read the entire source, and the matches of their file."""

    source: BroadcastSource
    partitions: pa.Table
    matches: StagedMatches | None
    counts: MatchCounts

    def stage(self, jobs: Sequence[RewriteJob], layout: Layout | None, staging: Staging) -> StagedFiles:
        # An empty path: no match in this file. None: no file was matched.
        paths = [None if self.matches is None else self.matches.paths.get(job.number, "") for job in jobs]
        tasks: list[Any] = [partial(_rewrite, job, path) for job, path in zip(jobs, paths, strict=True)]
        if layout is not None:
            tasks.append(partial(_append, self.matches, layout, self.partitions))
        with report_staged_files(staging, len(tasks)):
            found = self.source.run(tasks, "write files")
        return found[: len(jobs)], [one for more in found[len(jobs) :] for one in more]

    def audit(self, files: Sequence[ScanFile], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:  # noqa: ARG002  the staged source has it
        paths = {} if self.matches is None else self.matches.paths
        tasks: list[Any] = [partial(_list_inserted, self.matches, audit)]
        tasks += [partial(_list_changed, scan, paths.get(scan.number, ""), audit) for scan in files]
        return [one for several in self.source.run(tasks, "list changed rows") for one in several]


def _add_counts(found: Sequence[_TaskMatches], new_rows: int) -> MatchCounts:
    counts = [one.counts for one in found]
    first = np.unique(np.concatenate([one.moved_rows for one in found]), return_index=True)[1][:SAMPLE_SIZE]
    return MatchCounts(
        file=np.concatenate([one.file for one in counts]),
        row_group=np.concatenate([one.row_group for one in counts]),
        rows=np.concatenate([one.rows for one in counts]),
        replaced=np.concatenate([one.replaced for one in counts]),
        removed=np.concatenate([one.removed for one in counts]),
        new_rows=new_rows,
        moved=sum(one.moved for one in counts),
        moved_sample=pa.concat_tables([one.moved_sample for one in counts]).take(pa.array(first)),
    )


def _run_on_source(staged: StagedSource, spec: SourceSpec, task: Callable[[StagedSource, SourceSpec], Any]) -> Any:
    return task(staged, spec)


def _keep_latest(order_by: Sequence[str], staged: StagedSource, spec: SourceSpec) -> list[StagedFile]:
    rows = find_latest_rows(staged.read_table(dict.fromkeys([*spec.keys, *order_by])), spec.keys, order_by)
    kept = take(align_chunks(staged.read_transport_rows()), rows)
    return list(write_staged_files(kept.to_batches(), staged.schemas, staged.staging))


def _fold_keys(
    is_ordered: bool,  # noqa: FBT001  tasks get theirs by position
    staged: StagedSource,
    spec: SourceSpec,
) -> list[StagedFile]:
    schema = fold_spec(spec).schema
    folded = fold_keys(align_chunks(staged.read_table()), spec, is_ordered=is_ordered)
    return list(write_staged_files(folded, SourceSchemas(schema, schema), staged.staging))


def _compute_key_facts(bounds: pa.Table | None, staged: StagedSource, spec: SourceSpec) -> KeyFacts:
    names = _collect_names(*spec.keys, *spec.partition_columns, spec.policy.flag_column)
    return collect_key_facts(align_chunks(staged.read_table(names)), spec, bounds)


def _find_duplicate_keys(staged: StagedSource, spec: SourceSpec) -> tuple[int, pa.Table]:
    return find_duplicate_keys(staged.read_table(spec.keys), spec.keys, SAMPLE_SIZE)


def _check_new_rows(new_bitmap: npt.NDArray[np.uint8] | None, staged: StagedSource, spec: SourceSpec) -> None:
    """Refuse several new rows with one key; without a bitmap, nothing was matched."""
    rows = align_chunks(staged.read_table(_collect_names(*spec.keys, spec.policy.flag_column)))
    unmatched = make_unmatched(rows, spec.policy).new
    check_new_rows(rows, spec, unmatched if new_bitmap is None else np.flatnonzero(np.unpackbits(new_bitmap)))


def _hash_source_keys(staged: StagedSource, spec: SourceSpec) -> Hashes:
    return hash_keys(to_canonical_keys(staged.read_table(spec.keys), spec.keys).columns)


def _collect_names(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True, slots=True)
class _TaskMatches:
    """What one task has found: counts for the driver, and the path of the matches for tasks that rewrite."""

    path: str
    counts: MatchCounts
    moved_rows: npt.NDArray[np.int64]
    # The source rows that match or are excluded, so that they are not new; empty where the rule does not insert.
    matched_bitmap: npt.NDArray[np.uint8]


def _chunk_files(files: Sequence[ScanFile], missing: Sequence[ScanFile]) -> Iterator[_Chunk]:
    """Divide files among tasks; what is read for matches and for missing rows of a file is read by one task."""
    sides = [{file.number: file for file in some} for some in (files, missing)]
    chunk: _Chunk = [], []
    rows = 0
    for number in sorted({*sides[0], *sides[1]}):
        for scans, side in zip(chunk, sides, strict=True):
            if number in side:
                scans.append(side[number])
                rows += sum(after - first for first, after in side[number].spans)
        if rows >= _ROWS_PER_TASK:
            yield chunk
            chunk, rows = ([], []), 0
    if chunk != ([], []):
        yield chunk


def _match(
    staged: StagedSource,
    spec: SourceSpec,
    partitions: pa.Table,
    repeats: bool,  # noqa: FBT001  tasks get theirs by position
    chunk: _Chunk,
) -> _TaskMatches:
    (files, missing), policy = chunk, spec.policy
    compared = list_compared_columns(staged.schemas.target.names, spec.keys, policy)
    names = _collect_names(*spec.keys, *partitions.column_names, policy.flag_column, *compared)
    rows = align_chunks(staged.read_table(names))
    found = find_matches(rows, spec, files) if files else Matches.of_new(np.arange(0))
    matched = find_excluded_rows(rows, policy) if policy.rule.inserts else np.zeros(0, np.bool_)
    if policy.rule.inserts:
        matched = matched.copy()
        matched[found.source_row] = True
    matches, counts = assign_actions(rows, spec, found, files, partitions, missing, repeats=repeats)
    moved = np.unique(matches.source_row[matches.action == Action.MOVE])[:SAMPLE_SIZE]
    return _TaskMatches(_write_matches(staged.staging, matches), counts, moved, np.packbits(matched))


def _write_matches(staging: Staging, matches: Matches) -> str:
    path = staging.make_path()
    columns = [matches.file, matches.row_group, matches.position, matches.source_row, matches.action]
    table = pa.table([pa.array(column) for column in columns], names=[*POSITION_COLUMNS, SOURCE_ROW, ACTION])
    with staging.location.store.create(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    return path


def _read_matches(staging: Staging, paths: Sequence[str], new: npt.NDArray[np.int64]) -> Matches:
    tables = []
    for path in filter(None, paths):
        with staging.location.store.open_input(path) as stream:
            tables.append(pa.ipc.open_file(stream).read_all())
    if not tables:
        return Matches.of_new(new)
    file, group, position, row, action = (column.to_numpy() for column in pa.concat_tables(tables).columns)
    return Matches(file=file, row_group=group, position=position, source_row=row, action=action, new=new)


def _rewrite(job: RewriteJob, path: str | None, staged: StagedSource, spec: SourceSpec) -> RewrittenFile:
    names = list_value_columns(staged.schemas.target.names, spec.policy, job.columns)
    matches = None if path is None else _read_matches(staged.staging, [path], np.arange(0))
    rows = align_chunks(staged.read_table(names))
    return rewrite_rows(rows, matches, spec.policy, job, staging=staged.staging)


def _append(
    matches: StagedMatches | None, layout: Layout, partitions: pa.Table, staged: StagedSource, spec: SourceSpec
) -> list[AppendedFile]:
    rows = align_chunks(staged.read_table())
    appended = _read_appended(matches, rows, staged.staging, spec.policy).appended_rows
    return append_rows(rows, appended, layout, partitions, staged.staging)


def _read_appended(matches: StagedMatches | None, rows: pa.Table, staging: Staging, policy: MergePolicy) -> Matches:
    if matches is None:
        return make_unmatched(rows, policy)
    new = np.flatnonzero(np.unpackbits(matches.new_bitmap))
    return _read_matches(staging, list(dict.fromkeys(matches.paths.values())) if matches.moved else [], new)


def _list_inserted(
    matches: StagedMatches | None, audit: AuditSpec, staged: StagedSource, spec: SourceSpec
) -> list[pa.Table | str]:
    rows = align_chunks(staged.read_table(_list_audit_columns(audit, staged, spec)))
    new = _read_appended(matches, rows, staged.staging, spec.policy).new
    return keep_tables(list_inserted_rows(rows, new, audit), audit, staged.staging)


def _list_changed(
    scan: ScanFile, path: str, audit: AuditSpec, staged: StagedSource, spec: SourceSpec
) -> list[pa.Table | str]:
    rows = align_chunks(staged.read_table(_list_audit_columns(audit, staged, spec)))
    matches = _read_matches(staged.staging, [path], np.arange(0))
    return keep_tables(list_changed_rows(rows, spec, matches, scan, audit), audit, staged.staging)


def _list_audit_columns(audit: AuditSpec, staged: StagedSource, spec: SourceSpec) -> list[str]:
    """List the source columns that an audit needs, and the one that decides which rows are not inserted."""
    names, policy = staged.schemas.target.names, spec.policy
    values = list_value_columns(names, policy, {*audit.columns})
    return _collect_names(*(name for name in audit.columns if name in names), *values, policy.flag_column)
