"""An Arrow dataset for DuckDB whose files are read through Python, as those of object stores are.

DuckDB asks a dataset for a scanner, and this for a stream. Arrow's own scanner opens the stream while it holds the lock
of Python, and may wait then for one of its threads, which waits for that lock to read a file. Here row groups are read
by calls that do not hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.columnar.threads import READ_THREADS, map_with_prefetch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class RemoteDataset(pads.FileSystemDataset):  # type: ignore[misc]  # PyArrow has no types
    """A dataset whose scanner reads a few row groups at a time."""

    def scanner(self, columns: Sequence[str] | None = None, filter: pads.Expression | None = None) -> _Scanner:  # noqa: A002  DuckDB passes these names
        """Return what DuckDB calls a scanner."""
        return _Scanner(self, self.schema.names if columns is None else list(columns), filter)


def open_remotely(dataset: pads.FileSystemDataset) -> RemoteDataset:
    """Return the same dataset, for DuckDB."""
    return RemoteDataset(list(dataset.get_fragments()), dataset.schema, dataset.format, dataset.filesystem)


@dataclass(frozen=True, slots=True)
class _Scanner:
    dataset: RemoteDataset
    columns: list[str]
    condition: pads.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a stream of the columns and rows that were asked for."""
        schema = pa.schema([self.dataset.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self._stream())

    def _stream(self) -> Iterator[pa.RecordBatch]:
        fragments = self.dataset.get_fragments(filter=self.condition)
        groups = chain.from_iterable(map_with_prefetch(self._split, fragments, READ_THREADS, "footer"))
        for rows in map_with_prefetch(self._load, groups, READ_THREADS, "row-group"):
            yield from rows.to_batches()

    def _split(self, fragment: Any) -> list[Any]:
        return fragment.split_by_row_group(self.condition, self.dataset.schema)  # type: ignore[no-any-return]

    def _load(self, group: Any) -> pa.Table:
        return group.to_table(schema=self.dataset.schema, columns=self.columns, filter=self.condition)
