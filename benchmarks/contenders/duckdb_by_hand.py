"""The whole dataset rewritten by hand with one statement of DuckDB: no checks, no commit."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import duckdb

from benchmarks.contenders.plain import PlainTable, flush
from benchmarks.task import ADDED, WIDENED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge


class DuckDBByHand(PlainTable):
    """A statement that reads everything and writes everything."""

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into a new dataset, and replace the old one with it."""
        old, new = place / "t", place / "new"
        new.mkdir()
        one_file = len(list(old.glob("*.parquet"))) == 1
        target = (
            f"'{new}/part.parquet' (FORMAT parquet)"
            if one_file
            else f"'{new}' (FORMAT parquet, PER_THREAD_OUTPUT, OVERWRITE)"
        )
        with duckdb.connect() as connection:
            connection.register("batch", batch)
            connection.execute(f"COPY ({_query(f'{old}/*.parquet', merge)}) TO {target}")
        shutil.rmtree(old)
        new.rename(old)

    def add_column(self, place: Path) -> None:
        """Rewrite every file with one more column."""
        ((name, data_type),) = ADDED.items()
        _rewrite_files(place, f"SELECT *, NULL::{data_type} AS {name}")

    def widen_column(self, place: Path) -> None:
        """Rewrite every file with one column in another type."""
        ((name, data_type),) = WIDENED.items()
        _rewrite_files(place, f"SELECT * REPLACE ({name}::{data_type} AS {name})")

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        with duckdb.connect() as connection:
            yield from connection.sql(f"FROM '{place}/t/*.parquet'").to_arrow_reader(1_000_000)


def open_table(_variant: str) -> DuckDBByHand:
    """Open the only variant."""
    return DuckDBByHand()


def _rewrite_files(place: Path, select: str) -> None:
    """Copy each file to a new one, on all cores, flush the new ones, and replace the old ones with them."""
    old, new = place / "t", place / "new"
    new.mkdir()
    with duckdb.connect() as connection, ThreadPoolExecutor(os.cpu_count()) as pool:

        def rewrite(file: Path) -> None:
            connection.cursor().execute(f"COPY ({select} FROM '{file}') TO '{new / file.name}' (FORMAT parquet)")

        list(pool.map(rewrite, old.glob("*.parquet")))
    flush([*new.iterdir(), new])
    shutil.rmtree(old)
    new.rename(old)
    flush([place])


def _query(files: str, merge: Merge) -> str:
    """Build the query for all rows after the merge."""
    keys = ", ".join(merge.keys)
    if not merge.update_columns:
        kept = f"FROM read_parquet('{files}') ANTI JOIN batch USING ({keys})"
        return f"({kept}) UNION ALL BY NAME (FROM batch)"
    key = merge.keys[0]
    taken = ", ".join(f"if(b.{key} IS NULL, o.{name}, b.{name}) AS {name}" for name in merge.update_columns)
    return f"SELECT o.* REPLACE ({taken}) FROM read_parquet('{files}') o LEFT JOIN batch b USING ({keys})"  # noqa: S608
