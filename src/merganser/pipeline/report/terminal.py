"""The report of a run as plain text: tables that align in any script, and whether all rows are accounted for.

It is plain text of our own and not of `rich`, which only the extra `cli` installs: the library prints it, too.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from merganser.pipeline.report.report_fields import (
    SOURCE_ROWS,
    STEP_CHANGES,
    STEP_FILES,
    STEP_ROWS,
    format_duration,
    format_label,
    format_number,
)
from merganser.pipeline.report.timeline import list_timeline
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import TypeAlias

    from merganser.pipeline.run_result import RunOutcome, SourceOutcome, StepOutcome
    from merganser.timeline import SpanKind

    # The cells of a column, padded to one width; the first is its header.
    Column: TypeAlias = list[str]

WIDTH = 120
NAME_WIDTH = 28
PATH_WIDTH = 48
GAP = "  "
# The columns of the timeline.
_TIMELINE_KINDS: dict[str, SpanKind] = {
    "in jobs": "job",
    **{kind: kind for kind in ("merge", "commit", "waiting", "steps", "driver")},
}


def report_lines(outcome: RunOutcome) -> list[str]:
    """Format the report of a run as lines of text; columns of zeros are omitted.

    Args:
        outcome: The outcome of the run.

    >>> for line in report_lines(outcome):  # doctest: +SKIP
    ...     print(line)
    """
    own = (outcome.pipeline, outcome.run_id, outcome.spark_version, outcome.master)
    pipeline, run_id, version, master = map(escape_controls, own)
    when = f"started {format_time(outcome.started_at)}, took {format_duration(outcome.seconds)}"
    return [
        f"Pipeline {pipeline}, run {run_id}",
        f"{when}, Spark {version} on {master}",
        *(f"{escape_controls(name)} = {escape_controls(value)}" for name, value in outcome.parameters.items()),
        *_format_sources(outcome.sources),
        *_format_steps(outcome.steps),
        *_format_timeline(outcome),
        *_format_accounting(outcome),
        *_format_rules(outcome),
    ]


def _format_sources(sources: Sequence[SourceOutcome]) -> list[str]:
    if not sources:
        return []
    names = _make_name_column("source", [f"{source.name}{' *' * source.staged}" for source in sources])
    note = ["* staged by an earlier attempt"] * any(source.staged for source in sources)
    return ["", *_format_table(names, [_make_number_columns((*SOURCE_ROWS, "seconds"), sources)]), *note]


def _format_steps(steps: Sequence[StepOutcome]) -> list[str]:
    if not steps:
        return []
    names = _make_name_column("step", [f"{step.name}{' *' * (step.state == 'replayed')}" for step in steps])
    about = [
        _make_column("kind", [step.kind for step in steps]),
        _make_name_column("source", [step.source for step in steps]),
        _make_column("target", [shorten(step.target, PATH_WIDTH) for step in steps]),
    ]
    numbers = (STEP_ROWS, STEP_CHANGES, (*STEP_FILES, "seconds"))
    groups = [*(_make_number_columns(fields, steps) for fields in numbers), about]
    note = ["* replayed: an earlier attempt had committed it"] * any(step.state == "replayed" for step in steps)
    return ["", *_format_table(names, groups), *note]


def _format_timeline(outcome: RunOutcome) -> list[str]:
    rows = list_timeline(outcome)
    if not rows:
        return []
    names = _make_name_column("timeline", [row.name for row in rows])
    times = {"started": [row.started for row in rows], "seconds": [row.seconds for row in rows]}
    parts: dict[str, Sequence[float]] = {"jobs": [row.count_jobs() for row in rows]}
    parts |= {label: [row.sum_seconds(kind) for row in rows] for label, kind in _TIMELINE_KINDS.items()}
    return ["", *_format_table(names, [_format_columns(times), _format_columns(parts)])]


def _format_accounting(outcome: RunOutcome) -> list[str]:
    wrong = outcome.unbalanced()
    title = "The accounting does not hold:" if wrong else "The accounting holds:"
    return ["", title, *(f"  {line}" for line in wrong or format_totals(outcome))]


def format_totals(outcome: RunOutcome) -> list[str]:
    """Format the totals of the sources and of the steps as two sums; zeros are omitted."""
    sums = []
    if outcome.sources:
        sums.append(_format_sum("read", "rows_read", SOURCE_ROWS[2:5], outcome.sources))
    if outcome.steps:
        sums.append(_format_sum("into steps", "rows_in", STEP_ROWS[1:], outcome.steps))
    return sums or ["there were no rows"]


def _format_sum(label: str, whole: str, parts: Sequence[str], outcomes: Sequence[SourceOutcome | StepOutcome]) -> str:
    totals = {field: sum(getattr(outcome, field) for outcome in outcomes) for field in (whole, *parts)}
    # The last one is where rows are meant to go: it is shown even if it is zero.
    addends = [f"{totals[part]:,} {format_label(part)}" for part in parts if totals[part] or part == parts[-1]]
    return f"{totals[whole]:,} {label} = {' + '.join(addends)}"


def _format_rules(outcome: RunOutcome) -> list[str]:
    failed = sorted(
        (-rule.rows, source.name, rule.name) for source in outcome.sources for rule in source.rules if rule.rows
    )
    if not failed:
        return []
    rules = _make_column("rule that failed", [shorten(rule, PATH_WIDTH) for _, _, rule in failed])
    sources = _make_name_column("source", [source for _, source, _ in failed])
    rows = _make_column("rows", [f"{-count:,}" for count, _, _ in failed], right=True)
    where = [f"The rows are in {escape_controls(outcome.quarantine)}"] if outcome.quarantine else []
    return ["", *_format_table(rules, [[sources, rows]]), *where]


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
    head = tail = ""
    while True:
        # The side that is shorter grows next.
        if measure_width(head) <= measure_width(tail):
            grown = text[: len(head) + 1], tail
        else:
            grown = head, text[-len(tail) - 1 :]
        if measure_width("".join(grown)) >= width:
            return f"{head}…{tail}"
        head, tail = grown


def measure_width(text: str) -> int:
    r"""Count the terminal cells of a string: East Asian characters take two, combining ones none.

    >>> measure_width("abc"), measure_width("注文"), measure_width("e\u0301")
    (3, 4, 1)
    """
    visible = (one for one in text if unicodedata.category(one) not in {"Mn", "Me", "Cf"})
    return sum(2 if unicodedata.east_asian_width(one) in {"W", "F"} else 1 for one in visible)


def _make_column(label: str, texts: Sequence[str], *, right: bool = False) -> Column:
    cells = [label, *texts]
    width = max(map(measure_width, cells))
    blanks = [" " * (width - measure_width(cell)) for cell in cells]
    return [blank + cell if right else cell + blank for cell, blank in zip(cells, blanks, strict=True)]


def _make_name_column(label: str, names: Sequence[str]) -> Column:
    return _make_column(label, [shorten(name, NAME_WIDTH) for name in names])


def _make_number_columns(fields: Sequence[str], outcomes: Sequence[SourceOutcome | StepOutcome]) -> list[Column]:
    return _format_columns({format_label(field): [getattr(outcome, field) for outcome in outcomes] for field in fields})


def _format_columns(values: Mapping[str, Sequence[float]]) -> list[Column]:
    return [_make_column(label, list(map(format_number, of)), right=True) for label, of in values.items() if any(of)]


def _format_table(first: Column, groups: list[list[Column]]) -> list[str]:
    """Put groups of columns side by side; a group that exceeds the width starts another table below."""
    tables = [[first]]
    for group in groups:
        if len(tables[-1]) > 1 and _measure_table([*tables[-1], *group]) > WIDTH:
            tables.append([first])
        tables[-1] += group
    lines: list[str] = []
    for table in tables:
        header, *rows = (GAP.join(cells).rstrip() for cells in zip(*table, strict=True))
        lines += [*([""] * bool(lines)), header, "─" * _measure_table(table), *rows]
    return lines


def _measure_table(columns: Sequence[Column]) -> int:
    return measure_width(GAP.join(column[0] for column in columns))
