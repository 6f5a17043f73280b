"""The files that contain a key of the batch, rewritten by hand with Polars: no checks, no commit."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

from benchmarks.contenders.plain import PlainTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.task import Merge


class PolarsByHand(PlainTable):
    """A join with each file whose bounds overlap the batch."""

    def merge(self, batch: pa.Table, place: Path, merge: Merge) -> None:
        """Merge rows into the files."""
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        keys = list(merge.keys)
        ids = frame[keys[-1]].sort()
        seen = []
        for file in sorted((place / "t").glob("*.parquet")):
            if not _might_hold(file, keys[-1], ids):
                continue
            matched = frame.join(pl.scan_parquet(file).select(keys).collect(), on=keys, how="semi")
            if not len(matched):
                continue
            old = pl.read_parquet(file)
            new = old.update(matched, on=keys, how="left", include_nulls=True).select(old.columns)
            new.write_parquet(file, compression="snappy")
            seen.append(matched.select(keys))
        fresh = frame.join(pl.concat(seen), on=keys, how="anti") if seen else frame
        if len(fresh):
            fresh.write_parquet(place / "t" / f"part-{uuid.uuid4().hex}.parquet", compression="snappy")

    def read(self, place: Path) -> Iterable[pa.RecordBatch]:
        """Read all rows."""
        batches: Iterable[pa.RecordBatch] = pl.read_parquet(place / "t" / "*.parquet").to_arrow().to_batches()
        return batches


def open_table(_variant: str) -> PolarsByHand:
    """Open the only variant."""
    return PolarsByHand()


def _might_hold(file: Path, key: str, ids: pl.Series) -> bool:
    """Return whether an id lies within the bounds of a file."""
    metadata = pq.read_metadata(file)
    place = metadata.schema.names.index(key)
    bounds = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
    at = int(ids.search_sorted(min(bound.min for bound in bounds)))
    return at < len(ids) and bool(ids[at] <= max(bound.max for bound in bounds))
