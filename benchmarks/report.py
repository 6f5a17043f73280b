"""The report of a run: machine, versions, figures and goals, as Markdown, JSON and a picture."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.chart import chart
from benchmarks.goals import goals
from benchmarks.table import goal_table, scenario_table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.outcome import Line


@dataclass(frozen=True, slots=True)
class Report:
    """What was run, where, and what came out."""

    row_count: int
    repeat: int
    limit: float
    versions: dict[str, str]
    lines: list[Line]

    @property
    def machine(self) -> str:
        """Say what it ran on."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
        return f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}"

    @property
    def told(self) -> str:
        """Say what was run."""
        return f"Best of {self.repeat} on {self.machine}; {self.row_count:,} rows."

    @property
    def packages(self) -> str:
        """Say with which versions."""
        return ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))

    def markdown(self) -> str:
        """Write the page of results."""
        scenarios = dict.fromkeys(line.scenario for line in self.lines)
        tables = [scenario_table([one for one in self.lines if one.scenario == name]) for name in scenarios]
        head = f"# Merges, by contender\n\nWritten by `make bench`. {self.told} {self.packages}.\n"
        return "\n".join([head, "## Goals\n", goal_table(goals(self.lines)), "## Scenarios\n", *tables])

    def to_json(self) -> str:
        """Write all figures."""
        facts = {"machine": self.machine, "python": platform.python_version(), **asdict(self)}
        facts["goals"] = [asdict(goal) | {"verdict": goal.verdict} for goal in goals(self.lines)]
        return json.dumps(facts, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write all three files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "merge.md").write_text(self.markdown(), "utf-8")
        (folder / "merge.json").write_text(self.to_json(), "utf-8")
        (folder / "merge.svg").write_text(chart(self.lines, self.told, self.packages), "utf-8")
