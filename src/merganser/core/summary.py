"""What planning needs of each data file: rows and key bounds of its row groups, and whether its columns fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.errors import SchemaMismatchError
from merganser.core.footer import key_bounds, read_footer
from merganser.core.keys import canonical_type
from merganser.core.schema import check_same_schema, same_meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow.parquet as pq

    from merganser.core.footer import Bound, Footer
    from merganser.core.store import Location


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file: where it is, what it was when listed, and the partition text of its folders.

    `version` and `changed` are those of `FileInfo`.
    """

    rel: str
    size: int
    identity: str
    folders: Mapping[str, str | None]
    version: str | None = None
    changed: int = 0


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What planning needs of one footer: rows and key bounds of each row group, and columns of its own.

    `schema` is None where the Parquet schema is that of the first file.
    """

    group_rows: tuple[int, ...]
    bounds: Mapping[str, list[Bound]]
    columns: frozenset[str]
    required: frozenset[str]
    schema: pa.Schema | None = None

    @property
    def rows(self) -> int:
        """All rows of the file."""
        return sum(self.group_rows)


@dataclass(frozen=True, slots=True)
class Model:
    """The first file of a dataset, by which the others are measured, and of what columns bounds are wanted."""

    location: Location
    file: DataFile
    footer: Footer
    schema: pa.Schema
    partition_types: Mapping[str, pa.DataType]
    key_types: Mapping[str, pa.DataType]

    def summarise(self, file: DataFile) -> FileSummary:
        """Read the footer of a file, and refuse one whose columns do not fit."""
        is_first = file.rel == self.file.rel
        shown = self.location.shown(file.rel)
        footer = self.footer if is_first else read_footer(self.location.store, self.location.path(file.rel), shown)
        metadata: pq.FileMetaData = footer.metadata
        own = None
        if not (is_first or metadata.schema.equals(self.footer.metadata.schema)):
            own = footer.schema.remove_metadata()
            self.check_columns(own, shown)
        schema = self.schema if own is None else own
        for name, kind in self.partition_types.items():
            if name not in file.folders and name in schema.names and not same_meaning(schema.field(name).type, kind):
                message = (
                    f"{shown} stands outside the {name}=… folders and holds {name!r} as {schema.field(name).type}, "
                    f"where the dataset has {kind}. Move the file out."
                )
                raise SchemaMismatchError(message)
        return FileSummary(
            tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
            {name: key_bounds(footer, name, kind) for name, kind in self.key_types.items()},
            frozenset(schema.names),
            required_columns(schema),
            own,
        )

    def check_columns(self, schema: pa.Schema, shown: str) -> None:
        """Refuse a schema that disagrees with the first file's, partition columns aside."""
        here, there = without(self.schema, self.partition_types), without(schema, self.partition_types)
        check_same_schema(here, there, self.location.shown(self.file.rel), shown)


def required_columns(schema: pa.Schema) -> frozenset[str]:
    """Name the columns that are declared never NULL."""
    return frozenset(field.name for field in schema if not field.nullable)


def without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Leave columns out of a schema."""
    gone = set(names)
    return pa.schema([field for field in schema if field.name not in gone], schema.metadata)


def bound_arrays(bounds: Iterable[Bound], kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Lay bounds of a key column of this type out as canonical minima and maxima, NULL where there are none."""
    canonical, found = canonical_type(kind), list(bounds)
    return pa.array([bound and bound[0] for bound in found], canonical), pa.array(
        [bound and bound[1] for bound in found], canonical
    )
