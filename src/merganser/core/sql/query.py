"""The query that a MERGE takes its rows from, over rows that are passed by name and files that it names.

The query may come from another user. It runs in a DuckDB instance of its own, which has these rows and no access to
files, extensions or settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.closed_database import connect_closed
from merganser.core.columnar.expressions import serialize
from merganser.core.model.clauses import quote
from merganser.core.sources.source import read_source
from merganser.core.sql.names import find_error, walk
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from merganser.core.sql.grammar import MergeText
    from merganser.core.sql.tokens import Span, SqlText


@dataclass(frozen=True, slots=True)
class QueryTable:
    """A table that a query names, and where."""

    name: str
    start: int
    is_common: bool  # it is a common table expression, unless rows have this name

    @property
    def is_path(self) -> bool:
        """Whether it is the path of files, unless rows have this name."""
        return any(mark in self.name for mark in "./*:")


def list_tables(text: SqlText, span: Span) -> list[QueryTable]:
    """List the tables that a query reads, once each."""
    try:
        tree = serialize(span.text)
        nodes = list(walk(tree))
    except RecursionError as error:
        raise text.make_error("the query is nested too deeply. Write it with fewer levels.", span.start) from error
    if tree.get("error"):
        place = span.start + min(find_error(tree, span.text), len(span.text))
        raise text.make_error(f"{tree['error_message']}. The brackets of USING hold a SELECT: correct it.", place)
    if len(tree["statements"]) != 1:
        raise text.make_error("the brackets hold several statements. Write one SELECT.", span.start)
    common = {one["key"].lower() for node in nodes if "cte_map" in node for one in node["cte_map"]["map"]}
    found: dict[str, QueryTable] = {}
    for node in nodes:
        if node.get("type") != "BASE_TABLE":
            continue
        name, start = node["table_name"], _locate(span, int(node.get("query_location", 0)))
        if node.get("schema_name") or node.get("catalog_name"):
            raise text.make_error(
                "there are no catalogs and schemas. Write a path in quotes, or the name of rows.", start
            )
        found.setdefault(name.lower(), QueryTable(name, start, name.lower() in common))
    return list(found.values())


def run_query(statement: MergeText, sources: Mapping[str, Any]) -> pa.Table:
    """Run the query of a statement over sources by the names that it has for them."""
    import duckdb  # noqa: PLC0415  only queries need it

    span, text = statement.source.span, statement.text
    tables = {name: _read(statement, name, source) for name, source in sources.items()}
    with connect_closed() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        query = span.text
        if statement.source.columns:
            columns = ", ".join(map(quote, statement.source.columns))
            query = f"SELECT * FROM (\n{query}\n) AS {quote(statement.source_alias)}({columns})"  # noqa: S608  it is meant to run
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.PermissionException as error:
            raise text.make_error(
                "the query reads files with a function. Write their path in quotes instead, as in FROM 'monday.csv', "
                "or pass their rows by name.",
                span.start,
            ) from error
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0].rstrip(".! ")
            raise text.make_error(f"the query cannot be run: {reason}. Correct it.", span.start) from error


def _read(statement: MergeText, name: str, source: Any) -> pa.Table:
    start = statement.source.span.start
    if type(source).__module__.partition(".")[0] == "pyspark":
        raise statement.text.make_error(
            f"{name!r} is a DataFrame of Spark, which the query cannot read. Write the query as a DataFrame, and use "
            "that as the source.",
            start,
        )
    try:
        # In memory, because a query may read a table twice.
        table = read_source(source)
    except InvalidArgumentError as error:
        raise statement.text.make_error(str(error), start) from error
    names = [one.lower() for one in table.column_names]
    doubled = next((one for one in table.column_names if names.count(one.lower()) > 1), None)
    if doubled is not None:
        raise statement.text.make_error(
            f"{name!r} has several columns called {doubled!r}, for SQL ignores case. Rename one.", start
        )
    return table


def _locate(span: Span, place: int) -> int:
    """Find the offset in the statement for a position in the query, which counts bytes; unknown ones are its start."""
    data = span.text.encode()
    return span.start + (len(data[:place].decode(errors="ignore")) if place <= len(data) else 0)
