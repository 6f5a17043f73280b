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
from merganser.core.columnar.threads import WORKERS, in_threads, open_pool
from merganser.core.model.engine import SAMPLE, SourceFacts
from merganser.core.model.keys import SOURCE_ROW, canonical_keys, duplicate_keys, row_numbers
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import changed_rows, inserted_rows, keep_listed
from merganser.core.rows.bounds import might_match
from merganser.core.rows.key_scan import match_keys
from merganser.core.rows.match_actions import deleting
from merganser.core.rows.matches import Matches
from merganser.core.rows.rewrite import GroupChange, rewrite_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import Answer, Item
    from merganser.core.model.engine import Appended, AuditTerms, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.model.strategy import Terms
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store


class TableEngine:
    """The verbs that need nothing but an Arrow table and its matches."""

    def schema(self, given: pa.Table) -> pa.Schema:
        return given.schema

    def ordered(self, given: pa.Table) -> bool:  # noqa: ARG002  a table always is
        return True

    def each(
        self,
        task: Callable[[Item], Answer],
        items: Sequence[Item],
        *,
        large: bool = False,  # noqa: ARG002  there is one place only
    ) -> list[Answer]:
        return in_threads(task, items)

    def hashes(self, handle: pa.Table, keys: Sequence[str]) -> Hashes:
        return hash_keys(canonical_keys(handle, keys).columns)

    def stage(
        self,
        handle: pa.Table,
        matches: Matches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        terms: Terms,
    ) -> tuple[list[Rewritten], list[Appended]]:
        # One file uses every worker for its row groups; many files use one each.
        inner = max(1, WORKERS // len(jobs)) if jobs else 1
        with open_pool(len(jobs), WORKERS, "rewrite") as pool:
            rewritten = list(pool.map(lambda job: rewrite_rows(handle, matches, job, staging, inner), jobs))
        if layout is None:
            return rewritten, []
        if matches is None:
            matches = unmatched(handle, terms)
        return rewritten, append_rows(handle, matches.appended, layout, partitions, staging)

    def audit(
        self,
        handle: pa.Table,
        matches: Matches | None,
        files: Sequence[ScanFile],
        audit: AuditTerms,
        staging: Staging,
        terms: Terms,
    ) -> list[pa.Table | str]:
        if matches is None:
            matches = unmatched(handle, terms)
        store = staging.location.store
        changed = (changed_rows(handle, matches, store, scan, audit, terms) for scan in files)
        return keep_listed(
            chain(inserted_rows(handle, matches.new, audit), chain.from_iterable(changed)), audit, staging
        )


def unmatched(handle: pa.Table, terms: Terms) -> Matches:
    """Give what there is without a match: every row that does not delete is new, if new rows count."""
    return Matches.of_new(np.flatnonzero(~deleting(handle, terms)) if terms.rule.inserts else np.arange(0))


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Of `SourceFacts`, what only a look at all keys together tells."""

    duplicate_keys: int
    duplicate_sample: pa.Table
    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]

    def told(
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


def key_facts(
    handle: pa.Table, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, terms: Terms
) -> KeyFacts:
    """Look at all keys together."""
    twice, sample = duplicate_keys(handle, keys, SAMPLE) if keys else (0, handle.select([]))
    partitions = lasting(handle.select(list(partition_columns)), handle, terms)
    if partition_columns:
        partitions = partitions.group_by(list(partition_columns), use_threads=False).aggregate([])
    candidates = np.zeros(0, np.bool_) if bounds is None else might_match(bounds, canonical_keys(handle, keys))
    return KeyFacts(twice, sample, partitions, candidates)


def lasting(rows: pa.Table, handle: pa.Table, terms: Terms) -> pa.Table:
    """Leave out the rows that delete: only their keys count."""
    return rows if terms.deletes is None else rows.filter(pc.invert(handle.column(terms.deletes)))


def columns_with_nulls(handle: pa.Table, terms: Terms) -> frozenset[str]:
    """Name the columns that hold NULL in a row that does not delete."""
    nulls = [name for name in handle.column_names if handle.column(name).null_count]
    return frozenset(name for name in nulls if lasting(handle.select([name]), handle, terms).column(0).null_count)


def matched_rows(handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile]) -> Matches:
    """Find every target row that has a source key; which source rows are new is left out."""
    source = canonical_keys(handle, keys).append_column(SOURCE_ROW, row_numbers(handle.num_rows))
    found = match_keys(store, files, keys, source)
    file, group, position, row = (column.to_numpy() for column in found.columns)
    return Matches.found(file, group, position, row, np.arange(0))


def rewrite_rows(
    handle: pa.Table, matches: Matches | None, job: RewriteJob, staging: Staging, workers: int = WORKERS
) -> Rewritten:
    """Stage one file with its matched rows replaced, kept or gone."""
    changes: dict[int, GroupChange | None] = dict.fromkeys(job.dropped)
    columns = job.columns & {*handle.column_names}
    if matches is not None:
        for group in job.groups:
            at = matches.of_group(job.number, group)
            position, action = matches.position[at], matches.action[at]
            replaced, kept = action == Action.REPLACE, action == Action.KEEP
            rows = partial(_new_values, handle, matches.source_row[at][replaced])
            gone, stay = position[~(replaced | kept)], None if job.keep_missing else position[kept]
            changes[group] = GroupChange(position[replaced], columns, rows, gone, stay)
    done = rewrite_file(staging.location.store, job.path, staging.new_path(), changes, workers, job.footer)
    staging.file_done()
    return done


def _new_values(handle: pa.Table, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
    return take(handle.select(list(columns)), rows)
