"""The plan: for every file its fate and the reason, decided before anything is written and without a side effect."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Literal

import numpy as np
import pyarrow as pa

from merganser.core.engine import ELSEWHERE, UNTOLD, M, MatchCounts, RewriteJob, ScanFile
from merganser.core.errors import PartitionMoveError
from merganser.core.hive import UNKNOWN, tokens, untoken
from merganser.core.validate import check_moves

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.dataset import Target
    from merganser.core.engine import Engine, G, H, SourceFacts
    from merganser.core.options import Request
    from merganser.core.strategy import Rule

Fate = Literal["rewrite", "remove", "preserve"]


# Why a file without a match is rewritten: every file is, or it is the last one.
_UNMATCHED = {True: "every file is rewritten", False: "it keeps the schema of a dataset without rows"}


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file's fate: of its row groups, how many might hold a source key and how many change."""

    path: str
    fate: Fate
    reason: str
    rows: int
    row_groups: int
    candidate_groups: int
    affected_groups: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a merge would do. Print it."""

    path: str
    strategy: str
    key_columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    files: tuple[FilePlan, ...]

    def __str__(self) -> str:
        """Show the counts and then a line for each file."""
        head = (
            f"{self.strategy} of {self.source_count} rows into {self.path} on {', '.join(self.key_columns)}: "
            f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted; "
            f"{self.target_count_before} rows before, {self.target_count_after} after"
        )
        lines = [
            f"  {file.fate:<8} {file.path}: {file.reason} "
            f"({file.affected_groups} of {file.row_groups} row groups, {file.rows} rows)"
            for file in self.files
        ]
        return "\n".join([head, *lines])


@dataclass(frozen=True, slots=True)
class Decision(Generic[M]):
    """The plan as the driver runs it: matches, jobs and counts."""

    matches: M | None
    jobs: tuple[RewriteJob, ...]
    removed: tuple[int, ...]
    inserted: int
    updated: int
    deleted: int
    files: tuple[FilePlan, ...]


def decide(engine: Engine[G, H, M], handle: H, facts: SourceFacts, target: Target, request: Request) -> Decision[M]:
    """Prune by partition, then by bounds, then scan key columns; only what the scan confirms changes (P1)."""
    keys, rule, moves = request.keys, request.rule, request.options.check_partition_moves
    if not target.files:
        return Decision(None, (), (), facts.rows if rule.inserts else 0, 0, 0, ())
    codes = file_partitions(target, facts)
    pruned = _pruned_by_partition(target, keys, codes, check_moves=moves)
    open_groups = np.array([pruned[file] is None for file in target.group_file], np.bool_)
    candidate = np.zeros(len(open_groups), np.bool_)
    if facts.rows:
        candidate = open_groups & facts.candidates
    if not candidate.any():
        # No row group is left that might hold a source key: every source row is new.
        none = np.zeros(0, np.int32)
        unmatched = MatchCounts(none, none, np.zeros(0, np.int64), facts.rows, 0, facts.duplicate_sample)
        return _fates(target, request, None, unmatched, candidate, pruned)
    scans = scan_files(target, keys, codes, candidate)
    matches, counts = engine.match(handle, keys, target.location.store, scans, facts.partitions, rule)
    if rule.replaces:
        check_moves(counts.moved, counts.moved_sample, target.partition_columns)
        _check_untold(target, codes, counts)
    return _fates(target, request, matches, counts, candidate, pruned)


def file_partitions(target: Target, facts: SourceFacts) -> list[int]:
    """Number each file's partition as the source numbers its own."""
    if not target.partition_types:
        return [0] * len(target.files)
    numbers = {values: number for number, values in enumerate(tokens(facts.partitions, target.partition_columns))}
    return [UNTOLD if UNKNOWN in values else numbers.get(values, ELSEWHERE) for values in target.partitions]


def _pruned_by_partition(
    target: Target, keys: Sequence[str], codes: Sequence[int], *, check_moves: bool
) -> list[str | None]:
    """Give the reason why a file's partition rules it out, or None."""
    in_key = set(target.partition_columns) <= set(keys)
    reasons: list[str | None] = []
    for file, code in enumerate(codes):
        null_key = next((name for name in keys if target.path_value(file, name) is None), None)
        if null_key is not None:
            reasons.append(f"its {null_key!r} is NULL, which no key matches")
        elif code == ELSEWHERE and (in_key or not check_moves):
            reasons.append("the source has no row for its partition")
        else:
            reasons.append(None)
    return reasons


def scan_files(
    target: Target, keys: Sequence[str], codes: Sequence[int], candidate: npt.NDArray[np.bool_]
) -> tuple[ScanFile, ...]:
    """Say how to read the keys of some row groups."""
    scans = []
    files, starts = np.unique(target.group_file[candidate], return_index=True)
    groups_by_file = np.split(target.group_number[candidate], starts[1:])
    for file, groups in zip(files.tolist(), groups_by_file, strict=False):
        constants = {}
        for name in keys:
            value = target.path_value(file, name)
            if value is not UNKNOWN:
                constants[name] = pa.repeat(untoken(value, target.partition_types[name]), 1)
            elif name not in target.summaries[file].columns:
                constants[name] = pa.nulls(1, target.partition_types[name])
        group_rows, bounds = target.summaries[file].group_rows, target.summaries[file].bounds
        ends = list(accumulate(group_rows))
        numbers = groups.tolist()
        scans.append(
            ScanFile(
                file,
                target.location.path(target.files[file].rel),
                numbers,
                constants,
                codes[file],
                [(ends[group] - group_rows[group], ends[group]) for group in numbers],
                len(numbers) == len(group_rows),
                all(bounds[name][group] is not None for name in keys if name not in constants for group in numbers),
            )
        )
    return tuple(scans)


def _check_untold(target: Target, codes: Sequence[int], counts: MatchCounts) -> None:
    for file in np.unique(counts.file).tolist():
        missing = [name for name in target.partition_columns if name not in target.summaries[file].columns]
        if codes[file] == UNTOLD and missing:
            message = (
                f"{target.location.shown(target.files[file].rel)} holds matched keys, but neither its path nor the "
                f"file tells its {missing[0]!r}, so rows cannot be replaced there. Move it into its partition's folder."
            )
            raise PartitionMoveError(message)


def _fates(
    target: Target,
    request: Request,
    matches: M | None,
    counts: MatchCounts,
    candidate: npt.NDArray[np.bool_],
    pruned: Sequence[str | None],
) -> Decision[M]:
    rule = request.rule
    inserted = counts.new_rows if rule.inserts else 0
    updated = int(counts.rows.sum()) if rule.replaces else 0
    deleted = target.rows - int(counts.rows.sum()) if rule.deletes_missing else 0
    hit: dict[int, dict[int, int]] = {}
    for file, group, rows in zip(counts.file.tolist(), counts.row_group.tolist(), counts.rows.tolist(), strict=True):
        hit.setdefault(file, {})[group] = rows
    jobs: dict[int, RewriteJob] = {}
    removed: list[int] = []
    for file, summary in enumerate(target.summaries):
        found = sorted(hit.get(file, {}))
        if rule.deletes_missing and summary.rows and not found:
            removed.append(file)
        elif (rule.replaces and found) or request.options.rewrite_all:
            groups = range(len(summary.group_rows))
            dropped = [group for group in groups if group not in found] if rule.deletes_missing else []
            whole = request.options.rewrite_all and not rule.deletes_missing
            jobs[file] = _job(target, file, groups if whole else found, dropped, rule)
    if removed and len(removed) == len(target.files) and not inserted:
        # A dataset left with no rows keeps one file of none, so that its schema survives (W3).
        first = removed.pop(0)
        jobs[first] = _job(target, first, [], range(len(target.summaries[first].group_rows)), rule)
    gone = set(removed)
    candidates = np.bincount(target.group_file[candidate], minlength=len(target.files)).tolist()
    files = tuple(
        _file_plan(
            target, file, jobs.get(file), file in gone, pruned[file], candidates[file], len(hit.get(file, {})), rule
        )
        for file in range(len(target.files))
    )
    ordered = tuple(jobs[file] for file in sorted(jobs))
    return Decision(matches, ordered, tuple(removed), inserted, updated, deleted, files)


def _job(target: Target, file: int, groups: Sequence[int], dropped: Sequence[int], rule: Rule) -> RewriteJob:
    # Where the path tells a partition column, a copy inside the file is left as it is: the path wins (H1).
    told = {name for name in target.partition_columns if target.path_value(file, name) is not UNKNOWN}
    columns = target.summaries[file].columns - told
    path = target.location.path(target.files[file].rel)
    return RewriteJob(file, path, columns, tuple(groups), tuple(dropped), not rule.deletes_missing)


def _file_plan(
    target: Target,
    file: int,
    job: RewriteJob | None,
    removed: bool,  # noqa: FBT001
    pruned: str | None,
    candidates: int,
    matched: int,
    rule: Rule,
) -> FilePlan:
    summary = target.summaries[file]
    fate: Fate = "preserve"
    affected = 0
    if job is not None:
        fate, affected = "rewrite", len(job.groups) + len(job.dropped)
        reason = "it holds matched rows" if matched else _UNMATCHED[bool(job.groups)]
    elif removed:
        fate, affected, reason = "remove", len(summary.group_rows), "none of its rows is in the source"
    elif matched:
        reason = f"it holds matched rows, which {'stay as they are' if not rule.replaces else 'are unchanged'}"
    elif not summary.rows:
        reason = "it has no rows"
    elif pruned is not None:
        reason = pruned
    elif not candidates:
        reason = "no source key lies inside its bounds"
    else:
        reason = "its keys were scanned and none matches"
    shown = target.location.shown(target.files[file].rel)
    return FilePlan(shown, fate, reason, summary.rows, len(summary.group_rows), candidates, affected)
