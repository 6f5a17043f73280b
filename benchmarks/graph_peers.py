"""Other graph libraries, for `benchmarks.graph`: each merges the same nodes twice, in its own natural way.

The second merge must add nothing. Not all of them achieve that, so the resulting nodes are counted.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

Row: TypeAlias = dict[str, Any]
# A function that merges rows, and one that counts the nodes.
Peer: TypeAlias = "tuple[Callable[[list[Row]], object], Callable[[], int]]"

MERGE = (
    "MERGE (j:Job {{url: {0}url}}) "
    "ON CREATE SET j.title = {0}title, j.status = {0}status, j.salary = {0}salary, j.seen = {0}seen "
    "ON MATCH SET j.status = {0}status, j.seen = {0}seen"
)


def jobs(count: int, seen: int, *, first: int = 0, in_order: bool = False) -> list[Row]:
    """Generate rows, with keys in random order by default."""
    return [
        {
            "url": f"https://example.com/jobs/{place if in_order else place * 2_654_435_761 % 2**32:08x}",
            "title": f"Engineer {place}",
            "status": "open" if seen == 1 else "closed",
            "salary": 50_000 + place % 1_000,
            "seen": seen,
        }
        for place in range(first, first + count)
    ]


def merganser_one(path: str) -> Peer:
    """One by one, in one transaction."""
    database = GraphDatabase(path)
    database.create_property_index("Job", "url", unique=True)

    def merge(rows: list[Row]) -> None:
        with database.transaction():
            for row in rows:
                over = {"status": row["status"], "seen": row["seen"]}
                database.merge_node("Job", {"url": row["url"]}, row, on_match=over)

    return merge, lambda: database.connection.execute("SELECT count(*) FROM nodes").fetchone()[0]


def merganser_bulk(path: str) -> Peer:
    """At once."""
    _, count = merganser_one(path)
    database = GraphDatabase(path)
    return lambda rows: database.bulk_merge_nodes("Job", rows, match_on="url", on_match=["status", "seen"]), count


def simple_graph(path: str) -> Peer:
    """Its list of upserts, in one transaction."""
    library = import_module("simple_graph_sqlite.database")
    library.initialize(path)

    def count() -> int:
        return int(library.atomic(path, lambda cursor: cursor.execute("SELECT count(*) FROM nodes").fetchone()[0]))

    return lambda rows: library.atomic(path, library.upsert_nodes(rows, [row["url"] for row in rows])), count


def graphqlite(path: str, merge: Callable[[Any, list[Row]], None]) -> Peer:
    """Open a graph, and merge in one transaction."""
    graph = import_module("graphqlite").Graph(path)

    def merge_all(rows: list[Row]) -> None:
        graph.connection.execute("BEGIN")
        merge(graph, rows)
        graph.connection.commit()

    return merge_all, lambda: graph.stats()["node_count"]


def graphqlite_upsert(path: str) -> Peer:
    """Its list of upserts."""
    return graphqlite(path, lambda graph, rows: graph.upsert_nodes_batch([(row["url"], row, "Job") for row in rows]))


def graphqlite_cypher(path: str) -> Peer:
    """MERGE, one by one."""

    def merge(graph: Any, rows: list[Row]) -> None:
        for row in rows:
            graph.query(MERGE.format("$"), row)

    return graphqlite(path, merge)


def ladybug(path: str) -> tuple[Any, Callable[[], int]]:
    """Open a database with a table of nodes."""
    try:
        library = import_module("ladybug")
    except ImportError:
        library = import_module("real_ladybug")
    connection = library.Connection(library.Database(path))
    connection.execute(
        "CREATE NODE TABLE Job (url STRING PRIMARY KEY, title STRING, status STRING, salary INT64, seen INT64)"
    )
    return connection, lambda: connection.execute("MATCH (j:Job) RETURN count(*)").get_next()[0]


def ladybug_one(path: str) -> Peer:
    """MERGE, one by one, in one transaction."""
    connection, count = ladybug(path)

    def merge(rows: list[Row]) -> None:
        connection.execute("BEGIN TRANSACTION")
        for row in rows:
            connection.execute(MERGE.format("$"), row)
        connection.execute("COMMIT")

    return merge, count


def ladybug_bulk(path: str) -> Peer:
    """MERGE of a list."""
    connection, count = ladybug(path)
    query = f"UNWIND $rows AS r {MERGE.format('r.')}"
    return lambda rows: connection.execute(query, {"rows": rows}), count


def networkx(_: str) -> Peer:
    """In memory, where a lookup is a dict's."""
    graph = import_module("networkx").DiGraph()

    def merge(rows: list[Row]) -> None:
        for row in rows:
            graph.add_node(row["url"], **row)

    return merge, graph.number_of_nodes


# Each with the number of rows that it merges within seconds.
PEERS: dict[str, tuple[Callable[[str], Peer], int]] = {
    "merganser, `merge_node`": (merganser_one, 20_000),
    "merganser, `bulk_merge_nodes`": (merganser_bulk, 20_000),
    "simple-graph-sqlite, `upsert_nodes`": (simple_graph, 5_000),
    "graphqlite, `upsert_nodes_batch`": (graphqlite_upsert, 200),
    "graphqlite, Cypher MERGE": (graphqlite_cypher, 1_000),
    "Ladybug, Cypher MERGE": (ladybug_one, 2_000),
    "Ladybug, UNWIND and MERGE": (ladybug_bulk, 10_000),
    "networkx, `add_node` (in memory)": (networkx, 20_000),
}


def rates(peer: Callable[[str], Peer], rows: int, clock: Callable[[], float]) -> Iterator[str]:
    """Merge twice, and return both rates and the number of nodes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        merge, count = peer(str(Path(folder, "graph.db")))
        for seen in (1, 2):
            batch = jobs(rows, seen)
            start = clock()
            merge(batch)
            yield f"{rows / (clock() - start):,.0f}"
        yield f"{count():,} of {rows:,}"


def print_peers(arguments: argparse.Namespace) -> None:
    """Print a line for each peer; one run is enough for the order of magnitude."""
    print("\n| peer | rows | create, rows/s | match, rows/s | nodes at the end |\n|---|---|---|---|---|")
    for name, (peer, most) in PEERS.items():
        rows = min(most, arguments.rows)
        try:
            cells = [name, f"{rows:,}", *rates(peer, rows, arguments.clock)]
        except ImportError:
            cells = [name, "not installed", "", "", ""]
        except RuntimeError as error:
            cells = [name, f"does not run: {str(error).splitlines()[0]}", "", "", ""]
        print(f"| {' | '.join(cells)} |", flush=True)
