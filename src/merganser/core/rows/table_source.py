"""What engines share whose source rows are an Arrow table: facts, matches, and the verbs that follow from them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.take import take
from merganser.core.columnar.threads import WORKERS, map_in_threads, open_pool
from merganser.core.model.engine import SAMPLE_SIZE, MatchCounts, RewriteJob, SourceFacts
from merganser.core.model.keys import (
    SOURCE_ROW,
    count_nan_keys,
    count_null_keys,
    drop_duplicate_rows,
    find_duplicate_keys,
    find_latest_rows,
    number_rows,
    to_canonical_keys,
)
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows, list_inserted_rows
from merganser.core.rows.bounds import might_match
from merganser.core.rows.clause_rows import load_values
from merganser.core.rows.key_scan import match_keys
from merganser.core.rows.match_actions import assign_actions, check_new_rows, find_excluded_rows
from merganser.core.rows.matches import Matches
from merganser.core.rows.ordered_rows import fold_keys, fold_spec
from merganser.core.rows.rewrite import GroupChange, rewrite_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.engine import (
        AppendedFile,
        AuditSpec,
        ConformedSource,
        Layout,
        RewrittenFile,
        ScanFile,
        SourceSpec,
        TargetSize,
    )
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging

    StagedFiles = tuple[list[RewrittenFile], list[AppendedFile]]


class LocalEngine:
    """Runs the tasks of `merganser.core.model.engine.Engine` in this process."""

    def run_tasks(
        self,
        task: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        *,
        large: bool = False,  # noqa: ARG002  there is one place only
        in_driver: bool = True,  # noqa: ARG002  as above
    ) -> list[ResultT]:
        return map_in_threads(task, items)

    def run_merge(
        self,
        work: Callable[[Self, ConformedSource], ResultT],
        source: ConformedSource,
        target: TargetSize,  # noqa: ARG002  as above
    ) -> ResultT:
        return work(self, source)


class OpenedRows:
    """The columns and order of a source in Arrow memory."""

    is_ordered = True
    unique_columns: Sequence[str] = ()

    def __init__(self, rows: pa.Table | pa.RecordBatchReader) -> None:
        self.rows = rows

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def derive(self, derived: DerivedColumns) -> Self:
        other = copy(self)
        other.rows = derive_rows(self.rows, derived)
        return other


def derive_rows(rows: pa.Table | pa.RecordBatchReader, derived: DerivedColumns) -> pa.Table | pa.RecordBatchReader:
    """Compute other columns from those of rows in memory, or of a stream."""
    if isinstance(rows, pa.Table):
        return derived.derive(rows.select(derived.inputs))
    return pa.RecordBatchReader.from_batches(
        derived.schema, (derived.derive_batch(batch.select(derived.inputs)) for batch in rows)
    )


class TableSource:
    """The verbs of `merganser.core.model.engine.ConformedSource` that every source in an Arrow table has."""

    def __init__(self, rows: pa.Table, spec: SourceSpec) -> None:
        self.rows = rows
        self.spec = spec

    def hash_keys(self) -> Hashes:
        return hash_keys(to_canonical_keys(self.rows, self.spec.keys).columns)

    def match(self, files: Sequence[ScanFile], facts: SourceFacts, missing: Sequence[ScanFile] = ()) -> TableMatches:
        repeats = facts.repeated_keys > 0
        if not files and not missing:
            if repeats:
                check_new_rows(self.rows, self.spec, make_unmatched(self.rows, self.spec.policy).new)
            counts = MatchCounts.of_unmatched(facts, self.spec.policy.rule)
            return TableMatches(self.rows, self.spec, facts.partitions, None, counts)
        matches = self.find_matches(files) if files else make_unmatched(self.rows, self.spec.policy)
        found, counts = assign_actions(self.rows, self.spec, matches, files, facts.partitions, missing, repeats=repeats)
        if repeats:
            check_new_rows(self.rows, self.spec, found.new)
        return TableMatches(self.rows, self.spec, facts.partitions, found, counts)

    def find_matches(self, files: Sequence[ScanFile]) -> Matches:
        found = find_matches(self.rows, self.spec, files)
        if self.spec.policy.rule.inserts:
            is_new = np.ones(self.rows.num_rows, np.bool_)
            is_new[found.source_row] = False
            found = replace(found, new=np.flatnonzero(is_new))
        return found


class ArrowSource(TableSource):
    """`merganser.core.model.engine.ConformedSource` on an Arrow table."""

    def deduplicate(self, order_by: Sequence[str]) -> ArrowSource:
        return ArrowSource(take(self.rows, find_latest_rows(self.rows, self.spec.keys, order_by)), self.spec)

    def fold_keys(self, *, is_ordered: bool) -> ArrowSource:
        spec = fold_spec(self.spec)
        folded = fold_keys(self.rows, self.spec, is_ordered=is_ordered)
        return ArrowSource(pa.Table.from_batches(folded, spec.schema), spec)

    def find_duplicate_keys(self) -> tuple[int, pa.Table]:
        return find_duplicate_keys(self.rows, self.spec.keys, SAMPLE_SIZE)

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        rows, policy = self.rows, self.spec.policy
        return collect_key_facts(rows, self.spec, bounds).to_source_facts(
            rows=rows.num_rows,
            excluded_rows=int(find_excluded_rows(rows, policy).sum()),
            null_keys=count_null_keys(rows, self.spec.keys),
            nan_keys=count_nan_keys(rows, self.spec.keys),
            columns_with_nulls=find_null_columns(rows, policy),
        )


@dataclass(frozen=True, slots=True)
class TableMatches:
    """The verbs of `merganser.core.model.engine.MatchedSource` on an Arrow table; None if no file was matched."""

    rows: pa.Table
    spec: SourceSpec
    partitions: pa.Table
    matches: Matches | None
    counts: MatchCounts

    def stage(self, jobs: Sequence[RewriteJob], layout: Layout | None, staging: Staging) -> StagedFiles:
        # One file uses every worker for its row groups; many files use one each.
        workers = max(1, WORKERS // len(jobs)) if jobs else 1
        with open_pool(len(jobs), WORKERS, "rewrite") as pool:
            rewrite = partial(rewrite_rows, self.rows, self.matches, self.spec.policy, staging=staging, workers=workers)
            rewritten = list(pool.map(rewrite, jobs))
        if layout is None:
            return rewritten, []
        return rewritten, append_rows(self.rows, self._get_matches().appended_rows, layout, self.partitions, staging)

    def audit(self, files: Sequence[ScanFile], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:
        matches = self._get_matches()
        changed = (list_changed_rows(self.rows, self.spec, matches, scan, audit) for scan in files)
        inserted = list_inserted_rows(self.rows, matches.new, audit)
        return keep_tables(chain(inserted, chain.from_iterable(changed)), audit, staging)

    def _get_matches(self) -> Matches:
        return make_unmatched(self.rows, self.spec.policy) if self.matches is None else self.matches


def make_unmatched(rows: pa.Table, policy: MergePolicy) -> Matches:
    """Make the matches of a source that matches nothing: every row is new, unless it is not to be inserted."""
    return Matches.of_new(np.flatnonzero(~find_excluded_rows(rows, policy)) if policy.rule.inserts else np.arange(0))


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """The `SourceFacts` that depend on all keys together."""

    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]

    def to_source_facts(
        self,
        *,
        rows: int,
        excluded_rows: int,
        null_keys: Mapping[str, int],
        nan_keys: Mapping[str, int],
        columns_with_nulls: frozenset[str],
    ) -> SourceFacts:
        return SourceFacts(
            rows=rows,
            excluded_rows=excluded_rows,
            null_keys=null_keys,
            nan_keys=nan_keys,
            columns_with_nulls=columns_with_nulls,
            partitions=self.partitions,
            candidates=self.candidates,
        )


def collect_key_facts(rows: pa.Table, spec: SourceSpec, bounds: pa.Table | None) -> KeyFacts:
    """Collect the facts that depend on all keys together."""
    keys, columns = spec.keys, list(spec.partition_columns)
    partitions = drop_delete_rows(rows.select(columns), rows, spec.policy)
    if columns:
        partitions = drop_duplicate_rows(partitions)
    candidates = np.zeros(0, np.bool_) if bounds is None else might_match(bounds, to_canonical_keys(rows, keys))
    return KeyFacts(partitions, candidates)


def drop_delete_rows(columns: pa.Table, rows: pa.Table, policy: MergePolicy) -> pa.Table:
    """Drop the rows that delete from some columns of the source."""
    return columns if policy.delete_column is None else columns.filter(pc.invert(rows.column(policy.delete_column)))


def find_null_columns(rows: pa.Table, policy: MergePolicy) -> frozenset[str]:
    """Find the columns that are NULL in a row that does not delete."""
    nulls = [name for name in rows.column_names if rows.column(name).null_count]
    return frozenset(name for name in nulls if drop_delete_rows(rows.select([name]), rows, policy).column(0).null_count)


def find_matches(rows: pa.Table, spec: SourceSpec, files: Sequence[ScanFile]) -> Matches:
    """Find every target row that has a source key; source rows that match none are left out."""
    source = to_canonical_keys(rows, spec.keys).append_column(SOURCE_ROW, number_rows(rows.num_rows))
    found = match_keys(spec.store, files, spec.keys, source)
    file, group, position, row = (column.to_numpy() for column in found.columns)
    return Matches.from_positions(file, group, position, row, np.arange(0))


def rewrite_rows(
    rows: pa.Table,
    matches: Matches | None,
    policy: MergePolicy,
    job: RewriteJob,
    *,
    staging: Staging,
    workers: int = WORKERS,
) -> RewrittenFile:
    """Stage one file with its matched rows replaced, kept or removed."""
    changes: dict[int, GroupChange | None] = dict.fromkeys(job.dropped_groups)
    store, staged = staging.location.store, staging.make_path()
    has_clauses = policy.matched is not None or policy.missing is not None
    columns = job.columns if has_clauses else job.columns & {*rows.column_names}
    if matches is not None:
        for group in job.groups:
            found = matches.select(matches.find_group(job.number, group))
            replaced, kept = found.is_replaced, found.action == Action.KEEP
            load_rows = partial(load_values, store, policy, rows, found.select(replaced), job)
            removed, stay = found.position[~(replaced | kept)], None if job.keeps_missing else found.position[kept]
            changes[group] = GroupChange(found.position[replaced], columns, load_rows, removed, stay)
    done = rewrite_file(store, job.path, staged, changes, workers, job.footer, job.shape)
    staging.on_file_done()
    return done
