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
from merganser.core.model.keys import is_at_least
from merganser.core.model.strategy import Action
from merganser.core.rows.append import assign_partition_codes
from merganser.core.rows.key_scan import read_rows
from merganser.core.rows.matches import Matches, count_groups, split_by_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import MatchCounts, ScanFile, SourceSpec
    from merganser.core.model.strategy import MergePolicy


def assign_actions(
    rows: pa.Table, spec: SourceSpec, found: Matches, files: Sequence[ScanFile], partitions: pa.Table
) -> tuple[Matches, MatchCounts]:
    """Assign an action to every match that was found, and to the source rows without one, and count them."""
    new = found.new[~find_delete_rows(rows, spec.policy)[found.new]]
    if spec.policy.rule.touches:
        actions = _decide_actions(rows, spec, found, files, partitions)
        matches = replace(found, action=actions, new=new)
        moved = np.unique(matches.source_row[actions == Action.MOVE])[:SAMPLE_SIZE]
    else:
        actions, matches, moved = found.action, Matches.of_new(new), np.arange(0)
    sample = take(rows.select(list(spec.keys)), moved)
    return matches, count_groups(found.file, found.row_group, actions, new_rows=len(new), moved_sample=sample)


def find_delete_rows(rows: pa.Table, policy: MergePolicy) -> npt.NDArray[np.bool_]:
    """Make a mask of the source rows that delete."""
    if policy.delete_column is None:
        return np.zeros(rows.num_rows, np.bool_)
    return rows.column(policy.delete_column).to_numpy()  # type: ignore[no-any-return]


def _decide_actions(
    rows: pa.Table, spec: SourceSpec, found: Matches, files: Sequence[ScanFile], partitions: pa.Table
) -> npt.NDArray[np.int8]:
    actions = np.full(len(found.file), spec.policy.rule.matched, np.int8)
    if spec.policy.takes_partition and partitions.num_columns:
        actions[_find_moved(rows, found, files, partitions) & (actions == Action.REPLACE)] = Action.MOVE
    actions[find_delete_rows(rows, spec.policy)[found.source_row]] = Action.DELETE
    if not spec.policy.compares_values:
        return actions
    return compare_values(rows, spec, replace(found, action=actions), files)


def compare_values(rows: pa.Table, spec: SourceSpec, found: Matches, files: Sequence[ScanFile]) -> npt.NDArray[np.int8]:
    """Return the actions of all matches, KEEP where the source row is late or equal."""
    by_number = {int(scan.number): scan for scan in files}
    groups = [(by_number[int(found.file[at.start])], at) for at in split_by_group(found.file, found.row_group)]
    compare = partial(_compare_group, rows, spec, found)
    with open_pool(len(groups), WORKERS, "look") as pool:
        return np.concatenate([np.zeros(0, np.int8), *pool.map(compare, groups)])


def list_compared_columns(columns: Iterable[str], keys: Sequence[str], policy: MergePolicy) -> list[str]:
    """List the source columns that are compared with matched target rows."""
    compared = [name for name in columns if name in (policy.compared_columns or ()) and name not in keys]
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
    rows: pa.Table, spec: SourceSpec, found: Matches, group: tuple[ScanFile, slice]
) -> npt.NDArray[np.int8]:
    (scan, at), policy = group, spec.policy
    actions = found.action[at].copy()
    # A row that stays in its folder is equal in the columns of the path.
    equal = {*scan.constants} - {policy.sequence_column}
    names = [name for name in list_compared_columns(rows.column_names, spec.keys, policy) if name not in equal]
    compared = [name for name in names if name in (policy.compared_columns or ()) and name not in scan.constants]
    if not names:
        return np.where(actions == Action.REPLACE, np.int8(Action.KEEP), actions)
    new = take(rows.select(names), found.source_row[at])
    read = read_rows(spec.store, scan, int(found.row_group[at.start]), names, found.position[at])
    columns = [cast_column(read[name], new.schema.field(name).type, name) for name in names]
    old = pa.table(columns, schema=new.schema)
    if policy.sequence_column is not None:
        actions[~is_at_least(new.column(policy.sequence_column), old.column(policy.sequence_column))] = Action.KEEP
    if policy.compared_columns is not None:
        replaced = np.flatnonzero(actions == Action.REPLACE)
        one, other = (table.select(compared).take(pa.array(replaced)) for table in (new, old))
        actions[replaced[compare_rows(one, other)] if compared else replaced] = Action.KEEP
    return actions
