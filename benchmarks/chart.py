"""The times of all scenarios as one SVG chart: a panel for each, a bar for each contender.

A bar is cut off at ten times the length of merganser's best; its number is beside it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from benchmarks.report_lines import best

if TYPE_CHECKING:
    from benchmarks.report_lines import Line

COLUMNS = 3
PANEL = 345
GAP = 20
NAME = 180
BAR = 100
LINE = 17
HEADER = 40
CUT = 10
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.figure{font-variant-numeric:tabular-nums}"
    ".quiet{fill:#57606a}.ours{fill:#0969da}.copies{fill:#8c959f}.reads{fill:#c9a227}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.ours{fill:#4493f8}.copies{fill:#656c76}}"
)
COLORS = {"merganser": "ours", "copy on write": "copies", "merge on read": "reads"}


def chart(lines: list[Line], *captions: str) -> str:
    """Draw the scenarios that have peers; `captions` are the lines below them."""
    every = [[line for line in lines if line.scenario == name] for name in dict.fromkeys(one.scenario for one in lines)]
    panels = [panel for panel in every if any(not line.is_ours for line in panel)]
    bands = [panels[start : start + COLUMNS] for start in range(0, len(panels), COLUMNS)]
    drawn, top = [_legend()], 30
    for band in bands:
        drawn += [_panel(panel, number * (PANEL + GAP), top) for number, panel in enumerate(band)]
        top += HEADER + LINE * max(map(len, band)) + GAP
    width = COLUMNS * (PANEL + GAP) - GAP
    for text in captions:
        drawn.append(f'<text class="quiet" x="0" y="{top}">{escape(text)}</text>')
        top += LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 10}" width="{width}" height="{top + 10}" '
        f'role="img" aria-label="Seconds that each contender takes in each scenario">'
        f"<style>{STYLE}</style>\n{chr(10).join(drawn)}\n</svg>\n"
    )


def _legend() -> str:
    drawn = []
    for number, (kind, color) in enumerate(COLORS.items()):
        left = number * 120
        drawn.append(f'<rect class="{color}" x="{left}" y="2" width="11" height="11" rx="2"/>')
        drawn.append(f'<text x="{left + 16}" y="12">{kind}</text>')
    drawn.append(f'<text class="quiet" x="{3 * 120}" y="12">seconds; less is better</text>')
    return "".join(drawn)


def _panel(lines: list[Line], left: int, top: int) -> str:
    ours = best([line for line in lines if line.is_ours]) or best(lines)
    unit = ours.figures.seconds if ours and ours.figures else 1.0
    longest = max((line.figures.seconds for line in lines if line.figures), default=unit)
    scale = BAR / min(longest, CUT * unit)
    title = f"{lines[0].scenario}: {lines[0].title}"
    drawn = [f'<text class="title" x="{left}" y="{top + 14}">{escape(title)}</text>']
    for number, line in enumerate(lines):
        drawn.append(_bar(line, left, top + HEADER - 14 + number * LINE, scale))
    return "\n".join(drawn)


def _bar(line: Line, left: int, top: int, scale: float) -> str:
    name = f'<text x="{left + NAME}" y="{top + 10}" text-anchor="end">{escape(line.name)}</text>'
    start = left + NAME + 6
    color = COLORS[line.kind]
    if line.figures is None:
        said = f"over {line.over:.0f} s" if line.over else "no result"
        return f'{name}<text class="quiet" x="{start}" y="{top + 10}">{said}</text>'
    full = line.figures.seconds * scale
    width = max(1.0, min(full, BAR))
    cut = f'<path class="{color}" d="M{start + BAR + 3} {top}h3v11h-3z"/>' if full > BAR * 1.001 else ""
    figure = (
        f'<text class="figure" x="{start + width + (10 if cut else 5):.1f}" '
        f'y="{top + 10}">{_format_seconds(line)}</text>'
    )
    bar = f'<rect class="{color}" x="{start}" y="{top}" width="{width:.1f}" height="11" rx="2"/>'
    return f"{name}{bar}{cut}{figure}"


def _format_seconds(line: Line) -> str:
    seconds = line.figures.seconds if line.figures else 0.0
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"
