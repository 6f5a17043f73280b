"""The staged source: its rows as executors wrote them, once, in Arrow files that every later stage reads.

This module runs on executors, and on the driver for a source that is in its memory; it knows nothing of Spark.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import gathered, no_rows
from merganser.core.model.schema import conform, conformed, operation_column
from merganser.core.storage.staging import storing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

# Bytes of rows in one part, which a task may hold in memory.
_PART = 64 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Shape:
    """What the columns of a source are on the way, and what they are to become in the target."""

    carried: pa.Schema
    goal: pa.Schema

    def of(self, names: Sequence[str]) -> Shape:
        """Leave columns out."""
        return Shape(
            pa.schema([self.carried.field(name) for name in names]),
            pa.schema([self.goal.field(name) for name in names]),
        )

    def empty(self) -> pa.Table:
        """Give no rows."""
        return no_rows(conformed(self.goal))

    def arrived(self, batch: pa.RecordBatch) -> pa.Table:
        """Give rows that Spark has carried, whose columns have numbers for names, the types that they are to have."""
        columns = [column.cast(kind) for column, kind in zip(batch.columns, self.carried.types, strict=True)]
        return self.conformed(pa.record_batch(columns, schema=self.carried))

    def conformed(self, batch: pa.RecordBatch) -> pa.Table:
        """Cast rows as `merganser.core.model.schema.conform` does."""
        return conform(pa.Table.from_batches([batch]), self.goal)


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of rows without looking at other rows: how many, how many delete, and where values are missing.

    `lacking` are the columns that are NULL in a row that does not delete.
    """

    rows: int
    deletes: int
    nulls: Mapping[str, int]
    nans: Mapping[str, int]
    lacking: frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """One file of source rows, and their bytes in memory."""

    path: str
    size: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Parts:
    """All source rows, in order."""

    store: Store
    shape: Shape
    files: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.profile.rows for part in self.files)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.files)

    def any(self) -> Parts:
        """Give what a task needs that is told which part to read: many files need not travel to each."""
        return replace(self, files=())

    def carried(self) -> pa.Table:
        """Read all rows as they travel."""
        names = self.shape.carried.names
        batches = (batch for part in self.files for batch in self.batches(part, names))
        return pa.Table.from_batches(batches, self.shape.carried)

    def table(self, names: Iterable[str] | None = None) -> pa.Table:
        """Read some columns of all rows, cast to those of the target."""
        shape = self.shape if names is None else self.shape.of(list(names))
        tables = [shape.conformed(batch) for part in self.files for batch in self.batches(part, shape.carried.names)]
        return pa.concat_tables(tables) if tables else shape.empty()

    def batches(self, part: Part, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns of one part."""
        at = [self.shape.carried.names.index(name) for name in names]
        with self.store.open_input(part.path) as stream:
            reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=at))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).select(list(names))


def write_parts(batches: Iterable[pa.RecordBatch], shape: Shape, staging: Staging | None) -> Iterator[Part]:
    """Check that rows fit the target, and keep them in files of the staging folder, if there is one."""
    coming = gathered((batch for batch in batches if batch.num_rows), shape.carried)
    operation = operation_column(shape.goal)
    for first in coming:
        profiles: list[Profile] = []
        if staging is None:
            yield Part("", 0, _profile(shape.conformed(first), operation))
            continue
        path, size = staging.new_path(), 0
        with ExitStack() as opened:
            with storing(staging):
                stream = opened.enter_context(staging.location.store.create(path))
                writer = opened.enter_context(pa.ipc.new_file(stream, shape.carried, options=_COMPRESSED))
            # What fails while rows come is the source's failure, not the staging folder's.
            for batch in chain([first], coming):
                profiles.append(_profile(shape.conformed(batch), operation))
                with storing(staging):
                    writer.write_batch(batch)
                size += batch.nbytes
                if size >= _PART:
                    break
            with storing(staging):
                opened.close()
        yield Part(path, size, merged(profiles))


def _profile(table: pa.Table, operation: str | None) -> Profile:
    lasting, deletes = table, 0
    if operation is not None:
        lasting = table.filter(pc.invert(table.column(operation)))
        deletes = table.num_rows - lasting.num_rows
    lacking = frozenset(name for name in table.column_names if lasting.column(name).null_count)
    nulls = {name: table.column(name).null_count for name in table.column_names}
    nans = {
        field.name: pc.sum(pc.is_nan(table.column(field.name))).as_py() or 0
        for field in table.schema
        if pa.types.is_floating(field.type)
    }
    return Profile(table.num_rows, deletes, nulls, nans, lacking)


def merged(profiles: Iterable[Profile]) -> Profile:
    """Add up what is known of rows."""
    rows = deletes = 0
    nulls: dict[str, int] = {}
    nans: dict[str, int] = {}
    lacking: frozenset[str] = frozenset()
    for profile in profiles:
        rows, deletes, lacking = rows + profile.rows, deletes + profile.deletes, lacking | profile.lacking
        for name, count in profile.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
        for name, count in profile.nans.items():
            nans[name] = nans.get(name, 0) + count
    return Profile(rows, deletes, nulls, nans, lacking)
