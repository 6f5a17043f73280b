"""The plan: for every file its fate and the reason, decided before anything is written and without a side effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal

import numpy as np
import pyarrow as pa

from merganser.core.merge.filter_pruning import FilterPruning, prune_by_key_filters
from merganser.core.merge.scope import flag_files_in_scope
from merganser.core.model.engine import OTHER_PARTITION, UNKNOWN_PARTITION, MatchCounts, MatchesT, RewriteJob, ScanFile
from merganser.core.model.partitions import UNKNOWN, from_token, list_tokens
from merganser.core.model.validation import check_moves
from merganser.display import FilesDisplayMixin
from merganser.errors import PartitionMoveError
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.dataset.target import Target
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.merge.scope import Scope
    from merganser.core.model.engine import Engine, GivenT, SourceFacts, SourceT
    from merganser.core.model.options import Request
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging

FileAction = Literal["rewrite", "remove", "preserve"]

_PRUNED_BY_FILTERS = "no source key passes the filter of its keys"
# Why a file without a match is rewritten: every file is, or it is the last one.
_UNMATCHED_REASONS = {True: "every file is rewritten", False: "it keeps the schema of a dataset without rows"}


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file's fate: of its row groups, how many might hold a source key and how many change."""

    path: str
    action: FileAction
    reason: str
    rows: int
    row_groups: int
    candidate_groups: int
    affected_groups: int


@dataclass(frozen=True, slots=True)
class MergePlan(FilesDisplayMixin):
    """What a merge would do. Print it."""

    file_class = FilePlan

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
    skipped: int
    files: tuple[FilePlan, ...]

    def __str__(self) -> str:
        """Show the counts and then a line for each file."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        head = (
            f"{self.strategy} of {self.source_count} rows into {self.path} on {', '.join(self.key_columns)}: "
            f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted{skipped}; "
            f"{self.target_count_before} rows before, {self.target_count_after} after"
        )
        lines = [
            f"  {file.action:<8} {file.path}: {file.reason} "
            f"({file.affected_groups} of {file.row_groups} row groups, {file.rows} rows)"
            for file in self.files
        ]
        return "\n".join(map(escape_controls, [head, *lines]))


@dataclass(frozen=True, slots=True)
class Decision(Generic[MatchesT]):
    """The plan as the driver runs it: matches, jobs and counts.

    Of the updated rows, `moved` leave their file for a new one. `changed_groups` says of every row group of the dataset
    whether it changes, `deletes_missing` of every file whether its missing rows are deleted.
    """

    matches: MatchesT | None
    jobs: tuple[RewriteJob, ...]
    removed_files: tuple[int, ...]
    inserted: int
    updated: int
    deleted: int
    skipped: int
    moved: int
    changed_groups: npt.NDArray[np.bool_]
    deletes_missing: Sequence[bool]
    files: tuple[FilePlan, ...]
    pruning: FilterPruning

    @property
    def appended(self) -> int:
        """How many rows go to new files."""
        return self.inserted + self.moved


def decide(
    engine: Engine[GivenT, SourceT, MatchesT],
    prepared: PreparedMerge[SourceT],
    request: Request,
    staging: Staging | None,
) -> Decision[MatchesT]:
    """Prune by partition, by bounds and by filters, then scan key columns; only what the scan confirms changes (P1).

    New filters are staged, where there is a staging folder.
    """
    facts, target, terms = prepared.facts, prepared.target, prepared.policy
    codes = number_file_partitions(target, facts)
    pruned = _prune_by_partition(target, codes, request, terms)
    open_groups = np.array([pruned[file] is None for file in target.group_file], np.bool_)
    candidate = np.zeros(len(open_groups), np.bool_)
    if facts.rows and target.files:
        candidate = open_groups & facts.candidates
    scans = plan_scans(target, request.keys, codes, candidate)
    sifted = prune_by_key_filters(engine, prepared.handle, request.keys, facts.rows, target, scans, staging)
    if sifted.filter_names is not None:
        candidate = target.mark_groups(sifted.groups)
        pruned = [_PRUNED_BY_FILTERS if sifted.groups.get(file) == [] else reason for file, reason in enumerate(pruned)]
        scans = plan_scans(target, request.keys, codes, candidate)
    if not scans:
        # No row group is left that might hold a source key: every source row is new.
        none, no_rows = np.zeros(0, np.int32), np.zeros(0, np.int64)
        new = facts.rows - facts.delete_rows if terms.rule.inserts else 0
        unmatched = MatchCounts(none, none, no_rows, no_rows, no_rows, new, 0, facts.duplicate_sample)
        return _assign_file_actions(prepared, request, None, unmatched, candidate, pruned, sifted)
    store = target.location.store
    matches, counts = engine.match(prepared.handle, request.keys, store, scans, facts.partitions, terms)
    if request.options.on_partition_move != "move":
        check_moves(counts.moved, counts.moved_sample, target.partition_columns)
    if terms.rule.replaces and terms.takes_partition:
        _check_unknown_partitions(target, codes, counts)
    return _assign_file_actions(prepared, request, matches, counts, candidate, pruned, sifted)


def number_file_partitions(target: Target, facts: SourceFacts) -> list[int]:
    """Number each file's partition as the source numbers its own."""
    if not facts.partitions.num_columns:
        return [0] * len(target.files)
    numbers = {values: number for number, values in enumerate(list_tokens(facts.partitions, target.partition_columns))}
    return [
        UNKNOWN_PARTITION if UNKNOWN in values else numbers.get(values, OTHER_PARTITION) for values in target.partitions
    ]


def _prune_by_partition(
    target: Target, codes: Sequence[int], request: Request, policy: MergePolicy
) -> list[str | None]:
    """Give the reason why a file's partition rules it out, or None."""
    keys = request.keys
    in_key = set(target.partition_columns) <= set(keys)
    # What deletes by key does so wherever the key is; where partitions are keys, bounds tell of them too.
    prunes = (in_key or not request.options.check_partition_moves) and not policy.deletes_keys
    path_keys = {name: target.get_path_values(name) for name in keys if name in target.partition_types}
    reasons: list[str | None] = []
    for file, code in enumerate(codes):
        null_key = next((name for name, values in path_keys.items() if values[file] is None), None)
        if null_key is not None:
            reasons.append(f"its {null_key!r} is NULL, which no key matches")
        elif code == OTHER_PARTITION and prunes:
            reasons.append("the source has no row for its partition")
        else:
            reasons.append(None)
    return reasons


def plan_scans(
    target: Target,
    keys: Sequence[str],
    codes: Sequence[int],
    candidate: npt.NDArray[np.bool_],
    deletes_missing: Sequence[bool] = (),
) -> tuple[ScanFile, ...]:
    """Say how to read the keys of some row groups."""
    scans = []
    unbounded = {name: target.is_unbounded(name) for name in keys if target.files}
    files, starts = np.unique(target.group_file[candidate], return_index=True)
    groups_by_file = np.split(target.group_number[candidate], starts[1:])
    for file, groups in zip(files.tolist(), groups_by_file, strict=False):
        constants = {}
        for name in dict.fromkeys([*keys, *target.partition_columns]):
            value = target.get_path_value(file, name)
            if value is not UNKNOWN:
                constants[name] = pa.repeat(from_token(value, target.partition_types[name]), 1)
            elif name not in target.get_columns(file):
                constants[name] = pa.nulls(1, target.partition_types[name])
        own = slice(*target.first_group[file : file + 2].tolist())
        rows = target.group_rows[own]
        ends = np.cumsum(rows)
        scans.append(
            ScanFile(
                file,
                target.location.to_path(target.files[file].rel),
                groups.tolist(),
                constants,
                codes[file],
                list(zip((ends - rows)[groups].tolist(), ends[groups].tolist(), strict=True)),
                len(groups) == len(rows),
                not any(unbounded[name][own][groups].any() for name in keys if name not in constants),
                bool(deletes_missing) and deletes_missing[file],
                target.footers.get(target.files[file].rel),
            )
        )
    return tuple(scans)


def _check_unknown_partitions(target: Target, codes: Sequence[int], counts: MatchCounts) -> None:
    """Refuse to replace rows where what the source says of their partition can neither be stored nor compared."""
    for file in np.unique(counts.file[counts.replaced > 0]).tolist():
        told = [name for name in target.partition_columns if target.get_path_value(file, name) is not UNKNOWN]
        held = [name for name in target.partition_columns if name in target.get_columns(file)]
        if codes[file] == UNKNOWN_PARTITION and (told or len(held) < len(target.partition_columns)):
            message = (
                f"{target.location.to_display(target.files[file].rel)} holds matched keys, but its path does not "
                "tell all "
                f"of {', '.join(target.partition_columns)}, so rows cannot be replaced there. Move it into its "
                "partition's folder."
            )
            raise PartitionMoveError(message)


def _assign_file_actions(
    prepared: PreparedMerge[SourceT],
    request: Request,
    matches: MatchesT | None,
    counts: MatchCounts,
    candidate: npt.NDArray[np.bool_],
    pruned: Sequence[str | None],
    pruning: FilterPruning,
) -> Decision[MatchesT]:
    target, terms = prepared.target, prepared.policy
    tally = _count_group_rows(target, prepared.scope, terms, counts)
    whole = request.options.rewrite_all
    replaced_columns = terms.columns - target.find_exact_keys(request.keys)
    jobs: dict[int, RewriteJob] = {}
    removed: list[int] = []
    touched = range(len(target.files)) if whole else np.unique(target.group_file[tally.changed]).tolist()
    if counts.new_rows and not target.rows:
        # New files keep the schema now, so that those without rows go (W3).
        removed, touched = target.unlinked, []
    for file in touched:
        groups = slice(*np.searchsorted(target.group_file, [file, file + 1]))
        changed, left = tally.changed[groups], tally.rows_left[groups]
        if changed.any() and not left.sum():
            removed.append(file)
        else:
            kept = np.flatnonzero((changed | whole) & ((left > 0) | ~changed))
            jobs[file] = _make_job(target, file, kept, np.flatnonzero(changed & (left == 0)), replaced_columns, tally)
    if removed and len(removed) == len(target.files) and not (counts.new_rows or counts.moved):
        # A dataset left with no rows keeps one file of none, so that its schema survives (W3).
        first = removed.pop(0)
        everything = np.arange(target.group_counts[first])
        jobs[first] = _make_job(target, first, everything[:0], everything, replaced_columns, tally)
    gone = set(removed)
    matched = np.bincount(counts.file, minlength=len(target.files)).tolist()
    candidates = np.bincount(target.group_file[candidate], minlength=len(target.files)).tolist()
    files = tuple(
        _make_file_plan(
            target, file, jobs.get(file), file in gone, pruned[file], candidates[file], matched[file], terms
        )
        for file in range(len(target.files))
    )
    rows, replaced, taken = (int(column.sum()) for column in (counts.rows, counts.replaced, counts.removed))
    return Decision(
        matches,
        tuple(jobs[file] for file in sorted(jobs)),
        tuple(removed),
        counts.new_rows,
        replaced + counts.moved,
        tally.missing_rows + taken - counts.moved,
        rows - replaced - taken if terms.rule.touches else 0,
        counts.moved,
        tally.changed,
        tally.deletes_missing,
        files,
        pruning,
    )


@dataclass(frozen=True, slots=True)
class _GroupCounts:
    """Of every row group, how many rows are left and whether anything changes; and how many rows are missing in all."""

    rows_left: npt.NDArray[np.int64]
    changed: npt.NDArray[np.bool_]
    missing_rows: int
    deletes_missing: Sequence[bool]


def _count_group_rows(target: Target, scope: Scope | None, policy: MergePolicy, counts: MatchCounts) -> _GroupCounts:
    rows = target.group_rows
    first = np.searchsorted(target.group_file, np.arange(len(target.files)))
    at = first[counts.file] + counts.row_group
    matched, replaced, removed = (np.zeros_like(rows) for _ in range(3))
    matched[at], replaced[at], removed[at] = counts.rows, counts.replaced, counts.removed
    shrinking = flag_files_in_scope(scope, target) if policy.rule.deletes_missing else [False] * len(target.files)
    missing = np.where(np.array(shrinking, np.bool_)[target.group_file], rows - matched, 0)
    left = rows - missing - removed
    return _GroupCounts(left, (replaced > 0) | (left < rows), int(missing.sum()), shrinking)


def _make_job(
    target: Target,
    file: int,
    groups: npt.NDArray[np.int64],
    dropped: npt.NDArray[np.int64],
    replaced_columns: frozenset[str],
    group_counts: _GroupCounts,
) -> RewriteJob:
    # Where the path tells a partition column, a copy inside the file is left as it is: the path wins (H1).
    told = {name for name in target.partition_columns if target.get_path_value(file, name) is not UNKNOWN}
    columns = target.get_columns(file) & replaced_columns - told
    rel = target.files[file].rel
    keep, footer = not group_counts.deletes_missing[file], target.footers.get(rel)
    return RewriteJob(file, target.location.to_path(rel), columns, groups.tolist(), dropped.tolist(), keep, footer)


def _make_file_plan(
    target: Target,
    file: int,
    job: RewriteJob | None,
    is_removed: bool,  # noqa: FBT001
    pruned: str | None,
    candidates: int,
    matched: int,
    policy: MergePolicy,
) -> FilePlan:
    rows, groups = target.file_rows[file], int(target.group_counts[file])
    fate: FileAction = "preserve"
    affected = 0
    if job is not None:
        fate, affected = "rewrite", len(job.groups) + len(job.dropped_groups)
        reason = "it holds matched rows" if matched else _UNMATCHED_REASONS[bool(job.groups)]
    elif is_removed and not rows:
        fate, affected, reason = "remove", groups, "it has no rows, and new files keep the schema"
    elif is_removed:
        fate, affected = "remove", groups
        reason = "all of its rows are deleted or move" if matched else "none of its rows is in the source"
    elif matched:
        reason = (
            f"it holds matched rows, which {'are late or unchanged' if policy.rule.touches else 'stay as they are'}"
        )
    elif not rows:
        reason = "it has no rows"
    elif pruned is not None:
        reason = pruned
    elif not candidates:
        reason = "no source key lies inside its bounds"
    else:
        reason = "its keys were scanned and none matches"
    shown = target.location.to_display(target.files[file].rel)
    return FilePlan(shown, fate, reason, rows, groups, candidates, affected)
