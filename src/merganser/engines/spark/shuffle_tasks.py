"""What tasks do for the far way: rows and keys in, rows and answers out; this runs on executors."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import evened, take
from merganser.core.model.keys import canonical, canonical_keys, canonical_type, comparable, comparable_type, key_names
from merganser.core.model.schema import conformed
from merganser.core.rows.append import partition_codes, write_rows
from merganser.core.rows.audit_rows import changed_rows, inserted_rows, keep_listed
from merganser.core.rows.bounds import might_match
from merganser.core.rows.key_scan import key_batches
from merganser.core.rows.match_actions import deleting, looked
from merganser.core.rows.matches import Matches
from merganser.core.rows.table_engine import lasting, rewrite_rows
from merganser.engines.spark.jobs import one_answer, unpacked
from merganser.engines.spark.staged_source import write_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from merganser.core.model.engine import AuditTerms, Layout
    from merganser.core.model.strategy import Terms
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Batches, Conformed, Numbered
    from merganser.engines.spark.staged_source import Part, Parts, Shape

ROW = (("part", pa.int32()), ("row", pa.int64()))
GROUP = (("row_group", pa.int32()), ("position", pa.int64()))
PLACE = (("file", pa.int32()), *GROUP)
FATE = (("gone", pa.bool_()), ("action", pa.int8()))
# A match on its way to its file, without the source row that goes with it.
MATCH = (*GROUP, *ROW, *FATE)
PACKED = "packed"


# -------------------- keys as Spark can compare them


def _sent_type(kind: pa.DataType) -> pa.DataType:
    kind = comparable_type(canonical_type(kind))
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    return pa.binary() if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) else kind


def _sent(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Give a canonical column in a type of Spark's, which compares and orders it as we do."""
    return comparable(column).cast(kind)


def key_fields(schema: pa.Schema, columns: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    """Describe key columns as they are sent."""
    kinds = [_sent_type(schema.field(name).type) for name in columns]
    return list(zip(key_names(len(columns)), kinds, strict=True))


def numbered(part: int, start: int, count: int, table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Any]:
    """Give the number of each row, and its keys in the types of the schema."""
    row = [pa.repeat(pa.scalar(part, pa.int32()), count), pa.array(np.arange(start, start + count))]
    kinds = [schema.field(name).type for name in key_names(len(keys))]
    return [*row, *(_sent(canonical(table.column(key)), kind) for key, kind in zip(keys, kinds, strict=True))]


def wire(shape: Shape) -> pa.Schema:
    """Number the columns of rows on their way: Spark's names know no case."""
    return pa.schema([pa.field(f"c{at}", field.type) for at, field in enumerate(shape.carried)])


# -------------------- what tasks do


def give_keys(
    reader: Callable[[Batches], Conformed],
    keys: Sequence[str],
    partitions: pa.Table | None,
    terms: Terms | None,
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    """Give each row's number, the number of its partition, whether it deletes, and its keys."""
    for part, start, table in reader(batches):
        codes = np.zeros(table.num_rows, np.int64)
        if partitions is not None and partitions.num_columns:
            codes = partition_codes(table.select(partitions.column_names), partitions)
        gone = np.zeros(table.num_rows, np.bool_) if terms is None else deleting(table, terms)
        place, row, *sent = numbered(part, start, table.num_rows, table, keys, schema)
        told = [pa.array(codes, pa.int32()), pa.array(gone)]
        yield from pa.table([place, row, *told, *sent], schema=schema).to_batches()


def give_rows(
    reader: Callable[[Batches], Numbered], shape: Shape, keys: Sequence[str], schema: pa.Schema, batches: Batches
) -> Batches:
    """Give each row with its number and its keys."""
    for part, start, batch in reader(batches):
        told = shape.of(list(dict.fromkeys(keys))).conformed(batch)
        named = numbered(part, start, batch.num_rows, told, keys, schema)
        yield from pa.table([*named, *batch.columns], schema=schema).to_batches()


def distinct(reader: Callable[[Batches], Conformed], columns: Sequence[str], terms: Terms, batches: Batches) -> Batches:
    """Give the partitions that there are."""
    found, number = None, 0
    for part, _, table in reader(batches):
        placed = lasting(table.select(list(columns)), table, terms)
        found, number = once(placed if found is None else pa.concat_tables([found, placed])), part
    if found is not None:
        yield one_answer(number, found)


def once(table: pa.Table) -> pa.Table:
    """Leave out repeated rows."""
    return table.group_by(table.column_names, use_threads=False).aggregate([])


def hash_rows(reader: Callable[[Batches], Conformed], keys: Sequence[str], batches: Batches) -> Batches:
    """Answer with the hashes of keys."""
    for part, _, table in reader(batches):
        yield one_answer(part, hash_keys(canonical_keys(table, keys).columns))


def pick(reader: Callable[[Batches], Conformed], wanted: pa.Table, batches: Batches) -> Batches:
    """Answer with the rows that were asked for."""
    for part, start, table in reader(batches):
        rows = wanted.filter(pc.equal(wanted.column("part"), part)).column("row").to_numpy()
        rows = np.sort(rows[(rows >= start) & (rows < start + table.num_rows)])
        if len(rows):
            yield one_answer(part, (part, start, table.take(pa.array(rows - start))))


def test(reader: Callable[[Batches], Conformed], keys: Sequence[str], bounds: pa.Table, batches: Batches) -> Batches:
    """Answer which bounds might hold a key."""
    answer, number = np.zeros(bounds.num_rows, np.bool_), None
    for part, _, table in reader(batches):
        left, number = np.flatnonzero(~answer), part
        answer[left] = might_match(bounds.take(pa.array(left)), canonical_keys(table, keys))
    if number is not None:
        yield one_answer(number, np.packbits(answer))


def scan(store: Store, keys: Sequence[str], read: pa.Schema, schema: pa.Schema, batches: Batches) -> Batches:
    """Read the keys of target files, each with its place."""
    for _, file in unpacked(batches):
        for batch in key_batches(store, [file], keys, read):
            place, found = batch.columns[: len(PLACE)], batch.columns[len(PLACE) :]
            expected = pa.repeat(pa.scalar(file.partition, pa.int32()), batch.num_rows)
            kinds = schema.types[len(PLACE) + 1 :]
            sent = [_sent(pa.chunked_array([column]), kind) for column, kind in zip(found, kinds, strict=True)]
            yield from pa.table([*place, expected, *sent], schema=schema).to_batches()


def _received(place: str, batches: Batches) -> tuple[int, Any, Batches]:
    """Take the order that comes first, and leave the rows."""
    first = next(batches)
    order = pickle.loads(first.column(PACKED)[0].as_py())  # noqa: S301  our own

    def rest() -> Batches:
        yield first.slice(1)
        yield from batches

    return first.column(place)[0].as_py(), order, (batch for batch in rest() if batch.num_rows)


class _Fetched:
    """Columns of the rows of a part as they travel, read when the first is asked for."""

    def __init__(self, parts: Parts, part: Part, shape: Shape | None = None) -> None:
        self._parts, self._part, self._shape = parts, part, shape or parts.shape
        self._table: pa.Table | None = None

    def take(self, batch: pa.RecordBatch) -> Sequence[pa.ChunkedArray]:
        if self._table is None:
            carried = self._shape.carried
            batches = list(self._parts.batches(self._part, carried.names))
            self._table = evened(pa.Table.from_batches(batches, carried))
        columns: Sequence[pa.ChunkedArray] = take(self._table, batch.column("row").to_numpy()).columns
        return columns


def keep(parts: Parts, staging: Staging, batches: Batches) -> Batches:
    """Stage the rows of a part that count."""
    number, part, ids = _received("part", batches)
    fetched = _Fetched(parts, part)
    carried = parts.shape.carried
    rows = (one for batch in ids for one in pa.table(fetched.take(batch), schema=carried).to_batches())
    yield one_answer(number, list(write_parts(rows, parts.shape, staging)))


def fetch_matched(parts: Parts, shape: Shape, schema: pa.Schema, batches: Batches) -> Batches:
    """Give the source row of each match, in some columns, with the place that it goes to."""
    _, part, ids = _received("part", batches)
    fetched = _Fetched(parts, part, shape)
    told = schema.names[: len(schema) - len(shape.carried)]
    for batch in ids:
        places = [batch.column(name) for name in told]
        yield from pa.table([*places, *fetched.take(batch)], schema=schema).to_batches()


def _arrived(shape: Shape, number: int, rows: Batches) -> tuple[pa.Table, pa.Table, Matches]:
    """Take the matches of one file and their source rows, which have come together."""
    match = pa.schema(MATCH)
    schema = pa.schema([*match, *conformed(shape.goal)])

    def tables() -> Batches:
        for batch in rows:
            places = [batch.column(name) for name in match.names]
            table = shape.arrived(batch.select(wire(shape).names)) if len(shape.carried) else pa.table({})
            yield from pa.table([*places, *table.columns], schema=schema).to_batches()

    # By number: a column may have any name, one of these too.
    table = spool(tables(), schema)
    places, source = table.select(range(len(match))), table.select(range(len(match), table.num_columns))
    group, position, action = (places.column(name).to_numpy() for name in ("row_group", "position", "action"))
    file = np.full(len(group), number, np.int32)
    return places, source, Matches(file, group, position, np.arange(len(group)), action, np.arange(0))


def look(shape: Shape, keys: Sequence[str], store: Store, terms: Terms, schema: pa.Schema, batches: Batches) -> Batches:
    """Say what happens to the matches of one file, now that their source rows have come."""
    _, scan, rows = _received("place", batches)
    places, source, matches = _arrived(shape, scan.number, rows)
    if places.num_rows:
        action = looked(source, matches, keys, store, [scan], terms)
        file = pa.repeat(pa.scalar(scan.number, pa.int32()), places.num_rows)
        columns = {**{name: places.column(name) for name in places.column_names}, "action": action, "file": file}
        yield from pa.table([columns[name] for name in schema.names], schema=schema).to_batches()


def rewrite(shape: Shape, staging: Staging, matched: bool, batches: Batches) -> Batches:  # noqa: FBT001
    """Stage one file with the rows that have come for it."""
    number, job, rows = _received("place", batches)
    _, source, matches = _arrived(shape, job.number, rows)
    yield one_answer(number, rewrite_rows(source, matches if matched else None, job, staging))


@dataclass(frozen=True, slots=True)
class Files:
    """Which new file each new row goes to.

    `codes` is the partition of each file; `starts` tells, by part and partition, the first file of the partition and
    how many of its rows come before this part's.
    """

    codes: list[int]
    starts: Mapping[int, Mapping[int, tuple[int, int]]]

    @classmethod
    def of(cls, counts: pa.Table, most: int) -> Files:
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


def fetch_new(parts: Parts, most: int, schema: pa.Schema, batches: Batches) -> Batches:
    """Give each new row of a part, with the file and the place that it goes to."""
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


def write(shape: Shape, layout: Layout, staging: Staging, batches: Batches) -> Batches:
    """Stage one new file of the rows that have come."""
    first = next(batches, None)
    if first is None:
        return

    def arrived() -> Batches:
        for batch in chain([first], batches):
            yield from shape.arrived(batch.select(wire(shape).names)).to_batches()

    table = spool(arrived(), conformed(shape.goal))
    yield one_answer(first.column("file")[0].as_py(), write_rows(table, np.arange(table.num_rows), layout, staging))


def inserted(parts: Parts, shape: Shape, audit: AuditTerms, staging: Staging, batches: Batches) -> Batches:
    """List the rows of a part that are new."""
    number, part, ids = _received("part", batches)
    found = list(ids)
    if found:
        rows = pa.Table.from_batches(found).column("row").to_numpy()
        names = shape.goal.names
        source = pa.concat_tables(shape.conformed(batch) for batch in parts.batches(part, names))
        yield one_answer(number, keep_listed(inserted_rows(evened(source), rows, audit), audit, staging))


def changed(shape: Shape, audit: AuditTerms, staging: Staging, terms: Terms, batches: Batches) -> Batches:
    """List the rows of one file that change."""
    number, scan, rows = _received("place", batches)
    _, source, matches = _arrived(shape, scan.number, rows)
    listed = changed_rows(source, matches, staging.location.store, scan, audit, terms)
    yield one_answer(number, keep_listed(listed, audit, staging))
