"""How much a graph holds: nodes and edges by type, indexes, and the size of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.display import DisplayMixin
from merganser.graph.sqlite.indexes import list_indexes

if TYPE_CHECKING:
    from merganser.graph.records import IndexInfo
    from merganser.graph.sqlite.store import Store


@dataclass(frozen=True, slots=True)
class GraphStats(DisplayMixin):
    """How many nodes and edges of each type there are, the indexes of properties, and the bytes of it all."""

    path: str
    size_bytes: int
    node_count: int
    edge_count: int
    nodes: dict[str, int]
    edges: dict[str, int]
    indexes: tuple[IndexInfo, ...]

    def to_arrow(self) -> pa.Table:
        """Give the counts as a table, a row for each type."""
        counts = [("nodes", *item) for item in self.nodes.items()] + [("edges", *item) for item in self.edges.items()]
        tables, types, numbers = zip(*counts, strict=True) if counts else ((), (), ())
        return pa.table(
            {
                "table": pa.array(tables, pa.string()),
                "type": pa.array(types, pa.string()),
                "count": pa.array(numbers, pa.int64()),
            }
        )


def read_stats(store: Store) -> GraphStats:
    """Count what there is; see `GraphDatabase.stats`."""
    with store.snapshot() as connection:
        counted = [
            dict(connection.execute(f"SELECT type, count(*) FROM {table} GROUP BY type ORDER BY type").fetchall())
            for table in ("nodes", "edges")
        ]
        ((size,),) = connection.execute(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        ).fetchall()
        indexes = tuple(found.info for found in list_indexes(store))
    nodes, edges = counted
    return GraphStats(store.path, int(size), sum(nodes.values()), sum(edges.values()), nodes, edges, indexes)
