"""Compaction: small files of a folder become few large ones, perhaps sorted, in a commit like any other.

Files of one folder go together if their columns have the same types. Rows, columns and partitions stay what they are.
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
from merganser.core.commit.journal import Journal
from merganser.core.commit.staged_files import (
    commit_files,
    list_preserved_files,
    list_touched_files,
    make_moves,
    make_new_file,
    make_removals,
    read_staged_footers,
)
from merganser.core.dataset.file_statistics import drop_columns
from merganser.core.dataset.snapshot import check_target, has_files, load_existing, make_no_files_error
from merganser.core.maintenance.compact_writer import (
    CompactionFile,
    CompactOptions,
    describe_file,
    pack,
    sort_by_bounds,
)
from merganser.core.model.engine import Layout
from merganser.core.model.options import Options, to_column_names
from merganser.core.model.partitions import UNKNOWN
from merganser.core.model.result import CompactResult
from merganser.core.model.schema import make_key_values, to_plain_type
from merganser.core.model.validation import check_order_columns, check_supported_types
from merganser.core.parquet.encode import derive_new_file_options, derive_options_by_group, find_bloom_filter_columns
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import CountMismatchError, InvalidArgumentError
from merganser.progress import ProgressReporter

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.commit.staged_files import NewFile
    from merganser.core.dataset.file_statistics import Summaries
    from merganser.core.dataset.snapshot import Target
    from merganser.core.storage.staging import Staging
    from merganser.progress import ProgressCallback

TARGET_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Files of one folder whose rows go together; `unsorted` says that they have to be written in any case."""

    folder: str
    files: Sequence[int]
    pieces: Sequence[CompactionFile]
    unsorted: bool


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
    """Put small files of each folder together; a file of `target_file_bytes` or `max_rows_per_file` is left alone.

    New files are compressed as the first of those they are made of, unless `compression` says otherwise.

    Files without rows are removed, but for one that keeps the schema of a dataset that has none.

    With `sort_by`, files that are not yet sorted by these columns are written anew too, each of the new files with keys
    of its own. What does not fit into memory is kept in a temporary file meanwhile. Running it again does nothing. With
    `dry_run` nothing is written. `ignore_table_format` is that of `merge`.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for day in range(3):
    ...     result = merganser.merge(pa.table({"id": [day]}), orders, key_columns="id")
    >>> result = compact(orders)
    >>> result.file_count_before, result.file_count_after, result.row_count
    (3, 1, 3)
    """
    started = time.monotonic()
    options = Options(
        compression=compression or "snappy",
        max_rows_per_file=max_rows_per_file,
        row_group_size=row_group_size,
        retain=retain,
        lock_timeout=lock_timeout,
        progress=progress,
        ignore_table_format=ignore_table_format,
    )
    wishes = _make_compact_options(target_file_bytes, max_rows_per_file, sort_by, compression)
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    check_target(location, lists_later=True)
    if dry_run:
        check_no_pending_commit(location)
        target = load_existing(location, refuse_nested=True)
        gone = sorted([*_list_file_numbers(_find_bundles(target, wishes)), *_find_empty(target)])
        return _make_result(target, wishes, [], gone, dry_run=True)
    if not has_files(location) and not has_pending_commit(location):
        raise make_no_files_error(location)
    teller = ProgressReporter(progress)
    with open_session(location, lock_timeout, started, checked=True) as session:
        target = load_existing(location, refuse_nested=True)
        bundles = _find_bundles(target, wishes)
        result = _make_result(target, wishes, [], [])
        if bundles or _find_empty(target):
            teller.begin("rewrite", len(_list_file_numbers(bundles)), target.rows)
            with session.staging(teller.on_file_done) as staging, explain_staging_errors(staging):
                result = _pack_all(session, staging, target, bundles, wishes, options, teller)
    teller.begin("done")
    return result


def _make_compact_options(
    target_file_bytes: int, max_rows_per_file: int, sort_by: Sequence[str] | str, compression: str | None
) -> CompactOptions:
    if not isinstance(target_file_bytes, int) or isinstance(target_file_bytes, bool) or target_file_bytes < 1:
        message = f"target_file_bytes must be a positive whole number, not {target_file_bytes!r}."
        raise InvalidArgumentError(message)
    return CompactOptions(target_file_bytes, max_rows_per_file, to_column_names(sort_by, "sort_by"), compression)


def _find_empty(target: Target) -> list[int]:
    """Choose the files without rows that go: all, but for one where no other file is left to keep the schema."""
    empty = [number for number, file in enumerate(target.files) if not target.file_rows[number] and file.real is None]
    return empty[1:] if len(empty) == len(target.files) else empty


def _find_bundles(target: Target, compact_options: CompactOptions) -> list[_Bundle]:
    """Choose the files to write anew."""
    check_order_columns(target.schema, compact_options.sort_by, "sort_by", "target")
    placed = [name for name in compact_options.sort_by if name in target.partition_columns]
    if placed:
        message = f"sort_by names the partition column {placed[0]!r}, which all rows of a folder share. Leave it out."
        raise InvalidArgumentError(message)
    together: dict[tuple[str, tuple[pa.DataType, ...]], list[int]] = {}
    empty = set(_find_empty(target))
    for number, kinds in enumerate(_list_column_types(target)):
        if number in empty:
            continue
        # Where the path does not tell a partition column, its values are in the file, and are left there. What a link
        # leads to lies elsewhere for a reason.
        if UNKNOWN not in target.partitions[number] and target.files[number].real is None:
            folder, slash, _ = target.files[number].rel.rpartition("/")
            together.setdefault((folder + slash, kinds), []).append(number)
    found = (_make_bundle(target, folder, numbers, compact_options) for (folder, _), numbers in together.items())
    bundles = [bundle for bundle in found if bundle is not None]
    if bundles:
        check_supported_types(target.schema, "target")
    return bundles


def _list_column_types(target: Target) -> list[tuple[pa.DataType, ...]]:
    """Give the types of the columns of each file, in the dataset's order of columns."""
    names, summaries = cast("pa.Schema", target.file_schema).names, cast("Summaries", target.summaries)
    kinds = [tuple(to_plain_type(schema.field(name).type) for name in names) for schema in summaries.schemas]
    return [kinds[number] for number in summaries.schema_numbers.tolist()]


def _list_schemas(target: Target, files: Sequence[int]) -> list[pa.Schema]:
    """Give the schemas of some files, each once."""
    summaries = cast("Summaries", target.summaries)
    return [summaries.schemas[number] for number in np.unique(summaries.schema_numbers[list(files)])]


def _make_bundle(
    target: Target, folder: str, numbers: Sequence[int], compact_options: CompactOptions
) -> _Bundle | None:
    location = target.location
    if compact_options.sort_by:
        paths = [target.files[number].rel for number in numbers]
        pieces = map_in_threads(
            lambda rel: describe_file(location.store, location.to_path(rel), location.to_display(rel), compact_options),
            paths,
        )
    else:
        pieces = [
            CompactionFile(
                location.to_path(target.files[number].rel), target.files[number].size, target.file_rows[number]
            )
            for number in numbers
        ]
    chosen = [
        (number, piece)
        for number, piece in zip(numbers, pieces, strict=True)
        if compact_options.is_small(piece) or not piece.is_sorted
    ]
    unsorted = not all(piece.is_sorted for _, piece in chosen)
    if not unsorted and not compact_options.saves_files([piece for _, piece in chosen]):
        return None
    return _Bundle(folder, [number for number, _ in chosen], [piece for _, piece in chosen], unsorted)


def _list_file_numbers(bundles: Sequence[_Bundle]) -> list[int]:
    return sorted(number for bundle in bundles for number in bundle.files)


def _pack_all(
    session: Session,
    staging: Staging,
    target: Target,
    bundles: Sequence[_Bundle],
    compact_options: CompactOptions,
    options: Options,
    reporter: ProgressReporter,
) -> CompactResult:
    # Rows to be sorted are all kept meanwhile, a row group's otherwise.
    with open_pool(len(bundles), 1 if compact_options.sort_by else WORKERS, "pack") as pool:
        packed = list(pool.map(lambda bundle: _pack_bundle(target, bundle, compact_options, options, staging), bundles))
    new = [file for files in packed for file in files]
    packed_away = _list_file_numbers([bundle for bundle, files in zip(bundles, packed, strict=True) if files])
    gone = sorted([*packed_away, *_find_empty(target)])
    result = _make_result(target, compact_options, new, gone)
    if gone:
        reporter.begin("commit", len(new))
        asked = {
            **({"sort_by": list(compact_options.sort_by)} if compact_options.sort_by else {}),
            **(
                {"target_file_bytes": compact_options.target_file_bytes}
                if compact_options.target_file_bytes != TARGET_FILE_BYTES
                else {}
            ),
        }
        touched = list_touched_files(target, new, gone)
        history = make_maintenance_record("compact", options, asked, (target.rows, target.rows), touched)
        moves, removals = make_moves(target, new), make_removals(target, gone)
        commit_files(session, staging, Journal(moves, removals, history=history, retain=options.retain), target)
    return result


def _pack_bundle(
    target: Target, bundle: _Bundle, compact_options: CompactOptions, options: Options, staging: Staging
) -> list[NewFile]:
    """Stage the rows of a bundle as fewer files, or as sorted ones; none if that would not make them fewer."""
    store, layout = target.location.store, _make_layout(target, bundle, compact_options, options)
    packed: list[CompactionFile] = []
    chosen = bundle.pieces
    while chosen:
        near = sort_by_bounds(chosen) if compact_options.sort_by else chosen
        done = [
            describe_file(store, path, path, compact_options) for path in pack(near, layout, compact_options, staging)
        ]
        better = len(done) < len(chosen) or not all(piece.is_sorted for piece in chosen)
        for piece in chosen if better else done:
            if piece not in bundle.pieces:
                store.remove(piece.path)
        if not better:
            break
        packed = [*(piece for piece in packed if piece not in chosen), *done]
        # Rows in order take up less than they did, so that even fewer files may do.
        small = [piece for piece in packed if compact_options.is_small(piece)]
        chosen = small if compact_options.sort_by and compact_options.saves_files(small) else []
    for _ in bundle.files:
        staging.on_file_done()
    if not packed:
        return []
    for piece in packed:
        store.keep_mode(bundle.pieces[0].path, piece.path)
    before, after = sum(piece.rows for piece in bundle.pieces), sum(piece.rows for piece in packed)
    if before != after:
        message = (
            f"{before} rows were to be packed, but the staged files hold {after}. Nothing was published; please report "
            "this."
        )
        raise CountMismatchError(message)
    staged = [piece.path for piece in packed]
    footers = read_staged_footers(staging, staged)
    return [make_new_file(path, bundle.folder, footer) for path, footer in zip(staged, footers, strict=True)]


def _make_layout(target: Target, bundle: _Bundle, compact_options: CompactOptions, options: Options) -> Layout:
    """Describe new files like the first of those whose rows they get; what may be NULL in one of them may be NULL."""
    location, rel = target.location, target.files[bundle.files[0]].rel
    first = read_footer(location.store, location.to_path(rel), location.to_display(rel))
    metadata, schema = first.metadata, drop_columns(first.schema, target.partition_columns)
    schemas = _list_schemas(target, bundle.files)
    fields = [
        field.with_type(to_plain_type(field.type)).with_nullable(any(one.field(field.name).nullable for one in schemas))
        for field in schema
    ]
    told_too = len(schema) < len(first.schema)
    return Layout(
        pa.schema(fields),
        frozenset(schema.names),
        make_key_values(schema) if told_too else dict(metadata.metadata or {}),
        derive_new_file_options(first),
        compact_options.compression or derive_options_by_group(first, [0])[0].get("compression", options.compression),
        options.max_rows_per_file,
        options.row_group_size,
        find_bloom_filter_columns(first) & {*schema.names},
    )


def _make_result(
    target: Target,
    compact_options: CompactOptions,
    new: Sequence[NewFile],
    gone: Sequence[int],
    *,
    dry_run: bool = False,
) -> CompactResult:
    location = target.location
    inserted, preserved = [file.to_metadata(location) for file in new], list_preserved_files(target, gone)
    files = [*inserted, *preserved]
    planned = dry_run and bool(gone)
    return CompactResult(
        target.rows,
        len(target.files),
        None if planned else len(files),
        sum(file.size for file in target.files),
        None if planned else sum(file.size_bytes or 0 for file in files),
        files,
        [file.path for file in inserted],
        [location.to_display(target.files[number].rel) for number in gone],
        [file.path for file in preserved],
        list(compact_options.sort_by),
        dry_run,
    )
