"""Staged files on their way into a dataset: their footers, the places they will have, and what the journal says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from merganser.core.columnar.threads import map_in_threads
from merganser.core.commit.history import HistoryFile
from merganser.core.commit.journal import Move, Removal
from merganser.core.dataset.snapshot import check_listing
from merganser.core.dataset.statistics_cache import save_cache
from merganser.core.model.result import MergeFileMetadata
from merganser.core.parquet.footer import read_footer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.commit.journal import Journal
    from merganser.core.dataset.snapshot import Target
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


@dataclass(frozen=True, slots=True)
class NewFile:
    """A staged file with its footer and the place it will have; `replaces` is the number of the file that is there."""

    staged: str
    rel: str
    footer: Footer
    replaces: int | None = None

    @property
    def operation(self) -> Literal["inserted", "rewritten"]:
        """What becomes of the place."""
        return "inserted" if self.replaces is None else "rewritten"

    def to_metadata(self, location: Location) -> MergeFileMetadata:
        """Tell of the file as it will be."""
        rows = self.footer.metadata.num_rows
        return MergeFileMetadata(location.to_display(self.rel), rows, self.operation, self.footer.size)


def make_new_file(staged: str, folder: str, footer: Footer) -> NewFile:
    """Give a staged file a name of its own in a folder."""
    return NewFile(staged, f"{folder}part-{uuid.uuid4().hex}.parquet", footer)


def read_staged_footers(staging: Staging, paths: Sequence[str]) -> list[Footer]:
    """Read the footers of staged files."""
    return map_in_threads(lambda path: read_footer(staging.location.store, path, path), paths)


def list_preserved_files(target: Target, gone: Iterable[int]) -> list[MergeFileMetadata]:
    """Tell of all files but those that are replaced or removed."""
    left = {*gone}
    return [
        MergeFileMetadata(target.location.to_display(file.rel), target.file_rows[number], "preserved", file.size)
        for number, file in enumerate(target.files)
        if number not in left
    ]


def make_moves(target: Target, new: Iterable[NewFile]) -> list[Move]:
    """Say where staged files go, and what they replace there."""
    return [
        Move(
            one.staged.rpartition("/")[2],
            one.rel,
            None if one.replaces is None else target.files[one.replaces].identity,
        )
        for one in new
    ]


def make_removals(target: Target, numbers: Iterable[int]) -> list[Removal]:
    """Say which files go."""
    return [Removal(target.files[number].rel, target.files[number].identity) for number in numbers]


def list_touched_files(target: Target, new: Iterable[NewFile], removed: Iterable[int]) -> list[HistoryFile]:
    """List the files of a change for its record; an overwrite has read no footer of what it removes."""
    rows: Sequence[int | None] = target.file_rows or [None] * len(target.files)
    before = [(count, file.size) for count, file in zip(rows, target.files, strict=True)]
    written = [
        HistoryFile(
            one.rel,
            one.operation,
            one.footer.metadata.num_rows,
            one.footer.size,
            *(() if one.replaces is None else before[one.replaces]),
        )
        for one in new
    ]
    return [*written, *(HistoryFile(target.files[at].rel, "removed", None, None, *before[at]) for at in removed)]


def commit_files(session: Session, staging: Staging, journal: Journal, target: Target) -> None:
    """Commit, if the dataset is still the one that was listed, and keep what was learned of its footers."""
    session.commit(staging, journal, lambda: check_listing(target))
    if target.cache_update is not None:
        save_cache(target.cache_update, staging)
