"""What happens to each matched row: the truth table, and what the values on both sides make of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.columnar.equality import same_rows
from merganser.core.columnar.take import take
from merganser.core.columnar.threads import WORKERS, open_pool
from merganser.core.model.engine import ELSEWHERE, SAMPLE, UNTOLD, MatchCounts
from merganser.core.model.keys import not_lower
from merganser.core.model.schema import cast_column
from merganser.core.model.strategy import Action
from merganser.core.rows.append import partition_codes
from merganser.core.rows.key_scan import read_rows
from merganser.core.rows.matches import Matches, count_groups, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import ScanFile
    from merganser.core.model.strategy import Terms
    from merganser.core.storage.store import Store


def decided(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    terms: Terms,
) -> tuple[Matches, MatchCounts]:
    """Say what happens to every match that was found, and to the source rows without one, and count it."""
    new = found.new[~deleting(handle, terms)[found.new]]
    if terms.rule.touches:
        actions = _judge(handle, found, keys, store, files, partitions, terms)
        matches = Matches(found.file, found.row_group, found.position, found.source_row, actions, new)
        moved = np.unique(matches.source_row[actions == Action.MOVE])[:SAMPLE]
    else:
        actions, matches, moved = found.action, Matches.of_new(new), np.arange(0)
    counts = count_groups(found.file, found.row_group, actions)
    sample = take(handle.select(list(keys)), moved)
    return matches, MatchCounts(*counts, len(new), int((actions == Action.MOVE).sum()), sample)


def deleting(handle: pa.Table, terms: Terms) -> npt.NDArray[np.bool_]:
    """Say of each source row whether it deletes."""
    if terms.deletes is None:
        return np.zeros(handle.num_rows, np.bool_)
    return handle.column(terms.deletes).to_numpy()  # type: ignore[no-any-return]


def _judge(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    files: Sequence[ScanFile],
    partitions: pa.Table,
    terms: Terms,
) -> npt.NDArray[np.int8]:
    actions = np.full(len(found.file), terms.rule.matched, np.int8)
    if terms.places and partitions.num_columns:
        actions[_elsewhere(handle, found, files, partitions) & (actions == Action.REPLACE)] = Action.MOVE
    actions[deleting(handle, terms)[found.source_row]] = Action.DELETE
    return looked(handle, replace(found, action=actions), keys, store, files, terms) if terms.looks else actions


def looked(
    handle: pa.Table, found: Matches, keys: Sequence[str], store: Store, files: Sequence[ScanFile], terms: Terms
) -> npt.NDArray[np.int8]:
    """Keep the target rows whose source rows are late or equal; say what happens to all."""
    by_number = {scan.number: scan for scan in files}
    groups = [(by_number[int(found.file[at.start])], at) for at in runs(found.file, found.row_group)]
    look = partial(_look, handle, found, keys, store, terms)
    with open_pool(len(groups), WORKERS, "look") as pool:
        return np.concatenate([np.zeros(0, np.int8), *pool.map(look, groups)])


def looked_at(columns: Iterable[str], keys: Sequence[str], terms: Terms) -> list[str]:
    """Name the source columns that it takes to look at matches."""
    compared = [name for name in columns if name in (terms.compared or ()) and name not in keys]
    return list(dict.fromkeys([*([] if terms.sequence is None else [terms.sequence]), *compared]))


def _elsewhere(
    handle: pa.Table, found: Matches, files: Sequence[ScanFile], partitions: pa.Table
) -> npt.NDArray[np.bool_]:
    """Say of each match whether its source row belongs to another partition than its file."""
    place = np.full(max((scan.number for scan in files), default=-1) + 1, ELSEWHERE, np.int64)
    place[[scan.number for scan in files]] = [scan.partition for scan in files]
    expected = place[found.file]
    codes = partition_codes(handle, partitions)
    return (expected != UNTOLD) & (codes[found.source_row] != expected)  # type: ignore[no-any-return]


def _look(
    handle: pa.Table,
    found: Matches,
    keys: Sequence[str],
    store: Store,
    terms: Terms,
    group: tuple[ScanFile, slice],
) -> npt.NDArray[np.int8]:
    """Compare the matched rows of one row group with their source rows."""
    scan, at = group
    decided = found.action[at].copy()
    # A row that stays in its folder is equal in what the folder tells.
    told = {*scan.constants} - {terms.sequence}
    names = [name for name in looked_at(handle.column_names, keys, terms) if name not in told]
    compared = [name for name in names if name in (terms.compared or ()) and name not in scan.constants]
    if not names:
        return np.where(decided == Action.REPLACE, np.int8(Action.KEEP), decided)
    new = take(handle.select(names), found.source_row[at])
    rows = read_rows(store, scan, int(found.row_group[at.start]), names, found.position[at])
    columns = [cast_column(rows[name], new.schema.field(name).type, name) for name in names]
    old = pa.table(columns, schema=new.schema)
    if terms.sequence is not None:
        decided[~not_lower(new.column(terms.sequence), old.column(terms.sequence))] = Action.KEEP
    if terms.compared is not None:
        replaced = np.flatnonzero(decided == Action.REPLACE)
        one, other = (table.select(compared).take(pa.array(replaced)) for table in (new, old))
        decided[replaced[same_rows(one, other)] if compared else replaced] = Action.KEEP
    return decided
