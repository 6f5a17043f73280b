"""Expressions with the aliases of a statement: renamed, they give the same values in DuckDB."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merganser.core.sql.names import Names, is_same
from merganser.core.sql.statement import parse_statement
from merganser.core.sql.tokens import Span, SqlText
from merganser.errors import SqlError

ROW = (
    "7 AS a, 2.50 AS b, 'it''s' AS c, [1, 2, 3] AS l, {'f': {'g': 5}} AS st, DATE '2026-02-28' AS d, "
    "TIMESTAMP '2026-01-01 10:00:00' AS ts, true AS ok, NULL::INTEGER AS n, '{\"x\": 1}' AS j, 4 AS \"end\", 5 AS é"
)
EXPRESSIONS = [
    *("src.a + 1", "src.a::DECIMAL(10,2)", "TRY_CAST(src.c AS INT)", "src.ts + INTERVAL '1 day'", "src.a / 2"),
    *("src.ts + INTERVAL 3 MONTH", "{'a': src.a, 'b': [1, target.a]}", "[x + src.a for x in src.l if x > 1]"),
    *("list_filter(src.l, lambda x: x > target.a - 6)", "list_transform(src.l, lambda src: src + 1)", "src.l[1:2]"),
    *("src.c COLLATE NOCASE = 'IT''S'", "src.c LIKE 'it!_s' ESCAPE '!'", "src.c NOT ILIKE '%T%'", "src.l[-1]"),
    *("src.a NOT IN (1, 2, target.a)", "src.st.f.g", 'src."end" + src.é', "E'a\\nb' || src.c", "$$x'y$$ || src.c"),
    *("CASE src.a WHEN 7 THEN 'x' ELSE src.c END", "src.a BETWEEN 1 AND target.a", "NOT (src.ok OR target.ok)"),
    *("src.n IS DISTINCT FROM target.n", "src.a // 2 % 3 ^ 2", "-src.a ** 2", "coalesce(src.n, target.n, 9)"),
    *("src.n IS NOT NULL", "date '2020-01-01' < src.d", "extract(year FROM src.d)", "map {'a': src.a}['a']"),
    *("regexp_matches(src.c, '\\w+')", "1e300 < src.a", "1.50 + src.b", "18446744073709551616 + src.a"),
    *("src.a IN src.l", "concat(src.c, 'é')", "(src.a, src.b) = (7, 2.5)", "src.c GLOB 'i*'", "~src.a", "src.a!"),
    *("src.a & 1 | 2 << 3", "CAST(src.a AS VARCHAR) || 'x'", "src.a /* c */ + -- d\n 1", "if(src.ok, 1, 2)"),
    *("position('t' in src.c)", "substring(src.c from 2 for 3)", "trim(both 'i' from src.c)", "src.ok is true"),
    *("strptime('2026', '%Y') > src.ts", "nullif(src.c, '')", "try(src.a / 0)", "src.a IS NULL", "src.j->>'$.x'"),
    *("INTERVAL (src.a) DAY", "src.l || [1]", "struct_pack(k := src.a).k", "src.d::VARCHAR::DATE", "src.a = ALL([7])"),
]
REFUSED = {"src.a = ALL([7])": "has a subquery"}
if not hasattr(duckdb.StatementType, "MERGE_INTO"):
    # Older versions of DuckDB write true as a cast of a string.
    REFUSED["src.ok is true"] = "Call the target t and the source s"


def rename(text: str) -> str:
    return Names(SqlText(text), "src", "target").rename(Span(text, 0), "st")


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_renamed_expression_has_the_same_value_and_type(text: str) -> None:
    if text in REFUSED:
        with pytest.raises(SqlError, match=REFUSED[text]):
            rename(text)
        return
    with duckdb.connect() as connection:
        before = connection.sql(f"SELECT ({text}\n) AS v FROM (SELECT {ROW}) AS src, (SELECT {ROW}) AS target")
        after = connection.sql(f"SELECT ({rename(text)}\n) AS v FROM (SELECT {ROW}) AS s, (SELECT {ROW}) AS t")
        assert (before.types, before.fetchall()) == (after.types, after.fetchall())


def test_an_expression_with_our_aliases_stays_as_it_is() -> None:
    text = "s.a  +  /* as it is */ t.b::DECIMAL(10,2)"
    assert Names(SqlText(text), "s", "T").rename(Span(text, 0), "st") == text


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [('"id"', "s.id", True), ("s.id", "(s.id)", True), ("id + 1", "s.id+1", True), ("s.id", "t.id", False)],
)
def test_expressions_are_compared_by_their_meaning(one: str, other: str, expected: bool) -> None:
    assert is_same(one, other) is expected


PIECES = [
    "'",
    '"',
    "--",
    "/*",
    "*/",
    "\n",
    "WHEN MATCHED THEN DELETE",
    ";",
    "$$",
    "E'\\'",
    "{#",
    "(",
    ")",
    " a ",
    "CASE",
]


@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
def test_whatever_a_string_holds_it_is_one_value(content: str) -> None:
    literal = "'" + content.replace("'", "''") + "'"
    text = f"MERGE INTO 'x' t USING s ON t.id = s.id WHEN MATCHED AND s.a <> {literal} THEN UPDATE SET a = {literal}"
    (clause,) = parse_statement(text).clauses
    assert clause.where == f"s.a <> {literal}"
    assert clause.values == {"a": literal}


@pytest.mark.skipif(not hasattr(duckdb.StatementType, "MERGE_INTO"), reason="this DuckDB has no MERGE")
@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join))
def test_text_between_clauses_is_a_comment_or_refused(content: str) -> None:
    text = f"MERGE INTO 'x' t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = 1 {content}"
    try:
        found = parse_statement(text).clauses
    except SqlError:
        return
    # What is accepted is what DuckDB parses, too.
    with duckdb.connect() as connection:
        (statement,) = connection.extract_statements(text.replace("'x'", '"x"', 1))
    assert statement.type == duckdb.StatementType.MERGE_INTO
    assert found[0].action == "update"
