"""Conditions of queries, as SQL and its parameters: on properties, on types, and on which way edges point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from merganser.errors import InvalidArgumentError
from merganser.graph.sqlite.sql import equals, key, key_of, literal, of_type
from merganser.graph.sqlite.write import check_type
from merganser.graph.values import encode, has_dict, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.graph.sqlite.sql import Parameter
    from merganser.graph.values import Value

Direction: TypeAlias = Literal["out", "in", "both"]
Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "contains", "starts_with", "ends_with"]

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "contains", "starts_with", "ends_with")
# The column of an edge that is at this end, and the one at the other, for each way.
_SIDES = {
    "out": (("from_id", "to_id"),),
    "in": (("to_id", "from_id"),),
    "both": (("from_id", "to_id"), ("to_id", "from_id")),
}
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Term:
    """A condition: its SQL, and the values of its parameters."""

    sql: str
    parameters: tuple[Parameter, ...] = ()


def all_of(terms: Iterable[Term]) -> Term:
    """Join conditions that must all hold."""
    given = tuple(terms)
    sql = " AND ".join(term.sql for term in given) or "1"
    return Term(sql, tuple(parameter for term in given for parameter in term.parameters))


def equal_terms(given: Mapping[str, Any] | None, role: str, table: str) -> tuple[Term, ...]:
    """Give the conditions that properties have these values; None stands for a property that is not there."""
    return tuple(_equal(name, value, role, table) for name, value in plain(given, role).items())


def property_term(name: str, operator: str, value: Any, table: str) -> Term:
    """Give the condition that an operator states of a property.

    >>> property_term("age", ">", 30, "").parameters, property_term("name", "starts_with", "An", "").parameters
    ((30,), ('"An', '"Ao', '"An"'))
    """
    if operator not in OPERATORS:
        message = f"There is no operator {operator!r}; use one of {' '.join(OPERATORS)}."
        raise InvalidArgumentError(message)
    listed = _listed(name, value) if operator == "in" else value
    ((stored, found),) = plain({name: listed}, "where").items()
    if operator == "=":
        return _equal(stored, found, "where", table)
    if operator == "!=":
        return _unequal(stored, found, table)
    if operator == "in":
        return _in(stored, found, table)
    if operator == "contains":
        return _contains(stored, found, table)
    if operator in {"starts_with", "ends_with"}:
        return _ends(stored, operator, found, table)
    return _ordered(stored, operator, found, table)


def type_terms(table: str, given: str | Sequence[str] | None) -> tuple[Term, ...]:
    """Give the condition on a record's type: one name, one of several, or, for None, any.

    The names are literals, so that the indexes of a type are used.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        check_type(given)
        return (Term(of_type(given, table)),)
    if not given or not isinstance(given, list | tuple | set | frozenset):
        message = f"The type is {given!r}; give a name such as 'Job', or a list of names."
        raise InvalidArgumentError(message)
    for name in given:
        check_type(name)
    return (Term(f"unlikely({table}type IN ({', '.join(map(literal, given))}))"),)


def sides(direction: str) -> tuple[tuple[str, str], ...]:
    """Give the columns of an edge that a direction leads from and to.

    >>> sides("in")
    (('to_id', 'from_id'),)
    """
    if not isinstance(direction, str) or direction not in _SIDES:
        message = f"direction is {direction!r}; give 'out', 'in' or 'both'."
        raise InvalidArgumentError(message)
    return _SIDES[direction]


def check_number(role: str, given: int, least: int) -> None:
    """Refuse what is no whole number, or too low a one."""
    if type(given) is not int or given < least:
        message = f"{role} is {given!r}; give a whole number of {least} or more."
        raise InvalidArgumentError(message)


def _equal(name: str, value: Value, role: str, table: str) -> Term:
    _check_comparable(name, value, role)
    if value is None:
        return Term(f"{key(name, table)} IS NULL")
    sql, parameter = equals(name, value, table)
    return Term(sql, (parameter,))


def _unequal(name: str, value: Value, table: str) -> Term:
    present = f"{key(name, table)} IS NOT NULL"
    same = _equal(name, value, "where", table)
    return Term(present) if value is None else Term(f"({present} AND NOT {same.sql})", same.parameters)


def _in(name: str, values: Value, table: str) -> Term:
    """Test for a value in a list, which is one parameter however long it is."""
    keys = []
    for value in values if isinstance(values, list) else ():
        if value is None or isinstance(value, list | dict):
            message = f"where property {name!r} in a list with {value!r}; give strings, numbers, booleans or dates."
            raise InvalidArgumentError(message)
        other, parameter = key_of(value)
        # SQLite reads any other float from the list as it reads a stored one.
        keys.append(parameter if other == "?" else value)
    return Term(f"{key(name, table)} IN (SELECT value FROM json_each(?))", (encode(keys),))


def _contains(name: str, value: Value, table: str) -> Term:
    _check_comparable(name, value, "where")
    own = key(name, table)
    inside = Term(f"({own} >= '[' AND {own} < '\\' AND merganser_test({own}, 'contains', ?))", (encode(value),))
    if not isinstance(value, str):
        return inside
    part = _text_term(own, Term(f"instr(substr({own}, 2), ?)", (value,)), "contains", value)
    return Term(f"({part.sql} OR {inside.sql})", part.parameters + inside.parameters)


def _ends(name: str, operator: str, value: Value, table: str) -> Term:
    if not isinstance(value, str):
        message = f"where property {name!r} {operator} {value!r}; give a string."
        raise InvalidArgumentError(message)
    own = key(name, table)
    if operator == "starts_with":
        first = f'"{value}'
        return _text_term(own, Term(f"{own} >= ? AND {own} < ?", (first, _after(first))), operator, value)
    # The last no characters would be all of them.
    test = Term(f"substr(substr({own}, 2), ?) = ?", (-len(value), value)) if value else Term("1")
    return _text_term(own, test, operator, value)


def _ordered(name: str, operator: str, value: Value, table: str) -> Term:
    own = key(name, table)
    if isinstance(value, str):
        return _text_term(own, Term(f"{own} {operator} ?", (f'"{value}',)), operator, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"where property {name!r} {operator} {value!r}; only numbers, strings and dates have an order."
        raise InvalidArgumentError(message)
    other, parameter = key_of(value)
    # Numbers come before all texts.
    return Term(f"({own} {operator} {other} AND {own} < '')", (parameter,))


def _text_term(own: str, test: Term, operator: str, value: str) -> Term:
    """Give a condition on strings: a test of the key, and for strings with a NUL the same in Python."""
    return Term(
        f"({own} >= '\"' AND {own} < '#' AND {test.sql} "
        f"OR {own} >= 'n\"' AND {own} < 'n#' AND merganser_test({own}, {literal(operator)}, ?))",
        (*test.parameters, encode(value)),
    )


def _after(prefix: str) -> str:
    """Give the first string after all that start with a prefix."""
    kept = prefix.rstrip(_LAST_CHARACTER)
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset | range):
        message = f"where property {name!r} in {value!r}; give a list of values."
        raise InvalidArgumentError(message)
    return list(value)


def _check_comparable(name: str, value: Value, role: str) -> None:
    if has_dict(value):
        message = f"{role} property {name!r} is or holds a dict, which cannot be compared; store its parts apart."
        raise InvalidArgumentError(message)
