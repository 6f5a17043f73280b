"""The graph in Parquet: merged by Spark as rows would be one by one (G17)."""

from __future__ import annotations

import doctest
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from tests.graph.graph_oracle import OnPurposeError, list_nodes
from tests.support import list_data_files, open_dataset_io, snapshot, snapshot_without_locks

import merganser
from merganser import GraphDatabase, ParquetGraph, SparkDatasetIO
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    ConcurrentWriteError,
    InvalidArgumentError,
    KeyColumnError,
    NodeNotFoundError,
    PropertyTypeError,
    PropertyValueError,
    SchemaMismatchError,
    TargetPathError,
    UnreadableFileError,
)
from merganser.graph import Endpoint, GraphMergeResult, SqliteGraph
from merganser.graph.spark import folders
from merganser.graph.spark.columns import to_column_name
from merganser.graph.spark.properties import to_orderable

if TYPE_CHECKING:
    from collections.abc import Sequence

# Spark's first steps take their time on a busy machine.
pytestmark = pytest.mark.timeout(400)

Record = dict[str, Any]
TIMES = ("created_at", "updated_at")


@pytest.fixture
def graph(spark: Any, lake: str) -> ParquetGraph:
    return ParquetGraph(f"{lake}/graph", spark)


def stored(graph: ParquetGraph, type_: str, kind: str = "nodes") -> list[Record]:
    """Return the properties of all records of a type, without NULLs."""
    frame = graph.nodes(type_) if kind == "nodes" else graph.edges(type_)
    keys = {"id", "type", "src", "dst", "relationship", *TIMES}
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(
        ({name: value for name, value in row.items() if name not in keys and value is not None} for row in found),
        key=repr,
    )


def counts(result: GraphMergeResult) -> tuple[int, int, int, int, int]:
    return result.rows, result.created, result.matched, result.changed, result.skipped


def order(row: Record, names: Sequence[str]) -> list[Any]:
    """Order rows by some columns, then by all, NULL first."""
    return [(row[name] is not None, row[name]) for name in [*names, *row]]


class OneByOne:
    """Records by key, merged into one row after another."""

    def __init__(self) -> None:
        self.records: dict[Any, Record] = {}

    def merge(
        self, rows: Sequence[Record], match: str, base: Record, on_create: Record, on_match: Record, order_by: list[str]
    ) -> tuple[int, int, int, int, int]:
        before = {key: dict(record) for key, record in self.records.items()}
        left = [row for row in rows if row[match] is not None]
        for row in sorted(left, key=lambda row: order(row, order_by)):
            key = row[match]
            if key in self.records:
                new = {name: row[column] for name, column in on_match.items()}
            else:
                columns = {match: match, **base, **on_create}
                new = {name: row[column] for name, column in columns.items()}
            record = {**self.records.get(key, {}), **new}
            self.records[key] = {name: value for name, value in record.items() if value is not None}
        created = len(self.records) - len(before)
        changed = sum(self.records[key] != record for key, record in before.items())
        return len(rows), created, len(left) - created, changed, len(rows) - len(left)


cells = st.one_of(st.none(), st.integers(0, 2))
rows_of_a_batch = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 3)), cells, cells, cells), max_size=6)
columns_of_properties = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["a", "b", "c"]))
batches = st.fixed_dictionaries(
    {
        "rows": rows_of_a_batch,
        "base": columns_of_properties,
        "on_create": columns_of_properties,
        "on_match": columns_of_properties,
        "order_by": st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=2),
    }
)


# G17, G1, G4
@pytest.mark.slow
@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(batches, min_size=2, max_size=2))
def test_any_batches_equal_merging_rows_one_by_one(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, Any]]
) -> None:
    graph = ParquetGraph(tmp_path_factory.mktemp("lake") / "graph", spark)
    oracle = OneByOne()
    for step in steps:
        given_rows = step.pop("rows")
        frame = spark.createDataFrame(given_rows, "k int, a int, b int, c int")
        rows = [dict(zip("kabc", row, strict=True)) for row in given_rows]
        # The second time is a replay.
        for _ in range(2):
            result = graph.merge_nodes(frame, "T", match="k", skip_null_keys=True, **step)
            assert counts(result) == oracle.merge(rows, "k", **step)
        assert (result.files_written == 0) == (result.created == result.changed == 0)
        if oracle.records:
            assert stored(graph, "T") == sorted(
                (
                    {name: record[name] for name in ("k", "x", "y") if name in record}
                    for record in oracle.records.values()
                ),
                key=repr,
            )


JOBS = [
    ("u1", "Cook", None, 2),
    ("u2", None, 5, 1),
    ("u1", "Chef", 7, 3),
    ("u1", "Boy", 6, None),
    ("u3", "Baker", 1, 1),
]


# G17, G1, G4, G8
def test_the_first_row_creates_and_later_ones_overwrite(spark: Any, graph: ParquetGraph, lake: str) -> None:
    frame = spark.createDataFrame(JOBS, "url string, title string, pay int, at int")
    roles: dict[str, Any] = {
        "match": "url",
        "base": ["title", "pay"],
        "on_create": {"seen": "1", "pay": "pay * 10"},
        "on_match": {"seen": "at + 1", "title": "title"},
        "order_by": "at",
    }
    first = graph.merge_nodes(frame, "Job", **roles)
    assert counts(first) == (5, 3, 2, 0, 0)
    assert stored(graph, "Job") == [
        {"url": "u1", "title": "Chef", "pay": 60, "seen": 4},
        {"url": "u2", "pay": 50, "seen": 1},
        {"url": "u3", "title": "Baker", "pay": 10, "seen": 1},
    ]
    second = graph.merge_nodes(frame.where("url <> 'u3'"), "Job", **roles)
    assert counts(second) == (4, 0, 4, 1, 0)
    third = spark.createDataFrame([("u1", None, 0, 3), ("u3", "Baker", 2, 0)], frame.schema)
    before = {row["url"]: row for row in graph.nodes("Job").collect()}
    assert counts(graph.merge_nodes(third, "Job", **roles)) == (2, 0, 2, 1, 0)
    after = {row["url"]: row for row in graph.nodes("Job").collect()}
    # NULL on a match removes a property; what nothing changes keeps its times.
    assert stored(graph, "Job")[0] == {"url": "u1", "pay": 60, "seen": 4}
    assert after["u2"] == before["u2"]
    assert after["u3"] == before["u3"]
    assert after["u1"].created_at == before["u1"].created_at
    assert after["u1"].updated_at > before["u1"].updated_at
    files = snapshot_without_locks(lake)
    again = graph.merge_nodes(third, "Job", **roles)
    assert (counts(again), again.files_written, again.files_preserved) == ((2, 0, 2, 0, 0), 0, 1)
    assert {name: data for name, data in snapshot_without_locks(lake).items() if not name.endswith("/lock")} == {
        name: data for name, data in files.items() if not name.endswith("/lock")
    }


# G24
def test_all_columns_are_those_that_do_not_identify(spark: Any, graph: ParquetGraph) -> None:
    frame = spark.createDataFrame(
        [("u1", "u2", "Cook", 1), ("u2", "u1", "Chef", 2)], "url string, next string, a string, b int"
    )
    ends: dict[str, Any] = {"from_node": Endpoint("Job", {"url": "url"}), "to_node": Endpoint("Job", {"url": "next"})}
    with SqliteGraph(":memory:") as sqlite:
        for each in (graph, sqlite):
            # Under the names of `GraphDatabase`, and of the source document.
            synonyms: dict[str, Any] = {"match_on": "url", "base_properties": "*"}
            each.merge_nodes(frame, "Job", **synonyms)
            with pytest.raises(TypeError, match="Did you mean on_match"):
                each.merge_nodes(frame, "Job", **synonyms, on_mach="*")  # type: ignore[call-arg]
            later = frame.withColumn("b", F.col("b") + 1).drop("next")
            assert counts(each.merge_nodes(later, "Job", match="url", on_match="*")) == (2, 0, 2, 2, 0)
            assert counts(each.merge_edges(frame, "NEXT", **ends, match="a", base="*")) == (2, 2, 0, 0, 0)
            with pytest.raises(InvalidArgumentError, match=r"condition has \['Cook'\] for 'a'; give a string"):
                each.merge_nodes(frame, "Job", match="url", on_match="*", condition={"a": ["Cook"]})
        nodes = [{"url": "u1", "next": "u2", "a": "Cook", "b": 2}, {"url": "u2", "next": "u1", "a": "Chef", "b": 3}]
        assert stored(graph, "Job") == nodes
        assert list_nodes(sqlite.database) == nodes
        edges = [{"a": "Chef", "b": 2}, {"a": "Cook", "b": 1}]
        assert stored(graph, "NEXT", "edges") == edges
        assert sorted((edge.properties for edge in sqlite.database.edges("NEXT").exec()), key=repr) == edges


# G17, G2, G5: the same rows, into SQLite one by one
def test_the_same_rows_make_the_same_graph_in_sqlite(spark: Any, graph: ParquetGraph) -> None:
    db = GraphDatabase(":memory:")
    rows = [("a", 1.0, ["x"], True), ("b", None, [], None), ("a", 2.5, None, False), ("c", 3.0, ["y", "z"], True)]
    frame = spark.createDataFrame(rows, "name string, size double, tags array<string>, open boolean")
    graph.merge_nodes(frame, "P", match="name", base=["size", "tags"], on_match=["open"])
    graph.merge_edges(
        frame,
        "KNOWS",
        from_node=Endpoint("P", {"name": "name"}),
        to_node=Endpoint("P", {"name": "'a'"}),
        match={"how": "size > 2"},
        base={"tags": "tags"},
        skip_null_keys=True,
    )
    for name, size, tags, is_open in sorted(rows, key=lambda row: [(cell is not None, cell) for cell in row]):
        db.merge_node(
            "P",
            {"name": name},
            {"size": size, "tags": tags},
            on_match={"open": is_open},
            touch=False,
            warn_on_missing_index=False,
        )
    people = {node.properties["name"]: node.id for node in db.nodes("P").exec()}
    for name, size, tags, _ in rows:
        if size is not None:
            db.merge_edge(people[name], "KNOWS", people["a"], {"tags": tags}, match={"how": size > 2})
    assert stored(graph, "P") == sorted((node.properties for node in db.nodes("P").exec()), key=repr)
    names = {row["id"]: row["name"] for row in graph.nodes("P").collect()}
    edges = [(names[row.src], names[row.dst], row.how, row.tags) for row in graph.edges("KNOWS").collect()]
    known = {number: name for name, number in people.items()}
    wanted = db.connection.execute("SELECT from_id, to_id, properties ->> 'how' FROM edges").fetchall()
    assert sorted(edge[:3] for edge in edges) == sorted((known[one], known[two], bool(how)) for one, two, how in wanted)


EDGES = [("u1", "c1", 1), ("u2", "c9", 2), ("u9", "c1", 3), ("u1", "c1", 4), (None, "c1", 5)]
ENDPOINTS: dict[str, Any] = {"from_node": Endpoint("Job", {"url": "u"}), "to_node": Endpoint("Company", {"name": "c"})}


# M10, G17
def test_all_types_can_be_read_as_one_folder_but_not_merged_into(spark: Any, graph: ParquetGraph, lake: str) -> None:
    for type_ in ("Job", "Company"):
        graph.merge_nodes(spark.createDataFrame([(type_,)], "name string"), type_, match="name")
    nodes, before = f"{lake}/graph/nodes", snapshot(lake)
    read = open_dataset_io("arrow").read(nodes).to_table()
    assert sorted(zip(read["type"].to_pylist(), read["name"].to_pylist(), strict=True)) == [
        ("Company", "Company"),
        ("Job", "Job"),
    ]
    for path in (nodes, f"{lake}/graph"):
        with pytest.raises(TargetPathError, match=f"{path} contains the dataset {nodes}/type="):
            SparkDatasetIO(spark).merge(read, path, "full_merge", "id")
    assert snapshot(lake) == before


# G17, G2
def test_edges_connect_existing_nodes(spark: Any, graph: ParquetGraph, lake: str) -> None:
    frame = spark.createDataFrame(EDGES, "u string, c string, n int")
    known = frame.where("u IS NOT NULL")
    with pytest.raises(
        NodeNotFoundError, match=r"Job nodes that do not exist: 3 keys.*'url': 'u1'.*on_missing_node to 'skip'"
    ):
        graph.merge_edges(known, "AT", **ENDPOINTS)
    graph.merge_nodes(spark.createDataFrame([("u1",), ("u2",)], "url string"), "Job", match="url")
    graph.merge_nodes(spark.createDataFrame([("c1",)], "name string"), "Company", match="name")
    before = snapshot(lake)
    with pytest.raises(NodeNotFoundError, match=r"Job nodes that do not exist: 1 key, .*\{'url': 'u9'\}"):
        graph.merge_edges(known, "AT", **ENDPOINTS)
    with pytest.raises(NodeNotFoundError, match=r"Company nodes that do not exist: 1 key, .*\{'name': 'c9'\}"):
        graph.merge_edges(known.where("u <> 'u9'"), "AT", **ENDPOINTS)
    with pytest.raises(KeyColumnError, match="from_node property 'url' of AT is NULL in 1 row,"):
        graph.merge_edges(frame, "AT", on_missing_node="skip", **ENDPOINTS)
    with pytest.raises(InvalidArgumentError, match="merged by \\['url'\\]"):
        graph.merge_edges(known, "AT", from_node=Endpoint("Job", {"title": "u"}), to_node=ENDPOINTS["to_node"])
    assert snapshot(lake) == before
    # A batch of which all is left out is merged, too, and stays so when the nodes arrive.
    for replayed in (False, True):
        none = graph.merge_edges(known.where("c = 'c9'"), "IN", **ENDPOINTS, on_missing_node="skip", batch_id="monday")
        assert (counts(none), none.replayed) == ((1, 0, 0, 0, 1), replayed)
        assert graph.committed("edges", "IN", "monday")
        graph.merge_nodes(spark.createDataFrame([("c9",)], "name string"), "Company", match="name")
    shutil.rmtree(f"{lake}/graph/nodes/type=Company")
    graph.merge_nodes(spark.createDataFrame([("c1",)], "name string"), "Company", match="name")
    options: dict[str, Any] = {
        "base": "n",
        "on_match": {"last": "n"},
        "on_missing_node": "skip",
        "skip_null_keys": True,
    }
    assert counts(graph.merge_edges(frame, "AT", **ENDPOINTS, **options)) == (5, 1, 1, 0, 3)
    again = graph.merge_edges(frame, "AT", **ENDPOINTS, **options)
    assert (counts(again), again.files_written) == ((5, 0, 2, 0, 3), 0)
    assert stored(graph, "AT", "edges") == [{"n": 1, "last": 4}]
    assert graph.edges().columns == ["id", "src", "dst", "relationship", "n", "last", *TIMES]


# G17, G4, G5
def test_rows_without_a_key_and_numbers_without_an_end_are_refused(spark: Any, graph: ParquetGraph, lake: str) -> None:
    rows = [("a", 1, 1.0), (None, 1, float("nan")), ("b", None, 2.0), (None, None, 1.0)]
    frame = spark.createDataFrame(rows, "a string, b int, x double")
    with pytest.raises(KeyColumnError, match="match property 'a' of T is NULL in 2 rows"):
        graph.merge_nodes(frame, "T", match=["a", "b"])
    nan = spark.createDataFrame([("a", [[1.0], [float("inf")]])], "a string, x array<array<double>>")
    with pytest.raises(PropertyValueError, match="base property 'x' of T is not a finite number in 1 row"):
        graph.merge_nodes(nan, "T", match="a", base="x")
    days: dict[str, Any] = {
        "d": "array(DATE'+10000-01-01', NULL, DATE'9999-12-31')",
        "t": "TIMESTAMP'+10000-01-01 00:00:00Z'",
        "early": "TIMESTAMP'0000-12-31 23:59:59.999999Z'",
        "n": "named_struct('x', TIMESTAMP_NTZ'0000-12-31 23:59:59')",
    }
    for name, wrong in days.items():
        with pytest.raises(
            PropertyValueError, match=f"'{name}' of T is or holds a day outside the years 1 to 9999 in 1 row"
        ):
            graph.merge_nodes(nan, "T", match="a", base={name: wrong})
    assert snapshot(lake) == {}
    ends = "array(TIMESTAMP'0001-01-01 00:00:00Z', TIMESTAMP'9999-12-31 23:59:59.999999Z', NULL)"
    assert graph.merge_nodes(nan, "U", match="a", base={"t": ends, "d": "DATE'9999-12-31'"}).created == 1
    done = graph.merge_nodes(frame, "T", match=["a", "b"], base="x", skip_null_keys=True)
    assert (counts(done), stored(graph, "T")) == ((4, 1, 0, 0, 3), [{"a": "a", "b": 1, "x": 1.0}])


# G17, M7
def test_a_batch_is_merged_once(spark: Any, graph: ParquetGraph, lake: str) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), (None, 3)], "k string, n int")
    options: dict[str, Any] = {"match": "k", "on_match": "n", "skip_null_keys": True}
    first = graph.merge_nodes(frame, "T", batch_id="monday", **options)
    graph.merge_nodes(frame.limit(0).union(spark.sql("SELECT 'a', 9")), "T", **options)
    before = snapshot(lake)
    again = graph.merge_nodes(frame, "T", batch_id="monday", **options)
    assert (counts(again), again.replayed, first.replayed) == (counts(first), True, False)
    assert snapshot(lake) == before
    # A batch is one of its type.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph._io, "merge", Mock(side_effect=OnPurposeError))
        with pytest.raises(OnPurposeError):
            graph.merge_nodes(frame, "U", batch_id="monday", **options)
    assert not graph.committed("nodes", "U", "monday")
    assert not graph.merge_nodes(frame, "U", batch_id="monday", **options).replayed
    assert graph.committed("nodes", "U", "monday")


# G17, M2, S3
def test_properties_come_later_and_stay(
    spark: Any, graph: ParquetGraph, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.merge_nodes(spark.sql("SELECT 'a' k, 1 size"), "T", match="k", base="size")
    done = graph.merge_nodes(
        spark.sql("SELECT * FROM VALUES ('a', 5), ('b', 6) AS t(k, n)"),
        "T",
        match="k",
        on_match={"ID": "n", "n.o": "n", "nothing": "NULL"},
    )
    assert (counts(done), done.files_written) == ((2, 1, 1, 1, 0), 2)
    assert graph.nodes("T").columns == ["id", "type", "k", "size", "property_ID", "n.o", *TIMES]
    assert stored(graph, "T") == [{"k": "a", "size": 1, "property_ID": 5, "n.o": 5}, {"k": "b"}]
    assert counts(graph.merge_nodes(spark.sql("SELECT 'a' k"), "T", match="k", on_match={"size": "NULL"}))[3] == 1
    before = snapshot(f"{lake}/graph/nodes")
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"base": {"size": "'big'", "more": "1"}}, ColumnTypeError, "nodes of type 'T'.*'size'"),
        ({"base": {"size": "1.5D", "more": "1"}}, ColumnValueError, "nodes of type 'T'.*'size' holds 1.5"),
        ({"base": {"Size": "1"}}, InvalidArgumentError, "'size', which differs from 'Size' only in case"),
    ]
    for wrong, error, match in refused:
        with pytest.raises(error, match=match):
            graph.merge_nodes(spark.sql("SELECT 'a' k"), "T", match="k", **wrong)
    with pytest.raises(InvalidArgumentError, match="merged by \\['k'\\]"):
        graph.merge_nodes(spark.sql("SELECT 'a' k, 1 size"), "T", match=["k", "size"])
    assert snapshot(f"{lake}/graph/nodes") == before
    # Who has lost the hold on a dataset neither merges into it nor changes its schema.
    lost = ConcurrentWriteError("lost")
    monkeypatch.setattr(folders, "hold_lock", lambda *_: nullcontext(Mock(side_effect=lost)))
    with pytest.raises(ConcurrentWriteError, match="lost"):
        graph.merge_nodes(spark.sql("SELECT 'c' k"), "T", match="k", base={"more": "1"})
    assert snapshot(f"{lake}/graph/nodes") == before


# G17
def test_match_properties_that_are_written_by_hand_are_a_list_in_any_order(graph: ParquetGraph, lake: str) -> None:
    folder = folders.Folder(graph.path, "nodes", "T", None)
    kept = Path(f"{lake}/graph/.merganser/nodes/type=T/match.json")
    for file in (kept, Path(folder.path, "part-0.parquet")):
        file.parent.mkdir(parents=True)
        file.write_text('["k", "a"]', encoding="utf-8")
    folder.check_match(["a", "k"])
    folder.check_match(["k", "a"])
    for damaged in ('"ak"', '{"a": 1, "k": 2}', "[1]", "[", "7"):
        kept.write_text(damaged, encoding="utf-8")
        with pytest.raises(UnreadableFileError, match=r"match.json is damaged: .*Write the list"):
            folder.check_match(["a", "k"])


# G17
def test_all_types_are_one_frame(spark: Any, graph: ParquetGraph, lake: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no nodes yet"):
        graph.nodes()
    graph.merge_nodes(spark.sql("SELECT 'a' k, 1 size"), "T", match="k", base="size")
    graph.merge_nodes(spark.sql("SELECT 'b' k, true ok"), "T/U=é", match="k", base="ok")
    assert (graph.node_types(), graph.edge_types()) == (["T", "T/U=é"], [])
    assert {name.partition("/part-")[0] for name in list_data_files(lake)} == {
        "graph/nodes/type=T",
        "graph/nodes/type=T%2FU%3Dé",
    }
    found = [row.asDict() for row in graph.nodes().orderBy("k").select("type", "k", "size", "ok").collect()]
    assert found == [
        {"type": "T", "k": "a", "size": 1, "ok": None},
        {"type": "T/U=é", "k": "b", "size": None, "ok": True},
    ]
    graph.merge_nodes(spark.sql("SELECT 'b' k, 'large' size"), "V", match="k", base="size")
    with pytest.raises(SchemaMismatchError, match="T has 'size' as bigint and V has 'size' as string"):
        graph.nodes()


# G17, C5
def test_two_writers_create_a_record_once(spark: Any, graph: ParquetGraph) -> None:
    graph.merge_nodes(spark.sql("SELECT 'z' k, 0 n"), "T", match="k", base="n")
    frame = spark.sql("SELECT 'a' k, 1 n")

    def merge(_: int) -> GraphMergeResult:
        return graph.merge_nodes(frame, "T", match="k", base="n", on_match={"n": "n + 1", "met": "n"})

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(merge, range(2)))
    assert sorted(counts(result) for result in results) == [(1, 0, 1, 1, 0), (1, 1, 0, 0, 0)]
    assert stored(graph, "T") == [{"k": "a", "n": 2, "met": 1}, {"k": "z", "n": 0}]


# G17
def test_existing_records_are_looked_up_only_if_needed(
    spark: Any, graph: ParquetGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Sequence[str]] = []
    read = graph._io.read_columns

    def look(path: str, columns: Sequence[str]) -> Any:
        looked.append(columns)
        return read(path, columns)

    monkeypatch.setattr(graph._io, "read_columns", look)
    frame = spark.sql("SELECT 'a' k, 1 n")
    for _ in range(2):
        graph.merge_nodes(frame, "T", match="k", base="n", on_match={"n": F.col("n")})
        graph.merge_nodes(frame, "T", match="k", base={"m": "n"})
    assert looked == []
    assert counts(graph.merge_nodes(frame, "T", match="k", base="n", on_match={"n": F.col("n") + 1})) == (1, 0, 1, 1, 0)
    assert (looked, stored(graph, "T")) == ([["id"]], [{"k": "a", "n": 2}])
    # Maps have no order, and are compared as strings.
    times = spark.sql("SELECT TIMESTAMP'2026-01-01 00:00:00.000001' a, TIMESTAMP'2026-01-01 00:00:00.000002' b")
    for kind in ("timestamp", "timestamp_ntz"):
        maps = times.selectExpr(*(f"map('x', {name}::{kind}) {name}" for name in times.columns))
        assert (
            maps.where(
                to_orderable(F.col("a"), maps.schema["a"].dataType)
                < to_orderable(F.col("b"), maps.schema["b"].dataType)
            ).count()
            == 1
        )


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"match": []}, InvalidArgumentError, "match is empty"),
    ({"match": None}, InvalidArgumentError, "match is empty"),
    ({"match": "nosuch"}, InvalidArgumentError, "match names 'nosuch'"),
    ({"match": {"k": 1}}, InvalidArgumentError, "match sets the property 'k' to 1"),
    ({"match": {"k": "no(("}}, InvalidArgumentError, "match property 'k' has an expression"),
    ({"match": "k", "base": {"x": "nosuch"}}, InvalidArgumentError, "base property 'x' has an expression"),
    ({"match": "k", "base": "k"}, InvalidArgumentError, "base names the match property 'k'"),
    ({"match": "k", "on_match": {"k": "k"}}, InvalidArgumentError, "on_match names the match property 'k'"),
    ({"match": "k", "on_create": {"K": "1"}}, InvalidArgumentError, "'k' and 'K' differ only in case"),
    ({"match": "k", "base": {"x": "1"}, "on_match": {"X": "1"}}, InvalidArgumentError, "'x' and 'X' differ"),
    (
        {"match": "k", "base": {"x": "1"}, "on_match": {"x": "'1'"}},
        PropertyTypeError,
        "'x' have .*: bigint and string",
    ),
    ({"match": "k", "base": {"x": "1.5"}}, PropertyTypeError, "'x' has type decimal"),
    ({"match": "k", "base": {"x": "map(1, 2)"}}, PropertyTypeError, "'x' has type map<int,int>"),
    ({"match": {"x": "struct(k)"}}, PropertyTypeError, "'x' has type struct.*cannot be matched"),
    ({"match": "k", "batch_id": ""}, InvalidArgumentError, "batch_id must be a string"),
    ({"match": "k", "order_by": "nosuch"}, InvalidArgumentError, "order_by names 'nosuch'"),
    ({"match": "k", "order_by": "m"}, InvalidArgumentError, "order_by names 'm'.*cannot be ordered"),
]


# G17, G4, G5, G7
def test_nonsense_is_refused_by_name(spark: Any, graph: ParquetGraph, lake: str) -> None:
    frame = spark.sql("SELECT 'a' k, map('a', 1) m")
    for arguments, error, match in WRONG:
        with pytest.raises(error, match=match):
            graph.merge_nodes(frame, "T", **arguments)
    for type_ in ("", None):
        with pytest.raises(InvalidArgumentError, match="The type is"):
            graph.merge_nodes(frame, type_, match="k")  # type: ignore[arg-type]
    ends: dict[str, Any] = {"from_node": Endpoint("T", {"k": "k"}), "to_node": Endpoint("T", {"k": "k"})}
    with pytest.raises(InvalidArgumentError, match="on_missing_node is 'ignore'"):
        graph.merge_edges(frame, "E", **ends, on_missing_node="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="batch_id must be a string"):
        graph.merge_edges(frame, "E", **ends, batch_id="")
    with pytest.raises(InvalidArgumentError, match="to_node is 'T'"):
        graph.merge_edges(frame, "E", **{**ends, "to_node": "T"})
    assert snapshot(lake) == {}


# G17
def test_a_property_named_like_a_reserved_column_gets_a_prefix() -> None:
    taken = ["id", "ID", "type", "created_at", "property_id", "Property_Id", "property_property_type"]
    free = ["ids", "src", "property_url", "property", "_id"]
    assert [to_column_name(name, "nodes") for name in taken] == [f"property_{name}" for name in taken]
    assert [to_column_name(name, "nodes") for name in free] == free
    assert to_column_name("src", "edges") == "property_src"


# G17
def test_the_example_of_the_docstring_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(ParquetGraph.__doc__ or "", {"spark": spark}, "ParquetGraph", None, 0)
    found.globs["ParquetGraph"] = merganser.ParquetGraph
    for example in found.examples:
        example.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(found) == (0, len(found.examples))
    assert found.examples


def test_temporary_files_of_a_killed_merge_are_removed(tmp_path: Path) -> None:
    # C4
    folder = folders.Folder(tmp_path / "graph", "nodes", "Job", None)
    beside = Path(folder._control_path)
    (beside / "batches").mkdir(parents=True)
    left = [beside / f"match.json.{'0f' * 16}.new", beside / "batches" / f"b.json.{'0f' * 16}.new"]
    for file in left:
        file.write_text("[")
    with folder.hold_lock(1.0):
        assert not [file for file in left if file.exists()]
