"""Conditions of queries as SQL with parameters: on properties, fields, types, and directions of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.fields import COMPARED_FIELDS, Condition, build_field_sql, to_stored
from merganser.graph.sqlite.sql import bind_key, build_equality_sql, build_key_sql, build_type_sql, quote_literal
from merganser.graph.sqlite.write import check_type
from merganser.graph.values import Value, encode, has_dict, normalize_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

Direction: TypeAlias = Literal["out", "in", "both"]
Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "contains", "starts_with", "ends_with"]
# Values of properties, or conditions on properties and fields: a name, an operator and a value each.
Where: TypeAlias = Mapping[str, Any] | Sequence[tuple[str, Operator, Any]]

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "contains", "starts_with", "ends_with")
# For each direction, the columns of an edge that it is followed from and to.
_ENDPOINT_COLUMNS = {
    "out": (("from_id", "to_id"),),
    "in": (("to_id", "from_id"),),
    "both": (("from_id", "to_id"), ("to_id", "from_id")),
}
# The opposite of each comparison, between values that can be compared.
_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# The name, operator and value of a condition.
_CONDITION_PARTS = 3
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)


class PropertyConditions(tuple[tuple[str, Any, Any], ...]):
    """Conditions on properties alone, even of names that otherwise are those of fields."""

    __slots__ = ()


NO_CONDITIONS = PropertyConditions()


def join_conditions(conditions: Iterable[Condition]) -> Condition:
    """Join conditions that must all hold."""
    given = tuple(conditions)
    if len(given) == 1:
        return given[0]
    sql = " AND ".join(condition.sql for condition in given) or "1"
    return Condition(sql, tuple(parameter for condition in given for parameter in condition.parameters))


def build_conditions(given: Where | None, role: str, table: str) -> tuple[Condition, ...]:
    """Build the conditions that a caller gives: values of properties, or a list of names, operators and values."""
    if not isinstance(given, list | tuple):
        return build_equality_conditions(given, role, table)  # type: ignore[arg-type]
    for part in given:
        if not isinstance(part, list | tuple) or len(part) != _CONDITION_PARTS:
            message = f'{role} has {part!r}; give a dict of values, or a list of conditions such as ("seen", ">", 1).'
            raise InvalidArgumentError(message)
    build = build_property_condition if isinstance(given, PropertyConditions) else build_condition
    return tuple(build(name, operator, value, table, role) for name, operator, value in given)


def build_condition(name: str, operator: str, value: Any, table: str, role: str = "where") -> Condition:
    """Build the condition of an operator on a property, or on the id or a time of the record."""
    if isinstance(name, str) and name in COMPARED_FIELDS:
        return build_field_condition(name, operator, value, table)
    return build_property_condition(name, operator, value, table, role)


def build_field_condition(name: str, operator: str, value: Any, table: str) -> Condition:
    """Build the condition of an operator on the id or a time of a record.

    >>> build_field_condition("id", ">", 7, "r.")
    Condition(sql='r.id > ?', parameters=(7,))
    """
    own = build_field_sql(name, table)
    if operator == "in":
        values = [to_stored(name, item) for item in _read_list(name, value)]
        return Condition(f"{own} IN (SELECT value FROM json_each(?))", (encode(values),))
    if operator not in _OPPOSITES:
        known = " ".join((*_OPPOSITES, "in"))
        message = f"{name} of a record is compared by one of {known}, not by {operator!r}. Use one of them."
        raise InvalidArgumentError(message)
    return Condition(f"{own} {operator} ?", (to_stored(name, value),))


def build_negated_condition(name: str, operator: str, value: Any, table: str) -> Condition:
    """Build the condition that a property is there and can be compared with the value, but does not satisfy it."""
    if operator in _OPPOSITES:
        return build_property_condition(name, _OPPOSITES[operator], value, table)
    own = build_key_sql(name, table)
    is_string = f"({own} >= '\"' AND {own} < '#' OR {own} >= 'n\"' AND {own} < 'n#')"
    comparable = {
        "in": f"{own} IS NOT NULL",
        "contains": f"({is_string} OR {own} >= '[' AND {own} < '\\')",
    }.get(operator, is_string)
    found = build_property_condition(name, operator, value, table)
    return Condition(f"({comparable} AND NOT {found.sql})", found.parameters)


def negate_operator(operator: str) -> str:
    """Return the operator that holds where this one does not, if the values can be compared.

    >>> negate_operator("<")
    '>='
    """
    return _OPPOSITES[operator]


def build_equality_conditions(given: Mapping[str, Any] | None, role: str, table: str) -> tuple[Condition, ...]:
    """Build the conditions that properties have these values; None means that the property is absent."""
    return tuple(_build_equal(name, value, role, table) for name, value in normalize_properties(given, role).items())


def build_property_condition(name: str, operator: str, value: Any, table: str, role: str = "where") -> Condition:
    """Build the condition of an operator on a property.

    >>> build_property_condition("name", "starts_with", "An", "").parameters
    ('"An', '"Ao', '"An"')
    """
    if operator not in OPERATORS:
        raise InvalidArgumentError(f"Unknown operator {operator!r}; use one of {' '.join(OPERATORS)}.")
    listed = _read_list(name, value) if operator == "in" else value
    ((stored, found),) = normalize_properties({name: listed}, role).items()
    if operator == "=":
        return _build_equal(stored, found, role, table)
    if operator == "!=":
        return _build_unequal(stored, found, table)
    if operator == "in":
        return _build_in(stored, found, table)
    if operator == "contains":
        return _build_contains(stored, found, table)
    if operator in {"starts_with", "ends_with"}:
        return _build_affix(stored, operator, found, table)
    return _build_comparison(stored, operator, found, table)


def build_type_conditions(table: str, given: str | Sequence[str] | None) -> tuple[Condition, ...]:
    """Build the condition on the type of a record: one name, one of several, or any for None.

    The names are literals, so that SQLite uses the indexes of a type.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        check_type(given)
        return (Condition(build_type_sql(given, table)),)
    if not given or not isinstance(given, list | tuple | set | frozenset):
        raise InvalidArgumentError(f"The type is {given!r}; give a name such as 'Job', or a list of names.")
    for name in given:
        check_type(name)
    return (Condition(f"unlikely({table}type IN ({', '.join(map(quote_literal, given))}))"),)


def build_types_sql(table: str, given: str | Sequence[str] | None) -> str:
    """Build the SQL of `build_type_conditions`, which has no parameters."""
    return "1" if given is None else join_conditions(build_type_conditions(table, given)).sql


def get_endpoint_columns(direction: str) -> tuple[tuple[str, str], ...]:
    """Return the columns of an edge that a direction follows from and to.

    >>> get_endpoint_columns("in")
    (('to_id', 'from_id'),)
    """
    if not isinstance(direction, str) or direction not in _ENDPOINT_COLUMNS:
        raise InvalidArgumentError(f"direction is {direction!r}; give 'out', 'in' or 'both'.")
    return _ENDPOINT_COLUMNS[direction]


def check_integer(role: str, given: int, least: int) -> None:
    """Refuse a value that is not an integer, or too small."""
    if type(given) is not int or given < least:
        raise InvalidArgumentError(f"{role} is {given!r}; give an integer of {least} or more.")


def _build_equal(name: str, value: Value, role: str, table: str) -> Condition:
    _check_comparable(name, value, role)
    if value is None:
        return Condition(f"{build_key_sql(name, table)} IS NULL")
    sql, parameter = build_equality_sql(name, value, table)
    return Condition(sql, (parameter,))


def _build_unequal(name: str, value: Value, table: str) -> Condition:
    present = f"{build_key_sql(name, table)} IS NOT NULL"
    same = _build_equal(name, value, "where", table)
    return Condition(present) if value is None else Condition(f"({present} AND NOT {same.sql})", same.parameters)


def _build_in(name: str, values: Value, table: str) -> Condition:
    """Test for a value in a list, which is one parameter whatever its length."""
    keys = []
    for value in values if isinstance(values, list) else ():
        if value is None or isinstance(value, list | dict):
            message = f"The list for property {name!r} contains {value!r}; give strings, numbers, booleans or dates."
            raise InvalidArgumentError(message)
        other, parameter = bind_key(value)
        # SQLite parses other floats of the list exactly as it parses stored ones.
        keys.append(parameter if other == "?" else value)
    return Condition(f"{build_key_sql(name, table)} IN (SELECT value FROM json_each(?))", (encode(keys),))


def _build_contains(name: str, value: Value, table: str) -> Condition:
    _check_comparable(name, value, "where")
    own = build_key_sql(name, table)
    inside = Condition(f"({own} >= '[' AND {own} < '\\' AND merganser_test({own}, 'contains', ?))", (encode(value),))
    if not isinstance(value, str):
        return inside
    substring = _build_string_condition(own, Condition(f"instr(substr({own}, 2), ?)", (value,)), "contains", value)
    return Condition(f"({substring.sql} OR {inside.sql})", substring.parameters + inside.parameters)


def _build_affix(name: str, operator: str, value: Value, table: str) -> Condition:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{operator} of property {name!r} needs a string, not {value!r}.")
    own = build_key_sql(name, table)
    if operator == "starts_with":
        first = f'"{value}'
        return _build_string_condition(
            own, Condition(f"{own} >= ? AND {own} < ?", (first, _find_prefix_end(first))), operator, value
        )
    # `substr(x, -0)` returns the whole string, so an empty suffix is handled apart.
    test = Condition(f"substr(substr({own}, 2), ?) = ?", (-len(value), value)) if value else Condition("1")
    return _build_string_condition(own, test, operator, value)


def _build_comparison(name: str, operator: str, value: Value, table: str) -> Condition:
    own = build_key_sql(name, table)
    if isinstance(value, str):
        return _build_string_condition(own, Condition(f"{own} {operator} ?", (f'"{value}',)), operator, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"Property {name!r} cannot be compared by {operator} {value!r}; give a number, a string or a date."
        raise InvalidArgumentError(message)
    other, parameter = bind_key(value)
    # SQLite sorts numbers before all strings.
    return Condition(f"({own} {operator} {other} AND {own} < '')", (parameter,))


def _build_string_condition(own: str, test: Condition, operator: str, value: str) -> Condition:
    """Build a condition on strings: a test of the key in SQL, and in Python for strings with a NUL."""
    return Condition(
        f"({own} >= '\"' AND {own} < '#' AND {test.sql} "
        f"OR {own} >= 'n\"' AND {own} < 'n#' AND merganser_test({own}, {quote_literal(operator)}, ?))",
        (*test.parameters, encode(value)),
    )


def _find_prefix_end(prefix: str) -> str:
    """Return the first string after all that start with a prefix."""
    kept = prefix.rstrip(_LAST_CHARACTER)
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _read_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset | range):
        raise InvalidArgumentError(f"Property {name!r} cannot be in {value!r}; give a list of values.")
    return list(value)


def _check_comparable(name: str, value: Value, role: str) -> None:
    if has_dict(value):
        message = f"{role} property {name!r} is or holds a dict, which cannot be compared; compare its values."
        raise InvalidArgumentError(message)
