"""Resume points: how far a merge of sorted records has come, kept in the graph that it is merged into."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from merganser.core.model.options import check_batch_id
from merganser.errors import GraphError

if TYPE_CHECKING:
    from merganser.graph.sqlite.store import Store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last record that was merged, and the counts up to it; `done` when there are no more.

    `rows` and `skipped` are of source rows, `created` and `changed` of records.
    """

    last_id: str = ""
    rows: int = 0
    created: int = 0
    changed: int = 0
    skipped: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointedBatch:
    """The batch of a part of the graph, such as `nodes Job`, that may be merged again, and is merged once.

    Without an id, each merge is one of its own, and nothing is kept of it.
    """

    store: Store
    part: str
    id: str | None

    def __post_init__(self) -> None:
        check_batch_id(self.id)

    def read_checkpoint(self) -> Checkpoint:
        """Give the point that this batch has come to; one that was never begun is before its first record."""
        rows = self.store.fetch_all(
            "SELECT last_id, rows, created, changed, skipped, done FROM resume_points WHERE part = ? AND batch_id = ?",
            (self.part, self.id or ""),
        )
        return Checkpoint(*rows[0]) if rows else Checkpoint()

    def advance(self, before: Checkpoint, after: Checkpoint) -> None:
        """Put the point further, inside the transaction that merged what is between."""
        if self.id is None:
            return
        if self.read_checkpoint() != before:
            message = (
                f"Another process has merged a part of the batch {self.id!r} into {self.part} in the meantime. Run it "
                "again when that one has ended: it goes on where that one stopped."
            )
            raise GraphError(message)
        self.store.connection.execute(
            "INSERT OR REPLACE INTO resume_points VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.part, self.id, *astuple(after)),
        )
