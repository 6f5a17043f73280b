"""Staged files that become data files: their footers and paths, and their entries in journal and history."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from merganser.core.columnar.threads import map_in_threads
from merganser.core.commit.history import HistoryFile
from merganser.core.commit.journal import Journal, Move, Removal
from merganser.core.dataset.listing import FOOTER_SUMMARY
from merganser.core.dataset.snapshot import check_listing
from merganser.core.dataset.statistics_cache import save_cache
from merganser.core.model.result import MergeFileMetadata
from merganser.core.parquet.footer import read_footer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.commit.history import FileChange, HistoryRecord
    from merganser.core.dataset.target import Target
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


@dataclass(frozen=True, slots=True)
class NewFile:
    """A staged file, its footer and future path; `replaces` is the number of the file that it replaces."""

    staged: str
    rel: str
    footer: Footer
    replaces: int | None = None

    @property
    def operation(self) -> Literal["inserted", "rewritten"]:
        """Whether the file is new or replaces one."""
        return "inserted" if self.replaces is None else "rewritten"

    def to_metadata(self, location: Location) -> MergeFileMetadata:
        """Describe the file as it will be."""
        rows = self.footer.metadata.num_rows
        return MergeFileMetadata(location.to_display(self.rel), rows, self.operation, self.footer.size)


def make_new_file(staged: str, folder: str, footer: Footer) -> NewFile:
    """Give a staged file a unique path in a folder."""
    return NewFile(staged, f"{folder}part-{uuid.uuid4().hex}.parquet", footer)


def read_footers(staging: Staging, paths: Sequence[str]) -> list[Footer]:
    """Read the footers of staged files."""
    return map_in_threads(lambda path: read_footer(staging.location.store, path, path), paths)


def list_preserved(target: Target, changed: Iterable[int]) -> list[MergeFileMetadata]:
    """Describe all files except those that are replaced or removed."""
    excluded = {*changed}
    return [
        MergeFileMetadata(target.location.to_display(file.rel), target.file_rows[number], "preserved", file.size)
        for number, file in enumerate(target.files)
        if number not in excluded
    ]


def _list_touched_files(target: Target, new: Iterable[NewFile], removed: Iterable[int]) -> list[HistoryFile]:
    """List the changed files for the history; an overwrite does not know the rows of what it removes."""
    rows: Sequence[int | None] = target.file_rows or [None] * len(target.files)

    def describe(rel: str, change: FileChange, footer: Footer | None, replaced: int | None) -> HistoryFile:
        return HistoryFile(
            path=rel,
            operation=change,
            rows=None if footer is None else footer.metadata.num_rows,
            size=None if footer is None else footer.size,
            rows_before=None if replaced is None else rows[replaced],
            size_before=None if replaced is None else target.files[replaced].size,
        )

    written = [describe(one.rel, one.operation, one.footer, one.replaces) for one in new]
    return [*written, *(describe(target.files[number].rel, "removed", None, number) for number in removed)]


def make_journal(
    target: Target, new: Sequence[NewFile], removed: Sequence[int], record: HistoryRecord, retain: int
) -> Journal:
    """Make the journal of a commit that only writes and removes data files, with the history record's files."""
    identities = [None if one.replaces is None else target.files[one.replaces].identity for one in new]
    moves = [Move(one.staged.rpartition("/")[2], one.rel, old) for one, old in zip(new, identities, strict=True)]
    removals = [Removal(target.files[number].rel, target.files[number].identity) for number in removed]
    history = replace(record, files=_list_touched_files(target, new, removed))
    return Journal(moves, removals, history=history, retain=retain, stale=_find_stale(target, record))


def rebase_journal(journal: Journal, before: Target, after: Target) -> Journal:
    """Give the counts and summary files as they are after other commits, which changed no file of the journal."""
    record = cast("HistoryRecord", journal.history)
    added, counts = after.rows - before.rows, (record.target_count_before, record.target_count_after)
    rows_before, rows_after = (None if count is None else count + added for count in counts)
    record = replace(record, target_count_before=rows_before, target_count_after=rows_after)
    return replace(journal, history=record, stale=_find_stale(after, record))


def _find_stale(target: Target, record: HistoryRecord) -> list[str]:
    """Find summary files that a commit makes wrong: those of footers, and those of the schema if that changes (E6)."""
    changes_schema = record.schema_after is not None or record.mode == "overwrite"
    return [rel for rel in target.summary_files if changes_schema or rel.rpartition("/")[2] == FOOTER_SUMMARY]


def commit_files(
    session: Session, staging: Staging, journal: Journal, target: Target, *, is_settled: bool = False
) -> None:
    """Commit if the dataset has not changed since it was listed, then update the statistics cache.

    `is_settled`: the caller flushed the staged files, and compared the listing since it took the lock.
    """
    check = None if is_settled else partial(check_listing, target)
    session.commit(staging, journal, check, is_flushed=is_settled)
    if target.cache_update is not None:
        save_cache(target.cache_update, staging)
