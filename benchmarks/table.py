"""Figures as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report_lines import best

if TYPE_CHECKING:
    from benchmarks.goals import Goal
    from benchmarks.report_lines import Line

HEAD = ("contender", "seconds", "peak MB", "MB written", "scan after, s", "merganser's best time / its time")
GOAL_HEAD = ("scenario", "goal", "at most", "found", "")


def scenario_table(lines: list[Line]) -> str:
    """Write the contenders of one scenario."""
    ours = best([line for line in lines if line.is_ours])
    reference = ours.figures.seconds if ours and ours.figures else None
    cells = [_cells(line, reference) for line in lines]
    return f"### {lines[0].scenario}: {lines[0].title}\n\n{markdown_table(HEAD, cells)}"


def goal_table(goals: list[Goal]) -> str:
    """Write the goals."""
    return markdown_table(GOAL_HEAD, [_goal_cells(goal) for goal in goals])


def _goal_cells(goal: Goal) -> list[str]:
    is_bytes = goal.description.startswith("bytes")
    found = "" if goal.ratio is None else f"{goal.ratio:,.0f}" if is_bytes else f"{goal.ratio:.2f}"
    return [
        goal.scenario,
        goal.description,
        f"{goal.most:.0f}" if is_bytes else f"{goal.most:.2f}",
        found,
        goal.verdict,
    ]


def _cells(line: Line, reference: float | None) -> list[str]:
    figures = line.figures
    if figures is None:
        return [line.name, (line.failure or "not measured").replace("|", "/"), "", "", "", ""]
    scan = "" if figures.scan_seconds is None else f"{figures.scan_seconds:.2f}"
    ratio = "" if reference is None else f"{reference / figures.seconds:.2f}"
    written = f"{figures.bytes_written / 1e6:,.1f}"
    return [line.name, f"{figures.seconds:.3f}", f"{figures.peak_mb:,.0f}", written, scan, ratio]


def markdown_table(head: tuple[str, ...], lines: list[list[str]]) -> str:
    """Write a table."""
    rows = [list(head), ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
