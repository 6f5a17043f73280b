"""DuckLake, an extension of DuckDB: it writes delete files beside the data, and applies them on request."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import duckdb_extension_ducklake

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from benchmarks.task import Merge


class DuckLake:
    """A table of DuckLake, with its catalog in a DuckDB file."""

    def __init__(self, *, folds: bool) -> None:
        self.folds = folds
        self.connection = duckdb.connect()
        folder = Path(next(iter(duckdb_extension_ducklake.__path__)), "extensions", f"v{duckdb.__version__}")
        self.connection.execute(f"LOAD '{folder}/ducklake.duckdb_extension'")

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Insert file by file, in one transaction."""
        place.mkdir(parents=True)
        with self._lake(place) as connection:
            connection.execute(f"BEGIN; CREATE TABLE t AS FROM '{files[0]}' LIMIT 0")
            for file in files:
                connection.execute(f"INSERT INTO t FROM '{file}'")
            connection.execute("COMMIT")

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the table."""
        taken = ", ".join(f"{name} = s.{name}" for name in merge.update_columns)
        then = f"UPDATE SET {taken}" if taken else "UPDATE WHEN NOT MATCHED THEN INSERT"
        with self._lake(place) as connection:
            connection.register("batch", batch)
            connection.execute(f"MERGE INTO t USING batch s USING ({', '.join(merge.keys)}) WHEN MATCHED THEN {then}")
            if self.folds:
                connection.execute("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)")

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        with self._lake(place) as connection:
            yield from connection.sql("FROM t").to_arrow_reader(1_000_000)

    @contextmanager
    def _lake(self, place: Path) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the table, and close it again, so that its files hold the complete state."""
        attach = f"ATTACH 'ducklake:{place}/catalog.ducklake' AS lake (DATA_PATH '{place}/data/')"
        self.connection.execute(f"{attach}; USE lake")
        yield self.connection
        self.connection.execute("USE memory; DETACH lake")


def open_table(variant: str) -> DuckLake:
    """Open a variant."""
    return DuckLake(folds=variant == "folded")
