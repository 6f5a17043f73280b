"""The tables of the pipeline, and what a way to store them must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its upsert: new keys are inserted.

    With `sequence`, a row replaces the stored one if it is later by that column. Otherwise the columns of `updates`
    are overwritten where they differ.
    """

    name: str
    keys: tuple[str, ...]
    updates: tuple[str, ...] = ()
    sequence: str | None = None
    partition: str | None = None


QUARANTINE = Table("quarantine", ("id",))
JOBS = Table("jobs", ("url",), sequence="scraped_at", partition="country")
COMPANIES = Table("companies", ("name",), updates=("country", "last_seen"), partition="country")
COMPANY_NODES = Table("nodes/Company", ("name",), updates=("last_seen",))
JOB_NODES = Table("nodes/Job", ("url",), updates=("title", "salary_min", "salary_max"))
EDGES = Table("edges/POSTED_BY", ("src", "dst"))


class Storage(Protocol):
    """Tables in a folder."""

    def upsert(self, rows: DataFrame, table: Table) -> None:
        """Merge rows, at most one of each key, into a table, which is created if it does not exist."""

    def read(self, table: Table) -> DataFrame:
        """Read a table."""
