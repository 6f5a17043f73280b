"""The timeline of a run: a row for the run itself, then one for each source, task and step that it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from merganser.pipeline.run_result import RunOutcome
    from merganser.timeline import Span, SpanKind


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """When the run or a part of it began, and its seconds and spans; `key` is where they are in the JSON."""

    key: str
    name: str
    started: float
    seconds: float
    spans: tuple[Span, ...]

    def sum_seconds(self, kind: SpanKind) -> float:
        """Sum up the seconds of one kind."""
        return sum((span.seconds for span in self.spans if span.kind == kind), 0.0)

    def count_jobs(self) -> int:
        """Count the Spark jobs."""
        return sum(span.count for span in self.spans if span.kind == "job")


def list_timeline(outcome: RunOutcome) -> list[TimelineRow]:
    """List the rows in the order of their starts; those of earlier attempts have none."""
    rows = [TimelineRow("", "whole run", 0.0, outcome.seconds, outcome.spans)] if outcome.spans else []
    rows += [
        TimelineRow(f"sources.{number}.", f"source {source.name}", source.started, source.seconds, source.spans)
        for number, source in enumerate(outcome.sources)
        if source.started is not None
    ]
    rows += [
        TimelineRow(f"tasks.{number}.", task.name, task.started, task.seconds, task.spans)
        for number, task in enumerate(outcome.tasks)
    ]
    rows += [
        TimelineRow(f"steps.{number}.", step.name, step.started, step.seconds, step.spans)
        for number, step in enumerate(outcome.steps)
        if step.started is not None
    ]
    return sorted(rows, key=lambda row: row.started)


def format_span(span: Span) -> str:
    """Name a span by its kind and name, and how many there were.

    >>> from merganser.timeline import Span
    >>> format_span(Span("job", "fold records", 0.0, 1.5, 2)), format_span(Span("commit", "commit", 1.5, 0.2, 1))
    ('job: fold records (2 times)', 'commit')
    """
    name = span.name if span.kind in {span.name, "steps"} else f"{span.kind}: {span.name}"
    return f"{name} ({span.count:,} times)" if span.count > 1 else name
