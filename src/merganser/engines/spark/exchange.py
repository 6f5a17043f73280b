"""Exchange: rows that tasks send to tasks of the next stage.

They are sent in packets: Arrow data of any number of rows, in one row of Spark. Spark brings each packet to the task of
its number and never looks inside, so no value is converted, and none passes through the JVM row by row.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import align_chunks, empty_table, split_batches, take
from merganser.engines.spark.columns import KIND, NUMBER, PACKET, PLACE
from merganser.engines.spark.partitioning import repartition_by_number
from merganser.engines.spark.types import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

    Batches = Iterator[pa.RecordBatch]
    Numbers = npt.NDArray[np.integer[Any]]

_ARROW_SCHEMA = pa.schema([(NUMBER, pa.int32()), (KIND, pa.int8()), (PLACE, pa.int64()), (PACKET, pa.binary())])
PACKET_SCHEMA = to_spark_schema(_ARROW_SCHEMA)
# Bytes of packets that a task sends at once.
_SENT_BYTES = 16 << 20


class Kind(IntEnum):
    """What a packet holds: the pickled input of a task, or rows."""

    INPUT = 0
    KEYS = 1
    TARGET_KEYS = 2
    MATCHES = 3
    NEW_ROWS = 4
    VALUES = 5
    COUNTS = 6
    MISSING = 7
    REPEATED = 8


def encode_inputs(inputs: Iterable[tuple[int, int, Any]]) -> pa.Table:
    """Encode task inputs, each with the number of its task and its place among the inputs of that task."""
    found = [(number, Kind.INPUT, place, pickle.dumps(one)) for number, place, one in inputs]
    return pa.Table.from_batches([_to_batch(found)])


def decode_inputs(batches: Batches) -> Iterator[tuple[int, Any]]:
    """Decode the numbers and inputs of the tasks of a partition."""
    for batch in batches:
        for number, packet in zip(batch.column(NUMBER).to_pylist(), batch.column(PACKET), strict=True):
            yield number, _decode_input(packet)


def _decode_input(packet: pa.BinaryScalar) -> Any:
    return pickle.loads(packet.as_py())  # noqa: S301  our own


def exchange(packets: Sequence[DataFrame], count: int, *, in_order: bool = False) -> DataFrame:
    """Bring packets to `count` tasks, by number; those of a task are in the order of their places if that matters."""
    sent = repartition_by_number(reduce(lambda some, more: some.unionAll(more), packets), count)
    return sent.sortWithinPartitions(PLACE) if in_order else sent


def send(kind: Kind, rows: Iterable[tuple[int, int, pa.Table]]) -> Batches:
    """Pack rows, each table with the number of a task and a place; a large one becomes several packets."""
    waiting: list[tuple[int, int, int, bytes]] = []
    size = 0
    for number, place, table in rows:
        for batch in split_batches(table.combine_chunks().to_batches()):
            packet = batch.serialize().to_pybytes()
            waiting.append((number, kind, place, packet))
            place, size = place + batch.num_rows, size + len(packet)  # noqa: PLW2901  of the next one
            if size >= _SENT_BYTES:
                yield _to_batch(waiting)
                waiting, size = [], 0
    if waiting:
        yield _to_batch(waiting)


def _to_batch(packets: Sequence[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    columns = zip(*packets, strict=True) if packets else [()] * len(_ARROW_SCHEMA)
    arrays = [pa.array(column, one) for column, one in zip(columns, _ARROW_SCHEMA.types, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW_SCHEMA)


def decode_packet(packet: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Decode a packet of rows."""
    return pa.ipc.read_record_batch(pa.py_buffer(packet), schema)


def split_rows(table: pa.Table, numbers: Numbers) -> Iterator[tuple[int, int, pa.Table]]:
    """Split rows by a number of each, in their order."""
    order = np.argsort(numbers, kind="stable")
    table = take(align_chunks(table), order)
    found, starts = np.unique(numbers[order], return_index=True)
    for number, (start, end) in zip(found.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
        yield number, 0, table.slice(start, end - start)


@dataclass(frozen=True, slots=True)
class Received:
    """What a task gets: its number, its inputs, and packets; `values` are those that were not kept in memory."""

    number: int
    inputs: list[Any]
    packets: Mapping[int, list[bytes]]
    values: pa.Table | None

    def read(self, kind: Kind, schema: pa.Schema) -> pa.Table:
        """Read the rows of a kind of packets."""
        found = self.packets.get(kind)
        batches = [decode_packet(packet, schema) for packet in found or ()]
        return pa.Table.from_batches(batches, schema) if batches else empty_table(schema)


def receive(batches: Batches, value_schema: pa.Schema | None = None) -> Received | None:
    """Receive everything that was sent to a task; None if there is nothing."""
    packets: dict[int, list[bytes]] = defaultdict(list)
    inputs: dict[int, Any] = {}
    number: int | None = None

    def sort_packets() -> Batches:
        nonlocal number
        for batch in batches:
            heads = (batch.column(name).to_pylist() for name in (NUMBER, KIND, PLACE))
            for number, kind, place, packet in zip(*heads, batch.column(PACKET), strict=True):  # noqa: B007
                if kind == Kind.INPUT:
                    inputs[place] = _decode_input(packet)
                elif kind == Kind.VALUES:
                    yield decode_packet(packet.as_py(), value_schema)
                else:
                    packets[kind].append(packet.as_py())

    values = spool(sort_packets(), value_schema or pa.schema([]))
    if number is None:
        return None
    return Received(number, [inputs[place] for place in sorted(inputs)], packets, value_schema and values)
