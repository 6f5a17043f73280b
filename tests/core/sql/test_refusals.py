"""What is refused: each statement has a mark, ¶, where the error says that the fault is."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, put

import merganser
from merganser.core.sql.statement import parse_statement
from merganser.errors import InvalidArgumentError, SqlError

ON = "MERGE INTO 'orders' AS t USING changes AS s ON "
HEAD = f"{ON}t.id = s.id\n"
MATCHED = f"{HEAD}WHEN MATCHED"

REFUSED = {
    # Not one MERGE.
    "nothing": ("¶", "there is no statement"),
    "only a comment": ("-- MERGE¶", "there is no statement"),
    "a query": ("¶SELECT 1", "is not a MERGE"),
    "a call": ("¶CALL f('x'); SELECT 1", "is not a MERGE"),
    "an explanation": (f"¶EXPLAIN {MATCHED} THEN DELETE", "is not a MERGE"),
    "another statement": ("\n  ¶DROP TABLE orders", "is not a MERGE"),
    "common table expressions": ("¶WITH q AS (SELECT 1) MERGE INTO 'orders' USING q", "USING (WITH … SELECT …)"),
    "several statements": (f"{MATCHED} THEN DELETE;\n¶DROP TABLE x", "one MERGE at a time"),
    "a second merge": (f"{MATCHED} THEN DELETE; ¶{MATCHED} THEN DELETE", "one MERGE at a time"),
    "no clause": (f"{ON}t.id = s.id¶", "has no clause"),
    "a deep query": (
        f"MERGE INTO 'orders' AS t USING (¶SELECT {'+'.join('1' * 900)} id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "nested too deeply",
    ),
    "schema evolution": ("MERGE ¶WITH SCHEMA EVOLUTION INTO 'orders'", "with alter first"),
    "no into": ("MERGE ¶'orders' USING changes", "INTO is missing"),
    # Text that is not SQL.
    "an open string": (f"{MATCHED} AND s.op = ¶'D THEN DELETE", "is not closed"),
    "an open name": (f'{MATCHED} AND s.¶"op = 1 THEN DELETE', "is not closed"),
    "an open comment": (f"{MATCHED} THEN DELETE ¶/* RETURNING *", "is not closed"),
    "a template": (f"{MATCHED} ¶{{# AND s.op = 'D' #}} THEN DELETE", "neither SQL nor a comment"),
    "a nested comment": (f"{MATCHED} ¶/* /* */ AND false */ THEN DELETE", "neither SQL nor a comment"),
    # Target.
    "a bare target": ("MERGE INTO ¶orders AS t USING s ON t.id = s.id", "in quotes: 'orders'"),
    "no target": ("MERGE INTO ¶(SELECT 1) AS t USING s ON t.id = s.id", "path or URL"),
    "an empty target": ("MERGE INTO ¶'' AS t USING s ON t.id = s.id", "an empty path"),
    "a catalog": ('MERGE INTO ¶"lake"."orders" AS t USING s ON t.id = s.id', "no catalogs"),
    "a function as target": ("MERGE INTO ¶'f'('x') USING s ON t.id = s.id", "cannot be a table"),
    "columns of the target": ("MERGE INTO 'orders' AS t¶(a, b) USING s ON t.a = s.a", "cannot be renamed"),
    "an alias without a name": ("MERGE INTO 'orders' AS ¶USING s ON t.id = s.id", "an alias follows AS"),
    "a string as alias": ("MERGE INTO 'orders' AS ¶'t' USING s ON t.id = s.id", "an alias follows AS"),
    "no source": ("MERGE INTO 'orders' AS t ¶ON t.id = s.id", "USING is missing"),
    # Source.
    "a function": (
        "MERGE INTO 'orders' t USING ¶read_csv('x.csv') s ON t.id = s.id",
        "the path of the files in quotes",
    ),
    "a schema": ("MERGE INTO 'orders' t USING ¶lake.changes s ON t.id = s.id", "no catalogs"),
    "a query without brackets": (
        "MERGE INTO 'orders' t USING ¶SELECT 1 AS id ON t.id = s.id",
        "Write a name, a path in quotes, or a query in brackets",
    ),
    "a name in brackets": ("MERGE INTO 'orders' t USING (¶changes) s ON t.id = s.id", "hold no query"),
    "empty brackets": ("MERGE INTO 'orders' t USING ¶() s ON t.id = s.id", "hold no query"),
    "an open bracket": ("MERGE INTO 'orders' t USING ¶(SELECT 1 s ON t.id = s.id", "bracket is not closed"),
    "a join": ("MERGE INTO 'orders' t USING a ¶JOIN b USING (id) ON t.id = a.id", "joins belong into a query"),
    "two tables": ("MERGE INTO 'orders' t USING a¶, b ON t.id = a.id", "joins belong into a query"),
    "renamed columns": ("MERGE INTO 'orders' t USING changes s¶(id) ON t.id = s.id", "only columns of a query"),
    "two names": ("MERGE INTO 'orders' t USING (SELECT 1) s(id, ¶ID) ON t.id = s.id", "twice"),
    "one alias": ("MERGE INTO 'orders' AS x USING ¶changes AS X ON x.id = x.id", "both called 'x'"),
    "one name": ("MERGE INTO 'lake/changes' USING ¶changes ON changes.id = changes.id", "both called"),
    "a broken query": (
        "MERGE INTO 'orders' t USING (SELECT é, ¶, b FROM a) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "hold a SELECT: correct it",
    ),
    "two queries": (
        "MERGE INTO 'orders' t USING ¶(SELECT 1; DROP TABLE x) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "bracket is not closed",
    ),
    "a schema in a query": (
        "MERGE INTO 'orders' t USING (SELECT 'é', id FROM ¶main.changes) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "no catalogs",
    ),
    # Join condition.
    "no condition": ("MERGE INTO 'orders' t USING changes s ¶WHEN MATCHED THEN DELETE", "a join condition follows"),
    "an empty condition": (f"{ON}¶WHEN MATCHED THEN DELETE", "the join condition is empty"),
    "columns without brackets": ("MERGE INTO 'orders' t USING changes s USING ¶id WHEN", "Write USING (id)"),
    "no columns": ("MERGE INTO 'orders' t USING changes s USING (¶) WHEN", "must be a name"),
    "a constant": (f"{ON}t.id = s.id AND ¶t.day = DATE '2026-01-01' WHEN MATCHED THEN DELETE", "with a constant"),
    "a constant on the left": (f"{ON}¶1 = t.id WHEN MATCHED THEN DELETE", "with a constant"),
    "an alternative": (f"{ON}¶t.id = s.id OR t.old = s.id WHEN MATCHED THEN DELETE", "one MERGE for each condition"),
    "less": (f"{ON}t.id = s.id\n  AND ¶t.day <= s.day WHEN MATCHED THEN DELETE", "not a comparison of keys"),
    "true": (f"{ON}¶true WHEN MATCHED THEN DELETE", "not a comparison of keys"),
    "a function of keys": (f"{ON}¶same(t.id, s.id) WHEN MATCHED THEN DELETE", "not a comparison of keys"),
    "null": (f"{ON}t.id = s.id AND ¶t.day IS NULL WHEN MATCHED THEN DELETE", "not a comparison of keys"),
    "two columns of the target": (f"{ON}¶t.id = t.old WHEN MATCHED THEN DELETE", "columns of the target"),
    "two columns of the source": (f"{ON}t.id = s.id AND ¶s.a = s.b WHEN MATCHED THEN DELETE", "columns of the source"),
    "both tables on a side": (f"{ON}¶t.id + s.a = s.id WHEN MATCHED THEN DELETE", "columns of both tables"),
    "an expression over the target": (f"{ON}¶lower(t.id) = s.id WHEN MATCHED THEN DELETE", "because they are stored"),
    "a sum with the target": (f"{ON}s.id = ¶t.id + 1 WHEN MATCHED THEN DELETE", "because they are stored"),
    "a field of the target": (f"{ON}¶t.a.b = s.b WHEN MATCHED THEN DELETE", "because they are stored"),
    "a column without a table": (f"{ON}t.id = ¶id WHEN MATCHED THEN DELETE", "Write t.id or s.id"),
    "a table that does not exist": (f"{ON}t.id = ¶x.id WHEN MATCHED THEN DELETE", "names no table"),
    "a key twice": (f"{ON}t.id = s.id AND ¶t.ID = s.a WHEN MATCHED THEN DELETE", "compared twice"),
    "two comparisons": (f"{ON}t.a = s.a AND ¶t.b IS NOT DISTINCT FROM s.b WHEN MATCHED THEN DELETE", "one of them"),
    "a subquery in a key": (f"{ON}t.a = ¶(SELECT max(s.a)) WHEN MATCHED THEN DELETE", "has a subquery"),
    "two conditions": (f"{ON}t.a = s.a¶, t.b = s.b WHEN MATCHED THEN DELETE", "has no clause"),
    "a random key": (f"{ON}t.a = ¶s.a + random() WHEN MATCHED THEN DELETE", "another value at every call"),
    "a broken condition": (f"{ON}t.id = ¶= s.id WHEN MATCHED THEN DELETE", "syntax error"),
    # Clauses.
    "an unknown side": (f"{HEAD}WHEN ¶FOUND THEN DELETE", "Write MATCHED"),
    "matched by source": (f"{MATCHED} ¶BY SOURCE THEN DELETE", "Write AND with a condition"),
    "or": (f"{MATCHED} ¶OR s.a = 1 THEN DELETE", "Write AND"),
    "a never reached clause": (f"{MATCHED} THEN DELETE\n¶WHEN MATCHED THEN DO NOTHING", "never reached"),
    "an empty clause condition": (f"{MATCHED} AND ¶THEN DELETE", "the condition is empty"),
    "no then": (f"{MATCHED} AND s.a = 1¶", "THEN is missing"),
    "error": (f"{MATCHED} THEN ¶ERROR 'x'", "Check the rows before"),
    "insert of matched rows": (f"{MATCHED} THEN ¶INSERT", "Write UPDATE, DELETE or DO NOTHING"),
    "update of new rows": (f"{HEAD}WHEN NOT MATCHED THEN ¶UPDATE SET a = 1", "Write INSERT or DO NOTHING"),
    "delete of new rows": (f"{HEAD}WHEN NOT MATCHED BY TARGET THEN ¶DELETE", "Write INSERT or DO NOTHING"),
    "insert by source": (f"{HEAD}WHEN NOT MATCHED BY SOURCE THEN ¶INSERT (id) VALUES (1)", "Write UPDATE SET, DELETE"),
    "update all by source": (f"{HEAD}WHEN NOT MATCHED BY SOURCE THEN ¶UPDATE", "has no source row"),
    "update star by source": (f"{HEAD}WHEN NOT MATCHED BY SOURCE THEN ¶UPDATE SET *", "has no source row"),
    "do": (f"{MATCHED} THEN DO ¶SOMETHING", "NOTHING is missing"),
    "where": (f"{MATCHED} THEN DELETE ¶WHERE s.a = 1", "Conditions belong before THEN"),
    "where after set": (f"{MATCHED} THEN UPDATE SET a = s.a ¶WHERE s.b", "syntax error"),
    "nothing set": (f"{MATCHED} THEN UPDATE SET¶", "must be a name"),
    "no value": (f"{MATCHED} THEN UPDATE SET a = ¶, b = 1", "an expression is missing"),
    "no equals": (f"{MATCHED} THEN UPDATE SET a ¶WHEN", "Write a = expression"),
    "a row of columns": (f"{MATCHED} THEN UPDATE SET ¶(a, b) = (1, 2)", "one by one"),
    "a column twice": (f"{MATCHED} THEN UPDATE SET a = 1, ¶A = 2", "twice"),
    "a column of the source": (f"{MATCHED} THEN UPDATE SET ¶s.a = 1", "columns of the target, t"),
    "a default": (f"{MATCHED} THEN UPDATE SET a = ¶DEFAULT", "no default values"),
    "a string as column": (f"{MATCHED} THEN UPDATE SET ¶'a' = 1", "must be a name"),
    "update by name with set": (f"{MATCHED} THEN UPDATE BY NAME ¶SET *", "does not follow UPDATE"),
    "values by position": (f"{HEAD}WHEN NOT MATCHED THEN INSERT ¶VALUES (s.id, s.a)", "depend on the order"),
    "default values": (f"{HEAD}WHEN NOT MATCHED THEN INSERT ¶DEFAULT VALUES", "depend on the order"),
    "columns without values": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id, a)¶", "VALUES is missing"),
    "values without brackets": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id) VALUES ¶s.id", "Write VALUES (…)"),
    "too few values": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id, a) VALUES ¶(s.id)", "2 columns and 1 values"),
    "rows of values": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)¶, (2)", "does not follow INSERT"),
    "a column inserted twice": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id, ¶id) VALUES (1, 2)", "twice"),
    "a default value": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, ¶DEFAULT)", "no default values"),
    # Expressions.
    "a broken expression": (f"{MATCHED} AND s.é > ¶> 1 THEN DELETE", "syntax error"),
    "two expressions": (f"{MATCHED} AND s.a¶, s.b THEN DELETE", "THEN is missing"),
    "a subquery": (f"{MATCHED} AND ¶s.a = (SELECT 1) THEN DELETE", "has a subquery"),
    "a window": (f"{MATCHED} THEN UPDATE SET a = ¶row_number() OVER ()", "has a window function"),
    "an aggregate": (f"{MATCHED} THEN UPDATE SET a = ¶sum(s.a)", "not a function of one row"),
    "a volatile function": (f"{MATCHED} THEN UPDATE SET a = ¶uuid()", "another value at every call"),
    "a parameter": (f"{MATCHED} AND ¶s.a = ? THEN DELETE", "has a parameter"),
    "a column of the target in an insert": (
        f"{HEAD}WHEN NOT MATCHED AND s.a > ¶t.a THEN INSERT BY NAME",
        "only the source has",
    ),
    "a column of the source by source": (
        f"{HEAD}WHEN NOT MATCHED BY SOURCE THEN UPDATE SET a = 1 + ¶s.a",
        "only the target has",
    ),
    "another alias": (
        "MERGE INTO 'orders' AS target USING changes ON target.id = changes.id WHEN MATCHED AND ¶t.a = 1 THEN DELETE",
        "neither the target, target, nor the source, changes",
    ),
    "the name behind an alias": (
        "MERGE INTO 'lake/t' AS o USING s AS c ON o.id = c.id WHEN MATCHED AND c.a > ¶s.a THEN DELETE",
        "neither the target, o, nor the source, c",
    ),
    "a method": (f"{MATCHED} AND ¶s.a.upper() = 'X' THEN DELETE", "Write upper(…)"),
    # Keys.
    "another key": (f"{MATCHED} THEN UPDATE SET id = ¶s.id + 1", "cannot take another value"),
    "another new key": (f"{HEAD}WHEN NOT MATCHED THEN INSERT (id) VALUES (¶s.id + 1)", "cannot take another value"),
    "no new key": (f"{HEAD}¶WHEN NOT MATCHED THEN INSERT (a) VALUES (s.a)", "Add it, with the value s.id"),
    "another key by source": (
        f"{HEAD}WHEN NOT MATCHED BY SOURCE THEN UPDATE SET id = ¶0",
        "cannot take another value",
    ),
    "all columns and a computed key": (
        f"{ON}t.id = s.code ¶WHEN MATCHED THEN UPDATE BY NAME",
        "something else than the column of this name",
    ),
    "all new columns and a computed key": (
        f"{ON}t.id = lower(s.id) ¶WHEN NOT MATCHED THEN INSERT *",
        "something else than the column of this name",
    ),
    # What is returned.
    "nothing returned": (f"{MATCHED} THEN DELETE RETURNING¶", "must be a name"),
    "an expression returned": (f"{MATCHED} THEN DELETE RETURNING id ¶+ 1", "lists columns only"),
    "a function returned": (f"{MATCHED} THEN DELETE RETURNING lower¶(id)", "lists columns only"),
    "the source returned": (f"{MATCHED} THEN DELETE RETURNING ¶s.id", "columns of the target only"),
    "a column returned twice": (f"{MATCHED} THEN DELETE RETURNING id, ¶id", "twice"),
}


# Q7
@pytest.mark.parametrize("name", REFUSED)
def test_a_statement_is_refused_with_the_place_of_its_fault(name: str) -> None:
    marked, reason = REFUSED[name]
    before, _, after = marked.partition("¶")
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    with pytest.raises(SqlError) as caught:
        parse_statement(before + after)
    message = str(caught.value)
    assert message.startswith(f"SQL, line {line}, column {column}, "), message
    assert reason in message


def test_every_refusal_has_a_remedy() -> None:
    for marked, _ in REFUSED.values():
        with pytest.raises(InvalidArgumentError, match=r": .+\. [A-Z][^.]+[.…]"):
            parse_statement(marked.replace("¶", ""))


@pytest.mark.parametrize("text", [None, b"MERGE", 7])
def test_a_statement_is_a_string(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a string of SQL"):
        parse_statement(text)


def test_control_characters_of_a_statement_are_escaped() -> None:
    with pytest.raises(SqlError) as caught:
        parse_statement("MERGE INTO 'x' AS t USING \x1b[31mred ON")
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_credentials_of_a_url_are_masked_however_long_it_is() -> None:
    with pytest.raises(SqlError) as caught:
        parse_statement("MERGE INTO 's3://name:a-secret-that-is-so-long-that-it-is-cut@bucket/x'('y') AS t USING s")
    assert "secret" not in str(caught.value)


# What a query must not reach, and a part of the error.
ATTACKS = {
    "read_csv('{path}')": "Write their path in quotes",
    "read_text('{path}')": "Write their path in quotes",
    "glob('{folder}/*')": "Write their path in quotes",
    "(SELECT * FROM secret)": "no rows are given for 'secret'",
    "(SELECT * FROM duckdb_secrets)": "no rows are given for 'duckdb_secrets'",
    "(SELECT getenv('HOME'))": "cannot be run",
    "query('FROM ''{path}''')": "Write their path in quotes",
    "query_table('{path}')": "Write their path in quotes",
    "query('SET threads = 4')": "cannot be run",
}


# Q2 M11
@pytest.mark.parametrize("table", ATTACKS)
def test_a_query_reads_nothing_but_rows_and_files_that_it_names(table: str, tmp_path: Any) -> None:
    secret = pa.table({"id": [1]})
    put(f"{tmp_path}/orders/a.parquet", secret)
    (tmp_path / "secret.csv").write_text("id\n1\n")
    inner = table.format(path=tmp_path / "secret.csv", folder=tmp_path)
    text = (
        f"MERGE INTO '{tmp_path}/orders' AS t USING (SELECT 1 AS id FROM {inner} AS x) AS s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE"
    )
    with assert_unchanged(str(tmp_path)), pytest.raises(SqlError, match=re.escape(ATTACKS[table])):
        merganser.sql(text, engine="arrow")


def test_a_query_cannot_read_a_dataframe_of_spark() -> None:
    class DataFrame:
        pass

    DataFrame.__module__ = "pyspark.sql.dataframe"
    text = "MERGE INTO 'orders' AS t USING (SELECT * FROM s) AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
    with pytest.raises(SqlError, match="Write the query as a DataFrame"):
        merganser.sql(text, s=DataFrame(), engine="arrow")


def test_a_query_refuses_names_that_differ_in_case_only() -> None:
    text = "MERGE INTO 'orders' AS t USING (SELECT * FROM s) AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
    with pytest.raises(SqlError, match="SQL ignores case"):
        merganser.sql(text, s=pa.table({"id": [1], "ID": [2]}), engine="arrow")
