"""What engines share whose source rows are an Arrow table: the matches, and the verbs that follow from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.engine import ACTION, ELSEWHERE, SAMPLE, UNTOLD, SourceFacts
from merganser.core.kernel import WORKERS, GroupChange, append_rows, partition_codes, rewrite_file
from merganser.core.keys import SOURCE_ROW, canonical_keys, duplicate_keys, row_numbers
from merganser.core.prune import might_match
from merganser.core.rows import take
from merganser.core.scan import match_keys, read_keys
from merganser.core.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.engine import Appended, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.threads import Answer, Item


@dataclass(frozen=True, slots=True)
class Matches:
    """Target rows to replace, in file order, each with its source row; and the source rows that match nothing.

    Where a strategy does not replace matched rows, or does not insert new ones, there are none of them here.
    """

    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    position: npt.NDArray[np.int64]
    source_row: npt.NDArray[np.int64]
    new: npt.NDArray[np.int64]

    @classmethod
    def of_new(cls, new: npt.NDArray[np.int64]) -> Matches:
        """Give new rows alone."""
        none = np.zeros(0, np.int32)
        return cls(none, none, np.zeros(0, np.int64), np.zeros(0, np.int64), new)

    def of_group(self, file: int, group: int) -> slice:
        """Find the matches of one row group."""
        start, end = np.searchsorted(self.file, [file, file + 1])
        inner = np.searchsorted(self.row_group[start:end], [group, group + 1])
        return slice(start + inner[0], start + inner[1])


class TableEngine:
    """The verbs that need nothing but an Arrow table and its matches."""

    def schema(self, given: pa.Table) -> pa.Schema:
        return given.schema

    def ordered(self, given: pa.Table) -> bool:  # noqa: ARG002  a table always is
        return True

    def each(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        return in_threads(task, items)

    def stage(
        self,
        handle: pa.Table,
        matches: Matches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
    ) -> tuple[list[Rewritten], list[Appended]]:
        # One file uses every worker for its row groups; many files use one each.
        inner = max(1, WORKERS // len(jobs)) if jobs else 1
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="merganser-rewrite") as pool:
            rewritten = list(pool.map(lambda job: rewrite_rows(handle, matches, job, staging, inner), jobs))
        if layout is None:
            return rewritten, []
        new = np.arange(handle.num_rows) if matches is None else matches.new
        return rewritten, append_rows(handle, new, layout, partitions, staging)

    def audit(
        self,
        handle: pa.Table,
        matches: Matches | None,
        keys: Sequence[str],
        store: Store,
        shrinking: Sequence[ScanFile],
        *,
        inserts: bool,
    ) -> pa.Table:
        source = handle.select(list(keys))
        if matches is None:
            matches = Matches.of_new(np.arange(handle.num_rows if inserts else 0))
        gone = deleted_keys(matches, keys, store, shrinking, source.schema)
        return pa.concat_tables([*changed_keys(matches, source), *gone])


def changed_keys(matches: Matches, source: pa.Table) -> list[pa.Table]:
    """List the keys of rows that are new and of rows that are replaced, for an audit."""
    return [_acted(take(source, matches.new), "insert"), _acted(take(source, matches.source_row), "update")]


def deleted_keys(
    matches: Matches, keys: Sequence[str], store: Store, shrinking: Sequence[ScanFile], schema: pa.Schema
) -> Iterator[pa.Table]:
    """List the keys of rows that match nothing in row groups where such rows are deleted, for an audit."""
    for scan, group, table in read_keys(store, shrinking, keys, schema):
        gone = np.ones(table.num_rows, np.bool_)
        gone[matches.position[matches.of_group(scan.number, group)]] = False
        yield _acted(table.filter(pa.array(gone)), "delete")


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Of `SourceFacts`, what only a look at all keys together tells."""

    duplicate_keys: int
    duplicate_sample: pa.Table
    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]

    def told(self, rows: int, null_keys: Mapping[str, int], columns_with_nulls: frozenset[str]) -> SourceFacts:
        """Add what each row tells by itself."""
        return SourceFacts(
            rows,
            null_keys,
            self.duplicate_keys,
            self.duplicate_sample,
            columns_with_nulls,
            self.partitions,
            self.candidates,
        )


def key_facts(
    handle: pa.Table, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None
) -> KeyFacts:
    """Look at all keys together."""
    twice, sample = duplicate_keys(handle, keys, SAMPLE) if keys else (0, handle.select([]))
    partitions = handle.select(list(partition_columns))
    if partition_columns:
        partitions = partitions.group_by(list(partition_columns), use_threads=False).aggregate([])
    candidates = np.zeros(0, np.bool_) if bounds is None else might_match(bounds, canonical_keys(handle, keys))
    return KeyFacts(twice, sample, partitions, candidates)


def matched_rows(handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile]) -> Matches:
    """Find every target row that has a source key; which source rows are new is left out."""
    source = canonical_keys(handle, keys).append_column(SOURCE_ROW, row_numbers(handle.num_rows))
    found = match_keys(store, files, keys, source)
    file, group, position, row = (column.to_numpy() for column in found.columns)
    return Matches(file, group, position, row, np.arange(0))


def count_groups(
    file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Count the rows of each row group, as `MatchCounts` lists them."""
    pairs, rows = np.unique((file.astype(np.int64) << 32) | row_group, return_counts=True)
    return (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), rows


def moved_rows(
    matches: Matches, handle: pa.Table, files: Sequence[ScanFile], partitions: pa.Table
) -> tuple[int, npt.NDArray[np.int64]]:
    """Count the matches whose source row belongs to another partition than their file, and give some of those rows."""
    place = np.full(max((scan.number for scan in files), default=-1) + 1, ELSEWHERE, np.int64)
    place[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = place[matches.file]
    moved = np.zeros(len(expected), np.bool_)
    if partitions.num_columns:
        codes = partition_codes(handle, partitions)
        moved = (expected != UNTOLD) & (codes[matches.source_row] != expected)
    return int(moved.sum()), np.unique(matches.source_row[moved])[:SAMPLE]


def rewrite_rows(
    handle: pa.Table, matches: Matches | None, job: RewriteJob, staging: Staging, workers: int = WORKERS
) -> Rewritten:
    """Stage one file with its matched rows replaced."""
    changes: dict[int, GroupChange | None] = dict.fromkeys(job.dropped)
    columns = handle.select([name for name in handle.column_names if name in job.columns])
    if matches is not None:
        for group in job.groups:
            at = matches.of_group(job.number, group)
            rows = partial(take, columns, matches.source_row[at])
            changes[group] = GroupChange(matches.position[at], rows, job.keep_missing)
    return rewrite_file(staging.location.store, job.path, staging.new_path(), changes, workers)


def _acted(table: pa.Table, action: str) -> pa.Table:
    return table.append_column(ACTION, pa.repeat(pa.scalar(action), table.num_rows))
