"""The records of a graph: nodes, edges and paths, and the results of merges."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from merganser.display import DisplayMixin
from merganser.graph.values import Properties, decode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NODE_COLUMNS = "id, type, properties, created_at, updated_at"
EDGE_COLUMNS = "id, type, from_id, to_id, properties, created_at, updated_at"


@dataclass(frozen=True, slots=True, eq=False)
class Node(DisplayMixin):
    """A node as it was when it was read; a node and a `MergedNode` with the same content are equal."""

    id: int
    type: str
    properties: Properties
    created_at: datetime
    updated_at: datetime

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and _get_content(self, Node) == _get_content(other, Node)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class MergedNode(Node):
    """A node that a merge found or created."""

    created: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Edge(DisplayMixin):
    """An edge as it was when it was read; an edge and a `MergedEdge` with the same content are equal."""

    id: int
    type: str
    from_id: int
    to_id: int
    properties: Properties
    created_at: datetime
    updated_at: datetime

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edge) and _get_content(self, Edge) == _get_content(other, Edge)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class MergedEdge(Edge):
    """An edge that a merge found or created."""

    created: bool


@dataclass(frozen=True, slots=True)
class Path(DisplayMixin):
    """Nodes, and the edge between each and the next, in either direction."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def __len__(self) -> int:
        return len(self.edges)


@dataclass(frozen=True, slots=True, repr=False)
class BulkResult(DisplayMixin):
    """Counts of a bulk merge: rows that created a node or edge, and rows that matched one.

    `changed` counts the records that existed before and got other values, each once. `missing` counts those that no
    row matched and that were deleted or changed, and `missing_ids` lists them; `kept` counts nodes that were not
    deleted because they have edges, `detached` the edges deleted with nodes. `skipped` counts rows whose nodes do not
    exist, and `skipped_rows` describes the first ten; `nodes_created` counts nodes created for edges.
    """

    created: int
    matched: int
    changed: int = 0
    missing: int = 0
    kept: int = 0
    detached: int = 0
    skipped: int = 0
    nodes_created: int = 0
    missing_ids: tuple[int, ...] = ()
    skipped_rows: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        named = [f"{name}={value!r}" for name, value in found.items() if value or name in {"created", "matched"}]
        return f"BulkResult({', '.join(named)})"


@dataclass(frozen=True, slots=True)
class IndexInfo(DisplayMixin):
    """A property index; `partial` is the condition on the records that it contains."""

    name: str
    table: str
    columns: tuple[str, ...]
    unique: bool
    partial: str


@lru_cache(maxsize=1024)
def to_datetime(milliseconds: int) -> datetime:
    """Convert a stored time to a datetime.

    >>> to_datetime(1_767_225_600_123).isoformat()
    '2026-01-01T00:00:00.123000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_milliseconds(moment: datetime) -> int:
    """Convert a datetime to a stored time."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_node(row: tuple[int, str, str, int, int]) -> Node:
    """Create a node from a row of `NODE_COLUMNS`."""
    found, type_, properties, created, updated = row
    return Node(found, type_, decode(properties), to_datetime(created), to_datetime(updated))


def to_edge(row: tuple[int, str, int, int, str, int, int]) -> Edge:
    """Create an edge from a row of `EDGE_COLUMNS`."""
    found, type_, from_id, to_id, properties, created, updated = row
    return Edge(
        id=found,
        type=type_,
        from_id=from_id,
        to_id=to_id,
        properties=decode(properties),
        created_at=to_datetime(created),
        updated_at=to_datetime(updated),
    )


def _get_content(record: Node | Edge, record_type: type[Node | Edge]) -> list[object]:
    return [getattr(record, name) for name in record_type.__dataclass_fields__]
