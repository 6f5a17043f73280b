"""Functions of DuckDB by kind: which are not of one row, and which are not the same at every call."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.closed_database import query_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names that SQL allows without parentheses.
CONSTANT_NAMES = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
# DuckDB lists these as if they were always the same.
_LOCAL_TIMES = ("current_localtime", "current_localtimestamp")


@cache
def list_functions() -> dict[str, str]:
    """List the functions that are not the same for every call, and those that are not of one row."""
    found = query_rows(
        "SELECT lower(function_name) AS name, min(function_type), max(stability) FROM duckdb_functions() GROUP BY name "
        "HAVING max(stability) <> 'CONSISTENT' OR NOT bool_or(function_type IN ('scalar', 'macro'))"
    )
    known = {name: str(stability) if kind in ("scalar", "macro") else "aggregate" for name, kind, stability in found}
    known |= dict.fromkeys(_LOCAL_TIMES, "CONSISTENT_WITHIN_QUERY")
    macros = query_rows(
        "SELECT lower(function_name), json_serialize_sql('SELECT ' || macro_definition) FROM duckdb_functions() "
        "WHERE function_type = 'macro'"
    )
    calls = [(name, {*_list_calls(json.loads(tree))}) for name, tree in macros]
    while True:
        # A macro is what the functions are that it calls.
        of_calls = {
            name: max(known[call] for call in called & known.keys())
            for name, called in calls
            if name not in known and not known.keys().isdisjoint(called)
        }
        if not of_calls:
            return known
        known |= of_calls


def _list_calls(node: Any) -> Iterator[str]:
    """List the functions that a tree calls, and names of its subqueries and constants which are like functions."""
    if isinstance(node, list):
        for one in node:
            yield from _list_calls(one)
    elif isinstance(node, dict):
        if node.get("class") == "FUNCTION":
            yield str(node["function_name"]).lower()
        elif node.get("class") == "SUBQUERY":
            yield "unnest"
        elif node.get("class") == "COLUMN_REF" and node["column_names"][0].lower() in CONSTANT_NAMES:
            yield "now"
        for one in node.values():
            yield from _list_calls(one)
