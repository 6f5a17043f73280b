"""Bring all rows of a key to one task: a source that one task can hold in one step, a larger one in two.

Keys are digests in hexadecimal, whose ranges are of equal size, so groups are in the order of the keys. Rows go from
task to task in files, by column, and never through Spark's own memory.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import align_chunks, to_array
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.row_files import FILE_BYTES, IPC_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from merganser.core.storage.store import Store
    from merganser.engines.spark.row_files import SelectedRows

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


def run_groupings(
    spark: SparkSession, groupings: Sequence[Grouping], folder: str, name: str = "group rows"
) -> list[list[Any]]:
    """Do the work of each grouping, and return its results in the order of the keys; small ones share a job."""
    small = [grouping for grouping in groupings if grouping.group_count == 1]
    at_once = iter(run_tasks(spark, _run_small, small, name) if small else [])
    return [
        [next(at_once)] if grouping.group_count == 1 else _run_large(spark, grouping, folder, name)
        for grouping in groupings
    ]


def _run_small(grouping: Grouping) -> Any:
    return grouping.work(align_chunks(grouping.rows.read_table()))


def _run_large(spark: SparkSession, grouping: Grouping, folder: str, name: str) -> list[Any]:
    rows, count = grouping.rows.without_files(), grouping.group_count
    paths = [file.path for file in grouping.rows.row_files.files]
    split = run_tasks(spark, partial(_split_file, rows, grouping.key, count, folder), paths, name)
    store = rows.row_files.store
    results = run_tasks(spark, partial(_run_group, store, split, grouping.work), range(count), name)
    for path in split:
        store.remove(path)
    return results


def _split_file(rows: SelectedRows, key: str, count: int, folder: str, path: str) -> str:
    """Write the rows of a file group by group, each as one batch."""
    table = align_chunks(pa.Table.from_batches(rows.read_batches(path), rows.schema))
    groups = _number_groups(to_array(table.column(key)), count)
    order = np.argsort(groups, kind="stable")
    table = table.take(pa.array(order)).combine_chunks()
    ends = np.searchsorted(groups[order], np.arange(count), side="right")
    target = f"{folder}/{uuid.uuid4().hex}.groups"
    with (
        rows.row_files.store.create(target) as stream,
        pa.ipc.new_file(stream, rows.schema, options=IPC_OPTIONS) as writer,
    ):
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            part = table.slice(begin, end - begin).combine_chunks()
            writer.write_batch(part.to_batches()[0] if part.num_rows else pa.RecordBatch.from_pylist([], rows.schema))
    return target


def _number_groups(keys: pa.Array, count: int) -> npt.NDArray[np.int64]:
    """Number the range of each key; NULL belongs to the first one."""
    digits = pc.fill_null(pc.utf8_slice_codeunits(keys, 0, _DIGITS), "0" * _DIGITS)
    fixed = digits.cast(pa.binary()).cast(pa.binary(_DIGITS))
    data = np.frombuffer(fixed.buffers()[1], np.uint8)[: len(fixed) * _DIGITS].reshape(-1, _DIGITS).astype(np.int64)
    nibbles = np.where(data >= ord("a"), data - ord("a") + 10, data - ord("0"))
    numbers: npt.NDArray[np.int64] = nibbles @ (16 ** np.arange(_DIGITS - 1, -1, -1))
    return numbers * count >> (4 * _DIGITS)


def _run_group(store: Store, paths: Sequence[str], work: Callable[[pa.Table], Any], group: int) -> Any:
    batches = []
    for path in paths:
        with store.open_input(path) as stream:
            batches.append(pa.ipc.open_file(stream).get_batch(group))
    return work(align_chunks(pa.Table.from_batches(batches)))
