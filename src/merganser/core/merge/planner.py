"""The plan: for every file its action and the reason, decided before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.dataset.condition_bounds import find_changeable_groups
from merganser.core.merge.filter_pruning import prune_by_key_filters
from merganser.core.merge.merge_plan import FilePlan
from merganser.core.merge.prepare import check_rows
from merganser.core.merge.scope import flag_files_in_scope
from merganser.core.model.engine import (
    OTHER_PARTITION,
    UNKNOWN_PARTITION,
    FileNumber,
    PartitionNumber,
    RewriteJob,
    ScanFile,
)
from merganser.core.model.partitions import UNKNOWN, from_token, list_tokens
from merganser.core.model.validation import check_moves
from merganser.errors import PartitionMoveError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.target import Target
    from merganser.core.merge.filter_pruning import FilterPruning
    from merganser.core.merge.merge_plan import FileAction
    from merganser.core.merge.prepare import FittedMerge, PreparedMerge
    from merganser.core.model.engine import ConformedSource, Engine, MatchCounts, MatchedSource, SourceFacts

    Groups = npt.NDArray[np.int64]

_PRUNED_BY_FILTERS = "no source key passes the filter of its keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plan as the driver runs it: matches, jobs and counts.

    Of the updated rows, `moved` leave their file for a new one. `changed_groups` is a mask of the row groups that
    change, in the order of the bounds; `deletes_missing` has for each file whether its missing rows are deleted.
    """

    matched: MatchedSource
    jobs: tuple[RewriteJob, ...]
    removed_files: tuple[FileNumber, ...]
    inserted: int
    updated: int
    deleted: int
    skipped: int
    moved: int
    changed_groups: npt.NDArray[np.bool_]
    deletes_missing: Sequence[bool]
    plan_files: Callable[[], tuple[FilePlan, ...]]  # only a plan needs them, and there may be very many
    pruning: FilterPruning

    @property
    def appended(self) -> int:
        """The number of rows in new files."""
        return self.inserted + self.moved

    @property
    def touched_files(self) -> set[FileNumber]:
        """The files that are replaced or removed."""
        return {*self.removed_files, *(job.number for job in self.jobs)}


@dataclass(frozen=True, slots=True)
class _Candidates:
    """What pruning left: for each file its partition and why it was pruned; a mask of row groups, as in the bounds."""

    partitions: Sequence[PartitionNumber]
    pruned: Sequence[str | None]
    groups: npt.NDArray[np.bool_]


def decide(engine: Engine, prepared: PreparedMerge) -> Decision:
    """Match the source, and decide about each file."""
    target, policy = prepared.target, prepared.policy
    matched, candidates, pruning = _match_source(engine, prepared)
    if prepared.request.options.on_partition_move != "move":
        check_moves(matched.counts.moved, matched.counts.moved_sample, target.partition_columns)
    if policy.rule.replaces and policy.takes_partition:
        _check_unknown_partitions(target, candidates.partitions, matched.counts)
    return _assign_file_actions(prepared, matched, candidates, pruning)


def has_source_keys(engine: Engine, source: ConformedSource, *, fitted: FittedMerge) -> bool:
    """Check whether the target has any row with a source key."""
    # The keys of the source were compared with each other before.
    prepared = check_rows(replace(fitted, has_unique_keys=True), source)
    matched, _, _ = _match_source(engine, prepared)
    return bool(matched.counts.rows.any())


def _match_source(engine: Engine, prepared: PreparedMerge) -> tuple[MatchedSource, _Candidates, FilterPruning]:
    """Prune by partition, by bounds and by filters, then scan key columns; only what the scan confirms changes (P1)."""
    target, keys = prepared.target, prepared.spec.keys
    candidates = _prune_by_bounds(prepared)
    scans = plan_scans(target, keys, candidates.partitions, candidates.groups)
    pruning = prune_by_key_filters(engine, prepared, scans)
    if pruning.filter_names is not None:
        candidates = _prune_by_filters(candidates, target, pruning)
        scans = plan_scans(target, keys, candidates.partitions, candidates.groups)
    matched = prepared.source.match(scans, prepared.facts, plan_missing_scans(prepared, candidates.partitions))
    return matched, candidates, pruning


def _prune_by_bounds(prepared: PreparedMerge) -> _Candidates:
    facts, target = prepared.facts, prepared.target
    partitions = _number_file_partitions(target, facts)
    pruned = _prune_by_partition(prepared, partitions)
    groups = np.array([reason is None for reason in pruned], np.bool_)[target.group_file]
    groups = groups & facts.candidates if facts.rows and target.files else np.zeros(len(groups), np.bool_)
    return _Candidates(partitions, pruned, groups)


def _prune_by_filters(candidates: _Candidates, target: Target, pruning: FilterPruning) -> _Candidates:
    pruned = [
        _PRUNED_BY_FILTERS if pruning.groups.get(FileNumber(file)) == [] else reason
        for file, reason in enumerate(candidates.pruned)
    ]
    return _Candidates(candidates.partitions, pruned, target.mark_groups(pruning.groups))


def _number_file_partitions(target: Target, facts: SourceFacts) -> list[PartitionNumber]:
    """Number each file's partition as `SourceFacts.partitions` does."""
    if not facts.partitions.num_columns:
        return [PartitionNumber(0)] * len(target.files)
    partitions = list_tokens(facts.partitions, target.partition_columns)
    numbers = {values: PartitionNumber(number) for number, values in enumerate(partitions)}
    return [UNKNOWN_PARTITION if UNKNOWN in one else numbers.get(one, OTHER_PARTITION) for one in target.partitions]


def _prune_by_partition(prepared: PreparedMerge, partitions: Sequence[PartitionNumber]) -> list[str | None]:
    """List for each file the reason why its partition excludes it, or None."""
    target, keys = prepared.target, prepared.spec.keys
    if not target.partition_columns:
        return [None] * len(partitions)
    in_key = set(target.partition_columns) <= set(keys)
    # A deletion by key applies in every partition; where partition columns are keys, bounds include them.
    is_pruning = in_key or not prepared.request.options.check_partition_moves
    is_pruning = is_pruning and not prepared.policy.deletes_keys
    # Source keys have NULL only where it equals NULL.
    without_null = [name for name in keys if name in target.partition_types and name not in prepared.facts.null_keys]
    path_keys = {name: target.get_path_values(name) for name in without_null}
    reasons: list[str | None] = []
    for file, partition in enumerate(partitions):
        null_key = next((name for name, values in path_keys.items() if values[file] is None), None)
        if null_key is not None:
            reasons.append(f"its {null_key!r} is NULL, which no key matches")
        elif partition == OTHER_PARTITION and is_pruning:
            reasons.append("the source has no row for its partition")
        else:
            reasons.append(None)
    return reasons


def plan_missing_scans(prepared: PreparedMerge, partitions: Sequence[PartitionNumber]) -> tuple[ScanFile, ...]:
    """Plan how to read the rows that clauses may change although they match nothing (Q4)."""
    target, clauses = prepared.target, prepared.policy.missing
    if clauses is None or not target.files:
        return ()
    groups = np.array(flag_files_in_scope(prepared.scope, target), np.bool_)[target.group_file]
    return plan_scans(target, prepared.spec.keys, partitions, groups & find_changeable_groups(target, clauses))


def plan_scans(
    target: Target,
    keys: Sequence[str],
    partitions: Sequence[PartitionNumber],
    candidates: npt.NDArray[np.bool_],
    deletes_missing: Sequence[bool] = (),
) -> tuple[ScanFile, ...]:
    """Plan how to read the keys of candidate row groups; they are in the order of the bounds, the others by file."""
    scans = []
    unbounded = {name: target.is_unbounded(name) for name in keys if target.files}
    files, starts = np.unique(target.group_file[candidates], return_index=True)
    groups_by_file = np.split(target.group_number[candidates], starts[1:])
    for file, groups in zip(files.tolist(), groups_by_file, strict=False):
        own = slice(*target.first_group[file : file + 2].tolist())
        rows = target.group_rows[own]
        after = np.cumsum(rows)
        constants = _find_constants(target, file, keys)
        scans.append(
            ScanFile(
                number=file,
                path=target.location.to_path(target.files[file].rel),
                groups=groups.tolist(),
                constants=constants,
                partition=partitions[file],
                spans=list(zip((after - rows)[groups].tolist(), after[groups].tolist(), strict=True)),
                has_all_groups=len(groups) == len(rows),
                has_bounds=not any(unbounded[name][own][groups].any() for name in keys if name not in constants),
                deletes_missing=bool(deletes_missing) and deletes_missing[file],
                footer=target.footers.get(target.files[file].rel),
                shape=target.get_shape(file),
            )
        )
    return tuple(scans)


def _find_constants(target: Target, file: FileNumber, keys: Sequence[str]) -> dict[str, pa.Array]:
    """Find the key and partition columns that the path contains or the file lacks, with their one value."""
    constants = {}
    for name in dict.fromkeys([*keys, *target.partition_columns]):
        value = target.get_path_value(file, name)
        if value is not UNKNOWN:
            constants[name] = pa.repeat(from_token(value, target.partition_types[name]), 1)
        elif name not in target.get_columns(file):
            constants[name] = pa.nulls(1, target.partition_types[name])
    return constants


def _check_unknown_partitions(target: Target, partitions: Sequence[PartitionNumber], counts: MatchCounts) -> None:
    """Refuse to replace rows in a file that can neither store nor be compared with the source's partition columns."""
    columns = target.partition_columns
    for file in np.unique(counts.file[counts.replaced > 0]).tolist():
        in_path = [name for name in columns if target.get_path_value(file, name) is not UNKNOWN]
        in_file = [name for name in columns if name in target.get_columns(file)]
        if partitions[file] == UNKNOWN_PARTITION and (in_path or len(in_file) < len(columns)):
            raise PartitionMoveError(
                f"{target.location.to_display(target.files[file].rel)} holds matched keys, but its path lacks some of "
                f"{', '.join(columns)}, so rows cannot be replaced there. Move it into its partition's folder."
            )


def _assign_file_actions(
    prepared: PreparedMerge, matched: MatchedSource, candidates: _Candidates, pruning: FilterPruning
) -> Decision:
    rule, counts = prepared.policy.rule, matched.counts
    tally = _count_group_rows(prepared, counts)
    jobs, removed = _make_jobs(prepared, counts, tally)
    jobs |= {job.number: job for job in make_schema_jobs(prepared, {*jobs, *removed})}
    rows, replaced, taken = (int(column.sum()) for column in (counts.rows, counts.replaced, counts.removed))
    return Decision(
        matched=matched,
        jobs=tuple(jobs[file] for file in sorted(jobs)),
        removed_files=tuple(removed),
        inserted=counts.new_rows,
        updated=replaced + counts.moved,
        deleted=tally.missing_rows + taken - counts.moved,
        skipped=rows - replaced - taken if rule.touches else 0,
        moved=counts.moved,
        changed_groups=tally.changed,
        deletes_missing=tally.deletes_missing,
        plan_files=partial(_make_file_plans, prepared, counts, candidates, jobs, {*removed}),
        pruning=pruning,
    )


def _make_jobs(
    prepared: PreparedMerge, counts: MatchCounts, tally: _GroupCounts
) -> tuple[dict[FileNumber, RewriteJob], list[FileNumber]]:
    target, rewrites_all = prepared.target, prepared.request.options.rewrite_all
    if counts.new_rows and not target.rows:
        # New files have the schema now, so those without rows are removed (W3).
        return {}, [*map(FileNumber, target.unlinked)]
    columns = prepared.policy.replaced_columns - target.find_exact_keys(prepared.spec.keys)
    jobs: dict[FileNumber, RewriteJob] = {}
    removed: list[FileNumber] = []
    changed_files = np.unique(target.group_file[tally.changed]).tolist()
    for file in map(FileNumber, range(len(target.files)) if rewrites_all else changed_files):
        groups = slice(*np.searchsorted(target.group_file, [file, file + 1]))
        changed, left = tally.changed[groups], tally.rows_left[groups]
        if changed.any() and not left.sum():
            removed.append(file)
        else:
            kept = np.flatnonzero((changed | rewrites_all) & ((left > 0) | ~changed))
            dropped = np.flatnonzero(changed & (left == 0))
            keeps_missing = not tally.deletes_missing[file]
            jobs[file] = _make_job(target, file, columns, kept, dropped, keeps_missing=keeps_missing)
    if removed and len(removed) == len(target.files) and not (counts.new_rows or counts.moved):
        # A dataset left without rows keeps one file without rows, so that its schema survives (W3).
        first = removed.pop(0)
        everything = np.arange(target.group_counts[first])
        jobs[first] = _make_job(target, first, columns, everything[:0], everything)
    return jobs, removed


def make_schema_jobs(prepared: PreparedMerge, touched: Collection[FileNumber] = ()) -> list[RewriteJob]:
    """Make jobs that only give files the schema of the dataset, for those that are not touched otherwise (E1)."""
    target, jobs = prepared.target, []
    # A merge of no rows brings no columns.
    for file in map(FileNumber, range(len(target.files)) if prepared.facts.rows and target.is_mixed else ()):
        if file not in touched and target.get_shape(file) is not None:
            nothing = np.arange(0)
            jobs.append(_make_job(target, file, frozenset(), nothing, nothing))
    return jobs


@dataclass(frozen=True, slots=True)
class _GroupCounts:
    """By row group, as in the bounds, what is left and changed; rows deleted without a source row; whether, by file."""

    rows_left: npt.NDArray[np.int64]
    changed: npt.NDArray[np.bool_]
    missing_rows: int
    deletes_missing: Sequence[bool]


def _count_group_rows(prepared: PreparedMerge, counts: MatchCounts) -> _GroupCounts:
    target = prepared.target
    rows = target.group_rows
    first = np.searchsorted(target.group_file, np.arange(len(target.files)))
    at = first[counts.file] + counts.row_group
    matched, replaced, removed = (np.zeros_like(rows) for _ in range(3))
    matched[at], replaced[at], removed[at] = counts.rows, counts.replaced, counts.removed
    deletes_missing = [False] * len(target.files)
    if prepared.policy.rule.deletes_missing:
        deletes_missing = flag_files_in_scope(prepared.scope, target)
    missing = np.where(np.array(deletes_missing, np.bool_)[target.group_file], rows - matched, 0)
    left = rows - missing - removed
    return _GroupCounts(left, (replaced > 0) | (left < rows), int(missing.sum()), deletes_missing)


def _make_job(
    target: Target,
    file: FileNumber,
    replaced: frozenset[str],
    groups: Groups,
    dropped: Groups,
    *,
    keeps_missing: bool = True,
) -> RewriteJob:
    # A copy inside the file of a column that is in the path stays as it is: the path wins (H1).
    in_path = {name for name in target.partition_columns if target.get_path_value(file, name) is not UNKNOWN}
    rel = target.files[file].rel
    return RewriteJob(
        number=file,
        path=target.location.to_path(rel),
        columns=target.get_columns(file) & replaced - in_path,
        groups=groups.tolist(),
        dropped_groups=dropped.tolist(),
        keeps_missing=keeps_missing,
        footer=target.footers.get(rel),
        shape=target.get_shape(file),
        constants=_find_constants(target, file, ()),
    )


def _make_file_plans(
    prepared: PreparedMerge,
    counts: MatchCounts,
    candidates: _Candidates,
    jobs: Mapping[FileNumber, RewriteJob],
    removed: set[FileNumber],
) -> tuple[FilePlan, ...]:
    target = prepared.target
    matched = np.bincount(counts.file, minlength=len(target.files)).tolist()
    candidate_groups = np.bincount(target.group_file[candidates.groups], minlength=len(target.files)).tolist()
    plans = []
    for file in map(FileNumber, range(len(target.files))):
        groups, job = int(target.group_counts[file]), jobs.get(file)
        action: FileAction = "preserve"
        affected = 0
        if job is not None:
            action, affected = "rewrite", len(job.groups) + len(job.dropped_groups)
            found = "it holds matched rows" if prepared.policy.missing is None else "it holds rows that clauses change"
            reason = found if matched[file] else _explain_unmatched_rewrite(job)
        elif file in removed:
            action, affected = "remove", groups
            reason = _explain_removal(target, file, is_matched=matched[file] > 0)
        elif matched[file]:
            stays = "are late or unchanged" if prepared.policy.rule.touches else "stay as they are"
            reason = f"it holds matched rows, which {stays}"
        else:
            reason = _explain_no_match(target, file, candidates, is_scanned=candidate_groups[file] > 0)
        plans.append(
            FilePlan(
                path=target.location.to_display(target.files[file].rel),
                action=action,
                reason=reason,
                rows=target.file_rows[file],
                row_groups=groups,
                candidate_groups=candidate_groups[file],
                affected_groups=affected,
            )
        )
    return tuple(plans)


def _explain_unmatched_rewrite(job: RewriteJob) -> str:
    if job.shape is not None and not job.dropped_groups:
        return "its schema changes"
    return "every file is rewritten" if job.groups else "it keeps the schema of a dataset without rows"


def _explain_removal(target: Target, file: FileNumber, *, is_matched: bool) -> str:
    if not target.file_rows[file]:
        return "it has no rows, and new files keep the schema"
    return "all of its rows are deleted or move" if is_matched else "none of its rows is in the source"


def _explain_no_match(target: Target, file: FileNumber, candidates: _Candidates, *, is_scanned: bool) -> str:
    if not target.file_rows[file]:
        return "it has no rows"
    if (reason := candidates.pruned[file]) is not None:
        return reason
    return "its keys were scanned and none matches" if is_scanned else "no source key lies inside its bounds"
