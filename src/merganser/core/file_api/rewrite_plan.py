"""File-level functions, each of which does one step of a merge by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.threads import map_in_threads
from merganser.core.commit.commit import check_no_pending_commit
from merganser.core.dataset.listing import check_target, list_files
from merganser.core.dataset.nesting import check_above
from merganser.core.dataset.snapshot import load_target
from merganser.core.dataset.target import to_canonical_value
from merganser.core.file_api.source_keys import check_partition_schema, conform_keys, infer_array, read_arrow, read_keys
from merganser.core.merge.planner import plan_scans
from merganser.core.model.engine import UNKNOWN_PARTITION, FileNumber, GroupNumber, ScanFile
from merganser.core.model.keys import (
    SOURCE_ROW,
    normalize_keys,
    number_rows,
    to_canonical,
    to_canonical_keys,
    to_canonical_type,
    to_python_value,
)
from merganser.core.model.partitions import UNKNOWN, from_token, parse, parse_hive_partition_path
from merganser.core.model.schema import to_plain_schema
from merganser.core.parquet.footer import read_footer, read_key_bounds
from merganser.core.rows.bounds import might_match
from merganser.core.rows.key_scan import match_keys
from merganser.core.storage.location import list_paths, locate
from merganser.errors import ColumnTypeError, ColumnValueError, KeyColumnError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.location import Location, Paths
    from merganser.core.storage.store import Store


@dataclass(frozen=True, slots=True)
class ParquetFileMetadata:
    """One data file, as its footer and its path describe it.

    `column_stats` maps each column to its `min`, `max` and `null_count`, None where the footer does not have them.
    `partition_values` are the strings of the path's folders, None if there are none.
    """

    path: str
    row_group_count: int
    total_rows: int
    column_stats: dict[str, dict[str, Any]]
    partition_values: dict[str, Any] | None = None


class ParquetMetadataAnalyzer:
    """Reads the footers of a dataset."""

    def analyze_dataset_files(
        self, dataset_path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
    ) -> list[ParquetFileMetadata]:
        """Describe every data file of a dataset, in name order; a missing folder has none.

        Args:
            dataset_path: The folder of the dataset, or its fsspec URL.
            filesystem: An fsspec or PyArrow filesystem that has the path.
            ignore_table_format: Treat a table of another format as plain Parquet files.

        >>> import tempfile, merganser
        >>> lake = tempfile.mkdtemp()
        >>> _ = merganser.write_dataset(pa.table({"id": [3, 1]}), f"{lake}/t", engine="arrow")
        >>> (file,) = ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")
        >>> file.total_rows, file.column_stats["id"]
        (2, {'min': 1, 'max': 3, 'null_count': 0})
        """
        location = locate(dataset_path, filesystem, ignore_table_format=ignore_table_format)
        check_above(location, refuse_nested=False)
        return map_in_threads(partial(_describe_file, location), [file.rel for file in list_files(location)])


def _describe_file(location: Location, rel: str) -> ParquetFileMetadata:
    footer = read_footer(location.store, location.to_path(rel), location.to_display(rel))
    metadata = footer.metadata
    stats: dict[str, dict[str, Any]] = {}
    nulls = _count_nulls(footer)
    for field in footer.schema:
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            continue
        bounds = read_key_bounds(footer, field.name, field.type)
        known = [bound for bound in bounds if bound is not None]
        is_bounded = bool(bounds) and len(known) == len(bounds)
        stats[field.name] = {
            "min": to_python_value(min(low for low, _ in known), field.type) if is_bounded else None,
            "max": to_python_value(max(high for _, high in known), field.type) if is_bounded else None,
            "null_count": nulls.get(field.name.encode(), 0),
        }
    partition = parse_hive_partition_path(rel) or None
    return ParquetFileMetadata(location.to_url(rel), metadata.num_row_groups, metadata.num_rows, stats, partition)


def _count_nulls(footer: Footer) -> dict[bytes, int | None]:
    """Count the NULLs of each column that is not nested; None where a footer does not count them."""
    counts: dict[bytes, int | None] = {}
    for chunks in footer.load_chunks(range(footer.metadata.num_row_groups)).values():
        for chunk in (chunk for chunk in chunks if len(chunk.path) == 1):
            name, before = chunk.path[0], counts.get(chunk.path[0], 0)
            counts[name] = None if before is None or chunk.null_count is None else before + chunk.null_count
    return counts


class PartitionPruner:
    """Rules files out by the partition values of their paths."""

    def identify_candidate_files(
        self,
        file_metadata: Iterable[ParquetFileMetadata],
        key_columns: Sequence[str] | str,
        source_keys: Any,
        partition_schema: pa.Schema | None = None,
    ) -> list[str]:
        """List the files that might hold a source key, judged by the key columns that are partition columns.

        Args:
            file_metadata: The files, as `ParquetMetadataAnalyzer` describes them.
            key_columns: The key column, or several.
            source_keys: The keys: a list of values (of tuples or dicts for several key columns), an Arrow array, or
                anything that `merge` takes as a source.
            partition_schema: Types of the partition values; default: those of the source keys.

        >>> files = [ParquetFileMetadata(f"t/day={day}/a.parquet", 1, 9, {}, {"day": day}) for day in ("mon", "tue")]
        >>> PartitionPruner().identify_candidate_files(files, "day", ["tue", "wed"])
        ['t/day=tue/a.parquet']
        """
        keys, files = normalize_keys(key_columns), list(file_metadata)
        check_partition_schema(partition_schema)
        types = {} if partition_schema is None else {field.name: field.type for field in partition_schema}
        table = conform_keys(read_keys(source_keys, keys, partition_schema), types)
        columns = {}
        for number, field in enumerate(table.schema):
            texts = [(file.partition_values or {}).get(field.name) for file in files]
            values = {text: _parse_path_bound(text, field.type) for text in {*texts}}
            bound = pa.array([values[text] for text in texts], to_canonical_type(field.type))
            columns[f"min_{number}"] = columns[f"max_{number}"] = bound
        might = might_match(pa.table(columns), to_canonical_keys(table, keys))
        return [file.path for file, is_candidate in zip(files, might.tolist(), strict=True) if is_candidate]


def _parse_path_bound(text: str | None, data_type: pa.DataType) -> Any:
    value = UNKNOWN if text is None else parse(text, data_type)
    return None if value is UNKNOWN else to_canonical_value(value, data_type)


class ConservativeMembershipChecker:
    """Rules out files whose statistics prove that they hold no source key."""

    def __init__(self) -> None:
        self._read: tuple[Any, Any] = (None, None)

    def file_might_contain_keys(
        self, file_metadata: ParquetFileMetadata, key_columns: Sequence[str] | str, source_keys: Any
    ) -> bool:
        """Check whether a file might hold a source key; False only if its statistics rule that out.

        Args:
            file_metadata: The file, as `ParquetMetadataAnalyzer` describes it.
            key_columns: The key column, or several.
            source_keys: The keys, as `PartitionPruner` takes them. A generator or an Arrow stream is read once and
                kept, so that the same one can be given for every file.

        >>> file = ParquetFileMetadata("t/a.parquet", 1, 9, {"id": {"min": 10, "max": 20, "null_count": 0}})
        >>> check = ConservativeMembershipChecker().file_might_contain_keys
        >>> check(file, "id", [5, 25]), check(file, "id", [15])
        (False, True)
        """
        keys = normalize_keys(key_columns)
        given = read_keys(self._make_rereadable(source_keys), keys)
        # The pruner checks partition values; they override the file's own column of that name.
        partition = file_metadata.partition_values or {}
        stats = {name: {} if name in partition else file_metadata.column_stats.get(name, {}) for name in keys}
        bounds = {name: _read_bounds(stats[name]) for name in keys}
        columns = {}
        try:
            table = conform_keys(given, {name: pair.type for name, pair in bounds.items() if pair is not None})
        except (ColumnTypeError, ColumnValueError):
            # Bounds of another type prove nothing.
            return bool(given.num_rows)
        for number, (name, pair) in enumerate(bounds.items()):
            data_type = to_canonical_type(table.schema.field(name).type)
            sides = pa.nulls(2, data_type) if pair is None else to_canonical(pa.chunked_array([pair]))
            columns[f"min_{number}"], columns[f"max_{number}"] = sides[:1], sides[1:]
        return bool(might_match(pa.table(columns), to_canonical_keys(table, keys))[0])

    def _make_rereadable(self, source_keys: Any) -> Any:
        is_stream = hasattr(source_keys, "__arrow_c_stream__")
        if not (is_stream or isinstance(source_keys, Iterator)):
            return source_keys
        if self._read[0] is not source_keys:
            self._read = source_keys, read_arrow(source_keys) if is_stream else list(source_keys)
        return self._read[1]


def _read_bounds(stats: Mapping[str, Any]) -> pa.Array | None:
    """Return the minimum and maximum of a column as an array, if they have a common type."""
    try:
        pair = infer_array([stats.get("min"), stats.get("max")])
    except (pa.ArrowException, OverflowError):
        return None
    return None if pa.types.is_null(pair.type) or pa.types.is_nested(pair.type) else pair


def confirm_affected_files(
    candidate_files: Paths, key_columns: Sequence[str] | str, source_keys: Any, filesystem: Any = None
) -> list[str]:
    """Read only the key columns of files, to find those that hold a source key.

    Every `name=value` folder of a path counts as a partition value, even one above the dataset;
    `plan_incremental_rewrite` knows the folder of the dataset.

    Args:
        candidate_files: Paths of Parquet files.
        key_columns: The key column, or several.
        source_keys: The keys, as `PartitionPruner` takes them.
        filesystem: An fsspec or PyArrow filesystem that has the paths.

    >>> import tempfile, merganser
    >>> lake = tempfile.mkdtemp()
    >>> _ = merganser.write_dataset(pa.table({"id": [1, 3]}), f"{lake}/t", engine="arrow")
    >>> from merganser.core import list_dataset_files
    >>> files = list_dataset_files(f"{lake}/t")
    >>> confirm_affected_files(files, "id", [2]), confirm_affected_files(files, "id", [3]) == files
    ([], True)
    """
    keys = normalize_keys(key_columns)
    paths = list_paths(candidate_files, "candidate_files")
    given = read_keys(source_keys, keys)
    if not given.num_rows:
        return []
    own = to_plain_schema(given.schema)
    found = map_in_threads(partial(_open_candidate, keys=keys, own=own, filesystem=filesystem), paths)
    folders = {name for path in paths for name in parse_hive_partition_path(path, keys)}
    for name in keys:
        if found and name not in folders and not any(name in file.types for file in found):
            raise KeyColumnError(
                f"Key column {name!r} is missing from every candidate file and from the folders of their paths. Name a "
                "column that they have."
            )
    groups: dict[Any, list[int]] = {}
    for number, file in enumerate(found):
        # Usually there is one group: keys are cast once, and one scan reads all files.
        groups.setdefault((getattr(file.store, "filesystem", None), *file.types.items()), []).append(number)
    hit: set[int] = set()
    for numbers in groups.values():
        table = conform_keys(given, found[numbers[0]].types)
        hit |= _find_matched_files(found[numbers[0]].store, [found[at].make_scan(at, table) for at in numbers], table)
    return [path for number, path in enumerate(paths) if number in hit]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file to confirm: the types of the key columns in it, and the partition values of its path."""

    store: Store
    path: str
    group_count: int
    types: Mapping[str, pa.DataType]
    values: Mapping[str, Any]

    def make_scan(self, number: int, table: pa.Table) -> ScanFile:
        """Make a scan of all row groups; a missing key column is NULL."""
        constants = {
            field.name: pa.repeat(from_token(self.values.get(field.name), field.type), 1)
            for field in table.schema
            if field.name not in self.types
        }
        return ScanFile(
            number=FileNumber(number),
            path=self.path,
            groups=[*map(GroupNumber, range(self.group_count))],
            constants=constants,
            partition=UNKNOWN_PARTITION,
        )


def _open_candidate(path: str, keys: Sequence[str], own: pa.Schema, filesystem: Any) -> _Candidate:
    location = locate(path, filesystem)
    footer = read_footer(location.store, location.root, path)
    schema, folders = footer.schema, parse_hive_partition_path(path, keys)
    values = {name: parse(text, own.field(name).type) for name, text in folders.items()}
    # A value of the path overrides the file's own (H1).
    values = {name: value for name, value in values.items() if value is not UNKNOWN}
    types = {name: schema.field(name).type for name in keys if name in schema.names and name not in values}
    return _Candidate(location.store, location.root, footer.metadata.num_row_groups, types, values)


def _find_matched_files(store: Store, scans: Sequence[ScanFile], table: pa.Table) -> set[int]:
    keys = table.column_names
    source = to_canonical_keys(table, keys).append_column(SOURCE_ROW, number_rows(table.num_rows))
    return {*np.unique(match_keys(store, scans, keys, source).column("file").to_numpy()).tolist()}


@dataclass(frozen=True, slots=True)
class IncrementalRewritePlan:
    """The files that a merge would rewrite and their number of rows; `new_files` is always empty."""

    affected_files: list[str]
    unaffected_files: list[str]
    new_files: list[str]
    affected_rows: int


def plan_incremental_rewrite(
    dataset_path: str | os.PathLike[str],
    source_keys: Any,
    key_columns: Sequence[str] | str,
    filesystem: Any = None,
    partition_schema: pa.Schema | None = None,
    *,
    ignore_table_format: bool = False,
) -> IncrementalRewritePlan:
    """Find the files that hold a source key, by partition and statistics and then by one scan of the keys.

    Args:
        dataset_path: The folder of the dataset, or its fsspec URL.
        source_keys: The keys, as `PartitionPruner` takes them.
        key_columns: The key column, or several.
        filesystem: An fsspec or PyArrow filesystem that has the path.
        partition_schema: Types of the partition columns of a dataset that has no partition record; default: those of
            the source keys.
        ignore_table_format: Treat a table of another format as plain Parquet files.

    >>> import tempfile, merganser
    >>> lake = tempfile.mkdtemp()
    >>> for ids in ([1, 3], [2, 4, 6]):
    ...     _ = merganser.write_dataset(pa.table({"id": ids}), f"{lake}/t", engine="arrow")
    >>> plan = plan_incremental_rewrite(f"{lake}/t", (key for key in (6, 99)), "id")
    >>> len(plan.affected_files), len(plan.unaffected_files), plan.affected_rows
    (1, 1, 3)
    """
    keys = normalize_keys(key_columns)
    check_partition_schema(partition_schema)
    given = read_keys(source_keys, keys, partition_schema)
    location = locate(dataset_path, filesystem, ignore_table_format=ignore_table_format)
    check_target(location)
    check_no_pending_commit(location)
    types = {field.name: field.type for schema in (given.schema, partition_schema or ()) for field in schema}
    known = {name: data_type for name, data_type in types.items() if not pa.types.is_null(data_type)}
    # Without the lock, files may be replaced after their footers were read.
    target = replace(load_target(location, keys, None, known), footers={})
    table = conform_keys(given, {name: target.get_key_type(name) for name in keys} if target.files else {})
    hit: set[int] = set()
    if target.files:
        candidate = might_match(target.get_bounds(keys), to_canonical_keys(table, keys))
        scans = plan_scans(target, keys, [UNKNOWN_PARTITION] * len(target.files), candidate)
        hit = _find_matched_files(location.store, scans, table)
    paths = [location.to_url(file.rel) for file in target.files]
    return IncrementalRewritePlan(
        [path for number, path in enumerate(paths) if number in hit],
        [path for number, path in enumerate(paths) if number not in hit],
        [],
        sum(target.file_rows[number] for number in hit),
    )
