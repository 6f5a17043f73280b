"""Neighbourhoods: the nodes around some nodes, nearest first, up to a number that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from merganser.display import DisplayMixin
from merganser.graph.querying.conditions import build_types_sql, check_integer, get_endpoint_columns
from merganser.graph.querying.results import Edges, Nodes
from merganser.graph.querying.traverse import find_unique_keys
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, to_edge, to_node
from merganser.graph.sqlite.write import check_ids, check_nodes
from merganser.graph.values import encode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    import pyarrow as pa

    from merganser.graph.querying.conditions import Direction
    from merganser.graph.sqlite.store import Store

# A few nodes may have very many edges between them.
_EDGES_PER_NODE = 10
_HEIGHT = 620


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood(DisplayMixin):
    """The nodes around some nodes, and the edges between them.

    `distances` are the numbers of edges from the start to each node, and `beyond` the numbers of its edges to nodes
    that are left out. `nodes_left_out` counts those nodes, and `edges_left_out` the edges between included nodes that
    are left out. `keys` are, for each type, the properties of its unique indexes.
    """

    nodes: Nodes
    edges: Edges
    distances: tuple[int, ...]
    beyond: tuple[int, ...]
    nodes_left_out: int
    edges_left_out: int
    keys: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def to_arrow(self) -> pa.Table:
        """Convert the nodes to a table."""
        return self.nodes.to_arrow()

    def to_html(self, title: str = "Graph", *, depth: int | None = None, note: str = "") -> str:
        """Render an interactive page that loads nothing from elsewhere: nodes can be moved, searched and inspected.

        Args:
            title: The title of the page.
            depth: The largest distance of visible nodes; others appear when a neighbour is expanded. None is all.
            note: A line below the title.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     page = db.neighbourhood(db.create_node("Stop").id).to_html("Stops")
        >>> "<title>Stops</title>" in page
        True
        """
        from merganser.graph.view.page import render_graph_page  # noqa: PLC0415 - only drawing needs it

        return render_graph_page(self, title, depth, note)

    def _repr_html_(self) -> str:
        # In a frame of its own, the page cannot touch the notebook.
        return (
            f'<iframe sandbox="allow-scripts" title="Graph" width="100%" height="{_HEIGHT}" style="border:0" '
            f'srcdoc="{escape(self.to_html())}"></iframe>'
        )


def read_neighbourhood(
    store: Store,
    start: int | Sequence[int],
    edge_type: str | Sequence[str] | None,
    *,
    direction: Direction,
    depth: int,
    limit: int,
) -> Neighbourhood:
    """Read the nodes around some nodes; see `GraphDatabase.neighbourhood`."""
    check_integer("depth", depth, 0)
    check_integer("limit", limit, 1)
    given = list(dict.fromkeys([start] if isinstance(start, int) else start))
    check_ids(*given)
    expansion = _EdgeExpansion(edge_type, direction)
    with store.snapshot() as connection:
        check_nodes(store, *given)
        distances = dict.fromkeys(given[:limit], 0)
        nearest, distance = list(distances), 0
        while nearest and distance < depth and len(distances) < limit:
            distance += 1
            nearest = expansion.find_next_nodes(connection, nearest, distances, limit - len(distances))
            distances |= dict.fromkeys(nearest, distance)
        included = encode(list(distances))
        rows = {row[0]: row for row in connection.execute(_READ_NODES, (included,))}
        edges, edge_count = expansion.read_inner_edges(connection, included, limit * _EDGES_PER_NODE)
        beyond = expansion.count_outer_edges(connection, included)
        left_out = expansion.count_outer_nodes(connection, included, given[limit:])
        keys = find_unique_keys(store)
    return Neighbourhood(
        nodes=Nodes(to_node(rows[found]) for found in distances),
        edges=Edges(to_edge(row) for row in edges),
        distances=tuple(distances.values()),
        beyond=tuple(beyond.get(found, 0) for found in distances),
        nodes_left_out=left_out,
        edges_left_out=edge_count - len(edges),
        keys=keys,
    )


_READ_NODES = f"SELECT {NODE_COLUMNS} FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
_INCLUDED_IDS = "(SELECT value FROM json_each(:included))"


class _EdgeExpansion:
    """The edges along which a neighbourhood grows."""

    def __init__(self, edge_type: str | Sequence[str] | None, direction: str) -> None:
        self.edge_condition = build_types_sql("e.", edge_type)
        # From the nodes of :nearest to nodes that are not included.
        self.outgoing_sql = " UNION ALL ".join(
            f"SELECT k.value AS inner_id, e.{goal} AS outer_id FROM json_each(:nearest) AS k "
            f"CROSS JOIN edges AS e ON e.{start} = k.value WHERE {self.edge_condition} AND e.{goal} NOT IN "
            f"{_INCLUDED_IDS}"
            for start, goal in get_endpoint_columns(direction)
        )

    def find_next_nodes(
        self, connection: sqlite3.Connection, nearest: Sequence[int], known: Sequence[int] | dict[int, int], most: int
    ) -> list[int]:
        statement = f"SELECT DISTINCT outer_id FROM ({self.outgoing_sql}) ORDER BY outer_id LIMIT :most"
        given = {"nearest": encode(list(nearest)), "included": encode(list(known)), "most": most}
        return [found for (found,) in connection.execute(statement, given)]

    def read_inner_edges(
        self, connection: sqlite3.Connection, included: str, most: int
    ) -> tuple[list[tuple[int, str, int, int, str, int, int]], int]:
        """Read the edges between included nodes, up to a number, and count all of them."""
        body = (
            "FROM json_each(:included) AS k CROSS JOIN edges AS e ON e.from_id = k.value "
            f"WHERE {self.edge_condition} AND e.to_id IN {_INCLUDED_IDS}"
        )
        columns = ", ".join(f"e.{column}" for column in EDGE_COLUMNS.split(", "))
        statement = f"SELECT {columns} {body} ORDER BY e.id LIMIT :most"
        found = connection.execute(statement, {"included": included, "most": most}).fetchall()
        if len(found) < most:
            return found, len(found)
        ((count,),) = connection.execute(f"SELECT count(*) {body}", {"included": included}).fetchall()
        return found, int(count)

    def count_outer_edges(self, connection: sqlite3.Connection, included: str) -> dict[int, int]:
        statement = f"SELECT inner_id, count(*) FROM ({self.outgoing_sql}) GROUP BY inner_id"
        return dict(connection.execute(statement, {"nearest": included, "included": included}).fetchall())

    def count_outer_nodes(self, connection: sqlite3.Connection, included: str, rest: Sequence[int]) -> int:
        """Count the nodes that are not included: neighbours of included ones, and the rest of the start."""
        outer = f"SELECT outer_id FROM ({self.outgoing_sql}) UNION SELECT value FROM json_each(:rest)"
        given = {"nearest": included, "included": included, "rest": encode(list(rest))}
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({outer})", given).fetchall()
        return int(count)
