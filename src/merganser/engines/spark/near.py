"""The way for a source that one task can hold: each verb is one stage, whose tasks read the staged source themselves.

No row is shuffled and none passes through Spark's own memory; tasks call what the PyArrow engine calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.engine import SAMPLE, MatchCounts
from merganser.core.kernel import append_rows
from merganser.core.keys import SOURCE_ROW, latest_rows
from merganser.core.rows import evened, take
from merganser.core.scan import POSITION
from merganser.core.tables import (
    Matches,
    changed_keys,
    count_groups,
    deleted_keys,
    key_facts,
    matched_rows,
    moved_rows,
    rewrite_rows,
)
from merganser.engines.spark.parts import Parts, write_parts
from merganser.engines.spark.run import spread
from merganser.engines.spark.source import staged
from merganser.engines.spark.way import Way

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from merganser.core.engine import Appended, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.strategy import Rule
    from merganser.core.tables import KeyFacts
    from merganser.engines.spark.parts import Part
    from merganser.engines.spark.source import Source

# Rows of target keys that one task reads.
_SCANNED = 4_000_000


@dataclass(frozen=True, slots=True)
class NearMatches:
    """Where the matches of each file are staged, and which source rows are new: a bit each."""

    paths: Mapping[int, str]
    new: npt.NDArray[np.uint8]


class Near(Way[NearMatches]):
    """Tasks that read the whole source."""

    def __init__(self, spark: SparkSession, source: Source, parts: Parts, staging: Staging) -> None:
        super().__init__(spark, source)
        self._parts = parts
        self._staging = staging

    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        kept = tuple(self._once(_latest, keys, order_by, self._staging))
        return staged(self._spark, Parts(self._parts.store, self._parts.shape, kept), self._staging)

    def facts(self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None) -> KeyFacts:
        found: KeyFacts = self._once(_facts, keys, partition_columns, bounds)
        return found

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, rule: Rule
    ) -> tuple[NearMatches, MatchCounts]:
        chunks = list(_chunks(files))
        task = partial(_match, self._parts, keys, store, partitions, rule, self._staging)
        found: list[_Found] = spread(self._spark, task, chunks)
        new = np.packbits(np.ones(self._parts.rows if rule.inserts else 0, np.bool_))
        paths: dict[int, str] = {}
        for chunk, one in zip(chunks, found, strict=True):
            paths |= {scan.number: one.path for scan in chunk}
            if rule.inserts:
                new &= ~one.matched
        file, group, rows = (np.concatenate(columns) for columns in zip(*(one.counts for one in found), strict=True))
        first = np.argsort(np.concatenate([one.moved_rows for one in found]), kind="stable")[:SAMPLE]
        sample = pa.concat_tables([one.moved_keys for one in found]).take(pa.array(first))
        moved = sum(one.moved for one in found)
        return NearMatches(paths, new), MatchCounts(file, group, rows, int(np.unpackbits(new).sum()), moved, sample)

    def stage(
        self,
        matches: NearMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
    ) -> tuple[list[Rewritten], list[Appended]]:
        # No path is no match in this file, none at all is no match in any.
        paths = [None if matches is None else matches.paths.get(job.number, "") for job in jobs]
        orders: list[Any] = [partial(_rewrite, job, path) for job, path in zip(jobs, paths, strict=True)]
        if layout is not None:
            orders.append(partial(_append, None if matches is None else matches.new, layout, partitions))
        found = spread(self._spark, partial(_staged, self._parts, staging), orders)
        return found[: len(jobs)], [one for more in found[len(jobs) :] for one in more]

    def audit(
        self,
        matches: NearMatches | None,
        keys: Sequence[str],
        store: Store,
        shrinking: Sequence[ScanFile],
        *,
        inserts: bool,
    ) -> pa.Table:
        paths = {} if matches is None else matches.paths
        new = None if matches is None and inserts else np.zeros(0, np.uint8) if matches is None else matches.new
        changed = self._once(_changed, keys, list(dict.fromkeys(paths.values())), new, self._staging)
        orders = [(scan, paths.get(scan.number, "")) for scan in shrinking]
        deleted = spread(self._spark, partial(_deleted, self._parts, keys, store, self._staging), orders)
        return pa.concat_tables([changed, *deleted])

    def _once(self, task: Any, *arguments: Any) -> Any:
        """Run a task in one place."""
        (found,) = spread(self._spark, partial(_applied, task, self._parts), [arguments])
        return found


def _applied(task: Any, parts: Parts, arguments: Sequence[Any]) -> Any:
    return task(parts, *arguments)


def _latest(parts: Parts, keys: Sequence[str], order_by: Sequence[str], staging: Staging) -> list[Part]:
    rows = latest_rows(parts.table(dict.fromkeys([*keys, *order_by])), keys, order_by)
    kept = take(evened(parts.carried()), rows)
    return list(write_parts(kept.to_batches(), parts.shape, staging))


def _facts(parts: Parts, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None) -> KeyFacts:
    table = evened(parts.table(dict.fromkeys([*keys, *partition_columns])))
    return key_facts(table, keys, partition_columns, bounds)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one task has found: counts for the driver, positions for those who rewrite."""

    path: str
    counts: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]
    moved: int
    moved_rows: npt.NDArray[np.int64]
    moved_keys: pa.Table
    # Which source rows match, a bit each; where new rows do not count, none.
    matched: npt.NDArray[np.uint8]


def _chunks(files: Sequence[ScanFile]) -> Iterator[list[ScanFile]]:
    chunk: list[ScanFile] = []
    rows = 0
    for file in files:
        chunk.append(file)
        rows += sum(after - first for first, after in file.spans)
        if rows >= _SCANNED:
            yield chunk
            chunk, rows = [], 0
    if chunk:
        yield chunk


def _match(
    parts: Parts,
    keys: Sequence[str],
    store: Store,
    partitions: pa.Table,
    rule: Rule,
    staging: Staging,
    files: Sequence[ScanFile],
) -> _Found:
    table = evened(parts.table(dict.fromkeys([*keys, *partitions.column_names])))
    matches = matched_rows(table, keys, store, files)
    matched = np.zeros(table.num_rows if rule.inserts else 0, np.bool_)
    if rule.inserts:
        matched[matches.source_row] = True
    counts = count_groups(matches.file, matches.row_group)
    if not rule.replaces:
        matches = Matches.of_new(matches.new)
    moved, rows = moved_rows(matches, table, files, partitions)
    path = staging.new_path()
    columns = [matches.file, matches.row_group, matches.position, matches.source_row]
    places = pa.table([pa.array(column) for column in columns], names=[*POSITION, SOURCE_ROW])
    with staging.location.store.create(path) as stream, pa.ipc.new_file(stream, places.schema) as writer:
        writer.write_table(places)
    return _Found(path, counts, moved, rows, take(table.select(list(keys)), rows), np.packbits(matched))


def _read_matches(staging: Staging, paths: Sequence[str], new: npt.NDArray[np.int64]) -> Matches:
    """Read what tasks have found; no path is no match."""
    tables = []
    for path in filter(None, paths):
        with staging.location.store.open_input(path) as stream:
            tables.append(pa.ipc.open_file(stream).read_all())
    if not tables:
        return Matches.of_new(new)
    file, group, position, row = (column.to_numpy() for column in pa.concat_tables(tables).columns)
    return Matches(file, group, position, row, new)


def _staged(parts: Parts, staging: Staging, order: Any) -> Any:
    return order(parts, staging)


def _rewrite(job: RewriteJob, path: str | None, parts: Parts, staging: Staging) -> Rewritten:
    table = evened(parts.table([name for name in parts.shape.goal.names if name in job.columns]))
    matches = None if path is None else _read_matches(staging, [path], np.arange(0))
    return rewrite_rows(table, matches, job, staging)


def _append(
    new: npt.NDArray[np.uint8] | None, layout: Layout, partitions: pa.Table, parts: Parts, staging: Staging
) -> list[Appended]:
    return append_rows(evened(parts.table()), _numbers(parts, new), layout, partitions, staging)


def _numbers(parts: Parts, bits: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.int64]:
    """Give the numbers of rows that have a bit set; without bits, of all."""
    return np.arange(parts.rows) if bits is None else np.flatnonzero(np.unpackbits(bits))


def _changed(
    parts: Parts, keys: Sequence[str], paths: Sequence[str], new: npt.NDArray[np.uint8] | None, staging: Staging
) -> pa.Table:
    matches = _read_matches(staging, paths, _numbers(parts, new))
    return pa.concat_tables(changed_keys(matches, evened(parts.table(keys))))


def _deleted(
    parts: Parts, keys: Sequence[str], store: Store, staging: Staging, order: tuple[ScanFile, str]
) -> pa.Table:
    scan, path = order
    matches = _read_matches(staging, [path], np.arange(0))
    return pa.concat_tables(deleted_keys(matches, keys, store, [scan], parts.shape.of(keys).empty().schema))
