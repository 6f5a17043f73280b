"""Statistics of data files for planning: the rows and key bounds of each row group, and the file's schema."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from merganser.core.model.keys import to_canonical_type
from merganser.core.model.schema import check_unique, is_same_logical_type
from merganser.core.parquet.footer import read_footer, read_key_statistics
from merganser.core.parquet.reshape import ARROW_SCHEMA
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.parquet.footer import Bound, Footer
    from merganser.core.storage.location import Location

    Footers: TypeAlias = Mapping[str, Footer]  # by relative path

# The coarsest filesystem clock has steps of two seconds: a file that changed this shortly before it was listed may
# change again and keep its version.
SETTLE_NANOSECONDS = 2_000_000_000


class DataFile(NamedTuple):
    """A listed data file, as a `FileInfo`, with the partition values in its path as strings."""

    rel: str
    size: int
    identity: str
    version: str | None
    changed: int
    real: str | None
    folders: Mapping[str, str | None]

    @property
    def key(self) -> bytes:
        """The cache key of this version of this file."""
        version = self.version or ""
        # A path need not be valid Unicode.
        return f"{self.size}:{len(version)}:{version}{self.rel}".encode("utf-8", "surrogatepass")

    def is_settled(self, listed_at: int) -> bool:
        """Check whether the next change is sure to give the file another version."""
        return self.version is not None and self.changed + SETTLE_NANOSECONDS <= listed_at


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The statistics of one file; `schema` is None if the first file has the same Parquet schema."""

    group_rows: tuple[int, ...]
    bounds: Mapping[str, list[Bound]]
    nullable: Mapping[str, list[bool]]  # whether NULL might be there
    schema: pa.Schema | None = None
    footer: Footer | None = None


@dataclass(frozen=True, slots=True)
class Summaries:
    """The statistics of many files in columns: for each file its number of row groups and the index of its schema."""

    schemas: Sequence[pa.Schema]
    schema_numbers: npt.NDArray[np.int64]  # 0 is the schema of the first file
    group_counts: npt.NDArray[np.int64]
    # A row for each row group: `rows`, and of each key column canonical `min_<i>` and `max_<i>`, NULL if unknown, and
    # whether it might hold NULL, `nullable_<i>`.
    groups: pa.Table
    key_types: Mapping[str, pa.DataType]

    def get_bounds(self, key: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the minima and maxima of a key column."""
        at = list(self.key_types).index(key)
        return self.groups.column(f"min_{at}"), self.groups.column(f"max_{at}")

    def flag_nullable(self, key: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the row groups in which a key column might hold NULL."""
        at = list(self.key_types).index(key)
        return self.groups.column(f"nullable_{at}").to_numpy()  # type: ignore[no-any-return]

    def retype(self, key_types: Mapping[str, pa.DataType]) -> Summaries:
        """Return the statistics for keys of other types; bounds that do not compare with these are dropped."""
        if key_types == self.key_types:
            return self
        columns = {"rows": self.groups.column("rows")}
        for at, (name, data_type) in enumerate(key_types.items()):
            canonical, before = to_canonical_type(data_type), self.key_types.get(name)
            unbounded = pa.nulls(self.groups.num_rows, canonical)
            keeps = before is not None and _has_same_canonical_form(before, data_type)
            sides = self.get_bounds(name) if keeps else (unbounded, unbounded)
            columns[f"min_{at}"], columns[f"max_{at}"] = sides
            nullable = self.flag_nullable(name) if keeps else np.ones(self.groups.num_rows, np.bool_)
            columns[f"nullable_{at}"] = pa.array(nullable)
        return replace(self, groups=pa.table(columns), key_types=dict(key_types))

    def take(self, files: npt.NDArray[np.int64]) -> Summaries:
        """Select files, in this order."""
        counts = self.group_counts[files]
        starts = np.cumsum(self.group_counts) - self.group_counts
        shift = starts[files] - (np.cumsum(counts) - counts)
        groups = self.groups.take(np.repeat(shift, counts) + np.arange(counts.sum()))
        return replace(self, schema_numbers=self.schema_numbers[files], group_counts=counts, groups=groups)


def to_columns(reference: ReferenceFile, files: Sequence[FileSummary], known: Sequence[pa.Schema] = ()) -> Summaries:
    """Convert summaries to columns; the first schemas are the reference file's and the `known` ones."""
    schemas = [reference.schema, *known]
    numbers: dict[pa.Schema | None, int] = {None: 0} | {schema: number for number, schema in enumerate(known, 1)}
    for file in files:
        if file.schema not in numbers:
            numbers[file.schema] = len(schemas)
            schemas.append(file.schema)
    columns = {"rows": pa.array(chain.from_iterable(file.group_rows for file in files), pa.int64())}
    for at, (name, data_type) in enumerate(reference.key_types.items()):
        bounds = [bound for file in files for bound in file.bounds[name]]
        columns[f"min_{at}"], columns[f"max_{at}"] = _to_arrays(bounds, to_canonical_type(data_type))
        columns[f"nullable_{at}"] = pa.array(chain.from_iterable(file.nullable[name] for file in files), pa.bool_())
    return Summaries(
        schemas,
        np.array([numbers[file.schema] for file in files], np.int64),
        np.array([len(file.group_rows) for file in files], np.int64),
        pa.table(columns),
        reference.key_types,
    )


def _to_arrays(bounds: Sequence[Bound], data_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    try:
        low, high = (pa.array([bound and bound[side] for bound in bounds], data_type) for side in (0, 1))
    except (OverflowError, pa.ArrowInvalid):
        # A bound outside the type's range proves nothing.
        return _to_arrays([bound if _can_hold(data_type, bound) else None for bound in bounds], data_type)
    return low, high


def _can_hold(data_type: pa.DataType, bound: Bound) -> bool:
    try:
        pa.array(bound or (), data_type)
    except (OverflowError, pa.ArrowInvalid):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceFile:
    """The first file of a dataset, with which others are compared, and the key columns whose bounds are read."""

    location: Location
    file: DataFile
    footer: Footer
    schema: pa.Schema
    partition_types: Mapping[str, pa.DataType]
    key_types: Mapping[str, pa.DataType]
    keeps_footers: bool = False  # for few files only: the footers of many would fill memory

    def summarise(self, file: DataFile) -> FileSummary:
        """Read the footer of a file; its columns may differ from the reference file's."""
        is_first = file.rel == self.file.rel
        path = self.location.to_display(file.rel)
        footer = self.footer if is_first else read_footer(self.location.store, self.location.to_path(file.rel), path)
        metadata = footer.metadata
        own = None
        if not (is_first or self._has_types_of(footer)):
            own = footer.schema.remove_metadata()
            check_unique(own, "target")
        schema = self.schema if own is None else own
        for name, data_type in self.partition_types.items():
            own_type = schema.field(name).type if name in schema.names and name not in file.folders else data_type
            if not is_same_logical_type(own_type, data_type):
                raise SchemaMismatchError(
                    f"{path} is outside the {name}=… folders and holds {name!r} as {own_type}, "
                    f"where the dataset has {data_type}. Move the file out."
                )
        read = {name: _read_statistics(footer, schema, name, data_type) for name, data_type in self.key_types.items()}
        return FileSummary(
            tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
            {name: bounds for name, (bounds, _) in read.items()},
            {name: nullable for name, (_, nullable) in read.items()},
            own,
            footer if self.keeps_footers else None,
        )

    def _has_types_of(self, footer: Footer) -> bool:
        """Whether a file has the Parquet schema of the reference file, and types that only Arrow's copy of it has."""
        metadata = self.footer.metadata
        if not footer.metadata.schema.equals(metadata.schema):
            return False
        copy = (metadata.metadata or {}).get(ARROW_SCHEMA)
        is_same = ARROW_SCHEMA not in footer.raw if copy is None else copy in footer.raw
        # Durations and lists of a fixed size are integers and lists to Parquet.
        return is_same or all(
            is_same_logical_type(*types) for types in zip(self.schema.types, footer.schema.types, strict=True)
        )


def _read_statistics(
    footer: Footer, schema: pa.Schema, name: str, data_type: pa.DataType
) -> tuple[list[Bound], list[bool]]:
    """Read the bounds of a key column; a column of another type is unbounded unless its bounds compare alike."""
    if name in schema.names and not _has_same_order(schema.field(name).type, data_type):
        return [None] * footer.metadata.num_row_groups, [True] * footer.metadata.num_row_groups
    return read_key_statistics(footer, name, data_type)


def _has_same_order(own: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the bounds of a column can be converted to the canonical form of a key of another type."""
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(wanted):
        return (own.tz is None) == (wanted.tz is None)
    return _has_same_canonical_form(own, wanted)


def _has_same_canonical_form(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = (pa.types.is_signed_integer, pa.types.is_floating)
    return is_same_logical_type(one, other) or any(is_kind(one) and is_kind(other) for is_kind in kinds)


def drop_columns(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return a schema without some columns."""
    dropped = set(names)
    return pa.schema([field for field in schema if field.name not in dropped], schema.metadata)
