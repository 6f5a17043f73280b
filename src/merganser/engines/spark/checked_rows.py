"""Stage checked rows: those that pass every rule in one set of row files, those that fail one in another.

This module runs on executors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import coalesce_batches
from merganser.engines.spark.jobs import encode_result, get_partition_id
from merganser.engines.spark.row_files import RowFile, RowFileWriter
from merganser.engines.spark.staged_source import cast_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from merganser.core.storage.store import Store

    Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """The columns of clean rows, then those of failed ones, of which the first one lists the rules that a row fails."""

    clean: pa.Schema
    failed: pa.Schema


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """The files of one task, and how many rows failed each rule."""

    clean: list[RowFile]
    failed: list[RowFile]
    rules: Mapping[str, int]


def stage_checked(schema: CheckedSchema, store: Store, folder: str, batches: Batches) -> Batches:
    """Write the rows of a partition to files."""
    clean_names, failed_names = schema.clean.names, schema.failed.names
    both = pa.schema([*schema.clean, *schema.failed])
    rules: Counter[str] = Counter()
    casted = (cast_batch(batch, both) for batch in batches if batch.num_rows)
    with RowFileWriter(store, folder, schema.clean) as clean, RowFileWriter(store, folder, schema.failed) as failed:
        for batch in coalesce_batches(casted, both):
            has_failed = pc.greater(pc.list_value_length(batch.column(len(clean_names))), 0)
            lost = batch.filter(has_failed) if pc.any(has_failed).as_py() else None
            if lost is not None:
                failed.write(lost.select(failed_names))
                for count in pc.value_counts(pc.list_flatten(lost.column(len(clean_names)))).to_pylist():
                    rules[count["values"]] += count["counts"]
                batch = batch.filter(pc.invert(has_failed))  # noqa: PLW2901  the rest of it
            clean.write(batch.select(clean_names))
    yield encode_result(get_partition_id(), CheckedFiles(clean.files, failed.files, dict(rules)))
