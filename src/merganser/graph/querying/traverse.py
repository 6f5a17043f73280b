"""Traversals: the nodes that a node reaches, the paths to them, and the shortest path.

Nodes are found level by level in a temporary table, with one statement for each level, so that each edge is read once,
in cyclic graphs too. Paths are found by a recursive query.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import (
    build_conditions,
    build_type_conditions,
    build_types_sql,
    check_integer,
    get_endpoint_columns,
    join_conditions,
)
from merganser.graph.querying.results import Nodes, Paths
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, Path, to_edge, to_node
from merganser.graph.sqlite.indexes import list_indexes
from merganser.graph.sqlite.write import check_ids, check_nodes
from merganser.graph.values import MAX_INT64, decode, encode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from merganser.graph.querying.conditions import Direction, Where
    from merganser.graph.querying.fields import Condition
    from merganser.graph.sqlite.sql import Parameter
    from merganser.graph.sqlite.store import Store

# The ids of a path's nodes and edges.
PathIds: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

_CREATE_TABLE = (
    """CREATE TEMP TABLE IF NOT EXISTS merganser_reached (
        id INTEGER PRIMARY KEY, depth INTEGER NOT NULL, edge_id INTEGER, previous INTEGER
    )""",
    "CREATE INDEX IF NOT EXISTS temp.merganser_reached_by_depth ON merganser_reached (depth)",
)
_CLEAR = "DELETE FROM temp.merganser_reached"
_READ_SHORTEST_PATH = """
WITH RECURSIVE path (id, edge_id, previous, depth) AS (
    SELECT id, edge_id, previous, depth FROM temp.merganser_reached WHERE id = ?
    UNION ALL
    SELECT r.id, r.edge_id, r.previous, r.depth
    FROM path CROSS JOIN temp.merganser_reached AS r ON r.id = path.previous
)
SELECT id, edge_id FROM path ORDER BY depth
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traversal:
    """A traversal from a node along edges; see `GraphDatabase.traverse`."""

    _store: Store
    start_id: int
    edge_type: str | Sequence[str] | None
    direction: Direction
    min_depth: int
    max_depth: int | None
    node_type: str | None
    edge_where: Where | None = None
    # Built at once, because the caller may change a list or dict.
    _edges: Condition = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_ids(self.start_id)
        get_endpoint_columns(self.direction)
        build_types_sql("", self.node_type)
        edges = build_type_conditions("e.", self.edge_type)
        if self.edge_where is not None:
            edges = (*edges, *build_conditions(self.edge_where, "edge_where", "e."))
        object.__setattr__(self, "_edges", join_conditions(edges))
        check_integer("min_depth", self.min_depth, 1)
        if self.max_depth is not None:
            check_integer("max_depth", self.max_depth, self.min_depth)
        check_nodes(self._store, self.start_id)

    def nodes(self) -> Nodes:
        """Read each node that is `min_depth` to `max_depth` edges from the start, nearest first, then by id."""
        if self.max_depth == 1:
            return Nodes(map(to_node, self._read_neighbours()))
        columns = ", ".join(f"n.{column}" for column in NODE_COLUMNS.split(", "))
        with self._fill_reached() as connection:
            rows = connection.execute(f"SELECT {columns} {self._build_result_sql()} ORDER BY r.depth, r.id").fetchall()
        return Nodes(map(to_node, rows))

    def count(self) -> int:
        """Count the nodes that `nodes` would return."""
        with self._fill_reached() as connection:
            ((count,),) = connection.execute(f"SELECT count(*) {self._build_result_sql()}").fetchall()
        return int(count)

    def paths(self) -> Paths:
        """Read all paths of between `min_depth` and `max_depth` edges that visit no node twice, shortest first.

        Their number can grow exponentially with the depth.
        """
        if self.max_depth is None:
            raise InvalidArgumentError("paths() of a traversal without max_depth could take forever; give max_depth.")
        further = " UNION ALL ".join(
            f"SELECT e.{goal}, depth + 1, nodes || e.{goal} || ',', edges || ',' || e.id "
            f"FROM path CROSS JOIN edges AS e ON e.{start} = path.id "
            f"WHERE depth < ? AND {self._edges.sql} AND NOT instr(nodes, ',' || e.{goal} || ',')"
            for start, goal in get_endpoint_columns(self.direction)
        )
        nodes = build_types_sql("n.", self.node_type)
        statement = (
            "WITH RECURSIVE path (id, depth, nodes, edges) AS "
            f"(SELECT id, 0, ',' || id || ',', '' FROM nodes WHERE id = ? UNION ALL {further}) "
            "SELECT path.nodes, path.edges FROM path CROSS JOIN nodes AS n ON n.id = path.id "
            f"WHERE path.depth >= ? AND {nodes}"
        )
        further_parameters = self._repeat_parameters(min(self.max_depth, MAX_INT64))
        with self._store.snapshot() as connection:
            check_nodes(self._store, self.start_id)
            rows = connection.execute(statement, (self.start_id, *further_parameters, self.min_depth))
            found = [(_parse_ids(nodes), _parse_ids(edges)) for nodes, edges in rows]
            found.sort(key=lambda steps: (len(steps[1]), steps))
            return read_paths(self._store, found)

    def shortest_path(self, to_id: int) -> Path | None:
        """Read a path with the fewest edges, up to `max_depth`, or None if there is none.

        `min_depth` and `node_type` do not apply.

        Args:
            to_id: The id of the last node.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b = (db.create_node("Stop").id for _ in range(2))
        ...     _ = db.create_edge(a, "NEXT", b)
        ...     len(db.traverse(a, "NEXT", max_depth=None).shortest_path(b))
        1
        """
        check_ids(to_id)
        with self._fill_reached(to_id) as connection:
            check_nodes(self._store, to_id)
            rows = connection.execute(_READ_SHORTEST_PATH, (to_id,)).fetchall()
            if not rows:
                return None
            nodes, edges = zip(*rows, strict=True)
            (path,) = read_paths(self._store, [(nodes, edges[1:])])
            return path

    def _read_neighbours(self) -> list[Any]:
        """Read the nodes one edge away, which needs no temporary table."""
        statement = _build_neighbours_sql(self.direction, self._edges.sql, build_types_sql("n.", self.node_type))
        rows = self._store.fetch_all(statement, (*self._repeat_parameters(self.start_id), self.start_id))
        if not rows:
            # A node that was deleted has no edges.
            check_nodes(self._store, self.start_id)
        return rows

    @contextmanager
    def _fill_reached(self, to_id: int | None = None) -> Iterator[sqlite3.Connection]:
        """Fill the temporary table with the nodes that are reached, up to the level of `to_id`."""
        for statement in _CREATE_TABLE:
            self._store.fetch_all(statement)
        level = self._build_level_sql()
        with self._store.snapshot() as connection:
            check_nodes(self._store, self.start_id)
            # Inside a caller's transaction, rows of an earlier traversal that failed are still there.
            connection.execute(_CLEAR)
            connection.execute("INSERT INTO temp.merganser_reached (id, depth) VALUES (?, 0)", (self.start_id,))
            depth, reached = 0, 1
            while reached and depth != self.max_depth and not _is_reached(connection, to_id):
                reached = connection.execute(level, self._repeat_parameters(depth)).rowcount
                depth += 1
            yield connection
            connection.execute(_CLEAR)

    def _repeat_parameters(self, first: int) -> tuple[Parameter, ...]:
        """Return the parameters of a step along edges, which every column that leads on needs."""
        return (first, *self._edges.parameters) * len(get_endpoint_columns(self.direction))

    def _build_level_sql(self) -> str:
        reached = " UNION ALL ".join(
            f"SELECT e.{goal}, r.depth + 1, e.id, r.id FROM temp.merganser_reached AS r "
            f"CROSS JOIN edges AS e ON e.{start} = r.id WHERE r.depth = ? AND {self._edges.sql}"
            for start, goal in get_endpoint_columns(self.direction)
        )
        return f"INSERT OR IGNORE INTO temp.merganser_reached (id, depth, edge_id, previous) {reached}"

    def _build_result_sql(self) -> str:
        nodes = build_types_sql("n.", self.node_type)
        return (
            "FROM temp.merganser_reached AS r CROSS JOIN nodes AS n ON n.id = r.id "
            f"WHERE r.depth >= {self.min_depth} AND {nodes}"
        )


@lru_cache(maxsize=256)
def _build_neighbours_sql(direction: str, edges: str, nodes: str) -> str:
    reached = " UNION ALL ".join(
        f"SELECT e.{goal} FROM edges AS e WHERE e.{start} = ? AND {edges}"
        for start, goal in get_endpoint_columns(direction)
    )
    return f"SELECT {NODE_COLUMNS} FROM nodes AS n WHERE n.id IN ({reached}) AND n.id <> ? AND {nodes} ORDER BY n.id"


def read_paths(store: Store, found: Sequence[PathIds]) -> Paths:
    """Read the nodes and edges of paths, each once, in the open transaction."""
    connection = store.connection
    nodes = {row[0]: to_node(row) for row in _select(connection, "nodes", NODE_COLUMNS, (path[0] for path in found))}
    edges = {row[0]: to_edge(row) for row in _select(connection, "edges", EDGE_COLUMNS, (path[1] for path in found))}
    paths = (
        Path(tuple(nodes[found_id] for found_id in node_ids), tuple(edges[found_id] for found_id in edge_ids))
        for node_ids, edge_ids in found
    )
    return Paths(paths, find_unique_keys(store) if found else None)


def find_unique_keys(store: Store) -> dict[str, list[tuple[str, ...]]]:
    """Find the properties that identify the nodes of each type, those of few properties first."""
    keys: dict[str, list[tuple[str, ...]]] = {}
    for index in sorted(list_indexes(store), key=lambda index: len(index.properties)):
        if index.unique and index.table == "nodes":
            keys.setdefault(index.type, []).append(index.properties)
    return keys


def _select(connection: sqlite3.Connection, table: str, columns: str, ids: Iterable[tuple[int, ...]]) -> sqlite3.Cursor:
    wanted = sorted({found_id for some in ids for found_id in some})
    statement = f"SELECT {columns} FROM {table} WHERE id IN (SELECT value FROM json_each(?))"
    return connection.execute(statement, (encode(wanted),))


def _is_reached(connection: sqlite3.Connection, to_id: int | None) -> bool:
    if to_id is None:
        return False
    return connection.execute("SELECT 1 FROM temp.merganser_reached WHERE id = ?", (to_id,)).fetchone() is not None


def _parse_ids(text: str) -> tuple[Any, ...]:
    return tuple(decode(f"[{text.strip(',')}]"))
