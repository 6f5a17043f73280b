"""Checkpoints: how far a merge of sorted records has come, stored in the graph that it is merged into."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from merganser.core.model.options import check_option
from merganser.errors import GraphError

if TYPE_CHECKING:
    from merganser.graph.sqlite.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The last record that was merged, and the counts up to it; `done` if there are no more records.

    `rows` and `skipped` count source rows, `created` and `changed` count records.
    """

    last_id: str = ""
    rows: int = 0
    created: int = 0
    changed: int = 0
    skipped: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointedBatch:
    """A batch for a part of the graph, such as `nodes Job`, that is merged once even if it is repeated.

    Without an id, every merge starts from the beginning, and stores no checkpoint.
    """

    store: Store
    part: str
    id: str | None

    def __post_init__(self) -> None:
        check_option("batch_id", self.id)

    def read_checkpoint(self) -> Checkpoint:
        """Read the checkpoint of this batch; a batch that was not started has an empty one."""
        names = [field.name for field in fields(Checkpoint)]
        rows = self.store.fetch_all(
            f"SELECT {', '.join(names)} FROM resume_points WHERE part = ? AND batch_id = ?", (self.part, self.id or "")
        )
        return Checkpoint(**dict(zip(names, rows[0], strict=True))) if rows else Checkpoint()

    def advance(self, before: Checkpoint, after: Checkpoint) -> None:
        """Replace the checkpoint, inside the transaction that merges the records in between."""
        if self.id is None:
            return
        if self.read_checkpoint() != before:
            raise GraphError(
                f"Another process has merged a part of the batch {self.id!r} into {self.part} in the meantime. Run "
                "this again when that process has ended, to continue where it stopped."
            )
        self.store.connection.execute(
            "INSERT OR REPLACE INTO resume_points VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.part, self.id, *astuple(after)),
        )
