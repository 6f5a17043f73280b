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

from merganser.core.model.engine import SAMPLE, UNTOLD, Appended, MatchCounts
from merganser.core.model.keys import canonical_type, key_names
from merganser.core.model.schema import conformed
from merganser.core.model.strategy import Action
from merganser.core.rows.key_scan import POSITION, key_schema
from merganser.core.rows.match_actions import looked_at
from merganser.core.rows.table_engine import KeyFacts
from merganser.engines.spark import shuffle_tasks as tasks
from merganser.engines.spark.execution import Way
from merganser.engines.spark.jobs import ANSWERS, answers, explained, marked, orders_frame, small_frame
from merganser.engines.spark.progress import watched
from merganser.engines.spark.source import stage_frame, staged
from merganser.engines.spark.types import spark_schema
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.model.engine import AuditTerms, Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.model.strategy import Terms
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Source
    from merganser.engines.spark.staged_source import Parts, Shape


_REPLACED, _REMOVED, _MOVED = (
    [int(action) for action in some] for some in ([Action.REPLACE], [Action.DELETE, Action.MOVE], [Action.MOVE])
)


@dataclass(frozen=True, slots=True)
class FarMatches:
    """Every match: the place of the target row, the source row, whether that deletes, and what happens."""

    frame: DataFrame


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

    def facts(
        self, keys: Sequence[str], partition_columns: Sequence[str], bounds: pa.Table | None, terms: Terms
    ) -> KeyFacts:
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
            frame, reader = self.source.rows([*partition_columns, *_deletes(terms)])
            found = answers(frame.mapInArrow(marked(tasks.distinct, reader, partition_columns, terms), ANSWERS))
            partitions = tasks.once(pa.concat_tables([partitions, *found]))
        return KeyFacts(twice, sample, partitions, self._candidates(keys, bounds))

    def hashes(self, keys: Sequence[str]) -> Hashes:
        frame, reader = self.source.rows(keys)
        return np.concatenate(answers(frame.mapInArrow(marked(tasks.hash_rows, reader, keys), ANSWERS)))

    def _keys(self, keys: Sequence[str], partitions: pa.Table | None = None, terms: Terms | None = None) -> DataFrame:
        """Give every source row with its keys and, where partitions and terms are given, what they say of it."""
        told_of = [("code", pa.int32()), ("gone", pa.bool_())]
        schema = pa.schema([*tasks.ROW, *told_of, *tasks.key_fields(self.source.shape.goal, keys)])
        told = [*([] if partitions is None else partitions.column_names), *_deletes(terms)]
        # A row is counted even where no column of it is asked for.
        names = list(dict.fromkeys([*keys, *told])) or self.source.shape.goal.names[:1]
        frame, reader = self.source.rows(names)
        return frame.mapInArrow(marked(tasks.give_keys, reader, keys, partitions, terms, schema), spark_schema(schema))

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
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, terms: Terms
    ) -> tuple[FarMatches, MatchCounts]:
        found = self._found(keys, store, files, partitions, terms)
        if terms.looks:
            found = self._looked(found, keys, store, files, terms)
        found = found.persist()
        self._matched = found
        counted = [F.sum(F.col("action").isin(*some).cast("long")) for some in (_REPLACED, _REMOVED, _MOVED)]
        with explained():
            counts = (
                found.groupBy("file", "row_group").agg(F.count("*"), *counted).orderBy("file", "row_group").toArrow()
            )
            matched = found.where("NOT gone").select("part", "row").distinct().count() if terms.rule.inserts else 0
        file, group, rows, replaced, removed, moved = (column.to_numpy() for column in counts.columns)
        sample = self.source.shape.of(keys).empty()
        if moved.sum():
            sample = self._shown(keys, found.where(F.col("action") == int(Action.MOVE)).select("part", "row"))
        profile = self.source.profile
        new = profile.rows - profile.deletes - matched if terms.rule.inserts else 0
        return FarMatches(found), MatchCounts(file, group, rows, replaced, removed, new, int(moved.sum()), sample)

    def _found(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, terms: Terms
    ) -> DataFrame:
        """Join keys, and say of each match what the rule, its operation and its partition make of it."""
        goal = conformed(self.source.shape.goal)
        schema = pa.schema([*tasks.PLACE, ("expected", pa.int32()), *tasks.key_fields(goal, keys)])
        kinds = [canonical_type(goal.field(key).type) for key in keys]
        scan = marked(tasks.scan, store, keys, key_schema(kinds), schema)
        target = orders_frame(self._spark, files).mapInArrow(scan, spark_schema(schema))
        moves = terms.rule.replaces and terms.places and bool(partitions.num_columns)
        moved = F.lit(moves) & (F.col("expected") != UNTOLD) & (F.col("code") != F.col("expected"))
        action = F.when(F.col("gone"), F.lit(int(Action.DELETE))).when(moved, F.lit(int(Action.MOVE)))
        action = action.otherwise(F.lit(int(terms.rule.matched))).cast("byte").alias("action")
        # Spark takes what a Python function gives for as small as what it gets, and would broadcast anything.
        found = target.hint("merge").join(self._keys(keys, partitions, terms), key_names(len(keys)))
        return found.select(*POSITION, "part", "row", "gone", action)

    def _looked(
        self, found: DataFrame, keys: Sequence[str], store: Store, files: Sequence[ScanFile], terms: Terms
    ) -> DataFrame:
        """Send source rows to the files that they match, to be compared there."""
        names = self.source.shape.goal.names
        # A row is a row even where no column of it is asked for.
        shape = self.source.shape.of(looked_at(names, keys, terms) or names[:1])
        by_file = self._sent(found, files, shape)
        schema = pa.schema([("file", pa.int32()), *tasks.MATCH])
        look = marked(tasks.look, shape, keys, store, terms, schema)
        return by_file.mapInArrow(look, spark_schema(schema))

    def _sent(self, found: DataFrame | None, files: Sequence[ScanFile | RewriteJob], shape: Shape) -> DataFrame:
        """Send matches to the tasks of their files, each with some columns of its source row."""
        schema = pa.schema([("place", pa.int32()), *tasks.MATCH, *tasks.wire(shape)])
        rows = self._none(schema)
        if found is not None:
            numbers = {"file": [one.number for one in files], "place": range(len(files))}
            placed = found.join(F.broadcast(self._small(numbers)), "file")
            names = [name for name in schema.names if name not in tasks.wire(shape).names]
            parts = self.source.parts
            if parts is not None:
                sent = self._gathered(placed.select(*names), "part", parts.files)
                rows = sent.mapInArrow(marked(tasks.fetch_matched, parts.any(), shape, schema), spark_schema(schema))
            else:
                rows = placed.join(self._values(shape), ["part", "row"]).select(*schema.names)
        return self._gathered(rows, "place", files, "row_group", "position")

    def _values(self, shape: Shape) -> DataFrame:
        """Give every source row with its number, where there are no files to read it from."""
        schema = pa.schema([*tasks.ROW, *tasks.wire(shape)])
        at = [self.source.shape.carried.names.index(name) for name in shape.carried.names]
        frame, reader = self.source.reader.of(self.source.frame, at)
        return frame.mapInArrow(marked(tasks.give_rows, reader, shape, [], schema), spark_schema(schema))

    # ---- rewrite and append

    def stage(
        self,
        matches: FarMatches | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        terms: Terms,
    ) -> tuple[list[Rewritten], list[Appended]]:
        rewritten = self._rewrite(matches, jobs, staging, terms) if jobs else []
        return rewritten, [] if layout is None else self._append(matches, layout, partitions, staging, terms)

    def _rewrite(
        self, matches: FarMatches | None, jobs: Sequence[RewriteJob], staging: Staging, terms: Terms
    ) -> list[Rewritten]:
        found = None
        if matches is not None and terms.rule.touches:
            # Where other rows stay, so do these, without being told.
            stays = F.col("action") == int(Action.KEEP)
            found = matches.frame if terms.rule.deletes_missing else matches.frame.where(~stays)
        shape = self._parts.shape.of([name for name in self._parts.shape.goal.names if name in terms.columns])
        rewrite = marked(tasks.rewrite, shape, staging, matches is not None)
        with watched(staging, len(jobs)):
            return answers(self._sent(found, jobs, shape).mapInArrow(rewrite, ANSWERS))

    def _append(
        self, matches: FarMatches | None, layout: Layout, partitions: pa.Table, staging: Staging, terms: Terms
    ) -> list[Appended]:
        parts = self._parts
        new = self._new(matches, partitions, terms).where(F.lit(terms.rule.inserts))
        if matches is not None and terms.rule.replaces and partitions.num_columns:
            moved = matches.frame.where(F.col("action") == int(Action.MOVE)).select("part", "row")
            new = new.unionAll(self._numbered(partitions, terms).hint("merge").join(moved, ["part", "row"]))
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
        with watched(staging, len(files.codes)):
            written = answers(by_file.mapInArrow(marked(tasks.write, parts.shape, layout, staging), ANSWERS))
        return [Appended(path, code) for path, code in zip(written, files.codes, strict=True)]

    def _new(self, matches: FarMatches | None, partitions: pa.Table, terms: Terms) -> DataFrame:
        """Give the source rows that match nothing, and do not delete."""
        rows = self._numbered(partitions, terms)
        return rows if matches is None else rows.hint("merge").join(matches.frame, ["part", "row"], "left_anti")

    def _numbered(self, partitions: pa.Table, terms: Terms) -> DataFrame:
        """Give each source row that does not delete with its partition."""
        return self._keys([], partitions, terms).where("NOT gone").select("part", "row", "code")

    def audit(
        self,
        matches: FarMatches | None,
        files: Sequence[ScanFile],
        audit: AuditTerms,
        staging: Staging,
        terms: Terms,
    ) -> list[pa.Table | str]:
        parts, found = self._parts, []
        if terms.rule.inserts and parts.files:
            shape = parts.shape.of([name for name in audit.columns if name in audit.inserts])
            new = self._gathered(self._new(matches, pa.table({}), terms), "part", parts.files, "row")
            found += answers(new.mapInArrow(marked(tasks.inserted, parts.any(), shape, audit, staging), ANSWERS))
        if files:
            shape = parts.shape.of([name for name in audit.columns if name in terms.columns])
            by_file = self._sent(None if matches is None else matches.frame, files, shape)
            found += answers(by_file.mapInArrow(marked(tasks.changed, shape, audit, staging, terms), ANSWERS))
        return list(chain.from_iterable(found))

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


def _deletes(terms: Terms | None) -> list[str]:
    return [] if terms is None or terms.deletes is None else [terms.deletes]
