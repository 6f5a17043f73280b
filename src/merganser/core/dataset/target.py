"""`Target`, a snapshot of a dataset: its files, partitions, row groups and schema."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.engine import FileNumber, TargetSize
from merganser.core.model.file_shape import make_shape, make_shaped_key_values, shape_options
from merganser.core.model.keys import to_canonical
from merganser.core.model.partitions import UNKNOWN, Unknown, from_token, parse

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.file_statistics import DataFile, Footers, ReferenceFile, Summaries
    from merganser.core.dataset.statistics_cache import CacheUpdate
    from merganser.core.model.engine import GroupNumber
    from merganser.core.model.file_shape import FileShape
    from merganser.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Template:
    """Properties of the first file that new files copy; `unwritable_column` is one that PyArrow can read, not write."""

    key_values: Mapping[bytes, bytes] | None
    writer_options: Mapping[str, Any]
    unwritable_column: str | None
    bloom_filter_columns: frozenset[str] = frozenset()
    has_int96: bool = False

    def fit(self, own: pa.Schema, schema: pa.Schema) -> Template:
        """Return the properties for files of another schema than the first file's own."""
        shape = make_shape(own, schema)
        if shape is None:
            return self
        key_values = None if self.key_values is None else make_shaped_key_values(self.key_values, shape)
        return replace(self, key_values=key_values, writer_options=shape_options(self.writer_options, shape))


@dataclass(frozen=True, kw_only=True)
class Target:
    """A snapshot of a dataset, from one listing and the footers of files that the statistics cache does not have."""

    location: Location
    files: tuple[DataFile, ...] = ()
    summary_files: tuple[str, ...] = ()  # `_metadata` and the like, which describe the files
    summaries: Summaries | None = None
    partition_types: Mapping[str, pa.DataType]
    file_schema: pa.Schema | None = None  # of all files, whether they have it already or are to get it
    template: Template | None = None
    reference: ReferenceFile | None = None  # the first file, with which others were compared
    schema_before: pa.Schema | None = None  # if this is the schema that a merge gives it, the one before
    listed_at: int = 0  # when the listing began, in nanoseconds
    footers: Footers = field(default_factory=dict)  # kept so that each is read once only
    cache_update: CacheUpdate | None = None  # statistics to save in the cache

    @property
    def partition_columns(self) -> list[str]:
        """The partition columns, in path order."""
        return list(self.partition_types)

    @cached_property
    def schema(self) -> pa.Schema | None:
        """All columns of the dataset, partition columns last; None if there are no files."""
        if self.file_schema is None:
            return None
        fields = [pa.field(name, data_type) for name, data_type in self.partition_types.items()]
        return pa.schema([*self.file_schema, *fields], self.file_schema.metadata)

    def list_paths(self, numbers: Iterable[int]) -> frozenset[str]:
        """List the relative paths of these files."""
        return frozenset(self.files[number].rel for number in numbers)

    def find_numbers(self, paths: Collection[str]) -> list[FileNumber]:
        """List the numbers of the files that have one of these relative paths."""
        return [FileNumber(number) for number, file in enumerate(self.files) if file.rel in paths]

    def select(self, numbers: Sequence[int]) -> Target:
        """Return the dataset as if it had only these files."""
        summaries = None if self.summaries is None else self.summaries.take(np.array(numbers, np.int64))
        return replace(self, files=tuple(self.files[number] for number in numbers), summaries=summaries)

    def evolve(self, file_schema: pa.Schema) -> Target:
        """Return the dataset with the schema that a merge gives its files."""
        summaries, first = cast("Summaries", self.summaries), cast("pa.Schema", self.file_schema)
        types = {name: self._find_type(file_schema, name) for name in summaries.key_types}
        return replace(
            self,
            file_schema=file_schema,
            schema_before=self.schema,
            summaries=summaries.retype(types),
            template=None if self.template is None else self.template.fit(first, file_schema),
        )

    def _find_type(self, file_schema: pa.Schema, name: str) -> pa.DataType:
        return self.partition_types[name] if name in self.partition_types else file_schema.field(name).type

    @cached_property
    def is_mixed(self) -> bool:
        """Whether files differ from the schema of the dataset in columns or types."""
        return self.summaries is not None and any(
            self._shapes[number] is not None for number in np.unique(self.summaries.schema_numbers).tolist()
        )

    def get_shape(self, file: int) -> FileShape | None:
        """Return how a file is read and rewritten in the schema of the dataset; None if it has that schema."""
        return self._shapes[int(cast("Summaries", self.summaries).schema_numbers[file])]

    @cached_property
    def _shapes(self) -> Sequence[FileShape | None]:
        schemas, optional = cast("Summaries", self.summaries).schemas, self.optional_columns
        return [make_shape(schema, self.list_fields(schema), optional=optional) for schema in schemas]

    @cached_property
    def optional_columns(self) -> frozenset[str]:
        """The columns that at least one file lacks, and that no file can require once all have them."""
        if self.summaries is None:
            return frozenset()
        used = [self.summaries.schemas[number] for number in np.unique(self.summaries.schema_numbers).tolist()]
        shared = frozenset(used[0].names).intersection(*(schema.names for schema in used[1:]))
        return frozenset(name for schema in used for name in schema.names) - shared - self.partition_types.keys()

    def list_fields(self, own: pa.Schema) -> list[pa.Field]:
        """List the fields of a file of schema `own` in the schema of the dataset, its partition columns last."""
        held = [field for field in own if field.name in self.partition_types]
        return [*cast("pa.Schema", self.file_schema), *held]

    @cached_property
    def rows(self) -> int:
        """The number of rows of the dataset."""
        return int(self.group_rows.sum())

    @property
    def size(self) -> TargetSize:
        """The size of the dataset."""
        return TargetSize(files=len(self.files), rows=self.rows, bytes=sum(file.size for file in self.files))

    @cached_property
    def file_rows(self) -> list[int]:
        """The number of rows of each file."""
        starts = np.concatenate([[0], np.cumsum(self.group_rows)])
        return np.diff(starts[self.first_group]).tolist()  # type: ignore[no-any-return]

    @property
    def unlinked(self) -> list[int]:
        """The numbers of files not behind a link: only these are removed when they have no rows left."""
        return [number for number, file in enumerate(self.files) if file.real is None]

    @cached_property
    def required(self) -> frozenset[str]:
        """Columns that at least one file declares as required."""
        if self.summaries is None:
            return frozenset()
        schemas = [self.summaries.schemas[number] for number in np.unique(self.summaries.schema_numbers)]
        return frozenset(field.name for schema in schemas for field in schema if not field.nullable)

    def get_columns(self, file: int) -> frozenset[str]:
        """Return the columns that a file itself holds, in the schema of the dataset."""
        return self._columns[int(cast("Summaries", self.summaries).schema_numbers[file])]

    @cached_property
    def _columns(self) -> Sequence[frozenset[str]]:
        schemas = cast("Summaries", self.summaries).schemas
        return [frozenset(field.name for field in self.list_fields(schema)) for schema in schemas]

    @cached_property
    def partitions(self) -> list[tuple[Hashable | Unknown, ...]]:
        """The partition values of each file, UNKNOWN where its path has none (H6)."""
        # Files of a folder share one mapping, which is parsed once.
        mappings = {id(file.folders): file.folders for file in self.files}
        parsed = {number: self._parse_partition(folders) for number, folders in mappings.items()}
        return [parsed[id(file.folders)] for file in self.files]

    def _parse_partition(self, folders: Mapping[str, str | None]) -> tuple[Hashable | Unknown, ...]:
        return tuple(
            parse(folders[name], data_type) if name in folders else UNKNOWN
            for name, data_type in self.partition_types.items()
        )

    def get_path_value(self, file: int, column: str) -> Hashable | Unknown:
        """Return the value that a file's path has for a column."""
        if column not in self.partition_types:
            return UNKNOWN
        return self.partitions[file][self.partition_columns.index(column)]

    def get_path_values(self, column: str) -> list[Hashable | Unknown]:
        """Return the value of a partition column in each file's path."""
        at = self.partition_columns.index(column)
        return [values[at] for values in self.partitions]

    @cached_property
    def group_counts(self) -> npt.NDArray[np.int64]:
        """The number of row groups of each file."""
        return np.empty(0, np.int64) if self.summaries is None else self.summaries.group_counts

    @cached_property
    def first_group(self) -> npt.NDArray[np.int64]:
        """The position of each file's first row group among all row groups, and at the end their number."""
        return np.concatenate([[0], np.cumsum(self.group_counts)])

    @cached_property
    def group_file(self) -> npt.NDArray[np.int32]:
        """The file of each row group of the dataset."""
        return np.repeat(np.arange(len(self.group_counts), dtype=np.int32), self.group_counts)

    @cached_property
    def group_number(self) -> npt.NDArray[np.int32]:
        """The number of each row group within its file."""
        return (np.arange(len(self.group_file)) - self.first_group[self.group_file]).astype(np.int32)

    def mark_groups(self, groups: Mapping[FileNumber, Sequence[GroupNumber]]) -> npt.NDArray[np.bool_]:
        """Return a mask over all row groups that selects these, given by file."""
        mask = np.zeros(len(self.group_file), np.bool_)
        mask[[self.first_group[file] + group for file, some in groups.items() for group in some]] = True
        return mask

    @cached_property
    def group_rows(self) -> npt.NDArray[np.int64]:
        """The number of rows of each row group of the dataset."""
        return np.empty(0, np.int64) if self.summaries is None else self.summaries.groups.column("rows").to_numpy()

    def is_unbounded(self, key: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the row groups without statistics for a key column."""
        return cast("Summaries", self.summaries).get_bounds(key)[0].is_null().to_numpy()  # type: ignore[no-any-return]

    def flag_nullable(self, key: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return masks of the row groups in which a key column might hold NULL, and in which it holds nothing else."""
        might = cast("Summaries", self.summaries).flag_nullable(key)
        if key not in self.partition_types:
            return might, np.zeros(len(might), np.bool_)
        values = self.get_path_values(key)
        in_path = np.array([value is not UNKNOWN for value in values], np.bool_)[self.group_file]
        is_null = np.array([value is None for value in values], np.bool_)[self.group_file]
        return np.where(in_path, is_null, might), is_null

    def get_bounds(self, keys: Sequence[str]) -> pa.Table:
        """Return a row per row group: `file`, `row_group`, and canonical `min_<i>`, `max_<i>` of each key column."""
        # NULL means unbounded. The value in the path is both minimum and maximum of a partition column.
        columns: dict[str, Any] = {"file": self.group_file, "row_group": self.group_number}
        for number, name in enumerate(keys):
            sides = cast("Summaries", self.summaries).get_bounds(name)
            if name in self.partition_types:
                path_bounds = self._to_path_bounds(name, sides[0].type).take(self.group_file)
                sides = pc.coalesce(path_bounds, sides[0]), pc.coalesce(path_bounds, sides[1])
            columns[f"min_{number}"], columns[f"max_{number}"] = sides
        return pa.table(columns)

    @property
    def bounded_columns(self) -> frozenset[str]:
        """The columns whose bounds are known."""
        return frozenset(() if self.summaries is None else self.summaries.key_types)

    def get_key_type(self, key: str) -> pa.DataType:
        """Return the type of a key column."""
        return cast("Summaries", self.summaries).key_types[key]

    def find_exact_keys(self, keys: Sequence[str]) -> set[str]:
        """Return the key columns whose equal values have equal bits, which is not so for 0.0 and -0.0."""
        types = {**{field.name: field.type for field in self.file_schema or ()}, **self.partition_types}
        return {name for name in keys if name in types and not pa.types.is_floating(types[name])}

    def _to_path_bounds(self, name: str, data_type: pa.DataType) -> pa.Array:
        """Return the canonical value in each file's path for a column; NULL if it is NULL or unknown."""
        known = [None if value is UNKNOWN else value for value in self.get_path_values(name)]
        exact = {value: to_canonical_value(value, self.partition_types[name]) for value in {*known} - {None}}
        return pa.array([exact.get(value) for value in known], data_type)


def to_canonical_value(value: Any, data_type: pa.DataType) -> Any:
    """Convert a partition token of this type to canonical form."""
    return to_canonical(pa.chunked_array([pa.array([from_token(value, data_type)], data_type)]))[0].as_py()
