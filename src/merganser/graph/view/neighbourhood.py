"""The neighbourhood of some nodes: what is around them, nearest first, and no more than a picture can show."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from merganser.display import DisplayMixin
from merganser.graph.querying.conditions import (
    build_type_conditions,
    check_integer,
    get_endpoint_columns,
    join_conditions,
)
from merganser.graph.querying.results import Edges, Nodes
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, to_edge, to_node
from merganser.graph.sqlite.write import check_ids, check_nodes
from merganser.graph.values import encode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    import pyarrow as pa

    from merganser.graph.querying.conditions import Direction
    from merganser.graph.sqlite.store import Store

# Between few nodes there may be very many edges.
_EDGES_PER_NODE = 10
_HEIGHT = 620


@dataclass(frozen=True, slots=True)
class Neighbourhood(DisplayMixin):
    """Nodes around some nodes, and the edges between them.

    `distances` has for each node how many edges it is away, and `count_outer_edges` how many of its edges lead to nodes
    that are not here. `nodes_left_out` counts those nodes, and `edges_left_out` the edges between nodes that are here
    which are not.
    """

    nodes: Nodes
    edges: Edges
    distances: tuple[int, ...]
    beyond: tuple[int, ...]
    nodes_left_out: int
    edges_left_out: int

    def to_arrow(self) -> pa.Table:
        """Give the nodes as a table."""
        return self.nodes.to_arrow()

    def to_html(self, title: str = "Graph", *, depth: int | None = None, note: str = "") -> str:
        """Give a page that shows it: nodes can be moved, searched and looked into, and nothing is loaded from anywhere.

        Nodes further away than `depth` come when a neighbour of theirs is expanded. A `note` stands under the title.
        """
        from merganser.graph.view.page import render_graph_page  # noqa: PLC0415  only who looks needs the page

        return render_graph_page(self, title, depth, note)

    def _repr_html_(self) -> str:
        # A frame of its own: nothing in it can touch the notebook.
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
    """Read what is around some nodes; see `GraphDatabase.neighbourhood`."""
    check_integer("depth", depth, 0)
    check_integer("limit", limit, 1)
    given = list(dict.fromkeys([start] if isinstance(start, int) else start))
    check_ids(*given)
    ways = _EdgeExpansion(edge_type, direction)
    with store.snapshot() as connection:
        check_nodes(store, *given)
        distances = dict.fromkeys(given[:limit], 0)
        nearest, distance = list(distances), 0
        while nearest and distance < depth and len(distances) < limit:
            distance += 1
            nearest = ways.find_next_nodes(connection, nearest, distances, limit - len(distances))
            distances |= dict.fromkeys(nearest, distance)
        here = encode(list(distances))
        rows = {row[0]: row for row in connection.execute(_READ_NODES, (here,))}
        edges, edge_count = ways.read_inner_edges(connection, here, limit * _EDGES_PER_NODE)
        beyond = ways.count_outer_edges(connection, here)
        left_out = ways.count_outer_nodes(connection, here, given[limit:])
    return Neighbourhood(
        Nodes(to_node(rows[found]) for found in distances),
        Edges(to_edge(row) for row in edges),
        tuple(distances.values()),
        tuple(beyond.get(found, 0) for found in distances),
        left_out,
        edge_count - len(edges),
    )


_READ_NODES = f"SELECT {NODE_COLUMNS} FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
_INCLUDED_IDS = "(SELECT value FROM json_each(:here))"


class _EdgeExpansion:
    """Along which edges a neighbourhood grows."""

    def __init__(self, edge_type: str | Sequence[str] | None, direction: str) -> None:
        self.edge_condition = join_conditions(build_type_conditions("e.", edge_type)).sql
        # From the nodes that are here to those that are not.
        self.outgoing_sql = " UNION ALL ".join(
            f"SELECT k.value AS here, e.{there} AS there FROM json_each(:nearest) AS k "
            f"CROSS JOIN edges AS e ON e.{near} = k.value WHERE {self.edge_condition} AND e.{there} NOT IN "
            f"{_INCLUDED_IDS}"
            for near, there in get_endpoint_columns(direction)
        )

    def find_next_nodes(
        self, connection: sqlite3.Connection, nearest: Sequence[int], known: Sequence[int] | dict[int, int], most: int
    ) -> list[int]:
        """Give the nodes one step further, no more than so many, by their ids."""
        statement = f"SELECT DISTINCT there FROM ({self.outgoing_sql}) ORDER BY there LIMIT :most"
        given = {"nearest": encode(list(nearest)), "here": encode(list(known)), "most": most}
        return [found for (found,) in connection.execute(statement, given)]

    def read_inner_edges(
        self, connection: sqlite3.Connection, here: str, most: int
    ) -> tuple[list[tuple[int, str, int, int, str, int, int]], int]:
        """Give the edges between the nodes that are here, no more than so many, and how many there are."""
        body = (
            "FROM json_each(:here) AS k CROSS JOIN edges AS e ON e.from_id = k.value "
            f"WHERE {self.edge_condition} AND e.to_id IN {_INCLUDED_IDS}"
        )
        columns = ", ".join(f"e.{column}" for column in EDGE_COLUMNS.split(", "))
        rows = connection.execute(f"SELECT {columns} {body} ORDER BY e.id LIMIT :most", {"here": here, "most": most})
        found = rows.fetchall()
        if len(found) < most:
            return found, len(found)
        ((count,),) = connection.execute(f"SELECT count(*) {body}", {"here": here}).fetchall()
        return found, int(count)

    def count_outer_edges(self, connection: sqlite3.Connection, here: str) -> dict[int, int]:
        """Count for each node the edges to nodes that are not here."""
        statement = f"SELECT here, count(*) FROM ({self.outgoing_sql}) GROUP BY here"
        return dict(connection.execute(statement, {"nearest": here, "here": here}).fetchall())

    def count_outer_nodes(self, connection: sqlite3.Connection, here: str, rest: Sequence[int]) -> int:
        """Count the nodes that are not here: those next to others that are, and the rest of the start."""
        statement = (
            f"SELECT count(*) FROM (SELECT there FROM ({self.outgoing_sql}) UNION SELECT value FROM json_each(:rest))"
        )
        given = {"nearest": here, "here": here, "rest": encode(list(rest))}
        ((count,),) = connection.execute(statement, given).fetchall()
        return int(count)
