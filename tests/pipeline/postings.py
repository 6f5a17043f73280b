"""The pipeline of the demo on a small feed, and its results without ids and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support import open_dataset_io, read_rows

from merganser import ParquetGraph
from merganser.demo import story as demo
from merganser.graph import GraphDatabase
from merganser.pipeline import Pipeline, load

if TYPE_CHECKING:
    from pathlib import Path


def load_demo(folder: Path, day: str = "2026-01-05") -> Pipeline:
    return load(demo.FILE, {"folder": str(folder), "date": day})


def read_sqlite_graph(folder: Path) -> dict[str, Any]:
    """Everything in the SQLite graph, with keys instead of ids."""
    with GraphDatabase(folder / "graph.db") as graph:
        nodes = {node.id: node for type_ in ("Job", "Company") for node in graph.nodes(type_).exec()}
        edges = [
            (nodes[edge.from_id].properties["url"], nodes[edge.to_id].properties["name"], edge.properties)
            for edge in graph.edges("POSTED_BY").exec()
        ]
        return {
            "nodes": sorted((node.type, sorted(node.properties.items())) for node in nodes.values()),
            "edges": sorted(edges, key=str),
        }


def read_parquet_graph(folder: Path) -> dict[str, Any]:
    """The same of the Parquet graph."""
    graph = ParquetGraph(folder / "graph")
    times = ("id", "type", "created_at", "updated_at")
    nodes: dict[str, tuple[str, dict[str, Any]]] = {}
    for type_ in ("Job", "Company"):
        for row in graph.nodes(type_).toArrow().to_pylist():
            properties = {
                name: to_plain(value) for name, value in row.items() if name not in times and value is not None
            }
            nodes[row["id"]] = (type_, properties)
    edges = [
        (nodes[row["src"]][1]["url"], nodes[row["dst"]][1]["name"], {"since": to_plain(row["since"])})
        for row in graph.edges("POSTED_BY").toArrow().to_pylist()
    ]
    return {
        "nodes": sorted((type_, sorted(properties.items())) for type_, properties in nodes.values()),
        "edges": sorted(edges, key=str),
    }


def to_plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def read_datasets(folder: Path) -> dict[str, Any]:
    return {
        "jobs": read_rows(open_dataset_io("arrow"), str(folder / "jobs"), ["url"]),
        "companies": read_rows(open_dataset_io("arrow"), str(folder / "companies"), ["name"]),
        "graph": read_sqlite_graph(folder),
        "bad": [row["row"] for row in read_rows(open_dataset_io("arrow"), str(folder / "quarantine"), ["row"])],
    }
