"""The execution mode for a source of any size: keys and rows are sent to the tasks that need them.

A source row is identified by its staged file and its number there. Spark joins keys; of the target, only keys and their
positions take part. Then each row that is needed is sent once to the task that writes its file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import SAMPLE_SIZE, UNKNOWN_PARTITION, AppendedFile, AuditSpec, MatchCounts
from merganser.core.model.keys import name_key_columns, to_canonical_type
from merganser.core.model.strategy import Action
from merganser.core.rows.key_scan import POSITION_COLUMNS, make_key_schema
from merganser.core.rows.match_actions import list_compared_columns
from merganser.core.rows.table_source import KeyFacts
from merganser.engines.spark import columns as col
from merganser.engines.spark import shuffle_tasks as tasks
from merganser.engines.spark.jobs import (
    RESULT_SCHEMA,
    collect_results,
    create_small_frame,
    make_task_frame,
    shuffle_to_tasks,
    tag_errors,
    watch_job,
)
from merganser.engines.spark.progress import report_staged_files
from merganser.engines.spark.source import find_stats, make_source, stage_frame
from merganser.engines.spark.types import to_spark_schema
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import Layout, RewriteJob, RewrittenFile, ScanFile, SourceFacts, SourceSpec
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.rows.table_source import StagedFiles
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.broadcast import BroadcastSource
    from merganser.engines.spark.engine import SparkEngine
    from merganser.engines.spark.source import Source
    from merganser.engines.spark.staged_source import SourceSchemas, StagedSource

_SOURCE_ROW = [col.STAGED_FILE, col.ROW]


class ShuffleSource:
    """`merganser.core.model.engine.ConformedSource` whose tasks get the rows that they need."""

    def __init__(self, engine: SparkEngine, source: Source, spec: SourceSpec) -> None:
        if source.staged is not None:
            source = replace(source, stats=find_stats(engine.spark, source.staged, source.stats))
        self._engine = engine
        self.source = source
        self.spec = spec

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        source, keys, policy = self.source, self.spec.keys, self.spec.policy
        columns = self.spec.partition_columns
        duplicates, sample = self._find_duplicate_keys() if keys else (0, source.schemas.select([]).make_empty_table())
        partitions = source.schemas.select(columns).make_empty_table()
        if columns:
            frame, reader = source.select([*columns, *_list_delete_columns(policy)])
            find = tag_errors(tasks.find_partitions, reader, columns, policy)
            found = collect_results(frame.mapInArrow(find, RESULT_SCHEMA), "find partitions")
            partitions = tasks.drop_duplicate_rows(pa.concat_tables([partitions, *found]))
        candidates = np.zeros(0, np.bool_) if bounds is None else self._find_candidates(bounds)
        return source.stats.to_source_facts(KeyFacts(duplicates, sample, partitions, candidates), keys)

    def _find_duplicate_keys(self) -> tuple[int, pa.Table]:
        keys = self.spec.keys
        row = F.min(F.struct(*_SOURCE_ROW)).alias("first")
        groups = self._read_keys(keys).groupBy(*name_key_columns(len(keys))).agg(F.count("*").alias("rows"), row)
        several = groups.where("rows > 1")
        with watch_job("check keys"):
            count = several.count()
        if not count:
            return 0, self.source.schemas.select(keys).make_empty_table()
        return count, self._sample_keys(several.select(*(f"first.{name}" for name in _SOURCE_ROW)))

    def _find_candidates(self, bounds: pa.Table) -> npt.NDArray[np.bool_]:
        frame, reader = self.source.select(self.spec.keys)
        probe = tag_errors(tasks.probe_bounds, reader, self.spec.keys, bounds)
        candidates = np.zeros(bounds.num_rows, np.bool_)
        for bits in collect_results(frame.mapInArrow(probe, RESULT_SCHEMA), "probe bounds"):
            candidates |= np.unpackbits(bits, count=bounds.num_rows).astype(np.bool_)
        return candidates

    def _read_keys(
        self, keys: Sequence[str], partitions: pa.Table | None = None, policy: MergePolicy | None = None
    ) -> DataFrame:
        """Read the number and keys of each source row, its row of `partitions`, and whether it deletes."""
        more = [(col.PARTITION, pa.int32()), (col.IS_DELETE, pa.bool_())]
        schema = pa.schema([*col.SOURCE_ROW_FIELDS, *more, *tasks.make_key_fields(self.source.schemas.target, keys)])
        columns = [*([] if partitions is None else partitions.column_names), *_list_delete_columns(policy)]
        # Without any column there would be no rows to number.
        names = list(dict.fromkeys([*keys, *columns])) or self.source.schemas.target.names[:1]
        frame, reader = self.source.select(names)
        emit = tag_errors(tasks.emit_keys, reader, keys, partitions, policy, schema)
        return frame.mapInArrow(emit, to_spark_schema(schema))

    def read_row_partitions(self, partitions: pa.Table) -> DataFrame:
        """Read the number and partition of each source row that does not delete."""
        rows = self._read_keys([], partitions, self.spec.policy)
        return rows.where(~F.col(col.IS_DELETE)).select(*_SOURCE_ROW, col.PARTITION)

    def _sample_keys(self, rows: DataFrame) -> pa.Table:
        with watch_job("sample keys"):
            wanted = rows.distinct().orderBy(*_SOURCE_ROW).limit(SAMPLE_SIZE).toArrow()
        frame, reader = self.source.select(self.spec.keys)
        select = tag_errors(tasks.select_rows, reader, wanted)
        found = collect_results(frame.mapInArrow(select, RESULT_SCHEMA), "sample keys")
        return pa.concat_tables([table for _, _, table in sorted(found, key=lambda one: one[:2])])

    def hash_keys(self) -> Hashes:
        frame, reader = self.source.select(self.spec.keys)
        hash_rows = tag_errors(tasks.hash_rows, reader, self.spec.keys)
        return np.concatenate(collect_results(frame.mapInArrow(hash_rows, RESULT_SCHEMA), "hash keys"))

    def deduplicate(self, order_by: Sequence[str]) -> ShuffleSource | BroadcastSource:
        if not self.source.stats.rows:
            return self
        keys, spark = self.spec.keys, self._engine.spark
        columns = [*keys, *order_by]
        names = name_key_columns(len(columns))
        order = [F.col(name).desc_nulls_last() for name in [*names[len(keys) :], *_SOURCE_ROW]]
        rank = F.row_number().over(Window.partitionBy(*names[: len(keys)]).orderBy(*order)).alias("rank")
        schemas, staged = self.source.schemas, self.source.staged
        if staged is not None:
            latest = self._read_keys(columns).select(*_SOURCE_ROW, rank).where("rank = 1").drop("rank")
            sent = shuffle_to_tasks(latest, col.STAGED_FILE, staged.files, col.ROW)
            keep = tag_errors(tasks.keep_rows, staged.without_files())
            kept = collect_results(sent.mapInArrow(keep, RESULT_SCHEMA), "deduplicate rows")
            source = make_source(spark, staged.with_files(chain.from_iterable(kept)))
        else:
            wire = tasks.make_wire_schema(schemas)
            schema = pa.schema([*col.SOURCE_ROW_FIELDS, *tasks.make_key_fields(schemas.target, columns), *wire])
            emit = tag_errors(tasks.emit_rows, self.source.reader, schemas, columns, schema)
            rows = self.source.frame.mapInArrow(emit, to_spark_schema(schema)).select(*wire.names, rank)
            source = stage_frame(spark, rows.where("rank = 1").drop("rank"), schemas, None)
        return self._engine.choose_mode(source, self.spec)

    def match(self, files: Sequence[ScanFile], facts: SourceFacts) -> ShuffleMatches:
        policy, stats = self.spec.policy, self.source.stats
        if not files:
            return ShuffleMatches(self, facts.partitions, None, MatchCounts.of_unmatched(facts, policy.rule))
        frame = self._find_matches(files, facts.partitions)
        if policy.compares_values:
            frame = self._compare_values(frame, files)
        frame = frame.persist()
        self._engine.persisted.append(frame)
        group = [col.FILE, col.ROW_GROUP]
        counted = [F.sum(_has_action(*some).cast("long")) for some in _COUNTED_ACTIONS]
        with watch_job("match keys"):
            counts = frame.groupBy(*group).agg(F.count("*"), *counted).orderBy(*group).toArrow()
            matching = frame.where(~F.col(col.IS_DELETE)).select(*_SOURCE_ROW).distinct()
            matched = matching.count() if policy.rule.inserts else 0
        file, row_group, rows, replaced, removed, moved = (column.to_numpy() for column in counts.columns)
        sample = self.source.schemas.select(self.spec.keys).make_empty_table()
        if moved.sum():
            sample = self._sample_keys(frame.where(_has_action(Action.MOVE)).select(*_SOURCE_ROW))
        match_counts = MatchCounts(
            file=file,
            row_group=row_group,
            rows=rows,
            replaced=replaced,
            removed=removed,
            new_rows=stats.rows - stats.deletes - matched if policy.rule.inserts else 0,
            moved=int(moved.sum()),
            moved_sample=sample,
        )
        return ShuffleMatches(self, facts.partitions, frame, match_counts)

    def _find_matches(self, files: Sequence[ScanFile], partitions: pa.Table) -> DataFrame:
        """Join keys, and assign the action of each match by the rule, its operation and its partition."""
        keys, policy = self.spec.keys, self.spec.policy
        target_schema = conform_schema(self.source.schemas.target)
        key_fields = tasks.make_key_fields(target_schema, keys)
        schema = pa.schema([*col.TARGET_ROW_FIELDS, (col.EXPECTED_PARTITION, pa.int32()), *key_fields])
        key_schema = make_key_schema([to_canonical_type(target_schema.field(key).type) for key in keys])
        scan = tag_errors(tasks.scan_keys, self.spec.store, keys, key_schema, schema)
        target = make_task_frame(self._engine.spark, files).mapInArrow(scan, to_spark_schema(schema))
        moves = policy.rule.replaces and policy.takes_partition and bool(partitions.num_columns)
        expected = F.col(col.EXPECTED_PARTITION)
        moved = F.lit(moves) & (expected != UNKNOWN_PARTITION) & (F.col(col.PARTITION) != expected)
        action = F.when(F.col(col.IS_DELETE), F.lit(int(Action.DELETE))).when(moved, F.lit(int(Action.MOVE)))
        action = action.otherwise(F.lit(int(policy.rule.matched))).cast("byte").alias(col.ACTION)
        # Spark estimates the output of a Python function as its input, and would broadcast anything.
        found = target.hint("merge").join(self._read_keys(keys, partitions, policy), name_key_columns(len(keys)))
        return found.select(*POSITION_COLUMNS, *_SOURCE_ROW, col.IS_DELETE, action)

    def _compare_values(self, found: DataFrame, files: Sequence[ScanFile]) -> DataFrame:
        """Send source rows to the files that they match, to be compared there."""
        names = self.source.schemas.target.names
        # Without any column there would be no rows to send.
        compared = list_compared_columns(names, self.spec.keys, self.spec.policy) or names[:1]
        schemas = self.source.schemas.select(compared)
        schema = pa.schema([(col.FILE, pa.int32()), *col.MATCH_FIELDS])
        compare = tag_errors(tasks.compare_rows, schemas, self.spec, schema)
        return self.send_matches(found, files, schemas).mapInArrow(compare, to_spark_schema(schema))

    def send_matches(
        self, found: DataFrame | None, files: Sequence[ScanFile | RewriteJob], schemas: SourceSchemas
    ) -> DataFrame:
        """Send matches to the tasks of their files, each with some columns of its source row."""
        wire = tasks.make_wire_schema(schemas)
        match_schema = pa.schema([(col.TASK, pa.int32()), *col.MATCH_FIELDS])
        schema = pa.schema([*match_schema, *wire])
        if found is None:
            rows = create_small_frame(self._engine.spark, schema.empty_table())
        else:
            numbers = pa.table(
                [[one.number for one in files], range(len(files))],
                schema=pa.schema([(col.FILE, pa.int32()), (col.TASK, pa.int32())]),
            )
            numbered = found.join(F.broadcast(create_small_frame(self._engine.spark, numbers)), col.FILE)
            staged = self.source.staged
            if staged is not None:
                sent = shuffle_to_tasks(numbered.select(*match_schema.names), col.STAGED_FILE, staged.files)
                fetch = tag_errors(tasks.fetch_matched, staged.without_files(), schemas, schema)
                rows = sent.mapInArrow(fetch, to_spark_schema(schema))
            else:
                rows = numbered.join(self._read_rows(schemas), _SOURCE_ROW).select(*schema.names)
        return shuffle_to_tasks(rows, col.TASK, files, col.ROW_GROUP, col.POSITION)

    def _read_rows(self, schemas: SourceSchemas) -> DataFrame:
        """Read every source row with its number, where no row is staged."""
        schema = pa.schema([*col.SOURCE_ROW_FIELDS, *tasks.make_wire_schema(schemas)])
        at = [self.source.schemas.transport.names.index(name) for name in schemas.transport.names]
        frame, reader = self.source.reader.select(self.source.frame, at)
        return frame.mapInArrow(tag_errors(tasks.emit_rows, reader, schemas, [], schema), to_spark_schema(schema))


@dataclass(frozen=True, slots=True)
class ShuffleMatches:
    """`merganser.core.model.engine.MatchedSource` in a DataFrame; None if no file was matched.

    Each row has the position of the target row, the source row, whether that deletes, and the action.
    """

    source: ShuffleSource
    partitions: pa.Table
    frame: DataFrame | None
    counts: MatchCounts

    @property
    def _staged(self) -> StagedSource:
        staged = self.source.source.staged
        if staged is None:
            raise CountMismatchError(
                "Internal error: rows have no staging folder. Nothing was published; please report this."
            )
        return staged

    @property
    def _policy(self) -> MergePolicy:
        return self.source.spec.policy

    def stage(self, jobs: Sequence[RewriteJob], layout: Layout | None, staging: Staging) -> StagedFiles:
        rewritten = self._rewrite(jobs, staging) if jobs else []
        return rewritten, [] if layout is None else self._append(layout, staging)

    def _rewrite(self, jobs: Sequence[RewriteJob], staging: Staging) -> list[RewrittenFile]:
        found = self.frame if self._policy.rule.touches else None
        if found is not None and not self._policy.rule.deletes_missing:
            # Where rows without a match stay, those that are kept need not be sent.
            found = found.where(~_has_action(Action.KEEP))
        schemas = self._staged.schemas
        schemas = schemas.select([name for name in schemas.target.names if name in self._policy.columns])
        rewrite = tag_errors(tasks.rewrite, schemas, staging, self.frame is not None)
        with report_staged_files(staging, len(jobs)):
            sent = self.source.send_matches(found, jobs, schemas)
            return collect_results(sent.mapInArrow(rewrite, RESULT_SCHEMA), "rewrite files")

    def _append(self, layout: Layout, staging: Staging) -> list[AppendedFile]:
        staged, partitions, max_rows = self._staged, self.partitions, layout.max_rows_per_file
        new = self._find_new_rows(partitions).where(F.lit(self._policy.rule.inserts))
        if self.frame is not None and self._policy.rule.replaces and partitions.num_columns:
            moved = self.frame.where(_has_action(Action.MOVE)).select(*_SOURCE_ROW)
            rows = self.source.read_row_partitions(partitions).hint("merge")
            new = new.unionAll(rows.join(moved, _SOURCE_ROW))
        group = [col.PARTITION, col.STAGED_FILE]
        with watch_job("count new rows"):
            counts = new.groupBy(*group).count().toArrow()
        if not counts.num_rows:
            return []
        assigned = tasks.FileAssignment.of(counts.sort_by([(name, "ascending") for name in group]), max_rows)
        new_fields = [(col.NEW_FILE, pa.int32()), (col.NEW_POSITION, pa.int64())]
        schema = pa.schema([*new_fields, *tasks.make_wire_schema(staged.schemas)])
        inputs = [(file, assigned.starts.get(number, {})) for number, file in enumerate(staged.files)]
        fetch = tag_errors(tasks.fetch_new, staged.without_files(), max_rows, schema)
        rows = shuffle_to_tasks(new, col.STAGED_FILE, inputs, col.ROW).mapInArrow(fetch, to_spark_schema(schema))
        count = len(assigned.partitions)
        by_file = rows.repartitionById(count, col.NEW_FILE).sortWithinPartitions(col.NEW_FILE, col.NEW_POSITION)
        write = tag_errors(tasks.write_file, staged.schemas, layout, staging)
        with report_staged_files(staging, count):
            written = collect_results(by_file.mapInArrow(write, RESULT_SCHEMA), "write new files")
        return [AppendedFile(path, partition) for path, partition in zip(written, assigned.partitions, strict=True)]

    def _find_new_rows(self, partitions: pa.Table) -> DataFrame:
        """Find the source rows that match nothing, and do not delete."""
        rows = self.source.read_row_partitions(partitions)
        return rows if self.frame is None else rows.hint("merge").join(self.frame, _SOURCE_ROW, "left_anti")

    def audit(self, files: Sequence[ScanFile], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:
        staged, found = self._staged, []
        if self._policy.rule.inserts and staged.files:
            schemas = staged.schemas.select([name for name in audit.columns if name in audit.insert_columns])
            new = shuffle_to_tasks(self._find_new_rows(pa.table({})), col.STAGED_FILE, staged.files, col.ROW)
            list_inserted = tag_errors(tasks.list_inserted, staged.without_files(), schemas, audit)
            found += collect_results(new.mapInArrow(list_inserted, RESULT_SCHEMA), "list changed rows")
        if files:
            schemas = staged.schemas.select([name for name in audit.columns if name in self._policy.columns])
            by_file = self.source.send_matches(self.frame, files, schemas)
            list_changed = tag_errors(tasks.list_changed, schemas, self.source.spec, audit, staging)
            found += collect_results(by_file.mapInArrow(list_changed, RESULT_SCHEMA), "list changed rows")
        return list(chain.from_iterable(found))


# The actions that `MatchCounts` counts as replaced, removed and moved.
_COUNTED_ACTIONS = ((Action.REPLACE,), (Action.DELETE, Action.MOVE), (Action.MOVE,))


def _has_action(*actions: Action) -> Column:
    return F.col(col.ACTION).isin(*map(int, actions))


def _list_delete_columns(policy: MergePolicy | None) -> list[str]:
    return [] if policy is None or policy.delete_column is None else [policy.delete_column]
