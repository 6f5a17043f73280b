"""Repeated keys: which rows of a dataset have a key that another one has too, and which of them stays.

Keys are hashed first, and only rows whose hash comes twice are read again, once, with what decides between them. What
is read is spooled, and of more than `AT_ONCE` rows a part of the hashes is looked at at a time, so that memory follows
the rows of one part: that many, or those of the most frequent key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.equality import same_rows
from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import EVEN, take
from merganser.core.columnar.threads import streamed
from merganser.core.merge.planner import scan_files
from merganser.core.model.engine import SAMPLE
from merganser.core.model.keys import canonical_type, latest_rows
from merganser.core.model.schema import cast_column, plain
from merganser.core.model.validation import shown_keys
from merganser.core.rows.append import partition_codes
from merganser.core.rows.key_scan import READERS, key_batches, key_schema, read_rows
from merganser.errors import DuplicateKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.snapshot import Target
    from merganser.core.model.engine import ScanFile

    Rows = npt.NDArray[np.int64]

# Rows whose hashes are sorted at a time.
AT_ONCE = 1 << 23
_HASHES = pa.schema([("hash", pa.uint64()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many keys stand in several rows, and the rows that go, numbered through the dataset, in order."""

    keys: int
    rows: Rows


def find_repeats(target: Target, keys: Sequence[str], order_by: Sequence[str]) -> Repeats:
    """Of the rows of one key let the highest in `order_by` stay, then the last; without it, all have to be the same.

    NULL is lowest and NaN highest. A key with NULL or NaN is no other's.
    """
    scans = scan_files(target, keys, [0] * len(target.files), np.ones(len(target.group_file), np.bool_))
    hashes = spool(_hashes(target, scans, keys), _HASHES)
    parts = max(1, -(-hashes.num_rows // AT_ONCE))
    twice = [_twice(hashes, part, parts) for part in range(parts)]
    found = _Finder(target, {scan.number: scan for scan in scans}, keys, order_by)
    every = np.sort(np.concatenate(twice))
    table = found.read(every)
    repeats = [
        found.among(rows, table if parts == 1 else _picked(table, np.searchsorted(every, rows))) for rows in twice
    ]
    differing = sum(one.differing for one in repeats)
    if differing:
        sample = pa.concat_tables([one.sample for one in repeats]).slice(0, SAMPLE)
        message = (
            f"{differing} key{'s stand' if differing != 1 else ' stands'} in several rows that are not the same, for "
            f"example {shown_keys(sample)}. Name with order_by the columns in which the row that stays is highest."
        )
        raise DuplicateKeyError(message)
    rows = np.concatenate([one.rows for one in repeats])
    return Repeats(sum(one.keys for one in repeats), np.sort(rows))


def _hashes(target: Target, scans: Sequence[ScanFile], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Hash the key of every row that has one, and number the rows."""
    schema = key_schema([canonical_type(target.key_type(name)) for name in keys])
    start = 0
    for batch in key_batches(target.location.store, scans, keys, schema):
        columns = batch.columns[-len(keys) :]
        is_key = np.ones(batch.num_rows, np.bool_)
        for column in columns:
            is_key &= pc.is_valid(column).to_numpy(zero_copy_only=False)
            if pa.types.is_floating(column.type):
                is_key &= ~pc.fill_null(pc.is_nan(column), True).to_numpy(zero_copy_only=False)  # noqa: FBT003  as NaN
        mask = pa.array(is_key)
        hashes = hash_keys([pa.chunked_array([column.filter(mask)]) for column in columns])
        yield pa.record_batch([hashes, start + np.flatnonzero(is_key)], schema=_HASHES)
        start += batch.num_rows


def _twice(hashes: pa.Table, part: int, parts: int) -> Rows:
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


def _picked(table: pa.Table, rows: Rows) -> pa.Table:
    pieces = (take(table, rows[start : start + EVEN]) for start in range(0, len(rows), EVEN))
    return spool((batch for piece in pieces for batch in piece.to_batches()), table.schema)


@dataclass(frozen=True, slots=True)
class _Found:
    """What some rows come to: keys and rows as in `Repeats`, and keys whose rows differ though nothing orders them."""

    keys: int
    rows: Rows
    differing: int
    sample: pa.Table


@dataclass(frozen=True, slots=True)
class _Finder:
    """Reads rows by number, and decides between those of one key."""

    target: Target
    scans: dict[int, ScanFile]
    keys: Sequence[str]
    order_by: Sequence[str]

    def among(self, rows: Rows, table: pa.Table) -> _Found:
        """Decide between these rows, all of whose keys are among them."""
        keys = table.select(list(self.keys))
        stay = latest_rows(table, self.keys, self.order_by)
        # Which of those that stay has the key of each row.
        codes = partition_codes(keys, take(keys, stay))
        goes = np.ones(len(rows), np.bool_)
        goes[stay] = False
        gone = np.flatnonzero(goes)
        count = int(np.count_nonzero(np.bincount(codes[gone])))
        if self.order_by or not len(gone):
            return _Found(count, rows[gone], 0, keys.slice(0, 0))
        pieces = (gone[start : start + EVEN] for start in range(0, len(gone), EVEN))
        others = [piece[~same_rows(take(table, piece), take(table, stay[codes[piece]]))] for piece in pieces]
        differing = np.unique(codes[np.concatenate(others)])
        return _Found(count, rows[gone], len(differing), take(keys, stay[differing[:SAMPLE]]))

    def read(self, rows: Rows) -> pa.Table:
        """Read what decides: keys and what orders rows, or without an order all columns."""
        schema = cast("pa.Schema", self.target.schema)
        names = list(dict.fromkeys([*self.keys, *self.order_by])) if self.order_by else schema.names
        goal = pa.schema([pa.field(name, plain(schema.field(name).type)) for name in names])
        ends = np.cumsum(self.target.group_rows)
        groups = np.searchsorted(ends, rows, side="right")
        places, starts = np.unique(groups, return_index=True)
        positions = np.split(rows - (ends - self.target.group_rows)[groups], starts[1:])
        items = list(zip(places.tolist(), positions, strict=False))
        batches = (
            batch for some in streamed(partial(self._read_group, goal), items, READERS, "look") for batch in some
        )
        return spool(batches, goal)

    def _read_group(self, goal: pa.Schema, item: tuple[int, Rows]) -> list[pa.RecordBatch]:
        group, positions = item
        scan = self.scans[int(self.target.group_file[group])]
        number = int(self.target.group_number[group])
        found = read_rows(self.target.location.store, scan, number, goal.names, positions)
        columns = [cast_column(found[field.name], field.type, field.name) for field in goal]
        batches: list[pa.RecordBatch] = pa.table(columns, schema=goal).to_batches()
        return batches
