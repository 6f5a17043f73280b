"""What may be opened as a graph: its own files, of its own version or older, and nothing else."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.graph.graph_oracle import dump, list_nodes

from merganser.errors import GraphFileError, InvalidArgumentError, PropertyValueError
from merganser.graph import GraphDatabase
from merganser.graph.sqlite import tables


def refused(file: str, word: str) -> None:
    """Check that a file is refused, and left byte for byte as it is, with nothing new beside it."""
    before = {path.name: path.read_bytes() for path in Path(file).parent.iterdir() if path.is_file()}
    with pytest.raises(GraphFileError, match=word) as caught:
        GraphDatabase(file)
    assert file in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert {path.name: path.read_bytes() for path in Path(file).parent.iterdir() if path.is_file()} == before


def plain_sqlite(file: str, *statements: str) -> None:
    connection = sqlite3.connect(file)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_graph_persists_into_the_next_session(file: str) -> None:
    """G11."""
    with GraphDatabase(file) as db:
        made = db.create_node("N", {"name": "a"})
    with GraphDatabase(Path(file)) as db:
        assert db.get_node(made.id) == made
        assert db.create_node("N").id > made.id


def test_an_id_is_never_given_twice(file: str) -> None:
    """G16."""
    with GraphDatabase(file) as db:
        first = db.create_node("N").id
        edge = db.create_edge(first, "E", first).id
        db.delete_node(first)
    with GraphDatabase(file) as db:
        second = db.create_node("N").id
        assert second > first
        assert db.create_edge(second, "E", second).id > edge


def test_the_database_of_something_else_is_refused(file: str) -> None:
    """G11."""
    plain_sqlite(file, "CREATE TABLE nodes (x)", "INSERT INTO nodes VALUES (1)")
    refused(file, "not a graph")


def test_the_empty_database_of_another_application_is_refused(file: str) -> None:
    """G11."""
    plain_sqlite(file, "PRAGMA application_id = 12345")
    refused(file, "not a graph")


def test_a_file_of_a_newer_version_is_refused(file: str) -> None:
    """G11."""
    with GraphDatabase(file) as db:
        db.create_node("N", {"name": "a"})
    plain_sqlite(file, f"PRAGMA user_version = {len(tables.MIGRATIONS) + 1}")
    refused(file, "newer merganser")


@pytest.mark.parametrize("content", [b"no database at all\n" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_what_is_not_a_database_is_refused(file: str, content: bytes) -> None:
    """G11."""
    Path(file).write_bytes(content)
    refused(file, "graph database")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """G11."""
    refused(str(tmp_path), "is a folder")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """G11."""
    with pytest.raises(GraphFileError, match="folder exists"):
        GraphDatabase(tmp_path / "nowhere" / "graph.db")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("path", ["", "s3://bucket/graph.db", "file:///tmp/x", "a\x00b"])
def test_a_path_that_is_not_local_is_refused(path: str) -> None:
    """G11."""
    with pytest.raises(InvalidArgumentError, match="local disk"):
        GraphDatabase(path)


def test_an_empty_file_becomes_a_graph(file: str) -> None:
    """G11."""
    Path(file).touch()
    with GraphDatabase(file) as db:
        assert db.create_node("N").id == 1


def test_an_older_file_is_migrated(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11."""
    with GraphDatabase(file) as db:
        made = db.create_node("N", {"name": "a"})
    steps = (("ALTER TABLE nodes ADD COLUMN mood TEXT",), ("CREATE TABLE extra (x)", "INSERT INTO extra VALUES (7)"))
    monkeypatch.setattr(tables, "MIGRATIONS", (*tables.MIGRATIONS, *steps))
    for _ in range(2):
        with GraphDatabase(file) as db:
            assert db.get_node(made.id) == made
            assert db.connection.execute("SELECT x FROM extra").fetchall() == [(7,)]
            ((version,),) = db.connection.execute("PRAGMA user_version").fetchall()
            assert version == len(tables.MIGRATIONS)


def test_a_file_of_the_first_version_is_migrated(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11."""
    with monkeypatch.context() as patch:
        patch.setattr(tables, "MIGRATIONS", tables.MIGRATIONS[:1])
        with GraphDatabase(file) as db:
            made = db.create_node("N", {"name": "a"})
    with GraphDatabase(file) as db, GraphDatabase(":memory:") as new:
        schema = "SELECT sql FROM sqlite_master ORDER BY name"
        assert db.connection.execute(schema).fetchall() == new.connection.execute(schema).fetchall()
        assert db.get_node(made.id) == made


def test_a_failed_migration_leaves_the_old_version(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11."""
    with GraphDatabase(file) as db:
        db.create_node("N", {"name": "a"})
        before = dump(db)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "MIGRATIONS", (*tables.MIGRATIONS, ("CREATE TABLE extra (x)", "no SQL")))
        with pytest.raises(GraphFileError, match="syntax error"):
            GraphDatabase(file)
    with GraphDatabase(file) as db:
        assert dump(db) == before
        assert list_nodes(db) == [{"name": "a"}]


def test_the_file_says_what_it_is(file: str) -> None:
    """G11, G12."""
    with GraphDatabase(file) as db:
        settings: dict[str, Any] = {
            name: db.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "journal_mode", "foreign_keys")
        }
    assert settings == {
        "application_id": int.from_bytes(b"mgsr", "big"),
        "user_version": len(tables.MIGRATIONS),
        "journal_mode": "wal",
        "foreign_keys": 1,
    }
    assert [path.name for path in Path(file).parent.iterdir()] == ["graph.db"]


@pytest.fixture
def kept(file: str) -> str:
    """A file with one node, not open anywhere."""
    with GraphDatabase(file) as db:
        db.create_node("N", {"name": "a"})
    return file


def test_what_is_opened_to_read_only_is_not_written(kept: str) -> None:
    folder = Path(kept).parent
    before = folder.stat().st_mtime_ns, Path(kept).stat().st_mtime_ns, Path(kept).read_bytes()
    with GraphDatabase(kept, read_only=True) as db:
        assert [node.properties for node in db.nodes("N").exec()] == [{"name": "a"}]
        assert len(db.traverse(1).nodes()) == 0
        with pytest.raises(GraphFileError, match="without read_only=True"):
            db.create_node("N")
        with pytest.raises(GraphFileError, match="without read_only=True"):
            db.create_property_index("N", "name")
        with pytest.raises(GraphFileError, match="without read_only=True"):
            db.merge_node("N", {"name": "b"}, warn_on_missing_index=False)
    assert (folder.stat().st_mtime_ns, Path(kept).stat().st_mtime_ns, Path(kept).read_bytes()) == before


def test_what_is_read_without_locks_is_refused_once_it_changes(kept: str) -> None:
    with GraphDatabase(kept, read_only=True) as db:
        assert db.nodes("N").count() == 1
        with GraphDatabase(kept) as writer:
            writer.create_node("N")
        for ask in (db.nodes("N").count, db.stats, db.list_indexes):
            with pytest.raises(GraphFileError, match="Open it again"):
                ask()
    with GraphDatabase(kept, read_only=True) as db:
        assert db.nodes("N").count() == 2


def test_a_reader_sees_commits_of_a_writer_that_was_open_before(kept: str) -> None:
    with GraphDatabase(kept) as writer, GraphDatabase(kept, read_only=True) as db:
        for count in (2, 3):
            writer.create_node("N")
            assert db.nodes("N").count() == count


def test_a_link_to_a_graph_is_read_with_its_write_ahead_log(kept: str) -> None:
    link = Path(kept).with_name("link.db")
    link.symlink_to(kept)
    with GraphDatabase(kept) as writer:
        writer.create_node("N")
        with GraphDatabase(link, read_only=True) as db:
            assert db.nodes("N").count() == 2


def test_an_older_graph_is_read_as_it_is(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(tables, "MIGRATIONS", tables.MIGRATIONS[:1])
        GraphDatabase(file).close()
    before = Path(file).read_bytes()
    with GraphDatabase(file, read_only=True) as db:
        assert db.stats().node_count == 0
    assert Path(file).read_bytes() == before


@pytest.mark.parametrize("content", [None, b"", b"no database, and long enough to be looked into"])
def test_what_is_not_a_graph_cannot_be_read(content: bytes | None, file: str) -> None:
    if content is not None:
        Path(file).write_bytes(content)
    with pytest.raises(GraphFileError, match=re.escape(repr(file))):
        GraphDatabase(file, read_only=True)
    assert Path(file).exists() == (content is not None)


@pytest.mark.parametrize("text", ["[" * 20_000 + "]" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000])
def test_a_graph_that_someone_else_filled_is_refused_where_it_cannot_be_read(file: str, text: str) -> None:
    """G5, M11."""
    with GraphDatabase(file) as db:
        made = db.create_node("N", {"name": "a"})
    connection = sqlite3.connect(file)
    connection.execute("UPDATE nodes SET properties = ?", [text])
    connection.commit()
    connection.close()
    with GraphDatabase(file) as db, pytest.raises(GraphFileError, match="cannot be read as JSON"):
        db.get_node(made.id)


def test_a_property_that_is_nested_too_deeply_is_refused(file: str) -> None:
    """G5, M11."""
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    with GraphDatabase(file) as db:
        db.create_node("N", {"name": "a"})
        before = dump(db)
        with pytest.raises(PropertyValueError, match="nested over 100 levels deep"):
            db.create_node("N", {"deep": deep})
        assert dump(db) == before
