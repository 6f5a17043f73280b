"""Compaction: rewrite small files of a folder into fewer large ones, optionally sorted, in one commit.

Files of a folder are combined if their columns have the same types. Rows, columns and partitions do not change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from merganser.core.columnar.threads import WORKERS, map_in_threads, open_pool
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_maintenance_record
from merganser.core.commit.staged_files import commit_files, list_preserved, make_journal, make_new_file, read_footers
from merganser.core.dataset.file_statistics import drop_columns
from merganser.core.dataset.listing import check_target, has_files
from merganser.core.dataset.mixed_schemas import check_one_schema
from merganser.core.dataset.snapshot import load_existing, make_no_files_error
from merganser.core.maintenance.compact_writer import CompactFile, CompactOptions, pack, sort_by_bounds
from merganser.core.model.engine import Layout
from merganser.core.model.option_types import to_column_names
from merganser.core.model.options import Options
from merganser.core.model.partitions import UNKNOWN
from merganser.core.model.result import CompactResult
from merganser.core.model.schema import make_key_values, to_plain_type
from merganser.core.model.validation import check_order_columns, check_supported_types
from merganser.core.parquet.encode import derive_new_file_options, derive_options_by_group, find_bloom_filter_columns
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import explain_staging_errors
from merganser.display import pluralize
from merganser.errors import CountMismatchError, InvalidArgumentError
from merganser.progress import ProgressReporter

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.commit.staged_files import NewFile
    from merganser.core.dataset.file_statistics import Summaries
    from merganser.core.dataset.target import Target
    from merganser.core.storage.staging import Staging
    from merganser.progress import ProgressCallback

TARGET_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Files of one folder that are rewritten together, by number and as described."""

    folder: str
    numbers: Sequence[int]
    files: Sequence[CompactFile]


def compact(
    path: str | os.PathLike[str],
    *,
    sort_by: Sequence[str] | str = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    compression: str | None = None,
    max_rows_per_file: int = 5_000_000,
    row_group_size: int = 500_000,
    retain: int = 0,
    lock_timeout: float = LOCK_TIMEOUT,
    progress: ProgressCallback | None = None,
    filesystem: Any = None,
    dry_run: bool = False,
    ignore_table_format: bool = False,
) -> CompactResult:
    """Compact the small files of each folder into larger ones; compacting again changes nothing.

    Files without rows are removed, except for one that keeps the schema of an empty dataset. With `sort_by`, files that
    are not sorted by these columns are rewritten too, so that key ranges of the new files do not overlap; rows that do
    not fit into memory are spilled to a temporary file.

    Args:
        path: Folder or URL of the dataset.
        sort_by: Columns that the rows of each folder are sorted by.
        target_file_bytes: Size up to which files are compacted; larger files are left alone.
        compression: Codec for new files; by default that of the first file that goes into each.
        max_rows_per_file: Maximum number of rows in a new file; files with as many are left alone.
        row_group_size: Maximum number of rows in a row group of a new file.
        retain: Number of latest commits that can be undone; their replaced files are kept.
        lock_timeout: Seconds to wait for another writer.
        progress: Function that is called with a `Progress` at every step, from any thread.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        dry_run: Report what would change, and write nothing.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for day in range(3):
    ...     result = merganser.merge(pa.table({"id": [day]}), orders, key_columns="id")
    >>> result = compact(orders)
    >>> result.file_count_before, result.file_count_after, result.row_count
    (3, 1, 3)
    """
    started = time.monotonic()
    common = Options(
        compression=compression or "snappy",
        max_rows_per_file=max_rows_per_file,
        row_group_size=row_group_size,
        retain=retain,
        lock_timeout=lock_timeout,
        progress=progress,
        ignore_table_format=ignore_table_format,
    )
    options = CompactOptions(common, target_file_bytes, to_column_names(sort_by, "sort_by"), compression)
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    check_target(location, lists_later=True)
    if dry_run:
        check_no_pending_commit(location)
        target = load_existing(location, refuse_nested=True)
        removed = sorted([*_list_file_numbers(_find_bundles(target, options)), *_find_empty(target)])
        return _make_result(target, options, [], removed, dry_run=True)
    if not has_files(location) and not has_pending_commit(location):
        raise make_no_files_error(location)
    reporter = ProgressReporter(progress)
    with open_session(location, lock_timeout, started, checked=True) as session:
        target = load_existing(location, refuse_nested=True)
        bundles = _find_bundles(target, options)
        result = _make_result(target, options, [], [])
        if bundles or _find_empty(target):
            reporter.begin("rewrite", len(_list_file_numbers(bundles)), target.rows)
            with session.staging(reporter.on_file_done) as staging, explain_staging_errors(staging):
                result = _compact_bundles(session, staging, target, bundles, options, reporter)
    reporter.begin("done")
    return result


def _find_empty(target: Target) -> list[int]:
    """List the files without rows to remove: all, except one that keeps the schema if no other file remains."""
    empty = [number for number, file in enumerate(target.files) if not target.file_rows[number] and file.real is None]
    return empty[1:] if len(empty) == len(target.files) else empty


def _find_bundles(target: Target, options: CompactOptions) -> list[_Bundle]:
    check_one_schema(target)
    check_order_columns(target.schema, options.sort_by, "sort_by", "target")
    constant = [name for name in options.sort_by if name in target.partition_columns]
    if constant:
        message = f"sort_by names the partition column {constant[0]!r}, which all rows of a folder share. Leave it out."
        raise InvalidArgumentError(message)
    groups: dict[tuple[str, tuple[pa.DataType, ...]], list[int]] = {}
    empty = set(_find_empty(target))
    for number, types in enumerate(_list_column_types(target)):
        # A file whose path lacks a partition column has its values inside. A linked file is elsewhere for a reason.
        if number not in empty and UNKNOWN not in target.partitions[number] and target.files[number].real is None:
            folder, slash, _ = target.files[number].rel.rpartition("/")
            groups.setdefault((folder + slash, types), []).append(number)
    found = (_make_bundle(target, folder, numbers, options) for (folder, _), numbers in groups.items())
    bundles = [bundle for bundle in found if bundle is not None]
    if bundles:
        check_supported_types(target.schema, "target")
    return bundles


def _list_column_types(target: Target) -> list[tuple[pa.DataType, ...]]:
    """List the column types of each file, in the dataset's order of columns."""
    names, summaries = cast("pa.Schema", target.file_schema).names, cast("Summaries", target.summaries)
    types = [tuple(to_plain_type(schema.field(name).type) for name in names) for schema in summaries.schemas]
    return [types[number] for number in summaries.schema_numbers.tolist()]


def _make_bundle(target: Target, folder: str, numbers: Sequence[int], options: CompactOptions) -> _Bundle | None:
    """Choose the files of a folder that are small or not sorted; None if rewriting them would gain nothing."""
    location = target.location

    def describe(number: int) -> CompactFile:
        file = target.files[number]
        path = location.to_path(file.rel)
        if options.sort_by:
            return CompactFile.from_footer(location.store, path, location.to_display(file.rel), options.sort_by)
        return CompactFile(path, file.size, target.file_rows[number])

    # Only the order of a file needs its footer.
    described = map_in_threads(describe, numbers) if options.sort_by else map(describe, numbers)
    pairs = zip(numbers, described, strict=True)
    chosen = {number: file for number, file in pairs if options.is_small(file) or not file.is_sorted}
    files = list(chosen.values())
    if all(file.is_sorted for file in files) and not options.saves_files(files):
        return None
    return _Bundle(folder, list(chosen), files)


def _list_file_numbers(bundles: Sequence[_Bundle]) -> list[int]:
    return sorted(number for bundle in bundles for number in bundle.numbers)


def _compact_bundles(
    session: Session,
    staging: Staging,
    target: Target,
    bundles: Sequence[_Bundle],
    options: CompactOptions,
    reporter: ProgressReporter,
) -> CompactResult:
    # Sorting spools all rows of a bundle; without it, a worker has one row group in memory.
    with open_pool(len(bundles), 1 if options.sort_by else WORKERS, "pack") as pool:
        packed = list(pool.map(lambda bundle: _stage_bundle(target, bundle, options, staging), bundles))
    new = [file for files in packed for file in files]
    replaced = _list_file_numbers([bundle for bundle, files in zip(bundles, packed, strict=True) if files])
    removed = sorted([*replaced, *_find_empty(target)])
    if removed:
        reporter.begin("commit", len(new))
        extra = {"sort_by": list(options.sort_by), "target_file_bytes": options.target_file_bytes}
        changed = {name: value for name, value in extra.items() if value not in ([], TARGET_FILE_BYTES)}
        record = make_maintenance_record("compact", options.common, changed, (target.rows, target.rows))
        commit_files(session, staging, make_journal(target, new, removed, record, options.common.retain), target)
    return _make_result(target, options, new, removed)


def _stage_bundle(target: Target, bundle: _Bundle, options: CompactOptions, staging: Staging) -> list[NewFile]:
    """Stage the rows of a bundle as fewer or sorted files; no files if that gains nothing."""
    store, layout = target.location.store, _make_layout(target, bundle, options)
    packed = _pack_while_fewer(bundle.files, layout, options, staging)
    for _ in bundle.files:
        staging.on_file_done()
    if packed:
        _check_row_count(bundle.files, packed)
    for file in packed:
        store.keep_mode(bundle.files[0].path, file.path)
    paths = [file.path for file in packed]
    footers = read_footers(staging, paths)
    return [make_new_file(path, bundle.folder, footer) for path, footer in zip(paths, footers, strict=True)]


def _pack_while_fewer(
    files: Sequence[CompactFile], layout: Layout, options: CompactOptions, staging: Staging
) -> list[CompactFile]:
    """Pack files, and pack the small results again: sorted rows compress better, so fewer files may hold them."""
    store = staging.location.store
    packed: list[CompactFile] = []
    candidates = files
    while candidates:
        ordered = sort_by_bounds(candidates) if options.sort_by else candidates
        paths = pack(ordered, layout, options, staging)
        new = [CompactFile.from_footer(store, path, path, options.sort_by) for path in paths]
        is_better = len(new) < len(candidates) or not all(file.is_sorted for file in candidates)
        for file in candidates if is_better else new:
            if file not in files:
                store.remove(file.path)
        if not is_better:
            break
        packed = [*(file for file in packed if file not in candidates), *new]
        small = [file for file in packed if options.is_small(file)]
        candidates = small if options.sort_by and options.saves_files(small) else []
    return packed


def _check_row_count(before: Sequence[CompactFile], after: Sequence[CompactFile]) -> None:
    planned, staged = sum(file.rows for file in before), sum(file.rows for file in after)
    if planned != staged:
        raise CountMismatchError(
            f"Internal error: {pluralize(staged, 'row')} were staged, {planned:,} were planned. Nothing was published; "
            "please report this."
        )


def _make_layout(target: Target, bundle: _Bundle, options: CompactOptions) -> Layout:
    """Lay out new files like the first file of the bundle; a column that is nullable in any of them is nullable."""
    location, rel = target.location, target.files[bundle.numbers[0]].rel
    first = read_footer(location.store, location.to_path(rel), location.to_display(rel))
    metadata, schema = first.metadata, drop_columns(first.schema, target.partition_columns)
    summaries = cast("Summaries", target.summaries)
    schemas = [summaries.schemas[number] for number in np.unique(summaries.schema_numbers[list(bundle.numbers)])]
    fields = [
        field.with_type(to_plain_type(field.type)).with_nullable(any(one.field(field.name).nullable for one in schemas))
        for field in schema
    ]
    # Metadata that describes dropped partition columns would not fit the new files.
    key_values = make_key_values(schema) if len(schema) < len(first.schema) else dict(metadata.metadata or {})
    return Layout(
        schema=pa.schema(fields),
        columns=frozenset(schema.names),
        key_values=key_values,
        writer_options=derive_new_file_options(first),
        compression=options.compression
        or derive_options_by_group(first, [0])[0].get("compression", options.common.compression),
        max_rows_per_file=options.max_rows_per_file,
        row_group_size=options.common.row_group_size,
        bloom_filter_columns=find_bloom_filter_columns(first) & {*schema.names},
    )


def _make_result(
    target: Target, options: CompactOptions, new: Sequence[NewFile], removed: Sequence[int], *, dry_run: bool = False
) -> CompactResult:
    location = target.location
    inserted, preserved = [file.to_metadata(location) for file in new], list_preserved(target, removed)
    files = [*inserted, *preserved]
    is_planned = dry_run and bool(removed)
    return CompactResult(
        row_count=target.rows,
        file_count_before=len(target.files),
        file_count_after=None if is_planned else len(files),
        size_before=sum(file.size for file in target.files),
        size_after=None if is_planned else sum(file.size_bytes or 0 for file in files),
        files=files,
        inserted_files=[file.path for file in inserted],
        removed_files=[location.to_display(target.files[number].rel) for number in removed],
        preserved_files=[file.path for file in preserved],
        sort_by=list(options.sort_by),
        dry_run=dry_run,
    )
