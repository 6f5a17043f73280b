"""What engines share whose source rows are an Arrow table: the matches, and the verbs that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.take import take
from merganser.core.columnar.threads import WORKERS, map_in_threads, open_pool
from merganser.core.model.engine import SAMPLE_SIZE, SourceFacts
from merganser.core.model.keys import SOURCE_ROW, find_duplicate_keys, number_rows, to_canonical_keys
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows, list_inserted_rows
from merganser.core.rows.bounds import might_match
from merganser.core.rows.key_scan import match_keys
from merganser.core.rows.match_actions import find_delete_rows
from merganser.core.rows.matches import Matches
from merganser.core.rows.rewrite import GroupChange, rewrite_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.engine import AppendedFile, AuditSpec, Layout, RewriteJob, RewrittenFile, ScanFile
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store


class TableEngine:
    """The verbs that need nothing but an Arrow table and its matches."""

    def read_schema(self, given: pa.Table) -> pa.Schema:
        return given.schema

    def is_ordered(self, given: pa.Table) -> bool:  # noqa: ARG002  a table always is
        return True

    def run_tasks(
        self,
        task: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        *,
        large: bool = False,  # noqa: ARG002  there is one place only
    ) -> list[ResultT]:
        return map_in_threads(task, items)

    def hash_keys(self, handle: pa.Table, keys: Sequence[str]) -> Hashes:
        return hash_keys(to_canonical_keys(handle, keys).columns)

    def stage(
        self,
        handle: pa.Table,
        matches: Matches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        # One file uses every worker for its row groups; many files use one each.
        inner = max(1, WORKERS // len(jobs)) if jobs else 1
        with open_pool(len(jobs), WORKERS, "rewrite") as pool:
            rewritten = list(pool.map(lambda job: rewrite_rows(handle, matches, job, staging, inner), jobs))
        if layout is None:
            return rewritten, []
        if matches is None:
            matches = make_unmatched(handle, policy)
        return rewritten, append_rows(handle, matches.appended_rows, layout, partitions, staging)

    def audit(
        self,
        handle: pa.Table,
        matches: Matches | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        if matches is None:
            matches = make_unmatched(handle, policy)
        store = staging.location.store
        changed = (list_changed_rows(handle, matches, store, scan, audit, policy) for scan in files)
        return keep_tables(
            chain(list_inserted_rows(handle, matches.new, audit), chain.from_iterable(changed)), audit, staging
        )


def make_unmatched(handle: pa.Table, policy: MergePolicy) -> Matches:
    """Give what there is without a match: every row that does not delete is new, if new rows count."""
    return Matches.of_new(np.flatnonzero(~find_delete_rows(handle, policy)) if policy.rule.inserts else np.arange(0))


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Of `SourceFacts`, what only a look at all keys together tells."""

    duplicate_keys: int
    duplicate_sample: pa.Table
    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]

    def to_source_facts(
        self, rows: int, deletes: int, null_keys: Mapping[str, int], columns_with_nulls: frozenset[str]
    ) -> SourceFacts:
        """Add what each row tells by itself."""
        return SourceFacts(
            rows,
            deletes,
            null_keys,
            self.duplicate_keys,
            self.duplicate_sample,
            columns_with_nulls,
            self.partitions,
            self.candidates,
        )


def collect_key_facts(
    handle: pa.Table,
    keys: Sequence[str],
    partition_columns: Sequence[str],
    bounds: pa.Table | None,
    policy: MergePolicy,
) -> KeyFacts:
    """Look at all keys together."""
    twice, sample = find_duplicate_keys(handle, keys, SAMPLE_SIZE) if keys else (0, handle.select([]))
    partitions = drop_delete_rows(handle.select(list(partition_columns)), handle, policy)
    if partition_columns:
        partitions = partitions.group_by(list(partition_columns), use_threads=False).aggregate([])
    candidates = np.zeros(0, np.bool_) if bounds is None else might_match(bounds, to_canonical_keys(handle, keys))
    return KeyFacts(twice, sample, partitions, candidates)


def drop_delete_rows(rows: pa.Table, handle: pa.Table, policy: MergePolicy) -> pa.Table:
    """Leave out the rows that delete: only their keys count."""
    return rows if policy.delete_column is None else rows.filter(pc.invert(handle.column(policy.delete_column)))


def find_columns_with_nulls(handle: pa.Table, policy: MergePolicy) -> frozenset[str]:
    """Name the columns that hold NULL in a row that does not delete."""
    nulls = [name for name in handle.column_names if handle.column(name).null_count]
    return frozenset(
        name for name in nulls if drop_delete_rows(handle.select([name]), handle, policy).column(0).null_count
    )


def find_matches(handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile]) -> Matches:
    """Find every target row that has a source key; which source rows are new is left out."""
    source = to_canonical_keys(handle, keys).append_column(SOURCE_ROW, number_rows(handle.num_rows))
    found = match_keys(store, files, keys, source)
    file, group, position, row = (column.to_numpy() for column in found.columns)
    return Matches.from_positions(file, group, position, row, np.arange(0))


def rewrite_rows(
    handle: pa.Table, matches: Matches | None, job: RewriteJob, staging: Staging, workers: int = WORKERS
) -> RewrittenFile:
    """Stage one file with its matched rows replaced, kept or gone."""
    changes: dict[int, GroupChange | None] = dict.fromkeys(job.dropped_groups)
    columns = job.columns & {*handle.column_names}
    if matches is not None:
        for group in job.groups:
            at = matches.find_group(job.number, group)
            position, action = matches.position[at], matches.action[at]
            replaced, kept = action == Action.REPLACE, action == Action.KEEP
            rows = partial(_take_new_values, handle, matches.source_row[at][replaced])
            gone, stay = position[~(replaced | kept)], None if job.keeps_missing else position[kept]
            changes[group] = GroupChange(position[replaced], columns, rows, gone, stay)
    done = rewrite_file(staging.location.store, job.path, staging.make_path(), changes, workers, job.footer)
    staging.on_file_done()
    return done


def _take_new_values(handle: pa.Table, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
    return take(handle.select(list(columns)), rows)
