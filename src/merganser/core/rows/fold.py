"""Fold rows into records, in Arrow: one record for each id, equal to what merging its rows one by one would leave.

If the record of an id does not exist, its first row creates it (match, base, on_create) and each later row overwrites
its on_match properties; if it exists, every row does. All rows overwrite the same properties, so only the values of
the last row remain. A record therefore has two forms: `new`, its properties if it is created, and `found`, the
properties to overwrite if it exists. Only the graph knows which form applies.

With a condition, rows overwrite a record only while it holds: up to the first row that ends it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.arrow_versions import sort_nulls_first
from merganser.core.columnar.take import to_array
from merganser.core.rows.faults import count_faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How rows become records; every value is the name of a column of the rows.

    `keys` are the id and, for edges, those of both nodes; `endpoints` the match properties of these nodes. `created`
    are the properties that the first row of a record creates, `matched` those that every later one overwrites.
    """

    keys: Mapping[str, str]
    endpoints: Mapping[str, Mapping[str, str]]
    created: Mapping[str, str]
    matched: Mapping[str, str]
    order: Sequence[str]
    # The columns that may not be NULL, and those that are checked for values that no graph can store, by a label each.
    required: Mapping[str, str]
    checked: Mapping[str, str]
    # Whether the record that a row creates meets the condition, and whether one that met it does so after the row.
    meets_condition: tuple[str, str] | None = None

    @property
    def input_columns(self) -> list[str]:
        """The columns of the rows that the fold reads."""
        groups = [self.keys, *self.endpoints.values(), self.created, self.matched, self.required, self.checked]
        named = [*(name for group in groups for name in group.values()), *self.order, *(self.meets_condition or ())]
        return list(dict.fromkeys(named))

    @property
    def output_columns(self) -> dict[str, dict[str, str]]:
        """The columns of the records, by form and property; `new` and `found` share those that are always equal."""
        found = {name: f"found.{name}" for name in self.matched}
        same = {name for name in found if self.created.get(name) == self.matched[name]}
        if self.meets_condition is not None:
            same.clear()
        new = {
            name: found[name] if name in same else f"new.{name}"
            for name in [*self.created, *(name for name in self.matched if name not in self.created)]
        }
        endpoints = {form: {name: f"{form}.{name}" for name in match} for form, match in self.endpoints.items()}
        return {"new": new, "found": found, **endpoints}


@dataclass(frozen=True, slots=True)
class FoldCounts:
    """Counts of the rows that were folded: all, those without an id, and those with each fault.

    `differ` says that `new` and `found` may differ in some record, so that it must be known which records exist.
    """

    rows: int
    skipped: int
    differ: bool
    faults: Mapping[tuple[str, str], int]

    @classmethod
    def add_up(cls, counts: Sequence[FoldCounts]) -> FoldCounts:
        """Add up the counts of several folds of one source."""
        faults: Counter[tuple[str, str]] = Counter()
        for one in counts:
            faults.update(one.faults)
        rows, skipped = (sum(getattr(one, name) for one in counts) for name in ("rows", "skipped"))
        return cls(rows, skipped, any(one.differ for one in counts), faults)


def fold_rows(rows: pa.Table, plan: FoldPlan) -> tuple[pa.Table, FoldCounts]:
    """Fold all rows of some ids; the records are in the order of their ids, with the number of their rows."""
    total, id_column = rows.num_rows, plan.keys["id"]
    faults = {(label, ""): rows.column(column).null_count for label, column in plan.required.items() if rows.num_rows}
    has_id = rows.column(id_column).is_valid()
    # Rows without an id belong to no record, so they may hold anything.
    rows = rows.filter(has_id) if rows.column(id_column).null_count else rows
    for label, column in plan.checked.items():
        faults |= {(label, reason): count for reason, count in count_faults(to_array(rows.column(column))).items()}
    counts = {fault: count for fault, count in faults.items() if count}
    if any(reason for _, reason in counts):
        # Values that no graph can store need not be ordered: the merge is refused.
        return _make_records(rows.slice(0, 0), plan, _group_rows(rows.slice(0, 0), plan))[0], FoldCounts(
            total, total - rows.num_rows, differ=False, faults=counts
        )
    groups = _group_rows(rows, plan)
    records, differ = _make_records(rows, plan, groups)
    return records, FoldCounts(total, total - rows.num_rows, differ, counts)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The rows of each id, in the order of the ids: how many, the first one, and the last one that overwrites.

    The last one may be another in a new record, and there it may be the first.
    """

    sizes: Positions
    first: Positions
    last: Positions
    last_if_new: Positions


def _group_rows(rows: pa.Table, plan: FoldPlan) -> _Groups:
    ids = to_array(rows.column(plan.keys["id"])).dictionary_encode()
    code = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.bincount(code, minlength=len(ids.dictionary)).astype(np.int64)
    first = np.zeros(len(sizes), np.int64)
    first[code] = np.arange(len(code))
    last = first.copy()
    last_if_new = first.copy()
    several = np.flatnonzero(sizes[code] > 1)
    if len(several):
        ordered = several[_sort_rows(rows.select(list(plan.order)).take(pa.array(several)), code[several])]
        ends = np.flatnonzero(np.diff(code[ordered], append=-1))
        begins = np.concatenate([[0], ends[:-1] + 1])
        groups = code[ordered[begins]]
        first[groups] = ordered[begins]
        last[groups] = last_if_new[groups] = ordered[ends]
        if plan.meets_condition is not None:
            created, matched = (
                pc.fill_null(to_array(rows.column(name)), False).to_numpy(zero_copy_only=False)[ordered]  # noqa: FBT003
                for name in plan.meets_condition
            )
            last[groups] = ordered[_find_last(~matched, begins, ends)]
            found = np.where(created[begins], _find_last(~matched, begins + 1, ends), begins)
            last_if_new[groups] = ordered[found]
    by_id = pc.sort_indices(ids.dictionary).to_numpy()
    return _Groups(sizes[by_id], first[by_id], last[by_id], last_if_new[by_id])


def _find_last(is_last: npt.NDArray[np.bool_], begins: Positions, ends: Positions) -> Positions:
    """Find the first marked position of each range, or its end."""
    marked = np.append(np.flatnonzero(is_last), len(is_last))
    found: Positions = np.minimum(marked[np.searchsorted(marked, begins)], ends)
    return found


def _sort_rows(order: pa.Table, code: Positions) -> Positions:
    """Sort rows by id, then as Spark orders structs of these columns: NULL first, NaN last."""
    keys = {"code": pa.array(code)}
    for number, column in enumerate(order.columns):
        values = to_array(column)
        if pa.types.is_floating(values.type):
            is_nan = pc.fill_null(pc.is_nan(values), False)  # noqa: FBT003  Arrow's own signature
            keys[f"{number}"] = pc.if_else(is_nan, pa.scalar(float("inf"), values.type), values)
            keys[f"{number} is NaN"] = is_nan
        else:
            keys[f"{number}"] = _rank_nested(values) if pa.types.is_nested(values.type) else values
    table = pa.table({name: values for name, values in keys.items() if not pa.types.is_null(values.type)})
    return sort_nulls_first(table)


def _rank_nested(values: pa.Array) -> pa.Array:
    """Number nested values in their order; only rows that share an id get here."""
    keys = [_to_sort_key(value) for value in values.to_pylist(maps_as_pydicts="lossy")]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return pa.array([ranks[key] for key in keys], pa.int64())


def _to_sort_key(value: object) -> tuple[object, ...]:
    """Make a key by which Python orders values as Spark does: NULL first, lists and structs item by item."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *(_to_sort_key(item) for item in value.values()), *map(str, value))
    if isinstance(value, list):
        return (1, *map(_to_sort_key, value))
    return (1, value != value, 0 if value != value else value)  # noqa: PLR0124  NaN is not equal to itself


def _make_records(rows: pa.Table, plan: FoldPlan, groups: _Groups) -> tuple[pa.Table, bool]:
    first, last, last_if_new = (
        _Taker(rows, positions) for positions in (groups.first, groups.last, groups.last_if_new)
    )
    outputs = plan.output_columns
    columns = {name: first.take(column) for name, column in plan.keys.items()}
    for form, match in plan.endpoints.items():
        columns |= {outputs[form][name]: first.take(column) for name, column in match.items()}
    columns |= {outputs["found"][name]: last.take(column) for name, column in plan.matched.items()}
    is_overwritten = pa.array(groups.last_if_new != groups.first)
    differ = False
    for name, stored in outputs["new"].items():
        if stored in columns:
            continue
        found = columns.get(f"found.{name}")
        created = first.take(plan.created[name]) if name in plan.created else None
        if found is None:
            columns[stored] = created
            continue
        # Rows after the first one match the record that it created.
        before = pa.nulls(len(found), found.type) if created is None else created
        columns[stored] = _choose(is_overwritten, last_if_new.take(plan.matched[name]), before)
        differ = differ or not _are_equal(columns[stored], found)
    columns[ROWS] = pa.array(groups.sizes)
    return pa.table(columns), differ


class _Taker:
    """Takes some rows of one column after another, each once."""

    def __init__(self, rows: pa.Table, positions: Positions) -> None:
        self._rows, self._positions = rows, pa.array(positions)
        self._taken: dict[str, pa.Array] = {}

    def take(self, column: str) -> pa.Array:
        if column not in self._taken:
            self._taken[column] = to_array(self._rows.column(column)).take(self._positions)
        return self._taken[column]


def _choose(condition: pa.Array, one: pa.Array, other: pa.Array) -> pa.Array:
    """Take the values of one array where a condition holds, and those of another elsewhere."""
    if pa.types.is_null(one.type):
        return other
    positions = np.arange(len(one)) + np.where(condition.to_numpy(zero_copy_only=False), 0, len(one))
    return pa.concat_arrays([one, other]).take(pa.array(positions))


def _are_equal(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are equal, NULL and NaN included; nested ones count as different unless all is the same."""
    return bool(one.equals(other))
