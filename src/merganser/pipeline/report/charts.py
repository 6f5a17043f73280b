"""Bar charts as HTML and inline SVG: labels are text that wraps, bars are shares of whatever width there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from merganser.pipeline.report.report_fields import format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

# Percent of the whole width that a part gets at least, so that one row in ten billion is seen. Seven parts of this
# size move the eighth by less than a percent.
MIN_SEGMENT_PERCENT = 0.14
# Percent of the whole width from which on a part can afford a line between itself and the next.
MIN_DIVIDED_PERCENT = 1.5
BAR_HEIGHT = 14
# What no HTML or XML document may hold: control characters, lone surrogates, noncharacters.
INVALID_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Segment:
    """One figure of a bar: where it is in the outcome's JSON, its name, and the class that colours it."""

    key: str
    label: str
    value: float
    color: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a chart; `total` is what is written beside it, and its label the unit.

    The bar begins at `offset`, in the unit of its segments.
    """

    name: str
    note: str
    segments: tuple[Segment, ...]
    total: Segment
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars of one scale, or, if `is_normalized`, bars that are each as wide as the chart."""

    id: str
    title: str
    description: str
    bars: tuple[Bar, ...]
    empty_message: str
    is_normalized: bool = False


def escape_text(value: str) -> str:
    r"""Escape a name for text and attributes; what cannot be written is shown as a replacement character.

    >>> escape_text('<b> & "c"'), escape_text("a\x00b")
    ('&lt;b&gt; &amp; &quot;c&quot;', 'a\ufffdb')
    """
    return escape(INVALID_CHARACTERS.sub("\ufffd", value))


def escape_name(value: str) -> str:
    """Escape a name and keep the direction of its script to itself."""
    return f"<bdi>{escape_text(value)}</bdi>"


def format_data(key: str, value: float) -> str:
    """Write the two attributes that every figure carries."""
    return f'data-key="{escape_text(key)}" data-value="{value}"'


def render_chart(chart: Chart) -> str:
    """Draw a chart; one without any figure above zero says so instead."""
    drawn = any(part.value for bar in chart.bars for part in bar.segments)
    longest = max((bar.offset + sum(part.value for part in bar.segments) for bar in chart.bars), default=0)
    bars = "".join(_render_bar(chart, number, bar, longest) for number, bar in enumerate(chart.bars))
    body = f'<ul class="bars">\n{bars}</ul>' if drawn else f'<p class="empty">{escape_text(chart.empty_message)}</p>'
    return (
        f'<section class="chart" id="{chart.id}" aria-labelledby="{chart.id}-title">\n'
        f'<h2 id="{chart.id}-title">{escape_text(chart.title)}</h2>\n'
        f'<p class="about">{escape_text(chart.description)}</p>\n{body}\n</section>\n'
    )


def compute_widths(values: Sequence[float], longest: float) -> list[float]:
    """Give each value its percentage of the longest bar; what is not zero is never too thin to be seen.

    >>> compute_widths([3, 1, 0], 4)
    [75.0, 25.0, 0.0]
    >>> compute_widths([10**10, 1], 10**10 + 1)
    [99.86, 0.14]
    """
    if not longest:
        return [0.0] * len(values)
    wide = [max(MIN_SEGMENT_PERCENT, 100 * value / longest) if value else 0.0 for value in values]
    # What the slivers have got beyond their due, the widest part gives, so that no bar leaves its chart.
    widest = max(range(len(wide)), key=wide.__getitem__)
    surplus = sum(wide) - 100 * sum(values) / longest
    if wide[widest] - surplus > MIN_SEGMENT_PERCENT:
        wide[widest] -= surplus
    return [round(share, 4) for share in wide]


def _render_bar(chart: Chart, number: int, bar: Bar, longest: float) -> str:
    own = sum(part.value for part in bar.segments)
    identity = f"{chart.id}-{number}"
    said = ", ".join(f"{part.label} {format_number(part.value)}" for part in bar.segments if part.value) or "nothing"
    rects, edges, whole = [], [], own if chart.is_normalized else longest
    found = compute_widths([part.value for part in bar.segments], whole)
    # Parts too thin to be seen are widened, so that the last bars may begin earlier.
    position = begin = min(100 * bar.offset / whole, 100 - sum(found)) if bar.offset else 0.0
    for part, share in zip(bar.segments, found, strict=True):
        rects.append(
            f'<rect class="{part.color}" x="{position:.4f}%" y="0" width="{share:.4f}%" height="{BAR_HEIGHT}" '
            f"{format_data(part.key, part.value)}>"
            f"<title>{escape_text(part.label)}: {format_number(part.value)}</title></rect>"
        )
        if position > begin and share > MIN_DIVIDED_PERCENT:
            edges.append(f'<line x1="{position:.4f}%" x2="{position:.4f}%" y1="0" y2="{BAR_HEIGHT}"/>')
        position += share
    note = f' <span class="note">{escape_name(bar.note)}</span>' if bar.note else ""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bar" width="100%" height="{BAR_HEIGHT}" role="img" '
        f'aria-labelledby="{identity}-t {identity}-d"><title id="{identity}-t">{escape_text(bar.name)}</title>'
        f'<desc id="{identity}-d">{escape_text(said)}</desc>{"".join(rects)}{"".join(edges)}</svg>'
    )
    return (
        f'<li class="line"><p class="label">{escape_name(bar.name)}{note}</p>'
        f'<p class="total" {format_data(bar.total.key, bar.total.value)}>{format_number(bar.total.value)}'
        f' <span class="unit">{escape_text(bar.total.label)}</span></p>'
        f'<div class="track">{svg}</div>{_render_segments(bar)}</li>\n'
    )


def _render_segments(bar: Bar) -> str:
    """Name the parts under their bar, so that no colour has to be looked up; a chart names a part that is alone."""
    if len(bar.segments) == 1:
        return ""
    items = [
        f'<li><i class="{part.color}"></i>{escape_text(part.label)} '
        f"<b {format_data(part.key, part.value)}>{format_number(part.value)}</b></li>"
        for part in bar.segments
        if part.value
    ]
    return f'<ul class="parts">{"".join(items)}</ul>' if items else '<p class="parts">nothing</p>'
