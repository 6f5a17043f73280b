"""Bulk merges into a graph, and SQL by hand: `python -m benchmarks.graph_bulk [--rows N] [--repeat N] [--cpu]`.

Both write the same rows to the same tables. Each run is a process of its own: it creates all records, merges the same
rows again, and merges them with a tenth changed. The best time of each counts, and results are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from benchmarks.graph import KEY, NEW_EDGE, UPSERT_NODE, by_hand, fill, now, ours
from benchmarks.graph_peers import Row, jobs
from merganser.graph import Endpoint, GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

Merge: TypeAlias = "Callable[[Any, Any], None]"
STEPS = ("create", "repeat", "tenth changed")
FIND_JOB = f"SELECT id FROM nodes WHERE type = 'Job' AND {KEY} = ?"  # noqa: S608
UPSERT_EDGE = (
    f"{NEW_EDGE.replace('?, ?,', f'({FIND_JOB}), ({FIND_JOB}),', 1)} ON CONFLICT (from_id, type, to_id) DO UPDATE SET "
    "properties = json_set(properties, '$.seen', excluded.properties ->> '$.seen'), updated_at = excluded.updated_at"
)


def make_rows(table: str, count: int) -> list[list[Row]]:
    """Make the rows of each step."""
    if table == "nodes":
        first = jobs(count, 1)
        return [first, first, [{**row, "seen": 2} if place % 10 == 0 else row for place, row in enumerate(first)]]
    urls = [row["url"] for row in jobs(count // 3, 1)]
    first = [
        {"from": urls[place // 3], "to": urls[place * 7 % len(urls)], "source": f"feed {place % 7}", "seen": 1}
        for place in range(len(urls) * 3)
    ]
    return [first, first, [{**row, "seen": 2} if place % 10 == 0 else row for place, row in enumerate(first)]]


def merge_ours(table: str, database: GraphDatabase, rows: Any) -> None:
    """Merge rows by the library."""
    if table == "nodes":
        database.bulk_merge_nodes("Job", rows, match_on="url", on_match=["status", "seen"])
    else:
        ends: dict[str, Any] = {
            "from_node": Endpoint("Job", {"url": "from"}),
            "to_node": Endpoint("Job", {"url": "to"}),
        }
        database.bulk_merge_edges("POSTED_BY", rows, on_match=["seen"], **ends)


def merge_by_hand(table: str, connection: sqlite3.Connection, rows: Any) -> None:
    """Merge rows by `executemany` of an UPSERT."""
    given = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    moment = now()
    connection.execute("BEGIN IMMEDIATE")
    if table == "nodes":
        connection.executemany(UPSERT_NODE, ((json.dumps(row), moment, moment) for row in given))
    else:
        parameters = (
            (row["from"], row["to"], json.dumps({"source": row["source"], "seen": row["seen"]}), moment, moment)
            for row in given
        )
        connection.executemany(UPSERT_EDGE, parameters)
    connection.execute("COMMIT")


def run_one(who: str, table: str, form: str, count: int, *, cpu: bool) -> dict[str, list[float]]:
    """Run the three steps, and return the seconds and the pages written per row of each."""
    clock = time.process_time if cpu else time.perf_counter
    steps = make_rows(table, count)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.db")
        opened, merge = (ours, merge_ours) if who == "ours" else (by_hand, merge_by_hand)
        if table == "edges":
            fill(path, opened, (("Job", row) for row in jobs(count // 3, 0)))
        database: Any = opened(path)
        connection = database.connection if who == "ours" else database
        for step, rows in zip(STEPS, steps, strict=True):
            given = pa.Table.from_pylist(rows) if form == "Arrow" else rows
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            start = clock()
            merge(table, database, given)
            seconds = clock() - start
            found[step] = [seconds / len(rows), os.path.getsize(f"{path}-wal") / 4120 / len(rows)]
        query = f"SELECT count(*), sum(properties ->> '$.seen' = 2) FROM {table} WHERE type = ?"  # noqa: S608
        result = connection.execute(query, ("Job" if table == "nodes" else "POSTED_BY",)).fetchone()
        assert result == (len(steps[0]), len(steps[0]) // 10), result
        database.close()
    return found


def main() -> None:
    """Print a table, or run one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=100_000, help="nodes; edges are three times as many")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="count processor time, on a machine that does other work")
    arguments = parser.parse_args()
    if arguments.one:
        who, table, form = arguments.one
        count = arguments.rows * (3 if table == "edges" else 1)
        print(json.dumps(run_one(who, table, form, count, cpu=arguments.cpu)))
        return
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, ", end="")
    print(f"SQLite {sqlite3.sqlite_version}; best of {arguments.repeat}\n")
    print("| merge of | rows | merganser, µs/row | by hand, µs/row | ratio | merganser, pages/row |")
    print(f"|{'---|' * 6}")
    for table in ("nodes", "edges"):
        for form in ("dicts", "Arrow"):
            best: dict[str, dict[str, list[float]]] = {}
            for _ in range(arguments.repeat):
                for who in ("ours", "by hand"):
                    options = [f"--rows={arguments.rows}", *(["--cpu"] if arguments.cpu else [])]
                    command = [sys.executable, "-m", "benchmarks.graph_bulk", *options, "--", who, table, form]
                    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                    before = best.setdefault(who, done)
                    best[who] = {step: list(map(min, done[step], before[step])) for step in STEPS}
            for step in STEPS:
                (mine, pages), (hand, _) = best["ours"][step], best["by hand"][step]
                cells = [f"{table}, {form}", step, f"{mine * 1e6:.1f}", f"{hand * 1e6:.1f}", f"{mine / hand:.2f}"]
                print(f"| {' | '.join(cells)} | {pages:.3f} |", flush=True)


if __name__ == "__main__":
    main()
