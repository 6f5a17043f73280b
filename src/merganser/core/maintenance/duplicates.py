"""Repeated keys: which rows of a dataset have a key that another one has too, and which of them stays.

Keys are hashed first, and only rows whose hash comes twice are read again, once, with what decides between them. What
is read is spooled, and of more than `ROWS_PER_PASS` rows a part of the hashes is looked at at a time, so that memory
follows the rows of one part: that many, or those of the most frequent key.
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
from merganser.core.model.engine import SAMPLE_SIZE
from merganser.core.model.keys import find_latest_rows, to_canonical_type
from merganser.core.model.schema import cast_column, to_plain_type
from merganser.core.model.validation import format_keys
from merganser.core.rows.append import assign_partition_codes
from merganser.core.rows.key_scan import READER_THREADS, make_key_schema, read_key_batches, read_rows
from merganser.errors import DuplicateKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.snapshot import Target
    from merganser.core.model.engine import ScanFile

    RowNumbers = npt.NDArray[np.int64]

# Rows whose hashes are sorted at a time.
ROWS_PER_PASS = 1 << 23
_HASH_SCHEMA = pa.schema([("hash", pa.uint64()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Duplicates:
    """How many keys stand in several rows, and the rows that go, numbered through the dataset, in order."""

    key_count: int
    rows: RowNumbers


def find_duplicates(target: Target, keys: Sequence[str], order_by: Sequence[str]) -> Duplicates:
    """Of the rows of one key let the highest in `order_by` stay, then the last; without it, all have to be the same.

    NULL is lowest and NaN highest. A key with NULL or NaN is no other's.
    """
    scans = plan_scans(target, keys, [0] * len(target.files), np.ones(len(target.group_file), np.bool_))
    hashes = spool(_hash_rows(target, scans, keys), _HASH_SCHEMA)
    parts = max(1, -(-hashes.num_rows // ROWS_PER_PASS))
    twice = [_find_repeated_hashes(hashes, part, parts) for part in range(parts)]
    found = _DuplicateFinder(target, {scan.number: scan for scan in scans}, keys, order_by)
    every = np.sort(np.concatenate(twice))
    table = found.read_compared(every)
    repeats = [
        found.resolve_rows(rows, table if parts == 1 else _take_rows(table, np.searchsorted(every, rows)))
        for rows in twice
    ]
    differing = sum(one.differing_keys for one in repeats)
    if differing:
        sample = pa.concat_tables([one.sample for one in repeats]).slice(0, SAMPLE_SIZE)
        message = (
            f"{differing} key{'s stand' if differing != 1 else ' stands'} in several rows that are not the same, for "
            f"example {format_keys(sample)}. Name with order_by the columns in which the row that stays is highest."
        )
        raise DuplicateKeyError(message)
    rows = np.concatenate([one.rows for one in repeats])
    return Duplicates(sum(one.key_count for one in repeats), np.sort(rows))


def _hash_rows(target: Target, scans: Sequence[ScanFile], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Hash the key of every row that has one, and number the rows."""
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


def _find_repeated_hashes(hashes: pa.Table, part: int, parts: int) -> RowNumbers:
    """Give the rows whose hash another row has too, of one part of all hashes, in order."""
    mine = [(batch.column(0).to_numpy(), batch.column(1).to_numpy()) for batch in hashes.to_batches()]
    if parts > 1:
        mine = [(values[chosen], rows[chosen]) for values, rows in mine for chosen in [values % parts == part]]
    values = np.concatenate([np.empty(0, np.uint64), *(some for some, _ in mine)])
    order = np.argsort(values)
    same = values[order[1:]] == values[order[:-1]]
    again = np.zeros(len(values), np.bool_)
    again[1:] |= same
    again[:-1] |= same
    rows = np.concatenate([np.empty(0, np.int64), *(some for _, some in mine)])
    return np.sort(rows[order[again]])


def _take_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    pieces = (take(table, rows[start : start + TARGET_CHUNK_ROWS]) for start in range(0, len(rows), TARGET_CHUNK_ROWS))
    return spool((batch for piece in pieces for batch in piece.to_batches()), table.schema)


@dataclass(frozen=True, slots=True)
class _PassResult:
    """What one pass found: keys and rows as in `Duplicates`, and keys whose rows differ with nothing to order them."""

    key_count: int
    rows: RowNumbers
    differing_keys: int
    sample: pa.Table


@dataclass(frozen=True, slots=True)
class _DuplicateFinder:
    """Reads rows by number, and decides between those of one key."""

    target: Target
    scans: dict[int, ScanFile]
    keys: Sequence[str]
    order_by: Sequence[str]

    def resolve_rows(self, rows: RowNumbers, table: pa.Table) -> _PassResult:
        """Decide between these rows, all of whose keys are among them."""
        keys = table.select(list(self.keys))
        stay = find_latest_rows(table, self.keys, self.order_by)
        # Which of those that stay has the key of each row.
        codes = assign_partition_codes(keys, take(keys, stay))
        goes = np.ones(len(rows), np.bool_)
        goes[stay] = False
        gone = np.flatnonzero(goes)
        count = int(np.count_nonzero(np.bincount(codes[gone])))
        if self.order_by or not len(gone):
            return _PassResult(count, rows[gone], 0, keys.slice(0, 0))
        pieces = (gone[start : start + TARGET_CHUNK_ROWS] for start in range(0, len(gone), TARGET_CHUNK_ROWS))
        others = [piece[~compare_rows(take(table, piece), take(table, stay[codes[piece]]))] for piece in pieces]
        differing = np.unique(codes[np.concatenate(others)])
        return _PassResult(count, rows[gone], len(differing), take(keys, stay[differing[:SAMPLE_SIZE]]))

    def read_compared(self, rows: RowNumbers) -> pa.Table:
        """Read what decides: keys and what orders rows, or without an order all columns."""
        schema = cast("pa.Schema", self.target.schema)
        names = list(dict.fromkeys([*self.keys, *self.order_by])) if self.order_by else schema.names
        goal = pa.schema([pa.field(name, to_plain_type(schema.field(name).type)) for name in names])
        ends = np.cumsum(self.target.group_rows)
        groups = np.searchsorted(ends, rows, side="right")
        places, starts = np.unique(groups, return_index=True)
        positions = np.split(rows - (ends - self.target.group_rows)[groups], starts[1:])
        items = list(zip(places.tolist(), positions, strict=False))
        batches = (
            batch
            for some in map_with_prefetch(partial(self._read_group, goal), items, READER_THREADS, "look")
            for batch in some
        )
        return spool(batches, goal)

    def _read_group(self, goal: pa.Schema, item: tuple[int, RowNumbers]) -> list[pa.RecordBatch]:
        group, positions = item
        scan = self.scans[int(self.target.group_file[group])]
        number = int(self.target.group_number[group])
        found = read_rows(self.target.location.store, scan, number, goal.names, positions)
        columns = [cast_column(found[field.name], field.type, field.name) for field in goal]
        batches: list[pa.RecordBatch] = pa.table(columns, schema=goal).to_batches()
        return batches
