"""`merganser graph`: what its commands do, what they print and how they end."""

from __future__ import annotations

import inspect
import json
import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, snapshot

from merganser.cli.app import app
from merganser.cli.graph.commands import COMMANDS, graph
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import click
    from click.testing import Result

    Run = Callable[..., Result]
    Read = Callable[..., Any]

JOBS = "url,title,company,seen\n/1,Engineer,TechCorp,1\n/2,Designer,TechCorp,2\n/3,Analyst,DataWorks,3\n"
POSTED = "job,company,since\n/1,TechCorp,2026\n/2,TechCorp,2026\n/3,DataWorks,2025\n"


def counts(told: dict[str, Any]) -> tuple[int, int]:
    return told["created"], told["matched"]


ENDS = ["--from-type", "Job", "--from-key", "url=job", "--to-type", "Company", "--to-key", "name=company"]


@pytest.fixture
def jobs(tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph of jobs and companies that was merged from CSV files, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "posted.csv").write_text(POSTED)
    (tmp_path / "companies.csv").write_text("name\nTechCorp\nDataWorks\n")
    cli("graph", "index", "jobs.db", "Job", "url", "--unique")
    cli("graph", "index", "jobs.db", "Company", "name")
    cli("graph", "merge", "jobs.db", "jobs.csv", "--node-type", "Job", "--key", "url")
    cli("graph", "merge", "jobs.db", "companies.csv", "--node-type", "Company", "--key", "name")
    cli("graph", "merge", "jobs.db", "posted.csv", "--edge-type", "POSTED_BY", *ENDS)
    return "jobs.db"


def content(path: str) -> list[Any]:
    """Everything in a graph, with its times."""
    connection = sqlite3.connect(path)
    tables = ("nodes", "edges", "property_indexes")
    found = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # noqa: S608  our own names
    connection.close()
    return found


def command(name: str) -> click.Command:
    found = graph.get_command(None, name)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_rows_are_merged_as_nodes_and_edges_and_again_change_nothing_but_times(jobs: str, cli: Run) -> None:
    first = cli("graph", "merge", jobs, "jobs.csv", "--node-type", "Job", "--key", "url", "--no-touch")
    assert first.stdout == "jobs.db: 0 Job nodes created, 3 matched\n"
    assert first.stderr == ""
    before = content(jobs)
    cli("graph", "merge", jobs, "posted.csv", "--edge-type", "POSTED_BY", *ENDS, "--no-touch")
    cli("graph", "merge", jobs, "jobs.csv", "--node-type", "Job", "--key", "url", "--no-touch")
    assert content(jobs) == before
    with GraphDatabase(jobs) as db:
        assert db.stats().nodes == {"Company": 2, "Job": 3}
        assert db.edges("POSTED_BY").where({"since": 2026}).count() == 2


def test_existing_records_get_the_columns_of_on_match(jobs: str, tmp_path: Path, answer: Read) -> None:
    (tmp_path / "again.csv").write_text("url,title,day\n/1,Architect,tue\n/4,Writer,tue\n")
    told = answer(
        "graph", "merge", jobs, "again.csv", "--node-type", "Job", "--key", "url", "--on-match", "title,last=day"
    )
    assert counts(told) == (1, 1)
    rows = answer("graph", "query", jobs, '(Job {title in ["Architect", "Writer"]})')
    assert [row["properties"] for row in rows] == [
        {"url": "/1", "title": "Architect", "company": "TechCorp", "seen": 1, "last": "tue"},
        {"url": "/4", "title": "Writer"},
    ]
    told = answer("graph", "merge", jobs, "again.csv", "--node-type", "Job", "--key", "url", "--on-match", "*")
    assert (*counts(told), told["changed"]) == (0, 2, 2)
    assert [row["properties"]["day"] for row in answer("graph", "query", jobs, "(Job {day: 'tue'})")] == ["tue", "tue"]


def test_columns_may_be_for_new_records_and_a_condition_for_existing_ones(
    jobs: str, tmp_path: Path, answer: Read
) -> None:
    (tmp_path / "again.csv").write_text("url,title,day\n/1,Architect,tue\n/2,Chef,tue\n/4,Writer,tue\n")
    rules = [
        "--on-create",
        "since=day",
        "--on-match",
        "title",
        "--condition",
        "title=Engineer",
        "--condition",
        "seen=1",
    ]
    told = answer("graph", "merge", jobs, "again.csv", "--node-type", "Job", "--key", "url", *rules)
    assert (*counts(told), told["changed"]) == (1, 2, 1)
    assert [
        row["properties"] for row in answer("graph", "query", jobs, '(Job {title in ["Architect", "Writer"]})')
    ] == [
        {"url": "/1", "title": "Architect", "company": "TechCorp", "seen": 1},
        {"url": "/4", "title": "Writer", "since": "tue"},
    ]


def test_edges_may_be_merged_by_ids_and_by_a_key_of_their_own(jobs: str, tmp_path: Path, answer: Read) -> None:
    (tmp_path / "knows.csv").write_text("one,other,kind\n1,2,a\n2,1,a\n1,2,b\n")
    place = ["graph", "merge", jobs, "knows.csv", "--edge-type", "KNOWS", "--from-id", "one", "--to-id", "other"]
    assert counts(answer(*place, "--key", "kind", "--direction", "both")) == (2, 1)
    rows = answer("graph", "query", jobs, "[KNOWS]", "--from-id", "1", "--to-id", "2", "--order-by", "kind")
    assert [row["properties"] for row in rows] == [{"kind": "a"}, {"kind": "b"}]
    assert answer("graph", "query", jobs, "[KNOWS]", "--from-id", "2") == []


# G19, G20, G21
def test_missing_nodes_are_deleted_kept_or_changed(jobs: str, tmp_path: Path, cli: Run, answer: Read) -> None:
    (tmp_path / "today.csv").write_text("url,title\n/1,Engineer\n/9,Cook\n")
    place = ["graph", "merge", jobs, "today.csv", "--node-type", "Job", "--key", "url"]
    refused = cli(*place, "--missing", "delete", code=1)
    assert "2 nodes to be deleted have edges: 2, 3. Pass --detach to delete" in refused.stderr
    assert answer("graph", "stats", jobs)["nodes"]["Job"] == 3
    kept = cli(*place, "--missing", "delete", "--detach", "keep")
    assert kept.stdout == f"{jobs}: 1 Job node created, 1 matched, 2 missing but kept\n"
    scope = ["--scope", "company=TechCorp"]
    inside = [*place[:3], "tech.csv", *place[4:], *scope]
    (tmp_path / "tech.csv").write_text("url\n/1\n")
    assert answer(*inside, "--missing", "active=false", "--missing", "seen=0")["missing_ids"] == [2]
    done = cli(*inside, "--missing", "delete", "--detach")
    assert done.stdout == f"{jobs}: 0 Job nodes created, 1 matched, 1 deleted, 1 of their edges deleted\n"
    for wrong in (["--missing", "active"], ["--missing", "a=1", "--missing", "a=2"]):
        assert "Give keep, delete, or each property once" in cli(*place, *wrong, code=1).stderr
    assert "--detach is for nodes" in cli(*place[:4], "--edge-type", "E", "--detach", "yes", code=2).stderr


# G22
def test_edges_whose_nodes_are_missing_are_skipped_or_their_nodes_created(
    jobs: str, tmp_path: Path, cli: Run, answer: Read
) -> None:
    (tmp_path / "more.csv").write_text("job,company\n/1,TechCorp\n/8,TechCorp\n/9,New\n")
    place = ["graph", "merge", jobs, "more.csv", "--edge-type", "SEEN", *ENDS]
    refused = cli(*place, code=1)
    assert "2 rows cannot be merged: row 1: no Job node has {'url': '/8'}; row 2: no Job" in refused.stderr
    assert (
        cli(*place, "--on-missing-node", "skip").stdout == f"{jobs}: 1 SEEN edge created, 0 matched, 2 rows skipped\n"
    )
    told = answer(*place, "--on-missing-node", "create", "--missing", "delete")
    assert (counts(told), told["nodes_created"], told["missing"]) == ((2, 1), 3, 0)


def test_former_names_of_options_work_and_are_not_shown(jobs: str, tmp_path: Path, cli: Run, answer: Read) -> None:
    assert jobs
    cli("graph", "merge", "old.db", "jobs.csv", "--label", "Job", "--key", "url", "--no-warn-on-missing-index")
    cli("graph", "merge", "old.db", "companies.csv", "--label", "Company", "--key", "name")
    nodes = ["--from-label", "Job", "--from-key", "url=job", "--to-label", "Company", "--to-key", "name=company"]
    cli("graph", "merge", "old.db", "posted.csv", "--type", "POSTED_BY", *nodes)
    assert answer("graph", "stats", "old.db")["edges"] == {"POSTED_BY": 3}
    assert answer("graph", "view", "old.db", "old.html", "--label", "Job", "--depth", "0")["nodes_shown"] == 3
    pq.write_table(pa.table({"id": [1]}), _folder(tmp_path / "g" / "vertices"))
    pq.write_table(pa.table({"src": [1], "dst": [1], "relationship": ["E"]}), _folder(tmp_path / "g" / "edges"))
    assert answer("graph", "import", "new.db", "g", "--label", "Stop")["nodes"] == 1
    for name in COMMANDS:
        assert "label" not in cli("graph", name, "--help").stdout


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path / "part-0.parquet"


@pytest.mark.parametrize("source", ["rows.parquet", "rows.jsonl", "-", "shop.sqlite::rows"])
def test_rows_come_from_any_source(source: str, tmp_path: Path, answer: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"name": ["a", "b"], "n": [1, 2]}), "rows.parquet")
    (tmp_path / "rows.jsonl").write_text('{"name": "a", "n": 1}\n{"name": "b", "n": 2}\n')
    with sqlite3.connect("shop.sqlite") as connection:
        connection.execute("CREATE TABLE rows AS SELECT 'a' AS name, 1 AS n UNION SELECT 'b', 2")
    connection.close()
    place = ["graph", "merge", "new.db", source, "--node-type", "Stop", "--key", "name", "--no-warn-on-missing-index"]
    assert counts(answer(*place, stdin=b"name,n\na,1\nb,2\n")) == (2, 0)
    assert [row["properties"] for row in answer("graph", "query", "new.db", "(Stop)")] == [
        {"name": "a", "n": 1},
        {"name": "b", "n": 2},
    ]


def test_a_merge_without_an_index_names_the_command_that_creates_one(jobs: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "towns.csv").write_text("name\nParis\n")
    told = cli("graph", "merge", jobs, "towns.csv", "--node-type", "Big Town", "--key", "name")
    assert told.stdout == "jobs.db: 1 Big Town node created, 0 matched\n"
    assert told.stderr.endswith("Create one: merganser graph index jobs.db 'Big Town' name\n")
    cli("graph", "index", jobs, "Big Town", "name")
    assert cli("graph", "merge", jobs, "towns.csv", "--node-type", "Big Town", "--key", "name").stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "GRAPH", "(Job)"],
        ["stats", "GRAPH"],
        ["export", "GRAPH", "out.json"],
        ["view", "GRAPH", "out.html"],
        ["drop-index", "GRAPH", "idx"],
        ["import", "GRAPH", "nothing.json"],
        ["import", "GRAPH", "nothing"],
        ["merge", "GRAPH", "nothing.csv", "--node-type", "Job", "--key", "url"],
        ["merge", "GRAPH", "posted.csv", "--edge-type", "POSTED_BY", *ENDS],
        ["merge", "GRAPH", "posted.csv", "--node-type", "Job", "--key", "nobody"],
        ["index", "GRAPH", "Job", 'a"b'],
    ],
)
@pytest.mark.parametrize("graph_name", ["missing.db", "empty.db"])
def test_a_missing_graph_is_not_created_by_reading(
    arguments: list[str], graph_name: str, jobs: str, tmp_path: Path, cli: Run
) -> None:
    assert jobs
    (tmp_path / "empty.db").touch()
    before = snapshot(str(tmp_path))
    refused = cli("graph", *(graph_name if word == "GRAPH" else word for word in arguments), code=1)
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1].startswith("Error: ")
    assert snapshot(str(tmp_path)) == before


def test_an_empty_file_may_become_a_graph(jobs: str, tmp_path: Path, cli: Run) -> None:
    assert jobs
    (tmp_path / "empty.db").touch()
    cli("graph", "merge", "empty.db", "jobs.csv", "--node-type", "Job", "--key", "url")
    assert cli("graph", "query", "empty.db", "(Job)", "--count").stdout == "3\n"
    assert sorted(name for name in os.listdir() if "empty" in name) == ["empty.db"]


def test_a_graph_that_another_process_creates_meanwhile_is_kept(
    jobs: str, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: str, goal: str) -> None:
        link(jobs, goal)
        link(source, goal)

    monkeypatch.setattr("os.link", late)
    refused = cli("graph", "merge", "new.db", "jobs.csv", "--node-type", "Job", "--key", "title", code=1)
    assert "Another process has created the graph new.db" in refused.stderr
    assert content("new.db") == content(jobs)
    assert sorted(name for name in os.listdir() if "new" in name) == ["new.db"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "kept/jobs.db"],
        ["query", "kept/jobs.db", "(#1)-[*]-()"],
        ["query", "kept/jobs.db", "(Job)", "--count"],
        ["export", "kept/jobs.db", "out.json"],
        ["export", "kept/jobs.db", "out.graphml"],
        ["export", "kept/jobs.db", "out"],
        ["view", "kept/jobs.db", "out.html"],
    ],
)
def test_reading_leaves_no_trace(
    arguments: list[str], jobs: str, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    os.rename(jobs, folder / jobs)
    connect, opened = sqlite3.connect, []

    def watched(address: str, **given: Any) -> Any:
        opened.append(address)
        return connect(address, **given)

    monkeypatch.setattr("sqlite3.connect", watched)
    # A file that comes and goes would change the time of its folder, and so be refused where that is write-protected.
    before = [folder.stat().st_mtime_ns, (folder / jobs).stat().st_mtime_ns]
    with assert_unchanged(str(folder)):
        cli("graph", *arguments)
    assert [folder.stat().st_mtime_ns, (folder / jobs).stat().st_mtime_ns] == before
    assert opened
    assert all("?mode=ro" in address for address in opened)


def test_what_a_writer_has_committed_is_read_while_it_goes_on(jobs: str, answer: Read) -> None:
    with GraphDatabase(jobs) as db:
        db.create_node("Job")
        with db.transaction():
            db.create_node("Job")
            assert answer("graph", "query", jobs, "(Job)", "--count") == {"count": 4}


@pytest.mark.parametrize("command_line", [["query", ".", "(Nope)"], ["stats", "."], ["index", ".", "A", "b"]])
def test_a_folder_is_not_a_graph(command_line: list[str], jobs: str, tmp_path: Path, cli: Run) -> None:
    assert jobs
    with assert_unchanged(str(tmp_path)):
        assert "'.' is a folder; a graph database is a file." in cli("graph", *command_line, code=1).stderr


def _no_connection(*_: Any, **__: Any) -> None:
    message = "unable to open database file"
    raise sqlite3.OperationalError(message)


def test_a_file_that_may_not_be_read_is_reported_as_such(jobs: str, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permissions are nothing to root.
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("sqlite3.connect", _no_connection)
    for words in (["stats", jobs], ["index", jobs, "A", "b"]):
        told = cli("graph", *words, code=1).stderr
        assert "'jobs.db'" in told
        assert "The file is not readable; change its permissions." in told


def test_a_graph_that_cannot_be_created_is_named_as_it_was_given(
    jobs: str, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs
    monkeypatch.setattr("sqlite3.connect", _no_connection)
    with assert_unchanged(str(tmp_path)):
        told = cli("graph", "index", "h.db", "A", "b", code=1).stderr
    assert told.startswith("Error: Cannot open the graph database 'h.db': unable to open")


def test_what_is_not_a_graph_is_refused(jobs: str, tmp_path: Path, cli: Run) -> None:
    assert jobs
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    (tmp_path / "text.db").write_text("no database, and long enough to be looked into")
    with assert_unchanged(str(tmp_path)):
        assert "not a graph of merganser" in cli("graph", "stats", "other.db", code=1).stderr
        assert "file is not a database" in cli("graph", "stats", "text.db", code=1).stderr
        assert (
            "The folder 'no' of the graph no/g.db does not exist"
            in cli("graph", "index", "no/g.db", "Job", "url", code=1).stderr
        )
        assert "local disk" in cli("graph", "index", "s3://b/g.db", "Job", "url", code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "jobs.db", "jobs.csv"],
        ["merge", "jobs.db", "jobs.csv", "--node-type", "Job"],
        ["merge", "jobs.db", "jobs.csv", "--node-type", "Job", "--edge-type", "T", "--key", "url"],
        ["merge", "jobs.db", "jobs.csv", "--node-type", "Job", "--key", "url", "--from-id", "a"],
        ["merge", "jobs.db", "jobs.csv", "--edge-type", "T", "--from-type", "Job"],
        ["merge", "jobs.db", "jobs.csv", "--edge-type", "T", "--to-type", "Job", "--to-key", "a", "--to-id", "b"],
        ["merge", "jobs.db", "jobs.csv", "--edge-type", "T", "--direction", "in"],
        ["import", "jobs.db", "out.json", "--node-type", "Job"],
        ["index", "jobs.db", "Job"],
        ["query", "jobs.db"],
        ["query", "jobs.db", "(Job)", "--param", "a"],
        ["export", "jobs.db", "out.txt", "--format", "dot"],
        ["export", "jobs.db", "out.txt"],
        ["view", "jobs.db", "out.html", "--query", "(Job)", "--node-type", "Job"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_ends_with_two(arguments: list[str], jobs: str, tmp_path: Path, cli: Run) -> None:
    assert jobs
    with assert_unchanged(str(tmp_path)):
        assert cli("graph", *arguments, code=2).stdout == ""


def test_a_refused_merge_changes_nothing(jobs: str, tmp_path: Path, cli: Run, answer: Read) -> None:
    (tmp_path / "bad.csv").write_text("job,company\n/1,DataWorks\n/9,TechCorp\n")
    (tmp_path / "null.jsonl").write_text('{"url": "/7"}\n{"url": null}\n')
    before = content(jobs)
    told = answer("graph", "merge", jobs, "bad.csv", "--edge-type", "POSTED_BY", *ENDS, code=1)
    assert told["error"]["type"] == "NodeNotFoundError"
    assert told["error"]["exit_code"] == 1
    assert "row 1" in told["error"]["message"]
    assert "row 1" in cli("graph", "merge", jobs, "null.jsonl", "--node-type", "Job", "--key", "url", code=1).stderr
    assert (
        "--on-match has 'a='"
        in cli(
            "graph", "merge", jobs, "jobs.csv", "--node-type", "Job", "--key", "url", "--on-match", "a=", code=1
        ).stderr
    )
    assert "locked" in _while_locked(jobs, cli).stderr
    assert content(jobs) == before


def _while_locked(path: str, cli: Run) -> Result:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        return cli("graph", "merge", path, "jobs.csv", "--node-type", "Job", "--key", "url", "--timeout", "0.1", code=1)
    finally:
        connection.close()


def test_debug_shows_where_an_error_comes_from(jobs: str) -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        app(["graph", "query", jobs, "(Job", "--debug"], standalone_mode=False)


def test_a_schema_is_enforced(jobs: str, tmp_path: Path, cli: Run) -> None:
    rules = {"nodes": {"Job": {"required": ["url", "pay"]}}, "edges": {"POSTED_BY": {"from_types": ["Job"]}}}
    (tmp_path / "schema.json").write_text(json.dumps(rules))
    place = ["graph", "merge", jobs, "jobs.csv", "--node-type", "Job", "--key", "title", "--schema"]
    with assert_unchanged(jobs):
        assert "needs the property 'pay'" in cli(*place, "schema.json", code=1).stderr
    told = cli(*place, "none.json", code=1).stderr
    assert told.startswith("Error: Cannot read the schema none.json: No such file or directory. Check the path")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "it cannot be read as JSON"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[]", "it is not an object"),
        (b'{"node": {}}', "it has 'node', which is not a known key"),
        (b'{"nodes": []}', "'nodes' is not an object"),
        (b'{"nodes": {"Job": ["url"]}}', "'Job' of 'nodes' is not an object"),
        (b'{"nodes": {"Job": {"needs": []}}}', "'Job' of 'nodes' has 'needs', which is not a known key"),
        (b'{"edges": {"AT": {"from_types": 7}}}', "'from_types' of 'AT' of 'edges' is not a list of strings"),
    ],
)
def test_what_is_not_a_schema_is_refused(text: bytes, why: str, jobs: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "rules.json").write_bytes(text)
    with assert_unchanged(str(tmp_path)):
        told = cli(
            "graph", "merge", jobs, "jobs.csv", "--node-type", "Job", "--key", "url", "--schema", "rules.json", code=1
        )
    assert told.stderr.startswith(f"Error: rules.json is not a schema: {why}")
    assert "Write a JSON object with 'nodes' and 'edges'" in told.stderr


def test_a_type_is_not_taken_for_a_word_of_the_message(jobs: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "rules.json").write_text('{"nodes": {"A": {"required": ["pay"]}}}')
    told = cli("graph", "merge", jobs, "jobs.csv", "--node-type", "A", "--key", "url", "--schema", "rules.json", code=1)
    assert "row 0: A 'A' node needs the property 'pay'." in told.stderr


QUERIES = [
    ("(Job)", [1, 2, 3]),
    ("( : Job )", [1, 2, 3]),
    ("()", [1, 2, 3, 4, 5]),
    ("(#2)", [2]),
    ('(Job #2 {title: "Designer"})', [2]),
    ('(Job #2 {title: "Engineer"})', []),
    ("(Job {seen >= 2})", [2, 3]),
    ('(Job {seen != 2, company = "TechCorp"})', [1]),
    ("(`Job` {`seen` in [1, 3]})", [1, 3]),
    ('("Job" {"title" starts_with "D"})', [2]),
    ('(Job {title contains "e", title ends_with "r"})', [1, 2]),
    ("(Job {pay: null})", [1, 2, 3]),
    ("(Nobody)", []),
    ('(Company {name: "TechCorp"})<-[POSTED_BY*]-()', [1, 2]),
    ("(#4)-[POSTED_BY|LIKES*1..2]-(Job)", [1, 2]),
    ("(#1)-[*2..2]-()", [2]),
    ("(#1)-[*2]-()", [2]),
    ("(#1)-[*..1]-()", [4]),
]


@pytest.mark.parametrize(("text", "ids"), QUERIES)
def test_a_query_finds_nodes(text: str, ids: list[int], jobs: str, answer: Read) -> None:
    assert [row["id"] for row in answer("graph", "query", jobs, text)] == ids
    assert answer("graph", "query", jobs, text, "--count") == {"count": len(ids)}


PATHS = [
    ("(Job)-[POSTED_BY]->(Company)", [[1, 4], [2, 4], [3, 5]]),
    ('(Job {title: "Analyst"})-->()', [[3, 5]]),
    ("(Company)<--(Job)", [[4, 1], [4, 2], [5, 3]]),
    ("(#1)--()<-[POSTED_BY]-(Job)", [[1, 4, 2]]),
    ("(#1)-[*]-(#2)", [[1, 4, 2]]),
    ('(#1)-[*]-(Job {title: "Designer"})', [[1, 4, 2]]),
    ("(#1)-[*..1]-(#2)", []),
    ("(#1)-[*]->(#3)", []),
]


@pytest.mark.parametrize(("text", "ids"), PATHS)
def test_a_query_finds_paths(text: str, ids: list[list[int]], jobs: str, answer: Read) -> None:
    rows = answer("graph", "query", jobs, text)
    assert [[node["id"] for node in row["nodes"]] for row in rows] == ids
    assert answer("graph", "query", jobs, text, "--count") == {"count": len(ids)}


def test_a_query_prints_a_readable_table(jobs: str, cli: Run) -> None:
    shown = cli("graph", "query", jobs, "(Job {seen > $seen})", "--param", "seen=1", "--order-by", "title").stdout
    assert shown.splitlines() == [
        "id  type  url  title     company    seen",
        "3   Job   /3   Analyst   DataWorks  3",
        "2   Job   /2   Designer  TechCorp   2",
        "2 nodes",
    ]
    assert cli("graph", "query", jobs, "(#1)-[*]-(#2)").stdout.splitlines() == [
        '(Job {url: "/1"})-[POSTED_BY]->(Company #4)<-[POSTED_BY]-(Job {url: "/2"})',
        "1 path",
    ]
    assert cli("graph", "query", jobs, "(#1)-[*..2]-()", "--paths").stdout.count("\n") == 3
    assert cli("graph", "query", jobs, "[POSTED_BY {since < 2026}]").stdout.splitlines()[1:] == [
        "3   POSTED_BY  3        5      2025",
        "1 edge",
    ]
    assert cli("graph", "query", jobs, "(Nobody)").stdout == "0 nodes\n"
    assert cli("graph", "query", jobs, "(Job)", "--count").stdout == "3\n"


def test_a_query_with_clauses_gives_rows(jobs: str, cli: Run, answer: Read) -> None:
    text = "MATCH (j:Job)-->(c) WHERE j.seen > $seen RETURN c.name, count(*) AS n ORDER BY n DESC, c.name"
    assert answer("graph", "query", jobs, text, "--param", "seen=0") == [
        {"c.name": "TechCorp", "n": 2},
        {"c.name": "DataWorks", "n": 1},
    ]
    assert cli("graph", "query", jobs, text, "--param", "seen=1").stdout.splitlines() == [
        "c.name     n",
        "DataWorks  1",
        "TechCorp   1",
        "2 rows",
    ]
    assert answer("graph", "query", jobs, text, "--param", "seen=0", "--count") == {"count": 2}
    assert answer("graph", "query", jobs, "MATCH (j:Job) RETURN j.seen LIMIT 2", "--count") == {"count": 2}
    assert [row["id"] for row in answer("graph", "query", jobs, "MATCH (j:Job) WHERE j.seen > 2 RETURN j")] == [3]
    assert answer("graph", "query", jobs, "(Job)", "--connected-to", "-[{since: 2026}]->()", "--count") == {"count": 2}


def test_a_query_may_merge(jobs: str, cli: Run, answer: Read) -> None:
    text = "MERGE (j:Job {url: $url}) ON MATCH SET j.seen = 9"
    assert answer("graph", "query", jobs, text, "--param", "url=/9") == [{"created": 1, "matched": 0}]
    assert cli("graph", "query", jobs, text, "--param", "url=/9").stdout.splitlines() == [
        "created  matched",
        "0        1",
        "1 row",
    ]
    (merged,) = answer("graph", "query", jobs, f"{text} RETURN j", "--param", "url=/9")
    assert (merged["properties"], merged["created"]) == ({"url": "/9", "seen": 9}, False)
    # A missing index is reported with the command that creates it.
    assert (
        f"Create one: merganser graph index {jobs} Stop n" in cli("graph", "query", jobs, "MERGE (:Stop {n: 1})").stderr
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["query", "GRAPH", "MERGE (:Job {url: 1})", "--limit", "1"], "--limit does not apply to a merge"),
        (["query", "GRAPH", "MERGE (:Job {url: 1})", "--count"], "--count does not apply to a merge"),
        (["query", "none.db", "MERGE (:Job {url: 1})"], "The graph file none.db does not exist"),
        (["query", "GRAPH", "MATCH (j) RETURN j", "--limit", "1"], "--limit does not apply to a query with clauses"),
        (
            ["query", "GRAPH", "MATCH (j) RETURN j", "--order-by", "a"],
            "--order-by does not apply to a query with clauses",
        ),
        (["view", "GRAPH", "v.html", "--query", "MERGE (:Job {url: 1})"], "--query of a view finds where to start"),
        (["view", "GRAPH", "v.html", "--query", "MATCH (j) RETURN j.url"], "The query returns rows"),
    ],
)
def test_options_that_a_query_has_no_use_for_are_refused(
    arguments: list[str], reason: str, jobs: str, cli: Run
) -> None:
    with assert_unchanged(jobs):
        stderr = cli("graph", *[jobs if word == "GRAPH" else word for word in arguments], code=1).stderr
    assert reason in stderr
    assert not os.path.exists("none.db")


def test_a_query_is_narrowed(jobs: str, answer: Read) -> None:
    def ids(*arguments: str) -> list[int]:
        return [row["id"] for row in answer("graph", "query", jobs, "(Job)", *arguments)]

    assert ids("--order-by", "company", "--order-by", "seen", "--descending") == [2, 1, 3]
    assert ids("--limit", "1", "--offset", "1") == [2]
    assert ids("--connected-to", "-[POSTED_BY]->(Company {name: $name})", "--param", "name=DataWorks") == [3]
    assert ids("--not-connected-to", '-->(Company {name: "DataWorks"})') == [1, 2]
    assert ids("--connected-to", "<--()") == []
    assert len(answer("graph", "query", jobs, "(Job)-->()", "--limit", "2")) == 2
    assert len(answer("graph", "query", jobs, "(#4)<-[*]-()", "--limit", "1")) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["(Job"], "at the end: expected )"),
        (["Job"], "expected ("),
        (["(Job) x"], "at line 1, column 7, before 'x': expected the end"),
        (["(Job)-[:A]->(Job)\n  <x"], "at line 2, column 3, before '<x': expected -"),
        (["(Job {url})"], "expected an operator"),
        (["(Job {url: a})"], "at line 1, column 12, before 'a})': expected a value such as 7"),
        ([f"(Job {{url: {'[' * 20_000}"], "the value is nested too deeply"),
        (["(Job {url: $url})"], "The query uses $url, but no value is given for it"),
        (["(Job)", "--param", "url=1"], "No query uses the parameter $url. Leave it out"),
        (["(Job)<-[A]->(Job)"], "an edge has one direction"),
        (["(Job)-[*]->()"], "several nodes match"),
        (["(Nobody)-[*]->()"], "no node matches"),
        (["(#1)-[*]->()-->()"], "must be the only edge"),
        (["(#1)-[*]-()", "--paths"], "Give the largest number of edges, as in [*1..3]"),
        (["(#99)-[*]->()"], "99"),
        ([f"(#{'9' * 5000})"], "9…, is too large"),
        (["(#99999999999999999999)"], "The id of a node in the query, 99999999999999999999, is too large"),
        (["(#9223372036854775808)-->()"], "is too large; the highest is 9223372036854775807"),
        (["(#1)-[*99999999999999999999]-()"], "The number of edges in the query, 99999999999999999999, is too large"),
        (["(#1)-[*3..1]-()"], "before ']-()': * takes the minimum number of edges"),
        (["(#1)-[*0]-()"], "the minimum number of edges, 1 or more, and the maximum"),
        (["(#1)-->()", "--order-by", "a"], "--order-by does not apply to a query for paths"),
        (["[A]", "--connected-to", "-->()"], "--connected-to does not apply to a query for edges"),
        (["[A|B]"], "has one type"),
        (["(Job)", "--from-id", "1"], "--from-id does not apply to a query for nodes"),
        (["(Job)", "--connected-to", "-->(#1)"], "by its id #1"),
        (["(Job)", "--connected-to", "-[*]->()"], "An edge to a neighbour may not have *"),
        (["(Job)", "--limit", "-1"], "--limit"),
    ],
)
def test_a_query_that_cannot_be_asked_says_why(arguments: list[str], told: str, jobs: str, cli: Run) -> None:
    with assert_unchanged(jobs):
        stderr = cli("graph", "query", jobs, *arguments, code=1).stderr
    assert told in stderr


def test_what_json_holds_stays_the_same(jobs: str, answer: Read) -> None:
    found = answer("graph", "stats", jobs)
    assert list(found) == ["path", "size_bytes", "node_count", "edge_count", "nodes", "edges", "indexes"]
    assert found["nodes"] == {"Company": 2, "Job": 3}
    assert found["edges"] == {"POSTED_BY": 3}
    assert found["size_bytes"] == os.path.getsize(jobs)
    assert list(found["indexes"][0]) == ["name", "table", "columns", "unique", "partial"]
    assert list(answer("graph", "index", jobs, "POSTED_BY", "since", "--edges")) == list(found["indexes"][0])
    assert answer("graph", "drop-index", jobs, "idx_merge_POSTED_BY_since") == {"dropped": "idx_merge_POSTED_BY_since"}
    (job,) = answer("graph", "query", jobs, "(#1)")
    assert list(job) == ["id", "type", "properties", "created_at", "updated_at"]
    (edge,) = answer("graph", "query", jobs, "[POSTED_BY]", "--from-id", "1")
    assert list(edge) == ["id", "type", "from_id", "to_id", "properties", "created_at", "updated_at"]
    assert list(answer("graph", "query", jobs, "(#1)-->()")[0]) == ["nodes", "edges"]
    assert answer("graph", "export", jobs, "out.json") == {"path": "out.json", "format": "json"}
    assert list(answer("graph", "import", "copy.db", "out.json")) == ["nodes", "edges", "ids"]
    assert list(answer("graph", "view", jobs, "out.html", "--node-type", "Job")) == [
        "path", "nodes", "nodes_shown", "edges", "nodes_left_out", "edges_left_out",
    ]  # fmt: skip


def test_stats_print_a_readable_table(jobs: str, cli: Run) -> None:
    size = os.path.getsize(jobs)
    assert cli("graph", "stats", jobs).stdout.splitlines() == [
        f"jobs.db: 5 nodes, 3 edges, {size:,} bytes",
        "nodes  Company    2",
        "nodes  Job        3",
        "edges  POSTED_BY  3",
        "index  idx_merge_Company_name (nodes of type = 'Company' by name)",
        "index  idx_merge_Job_url (unique, nodes of type = 'Job' by url)",
    ]


@pytest.mark.parametrize(("out", "kind"), [("out.json", "json"), ("out", "parquet"), ("out.x", "json")])
def test_an_export_can_be_imported_again(out: str, kind: str, jobs: str, cli: Run, answer: Read) -> None:
    cli("graph", "export", jobs, out, "--format", kind)
    assert cli("graph", "import", "copy.db", out, "--format", kind).stdout == "copy.db: 5 nodes and 3 edges added\n"
    assert content("copy.db")[:2] == content(jobs)[:2]
    assert answer("graph", "import", "copy.db", out, "--format", kind, "--yes")["ids"]["1"] == 6


def test_an_import_asks_before_it_adds_to_other_nodes(jobs: str, tmp_path: Path, cli: Run) -> None:
    cli("graph", "export", jobs, "out.json")
    cli("graph", "import", "copy.db", "out.json")
    before = content("copy.db")
    with assert_unchanged(str(tmp_path)):
        told = cli("graph", "import", "copy.db", "out.json", code=2).stderr
    assert "copy.db has 5 nodes already" in told
    assert "pass --yes" in told
    assert content("copy.db") == before


def test_a_failed_import_names_the_remedy(jobs: str, tmp_path: Path, cli: Run) -> None:
    cli("graph", "export", jobs, "out.graphml")
    with assert_unchanged(str(tmp_path)):
        told = cli("graph", "import", "c.db", "out.graphml", "--format", "json", code=1).stderr
        assert "cannot be read as JSON" in told
        assert "`merganser graph merge`" in cli("graph", "import", "c.db", "jobs.csv", code=1).stderr
        told = cli("graph", "import", "c.db", "out.json", "--edge-type", "E", code=2).stderr
        assert "--edge-type is not for JSON" in told
        assert "--edge-type is for GraphML" in cli("graph", "import", "c.db", "out", "--edge-type", "E", code=2).stderr


def test_graphml_can_be_imported_and_may_lack_types(jobs: str, tmp_path: Path, cli: Run, answer: Read) -> None:
    cli("graph", "export", jobs, "out.graphml")
    assert cli("graph", "import", "copy.db", "out.graphml").stdout == "copy.db: 5 nodes and 3 edges added\n"
    before, after = [
        [record["properties"] for record in answer("graph", "query", path, "(Job)")] for path in (jobs, "copy.db")
    ]
    assert after == before
    body = '<graphml><graph><node id="a"/><edge source="a" target="a"/></graph></graphml>'
    (tmp_path / "x.graphml").write_text(body)
    cli("graph", "import", "c.db", "x.graphml", "--node-type", "N", "--edge-type", "E")
    found = answer("graph", "stats", "c.db")
    assert (found["nodes"], found["edges"]) == ({"N": 1}, {"E": 1})


def test_one_node_and_one_edge_are_printed_in_the_singular(tmp_path: Path, cli: Run) -> None:
    path, out = str(tmp_path / "g.db"), str(tmp_path / "out.json")
    with GraphDatabase(path) as db:
        stop = db.create_node("Stop")
        db.create_edge(stop.id, "NEXT", stop.id)
    assert "g.db: 1 node, 1 edge, " in cli("graph", "stats", path).stdout
    cli("graph", "export", path, out)
    assert cli("graph", "import", str(tmp_path / "c.db"), out).stdout.endswith("c.db: 1 node and 1 edge added\n")


def test_the_help_of_query_has_its_examples_line_by_line(cli: Run) -> None:
    shown = cli("graph", "query", "--help").stdout
    assert "\\b" not in shown
    assert "'(#1)-[*]->(#9)'                                          the shortest path\n" in shown


def test_vertices_without_a_type_get_one(tmp_path: Path, answer: Read) -> None:
    for name, rows in (
        ("vertices", {"id": ["a", "b"]}),
        ("edges", {"src": ["a"], "dst": ["b"], "relationship": ["NEXT"]}),
    ):
        (tmp_path / "g" / name).mkdir(parents=True)
        pq.write_table(pa.table(rows), tmp_path / "g" / name / "part-0.parquet")
    path = str(tmp_path / "new.db")
    answer("graph", "import", path, str(tmp_path / "g"), code=1)
    assert not os.path.exists(path)
    assert answer("graph", "import", path, str(tmp_path / "g"), "--node-type", "Stop")["ids"] == {"a": 1, "b": 2}
    assert answer("graph", "query", path, "(Stop)", "--count") == {"count": 2}


@pytest.mark.parametrize("out", ["out.json", "out.graphml", "out"])
def test_an_export_asks_before_it_replaces_a_file(out: str, jobs: str, tmp_path: Path, cli: Run) -> None:
    cli("graph", "export", jobs, out)
    with assert_unchanged(str(tmp_path)):
        assert "pass --yes" in cli("graph", "export", jobs, out, code=2).stderr
    cli("graph", "merge", jobs, "companies.csv", "--node-type", "Firm", "--key", "name", "--no-warn-on-missing-index")
    before = snapshot(str(tmp_path))
    cli("graph", "export", jobs, out, "--yes")
    assert snapshot(str(tmp_path)) != before


def facts(page: str) -> Any:
    """What a page holds of the graph."""
    return json.loads(page.partition('<script type="application/json" id="graph">')[2].partition("</script>")[0])


def test_a_view_is_one_file_that_loads_nothing(jobs: str, tmp_path: Path, cli: Run) -> None:
    shown = cli("graph", "view", jobs, "v.html", "--node-type", "Company", "--key", "name=TechCorp", "--depth", "0")
    assert shown.stdout == "v.html: 1 node, 2 more by expanding, 2 edges\n"
    page = (tmp_path / "v.html").read_text("utf-8")
    held = facts(page)
    assert [(node["id"], node["distance"]) for node in held["nodes"]] == [("4", 0), ("1", 1), ("2", 1)]
    assert held["title"] == "jobs.db"
    assert held["depth"] == 0
    assert "default-src 'none'" in page
    assert "http://www.w3.org/2000/svg" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("http") == 1  # http-equiv
    for word in ("src=", "@import", "url(h", "fetch(", "XMLHttpRequest", "innerHTML", "eval("):
        assert word not in page


def test_a_view_says_what_it_leaves_out(jobs: str, tmp_path: Path, cli: Run, answer: Read) -> None:
    shown = cli("graph", "view", jobs, "v.html", "--query", "(#4)", "--limit", "2")
    assert shown.stdout.splitlines() == [
        "v.html: 2 nodes, 1 edge",
        "left out: 1 node next to these, 0 edges between them",
    ]
    assert facts((tmp_path / "v.html").read_text("utf-8"))["nodesLeftOut"] == 1
    told = answer("graph", "view", jobs, "v.html", "--node-type", "Job", "--limit", "2", "--yes")
    assert told["nodes"] == 2
    held = facts((tmp_path / "v.html").read_text("utf-8"))
    assert held["note"] == "3 match; this starts at the first 2."
    refused = cli("graph", "view", jobs, "w.html", "--limit", "2", code=1)
    assert "The graph has 5 nodes, more than the 2 of --limit" in refused.stderr
    assert not os.path.exists("w.html")


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ([], ["1", "2", "3", "4", "5"]),
        (["--query", "(Job {seen > $n})", "--param", "n=2", "--depth", "0"], ["3", "5"]),
        (["--query", "[POSTED_BY {since: 2025}]", "--edge-type", "NONE"], ["3", "5"]),
        (["--query", "(#1)-[*]-(#2)", "--edge-type", "NONE"], ["1", "4", "2"]),
        (["--key", "url=/1", "--direction", "in"], ["1"]),
        (["--key", "url=/1", "--edge-type", "POSTED_BY", "--depth", "2"], ["1", "4", "2"]),
        (["--key", "seen=3", "--title", "Mine"], ["3", "5"]),
    ],
)
def test_a_view_starts_at_the_given_node(
    arguments: list[str], ids: list[str], jobs: str, tmp_path: Path, cli: Run
) -> None:
    cli("graph", "view", jobs, "v.html", *arguments)
    assert [node["id"] for node in facts((tmp_path / "v.html").read_text("utf-8"))["nodes"]] == ids


def test_a_view_without_nodes_or_over_a_file_is_refused(jobs: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "v.html").write_text("mine")
    with assert_unchanged(str(tmp_path)):
        assert "No node matches" in cli("graph", "view", jobs, "v.html", "--node-type", "Nobody", code=1).stderr
        assert "pass --yes" in cli("graph", "view", jobs, "v.html", code=2).stderr
        assert (
            "The folder 'nodir' of the file nodir/v.html does not exist"
            in cli("graph", "view", jobs, "nodir/v.html", code=1).stderr
        )
        assert "--depth" in cli("graph", "view", jobs, "v.html", "--depth", "-1", "--yes", code=2).stderr
        assert "--limit" in cli("graph", "view", jobs, "v.html", "--limit", "0", "--yes", code=2).stderr
    cli("graph", "view", jobs, "v.html", "--yes")


BAD = "</script><script>alert(1)</script><!--<script>\u2028\u202e&amp;\x1b[31m\x07\"'`"


def test_no_value_is_mistaken_for_another(tmp_path: Path, cli: Run, answer: Read) -> None:
    path = str(tmp_path / "g.db")
    with GraphDatabase(path) as db:
        one, two = db.create_node(BAD, {BAD: BAD, "n": 2**60}), db.create_node("Job", {"list": [BAD]})
        db.create_edge(one.id, BAD, two.id, {"w": BAD})
    assert answer("graph", "query", path, "()")[0]["properties"] == {BAD: BAD, "n": 2**60}
    for arguments in (["query", path, "()"], ["query", path, "[]"], ["query", path, "()-->()"], ["stats", path]):
        shown = cli("graph", *arguments).stdout
        assert all(character.isprintable() or character == "\n" for character in shown)
    out = tmp_path / "v.html"
    cli("graph", "view", path, str(out), "--title", BAD)
    page = out.read_text("utf-8")
    held = facts(page)
    assert held["title"] == BAD
    assert held["nodes"][0]["properties"] == [[BAD, BAD], ["n", str(2**60)]]
    assert held["edges"][0]["type"] == BAD
    assert page.count("<script") == page.count("</script") == 2
    assert "\x1b" not in page
    assert "<!--" not in page


@pytest.mark.slow
def test_help_loads_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom merganser.cli import main\ntry: main()\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "graph", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Merge keyed rows as nodes or edges." in done.stdout
    assert not any(f"'{name}'" in done.stderr for name in ("pyarrow", "numpy", "duckdb", "sqlite3", "merganser.graph"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, cli: Run) -> None:
    assert command(name).get_short_help_str(200) == COMMANDS[name][1]
    assert "--json" in cli("graph", name, "--help").stdout
    assert COMMANDS[name][1] in cli("graph", "--help").stdout


@pytest.mark.parametrize(
    ("name", "call", "elsewhere"),
    [
        ("merge", GraphDatabase.bulk_merge_nodes, {"type": "node_type", "rows": "source"}),
        (
            "merge",
            GraphDatabase.bulk_merge_edges,
            {"type": "edge_type", "rows": "source", "from_node": "from_key", "to_node": "to_key"},
        ),
        # Some commands only read.
        ("merge", GraphDatabase.__init__, {"path": "graph", "read_only": "graph"}),
        ("import", GraphDatabase.import_json, {"path": "source"}),
        ("import", GraphDatabase.import_parquet, {"folder": "source"}),
        (
            "index",
            GraphDatabase.create_property_index,
            {"type": "type_", "property": "properties", "table": "of_edges"},
        ),
        ("drop-index", GraphDatabase.drop_index, {}),
        ("query", GraphDatabase.edges, {"type": "query"}),
        ("export", GraphDatabase.export_parquet, {"folder": "out"}),
        ("view", GraphDatabase.neighbourhood, {"start": "query"}),
    ],
)
def test_every_option_of_the_library_is_an_option_here(
    name: str, call: Callable[..., Any], elsewhere: dict[str, str]
) -> None:
    asked = {elsewhere.get(option, option) for option in inspect.signature(call).parameters if option != "self"}
    assert asked <= {parameter.name for parameter in command(name).params}
