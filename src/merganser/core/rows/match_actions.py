"""What happens to each matched row: the truth table, and what the values on both sides make of it."""

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

    from merganser.core.model.engine import ScanFile
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.store import Store


def assign_actions(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    policy: MergePolicy,
) -> tuple[Matches, MatchCounts]:
    """Say what happens to every match that was found, and to the source rows without one, and count it."""
    new = found.new[~find_delete_rows(handle, policy)[found.new]]
    if policy.rule.touches:
        actions = _decide_actions(handle, found, keys, store, files, partitions, policy)
        matches = Matches(found.file, found.row_group, found.position, found.source_row, actions, new)
        moved = np.unique(matches.source_row[actions == Action.MOVE])[:SAMPLE_SIZE]
    else:
        actions, matches, moved = found.action, Matches.of_new(new), np.arange(0)
    counts = count_groups(found.file, found.row_group, actions)
    sample = take(handle.select(list(keys)), moved)
    return matches, MatchCounts(*counts, len(new), int((actions == Action.MOVE).sum()), sample)


def find_delete_rows(handle: pa.Table, policy: MergePolicy) -> npt.NDArray[np.bool_]:
    """Say of each source row whether it deletes."""
    if policy.delete_column is None:
        return np.zeros(handle.num_rows, np.bool_)
    return handle.column(policy.delete_column).to_numpy()  # type: ignore[no-any-return]


def _decide_actions(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    policy: MergePolicy,
) -> npt.NDArray[np.int8]:
    actions = np.full(len(found.file), policy.rule.matched, np.int8)
    if policy.takes_partition and partitions.num_columns:
        actions[_find_moved(handle, found, files, partitions) & (actions == Action.REPLACE)] = Action.MOVE
    actions[find_delete_rows(handle, policy)[found.source_row]] = Action.DELETE
    return (
        compare_values(handle, replace(found, action=actions), keys, store, files, policy)
        if policy.compares_values
        else actions
    )


def compare_values(
    handle: pa.Table, found: Matches, keys: Sequence[str], store: Store, files: Sequence[ScanFile], policy: MergePolicy
) -> npt.NDArray[np.int8]:
    """Keep the target rows whose source rows are late or equal; say what happens to all."""
    by_number = {scan.number: scan for scan in files}
    groups = [(by_number[int(found.file[at.start])], at) for at in split_by_group(found.file, found.row_group)]
    look = partial(_compare_group, handle, found, keys, store, policy)
    with open_pool(len(groups), WORKERS, "look") as pool:
        return np.concatenate([np.zeros(0, np.int8), *pool.map(look, groups)])


def list_compared_columns(columns: Iterable[str], keys: Sequence[str], policy: MergePolicy) -> list[str]:
    """Name the source columns that it takes to look at matches."""
    compared = [name for name in columns if name in (policy.compared_columns or ()) and name not in keys]
    return list(dict.fromkeys([*([] if policy.sequence_column is None else [policy.sequence_column]), *compared]))


def _find_moved(
    handle: pa.Table, found: Matches, files: Sequence[ScanFile], partitions: pa.Table
) -> npt.NDArray[np.bool_]:
    """Say of each match whether its source row belongs to another partition than its file."""
    place = np.full(max((scan.number for scan in files), default=-1) + 1, OTHER_PARTITION, np.int64)
    place[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = place[found.file]
    codes = assign_partition_codes(handle, partitions)
    return (expected != UNKNOWN_PARTITION) & (codes[found.source_row] != expected)  # type: ignore[no-any-return]


def _compare_group(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    policy: MergePolicy,
    group: tuple[ScanFile, slice],
) -> npt.NDArray[np.int8]:
    """Compare the matched rows of one row group with their source rows."""
    scan, at = group
    decided = found.action[at].copy()
    # A row that stays in its folder is equal in what the folder tells.
    told = {*scan.constants} - {policy.sequence_column}
    names = [name for name in list_compared_columns(handle.column_names, keys, policy) if name not in told]
    compared = [name for name in names if name in (policy.compared_columns or ()) and name not in scan.constants]
    if not names:
        return np.where(decided == Action.REPLACE, np.int8(Action.KEEP), decided)
    new = take(handle.select(names), found.source_row[at])
    rows = read_rows(store, scan, int(found.row_group[at.start]), names, found.position[at])
    columns = [cast_column(rows[name], new.schema.field(name).type, name) for name in names]
    old = pa.table(columns, schema=new.schema)
    if policy.sequence_column is not None:
        decided[~is_at_least(new.column(policy.sequence_column), old.column(policy.sequence_column))] = Action.KEEP
    if policy.compared_columns is not None:
        replaced = np.flatnonzero(decided == Action.REPLACE)
        one, other = (table.select(compared).take(pa.array(replaced)) for table in (new, old))
        decided[replaced[compare_rows(one, other)] if compared else replaced] = Action.KEEP
    return decided
