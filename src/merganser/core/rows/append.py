"""The kernel that writes new rows: Arrow in, staged files out, split by partition and by size.

One file alone is encoded on several threads: each encodes some columns as a Parquet file in memory, and the chunks of
all are spliced into an empty one.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from merganser.core.columnar.arrow_versions import check_fixed_lists, make_bloom_options
from merganser.core.columnar.take import null_array, take
from merganser.core.columnar.threads import WORKERS, balance_columns, map_with_prefetch, open_pool
from merganser.core.model.engine import OTHER_PARTITION, AppendedFile, PartitionNumber
from merganser.core.model.keys import to_canonical
from merganser.core.model.ordered_clauses import FAULT_COLUMN, check_faults
from merganser.core.model.schema import get_plain_column, select_fields
from merganser.core.parquet.source_file import CannotSpliceError, open_source_file
from merganser.core.parquet.splice import NewRowGroup, splice
from merganser.core.parquet.thrift import ThriftError
from merganser.errors import ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import Layout
    from merganser.core.storage.staging import Staging

    Rows = npt.NDArray[np.int64]

# False positive rate of a bloom filter: the default of Parquet for Java.
_BLOOM_FPP = 0.01
# A column chunk of fewer bytes takes longer to splice than to encode.
_SMALL_CHUNK = 1 << 16
# A row group of more bytes would take too much memory until all its columns are encoded.
_LARGE_GROUP = 1 << 26


def append_rows(
    table: pa.Table, rows: Rows, layout: Layout, partitions: pa.Table, staging: Staging
) -> list[AppendedFile]:
    """Stage rows, in order, as new files of up to `max_rows_per_file` rows, each of one row of `partitions`."""
    if not len(rows):
        return []
    pieces = [
        (code, some[at : at + layout.max_rows_per_file])
        for code, some in _split_by_partition(table, rows, partitions)
        for at in range(0, len(some), layout.max_rows_per_file)
    ]
    # One file uses every worker for its columns; of many files, each is written by one.
    inner = max(1, WORKERS // len(pieces))

    def write(piece: tuple[int, Rows]) -> AppendedFile:
        code, picks = piece
        staged = write_rows(table, picks, layout, staging, inner)
        staging.on_file_done()
        return AppendedFile(staged, PartitionNumber(code))

    with open_pool(len(pieces), WORKERS, "append") as pool:
        return list(pool.map(write, pieces))


def _split_by_partition(table: pa.Table, rows: Rows, partitions: pa.Table) -> list[tuple[int, Rows]]:
    if not partitions.num_columns:
        return [(0, rows)]
    codes = assign_partition_codes(take(table.select(partitions.column_names), rows), partitions)
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    return list(zip(present.tolist(), np.split(rows[order], starts[1:]), strict=True))


def assign_partition_codes(rows: pa.Table, partitions: pa.Table) -> npt.NDArray[np.int64]:
    """Find the row of `partitions` for each row; OTHER_PARTITION if there is none."""
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    codes = np.zeros(rows.num_rows, np.int64)
    listed = np.zeros(partitions.num_rows, np.int64)
    for name in partitions.column_names:
        left, right = rows.column(name), partitions.column(name)
        together = to_canonical(pa.chunked_array([*left.chunks, *right.chunks], left.type))
        encoded = pc.dictionary_encode(together, null_encoding="encode").combine_chunks()
        numbers = (encoded.indices if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0).indices).to_numpy()
        # Renumbering after each column keeps the numbers small: a product of counts never overflows.
        pairs = np.concatenate([codes, listed]) * (numbers.max(initial=0) + 1) + numbers
        dense = np.unique(pairs, return_inverse=True)[1]
        codes, listed = dense[: rows.num_rows], dense[rows.num_rows :]
    if not partitions.num_columns:
        return codes
    numbers = np.full(max(listed.max(initial=-1), codes.max(initial=-1)) + 1, OTHER_PARTITION, np.int64)
    numbers[listed] = np.arange(len(listed))
    return numbers[codes]


def write_rows(table: pa.Table, rows: Rows, layout: Layout, staging: Staging, workers: int = 1) -> str:
    """Stage one new file, a row group at a time, with columns divided among workers where that is faster."""
    path, store = staging.make_path(), staging.location.store
    if FAULT_COLUMN in table.column_names:
        check_faults(take(table.select([FAULT_COLUMN]), rows))
    table = table.select([name for name in layout.schema.names if name in layout.columns])
    shares = _divide_columns(table, rows, layout, workers)
    if len(shares) > 1:
        try:
            with store.create(path) as stream:
                _splice_columns(table, rows, layout, shares, stream, workers)
        except (CannotSpliceError, ThriftError):
            store.remove(path)
        else:
            return path
    with store.create(path) as stream, open_new_writer(stream, layout, _count_group_rows(rows, layout)) as writer:
        for start in range(0, max(1, len(rows)), layout.row_group_size):
            writer.write_table(_take_group(table, rows, layout, start), row_group_size=layout.row_group_size)
    return path


def _splice_columns(
    table: pa.Table, rows: Rows, layout: Layout, shares: Sequence[Sequence[str]], stream: BinaryIO, workers: int
) -> None:
    group_rows = _count_group_rows(rows, layout)
    layouts = [
        replace(
            layout,
            schema=select_fields(layout.schema, names),
            bloom_filter_columns=layout.bloom_filter_columns & {*names},
            key_values={},
        )
        for names in shares
    ]

    def encode(item: tuple[int, Layout]) -> pa.Buffer:
        start, some = item
        have = [name for name in some.schema.names if name in some.columns]
        return _write_to_memory(some, group_rows, _take_group(table.select(have), rows, some, start))

    buffer = _write_to_memory(layout, group_rows)
    reader: Any = pa.BufferReader(buffer)
    empty = open_source_file(reader, buffer.size)
    starts = range(0, len(rows), layout.row_group_size)
    items = [(start, some) for start in starts for some in layouts]
    with closing(map_with_prefetch(encode, items, workers, "append")) as encoded:
        splice(empty, (NewRowGroup([next(encoded) for _ in layouts]) for _ in starts), stream)


def _write_to_memory(layout: Layout, group_rows: int, rows: pa.Table | None = None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with open_new_writer(sink, layout, group_rows) as writer:
        if rows is not None:
            writer.write_table(rows, row_group_size=rows.num_rows)
    return sink.getvalue()


def _count_group_rows(rows: Rows, layout: Layout) -> int:
    return min(len(rows), layout.row_group_size)


def _take_group(table: pa.Table, rows: Rows, layout: Layout, start: int) -> pa.Table:
    """Take the rows of one row group, NULL in the columns that they lack."""
    some, schema = rows[start : start + layout.row_group_size], layout.schema
    table, have = take(table, some), set(table.column_names)
    columns = [
        get_plain_column(table, field.name, schema) if field.name in have else null_array(len(some), field.type)
        for field in schema
    ]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ColumnValueError(
                f"New rows have NULL in column {field.name!r}, which the target declares NOT NULL. Give it a value."
            )
    group = pa.table(columns, schema=schema)
    check_fixed_lists(group)
    return group


def _divide_columns(table: pa.Table, rows: Rows, layout: Layout, workers: int) -> list[list[str]]:
    if workers == 1:
        return []
    share = _count_group_rows(rows, layout) / max(1, table.num_rows)
    found = {name: int(table.column(name).nbytes * share) for name in table.column_names}
    sizes = {name: found.get(name, 0) for name in layout.schema.names}
    is_worth = _SMALL_CHUNK * len(sizes) <= sum(sizes.values()) <= _LARGE_GROUP
    return balance_columns(sizes, 2 * workers) if is_worth else []


def open_new_writer(
    stream: Any, layout: Layout, group_rows: int, sorting: Sequence[pq.SortingColumn] = ()
) -> pq.ParquetWriter:
    """Open a writer for a new file with row groups of up to `group_rows` rows, each sorted by these columns."""
    blooms = make_bloom_options(layout.bloom_filter_columns, ndv=max(1, group_rows), fpp=_BLOOM_FPP)
    options = {**layout.writer_options, **blooms, "sorting_columns": list(sorting) or None}
    writer = pq.ParquetWriter(stream, layout.schema, compression=layout.compression, **options)
    writer.add_key_value_metadata(dict(layout.key_values))
    return writer
