"""The PyArrow engine: the source in memory, the target streamed by row group, several files at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.engine import ACTION, ELSEWHERE, SAMPLE, UNTOLD, MatchCounts, SourceFacts
from merganser.core.io import DatasetIO
from merganser.core.kernel import WORKERS, GroupChange, append_rows, partition_codes, rewrite_file
from merganser.core.keys import SOURCE_ROW, canonical_keys, duplicate_keys, latest_rows, null_keys, row_numbers
from merganser.core.prune import might_match
from merganser.core.read import open_dataset
from merganser.core.scan import match_keys, read_keys
from merganser.core.schema import conform
from merganser.core.source import read_source
from merganser.core.store import locate

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow.dataset as pads

    from merganser.core.engine import Appended, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.result import MergeStats
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.strategy import MergeStrategy


class PyArrowDatasetIO(DatasetIO[pa.Table, "Matches"]):
    """Merge, plan, write and read Parquet datasets with PyArrow.

    >>> import tempfile
    >>> lake = tempfile.mkdtemp()
    >>> io = PyArrowDatasetIO()
    >>> written = io.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", mode="overwrite")
    >>> result = io.merge(pa.table({"id": [2, 3], "v": ["B", "c"]}), f"{lake}/t", key_columns=["id"])
    >>> result.inserted, result.updated
    (1, 1)
    >>> io.read(f"{lake}/t").to_table().sort_by("id").column("v").to_pylist()
    ['a', 'B', 'c']
    """

    def __init__(self, filesystem: Any = None) -> None:
        super().__init__(ArrowEngine(), filesystem)

    def read(self, path: str | os.PathLike[str], filesystem: Any = None) -> pads.Dataset:
        """Open exactly the data files as a `pyarrow.dataset`, partition columns in their recorded types."""
        return open_dataset(locate(path, self._filesystem(filesystem)))


def merge_parquet_dataset_pyarrow(
    source: Any,
    target_path: str | os.PathLike[str],
    key_columns: Sequence[str] | str,
    strategy: MergeStrategy = "upsert",
    dedup_order_by: Sequence[str] | str | None = None,
    compression: str = "snappy",
    filesystem: Any = None,
) -> MergeStats:
    """Merge with PyArrow and give the counts only.

    >>> import tempfile
    >>> merge_parquet_dataset_pyarrow(pa.table({"id": [1]}), tempfile.mkdtemp(), "id")
    {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}
    """
    result = PyArrowDatasetIO(filesystem).merge(
        source, target_path, strategy, key_columns, dedup_order_by=dedup_order_by, compression=compression
    )
    return result.stats


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched target rows in file order, each with its source row, and the source rows that match nothing."""

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


class ArrowEngine:
    """The verbs of `merganser.core.engine.Engine` on Arrow tables."""

    name = "arrow"

    def open(self, source: Any) -> pa.Table:
        return read_source(source)

    def schema(self, handle: pa.Table) -> pa.Schema:
        return handle.schema

    def conform(self, handle: pa.Table, schema: pa.Schema) -> pa.Table:
        # In one piece: rows are taken from it again and again.
        return conform(handle, schema).combine_chunks()

    def deduplicate(self, handle: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> pa.Table:
        return handle.take(pa.array(latest_rows(handle, keys, order_by)))

    def facts(self, handle: pa.Table, keys: Sequence[str], partition_columns: Sequence[str]) -> SourceFacts:
        twice, sample = duplicate_keys(handle, keys, SAMPLE) if keys else (0, handle.select([]))
        with_nulls = frozenset(name for name in handle.column_names if handle.column(name).null_count)
        partitions = handle.select(list(partition_columns))
        if partition_columns:
            partitions = partitions.group_by(list(partition_columns), use_threads=False).aggregate([])
        return SourceFacts(handle.num_rows, null_keys(handle, keys), twice, sample, with_nulls, partitions)

    def candidates(self, handle: pa.Table, keys: Sequence[str], bounds: pa.Table) -> npt.NDArray[np.bool_]:
        return might_match(bounds, canonical_keys(handle, keys))

    def match(
        self, handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table
    ) -> tuple[Matches, MatchCounts]:
        source = canonical_keys(handle, keys).append_column(SOURCE_ROW, row_numbers(handle.num_rows))
        found = match_keys(store, files, keys, source)
        file, group, position, row = (found.column(name).to_numpy() for name in found.column_names)
        matched = np.zeros(handle.num_rows, np.bool_)
        matched[row] = True
        matches = Matches(file, group, position, row, np.flatnonzero(~matched))
        return matches, _counts(matches, handle, keys, files, partitions)

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
        rows = handle
        if matches is not None and len(matches.new) < handle.num_rows:
            rows = handle.take(pa.array(matches.new))
        return append_rows(rows, layout, partitions, staging)

    def audit(
        self,
        handle: pa.Table,
        matches: Matches | None,
        keys: Sequence[str],
        store: Store,
        shrinking: Sequence[ScanFile],
        *,
        updates: bool,
        inserts: bool,
    ) -> pa.Table:
        source = handle.select(list(keys))
        new = row_numbers(handle.num_rows) if matches is None else pa.array(matches.new)
        parts = [_acted(source.take(new), "insert")] if inserts else []
        if updates and matches is not None:
            parts.append(_acted(source.take(pa.array(matches.source_row)), "update"))
        if matches is not None:
            for scan, group, table in read_keys(store, shrinking, keys, source.schema):
                keep = np.ones(table.num_rows, np.bool_)
                keep[matches.position[matches.of_group(scan.number, group)]] = False
                parts.append(_acted(table.filter(pa.array(keep)), "delete"))
        return pa.concat_tables(parts) if parts else _acted(source.slice(0, 0), "update")


def _rewrite(handle: pa.Table, matches: Matches | None, job: RewriteJob, staging: Staging, workers: int) -> Rewritten:
    changes: dict[int, GroupChange | None] = dict.fromkeys(job.dropped)
    columns = handle.select([name for name in handle.column_names if name in job.columns])
    if matches is not None:
        for group in job.groups:
            at = matches.of_group(job.number, group)
            rows = partial(columns.take, pa.array(matches.source_row[at]))
            changes[group] = GroupChange(matches.position[at], rows, job.keep_missing)
    return rewrite_file(staging.location.store, job.path, staging.new_path(), changes, workers)


def _acted(table: pa.Table, action: str) -> pa.Table:
    return table.append_column(ACTION, pa.repeat(pa.scalar(action), table.num_rows))


def _counts(
    matches: Matches, handle: pa.Table, keys: Sequence[str], files: Sequence[ScanFile], partitions: pa.Table
) -> MatchCounts:
    pairs = (matches.file.astype(np.int64) << 32) | matches.row_group
    distinct, rows = np.unique(pairs, return_counts=True)
    place = np.full(max((scan.number for scan in files), default=-1) + 1, ELSEWHERE, np.int64)
    place[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = place[matches.file]
    moved = np.zeros(len(expected), np.bool_)
    if partitions.num_columns:
        codes = partition_codes(handle, partitions)
        moved = (expected != UNTOLD) & (codes[matches.source_row] != expected)
    sample = handle.select(list(keys)).take(pa.array(np.unique(matches.source_row[moved])[:SAMPLE]))
    return MatchCounts(
        (distinct >> 32).astype(np.int32),
        (distinct & 0xFFFFFFFF).astype(np.int32),
        rows,
        len(matches.new),
        int(moved.sum()),
        sample,
    )
