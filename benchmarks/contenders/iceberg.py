"""Iceberg by pyiceberg, with its catalog in SQLite."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.contenders.plain import fill_missing_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge

NAME = "bench.t"


class Iceberg:
    """An Iceberg table."""

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Copy the files and add them all in one commit."""
        (place / "data").mkdir(parents=True)
        catalog = _catalog(place)
        catalog.create_namespace("bench")
        table = catalog.create_table(NAME, pq.read_schema(files[0]))
        table.add_files([shutil.copyfile(file, place / "data" / file.name).as_uri() for file in files])

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the table; it needs complete rows."""
        table = _catalog(place).load_table(NAME)
        if merge.update_columns:
            batch = fill_missing_columns(batch, table.scan().to_arrow(), merge)
        table.upsert(batch.cast(table.schema().as_arrow()), join_cols=list(merge.keys))

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        batches: Iterable[pa.RecordBatch] = _catalog(place).load_table(NAME).scan().to_arrow_batch_reader()
        return batches


def open_table(_variant: str) -> Iceberg:
    """Open the only variant."""
    return Iceberg()


def _catalog(place: Path) -> Any:
    return SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
