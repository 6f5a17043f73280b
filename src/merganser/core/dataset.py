"""A dataset as it stands: its data files, their partitions, their row groups, and the one schema they share."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from merganser.core.encode import schema_options
from merganser.core.errors import (
    InvalidArgumentError,
    KeyColumnError,
    SchemaMismatchError,
    TargetPathError,
    UnreadableFileError,
    UnsupportedFileError,
)
from merganser.core.footer import MAGIC, Bound, key_bounds, read_footer, unwritable
from merganser.core.hive import UNKNOWN, Unknown, check_partition_type, parse, parse_hive_partition_path, untoken
from merganser.core.keys import canonical, canonical_type, check_key_type
from merganser.core.local import DANGLING
from merganser.core.schema import check_same_schema, check_unique, declared, same_meaning
from merganser.core.staging import RECORD, control_folder
from merganser.core.store import locate
from merganser.core.threads import in_threads

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow.parquet as pq

    from merganser.core.footer import Footer
    from merganser.core.store import Location

SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file: where it is, what it was when listed, and the partition text of its folders."""

    rel: str
    size: int
    identity: str
    folders: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What planning needs of one footer: rows and key bounds of each row group, and columns of its own."""

    group_rows: tuple[int, ...]
    bounds: Mapping[str, list[Bound]]
    columns: frozenset[str]
    required: frozenset[str]

    @property
    def rows(self) -> int:
        """All rows of the file."""
        return sum(self.group_rows)


def list_dataset_files(dataset_path: str | os.PathLike[str], filesystem: Any = None) -> list[str]:
    """List the data files of a dataset in name order; an absent folder has none.

    >>> list_dataset_files("no/such/dataset")
    []
    """
    location = locate(dataset_path, filesystem)
    return [location.shown(file.rel) for file in list_files(location)]


def list_files(location: Location) -> list[DataFile]:
    """List the data files below a root (P7); a listing that fails is an error, never an empty dataset (P6)."""
    store = location.store
    kind = store.kind(location.root)
    if kind is None:
        return []
    if kind != "directory":
        message = f"{location.display} is a file; a dataset is a folder. Give the folder that holds the Parquet files."
        raise TargetPathError(message)
    files = []
    for info in store.walk(location.root, enter=_visible):
        if not _visible(info.rel.rpartition("/")[2]):
            continue
        if info.rel.endswith(SUFFIX):
            files.append(DataFile(info.rel, info.size, info.identity, parse_hive_partition_path(info.rel)))
        elif info.identity != DANGLING:
            _refuse_disguised(location, info.rel)
    return sorted(files, key=lambda file: file.rel)


def has_files(location: Location) -> bool:
    """Say whether there is any data file below a root, looking no further than the first."""
    if location.store.kind(location.root) is None:
        return False
    found = (info.rel for info in location.store.walk(location.root, enter=_visible))
    return any(rel.endswith(SUFFIX) and _visible(rel.rpartition("/")[2]) for rel in found)


def _visible(name: str) -> bool:
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _refuse_disguised(location: Location, rel: str) -> None:
    try:
        with location.store.open_reader(location.path(rel)) as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        message = f"Cannot read {location.shown(rel)}: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    if start == MAGIC:
        message = (
            f"{location.shown(rel)} holds Parquet data but does not end in {SUFFIX}: some readers would see its rows "
            "and others not. Rename it to end in .parquet, or move it out of the dataset."
        )
        raise UnsupportedFileError(message)


def partition_columns_of(files: Iterable[DataFile]) -> list[str]:
    """Read the partition columns off the paths, in path order."""
    names: dict[str, None] = {}
    for file in files:
        names.update(dict.fromkeys(file.folders))
    return list(names)


@dataclass(frozen=True, slots=True)
class Template:
    """What new files take from an old one: key-value metadata, unless it tells of other columns, and writer options."""

    key_values: Mapping[bytes, bytes] | None
    writer_options: Mapping[str, Any]
    unwritable: str | None


@dataclass(frozen=True)
class Target:
    """A snapshot of a dataset, made from one listing and one read of each footer."""

    location: Location
    files: tuple[DataFile, ...]
    summaries: tuple[FileSummary, ...]
    partition_types: Mapping[str, pa.DataType]
    file_schema: pa.Schema | None
    template: Template | None

    @property
    def partition_columns(self) -> list[str]:
        """The columns whose values live in the paths."""
        return list(self.partition_types)

    @cached_property
    def schema(self) -> pa.Schema | None:
        """Every column of the dataset, those of the files first; None while there are no files."""
        if self.file_schema is None:
            return None
        fields = [pa.field(name, kind) for name, kind in self.partition_types.items()]
        return pa.schema([*self.file_schema, *fields], self.file_schema.metadata)

    @cached_property
    def rows(self) -> int:
        """All rows of the dataset."""
        return sum(summary.rows for summary in self.summaries)

    @cached_property
    def required(self) -> frozenset[str]:
        """Columns that at least one file declares never NULL."""
        return frozenset().union(*(summary.required for summary in self.summaries))

    def partition(self, file: int) -> tuple[Hashable | Unknown, ...]:
        """The partition values of a file, UNKNOWN where its path does not tell (H6)."""
        folders = self.files[file].folders
        return tuple(
            parse(folders[name], kind) if name in folders else UNKNOWN for name, kind in self.partition_types.items()
        )

    @cached_property
    def partitions(self) -> list[tuple[Hashable | Unknown, ...]]:
        """The partition values of every file."""
        return [self.partition(file) for file in range(len(self.files))]

    def path_value(self, file: int, column: str) -> Hashable | Unknown:
        """The value that a file's path gives a column."""
        if column not in self.partition_types:
            return UNKNOWN
        return self.partitions[file][self.partition_columns.index(column)]

    @cached_property
    def group_file(self) -> npt.NDArray[np.int32]:
        """The file of every row group of the dataset."""
        counts = [len(summary.group_rows) for summary in self.summaries]
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    @cached_property
    def group_number(self) -> npt.NDArray[np.int32]:
        """The number, in its file, of every row group of the dataset."""
        numbers = [np.arange(len(summary.group_rows), dtype=np.int32) for summary in self.summaries]
        return np.concatenate([np.empty(0, np.int32), *numbers])

    @cached_property
    def group_rows(self) -> npt.NDArray[np.int64]:
        """The rows of every row group of the dataset."""
        rows = [np.array(summary.group_rows, np.int64) for summary in self.summaries]
        return np.concatenate([np.empty(0, np.int64), *rows])

    def bounds(self, keys: Sequence[str]) -> pa.Table:
        """Give a row for each row group: `file`, `row_group`, and canonical `min_<i>`, `max_<i>` of each key column.

        NULL means unbounded. The path's value bounds a partition column on both sides.
        """
        columns: dict[str, Any] = {"file": self.group_file, "row_group": self.group_number}
        for number, name in enumerate(keys):
            kind = canonical_type(self._type(name))
            found: list[Bound] = []
            for file, summary in enumerate(self.summaries):
                value = self.path_value(file, name)
                if value is UNKNOWN or value is None:
                    found += summary.bounds[name]
                else:
                    exact = canonical_value(value, self.partition_types[name])
                    found += [(exact, exact)] * len(summary.group_rows)
            columns[f"min_{number}"] = pa.array([bound and bound[0] for bound in found], kind)
            columns[f"max_{number}"] = pa.array([bound and bound[1] for bound in found], kind)
        return pa.table(columns)

    def exact(self, keys: Sequence[str]) -> set[str]:
        """Name the key columns whose values are the same to the bit if they are equal: 0.0 and -0.0 are not."""
        return {name for name in keys if self.files and not pa.types.is_floating(self._type(name))}

    def _type(self, name: str) -> pa.DataType:
        return self.partition_types.get(name) or cast("pa.Schema", self.file_schema).field(name).type


def load_target(
    location: Location,
    keys: Sequence[str],
    partition_columns: Sequence[str] | None,
    source_types: Mapping[str, pa.DataType],
    each: Callable[[Callable[[DataFile], FileSummary], Sequence[DataFile]], list[FileSummary]] = in_threads,
) -> Target:
    """Take a snapshot for a merge on these keys (none for a plain write); `each` is `Engine.each`.

    Partition types come from the dataset's record, else from the source's columns, else they are strings (H2).
    """
    files = list_files(location)
    found = partition_columns_of(files)
    if files and partition_columns is not None and list(partition_columns) != found:
        message = (
            f"partition_columns {list(partition_columns)} differ from those of {location.display}, {found}. Leave "
            "partition_columns out, or rewrite the dataset with write_dataset(mode='overwrite')."
        )
        raise InvalidArgumentError(message)
    names = found if files else list(partition_columns or [])
    # A record outlives its files only when someone removed them by hand: then the source begins anew.
    record = read_record(location) if files else {}
    types = {name: declared(record.get(name) or source_types.get(name) or pa.string()) for name in names}
    for name, kind in types.items():
        check_partition_type(kind, name)
    if not files:
        return Target(location, (), (), types, None, None)
    first = read_footer(location.store, location.path(files[0].rel), location.shown(files[0].rel))
    first_schema = first.schema
    check_unique(first_schema, "target")
    file_schema = _without(first_schema, names)
    key_types = _key_types(keys, file_schema, types)
    summarise = partial(_summarise, location, key_types, types, files[0], first, first_schema)
    summaries = tuple(each(summarise, files))
    told_too = set(names) & set(first_schema.names)
    key_values = None if told_too else dict(first.metadata.metadata or {})
    template = Template(key_values, schema_options(first.metadata), unwritable(first.metadata))
    return Target(location, tuple(files), summaries, types, file_schema, template)


def _key_types(
    keys: Sequence[str], file_schema: pa.Schema, partition_types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    kinds = {}
    for name in keys:
        if name in partition_types:
            kinds[name] = partition_types[name]
        elif name in file_schema.names:
            kinds[name] = file_schema.field(name).type
        else:
            message = (
                f"Key column {name!r} is missing from the target. Its columns are: {', '.join(file_schema.names)}."
            )
            raise KeyColumnError(message)
        check_key_type(kinds[name], name)
    return kinds


def _summarise(
    location: Location,
    key_types: Mapping[str, pa.DataType],
    types: Mapping[str, pa.DataType],
    first_file: DataFile,
    first: Footer,
    first_schema: pa.Schema,
    file: DataFile,
) -> FileSummary:
    is_first = file.rel == first_file.rel
    footer = first if is_first else read_footer(location.store, location.path(file.rel), location.shown(file.rel))
    schema = first_schema
    if not (is_first or footer.metadata.schema.equals(first.metadata.schema)):
        schema = footer.schema
        here, there = _without(first_schema, types), _without(schema, types)
        check_same_schema(here, there, location.shown(first_file.rel), location.shown(file.rel))
    for name in types:
        if name not in file.folders and name in schema.names and not same_meaning(schema.field(name).type, types[name]):
            message = (
                f"{location.shown(file.rel)} stands outside the {name}=… folders and holds {name!r} as "
                f"{schema.field(name).type}, where the dataset has {types[name]}. Move the file out."
            )
            raise SchemaMismatchError(message)
    metadata: pq.FileMetaData = footer.metadata
    return FileSummary(
        tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
        {name: key_bounds(footer, name, kind) for name, kind in key_types.items()},
        frozenset(schema.names),
        frozenset(field.name for field in schema if not field.nullable),
    )


def _without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    gone = set(names)
    return pa.schema([field for field in schema if field.name not in gone], schema.metadata)


def read_record(location: Location) -> dict[str, pa.DataType]:
    """Read the recorded types of partition columns; without a record there are none."""
    path = f"{control_folder(location)}/{RECORD}"
    data = location.store.read_small(path)
    if data is None:
        return {}
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(json.loads(data)["schema"])))
    except (ValueError, KeyError, TypeError, OSError) as error:
        message = (
            f"{path} is damaged: {error}. Remove it; the types of the partition columns then come from the source."
        )
        raise UnreadableFileError(message) from error
    return {field.name: field.type for field in schema}


def make_record(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Describe partition types for people and, exactly, for `read_record`."""
    schema = pa.schema(list(types.items()))
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {"columns": {name: str(kind) for name, kind in types.items()}, "schema": encoded}


def canonical_value(value: Any, kind: pa.DataType) -> Any:
    """Give the canonical form of a partition token of this type."""
    return canonical(pa.chunked_array([pa.array([untoken(value, kind)], kind)]))[0].as_py()
