"""Records that no row of a DataFrame matches, in Parquet and in SQLite, against the same model of dicts."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import Oracle, assert_unchanged, read_graph
from tests.graph.merging.test_missing import Row, comparable, do_on_model
from tests.graph.spark.test_agreement import in_parquet
from tests.support import snapshot

from merganser.errors import GraphError, InvalidArgumentError
from merganser.graph import Endpoint, GraphDatabase, ParquetGraph, SqliteGraph
from merganser.graph.spark import collect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def sqlite() -> Iterator[SqliteGraph]:
    with SqliteGraph(":memory:") as graph:
        yield graph


def counts(result: Any) -> tuple[int, ...]:
    return result.created, result.matched, result.changed, result.missing, result.kept, result.detached


def do_on_graph(spark: Any, graph: ParquetGraph | SqliteGraph, step: Row) -> Any:
    options: Row = {"missing": step["missing"], "on_match": "v"}
    base = {"v": "v"}
    if step["missing"] != "keep" and step["feed"] is not None:
        options["scope"] = {"feed": step["feed"]}
    elif step["feed"] is not None:
        base["feed"] = f"'{step['feed']}'"
    if "detach" in step:
        frame = spark.createDataFrame(step["rows"], "k string, v bigint")
        detach = step["detach"] if step["missing"] == "delete" else False
        order: Row = {"match": "k", "base": base, "order_by": "v", "detach": detach}
        return graph.merge_nodes(frame, "N", **order, **options)
    frame = spark.createDataFrame(step["rows"], "a string, b string, v bigint")
    ends: Row = {"from_node": Endpoint("N", {"k": "a"}), "to_node": Endpoint("N", {"k": "b"})}
    return graph.merge_edges(
        frame, "E", **ends, base=base, order_by="v", on_missing_node=step["on_missing_node"], **options
    )


def make_history(random: Random) -> list[Row]:
    def pick(*values: Any) -> Any:
        return random.choice(values)

    def nodes(count: int, *policies: Any) -> Row:
        rows = [{"k": pick("a", "b", "c", "d"), "v": pick(0, 1, 2)} for _ in range(count)]
        return {"rows": rows, "missing": pick(*policies), "feed": pick(None, "x", "y"), "detach": pick(True, "keep")}

    def edges(*policies: Any) -> Row:
        rows = [{"a": pick("a", "b", "e"), "b": pick("c", "d"), "v": pick(0, 1)} for _ in range(3)]
        policy = pick("skip", "create")
        return {"rows": rows, "missing": pick(*policies), "feed": pick(None, "x"), "on_missing_node": policy}

    flag = {"gone": True, "v": None}
    return [
        nodes(4, "keep"),
        edges("keep"),
        nodes(2, "delete"),
        edges("delete", flag),
        nodes(2, flag),
        nodes(1, "delete"),
    ]


# G19, G20, G21, G22
@pytest.mark.parametrize("seed", [3])
def test_any_history_of_syncs_agrees_with_a_model_of_dicts(
    spark: Any, lake: str, sqlite: SqliteGraph, seed: int
) -> None:
    model, parquet = Oracle(), ParquetGraph(f"{lake}/graph", spark)
    for step in make_history(Random(seed)):
        step["rows"].sort(key=lambda row: [row["v"], *map(str, row.values())])
        do_on_model(model, step)
        found = [do_on_graph(spark, graph, step) for graph in (parquet, sqlite)]
        assert counts(found[0]) == counts(found[1])
        assert comparable(read_graph(sqlite.database)) == comparable(model)
    with GraphDatabase(":memory:") as copy:
        parquet.to_sqlite(copy)
        assert comparable(read_graph(copy)) == comparable(model)


# G19, G20, G21, G22
def test_what_parquet_and_sqlite_refuse_and_list(
    spark: Any, lake: str, sqlite: SqliteGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "ROWS", 2)
    parquet = ParquetGraph(f"{lake}/graph", spark)
    some = spark.createDataFrame([(name, "x") for name in "abcde"], "k string, feed string")
    ends: Row = {"from_node": Endpoint("N", {"k": "k"}), "to_node": Endpoint("N", {"k": "'z'"})}
    for graph in (parquet, sqlite):
        graph.merge_nodes(some, "N", match="k", base="feed")
        made = graph.merge_edges(some.where("k = 'b'"), "E", **ends, on_missing_node="create")
        assert (made.created, made.nodes_created) == (1, 1)
        before = snapshot(lake)
        with assert_unchanged(sqlite.database):
            with pytest.raises(GraphError, match=r"2 nodes to be deleted have edges: .*Pass detach=True"):
                graph.merge_nodes(some.where("k = 'a'"), "N", match="k", missing="delete")
            with pytest.raises(InvalidArgumentError, match="1 record of the source is outside the scope: 'feed'"):
                graph.merge_nodes(
                    some.where("k = 'a'"), "N", match="k", base="feed", missing="delete", scope={"feed": "y"}
                )
            with pytest.raises(InvalidArgumentError, match="missing sets the match property 'k'"):
                graph.merge_nodes(some, "N", match="k", missing={"k": "z"})
        assert {path: data for path, data in snapshot(lake).items() if path in before} == before
        # The node without a feed is outside the scope, and the batch is not repeated.
        given: Row = {"match": "k", "missing": "delete", "scope": {"feed": "x"}, "detach": True, "batch_id": "1"}
        for replayed in (False, True):
            done = graph.merge_nodes(some.where("k IN ('a', 'c')"), "N", **given)
            # SQLite's checkpoints hold no missing records.
            assert (done.replayed, done.matched) == (replayed, 2)
            assert done.missing == (0 if replayed and graph is sqlite else 3)
    expected = [[("feed", "x"), ("k", "a")], [("feed", "x"), ("k", "c")], [("k", "z")]]
    assert sorted((sorted(node.properties.items()) for node in sqlite.database.nodes()), key=repr) == expected
    parquet.merge_edges(some.where("k = 'a'"), "E", **ends)
    assert in_parquet(parquet)[0] == expected
