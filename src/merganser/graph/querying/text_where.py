"""The expression of WHERE as SQL, with the logic of three values: what is not known is not found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.graph.querying.columns import build_order_sql
from merganser.graph.querying.conditions import (
    build_field_condition,
    build_negated_condition,
    build_property_condition,
    negate_operator,
)
from merganser.graph.querying.fields import Condition, build_field_sql, build_type_condition
from merganser.graph.querying.text_syntax import Comparison, Junction, Negation
from merganser.graph.sqlite.sql import build_key_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from merganser.graph.querying.text_syntax import Expression, Operand, OperandComparison


def build_expression(expression: Expression, tables: Mapping[str, str], *, is_negated: bool = False) -> Condition:
    """Build an expression, or that it does not hold; the tables are those of the variables."""
    if isinstance(expression, Negation):
        return build_expression(expression.inner, tables, is_negated=not is_negated)
    if isinstance(expression, Junction):
        # NOT (a AND b) is NOT a OR NOT b, also where one of them is not known.
        word = {"AND": "OR", "OR": "AND"}[expression.word] if is_negated else expression.word
        parts = [build_expression(part, tables, is_negated=is_negated) for part in expression.parts]
        parameters = tuple(parameter for part in parts for parameter in part.parameters)
        return Condition(f"({f' {word} '.join(f'({part.sql})' for part in parts)})", parameters)
    if isinstance(expression, Comparison):
        return _build_comparison(expression, f"{tables[expression.operand.variable]}.", is_negated=is_negated)
    return _build_operand_comparison(expression, tables, is_negated=is_negated)


def _build_comparison(given: Comparison, table: str, *, is_negated: bool) -> Condition:
    name, operator, value = given.operand.name, given.operator, given.value
    if given.operand.kind == "property":
        build = build_negated_condition if is_negated else build_property_condition
        return build(name, operator, value, table)
    build_field = build_type_condition if name == "type" else build_field_condition
    if not is_negated:
        return build_field(name, operator, value, table)
    # Every record has its fields, so that there is nothing that is not known.
    found = build_field(name, operator, value, table)
    return Condition(f"NOT ({found.sql})", found.parameters)


def _build_operand_comparison(given: OperandComparison, tables: Mapping[str, str], *, is_negated: bool) -> Condition:
    left, right = given.left, given.right
    operator = negate_operator(given.operator) if is_negated else given.operator
    if left.kind != "property":
        return Condition(f"{_build_field(left, tables)} {operator} {_build_field(right, tables)}")
    one, other = (build_key_sql(side.name, f"{tables[side.variable]}.") for side in (left, right))
    if operator in {"=", "!="}:
        same = f"({one} = {other} OR {_is_nested(one)} AND {_is_nested(other)} AND merganser_same({one}, {other}))"
        present = f"{one} IS NOT NULL AND {other} IS NOT NULL"
        return Condition(f"{present} AND {'' if operator == '=' else 'NOT '}{same}")
    one, other = build_order_sql(one), build_order_sql(other)
    are_numbers = f"{one} < '' AND {other} < ''"
    return Condition(f"({are_numbers} OR {_is_string(one)} AND {_is_string(other)}) AND {one} {operator} {other}")


def _build_field(operand: Operand, tables: Mapping[str, str]) -> str:
    table = f"{tables[operand.variable]}."
    return build_field_sql("id" if operand.kind == "record" else operand.name, table)


def _is_string(key: str) -> str:
    return f"{key} >= '\"' AND {key} < '#'"


def _is_nested(key: str) -> str:
    """Test for a list or dict."""
    return f"({key} >= '[' AND {key} < '\\' OR {key} >= '{{' AND {key} < '|')"
