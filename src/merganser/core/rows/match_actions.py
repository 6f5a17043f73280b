"""The action of each matched row: by the strategy, and by comparing values of source and target."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.columnar.equality import compare_rows
from merganser.core.columnar.take import take
from merganser.core.columnar.threads import WORKERS, open_pool
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import OTHER_PARTITION, SAMPLE_SIZE, UNKNOWN_PARTITION, MatchCounts
from merganser.core.model.keys import find_duplicate_keys, is_at_least
from merganser.core.model.strategy import Action
from merganser.core.model.validation import check_repeated_keys
from merganser.core.rows.append import assign_partition_codes
from merganser.core.rows.clause_rows import add_missing, list_value_columns, load_values, read_target
from merganser.core.rows.key_scan import read_rows
from merganser.core.rows.matches import Matches, count_groups, split_by_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import MatchCounts, ScanFile, SourceSpec
    from merganser.core.model.strategy import MergePolicy


def assign_actions(
    rows: pa.Table,
    spec: SourceSpec,
    found: Matches,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    missing: Sequence[ScanFile] = (),
    *,
    repeats: bool = False,
) -> tuple[Matches, MatchCounts]:
    """Assign an action to every match that was found, to the source rows without one, and to `missing` target rows.

    If source keys `repeat`, a target row may have several matches, one of which is kept.
    """
    new = found.new[~find_excluded_rows(rows, spec.policy)[found.new]]
    rule = spec.policy.rule
    actions = _decide_actions(rows, spec, found, files, partitions, repeats=repeats) if rule.touches else found.action
    decided = replace(found, action=actions, new=new)
    if repeats:
        decided = decided.select(find_single_matches(decided))
    matches = add_missing(decided, spec, missing)
    moved = np.unique(matches.source_row[matches.action == Action.MOVE])[:SAMPLE_SIZE]
    sample = take(rows.select(list(spec.keys)), moved)
    counts = count_groups(matches.file, matches.row_group, matches.action, new_rows=len(new), moved_sample=sample)
    return matches if rule.uses_matches or missing else Matches.of_new(new), counts


def find_delete_rows(rows: pa.Table, policy: MergePolicy) -> npt.NDArray[np.bool_]:
    """Make a mask of the source rows that delete."""
    if policy.delete_column is None:
        return np.zeros(rows.num_rows, np.bool_)
    return rows.column(policy.delete_column).to_numpy()  # type: ignore[no-any-return]


def find_excluded_rows(rows: pa.Table, policy: MergePolicy) -> npt.NDArray[np.bool_]:
    """Make a mask of the source rows that are not inserted even if they match nothing."""
    if policy.insert_column is None:
        return find_delete_rows(rows, policy)
    return ~rows.column(policy.insert_column).to_numpy()  # type: ignore[no-any-return]


def check_new_rows(rows: pa.Table, spec: SourceSpec, new: npt.NDArray[np.int64]) -> None:
    """Refuse to insert several rows with one key."""
    if spec.policy.rule.inserts:
        keys = take(rows.select(list(spec.keys)), new)
        check_repeated_keys(*find_duplicate_keys(keys, spec.keys, SAMPLE_SIZE))


def find_single_matches(matches: Matches) -> npt.NDArray[np.bool_]:
    """Make a mask of one match for each target row: the one that changes it, if there is one."""
    if not len(matches.file):
        return np.ones(0, np.bool_)
    is_first, changes = ~_is_same_row(matches), matches.action != Action.KEEP
    has_change = np.logical_or.reduceat(changes, np.flatnonzero(is_first))
    return changes | (is_first & ~has_change[np.cumsum(is_first) - 1])  # type: ignore[no-any-return]


def _is_same_row(matches: Matches) -> npt.NDArray[np.bool_]:
    """Make a mask of the matches whose target row is that of the match before."""
    columns = (matches.file, matches.row_group, matches.position)
    equal = [column[1:] == column[:-1] for column in columns]
    return np.concatenate([[False], equal[0] & equal[1] & equal[2]])[: len(matches.file)]


def _check_changes(rows: pa.Table, spec: SourceSpec, matches: Matches) -> None:
    """Refuse target rows that several source rows change (Q3)."""
    changes = matches.select(matches.action != Action.KEEP)
    repeated = np.unique(changes.source_row[_is_same_row(changes)])
    if len(repeated):
        keys = rows.select(list(spec.keys)).take(pa.array(repeated))
        distinct = keys.group_by(keys.column_names).aggregate([])
        check_repeated_keys(distinct.num_rows, distinct.slice(0, SAMPLE_SIZE))


def _decide_actions(
    rows: pa.Table,
    spec: SourceSpec,
    found: Matches,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    *,
    repeats: bool,
) -> npt.NDArray[np.int8]:
    actions = np.full(len(found.file), spec.policy.rule.matched, np.int8)
    if spec.policy.takes_partition and partitions.num_columns:
        actions[_find_moved(rows, found, files, partitions) & (actions == Action.REPLACE)] = Action.MOVE
    actions[find_delete_rows(rows, spec.policy)[found.source_row]] = Action.DELETE
    if not spec.policy.compares_values and not repeats:
        return actions
    return compare_values(rows, spec, replace(found, action=actions), files, repeats=repeats)


def compare_values(
    rows: pa.Table, spec: SourceSpec, found: Matches, files: Sequence[ScanFile], *, repeats: bool = False
) -> npt.NDArray[np.int8]:
    """Return the actions of all matches, KEEP where the source row is late or equal, or no clause applies."""
    by_number = {int(scan.number): scan for scan in files}
    groups = [(by_number[int(found.file[at.start])], at) for at in split_by_group(found.file, found.row_group)]
    compare = partial(_compare_group, rows, spec, found, repeats)
    with open_pool(len(groups), WORKERS, "look") as pool:
        return np.concatenate([np.zeros(0, np.int8), *pool.map(compare, groups)])


def list_compared_columns(columns: Iterable[str], keys: Sequence[str], policy: MergePolicy) -> list[str]:
    """List the source columns that are compared with matched target rows."""
    wanted = (policy.compared_columns or frozenset()).difference(keys)
    compared = [name for name in columns if name in wanted]
    if policy.matched is not None:
        compared = list_value_columns(columns, policy, wanted)
    return list(dict.fromkeys([*([] if policy.sequence_column is None else [policy.sequence_column]), *compared]))


def _find_moved(
    rows: pa.Table, found: Matches, files: Sequence[ScanFile], partitions: pa.Table
) -> npt.NDArray[np.bool_]:
    by_file = np.full(max((scan.number for scan in files), default=-1) + 1, OTHER_PARTITION, np.int64)
    by_file[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = by_file[found.file]
    codes = assign_partition_codes(rows, partitions)
    return (expected != UNKNOWN_PARTITION) & (codes[found.source_row] != expected)  # type: ignore[no-any-return]


def _compare_group(
    rows: pa.Table,
    spec: SourceSpec,
    found: Matches,
    repeats: bool,  # noqa: FBT001  threads get theirs by position
    group: tuple[ScanFile, slice],
) -> npt.NDArray[np.int8]:
    (scan, at), policy = group, spec.policy
    actions = found.action[at].copy()
    number, position, source_row = int(found.row_group[at.start]), found.position[at], found.source_row[at]
    if policy.sequence_column is not None:
        name = policy.sequence_column
        new = take(rows.select([name]), source_row).column(name)
        old = read_rows(spec.store, scan, number, [name], position)[name]
        actions[~is_at_least(new, cast_column(old, new.type, name))] = Action.KEEP
    if policy.matched is not None:
        source = take(rows.select(policy.matched.list_source_columns()), source_row)
        target = read_target(spec.store, scan, number, policy.matched.list_target_columns(), position)
        decided = policy.matched.find_actions(source, target, len(position))
        # A row that moves is one that is updated.
        is_open = (actions == Action.REPLACE) | (actions == Action.MOVE) | (actions == Action.DELETE)
        actions = np.where(is_open & (decided != Action.REPLACE), decided, actions)
    if repeats:
        _check_changes(rows, spec, replace(found.select(at), action=actions))
    if policy.compared_columns is not None:
        is_replaced = actions == Action.REPLACE
        matches = replace(found.select(at), action=actions).select(is_replaced)
        actions[np.flatnonzero(is_replaced)[_find_equal(rows, spec, matches, scan)]] = Action.KEEP
    return actions


def _find_equal(rows: pa.Table, spec: SourceSpec, matches: Matches, scan: ScanFile) -> npt.NDArray[np.bool_]:
    """Find the matches of one row group whose new values equal the old ones."""
    count, policy = len(matches.position), spec.policy
    # A row that stays in its folder is equal in the columns of the path.
    names = sorted(name for name in policy.compared_columns or () if name not in {*scan.constants, *spec.keys})
    if not names or not count:
        return np.ones(count, np.bool_)
    new = load_values(spec.store, policy, rows, matches, scan, names)
    read = read_rows(spec.store, scan, int(matches.row_group[0]), names, matches.position)
    old = [cast_column(read[name], new.schema.field(name).type, name) for name in names]
    return compare_rows(new, pa.table(old, schema=new.schema))
