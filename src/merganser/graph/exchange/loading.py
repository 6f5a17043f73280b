"""The common part of all imports: records of any origin become nodes and edges in one transaction.

Records keep their ids if no id was ever used in the graph. Otherwise they get new ones, and edges connect the new
ids of their nodes.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.display import DisplayMixin
from merganser.errors import GraphFileError, UniqueConstraintError
from merganser.graph.sqlite.write import call_with_label, check_type, current_milliseconds, translate_integrity_error
from merganser.graph.values import MAX_INT64, MIN_INT64, Properties, decode, drop_nulls, encode, normalize_properties

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store

_INSERT_NODES = "INSERT INTO nodes (id, type, properties, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
_INSERT_EDGES = (
    "INSERT INTO edges (id, type, from_id, to_id, properties, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class ImportResult(DisplayMixin):
    """The number of nodes and edges that were imported; `ids` maps the id of each node in the source to its new id.

    >>> ImportResult(nodes=1, edges=0, ids={"a": 1}).ids["a"]
    1
    """

    nodes: int
    edges: int
    ids: dict[Any, int]


class NewNode(NamedTuple):
    """A node as it was read, not checked yet; messages call it by its `label`, and times may be missing."""

    label: str
    type: Any
    properties: Mapping[str, Any]
    created_at: int | None = None
    updated_at: int | None = None


class NewEdge(NamedTuple):
    """An edge as it was read; `start` and `end` are ids of nodes in the source."""

    label: str
    type: Any
    start: Hashable
    end: Hashable
    properties: Mapping[str, Any]
    created_at: int | None = None
    updated_at: int | None = None


@dataclass(frozen=True, slots=True)
class GraphImport:
    """A graph to import, with records in the order of their ids; the id of a record without one is None."""

    name: str
    node_ids: Sequence[Hashable]
    nodes: Iterable[NewNode]
    edge_ids: Sequence[Hashable]
    edges: Iterable[NewEdge]


def import_graph(store: Store, incoming: GraphImport, *, keep_ids: bool = True) -> ImportResult:
    """Import a graph atomically."""
    with store.transaction():
        keep = keep_ids and _is_unused(store)
        node_ids = _assign_ids(store, "nodes", incoming.node_ids, incoming.name, keep=keep)
        edge_ids = _assign_ids(store, "edges", incoming.edge_ids, incoming.name, keep=keep)
        ids = {old: new for old, new in zip(incoming.node_ids, node_ids, strict=True) if old is not None}
        types: dict[int, str] = {}
        _insert(store, _INSERT_NODES, _make_node_rows(store, incoming.nodes, node_ids, types))
        _insert(store, _INSERT_EDGES, _make_edge_rows(store, incoming.edges, edge_ids, ids, types))
    return ImportResult(len(node_ids), len(edge_ids), ids)


def _is_unused(store: Store) -> bool:
    """Check whether the graph has no record, and never had one."""
    used = (
        "SELECT EXISTS (SELECT 1 FROM nodes) OR EXISTS (SELECT 1 FROM edges) "
        "OR EXISTS (SELECT 1 FROM sqlite_sequence WHERE name IN ('nodes', 'edges') AND seq > 0)"
    )
    return not store.connection.execute(used).fetchone()[0]


def _assign_ids(store: Store, table: Table, old: Sequence[Hashable], name: str, *, keep: bool) -> list[int]:
    given = [one for one in old if one is not None]
    if len(set(given)) < len(given):
        duplicate = Counter(given).most_common(1)[0][0]
        raise GraphFileError(f"{name} has two {table} with the id {duplicate!r}; give each its own.")
    # After the largest id, SQLite could not assign another.
    numbers = [one for one in given if type(one) is int and MIN_INT64 <= one < MAX_INT64]
    highest = max([0, *numbers])
    if keep and len(numbers) == len(given) and highest + len(old) < MAX_INT64:
        free = count(highest + 1)
        return [one if type(one) is int else next(free) for one in old]
    query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
    last = store.connection.execute(query, (table,)).fetchone()[0]
    return list(range(last + 1, last + 1 + len(old)))


def _make_node_rows(
    store: Store, nodes: Iterable[NewNode], ids: list[int], types: dict[int, str]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    moment = current_milliseconds()
    schema = store.schema
    for new, node in zip(ids, nodes, strict=True):
        properties = _check_record(node)
        if schema is not None:
            call_with_label(node.label, schema.check_node, node.type, properties)
            types[new] = node.type
        yield node.label, (new, node.type, encode(properties), *_fill_times(node, moment))


def _make_edge_rows(
    store: Store, edges: Iterable[NewEdge], new_ids: list[int], ids: Mapping[Hashable, int], types: Mapping[int, str]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    moment = current_milliseconds()
    schema = store.schema
    for new, edge in zip(new_ids, edges, strict=True):
        properties = _check_record(edge)
        for end in (edge.start, edge.end):
            if end not in ids:
                raise GraphFileError(
                    f"{edge.label} has the endpoint {end!r}, which is not a node there; add the node or drop the edge."
                )
        start, end = ids[edge.start], ids[edge.end]
        if schema is not None:
            call_with_label(edge.label, schema.check_edge, edge.type, properties, types[start], types[end])
        yield edge.label, (new, edge.type, start, end, encode(properties), *_fill_times(edge, moment))


def _check_record(record: NewNode | NewEdge) -> Properties:
    call_with_label(record.label, check_type, record.type)
    return drop_nulls(normalize_properties(record.properties, record.label))


def _fill_times(record: NewNode | NewEdge, moment: int) -> tuple[int, int]:
    created, updated = record.created_at, record.updated_at
    return moment if created is None else created, moment if updated is None else updated


def _insert(store: Store, statement: str, rows: Iterator[tuple[str, tuple[Any, ...]]]) -> None:
    last: tuple[str, tuple[Any, ...]] = ("", ())

    def read_rows() -> Iterator[tuple[Any, ...]]:
        nonlocal last
        for last in rows:
            yield last[1]

    try:
        # SQLite reads one row at a time, so the last one is the one that it refused.
        store.connection.executemany(statement, read_rows())
    except sqlite3.IntegrityError as error:
        label, row = last
        found = translate_integrity_error(store, error, decode(row[-3]))
        raise (
            UniqueConstraintError(f"{label}: {found}") if isinstance(found, UniqueConstraintError) else found
        ) from error
