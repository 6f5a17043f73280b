"""Duplicate keys: which rows of a dataset share a key, and which of them is kept.

All keys are hashed first. Only rows whose hash occurs twice are read again, once, with the columns that decide between
them. Tables are spooled, and hashes are handled in passes of about `ROWS_PER_PASS` rows, so memory is bounded by the
rows of one pass, or by those of the most frequent key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.equality import compare_rows
from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import TARGET_CHUNK_ROWS, take
from merganser.core.columnar.threads import map_with_prefetch
from merganser.core.merge.planner import plan_scans
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import SAMPLE_SIZE, UNKNOWN_PARTITION
from merganser.core.model.keys import find_latest_rows, to_canonical_type
from merganser.core.model.schema import to_plain_type
from merganser.core.model.validation import format_keys
from merganser.core.rows.append import assign_partition_codes
from merganser.core.rows.key_scan import READER_THREADS, make_key_schema, read_key_batches, read_rows
from merganser.display import pluralize
from merganser.errors import DuplicateKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.target import Target
    from merganser.core.model.engine import ScanFile

    RowNumbers = npt.NDArray[np.int64]

# Rows whose hashes are sorted in one pass.
ROWS_PER_PASS = 1 << 23
_HASH_SCHEMA = pa.schema([("hash", pa.uint64()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Duplicates:
    """How many keys are duplicates, and the row numbers in the dataset to delete, sorted."""

    key_count: int
    rows: RowNumbers


def find_duplicates(target: Target, keys: Sequence[str], order_by: Sequence[str]) -> Duplicates:
    """Find the rows to delete: all rows of a key but the highest in `order_by`, and of equal ones all but the last.

    Without `order_by`, rows of one key that are not equal are refused. NULL is lowest and NaN highest. A key with NULL
    or NaN never equals another.
    """
    scans = plan_scans(target, keys, [UNKNOWN_PARTITION] * len(target.files), np.ones(len(target.group_file), np.bool_))
    hashes = spool(_hash_rows(target, scans, keys), _HASH_SCHEMA)
    pass_count = max(1, -(-hashes.num_rows // ROWS_PER_PASS))
    repeated = [_find_repeated_hashes(hashes, number, pass_count) for number in range(pass_count)]
    finder = _DuplicateFinder(target, {scan.number: scan for scan in scans}, keys, order_by)
    all_rows = np.sort(np.concatenate(repeated))
    table = finder.read_compared(all_rows)
    passes = [
        finder.resolve_rows(rows, table if pass_count == 1 else _take_rows(table, np.searchsorted(all_rows, rows)))
        for rows in repeated
    ]
    differing = sum(one.differing_keys for one in passes)
    if differing:
        sample = pa.concat_tables([one.sample for one in passes]).slice(0, SAMPLE_SIZE)
        raise DuplicateKeyError(
            f"The dataset has {pluralize(differing, 'duplicate key')} whose rows differ, for example "
            f"{format_keys(sample)}. Set order_by to the columns that order them; the highest row is kept."
        )
    rows = np.concatenate([one.rows for one in passes])
    return Duplicates(sum(one.key_count for one in passes), np.sort(rows))


def _hash_rows(target: Target, scans: Sequence[ScanFile], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Hash the keys without NULL and NaN, with their row numbers."""
    schema = make_key_schema([to_canonical_type(target.get_key_type(name)) for name in keys])
    start = 0
    for batch in read_key_batches(target.location.store, scans, keys, schema):
        columns = batch.columns[-len(keys) :]
        is_key = np.ones(batch.num_rows, np.bool_)
        for column in columns:
            is_key &= pc.is_valid(column).to_numpy(zero_copy_only=False)
            if pa.types.is_floating(column.type):
                is_key &= ~pc.fill_null(pc.is_nan(column), True).to_numpy(zero_copy_only=False)  # noqa: FBT003  as NaN
        mask = pa.array(is_key)
        hashes = hash_keys([pa.chunked_array([column.filter(mask)]) for column in columns])
        yield pa.record_batch([hashes, start + np.flatnonzero(is_key)], schema=_HASH_SCHEMA)
        start += batch.num_rows


def _find_repeated_hashes(hashes: pa.Table, number: int, pass_count: int) -> RowNumbers:
    """Find the rows that share their hash, among the hashes of one pass, sorted."""
    batches = [(batch.column(0).to_numpy(), batch.column(1).to_numpy()) for batch in hashes.to_batches()]
    if pass_count > 1:
        batches = [(values[own], rows[own]) for values, rows in batches for own in [values % pass_count == number]]
    values = np.concatenate([np.empty(0, np.uint64), *(some for some, _ in batches)])
    order = np.argsort(values)
    same = values[order[1:]] == values[order[:-1]]
    is_repeated = np.zeros(len(values), np.bool_)
    is_repeated[1:] |= same
    is_repeated[:-1] |= same
    rows = np.concatenate([np.empty(0, np.int64), *(some for _, some in batches)])
    return np.sort(rows[order[is_repeated]])


def _take_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    pieces = (take(table, rows[start : start + TARGET_CHUNK_ROWS]) for start in range(0, len(rows), TARGET_CHUNK_ROWS))
    return spool((batch for piece in pieces for batch in piece.to_batches()), table.schema)


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The result of one pass: `Duplicates`, and the keys whose rows differ although nothing orders them."""

    key_count: int
    rows: RowNumbers
    differing_keys: int
    sample: pa.Table


@dataclass(frozen=True, slots=True)
class _DuplicateFinder:
    """Reads rows by number and decides which row of each key is kept."""

    target: Target
    scans: dict[int, ScanFile]
    keys: Sequence[str]
    order_by: Sequence[str]

    def resolve_rows(self, rows: RowNumbers, table: pa.Table) -> _PassResult:
        """Choose the rows to delete; `rows` contains every row of its keys."""
        keys = table.select(list(self.keys))
        kept = find_latest_rows(table, self.keys, self.order_by)
        # The position in `kept` of the row with the same key.
        codes = assign_partition_codes(keys, take(keys, kept))
        is_deleted = np.ones(len(rows), np.bool_)
        is_deleted[kept] = False
        deleted = np.flatnonzero(is_deleted)
        count = int(np.count_nonzero(np.bincount(codes[deleted])))
        if self.order_by or not len(deleted):
            return _PassResult(count, rows[deleted], 0, keys.slice(0, 0))
        chunks = (deleted[start : start + TARGET_CHUNK_ROWS] for start in range(0, len(deleted), TARGET_CHUNK_ROWS))
        unequal = [chunk[~compare_rows(take(table, chunk), take(table, kept[codes[chunk]]))] for chunk in chunks]
        differing = np.unique(codes[np.concatenate(unequal)])
        return _PassResult(count, rows[deleted], len(differing), take(keys, kept[differing[:SAMPLE_SIZE]]))

    def read_compared(self, rows: RowNumbers) -> pa.Table:
        """Read the columns that decide: keys and `order_by`, or without an order all columns."""
        found = cast("pa.Schema", self.target.schema)
        names = list(dict.fromkeys([*self.keys, *self.order_by])) if self.order_by else found.names
        schema = pa.schema([pa.field(name, to_plain_type(found.field(name).type)) for name in names])
        ends = np.cumsum(self.target.group_rows)
        groups = np.searchsorted(ends, rows, side="right")
        touched, starts = np.unique(groups, return_index=True)
        positions = np.split(rows - (ends - self.target.group_rows)[groups], starts[1:])
        items = list(zip(touched.tolist(), positions, strict=False))
        read = map_with_prefetch(partial(self._read_group, schema), items, READER_THREADS, "duplicates")
        return spool((batch for batches in read for batch in batches), schema)

    def _read_group(self, schema: pa.Schema, item: tuple[int, RowNumbers]) -> list[pa.RecordBatch]:
        group, positions = item
        scan = self.scans[int(self.target.group_file[group])]
        number = int(self.target.group_number[group])
        found = read_rows(self.target.location.store, scan, number, schema.names, positions)
        columns = [cast_column(found[field.name], field.type, field.name) for field in schema]
        batches: list[pa.RecordBatch] = pa.table(columns, schema=schema).to_batches()
        return batches
