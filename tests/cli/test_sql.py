"""`merganser sql`: statements as arguments and in files, sources by name, and plans."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import assert_unchanged, open_dataset_io, to_plain_rows

from merganser.cli.app import app
from merganser.cli.dataset.sql import _CLAUSES
from merganser.core.commit import commit
from merganser.core.model.options import list_options
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

ALL = "WHEN MATCHED THEN UPDATE BY NAME WHEN NOT MATCHED THEN INSERT BY NAME"


@pytest.fixture
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result]) -> Any:
    """The current folder, with the dataset `orders` and a file to merge."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "monday.csv").write_text("id,code,price\n1,001,1.5\n2,002,2.5\n")
    (tmp_path / "tuesday.csv").write_text("id,code,price\n2,020,9.5\n4,040,4.5\n")
    cli("merge", "monday.csv", "orders", "--key", "id")
    return tmp_path


def read_orders() -> list[tuple[Any, ...]]:
    rows = to_plain_rows(open_dataset_io("arrow").read("orders").to_table())
    return sorted((row["id"], row["code"], row["price"]) for row in rows)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [name for name in ENGINES if name != "spark"])
def test_a_statement_merges_a_file(name: str, cli: Callable[..., Result]) -> None:
    text = f"MERGE INTO 'orders' AS t USING 'tuesday.csv' AS s ON t.id = s.id {ALL}"
    assert "1 inserted, 1 updated, 0 deleted" in cli("sql", text, "--engine", name).stdout
    assert read_orders() == [(1, "001", 1.5), (2, "020", 9.5), (4, "040", 4.5)]


def test_a_statement_is_read_from_a_file_or_standard_input(folder: Any, answer: Callable[..., Any]) -> None:
    text = f"-- é\nMERGE INTO 'orders' AS t USING (SELECT * FROM rows WHERE id > 3) AS s ON t.id = s.id\n{ALL};\n"
    (folder / "merge.sql").write_text(f"\ufeff{text}", "utf-8")
    assert answer("sql", "-f", "merge.sql", "--source", "rows=tuesday.csv")["inserted"] == 1
    found = answer("sql", "-f", "-", "--source", "rows=tuesday.csv", stdin=text.encode())
    assert (found["inserted"], found["updated"]) == (0, 1)
    assert read_orders() == [(1, "001", 1.5), (2, "002", 2.5), (4, "040", 4.5)]


@pytest.mark.usefixtures("folder")
def test_a_source_is_standard_input(cli: Callable[..., Result]) -> None:
    text = f"MERGE INTO 'orders' AS t USING Rows AS s ON t.id = s.id {ALL}"
    cli("sql", text, "--source", "rows=-", stdin=b"id,code,price\n1,7,7.5\n")
    assert read_orders() == [(1, "7", 7.5), (2, "002", 2.5)]


@pytest.mark.usefixtures("folder")
def test_options_of_reading_and_merging_apply(answer: Callable[..., Any], folder: Any) -> None:
    (folder / "tuesday.csv").write_text("id;code;price\n2;020;NA\n")
    text = "MERGE INTO 'orders' AS t USING %s AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET price = s.price"
    options = ["--delimiter", ";", "--null-value", "NA", "--column-type", "price=double", "--batch-id", "tuesday"]
    assert answer("sql", text % "'tuesday.csv'", *options)["replayed"] is False
    assert answer("sql", text % "'tuesday.csv'", *options)["replayed"] is True
    assert answer("sql", text % "(FROM 'tuesday.csv')", *options[:-2])["updated"] == 1
    assert read_orders() == [(1, "001", 1.5), (2, "002", None)]


@pytest.mark.usefixtures("folder")
def test_a_dry_run_shows_the_plan(cli: Callable[..., Result]) -> None:
    text = f"MERGE INTO 'orders' AS t USING 'tuesday.csv' AS s ON t.id = s.id {ALL}"
    with assert_unchanged("orders"):
        shown = cli("sql", text, "--dry-run").stdout
    lines = [line.strip() for line in shown.splitlines()]
    assert lines[:2] == ["merge of 2 rows into orders on id:", "WHEN MATCHED THEN UPDATE BY NAME"]
    assert lines[3] == "1 inserted, 1 updated, 0 deleted"


@pytest.mark.usefixtures("folder")
def test_returning_is_printed(cli: Callable[..., Result], answer: Callable[..., Any]) -> None:
    text = "MERGE INTO 'orders' AS t USING 'tuesday.csv' AS s ON t.id = s.id WHEN MATCHED THEN DELETE RETURNING "
    assert "{'merge_action': 'DELETE', 'id': 2, 'code': '002'}" in cli("sql", f"{text}merge_action, id, code").stdout
    assert answer("sql", f"{text}*")["audit"] == []


@pytest.mark.usefixtures("folder")
def test_a_refusal_names_the_place(cli: Callable[..., Result], answer: Callable[..., Any]) -> None:
    text = "MERGE INTO 'orders' AS t\nUSING 'tuesday.csv' AS s ON t.id < s.id WHEN MATCHED THEN DELETE"
    with assert_unchanged("orders"):
        shown = cli("sql", text, code=1).stderr
        error = answer("sql", text, code=1)["error"]
    assert shown.startswith("Error: SQL, line 2, column 29, near 't.id < s.id")
    assert (error["type"], error["exit_code"]) == ("SqlError", 1)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give a statement, or its file with -f"),
        (["MERGE", "-f", "merge.sql"], "Give a statement, or its file with -f"),
        (["-f", "-", "--source", "rows=-"], "cannot be a source"),
        ([f"MERGE INTO 'orders' t USING rows s ON t.id = s.id {ALL}"], "Give --source rows=PATH"),
        (
            [f"MERGE INTO 'orders' t USING rows s ON t.id = s.id {ALL}", "--source", "row=tuesday.csv"],
            "names no source 'row'",
        ),
        (
            [f"MERGE INTO 'orders' t USING 'a.csv' s ON t.id = s.id {ALL}", "--use-merge", "--engine", "arrow"],
            "--use-merge is for --engine duckdb",
        ),
    ],
)
def test_wrong_usage_ends_with_two(arguments: list[str], message: str, cli: Callable[..., Result]) -> None:
    with assert_unchanged("orders"):
        assert message in cli("sql", *arguments, code=2).stderr


@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_read_is_named(cli: Callable[..., Result], folder: Any) -> None:
    assert "nothing.sql" in cli("sql", "-f", "nothing.sql", code=1).stderr
    (folder / "latin.sql").write_bytes("-- é".encode("latin-1"))
    assert "not UTF-8" in cli("sql", "-f", "latin.sql", code=1).stderr


@pytest.mark.usefixtures("folder")
def test_an_unfinished_commit_ends_with_three(cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commit, "publish", fail)
    text = f"MERGE INTO 'orders' AS t USING 'tuesday.csv' AS s ON t.id = s.id {ALL}"
    assert "merganser recover orders" in cli("sql", text, code=3).stderr


def test_every_option_of_a_merge_that_goes_with_clauses_is_an_option() -> None:
    found = app.get_command(None, "sql")  # type: ignore[arg-type]
    assert found is not None
    others = {"filesystem": "storage_option", "column_types": "column_type", "null_values": "null_value"}
    here = {parameter.name for parameter in found.params}
    asked = {others.get(name, name) for name in {*list_options("merge")} - {"progress", "partition_columns", *_CLAUSES}}
    assert asked <= here
    assert not here & {*_CLAUSES}


def test_without_sqlglot_the_extra_is_named(tmp_path: Any) -> None:
    code = (
        "import sys\nsys.modules['sqlglot'] = None\nfrom merganser.cli import main\n"
        "sys.argv = ['merganser', 'sql', \"MERGE INTO 'x' USING s USING (id) WHEN MATCHED THEN DELETE\", '--json']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["type"] == "MissingExtraError"
    assert done.stderr.strip().endswith("Install it with: pip install 'merganser[sql]'.")
