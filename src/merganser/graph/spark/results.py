"""What a merge of a DataFrame into a graph says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.display import DisplayMixin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from merganser.core.model.result import MergeResult


@dataclass(frozen=True, slots=True)
class GraphMergeResult(DisplayMixin):
    """What a merge of rows into the nodes or edges of one type did.

    `created` are new records; `matched` are rows that met a record that was there, or that an earlier row made;
    `changed` are records that were there and got other values; `skipped` are rows that were left out: with NULL in a
    match property, or of edges without their nodes. `rows` is the sum of created, matched and skipped.
    """

    rows: int
    created: int
    matched: int
    changed: int
    skipped: int
    files_written: int
    files_preserved: int
    replayed: bool


def make_merge_result(done: MergeResult, rows: int, skipped: int, widened: Iterable[str]) -> GraphMergeResult:
    """Tell what a merge of rows did by what it did to the dataset; `widened` are files that were written before it."""
    changed = {*widened, *done.rewritten_files, *done.inserted_files}
    return GraphMergeResult(
        rows=rows,
        created=done.inserted,
        matched=rows - done.inserted - skipped,
        changed=done.updated,
        skipped=skipped,
        files_written=len(changed),
        files_preserved=len({*done.preserved_files} - changed),
        replayed=done.replayed,
    )
