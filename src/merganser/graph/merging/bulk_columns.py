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
from merganser.graph.sqlite.lookup import find_by_keys, find_join_keys, stage_keys
from merganser.graph.sqlite.sql import build_match_sql, to_json_path
from merganser.graph.sqlite.write import touch_records
from merganser.graph.values import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.graph.merging.bulk import BulkNodes
    from merganser.graph.sqlite.sql import Parameter
    from merganser.graph.sqlite.store import Store

    Mask = npt.NDArray[np.bool_]
    # Positions of rows in a batch, or ids of records.
    Rows = npt.NDArray[np.int64]


# Ids of nodes that a bulk merge keeps.
_MAX_KEPT_IDS = 2_000_000


def can_merge_columns(work: BulkNodes) -> bool:
    """Check whether indexes lead to the nodes of all keys, so that one join finds them."""
    nodes = [(endpoint.type, tuple(endpoint.match)) for endpoint in work.endpoints if not isinstance(endpoint, str)]
    if not work.endpoints:
        nodes = [(work.type, work.names)]
    return not work.is_undirected and all(has_index(work.store, *node) for node in nodes)


class NodeIds:
    """The ids of nodes that a bulk merge has looked up, kept until something else writes to the graph."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes = -1
        # By the type and match properties of an endpoint, the id of each key; columns of ids are their own keys.
        self.ids: dict[tuple[str, tuple[str, ...]], dict[Any, int]] = {}

    def start_batch(self) -> None:
        """Forget all ids if nodes may have changed, or if they take too much memory."""
        if self.changes != self.store.connection.total_changes or sum(map(len, self.ids.values())) > _MAX_KEPT_IDS:
            self.ids.clear()

    def end_batch(self) -> None:
        """Note that the writes up to now were those of the merge itself."""
        self.changes = self.store.connection.total_changes

    def find(self, type_: str, names: tuple[str, ...], keys: Sequence[Any]) -> list[int] | None:
        """Find the id of each key, or return None if a node is missing or not the only one."""
        kept = self.ids.setdefault((type_, names), {})
        wanted = list(set(keys) - kept.keys())
        if wanted and not names:
            query = "SELECT id, id FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
            found = self.store.connection.execute(query, (encode(wanted),)).fetchall()
        else:
            # A key is a tuple of the values of its match properties.
            tuples = wanted if len(names) > 1 else [(key,) for key in wanted]
            found = [(wanted[slot], one) for slot, one in find_by_keys(self.store, "nodes", type_, names, tuples)]
        if not len(found) == len(dict(found)) == len(wanted):
            return None
        kept.update(found)
        return [kept[key] for key in keys]


def merge_columns(work: BulkNodes, batch: pa.RecordBatch, node_ids: NodeIds) -> int | None:
    """Merge a batch, and count the records that it creates; return None if it needs the row path."""
    try:
        encoded = {field.name: encode_column(batch.column(field.name), field) for field in batch.schema}
        keys = _find_keys(batch, encoded, work.names)
        node_ids.start_batch()
        endpoint_ids = _find_endpoint_ids(work, batch, encoded, node_ids)
    except ENCODING_ERRORS:
        return None
    if keys is None or endpoint_ids is None:
        return None
    identity: list[list[Any]] = [*endpoint_ids, *keys]
    if len(set(zip(*identity, strict=True))) < batch.num_rows:
        return None
    found = _find_records(work, identity)
    if found is None:
        return None
    rows, ids, stored = found
    is_new = np.ones(batch.num_rows, np.bool_)
    is_new[rows] = False
    if work.missing_records is not None:
        work.missing_records.add(ids.tolist())
    updates = [_take(encoded[column], rows, batch.num_rows) for column in work.on_match_columns.values()]
    changed = _find_changes(updates, stored, len(rows))
    created = _insert_new(work, encoded, endpoint_ids, is_new)
    work.changed_ids.append(ids[changed])
    _update_changed(work, [_select(column, changed) for column in updates], ids[changed])
    if work.touch:
        touch_records(work.store, work.table, ids[~changed].tolist())
    node_ids.end_batch()
    return created


def _find_endpoint_ids(
    work: BulkNodes, batch: pa.RecordBatch, encoded: Mapping[str, pa.Array], node_ids: NodeIds
) -> list[list[int]] | None:
    """Find the ids of the nodes that rows connect, or None if a join cannot find them, or one is missing."""
    ids = []
    for endpoint in work.endpoints:
        if isinstance(endpoint, str):
            column = batch.column(endpoint)
            if not pa.types.is_integer(column.type) or column.null_count:
                return None
            found = node_ids.find("", (), column.to_pylist())
        else:
            keys = _find_keys(batch, encoded, list(endpoint.match.values()))
            names = tuple(endpoint.match)
            columns = keys if keys is None or len(keys) == 1 else [list(zip(*keys, strict=True))]
            found = None if columns is None else node_ids.find(endpoint.type, names, columns[0])
        if found is None:
            return None
        ids.append(found)
    return ids


def _find_keys(
    batch: pa.RecordBatch, encoded: Mapping[str, pa.Array], columns: Sequence[str]
) -> list[list[Parameter]] | None:
    """Find the keys in some columns, column by column, or None if a join cannot compare them."""
    keys = [find_join_keys(batch.column(column), encoded[column]) for column in columns]
    return None if None in keys else keys  # type: ignore[return-value]


def _find_records(work: BulkNodes, identity: list[list[Any]]) -> tuple[Rows, Rows, list[list[str | None]]] | None:
    """Find the rows that match a record, its id, and the stored values to compare; None if several have one key."""
    staged = stage_keys(work.store, len(identity), zip(*identity, strict=True)) if identity[0] else None
    between = "r.from_id = k.c0 AND r.to_id = k.c1 AND " if work.endpoints else ""
    condition = between + _build_condition(work.type, work.names, "r", len(work.endpoints))
    selected = ", ".join(
        ["k.slot - 1, r.id", *(f"r.properties -> {to_json_path(name)}" for name in work.on_match_columns)]
    )
    # The order of a cross join is that in which it is written.
    query = f"SELECT {selected} FROM {staged} k CROSS JOIN {work.table} r WHERE {condition}"
    rows = work.store.connection.execute(query).fetchall() if staged else []
    slots, ids = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    if len(np.unique(slots)) < len(rows):
        return None
    stored = [[row[place] for row in rows] for place in range(2, 2 + len(work.on_match_columns))]
    return slots, ids, stored


def _build_condition(type_: str, names: Sequence[str], alias: str, position: int) -> str:
    conditions = [(name, f"k.c{number}") for number, name in enumerate(names, position)]
    return build_match_sql(type_, conditions, f"{alias}.")


def _find_changes(updates: list[pa.Array], stored: list[list[str | None]], count: int) -> Mask:
    """Find the matched rows that differ from the stored value of a property that they overwrite."""
    changed: Any = np.zeros(count, np.bool_)
    for new, texts in zip(updates, stored, strict=True):
        old = pa.array(texts, TEXT)
        is_equal = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))  # noqa: FBT003
        changed = ~is_equal.to_numpy(zero_copy_only=False) | changed
    return np.asarray(changed, np.bool_)


def _insert_new(work: BulkNodes, encoded: Mapping[str, pa.Array], endpoint_ids: list[list[int]], is_new: Mask) -> int:
    """Insert the records of new keys, in the order of their rows, and count them."""
    count = int(np.count_nonzero(is_new))
    if not count:
        return 0
    created = {name: column for name, column in encoded.items() if name not in work.non_property_columns}
    created |= {name: encoded[column] for name, column in work.changes.on_create.items()}
    properties = {name: _select(column, is_new) for name, column in created.items()}
    texts = encode_objects(properties, count).to_pylist()
    ends = [ids if count == len(ids) else compress(ids, is_new.tolist()) for ids in endpoint_ids]
    moment = write.current_milliseconds()
    rows = zip(repeat(work.type, count), *ends, texts, repeat(moment, count), repeat(moment, count), strict=True)
    work.store.connection.executemany(work.insert_sql, rows)
    return count


def _update_changed(work: BulkNodes, updates: list[pa.Array], ids: Rows) -> None:
    """Overwrite properties of records that change; those that set and remove the same properties share a statement."""
    names, moment = list(work.on_match_columns), write.current_milliseconds()
    for removed, rows in _group_by_nulls(updates, len(ids)):
        signature = tuple(zip(names, removed, strict=True))
        values = [_select(column, rows).to_pylist() for column, gone in zip(updates, removed, strict=True) if not gone]
        group = ids[rows].tolist()
        statement = write.build_update_sql(work.table, signature, touch=True)
        parameters = zip(*values, repeat(moment, len(group)), group, strict=True)
        work.store.connection.executemany(statement, parameters)


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


def _take(column: pa.Array, rows: Rows, count: int) -> pa.Array:
    return column if len(rows) == count and (np.diff(rows) == 1).all() else column.take(pa.array(rows))
