"""The report of a run as one HTML file, without scripts and without requests to other files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from merganser.pipeline.report.charts import (
    Bar,
    Chart,
    Segment,
    escape_name,
    escape_text,
    format_data,
    render_chart,
)
from merganser.pipeline.report.report_fields import (
    SOURCE_ROWS,
    STEP_CHANGES,
    STEP_FILES,
    STEP_ROWS,
    TIMES,
    format_duration,
    format_label,
    format_number,
)
from merganser.pipeline.report.terminal import format_time, format_totals
from merganser.pipeline.report.timeline import format_span, list_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.pipeline.report.timeline import TimelineRow
    from merganser.pipeline.run_result import RunOutcome, SourceOutcome, StepOutcome

# The browser refuses any request of this page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

HEADLINE = (
    ("rows read", "sources", "rows_read"),
    ("quarantined", "sources", "rows_quarantined"),
    *((change, "steps", change) for change in STEP_CHANGES),
)
# The segments of a step's bar, in order: what the merge did comes first.
STEP_ACTIONS = (*STEP_CHANGES, "rows_deduplicated", "rows_skipped_null", "rows_quarantined")


def report_page(outcome: RunOutcome) -> str:
    """Render the report of a run as an HTML page.

    The page embeds the outcome as JSON; the `data-key` of every number is its path there.

    Args:
        outcome: The outcome of the run.

    >>> report_page(outcome).startswith("<!DOCTYPE html>")  # doctest: +SKIP
    True
    """
    # A script element ends at the first `</script`, so that `<` is escaped in JSON.
    embedded = outcome.to_json().replace("<", "\\u003c")
    charts = "".join(render_chart(chart) for chart in _make_charts(outcome))
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    title = escape_text(f"{outcome.pipeline} · run {outcome.run_id}")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{_render_head(outcome)}{_render_headline(outcome)}{_render_accounting(outcome)}"
        f'<div class="charts">\n{charts}</div>\n{_render_tables(outcome)}</main>\n'
        f'<script type="application/json" id="outcome">{embedded}</script>\n</body>\n</html>\n'
    )


def _render_head(outcome: RunOutcome) -> str:
    facts = [
        ("Run", outcome.run_id),
        ("Started", format_time(outcome.started_at)),
        ("Took", format_duration(outcome.seconds)),
        ("Spark", f"{outcome.spark_version} on {outcome.master}"),
        *([("Quarantine", outcome.quarantine)] if outcome.quarantine else []),
        *outcome.parameters.items(),
    ]
    listed = "".join(f"<div><dt>{escape_name(name)}</dt><dd>{escape_name(fact)}</dd></div>\n" for name, fact in facts)
    return (
        f'<header>\n<p class="eyebrow">Pipeline run</p>\n<h1>{escape_name(outcome.pipeline)}</h1>\n'
        f'<dl class="facts">\n{listed}</dl>\n</header>\n'
    )


def _render_headline(outcome: RunOutcome) -> str:
    tiles = []
    for label, group, field in HEADLINE:
        total = sum(getattr(found, field) for found in getattr(outcome, group))
        zero = ' class="zero"' if not total else ""
        tiles.append(
            f"<div{zero}><dt>{label}</dt>"
            f"<dd {format_data(f'{group}.*.{field}', total)}>{format_number(total)}</dd></div>\n"
        )
    return f'<dl class="headline" aria-label="The run in figures">\n{"".join(tiles)}</dl>\n'


def _render_accounting(outcome: RunOutcome) -> str:
    wrong = outcome.unbalanced()
    listed = "".join(f"<li>{escape_text(line)}</li>" for line in wrong or format_totals(outcome))
    if wrong:
        start = '<div class="accounting wrong" role="alert"><p>The accounting does not hold.</p>'
    else:
        start = '<div class="accounting"><p>Every row is accounted for.</p>'
    return f"{start}<ul>{listed}</ul></div>\n"


def _make_charts(outcome: RunOutcome) -> list[Chart]:
    steps = list(enumerate(outcome.steps))
    return [
        Chart(
            "went",
            "Where the rows went",
            "Rows of each source: clean rows, which are merged, rows that failed a rule, and rows dropped by a filter.",
            tuple(_make_source_bar(number, source) for number, source in enumerate(outcome.sources)),
            "No source had any rows.",
            is_normalized=True,
        ),
        Chart(
            "rows",
            "Rows by step",
            "Actions on the rows of each step, with one scale for all steps; next to each bar, its input rows.",
            tuple(_make_step_bar(number, step, STEP_ACTIONS, "rows_in") for number, step in steps),
            "No step had any rows.",
        ),
        Chart(
            "rules",
            "Quarantined by rule",
            "Rows that failed a rule, by rule and source; the most frequent first.",
            _make_rule_bars(outcome.sources),
            "No row failed a rule.",
        ),
        Chart(
            "files",
            "Files by step",
            "Data files that each merge added, rewrote or preserved.",
            tuple(_make_step_bar(number, step, STEP_FILES[:3]) for number, step in steps),
            "No step touched any files.",
        ),
        Chart(
            "timeline",
            "Timeline",
            "When each part of the run began, and what it did in order: Spark jobs, merging on the driver, commits and "
            "waiting. Other work of the driver comes last. Steps run side by side.",
            tuple(map(_make_timeline_bar, list_timeline(outcome))),
            "No times were recorded.",
        ),
    ]


def _make_segment(group: str, number: int, outcome: SourceOutcome | StepOutcome, field: str) -> Segment:
    return Segment(f"{group}.{number}.{field}", format_label(field), getattr(outcome, field), field)


def _make_source_bar(number: int, source: SourceOutcome) -> Bar:
    fields = ("rows_clean", "rows_quarantined", "rows_filtered", "rows_read")
    *parts, total = (_make_segment("sources", number, source, field) for field in fields)
    return Bar(source.name, "staged by an earlier attempt" if source.staged else "", tuple(parts), total)


def _make_step_bar(number: int, step: StepOutcome, fields: Sequence[str], total_field: str | None = None) -> Bar:
    parts = tuple(_make_segment("steps", number, step, field) for field in fields)
    if total_field is None:
        total = Segment(" ".join(part.key for part in parts), "files", sum(part.value for part in parts), "")
    else:
        total = _make_segment("steps", number, step, total_field)
    return Bar(step.name, "replayed" if step.state == "replayed" else "", parts, total)


def _make_timeline_bar(row: TimelineRow) -> Bar:
    parts = tuple(
        Segment(f"{row.key}spans.{number}.seconds", format_span(span), span.seconds, f"span-{span.kind}")
        for number, span in enumerate(row.spans)
    )
    total = Segment(f"{row.key}seconds", "s", row.seconds, "")
    return Bar(row.name, f"began at {format_number(row.started)} s", parts, total, row.started)


def _make_rule_bars(sources: Sequence[SourceOutcome]) -> tuple[Bar, ...]:
    bars = []
    for number, source in enumerate(sources):
        for place, rule in enumerate(source.rules):
            part = Segment(f"sources.{number}.rules.{place}.rows", "rows", rule.rows, "rows_quarantined")
            bars.append(Bar(rule.name, source.name, (part,), part))
    return tuple(sorted((bar for bar in bars if bar.total.value), key=lambda bar: -bar.total.value))


def _render_tables(outcome: RunOutcome) -> str:
    sources = _Table("sources", "source", outcome.sources)
    steps = _Table("steps", "step", outcome.steps)
    return (
        '<div class="tables">\n'
        + sources.render("Sources", ("paths",), (*SOURCE_ROWS, *TIMES))
        + steps.render("Steps", ("kind", "source", "target", "state"), ())
        + steps.render("Rows into each step", (), STEP_ROWS)
        + steps.render("What each merge did", (), STEP_CHANGES)
        + steps.render("Files and times of each step", (), (*STEP_FILES, *TIMES))
        + '<p class="about">Rows are left out if their key or endpoint is NULL and the pipeline skips such rows. '
        "Late rows are older than existing rows.</p>\n</div>\n"
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Tables of the sources or the steps, a row for each."""

    group: str
    row_label: str
    outcomes: Sequence[SourceOutcome | StepOutcome]

    def render(self, caption: str, string_fields: Sequence[str], fields: Sequence[str]) -> str:
        if not self.outcomes:
            return ""
        head = '<th role="columnheader" scope="col"'
        heads = "".join(f"{head}>{label}</th>" for label in (self.row_label, *string_fields))
        heads += "".join(f'{head} class="number">{format_label(field)}</th>' for field in fields)
        rows = "".join(self._render_row(number, string_fields, fields) for number in range(len(self.outcomes)))
        # On a narrow page the style shows each row as a list; the roles keep the meaning of a table.
        return (
            f'<table role="table">\n<caption>{caption}</caption>\n'
            f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n'
            f'<tbody role="rowgroup">\n{rows}</tbody>\n</table>\n'
        )

    def _render_row(self, number: int, string_fields: Sequence[str], fields: Sequence[str]) -> str:
        outcome = self.outcomes[number]
        cells = f'<th role="rowheader" scope="row">{escape_name(outcome.name)}</th>'
        for label in string_fields:
            value = getattr(outcome, label)
            text = "<br>".join(map(escape_name, (value,) if isinstance(value, str) else value))
            cells += f'<td role="cell" class="{label}" data-label="{label}">{text}</td>'
        for field in fields:
            value = getattr(outcome, field)
            zero = "" if value else " zero"
            cells += f'<td role="cell" class="number{zero}" data-label="{format_label(field)}"'
            # What an earlier attempt did has no start in this run.
            data = "" if value is None else f" {format_data(f'{self.group}.{number}.{field}', value)}"
            cells += f"{data}>{'earlier' if value is None else format_number(value)}</td>"
        return f'<tr role="row">{cells}</tr>\n'
