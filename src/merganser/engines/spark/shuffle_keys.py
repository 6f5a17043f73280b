"""Tasks of the shuffle mode that check the keys of a source: facts, duplicates and their latest rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.take import align_chunks, take
from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import SAMPLE_SIZE
from merganser.core.model.keys import (
    drop_duplicate_rows,
    find_latest_rows,
    list_key_names,
    name_key_columns,
    rename_keys,
    to_canonical_keys,
)
from merganser.core.rows.append import assign_partition_codes
from merganser.core.rows.bounds import might_match
from merganser.core.rows.match_actions import find_excluded_rows
from merganser.core.rows.ordered_rows import fold_keys, fold_spec
from merganser.core.rows.table_source import drop_delete_rows
from merganser.engines.spark import columns as col
from merganser.engines.spark.exchange import Kind, decode_inputs, receive, send, split_rows
from merganser.engines.spark.jobs import encode_result
from merganser.engines.spark.source import encode_blob, encode_kept_rows
from merganser.engines.spark.staged_source import SourceSchemas, compute_stats, merge_stats, write_staged_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import SourceSpec
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.staged_source import SourceReader, SourceStats

    Batches = Iterator[pa.RecordBatch]
    Rows = npt.NDArray[np.int64]

_FIRST, _COUNT = "first", "count"
# Files and rows are numbered together, in the order of files: more rows than this fit into no file.
_FILE_SHIFT = 40


def list_flag_columns(policy: MergePolicy) -> list[str]:
    """List the column that tells whether a source row is not inserted, if there is one."""
    return [] if policy.flag_column is None else [policy.flag_column]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known about the rows of source files, of which `number` is the last; empty where it was not asked for."""

    number: int
    stats: SourceStats
    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]


def collect_facts(
    reader: SourceReader,
    spec: SourceSpec,
    bounds: pa.Table | None,
    has_stats: bool,  # noqa: FBT001  tasks get theirs by position
    batches: Batches,
) -> Batches:
    """Compute the statistics of rows, find their partitions, and the bounds that might hold one of their keys."""
    columns = list(spec.partition_columns)
    some = dict.fromkeys([*columns, *list_flag_columns(spec.policy), *(() if bounds is None else spec.keys)])
    names = list(some) if has_stats else reader.schemas.transport.names
    stats, last = [], -1
    partitions = reader.schemas.select(columns).make_empty_table()
    candidates = np.zeros(0 if bounds is None else bounds.num_rows, np.bool_)
    for number, _, rows in reader.read_batches(decode_inputs(batches), names):
        last = max(last, number)
        if not has_stats:
            stats.append(compute_stats(rows, reader.schemas.target))
        if columns:
            more = drop_delete_rows(rows.select(columns), rows, spec.policy)
            partitions = drop_duplicate_rows(pa.concat_tables([partitions, more]))
        if bounds is not None:
            left = np.flatnonzero(~candidates)
            candidates[left] = might_match(bounds.take(pa.array(left)), to_canonical_keys(rows, spec.keys))
    yield encode_result(last, FileFacts(last, merge_stats(stats), partitions, candidates))


def emit_distinct_keys(reader: SourceReader, keys: Sequence[str], groups: int, batches: Batches) -> Batches:
    """Send each key of a batch to its group, with its number of rows and the first one of them."""
    names = list_key_names(keys)
    for file, start, rows in reader.read_batches(decode_inputs(batches), keys):
        found = drop_null_keys(to_canonical_keys(rows, keys).append_column(col.ROW, _number_batch(file, start, rows)))
        distinct = found.group_by(names).aggregate([(col.ROW, "min"), (col.ROW, "count")])
        distinct = distinct.select([*names, f"{col.ROW}_min", f"{col.ROW}_count"]).rename_columns(
            [*names, _FIRST, _COUNT]
        )
        yield from send(Kind.KEYS, split_rows(distinct, hash_to_groups(distinct, names, groups)))


def count_duplicate_keys(types: Sequence[pa.DataType], batches: Batches) -> Batches:
    """Count the keys of more than one row in a group, and find the first rows of some."""
    names = name_key_columns(len(types))
    received = receive(batches)
    if received is None:
        return
    schema = pa.schema([*zip(names, types, strict=True), (_FIRST, pa.int64()), (_COUNT, pa.int64())])
    groups = received.read(Kind.KEYS, schema).group_by(names).aggregate([(_FIRST, "min"), (_COUNT, "sum")])
    several = groups.filter(pc.greater(groups.column(f"{_COUNT}_sum"), 1))
    first = np.sort(several.column(f"{_FIRST}_min").to_numpy())[:SAMPLE_SIZE]
    yield encode_result(received.number, (several.num_rows, first))


def select_rows(reader: SourceReader, keys: Sequence[str], wanted: Rows, batches: Batches) -> Batches:
    """Select the keys of the wanted rows."""
    for file, start, rows in reader.read_batches(decode_inputs(batches), keys):
        first = number_source_rows(file, np.array([start]))[0]
        found = wanted[(wanted >= first) & (wanted < first + rows.num_rows)]
        if len(found):
            yield encode_result(file, (int(found[0]), rows.take(pa.array(found - first))))


def emit_latest_rows(
    reader: SourceReader, keys: Sequence[str], order_by: Sequence[str], groups: int, batches: Batches
) -> Batches:
    """Send the latest row of each key of a batch to its group: keys and order, but no other column."""
    columns = [*keys, *order_by]
    names = name_key_columns(len(columns))
    for file, start, rows in reader.read_batches(decode_inputs(batches), list(dict.fromkeys(columns))):
        table = pa.table([rows.column(name) for name in columns], names=names)
        table = table.append_column(col.ROW, _number_batch(file, start, rows))
        own = rename_keys(keys, names[: len(keys)])
        table = take(align_chunks(table), find_latest_rows(table, own, names[len(keys) :]))
        hashed = to_canonical_keys(table, own)
        yield from send(Kind.KEYS, split_rows(table, hash_to_groups(hashed, hashed.column_names, groups)))


def keep_latest_rows(schema: pa.Schema, keys: int, batches: Batches) -> Batches:
    """Tell source files which of their rows are the latest ones of a group."""
    received = receive(batches)
    if received is not None:
        names = schema.names
        table = received.read(Kind.KEYS, pa.schema([*schema, (col.ROW, pa.int64())])).sort_by(col.ROW)
        latest = take(align_chunks(table), find_latest_rows(table, names[:keys], names[keys:])).column(col.ROW)
        numbers = latest.to_numpy()
        rows = pa.table({col.ROW: numbers & ((1 << _FILE_SHIFT) - 1)})
        yield from send(Kind.NEW_ROWS, split_rows(rows, numbers >> _FILE_SHIFT))


def stage_kept_rows(reader: SourceReader, staging: Staging | None, batches: Batches) -> Batches:
    """Stage the rows of a source file that are kept; without a staging folder, let Spark keep them."""
    received = receive(batches)
    if received is None:
        return
    kept = received.read(Kind.NEW_ROWS, pa.schema([(col.ROW, pa.int64())])).column(col.ROW).to_numpy()
    rows = take(reader.read_transport_table(received.inputs), np.sort(kept)) if len(kept) else None
    coming = [] if rows is None else rows.to_batches()
    if staging is None:
        yield from encode_kept_rows(received.number, map(encode_blob, coming))
    else:
        yield encode_result(received.number, list(write_staged_files(coming, reader.schemas, staging)))


def emit_rows(reader: SourceReader, keys: Sequence[str], groups: int, batches: Batches) -> Batches:
    """Send all rows to the groups of their keys."""
    names = reader.schemas.target.names
    for file, start, rows in reader.read_batches(decode_inputs(batches), names):
        hashed = to_canonical_keys(rows, keys)
        # By position: a column may have any name.
        table = rows.rename_columns(_name_values(names)).append_column(col.ROW, _number_batch(file, start, rows))
        yield from send(Kind.VALUES, split_rows(table, hash_to_groups(hashed, hashed.column_names, groups)))


def fold_group(
    spec: SourceSpec,
    is_ordered: bool,  # noqa: FBT001  tasks get theirs by position
    staging: Staging | None,
    batches: Batches,
) -> Batches:
    """Fold the rows of each key of a group and stage them; without a staging folder, let Spark keep them."""
    given, schema = conform_schema(spec.schema), fold_spec(spec).schema
    wire = pa.schema([*zip(_name_values(given.names), given.types, strict=True), (col.ROW, pa.int64())])
    received = receive(batches, wire)
    if received is None or received.values is None:
        return
    rows = take(align_chunks(received.values), np.argsort(received.values.column(col.ROW).to_numpy()))
    folded = fold_keys(rows.drop_columns(col.ROW).rename_columns(given.names), spec, is_ordered=is_ordered)
    if staging is None:
        yield from encode_kept_rows(received.number, map(encode_blob, folded))
    else:
        yield encode_result(received.number, list(write_staged_files(folded, SourceSchemas(schema, schema), staging)))


def _name_values(names: Sequence[str]) -> list[str]:
    return [f"value_{at}" for at in range(len(names))]


def hash_rows(reader: SourceReader, keys: Sequence[str], batches: Batches) -> Batches:
    """Hash the keys of rows."""
    for file, _, rows in reader.read_batches(decode_inputs(batches), keys):
        yield encode_result(file, hash_keys(to_canonical_keys(rows, keys).columns))


def describe_rows(file: int, numbers: Rows, rows: pa.Table, partitions: pa.Table, policy: MergePolicy) -> pa.Table:
    """Describe source rows by file, number and partition, and whether they are not inserted."""
    codes = np.zeros(rows.num_rows, np.int64)
    if partitions.num_columns:
        codes = assign_partition_codes(rows.select(partitions.column_names), partitions)
    columns = [
        np.full(rows.num_rows, file, np.int32),
        numbers,
        codes.astype(np.int32),
        find_excluded_rows(rows, policy),
    ]
    return pa.table(list(map(pa.array, columns)), schema=col.SOURCE_SCHEMA)


def number_source_rows(file: int | npt.NDArray[np.int32], rows: Rows) -> Rows:
    """Number rows of source files so that all rows of the source are in order."""
    return rows + (np.int64(file) << _FILE_SHIFT)


def _number_batch(file: int, start: int, rows: pa.Table) -> pa.Array:
    return pa.array(number_source_rows(file, np.arange(start, start + rows.num_rows)))


def drop_null_keys(table: pa.Table) -> pa.Table:
    """Drop rows with a NULL, which matches nothing, in a key."""
    names = [name for name in table.column_names if name.startswith("key_") and table.column(name).null_count]
    for name in names:
        table = table.filter(table.column(name).is_valid())
    return table


def hash_to_groups(table: pa.Table, names: Sequence[str], groups: int) -> npt.NDArray[np.uint64]:
    """Find the group of each row by the hash of its canonical keys."""
    hashes = hash_keys([table.column(name) for name in names])
    return hashes % np.uint64(groups)
