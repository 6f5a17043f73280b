"""Deduplication: keep one row per key, in a commit that rewrites only files with duplicates."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.threads import WORKERS, open_pool
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_maintenance_record
from merganser.core.commit.staged_files import NewFile, commit_files, list_preserved, make_journal, read_footers
from merganser.core.dataset.listing import check_target, has_files
from merganser.core.dataset.mixed_schemas import check_one_schema
from merganser.core.dataset.snapshot import load_existing, make_no_files_error
from merganser.core.maintenance.duplicates import find_duplicates
from merganser.core.model.keys import normalize_keys
from merganser.core.model.option_types import to_column_names
from merganser.core.model.options import Options
from merganser.core.model.result import DedupeResult
from merganser.core.model.validation import check_order_columns, check_supported_types
from merganser.core.rows.rewrite import GroupChange, rewrite_file
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import CountMismatchError
from merganser.progress import ProgressReporter

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from merganser.core.dataset.target import Target
    from merganser.core.maintenance.duplicates import Duplicates
    from merganser.core.model.engine import RewrittenFile
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging
    from merganser.progress import ProgressCallback


@dataclass(frozen=True, slots=True)
class _Request:
    keys: list[str]
    order_by: list[str]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Deletions:
    """The rows to delete: row groups of rewritten files that lose some (None: all), and files that lose all."""

    changes: Mapping[int, Mapping[int, GroupChange | None]]
    removed: Sequence[int]


def dedupe(
    path: str | os.PathLike[str],
    key_columns: Sequence[str] | str,
    order_by: Sequence[str] | str = (),
    *,
    retain: int = 0,
    lock_timeout: float = LOCK_TIMEOUT,
    progress: ProgressCallback | None = None,
    filesystem: Any = None,
    dry_run: bool = False,
    ignore_table_format: bool = False,
) -> DedupeResult:
    """Remove rows with duplicate keys; the highest row in `order_by` is kept, or the last of several equal ones.

    As in a merge, NULL is lowest and NaN highest, and rows with NULL or NaN in their key all stay. Without `order_by`,
    rows with the same key must be equal in every column; others are refused.

    Args:
        path: Folder or URL of the dataset.
        key_columns: Columns that identify a row.
        order_by: Columns that order rows with the same key.
        retain: Number of latest commits that can be undone; their replaced files are kept.
        lock_timeout: Seconds to wait for another writer.
        progress: Function that is called with a `Progress` at every step, from any thread.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        dry_run: Report what would change, and write nothing.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for version in (1, 2):
    ...     result = merganser.write_dataset(pa.table({"id": [7], "version": [version]}), orders)
    >>> result = dedupe(orders, "id", order_by="version")
    >>> result.duplicate_keys, result.deleted, result.target_count_after
    (1, 1, 1)
    """
    started = time.monotonic()
    options = Options(
        retain=retain, lock_timeout=lock_timeout, progress=progress, ignore_table_format=ignore_table_format
    )
    request = _Request(normalize_keys(key_columns), to_column_names(order_by, "order_by"), dry_run)
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    check_target(location, lists_later=True)
    reporter = ProgressReporter(progress)
    if dry_run:
        check_no_pending_commit(location)
        target, duplicates = _load_duplicates(location, request, reporter)
        return _make_result(target, request, duplicates, _plan_deletions(target, duplicates))
    if not has_files(location) and not has_pending_commit(location):
        raise make_no_files_error(location)
    with open_session(location, lock_timeout, started, checked=True) as session:
        target, duplicates = _load_duplicates(location, request, reporter)
        deletions = _plan_deletions(target, duplicates)
        result = _make_result(target, request, duplicates, deletions)
        if len(duplicates.rows):
            check_supported_types(target.schema, "target")
            reporter.begin("rewrite", len(deletions.changes))
            with session.staging(reporter.on_file_done) as staging, explain_staging_errors(staging):
                new = _rewrite_files(target, deletions, len(duplicates.rows), staging)
                result = _make_result(target, request, duplicates, deletions, new)
                reporter.begin("commit", len(new))
                extra = {"order_by": request.order_by} if request.order_by else {}
                rows = result.target_count_before, result.target_count_after
                record = make_maintenance_record("dedupe", options, extra, rows, request.keys)
                commit_files(session, staging, make_journal(target, new, deletions.removed, record, retain), target)
    reporter.begin("done")
    return result


def _load_duplicates(location: Location, request: _Request, reporter: ProgressReporter) -> tuple[Target, Duplicates]:
    target = load_existing(location, request.keys, refuse_nested=True)
    check_one_schema(target)
    check_order_columns(target.schema, request.order_by, "order_by", "target")
    reporter.begin("plan", rows=target.rows)
    return target, find_duplicates(target, request.keys, request.order_by)


def _plan_deletions(target: Target, duplicates: Duplicates) -> _Deletions:
    ends = np.cumsum(target.group_rows)
    groups = np.searchsorted(ends, duplicates.rows, side="right")
    touched, starts, counts = np.unique(groups, return_index=True, return_counts=True)
    positions = np.split(duplicates.rows - (ends - target.group_rows)[groups], starts[1:])
    changes: dict[int, dict[int, GroupChange | None]] = {}
    for group, deleted in zip(touched.tolist(), positions, strict=False):
        loses_all = len(deleted) == target.group_rows[group]
        # No row gets new values.
        change = GroupChange(np.empty(0, np.int64), frozenset(), lambda _: pa.table({}), deleted)
        of_file = changes.setdefault(int(target.group_file[group]), {})
        of_file[int(target.group_number[group])] = None if loses_all else change
    by_file = np.bincount(target.group_file[touched], counts, len(target.files)).astype(np.int64)
    removed = {file for file in changes if by_file[file] == target.file_rows[file]}
    return _Deletions({file: some for file, some in changes.items() if file not in removed}, sorted(removed))


def _rewrite_files(target: Target, deletions: _Deletions, expected: int, staging: Staging) -> list[NewFile]:
    # As in a merge, one file uses every worker for its row groups, and many files use one each.
    workers = max(1, WORKERS // max(1, len(deletions.changes)))
    location = target.location

    def rewrite(file: int) -> RewrittenFile:
        path = location.to_path(target.files[file].rel)
        done = rewrite_file(location.store, path, staging.make_path(), deletions.changes[file], workers)
        staging.on_file_done()
        return done

    with open_pool(len(deletions.changes), WORKERS, "rewrite") as pool:
        rewritten = list(pool.map(rewrite, deletions.changes))
    footers = read_footers(staging, [one.staged_path for one in rewritten])
    new = [
        NewFile(one.staged_path, target.files[file].rel, footer, file)
        for file, one, footer in zip(deletions.changes, rewritten, footers, strict=True)
    ]
    before = sum(target.file_rows[file] for file in (*deletions.changes, *deletions.removed))
    after = sum(footer.metadata.num_rows for footer in footers)
    if before - after != expected:
        raise CountMismatchError(
            f"Internal error: {before - after:,} rows would be deleted, {expected:,} were planned. Nothing was "
            "published; please report this."
        )
    return new


def _make_result(
    target: Target, request: _Request, duplicates: Duplicates, deletions: _Deletions, new: Sequence[NewFile] = ()
) -> DedupeResult:
    location = target.location
    rewritten = [file.to_metadata(location) for file in new]
    preserved = list_preserved(target, [*deletions.changes, *deletions.removed])
    return DedupeResult(
        target_count_before=target.rows,
        target_count_after=target.rows - len(duplicates.rows),
        duplicate_keys=duplicates.key_count,
        deleted=len(duplicates.rows),
        files=[*rewritten, *preserved],
        rewritten_files=[location.to_display(target.files[file].rel) for file in deletions.changes],
        removed_files=[location.to_display(target.files[file].rel) for file in deletions.removed],
        preserved_files=[file.path for file in preserved],
        key_columns=request.keys,
        order_by=request.order_by,
        dry_run=request.dry_run,
    )
