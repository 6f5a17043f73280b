"""File-grained doors over the row-group machinery: each does one step of a merge by itself."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.commit import Journal, Move, writing
from merganser.core.dataset import canonical_value, list_files
from merganser.core.engine import UNTOLD, ScanFile
from merganser.core.errors import DatasetMergeError, InvalidArgumentError, UnreadableFileError
from merganser.core.footer import key_bounds, read_footer
from merganser.core.hive import UNKNOWN, parse, parse_hive_partition_path, untoken
from merganser.core.keys import (
    SOURCE_ROW,
    canonical,
    canonical_keys,
    canonical_type,
    keys_table,
    natural,
    natural_array,
    normalize_keys,
    row_numbers,
)
from merganser.core.prune import might_match
from merganser.core.scan import match_keys
from merganser.core.staging import open_staging
from merganser.core.store import locate

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pyarrow.parquet as pq

    from merganser.core.commit import Session
    from merganser.core.staging import Staging
    from merganser.core.store import Location


@dataclass(frozen=True, slots=True)
class ParquetFileMetadata:
    """One data file: its rows, the proven bounds of its columns (None where unproven), its partition values as text."""

    path: str
    row_group_count: int
    total_rows: int
    column_stats: dict[str, dict[str, Any]]
    partition_values: dict[str, Any] | None = None


class ParquetMetadataAnalyzer:
    """Reads what the footers of a dataset prove."""

    def analyze_dataset_files(
        self,
        dataset_path: str | os.PathLike[str],
        filesystem: Any = None,
    ) -> list[ParquetFileMetadata]:
        """Describe every data file of a dataset; a column without proven bounds has min and max None."""
        location = locate(dataset_path, filesystem)
        return [_describe(location, file.rel) for file in list_files(location)]


def _describe(location: Location, rel: str) -> ParquetFileMetadata:
    footer = read_footer(location.store, location.path(rel), location.shown(rel))
    metadata = footer.metadata
    stats: dict[str, dict[str, Any]] = {}
    for field in footer.schema:
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            continue
        bounds = key_bounds(footer, field.name, field.type)
        known = [bound for bound in bounds if bound is not None]
        whole = bool(bounds) and len(known) == len(bounds)
        stats[field.name] = {
            "min": natural(min(low for low, _ in known), field.type) if whole else None,
            "max": natural(max(high for _, high in known), field.type) if whole else None,
            "null_count": _null_count(metadata, field.name),
        }
    partition = parse_hive_partition_path(rel) or None
    return ParquetFileMetadata(location.shown(rel), metadata.num_row_groups, metadata.num_rows, stats, partition)


def _null_count(metadata: pq.FileMetaData, name: str) -> int | None:
    total = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        chunks = (row_group.column(leaf) for leaf in range(row_group.num_columns))
        statistics = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == name), None)
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total


class PartitionPruner:
    """Rules files out by the partition values of their paths."""

    def identify_candidate_files(
        self,
        file_metadata: Sequence[ParquetFileMetadata],
        key_columns: Sequence[str] | str,
        source_keys: Any,
        partition_schema: pa.Schema | None = None,
    ) -> list[str]:
        """Give the files that might hold a source key, by those key columns that the paths tell.

        Without a partition schema the types of the source keys decide how path text is read.
        """
        keys = normalize_keys(key_columns)
        wanted = [
            None if partition_schema is None or n not in partition_schema.names else partition_schema.field(n).type
            for n in keys
        ]
        table = keys_table(source_keys, keys, wanted)
        kept = []
        for file in file_metadata:
            values = file.partition_values or {}
            told = {name: _path_bound(values, name, table.schema.field(name).type) for name in keys}
            if _might_hold({name: (value, value) for name, value in told.items()}, table, keys):
                kept.append(file.path)
        return kept


def _path_bound(values: dict[str, Any], name: str, kind: pa.DataType) -> Any:
    value = parse(values[name], kind) if values.get(name) is not None else UNKNOWN
    return None if value is UNKNOWN else canonical_value(value, kind)


def _might_hold(bounds: dict[str, tuple[Any, Any]], table: pa.Table, keys: Sequence[str]) -> bool:
    columns: dict[str, pa.Array] = {}
    for number, name in enumerate(keys):
        kind = canonical_type(table.schema.field(name).type)
        low, high = bounds[name]
        columns[f"min_{number}"], columns[f"max_{number}"] = pa.array([low], kind), pa.array([high], kind)
    return bool(might_match(pa.table(columns), canonical_keys(table, keys))[0])


class ConservativeMembershipChecker:
    """Rules a file out by its statistics, only where they prove that it holds no source key."""

    def file_might_contain_keys(
        self,
        file_metadata: ParquetFileMetadata,
        key_columns: Sequence[str] | str,
        source_keys: Any,
    ) -> bool:
        """Say whether a file might hold a source key; what the footer does not prove counts as might."""
        keys = normalize_keys(key_columns)
        # What the path tells is the pruner's business: the file's own column of that name means nothing.
        told = file_metadata.partition_values or {}
        stats = {name: {} if name in told else file_metadata.column_stats.get(name, {}) for name in keys}
        pairs = {name: natural_array([stats[name].get("min"), stats[name].get("max")]) for name in keys}
        kinds = [None if pa.types.is_null(pair.type) else pair.type for pair in pairs.values()]
        try:
            table = keys_table(source_keys, keys, kinds)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, DatasetMergeError):
            # Bounds that are not of the keys' type prove nothing.
            return True
        bounds = {}
        for name, pair in pairs.items():
            low, high = canonical(pa.chunked_array([pair])).to_pylist()
            bounds[name] = (low, high)
        return _might_hold(bounds, table, keys)


def confirm_affected_files(
    candidate_files: Sequence[str], key_columns: Sequence[str] | str, source_keys: Any, filesystem: Any = None
) -> list[str]:
    """Read the key columns, and nothing else, of files to find those that hold a source key."""
    told = {path: parse_hive_partition_path(path) for path in candidate_files}
    return [path for path in candidate_files if _holds_key(path, told[path], key_columns, source_keys, filesystem)]


def _holds_key(
    path: str, told: dict[str, Any], key_columns: Sequence[str] | str, source_keys: Any, filesystem: Any
) -> bool:
    keys = normalize_keys(key_columns)
    location = locate(path, filesystem)
    footer = read_footer(location.store, location.root, path)
    schema = footer.schema
    kinds = [schema.field(name).type if name in schema.names else None for name in keys]
    table = keys_table(source_keys, keys, kinds)
    constants = {}
    for name in keys:
        # Where the path tells a value, it wins over the file's own.
        if name in told or name not in schema.names:
            kind = table.schema.field(name).type
            value = parse(told.get(name), kind)
            constants[name] = pa.repeat(untoken(None if value is UNKNOWN else value, kind), 1)
    source = canonical_keys(table, keys).append_column(SOURCE_ROW, row_numbers(table.num_rows))
    scan = ScanFile(0, location.root, range(footer.metadata.num_row_groups), constants, UNTOLD)
    return bool(match_keys(location.store, [scan], keys, source).num_rows)


@dataclass(frozen=True, slots=True)
class IncrementalRewritePlan:
    """Which files a merge would rewrite, and how many rows they hold; `new_files` is empty in a plan."""

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
) -> IncrementalRewritePlan:
    """Find the files that hold a source key: by partition, then by statistics, then by a scan of the keys."""
    files = ParquetMetadataAnalyzer().analyze_dataset_files(dataset_path, filesystem)
    candidates = set(PartitionPruner().identify_candidate_files(files, key_columns, source_keys, partition_schema))
    checker = ConservativeMembershipChecker()
    likely = [
        file.path
        for file in files
        if file.path in candidates and checker.file_might_contain_keys(file, key_columns, source_keys)
    ]
    told = {file.path: file.partition_values or {} for file in files}
    affected = [path for path in likely if _holds_key(path, told[path], key_columns, source_keys, filesystem)]
    hit = set(affected)
    return IncrementalRewritePlan(
        affected,
        [file.path for file in files if file.path not in hit],
        [],
        sum(file.total_rows for file in files if file.path in hit),
    )


class IncrementalFileManager:
    """Stages files beside a dataset and puts them in place under a journal.

    The dataset is held exclusively from the first call to the last.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._session: Session | None = None
        self._staging: Staging | None = None

    def create_staging_directory(self, base_path: str | os.PathLike[str], filesystem: Any = None) -> str:
        """Make a hidden `.staging_<uuid>` folder for a dataset and give its path."""
        self.cleanup_staging_files()
        location = locate(base_path, filesystem)
        self._session = self._held.enter_context(writing(location))
        self._staging = open_staging(location, self._session.control)
        return self._staging.folder

    def atomic_replace_files(
        self, source_files: Sequence[str], target_files: Sequence[str], filesystem: Any = None
    ) -> None:
        """Put staged files in the place of data files: all of them, or after a crash and `recover` all of them."""
        if self._session is None or self._staging is None:
            message = "There is no staging folder. Call create_staging_directory first."
            raise InvalidArgumentError(message)
        if len(source_files) != len(target_files):
            message = f"{len(source_files)} source files cannot replace {len(target_files)} target files. Give pairs."
            raise InvalidArgumentError(message)
        staging, location = self._staging, self._staging.location
        moves = []
        for source, goal in zip(source_files, target_files, strict=True):
            folder, _, name = locate(source, filesystem).root.rpartition("/")
            # The folder's links are followed, the file's own is not: it stays, and what it leads to is replaced.
            beside, _, last = str(goal).rpartition("/")
            target = f"{locate(beside or '.', filesystem).root}/{last}"
            if folder != staging.folder or not target.startswith(f"{location.root}/"):
                message = f"Cannot move {source} onto {goal}: the one must be staged, the other inside the dataset."
                raise InvalidArgumentError(message)
            if location.store.kind(f"{folder}/{name}") != "file":
                message = f"There is no staged file {source}. Write it before replacing {goal} with it."
                raise UnreadableFileError(message)
            moves.append(Move(name, target[len(location.root) + 1 :], location.store.identity(target)))
        self._session.commit(staging, Journal(moves))

    def cleanup_staging_files(self) -> None:
        """Remove the staging folder and whatever is left in it, and let the dataset go; fine if there is none."""
        with self._held:
            staging, self._session, self._staging = self._staging, None, None
            if staging is not None:
                staging.remove()
