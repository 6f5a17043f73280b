"""A dataset as it stands: its data files, their partitions, their row groups, and the one schema they share."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.threads import map_in_threads
from merganser.core.dataset.file_statistics import DataFile, ReferenceFile, drop_columns
from merganser.core.dataset.nesting import check_above, check_below, is_mark
from merganser.core.dataset.statistics_cache import summarise_files
from merganser.core.dataset.table_formats import check_tables, is_ducklake
from merganser.core.model.keys import check_key_type, to_canonical
from merganser.core.model.partitions import (
    UNKNOWN,
    Unknown,
    check_partition_type,
    from_token,
    parse,
    parse_hive_partition_path,
)
from merganser.core.model.schema import check_unique, to_value_type
from merganser.core.parquet.encode import derive_new_file_options, find_bloom_filter_columns
from merganser.core.parquet.footer import MAGIC, find_unwritable_column, read_footer
from merganser.core.storage.local import DANGLING
from merganser.core.storage.location import locate
from merganser.core.storage.staging import PARTITION_RECORD, choose_control_folder, find_owner
from merganser.errors import (
    ConcurrentWriteError,
    InvalidArgumentError,
    KeyColumnError,
    TargetPathError,
    UnreadableFileError,
    UnsupportedFileError,
)
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.file_statistics import FileSummary, Footers, Summaries
    from merganser.core.dataset.statistics_cache import CacheUpdate
    from merganser.core.storage.location import Location

SUFFIX = ".parquet"


def list_dataset_files(
    dataset_path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
) -> list[str]:
    """List the data files of a dataset in name order; an absent folder has none.

    Args:
        dataset_path: The folder of the dataset, or its fsspec URL.
        filesystem: An fsspec or PyArrow filesystem that has the path.
        ignore_table_format: Take a table of another format for plain Parquet files.

    >>> list_dataset_files("no/such/dataset")
    []
    """
    location = locate(dataset_path, filesystem, ignore_table_format=ignore_table_format)
    check_above(location, refuse_nested=False)
    return [location.to_url(file.rel) for file in list_files(location)]


def list_files(location: Location, *, refuse_nested: bool = False) -> list[DataFile]:
    """List the data files below a root (P7); a listing that fails is an error, never an empty dataset (P6).

    With `alone`, for whoever is going to write, a root with another dataset below it is refused (M10).
    """
    files, others = _find_files(location, refuse_nested=refuse_nested)
    for rel in others:
        _check_suffix(location, rel)
    return sorted(files, key=attrgetter("rel"))


def _find_files(location: Location, *, refuse_nested: bool) -> tuple[list[DataFile], list[str]]:
    """Find data files and other visible files, in no order, unless tables or datasets are below the root."""
    if not _exists(location):
        return [], []
    files, others, marks = _walk(location)
    check_tables(location, marks)
    if refuse_nested:
        check_below(location, marks, (file.real for file in files if file.real is not None))
    return files, others


def _walk(location: Location) -> tuple[list[DataFile], list[str], list[str]]:
    """Give the data files, other visible files, and whatever tells of other datasets or of another table format."""
    files: list[DataFile] = []
    others: list[str] = []
    marks: list[str] = []
    read = cache(parse_hive_partition_path)

    def enter(folder: str) -> bool:
        name = folder.rpartition("/")[2]
        if is_mark(name):
            marks.append(folder)
        return _is_visible(name)

    for info in location.store.walk(location.root, enter):
        folder, slash, name = info.rel.rpartition("/")
        if not _is_visible(name):
            continue
        if name.endswith(SUFFIX):
            folders = read(folder + slash)
            files.append(DataFile(info.rel, info.size, info.identity, folders, info.version, info.changed, info.real))
            if is_ducklake(name):
                marks.append(info.rel)
        elif info.identity != DANGLING:
            others.append(info.rel)
    return files, others, marks


def check_target(location: Location, *, lists_later: bool = False) -> None:
    """Refuse to write where another dataset is below or above, before anything is made or read there (M10).

    `listed_at` says that the data files are going to be listed, and then what is below is found without a second
    listing. Before a first write they are listed here all the same, so that a refusal leaves no control folder behind.
    """
    check_above(location, refuse_nested=True)
    if not lists_later or not _has_control(location):
        list_files(location, refuse_nested=True)


def _has_control(location: Location) -> bool:
    """Say whether there is a control folder that is this dataset's, and not that of one below."""
    store, control = location.store, choose_control_folder(location)
    if store.get_path_type(control) is None:
        return False
    return not control.startswith(f"{location.root}/") or find_owner(store, control) == location.root


def check_not_nested(location: Location) -> None:
    """Refuse a root with another dataset below or above it, as `check_target` does, whatever other files are there."""
    check_above(location, refuse_nested=True)
    _find_files(location, refuse_nested=True)


def check_no_table_format(location: Location) -> None:
    """Refuse a folder that is, contains or is part of a table of another format."""
    check_above(location, refuse_nested=False)
    _find_files(location, refuse_nested=False)


def has_files(location: Location) -> bool:
    """Say whether there is any data file below a root, looking no further than the first."""
    if not _exists(location):
        return False
    found = (info.rel for info in location.store.walk(location.root, lambda rel: _is_visible(rel.rpartition("/")[2])))
    return any(rel.endswith(SUFFIX) and _is_visible(rel.rpartition("/")[2]) for rel in found)


def _exists(location: Location) -> bool:
    kind = location.store.get_path_type(location.root)
    if kind == "file":
        message = f"{location.display} is a file; a dataset is a folder. Give the folder that holds the Parquet files."
        raise TargetPathError(message)
    return kind is not None


def is_data_file(rel: str) -> bool:
    """Check whether a relative path is that of a data file: not hidden, nor in a hidden folder (P7)."""
    return rel.endswith(SUFFIX) and all(map(_is_visible, rel.split("/")))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _check_suffix(location: Location, rel: str) -> None:
    try:
        with location.store.open_reader(location.to_path(rel)) as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        message = f"Cannot read {location.to_display(rel)}: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    if start == MAGIC:
        message = (
            f"{location.to_display(rel)} holds Parquet data but does not end in {SUFFIX}: some readers would see its "
            "rows "
            "and others not. Rename it to end in .parquet, or move it out of the dataset."
        )
        raise UnsupportedFileError(message)


def find_partition_columns(files: Iterable[DataFile]) -> list[str]:
    """Read the partition columns off the paths, in path order."""
    names: dict[str, None] = {}
    for file in files:
        names.update(dict.fromkeys(file.folders))
    return list(names)


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
        fields = [pa.field(name, kind) for name, kind in self.partition_types.items()]
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
            parse(folders[name], kind) if name in folders else UNKNOWN for name, kind in self.partition_types.items()
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

    def _to_path_bounds(self, name: str, kind: pa.DataType) -> pa.Array:
        """Give the canonical value that each file's path tells of a column, NULL where it does not or tells NULL."""
        known = [None if value is UNKNOWN else value for value in self.get_path_values(name)]
        exact = {value: to_canonical_value(value, self.partition_types[name]) for value in {*known} - {None}}
        return pa.array([exact.get(value) for value in known], kind)


def load_target(
    location: Location,
    keys: Sequence[str],
    partition_columns: Sequence[str] | None,
    source_types: Mapping[str, pa.DataType],
    run_tasks: Callable[[Callable[[DataFile], FileSummary], Sequence[DataFile]], list[FileSummary]] = map_in_threads,
    *,
    refuse_nested: bool = False,
) -> Target:
    """Take a snapshot for a merge on these keys (none for a plain write); `each` is `Engine.each`.

    With `alone`, other datasets below are refused; `check_target` has looked above by then.

    Partition types come from the dataset's record, else from the source's columns, else they are strings (H2).
    """
    if not refuse_nested:
        check_above(location, refuse_nested=False)
    listed = time.time_ns()
    files = list_files(location, refuse_nested=refuse_nested)
    found = find_partition_columns(files)
    if files and partition_columns is not None and list(partition_columns) != found:
        message = (
            f"partition_columns {list(partition_columns)} differ from those of {location.display}, {found}. Leave "
            "partition_columns out, or rewrite the dataset with write_dataset(mode='overwrite')."
        )
        raise InvalidArgumentError(message)
    names = found if files else list(partition_columns or [])
    # A record outlives its files only when someone removed them by hand: then the source begins anew.
    record = read_record(location) if files else {}
    types = {name: to_value_type(record.get(name) or source_types.get(name) or pa.string()) for name in names}
    for name, kind in types.items():
        check_partition_type(kind, name)
    if not files:
        return Target(location, (), None, types, None, None)
    first = read_footer(location.store, location.to_path(files[0].rel), location.to_display(files[0].rel))
    first_schema = first.schema
    check_unique(first_schema, "target")
    file_schema = drop_columns(first_schema, names)
    model = ReferenceFile(location, files[0], first, first_schema, types, _find_key_types(keys, file_schema, types))
    summaries, footers, news = summarise_files(model, files, listed, run_tasks)
    told_too = set(names) & set(first_schema.names)
    key_values = None if told_too else dict(first.metadata.metadata or {})
    filtered = find_bloom_filter_columns(first) & {*file_schema.names}
    template = Template(
        key_values,
        derive_new_file_options(first),
        find_unwritable_column(first.metadata),
        filtered,
        bool(first.int96_columns),
    )
    return Target(location, tuple(files), summaries, types, file_schema, template, listed, footers, news)


def load_existing(location: Location, keys: Sequence[str] = (), *, refuse_nested: bool = False) -> Target:
    """Take a snapshot of a dataset that has to be there; footers are not kept, for not all callers have the lock."""
    target = load_target(location, keys, None, {}, refuse_nested=refuse_nested)
    if target.schema is None:
        raise make_no_files_error(location)
    _check_links(location, target.files)
    return replace(target, footers={})


def _check_links(location: Location, files: Sequence[DataFile]) -> None:
    """Refuse a file that a link shows a second time: its rows would be taken for others that are the same."""
    if all(file.real is None for file in files):
        return
    first: dict[str, str] = {}
    for file in files:
        other = first.setdefault(file.real or location.to_path(file.rel), file.rel)
        if other != file.rel:
            message = (
                f"{location.to_display(other)} and {location.to_display(file.rel)} are one file, which a link shows "
                "twice. "
                "Remove the link, or move it out of the dataset."
            )
            raise UnsupportedFileError(message)


def make_no_files_error(location: Location) -> TargetPathError:
    """Say that there is no dataset."""
    return TargetPathError(f"There are no Parquet files below {location.display}. Check the path.")


def _find_key_types(
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


def check_listing(target: Target) -> None:
    """Refuse to publish over a dataset that something else changed since it was listed (C6).

    A dataset above may have come meanwhile; on an object store, where looking costs requests, only a first write looks.
    """
    if target.location.store.is_local or not target.files:
        check_above(target.location, refuse_nested=True)
    before = {file.rel: file.identity for file in target.files}
    now = {file.rel: file.identity for file in list_files(target.location, refuse_nested=True)}
    changed = sorted(rel for rel in before.keys() | now.keys() if before.get(rel) != now.get(rel))
    if changed:
        message = (
            f"{target.location.to_display(changed[0])} was changed by another program while the merge was being "
            "prepared. "
            "Nothing was published; run the merge again."
        )
        raise ConcurrentWriteError(message)


def read_record(location: Location) -> dict[str, pa.DataType]:
    """Read the recorded types of partition columns; without a record there are none."""
    path = f"{choose_control_folder(location)}/{PARTITION_RECORD}"
    data = location.store.read_small(path)
    if data is None:
        return {}
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(load_json(data)["schema"])))
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


def to_canonical_value(value: Any, kind: pa.DataType) -> Any:
    """Give the canonical form of a partition token of this type."""
    return to_canonical(pa.chunked_array([pa.array([from_token(value, kind)], kind)]))[0].as_py()
