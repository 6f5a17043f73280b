"""A plan as a picture: a line for each partition, a cell for each file, and what every cell means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.display import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.core.merge.planner import FilePlan, MergePlan

# Worst first: where one cell stands for several files, it shows the worst of them.
CELLS = {
    "removed": click.style("✕", fg="red"),
    "rewritten": click.style("█", fg="yellow"),
    "scanned": click.style("▒", fg="cyan"),
    "left out": click.style("·", dim=True),
}
_MAX_PARTITIONS = 40
_MAX_NAME_WIDTH = 40
_MAX_REASONS = 12


def format_plan(plan: MergePlan, width: int) -> Iterator[str]:
    """Draw a plan, so many columns wide, and list the files that change."""
    skipped = f", {plan.skipped:,} skipped" if plan.skipped else ""
    yield f"{plan.strategy} of {pluralize(plan.source_count, 'row')} into {plan.path} on {', '.join(plan.key_columns)}:"
    yield f"  {plan.inserted:,} inserted, {plan.updated:,} updated, {plan.deleted:,} deleted{skipped}"
    yield f"  {pluralize(plan.target_count_before, 'row')} before, {plan.target_count_after:,} after"
    if plan.files:
        yield ""
        yield from _draw_partitions(plan, width)
        yield ""
        yield from _list_reasons(plan.files)


def _draw_partitions(plan: MergePlan, width: int) -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for file in plan.files:
        folder = file.path.removeprefix(f"{plan.path}/").rpartition("/")[0]
        rows.setdefault(folder, []).append(_classify_file(file))
    if len(rows) > _MAX_PARTITIONS:
        rows = _keep_touched(rows)
    wide = min(_MAX_NAME_WIDTH, max(map(len, rows)))
    room = max(10, width - wide - 2)
    for name, kinds in rows.items():
        shown = name if len(name) <= wide else f"…{name[len(name) - wide + 1 :]}"
        yield f"{shown:<{wide}}  {_draw_cells(kinds, room)}" if wide else _draw_cells(kinds, room)
    counts = {kind: sum(kinds.count(kind) for kinds in rows.values()) for kind in CELLS}
    yield "  ".join(f"{mark} {kind} {counts[kind]:,}" for kind, mark in CELLS.items())


def _keep_touched(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Where there are too many partitions to draw, draw those that are looked into, and the others in one line."""
    touched = {name: kinds for name, kinds in rows.items() if set(kinds) != {"left out"}}
    first = dict(list(touched.items())[:_MAX_PARTITIONS])
    rest = [kind for name, kinds in rows.items() if name not in first for kind in kinds]
    return {**first, f"{len(rows) - len(first):,} more": rest} if rest else first


def _classify_file(file: FilePlan) -> str:
    changed = {"rewrite": "rewritten", "remove": "removed"}
    return changed.get(file.action) or ("scanned" if file.candidate_groups else "left out")


def _draw_cells(categories: Sequence[str], room: int) -> str:
    """Draw files in no more cells than there is room for."""
    each = -(-len(categories) // room)
    parts = [categories[start : start + each] for start in range(0, len(categories), each)]
    return "".join(CELLS[next(kind for kind in CELLS if kind in part)] for part in parts)


def _list_reasons(files: Sequence[FilePlan]) -> Iterator[str]:
    changed = [file for file in files if file.action != "preserve"]
    for file in changed[:_MAX_REASONS]:
        groups = f"{file.affected_groups} of {pluralize(file.row_groups, 'row group')}"
        yield f"{file.action} {file.path}: {file.reason} ({groups})"
    if len(changed) > _MAX_REASONS:
        yield f"… and {len(changed) - _MAX_REASONS:,} more; --json lists them all"
    kept: dict[str, int] = {}
    for file in files:
        if file.action == "preserve":
            kept[file.reason] = kept.get(file.reason, 0) + 1
    for reason, count in sorted(kept.items(), key=lambda item: -item[1]):
        yield f"leave {pluralize(count, 'file')} alone: {reason}"
