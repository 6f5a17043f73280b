"""Rows that clauses change: actions of target rows without a match, and new values that read the target."""

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
from merganser.core.model.strategy import Action
from merganser.core.rows.key_scan import read_rows
from merganser.core.rows.matches import Matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import RewriteJob, ScanFile, SourceSpec
    from merganser.core.model.row_clauses import RowClauses
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.store import Store

    Rows = npt.NDArray[np.int64]
    Actions = npt.NDArray[np.int8]

NO_SOURCE = pa.table({})


def list_value_columns(columns: Iterable[str], policy: MergePolicy, wanted: Collection[str]) -> list[str]:
    """List the source columns that the new values of some columns need, in the order of the source."""
    needed = policy.columns.intersection(wanted)
    if policy.matched is not None:
        needed = frozenset(policy.matched.list_source_columns(wanted))
    return [name for name in columns if name in needed]


def read_target(
    store: Store, file: ScanFile | RewriteJob, group: int, names: Sequence[str], positions: Rows
) -> pa.Table:
    """Read columns of some rows of a row group."""
    return pa.table(dict(read_rows(store, file, group, names, positions)))


def load_values(
    store: Store,
    policy: MergePolicy,
    rows: pa.Table,
    matches: Matches,
    file: ScanFile | RewriteJob,
    names: Sequence[str],
) -> pa.Table:
    """Compute the new values of matches of one row group that are updated, in columns that may change."""
    if policy.matched is None and policy.missing is None:
        return take(rows.select(list(names)), matches.source_row)
    is_missing = matches.action == Action.REPLACE_MISSING
    matched, missing = np.flatnonzero(~is_missing), np.flatnonzero(is_missing)
    compute = partial(_compute, store, policy, matches, file, names)
    if len(missing) and not len(matched):
        return compute(None, missing)
    source = take(rows.select(list_value_columns(rows.column_names, policy, {*names})), matches.source_row[matched])
    values = compute(source, matched)
    if not len(missing):
        return values
    others = _cast_like(compute(None, missing), values.schema)
    order = np.argsort(np.concatenate([matched, missing]), kind="stable")
    return pa.concat_tables([values, others]).combine_chunks().take(pa.array(order))


def _compute(
    store: Store,
    policy: MergePolicy,
    matches: Matches,
    file: ScanFile | RewriteJob,
    names: Sequence[str],
    source: pa.Table | None,
    at: Rows,
) -> pa.Table:
    """Compute the new values of some matches, or without a source of rows that have none.

    Columns that do not change there are read from the target.
    """
    clauses, source = (policy.missing, NO_SOURCE) if source is None else (policy.matched, source)
    changed = policy.columns if clauses is None else clauses.columns
    computed = [name for name in names if name in changed]
    kept = [name for name in names if name not in changed]
    needed = [] if clauses is None else clauses.list_target_columns(computed)
    group, positions = int(matches.row_group[0]) if len(matches.row_group) else 0, matches.position[at]
    target = read_target(store, file, group, list(dict.fromkeys([*needed, *kept])), positions)
    values = source.select(computed) if clauses is None else clauses.compute_values(computed, source, target, len(at))
    columns = {name: (values if name in changed else target).column(name) for name in names}
    return pa.table(columns)


def _cast_like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table([cast_column(table.column(field.name), field.type, field.name) for field in schema], schema=schema)


def add_missing(found: Matches, spec: SourceSpec, missing: Sequence[ScanFile]) -> Matches:
    """Add the rows without a match that the clauses for them change."""
    if not missing:
        return found
    together = found.append(find_missing(found, spec, missing))
    return together.select(np.lexsort((together.position, together.row_group, together.file)))


def find_missing(found: Matches, spec: SourceSpec, missing: Sequence[ScanFile]) -> Matches:
    """Find the rows without a match that the clauses for them change."""
    none, clauses = Matches.of_new(np.arange(0)), spec.policy.missing
    if clauses is None:
        return none
    tasks = [(scan, at) for scan in missing for at in range(len(scan.groups))]
    with open_pool(len(tasks), WORKERS, "look") as pool:
        changed = list(pool.map(partial(_find_missing_in_group, found, spec, clauses), tasks))
    added = []
    for (scan, at), (rows, actions) in zip(tasks, changed, strict=True):
        files, groups = np.full((2, len(rows)), [[scan.number], [scan.groups[at]]], np.int32)
        matches = Matches.from_positions(files, groups, rows, np.zeros(len(rows), np.int64), none.new)
        added.append(replace(matches, action=actions))
    return none.append(*added)


def _find_missing_in_group(
    found: Matches, spec: SourceSpec, clauses: RowClauses, task: tuple[ScanFile, int]
) -> tuple[Rows, Actions]:
    """Find the rows of a row group without a match that change, and their actions."""
    scan, at = task
    (first, after), group = scan.spans[at], scan.groups[at]
    is_missing = np.ones(after - first, np.bool_)
    is_missing[found.position[found.find_group(scan.number, group)]] = False
    rows = np.flatnonzero(is_missing)
    target = read_target(spec.store, scan, group, clauses.list_target_columns(), rows)
    actions = clauses.find_actions(NO_SOURCE, target, len(rows))
    updated = np.flatnonzero(actions == Action.REPLACE)
    if spec.policy.compares_equal and len(updated):
        names = sorted(clauses.columns)
        needed = list(dict.fromkeys([*clauses.list_target_columns(names), *names]))
        old = read_target(spec.store, scan, group, needed, rows[updated])
        new = clauses.compute_values(names, NO_SOURCE, old, len(updated))
        is_equal = compare_rows(new, _cast_like(old.select(names), new.schema))
        actions[updated[is_equal]] = Action.KEEP
    actions[actions == Action.REPLACE] = Action.REPLACE_MISSING
    changed = actions != Action.KEEP
    return rows[changed], actions[changed]
