"""Merge into a property graph: `python -m benchmarks.graph [--rows N] [--repeat N] [--cpu] [part …]`.

Each merge is compared with the same by hand: a loop of SELECT, then INSERT or UPDATE, or `executemany` of an UPSERT.
Both write the same rows to the same tables in a fresh file, in one transaction, first as new and then as updates.
They take turns, and the best time of each counts. A run with wrong counts or values fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.graph_peers import Row, jobs, print_peers
from merganser.errors import MergePerformanceWarning
from merganser.graph import GraphDatabase
from merganser.graph.sqlite.tables import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMPANIES = 100
# An open database, of merganser or of sqlite3, into which rows are merged.
Merge: TypeAlias = "Callable[[Any, list[Row]], None]"

KEY = "json_extract(properties, '$.url')"
FIND_NODE = f"SELECT id, properties FROM nodes WHERE type = 'Job' AND {KEY} = ?"  # noqa: S608
FIND_EDGE = "SELECT id, properties FROM edges WHERE from_id = ? AND type = 'POSTED_BY' AND to_id = ?"
NEW_NODE = "INSERT INTO nodes (type, properties, created_at, updated_at) VALUES ('Job', ?, ?, ?)"
NEW_EDGE = (
    "INSERT INTO edges (type, from_id, to_id, properties, created_at, updated_at) VALUES ('POSTED_BY', ?, ?, ?, ?, ?)"
)
UPSERT_NODE = (
    f"{NEW_NODE} ON CONFLICT ({KEY}) WHERE type = 'Job' DO UPDATE SET properties = json_set(properties, "
    "'$.status', excluded.properties ->> '$.status', '$.seen', excluded.properties ->> '$.seen'), "
    "updated_at = excluded.updated_at"
)
UPSERT_EDGE = (
    f"{NEW_EDGE} ON CONFLICT (from_id, type, to_id) DO UPDATE SET properties = json_set(properties, "
    "'$.seen', excluded.properties ->> '$.seen'), updated_at = excluded.updated_at"
)


def now() -> int:
    """Return the time in the format of the tables."""
    return time.time_ns() // 1_000_000


def edges(count: int, seen: int) -> list[Row]:
    """Make edges from each job to one of a hundred companies, which are the first nodes."""
    return [
        {"from_id": COMPANIES + place, "to_id": 1 + place % COMPANIES, "source": f"feed {place % 7}", "seen": seen}
        for place in range(1, count + 1)
    ]


def by_hand(path: Path) -> sqlite3.Connection:
    """Open the same tables without the library."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in MIGRATIONS[0]:
            # An UPSERT needs a unique index.
            connection.execute(statement.replace("CREATE INDEX edges_out", "CREATE UNIQUE INDEX edges_out"))
        connection.execute(f"CREATE UNIQUE INDEX jobs_by_url ON nodes ({KEY}) WHERE type = 'Job'")
    return connection


def ours(path: Path) -> GraphDatabase:
    """Open a graph database."""
    database = GraphDatabase(path)
    database.create_property_index("Job", "url", unique=True)
    return database


def merge_node(database: GraphDatabase, rows: list[Row]) -> None:
    """Merge nodes one by one."""
    with database.transaction():
        for row in rows:
            over = {"status": row["status"], "seen": row["seen"]}
            database.merge_node("Job", {"url": row["url"]}, row, on_match=over)


def merge_node_by_hand(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Merge nodes one by one."""
    connection.execute("BEGIN IMMEDIATE")
    for row in rows:
        found = connection.execute(FIND_NODE, (row["url"],)).fetchone()
        moment = now()
        if found is None:
            connection.execute(NEW_NODE, (json.dumps(row), moment, moment))
        else:
            properties = json.loads(found[1]) | {"status": row["status"], "seen": row["seen"]}
            statement = "UPDATE nodes SET properties = ?, updated_at = ? WHERE id = ?"
            connection.execute(statement, (json.dumps(properties), moment, found[0]))
    connection.execute("COMMIT")


def bulk_merge_nodes(database: GraphDatabase, rows: list[Row]) -> None:
    """Merge nodes at once."""
    database.bulk_merge_nodes("Job", rows, match_on="url", on_match=["status", "seen"])


def bulk_merge_nodes_by_hand(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Merge nodes at once."""
    moment = now()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(UPSERT_NODE, ((json.dumps(row), moment, moment) for row in rows))
    connection.execute("COMMIT")


def merge_edge(database: GraphDatabase, rows: list[Row]) -> None:
    """Merge edges one by one."""
    with database.transaction():
        for row in rows:
            properties = {"source": row["source"], "seen": row["seen"]}
            over = {"seen": row["seen"]}
            database.merge_edge(row["from_id"], "POSTED_BY", row["to_id"], properties, on_match=over)


def merge_edge_by_hand(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Merge edges one by one."""
    connection.execute("BEGIN IMMEDIATE")
    for row in rows:
        found = connection.execute(FIND_EDGE, (row["from_id"], row["to_id"])).fetchone()
        moment = now()
        if found is None:
            text = json.dumps({"source": row["source"], "seen": row["seen"]})
            connection.execute(NEW_EDGE, (row["from_id"], row["to_id"], text, moment, moment))
        else:
            text = json.dumps(json.loads(found[1]) | {"seen": row["seen"]})
            connection.execute("UPDATE edges SET properties = ?, updated_at = ? WHERE id = ?", (text, moment, found[0]))
    connection.execute("COMMIT")


def bulk_merge_edges(database: GraphDatabase, rows: list[Row]) -> None:
    """Merge edges at once."""
    database.bulk_merge_edges("POSTED_BY", rows, on_match=["seen"])


def bulk_merge_edges_by_hand(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Merge edges at once."""
    moment = now()
    parameters = (
        (row["from_id"], row["to_id"], json.dumps({"source": row["source"], "seen": row["seen"]}), moment, moment)
        for row in rows
    )
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(UPSERT_EDGE, parameters)
    connection.execute("COMMIT")


OPENED: tuple[Callable[[Path], Any], Callable[[Path], Any]] = (ours, by_hand)
NODE_MERGES: dict[str, tuple[Merge, Merge]] = {
    "merge_node": (merge_node, merge_node_by_hand),
    "bulk_merge_nodes": (bulk_merge_nodes, bulk_merge_nodes_by_hand),
}
EDGE_MERGES: dict[str, tuple[Merge, Merge]] = {
    "merge_edge": (merge_edge, merge_edge_by_hand),
    "bulk_merge_edges": (bulk_merge_edges, bulk_merge_edges_by_hand),
}


def fill(path: Path, opened: Callable[[Path], Any], nodes: Iterable[tuple[str, Row]]) -> None:
    """Write nodes in the fastest way."""
    database = opened(path)
    connection = database.connection if isinstance(database, GraphDatabase) else database
    connection.execute("BEGIN IMMEDIATE")
    statement = "INSERT INTO nodes (type, properties, created_at, updated_at) VALUES (?, ?, 0, 0)"
    connection.executemany(statement, ((kind, json.dumps(row)) for kind, row in nodes))
    connection.execute("COMMIT")
    database.close()


def check(path: Path, table: str, count: int, seen: int, changed: int) -> None:
    """Check the number of records, and of those with the values of the last merge."""
    connection = sqlite3.connect(path)
    kind = "Job" if table == "nodes" else "POSTED_BY"
    query = f"SELECT count(*), sum(properties ->> '$.seen' = ?) FROM {table} WHERE type = ?"  # noqa: S608
    found = connection.execute(query, (seen, kind)).fetchone()
    connection.close()
    assert found == (count, changed), f"{table}: {found}, not {(count, changed)}"


def time_merge(merge: Merge, database: Any, rows: list[Row], clock: Callable[[], float]) -> float:
    """Merge, and return the seconds per row."""
    start = clock()
    merge(database, rows)
    return (clock() - start) / len(rows)


def compare(merges: tuple[Merge, Merge], table: str, count: int, arguments: argparse.Namespace) -> list[list[float]]:
    """Time both contenders in turns, on creating and on matching; return the best seconds per row."""
    batches = [jobs(count, seen) if table == "nodes" else edges(count, seen) for seen in (1, 2)]
    best = [[9e9, 9e9], [9e9, 9e9]]
    for _ in range(arguments.repeat):
        for times, merge, opened in zip(best, merges, OPENED, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "graph.db")
                if table == "edges":
                    companies = [("Company", {"name": f"company {place}"}) for place in range(COMPANIES)]
                    fill(path, opened, companies + [("Job", row) for row in jobs(count, 0)])
                database = opened(path)
                for place, rows in enumerate(batches):
                    times[place] = min(times[place], time_merge(merge, database, rows, arguments.clock))
                    check(path, table, count, seen=1 + place, changed=count)
                database.close()
    return best


def print_merges(arguments: argparse.Namespace) -> None:
    """Print the rates of every kind of merge beside that by hand."""
    print(
        "\n| merge | rows | existing records | merganser, rows/s | by hand, rows/s | ratio |\n|---|---|---|---|---|---|"
    )
    for table, kinds in (("nodes", NODE_MERGES), ("edges", EDGE_MERGES)):
        for name, merges in kinds.items():
            best = compare(merges, table, arguments.rows, arguments)
            for what, mine, other in zip(("none: create", "all: match"), *best, strict=True):
                cells = [name, f"{arguments.rows:,}", what, f"{1 / mine:,.0f}", f"{1 / other:,.0f}"]
                print(f"| {' | '.join(cells)} | {other / mine:.2f} |", flush=True)


def print_scale(arguments: argparse.Namespace) -> None:
    """Print the time per row in a small and in a large graph, for 10,000 rows of which half exist."""
    print("\n| merge | matched nodes | into 10,000, µs/row | into 1,000,000, µs/row | ratio |\n|---|---|---|---|---|")
    for in_order, lie in ((True, "together"), (False, "spread over all")):
        small, large = (time_at_size(size, arguments, in_order=in_order) for size in (10_000, 1_000_000))
        for name, seconds in small.items():
            cells = [name, lie, f"{seconds * 1e6:.1f}", f"{large[name] * 1e6:.1f}", f"{large[name] / seconds:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def time_at_size(size: int, arguments: argparse.Namespace, *, in_order: bool) -> dict[str, float]:
    """Time merges into a graph of some size: into its last nodes with sorted keys, or anywhere with random ones."""
    old = jobs(size, 7, in_order=in_order)
    rows = [*(old[-5_000:] if in_order else old[:: size // 5_000]), *jobs(5_000, 7, first=size, in_order=in_order)]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        full = [Path(folder, "ours.db"), Path(folder, "by_hand.db")]
        for path, opened in zip(full, OPENED, strict=True):
            fill(path, opened, (("Job", row) for row in jobs(size, 1, in_order=in_order)))
        for _ in range(arguments.repeat):
            for kind, merges in NODE_MERGES.items():
                for name, merge, path, opened in zip((kind, f"{kind}, by hand"), merges, full, OPENED, strict=True):
                    copy = Path(folder, "copy.db")
                    shutil.copyfile(path, copy)
                    # Otherwise a commit would wait for the copy to be written.
                    os.sync()
                    database = opened(copy)
                    best[name] = min(best.get(name, 9e9), time_merge(merge, database, rows, arguments.clock))
                    database.close()
                    check(copy, "nodes", size + 5_000, seen=7, changed=10_000)
    return best


def print_index(arguments: argparse.Namespace, size: int = 100_000, count: int = 200) -> None:
    """Print the effect of an index; without one, a single run is enough."""
    print(
        f"\n| {count} rows into {size:,} nodes | with an index, rows/s | without, rows/s | ratio |\n|---|---|---|---|"
    )
    rows = jobs(size, 2)[:: size // count]
    for name, (merge, _) in NODE_MERGES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.db")
            fill(path, ours, (("Job", row) for row in jobs(size, 1)))
            database = ours(path)
            with_index = min(time_merge(merge, database, rows, arguments.clock) for _ in range(arguments.repeat))
            database.drop_index("idx_merge_Job_url")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                without = time_merge(merge, database, rows, arguments.clock)
            assert [warning.category for warning in caught] == [MergePerformanceWarning]
            database.close()
            check(path, "nodes", size, seen=2, changed=count)
        print(f"| {name} | {1 / with_index:,.0f} | {1 / without:,.1f} | {without / with_index:,.0f} |", flush=True)


# For each kind of read, that of merganser and the SQL by hand; both return the properties of what they find.
READS: dict[str, tuple[Callable[[GraphDatabase, Any], list[Any]], str]] = {
    "nodes(type).where({key: value}).first()": (
        lambda database, row: [database.nodes("Job").where({"url": row["url"]}).first()],
        f"SELECT id, type, properties, created_at, updated_at FROM nodes WHERE type = 'Job' AND {KEY} = ?",  # noqa: S608
    ),
    "get_node(id)": (
        lambda database, row: [database.get_node(row["from_id"])],
        "SELECT id, type, properties, created_at, updated_at FROM nodes WHERE id = ?",
    ),
    "edges(type, from_id=id).exec()": (
        lambda database, row: database.edges("POSTED_BY", from_id=row["from_id"]).exec(),
        "SELECT id, type, properties, from_id, to_id FROM edges WHERE from_id = ? AND type = 'POSTED_BY'",
    ),
    "traverse(id, type, max_depth=1).nodes()": (
        lambda database, row: database.traverse(row["from_id"], "POSTED_BY", max_depth=1).nodes(),
        "SELECT n.* FROM edges AS e JOIN nodes AS n ON n.id = e.to_id WHERE e.from_id = ? AND e.type = 'POSTED_BY'",
    ),
}


def print_reads(arguments: argparse.Namespace, size: int = 20_000, count: int = 5_000) -> None:
    """Print the time of lookups by key and of one hop, beside SQL and `json.loads` by hand."""
    print(f"\n| {count:,} reads of {size:,} nodes | merganser, µs | by hand, µs | ratio |\n|---|---|---|---|")
    rows = [job | edge for job, edge in zip(jobs(size, 1), edges(size, 1), strict=True)][:: size // count]
    with tempfile.TemporaryDirectory() as folder:
        best = [[9e9, 9e9] for _ in READS]
        companies = [("Company", {"name": f"company {place}"}) for place in range(COMPANIES)]
        nodes = companies + [("Job", row) for row in jobs(size, 1)]
        database, connection = ours(Path(folder, "ours.db")), by_hand(Path(folder, "by_hand.db"))
        fill(Path(folder, "ours.db"), ours, nodes)
        fill(Path(folder, "by_hand.db"), by_hand, nodes)
        bulk_merge_edges(database, edges(size, 1))
        bulk_merge_edges_by_hand(connection, edges(size, 1))
        for _ in range(arguments.repeat):
            for times, (name, (read, sql)) in zip(best, READS.items(), strict=True):
                keys = [row["url" if "where" in name else "from_id"] for row in rows]
                start = arguments.clock()
                found = [[one.properties for one in read(database, row)] for row in rows]
                middle = arguments.clock()
                same = [[json.loads(one[2]) for one in connection.execute(sql, (key,)).fetchall()] for key in keys]
                end = arguments.clock()
                assert found == same
                assert all(found)
                times[:] = min(times[0], middle - start), min(times[1], end - middle)
        database.close()
        connection.close()
    for name, (mine, other) in zip(READS, best, strict=True):
        print(f"| `{name}` | {mine / count * 1e6:.1f} | {other / count * 1e6:.1f} | {mine / other:.2f} |", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "merges": print_merges,
    "scale": print_scale,
    "index": print_index,
    "reads": print_reads,
    "peers": print_peers,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="count processor time, on a machine that does other work")
    arguments = parser.parse_args()
    arguments.clock = time.process_time if arguments.cpu else time.perf_counter
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, ", end="")
    print(f"SQLite {sqlite3.sqlite_version}; best of {arguments.repeat}")
    for part in arguments.parts or PARTS:
        PARTS[part](arguments)


if __name__ == "__main__":
    main()
