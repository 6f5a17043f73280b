"""One row of all source rows of a key, whose clauses are applied in order (Q8).

The row has the list of them, for a target row with that key, and what becomes of a key that the target lacks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from merganser.core.columnar.take import TARGET_CHUNK_ROWS, take, to_array
from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import SAMPLE_SIZE
from merganser.core.model.keys import SOURCE_ROW, is_at_least, list_key_names, sort_rows, to_canonical_keys
from merganser.core.model.ordered_clauses import FAULT_COLUMN, ROWS_COLUMN, Outcome
from merganser.core.model.row_clauses import INSERT_COLUMN
from merganser.core.model.validation import check_tied_rows
from merganser.errors import ColumnTypeError, ColumnValueError, CountMismatchError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from merganser.core.model.engine import SourceSpec
    from merganser.core.model.ordered_clauses import OrderedClauses

    Rows = npt.NDArray[np.int64]


# Evaluations to find the keys on which clauses fail.
_MAX_SEARCHES = 500


def fold_spec(spec: SourceSpec) -> SourceSpec:
    """Return the specification of a source whose rows are folded."""
    given, ordered = conform_schema(spec.schema), get_ordered(spec)
    names = dict.fromkeys([*spec.keys, *spec.partition_columns, *sorted(ordered.new_columns)])
    fields = [(given if name in given.names else ordered.target).field(name).with_nullable(True) for name in names]  # noqa: FBT003
    lists = pa.field(ROWS_COLUMN, pa.large_list(pa.struct(list(given))))
    own = [pa.field(INSERT_COLUMN, pa.bool_()), pa.field(FAULT_COLUMN, pa.large_string()), lists]
    return replace(spec, schema=pa.schema([*fields, *own]))


def get_ordered(spec: SourceSpec) -> OrderedClauses:
    """Return the clauses that are applied in order."""
    if spec.policy.ordered is None:
        raise CountMismatchError("Internal error: there are no clauses to apply in order. Please report this.")
    return spec.policy.ordered


def fold_keys(rows: pa.Table, spec: SourceSpec, *, is_ordered: bool) -> Iterator[pa.RecordBatch]:
    """Fold all rows of each key into one, by the order of their keys' first rows.

    If rows have no order of their own, two of a key must not be equal in the column that orders them.
    """
    schema = fold_spec(spec).schema
    order, lengths = _order_by_key(rows, spec)
    if not is_ordered:
        _check_ties(rows, spec, order, lengths)
    ends = np.cumsum(lengths)
    # Rows of one key are never divided.
    starts = np.unique((ends - 1) // TARGET_CHUNK_ROWS, return_index=True)[1].tolist()
    for first, after in pairwise([*starts, len(ends)]):
        begin = int(ends[first] - lengths[first])
        picked = take(rows, order[begin : int(ends[after - 1])]).combine_chunks()
        yield from _fold(picked, ends[first:after] - begin, spec, schema).to_batches()


def _order_by_key(rows: pa.Table, spec: SourceSpec) -> tuple[Rows, Rows]:
    """Sort rows by the first row of their key, then by sequence; returns their numbers, and the rows of each key."""
    order = sort_rows(rows, [get_ordered(spec).sequence_column])
    keys = to_canonical_keys(rows, spec.keys).append_column(SOURCE_ROW, pa.array(np.arange(rows.num_rows)))
    numbers = keys.group_by(list_key_names(spec.keys), use_threads=False).aggregate([(SOURCE_ROW, "list")])
    lists = numbers.column(f"{SOURCE_ROW}_list").combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    members, lengths = lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy())
    first = np.minimum.reduceat(members, np.cumsum(lengths) - lengths) if len(lengths) else members
    by_first = np.argsort(first, kind="stable")
    group = np.empty(rows.num_rows, np.int64)
    group[members] = np.repeat(np.argsort(by_first, kind="stable"), lengths)
    return order[np.argsort(group[order], kind="stable")], lengths[by_first].astype(np.int64)


def _check_ties(rows: pa.Table, spec: SourceSpec, order: Rows, lengths: Rows) -> None:
    """Refuse rows of a key whose order is unknown."""
    group, name = np.repeat(np.arange(len(lengths)), lengths), get_ordered(spec).sequence_column
    same = np.flatnonzero(group[1:] == group[:-1])
    # Each is at least as high as the one before.
    before, after = (rows.column(name).take(pa.array(order[at])) for at in (same, same + 1))
    tied = same[is_at_least(before, after)]
    keys, at = np.unique(group[tied], return_index=True)
    sample = rows.select(list(spec.keys)).take(pa.array(order[tied[at[:SAMPLE_SIZE]]]))
    check_tied_rows(len(keys), sample, name)


def _fold(rows: pa.Table, ends: Rows, spec: SourceSpec, schema: pa.Schema) -> pa.Table:
    ordered, count = get_ordered(spec), len(ends)
    struct = pa.StructArray.from_arrays(list(map(to_array, rows.columns)), fields=list(rows.schema))
    lists = pa.LargeListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int64()), struct)
    found, faults = _apply_to_nothing(ordered, lists)
    columns = {INSERT_COLUMN: pa.array(found.exists), FAULT_COLUMN: faults, ROWS_COLUMN: lists}
    last, places = pa.array(ends - 1), np.arange(count)
    has_values = found.exists & faults.is_null().to_numpy(zero_copy_only=False)
    for name in schema.names[: -len(columns)]:
        values = found.values.column(name) if name in ordered.new_columns else None
        if name in (*spec.keys, *spec.partition_columns):
            # A row that is not inserted, or that cannot be, has a key all the same.
            own = rows.column(name).take(last)
            chunks = [] if values is None else values.chunks
            chosen = places if values is None else np.where(has_values, places, places + count)
            values = pa.chunked_array([*chunks, *own.chunks], own.type).take(pa.array(chosen))
        columns[name] = values
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _apply_to_nothing(ordered: OrderedClauses, lists: pa.Array) -> tuple[Outcome, pa.Array]:
    """Apply lists to keys as if the target lacked them; keys on which that fails have a fault instead of values.

    Whether it does is not known yet, so a failure must not refuse the merge. After many failures, all keys that were
    evaluated together have the fault of one of them.
    """
    pending, outcomes, faults, searches = [lists], [], [], 0
    while pending:
        some = pending.pop()
        fault = None
        try:
            outcomes.append(ordered.apply_to_nothing(some, ordered.new_columns))
        except (InvalidArgumentError, ColumnValueError, ColumnTypeError) as error:
            searches += 1
            if len(some) > 1 and searches <= _MAX_SEARCHES:
                middle = len(some) // 2
                pending += [some.slice(middle), some.slice(0, middle)]
                continue
            fault = str(error)
            outcomes.append(ordered.make_failed(len(some)))
        faults.append(pa.array([fault], pa.large_string()).take(pa.array(np.zeros(len(some), np.int64))))
    exists, changed = (np.concatenate([getattr(one, name) for one in outcomes]) for name in ("exists", "changed"))
    values = pa.concat_tables([one.values for one in outcomes]).combine_chunks()
    return Outcome(exists, changed, values), pa.concat_arrays(faults)
