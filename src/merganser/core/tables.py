"""What engines share whose source rows are an Arrow table: the matches, and the verbs that follow from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.engine import ACTION, ELSEWHERE, SAMPLE, UNTOLD
from merganser.core.kernel import WORKERS, GroupChange, append_rows, partition_codes, rewrite_file
from merganser.core.rows import take
from merganser.core.scan import read_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.engine import Appended, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.staging import Staging
    from merganser.core.storage import Store


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

    def of_group(self, file: int, group: int) -> slice:
        """Find the matches of one row group."""
        start, end = np.searchsorted(self.file, [file, file + 1])
        inner = np.searchsorted(self.row_group[start:end], [group, group + 1])
        return slice(start + inner[0], start + inner[1])


class TableEngine:
    """The verbs that need nothing but an Arrow table and its matches."""

    def schema(self, handle: pa.Table) -> pa.Schema:
        return handle.schema

    def rewrite(
        self, handle: pa.Table, matches: Matches | None, jobs: Sequence[RewriteJob], staging: Staging
    ) -> list[Rewritten]:
        # One file uses every worker for its row groups; many files use one each.
        inner = max(1, WORKERS // len(jobs)) if jobs else 1
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="merganser-rewrite") as pool:
            return list(pool.map(lambda job: _rewrite(handle, matches, job, staging, inner), jobs))

    def append(
        self, handle: pa.Table, matches: Matches | None, layout: Layout, partitions: pa.Table, staging: Staging
    ) -> list[Appended]:
        rows = np.arange(handle.num_rows) if matches is None else matches.new
        return append_rows(handle, rows, layout, partitions, staging)

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
            parts = [_acted(source.slice(0, None if inserts else 0), "insert")]
        else:
            parts = [_acted(take(source, matches.new), "insert"), _acted(take(source, matches.source_row), "update")]
        for scan, group, table in read_keys(store, shrinking, keys, source.schema):
            gone = np.ones(table.num_rows, np.bool_)
            if matches is not None:
                gone[matches.position[matches.of_group(scan.number, group)]] = False
            parts.append(_acted(table.filter(pa.array(gone)), "delete"))
        return pa.concat_tables(parts)


def count_groups(
    file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Count the rows of each row group, as `MatchCounts` lists them."""
    pairs, rows = np.unique((file.astype(np.int64) << 32) | row_group, return_counts=True)
    return (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), rows


def moved_rows(
    matches: Matches, handle: pa.Table, keys: Sequence[str], files: Sequence[ScanFile], partitions: pa.Table
) -> tuple[int, pa.Table]:
    """Count the matches whose source row belongs to another partition than their file, and show some of their keys."""
    place = np.full(max((scan.number for scan in files), default=-1) + 1, ELSEWHERE, np.int64)
    place[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = place[matches.file]
    moved = np.zeros(len(expected), np.bool_)
    if partitions.num_columns:
        codes = partition_codes(handle, partitions)
        moved = (expected != UNTOLD) & (codes[matches.source_row] != expected)
    return int(moved.sum()), take(handle.select(list(keys)), np.unique(matches.source_row[moved])[:SAMPLE])


def _rewrite(handle: pa.Table, matches: Matches | None, job: RewriteJob, staging: Staging, workers: int) -> Rewritten:
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
