"""A configuration is checked completely before Spark starts, and each error names file, table and key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from merganser.core.model.clauses import Clause
from merganser.errors import ConfigurationError
from merganser.pipeline.config.tables import Dataset, Edge, Ends, Graph, Node, Pipeline, Source
from merganser.pipeline.config.toml_file import load
from merganser.pipeline.config.when import When

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[pipeline]
name = "jobs"
state = "state"
parameters = ["date"]

[[source]]
name = "postings"
path = "feed/{date}/*.json"
format = "json"
cast = { posted_at = "timestamp" }

[[check]]
name = "paid"
source = "postings"
rule = "salary > 0"

[[dataset]]
name = "jobs"
source = "postings"
path = "lake/jobs"
key_columns = ["url"]

[graph]
path = "lake/graph"

[[graph.node]]
type = "Job"
source = "postings"
match = "url"
on_match = { seen = "DATE '{date}'" }

[[graph.edge]]
type = "POSTED_BY"
source = "postings"
from_node = { type = "Job", match = "url" }
to_node = { type = "Company", match = { name = "company" } }
"""
# A replacement in the file, and its message: the table, the key, and the remedy.
_NODE, _COOK = '[[graph.node]]\ntype = "Cook"\nsource = "postings"\nmatch = "url"\n', ("[[graph.node]] 'Cook'",)
BROKEN = {
    "no TOML": ("[pipeline]", "[pipeline", "", "", r"it is not valid TOML: .*line 2"),
    "no pipeline": (GOOD[: GOOD.index("[[source]]")], "", "[pipeline]", "", "the table is missing. Add it"),
    "unknown table": ("[[check]]", "[[chek]]", "[chek]", "", "unknown table. Did you mean 'check'"),
    "one bracket": ("[[source]]", "[source]", "[source]", "", r"Write \[\[source\]\], with two brackets"),
    "a list for a table": ("[graph]\npath", "[[graph]]\npath", "[graph]", "", "must be a table"),
    "misspelt key": ("format =", "fromat =", "[[source]] 'postings'", "fromat", "Did you mean 'format'"),
    "missing key": ('format = "json"\n', "", "[[source]] 'postings'", "format", "missing. Add it"),
    "missing name": ('[[source]]\nname = "postings"', "[[source]]", "[[source]]", "name", "missing. Add it"),
    "unknown format": ('"json"', '"jsn"', "[[source]] 'postings'", "format", "one of 'csv', 'json'.*not 'jsn'"),
    "a number for a text": (
        '"feed/{date}/*.json"',
        "7",
        "[[source]] 'postings'",
        "path",
        "a string or a list of strings, not 7",
    ),
    "an empty text": ('"salary > 0"', '" "', "[[check]] 'paid'", "rule", "must be a non-empty string"),
    "a text for a table": (
        '{ posted_at = "timestamp" }',
        '"timestamp"',
        "[[source]] 'postings'",
        "cast",
        "a table of names and strings",
    ),
    "a number for an expression": (
        '"timestamp"',
        "3",
        "[[source]] 'postings'",
        "cast.posted_at",
        "a non-empty string, not 3",
    ),
    "a name with a slash": ('name = "postings"', 'name = "a/b"', "[[source]] 'a/b'", "name", "letters, digits"),
    "two of one name": (
        "[[check]]",
        '[[check]]\nname = "paid"\nsource = "postings"\nrule = "true"\n[[check]]',
        "[[check]] 'paid'",
        "name",
        "'paid' is defined twice",
    ),
    "two node types": (
        "[[graph.edge]]",
        '[[graph.node]]\ntype = "Job"\nsource = "postings"\nmatch = "url"\n[[graph.edge]]',
        "[[graph.node]] 'Job'",
        "type",
        "'Job of postings' is defined twice",
    ),
    "missing that is neither": (
        "[[graph.edge]]",
        _NODE + 'missing = "drop"\n[[graph.edge]]',
        *_COOK,
        "missing",
        "'keep'",
    ),
    "a scope of nothing missing": (
        "[[graph.edge]]",
        _NODE + 'scope = { feed = "a" }\n[[graph.edge]]',
        *_COOK,
        "scope",
        "missing='keep' keeps all",
    ),
    "a key that missing nodes lose": (
        "[[graph.edge]]",
        _NODE + 'missing = { url = "x" }\n[[graph.edge]]',
        *_COOK,
        "missing",
        "sets the match property 'url'",
    ),
    "what is detached if nothing is deleted": (
        "[[graph.edge]]",
        _NODE + "detach = true\n[[graph.edge]]",
        *_COOK,
        "detach",
        "missing='delete' deletes",
    ),
    "no such source": (
        'source = "postings"\nrule',
        'source = "posting"\nrule',
        "[[check]] 'paid'",
        "source",
        "Did you mean 'postings'",
    ),
    "an unused source": (
        "[[check]]",
        '[[source]]\nname = "idle"\npath = "x"\nformat = "csv"\n[[check]]',
        "[[source]] 'idle'",
        "name",
        "this source is not used",
    ),
    "no source": (
        GOOD[GOOD.index("[[source]]") : GOOD.index("[[check]]")],
        "",
        "[pipeline]",
        "source",
        r"there is no \[\[source\]\]",
    ),
    "nothing to merge into": (
        GOOD[GOOD.index("[[dataset]]") :],
        "",
        "[pipeline]",
        "dataset",
        r"there is no .* and no .graph.\. Add one",
    ),
    "a share above one": (
        'rule = "salary > 0"',
        'rule = "salary > 0"\nfail_above = 5',
        "[[check]] 'paid'",
        "fail_above",
        "from 0 to 1, not 5",
    ),
    "lossy options": (
        'format = "json"',
        'format = "json"\noptions = { mode = "dropmalformed" }',
        "[[source]] 'postings'",
        "options",
        "would lose rows silently",
    ),
    "unknown option of merge": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\npartition_colums = "day"',
        "[[dataset]] 'jobs'",
        "partition_colums",
        "Did you mean 'partition_columns'",
    ),
    "unknown strategy": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\nstrategy = "upset"',
        "[[dataset]] 'jobs'",
        "strategy",
        "Unknown strategy 'upset'. Choose one of: upsert",
    ),
    "no keys": ('key_columns = ["url"]', "key_columns = []", "[[dataset]] 'jobs'", "key_columns", "key_columns"),
    "options that do not go together": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\nstrategy = "insert"\nskip_unchanged = true',
        "[[dataset]] 'jobs'",
        "skip_unchanged",
        "does not go with strategy 'insert'",
    ),
    "an option of the wrong type": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\nrow_group_size = "big"',
        "[[dataset]] 'jobs'",
        "row_group_size",
        "positive integer, not 'big'",
    ),
    "a deduplication without an order": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\nstrategy = "deduplicate"',
        "[[dataset]] 'jobs'",
        "dedup_order_by",
        "DataFrame have no order.*dedup_order_by",
    ),
    "columns without the key": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\ncolumns = ["title"]',
        "[[dataset]] 'jobs'",
        "columns",
        "key column 'url' is missing",
    ),
    "a dataset inside the graph": (
        '"lake/jobs"',
        '"lake/graph/jobs"',
        "[[dataset]] 'jobs'",
        "path",
        "overlaps .*lake/graph', the folder of",
    ),
    "a dataset as the quarantine": (
        'state = "state"',
        'state = "state"\nquarantine = "lake/jobs"',
        "[pipeline]",
        "quarantine",
        "Choose a separate folder",
    ),
    "a graph without a place": (
        '[graph]\npath = "lake/graph"',
        "[graph]",
        "[graph]",
        "path",
        "Set path for Parquet, sqlite for an SQLite file, or both",
    ),
    "a node without a match": (
        'type = "Job"\nsource = "postings"\nmatch = "url"',
        'type = "Job"\nsource = "postings"',
        "[[graph.node]] 'Job'",
        "match",
        "Name the properties that identify a Job",
    ),
    "a match property on match": (
        "{ seen =",
        "{ url =",
        "[[graph.node]] 'Job'",
        "on_match",
        "'url' is a match property",
    ),
    "properties that differ in case": (
        "{ seen =",
        "{ URL =",
        "[[graph.node]] 'Job'",
        "match",
        "'url' differ only in case",
    ),
    "an edge without an end": (
        'from_node = { type = "Job", match = "url" }\n',
        "",
        "[[graph.edge]] 'POSTED_BY'",
        "from_node",
        "missing. Add it",
    ),
    "an end without a type": (
        'from_node = { type = "Job", ',
        "from_node = { ",
        "[[graph.edge]] 'POSTED_BY'",
        "from_node.type",
        "missing. Add it",
    ),
    "an end with another key": (
        'from_node = { type = "Job", ',
        'from_node = { type = "Job", id = 1, ',
        "[[graph.edge]] 'POSTED_BY'",
        "from_node.id",
        "unknown key",
    ),
    "no path": ('"feed/{date}/*.json"', "[]", "[[source]] 'postings'", "path", "it is empty"),
    "options that hide faults": (
        'format = "json"',
        'format = "json"\noptions = { ignoreCorruptFiles = true }',
        "[[source]] 'postings'",
        "options",
        "would lose rows silently",
    ),
    "a name that rules of our own have": (
        'name = "paid"',
        'name = "cast pay"',
        "[[check]] 'cast pay'",
        "name",
        "Choose another name",
    ),
    "an end without a match": (
        '{ type = "Job", match = "url" }',
        '{ type = "Job", match = [] }',
        "[[graph.edge]] 'POSTED_BY'",
        "from_node.match",
        "it is empty",
    ),
    "SQLite elsewhere": (
        'path = "lake/graph"',
        'sqlite = "s3://lake/graph.db"',
        "[graph]",
        "sqlite",
        "a local file",
    ),
    "a dataset in the state folder": ('"lake/jobs"', '"state/jobs"', "[[dataset]] 'jobs'", "path", "overlaps"),
    "a quarantine around a dataset": (
        'state = "state"',
        'state = "state"\nquarantine = "lake"',
        "[[dataset]] 'jobs'",
        "path",
        "overlaps",
    ),
    "a strategy and clauses": (
        'key_columns = ["url"]',
        'key_columns = ["url"]\nstrategy = "upsert"\n[[dataset.when]]\nmatched = "delete"',
        "[[dataset]] 'jobs'",
        "strategy",
        "Remove the strategy, or the clauses",
    ),
    "one bracket for a clause": (
        "[graph]\npath",
        '[dataset.when]\nmatched = "delete"\n[graph]\npath',
        "[dataset.when]",
        "",
        r"Write \[\[dataset\.when\]\], with two brackets",
    ),
    "parameters as a text": ('["date"]', '"date"', "[pipeline]", "parameters", "a list of names"),
    "an undeclared parameter": ("{date}/", "{day}/", "[source]", "path", r"has \{day\}, which is not a parameter"),
}


# A clause below the dataset, and its message: the key and the remedy.
BROKEN_CLAUSES = {
    "an unknown key": ('matched = "delete"\nif = "s.x"', "if", "unknown key. Available: exclude, matched"),
    "a misspelt key": ('matched = "delete"\nwhre = "s.x"', "whre", "Did you mean 'where'"),
    "no side": ('where = "s.x > 1"', "matched", "one of the keys matched or not_matched or .*not none of them"),
    "two sides": ('matched = "update"\nnot_matched = "insert"', "not_matched", "not matched and not_matched. Set one"),
    "an insert of matched rows": (
        'matched = "insert"',
        "matched",
        "one of 'update', 'delete', 'nothing', not 'insert'",
    ),
    "an update of new rows": ('not_matched = "update"', "not_matched", "one of 'insert', 'nothing', not 'update'"),
    "an insert of missing rows": ('not_matched_by_source = "insert"', "not_matched_by_source", "not 'insert'"),
    "set of an insert": ('not_matched = "insert"\nset = { x = "s.x" }', "set", "for the action 'update'.*Use values"),
    "values of an update": ('matched = "update"\nvalues = { x = "s.x" }', "values", "'insert', not 'update'. Use set"),
    "set of a delete": ('matched = "delete"\nset = { x = "s.x" }', "set", "'update', not 'delete'. Remove it"),
    "an empty set": ('matched = "update"\nset = {}', "set", "it is empty. Name a column"),
    "a number to set": ('matched = "update"\nset = { x = 1 }', "set.x", "must be a non-empty string, not 1"),
    "set and exclude": (
        'matched = "update"\nset = { x = "s.x" }\nexclude = "y"',
        "exclude",
        "take all columns; this one has set",
    ),
    "exclude of a delete": (
        'matched = "delete"\nexclude = "y"',
        "exclude",
        "actions 'update' and 'insert', not 'delete'",
    ),
    "nothing to set": ('not_matched_by_source = "update"', "set", "these rows have no source row.*Add it"),
    "no SQL": ('matched = "delete"\nwhere = "s.x >"', "where", "'s.x >' is not an expression of SQL: syntax error"),
    "no SQL to set": ('matched = "update"\nset = { x = "t.x +" }', "set.x", "'t.x .' is not an expression of SQL"),
    "no SQL to insert": ('not_matched = "insert"\nvalues = { x = "1; 2" }', "values.x", "not .*expression of SQL"),
    "a subquery": ('matched = "delete"\nwhere = "s.x IN (SELECT 1)"', "where", "has a subquery"),
    "the target of a new row": ('not_matched = "insert"\nwhere = "t.x > 1"', "where", "has no target row"),
    "the source of a missing row": (
        'not_matched_by_source = "update"\nset = { x = "s.x" }',
        "set.x",
        "has no source row. Use columns of t only",
    ),
}
# Keys of a dataset that do not go with clauses.
REFUSED_OPTIONS = {
    "update_columns": 'update_columns = "title"',
    "insert_columns": 'insert_columns = "title"',
    "operation_column": 'operation_column = "op"',
    "dedup_order_by": 'dedup_order_by = "title"',
    "scope": 'scope = { day = "2026-01-02" }',
}


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "jobs.toml"
    file.write_text(text, "utf-8")
    return str(file)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_names_file_table_and_key(fault: str, tmp_path: Path) -> None:
    old, new, table, key, remedy = BROKEN[fault]
    assert GOOD.count(old) >= 1
    file = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=f"(?s){remedy}") as refused:
        load(file, {"date": "2026-01-02"})
    assert str(refused.value).startswith(", ".join(filter(None, [file, table, f"key {key!r}" if key else ""])) + ": ")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("fault", BROKEN_CLAUSES)
def test_a_fault_of_a_clause_names_file_clause_and_key(fault: str, tmp_path: Path) -> None:
    clause, key, remedy = BROKEN_CLAUSES[fault]
    clauses = f'[[dataset.when]]\nmatched = "nothing"\nwhere = "s.x = 0"\n[[dataset.when]]\n{clause}\n[graph]'
    file = written(tmp_path, GOOD.replace("[graph]", clauses, 1))
    with pytest.raises(ConfigurationError, match=f"(?s){remedy}") as refused:
        load(file, {"date": "2026-01-02"})
    assert str(refused.value).startswith(f"{file}, [[dataset.when]] 2 of 'jobs', key {key!r}: ")


@pytest.mark.parametrize("key", REFUSED_OPTIONS)
def test_an_option_that_does_not_go_with_clauses_is_refused(key: str, tmp_path: Path) -> None:
    added = f'key_columns = ["url"]\n{REFUSED_OPTIONS[key]}\n[[dataset.when]]\nmatched = "update"'
    file = written(tmp_path, GOOD.replace('key_columns = ["url"]', added, 1))
    with pytest.raises(ConfigurationError, match="does not go with") as refused:
        load(file, {"date": "2026-01-02"})
    assert str(refused.value).startswith(f"{file}, [[dataset]] 'jobs', key {key!r}: ")


def test_clauses_are_those_that_one_would_write_in_their_order(tmp_path: Path) -> None:
    text = """key_columns = ["url"]
[[dataset.when]]
matched = "delete"
where = "s.day < DATE '{date}'"
[[dataset.when]]
matched = "update"
set = { times = "t.times + 1" }
[[dataset.when]]
not_matched = "insert"
exclude = ["times", "note"]
"""
    found = load(written(tmp_path, GOOD.replace('key_columns = ["url"]', text, 1)), {"date": "2026-01-02"}).dataset[0]
    assert found == Dataset(
        name="jobs",
        source="postings",
        path=str(tmp_path / "lake/jobs"),
        key_columns="url",
        when=[
            When(matched="delete", where="s.day < DATE '2026-01-02'"),
            When(matched="update", set={"times": "t.times + 1"}),
            When(not_matched="insert", exclude=["times", "note"]),
        ],
    )
    assert found.clauses == [
        Clause(side="matched", action="delete", where="s.day < DATE '2026-01-02'"),
        Clause(side="matched", action="update", values={"times": "t.times + 1"}),
        Clause(side="not_matched", action="insert", exclude=("times", "note")),
    ]
    assert (found.strategy, found.merge) == (None, {"skip_unchanged": True})


def test_clauses_that_update_nothing_skip_nothing() -> None:
    insert, fix = When(not_matched="insert"), When(not_matched_by_source="update", set={"x": "1"})
    given: dict[str, Any] = {"name": "d", "source": "s", "path": "p", "key_columns": "id"}
    assert Dataset(**given, when=[insert]).merge == {}
    with pytest.raises(
        ConfigurationError, match=r"\[\[dataset\]\] 'd', key 'skip_unchanged': skip_unchanged does not go"
    ):
        Dataset(**given, when=[insert], merge={"skip_unchanged": True})
    assert Dataset(**given, when=[When(matched="update"), fix], merge={"skip_unchanged": False}).merge == {
        "skip_unchanged": False
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "parameter 'date' has no value. Set it: --param date=VALUE"),
        ({"date": "1", "day": "2"}, "parameter 'day' is not declared. Declared: date"),
        ({"date": "1' OR '1"}, "without quotes"),
        ({"date": ""}, "must be a non-empty string"),
    ],
)
def test_parameters_are_those_that_the_file_declares(given: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load(written(tmp_path, GOOD), given)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nosuch\.toml: it cannot be read: No such file"):
        load(tmp_path / "nosuch.toml")


# M11
@pytest.mark.parametrize(
    "value",
    [
        "[" * 5000 + "]" * 5000,
        "{a=" * 5000 + "1" + "}" * 5000,
        "9" * 100_000,
        "9" * 100_000 + ".5e" + "9" * 100_000,
        "0x" + "f" * 100_000,
        "{ " + ".".join("a" * 5000) + " = 1 }",
    ],
    ids=["lists", "tables", "digits", "float", "hexadecimal", "dotted"],
)
@pytest.mark.parametrize("key", ["name", "parameters", "path", "options"])
def test_values_that_python_cannot_represent_are_reported(value: str, key: str, tmp_path: Path) -> None:
    place = {
        "name": ('name = "jobs"\nstate', f"name = {value}\nstate"),
        "parameters": ('["date"]', value),
        "path": ('"feed/{date}/*.json"', value),
        "options": ('format = "json"', f'format = "json"\noptions = {value}'),
    }
    with pytest.raises(ConfigurationError, match=r"jobs\.toml") as caught:
        load(written(tmp_path, GOOD.replace(*place[key], 1)), {"date": "D"})
    assert len(str(caught.value)) < 10_000


def test_a_file_becomes_the_objects_that_one_would_write(tmp_path: Path) -> None:
    assert load(written(tmp_path, GOOD.replace('rule = "salary > 0"', 'rule = "x"')), {"date": "D"}) == Pipeline(
        name="jobs",
        state=str(tmp_path / "state"),
        source=[
            Source(
                name="postings",
                path=str(tmp_path / "feed/D/*.json"),
                format="json",
                cast={"posted_at": "timestamp"},
            )
        ],
        check=[load(written(tmp_path, GOOD.replace("salary > 0", "x")), {"date": "D"}).check[0]],
        dataset=[Dataset(name="jobs", source="postings", path=str(tmp_path / "lake/jobs"), key_columns="url")],
        graph=Graph(
            path=str(tmp_path / "lake/graph"),
            node=[Node(type="Job", source="postings", match=["url"], on_match={"seen": "DATE 'D'"})],
            edge=[
                Edge(
                    type="POSTED_BY",
                    source="postings",
                    from_node=Ends(type="Job", match="url"),
                    to_node=Ends(type="Company", match={"name": "company"}),
                )
            ],
        ),
    )


@pytest.mark.parametrize(
    "path", ["/lake/jobs", "s3://bucket/jobs", "gs://bucket/{date}"], ids=["absolute", "URL", "with a parameter"]
)
def test_paths_that_are_not_relative_stay(path: str, tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD.replace("lake/jobs", path)), {"date": "D"})
    assert found.dataset[0].path == path.replace("{date}", "D")


def test_names_that_spell_a_path_s_key_are_names(tmp_path: Path) -> None:
    text = GOOD.replace('cast = { posted_at = "timestamp" }', 'rename = { path = "state" }\ncast = { state = "int" }')
    text = text.replace('match = "url"\non_match', 'match = { path = "url" }\non_match')
    found = load(written(tmp_path, text), {"date": "D"})
    assert (found.source[0].rename, found.source[0].cast) == ({"path": "state"}, {"state": "int"})
    assert found.graph is not None
    assert found.graph.node[0].match == {"path": "url"}


def test_a_merge_into_a_dataset_skips_unchanged_rows_by_default() -> None:
    def options(**given: Any) -> Any:
        return Dataset(name="d", source="s", path="p", key_columns="id", **given).merge

    assert options() == {"skip_unchanged": True}
    assert options(merge={"skip_unchanged": False}) == {"skip_unchanged": False}
    assert options(strategy="insert") == {}


@pytest.mark.slow
def test_a_broken_file_is_refused_before_spark_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD.replace('"json"', '"jsn"'))
    code = (
        "import sys; from merganser.cli.app import app; code = None\n"
        "try: app()\n"
        "except SystemExit as error: code = error.code\n"
        "assert 'pyspark' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", file, "--param", "date=D"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {file}, [[source]] 'postings', key 'format': ")
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == ["jobs.toml"]
