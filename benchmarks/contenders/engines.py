"""This library, with the engine that the variant names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import merganser as mg
from benchmarks.contenders.plain import PlainTable
from benchmarks.task import ADDED, WIDENED
from merganser.engines import open_engine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge


class Engine(PlainTable):
    """A merge by one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the dataset."""
        strategy, options = _to_options(merge)
        mg.merge(batch, place / "t", strategy, merge.keys, engine=self.engine, **options)

    def plan(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Plan a merge."""
        strategy, options = _to_options(merge)
        mg.plan(batch, place / "t", strategy, merge.keys, engine=self.engine, **options)

    def add_column(self, place: Path) -> None:
        """Add a column to every file; the commit flushes them."""
        mg.alter(place / "t", add=ADDED, engine=self.engine)

    def widen_column(self, place: Path) -> None:
        """Widen a column of every file."""
        mg.alter(place / "t", widen=WIDENED, engine=self.engine)

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        opened: Any = open_engine(self.engine)
        found = opened.read(place / "t")
        batches: Iterable[pa.RecordBatch] = (
            found.to_batches() if self.engine == "arrow" else found.to_arrow_reader(1_000_000)
        )
        return batches


def open_table(variant: str) -> Engine:
    """Open the engine."""
    return Engine(variant)


def _to_options(merge: Merge) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {"skip_unchanged": True} if merge.skip_unchanged else {}
    if not merge.update_columns:
        return "upsert", options
    return "update", {**options, "update_columns": merge.update_columns}
