"""The outcome of a run: counts that account for every row, and their form as JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from merganser.errors import InvalidArgumentError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

StepKind = Literal["dataset", "nodes", "edges"]
StepState = Literal["done", "replayed"]


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many rows of a source failed one rule."""

    name: str
    rows: int

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> RuleCount:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        return cls(**_check_fields(cls, facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """Counts of a source's rows before any merge; `staged` if an earlier attempt of the run had read them."""

    name: str
    paths: tuple[str, ...]
    files: int
    rows_read: int
    rows_filtered: int
    rows_in: int
    rows_quarantined: int
    rows_clean: int
    rules: tuple[RuleCount, ...]
    staged: bool
    seconds: float

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> SourceOutcome:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        known = _check_fields(cls, facts)
        rules = tuple(RuleCount.from_dict(rule) for rule in known["rules"])
        return cls(**{**known, "paths": tuple(known["paths"]), "rules": rules})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Counts of one merge of a run; `rows_skipped_null` have a NULL key, or a node that does not exist."""

    name: str
    kind: StepKind
    source: str
    target: str
    state: StepState
    rows_in: int
    rows_quarantined: int
    rows_skipped_null: int
    rows_deduplicated: int
    rows_merged: int
    inserted: int
    updated: int
    deleted: int
    skipped: int
    files_written: int
    files_rewritten: int
    files_preserved: int
    files_removed: int
    seconds: float

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> StepOutcome:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        return cls(**_check_fields(cls, facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run; `quarantine` is the path of the dataset with the rows that failed a rule."""

    pipeline: str
    run_id: str
    parameters: Mapping[str, str]
    started_at: datetime
    seconds: float
    spark_version: str
    master: str
    quarantine: str | None
    sources: tuple[SourceOutcome, ...]
    steps: tuple[StepOutcome, ...]

    def __post_init__(self) -> None:
        if self.started_at.utcoffset() is None:
            raise InvalidArgumentError(
                f"started_at {self.started_at.isoformat()} has no time zone: give an aware datetime, such as "
                "datetime.now(timezone.utc)."
            )

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> RunOutcome:
        """Read the dict that `to_dict` made; missing and unknown fields are refused by name."""
        known = _check_fields(cls, facts)
        nested = {
            "parameters": dict(known["parameters"]),
            "started_at": datetime.fromisoformat(known["started_at"]),
            "sources": tuple(SourceOutcome.from_dict(source) for source in known["sources"]),
            "steps": tuple(StepOutcome.from_dict(step) for step in known["steps"]),
        }
        return cls(**{**known, **nested})

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "parameters": dict(self.parameters),
            "started_at": self.started_at.isoformat(),
            "sources": [
                {**asdict(source), "paths": list(source.paths), "rules": [asdict(rule) for rule in source.rules]}
                for source in self.sources
            ],
            "steps": [asdict(step) for step in self.steps],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """Convert it to JSON, in ASCII: paths may contain characters that UTF-8 cannot encode."""
        return json.dumps(self.to_dict(), indent=indent)

    def unbalanced(self) -> list[str]:
        """Describe each equation between the counts that does not hold, in one sentence."""
        of_source = (("rows_read", "rows_filtered", "rows_in"), ("rows_in", "rows_clean", "rows_quarantined"))
        of_step = ("rows_in", "rows_quarantined", "rows_deduplicated", "rows_merged", "rows_skipped_null")
        found = [_describe_imbalance("Source", source, *names) for source in self.sources for names in of_source]
        found += [_describe_imbalance("Step", step, *of_step) for step in self.steps]
        return [sentence for sentence in found if sentence is not None]


def _describe_imbalance(label: str, outcome: SourceOutcome | StepOutcome, whole: str, *parts: str) -> str | None:
    expected, total = getattr(outcome, whole), sum(getattr(outcome, part) for part in parts)
    if total == expected:
        return None
    shown = " + ".join(f"{part} {getattr(outcome, part):,}" for part in parts)
    return f"{label} {outcome.name!r}: {whole} {expected:,} is not {shown} = {total:,}."


@contextmanager
def translate_record_errors(path: str) -> Iterator[None]:
    """Add the path of an earlier attempt's record that cannot be read."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableFileError(f"{path} is damaged: {error}. Remove it to repeat that part of the run.") from error


def _check_fields(
    cls: type[RuleCount | SourceOutcome | StepOutcome | RunOutcome], facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    expected = {field.name for field in fields(cls)}
    missing, unknown = sorted(expected - set(facts)), sorted(set(facts) - expected)
    if missing or unknown:
        wrong = [f"lacks {missing}"] * bool(missing) + [f"has the unknown {unknown}"] * bool(unknown)
        raise InvalidArgumentError(
            f"This is not a {cls.__name__}: it {' and '.join(wrong)}. Read it with the merganser version that wrote it."
        )
    return facts
