"""Undo of the last commit, by a commit of its own, and vacuum, which removes retained files that undo cannot use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from merganser.core.commit import retained
from merganser.core.commit.commit import open_session
from merganser.core.commit.history import HistoryFile, HistoryRecord, read_records, skip_undone
from merganser.core.commit.journal import Journal, Move, Removal
from merganser.core.dataset.listing import check_not_nested
from merganser.core.dataset.snapshot import make_record
from merganser.core.model.options import check_option
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import choose_control_folder, explain_staging_errors
from merganser.core.storage.store import is_same_time
from merganser.errors import UndoError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from merganser.core.commit.history import FileChange
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import FileInfo

REVERSED_CHANGE: dict[FileChange, FileChange] = {"rewritten": "rewritten", "inserted": "removed", "removed": "inserted"}


def undo(
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    lock_timeout: float = LOCK_TIMEOUT,
    ignore_table_format: bool = False,
) -> HistoryRecord:
    """Undo the last commit and return its record; another call undoes the commit before it.

    Files that the commit replaced or removed must have been retained (`merge(..., retain=1)`). Its `batch_id` may be
    merged again. An undo cannot be undone; run the merge again instead.

    Args:
        path: Folder or URL of the dataset.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        lock_timeout: Seconds to wait for another writer.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for day in ([1, 2], [2, 3]):
    ...     result = merganser.merge(pa.table({"id": day}), orders, key_columns="id", retain=1)
    >>> undo(orders).inserted
    1
    >>> merganser.merge(pa.table({"id": [3]}), orders, key_columns="id").target_count_before
    2
    """
    started = time.monotonic()
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    if location.store.get_path_type(choose_control_folder(location)) is None:
        raise _make_no_commit_error(location)
    check_not_nested(location)
    with open_session(location, lock_timeout, started, checked=True) as session:
        last = next(skip_undone(read_records(location.store, session.control)), None)
        if last is None:
            raise _make_no_commit_error(location)
        if not retained.is_fully_retained(location.store, session.control, last):
            raise UndoError(
                f"The {_describe_commit(last)} cannot be undone: the files that it replaced or removed are not retained"
                f" unchanged. Pass retain=1 or more to future merges into {location.display} to be able to undo them."
            )
        found = _check_unchanged(location, last)
        with session.staging() as staging, explain_staging_errors(staging):
            journal = _make_undo_journal(last, found, staging)
            session.commit(staging, journal, lambda: _check_unchanged(location, last))
    return last


def vacuum(
    path: str | os.PathLike[str],
    *,
    retain: int | None = None,
    filesystem: Any = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> list[str]:
    """Remove retained files that no undo can use; returns the removed folders, one per commit.

    Args:
        path: Folder or URL of the dataset.
        retain: Number of latest commits whose retained files are kept; by default all that an undo can use.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        lock_timeout: Seconds to wait for another writer.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for _ in range(3):
    ...     result = merganser.merge(pa.table({"id": [1]}), orders, key_columns="id", retain=5)
    >>> len(vacuum(orders, retain=1))
    1
    """
    if retain is not None:
        check_option("retain", retain)
    # Retained files are not part of a table of another format.
    location = locate(path, filesystem, ignore_table_format=True)
    if not retained.list_retained_ids(location.store, choose_control_folder(location)):
        return []
    check_not_nested(location)
    with open_session(location, lock_timeout, checked=True) as session:
        store, control = location.store, session.control
        return retained.remove_retained(store, control, retained.find_unreachable(store, control, retain))


def _make_undo_journal(last: HistoryRecord, found: Mapping[str, FileInfo], staging: Staging) -> Journal:
    """Stage the files that a commit replaced or removed, and reverse what it did."""
    moves, removals = [], []
    for file in last.files:
        identity = found[file.path].identity if file.path in found else None
        if file.retained is not None:
            staged = staging.make_path()
            old = retained.make_retained_path(staging.control, last.id, file.retained)
            staging.location.store.duplicate(old, staged)
            moves.append(Move(staged.rpartition("/")[2], file.path, identity))
        elif identity is not None:
            removals.append(Removal(file.path, identity))
    partitions = None if last.partitions_before is None else last.partitions_before or make_record({})
    history = HistoryRecord(
        operation="undo",
        undoes=last.id,
        inserted=last.deleted,
        updated=last.updated,
        deleted=last.inserted,
        files=[
            HistoryFile(
                path=file.path,
                operation=REVERSED_CHANGE[file.operation],
                rows=file.rows_before,
                size=file.size_before,
                rows_before=file.rows,
                size_before=file.size,
            )
            for file in last.files
        ],
    )
    return Journal(moves, removals, partitions, history=history, forget=last.batch_id)


def _make_no_commit_error(location: Location) -> UndoError:
    return UndoError(f"There is no commit to {location.display} to undo. See history(path) for its commits.")


def _check_unchanged(location: Location, last: HistoryRecord) -> dict[str, FileInfo]:
    """Refuse to undo files that another program has changed since; returns all files as they are."""
    found = location.list_all_files()
    for file in last.files:
        if file.operation == "removed":
            is_same = file.path not in found
        else:
            is_same = (
                file.path in found
                and found[file.path].size == file.size
                and is_same_time(file.modified, location.store.get_modified_time(location.to_path(file.path)))
            )
        if not is_same:
            raise UndoError(
                f"{location.to_display(file.path)} was changed by another program after the {_describe_commit(last)}; "
                "undo would lose that change. Restore the file as it was, or merge the rows that you want instead."
            )
    return found


def _describe_commit(record: HistoryRecord) -> str:
    return f"{record.operation} of {record.committed_at:%Y-%m-%d %H:%M:%S} UTC"
