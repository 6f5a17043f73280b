"""The report of a run: machine, versions, figures and goals, as Markdown, JSON and a chart."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.chart import chart
from benchmarks.contenders import CONTENDERS
from benchmarks.goals import evaluate_goals
from benchmarks.report_lines import Figures, Line
from benchmarks.scenarios import SCENARIOS
from benchmarks.table import goal_table, scenario_table

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Report:
    """The options, environment and results of a run."""

    row_count: int
    repeat: int
    limit: float
    versions: dict[str, str]
    lines: list[Line]

    @property
    def machine(self) -> str:
        """Return the machine."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
        return f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}"

    @property
    def summary(self) -> str:
        """Return the repetitions, the machine and the rows."""
        return f"Best of {self.repeat} on {self.machine}; {self.row_count:,} rows."

    @property
    def packages(self) -> str:
        """Return the versions of packages."""
        return ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))

    def markdown(self) -> str:
        """Write the page of results."""
        scenarios = dict.fromkeys(line.scenario for line in self.lines)
        tables = [scenario_table([one for one in self.lines if one.scenario == name]) for name in scenarios]
        head = f"# Merges, by contender\n\nWritten by `make bench`. {self.summary} {self.packages}.\n"
        return "\n".join([head, "## Goals\n", goal_table(evaluate_goals(self.lines)), "## Scenarios\n", *tables])

    def to_json(self) -> str:
        """Write all figures."""
        facts = {"machine": self.machine, "python": platform.python_version(), **asdict(self)}
        facts["goals"] = [asdict(goal) | {"verdict": goal.verdict} for goal in evaluate_goals(self.lines)]
        return json.dumps(facts, indent=1) + "\n"

    def add_lines_of(self, folder: Path) -> Report:
        """Add the lines of the report in a folder that this run did not measure, if its settings are the same."""
        held = folder / "merge.json"
        before = json.loads(held.read_text("utf-8")) if held.exists() else {}
        if any(before.get(name) != getattr(self, name) for name in ("machine", "row_count", "repeat", "limit")):
            return self
        lines = {(line.scenario, line.contender): line for line in [*map(_parse_line, before["lines"]), *self.lines]}
        order = [(scenario, contender) for scenario in SCENARIOS for contender in CONTENDERS]
        together = [lines[place] for place in order if place in lines]
        return replace(self, lines=together, versions=before["versions"] | self.versions)

    def write(self, folder: Path) -> None:
        """Write all three files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "merge.md").write_text(self.markdown(), "utf-8")
        (folder / "merge.json").write_text(self.to_json(), "utf-8")
        (folder / "merge.svg").write_text(chart(self.lines, self.summary, self.packages), "utf-8")


def _parse_line(fields: dict[str, Any]) -> Line:
    figures = fields.pop("figures")
    return Line(**fields, figures=figures and Figures(**figures))
