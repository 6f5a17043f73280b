"""GraphML and networkx: every graph comes back, and files of others are read or refused."""  # G16

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.exchange.test_exchange import content, exact, make
from tests.graph.graph_oracle import assert_unchanged, read_graph

from merganser.errors import GraphFileError, InvalidArgumentError, PropertyValueError
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.sampled_from(["type", "id", "property_type", "property_id", "property_type_2", "a", "é <&"])
TEXTS = st.sampled_from(["", " x\n\r\t", "1", "true", "[1]", '"', "null", "<a>&amp;", "東京"])
SCALARS = TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=4)
NODES = st.lists(st.tuples(st.sampled_from(["Job", "名 & <x>"]), PROPERTIES), max_size=4)
EDGES = st.lists(st.tuples(st.integers(0, 9), st.just("TO"), st.integers(0, 9), PROPERTIES), max_size=4)


def without_times(found: list[Any]) -> list[Any]:
    return [(own, rest[:-2]) for own, rest in found]


@given(NODES, EDGES)
@settings(max_examples=80)
def test_graphml_carries_every_graph(nodes: list[Any], edges: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, GraphDatabase(":memory:") as db, GraphDatabase(":memory:") as other:
        make(db, nodes, edges)
        db.export_graphml(f"{folder}/graph.graphml")
        assert other.import_graphml(f"{folder}/graph.graphml").nodes == len(nodes)
        assert without_times(content(other)) == without_times(content(db))
        # Others read it, too.
        graph = nx.read_graphml(f"{folder}/graph.graphml", force_multigraph=True)
        assert [data["type"] for _, data in graph.nodes(data=True)] == [type_ for type_, _ in nodes]


@given(NODES, EDGES)
@settings(max_examples=40)
def test_networkx_carries_every_graph(nodes: list[Any], edges: list[Any]) -> None:
    with GraphDatabase(":memory:") as db, GraphDatabase(":memory:") as other:
        make(db, nodes, edges)
        graph = db.to_networkx()
        assert [data["type"] for _, data in graph.nodes(data=True)] == [type_ for type_, _ in nodes]
        other.from_networkx(graph)
        # networkx lists the edges of each node together.
        for found, expected in ((read_graph(other), read_graph(db)),):
            assert exact_records(found.nodes) == exact_records(expected.nodes)
            assert exact_records(found.edges) == exact_records(expected.edges)


def exact_records(records: dict[int, Any]) -> list[Any]:
    return sorted(((*rest, exact(own)) for *rest, own in records.values()), key=repr)


def test_properties_with_reserved_names_get_another(db: GraphDatabase, tmp_path: Path) -> None:
    first = db.create_node("Job", {"type": "full time", "id": 7})
    second = db.create_node("Job", {"property_type": "x"})
    db.create_edge(first.id, "NEXT", second.id, {"type": 1, "id": "e"})
    graph = db.to_networkx()
    assert graph.nodes[first.id] == {"property_type_2": "full time", "id": 7, "type": "Job"}
    assert graph.edges[first.id, second.id, 1] == {"property_type": 1, "id": "e", "type": "NEXT"}
    db.export_graphml(tmp_path / "jobs.graphml")
    graph = nx.read_graphml(tmp_path / "jobs.graphml")
    assert graph.nodes["n1"] == {"property_type_2": "full time", "property_id": 7, "type": "Job"}
    assert graph.edges["n1", "n2"] == {"property_type": 1, "property_id": "e", "type": "NEXT", "id": "e1"}
    # Through networkx and its GraphML, too.
    nx.write_graphml(db.to_networkx(), tmp_path / "again.graphml")
    with GraphDatabase(":memory:") as other:
        other.from_networkx(nx.read_graphml(tmp_path / "again.graphml", node_type=int, force_multigraph=True))
        assert exact_records(read_graph(other).nodes) == exact_records(read_graph(db).nodes)


def test_graphml_of_networkx_is_imported(db: GraphDatabase, tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_node("a", type="City", size=3, share=0.5, open=True, name="A & <B>\n")
    graph.add_node("b", name="")
    graph.add_edge("a", "b", km=2)
    nx.write_graphml(graph, tmp_path / "cities.graphml")
    done = db.import_graphml(tmp_path / "cities.graphml", node_type="Place", edge_type="ROAD")
    assert (done.nodes, done.edges, done.ids) == (2, 1, {"a": 1, "b": 2})
    found = read_graph(db)
    assert found.nodes == {
        1: ("City", {"size": 3, "share": 0.5, "open": True, "name": "A & <B>\n"}),
        2: ("Place", {"name": ""}),
    }
    assert found.edges == {1: ("ROAD", 1, 2, {"km": 2})}


HEAD = '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'


def write(folder: Path, body: str, head: str = HEAD) -> str:
    path = folder / "x.graphml"
    path.write_text(f"{head}{body}</graphml>", "utf-8")
    return str(path)


def test_defaults_apply_and_what_other_tools_add_is_left_out(db: GraphDatabase, tmp_path: Path) -> None:
    body = """
        <desc>A graph</desc>
        <key id="t" for="all" attr.name="type" attr.type="string"><default>City</default></key>
        <key id="c" for="node" attr.name="colour"><desc>its colour</desc><default>red</default></key>
        <key id="w" for="edge" attr.name="weight" attr.type="double"><default>1</default></key>
        <key id="y" for="node" yfiles.type="nodegraphics"/>
        <graph edgedefault="undirected"><data key="c">green</data>
            <node id="a"><desc>first</desc><data key="y"><y:Box xmlns:y="urn:y"><y:Fill>x</y:Fill></y:Box></data></node>
            <node id="b"><data key="c">blue</data><data key="t">Town</data></node>
            <edge source="b" target="a"/>
        </graph>"""
    db.import_graphml(write(tmp_path, body))
    found = read_graph(db)
    assert found.nodes == {1: ("City", {"colour": "red"}), 2: ("Town", {"colour": "blue"})}
    assert found.edges == {1: ("City", 2, 1, {"weight": 1.0})}


NODE = '<node id="a"><data key="d">{}</data></node>'
KEY = '<key id="d" for="node" attr.name="n" attr.type="{}"/><graph>'
BOMB = '<!DOCTYPE graphml [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "broken": ('<graph><node id="a"></graph>', GraphFileError, "cannot be read as GraphML: mismatched tag"),
    "no graph": ("", GraphFileError, "has no <graph>"),
    "two graphs": ("<graph/><graph/>", GraphFileError, "has several graphs"),
    "nested": ('<graph><node id="a"><graph/></node></graph>', GraphFileError, "or one within a node"),
    "hyperedge": ("<graph><hyperedge/></graph>", GraphFileError, "has a hyperedge"),
    "no id": ("<graph><node/></graph>", GraphFileError, "has a <node> without 'id'"),
    "no target": ('<graph><node id="a"/><edge source="a"/></graph>', GraphFileError, "has a <edge> without 'target'"),
    "no node": ('<graph><edge source="a" target="b"/></graph>', GraphFileError, "has the endpoint 'a'"),
    "twice": ('<graph><node id="a"/><node id="a"/></graph>', GraphFileError, "has two nodes with the id 'a'"),
    "undeclared": (f"<graph>{NODE.format(1)}</graph>", GraphFileError, "data with the key 'd', which is not declared"),
    "integer": (KEY.format("int") + NODE.format("x") + "</graph>", GraphFileError, "'x' as its 'n', which is not of"),
    "boolean": (KEY.format("boolean") + NODE.format("2") + "</graph>", GraphFileError, "not of the type boolean"),
    "NaN": (KEY.format("double") + NODE.format("NaN") + "</graph>", PropertyValueError, "'n' is NaN"),
    "large": (KEY.format("long") + NODE.format(2**63) + "</graph>", PropertyValueError, "does not fit 64 bits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_graphml_that_is_no_graph_changes_nothing(db: GraphDatabase, tmp_path: Path, case: str) -> None:
    db.create_node("Kept")
    body, error, said = REFUSED[case]
    path = write(tmp_path, body)
    with assert_unchanged(db), pytest.raises(error, match=said):
        db.import_graphml(path, node_type="N", edge_type="E")


def test_types_must_be_known_and_entities_are_not_expanded(db: GraphDatabase, tmp_path: Path) -> None:
    path = write(tmp_path, '<graph><node id="a"/><edge source="a" target="a"/></graph>')
    with (
        assert_unchanged(db),
        pytest.raises(InvalidArgumentError, match=r"node 'a' .* no data called 'type'.*node_type"),
    ):
        db.import_graphml(path)
    with assert_unchanged(db), pytest.raises(InvalidArgumentError, match=r"edge 'a' -> 'a' .*edge_type"):
        db.import_graphml(path, node_type="N")
    path = write(tmp_path, '<graph><node id="&b;"/></graph>', BOMB + "<graphml>")
    with assert_unchanged(db), pytest.raises(GraphFileError, match="has a document type"):
        db.import_graphml(path, node_type="N")
    with pytest.raises(GraphFileError, match=r"none\.graphml"):
        db.import_graphml(tmp_path / "none.graphml")


def test_a_note_of_renamed_attributes_that_is_damaged_is_refused(db: GraphDatabase) -> None:
    graph = nx.Graph()
    for note in ("x", "[]", 7):
        graph.graph["merganser:node_properties"] = note
        with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="which is not a JSON object; remove it"):
            db.from_networkx(graph)
    graph.graph["merganser:node_properties"] = json.dumps({"kind": "type"})
    graph.add_node(1, type="N", kind="k")
    db.from_networkx(graph)
    assert read_graph(db).nodes == {1: ("N", {"type": "k"})}
