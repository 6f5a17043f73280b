"""What a lake holds, as fingerprints: the columns that every contender's tables have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.digest import Digest, digest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column

    from benchmarks.contest import Contender

JOB = ("url", "title", "city", "country", "currency", "salary_min", "salary_max")
TABLES = {
    "jobs": (*JOB, "company", "company_country", "remote", "skills", "description", "posted_at", "scraped_at"),
    "companies": ("name", "country", "last_seen"),
    "quarantine": ("file", "row"),
    "Company nodes": ("name", "country", "first_seen", "last_seen"),
    "Job nodes": (*JOB, "first_seen"),
    "POSTED_BY edges": ("job", "company", "since"),
}
# Columns of nodes and edges in SQLite that are not among the properties, which are JSON.
KEYS = {"url", "name", "job", "company"}
NUMBERS = {"salary_min", "salary_max"}
# As Spark SQL. Every other column becomes a string.
EXPRESSIONS = {
    # Contenders may read the feed from different folders.
    "file": r"regexp_extract(file, '[^/]+/[^/]+$', 0)",
    "skills": "to_json(skills)",
    "posted_at": "unix_micros(posted_at)",
    "scraped_at": "unix_micros(scraped_at)",
}


def read_contents(contender: Contender, folder: Path) -> dict[str, Digest]:
    """Fingerprint every table and, after its name and `, SQLite`, what the graph in SQLite has of it."""
    found = {}
    for name, frame in contender.read_frames().items():
        found[name] = digest(frame.select(*map(select_column, TABLES[name])).toArrow().to_batches())
    with closing(sqlite3.connect(folder / "graph.db")) as graph:
        for name, query in contender.graph_queries().items():
            found[f"{name}, SQLite"] = digest(read_graph(graph, query, TABLES[name]).to_batches())
    return found


def select_column(name: str) -> Column:
    """Select a column in a type that does not depend on the storage."""
    return F.expr(EXPRESSIONS.get(name, name)).cast("double" if name in NUMBERS else "string").alias(name)


def read_graph(graph: sqlite3.Connection, query: str, names: tuple[str, ...]) -> pa.Table:
    """Read the keys and properties that a query returns."""
    columns = ", ".join(name if name in KEYS else f"properties ->> '{name}' AS {name}" for name in names)
    rows = graph.execute(f"SELECT {columns} FROM ({query})").fetchall()  # noqa: S608 - our own names
    schema = pa.schema([(name, pa.float64() if name in NUMBERS else pa.string()) for name in names])
    values = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pa.table([pa.array(column, field.type) for column, field in zip(values, schema, strict=True)], schema=schema)
