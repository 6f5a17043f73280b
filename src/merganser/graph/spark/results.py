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

    `missing` counts the records that no row matched and that were deleted or changed, and `missing_ids` lists the
    first thousand; `kept` counts nodes that were not deleted because they have edges, `detached` the edges deleted
    with nodes, and `nodes_created` the nodes created for edges.
    """

    rows: int
    created: int
    matched: int
    changed: int
    skipped: int
    files_written: int
    files_preserved: int
    replayed: bool
    missing: int = 0
    kept: int = 0
    detached: int = 0
    nodes_created: int = 0
    missing_ids: tuple[str | int, ...] = ()


@dataclass(slots=True, kw_only=True)
class MergeRecord:
    """What the dataset's own record of a merge does not hold."""

    rows: int
    skipped: int
    missing: int = 0
    changes_missing: bool = False
    kept: int = 0
    detached: int = 0
    nodes_created: int = 0
    missing_ids: tuple[str, ...] = ()


def make_merge_result(done: MergeResult, record: MergeRecord) -> GraphMergeResult:
    """Derive the result from that of the dataset."""
    return GraphMergeResult(
        rows=record.rows,
        created=done.inserted,
        matched=record.rows - done.inserted - record.skipped,
        changed=done.updated - (record.missing if record.changes_missing else 0),
        skipped=record.skipped,
        missing=record.missing,
        kept=record.kept,
        detached=record.detached,
        nodes_created=record.nodes_created,
        missing_ids=record.missing_ids,
        files_written=len(done.rewritten_files) + len(done.inserted_files),
        files_preserved=len(done.preserved_files),
        replayed=done.replayed,
    )
