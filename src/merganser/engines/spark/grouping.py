"""Bring all rows of a key to one task: a source that one task can hold in one step, a larger one in two.

Keys are digests in hexadecimal, whose ranges are of equal size, so groups are in the order of the keys. A group without
rows has no result.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.core.columnar.take import align_chunks, to_array
from merganser.engines.spark.columns import KIND, PACKET
from merganser.engines.spark.exchange import (
    PACKET_SCHEMA,
    Kind,
    decode_inputs,
    decode_packet,
    encode_inputs,
    exchange,
    receive,
    send,
    split_rows,
)
from merganser.engines.spark.jobs import (
    RESULT_SCHEMA,
    collect_results,
    encode_result,
    make_task_frame,
    run_tasks,
    tag_errors,
)
from merganser.engines.spark.row_files import FILE_BYTES
from merganser.engines.spark.source import keep_rows, read_blob
from merganser.engines.spark.staged_source import cast_batch
from merganser.engines.spark.types import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from merganser.engines.spark.row_files import SelectedRows

    Batches = Iterator[pa.RecordBatch]

# Hexadecimal digits of a key that decide its group.
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Grouping:
    """Work to be done on all rows of some keys at a time; `key` is the column of the keys, which may be NULL."""

    rows: SelectedRows
    key: str
    work: Callable[[pa.Table], Any]

    @property
    def group_count(self) -> int:
        """The number of groups, each of which one task can hold."""
        return self.rows.size // FILE_BYTES + 1


def run_groupings(spark: SparkSession, groupings: Sequence[Grouping], name: str = "group rows") -> list[list[Any]]:
    """Do the work of each grouping, and return its results in the order of the keys; small ones share a job."""
    small = [grouping for grouping in groupings if grouping.group_count == 1]
    at_once = iter(run_tasks(spark, _run_small, small, name) if small else [])
    return [
        [next(at_once)] if grouping.group_count == 1 else _run_large(spark, grouping, name) for grouping in groupings
    ]


def _run_small(grouping: Grouping) -> Any:
    return grouping.work(align_chunks(grouping.rows.read_table()))


def _run_large(spark: SparkSession, grouping: Grouping, name: str) -> list[Any]:
    rows, count = grouping.rows.without_files(), grouping.group_count
    send_rows = tag_errors(_send_rows, rows, grouping.key, count)
    files = make_task_frame(spark, [file.path for file in grouping.rows.row_files.files])
    sent = exchange([files.mapInArrow(send_rows, PACKET_SCHEMA)], count)
    work = tag_errors(_run_group, rows.schema, grouping.work)
    return collect_results(sent.mapInArrow(work, RESULT_SCHEMA), name)


@contextmanager
def group_frame(
    frame: DataFrame,
    schema: pa.Schema,
    key: str,
    work: Callable[[pa.Table], tuple[pa.Table, Any]],
    made: pa.Schema,
) -> Iterator[tuple[DataFrame, list[Any]]]:
    """Make rows of another schema from all rows of some keys at a time; Spark keeps them while the block lasts.

    Rows are of `schema`; `work` also returns a result, and there is one at least.
    """
    plain = frame.toDF(*(f"c{at}" for at in range(len(schema))))
    with ExitStack() as stack:
        kept = _persist(
            plain.mapInArrow(tag_errors(keep_rows, partial(cast_batch, schema=schema), schema), PACKET_SCHEMA), stack
        )
        size = sum(collect_results(kept.mapInArrow(tag_errors(_measure_rows), RESULT_SCHEMA), "stage rows"))
        count = size // FILE_BYTES + 1
        send_rows = tag_errors(_send_kept_rows, schema, key, count)
        inputs = make_task_frame(frame.sparkSession, [None] * count)
        sent = exchange([inputs, kept.mapInArrow(send_rows, PACKET_SCHEMA)], count)
        done = _persist(sent.mapInArrow(tag_errors(_make_rows, schema, work), PACKET_SCHEMA), stack)
        results = collect_results(
            done.where(F.col(KIND) == int(Kind.INPUT)).mapInArrow(tag_errors(_read_results), RESULT_SCHEMA),
            "group rows",
        )
        rows = done.where(F.col(KIND) == int(Kind.VALUES))
        yield rows.mapInArrow(tag_errors(_read_rows, made), to_spark_schema(made)), results


def _persist(frame: DataFrame, stack: ExitStack) -> DataFrame:
    # On disk only: Spark would keep in memory what it reads back, as long as there is room.
    persisted = frame.persist(StorageLevel.DISK_ONLY)
    stack.callback(persisted.unpersist)
    return persisted


def _measure_rows(batches: Batches) -> Batches:
    yield encode_result(0, sum(batch.nbytes for batch in batches))


def _send_kept_rows(schema: pa.Schema, key: str, count: int, batches: Batches) -> Batches:
    for _, blob in decode_inputs(batches):
        table = pa.Table.from_batches(read_blob(blob, schema.names), schema)
        yield from _send_table(table, key, count)


def _make_rows(schema: pa.Schema, work: Callable[[pa.Table], tuple[pa.Table, Any]], batches: Batches) -> Batches:
    received = _receive_rows(schema, batches)
    if received is not None:
        number, rows = received
        made, result = work(rows)
        yield from encode_inputs([(number, 0, result)]).to_batches()
        yield from send(Kind.VALUES, [(number, 0, made)])


def _read_results(batches: Batches) -> Batches:
    for number, result in decode_inputs(batches):
        yield encode_result(number, result)


def _read_rows(schema: pa.Schema, batches: Batches) -> Batches:
    for batch in batches:
        for packet in batch.column(PACKET):
            yield decode_packet(packet.as_py(), schema)


def _send_rows(rows: SelectedRows, key: str, count: int, batches: Batches) -> Batches:
    """Send the rows of files to their groups."""
    for _, path in decode_inputs(batches):
        yield from _send_table(pa.Table.from_batches(rows.read_batches(path), rows.schema), key, count)


def _send_table(table: pa.Table, key: str, count: int) -> Batches:
    # By position: a column may have any name.
    named = table.rename_columns([f"value_{at}" for at in range(table.num_columns)])
    yield from send(Kind.VALUES, split_rows(named, _number_groups(to_array(table.column(key)), count)))


def _number_groups(keys: pa.Array, count: int) -> npt.NDArray[np.int64]:
    """Number the range of each key; NULL belongs to the first one."""
    digits = pc.fill_null(pc.utf8_slice_codeunits(keys, 0, _DIGITS), "0" * _DIGITS)
    fixed = digits.cast(pa.binary()).cast(pa.binary(_DIGITS))
    data = np.frombuffer(fixed.buffers()[1], np.uint8)[: len(fixed) * _DIGITS].reshape(-1, _DIGITS).astype(np.int64)
    nibbles = np.where(data >= ord("a"), data - ord("a") + 10, data - ord("0"))
    numbers: npt.NDArray[np.int64] = nibbles @ (16 ** np.arange(_DIGITS - 1, -1, -1))
    return numbers * count >> (4 * _DIGITS)


def _run_group(schema: pa.Schema, work: Callable[[pa.Table], Any], batches: Batches) -> Batches:
    received = _receive_rows(schema, batches)
    if received is not None:
        number, rows = received
        yield encode_result(number, work(rows))


def _receive_rows(schema: pa.Schema, batches: Batches) -> tuple[int, pa.Table] | None:
    received = receive(batches, pa.schema([pa.field(f"value_{at}", one) for at, one in enumerate(schema.types)]))
    if received is None or received.values is None:
        return None
    return received.number, received.values.rename_columns(schema.names)
