"""The result of a merge of a DataFrame into a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.display import DisplayMixin

if TYPE_CHECKING:
    from merganser.core.model.result import MergeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMergeResult(DisplayMixin):
    """Counts of a merge of rows into the nodes or edges of one type.

    `created` counts new records; `matched` rows whose record existed, or was created by an earlier row; `changed`
    existing records that got other values; `skipped` rows with NULL in a match property, and edges whose nodes do not
    exist. `rows` is the sum of created, matched and skipped.
    """

    rows: int
    created: int
    matched: int
    changed: int
    skipped: int
    files_written: int
    files_preserved: int
    replayed: bool


def make_merge_result(done: MergeResult, rows: int, skipped: int) -> GraphMergeResult:
    """Derive the result from that of the dataset."""
    return GraphMergeResult(
        rows=rows,
        created=done.inserted,
        matched=rows - done.inserted - skipped,
        changed=done.updated,
        skipped=skipped,
        files_written=len(done.rewritten_files) + len(done.inserted_files),
        files_preserved=len(done.preserved_files),
        replayed=done.replayed,
    )
