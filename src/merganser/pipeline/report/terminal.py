"""A run's report as plain text: tables that align in any script, and one line that says whether every row is there."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.pipeline.report.report_fields import (
    SOURCE_ROWS,
    STEP_CHANGES,
    STEP_FILES,
    STEP_ROWS,
    Column,
    duration,
    shown,
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
    """Give the report line by line; columns that are zero everywhere are left out."""
    return [*_head(outcome), *_sources(outcome), *_steps(outcome), *_accounting(outcome), *_rules(outcome)]


def _head(outcome: RunOutcome) -> list[str]:
    when = f"started {written_time(outcome.started_at)}, took {duration(outcome.seconds)}"
    lines = [
        f"Pipeline {escape_controls(outcome.pipeline)}, run {escape_controls(outcome.run_id)}",
        f"{when}, Spark {escape_controls(outcome.spark_version)} on {escape_controls(outcome.master)}",
    ]
    lines += [f"{escape_controls(name)} = {escape_controls(value)}" for name, value in outcome.parameters.items()]
    return lines


def _sources(outcome: RunOutcome) -> list[str]:
    if not outcome.sources:
        return []
    names = _names("source", [f"{source.name}{' *' * source.staged}" for source in outcome.sources])
    note = ["* staged by an earlier attempt"] if any(source.staged for source in outcome.sources) else []
    return ["", *_table([names], [_numbers(SOURCE_ROWS, outcome.sources)]), *note]


def _steps(outcome: RunOutcome) -> list[str]:
    steps = outcome.steps
    if not steps:
        return []
    leading = [_names("step", [f"{step.name}{' *' * (step.state == 'replayed')}" for step in steps])]
    about = [
        _Cells.of("kind", [step.kind for step in steps]),
        _names("source", [step.source for step in steps]),
        _Cells.of("target", [shortened(step.target, PATH_WIDTH) for step in steps]),
    ]
    groups = [*(_numbers(columns, steps) for columns in (STEP_ROWS, STEP_CHANGES, STEP_FILES)), about]
    note = (
        ["* replayed: an earlier attempt had committed it"] if any(step.state == "replayed" for step in steps) else []
    )
    return ["", *_table(leading, groups), *note]


def _accounting(outcome: RunOutcome) -> list[str]:
    wrong = outcome.unbalanced()
    if wrong:
        return ["", "The accounting does not hold:", *(f"  {sentence}" for sentence in wrong)]
    return ["", "The accounting holds:", *(f"  {total}" for total in accounting(outcome))]


def accounting(outcome: RunOutcome) -> list[str]:
    """Give the two sums over the whole run, of the sources and of the steps; parts that are zero are left out."""
    of_sources = (("rows_filtered", "filtered"), ("rows_quarantined", "quarantined"), ("rows_clean", "clean"))
    of_steps = tuple((column.field, column.label) for column in STEP_ROWS[1:])
    sums = []
    if outcome.sources:
        sums.append(_sum("read", "rows_read", of_sources, outcome.sources))
    if outcome.steps:
        sums.append(_sum("into steps", "rows_in", of_steps, outcome.steps))
    return sums or ["there were no rows"]


def _sum(
    label: str, whole: str, parts: tuple[tuple[str, str], ...], outcomes: Sequence[SourceOutcome | StepOutcome]
) -> str:
    totals = [(name, sum(getattr(outcome, field) for outcome in outcomes)) for field, name in parts]
    # The last part is where rows are meant to go: it is named even when none did.
    kept = [(name, total) for name, total in totals if total or name == parts[-1][1]]
    shown_parts = " + ".join(f"{shown(total)} {name}" for name, total in kept)
    return f"{shown(sum(getattr(outcome, whole) for outcome in outcomes))} {label} = {shown_parts}"


def _rules(outcome: RunOutcome) -> list[str]:
    failed = sorted(
        ((rule.rows, source.name, rule.name) for source in outcome.sources for rule in source.rules if rule.rows),
        key=lambda found: (-found[0], found[1], found[2]),
    )
    if not failed:
        return []
    rows = _Cells.of("rows", [shown(count) for count, _, _ in failed], right=True)
    table = _table(
        [_Cells.of("rule that failed", [shortened(rule, PATH_WIDTH) for _, _, rule in failed])],
        [[_names("source", [source for _, source, _ in failed]), rows]],
    )
    where = [f"The rows are in {escape_controls(outcome.quarantine)}"] if outcome.quarantine else []
    return ["", *table, *where]


def written_time(moment: datetime) -> str:
    """Write a moment to the second, with its offset."""
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname() or f'{moment:%z}'}"


def shortened(text: str, width: int) -> str:
    """Cut a text in the middle until it fits: both ends of a path tell more than its middle.

    >>> shortened("s3://lake/warehouse/sales/orders/current", 21)
    's3://lake/…rs/current'
    """
    text = escape_controls(text)
    if text_width(text) <= width:
        return text
    head, tail = "", ""
    start, end = 0, len(text)
    while start < end:
        # The side that is shorter grows next.
        from_head = text_width(head) <= text_width(tail)
        grown = (head + text[start], tail) if from_head else (head, text[end - 1] + tail)
        if text_width(grown[0]) + text_width(grown[1]) >= width:
            break
        head, tail = grown
        start, end = (start + 1, end) if from_head else (start, end - 1)
    return f"{head}…{tail}"


def text_width(text: str) -> int:
    r"""Count the terminal cells of a text: East Asian characters take two, combining ones none.

    >>> text_width("abc"), text_width("注文"), text_width("e\u0301")
    (3, 4, 1)
    """
    return sum(_cell_width(character) for character in text)


def _cell_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


@dataclass(frozen=True, slots=True)
class _Cells:
    """One column of a table: its lines, the header first, and how they align."""

    lines: tuple[str, ...]
    width: int
    right: bool

    @classmethod
    def of(cls, label: str, texts: Sequence[str], *, right: bool = False) -> _Cells:
        lines = (label, *texts)
        return cls(lines, max(map(text_width, lines)), right)

    def padded(self) -> list[str]:
        blanks = [" " * (self.width - text_width(line)) for line in self.lines]
        pairs = zip(self.lines, blanks, strict=True)
        return [blank + line if self.right else line + blank for line, blank in pairs]


def _names(label: str, names: Sequence[str]) -> _Cells:
    return _Cells.of(label, [shortened(name, NAME_WIDTH) for name in names])


def _numbers(columns: Sequence[Column], outcomes: Sequence[SourceOutcome | StepOutcome]) -> list[_Cells]:
    values = [(column.label, [getattr(outcome, column.field) for outcome in outcomes]) for column in columns]
    return [_Cells.of(label, [shown(value) for value in found], right=True) for label, found in values if any(found)]


def _table(leading: list[_Cells], groups: list[list[_Cells]]) -> list[str]:
    """Lay groups of columns side by side; one that would pass the width starts a new table under the last."""
    tables: list[list[_Cells]] = [list(leading)]
    for group in groups:
        if len(tables[-1]) > len(leading) and _width([*tables[-1], *group]) > WIDTH:
            tables.append(list(leading))
        tables[-1] += group
    lines: list[str] = []
    for table in tables:
        header, *rows = (GAP.join(cells).rstrip() for cells in zip(*(column.padded() for column in table), strict=True))
        lines += [*([""] * bool(lines)), header, "─" * _width(table), *rows]
    return lines


def _width(columns: Sequence[_Cells]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)
