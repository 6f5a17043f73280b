"""What the benchmark asks of a contender's process, and what comes back; needs the standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

# How a contender's process ends that has had its share.
OUT_OF_TIME = 75
OUT_OF_MEMORY = 76


@dataclass(frozen=True, slots=True)
class Merge:
    """What is to be merged, and how; `update_columns` are all that a matched row takes, none means every column."""

    keys: tuple[str, ...]
    update_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One step of one contender.

    `prepare` turns the Parquet files of `files` into the contender's own table in the folder `place`; `merge` merges
    the batch into it; `measure` merges, or plans, and takes the time, after a first merge of `warm_batch` into a table
    made of `warm_files`. With `compare` the rows are read back and fingerprinted.
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
        told = json.loads(text)
        merge = told.pop("merge")
        return cls(
            merge=Merge(tuple(merge["keys"]), tuple(merge["update_columns"]), merge["skip_unchanged"]),
            **told,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What a contender's process has found out about itself; the total of the rows is there if it was asked for."""

    seconds: float = 0.0
    peak_mb: float = 0.0
    scan_seconds: float | None = None
    rows: int | None = None
    total: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
