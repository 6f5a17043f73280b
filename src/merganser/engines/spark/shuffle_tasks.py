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
from merganser.core.columnar.take import align_chunks, take
from merganser.core.model.casts import conform_schema
from merganser.core.model.keys import (
    name_key_columns,
    to_canonical,
    to_canonical_keys,
    to_canonical_type,
    to_comparable,
    to_comparable_type,
)
from merganser.core.rows.append import assign_partition_codes, write_rows
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows, list_inserted_rows
from merganser.core.rows.bounds import might_match
from merganser.core.rows.key_scan import read_key_batches
from merganser.core.rows.match_actions import compare_values, find_delete_rows
from merganser.core.rows.matches import Matches
from merganser.core.rows.table_engine import drop_delete_rows, rewrite_rows
from merganser.engines.spark.jobs import decode_tasks, encode_result
from merganser.engines.spark.staged_source import write_staged_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from merganser.core.model.engine import AuditSpec, Layout
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Batches, ConformedTables, NumberedBatches
    from merganser.engines.spark.staged_source import SourceSchemas, StagedFile, StagedSource

SOURCE_ROW_FIELDS = (("part", pa.int32()), ("row", pa.int64()))
GROUP_POSITION_FIELDS = (("row_group", pa.int32()), ("position", pa.int64()))
TARGET_ROW_FIELDS = (("file", pa.int32()), *GROUP_POSITION_FIELDS)
ACTION_FIELDS = (("gone", pa.bool_()), ("action", pa.int8()))
# A match on its way to its file, without the source row that goes with it.
MATCH_FIELDS = (*GROUP_POSITION_FIELDS, *SOURCE_ROW_FIELDS, *ACTION_FIELDS)
TASK_COLUMN = "packed"


# -------------------- keys as Spark can compare them


def _to_spark_key_type(data_type: pa.DataType) -> pa.DataType:
    data_type = to_comparable_type(to_canonical_type(data_type))
    if pa.types.is_uint64(data_type):
        return pa.decimal128(20, 0)
    return pa.binary() if pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type) else data_type


def _to_spark_key(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Give a canonical column in a type of Spark's, which compares and orders it as we do."""
    return to_comparable(column).cast(data_type)


def make_key_fields(schema: pa.Schema, columns: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    """Describe key columns as they are sent."""
    kinds = [_to_spark_key_type(schema.field(name).type) for name in columns]
    return list(zip(name_key_columns(len(columns)), kinds, strict=True))


def number_rows(
    file_number: int, start: int, count: int, table: pa.Table, keys: Sequence[str], schema: pa.Schema
) -> list[Any]:
    """Give the number of each row, and its keys in the types of the schema."""
    row = [pa.repeat(pa.scalar(file_number, pa.int32()), count), pa.array(np.arange(start, start + count))]
    kinds = [schema.field(name).type for name in name_key_columns(len(keys))]
    return [
        *row,
        *(_to_spark_key(to_canonical(table.column(key)), kind) for key, kind in zip(keys, kinds, strict=True)),
    ]


def make_wire_schema(schemas: SourceSchemas) -> pa.Schema:
    """Number the columns of rows on their way: Spark's names know no case."""
    return pa.schema([pa.field(f"c{at}", field.type) for at, field in enumerate(schemas.transport)])


# -------------------- what tasks do


def emit_keys(
    reader: Callable[[Batches], ConformedTables],
    keys: Sequence[str],
    partitions: pa.Table | None,
    policy: MergePolicy | None,
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    """Give each row's number, the number of its partition, whether it deletes, and its keys."""
    for part, start, table in reader(batches):
        codes = np.zeros(table.num_rows, np.int64)
        if partitions is not None and partitions.num_columns:
            codes = assign_partition_codes(table.select(partitions.column_names), partitions)
        gone = np.zeros(table.num_rows, np.bool_) if policy is None else find_delete_rows(table, policy)
        place, row, *sent = number_rows(part, start, table.num_rows, table, keys, schema)
        told = [pa.array(codes, pa.int32()), pa.array(gone)]
        yield from pa.table([place, row, *told, *sent], schema=schema).to_batches()


def emit_rows(
    reader: Callable[[Batches], NumberedBatches],
    schemas: SourceSchemas,
    keys: Sequence[str],
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    """Give each row with its number and its keys."""
    for part, start, batch in reader(batches):
        told = schemas.select(list(dict.fromkeys(keys))).conform_batch(batch)
        named = number_rows(part, start, batch.num_rows, told, keys, schema)
        yield from pa.table([*named, *batch.columns], schema=schema).to_batches()


def find_partitions(
    reader: Callable[[Batches], ConformedTables], columns: Sequence[str], policy: MergePolicy, batches: Batches
) -> Batches:
    """Give the partitions that there are."""
    found, number = None, 0
    for part, _, table in reader(batches):
        placed = drop_delete_rows(table.select(list(columns)), table, policy)
        found, number = drop_duplicate_rows(placed if found is None else pa.concat_tables([found, placed])), part
    if found is not None:
        yield encode_result(number, found)


def drop_duplicate_rows(table: pa.Table) -> pa.Table:
    """Leave out repeated rows."""
    return table.group_by(table.column_names, use_threads=False).aggregate([])


def hash_rows(reader: Callable[[Batches], ConformedTables], keys: Sequence[str], batches: Batches) -> Batches:
    """Answer with the hashes of keys."""
    for part, _, table in reader(batches):
        yield encode_result(part, hash_keys(to_canonical_keys(table, keys).columns))


def select_rows(reader: Callable[[Batches], ConformedTables], wanted: pa.Table, batches: Batches) -> Batches:
    """Answer with the rows that were asked for."""
    for part, start, table in reader(batches):
        rows = wanted.filter(pc.equal(wanted.column("part"), part)).column("row").to_numpy()
        rows = np.sort(rows[(rows >= start) & (rows < start + table.num_rows)])
        if len(rows):
            yield encode_result(part, (part, start, table.take(pa.array(rows - start))))


def probe_bounds(
    reader: Callable[[Batches], ConformedTables], keys: Sequence[str], bounds: pa.Table, batches: Batches
) -> Batches:
    """Answer which bounds might hold a key."""
    answer, number = np.zeros(bounds.num_rows, np.bool_), None
    for part, _, table in reader(batches):
        left, number = np.flatnonzero(~answer), part
        answer[left] = might_match(bounds.take(pa.array(left)), to_canonical_keys(table, keys))
    if number is not None:
        yield encode_result(number, np.packbits(answer))


def scan_keys(store: Store, keys: Sequence[str], read: pa.Schema, schema: pa.Schema, batches: Batches) -> Batches:
    """Read the keys of target files, each with its place."""
    for _, file in decode_tasks(batches):
        for batch in read_key_batches(store, [file], keys, read):
            place, found = batch.columns[: len(TARGET_ROW_FIELDS)], batch.columns[len(TARGET_ROW_FIELDS) :]
            expected = pa.repeat(pa.scalar(file.partition, pa.int32()), batch.num_rows)
            kinds = schema.types[len(TARGET_ROW_FIELDS) + 1 :]
            sent = [_to_spark_key(pa.chunked_array([column]), kind) for column, kind in zip(found, kinds, strict=True)]
            yield from pa.table([*place, expected, *sent], schema=schema).to_batches()


def _receive_task(number_column: str, batches: Batches) -> tuple[int, Any, Batches]:
    """Take the order that comes first, and leave the rows."""
    first = next(batches)
    order = pickle.loads(first.column(TASK_COLUMN)[0].as_py())  # noqa: S301  our own

    def rest() -> Batches:
        yield first.slice(1)
        yield from batches

    return first.column(number_column)[0].as_py(), order, (batch for batch in rest() if batch.num_rows)


class _LazyRows:
    """Columns of the rows of a part as they travel, read when the first is asked for."""

    def __init__(
        self, staged_source: StagedSource, staged_file: StagedFile, schemas: SourceSchemas | None = None
    ) -> None:
        self._staged_source, self._staged_file, self._schemas = (
            staged_source,
            staged_file,
            schemas or staged_source.schemas,
        )
        self._table: pa.Table | None = None

    def take(self, batch: pa.RecordBatch) -> Sequence[pa.ChunkedArray]:
        if self._table is None:
            carried = self._schemas.transport
            batches = list(self._staged_source.read_batches(self._staged_file, carried.names))
            self._table = align_chunks(pa.Table.from_batches(batches, carried))
        columns: Sequence[pa.ChunkedArray] = take(self._table, batch.column("row").to_numpy()).columns
        return columns


def keep_rows(staged_source: StagedSource, staging: Staging, batches: Batches) -> Batches:
    """Stage the rows of a part that count."""
    number, part, ids = _receive_task("part", batches)
    fetched = _LazyRows(staged_source, part)
    carried = staged_source.schemas.transport
    rows = (one for batch in ids for one in pa.table(fetched.take(batch), schema=carried).to_batches())
    yield encode_result(number, list(write_staged_files(rows, staged_source.schemas, staging)))


def fetch_matched(staged_source: StagedSource, schemas: SourceSchemas, schema: pa.Schema, batches: Batches) -> Batches:
    """Give the source row of each match, in some columns, with the place that it goes to."""
    _, part, ids = _receive_task("part", batches)
    fetched = _LazyRows(staged_source, part, schemas)
    told = schema.names[: len(schema) - len(schemas.transport)]
    for batch in ids:
        places = [batch.column(name) for name in told]
        yield from pa.table([*places, *fetched.take(batch)], schema=schema).to_batches()


def _receive_matches(schemas: SourceSchemas, number: int, rows: Batches) -> tuple[pa.Table, pa.Table, Matches]:
    """Take the matches of one file and their source rows, which have come together."""
    match = pa.schema(MATCH_FIELDS)
    schema = pa.schema([*match, *conform_schema(schemas.target)])

    def tables() -> Batches:
        for batch in rows:
            places = [batch.column(name) for name in match.names]
            table = (
                schemas.cast_received(batch.select(make_wire_schema(schemas).names))
                if len(schemas.transport)
                else pa.table({})
            )
            yield from pa.table([*places, *table.columns], schema=schema).to_batches()

    # By number: a column may have any name, one of these too.
    table = spool(tables(), schema)
    places, source = table.select(range(len(match))), table.select(range(len(match), table.num_columns))
    group, position, action = (places.column(name).to_numpy() for name in ("row_group", "position", "action"))
    file = np.full(len(group), number, np.int32)
    return places, source, Matches(file, group, position, np.arange(len(group)), action, np.arange(0))


def compare_rows(
    schemas: SourceSchemas, keys: Sequence[str], store: Store, policy: MergePolicy, schema: pa.Schema, batches: Batches
) -> Batches:
    """Say what happens to the matches of one file, now that their source rows have come."""
    _, scan, rows = _receive_task("place", batches)
    places, source, matches = _receive_matches(schemas, scan.number, rows)
    if places.num_rows:
        action = compare_values(source, matches, keys, store, [scan], policy)
        file = pa.repeat(pa.scalar(scan.number, pa.int32()), places.num_rows)
        columns = {**{name: places.column(name) for name in places.column_names}, "action": action, "file": file}
        yield from pa.table([columns[name] for name in schema.names], schema=schema).to_batches()


def rewrite(schemas: SourceSchemas, staging: Staging, has_matches: bool, batches: Batches) -> Batches:  # noqa: FBT001
    """Stage one file with the rows that have come for it."""
    number, job, rows = _receive_task("place", batches)
    _, source, matches = _receive_matches(schemas, job.number, rows)
    yield encode_result(number, rewrite_rows(source, matches if has_matches else None, job, staging))


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """Which new file each new row goes to.

    `partitions` is the partition of each file; `starts` tells, by part and partition, the first file of the partition
    and how many of its rows come before this part's.
    """

    partitions: list[int]
    starts: Mapping[int, Mapping[int, tuple[int, int]]]

    @classmethod
    def of(cls, counts: pa.Table, max_rows: int) -> FileAssignment:
        """Number the files; the counts are those of each partition and part, in this order."""
        codes: list[int] = []
        starts: dict[int, dict[int, tuple[int, int]]] = {}
        last, first, before = None, 0, 0
        for code, part, count in zip(*(column.to_pylist() for column in counts.columns), strict=True):
            if code != last:
                last, first, before = code, len(codes), 0
            starts.setdefault(part, {})[code] = first, before
            before += count
            codes += [code] * (first + -(-before // max_rows) - len(codes))
        return cls(codes, starts)


def fetch_new(staged_source: StagedSource, max_rows: int, schema: pa.Schema, batches: Batches) -> Batches:
    """Give each new row of a part, with the file and the place that it goes to."""
    _, (part, starts), ids = _receive_task("part", batches)
    fetched = _LazyRows(staged_source, part)
    seen = {code: before for code, (_, before) in starts.items()}
    for batch in ids:
        codes = batch.column("code").to_numpy()
        place, file = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        for code in np.unique(codes).tolist():
            mine = np.flatnonzero(codes == code)
            place[mine] = seen[code] + np.arange(len(mine))
            file[mine] = starts[code][0] + place[mine] // max_rows
            seen[code] += len(mine)
        yield from pa.table([pa.array(file), pa.array(place), *fetched.take(batch)], schema=schema).to_batches()


def write_file(schemas: SourceSchemas, layout: Layout, staging: Staging, batches: Batches) -> Batches:
    """Stage one new file of the rows that have come."""
    first = next(batches, None)
    if first is None:
        return

    def arrived() -> Batches:
        for batch in chain([first], batches):
            yield from schemas.cast_received(batch.select(make_wire_schema(schemas).names)).to_batches()

    table = spool(arrived(), conform_schema(schemas.target))
    yield encode_result(first.column("file")[0].as_py(), write_rows(table, np.arange(table.num_rows), layout, staging))


def list_inserted(
    staged_source: StagedSource, schemas: SourceSchemas, audit: AuditSpec, staging: Staging, batches: Batches
) -> Batches:
    """List the rows of a part that are new."""
    number, part, ids = _receive_task("part", batches)
    found = list(ids)
    if found:
        rows = pa.Table.from_batches(found).column("row").to_numpy()
        names = schemas.target.names
        source = pa.concat_tables(schemas.conform_batch(batch) for batch in staged_source.read_batches(part, names))
        yield encode_result(number, keep_tables(list_inserted_rows(align_chunks(source), rows, audit), audit, staging))


def list_changed(
    schemas: SourceSchemas, audit: AuditSpec, staging: Staging, policy: MergePolicy, batches: Batches
) -> Batches:
    """List the rows of one file that change."""
    number, scan, rows = _receive_task("place", batches)
    _, source, matches = _receive_matches(schemas, scan.number, rows)
    listed = list_changed_rows(source, matches, staging.location.store, scan, audit, policy)
    yield encode_result(number, keep_tables(listed, audit, staging))
