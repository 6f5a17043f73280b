"""MERGE in clauses by DuckDB itself, on a native table that holds all rows of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def merge_in_order(
    target: pa.Table, source: pa.Table, keys: Sequence[str], clauses: Sequence[Clause], sequence: str
) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Run a MERGE for each source row, in order, on a table of one target row, or of none for a new key.

    Returns each row as it was and as it is then, None where there is none.
    """
    given, rows = source.to_pylist(), target.to_pylist()
    lists: dict[tuple[Any, ...], list[int]] = {}
    for at in sorted(range(len(given)), key=lambda at: _to_order(given[at][sequence])):
        lists.setdefault(tuple(given[at][name] for name in keys), []).append(at)
    on = " AND ".join(f't."{name}" = s."{name}"' for name in keys)
    own = [one for one in clauses if one.side != "not_matched_by_source"]
    others = [one for one in clauses if one.side == "not_matched_by_source"]

    def run(before: pa.Table, sources: Sequence[pa.Table], some: Sequence[Clause]) -> dict[str, Any] | None:
        for one in sources if some else ():
            found, _ = merge_natively(before, one, on, some)
            before = pa.Table.from_pylist(found, target.schema)
        return next(iter(before.to_pylist()), None)

    pairs = []
    for number, row in enumerate(rows):
        numbers = lists.get(tuple(row[name] for name in keys))
        if numbers is None:
            after = run(target.slice(number, 1), [source.slice(0, 0)], others)
        else:
            late = [at for at in numbers if _to_order(given[at][sequence]) < _to_order(row[sequence])]
            after = run(target.slice(number, 1), [source.slice(at, 1) for at in numbers if at not in late], own)
        pairs.append((row, after))
    known = {tuple(row[name] for name in keys) for row in rows}
    for key, numbers in lists.items():
        if key not in known:
            pairs.append((None, run(target.slice(0, 0), [source.slice(at, 1) for at in numbers], own)))
    return pairs


def _to_order(value: Any) -> tuple[bool, Any]:
    """NULL comes first."""
    return value is not None, value or 0
