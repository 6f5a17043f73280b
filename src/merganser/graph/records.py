"""What comes out of a graph: nodes, edges, paths, and what a merge says of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from merganser.display import DisplayMixin
from merganser.graph.values import decode

if TYPE_CHECKING:
    from merganser.graph.values import Properties

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


@dataclass(frozen=True, slots=True, eq=False)
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
    """Nodes, and the edges between one and the next, whichever way these point."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def __len__(self) -> int:
        """Count the edges."""
        return len(self.edges)


@dataclass(frozen=True, slots=True)
class BulkResult(DisplayMixin):
    """How many rows of a bulk merge created a node or edge, and how many matched one."""

    created: int
    matched: int


@dataclass(frozen=True, slots=True)
class IndexInfo(DisplayMixin):
    """An index of properties; `partial` is the condition on the records that it holds."""

    name: str
    table: str
    columns: tuple[str, ...]
    unique: bool
    partial: str


@lru_cache(maxsize=1024)
def to_datetime(milliseconds: int) -> datetime:
    """Give a stored time as a datetime.

    >>> to_datetime(1_767_225_600_123).isoformat()
    '2026-01-01T00:00:00.123000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_milliseconds(moment: datetime) -> int:
    """Give a datetime as it is stored."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_node(row: tuple[int, str, str, int, int]) -> Node:
    """Make a node of a row of `NODE_COLUMNS`."""
    found, type_, properties, created, updated = row
    return Node(found, type_, decode(properties), to_datetime(created), to_datetime(updated))


def to_edge(row: tuple[int, str, int, int, str, int, int]) -> Edge:
    """Make an edge of a row of `EDGE_COLUMNS`."""
    found, type_, from_id, to_id, properties, created, updated = row
    return Edge(found, type_, from_id, to_id, decode(properties), to_datetime(created), to_datetime(updated))


def _get_content(record: Node | Edge, record_type: type[Node | Edge]) -> list[object]:
    return [getattr(record, name) for name in record_type.__dataclass_fields__]
