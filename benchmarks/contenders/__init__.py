"""Who takes part: each contender's name, module and environment.

A module of this package has a function `open_table` that takes the variant's name and returns a `Table`. It runs in the
contender's own environment, so of this project it imports only `benchmarks.task`, the modules here and, for the engines
of merganser, merganser itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge

Kind = Literal["merganser", "copy on write", "merge on read", "floor"]
OURS: Kind = "merganser"
COPIES: Kind = "copy on write"
READS: Kind = "merge on read"
# A copy without the change, which is no slower.
FLOOR: Kind = "floor"


class Table(Protocol):
    """A contender's table in a folder."""

    def prepare(self, files: Sequence[Path], place: Path) -> None:
        """Create the table from Parquet files; each stays a file."""

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the table."""

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all of the table with the contender's own reader."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender: `environment` names its requirements in `benchmarks/peers`, None is this project's own."""

    id: str
    name: str
    kind: Kind
    module: str
    packages: tuple[str, ...]
    environment: str | None = None
    variant: str = ""
    # Tables of one form are created once for all contenders with that form.
    form: str = "plain"

    def open(self) -> Table:
        """Import what the contender needs."""
        table: Table = import_module(f"benchmarks.contenders.{self.module}").open_table(self.variant)
        return table


CONTENDERS = {
    contender.id: contender
    for contender in (
        Contender("duckdb", "merganser (duckdb)", OURS, "engines", ("merganser", "duckdb"), variant="duckdb"),
        Contender("arrow", "merganser (arrow)", OURS, "engines", ("merganser", "pyarrow"), variant="arrow"),
        Contender("polars", "Polars by hand, affected files", COPIES, "polars_by_hand", ("polars",)),
        Contender("whole", "DuckDB by hand, everything", COPIES, "duckdb_by_hand", ("duckdb",)),
        Contender(
            "delta", "delta-rs", COPIES, "delta_rs", ("deltalake",), "deltalake", variant="default", form="delta"
        ),
        Contender(
            "delta-best", "delta-rs, best setting", COPIES, "delta_rs", ("deltalake",), "deltalake", "best", "delta"
        ),
        Contender(
            "delta-spark", "Delta on Spark", COPIES, "delta_spark", ("delta-spark",), "delta-spark", form="delta-spark"
        ),
        Contender("iceberg", "pyiceberg", COPIES, "iceberg", ("pyiceberg",), "pyiceberg", form="iceberg"),
        Contender("fsspeckit", "fsspeckit", COPIES, "fsspeckit_io", ("fsspeckit",), "fsspeckit"),
        Contender(
            "ducklake-folded",
            "DuckLake, deletes folded",
            COPIES,
            "ducklake",
            ("duckdb-extension-ducklake",),
            "ducklake",
            "folded",
            "ducklake",
        ),
        Contender(
            "ducklake", "DuckLake", READS, "ducklake", ("duckdb-extension-ducklake",), "ducklake", form="ducklake"
        ),
        Contender("lance", "Lance", READS, "lance_format", ("pylance",), "lance", form="lance"),
    )
}


# Those of the benchmark of schema changes; all have a method `add_column`, some have `widen_column`.
ALTERING = {
    contender.id: contender
    for contender in (
        CONTENDERS["duckdb"],
        CONTENDERS["arrow"],
        replace(CONTENDERS["whole"], name="DuckDB, every file rewritten"),
        Contender("copy", "copy of every file", FLOOR, "file_copy", ("pyarrow",)),
        replace(CONTENDERS["delta"], name="delta-rs, metadata only"),
        replace(CONTENDERS["lance"], name="Lance, metadata only"),
    )
}


def find_contenders(names: Iterable[str], known: Mapping[str, Contender] = CONTENDERS) -> list[Contender]:
    """Find contenders by id; all by default."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"There is no contender {unknown[0]}. Choose of {', '.join(known)}.")
    return [one for one in known.values() if not wanted or one.id in wanted]
