"""The same records through SQLite, through Parquet and one by one make the same graph, and each can be the other."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import read_graph

from merganser.graph import Endpoint, GraphDatabase, ParquetGraph, SqliteGraph
from merganser.graph.spark.collect import stream_tables
from merganser.graph.values import normalize_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.graph import GraphMergeResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Row = dict[str, Any]
NODES: dict[str, Any] = {
    "match": "k",
    "base": ["s", "l", "n"],
    "on_create": {"seen": "1", "s": "coalesce(s, 'new')"},
    "on_match": {"seen": "n", "f": "f", "at": "at", "s": "upper(s)"},
    "order_by": "n",
    "skip_null_keys": True,
}
EDGES: dict[str, Any] = {
    "from_node": Endpoint("N", {"k": "start"}),
    "to_node": Endpoint("N", {"k": "end"}),
    "match": ["kind"],
    "base": {"w": "w"},
    "on_match": {"w": "w + 1", "day": "DATE'2026-01-02'"},
    "on_missing_node": "skip",
    "skip_null_keys": True,
}
NODE_COLUMNS = "k string, n bigint, s string, f double, at timestamp, l array<bigint>"
EDGE_COLUMNS = "start string, end string, kind boolean, w bigint"
# New records meet it or not, and rows begin and end it.
NODE_CONDITION: Row = {"seen": 1.0}
EDGE_CONDITION: Row = {"w": 2}
MOMENTS = [datetime(2026, 1, 2, 3, 4, 5, micros, tzinfo=UTC) for micros in (0, 60)]


def node_rows(random: Random) -> list[Row]:
    values: dict[str, list[Any]] = {
        "k": ["a", "b", "c", "d", "é'", "", None],
        "n": [None, 0, 1, 2],
        "s": [None, "x", "y"],
        "f": [None, 0.5, 2.0],
        "at": [None, *MOMENTS],
        "l": [None, [], [1], [1, None]],
    }
    return [{name: random.choice(some) for name, some in values.items()} for _ in range(random.randint(5, 20))]


def edge_rows(random: Random) -> list[Row]:
    values: dict[str, list[Any]] = {
        "start": ["a", "b", "é'", "not there", None],
        "end": ["a", "c", "", "b"],
        "kind": [True, False],
        "w": [None, 1, 2],
    }
    return [{name: random.choice(some) for name, some in values.items()} for _ in range(random.randint(5, 20))]


def in_order(rows: list[Row], *first: str) -> list[Row]:
    def place(value: Any) -> Any:
        return (value is not None, list(map(place, value)) if isinstance(value, list) else value)

    return sorted(rows, key=lambda row: [place(row[name]) for name in (*first, *row)])


class OneByOne:
    """A graph that is merged into row after row, and counts as a merge of many does."""

    def __init__(self) -> None:
        self.db = GraphDatabase(":memory:")
        self.db.create_property_index("N", "k", unique=True)

    def nodes(self, rows: list[Row], condition: Row) -> Iterator[bool | None]:
        for row in in_order(rows, "n"):
            if row["k"] is None:
                yield None
                continue
            yield self.db.merge_node(
                "N",
                {"k": row["k"]},
                {name: row[name] for name in ("s", "l", "n")},
                on_create={"seen": 1, "s": "new" if row["s"] is None else row["s"]},
                on_match={
                    **{name: row[column] for name, column in (("seen", "n"), ("f", "f"), ("at", "at"))},
                    "s": row["s"] and row["s"].upper(),
                },
                condition=condition,
                touch=False,
            ).created

    def edges(self, rows: list[Row], condition: Row) -> Iterator[bool | None]:
        ids = {properties["k"]: found for found, (_, properties) in read_graph(self.db).nodes.items()}
        for row in in_order(rows):
            if row["start"] not in ids or row["end"] not in ids:
                yield None
                continue
            yield self.db.merge_edge(
                ids[row["start"]],
                "E",
                ids[row["end"]],
                {"w": row["w"]},
                match={"kind": row["kind"]},
                on_match={"w": None if row["w"] is None else row["w"] + 1, "day": "2026-01-02"},
                condition=condition,
                touch=False,
            ).created

    def merge(self, rows: list[Row], condition: Row) -> tuple[int, ...]:
        before = read_graph(self.db)
        done = list(self.nodes(rows, condition) if "k" in rows[0] else self.edges(rows, condition))
        after = read_graph(self.db)
        changed = sum(before.nodes[found] != after.nodes[found] for found in before.nodes)
        changed += sum(before.edges[found] != after.edges[found] for found in before.edges)
        return len(rows), done.count(True), done.count(False), changed, done.count(None)


def counts(result: GraphMergeResult) -> tuple[int, ...]:
    return result.rows, result.created, result.matched, result.changed, result.skipped


def in_sqlite(db: GraphDatabase) -> list[Any]:
    """Return a graph without ids and times."""
    found = read_graph(db)
    keys = {node: properties["k"] for node, (_, properties) in found.nodes.items()}
    nodes = [sorted(properties.items()) for _, properties in found.nodes.values()]
    edges = [(keys[start], keys[end], sorted(old.items())) for _, start, end, old in found.edges.values()]
    return [sorted(nodes, key=repr), sorted(edges, key=repr)]


def in_parquet(graph: ParquetGraph) -> list[Any]:
    frames = (graph.nodes("N"), graph.edges("E"))
    nodes, edges = ([row for table in stream_tables(frame) for row in table.to_pylist()] for frame in frames)
    keys = {row["id"]: row["k"] for row in nodes}

    def properties(row: Row) -> list[Any]:
        own = ("id", "type", "src", "dst", "relationship", "created_at", "updated_at")
        stored = {name: value for name, value in row.items() if name not in own and value is not None}
        return sorted(normalize_properties(stored, "").items())

    found = [(keys[row["src"]], keys[row["dst"]], properties(row)) for row in edges]
    return [sorted(map(properties, nodes), key=repr), sorted(found, key=repr)]


@pytest.mark.parametrize("seed", [1])
def test_sqlite_parquet_and_one_by_one_agree(spark: Any, lake: str, seed: int) -> None:
    """G1, G2, G4, G5, G17, G24."""
    random = Random(seed)
    truth, parquet = OneByOne(), ParquetGraph(f"{lake}/graph", spark)
    with truth.db, SqliteGraph(":memory:") as sqlite:
        for of_nodes, of_edges in (({}, {}), (NODE_CONDITION, EDGE_CONDITION)):
            nodes, edges = node_rows(random), edge_rows(random)
            expected = truth.merge(nodes, of_nodes)
            frame = spark.createDataFrame(nodes, NODE_COLUMNS)
            assert counts(sqlite.merge_nodes(frame, "N", **NODES, condition=of_nodes)) == expected
            assert counts(parquet.merge_nodes(frame, "N", **NODES, condition=of_nodes)) == expected
            expected = truth.merge(edges, of_edges)
            frame = spark.createDataFrame(edges, EDGE_COLUMNS)
            assert counts(sqlite.merge_edges(frame, "E", **EDGES, condition=of_edges)) == expected
            assert counts(parquet.merge_edges(frame, "E", **EDGES, condition=of_edges)) == expected
        graph = in_sqlite(truth.db)
        assert in_sqlite(sqlite.database) == graph
        assert in_parquet(parquet) == graph
        with GraphDatabase(":memory:") as copy:
            parquet.to_sqlite(copy)
            assert in_sqlite(copy) == graph
            again = ParquetGraph(f"{lake}/again", spark)
            again.from_sqlite(copy, match={"N": ["k"]}, edge_match={"E": ["kind"]})
            assert in_parquet(again) == graph
