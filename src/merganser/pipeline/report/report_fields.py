"""The fields that reports show, their labels, and the format of numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportField:
    """One field of a source's or step's outcome, and its label in a report."""

    field: str
    label: str


SOURCE_ROWS = (
    ReportField("files", "files"),
    ReportField("rows_read", "read"),
    ReportField("rows_filtered", "filtered"),
    ReportField("rows_quarantined", "quarantined"),
    ReportField("rows_clean", "clean"),
    ReportField("seconds", "seconds"),
)
STEP_ROWS = (
    ReportField("rows_in", "in"),
    ReportField("rows_quarantined", "quarantined"),
    ReportField("rows_skipped_null", "left out"),
    ReportField("rows_deduplicated", "deduplicated"),
    ReportField("rows_merged", "merged"),
)
STEP_CHANGES = (
    ReportField("inserted", "inserted"),
    ReportField("updated", "updated"),
    ReportField("skipped", "skipped"),
    ReportField("deleted", "deleted"),
)
STEP_FILES = (
    ReportField("files_written", "written"),
    ReportField("files_rewritten", "rewritten"),
    ReportField("files_preserved", "preserved"),
    ReportField("files_removed", "removed"),
    ReportField("seconds", "seconds"),
)

# Above this many seconds, hundredths are noise.
COARSE_SECONDS = 10


def format_number(value: float) -> str:
    """Format a number with thousands separators; seconds, which are floats, with one or two decimals.

    >>> format_number(10_000_000_000), format_number(0.5), format_number(1234.56)
    ('10,000,000,000', '0.50', '1,234.6')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if value >= COARSE_SECONDS else f"{value:.2f}"


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(3.21), format_duration(75), format_duration(7384.5)
    ('3.2 s', '1 min 15 s', '2 h 3 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
