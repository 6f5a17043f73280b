"""Indexes of properties: their names, what they serve, and what they forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, list_nodes

from merganser.errors import GraphError, UniqueConstraintError
from merganser.graph import GraphDatabase, IndexInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def names(db: GraphDatabase) -> list[str]:
    return [index.name for index in db.list_indexes()]


def plan_of_the_lookup(db: GraphDatabase, type_: str, match: dict[str, Any]) -> str:
    """Return SQLite's plan for the statement that a merge finds its nodes with."""
    seen: list[str] = []
    db.connection.set_trace_callback(seen.append)
    db.merge_node(type_, match, warn_on_missing_index=False, touch=False)
    db.connection.set_trace_callback(None)
    lookup = next(statement for statement in seen if statement.startswith("SELECT") and "FROM nodes" in statement)
    return " ".join(row[3] for row in db.connection.execute(f"EXPLAIN QUERY PLAN {lookup}"))


def test_an_index_has_a_name_and_is_listed(db: GraphDatabase) -> None:
    """G9. The specification's "createPropertyIndex creates JSON index" and "listIndexes returns all custom indexes"."""
    made = db.create_property_index("Job", "url")
    also = db.create_property_index("Company", ["name", "city"], unique=True)
    assert made == IndexInfo("idx_merge_Job_url", "nodes", ("url",), unique=False, partial="type = 'Job'")
    assert also == IndexInfo(
        "idx_merge_Company_name_city", "nodes", ("name", "city"), unique=True, partial="type = 'Company'"
    )
    assert db.list_indexes() == [also, made]
    known = {name for (name,) in db.connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert known >= {made.name, also.name}


def test_creating_an_index_again_changes_nothing(db: GraphDatabase) -> None:
    """G9."""
    made = db.create_property_index("Job", "url", unique=True)
    with assert_unchanged(db):
        assert db.create_property_index("Job", ["url"], unique=True) == made
        # The properties asked for are fewer than those of the index.
        assert db.create_property_index("Job", "url") == made


def test_an_index_can_become_unique(db: GraphDatabase) -> None:
    """G9."""
    db.create_property_index("Job", "url")
    made = db.create_property_index("Job", "url", unique=True)
    assert db.list_indexes() == [made]
    assert (made.name, made.unique) == ("idx_merge_Job_url", True)
    db.create_node("Job", {"url": 1})
    with pytest.raises(UniqueConstraintError):
        db.create_node("Job", {"url": 1})


def test_an_index_that_cannot_become_unique_stays_as_it_is(db: GraphDatabase) -> None:
    """G9."""
    made = db.create_property_index("Job", "url")
    for _ in range(2):
        db.create_node("Job", {"url": 1})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError):
        db.create_property_index("Job", "url", unique=True)
    assert db.list_indexes() == [made]


@pytest.mark.parametrize(
    "definitions",
    [
        [("Job", "url"), ("job", "url"), ("JOB", "URL")],
        [("A_b", "c"), ("A", "b_c"), ("A", ["b", "c"])],
        [("A", ["b", "c"]), ("A", ["c", "b"])],
        [("É", "a"), ("é", "a")],
        [("A", "b"), ("A", "b_2"), ("a", "b")],
    ],
)
def test_names_that_sqlite_takes_as_equal_are_kept_apart(
    db: GraphDatabase, definitions: list[tuple[str, str | Sequence[str]]]
) -> None:
    """G9."""
    made = [db.create_property_index(type_, properties) for type_, properties in definitions]
    assert len({index.name.lower() for index in made}) == len(made) or not all(index.name.isascii() for index in made)
    assert sorted(names(db)) == sorted(index.name for index in made)
    assert [db.create_property_index(type_, properties) for type_, properties in definitions] == made
    for number, index in enumerate(made):
        db.drop_index(index.name)
        assert sorted(names(db)) == sorted(other.name for other in made[number + 1 :])


def test_dropping_an_index_leaves_others_whose_names_python_takes_as_equal(db: GraphDatabase) -> None:
    """G9."""
    db.create_property_index("ß", "a")
    other = db.create_property_index("ss", "a")
    db.drop_index("idx_merge_ß_a")
    assert db.list_indexes() == [other]


def test_an_index_can_be_dropped(db: GraphDatabase) -> None:
    """G9. The specification's "dropIndex removes custom index"."""
    made = db.create_property_index("Job", "url", unique=True)
    db.drop_index(made.name)
    assert db.list_indexes() == []
    assert not db.connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (made.name,)).fetchall()
    for _ in range(2):
        db.create_node("Job", {"url": 1})
    db.create_property_index("Job", "url")
    assert names(db) == [made.name]


@pytest.mark.parametrize("name", ["idx_merge_Job_title", "", "nodes_by_type", "edges_out", "nodes", "x'; --"])
def test_dropping_what_is_not_a_property_index_does_nothing(db: GraphDatabase, name: str) -> None:
    """G9."""
    db.create_property_index("Job", "url")
    with assert_unchanged(db):
        db.drop_index(name)


def test_edges_have_indexes_too(db: GraphDatabase) -> None:
    """G9."""
    made = db.create_property_index("Job", "url", table="edges")
    assert made.table == "edges"
    assert db.create_property_index("Job", "url").name != made.name
    assert [index.table for index in db.list_indexes()] == ["edges", "nodes"]


def test_an_index_makes_keys_unique(db: GraphDatabase) -> None:
    """G9. The specification's "createPropertyIndex creates unique index"."""
    db.create_property_index("Job", "url", unique=True)
    db.create_node("Job", {"url": "/1"})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match=r"'url': '/1'.*'idx_merge_Job_url'"):
        db.create_node("Job", {"url": "/1"})
    # Other types, other kinds of values and nodes without the property are not concerned.
    db.create_node("Company", {"url": "/1"})
    for value in (1, True, "1", [1], None, None):
        db.create_node("Job", {"url": value})
    assert len(list_nodes(db)) == 8


def test_a_unique_index_over_duplicates_lists_them(db: GraphDatabase) -> None:
    """G9."""
    ids = [db.create_node("Job", {"a": value, "b": 1}).id for value in ("x", "y", "x", "z", "y", "x")]
    for _ in range(2):
        db.create_node("Job", {"b": 1})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError) as caught:
        db.create_property_index("Job", ["a", "b"], unique=True)
    text = str(caught.value)
    assert "2 values of a, b" in text
    for part in ("'a': 'x'", "'a': 'y'", f"{ids[0]},{ids[2]},{ids[5]}", f"{ids[1]},{ids[4]}"):
        assert part in text
    assert "'z'" not in text
    for extra in (ids[2], ids[5], ids[4]):
        db.delete_node(extra)
    assert db.create_property_index("Job", ["a", "b"], unique=True).unique


def test_a_merge_that_would_break_another_unique_index_changes_nothing(db: GraphDatabase) -> None:
    """G10."""
    db.create_property_index("Job", "url", unique=True)
    db.create_property_index("Job", "code", unique=True)
    db.merge_node("Job", {"url": "/1"}, {"code": 1})
    db.merge_node("Job", {"url": "/2"}, {"code": 2})
    works: list[Callable[[], object]] = [
        lambda: db.merge_node("Job", {"url": "/3"}, {"code": 1.0}),
        lambda: db.merge_node("Job", {"url": "/2"}, on_match={"code": 1}),
        lambda: db.merge_node("Job", {"url": "/2"}, on_match=lambda _: {"code": 1, "x": 1}),
        lambda: db.update_node(2, {"code": 1}),
    ]
    for work in works:
        with assert_unchanged(db), pytest.raises(UniqueConstraintError, match=r"'code': 1.*idx_merge_Job_code"):
            work()
    with db.transaction():
        db.merge_node("Job", {"url": "/3"}, {"code": 3})
        with pytest.raises(UniqueConstraintError):
            db.merge_node("Job", {"url": "/4"}, {"code": 3})
    assert [properties["code"] for properties in list_nodes(db)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["it's", 'a "type"', "index 'x'", "%s", "new\nline", "x\x00y"])
def test_an_odd_name_does_not_hide_what_broke(db: GraphDatabase, name: str) -> None:
    """G10."""
    db.create_property_index(name, "code", unique=True)
    db.create_node(name, {"code": 1})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="'code': 1"):
        db.create_node(name, {"code": 1})


@pytest.mark.parametrize("value", ["/1", 1, 1.5, True, "a\x00b"])
@pytest.mark.parametrize("type_", ["Job", "it's", "x\x00y"])
def test_a_merge_uses_the_index(db: GraphDatabase, type_: str, value: Any) -> None:
    """G9. The specification's "Performance with/without indexes"."""
    assert "nodes_by_type" in plan_of_the_lookup(db, type_, {"url": value})
    made = db.create_property_index(type_, "url")
    assert f"USING INDEX {made.name} (<expr>=?)" in plan_of_the_lookup(db, type_, {"url": value})


def test_a_merge_by_several_properties_uses_their_index(db: GraphDatabase) -> None:
    """G9. The specification's "Complex match criteria (multiple properties)"."""
    db.create_property_index("Job", ["site", "a.b"], unique=True)
    for match in ({"site": "x", "a.b": 1}, {"a.b": 2, "site": "y"}):
        assert "idx_merge_Job_site_a.b (<expr>=? AND <expr>=?)" in plan_of_the_lookup(db, "Job", match)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x00", "\x1f"])
def test_what_sqlite_cannot_index_is_refused(db: GraphDatabase, name: str) -> None:
    """G6, G9."""
    with assert_unchanged(db), pytest.raises(ValueError, match="SQLite cannot index"):
        db.create_property_index("Job", ["url", name])
    assert db.merge_node("Job", {name: 1}, warn_on_missing_index=False).created
    assert not db.merge_node("Job", {name: 1}, warn_on_missing_index=False).created


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("", "url"), "type"),
        (("Job", []), "properties"),
        (("Job", ["a", "a"]), "each name once"),
        (("Job", "url", False, "node"), "table"),
        (("Job", [1]), "property name"),
    ],
)
def test_nonsense_is_refused(db: GraphDatabase, arguments: Any, word: str) -> None:
    """G9."""
    with assert_unchanged(db), pytest.raises((ValueError, TypeError), match=word):
        db.create_property_index(*arguments)


def test_indexes_persist_into_the_next_session(file: str) -> None:
    """G9."""
    with GraphDatabase(file) as db:
        made = db.create_property_index("Job", ["url", "site"], unique=True)
    with GraphDatabase(file) as db:
        assert db.list_indexes() == [made]
        # A missing index would be warned of, and a warning is an error.
        db.merge_node("Job", {"url": 1, "site": 1})
        with pytest.raises(GraphError):
            db.create_node("Job", {"url": 1, "site": 1})
