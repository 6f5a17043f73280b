"""The way for a source of any size: keys and rows are sent to where they belong.

A source row is known by its part and its number there. Keys are joined by Spark; of the target only keys and their
places take part. Then each row that counts is sent once to the task that writes its file.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import SAMPLE_SIZE, UNKNOWN_PARTITION, AppendedFile, MatchCounts
from merganser.core.model.keys import name_key_columns, to_canonical_type
from merganser.core.model.strategy import Action
from merganser.core.rows.key_scan import POSITION_COLUMNS, make_key_schema
from merganser.core.rows.match_actions import list_compared_columns
from merganser.core.rows.table_engine import KeyFacts
from merganser.engines.spark import shuffle_tasks as tasks
from merganser.engines.spark.execution import ExecutionMode
from merganser.engines.spark.jobs import (
    RESULT_SCHEMA,
    collect_results,
    create_small_frame,
    make_task_frame,
    tag_errors,
    translate_errors,
)
from merganser.engines.spark.progress import report_staged_files
from merganser.engines.spark.source import make_source, stage_frame
from merganser.engines.spark.types import to_spark_schema
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import AuditSpec, Layout, RewriteJob, RewrittenFile, ScanFile
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Source
    from merganser.engines.spark.staged_source import SourceSchemas, StagedSource


_REPLACED, _REMOVED, _MOVED = (
    [int(action) for action in some] for some in ([Action.REPLACE], [Action.DELETE, Action.MOVE], [Action.MOVE])
)


@dataclass(frozen=True, slots=True)
class ShuffleMatches:
    """Every match: the place of the target row, the source row, whether that deletes, and what happens."""

    frame: DataFrame


class ShuffleMode(ExecutionMode[ShuffleMatches]):
    """Tasks that get what is theirs."""

    _match_frame: DataFrame | None = None

    def close(self) -> None:
        kept = [self._match_frame, self.source.frame if self.source.staged is None else None]
        for frame in kept:
            if frame is not None:
                frame.unpersist()

    @property
    def _staged(self) -> StagedSource:
        if self.source.staged is None:
            message = "Rows were to be written without a staging folder. Please report this."
            raise CountMismatchError(message)
        return self.source.staged

    # ---- facts

    def collect_facts(
        self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, policy: MergePolicy
    ) -> KeyFacts:
        twice, sample = 0, self.source.schemas.select(keys).make_empty_table()
        if keys:
            row = F.min(F.struct("part", "row")).alias("first")
            groups = self._read_keys(keys).groupBy(*name_key_columns(len(keys))).agg(F.count("*").alias("rows"), row)
            several = groups.where("rows > 1")
            with translate_errors():
                twice = several.count()
            if twice:
                sample = self._sample_keys(keys, several.select("first.part", "first.row"))
        partitions = self.source.schemas.select(partition_columns).make_empty_table()
        if partition_columns:
            frame, reader = self.source.select([*partition_columns, *_list_delete_columns(policy)])
            found = collect_results(
                frame.mapInArrow(tag_errors(tasks.find_partitions, reader, partition_columns, policy), RESULT_SCHEMA)
            )
            partitions = tasks.drop_duplicate_rows(pa.concat_tables([partitions, *found]))
        return KeyFacts(twice, sample, partitions, self._find_candidates(keys, bounds))

    def hash_keys(self, keys: Sequence[str]) -> Hashes:
        frame, reader = self.source.select(keys)
        return np.concatenate(
            collect_results(frame.mapInArrow(tag_errors(tasks.hash_rows, reader, keys), RESULT_SCHEMA))
        )

    def _read_keys(
        self, keys: Sequence[str], partitions: pa.Table | None = None, policy: MergePolicy | None = None
    ) -> DataFrame:
        """Give every source row with its keys and, where partitions and terms are given, what they say of it."""
        told_of = [("code", pa.int32()), ("gone", pa.bool_())]
        schema = pa.schema(
            [*tasks.SOURCE_ROW_FIELDS, *told_of, *tasks.make_key_fields(self.source.schemas.target, keys)]
        )
        told = [*([] if partitions is None else partitions.column_names), *_list_delete_columns(policy)]
        # A row is counted even where no column of it is asked for.
        names = list(dict.fromkeys([*keys, *told])) or self.source.schemas.target.names[:1]
        frame, reader = self.source.select(names)
        return frame.mapInArrow(
            tag_errors(tasks.emit_keys, reader, keys, partitions, policy, schema), to_spark_schema(schema)
        )

    def _sample_keys(self, keys: Sequence[str], rows: DataFrame) -> pa.Table:
        """Show the keys of the first few of some rows."""
        with translate_errors():
            wanted = rows.distinct().orderBy("part", "row").limit(SAMPLE_SIZE).toArrow()
        frame, reader = self.source.select(keys)
        found = collect_results(frame.mapInArrow(tag_errors(tasks.select_rows, reader, wanted), RESULT_SCHEMA))
        return pa.concat_tables([table for _, _, table in sorted(found, key=lambda one: one[:2])])

    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        if not self.source.stats.rows:
            return self.source
        columns = [*keys, *order_by]
        names = name_key_columns(len(columns))
        order = [F.col(name).desc_nulls_last() for name in [*names[len(keys) :], "part", "row"]]
        rank = F.row_number().over(Window.partitionBy(*names[: len(keys)]).orderBy(*order)).alias("rank")
        shape, parts, staging = self.source.schemas, self.source.staged, self.source.staging
        if parts is not None and staging is not None:
            latest = self._read_keys(columns).select("part", "row", rank).where("rank = 1").drop("rank")
            sent = self._shuffle_to_tasks(latest, "part", parts.files, "row")
            kept = collect_results(
                sent.mapInArrow(tag_errors(tasks.keep_rows, parts.without_files(), staging), RESULT_SCHEMA)
            )
            return make_source(self._spark, replace(parts, files=tuple(chain.from_iterable(kept))), staging)
        wire = tasks.make_wire_schema(shape)
        schema = pa.schema([*tasks.SOURCE_ROW_FIELDS, *tasks.make_key_fields(shape.target, columns), *wire])
        give = tag_errors(tasks.emit_rows, self.source.reader, shape, columns, schema)
        rows = self.source.frame.mapInArrow(give, to_spark_schema(schema)).select(*wire.names, rank)
        return stage_frame(self._spark, rows.where("rank = 1").drop("rank"), shape, None)

    def _find_candidates(self, keys: Sequence[str], bounds: pa.Table | None) -> npt.NDArray[np.bool_]:
        if bounds is None:
            return np.zeros(0, np.bool_)
        frame, reader = self.source.select(keys)
        answer = np.zeros(bounds.num_rows, np.bool_)
        for bits in collect_results(
            frame.mapInArrow(tag_errors(tasks.probe_bounds, reader, keys, bounds), RESULT_SCHEMA)
        ):
            answer |= np.unpackbits(bits, count=bounds.num_rows).astype(np.bool_)
        return answer

    # ---- match

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, policy: MergePolicy
    ) -> tuple[ShuffleMatches, MatchCounts]:
        found = self._find_matches(keys, store, files, partitions, policy)
        if policy.compares_values:
            found = self._compare_values(found, keys, store, files, policy)
        found = found.persist()
        self._match_frame = found
        counted = [F.sum(F.col("action").isin(*some).cast("long")) for some in (_REPLACED, _REMOVED, _MOVED)]
        with translate_errors():
            counts = (
                found.groupBy("file", "row_group").agg(F.count("*"), *counted).orderBy("file", "row_group").toArrow()
            )
            matched = found.where("NOT gone").select("part", "row").distinct().count() if policy.rule.inserts else 0
        file, group, rows, replaced, removed, moved = (column.to_numpy() for column in counts.columns)
        sample = self.source.schemas.select(keys).make_empty_table()
        if moved.sum():
            sample = self._sample_keys(keys, found.where(F.col("action") == int(Action.MOVE)).select("part", "row"))
        profile = self.source.stats
        new = profile.rows - profile.deletes - matched if policy.rule.inserts else 0
        return ShuffleMatches(found), MatchCounts(file, group, rows, replaced, removed, new, int(moved.sum()), sample)

    def _find_matches(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, policy: MergePolicy
    ) -> DataFrame:
        """Join keys, and say of each match what the rule, its operation and its partition make of it."""
        goal = conform_schema(self.source.schemas.target)
        schema = pa.schema([*tasks.TARGET_ROW_FIELDS, ("expected", pa.int32()), *tasks.make_key_fields(goal, keys)])
        kinds = [to_canonical_type(goal.field(key).type) for key in keys]
        scan = tag_errors(tasks.scan_keys, store, keys, make_key_schema(kinds), schema)
        target = make_task_frame(self._spark, files).mapInArrow(scan, to_spark_schema(schema))
        moves = policy.rule.replaces and policy.takes_partition and bool(partitions.num_columns)
        moved = F.lit(moves) & (F.col("expected") != UNKNOWN_PARTITION) & (F.col("code") != F.col("expected"))
        action = F.when(F.col("gone"), F.lit(int(Action.DELETE))).when(moved, F.lit(int(Action.MOVE)))
        action = action.otherwise(F.lit(int(policy.rule.matched))).cast("byte").alias("action")
        # Spark takes what a Python function gives for as small as what it gets, and would broadcast anything.
        found = target.hint("merge").join(self._read_keys(keys, partitions, policy), name_key_columns(len(keys)))
        return found.select(*POSITION_COLUMNS, "part", "row", "gone", action)

    def _compare_values(
        self, found: DataFrame, keys: Sequence[str], store: Store, files: Sequence[ScanFile], policy: MergePolicy
    ) -> DataFrame:
        """Send source rows to the files that they match, to be compared there."""
        names = self.source.schemas.target.names
        # A row is a row even where no column of it is asked for.
        shape = self.source.schemas.select(list_compared_columns(names, keys, policy) or names[:1])
        by_file = self._send_matches(found, files, shape)
        schema = pa.schema([("file", pa.int32()), *tasks.MATCH_FIELDS])
        look = tag_errors(tasks.compare_rows, shape, keys, store, policy, schema)
        return by_file.mapInArrow(look, to_spark_schema(schema))

    def _send_matches(
        self, found: DataFrame | None, files: Sequence[ScanFile | RewriteJob], schemas: SourceSchemas
    ) -> DataFrame:
        """Send matches to the tasks of their files, each with some columns of its source row."""
        schema = pa.schema([("place", pa.int32()), *tasks.MATCH_FIELDS, *tasks.make_wire_schema(schemas)])
        rows = self._create_empty_frame(schema)
        if found is not None:
            numbers = {"file": [one.number for one in files], "place": range(len(files))}
            placed = found.join(F.broadcast(self._create_small_frame(numbers)), "file")
            names = [name for name in schema.names if name not in tasks.make_wire_schema(schemas).names]
            parts = self.source.staged
            if parts is not None:
                sent = self._shuffle_to_tasks(placed.select(*names), "part", parts.files)
                rows = sent.mapInArrow(
                    tag_errors(tasks.fetch_matched, parts.without_files(), schemas, schema), to_spark_schema(schema)
                )
            else:
                rows = placed.join(self._read_rows(schemas), ["part", "row"]).select(*schema.names)
        return self._shuffle_to_tasks(rows, "place", files, "row_group", "position")

    def _read_rows(self, schemas: SourceSchemas) -> DataFrame:
        """Give every source row with its number, where there are no files to read it from."""
        schema = pa.schema([*tasks.SOURCE_ROW_FIELDS, *tasks.make_wire_schema(schemas)])
        at = [self.source.schemas.transport.names.index(name) for name in schemas.transport.names]
        frame, reader = self.source.reader.select(self.source.frame, at)
        return frame.mapInArrow(tag_errors(tasks.emit_rows, reader, schemas, [], schema), to_spark_schema(schema))

    # ---- rewrite and append

    def stage(
        self,
        matches: ShuffleMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        rewritten = self._rewrite(matches, jobs, staging, policy) if jobs else []
        return rewritten, [] if layout is None else self._append(matches, layout, partitions, staging, policy)

    def _rewrite(
        self, matches: ShuffleMatches | None, jobs: Sequence[RewriteJob], staging: Staging, policy: MergePolicy
    ) -> list[RewrittenFile]:
        found = None
        if matches is not None and policy.rule.touches:
            # Where other rows stay, so do these, without being told.
            stays = F.col("action") == int(Action.KEEP)
            found = matches.frame if policy.rule.deletes_missing else matches.frame.where(~stays)
        shape = self._staged.schemas.select(
            [name for name in self._staged.schemas.target.names if name in policy.columns]
        )
        rewrite = tag_errors(tasks.rewrite, shape, staging, matches is not None)
        with report_staged_files(staging, len(jobs)):
            return collect_results(self._send_matches(found, jobs, shape).mapInArrow(rewrite, RESULT_SCHEMA))

    def _append(
        self,
        matches: ShuffleMatches | None,
        layout: Layout,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[AppendedFile]:
        parts = self._staged
        new = self._find_new_rows(matches, partitions, policy).where(F.lit(policy.rule.inserts))
        if matches is not None and policy.rule.replaces and partitions.num_columns:
            moved = matches.frame.where(F.col("action") == int(Action.MOVE)).select("part", "row")
            new = new.unionAll(self._read_row_partitions(partitions, policy).hint("merge").join(moved, ["part", "row"]))
        with translate_errors():
            counts = new.groupBy("code", "part").count().toArrow()
        if not counts.num_rows:
            return []
        files = tasks.FileAssignment.of(
            counts.sort_by([("code", "ascending"), ("part", "ascending")]), layout.max_rows_per_file
        )
        schema = pa.schema([("file", pa.int32()), ("place", pa.int64()), *tasks.make_wire_schema(parts.schemas)])
        orders = [(part, files.starts.get(number, {})) for number, part in enumerate(parts.files)]
        sent = self._shuffle_to_tasks(new, "part", orders, "row")
        rows = sent.mapInArrow(
            tag_errors(tasks.fetch_new, parts.without_files(), layout.max_rows_per_file, schema),
            to_spark_schema(schema),
        )
        by_file = rows.repartitionById(len(files.partitions), "file").sortWithinPartitions("file", "place")
        with report_staged_files(staging, len(files.partitions)):
            written = collect_results(
                by_file.mapInArrow(tag_errors(tasks.write_file, parts.schemas, layout, staging), RESULT_SCHEMA)
            )
        return [AppendedFile(path, code) for path, code in zip(written, files.partitions, strict=True)]

    def _find_new_rows(self, matches: ShuffleMatches | None, partitions: pa.Table, policy: MergePolicy) -> DataFrame:
        """Give the source rows that match nothing, and do not delete."""
        rows = self._read_row_partitions(partitions, policy)
        return rows if matches is None else rows.hint("merge").join(matches.frame, ["part", "row"], "left_anti")

    def _read_row_partitions(self, partitions: pa.Table, policy: MergePolicy) -> DataFrame:
        """Give each source row that does not delete with its partition."""
        return self._read_keys([], partitions, policy).where("NOT gone").select("part", "row", "code")

    def audit(
        self,
        matches: ShuffleMatches | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        parts, found = self._staged, []
        if policy.rule.inserts and parts.files:
            shape = parts.schemas.select([name for name in audit.columns if name in audit.insert_columns])
            new = self._shuffle_to_tasks(self._find_new_rows(matches, pa.table({}), policy), "part", parts.files, "row")
            found += collect_results(
                new.mapInArrow(
                    tag_errors(tasks.list_inserted, parts.without_files(), shape, audit, staging), RESULT_SCHEMA
                )
            )
        if files:
            shape = parts.schemas.select([name for name in audit.columns if name in policy.columns])
            by_file = self._send_matches(None if matches is None else matches.frame, files, shape)
            found += collect_results(
                by_file.mapInArrow(tag_errors(tasks.list_changed, shape, audit, staging, policy), RESULT_SCHEMA)
            )
        return list(chain.from_iterable(found))

    # ---- rows on their way

    def _shuffle_to_tasks(
        self, rows: DataFrame, number_column: str, task_inputs: Sequence[Any], *order_by: str
    ) -> DataFrame:
        """Send rows to numbered places, each with the driver's order for it, so that one without rows works too."""
        packed = {
            number_column: range(len(task_inputs)),
            tasks.TASK_COLUMN: [pickle.dumps(order) for order in task_inputs],
        }
        together = rows.unionByName(self._create_small_frame(packed), allowMissingColumns=True)
        return together.repartitionById(len(task_inputs), number_column).sortWithinPartitions(
            F.col(tasks.TASK_COLUMN).isNull(), *order_by
        )

    def _create_small_frame(self, columns: Mapping[str, Sequence[Any]]) -> DataFrame:
        kinds = {name: pa.binary() if name == tasks.TASK_COLUMN else pa.int32() for name in columns}
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        return create_small_frame(self._spark, table)

    def _create_empty_frame(self, schema: pa.Schema) -> DataFrame:
        return create_small_frame(self._spark, schema.empty_table())


def _list_delete_columns(policy: MergePolicy | None) -> list[str]:
    return [] if policy is None or policy.delete_column is None else [policy.delete_column]
