"""Graphs in and out: JSON, networkx, GraphML and Parquet."""  # G16

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fsspec
import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import FIXTURES

from merganser.errors import (
    GraphFileError,
    GraphSchemaError,
    InvalidArgumentError,
    MissingExtraError,
    PropertyTypeError,
    PropertyValueError,
    UniqueConstraintError,
)
from merganser.graph import EdgeType, GraphDatabase, GraphSchema, NodeType
from merganser.graph.records import to_milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def db() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


@pytest.fixture
def other() -> Iterator[GraphDatabase]:
    with GraphDatabase(":memory:") as opened:
        yield opened


def dump(db: GraphDatabase) -> list[str]:
    return list(db.connection.iterdump())


def fill(db: GraphDatabase) -> GraphDatabase:
    """Make a small graph with gaps in its ids, a loop and parallel edges."""
    ada, gone, bob = (db.create_node("Person", {"name": name, "n": 1}).id for name in ("Ada", "Gone", "Bob"))
    post = db.create_node("Post", {"tags": ["a", "b"], "odd": {"x": [None, 1.0]}, "big": 2**60, "día": "ñ\n"}).id
    db.delete_node(gone)
    for start, end, year in ((ada, bob, 2020), (ada, bob, 2021), (bob, ada, 2022), (ada, ada, 2023)):
        db.create_edge(start, "KNOWS", end, {"year": year})
    db.delete_edge(2)
    db.create_edge(bob, "WROTE", post, {"at": date(2026, 1, 2)})
    return db


def people(path: Path, **over: Any) -> str:
    """Write a file by hand."""
    document = {
        "format": "merganser-graph",
        "version": 1,
        "nodes": [
            {"id": 7, "type": "Person", "properties": {"name": "Ada"}},
            {"id": "bob", "type": "Person", "properties": {"name": "Bob"}},
        ],
        "edges": [{"type": "KNOWS", "from": 7, "to": "bob", "properties": {}}],
        **over,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def parquet(folder: Path, vertices: dict[str, Any], edges: dict[str, Any] | None = None) -> Path:
    """Write files as others write them."""
    edges = {"src": pa.array([], "int64"), "dst": pa.array([], "int64"), "relationship": []} if edges is None else edges
    for name, columns in (("vertices", vertices), ("edges", edges)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, folder / name / "part-00000.parquet")
        (folder / name / "_SUCCESS").touch()
    return folder


EXPORTS: dict[str, Callable[[GraphDatabase, str], None]] = {
    "json": GraphDatabase.export_json,
    "parquet": GraphDatabase.export_parquet,
}
IMPORTS: dict[str, Callable[[GraphDatabase, str], Any]] = {
    "json": GraphDatabase.import_json,
    "parquet": GraphDatabase.import_parquet,
}
by_format = pytest.mark.parametrize("form", list(EXPORTS))


@by_format
@pytest.mark.parametrize("where", ["{}/deep/er/graph", "memory://exchange/graph", "memory://graph", "file://{}/graph"])
def test_an_import_into_an_empty_database_gives_the_same_graph(
    db: GraphDatabase, other: GraphDatabase, form: str, where: str, tmp_path: Path
) -> None:
    """G16: ids and times too."""
    path = where.format(tmp_path) + f"-{form}"
    EXPORTS[form](fill(db), path)
    result = IMPORTS[form](other, path)
    assert (result.nodes, result.edges, result.ids) == (3, 4, {1: 1, 3: 3, 4: 4})
    assert dump(other) == dump(db)


@by_format
def test_edges_point_at_the_right_nodes_where_ids_were_used(
    db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path
) -> None:
    fill(db)
    EXPORTS[form](db, str(tmp_path / "graph"))
    mine = other.create_node("Person", {"name": "Mine"})
    before = dump(other)
    result = IMPORTS[form](other, str(tmp_path / "graph"))
    assert result.ids == {1: 2, 3: 3, 4: 4}
    assert other.get_node(mine.id) == mine
    assert set(before) - set(dump(other)) == {"INSERT INTO \"sqlite_sequence\" VALUES('nodes',1);"}
    for old, new in result.ids.items():
        there, here = db.get_node(old), other.get_node(new)
        assert there
        assert here
        assert (there.type, there.properties, there.created_at) == (here.type, here.properties, here.created_at)

    def triples(of: GraphDatabase) -> list[tuple[str, ...]]:
        query = (
            "SELECT a.properties, e.type, e.properties, b.properties FROM edges e "
            "JOIN nodes a ON a.id = from_id JOIN nodes b ON b.id = to_id ORDER BY e.id"
        )
        return of.connection.execute(query).fetchall()

    assert triples(other) == triples(db)
    assert len(triples(db)) == 4


@by_format
def test_ids_of_deleted_records_are_not_used_again(
    db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path
) -> None:
    EXPORTS[form](fill(db), str(tmp_path / "graph"))
    other.delete_node(other.create_node("Person").id)
    assert IMPORTS[form](other, str(tmp_path / "graph")).ids == {1: 2, 3: 3, 4: 4}


@by_format
def test_an_empty_graph_comes_back_empty(db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path) -> None:
    EXPORTS[form](db, str(tmp_path / "graph"))
    result = IMPORTS[form](other, str(tmp_path / "graph"))
    assert (result.nodes, result.edges, result.ids) == (0, 0, {})


@by_format
def test_an_import_is_part_of_the_transaction_around_it(
    db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path
) -> None:
    EXPORTS[form](fill(db), str(tmp_path / "graph"))
    before = dump(other)

    def fail() -> None:
        with other.transaction():
            IMPORTS[form](other, str(tmp_path / "graph"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert dump(other) == before


@by_format
def test_unique_indexes_hold_for_imports(db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path) -> None:
    EXPORTS[form](fill(db), str(tmp_path / "graph"))
    other.create_property_index("Person", "name", unique=True)
    other.create_node("Person", {"name": "Bob"})
    before = dump(other)
    with pytest.raises(UniqueConstraintError, match=r"graph.*Another Person has \{'name': 'Bob'\}"):
        IMPORTS[form](other, str(tmp_path / "graph"))
    assert dump(other) == before


@by_format
@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (GraphSchema({"Person": NodeType(["age"]), "Post": NodeType()}), "needs the property 'age'"),
        (
            GraphSchema(
                {"Person": NodeType(), "Post": NodeType()},
                {"KNOWS": EdgeType(), "WROTE": EdgeType(from_types=["Post"])},
            ),
            "leads from Post, not from Person",
        ),
    ],
)
def test_a_schema_holds_for_imports(
    db: GraphDatabase, form: str, schema: GraphSchema, wrong: str, tmp_path: Path
) -> None:
    """G18 for imports."""
    EXPORTS[form](fill(db), str(tmp_path / "graph"))
    with GraphDatabase(":memory:", schema=schema) as other:
        before = dump(other)
        with pytest.raises(GraphSchemaError, match=f"graph.*{wrong}"):
            IMPORTS[form](other, str(tmp_path / "graph"))
        assert dump(other) == before


names = st.one_of(
    st.sampled_from(
        ["id", "ID", "type", "src", "created_at", "property_id", "", "a.b", "id.x", 'q"u', "\\", "a\0b", "名"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
scalars = st.one_of(
    st.booleans(),
    st.sampled_from([0, 1, 1.0, True, "1", "", -0.0, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1e300, "\0", "true"]),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
nested = st.recursive(
    st.none() | scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2)
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.lists(st.integers(0, 3)), nested.filter(bool))
properties = st.dictionaries(names, values, max_size=4)
types = st.sampled_from(["Job", "名", "it's", "a\0b"])
nodes_of = st.lists(st.tuples(types, properties), max_size=4)
edges_of = st.lists(st.tuples(st.integers(0), types, st.integers(0), properties), max_size=4)


def make(db: GraphDatabase, nodes: list[Any], edges: list[Any]) -> None:
    ids = [db.create_node(type_, own).id for type_, own in nodes]
    for start, type_, end, own in edges if ids else []:
        db.create_edge(ids[start % len(ids)], type_, ids[end % len(ids)], own)
    moment = to_milliseconds(datetime(1969, 12, 31, 23, 59, 59, 999000, UTC))
    db.connection.execute("UPDATE nodes SET created_at = ? - id", (moment,))
    db.connection.execute("UPDATE edges SET updated_at = ? + id", (moment,))


def exact(value: Any) -> Any:
    """Make values comparable together with their types."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    return [exact(inner) for inner in value] if isinstance(value, list) else (type(value).__name__, repr(value))


def content(db: GraphDatabase) -> list[Any]:
    """Return all records; where a property is int here and float there, it is float."""
    found: list[Any] = []
    for query in ("SELECT properties, id, type, created_at, updated_at FROM nodes", "SELECT properties, * FROM edges"):
        rows = [(json.loads(text), *rest) for text, *rest in db.connection.execute(f"{query} ORDER BY id")]
        kinds: dict[str, set[type]] = {}
        for own, *_ in rows:
            for name, value in own.items():
                kinds.setdefault(name, set()).add(type(value))
        for own, *rest in rows:
            loose = {name: float(value) if kinds[name] == {int, float} else value for name, value in own.items()}
            found.append((exact(loose), rest[:4] + rest[5:] if "edges" in query else rest))
    return found


@given(nodes_of, edges_of)
@settings(max_examples=60)
def test_json_carries_every_graph(nodes: list[Any], edges: list[Any]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        GraphDatabase(":memory:") as db,
        GraphDatabase(":memory:") as other,
    ):
        make(db, nodes, edges)
        db.export_json(f"{folder}/graph.json")
        other.import_json(f"{folder}/graph.json")
        assert dump(other) == dump(db)


@given(nodes_of, edges_of)
@settings(max_examples=80)
def test_parquet_carries_every_graph(nodes: list[Any], edges: list[Any]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        GraphDatabase(":memory:") as db,
        GraphDatabase(":memory:") as other,
    ):
        make(db, nodes, edges)
        db.export_parquet(folder)
        other.import_parquet(folder)
        assert content(other) == content(db)


@by_format
def test_deep_values_come_back(db: GraphDatabase, other: GraphDatabase, form: str, tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(90):
        deep = [deep]
    db.create_node("Job", {"deep": deep})
    EXPORTS[form](db, str(tmp_path / "graph"))
    IMPORTS[form](other, str(tmp_path / "graph"))
    assert dump(other) == dump(db)


def test_json_is_a_document_with_a_record_a_line(db: GraphDatabase, tmp_path: Path) -> None:
    fill(db).export_json(tmp_path / "graph.json")
    text = (tmp_path / "graph.json").read_text("utf-8")
    assert len(text.splitlines()) == 1 + 3 + 1 + 4 + 1
    assert '"día":"ñ\\n"' in text
    document = json.loads(text)
    assert (document["format"], document["version"]) == ("merganser-graph", 1)
    ada = db.get_node(1)
    assert ada
    assert document["nodes"][0] == {
        "id": 1,
        "type": "Person",
        "properties": {"name": "Ada", "n": 1},
        "created_at": ada.created_at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ada.created_at.microsecond // 1000:03}Z",
        "updated_at": ada.updated_at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ada.updated_at.microsecond // 1000:03}Z",
    }
    assert list(document["edges"][0]) == ["id", "type", "from", "to", "properties", "created_at", "updated_at"]


def test_a_file_made_by_hand_may_lack_ids_and_times(db: GraphDatabase, tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    result = db.import_json(people(tmp_path / "people.json"))
    assert result.ids == {7: 1, "bob": 2}
    edge = db.get_edge(1)
    assert edge
    assert (edge.from_id, edge.to_id) == (1, 2)
    assert before < edge.created_at <= datetime.now(UTC)


def test_records_without_an_id_get_one_beside_those_that_have(db: GraphDatabase, tmp_path: Path) -> None:
    nodes = [{"type": "P", "properties": {"n": 1}}, {"id": 5, "type": "P", "properties": {"n": 2, "gone": None}}]
    result = db.import_json(people(tmp_path / "people.json", nodes=nodes, edges=[]))
    assert (result.nodes, result.ids) == (2, {5: 5})
    assert [json.loads(text) for (text,) in db.connection.execute("SELECT properties FROM nodes ORDER BY id")] == [
        {"n": 2},
        {"n": 1},
    ]
    assert db.create_node("P").id == 7


def person(**over: Any) -> dict[str, Any]:
    return {"id": 1, "type": "Person", "properties": {}, **over}


@pytest.mark.parametrize(
    ("over", "error", "said"),
    [
        ({"format": "other"}, GraphFileError, "is not a graph"),
        ({"version": 2}, GraphFileError, "version 2"),
        ({"nodes": None}, GraphFileError, "no list of nodes"),
        ({"nodes": [3]}, GraphFileError, r"nodes\[0\] of .* is int"),
        ({"nodes": [person(), {"id": 2, "properties": {}}]}, GraphFileError, r"nodes\[1\] .* no 'type'"),
        ({"nodes": [{"id": 2, "type": "P"}]}, GraphFileError, "no 'properties'"),
        ({"nodes": [person(name="Ada")]}, GraphFileError, "the key 'name'"),
        ({"nodes": [person(id=True)]}, GraphFileError, "True as its 'id'"),
        ({"nodes": [person(), person()]}, GraphFileError, "two nodes with the id 1"),
        ({"nodes": [person(type="")]}, InvalidArgumentError, r"nodes\[0\] .*The type is ''"),
        ({"nodes": [person(properties=[1])]}, InvalidArgumentError, "is list; give a dict"),
        ({"nodes": [person(properties={"n": 2**64})]}, PropertyValueError, r"nodes\[0\] .* property 'n'"),
        ({"nodes": [person(properties={"n": float("nan")})]}, PropertyValueError, "'n' is NaN"),
        ({"nodes": [person(created_at="yesterday")]}, GraphFileError, "'yesterday' as its 'created_at'"),
        ({"nodes": [person(updated_at="2026-01-01T00:00:00")]}, GraphFileError, "'updated_at'; give a time such as"),
        ({"nodes": [person(updated_at="0001-01-01T00:00:00+01:00")]}, GraphFileError, "'0001.*' as its 'updated_at'"),
        ({"nodes": [person(updated_at=3)]}, GraphFileError, "3 as its 'updated_at'"),
        ({"edges": [{"type": "KNOWS", "from": 7, "properties": {}}]}, GraphFileError, "no 'to'"),
        ({"edges": [{"type": "KNOWS", "from": 7, "to": 8, "properties": {}}]}, GraphFileError, "the endpoint 8"),
        ({"edges": [{"type": "KNOWS", "from": 7, "to": None, "properties": {}}]}, GraphFileError, "None as its 'to'"),
    ],
)
def test_a_wrong_json_file_is_refused_and_changes_nothing(
    db: GraphDatabase, over: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    fill(db)
    before = dump(db)
    with pytest.raises(error, match=said) as caught:
        db.import_json(people(tmp_path / "people.json", **over))
    assert "people.json" in str(caught.value)
    assert dump(db) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(db: GraphDatabase, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(GraphFileError, match=r"x\.json"):
        db.import_json(tmp_path / "x.json")


def test_a_missing_file_is_named(db: GraphDatabase, tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match=r"none\.json"):
        db.import_json(tmp_path / "none.json")
    with pytest.raises(GraphFileError, match=r"none\.json"):
        db.import_json("memory://none.json")
    with pytest.raises(GraphFileError, match="vertices' holds no Parquet file"):
        db.import_parquet(tmp_path / "none")


def test_an_export_replaces_the_file_and_leaves_nothing_beside_it(db: GraphDatabase, tmp_path: Path) -> None:
    for _ in range(2):
        db.create_node("Person")
        db.export_json(tmp_path / "graph.json")
        db.export_graphml(tmp_path / "graph.graphml")
        db.export_parquet(tmp_path / "graph")
    assert len(json.loads((tmp_path / "graph.json").read_bytes())["nodes"]) == 2
    assert pq.read_table(tmp_path / "graph" / "vertices").num_rows == 2
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["graph.graphml", "graph.json", "graph/edges/part-0.parquet", "graph/vertices/part-0.parquet"]


def test_an_export_to_a_folder_or_below_a_file_is_refused(db: GraphDatabase, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        db.export_json(tmp_path)
    (tmp_path / "file").touch()
    for export in (db.export_json, db.export_graphml, db.export_parquet):
        with pytest.raises(GraphFileError, match="Cannot write"):
            export(tmp_path / "file" / "graph")
    (tmp_path / "edges").touch()
    with pytest.raises(GraphFileError, match=r"Cannot write .*edges"):
        db.export_parquet(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges", "file"]


def test_networkx_has_ids_types_and_properties(db: GraphDatabase) -> None:
    graph = fill(db).to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert graph.nodes[1] == {"name": "Ada", "n": 1, "type": "Person"}
    assert sorted(graph.edges(keys=True)) == [(1, 1, 4), (1, 3, 1), (3, 1, 3), (3, 4, 5)]
    assert graph.edges[1, 3, 1] == {"year": 2020, "type": "KNOWS"}


def test_a_networkx_graph_comes_back(db: GraphDatabase, other: GraphDatabase) -> None:
    other.create_node("Mine")
    graph = fill(db).to_networkx()
    result = other.from_networkx(graph)
    assert (result.nodes, result.edges, result.ids) == (3, 4, {1: 2, 3: 3, 4: 4})
    again = other.to_networkx()
    again.remove_node(1)

    def plain(graph: nx.MultiDiGraph, ids: dict[int, int]) -> Any:
        edges = [(ids[start], ids[end], str(data)) for start, end, data in graph.edges(data=True)]
        return [(ids[node], data) for node, data in graph.nodes(data=True)], sorted(edges)

    assert plain(again, {node: node for node in again}) == plain(graph, result.ids)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_any_networkx_graph_and_any_node_will_do(db: GraphDatabase, kind: type[nx.Graph]) -> None:
    graph = kind()
    graph.add_node("a", type="City", size=3)
    graph.add_edge("a", (1, 2), day=date(2026, 1, 2))
    graph.add_edge("a", "a")
    result = db.from_networkx(graph, node_type="Place", edge_type="NEAR")
    assert (result.nodes, result.edges, result.ids) == (2, 2, {"a": 1, (1, 2): 2})
    assert [db.get_node(1).type, db.get_node(2).type] == ["City", "Place"]  # type: ignore[union-attr]
    edge = db.get_edge(1)
    assert edge
    assert (edge.from_id, edge.type, edge.to_id, edge.properties) == (1, "NEAR", 2, {"day": "2026-01-02"})


def test_a_networkx_graph_that_cannot_be_stored_changes_nothing(db: GraphDatabase) -> None:
    fill(db)
    before = dump(db)
    graph = nx.DiGraph([("a", "b")])
    with pytest.raises(InvalidArgumentError, match=r"node 'a' has no attribute 'type'.*node_type"):
        db.from_networkx(graph)
    with pytest.raises(InvalidArgumentError, match=r"edge 'a' -> 'b' has no attribute 'type'.*edge_type"):
        db.from_networkx(graph, node_type="Place")
    graph.nodes["b"]["set"] = {1}
    with pytest.raises(PropertyTypeError, match="node 'b' property 'set'"):
        db.from_networkx(graph, node_type="Place", edge_type="NEAR")
    with pytest.raises(InvalidArgumentError, match="graph is a dict"):
        db.from_networkx({})
    assert dump(db) == before


def test_networkx_is_imported_only_when_it_is_asked_for() -> None:
    program = "import sys, merganser.graph; sys.exit('networkx' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_networkx_the_extra_is_named(db: GraphDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    for call in (db.to_networkx, lambda: db.from_networkx(None)):
        with pytest.raises(MissingExtraError, match=r"'networkx'.*pip install 'merganser\[networkx\]'"):
            call()


def test_graphml_is_read_by_networkx(db: GraphDatabase, tmp_path: Path) -> None:
    first = db.create_node("名 & <x>", {'a"\n\r\t<&': "c\r\n\t <&> ", "int": 1, "real": 1, "bool": True, "mixed": 1})
    second = db.create_node("B", {"real": 2.5, "bool": False, "mixed": "x", "list": [1, "é"], "int": 2**60})
    third = db.create_node("B", {"real": 1e300})
    db.create_edge(first.id, "TO", second.id, {"int": "text here", "dict": {"a": None}})
    db.create_edge(first.id, "TO", second.id)
    db.create_edge(third.id, "TO", first.id)
    db.export_graphml(tmp_path / "graph.graphml")
    graph = nx.read_graphml(tmp_path / "graph.graphml", force_multigraph=True)
    assert isinstance(graph, nx.MultiDiGraph)
    expected = {
        "n1": {'a"\n\r\t<&': "c\r\n\t <&> ", "int": 1, "real": 1.0, "bool": True, "mixed": "1", "type": "名 & <x>"},
        "n2": {"real": 2.5, "bool": False, "mixed": "x", "list": '[1,"é"]', "int": 2**60, "type": "B"},
        "n3": {"real": 1e300, "type": "B"},
    }
    assert dict(graph.nodes(data=True)) == expected
    assert sorted(map(repr, graph.nodes["n1"].values())) == sorted(map(repr, expected["n1"].values()))
    assert list(graph.edges(keys=True)) == [("n1", "n2", "e1"), ("n1", "n2", "e2"), ("n3", "n1", "e3")]
    assert graph.edges["n1", "n2", "e1"] == {"int": "text here", "dict": '{"a":null}', "type": "TO"}


@pytest.mark.parametrize(
    ("type_", "own", "said"),
    [
        ("Job", {"text": "a\0b"}, "The node 2 has 'a.x00b' as its property 'text', with the character U[+]0000"),
        ("Job", {"a\x1fb": 1}, "The node 2 has the property name 'a.x1fb'"),
        ("Job", {"text": "\ufffe"}, "U[+]FFFE"),
        ("J\0b", {}, "The node 2 has the type"),
    ],
)
def test_graphml_refuses_what_xml_cannot_carry(
    db: GraphDatabase, type_: str, own: dict[str, Any], said: str, tmp_path: Path
) -> None:
    db.create_node("Job", {"text": "fine"})
    db.create_node(type_, own)
    (tmp_path / "graph.graphml").write_text("old")
    with pytest.raises(PropertyValueError, match=said):
        db.export_graphml(tmp_path / "graph.graphml")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("graph.graphml", "old")]


def test_parquet_has_typed_columns(db: GraphDatabase, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"int": 1, "real": 1, "exact": 2**53 + 1, "bool": True, "text": "a", "ints": [1], "mixed": 1, "empty": []},
        {"int": 2**62, "real": 0.5, "exact": 0.5, "bool": False, "ints": [], "mixed": True, "texts": ["a"]},
        {"dict": {"a": 1}, "nested": [[1]], "nulls": [1, None], "numbers": [1, 1.5], "either": [1]},
        {"either": ["a"], "bools": [True]},
    ]
    for row in rows:
        db.create_node("Job", row)
    db.export_parquet(tmp_path)
    schema = pq.read_schema(tmp_path / "vertices" / "part-0.parquet")
    plain = {field.name: str(field.type) for field in schema if not field.metadata}
    assert plain == {
        "id": "int64",
        "type": "string",
        "int": "int64",
        "real": "double",
        "bool": "bool",
        "text": "string",
        "ints": "list<element: int64>",
        "texts": "list<element: string>",
        "bools": "list<element: bool>",
        "empty": "list<element: string>",
        "created_at": "timestamp[ms, tz=UTC]",
        "updated_at": "timestamp[ms, tz=UTC]",
    }
    marked = {field.name: str(field.type) for field in schema if field.metadata == {b"merganser:json": b"true"}}
    assert marked == dict.fromkeys(["exact", "mixed", "dict", "nested", "nulls", "numbers", "either"], "string")
    assert pq.read_schema(tmp_path / "edges" / "part-0.parquet").names == [
        "id", "src", "dst", "relationship", "created_at", "updated_at",
    ]  # fmt: skip


def test_parquet_columns_that_clash_are_renamed(db: GraphDatabase, other: GraphDatabase, tmp_path: Path) -> None:
    own = {"id": "x", "property_id": "y", "Type": "z", "name": 1, "NAME": 2, "src": 3}
    db.create_edge(db.create_node("Job", own).id, "NEXT", 1, own)
    db.export_parquet(tmp_path)
    schema = pq.read_schema(tmp_path / "vertices" / "part-0.parquet")
    assert len({name.lower() for name in schema.names}) == len(schema.names)
    assert schema.names[2:-2] == [
        "property_id",
        "property_property_id",
        "property_Type",
        "name",
        "property_NAME",
        "src",
    ]
    assert schema.field("property_Type").metadata == {b"merganser:property": b"Type"}
    other.import_parquet(tmp_path)
    assert dump(other) == dump(db)


def test_parquet_is_written_and_read_in_batches(
    db: GraphDatabase, other: GraphDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("merganser.graph.exchange.parquet.BATCH", 2)
    monkeypatch.setattr("merganser.graph.exchange.parquet_read.BATCH", 3)
    fill(db).export_parquet(tmp_path)
    assert pq.read_metadata(tmp_path / "edges" / "part-0.parquet").num_row_groups == 2
    other.import_parquet(tmp_path)
    assert dump(other) == dump(db)


def test_parquet_of_other_origin_is_imported(db: GraphDatabase, tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    vertices = {
        "id": ["a", "b"],
        "when": pa.array([moment, None], pa.timestamp("ns", "UTC")),
        "day": [date(2026, 1, 2), None],
        "place": [{"lat": 1.5, "lon": None}, None],
        "more": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64())),
        "created_at": pa.array([moment, None], pa.timestamp("us")),
        "updated_at": ["yesterday", None],
    }
    parquet(tmp_path, vertices, {"src": ["a", "c"], "dst": ["b", "a"], "relationship": ["follows"] * 2, "w": [1, None]})
    more = pa.table({"id": ["c"], "type": ["Bot"], "name": ["Ç"]})
    pq.write_table(more, tmp_path / "vertices" / "part-00001.snappy.parquet")
    result = db.import_parquet(tmp_path, node_type="User")
    assert (result.nodes, result.edges, result.ids) == (3, 2, {"a": 1, "b": 2, "c": 3})
    first, second, third = (db.get_node(found) for found in (1, 2, 3))
    assert first
    assert second
    assert third
    assert first.properties == {
        "when": "2026-01-02T03:04:05.678000+00:00",
        "day": "2026-01-02",
        "place": {"lat": 1.5, "lon": None},
        "more": {"x": 1},
        "updated_at": "yesterday",
    }
    assert first.created_at == moment
    assert (second.type, second.properties) == ("User", {})
    assert (third.type, third.properties) == ("Bot", {"name": "Ç"})
    edges = db.connection.execute("SELECT from_id, type, to_id, properties FROM edges ORDER BY id").fetchall()
    assert edges == [(1, "follows", 2, '{"w":1}'), (3, "follows", 1, "{}")]


def test_old_timestamps_before_1970_are_imported(db: GraphDatabase, tmp_path: Path) -> None:
    # S6: PyArrow 21 wrote them with a negative time of day
    parquet(tmp_path, {"id": [0]}, {"src": [0], "dst": [0], "relationship": ["is"]})
    shutil.copy(FIXTURES / "arrow21_int96_far" / "part-0.parquet", tmp_path / "vertices" / "part-00000.parquet")
    db.import_parquet(tmp_path, node_type="Moment")
    found: list[dict[str, Any]] = [dict(node.properties) for node in db.nodes("Moment").exec()]
    assert [one["ts"] for one in found[:2]] == ["1965-05-17T06:07:08.000009", "1969-12-31T23:59:59.999999"]
    assert found[0]["span"]["at"] == found[0]["ts"]
    assert found[-1]["ts"] == "9999-12-31T23:59:59"


def test_parquet_ids_of_any_integer_type_are_kept(db: GraphDatabase, tmp_path: Path) -> None:
    vertices = {"id": pa.array([-3, 0, 9], "int32"), "type": ["A"] * 3}
    edges = {"src": pa.array([9], "int64"), "dst": pa.array([-3], "int16"), "relationship": ["X"]}
    assert db.import_parquet(parquet(tmp_path, vertices, edges)).ids == {-3: -3, 0: 0, 9: 9}
    assert db.create_node("A").id == 10


def test_the_highest_id_leaves_none_to_give_and_is_not_kept(db: GraphDatabase, tmp_path: Path) -> None:
    vertices = {"id": pa.array([2**63 - 1, 2**64 - 1], "uint64"), "type": ["A"] * 2}
    assert db.import_parquet(parquet(tmp_path, vertices)).ids == {2**63 - 1: 1, 2**64 - 1: 2}


@pytest.mark.parametrize(
    ("vertices", "edges", "error", "said"),
    [
        ({"id": [1]}, None, GraphFileError, "vertex 1 of .*vertices.* no 'type'; give node_type"),
        ({"key": [1]}, None, GraphFileError, "0 columns 'id'"),
        ({"id": [1, 1], "type": ["A", "A"]}, None, GraphFileError, "two nodes with the id 1"),
        ({"id": [1, None], "type": ["A", "A"]}, None, GraphFileError, "'id' is NULL"),
        ({"id": [1.5], "type": ["A"]}, None, GraphFileError, "The column 'id' of .* is double"),
        (
            {"id": [1], "type": ["A"]},
            {"src": [1.0], "dst": [1], "relationship": ["X"]},
            GraphFileError,
            "The column 'src' of .* is double",
        ),
        (
            pa.table([[1], ["A"], [1], [2]], names=["id", "type", "p", "p"]),
            None,
            GraphFileError,
            "2 columns 'p'",
        ),
        ({"id": [1], "type": [3]}, None, InvalidArgumentError, "vertex 1 .*The type is 3"),
        ({"id": [1], "type": ["A"], "p": [Decimal("1.5")]}, None, PropertyTypeError, "property 'p' is of type Decimal"),
        ({"id": [1], "type": ["A"], "p": [b"x"]}, None, PropertyTypeError, "property 'p' is of type bytes"),
        ({"id": [1], "type": ["A"], "p": [float("inf")]}, None, PropertyValueError, "property 'p' is inf"),
        (
            {"id": [1], "type": ["A"], "p": pa.array([1], pa.timestamp("ns"))},
            None,
            PropertyValueError,
            "The column 'p' has a value that cannot be stored",
        ),
        (
            {"id": [1], "type": ["A"], "created_at": pa.array([2**62], pa.timestamp("ms"))},
            None,
            GraphFileError,
            "The column 'created_at' of .* cannot be read",
        ),
        ({"id": [1], "type": ["A"]}, {"src": [1], "dst": [1]}, GraphFileError, "0 columns 'relationship'"),
        (
            {"id": [1], "type": ["A"]},
            {"src": [1], "dst": [2], "relationship": ["X"]},
            GraphFileError,
            "edge 1 -> 2 of .* the endpoint 2",
        ),
        (
            {"id": [1], "type": ["A"]},
            {"id": [5, 5], "src": [1, 1], "dst": [1, 1], "relationship": ["X", "X"]},
            GraphFileError,
            "two edges with the id 5",
        ),
        (
            {"id": [1], "type": ["A"]},
            {"src": [1], "dst": [1], "relationship": pa.array([None], "string")},
            InvalidArgumentError,
            "edge 1 -> 1 .*The type is None",
        ),
    ],
)
def test_wrong_parquet_is_refused_and_changes_nothing(
    db: GraphDatabase,
    vertices: dict[str, Any],
    edges: dict[str, Any] | None,
    error: type[Exception],
    said: str,
    tmp_path: Path,
) -> None:
    fill(db)
    before = dump(db)
    with pytest.raises(error, match=said) as caught:
        db.import_parquet(parquet(tmp_path / "graph", vertices, edges))
    assert "graph" in str(caught.value)
    assert dump(db) == before


def test_a_subfolder_and_a_file_that_is_not_parquet_are_refused(db: GraphDatabase, tmp_path: Path) -> None:
    parquet(tmp_path, {"id": [1], "type": ["A"]})
    (tmp_path / "vertices" / "type=B").mkdir()
    with pytest.raises(GraphFileError, match="holds the folder 'type=B'"):
        db.import_parquet(tmp_path)
    (tmp_path / "vertices" / "type=B").rmdir()
    (tmp_path / "edges" / "part-00000.parquet").write_bytes(b"no")
    with pytest.raises(GraphFileError, match=r"edges/part-00000\.parquet' cannot be read"):
        db.import_parquet(tmp_path)


def test_an_export_is_not_mixed_with_other_files(db: GraphDatabase, tmp_path: Path) -> None:
    parquet(tmp_path, {"id": [1], "type": ["A"]})
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(InvalidArgumentError, match=r"already holds 'part-00000\.parquet'"):
        db.export_parquet(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_failed_export_leaves_the_old_files(
    db: GraphDatabase, other: GraphDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = fsspec.filesystem("memory")
    for form, export in EXPORTS.items():
        export(db, f"memory://kept/{form}")
    before = {path: filesystem.cat_file(path) for path in filesystem.find("/kept")}
    fill(other)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("merganser.graph.exchange.json_file._format_time", full)
    monkeypatch.setattr("merganser.graph.exchange.columns.Column.to_array", full)
    for form, export in EXPORTS.items():
        with pytest.raises(GraphFileError, match=f"Cannot write 'memory://kept/{form}.*No space"):
            export(other, f"memory://kept/{form}")
    assert {path: filesystem.cat_file(path) for path in filesystem.find("/kept")} == before
