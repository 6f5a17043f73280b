"""A chart of a plan: a line for each partition, a cell for each file, and a legend."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from merganser.display import pluralize
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.core.merge.merge_plan import FilePlan, MergePlan

# Worst first: a cell for several files shows the worst of them.
CELLS = {"removed": "✕", "rewritten": "█", "scanned": "▒", "left out": "·"}
_COLOURS = {"✕": "red", "█": "goldenrod", "▒": "teal", "·": "gray"}
_RUN = re.compile(r"([✕█▒·])\1*")
_HTML_WIDTH = 100
_MAX_PARTITIONS = 40
_MAX_NAME_WIDTH = 40
_MAX_REASONS = 12


def format_plan(plan: MergePlan, width: int) -> Iterator[str]:
    """Draw a plan `width` characters wide, and list the files that change."""
    skipped = f", {plan.skipped:,} skipped" if plan.skipped else ""
    yield f"{plan.strategy} of {pluralize(plan.source_count, 'row')} into {plan.path} on {', '.join(plan.key_columns)}:"
    yield from (f"  {clause}" for clause in plan.clauses)
    yield f"  {plan.inserted:,} inserted, {plan.updated:,} updated, {plan.deleted:,} deleted{skipped}"
    yield f"  {pluralize(plan.target_count_before, 'row')} before, {plan.target_count_after:,} after"
    yield from (f"  schema: {line}" for line in plan.list_schema_lines())
    if plan.files:
        yield ""
        yield from _draw_partitions(plan, width)
        yield ""
        yield from _list_reasons(plan.files)


def render_plan(plan: MergePlan) -> str:
    """Render the chart of a plan as HTML, for notebooks."""
    text = escape("\n".join(map(escape_controls, format_plan(plan, _HTML_WIDTH))))
    coloured = _RUN.sub(lambda cells: f'<span style="color:{_COLOURS[cells[1]]}">{cells[0]}</span>', text)
    return f'<pre style="line-height:1.2">{coloured}</pre>'


def _draw_partitions(plan: MergePlan, width: int) -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for file in plan.files:
        folder = file.path.removeprefix(f"{plan.path}/").rpartition("/")[0]
        rows.setdefault(folder, []).append(_classify_file(file))
    if len(rows) > _MAX_PARTITIONS:
        rows = _keep_touched(rows)
    name_width = min(_MAX_NAME_WIDTH, max(map(len, rows)))
    cell_count = max(10, width - name_width - 2)
    for name, categories in rows.items():
        label = name if len(name) <= name_width else f"…{name[len(name) - name_width + 1 :]}"
        cells = _draw_cells(categories, cell_count)
        yield f"{label:<{name_width}}  {cells}" if name_width else cells
    counts = Counter(category for categories in rows.values() for category in categories)
    yield "  ".join(f"{cell} {category} {counts[category]:,}" for category, cell in CELLS.items())


def _keep_touched(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Keep the first partitions that are read, and combine all others in one row."""
    touched = {name: categories for name, categories in rows.items() if set(categories) != {"left out"}}
    first = dict(list(touched.items())[:_MAX_PARTITIONS])
    rest = [category for name, categories in rows.items() if name not in first for category in categories]
    return {**first, f"{len(rows) - len(first):,} more": rest} if rest else first


def _classify_file(file: FilePlan) -> str:
    changed = {"rewrite": "rewritten", "remove": "removed"}
    return changed.get(file.action) or ("scanned" if file.candidate_groups else "left out")


def _draw_cells(categories: Sequence[str], cell_count: int) -> str:
    per_cell = -(-len(categories) // cell_count)
    cells = [categories[start : start + per_cell] for start in range(0, len(categories), per_cell)]
    return "".join(CELLS[next(category for category in CELLS if category in files)] for files in cells)


def _list_reasons(files: Sequence[FilePlan]) -> Iterator[str]:
    changed = [file for file in files if file.action != "preserve"]
    for file in changed[:_MAX_REASONS]:
        groups = f"{file.affected_groups} of {pluralize(file.row_groups, 'row group')}"
        yield f"{file.action} {file.path}: {file.reason} ({groups})"
    if len(changed) > _MAX_REASONS:
        yield f"… and {len(changed) - _MAX_REASONS:,} more"
    for reason, count in Counter(file.reason for file in files if file.action == "preserve").most_common():
        yield f"leave {pluralize(count, 'file')} alone: {reason}"
