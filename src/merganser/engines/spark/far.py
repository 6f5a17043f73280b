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
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.core.engine import SAMPLE, UNTOLD, Appended, MatchCounts
from merganser.core.errors import CountMismatchError
from merganser.core.kernel import partition_codes, write_rows
from merganser.core.keys import canonical, canonical_keys, canonical_type, comparable, comparable_type, key_names
from merganser.core.prune import might_match
from merganser.core.rows import evened, take
from merganser.core.scan import POSITION, key_batches, key_schema
from merganser.core.schema import conformed
from merganser.core.spool import spool
from merganser.core.tables import KeyFacts, Matches, changed_keys, deleted_keys, rewrite_rows
from merganser.engines.spark.parts import write_parts
from merganser.engines.spark.run import (
    ANSWERS,
    answers,
    explained,
    marked,
    one_answer,
    orders_frame,
    small_frame,
    unpacked,
)
from merganser.engines.spark.source import stage_frame, staged
from merganser.engines.spark.types import spark_schema
from merganser.engines.spark.way import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

    from merganser.core.engine import Layout, RewriteJob, Rewritten, ScanFile
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.strategy import Rule
    from merganser.engines.spark.parts import Part, Parts, Shape
    from merganser.engines.spark.source import Batches, Conformed, Numbered, Source

_ROW = (("part", pa.int32()), ("row", pa.int64()))
_GROUP = (("row_group", pa.int32()), ("position", pa.int64()))
_PLACE = (("file", pa.int32()), *_GROUP)
_PACKED = "packed"


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
            found = answers(frame.mapInArrow(marked(_distinct, reader), ANSWERS))
            partitions = _once(pa.concat_tables([partitions, *found]))
        return KeyFacts(twice, sample, partitions, self._candidates(keys, bounds))

    def _keys(self, keys: Sequence[str], partitions: pa.Table | None = None) -> DataFrame:
        """Give every source row with its keys and, where partitions are given, the number of its own."""
        schema = pa.schema([*_ROW, ("code", pa.int32()), *_key_fields(self.source.shape.goal, keys)])
        told = [] if partitions is None else partitions.column_names
        # A row is counted even where no column of it is asked for.
        names = list(dict.fromkeys([*keys, *told])) or self.source.shape.goal.names[:1]
        frame, reader = self.source.rows(names)
        return frame.mapInArrow(marked(_give_keys, reader, keys, partitions, schema), spark_schema(schema))

    def _shown(self, keys: Sequence[str], rows: DataFrame) -> pa.Table:
        """Show the keys of the first few of some rows."""
        with explained():
            wanted = rows.distinct().orderBy("part", "row").limit(SAMPLE).toArrow()
        frame, reader = self.source.rows(keys)
        found = answers(frame.mapInArrow(marked(_pick, reader, wanted), ANSWERS))
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
            kept = answers(sent.mapInArrow(marked(_keep, parts.any(), staging), ANSWERS))
            return staged(self._spark, replace(parts, files=tuple(chain.from_iterable(kept))), staging)
        wire = _wire(shape)
        schema = pa.schema([*_ROW, *_key_fields(shape.goal, columns), *wire])
        give = marked(_give_rows, self.source.reader, shape, columns, schema)
        rows = self.source.frame.mapInArrow(give, spark_schema(schema)).select(*wire.names, rank)
        return stage_frame(self._spark, rows.where("rank = 1").drop("rank"), shape, None)

    def _candidates(self, keys: Sequence[str], bounds: pa.Table | None) -> npt.NDArray[np.bool_]:
        if bounds is None:
            return np.zeros(0, np.bool_)
        frame, reader = self.source.rows(keys)
        answer = np.zeros(bounds.num_rows, np.bool_)
        for bits in answers(frame.mapInArrow(marked(_test, reader, keys, bounds), ANSWERS)):
            answer |= np.unpackbits(bits, count=bounds.num_rows).astype(np.bool_)
        return answer

    # ---- match

    def match(
        self, keys: Sequence[str], store: Store, files: Sequence[ScanFile], partitions: pa.Table, rule: Rule
    ) -> tuple[FarMatches, MatchCounts]:
        goal = conformed(self.source.shape.goal)
        schema = pa.schema([*_PLACE, ("expected", pa.int32()), *_key_fields(goal, keys)])
        kinds = [canonical_type(goal.field(key).type) for key in keys]
        scan = marked(_scan, store, keys, key_schema(kinds), schema)
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
        schema = pa.schema([("job", pa.int32()), *_GROUP, *_wire(parts.shape)])
        rows = self._none(schema)
        if matches is not None:
            numbers = {"file": [job.number for job in jobs], "job": range(len(jobs))}
            found = matches.frame.join(F.broadcast(self._small(numbers)), "file").select(
                "part", "row", *schema.names[:3]
            )
            sent = self._gathered(found, "part", parts.files)
            rows = sent.mapInArrow(marked(_fetch_matched, parts.any(), schema), spark_schema(schema))
        by_job = self._gathered(rows, "job", jobs, "row_group", "position")
        rewrite = marked(_rewrite, parts.shape, staging, matches is not None)
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
        files = _Files.of(counts.sort_by([("code", "ascending"), ("part", "ascending")]), layout.max_rows_per_file)
        schema = pa.schema([("file", pa.int32()), ("place", pa.int64()), *_wire(parts.shape)])
        orders = [(part, files.starts.get(number, {})) for number, part in enumerate(parts.files)]
        sent = self._gathered(new, "part", orders, "row")
        rows = sent.mapInArrow(marked(_fetch_new, parts.any(), layout.max_rows_per_file, schema), spark_schema(schema))
        by_file = rows.repartitionById(len(files.codes), "file").sortWithinPartitions("file", "place")
        written = answers(by_file.mapInArrow(marked(_write, parts.shape, layout, staging), ANSWERS))
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
            schema = pa.schema([("place", pa.int32()), *_GROUP])
            rows = self._none(schema)
            if matches is not None:
                numbers = {"file": [scan.number for scan in shrinking], "place": range(len(shrinking))}
                rows = matches.frame.join(F.broadcast(self._small(numbers)), "file").select(*schema.names)
            by_file = self._gathered(rows, "place", shrinking, "row_group", "position")
            found += answers(by_file.mapInArrow(marked(_deleted, store, keys, shape), ANSWERS))
        return pa.concat_tables([*none, *found])

    def _changed(
        self, parts: Parts, matches: FarMatches | None, keys: Sequence[str], *, inserts: bool
    ) -> list[pa.Table]:
        new = self._new(matches, pa.table({})).where(F.lit(inserts))
        changed = new.select("part", "row", F.expr("true AS new"))
        if matches is not None and matches.replaces:
            changed = changed.unionAll(matches.frame.select("part", "row", F.expr("false AS new")))
        sent = self._gathered(changed, "part", parts.files)
        return answers(sent.mapInArrow(marked(_changed, parts.any(), keys), ANSWERS))

    # ---- rows on their way

    def _gathered(self, rows: DataFrame, place: str, orders: Sequence[Any], *order_by: str) -> DataFrame:
        """Send rows to numbered places, each with the driver's order for it, so that one without rows works too."""
        packed = {place: range(len(orders)), _PACKED: [pickle.dumps(order) for order in orders]}
        together = rows.unionByName(self._small(packed), allowMissingColumns=True)
        return together.repartitionById(len(orders), place).sortWithinPartitions(F.col(_PACKED).isNull(), *order_by)

    def _small(self, columns: Mapping[str, Sequence[Any]]) -> DataFrame:
        kinds = {name: pa.binary() if name == _PACKED else pa.int32() for name in columns}
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        return small_frame(self._spark, table)

    def _none(self, schema: pa.Schema) -> DataFrame:
        return small_frame(self._spark, schema.empty_table())


# -------------------- keys as Spark can compare them


def _sent_type(kind: pa.DataType) -> pa.DataType:
    kind = comparable_type(canonical_type(kind))
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    return pa.binary() if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) else kind


def _sent(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Give a canonical column in a type of Spark's, which compares and orders it as we do."""
    return comparable(column).cast(kind)


def _key_fields(schema: pa.Schema, columns: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    kinds = [_sent_type(schema.field(name).type) for name in columns]
    return list(zip(key_names(len(columns)), kinds, strict=True))


def _numbered(part: int, start: int, table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Any]:
    """Give the number of each row, and its keys in the types of the schema."""
    count = table.num_rows
    row = [pa.repeat(pa.scalar(part, pa.int32()), count), pa.array(np.arange(start, start + count))]
    kinds = [schema.field(name).type for name in key_names(len(keys))]
    return [*row, *(_sent(canonical(table.column(key)), kind) for key, kind in zip(keys, kinds, strict=True))]


def _wire(shape: Shape) -> pa.Schema:
    """Number the columns of rows on their way: Spark's names know no case."""
    return pa.schema([pa.field(f"c{at}", field.type) for at, field in enumerate(shape.carried)])


# -------------------- what tasks do


def _give_keys(
    reader: Callable[[Batches], Conformed],
    keys: Sequence[str],
    partitions: pa.Table | None,
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    for part, start, table in reader(batches):
        codes = np.zeros(table.num_rows, np.int64)
        if partitions is not None and partitions.num_columns:
            codes = partition_codes(table.select(partitions.column_names), partitions)
        place, row, *sent = _numbered(part, start, table, keys, schema)
        yield from pa.table([place, row, pa.array(codes, pa.int32()), *sent], schema=schema).to_batches()


def _give_rows(
    reader: Callable[[Batches], Numbered], shape: Shape, keys: Sequence[str], schema: pa.Schema, batches: Batches
) -> Batches:
    for part, start, batch in reader(batches):
        named = _numbered(part, start, shape.of(list(dict.fromkeys(keys))).conformed(batch), keys, schema)
        yield from pa.table([*named, *batch.columns], schema=schema).to_batches()


def _distinct(reader: Callable[[Batches], Conformed], batches: Batches) -> Batches:
    found, number = None, 0
    for part, _, table in reader(batches):
        found, number = _once(table if found is None else pa.concat_tables([found, table])), part
    if found is not None:
        yield one_answer(number, found)


def _once(table: pa.Table) -> pa.Table:
    return table.group_by(table.column_names, use_threads=False).aggregate([])


def _pick(reader: Callable[[Batches], Conformed], wanted: pa.Table, batches: Batches) -> Batches:
    for part, start, table in reader(batches):
        rows = wanted.filter(pc.equal(wanted.column("part"), part)).column("row").to_numpy()
        rows = np.sort(rows[(rows >= start) & (rows < start + table.num_rows)])
        if len(rows):
            yield one_answer(part, (part, start, table.take(pa.array(rows - start))))


def _test(reader: Callable[[Batches], Conformed], keys: Sequence[str], bounds: pa.Table, batches: Batches) -> Batches:
    answer, number = np.zeros(bounds.num_rows, np.bool_), None
    for part, _, table in reader(batches):
        left, number = np.flatnonzero(~answer), part
        answer[left] = might_match(bounds.take(pa.array(left)), canonical_keys(table, keys))
    if number is not None:
        yield one_answer(number, np.packbits(answer))


def _scan(store: Store, keys: Sequence[str], read: pa.Schema, schema: pa.Schema, batches: Batches) -> Batches:
    for _, file in unpacked(batches):
        for batch in key_batches(store, [file], keys, read):
            place, found = batch.columns[: len(_PLACE)], batch.columns[len(_PLACE) :]
            expected = pa.repeat(pa.scalar(file.partition, pa.int32()), batch.num_rows)
            kinds = schema.types[len(_PLACE) + 1 :]
            sent = [_sent(pa.chunked_array([column]), kind) for column, kind in zip(found, kinds, strict=True)]
            yield from pa.table([*place, expected, *sent], schema=schema).to_batches()


def _received(place: str, batches: Batches) -> tuple[int, Any, Batches]:
    """Take the order that comes first, and leave the rows."""
    first = next(batches)
    order = pickle.loads(first.column(_PACKED)[0].as_py())  # noqa: S301  our own

    def rest() -> Batches:
        yield first.slice(1)
        yield from batches

    return first.column(place)[0].as_py(), order, (batch for batch in rest() if batch.num_rows)


class _Fetched:
    """The rows of a part as they travel, read when the first is asked for."""

    def __init__(self, parts: Parts, part: Part) -> None:
        self._parts, self._part = parts, part
        self._table: pa.Table | None = None

    def take(self, batch: pa.RecordBatch) -> Sequence[pa.ChunkedArray]:
        if self._table is None:
            names = self._parts.shape.carried.names
            batches = list(self._parts.batches(self._part, names))
            self._table = evened(pa.Table.from_batches(batches, self._parts.shape.carried))
        columns: Sequence[pa.ChunkedArray] = take(self._table, batch.column("row").to_numpy()).columns
        return columns


def _keep(parts: Parts, staging: Staging, batches: Batches) -> Batches:
    number, part, ids = _received("part", batches)
    fetched = _Fetched(parts, part)
    carried = parts.shape.carried
    rows = (one for batch in ids for one in pa.table(fetched.take(batch), schema=carried).to_batches())
    yield one_answer(number, list(write_parts(rows, parts.shape, staging)))


def _fetch_matched(parts: Parts, schema: pa.Schema, batches: Batches) -> Batches:
    _, part, ids = _received("part", batches)
    fetched = _Fetched(parts, part)
    for batch in ids:
        places = [batch.column(name) for name in schema.names[: len(_PLACE)]]
        yield from pa.table([*places, *fetched.take(batch)], schema=schema).to_batches()


def _rewrite(shape: Shape, staging: Staging, matched: bool, batches: Batches) -> Batches:  # noqa: FBT001
    number, job, rows = _received("job", batches)
    goal = conformed(shape.goal)
    schema = pa.schema([*_GROUP, *goal])

    def arrived() -> Batches:
        for batch in rows:
            places = [batch.column(name) for name, _ in _GROUP]
            table = shape.arrived(batch.select(_wire(shape).names))
            yield from pa.table([*places, *table.columns], schema=schema).to_batches()

    table = spool(arrived(), schema)
    # By number: a column may have any name, one of these too.
    group, position = (table.column(at).to_numpy() for at in range(len(_GROUP)))
    file = np.full(len(group), job.number, np.int32)
    matches = Matches(file, group, position, np.arange(len(group)), np.arange(0)) if matched else None
    yield one_answer(number, rewrite_rows(table.select(range(len(_GROUP), table.num_columns)), matches, job, staging))


@dataclass(frozen=True, slots=True)
class _Files:
    """Which new file each new row goes to.

    `codes` is the partition of each file; `starts` tells, by part and partition, the first file of the partition and
    how many of its rows come before this part's.
    """

    codes: list[int]
    starts: Mapping[int, Mapping[int, tuple[int, int]]]

    @classmethod
    def of(cls, counts: pa.Table, most: int) -> _Files:
        """Number the files; the counts are those of each partition and part, in this order."""
        codes: list[int] = []
        starts: dict[int, dict[int, tuple[int, int]]] = {}
        last, first, before = None, 0, 0
        for code, part, count in zip(*(column.to_pylist() for column in counts.columns), strict=True):
            if code != last:
                last, first, before = code, len(codes), 0
            starts.setdefault(part, {})[code] = first, before
            before += count
            codes += [code] * (first + -(-before // most) - len(codes))
        return cls(codes, starts)


def _fetch_new(parts: Parts, most: int, schema: pa.Schema, batches: Batches) -> Batches:
    _, (part, starts), ids = _received("part", batches)
    fetched = _Fetched(parts, part)
    seen = {code: before for code, (_, before) in starts.items()}
    for batch in ids:
        codes = batch.column("code").to_numpy()
        place, file = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        for code in np.unique(codes).tolist():
            mine = np.flatnonzero(codes == code)
            place[mine] = seen[code] + np.arange(len(mine))
            file[mine] = starts[code][0] + place[mine] // most
            seen[code] += len(mine)
        yield from pa.table([pa.array(file), pa.array(place), *fetched.take(batch)], schema=schema).to_batches()


def _write(shape: Shape, layout: Layout, staging: Staging, batches: Batches) -> Batches:
    first = next(batches, None)
    if first is None:
        return

    def arrived() -> Batches:
        for batch in chain([first], batches):
            yield from shape.arrived(batch.select(_wire(shape).names)).to_batches()

    table = spool(arrived(), conformed(shape.goal))
    yield one_answer(first.column("file")[0].as_py(), write_rows(table, np.arange(table.num_rows), layout, staging))


def _changed(parts: Parts, keys: Sequence[str], batches: Batches) -> Batches:
    number, part, ids = _received("part", batches)
    found = list(ids)
    if found:
        rows = pa.Table.from_batches(found)
        new, old = (rows.column("row").filter(mask) for mask in (rows.column("new"), pc.invert(rows.column("new"))))
        source = pa.concat_tables(parts.shape.of(keys).conformed(batch) for batch in parts.batches(part, keys))
        matches = replace(Matches.of_new(new.to_numpy()), source_row=old.to_numpy())
        yield one_answer(number, pa.concat_tables(changed_keys(matches, evened(source))))


def _deleted(store: Store, keys: Sequence[str], shape: Shape, batches: Batches) -> Batches:
    number, scan, rows = _received("place", batches)
    schema = pa.schema(_GROUP)
    matched = pa.Table.from_batches((batch.select(schema.names) for batch in rows), schema)
    group, position = (column.to_numpy() for column in matched.columns)
    matches = Matches(np.full(len(group), scan.number, np.int32), group, position, position, np.arange(0))
    yield one_answer(number, pa.concat_tables(deleted_keys(matches, keys, store, [scan], shape.empty().schema)))
