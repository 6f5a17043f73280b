"""Bulk merges of Arrow data by column: one join finds the records of a batch, and no row becomes a Python object.

The result is that of merging the rows one after another. A batch that could differ, or has a row that must be refused,
is not merged here: the row path merges it, or raises the error.
"""

from __future__ import annotations

from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.graph.json_columns import ENCODING_ERRORS, TEXT, encode_column, encode_objects
from merganser.graph.sqlite import write
from merganser.graph.sqlite.indexes import has_index
from merganser.graph.sqlite.lookup import find_join_keys, stage_keys
from merganser.graph.sqlite.sql import build_match_sql, to_json_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.graph.merging.bulk import BulkNodes
    from merganser.graph.sqlite.sql import Parameter

    Mask = npt.NDArray[np.bool_]


def can_merge_columns(work: BulkNodes) -> bool:
    """Check whether indexes lead to the nodes of all keys, so that one join finds them."""
    nodes = [(endpoint.type, tuple(endpoint.match)) for endpoint in work.endpoints if not isinstance(endpoint, str)]
    if not work.endpoints:
        nodes = [(work.type, work.names)]
    return not work.is_undirected and all(has_index(work.store, *node) for node in nodes)


def merge_columns(work: BulkNodes, batch: pa.RecordBatch) -> int | None:
    """Merge a batch, and count the records that it creates; return None if it needs the row path."""
    try:
        encoded = {field.name: encode_column(batch.column(field.name), field) for field in batch.schema}
        keys = _find_keys(work, batch, encoded)
    except ENCODING_ERRORS:
        return None
    if keys is None:
        return None
    found = _find_records(work, keys)
    if found is None:
        return None
    *endpoint_ids, ids = found[: len(work.endpoints) + 1]
    identity = [*endpoint_ids, *keys[len(keys) - len(work.names) :]]
    if len(set(zip(*identity, strict=True))) < batch.num_rows:
        return None
    record_ids = pa.array(ids, pa.int64())
    is_new = record_ids.is_null().to_numpy(zero_copy_only=False)
    changed = ~is_new
    if not work.touch:
        changed &= _find_changes(work, encoded, found[len(work.endpoints) + 1 :])
    if work.missing_records is not None:
        work.missing_records.add(one for one in ids if one is not None)
    created = _insert_new(work, encoded, endpoint_ids, is_new)
    _update_changed(work, encoded, record_ids, changed)
    return created


def _find_keys(work: BulkNodes, batch: pa.RecordBatch, encoded: Mapping[str, pa.Array]) -> list[list[Parameter]] | None:
    """Find the keys of the endpoints and of the records, column by column, or None if a join cannot compare them."""
    columns: list[str] = []
    for endpoint in work.endpoints:
        if isinstance(endpoint, str):
            if not pa.types.is_integer(batch.schema.field(endpoint).type):
                return None
            columns.append(endpoint)
        else:
            columns += endpoint.match.values()
    keys = []
    for column in (*columns, *work.names):
        found = find_join_keys(batch.column(column), encoded[column])
        if found is None:
            return None
        keys.append(found)
    return keys


def _find_records(work: BulkNodes, keys: list[list[Parameter]]) -> list[tuple[Any, ...]] | None:
    """Find the ids of endpoints and records, and the stored values to compare, as columns.

    Returns None if a node is missing, or if several records have one key.
    """
    compared = [] if work.touch else [f"r.properties -> {to_json_path(name)}" for name in work.on_match_columns]
    staged = stage_keys(work.store, len(keys), zip(*keys, strict=True))
    joined, ids = _build_joins(work)
    selected = ", ".join([*ids, *compared])
    rows = work.store.connection.execute(f"SELECT {selected} FROM {staged} k{joined} ORDER BY k.slot").fetchall()
    if len(rows) != len(keys[0]):
        return None
    columns = list(zip(*rows, strict=True))
    return None if any(None in column for column in columns[: len(work.endpoints)]) else columns


def _build_joins(work: BulkNodes) -> tuple[str, list[str]]:
    """Build the joins of the staged keys with endpoints and records, and the names of their ids."""
    joins = ""
    position = 0
    for number, endpoint in enumerate(work.endpoints):
        node = f"n{number}"
        condition = f"{node}.id = k.c{position}"
        if not isinstance(endpoint, str):
            condition = _build_condition(endpoint.type, tuple(endpoint.match), node, position)
        joins += f" LEFT JOIN nodes {node} ON {condition}"
        position += 1 if isinstance(endpoint, str) else len(endpoint.match)
    between = "r.from_id = n0.id AND r.to_id = n1.id AND " if work.endpoints else ""
    joins += f" LEFT JOIN {work.table} r ON {between}{_build_condition(work.type, work.names, 'r', position)}"
    return joins, [*(f"n{number}.id" for number in range(len(work.endpoints))), "r.id"]


def _build_condition(type_: str, names: Sequence[str], alias: str, position: int) -> str:
    conditions = [(name, f"k.c{number}") for number, name in enumerate(names, position)]
    return build_match_sql(type_, conditions, f"{alias}.")


def _find_changes(work: BulkNodes, encoded: Mapping[str, pa.Array], stored: list[tuple[Any, ...]]) -> Mask:
    """Find the rows that differ from the stored value of a property that they overwrite."""
    changed: Any = False
    for column, texts in zip(work.on_match_columns.values(), stored, strict=True):
        old, new = pa.array(texts, TEXT), encoded[column]
        is_equal = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))  # noqa: FBT003
        changed = ~is_equal.to_numpy(zero_copy_only=False) | changed
    return np.asarray(changed, np.bool_)


def _insert_new(
    work: BulkNodes, encoded: Mapping[str, pa.Array], endpoint_ids: list[tuple[int, ...]], is_new: Mask
) -> int:
    """Insert the records of new keys, in the order of their rows, and count them."""
    count = int(np.count_nonzero(is_new))
    if not count:
        return 0
    properties = {
        name: _select(column, is_new) for name, column in encoded.items() if name not in work.non_property_columns
    }
    texts = encode_objects(properties, count).to_pylist()
    ends = [compress(ids, is_new) for ids in endpoint_ids]
    moment = write.current_milliseconds()
    rows = zip(repeat(work.type, count), *ends, texts, repeat(moment, count), repeat(moment, count), strict=True)
    work.store.connection.executemany(work.insert_sql, rows)
    return count


def _update_changed(work: BulkNodes, encoded: Mapping[str, pa.Array], ids: pa.Array, changed: Mask) -> None:
    """Overwrite properties of matched records; those that set and remove the same properties share a statement."""
    names, moment = list(work.on_match_columns), write.current_milliseconds()
    updates = [_select(encoded[column], changed) for column in work.on_match_columns.values()]
    changed_ids = _select(ids, changed)
    for removed, rows in _group_by_nulls(updates, len(changed_ids)):
        signature = tuple(zip(names, removed, strict=True))
        values = [_select(column, rows).to_pylist() for column, gone in zip(updates, removed, strict=True) if not gone]
        group = _select(changed_ids, rows).to_pylist()
        statement = write.build_update_sql(work.table, signature, touch=True)
        parameters = zip(*values, repeat(moment, len(group)), group, strict=True)
        work.changed += work.store.connection.executemany(statement, parameters).rowcount


def _group_by_nulls(columns: list[pa.Array], count: int) -> Iterator[tuple[tuple[bool, ...], Mask]]:
    """Group rows by the columns in which they are NULL: for each group, these columns and its rows."""
    if not count:
        return
    if not any(column.null_count for column in columns):
        yield (False,) * len(columns), np.ones(count, np.bool_)
        return
    nulls = np.stack([column.is_null().to_numpy(zero_copy_only=False) for column in columns], axis=1)
    patterns, groups = np.unique(nulls, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns.tolist()):
        yield tuple(pattern), groups.ravel() == number


def _select(column: pa.Array, rows: Mask) -> pa.Array:
    return column if rows.all() else column.filter(pa.array(rows))
