"""The report of a run as plain text: tables that align in any script, and whether all rows are accounted for.

It is plain text of our own and not of `rich`, which only the extra `cli` installs: the library prints it, too.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.pipeline.report.report_fields import (
    SOURCE_ROWS,
    STEP_CHANGES,
    STEP_FILES,
    STEP_ROWS,
    ReportField,
    format_duration,
    format_number,
)
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from merganser.pipeline.run_result import RunOutcome, SourceOutcome, StepOutcome

WIDTH = 120
NAME_WIDTH = 28
PATH_WIDTH = 48
GAP = "  "


def report_lines(outcome: RunOutcome) -> list[str]:
    """Format the report of a run as lines of text; columns of zeros are omitted.

    Args:
        outcome: The outcome of the run.

    >>> for line in report_lines(outcome):  # doctest: +SKIP
    ...     print(line)
    """
    return [
        *_format_head(outcome),
        *_format_sources(outcome),
        *_format_steps(outcome),
        *_format_accounting(outcome),
        *_format_rules(outcome),
    ]


def _format_head(outcome: RunOutcome) -> list[str]:
    when = f"started {format_time(outcome.started_at)}, took {format_duration(outcome.seconds)}"
    lines = [
        f"Pipeline {escape_controls(outcome.pipeline)}, run {escape_controls(outcome.run_id)}",
        f"{when}, Spark {escape_controls(outcome.spark_version)} on {escape_controls(outcome.master)}",
    ]
    lines += [f"{escape_controls(name)} = {escape_controls(value)}" for name, value in outcome.parameters.items()]
    return lines


def _format_sources(outcome: RunOutcome) -> list[str]:
    if not outcome.sources:
        return []
    names = _make_name_column("source", [f"{source.name}{' *' * source.staged}" for source in outcome.sources])
    note = ["* staged by an earlier attempt"] if any(source.staged for source in outcome.sources) else []
    return ["", *_format_table([names], [_make_number_columns(SOURCE_ROWS, outcome.sources)]), *note]


def _format_steps(outcome: RunOutcome) -> list[str]:
    steps = outcome.steps
    if not steps:
        return []
    leading = [_make_name_column("step", [f"{step.name}{' *' * (step.state == 'replayed')}" for step in steps])]
    about = [
        _TextColumn.of("kind", [step.kind for step in steps]),
        _make_name_column("source", [step.source for step in steps]),
        _TextColumn.of("target", [shorten(step.target, PATH_WIDTH) for step in steps]),
    ]
    groups = [*(_make_number_columns(columns, steps) for columns in (STEP_ROWS, STEP_CHANGES, STEP_FILES)), about]
    note = (
        ["* replayed: an earlier attempt had committed it"] if any(step.state == "replayed" for step in steps) else []
    )
    return ["", *_format_table(leading, groups), *note]


def _format_accounting(outcome: RunOutcome) -> list[str]:
    wrong = outcome.unbalanced()
    if wrong:
        return ["", "The accounting does not hold:", *(f"  {sentence}" for sentence in wrong)]
    return ["", "The accounting holds:", *(f"  {total}" for total in format_totals(outcome))]


def format_totals(outcome: RunOutcome) -> list[str]:
    """Format the totals of the sources and of the steps as two sums; zeros are omitted."""
    of_sources = (("rows_filtered", "filtered"), ("rows_quarantined", "quarantined"), ("rows_clean", "clean"))
    of_steps = tuple((column.field, column.label) for column in STEP_ROWS[1:])
    sums = []
    if outcome.sources:
        sums.append(_format_sum("read", "rows_read", of_sources, outcome.sources))
    if outcome.steps:
        sums.append(_format_sum("into steps", "rows_in", of_steps, outcome.steps))
    return sums or ["there were no rows"]


def _format_sum(
    label: str, total_field: str, parts: tuple[tuple[str, str], ...], outcomes: Sequence[SourceOutcome | StepOutcome]
) -> str:
    totals = [(name, sum(getattr(outcome, field) for outcome in outcomes)) for field, name in parts]
    # The last one is where rows are meant to go: it is shown even if it is zero.
    addends = [f"{format_number(total)} {name}" for name, total in totals if total or name == parts[-1][1]]
    return (
        f"{format_number(sum(getattr(outcome, total_field) for outcome in outcomes))} {label} = {' + '.join(addends)}"
    )


def _format_rules(outcome: RunOutcome) -> list[str]:
    failed = sorted(
        ((rule.rows, source.name, rule.name) for source in outcome.sources for rule in source.rules if rule.rows),
        key=lambda found: (-found[0], found[1], found[2]),
    )
    if not failed:
        return []
    rows = _TextColumn.of("rows", [format_number(count) for count, _, _ in failed], right=True)
    table = _format_table(
        [_TextColumn.of("rule that failed", [shorten(rule, PATH_WIDTH) for _, _, rule in failed])],
        [[_make_name_column("source", [source for _, source, _ in failed]), rows]],
    )
    where = [f"The rows are in {escape_controls(outcome.quarantine)}"] if outcome.quarantine else []
    return ["", *table, *where]


def format_time(moment: datetime) -> str:
    """Format a time to the second, with its zone."""
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname() or f'{moment:%z}'}"


def shorten(text: str, width: int) -> str:
    """Shorten a string in the middle: both ends of a path say more than its middle.

    >>> shorten("s3://lake/warehouse/sales/orders/current", 21)
    's3://lake/…rs/current'
    """
    text = escape_controls(text)
    if measure_width(text) <= width:
        return text
    head, tail = "", ""
    start, end = 0, len(text)
    while start < end:
        # The side that is shorter grows next.
        from_head = measure_width(head) <= measure_width(tail)
        grown = (head + text[start], tail) if from_head else (head, text[end - 1] + tail)
        if measure_width(grown[0]) + measure_width(grown[1]) >= width:
            break
        head, tail = grown
        start, end = (start + 1, end) if from_head else (start, end - 1)
    return f"{head}…{tail}"


def measure_width(text: str) -> int:
    r"""Count the terminal cells of a string: East Asian characters take two, combining ones none.

    >>> measure_width("abc"), measure_width("注文"), measure_width("e\u0301")
    (3, 4, 1)
    """
    return sum(_measure_character(character) for character in text)


def _measure_character(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


@dataclass(frozen=True, slots=True)
class _TextColumn:
    """One column of a table: its lines, the header first, and how they align."""

    lines: tuple[str, ...]
    width: int
    is_right_aligned: bool

    @classmethod
    def of(cls, label: str, texts: Sequence[str], *, right: bool = False) -> _TextColumn:
        lines = (label, *texts)
        return cls(lines, max(map(measure_width, lines)), right)

    def pad_lines(self) -> list[str]:
        blanks = [" " * (self.width - measure_width(line)) for line in self.lines]
        pairs = zip(self.lines, blanks, strict=True)
        return [blank + line if self.is_right_aligned else line + blank for line, blank in pairs]


def _make_name_column(label: str, names: Sequence[str]) -> _TextColumn:
    return _TextColumn.of(label, [shorten(name, NAME_WIDTH) for name in names])


def _make_number_columns(
    columns: Sequence[ReportField], outcomes: Sequence[SourceOutcome | StepOutcome]
) -> list[_TextColumn]:
    values = [(column.label, [getattr(outcome, column.field) for outcome in outcomes]) for column in columns]
    return [
        _TextColumn.of(label, [format_number(value) for value in found], right=True)
        for label, found in values
        if any(found)
    ]


def _format_table(leading: list[_TextColumn], groups: list[list[_TextColumn]]) -> list[str]:
    """Put groups of columns side by side; a group that exceeds the width starts another table below."""
    tables: list[list[_TextColumn]] = [list(leading)]
    for group in groups:
        if len(tables[-1]) > len(leading) and _measure_table([*tables[-1], *group]) > WIDTH:
            tables.append(list(leading))
        tables[-1] += group
    lines: list[str] = []
    for table in tables:
        header, *rows = (
            GAP.join(cells).rstrip() for cells in zip(*(column.pad_lines() for column in table), strict=True)
        )
        lines += [*([""] * bool(lines)), header, "─" * _measure_table(table), *rows]
    return lines


def _measure_table(columns: Sequence[_TextColumn]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)
