"""What commands print: names and values that a terminal would obey are escaped, credentials are masked."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import SECRET, VaultFileSystem, open_vault, put

import merganser
from merganser.graph import GraphDatabase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

# Clears the screen, rings, goes back to the start of the line, and turns the rest of it round.
HOSTILE = "\x1b[2J\x07\r\x9b1m\u202e"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def check(result: Result, *told: str) -> None:
    """Assert that no control character is printed, and that the message is complete."""
    printed = result.stdout + result.stderr
    assert not OBEYED.search(printed), printed
    for one in told:
        assert one in printed


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A dataset whose path, columns, partitions and keys would all do something to a terminal."""
    path = str(tmp_path / f"t{HOSTILE}")
    table = pa.table({f"id{HOSTILE}": [f"a{HOSTILE}", "b"], f"d{HOSTILE}": ["x", f"y{HOSTILE}\n"]})
    merganser.merge(
        table,
        path,
        key_columns=f"id{HOSTILE}",
        partition_columns=f"d{HOSTILE}",
        batch_id=f"batch{HOSTILE}",
        retain=1,
        engine="arrow",
    )
    return path


def test_names_and_values_are_printed_escaped(cli: Callable[..., Result], hostile: str, tmp_path: Path) -> None:
    name, key = f"id{HOSTILE}", f'"id{HOSTILE}"'
    source = put(str(tmp_path / "s.parquet"), pa.table({name: [f"a{HOSTILE}"] * 2, f"d{HOSTILE}": ["x", "x"]}))
    one = put(str(tmp_path / "one.parquet"), pa.table({name: [f"a{HOSTILE}"], f"d{HOSTILE}": ["x"]}))
    check(cli("inspect", hostile, "--key", key), r"id\x1b[2J\x07\r\x9b1m\u202e", r"t\x1b[2J")
    check(cli("history", hostile), r"(batch batch\x1b[2J")
    check(cli("plan", one, hostile, "--key", key, "--engine", "arrow"), r"rewrite ", r"t\x1b[2J", "█ rewritten 1")
    check(cli("merge", source, hostile, "--key", key, "--engine", "arrow", code=1), r"\x1b[2J", "duplicate")
    check(cli("merge", one, hostile, "--key", f'"no{HOSTILE}"', "--engine", "arrow", code=1), r"no\x1b[2J")
    check(cli("inspect", hostile, "--key", name, code=2), r"id\x1b[2J", "double quotes")
    missing = cli("merge", f"no{HOSTILE}.csv", hostile, "--key", key, "--engine", "arrow", code=1)
    check(missing, r"no\x1b[2J")
    check(cli("recover", hostile), r"t\x1b[2J")
    check(cli("undo", hostile, code=2), r"t\x1b[2J")
    check(cli("history", f"{hostile}x", f"y{HOSTILE}", code=2), r"y\x1b[2J")
    check(cli(f"no{HOSTILE}", code=2), r"no\x1b[2J")
    plan = merganser.plan(one, hostile, key_columns=name, engine="arrow")
    assert r"t\x1b[2J" in str(plan)
    assert not OBEYED.search(str(plan))


def test_json_is_printed_escaped_and_means_the_same(cli: Callable[..., Result], hostile: str) -> None:
    for command in (("inspect", hostile), ("history", hostile)):
        check(found := cli(*command, "--json"), r"\u001b[2J\u0007\r\u009b1m\u202e")
        assert HOSTILE in repr(json.loads(found.stdout)).encode().decode("unicode_escape")
    check(found := cli("recover", f"{hostile}/none", "--json", code=1))
    assert json.loads(found.stdout)["error"]["type"] == "TargetPathError"


def test_a_graph_is_printed_escaped(cli: Callable[..., Result], answer: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "g.db")
    with GraphDatabase(path) as graph:
        graph.create_node(f"Job{HOSTILE}", {f"url{HOSTILE}": f"a{HOSTILE}\n"})
        graph.create_property_index(f"Job{HOSTILE}", "url\x9b\u202e")
    check(cli("graph", "query", path, f"(`Job{HOSTILE}`)"), r"Job\x1b[2J", r"a\x1b[2J")
    check(cli("graph", "stats", path), r"Job\x1b[2J", r"url\x9b\u202e")
    check(cli("graph", "query", path, f"(`Job{HOSTILE}", code=1), r"\x1b[2J")
    (row,) = answer("graph", "query", path, f"(`Job{HOSTILE}`)")
    assert row["properties"] == {f"url{HOSTILE}": f"a{HOSTILE}\n"}


def test_credentials_are_printed_nowhere(cli: Callable[..., Result], tmp_path: Path) -> None:
    path = f"{open_vault()}/t"
    source = put(str(tmp_path / "s.parquet"), pa.table({"id": [1, 2]}))
    merge = ("merge", source, path, "--key", "id", "--retain", "1")
    commands = [
        merge,
        ("plan", source, path, "--key", "id"),
        ("history", path),
        ("inspect", path, "--key", "id"),
        ("compact", path),
        ("dedupe", path, "--key", "id"),
        ("write", source, path),
        ("recover", path),
        ("vacuum", path, "--yes"),
    ]
    for command in commands:
        for form in ((), ("--json",)):
            found = cli(*command, *form)
            assert SECRET not in found.stdout + found.stderr
    for refused, code in (
        (("merge", f"{path}/none.csv", path, "--key", "id"), 1),
        (("history", path.replace("/t", "/none")), 1),
        (("history", path.replace(SECRET, f"x{SECRET}")), 1),
        (("undo", path), 2),
        (("history", path, path), 2),
    ):
        found = cli(*refused, code=code)
        assert SECRET not in found.stdout + found.stderr
        assert "***@host" in found.stdout + found.stderr or refused[1] != path
    told = json.loads(cli("undo", path, "--json", code=2).stdout)["error"]["message"]
    assert "vault://***@host/lake/t" in told
    VaultFileSystem.store.clear()


# M11
def test_what_is_nested_too_deeply_is_refused_wherever_it_comes_in(cli: Callable[..., Result], tmp_path: Path) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    graph, file = str(tmp_path / "g.db"), tmp_path / "deep.json"
    check(
        cli("merge", "-", str(tmp_path / "t"), "--key", "id", code=1, stdin=f'{{"id": {deep}}}'.encode()), "200 levels"
    )
    file.write_text(deep, "utf-8")
    check(cli("graph", "import", graph, str(file), code=1), "nested too deeply")
    rows = put(str(tmp_path / "rows.parquet"), pa.table({"name": ["a"]}))
    merge = ("graph", "merge", graph, rows, "--node-type", "N", "--key", "name")
    check(cli(*merge, "--schema", str(file), code=1), "nested too deeply")
    cli(*merge)
    check(cli("graph", "query", graph, "(N {name = $x})", "--param", f"x={deep}"), "0 nodes")
    target = f"memory://{tmp_path.name}/t"
    check(cli("merge", rows, target, "--key", "name", "--storage-option", f"x={deep}"), "1 inserted")
