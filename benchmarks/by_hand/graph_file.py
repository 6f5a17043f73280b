"""The graph in SQLite, by UPSERT statements."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

TABLES = """
    CREATE TABLE IF NOT EXISTS node (
        id INTEGER PRIMARY KEY, type TEXT NOT NULL, key TEXT NOT NULL, properties TEXT NOT NULL, UNIQUE (type, key)
    );
    CREATE TABLE IF NOT EXISTS edge (
        id INTEGER PRIMARY KEY, type TEXT NOT NULL, source INTEGER NOT NULL REFERENCES node,
        target INTEGER NOT NULL REFERENCES node, properties TEXT NOT NULL, UNIQUE (type, source, target)
    );
"""
# A property that is null in the patch is removed.
MERGE_NODE = """
    INSERT INTO node (type, key, properties) VALUES (?1, ?2, ?3)
    ON CONFLICT (type, key) DO UPDATE SET properties = json_patch(properties, ?4)
    WHERE properties <> json_patch(properties, ?4)
"""
MERGE_EDGE = """
    INSERT INTO edge (type, source, target, properties)
    SELECT ?, source.id, target.id, ? FROM node AS source, node AS target
    WHERE source.type = ? AND source.key = ? AND target.type = ? AND target.key = ?
    ON CONFLICT DO NOTHING
"""


def open_graph(path: Path) -> sqlite3.Connection:
    """Open the graph; the file is created if it does not exist."""
    graph = sqlite3.connect(path)
    graph.execute("PRAGMA journal_mode = WAL")
    graph.executescript(TABLES)
    return graph


def merge_nodes(graph: sqlite3.Connection, type_: str, rows: DataFrame) -> None:
    """Merge rows of key, properties and those properties that a match overwrites, the last two as JSON."""
    with graph:
        graph.executemany(MERGE_NODE, ((type_, *row) for row in collect(rows)))


def merge_edges(graph: sqlite3.Connection, type_: str, ends: tuple[str, str], rows: DataFrame) -> None:
    """Merge rows of both nodes' keys and properties as JSON; `ends` are the types of the nodes."""
    source, target = ends
    with graph:
        graph.executemany(
            MERGE_EDGE,
            ((type_, properties, source, one, target, other) for one, other, properties in collect(rows)),
        )


def collect(rows: DataFrame) -> Iterator[tuple[str, ...]]:
    """Collect rows as tuples."""
    table = rows.toArrow()
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
