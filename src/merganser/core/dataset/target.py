"""A snapshot of a dataset: its files, partitions, row groups and schema, as planning and engines use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.keys import to_canonical
from merganser.core.model.partitions import (
    UNKNOWN,
    Unknown,
    from_token,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.file_statistics import DataFile, Footers, Summaries
    from merganser.core.dataset.statistics_cache import CacheUpdate
    from merganser.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Template:
    """What new files take from an old one: key-value metadata, unless it tells of other columns, and writer options.

    `bloom_filter_columns` are the columns that have a bloom filter there, `has_int96` says that there are old
    timestamps.
    """

    key_values: Mapping[bytes, bytes] | None
    writer_options: Mapping[str, Any]
    unwritable_column: str | None
    bloom_filter_columns: frozenset[str] = frozenset()
    has_int96: bool = False


@dataclass(frozen=True)
class Target:
    """A snapshot of a dataset, made from one listing and, of files not in the cache of bounds, one read of each footer.

    `listed_at` is when the listing began, in nanoseconds; `footers` are those that were kept, to be read once only;
    `cache_update` is what that cache does not hold yet.
    """

    location: Location
    files: tuple[DataFile, ...]
    summaries: Summaries | None
    partition_types: Mapping[str, pa.DataType]
    file_schema: pa.Schema | None
    template: Template | None
    listed_at: int = 0
    footers: Footers = field(default_factory=dict)
    cache_update: CacheUpdate | None = None

    @property
    def partition_columns(self) -> list[str]:
        """The columns whose values live in the paths."""
        return list(self.partition_types)

    @cached_property
    def schema(self) -> pa.Schema | None:
        """Every column of the dataset, those of the files first; None while there are no files."""
        if self.file_schema is None:
            return None
        fields = [pa.field(name, data_type) for name, data_type in self.partition_types.items()]
        return pa.schema([*self.file_schema, *fields], self.file_schema.metadata)

    @cached_property
    def rows(self) -> int:
        """All rows of the dataset."""
        return int(self.group_rows.sum())

    @cached_property
    def file_rows(self) -> list[int]:
        """The rows of every file."""
        before = np.concatenate([[0], np.cumsum(self.group_rows)])
        rows: list[int] = np.diff(before[self.first_group]).tolist()
        return rows

    @property
    def unlinked(self) -> list[int]:
        """The numbers of the files that no link leads to: only these may be removed because they have no rows."""
        return [number for number, file in enumerate(self.files) if file.real is None]

    @cached_property
    def required(self) -> frozenset[str]:
        """Columns that at least one file declares never NULL."""
        if self.summaries is None:
            return frozenset()
        schemas = [self.summaries.schemas[number] for number in np.unique(self.summaries.schema_numbers)]
        return frozenset(field.name for schema in schemas for field in schema if not field.nullable)

    def get_columns(self, file: int) -> frozenset[str]:
        """The columns that a file holds itself."""
        number: int = cast("Summaries", self.summaries).schema_numbers[file]
        return self._columns[number]

    @cached_property
    def _columns(self) -> Sequence[frozenset[str]]:
        return [frozenset(schema.names) for schema in cast("Summaries", self.summaries).schemas]

    @cached_property
    def partitions(self) -> list[tuple[Hashable | Unknown, ...]]:
        """The partition values of every file, UNKNOWN where its path does not tell (H6)."""
        # Files of one folder share what its name tells.
        folders = {id(file.folders): file.folders for file in self.files}
        shared = {number: self._parse_partition(texts) for number, texts in folders.items()}
        return [shared[id(file.folders)] for file in self.files]

    def _parse_partition(self, folders: Mapping[str, str | None]) -> tuple[Hashable | Unknown, ...]:
        return tuple(
            parse(folders[name], data_type) if name in folders else UNKNOWN
            for name, data_type in self.partition_types.items()
        )

    def get_path_value(self, file: int, column: str) -> Hashable | Unknown:
        """The value that a file's path gives a column."""
        if column not in self.partition_types:
            return UNKNOWN
        return self.partitions[file][self.partition_columns.index(column)]

    def get_path_values(self, column: str) -> list[Hashable | Unknown]:
        """The values that the paths of all files give a partition column."""
        at = self.partition_columns.index(column)
        return [values[at] for values in self.partitions]

    @cached_property
    def group_counts(self) -> npt.NDArray[np.int64]:
        """How many row groups every file has."""
        return np.empty(0, np.int64) if self.summaries is None else self.summaries.group_counts

    @cached_property
    def first_group(self) -> npt.NDArray[np.int64]:
        """Where, among the row groups of the dataset, those of every file begin, and where the last end."""
        return np.concatenate([[0], np.cumsum(self.group_counts)])

    @cached_property
    def group_file(self) -> npt.NDArray[np.int32]:
        """The file of every row group of the dataset."""
        return np.repeat(np.arange(len(self.group_counts), dtype=np.int32), self.group_counts)

    @cached_property
    def group_number(self) -> npt.NDArray[np.int32]:
        """The number, in its file, of every row group of the dataset."""
        return (np.arange(len(self.group_file)) - self.first_group[self.group_file]).astype(np.int32)

    def mark_groups(self, groups: Mapping[int, Sequence[int]]) -> npt.NDArray[np.bool_]:
        """Say of every row group of the dataset whether it is one of these, given by file."""
        marks = np.zeros(len(self.group_file), np.bool_)
        marks[[self.first_group[file] + group for file, some in groups.items() for group in some]] = True
        return marks

    @cached_property
    def group_rows(self) -> npt.NDArray[np.int64]:
        """The rows of every row group of the dataset."""
        if self.summaries is None:
            return np.empty(0, np.int64)
        rows: npt.NDArray[np.int64] = self.summaries.groups.column("rows").to_numpy()
        return rows

    def is_unbounded(self, key: str) -> npt.NDArray[np.bool_]:
        """Say of every row group whether its footer leaves a key column unbounded."""
        unknown: npt.NDArray[np.bool_] = cast("Summaries", self.summaries).get_bounds(key)[0].is_null().to_numpy()
        return unknown

    def get_bounds(self, keys: Sequence[str]) -> pa.Table:
        """Give a row for each row group: `file`, `row_group`, and canonical `min_<i>`, `max_<i>` of each key column.

        NULL means unbounded. The path's value bounds a partition column on both sides.
        """
        columns: dict[str, Any] = {"file": self.group_file, "row_group": self.group_number}
        for number, name in enumerate(keys):
            sides = cast("Summaries", self.summaries).get_bounds(name)
            if name in self.partition_types:
                told = self._to_path_bounds(name, sides[0].type).take(self.group_file)
                sides = pc.coalesce(told, sides[0]), pc.coalesce(told, sides[1])
            columns[f"min_{number}"], columns[f"max_{number}"] = sides
        return pa.table(columns)

    def get_key_type(self, key: str) -> pa.DataType:
        """The type of a key column."""
        return cast("Summaries", self.summaries).key_types[key]

    def find_exact_keys(self, keys: Sequence[str]) -> set[str]:
        """Name the key columns whose values are the same to the bit if they are equal: 0.0 and -0.0 are not."""
        types = {**{field.name: field.type for field in self.file_schema or ()}, **self.partition_types}
        return {name for name in keys if name in types and not pa.types.is_floating(types[name])}

    def _to_path_bounds(self, name: str, data_type: pa.DataType) -> pa.Array:
        """Give the canonical value that each file's path tells of a column, NULL where it does not or tells NULL."""
        known = [None if value is UNKNOWN else value for value in self.get_path_values(name)]
        exact = {value: to_canonical_value(value, self.partition_types[name]) for value in {*known} - {None}}
        return pa.array([exact.get(value) for value in known], data_type)


def to_canonical_value(value: Any, data_type: pa.DataType) -> Any:
    """Give the canonical form of a partition token of this type."""
    return to_canonical(pa.chunked_array([pa.array([from_token(value, data_type)], data_type)]))[0].as_py()
