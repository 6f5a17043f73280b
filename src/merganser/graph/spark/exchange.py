"""Merge a graph in Parquet into one in SQLite, and back, as often as needed.

A record gets all properties that it has in the other graph, and loses those that its type has there and it has not.
Properties that the other graph does not have at all are preserved.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.display import DisplayMixin
from merganser.errors import InvalidArgumentError, NodeNotFoundError
from merganser.graph.database import GraphDatabase
from merganser.graph.merging.bulk_options import Endpoint
from merganser.graph.spark.columns import KEY_COLUMNS, TIME_COLUMNS, to_property_name
from merganser.graph.spark.reading import to_column
from merganser.graph.spark.sqlite_graph import SqliteGraph
from merganser.graph.spark.sqlite_rows import stage_graph
from merganser.graph.sqlite.sql import quote_spark_identifier

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from merganser.graph.spark.parquet_graph import ParquetGraph, RecordKind
    from merganser.graph.spark.results import GraphMergeResult

    MatchNames = Mapping[str, Sequence[str]]

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class ExchangeResult(DisplayMixin):
    """Results by node type, and by `(start node type, edge type, end node type)`."""

    nodes: dict[str, GraphMergeResult]
    edges: dict[tuple[str, str, str], GraphMergeResult]


def to_sqlite(graph: ParquetGraph, target: str | os.PathLike[str] | GraphDatabase) -> ExchangeResult:
    """Merge a Parquet graph into an SQLite graph; see `ParquetGraph.to_sqlite`."""
    node_types = graph.node_types()
    nodes, edges = {}, {}
    with SqliteGraph(target) as sqlite:
        for type_ in node_types:
            frame = graph.nodes(type_)
            columns = _map_property_columns(frame, "nodes")
            key, others = _split_by_match(columns, _read_match_names(graph, "nodes", type_))
            nodes[type_] = sqlite.merge_nodes(frame, type_, match=key, base=others, on_match=others)
        for type_ in graph.edge_types():
            match = _read_match_names(graph, "edges", type_)
            for start, end in _find_endpoint_types(graph, type_, node_types):
                frame, names = _join_endpoints(graph, type_, start, end)
                key, others = _split_by_match({name: F.col("own").getField(name) for name in names}, match)
                edges[start, type_, end] = sqlite.merge_edges(
                    frame,
                    type_,
                    from_node=Endpoint(start, _qualify_fields("from", _read_match_names(graph, "nodes", start))),
                    to_node=Endpoint(end, _qualify_fields("to", _read_match_names(graph, "nodes", end))),
                    match=key,
                    base=others,
                    on_match=others,
                )
    return ExchangeResult(nodes, edges)


def from_sqlite(
    graph: ParquetGraph,
    source: str | os.PathLike[str] | GraphDatabase,
    match: MatchNames | None = None,
    edge_match: MatchNames | None = None,
) -> ExchangeResult:
    """Merge an SQLite graph into a Parquet graph; see `ParquetGraph.from_sqlite`."""
    nodes, edges = {}, {}
    opened = nullcontext(source) if isinstance(source, GraphDatabase) else GraphDatabase(source)
    with opened as database, stage_graph(graph, database, match or {}, edge_match or {}) as staged:
        for records in staged:
            frame, type_ = records.frame, records.type
            key, others = _split_by_match(records.columns, records.match_names)
            if records.endpoints:
                start, end = records.endpoints
                edges[start.type, type_, end.type] = graph.merge_edges(
                    frame, type_, from_node=start, to_node=end, match=key, base=others, on_match=others
                )
            else:
                nodes[type_] = graph.merge_nodes(frame, type_, match=key, base=others, on_match=others)
    return ExchangeResult(nodes, edges)


def _read_match_names(graph: ParquetGraph, kind: RecordKind, type_: str) -> list[str]:
    found = graph._find_folder(kind, type_).read_match_names()  # noqa: SLF001 - exchange is a part of a graph
    if found is None:
        raise InvalidArgumentError(
            f"{graph.path} does not record the match properties of the {kind} of type {type_!r}. Merge into them once "
            "more with ParquetGraph, which records them."
        )
    return found


def _split_by_match(given: Mapping[str, ValueT], match: Collection[str]) -> tuple[dict[str, ValueT], dict[str, ValueT]]:
    key = {name: given[name] for name in match}
    return key, {name: column for name, column in given.items() if name not in key}


def _map_property_columns(frame: DataFrame, kind: RecordKind) -> dict[str, Column]:
    own = {*KEY_COLUMNS[kind], *TIME_COLUMNS, "type" if kind == "nodes" else "relationship"}
    return {to_property_name(column, kind): to_column(column) for column in frame.columns if column not in own}


def _find_endpoint_types(graph: ParquetGraph, type_: str, node_types: Sequence[str]) -> list[tuple[str, str]]:
    known = [graph.nodes(node_type).select("id", F.lit(node_type).alias("type")) for node_type in node_types]
    pairs = graph.edges(type_).select("src", "dst")
    empty = pairs.select(F.col("src").alias("id"), F.lit(None).cast("string").alias("type")).limit(0)
    nodes = reduce(lambda one, other: one.unionAll(other), known, empty)
    for column in ("src", "dst"):
        typed = nodes.select(F.col("id").alias(column), F.col("type").alias(f"{column}_type")).hint("merge")
        pairs = pairs.join(typed, column, "left")
    found = pairs.groupBy("src_type", "dst_type").agg(F.count(F.lit(1)).alias("edges")).collect()
    dangling = sum(row.edges for row in found if row.src_type is None or row.dst_type is None)
    if dangling:
        raise NodeNotFoundError(
            f"{dangling} edges of type {type_!r} in {graph.path} have a node that does not exist. Merge the nodes, or "
            "remove these edges."
        )
    return sorted((row.src_type, row.dst_type) for row in found)


def _join_endpoints(graph: ParquetGraph, type_: str, start: str, end: str) -> tuple[DataFrame, list[str]]:
    """Read edges as structs: `from` and `to`, the keys of their nodes, and `own`, their properties; and list these."""
    edges = graph.edges(type_)
    own = _map_property_columns(edges, "edges")
    properties = [F.struct(*(column.alias(name) for name, column in own.items())).alias("own")] if own else []
    frame = edges.select("src", "dst", *properties)
    for column, struct, node_type in (("src", "from", start), ("dst", "to", end)):
        nodes = graph.nodes(node_type)
        columns = _map_property_columns(nodes, "nodes")
        key = F.struct(*(columns[name].alias(name) for name in _read_match_names(graph, "nodes", node_type)))
        frame = frame.join(nodes.select(F.col("id").alias(column), key.alias(struct)).hint("merge"), column)
    return frame, list(own)


def _qualify_fields(struct: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"{quote_spark_identifier(struct)}.{quote_spark_identifier(name)}" for name in names}
