"""The fields that reports show, their labels, and the format of numbers."""

from __future__ import annotations

SOURCE_ROWS = ("files", "rows_read", "rows_filtered", "rows_quarantined", "rows_clean")
STEP_ROWS = ("rows_in", "rows_quarantined", "rows_skipped_null", "rows_deduplicated", "rows_merged")
STEP_CHANGES = ("inserted", "updated", "skipped", "deleted")
STEP_FILES = ("files_written", "files_rewritten", "files_preserved", "files_removed")
TIMES = ("started", "seconds")
# Above this many seconds, hundredths are noise.
COARSE_SECONDS = 10


def format_label(field: str) -> str:
    """Name a field of a source's or step's outcome.

    >>> format_label("rows_read"), format_label("files_written"), format_label("rows_skipped_null")
    ('read', 'written', 'left out')
    """
    return "left out" if field == "rows_skipped_null" else field.removeprefix("rows_").removeprefix("files_")


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
