"""Statistics of a graph: nodes and edges by type, indexes, and the size of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.display import DisplayMixin
from merganser.graph.sqlite.indexes import list_indexes

if TYPE_CHECKING:
    from merganser.graph.records import IndexInfo
    from merganser.graph.sqlite.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStats(DisplayMixin):
    """The number of nodes and edges of each type, the property indexes, and the size of the file in bytes."""

    path: str
    size_bytes: int
    node_count: int
    edge_count: int
    nodes: dict[str, int]
    edges: dict[str, int]
    indexes: tuple[IndexInfo, ...]

    def to_arrow(self) -> pa.Table:
        """Convert the counts to a table with a row for each type."""
        counts = [("nodes", *item) for item in self.nodes.items()] + [("edges", *item) for item in self.edges.items()]
        schema = pa.schema([("table", pa.string()), ("type", pa.string()), ("count", pa.int64())])
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in counts], schema)


def read_stats(store: Store) -> GraphStats:
    """Read the statistics; see `GraphDatabase.stats`."""
    with store.snapshot() as connection:
        nodes, edges = (
            dict(connection.execute(f"SELECT type, count(*) FROM {table} GROUP BY type ORDER BY type").fetchall())
            for table in ("nodes", "edges")
        )
        statement = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        ((size,),) = connection.execute(statement).fetchall()
        indexes = tuple(found.info for found in list_indexes(store))
    return GraphStats(
        path=store.path,
        size_bytes=int(size),
        node_count=sum(nodes.values()),
        edge_count=sum(edges.values()),
        nodes=nodes,
        edges=edges,
        indexes=indexes,
    )
