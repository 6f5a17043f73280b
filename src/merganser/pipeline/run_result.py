"""The outcome of a run: counts that account for every row, and their form as JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from merganser.errors import InvalidArgumentError, UnreadableFileError
from merganser.timeline import Span

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
    """Counts of a source's rows before any merge; `staged` if an earlier attempt of the run had read them.

    `started` is in seconds since the run began. Without it, `seconds` are those of an earlier attempt.
    """

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
    started: float | None = None
    spans: tuple[Span, ...] = ()

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> SourceOutcome:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        known = _check_fields(cls, facts)
        rules = tuple(RuleCount.from_dict(rule) for rule in known["rules"])
        return cls(**{**known, "paths": tuple(known["paths"]), "rules": rules, "spans": _read_spans(known)})

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        return {
            **asdict(self),
            "paths": list(self.paths),
            "rules": list(map(asdict, self.rules)),
            "spans": list(map(asdict, self.spans)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Counts of one merge of a run; `rows_skipped_null` have a NULL key, or a node that does not exist.

    `started` is in seconds since the run began. Without it, `seconds` are those of an earlier attempt.
    """

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
    started: float | None = None
    spans: tuple[Span, ...] = ()

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> StepOutcome:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        known = _check_fields(cls, facts)
        return cls(**{**known, "spans": _read_spans(known)})

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        return {**asdict(self), "spans": list(map(asdict, self.spans))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Work of a run beside its steps, such as the quarantine: when it began, in seconds since the run began."""

    name: str
    started: float
    seconds: float
    spans: tuple[Span, ...]

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> TaskOutcome:
        """Read it from the dict that `RunOutcome.to_dict` made."""
        known = _check_fields(cls, facts)
        return cls(**{**known, "spans": _read_spans(known)})

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        return {**asdict(self), "spans": list(map(asdict, self.spans))}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run; `quarantine` is the path of the dataset with the rows that failed a rule.

    `spans` are what the run itself did; its sources, tasks and steps have spans of their own.
    """

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
    tasks: tuple[TaskOutcome, ...] = ()
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if self.started_at.utcoffset() is None:
            raise InvalidArgumentError(
                f"started_at {self.started_at.isoformat()} has no time zone: give an aware datetime, such as "
                "datetime.now(timezone.utc)."
            )

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> RunOutcome:
        """Read the dict that `to_dict` made; missing and unknown fields are refused by name.

        Times that earlier versions did not record may be missing.
        """
        known = _check_fields(cls, facts)
        nested = {
            "parameters": dict(known["parameters"]),
            "started_at": datetime.fromisoformat(known["started_at"]),
            "sources": tuple(SourceOutcome.from_dict(source) for source in known["sources"]),
            "steps": tuple(StepOutcome.from_dict(step) for step in known["steps"]),
            "tasks": tuple(TaskOutcome.from_dict(task) for task in known.get("tasks", ())),
            "spans": _read_spans(known),
        }
        return cls(**{**known, **nested})

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "parameters": dict(self.parameters),
            "started_at": self.started_at.isoformat(),
            "sources": [source.to_dict() for source in self.sources],
            "steps": [step.to_dict() for step in self.steps],
            "tasks": [task.to_dict() for task in self.tasks],
            "spans": list(map(asdict, self.spans)),
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


def _read_spans(facts: Mapping[str, Any]) -> tuple[Span, ...]:
    return tuple(Span(**_check_fields(Span, span)) for span in facts.get("spans", ()))


def _check_fields(
    cls: type[RuleCount | Span | SourceOutcome | StepOutcome | TaskOutcome | RunOutcome], facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    known = {field.name for field in fields(cls)}
    required = {field.name for field in fields(cls) if field.default is MISSING}
    missing, unknown = sorted(required - set(facts)), sorted(set(facts) - known)
    if missing or unknown:
        wrong = [f"lacks {missing}"] * bool(missing) + [f"has the unknown {unknown}"] * bool(unknown)
        raise InvalidArgumentError(
            f"This is not a {cls.__name__}: it {' and '.join(wrong)}. Read it with the merganser version that wrote it."
        )
    return facts
