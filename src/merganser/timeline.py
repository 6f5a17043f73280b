"""Where the time of a run goes: spans, each with its start and length, recorded where work is done or waited for."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

SpanKind: TypeAlias = Literal["waiting", "job", "merge", "commit", "steps", "driver"]


@dataclass(frozen=True, slots=True)
class Span:
    """Work of one kind and name: when it first began, in seconds since the run began, its seconds, and how often.

    A `job` is a Spark job, `merge` is merging on the driver, `steps` are the sources or steps of a run; `driver` is
    whatever else the driver does.
    """

    kind: SpanKind
    name: str
    started: float
    seconds: float
    count: int


@dataclass(slots=True)
class Timeline:
    """The spans that one thread records while it collects; `origin` is when the run began, by the monotonic clock."""

    origin: float
    began: float
    spans: dict[tuple[SpanKind, str], Span] = field(default_factory=dict)
    is_recording: bool = False

    def add(self, kind: SpanKind, name: str, began: float, seconds: float) -> None:
        """Add a span to those of the same kind and name."""
        before = self.spans.get((kind, name), Span(kind, name, began - self.origin, 0.0, 0))
        self.spans[kind, name] = replace(before, seconds=before.seconds + seconds, count=before.count + 1)

    def summarise(self) -> dict[str, Any]:
        """Return start, seconds and spans up to now; the last span is what the others leave of the seconds."""
        started, seconds = self.began - self.origin, time.monotonic() - self.began
        spans = tuple(self.spans.values())
        rest = Span("driver", "other work", started, max(0.0, seconds - sum(span.seconds for span in spans)), 1)
        return {"started": started, "seconds": seconds, "spans": (*spans, rest)}


_collecting: ContextVar[Timeline | None] = ContextVar("merganser_timeline", default=None)


@contextmanager
def collect_spans(origin: float | None = None) -> Iterator[Timeline]:
    """Collect the spans of this thread while the block lasts, instead of whatever collected them before.

    `origin` is when the run began, by the monotonic clock; default now.
    """
    began = time.monotonic()
    timeline = Timeline(began if origin is None else origin, began)
    token = _collecting.set(timeline)
    try:
        yield timeline
    finally:
        _collecting.reset(token)


@contextmanager
def record_span(kind: SpanKind, name: str) -> Iterator[None]:
    """Record the time of a block, if this thread collects spans; spans within another one are part of it."""
    timeline = _collecting.get()
    if timeline is None or timeline.is_recording:
        yield
        return
    timeline.is_recording = True
    began = time.monotonic()
    try:
        yield
    finally:
        timeline.is_recording = False
        timeline.add(kind, name, began, time.monotonic() - began)
