"""Merge with this library and with every peer: `python -m benchmarks.run [scenario …] [--rows N] [--only name,name]`.

Each contender merges into a fresh copy of the dataset in its own process and environment, after a first merge of a
thousand rows. The contenders take turns; best time and highest memory count. A slow contender has one run. After the
first run all rows are compared with the expected ones; after later runs they are counted. An existing report keeps the
lines that are not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contenders, scenarios
from benchmarks.data import ROWS
from benchmarks.goals import evaluate_goals
from benchmarks.measure import Bench
from benchmarks.report import Report
from benchmarks.table import goal_table, scenario_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contenders import Contender
    from benchmarks.report_lines import Line
    from benchmarks.scenarios import Scenario

HERE = Path(__file__).parent


def run(
    bench: Bench,
    selected: Sequence[Scenario],
    participants: Sequence[Contender],
    out: Path | None = None,
    *,
    keep: bool,
) -> list[Line]:
    """Run scenarios one after the other, and write the report after each, in case a later one fails."""
    lines: list[Line] = []
    for number, scenario in enumerate(selected):
        setting = bench.setting(scenario)
        # Peers have no plan.
        able = [one for one in participants if scenario.action == "merge" or one.kind == contenders.OURS]
        if able:
            lines += (found := bench.compare(setting, able))
            print(scenario_table(found), flush=True)
        if out is not None:
            Report(bench.row_count, bench.repeat, bench.limit, bench.versions, lines).add_lines_of(out).write(out)
        later = {other.dataset(bench.row_count).name for other in selected[number + 1 :]}
        if not keep and setting.dataset.name not in later:
            bench.forget(setting.dataset)
    return lines


def main() -> None:
    """Print a table for each scenario and one of goals; a run of everything also writes them to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = ", ".join(f"{one.id}: {one.description}" for one in scenarios.SCENARIOS.values())
    parser.add_argument("scenarios", nargs="*", help=f"all by default ({known})")
    parser.add_argument(
        "--only", default="", help=f"contenders, separated by commas: {','.join(contenders.CONTENDERS)}"
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one merge")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder for datasets and their copies")
    parser.add_argument("--keep", action="store_true", help="keep the peers' tables for another run")
    parser.add_argument("--out", type=Path, help="folder for the report, the figures and the chart")
    arguments = parser.parse_args()
    try:
        selected = scenarios.find_scenarios(arguments.scenarios)
        participants = contenders.find_contenders(name for name in arguments.only.split(",") if name)
    except ValueError as error:
        parser.error(str(error))
    is_complete = not arguments.scenarios and not arguments.only and arguments.rows == ROWS
    out = arguments.out or (HERE / "results" if is_complete else None)
    bench = Bench(arguments.data.resolve(), arguments.rows, arguments.repeat, arguments.limit)
    lines = run(bench, selected, participants, out, keep=arguments.keep)
    print(f"### Goals\n\n{goal_table(evaluate_goals(lines))}")


if __name__ == "__main__":
    main()
