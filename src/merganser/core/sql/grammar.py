"""The grammar of a MERGE: its tables, its join condition, its clauses, and what it returns, all as they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from merganser.core.sql.clause_grammar import ClauseText, read_clause
from merganser.core.sql.tokens import Span, SqlText, TokenReader, read_name, read_names, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.sql.tokens import Token

_QUERIES = ("SELECT", "FROM", "VALUES", "WITH", "TABLE")
# Words that follow a table, so they are not its alias.
_NO_ALIAS = {
    *("AS", "ON", "USING", "WHEN", "WHERE", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI"),
    *("ANTI", "ASOF", "POSITIONAL", "OUTER", "LATERAL", "TABLESAMPLE", "PIVOT", "UNPIVOT", "SET", "RETURNING"),
}
SourceKind = Literal["name", "path", "query"]


@dataclass(frozen=True, slots=True)
class SourceText:
    """The source of a statement: the name of rows, the path of files, or a query, with the names of its columns."""

    kind: SourceKind
    span: Span
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnedColumn:
    """A column that is returned, and its name there; `*` is all columns."""

    name: str
    alias: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeText:
    """A MERGE as it is written; `using` lists the columns that USING joins on instead of a condition."""

    text: SqlText
    target: str
    target_alias: str
    source: SourceText
    source_alias: str
    condition: Span
    using: tuple[str, ...] = ()
    clauses: tuple[ClauseText, ...] = field(default_factory=tuple)
    returning: tuple[ReturnedColumn, ...] = ()


def read_merge(text: str) -> MergeText:
    """Read a statement that is one MERGE."""
    reader = TokenReader(read_text(text))
    _read_start(reader)
    target, target_alias = _read_target(reader)
    reader.expect("USING", "the source follows the target")
    source, source_alias = _read_source(reader)
    if source_alias.lower() == target_alias.lower():
        raise reader.source.make_error(
            f"target and source are both called {target_alias!r}. Give them aliases that differ, with AS.",
            source.span.start,
        )
    condition, using = _read_condition(reader)
    clauses: list[ClauseText] = []
    while reader.next.is_word("WHEN"):
        clauses.append(read_clause(reader, target_alias, clauses))
    if not clauses:
        raise reader.fail("the statement has no clause. Add one, such as WHEN MATCHED THEN UPDATE BY NAME.")
    returning = _read_returning(reader, target_alias) if reader.accept("RETURNING") else ()
    while reader.accept_symbol(";"):
        pass
    if not reader.is_at_end:
        raise reader.fail("this follows the statement. Give one MERGE at a time, whose clauses begin with WHEN.")
    return MergeText(
        text=reader.source,
        target=target,
        target_alias=target_alias,
        source=source,
        source_alias=source_alias,
        condition=condition,
        using=using,
        clauses=tuple(clauses),
        returning=returning,
    )


def _read_start(reader: TokenReader) -> None:
    first = reader.next
    if reader.is_at_end:
        raise reader.fail("there is no statement. Write MERGE INTO 'path' USING …")
    if first.is_word("WITH"):
        raise reader.fail("WITH before MERGE is not supported. Move it into the source: USING (WITH … SELECT …) AS s.")
    if not reader.accept("MERGE"):
        raise reader.fail("this is not a MERGE, which is the only statement that runs here. Write MERGE INTO …")
    if reader.next.is_word("WITH"):
        raise reader.fail(
            "WITH SCHEMA EVOLUTION is not supported. Leave it out, and change the schema with alter first."
        )
    reader.expect("INTO", "the target follows MERGE")


def _read_target(reader: TokenReader) -> tuple[str, str]:
    token = reader.next
    if token.kind == "word" or reader.is_at_end or token.kind == "symbol":
        name = reader.source.text[token.start : token.end]
        raise reader.fail(f"the target is the path or URL of a dataset. Write it in quotes: '{name or 'lake/orders'}'.")
    path = reader.take()
    if not path.text:
        raise reader.fail("the target is an empty path. Write the path of a dataset.", path)
    _refuse_after_table(reader, path)
    alias = _read_alias(reader, _find_path_name(path.text))
    if reader.next.is_symbol("("):
        raise reader.fail("columns of the target cannot be renamed. Leave the names in brackets out.")
    return path.text, alias


def _read_source(reader: TokenReader) -> tuple[SourceText, str]:
    token = reader.next
    if token.is_symbol("("):
        inside = reader.take_brackets()
        if not inside or not (inside[0].is_word(*_QUERIES) or inside[0].is_symbol("(")):
            raise reader.fail("the brackets hold no query. Write (SELECT …) AS s.", inside[0] if inside else token)
        source, name = SourceText("query", reader.source.cut(inside)), "unnamed_subquery"
    elif token.kind == "symbol" or token.is_word(*_QUERIES):
        raise reader.fail(
            "this is not a source. Write a name, a path in quotes, or a query in brackets: USING (SELECT …) AS s."
        )
    else:
        source, name = _read_table(reader)
    alias = _read_alias(reader, name)
    if not reader.next.is_symbol("("):
        return source, alias
    if source.kind != "query":
        raise reader.fail("only columns of a query can be renamed. Write (SELECT … AS name …) AS s.")
    columns = tuple(name for name, _ in read_names(reader, "the columns of the source"))
    return SourceText("query", source.span, columns), alias


def _read_table(reader: TokenReader) -> tuple[SourceText, str]:
    token = reader.take()
    _refuse_after_table(reader, token)
    if token.kind == "string":
        return SourceText("path", Span(token.text, token.start)), _find_path_name(token.text)
    name = read_name(reader, token, "the source")
    return SourceText("name", Span(name, token.start)), _find_path_name(name) if token.kind == "name" else name


def _refuse_after_table(reader: TokenReader, table: Token) -> None:
    if reader.next.is_symbol("("):
        raise reader.fail(
            "a function cannot be a table here. Write the path of the files in quotes, or pass their rows by name.",
            table,
        )
    if reader.next.is_symbol("."):
        raise reader.fail("there are no catalogs and schemas. Write a path in quotes, or the name of rows.", table)


def _read_alias(reader: TokenReader, name: str) -> str:
    """Read the alias of a table; without one, its name is that of the table."""
    has_as = reader.accept("AS")
    token = reader.next
    if token.kind in {"symbol", "string"} or token.is_word(*_NO_ALIAS):
        if has_as:
            raise reader.fail("an alias follows AS. Write a name, or leave AS out.")
        return name
    return read_name(reader, reader.take(), "an alias")


def _find_path_name(path: str) -> str:
    """Find the name that DuckDB gives to a path: its last part, up to the first dot."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1].partition(".")[0] or path


def _read_condition(reader: TokenReader) -> tuple[Span, tuple[str, ...]]:
    start = reader.next
    if reader.accept("USING"):
        if not reader.next.is_symbol("("):
            raise reader.fail("key columns follow USING in brackets. Write USING (id).")
        return Span("", start.start), tuple(name for name, _ in read_names(reader, "the key columns"))
    if not reader.accept("ON"):
        raise reader.fail("a join condition follows the source, and joins belong into a query. Write ON t.id = s.id.")
    tokens = reader.take_until("WHEN", symbols=",")
    if not tokens:
        raise reader.fail("the join condition is empty. Write ON t.id = s.id.")
    return reader.source.cut(tokens), ()


def _read_returning(reader: TokenReader, target_alias: str) -> tuple[ReturnedColumn, ...]:
    found: list[ReturnedColumn] = []
    while not found or reader.accept_symbol(","):
        token = reader.take()
        if token.is_symbol("*"):
            found.append(ReturnedColumn("*", "*", token.start))
            continue
        name = read_name(reader, token, "what RETURNING lists")
        if reader.accept_symbol("."):
            if name.lower() != target_alias.lower():
                raise reader.fail(f"RETURNING has columns of the target only. Write {target_alias}.column.", token)
            if reader.accept_symbol("*"):
                found.append(ReturnedColumn("*", "*", token.start))
                continue
            name = read_name(reader, reader.take(), "a column")
        has_alias = reader.accept("AS")
        alias = read_name(reader, reader.take(), "an alias") if has_alias else name
        found.append(ReturnedColumn(name, alias, token.start))
        following = reader.next
        if not (reader.is_at_end or following.is_symbol(",", ";")):
            raise reader.fail("RETURNING lists columns only. Compute expressions from the audit of the result.")
    names: Sequence[str] = [one.alias.lower() for one in found]
    for at, one in enumerate(found):
        if names.index(one.alias.lower()) < at:
            raise reader.source.make_error(f"RETURNING has {one.alias!r} twice. Leave one out.", one.start)
    return tuple(found)
