"""Change the schema of a dataset: `python -m benchmarks.alter [--rows N] [--files N] [--only name,name]`.

A column is added, then one of int32 is widened to int64. DuckDB rewrites every file; table formats only do the
first, and write metadata. Copying every file as it is shows what a change of every file costs at least. Each
contender has its own process and a fresh copy of the dataset, and the clock stops when everything is flushed to disk.
The contenders take turns; best time and highest memory count. After the first run all rows and the type of the column
are compared with the expected ones; after later runs the rows are counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.contenders import ALTERING, find_contenders
from benchmarks.data import FILES, ROWS, rows
from benchmarks.goals import Goal
from benchmarks.measure import Bench
from benchmarks.report_lines import best
from benchmarks.scenarios import Dataset, Scenario
from benchmarks.table import goal_table, markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contenders import Contender
    from benchmarks.report_lines import Line

HEAD = ("contender", "seconds", "/ DuckDB rewrite", "/ copy", "peak MB", "MB written")
REWRITE, COPY = "whole", "copy"
# Only contenders with plain Parquet files take part in widening.
WIDENING = ("duckdb", "arrow", REWRITE, COPY)
# By scenario and contender, the most that merganser may take of that contender's time.
GOALS = {("add", REWRITE): 0.3, ("add", COPY): 1.5, ("widen", REWRITE): 0.5}


def make_scenarios(files: int) -> list[Scenario]:
    """Describe both changes of a dataset of so many files."""

    def make_dataset(row_count: int) -> Dataset:
        return Dataset("orders", rows, row_count, files)

    def make_ids(_dataset: Dataset) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(0)

    add = "add a column to {rows:,} rows in {files:,} files"
    widen = "widen a column of {rows:,} rows in {files:,} files from int32 to int64"
    return [
        Scenario("add", add, make_dataset, make_ids, action="add_column", aged=True),
        Scenario("widen", widen, make_dataset, make_ids, action="widen_column", aged=True),
    ]


def run(bench: Bench, files: int, participants: Sequence[Contender]) -> list[Line]:
    """Measure both changes, and print a table for each and one of goals."""
    lines: list[Line] = []
    for scenario in make_scenarios(files):
        able = [one for one in participants if scenario.action == "add_column" or one.id in WIDENING]
        found = bench.compare(bench.setting(scenario), able)
        if found:
            print(f"### {found[0].scenario}: {found[0].title}\n\n{alter_table(found)}", flush=True)
        lines += found
    print(f"### Goals\n\n{goal_table(evaluate_goals(lines))}", flush=True)
    return lines


def alter_table(lines: list[Line]) -> str:
    """Write the contenders of one change."""
    return markdown_table(HEAD, [_make_cells(line, lines) for line in lines])


def evaluate_goals(lines: list[Line]) -> list[Goal]:
    """Compare every goal with the measurements of merganser's fastest engine."""
    goals = []
    for (scenario, peer), most in GOALS.items():
        measured = [line for line in lines if line.scenario == scenario]
        ours = best([line for line in measured if line.is_ours])
        ratio = None if ours is None else _compute_ratio(ours, peer, measured)
        goals.append(Goal(scenario, f"time / {ALTERING[peer].name}", most, ratio))
    return goals


def _make_cells(line: Line, lines: list[Line]) -> list[str]:
    figures = line.figures
    if figures is None:
        return [line.name, (line.failure or "not measured").replace("|", "/"), "", "", "", ""]
    ratios = [_compute_ratio(line, peer, lines) for peer in (REWRITE, COPY)]
    cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    sizes = [f"{figures.peak_mb:,.0f}", f"{figures.bytes_written / 1e6:,.1f}"]
    return [line.name, f"{figures.seconds:.3f}", *cells, *sizes]


def _compute_ratio(line: Line, peer: str, lines: list[Line]) -> float | None:
    other = next((one.figures for one in lines if one.contender == peer), None)
    return None if line.figures is None or other is None else line.figures.seconds / other.seconds


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--only", default="", help=f"contenders, separated by commas: {','.join(ALTERING)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data", help="folder for datasets")
    arguments = parser.parse_args()
    try:
        participants = find_contenders((name for name in arguments.only.split(",") if name), ALTERING)
    except ValueError as error:
        parser.error(str(error))
    run(Bench(arguments.data.resolve(), arguments.rows, arguments.repeat), arguments.files, participants)


if __name__ == "__main__":
    main()
