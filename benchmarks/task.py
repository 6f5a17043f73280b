"""The task for a contender's process, and its measurements; needs only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

# Exit codes of a contender's process that exceeded a limit.
OUT_OF_TIME = 75
OUT_OF_MEMORY = 76


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
    the batch into it; `measure` times a merge or plan, after a first merge of `warm_batch` into a table of
    `warm_files`. With `compare` the rows are read back and fingerprinted.
    """

    step: Literal["prepare", "merge", "measure"]
    contender: str
    place: str
    merge: Merge
    files: str = ""
    batch: str = ""
    warm_files: str = ""
    warm_batch: str = ""
    action: Literal["merge", "plan"] = "merge"
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
    """Measurements by a contender's process; `total` is set if the task has `compare`."""

    seconds: float = 0.0
    peak_mb: float = 0.0
    scan_seconds: float | None = None
    rows: int | None = None
    total: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
