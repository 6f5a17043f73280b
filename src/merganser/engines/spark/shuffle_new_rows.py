"""Tasks of the shuffle mode that write new rows: from the files of the source to those of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import take
from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import PartitionNumber
from merganser.core.model.strategy import Action
from merganser.core.rows.append import write_rows
from merganser.core.rows.audit_rows import keep_tables, list_inserted_rows
from merganser.engines.spark import columns as col
from merganser.engines.spark.exchange import Kind, receive, send, split_rows
from merganser.engines.spark.jobs import encode_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import AuditSpec, Layout
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.exchange import Received
    from merganser.engines.spark.staged_source import SourceReader

    Batches = Iterator[pa.RecordBatch]
    Rows = npt.NDArray[np.int64]

from merganser.engines.spark.shuffle_keys import describe_rows, list_flag_columns


@dataclass(frozen=True, slots=True)
class NewRows:
    """How a task finds the new rows of its source file: in packets, or all of them if nothing was matched."""

    reader: SourceReader
    policy: MergePolicy
    partitions: pa.Table
    is_matched: bool

    def find(self, received: Received, *, moved: bool) -> pa.Table:
        """Find the new rows and, if wanted, those that move: their numbers, in order, and partitions."""
        if not self.is_matched:
            return self._find_all(received.inputs if self.policy.rule.inserts else [])
        new = [received.read(Kind.NEW_ROWS, col.NEW_SCHEMA).select(col.NEW_ROW_COLUMNS)]
        if moved:
            matches = received.read(Kind.MATCHES, col.MATCH_SCHEMA)
            new.append(
                matches.filter(pc.equal(matches.column(col.ACTION), int(Action.MOVE))).select(col.NEW_ROW_COLUMNS)
            )
        return pa.concat_tables(new).sort_by(col.ROW)

    def _find_all(self, inputs: Sequence[Any]) -> pa.Table:
        names = [*self.partitions.column_names, *list_flag_columns(self.policy)]
        tables = [col.NEW_SCHEMA.empty_table().select(col.NEW_ROW_COLUMNS)]
        for _, start, rows in self.reader.read_batches(((0, one) for one in inputs), list(dict.fromkeys(names))):
            found = describe_rows(0, np.arange(start, start + rows.num_rows), rows, self.partitions, self.policy)
            tables.append(found.filter(pc.invert(found.column(col.IS_EXCLUDED))).select(col.NEW_ROW_COLUMNS))
        return pa.concat_tables(tables)


def count_new_rows(new: NewRows, batches: Batches) -> Batches:
    """Count the new rows of a source file in each partition."""
    received = receive(batches)
    if received is not None:
        partitions = new.find(received, moved=True).column(col.PARTITION).to_numpy()
        found, counts = np.unique(partitions, return_counts=True)
        yield encode_result(received.number, (received.number, dict(zip(found.tolist(), counts.tolist(), strict=True))))


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """The new file of each new row.

    `partitions` is the partition of each file. `starts` has, by source file and partition, the first file of the
    partition and how many of its rows come from earlier source files.
    """

    partitions: list[PartitionNumber]
    starts: Mapping[int, Mapping[PartitionNumber, tuple[int, int]]]

    @classmethod
    def of(cls, counts: Mapping[int, Mapping[PartitionNumber, int]], max_rows: int) -> FileAssignment:
        """Number the files; the counts are those of each source file and partition."""
        partitions: list[PartitionNumber] = []
        starts: dict[int, dict[PartitionNumber, tuple[int, int]]] = {}
        for partition in sorted({partition for found in counts.values() for partition in found}):
            first, before = len(partitions), 0
            for file in sorted(counts):
                if count := counts[file].get(partition, 0):
                    starts.setdefault(file, {})[partition] = first, before
                    before += count
            partitions += [partition] * -(-before // max_rows)
        return cls(partitions, starts)


def send_new_rows(new: NewRows, assignment: FileAssignment, max_rows: int, batches: Batches) -> Batches:
    """Send the new rows of a source file to the tasks of the new files that they go to."""
    received = receive(batches)
    if received is None:
        return
    rows = new.find(received, moved=True)
    if rows.num_rows:
        names = new.reader.schemas.target.names
        wire = [f"value_{number}" for number in range(len(names))]
        values = new.reader.read_table(received.inputs, names).rename_columns(wire)
        starts = assignment.starts[received.number]
        yield from send(Kind.VALUES, _assign_files(rows, values, starts, max_rows))


def _assign_files(
    rows: pa.Table, values: pa.Table, starts: Mapping[PartitionNumber, tuple[int, int]], max_rows: int
) -> Iterator[tuple[int, int, pa.Table]]:
    """Split rows by the new file that they go to, each with the position of the first one there."""
    numbers = rows.column(col.ROW).to_numpy()
    for partition, _, some in split_rows(pa.table({col.ROW: numbers}), rows.column(col.PARTITION).to_numpy()):
        first, before = starts[PartitionNumber(partition)]
        picks = some.column(0).to_numpy()
        places = before + np.arange(len(picks))
        ends = [*range(max_rows - before % max_rows, len(picks), max_rows), len(picks)]
        for begin, end in zip([0, *ends], ends, strict=False):
            yield first + int(places[begin]) // max_rows, int(places[begin]), take(values, picks[begin:end])


def write_file(reader: SourceReader, layout: Layout, staging: Staging, batches: Batches) -> Batches:
    """Stage one new file of the rows that were sent."""
    schema = conform_schema(reader.schemas.target)
    wire = pa.schema([pa.field(f"value_{at}", one) for at, one in enumerate(schema.types)])
    received = receive(batches, wire)
    if received is not None and received.values is not None:
        table = received.values.rename_columns(schema.names)
        path = write_rows(table, np.arange(table.num_rows), layout, staging)
        yield encode_result(received.number, path)


def list_inserted(new: NewRows, audit: AuditSpec, staging: Staging, batches: Batches) -> Batches:
    """List the rows of a source file that are new."""
    received = receive(batches)
    if received is None:
        return
    numbers = new.find(received, moved=False).column(col.ROW).to_numpy()
    if len(numbers):
        inserted = {*audit.columns} & audit.insert_columns
        names = [name for name in new.reader.schemas.target.names if name in inserted]
        rows = new.reader.read_table(received.inputs, names)
        yield encode_result(received.number, keep_tables(list_inserted_rows(rows, numbers, audit), audit, staging))
