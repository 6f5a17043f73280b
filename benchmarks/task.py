"""The task for a contender's process, and its measurements; needs only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

# Exit codes of a contender's process that exceeded a limit.
OUT_OF_TIME = 75
OUT_OF_MEMORY = 76
Action: TypeAlias = Literal["merge", "plan", "add_column", "widen_column"]
# The columns that change, and their types afterwards.
ADDED = {"discount": "double"}
WIDENED = {"customer": "int64"}
CHANGED_TYPES: dict[Action, dict[str, str]] = {"add_column": ADDED, "widen_column": WIDENED}


@dataclass(frozen=True, slots=True)
class Merge:
    """Keys and options of a merge; empty `update_columns` mean every column."""

    keys: tuple[str, ...]
    update_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One step of one contender.

    `prepare` converts the Parquet files in `files` to the contender's own table in the folder `place`; `merge` merges
    the batch into it; `measure` times the action, after a first one with `warm_batch` on a table of `warm_files`. With
    `compare` the rows are read back and fingerprinted.
    """

    step: Literal["prepare", "merge", "measure"]
    contender: str
    place: str
    merge: Merge
    files: str = ""
    batch: str = ""
    warm_files: str = ""
    warm_batch: str = ""
    action: Action = "merge"
    compare: bool = False
    limit: float = 150.0

    def to_json(self) -> str:
        """Write the task as the argument of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read the argument of a process."""
        fields = json.loads(text)
        merge = fields.pop("merge")
        return cls(
            merge=Merge(tuple(merge["keys"]), tuple(merge["update_columns"]), merge["skip_unchanged"]),
            **fields,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements by a contender's process, and the types of all columns; `total` is set if the task has `compare`."""

    seconds: float = 0.0
    peak_mb: float = 0.0
    scan_seconds: float | None = None
    rows: int | None = None
    total: int | None = None
    types: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
