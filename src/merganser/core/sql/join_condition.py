"""The join condition of a MERGE: which expression over the source each key column of the target equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.expressions import map_columns
from merganser.core.model.clauses import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from merganser.core.sql.grammar import MergeText
    from merganser.core.sql.names import Names
    from merganser.core.sql.tokens import Span

_EQUAL, _SAME = "COMPARE_EQUAL", "COMPARE_NOT_DISTINCT_FROM"
_RULE = "The join condition compares columns of the target with = and AND, each with an expression over the source"


@dataclass(frozen=True, slots=True)
class Join:
    """Expressions over the source by key column; `by_name` are those that are a column of the same name."""

    on: Mapping[str, str]
    by_name: frozenset[str]
    matches_null: bool = False


def read_join(statement: MergeText, names: Names) -> Join:
    """Read the join condition of a statement, and refuse one that is not a comparison of keys."""
    if statement.using:
        return Join({name: quote(name) for name in statement.using}, frozenset(statement.using))
    span = statement.condition
    on: dict[str, str] = {}
    by_name, operators = set(), set()
    for node in _split(names.parse(span)):
        if node.get("type") not in (_EQUAL, _SAME):
            raise names.fail(f"this is not a comparison of keys. {_RULE}. {_suggest(node)}", span, node)
        column, value = _find_sides(node, names, span)
        key = column["column_names"][1]
        if any(key.lower() == one.lower() for one in on):
            raise names.fail(f"column {key!r} is compared twice. Compare it once.", span, node)
        operators.add(node["type"])
        if len(operators) > 1:
            raise names.fail(
                "= never matches NULL, and IS NOT DISTINCT FROM does. Write one of them for all keys.", span, node
            )
        given = value["column_names"][1:] if value.get("class") == "COLUMN_REF" else []
        # Written like a name in a list of key columns: a merge reads these as they are.
        on[key] = quote(key) if given == [key] else names.write(map_columns(value, _to_source), span)
        names.check(on[key], "s", names.find_start(value, span))
        if [one.lower() for one in given] == [key.lower()]:
            by_name.add(key)
    return Join(on, frozenset(by_name), matches_null=_SAME in operators)


def _split(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if node.get("type") != "CONJUNCTION_AND":
        yield node
        return
    for child in node["children"]:
        yield from _split(child)


def _find_sides(node: dict[str, Any], names: Names, span: Span) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the column of the target, and what it is compared with."""
    sides = [node["left"], node["right"]]
    tables = [_list_tables(side, names, span) for side in sides]
    if {"t"} not in tables or {"s"} not in tables:
        if set() in tables:
            reason = "this compares with a constant, which identifies no row"
        elif {"s", "t"} in tables:
            reason = "one side has columns of both tables"
        else:
            reason = f"both sides have columns of the {'target' if {'t'} in tables else 'source'}"
        raise names.fail(f"{reason}. {_RULE}. {_suggest(node)}", span, node)
    column, value = sides if tables[0] == {"t"} else sides[::-1]
    if column.get("class") != "COLUMN_REF" or len(column["column_names"]) != 2:  # noqa: PLR2004  alias and name
        raise names.fail(
            f"keys of the target are columns, because they are stored. {_RULE}. Compute the key of the source instead.",
            span,
            column,
        )
    return column, value


def _suggest(node: Mapping[str, Any]) -> str:
    if node.get("type") == "CONJUNCTION_OR":
        return "Run one MERGE for each condition."
    return (
        "Move a condition on the target into the clauses or into scope, and one on the source into a query: USING "
        "(SELECT … WHERE …)."
    )


def _list_tables(side: dict[str, Any], names: Names, span: Span) -> set[str]:
    found = set()

    def look(node: dict[str, Any]) -> dict[str, Any]:
        table = names.find_table(node)
        if table is None:
            name = ".".join(node["column_names"])
            raise names.fail(
                f"{name!r} names no table. Write {names.target}.{name} or {names.source}.{name}.", span, node
            )
        found.add(table)
        return node

    map_columns(side, look)
    return found


def _to_source(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "column_names": ["s", *node["column_names"][1:]]}
