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

from merganser.core.engine import SAMPLE, UNTOLD, Appended, MatchCounts
from merganser.core.errors import CountMismatchError
from merganser.core.keys import canonical_type, key_names
from merganser.core.scan import POSITION, key_schema
from merganser.core.schema import conformed
from merganser.core.tables import KeyFacts, Matches, changed_keys
from merganser.engines.spark import tasks
from merganser.engines.spark.run import ANSWERS, answers, explained, marked, orders_frame, small_frame
from merganser.engines.spark.source import stage_frame, staged
from merganser.engines.spark.types import spark_schema
from merganser.engines.spark.way import Way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

    from merganser.core.engine import Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.strategy import Rule
    from merganser.engines.spark.parts import Parts
    from merganser.engines.spark.source import Source


@dataclass(frozen=True, slots=True)
class FarMatches:
    """Every match: the place of the target row, the source row, and whether it has moved to another partition."""

    frame: DataFrame
    replaces: bool


class Far(Way[FarMatches]):
    """Tasks that get what is theirs."""

    _matched: DataFrame | None = None

    def close(self) -> None:
        kept = [self._matched, self.source.frame if self.source.parts is None else None]
        for frame in kept:
            if frame is not None:
                frame.unpersist()

    @property
    def _parts(self) -> Parts:
        if self.source.parts is None:
            message = "Rows were to be written without a staging folder. Please report this."
            raise CountMismatchError(message)
        return self.source.parts

    # ---- facts

    def facts(self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None) -> KeyFacts:
        twice, sample = 0, self.source.shape.of(keys).empty()
        if keys:
            row = F.min(F.struct("part", "row")).alias("first")
            groups = self._keys(keys).groupBy(*key_names(len(keys))).agg(F.count("*").alias("rows"), row)
            several = groups.where("rows > 1")
            with explained():
                twice = several.count()
            if twice:
                sample = self._shown(keys, several.select("first.part", "first.row"))
        partitions = self.source.shape.of(partition_columns).empty()
        if partition_columns:
            frame, reader = self.source.rows(partition_columns)
            found = answers(frame.mapInArrow(marked(tasks.distinct, reader), ANSWERS))
            partitions = tasks.once(pa.concat_tables([partitions, *found]))
        return KeyFacts(twice, sample, partitions, self._candidates(keys, bounds))

    def _keys(self, keys: Sequence[str], partitions: pa.Table | None = None) -> DataFrame:
        """Give every source row with its keys and, where partitions are given, the number of its own."""
        schema = pa.schema([*tasks.ROW, ("code", pa.int32()), *tasks.key_fields(self.source.shape.goal, keys)])
        told = [] if partitions is None else partitions.column_names
        # A row is counted even where no column of it is asked for.
        names = list(dict.fromkeys([*keys, *told])) or self.source.shape.goal.names[:1]
        frame, reader = self.source.rows(names)
        return frame.mapInArrow(marked(tasks.give_keys, reader, keys, partitions, schema), spark_schema(schema))

    def _shown(self, keys: Sequence[str], rows: DataFrame) -> pa.Table:
        """Show the keys of the first few of some rows."""
        with explained():
            wanted = rows.distinct().orderBy("part", "row").limit(SAMPLE).toArrow()
        frame, reader = self.source.rows(keys)
        found = answers(frame.mapInArrow(marked(tasks.pick, reader, wanted), ANSWERS))
        return pa.concat_tables([table for _, _, table in sorted(found, key=lambda one: one[:2])])

    def deduplicate(self, keys: Sequence[str], order_by: Sequence[str]) -> Source:
        if not self.source.profile.rows:
            return self.source
        columns = [*keys, *order_by]
        names = key_names(len(columns))
        order = [F.col(name).desc_nulls_last() for name in [*names[len(keys) :], "part", "row"]]
        rank = F.row_number().over(Window.partitionBy(*names[: len(keys)]).orderBy(*order)).alias("rank")
        shape, parts, staging = self.source.shape, self.source.parts, self.source.staging
        if parts is not None and staging is not None:
            latest = self._keys(columns).select("part", "row", rank).where("rank = 1").drop("rank")
            sent = self._gathered(latest, "part", parts.files, "row")
            kept = answers(sent.mapInArrow(marked(tasks.keep, parts.any(), staging), ANSWERS))
            return staged(self._spark, replace(parts, files=tuple(chain.from_iterable(kept))), staging)
        wire = tasks.wire(shape)
        schema = pa.schema([*tasks.ROW, *tasks.key_fields(shape.goal, columns), *wire])
        give = marked(tasks.give_rows, self.source.reader, shape, columns, schema)
        rows = self.source.frame.mapInArrow(give, spark_schema(schema)).select(*wire.names, rank)
        return stage_frame(self._spark, rows.where("rank = 1").drop("rank"), shape, None)

    def _candidates(self, keys: Sequence[str], bounds: pa.Table | None) -> npt.NDArray[np.bool_]:
        if bounds is None:
            return np.zeros(0, np.bool_)
        frame, reader = self.source.rows(keys)
        answer = np.zeros(bounds.num_rows, np.bool_)
        for bits in answers(frame.mapInArrow(marked(tasks.test, reader, keys, bounds), ANSWERS)):
            answer |= np.unpackbits(bits, count=bounds.num_rows).astype(np.bool_)
        return answer

    # ---- match

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, rule: Rule
    ) -> tuple[FarMatches, MatchCounts]:
        goal = conformed(self.source.shape.goal)
        schema = pa.schema([*tasks.PLACE, ("expected", pa.int32()), *tasks.key_fields(goal, keys)])
        kinds = [canonical_type(goal.field(key).type) for key in keys]
        scan = marked(tasks.scan, store, keys, key_schema(kinds), schema)
        target = orders_frame(self._spark, files).mapInArrow(scan, spark_schema(schema))
        moved = (F.col("expected") != UNTOLD) & (F.col("code") != F.col("expected"))
        # Spark takes what a Python function gives for as small as what it gets, and would broadcast anything.
        found = target.hint("merge").join(self._keys(keys, partitions), key_names(len(keys)))
        found = found.select(*POSITION, "part", "row", moved.alias("moved")).persist()
        self._matched = found
        with explained():
            counted = found.groupBy("file", "row_group").agg(
                F.count("*").alias("rows"), F.sum(F.col("moved").cast("long")).alias("moved")
            )
            counts = counted.toArrow().sort_by([("file", "ascending"), ("row_group", "ascending")])
            matched = found.select("part", "row").distinct().count() if rule.inserts else self.source.profile.rows
        file, group, rows, gone = (column.to_numpy() for column in counts.columns)
        sample = self.source.shape.of(keys).empty()
        if gone.sum():
            sample = self._shown(keys, found.where("moved").select("part", "row"))
        new = self.source.profile.rows - matched
        return FarMatches(found, rule.replaces), MatchCounts(file, group, rows, new, int(gone.sum()), sample)

    # ---- rewrite and append

    def stage(
        self,
        matches: FarMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
    ) -> tuple[list[Rewritten], list[Appended]]:
        rewritten = self._rewrite(matches, jobs, staging) if jobs else []
        return rewritten, [] if layout is None else self._append(matches, layout, partitions, staging)

    def _rewrite(self, matches: FarMatches | None, jobs: Sequence[RewriteJob], staging: Staging) -> list[Rewritten]:
        parts = self._parts
        schema = pa.schema([("job", pa.int32()), *tasks.GROUP, *tasks.wire(parts.shape)])
        rows = self._none(schema)
        if matches is not None:
            numbers = {"file": [job.number for job in jobs], "job": range(len(jobs))}
            found = matches.frame.join(F.broadcast(self._small(numbers)), "file").select(
                "part", "row", *schema.names[:3]
            )
            sent = self._gathered(found, "part", parts.files)
            rows = sent.mapInArrow(marked(tasks.fetch_matched, parts.any(), schema), spark_schema(schema))
        by_job = self._gathered(rows, "job", jobs, "row_group", "position")
        rewrite = marked(tasks.rewrite, parts.shape, staging, matches is not None)
        return answers(by_job.mapInArrow(rewrite, ANSWERS))

    def _append(
        self, matches: FarMatches | None, layout: Layout, partitions: pa.Table, staging: Staging
    ) -> list[Appended]:
        parts = self._parts
        new = self._new(matches, partitions)
        with explained():
            counts = new.groupBy("code", "part").count().toArrow()
        if not counts.num_rows:
            return []
        files = tasks.Files.of(counts.sort_by([("code", "ascending"), ("part", "ascending")]), layout.max_rows_per_file)
        schema = pa.schema([("file", pa.int32()), ("place", pa.int64()), *tasks.wire(parts.shape)])
        orders = [(part, files.starts.get(number, {})) for number, part in enumerate(parts.files)]
        sent = self._gathered(new, "part", orders, "row")
        rows = sent.mapInArrow(
            marked(tasks.fetch_new, parts.any(), layout.max_rows_per_file, schema), spark_schema(schema)
        )
        by_file = rows.repartitionById(len(files.codes), "file").sortWithinPartitions("file", "place")
        written = answers(by_file.mapInArrow(marked(tasks.write, parts.shape, layout, staging), ANSWERS))
        return [Appended(path, code) for path, code in zip(written, files.codes, strict=True)]

    def _new(self, matches: FarMatches | None, partitions: pa.Table) -> DataFrame:
        """Give the source rows that match nothing."""
        rows = self._keys([], partitions).select("part", "row", "code")
        return rows if matches is None else rows.hint("merge").join(matches.frame, ["part", "row"], "left_anti")

    def audit(
        self,
        matches: FarMatches | None,
        keys: Sequence[str],
        store: Store,
        shrinking: Sequence[ScanFile],
        *,
        inserts: bool,
    ) -> pa.Table:
        shape = self.source.shape.of(keys)
        none = changed_keys(Matches.of_new(np.arange(0)), shape.empty())
        parts, found = self.source.parts, []
        # Where nothing may be written, nothing has changed.
        if parts is not None and parts.files:
            found = self._changed(parts, matches, keys, inserts=inserts)
        if shrinking:
            schema = pa.schema([("place", pa.int32()), *tasks.GROUP])
            rows = self._none(schema)
            if matches is not None:
                numbers = {"file": [scan.number for scan in shrinking], "place": range(len(shrinking))}
                rows = matches.frame.join(F.broadcast(self._small(numbers)), "file").select(*schema.names)
            by_file = self._gathered(rows, "place", shrinking, "row_group", "position")
            found += answers(by_file.mapInArrow(marked(tasks.deleted, store, keys, shape), ANSWERS))
        return pa.concat_tables([*none, *found])

    def _changed(
        self, parts: Parts, matches: FarMatches | None, keys: Sequence[str], *, inserts: bool
    ) -> list[pa.Table]:
        new = self._new(matches, pa.table({})).where(F.lit(inserts))
        changed = new.select("part", "row", F.expr("true AS new"))
        if matches is not None and matches.replaces:
            changed = changed.unionAll(matches.frame.select("part", "row", F.expr("false AS new")))
        sent = self._gathered(changed, "part", parts.files)
        return answers(sent.mapInArrow(marked(tasks.changed, parts.any(), keys), ANSWERS))

    # ---- rows on their way

    def _gathered(self, rows: DataFrame, place: str, orders: Sequence[Any], *order_by: str) -> DataFrame:
        """Send rows to numbered places, each with the driver's order for it, so that one without rows works too."""
        packed = {place: range(len(orders)), tasks.PACKED: [pickle.dumps(order) for order in orders]}
        together = rows.unionByName(self._small(packed), allowMissingColumns=True)
        return together.repartitionById(len(orders), place).sortWithinPartitions(
            F.col(tasks.PACKED).isNull(), *order_by
        )

    def _small(self, columns: Mapping[str, Sequence[Any]]) -> DataFrame:
        kinds = {name: pa.binary() if name == tasks.PACKED else pa.int32() for name in columns}
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        return small_frame(self._spark, table)

    def _none(self, schema: pa.Schema) -> DataFrame:
        return small_frame(self._spark, schema.empty_table())
