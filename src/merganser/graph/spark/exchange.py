"""The same graph in SQLite and in Parquet: each can be merged into the other, again and again.

A record gets all properties that it has in the other graph, and loses those that its type has there and it has not.
What the other graph does not know of, it keeps.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.display import Shown
from merganser.errors import InvalidArgumentError, NodeNotFoundError
from merganser.graph.database import GraphDatabase
from merganser.graph.merging.bulk import Endpoint
from merganser.graph.spark.columns import KEYS, TIMES, property_of
from merganser.graph.spark.reading import quoted
from merganser.graph.spark.sqlite_graph import SqliteGraph
from merganser.graph.spark.sqlite_rows import staged
from merganser.graph.sqlite.sql import backquoted

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from merganser.graph.spark.parquet_graph import Kind, ParquetGraph
    from merganser.graph.spark.results import GraphMergeResult

    Names = Mapping[str, Sequence[str]]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ExchangeResult(Shown):
    """What was merged: by the type of nodes, and by the types of an edge's first node, the edge, and its last node."""

    nodes: dict[str, GraphMergeResult]
    edges: dict[tuple[str, str, str], GraphMergeResult]


def to_sqlite(graph: ParquetGraph, target: str | os.PathLike[str] | GraphDatabase) -> ExchangeResult:
    """Merge a Parquet graph into an SQLite graph; see `ParquetGraph.to_sqlite`."""
    types = graph.node_types()
    nodes, edges = {}, {}
    with SqliteGraph(target) as sqlite:
        for type_ in types:
            frame = graph.nodes(type_)
            key, others = _parted(_properties(frame, "nodes"), _matched_by(graph, "nodes", type_))
            nodes[type_] = sqlite.merge_nodes(frame, type_, match=key, base=others, on_match=others)
        for type_ in graph.edge_types():
            match = _matched_by(graph, "edges", type_)
            for start, end in _connected(graph, type_, types):
                frame, names = _with_ends(graph, type_, start, end)
                key, others = _parted({name: F.col("own").getField(name) for name in names}, match)
                edges[start, type_, end] = sqlite.merge_edges(
                    frame,
                    type_,
                    from_node=Endpoint(start, _fields("from", _matched_by(graph, "nodes", start))),
                    to_node=Endpoint(end, _fields("to", _matched_by(graph, "nodes", end))),
                    match=key,
                    base=others,
                    on_match=others,
                )
    return ExchangeResult(nodes, edges)


def from_sqlite(
    graph: ParquetGraph,
    source: str | os.PathLike[str] | GraphDatabase,
    match: Names | None = None,
    edge_match: Names | None = None,
) -> ExchangeResult:
    """Merge an SQLite graph into a Parquet graph; see `ParquetGraph.from_sqlite`."""
    nodes, edges = {}, {}
    opened = nullcontext(source) if isinstance(source, GraphDatabase) else GraphDatabase(source)
    with opened as database, staged(graph, database, match or {}, edge_match or {}) as parts:
        for part in parts:
            key, others = _parted(part.columns, part.match)
            if part.ends:
                start, end = part.ends
                edges[start.type, part.type, end.type] = graph.merge_edges(
                    part.frame, part.type, from_node=start, to_node=end, match=key, base=others, on_match=others
                )
            else:
                nodes[part.type] = graph.merge_nodes(part.frame, part.type, match=key, base=others, on_match=others)
    return ExchangeResult(nodes, edges)


def _matched_by(graph: ParquetGraph, kind: Kind, type_: str) -> list[str]:
    found = graph._folder(kind, type_).matched_by()  # noqa: SLF001 - exchange is a part of a graph
    if found is None:
        message = (
            f"{graph.path} does not tell by which properties the {kind} of type {type_!r} were merged. Merge into them "
            "once more with ParquetGraph."
        )
        raise InvalidArgumentError(message)
    return found


def _parted(columns: Mapping[str, Value], match: Collection[str]) -> tuple[dict[str, Value], dict[str, Value]]:
    """Part the match properties from all others."""
    key = {name: columns[name] for name in match}
    return key, {name: column for name, column in columns.items() if name not in key}


def _properties(frame: DataFrame, kind: Kind) -> dict[str, Column]:
    """Give the column of each property."""
    own = {*KEYS[kind], *TIMES, "type" if kind == "nodes" else "relationship"}
    return {property_of(column, kind): quoted(column) for column in frame.columns if column not in own}


def _connected(graph: ParquetGraph, type_: str, types: Sequence[str]) -> list[tuple[str, str]]:
    """Give the types of nodes that edges of a type are between."""
    known = [graph.nodes(node_type).select("id", F.lit(node_type).alias("type")) for node_type in types]
    pairs = graph.edges(type_).select("src", "dst")
    none = pairs.select(F.col("src").alias("id"), F.lit(None).cast("string").alias("type")).limit(0)
    nodes = reduce(lambda one, other: one.unionAll(other), known, none)
    for end in ("src", "dst"):
        named = nodes.select(F.col("id").alias(end), F.col("type").alias(f"{end}_type")).hint("merge")
        pairs = pairs.join(named, end, "left")
    found = pairs.groupBy("src_type", "dst_type").agg(F.count(F.lit(1)).alias("edges")).collect()
    lost = sum(row.edges for row in found if row.src_type is None or row.dst_type is None)
    if lost:
        message = (
            f"Of {lost} edges of type {type_!r} in {graph.path} a node is missing. Merge the nodes, or remove them."
        )
        raise NodeNotFoundError(message)
    return sorted((row.src_type, row.dst_type) for row in found)


def _with_ends(graph: ParquetGraph, type_: str, start: str, end: str) -> tuple[DataFrame, list[str]]:
    """Give edges as structs: `from` and `to`, the keys of their nodes, and `own`, the properties, with their names."""
    edges = graph.edges(type_)
    own = _properties(edges, "edges")
    properties = [F.struct(*(column.alias(name) for name, column in own.items())).alias("own")] if own else []
    frame = edges.select("src", "dst", *properties)
    for column, struct, node_type in (("src", "from", start), ("dst", "to", end)):
        nodes = graph.nodes(node_type)
        columns = _properties(nodes, "nodes")
        key = F.struct(*(columns[name].alias(name) for name in _matched_by(graph, "nodes", node_type)))
        frame = frame.join(nodes.select(F.col("id").alias(column), key.alias(struct)).hint("merge"), column)
    return frame, list(own)


def _fields(struct: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"{backquoted(struct)}.{backquoted(name)}" for name in names}
