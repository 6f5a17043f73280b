"""Merge with this library and with every peer: `python -m benchmarks.run [scenario …] [--rows N] [--only name,name]`.

Each contender merges into a fresh copy of the dataset in a process and an environment of its own, where it has merged a
thousand rows before. The contenders take turns; best time and highest memory count. Whoever takes long has one turn.
What the first turn leaves is compared with what the merge should have made, row for row; later turns are counted. A
report that is there keeps the lines that are not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contenders, scenarios
from benchmarks.data import ROWS
from benchmarks.goals import goals
from benchmarks.measure import Bench
from benchmarks.report import Report
from benchmarks.table import goal_table, scenario_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contenders import Contender
    from benchmarks.outcome import Line
    from benchmarks.scenarios import Scenario

HERE = Path(__file__).parent


def run(
    bench: Bench, asked: Sequence[Scenario], taking_part: Sequence[Contender], out: Path | None = None, *, keep: bool
) -> list[Line]:
    """Run scenarios one after the other; what is measured so far is in the report, should a later one fail."""
    lines: list[Line] = []
    for number, scenario in enumerate(asked):
        setting = bench.setting(scenario)
        # Peers have no plan to ask for.
        able = [one for one in taking_part if scenario.action == "merge" or one.kind == contenders.OURS]
        if able:
            lines += (found := bench.compare(setting, able))
            print(scenario_table(found), flush=True)
        if out is not None:
            Report(bench.row_count, bench.repeat, bench.limit, bench.versions, lines).joined(out).write(out)
        later = {other.dataset(bench.row_count).name for other in asked[number + 1 :]}
        if not keep and setting.dataset.name not in later:
            bench.forget(setting.dataset)
    return lines


def main() -> None:
    """Print a table for each scenario and one of goals; a run of everything also writes them to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = ", ".join(f"{one.id}: {one.description}" for one in scenarios.SCENARIOS.values())
    parser.add_argument("scenarios", nargs="*", help=f"all if none is named ({known})")
    parser.add_argument(
        "--only", default="", help=f"contenders, with commas between them: {','.join(contenders.CONTENDERS)}"
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one merge")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="for datasets and their copies")
    parser.add_argument("--keep", action="store_true", help="keep the peers' tables for another run")
    parser.add_argument("--out", type=Path, help="for the report, the figures and the chart")
    arguments = parser.parse_args()
    try:
        asked = scenarios.chosen(arguments.scenarios)
        taking_part = contenders.chosen(name for name in arguments.only.split(",") if name)
    except ValueError as error:
        parser.error(str(error))
    whole = not arguments.scenarios and not arguments.only and arguments.rows == ROWS
    out = arguments.out or (HERE / "results" if whole else None)
    bench = Bench(arguments.data.resolve(), arguments.rows, arguments.repeat, arguments.limit)
    lines = run(bench, asked, taking_part, out, keep=arguments.keep)
    print(f"### Goals\n\n{goal_table(goals(lines))}")


if __name__ == "__main__":
    main()
