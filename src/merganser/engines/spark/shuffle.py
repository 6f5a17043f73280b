"""The execution mode for a source of any size: keys and rows are sent to the tasks that need them.

Keys of the source, and of target files that might hold one, are sent to groups by their hash, and matched there. The
tasks of source files are then told which rows match and which are new, and send each row that is needed once, to the
task that writes its file. All of that travels in packets (see `exchange`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import SAMPLE_SIZE, AppendedFile, MatchCounts, PartitionNumber
from merganser.core.model.keys import drop_duplicate_rows, list_key_types, name_key_columns
from merganser.core.model.validation import check_repeated_keys
from merganser.core.rows.clause_rows import list_value_columns
from merganser.core.rows.match_actions import list_compared_columns
from merganser.core.rows.ordered_rows import fold_spec
from merganser.core.rows.table_source import KeyFacts
from merganser.engines.spark import shuffle_keys, shuffle_matches, shuffle_new_rows
from merganser.engines.spark.columns import KIND
from merganser.engines.spark.exchange import PACKET_SCHEMA, Kind, exchange
from merganser.engines.spark.jobs import RESULT_SCHEMA, collect_results, make_task_frame, tag_errors
from merganser.engines.spark.progress import report_staged_files
from merganser.engines.spark.source import Source, make_source, read_blob
from merganser.engines.spark.staged_source import SourceReader, SourceSchemas, StagedSource, merge_stats
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import (
        AuditSpec,
        Layout,
        RewriteJob,
        RewrittenFile,
        ScanFile,
        SourceFacts,
        SourceSpec,
    )
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.rows.table_source import StagedFiles
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.broadcast import BroadcastSource
    from merganser.engines.spark.engine import SparkEngine
    from merganser.engines.spark.staged_source import SourceStats


class ShuffleSource:
    """`merganser.core.model.engine.ConformedSource` whose tasks get the rows that they need."""

    def __init__(self, engine: SparkEngine, source: Source, spec: SourceSpec) -> None:
        self._engine = engine
        self.source = source
        self.spec = spec

    @property
    def stats(self) -> SourceStats:
        """The statistics of all rows; `collect_facts` computes them."""
        if self.source.stats is None:
            raise CountMismatchError(
                "Internal error: rows were not counted. Nothing was published; please report this."
            )
        return self.source.stats

    @property
    def _key_types(self) -> list[pa.DataType]:
        """The types of the keys as they are compared."""
        return list_key_types(conform_schema(self.spec.schema), self.spec.keys)

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        source, keys = self.source, self.spec.keys
        columns = self.spec.partition_columns
        partitions = source.reader.schemas.select(columns).make_empty_table()
        candidates = np.zeros(0 if bounds is None else bounds.num_rows, np.bool_)
        if source.stats is None or columns or bounds is not None:
            has_stats = source.stats is not None
            found = self._collect("check rows", shuffle_keys.collect_facts, self.spec, bounds, has_stats)
            if not has_stats:
                count = max((one.number + 1 for one in found), default=0)
                self.source = replace(
                    source, stats=merge_stats(one.stats for one in found), count=source.count or count
                )
            if columns:
                partitions = drop_duplicate_rows(pa.concat_tables([partitions, *(one.partitions for one in found)]))
            if bounds is not None:
                candidates = np.logical_or.reduce([candidates, *(one.candidates for one in found)])
        return self.stats.to_source_facts(KeyFacts(partitions, candidates), keys)

    def find_duplicate_keys(self) -> tuple[int, pa.Table]:
        groups = self._count_groups()
        sent = self._emit(shuffle_keys.emit_distinct_keys, self.spec.keys, groups)
        count = tag_errors(shuffle_keys.count_duplicate_keys, self._key_types)
        found = collect_results(exchange([sent], groups).mapInArrow(count, RESULT_SCHEMA), "check keys")
        return sum(several for several, _ in found), self._sample_keys([first for _, first in found])

    def _count_groups(self, files: Sequence[ScanFile] = ()) -> int:
        rows = self.stats.rows + sum(end - begin for file in files for begin, end in file.spans)
        return rows // self._engine.group_rows + 1

    def _emit(self, task: Callable[..., Any], *arguments: Any) -> DataFrame:
        """Let a task send packets for each source file."""
        return self.source.frame.mapInArrow(tag_errors(task, self.source.reader, *arguments), PACKET_SCHEMA)

    def _collect(self, name: str, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Collect the results of a task for each source file."""
        work = tag_errors(task, self.source.reader, *arguments)
        return collect_results(self.source.frame.mapInArrow(work, RESULT_SCHEMA), name)

    def _sample_keys(self, numbers: Sequence[Any]) -> pa.Table:
        """Read the keys of the first of some rows."""
        empty = self.source.reader.schemas.select(self.spec.keys).make_empty_table()
        wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *numbers]))[:SAMPLE_SIZE]
        if not len(wanted):
            return empty
        found = self._collect("sample keys", shuffle_keys.select_rows, self.spec.keys, wanted)
        return pa.concat_tables([empty, *(table for _, table in sorted(found, key=lambda one: one[0]))])

    def hash_keys(self) -> Hashes:
        return np.concatenate(self._collect("hash keys", shuffle_keys.hash_rows, self.spec.keys))

    def deduplicate(self, order_by: Sequence[str]) -> ShuffleSource | BroadcastSource:
        if not self.stats.rows:
            return self
        keys, source, spark = self.spec.keys, self.source, self._engine.spark
        groups = self._count_groups()
        sent = self._emit(shuffle_keys.emit_latest_rows, keys, order_by, groups)
        schema = conform_schema(self.spec.schema)
        columns = [*keys, *order_by]
        named = pa.schema(
            list(zip(name_key_columns(len(columns)), (schema.field(one).type for one in columns), strict=True))
        )
        keep = tag_errors(shuffle_keys.keep_latest_rows, named, len(keys))
        latest = exchange([sent], groups).mapInArrow(keep, PACKET_SCHEMA)
        staging = None if source.staged is None else source.staged.staging
        stage = tag_errors(shuffle_keys.stage_kept_rows, source.reader, staging)
        kept = self.send_to_source(latest)
        if source.staged is not None:
            files = collect_results(kept.mapInArrow(stage, RESULT_SCHEMA), "deduplicate rows")
            made = make_source(spark, source.staged.with_files(chain.from_iterable(files)))
        else:
            frame = kept.mapInArrow(stage, PACKET_SCHEMA).persist()
            made = Source(SourceReader(source.reader.schemas, read_blob), frame, source.count, None)
        return self._engine.choose_mode(made, self.spec)

    def fold_keys(self, *, is_ordered: bool) -> ShuffleSource | BroadcastSource:
        source, spec, groups = self.source, fold_spec(self.spec), self._count_groups()
        staging = None if source.staged is None else source.staged.staging
        sent = exchange([self._emit(shuffle_keys.emit_rows, self.spec.keys, groups)], groups)
        fold = tag_errors(shuffle_keys.fold_group, self.spec, is_ordered, staging)
        schemas = SourceSchemas(spec.schema, spec.schema)
        if staging is not None:
            files = collect_results(sent.mapInArrow(fold, RESULT_SCHEMA), "order rows")
            staged = StagedSource(staging, schemas, tuple(chain.from_iterable(files)))
            made = make_source(self._engine.spark, staged)
        else:
            frame = sent.mapInArrow(fold, PACKET_SCHEMA).persist()
            made = Source(SourceReader(schemas, read_blob), frame, groups, None)
        return self._engine.choose_mode(made, spec)

    def send_to_source(self, *packets: DataFrame) -> DataFrame:
        """Send packets to the tasks of the source files that they are about."""
        return exchange([self.source.frame, *packets], max(1, self.source.count or 0))

    def match(self, files: Sequence[ScanFile], facts: SourceFacts, missing: Sequence[ScanFile] = ()) -> ShuffleMatches:
        repeats = facts.repeated_keys > 0
        found = self._match(files, facts, repeats=repeats) if files or repeats else None
        if repeats and found is not None:
            self._check_new_rows(found)
        changed = self._find_missing(found, missing) if missing else None
        return ShuffleMatches(self, facts.partitions, found, self._add_counts(found, changed, facts), changed)

    def _check_new_rows(self, found: DataFrame) -> None:
        numbers = tag_errors(shuffle_matches.number_repeated_rows)
        repeated = collect_results(select_kind(found, Kind.REPEATED).mapInArrow(numbers, RESULT_SCHEMA), "check keys")
        check_repeated_keys(sum(map(len, repeated)), self._sample_keys(repeated))

    def _match(self, files: Sequence[ScanFile], facts: SourceFacts, *, repeats: bool) -> DataFrame:
        policy, types = self.spec.policy, self._key_types
        groups = self._count_groups(files)
        source = self._emit(shuffle_matches.emit_source_keys, self.spec, facts.partitions, groups)
        scan = tag_errors(shuffle_matches.emit_target_keys, self.spec, types, groups)
        target = make_task_frame(self._engine.spark, files).mapInArrow(scan, PACKET_SCHEMA)
        join = tag_errors(
            shuffle_matches.join_group, types, shuffle_matches.MatchRules.of(policy, files, facts.partitions, repeats)
        )
        found = self._persist(exchange([source, target], groups).mapInArrow(join, PACKET_SCHEMA))
        if files and (policy.compares_values or repeats):
            compared = self._compare_values(found, files, repeats=repeats)
            found = self._persist(compared.unionAll(found.where(F.col(KIND) != int(Kind.MATCHES))))
        return found

    def _find_missing(self, found: DataFrame | None, missing: Sequence[ScanFile]) -> DataFrame:
        """Send matches to tasks that read the rows without one, to be changed by clauses."""
        find = tag_errors(shuffle_matches.find_missing_rows, self.source.reader, self.spec)
        parts = shuffle_matches.split_files(missing, 2 * self._engine.group_rows)
        return self._persist(self.send_matches(found, parts, [], kept=True).mapInArrow(find, PACKET_SCHEMA))

    def _persist(self, frame: DataFrame) -> DataFrame:
        persisted = frame.persist()
        self._engine.persisted.append(persisted)
        return persisted

    def _add_counts(self, found: DataFrame | None, missing: DataFrame | None, facts: SourceFacts) -> MatchCounts:
        unmatched = MatchCounts.of_unmatched(facts, self.spec.policy.rule)
        counted = [select_kind(frame, Kind.COUNTS) for frame in (found, missing) if frame is not None]
        if not counted:
            return unmatched
        sample = self.source.reader.schemas.select(self.spec.keys).make_empty_table()
        add = tag_errors(shuffle_matches.add_counts, sample)
        frame = exchange(counted, 1).mapInArrow(add, RESULT_SCHEMA)
        found_counts = collect_results(frame, "match keys")
        if not found_counts:
            return unmatched
        counts: MatchCounts = found_counts[0]
        if found is None:
            counts = replace(counts, new_rows=unmatched.new_rows)
        if not counts.moved or found is None:
            return counts
        moved = select_kind(found, Kind.MATCHES).mapInArrow(
            tag_errors(shuffle_matches.sample_moved_rows), RESULT_SCHEMA
        )
        return replace(counts, moved_sample=self._sample_keys(collect_results(moved, "sample keys")))

    def _compare_values(self, found: DataFrame, files: Sequence[ScanFile], *, repeats: bool) -> DataFrame:
        """Send source rows to tasks that read the rows which they match, to be compared there."""
        names = list_compared_columns(self.source.reader.schemas.target.names, self.spec.keys, self.spec.policy)
        if repeats:
            names = list(dict.fromkeys([*self.spec.keys, *names]))
        compare = tag_errors(shuffle_matches.compare_rows, self.source.reader, names, self.spec, repeats)
        parts = shuffle_matches.split_files(files, 2 * self._engine.group_rows)
        return self.send_matches(found, parts, names, kept=True).mapInArrow(compare, PACKET_SCHEMA)

    def send_matches(
        self,
        found: DataFrame | None,
        files: Sequence[ScanFile | RewriteJob],
        names: Sequence[str],
        *,
        kept: bool,
        missing: DataFrame | None = None,
    ) -> DataFrame:
        """Send matches to the tasks of files or parts of them, each with some columns of its source row."""
        sent = [make_task_frame(self._engine.spark, files)]
        tasks = shuffle_matches.GroupTasks.of(files)
        if missing is not None:
            route = tag_errors(shuffle_matches.route_missing, self.source.reader, names, tasks)
            sent.append(select_kind(missing, Kind.MISSING).mapInArrow(route, PACKET_SCHEMA))
        if found is not None:
            fetch = tag_errors(shuffle_matches.fetch_values, self.source.reader, names, tasks, kept)
            sent.append(self.send_to_source(select_kind(found, Kind.MATCHES)).mapInArrow(fetch, PACKET_SCHEMA))
        return exchange(sent, len(files))


@dataclass(frozen=True, slots=True)
class ShuffleMatches:
    """`merganser.core.model.engine.MatchedSource` in packets to the source files; None if no file was matched.

    `missing` has packets of rows that change without a match.
    """

    source: ShuffleSource
    partitions: pa.Table
    packets: DataFrame | None
    counts: MatchCounts
    missing: DataFrame | None = None

    @property
    def _policy(self) -> MergePolicy:
        return self.source.spec.policy

    @property
    def _reader(self) -> SourceReader:
        return self.source.source.reader

    @property
    def _new_rows(self) -> shuffle_new_rows.NewRows:
        return shuffle_new_rows.NewRows(self._reader, self._policy, self.partitions, self.packets is not None)

    def stage(self, jobs: Sequence[RewriteJob], layout: Layout | None, staging: Staging) -> StagedFiles:
        rewritten = self._rewrite(jobs, staging) if jobs else []
        return rewritten, [] if layout is None else self._append(layout, staging)

    def _rewrite(self, jobs: Sequence[RewriteJob], staging: Staging) -> list[RewrittenFile]:
        policy, found = self._policy, self.packets if self._policy.rule.uses_matches else None
        names = list_value_columns(self._reader.schemas.target.names, policy, policy.columns)
        has_matches = self.packets is not None or self.missing is not None
        rewrite = tag_errors(shuffle_matches.rewrite, self._reader, names, policy, staging, has_matches)
        with report_staged_files(staging, len(jobs)):
            # Where rows without a match stay, those that are kept need not be sent.
            kept = policy.rule.deletes_missing
            sent = self.source.send_matches(found, jobs, names, kept=kept, missing=self.missing)
            return collect_results(sent.mapInArrow(rewrite, RESULT_SCHEMA), "rewrite files")

    def _append(self, layout: Layout, staging: Staging) -> list[AppendedFile]:
        max_rows, new = layout.max_rows_per_file, self._new_rows
        assigned = shuffle_new_rows.FileAssignment.of(self._count_new_rows(new), max_rows)
        count = len(assigned.partitions)
        if not count:
            return []
        emit = tag_errors(shuffle_new_rows.send_new_rows, new, assigned, max_rows)
        rows = self._send_new_rows().mapInArrow(emit, PACKET_SCHEMA)
        write = tag_errors(shuffle_new_rows.write_file, self._reader, layout, staging)
        with report_staged_files(staging, count):
            files = exchange([rows], count, in_order=True).mapInArrow(write, RESULT_SCHEMA)
            written = collect_results(files, "write new files")
        return [AppendedFile(path, partition) for path, partition in zip(written, assigned.partitions, strict=True)]

    def _count_new_rows(self, new: shuffle_new_rows.NewRows) -> dict[int, dict[PartitionNumber, int]]:
        staged = self.source.source.staged
        if not new.is_matched and not self.partitions.num_columns and self._policy.flag_column is None and staged:
            rows = enumerate(file.stats.rows for file in staged.files)
            return {number: {PartitionNumber(0): count} for number, count in rows if self._policy.rule.inserts}
        count = self._send_new_rows().mapInArrow(tag_errors(shuffle_new_rows.count_new_rows, new), RESULT_SCHEMA)
        return dict(collect_results(count, "count new rows"))

    def _send_new_rows(self) -> DataFrame:
        """Tell the source files which of their rows are new or move."""
        if self.packets is None:
            return self.source.send_to_source()
        return self.source.send_to_source(self.packets.where(F.col(KIND) != int(Kind.COUNTS)))

    def audit(self, files: Sequence[ScanFile], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:
        found = []
        if self._policy.rule.inserts:
            list_inserted = tag_errors(shuffle_new_rows.list_inserted, self._new_rows, audit, staging)
            inserted = self._send_new_rows().mapInArrow(list_inserted, RESULT_SCHEMA)
            found += collect_results(inserted, "list changed rows")
        if files:
            names = list_value_columns(self._reader.schemas.target.names, self._policy, {*audit.columns})
            list_changed = tag_errors(shuffle_matches.list_changed, self._reader, self.source.spec, audit, staging)
            sent = self.source.send_matches(self.packets, files, names, kept=True, missing=self.missing)
            found += collect_results(sent.mapInArrow(list_changed, RESULT_SCHEMA), "list changed rows")
        return list(chain.from_iterable(found))


def select_kind(packets: DataFrame, kind: Kind) -> DataFrame:
    """Select packets of one kind."""
    return packets.where(F.col(KIND) == int(kind))
