"""The lines of a report: measurements for the table, the goals and the chart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of a contender; `scan_seconds` is None if nothing was merged."""

    seconds: float
    peak_mb: float
    bytes_written: int
    scan_seconds: float | None = None

    def best(self, other: Figures) -> Figures:
        """Keep the best times, the highest memory and the most bytes of two runs."""
        scans = [scan for scan in (self.scan_seconds, other.scan_seconds) if scan is not None]
        return Figures(
            min(self.seconds, other.seconds),
            max(self.peak_mb, other.peak_mb),
            max(self.bytes_written, other.bytes_written),
            min(scans, default=None),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One contender in one scenario: its figures, or why it has none."""

    scenario: str
    title: str
    contender: str
    name: str
    kind: str
    figures: Figures | None = None
    failure: str | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether this is an engine of merganser."""
        return self.kind == "merganser"

    @property
    def over(self) -> float | None:
        """Return the limit in seconds that the contender exceeded."""
        words = (self.failure or "").split()
        return float(words[1]) if len(words) == 2 and words[0] == "over" else None


def best(lines: list[Line]) -> Line | None:
    """Find the fastest of some contenders."""
    return min((line for line in lines if line.figures), key=lambda line: line.figures.seconds, default=None)  # type: ignore[union-attr]
