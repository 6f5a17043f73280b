"""MERGE in clauses by DuckDB itself, on a native table that holds all rows of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from merganser.core.model.clauses import Clause

HAS_MERGE = tuple(map(int, duckdb.__version__.split(".")[:2])) >= (1, 4)
needs_merge = pytest.mark.skipif(not HAS_MERGE, reason="this DuckDB has no MERGE to compare with")
_SIDES = {"matched": "MATCHED", "not_matched": "NOT MATCHED", "not_matched_by_source": "NOT MATCHED BY SOURCE"}


def merge_natively(
    target: pa.Table, source: pa.Table, on: str, clauses: Sequence[Clause]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Run a MERGE; return the rows that the table then has, and how many were inserted, updated and deleted."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", target)
        connection.register("source", source)
        connection.execute("CREATE TABLE target AS SELECT * FROM given")
        statement = write_statement(target.column_names, source.column_names, on, clauses)
        actions = [action for (action,) in connection.execute(statement).fetchall()]
        rows = connection.sql("FROM target").to_arrow_table().to_pylist()
    counts = {name: actions.count(name[:-1].upper()) for name in ("inserts", "updates", "deletes")}
    return rows, {name[:-1]: count for name, count in counts.items()}


def write_statement(columns: Sequence[str], given: Sequence[str], on: str, clauses: Sequence[Clause]) -> str:
    """Write clauses as a MERGE statement, with every column spelled out."""
    lines = [_write_clause(columns, given, clause) for clause in clauses]
    return "\n".join(["MERGE INTO target AS t USING source AS s", f"ON {on}", *lines, "RETURNING merge_action"])


def _write_clause(columns: Sequence[str], given: Sequence[str], clause: Clause) -> str:
    condition = "" if clause.where is None else f" AND ({clause.where})"
    values = clause.values
    if values is None:
        both = [name for name in columns if name in given and name not in clause.exclude]
        values = {name: f's."{name}"' for name in both}
    action = {"delete": "DELETE", "nothing": "DO NOTHING"}.get(clause.action)
    if clause.action == "update":
        action = "UPDATE SET " + ", ".join(f'"{name}" = {text}' for name, text in values.items())
    elif clause.action == "insert":
        names = ", ".join(f'"{name}"' for name in values)
        action = f"INSERT ({names}) VALUES ({', '.join(values.values())})"  # noqa: S608  the test's own
    return f"WHEN {_SIDES[clause.side]}{condition} THEN {action}"
