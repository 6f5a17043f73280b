"""The tasks of the shuffle mode, which run on executors: rows and keys in, rows and results out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

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
from merganser.core.rows.table_source import drop_delete_rows, rewrite_rows
from merganser.engines.spark import columns as col
from merganser.engines.spark.jobs import decode_tasks, encode_result, receive_task
from merganser.engines.spark.staged_source import write_staged_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from merganser.core.model.engine import AuditSpec, Layout, PartitionNumber, SourceSpec
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.spark.source import Batches, ConformedTables, NumberedBatches
    from merganser.engines.spark.staged_source import SourceSchemas, StagedFile, StagedSource

    Reader = Callable[[Batches], ConformedTables]


def _to_spark_key_type(data_type: pa.DataType) -> pa.DataType:
    data_type = to_comparable_type(to_canonical_type(data_type))
    if pa.types.is_uint64(data_type):
        return pa.decimal128(20, 0)
    return pa.binary() if pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type) else data_type


def _to_spark_key(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Cast a canonical column to a type that Spark compares and orders as we do."""
    return to_comparable(column).cast(data_type)


def make_key_fields(schema: pa.Schema, columns: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    """Make the fields of key columns as they are sent."""
    types = [_to_spark_key_type(schema.field(name).type) for name in columns]
    return list(zip(name_key_columns(len(columns)), types, strict=True))


def _make_row_numbers(file_number: int, start: int, count: int) -> list[pa.Array]:
    return [pa.repeat(pa.scalar(file_number, pa.int32()), count), pa.array(np.arange(start, start + count))]


def _to_spark_keys(rows: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[pa.ChunkedArray]:
    types = [schema.field(name).type for name in name_key_columns(len(keys))]
    pairs = zip(keys, types, strict=True)
    return [_to_spark_key(to_canonical(rows.column(key)), data_type) for key, data_type in pairs]


def make_wire_schema(schemas: SourceSchemas) -> pa.Schema:
    """Number the columns of transported rows: names in Spark ignore case."""
    return pa.schema([pa.field(f"c{at}", field.type) for at, field in enumerate(schemas.transport)])


def emit_keys(
    reader: Reader,
    keys: Sequence[str],
    partitions: pa.Table | None,
    policy: MergePolicy | None,
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    """Emit the number, partition and keys of each row, and whether it deletes."""
    for file, start, rows in reader(batches):
        codes = np.zeros(rows.num_rows, np.int64)
        if partitions is not None and partitions.num_columns:
            codes = assign_partition_codes(rows.select(partitions.column_names), partitions)
        is_delete = np.zeros(rows.num_rows, np.bool_) if policy is None else find_delete_rows(rows, policy)
        numbers = _make_row_numbers(file, start, rows.num_rows)
        columns = [*numbers, pa.array(codes, pa.int32()), pa.array(is_delete), *_to_spark_keys(rows, keys, schema)]
        yield from pa.table(columns, schema=schema).to_batches()


def emit_rows(
    reader: Callable[[Batches], NumberedBatches],
    schemas: SourceSchemas,
    keys: Sequence[str],
    schema: pa.Schema,
    batches: Batches,
) -> Batches:
    """Emit each row with its number and its keys."""
    for file, start, batch in reader(batches):
        rows = schemas.select(list(dict.fromkeys(keys))).conform_batch(batch)
        numbers = _make_row_numbers(file, start, batch.num_rows)
        columns = [*numbers, *_to_spark_keys(rows, keys, schema), *batch.columns]
        yield from pa.table(columns, schema=schema).to_batches()


def find_partitions(reader: Reader, columns: Sequence[str], policy: MergePolicy, batches: Batches) -> Batches:
    """Find the partitions of rows."""
    found, number = None, 0
    for file, _, rows in reader(batches):
        more = drop_delete_rows(rows.select(list(columns)), rows, policy)
        found, number = drop_duplicate_rows(more if found is None else pa.concat_tables([found, more])), file
    if found is not None:
        yield encode_result(number, found)


def drop_duplicate_rows(table: pa.Table) -> pa.Table:
    """Drop duplicate rows."""
    return table.group_by(table.column_names, use_threads=False).aggregate([])


def hash_rows(reader: Reader, keys: Sequence[str], batches: Batches) -> Batches:
    """Hash the keys of rows."""
    for file, _, rows in reader(batches):
        yield encode_result(file, hash_keys(to_canonical_keys(rows, keys).columns))


def select_rows(reader: Reader, wanted: pa.Table, batches: Batches) -> Batches:
    """Select the wanted rows."""
    for file, start, rows in reader(batches):
        numbers = wanted.filter(pc.equal(wanted.column(col.STAGED_FILE), file)).column(col.ROW).to_numpy()
        numbers = np.sort(numbers[(numbers >= start) & (numbers < start + rows.num_rows)])
        if len(numbers):
            yield encode_result(file, (file, start, rows.take(pa.array(numbers - start))))


def probe_bounds(reader: Reader, keys: Sequence[str], bounds: pa.Table, batches: Batches) -> Batches:
    """Make a bitmap of the bounds that might hold a key."""
    candidates, number = np.zeros(bounds.num_rows, np.bool_), None
    for file, _, rows in reader(batches):
        left, number = np.flatnonzero(~candidates), file
        candidates[left] = might_match(bounds.take(pa.array(left)), to_canonical_keys(rows, keys))
    if number is not None:
        yield encode_result(number, np.packbits(candidates))


def scan_keys(store: Store, keys: Sequence[str], read: pa.Schema, schema: pa.Schema, batches: Batches) -> Batches:
    """Read the keys of target files, each with its position."""
    for _, file in decode_tasks(batches):
        for batch in read_key_batches(store, [file], keys, read):
            position, found = batch.columns[: len(col.TARGET_ROW_FIELDS)], batch.columns[len(col.TARGET_ROW_FIELDS) :]
            expected = pa.repeat(pa.scalar(file.partition, pa.int32()), batch.num_rows)
            pairs = zip(found, schema.types[len(col.TARGET_ROW_FIELDS) + 1 :], strict=True)
            sent = [_to_spark_key(pa.chunked_array([column]), data_type) for column, data_type in pairs]
            yield from pa.table([*position, expected, *sent], schema=schema).to_batches()


class _LazyRows:
    """Columns of the rows of a staged file as they are transported, read when the first row is taken."""

    def __init__(self, staged: StagedSource, file: StagedFile, schemas: SourceSchemas | None = None) -> None:
        self._staged = staged
        self._file = file
        self._transport = (schemas or staged.schemas).transport
        self._table: pa.Table | None = None

    def take(self, batch: pa.RecordBatch) -> Sequence[pa.ChunkedArray]:
        if self._table is None:
            batches = list(self._staged.read_batches(self._file, self._transport.names))
            self._table = align_chunks(pa.Table.from_batches(batches, self._transport))
        columns: Sequence[pa.ChunkedArray] = take(self._table, batch.column(col.ROW).to_numpy()).columns
        return columns


def keep_rows(staged: StagedSource, batches: Batches) -> Batches:
    """Stage some rows of a staged file again."""
    number, file, kept = receive_task(col.STAGED_FILE, batches)
    rows = _LazyRows(staged, file)
    schema = staged.schemas.transport
    taken = (one for batch in kept for one in pa.table(rows.take(batch), schema=schema).to_batches())
    yield encode_result(number, list(write_staged_files(taken, staged.schemas, staged.staging)))


def fetch_matched(staged: StagedSource, schemas: SourceSchemas, schema: pa.Schema, batches: Batches) -> Batches:
    """Emit each match with some columns of its source row."""
    _, file, matches = receive_task(col.STAGED_FILE, batches)
    rows = _LazyRows(staged, file, schemas)
    names = schema.names[: len(schema) - len(schemas.transport)]
    for batch in matches:
        columns = [batch.column(name) for name in names]
        yield from pa.table([*columns, *rows.take(batch)], schema=schema).to_batches()


def _receive_matches(schemas: SourceSchemas, number: int, rows: Batches) -> tuple[pa.Table, pa.Table, Matches]:
    """Separate the matches of one file from their source rows, which were sent together."""
    width = len(col.MATCH_FIELDS)
    schema = pa.schema([*pa.schema(col.MATCH_FIELDS), *conform_schema(schemas.target)])

    def tables() -> Batches:
        for batch in rows:
            columns = [batch.column(name) for name in schema.names[:width]]
            if len(schemas.transport):
                columns += schemas.cast_received(batch.select(make_wire_schema(schemas).names)).columns
            yield from pa.table(columns, schema=schema).to_batches()

    # By index: a column may have any name, one of ours too.
    table = spool(tables(), schema)
    sent, source = table.select(range(width)), table.select(range(width, table.num_columns))
    group, position, action = (sent.column(name).to_numpy() for name in (col.ROW_GROUP, col.POSITION, col.ACTION))
    matches = Matches(
        file=np.full(len(group), number, np.int32),
        row_group=group,
        position=position,
        source_row=np.arange(len(group)),
        action=action,
        new=np.arange(0),
    )
    return sent, source, matches


def compare_rows(schemas: SourceSchemas, spec: SourceSpec, schema: pa.Schema, batches: Batches) -> Batches:
    """Emit the matches of one file with their actions, by comparing their values with the source rows."""
    _, scan, rows = receive_task(col.TASK, batches)
    sent, source, matches = _receive_matches(schemas, scan.number, rows)
    if sent.num_rows:
        action = compare_values(source, spec, matches, [scan])
        file = pa.repeat(pa.scalar(scan.number, pa.int32()), sent.num_rows)
        columns = {**{name: sent.column(name) for name in sent.column_names}, col.ACTION: action, col.FILE: file}
        yield from pa.table([columns[name] for name in schema.names], schema=schema).to_batches()


def rewrite(schemas: SourceSchemas, staging: Staging, has_matches: bool, batches: Batches) -> Batches:  # noqa: FBT001
    """Stage one file with the rows that were sent for it."""
    number, job, rows = receive_task(col.TASK, batches)
    _, source, matches = _receive_matches(schemas, job.number, rows)
    yield encode_result(number, rewrite_rows(source, matches if has_matches else None, job, staging))


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """The new file of each new row.

    `partitions` is the partition of each file. `starts` has, by staged file and partition, the first file of the
    partition and how many of its rows come from earlier staged files.
    """

    partitions: list[PartitionNumber]
    starts: Mapping[int, Mapping[PartitionNumber, tuple[int, int]]]

    @classmethod
    def of(cls, counts: pa.Table, max_rows: int) -> FileAssignment:
        """Number the files; the counts are those of each partition and staged file, sorted by both."""
        partitions: list[PartitionNumber] = []
        starts: dict[int, dict[PartitionNumber, tuple[int, int]]] = {}
        last, first, before = None, 0, 0
        for partition, file, count in zip(*(column.to_pylist() for column in counts.columns), strict=True):
            if partition != last:
                last, first, before = partition, len(partitions), 0
            starts.setdefault(file, {})[partition] = first, before
            before += count
            partitions += [partition] * (first + -(-before // max_rows) - len(partitions))
        return cls(partitions, starts)


def fetch_new(staged: StagedSource, max_rows: int, schema: pa.Schema, batches: Batches) -> Batches:
    """Emit each new row of a staged file, with the new file and position that it goes to."""
    _, (staged_file, starts), new = receive_task(col.STAGED_FILE, batches)
    rows = _LazyRows(staged, staged_file)
    seen = {partition: before for partition, (_, before) in starts.items()}
    for batch in new:
        partitions = batch.column(col.PARTITION).to_numpy()
        position, file = np.empty(len(partitions), np.int64), np.empty(len(partitions), np.int32)
        for partition in np.unique(partitions).tolist():
            at = np.flatnonzero(partitions == partition)
            position[at] = seen[partition] + np.arange(len(at))
            file[at] = starts[partition][0] + position[at] // max_rows
            seen[partition] += len(at)
        yield from pa.table([pa.array(file), pa.array(position), *rows.take(batch)], schema=schema).to_batches()


def write_file(schemas: SourceSchemas, layout: Layout, staging: Staging, batches: Batches) -> Batches:
    """Stage one new file of the rows that were sent."""
    first = next(batches, None)
    if first is None:
        return

    def received() -> Batches:
        for batch in chain([first], batches):
            yield from schemas.cast_received(batch.select(make_wire_schema(schemas).names)).to_batches()

    table = spool(received(), conform_schema(schemas.target))
    path = write_rows(table, np.arange(table.num_rows), layout, staging)
    yield encode_result(first.column(col.NEW_FILE)[0].as_py(), path)


def list_inserted(staged: StagedSource, schemas: SourceSchemas, audit: AuditSpec, batches: Batches) -> Batches:
    """List the rows of a staged file that are new."""
    number, file, new = receive_task(col.STAGED_FILE, batches)
    found = list(new)
    if found:
        numbers = pa.Table.from_batches(found).column(col.ROW).to_numpy()
        read = staged.read_batches(file, schemas.target.names)
        rows = align_chunks(pa.concat_tables(schemas.conform_batch(batch) for batch in read))
        yield encode_result(number, keep_tables(list_inserted_rows(rows, numbers, audit), audit, staged.staging))


def list_changed(
    schemas: SourceSchemas, spec: SourceSpec, audit: AuditSpec, staging: Staging, batches: Batches
) -> Batches:
    """List the rows of one file that change."""
    number, scan, rows = receive_task(col.TASK, batches)
    _, source, matches = _receive_matches(schemas, scan.number, rows)
    listed = list_changed_rows(source, spec, matches, scan, audit)
    yield encode_result(number, keep_tables(listed, audit, staging))
