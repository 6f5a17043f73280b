"""Names and values are data, never SQL: hostile strings in every place that takes a string."""

from __future__ import annotations

import pytest
from tests.graph.graph_oracle import Oracle, assert_unchanged, dump, read_graph

from merganser.errors import InvalidArgumentError
from merganser.graph import EdgeType, GraphDatabase, GraphSchema, NodeType

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

HOSTILE = [
    "'",
    '"',
    "''",
    '""',
    '\\"',
    "it's",
    ";",
    "; DROP TABLE nodes; --",
    "'); DROP TABLE nodes; --",
    "' OR '1'='1",
    '") OR 1=1 --',
    "-- ",
    "/*",
    "*/",
    "[",
    "]",
    "[0]",
    "a[0]",
    "#",
    "$",
    "$.",
    "$.a",
    '$."a"',
    "$[0]",
    ".",
    "a.b",
    "a..b",
    "*",
    "%",
    "%s",
    "_",
    "?",
    "?1",
    ":name",
    "@x",
    "`",
    "{}",
    "{0}",
    "\\",
    "\\u0041",
    "\\n",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "a\x00b",
    "\x00'; DROP TABLE nodes; --",
    "\x1f",
    "\x7f",
    " ",
    " a ",
    "\u2028",
    "\ufeff",
    "\u202e",
    "É",
    "東京",
    "العربية",
    "🦆",
    "a\u0301",
    "\uffff",
    "type",
    "id",
    "properties",
    "merganser",
    "sqlite_master",
    "sqlite_autoindex_x",
    "NULL",
    "null",
    "y" * 3000,
]


def short(text: str) -> str:
    return ascii(text)[:30]


WITHOUT_PATH = {name for name in HOSTILE if any(character in '"\\' or character < " " for character in name)}
TABLES = {"edges", "nodes", "property_indexes", "resume_points", "sqlite_sequence"}


def tables(db: GraphDatabase) -> set[str]:
    return {name for (name,) in db.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_a_type_is_data(db: GraphDatabase, text: str) -> None:
    """G6."""
    other = db.create_node("N", {"k": 1}).id
    first = db.merge_node(text, {"k": 1})
    second = db.merge_node(text, {"k": 1}, on_match={"seen": 1})
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert read_graph(db) == Oracle({other: ("N", {"k": 1}), first.id: (text, {"k": 1, "seen": 1})}, {})
    assert tables(db) == TABLES


@pytest.mark.parametrize("text", ["", *HOSTILE], ids=short)
def test_a_property_name_is_data(db: GraphDatabase, text: str) -> None:
    """G6."""
    near = {f"{text}x": 1, f"z{text}": 1, "a": {"b": 1, "0": 1}}
    other = db.create_node("N", near).id
    first = db.merge_node("N", {text: 1}, {f"{text}x": 2})
    second = db.merge_node("N", {text: 1}, on_match={f"z{text}": 3})
    assert (first.created, second.created, second.id) == (True, False, first.id)
    expected = {text: 1, f"{text}x": 2, f"z{text}": 3}
    assert second.properties == expected
    assert read_graph(db) == Oracle({other: ("N", near), first.id: ("N", expected)}, {})
    assert db.merge_node("N", {text: 1, f"{text}x": 2}).id == first.id
    assert db.merge_node("N", {text: 2}).created
    assert tables(db) == TABLES


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("text", ["", *HOSTILE], ids=short)
def test_a_value_is_data(db: GraphDatabase, text: str, indexed: bool) -> None:
    """G6."""
    if indexed:
        db.create_property_index("N", "v", unique=True)
    others = [db.create_node("N", {"v": value}).id for value in (f"{text}x", f"z{text}", [text])]
    first = db.merge_node("N", {"v": text}, {"base": text})
    second = db.merge_node("N", {"v": text}, on_match={"late": [text, {text: text}]}, condition={"base": text})
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert read_graph(db).nodes[first.id] == ("N", {"v": text, "base": text, "late": [text, {text: text}]})
    assert [db.merge_node("N", {"v": value}).id for value in (f"{text}x", f"z{text}", [text])] == others
    assert tables(db) == TABLES


@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_the_names_of_an_edge_are_data(db: GraphDatabase, text: str) -> None:
    """G2, G6."""
    one, two = db.create_node("N").id, db.create_node("N").id
    first = db.merge_edge(one, text, two, {text: text}, match={f"{text}k": text})
    second = db.merge_edge(two, text, one, match={f"{text}k": text}, direction="both", on_match={"seen": text})
    assert (first.created, second.created, second.id) == (True, False, first.id)
    expected = {f"{text}k": text, text: text, "seen": text}
    assert read_graph(db).edges == {first.id: (text, one, two, expected)}
    assert tables(db) == TABLES


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_an_index_of_any_type_works(db: GraphDatabase, text: str, unique: bool) -> None:
    """G6, G9."""
    before = dump(db)
    made = db.create_property_index(text, "k", unique=unique)
    assert db.list_indexes() == [made]
    first = db.merge_node(text, {"k": 1})
    assert db.merge_node(text, {"k": 1}).id == first.id
    db.drop_index(made.name)
    assert db.list_indexes() == []
    db.delete_node(first.id)
    db.connection.execute("DELETE FROM sqlite_sequence")
    assert dump(db) == before


@pytest.mark.parametrize("text", ["", *HOSTILE], ids=short)
def test_an_index_of_any_property_works_or_is_refused(db: GraphDatabase, text: str) -> None:
    """G6, G9."""
    if text in WITHOUT_PATH:
        with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="cannot index the property"):
            db.create_property_index("N", text)
        return
    made = db.create_property_index("N", text, unique=True)
    assert (made.columns, db.list_indexes()) == ((text,), [made])
    first = db.merge_node("N", {text: "v"}, {f"{text}x": 1})
    assert db.merge_node("N", {text: "v"}).id == first.id
    assert db.merge_node("N", {text: ["v"]}).created
    db.drop_index(made.name)
    assert db.list_indexes() == []
    assert tables(db) == TABLES


@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_dropping_an_index_by_any_name_does_no_harm(db: GraphDatabase, text: str) -> None:
    """G6, G9."""
    db.create_property_index("N", "k")
    with assert_unchanged(db):
        db.drop_index(text)


@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_a_path_is_data(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """G6."""
    name = "".join(character for character in text if character not in "\x00/")[:100]
    folder = tmp_path_factory.mktemp("odd")
    path = folder / f"{name}.db"
    with GraphDatabase(path) as db:
        db.merge_node("N", {"k": 1})
    with GraphDatabase(path) as db:
        assert not db.merge_node("N", {"k": 1}).created
    assert [entry.name for entry in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("text", HOSTILE, ids=short)
def test_a_schema_of_odd_names_holds(text: str) -> None:
    """G6, G18."""
    schema = GraphSchema({text: NodeType(required=[text])}, {text: EdgeType([text], [text], [text])})
    with GraphDatabase(":memory:", schema=schema) as db:
        node = db.merge_node(text, {"k": 1}, {text: 1}).id
        assert db.merge_edge(node, text, node, {text: 1}).created
        with assert_unchanged(db), pytest.raises(ValueError, match="needs the property"):
            db.merge_node(text, {"k": 2})
