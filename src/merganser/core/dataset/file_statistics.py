"""What planning needs of each data file: rows and key bounds of its row groups, and whether its columns fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from merganser.core.model.keys import to_canonical_type
from merganser.core.model.schema import check_same_schema, is_same_logical_type
from merganser.core.parquet.footer import read_footer, read_key_bounds
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.parquet.footer import Bound, Footer
    from merganser.core.storage.location import Location

    # By the path of the file.
    Footers: TypeAlias = Mapping[str, Footer]

# The coarsest clock of a filesystem has steps of two seconds. A file that changed so shortly before it was listed may
# change once more and look the same.
SETTLE_NANOSECONDS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file: where it is, what it was when listed, and the partition text of its folders.

    `version`, `changed` and `real` are those of `FileInfo`.
    """

    rel: str
    size: int
    identity: str
    folders: Mapping[str, str | None]
    version: str | None = None
    changed: int = 0
    real: str | None = None

    @property
    def key(self) -> bytes:
        """Name this version of this file."""
        version = self.version or ""
        # Any text may be a path, also one that is no valid Unicode.
        return f"{self.size}:{len(version)}:{version}{self.rel}".encode("utf-8", "surrogatepass")

    def is_settled(self, listed_at: int) -> bool:
        """Say whether the next change of a file that was listed at this time will give it another version."""
        return self.version is not None and self.changed + SETTLE_NANOSECONDS <= listed_at


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What planning needs of one footer: rows and key bounds of each row group, and its schema.

    The schema is None where the Parquet schema is that of the first file. The footer itself is there if it is kept.
    """

    group_rows: tuple[int, ...]
    bounds: Mapping[str, list[Bound]]
    schema: pa.Schema | None = None
    footer: Footer | None = None


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of many files, in columns.

    Of each file the number of its schema, 0 for that of the first file, and how many row groups it has; of each row
    group of all files `rows`, and canonical `min_<i>` and `max_<i>` of each key column, NULL where nothing is proven.
    """

    schemas: Sequence[pa.Schema]
    schema_numbers: npt.NDArray[np.int64]
    group_counts: npt.NDArray[np.int64]
    groups: pa.Table
    key_types: Mapping[str, pa.DataType]

    def get_bounds(self, key: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Give the minima and maxima of a key column."""
        at = list(self.key_types).index(key)
        return self.groups.column(f"min_{at}"), self.groups.column(f"max_{at}")

    def take(self, files: npt.NDArray[np.int64]) -> Summaries:
        """Give those of some files, in this order."""
        counts = self.group_counts[files]
        starts = np.cumsum(self.group_counts) - self.group_counts
        shift = starts[files] - (np.cumsum(counts) - counts)
        groups = self.groups.take(np.repeat(shift, counts) + np.arange(counts.sum()))
        return replace(self, schema_numbers=self.schema_numbers[files], group_counts=counts, groups=groups)


def to_columns(reference: ReferenceFile, found: Sequence[FileSummary], known: Sequence[pa.Schema] = ()) -> Summaries:
    """Put summaries in columns; schemas that are known beside the first file's keep their numbers."""
    schemas = [reference.schema, *known]
    numbers: dict[pa.Schema | None, int] = {None: 0} | {schema: number for number, schema in enumerate(known, 1)}
    for one in found:
        if one.schema not in numbers:
            numbers[one.schema] = len(schemas)
            schemas.append(one.schema)
    columns = {"rows": pa.array(chain.from_iterable(one.group_rows for one in found), pa.int64())}
    for at, (name, data_type) in enumerate(reference.key_types.items()):
        bounds = [bound for one in found for bound in one.bounds[name]]
        columns[f"min_{at}"], columns[f"max_{at}"] = _to_arrays(bounds, to_canonical_type(data_type))
    return Summaries(
        schemas,
        np.array([numbers[one.schema] for one in found], np.int64),
        np.array([len(one.group_rows) for one in found], np.int64),
        pa.table(columns),
        reference.key_types,
    )


def _to_arrays(bounds: Sequence[Bound], data_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    try:
        return pa.array([bound and bound[0] for bound in bounds], data_type), pa.array(
            [bound and bound[1] for bound in bounds], data_type
        )
    except (OverflowError, pa.ArrowInvalid):
        # A bound that no key of this type can have proves nothing.
        return _to_arrays([bound if _can_hold(data_type, bound) else None for bound in bounds], data_type)


def _can_hold(data_type: pa.DataType, bound: Bound) -> bool:
    try:
        pa.array(bound or (), data_type)
    except (OverflowError, pa.ArrowInvalid):
        return False
    return True


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """The first file of a dataset, by which the others are measured, and of what columns bounds are wanted.

    Footers of few files are kept: of many they would fill memory.
    """

    location: Location
    file: DataFile
    footer: Footer
    schema: pa.Schema
    partition_types: Mapping[str, pa.DataType]
    key_types: Mapping[str, pa.DataType]
    keeps_footers: bool = False

    def summarise(self, file: DataFile) -> FileSummary:
        """Read the footer of a file, and refuse one whose columns do not fit."""
        is_first = file.rel == self.file.rel
        shown = self.location.to_display(file.rel)
        footer = self.footer if is_first else read_footer(self.location.store, self.location.to_path(file.rel), shown)
        metadata = footer.metadata
        own = None
        if not (is_first or metadata.schema.equals(self.footer.metadata.schema)):
            own = footer.schema.remove_metadata()
            self.check_columns(own, shown)
        schema = self.schema if own is None else own
        for name, data_type in self.partition_types.items():
            if (
                name not in file.folders
                and name in schema.names
                and not is_same_logical_type(schema.field(name).type, data_type)
            ):
                message = (
                    f"{shown} stands outside the {name}=… folders and holds {name!r} as {schema.field(name).type}, "
                    f"where the dataset has {data_type}. Move the file out."
                )
                raise SchemaMismatchError(message)
        return FileSummary(
            tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
            {name: read_key_bounds(footer, name, data_type) for name, data_type in self.key_types.items()},
            own,
            footer if self.keeps_footers else None,
        )

    def check_columns(self, schema: pa.Schema, shown: str) -> None:
        """Refuse a schema that disagrees with the first file's, partition columns aside."""
        here, there = drop_columns(self.schema, self.partition_types), drop_columns(schema, self.partition_types)
        check_same_schema(here, there, self.location.to_display(self.file.rel), shown)


def drop_columns(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Leave columns out of a schema."""
    gone = set(names)
    return pa.schema([field for field in schema if field.name not in gone], schema.metadata)
