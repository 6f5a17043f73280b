"""Goals against peers, and whether they are reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.report_lines import best

if TYPE_CHECKING:
    from benchmarks.report_lines import Line

MEMORY = 1.5


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper limit for a ratio; the ratio is None if a side of it was not measured."""

    scenario: str
    description: str
    most: float
    ratio: float | None

    @property
    def verdict(self) -> str:
        """Return whether the goal is reached."""
        if self.ratio is None:
            return "not measured"
        return "reached" if self.ratio <= self.most else "missed"


def evaluate_goals(lines: list[Line]) -> list[Goal]:
    """Compare every goal with the measurements of merganser's fastest engine, for memory too."""
    found = {line.scenario: [one for one in lines if one.scenario == line.scenario] for line in lines}

    def against(scenario: str, description: str, most: float, *peers: str, kind: str = "") -> Goal:
        measured = found.get(scenario, [])
        rivals = [line for line in measured if line.contender in peers or line.kind == kind]
        return Goal(scenario, description, most, _ratio(_seconds(_ours(measured)), _seconds(rivals)))

    def between(scenario: str, other: str, description: str, most: float) -> Goal:
        ours = best(_ours(found.get(scenario, [])))
        same = [line for line in found.get(other, []) if ours and line.contender == ours.contender]
        return Goal(scenario, description, most, _ratio(_seconds([ours]) if ours else None, _seconds(same)))

    peer = "time / best copy-on-write peer"
    listed = [against(scenario, peer, 0.8, kind="copy on write") for scenario in "ABD"]
    listed.append(against("E", peer, 1.2, kind="copy on write"))
    listed.append(against("C", "time / DuckDB by hand, everything", 1.0, "whole"))
    listed += [between("F", "B", "time / its own B", 0.6), _nothing_written(found.get("F", []))]
    listed += [against(scenario, "time / DuckDB by hand, the file", 0.35, "whole") for scenario in "GH"]
    listed += [against(scenario, "time / DuckLake, merge on read", 1.5, "ducklake") for scenario in "AB"]
    listed.append(between("J-warm", "J-cold", "time / J-cold", 0.1))
    listed += [_memory(scenario, measured) for scenario, measured in found.items() if not scenario.startswith("J")]
    return [goal for goal in listed if goal.scenario in found]


def _ours(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.is_ours]


def _seconds(lines: list[Line]) -> float | None:
    """Return the best time of some contenders; one that was over the limit took at least that."""
    times = [line.figures.seconds if line.figures else line.over for line in lines]
    return min((time for time in times if time is not None), default=None)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _nothing_written(lines: list[Line]) -> Goal:
    written = [line.figures.bytes_written for line in _ours(lines) if line.figures]
    return Goal("F", "bytes written", 0.0, float(max(written)) if written else None)


def _memory(scenario: str, lines: list[Line]) -> Goal:
    ours = best(_ours(lines))
    peers = [line.figures.peak_mb for line in lines if line.figures and not line.is_ours]
    memory = ours.figures.peak_mb if ours and ours.figures else None
    return Goal(scenario, "peak memory / smallest peer", MEMORY, _ratio(memory, min(peers, default=None)))
