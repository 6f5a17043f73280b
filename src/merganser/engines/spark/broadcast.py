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
from merganser.core.columnar.take import evened, take
from merganser.core.model.engine import SAMPLE, MatchCounts
from merganser.core.model.keys import SOURCE_ROW, canonical_keys, latest_rows
from merganser.core.model.strategy import Action
from merganser.core.rows.append import append_rows
from merganser.core.rows.audit_rows import changed_rows, inserted_rows, keep_listed
from merganser.core.rows.key_scan import POSITION
from merganser.core.rows.match_actions import decided, deleting, looked_at
from merganser.core.rows.matches import Matches
from merganser.core.rows.table_engine import key_facts, matched_rows, rewrite_rows, unmatched
from merganser.engines.spark.execution import Way
from merganser.engines.spark.jobs import spread
from merganser.engines.spark.progress import watched
from merganser.engines.spark.source import staged
from merganser.engines.spark.staged_source import Parts, write_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import Appended, AuditTerms, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.model.strategy import Terms
    from merganser.core.rows.table_engine import KeyFacts
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Source
    from merganser.engines.spark.staged_source import Part

# Rows of target keys that one task reads.
_SCANNED = 4_000_000


@dataclass(frozen=True, slots=True)
class NearMatches:
    """Where the matches of each file are staged, which source rows are new, a bit each, and how many matches move."""

    paths: Mapping[int, str]
    new: npt.NDArray[np.uint8]
    moved: int


class Near(Way[NearMatches]):
    """Tasks that read the whole source."""

    def __init__(self, spark: SparkSession, source: Source, parts: Parts, staging: Staging) -> None:
        super().__init__(spark, source)
        self._parts = parts
        self._staging = staging

    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        kept = tuple(self._once(_latest, keys, order_by, self._staging))
        return staged(self._spark, Parts(self._parts.store, self._parts.shape, kept), self._staging)

    def facts(
        self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, terms: Terms
    ) -> KeyFacts:
        found: KeyFacts = self._once(_facts, keys, partition_columns, bounds, terms)
        return found

    def hashes(self, keys: Sequence[str]) -> Hashes:
        found: Hashes = self._once(_hashes, keys)
        return found

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, terms: Terms
    ) -> tuple[NearMatches, MatchCounts]:
        chunks = list(_chunks(files))
        task = partial(_match, self._parts, keys, store, partitions, terms, self._staging)
        found: list[_Found] = spread(self._spark, task, chunks)
        new = np.packbits(np.ones(self._parts.rows if terms.rule.inserts else 0, np.bool_))
        paths: dict[int, str] = {}
        for chunk, one in zip(chunks, found, strict=True):
            paths |= {scan.number: one.path for scan in chunk}
            if terms.rule.inserts:
                new &= ~one.matched
        counts = [one.counts for one in found]
        first = np.unique(np.concatenate([one.moved_rows for one in found]), return_index=True)[1][:SAMPLE]
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
        return NearMatches(paths, new, moved), together

    def stage(
        self,
        matches: NearMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        terms: Terms,
    ) -> tuple[list[Rewritten], list[Appended]]:
        # No path is no match in this file, none at all is no match in any.
        paths = [None if matches is None else matches.paths.get(job.number, "") for job in jobs]
        orders: list[Any] = [partial(_rewrite, job, path) for job, path in zip(jobs, paths, strict=True)]
        if layout is not None:
            orders.append(partial(_append, matches, layout, partitions, terms))
        with watched(staging, len(orders)):
            found = spread(self._spark, partial(_staged, self._parts, staging), orders)
        return found[: len(jobs)], [one for more in found[len(jobs) :] for one in more]

    def audit(
        self,
        matches: NearMatches | None,
        files: Sequence[ScanFile],
        audit: AuditTerms,
        staging: Staging,
        terms: Terms,
    ) -> list[pa.Table | str]:
        paths = {} if matches is None else matches.paths
        orders: list[Any] = [partial(_inserted, matches, audit, terms)]
        orders += [partial(_changed, scan, paths.get(scan.number, ""), audit, terms) for scan in files]
        found = spread(self._spark, partial(_staged, self._parts, staging), orders)
        return [one for several in found for one in several]

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


def _facts(
    parts: Parts, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, terms: Terms
) -> KeyFacts:
    table = evened(parts.table(_named(*keys, *partition_columns, terms.deletes)))
    return key_facts(table, keys, partition_columns, bounds, terms)


def _hashes(parts: Parts, keys: Sequence[str]) -> Hashes:
    return hash_keys(canonical_keys(parts.table(keys), keys).columns)


def _named(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True, slots=True)
class _Found:
    """What one task has found: counts for the driver, positions for those who rewrite."""

    path: str
    counts: MatchCounts
    moved_rows: npt.NDArray[np.int64]
    # Which source rows match, or delete, so that they are not new, a bit each; where new rows do not count, none.
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
    terms: Terms,
    staging: Staging,
    files: Sequence[ScanFile],
) -> _Found:
    seen = looked_at(parts.shape.goal.names, keys, terms)
    table = evened(parts.table(_named(*keys, *partitions.column_names, terms.deletes, *seen)))
    found = matched_rows(table, keys, store, files)
    matched = deleting(table, terms) if terms.rule.inserts else np.zeros(0, np.bool_)
    if terms.rule.inserts:
        matched = matched.copy()
        matched[found.source_row] = True
    matches, counts = decided(table, found, keys, store, files, partitions, terms)
    path = staging.new_path()
    columns = [matches.file, matches.row_group, matches.position, matches.source_row, matches.action]
    places = pa.table([pa.array(column) for column in columns], names=[*POSITION, SOURCE_ROW, "action"])
    with staging.location.store.create(path) as stream, pa.ipc.new_file(stream, places.schema) as writer:
        writer.write_table(places)
    moved = np.unique(matches.source_row[matches.action == Action.MOVE])[:SAMPLE]
    return _Found(path, counts, moved, np.packbits(matched))


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


def _staged(parts: Parts, staging: Staging, order: Any) -> Any:
    return order(parts, staging)


def _rewrite(job: RewriteJob, path: str | None, parts: Parts, staging: Staging) -> Rewritten:
    table = evened(parts.table([name for name in parts.shape.goal.names if name in job.columns]))
    matches = None if path is None else _read_matches(staging, [path], np.arange(0))
    return rewrite_rows(table, matches, job, staging)


def _append(
    matches: NearMatches | None, layout: Layout, partitions: pa.Table, terms: Terms, parts: Parts, staging: Staging
) -> list[Appended]:
    table = evened(parts.table())
    return append_rows(table, _all_matches(matches, table, staging, terms).appended, layout, partitions, staging)


def _all_matches(matches: NearMatches | None, table: pa.Table, staging: Staging, terms: Terms) -> Matches:
    """Give what is new and what moves."""
    if matches is None:
        return unmatched(table, terms)
    new = np.flatnonzero(np.unpackbits(matches.new))
    return _read_matches(staging, list(dict.fromkeys(matches.paths.values())) if matches.moved else [], new)


def _inserted(
    matches: NearMatches | None, audit: AuditTerms, terms: Terms, parts: Parts, staging: Staging
) -> list[pa.Table | str]:
    table = evened(parts.table(_listed(audit, parts, terms)))
    return keep_listed(inserted_rows(table, _all_matches(matches, table, staging, terms).new, audit), audit, staging)


def _changed(
    scan: ScanFile, path: str, audit: AuditTerms, terms: Terms, parts: Parts, staging: Staging
) -> list[pa.Table | str]:
    table = evened(parts.table(_listed(audit, parts, terms)))
    matches = _read_matches(staging, [path], np.arange(0))
    return keep_listed(changed_rows(table, matches, staging.location.store, scan, audit, terms), audit, staging)


def _listed(audit: AuditTerms, parts: Parts, terms: Terms) -> list[str]:
    """Name the source columns that an audit may list, and the one that says which rows delete."""
    return _named(*(name for name in audit.columns if name in parts.shape.goal.names), terms.deletes)
