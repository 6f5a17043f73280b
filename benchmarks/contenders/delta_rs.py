"""Delta Lake without Spark, by delta-rs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from benchmarks.contenders.plain import flush
from benchmarks.task import ADDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge

# Without streaming, delta-rs reads the keys of the source first and skips files that cannot contain them.
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "best": {"streamed_exec": False}}


class DeltaRs:
    """A Delta table in the folder `t`."""

    def __init__(self, variant: str) -> None:
        self.settings = SETTINGS[variant]

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Append file by file, and write a checkpoint, so that readers need not read every commit."""
        for file in files:
            write_deltalake(place / "t", pq.read_table(file), mode="append")
        DeltaTable(place / "t").create_checkpoint()

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the table."""
        predicate = " AND ".join(f"t.{key} = s.{key}" for key in merge.keys)
        merger = DeltaTable(place / "t").merge(batch, predicate, "s", "t", **self.settings)
        if merge.update_columns:
            merger.when_matched_update({name: f"s.{name}" for name in merge.update_columns}).execute()
        else:
            merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def add_column(self, place: Path) -> None:
        """Add a column to the schema in the log: no data file changes."""
        log = place / "t" / "_delta_log"
        known = {*log.iterdir()}
        ((name, data_type),) = ADDED.items()
        DeltaTable(place / "t").alter.add_columns(Field(name, PrimitiveType(data_type)))
        flush([*({*log.iterdir()} - known), log])

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        batches: Iterable[pa.RecordBatch] = DeltaTable(place / "t").to_pyarrow_dataset().to_batches()
        return batches


def open_table(variant: str) -> DeltaRs:
    """Open a variant."""
    return DeltaRs(variant)
