"""Which figures the reports show, under which names, and how a figure is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a source's or step's outcome, and its name in a report."""

    field: str
    label: str


SOURCE_ROWS = (
    Column("files", "files"),
    Column("rows_read", "read"),
    Column("rows_filtered", "filtered"),
    Column("rows_quarantined", "quarantined"),
    Column("rows_clean", "clean"),
    Column("seconds", "seconds"),
)
STEP_ROWS = (
    Column("rows_in", "in"),
    Column("rows_quarantined", "quarantined"),
    Column("rows_skipped_null", "left out"),
    Column("rows_deduplicated", "deduplicated"),
    Column("rows_merged", "merged"),
)
STEP_CHANGES = (
    Column("inserted", "inserted"),
    Column("updated", "updated"),
    Column("skipped", "skipped"),
    Column("deleted", "deleted"),
)
STEP_FILES = (
    Column("files_written", "written"),
    Column("files_rewritten", "rewritten"),
    Column("files_preserved", "preserved"),
    Column("files_removed", "removed"),
    Column("seconds", "seconds"),
)

# Above this many seconds, hundredths are noise.
ROUGH = 10


def shown(value: float) -> str:
    """Write a figure with thousands separators; a fraction, which is seconds, with one or two digits.

    >>> shown(10_000_000_000), shown(0.5), shown(1234.56)
    ('10,000,000,000', '0.50', '1,234.6')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if value >= ROUGH else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Write a time span for people.

    >>> duration(3.21), duration(75), duration(7384.5)
    ('3.2 s', '1 min 15 s', '2 h 3 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
