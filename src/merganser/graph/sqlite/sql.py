"""Names and values in SQL: names as quoted literals, because indexes cannot have parameters, values as parameters.

Properties are compared by keys. The key of a number is the number, of a string the string after a quote, of a boolean
`true` or `false`, of a list or dict its JSON text. Numbers and strings are never equal in SQLite, so keys are equal
exactly when the values are, except for lists, because `[1]` equals `[1.0]`. Some versions of SQLite truncate extracted
strings at a NUL, so the key of a string with a NUL is its JSON text after an `n`.
"""

from __future__ import annotations

from functools import lru_cache
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from merganser.graph.values import MAX_INT64, MIN_INT64, Properties, Value, are_equal, decode, encode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

Table: TypeAlias = Literal["nodes", "edges"]
# The types of parameters that statements use.
Parameter: TypeAlias = int | float | str

_NUL = "\\u0000"
_FIRST_PRINTABLE = " "


def quote_literal(text: str) -> str:
    """Quote a string for SQL.

    >>> quote_literal("it's"), quote_literal("a" + chr(0))
    ("'it''s'", "CAST(x'6100' AS TEXT)")
    """
    if "\0" in text:
        return f"CAST(x'{text.encode().hex()}' AS TEXT)"
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def quote_identifier(name: str) -> str:
    """Quote the name of an index."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def quote_spark_identifier(name: str) -> str:
    """Quote the name of a column or field for Spark SQL; here, because configurations are read without Spark.

    >>> quote_spark_identifier("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def has_json_path(name: str) -> bool:
    """Check whether SQLite has a JSON path to a property: not if JSON escapes a character of its name."""
    return not any(character in '"\\' or character < _FIRST_PRINTABLE for character in name)


def to_json_path(name: str) -> str:
    """Return the JSON path to a property as an SQL literal.

    >>> print(to_json_path("a.b"))
    '$."a.b"'
    """
    return quote_literal('$."' + name + '"')


@lru_cache(maxsize=4096)
def build_key_sql(name: str, table: str = "") -> str:
    """Build the SQL of a property's key; `table` is `n.` for the properties of `n`."""
    if not has_json_path(name):
        return f"merganser_key({table}properties, {quote_literal(name)})"
    path = to_json_path(name)
    text, value = f"{table}properties -> {path}", f"json_extract({table}properties, {path})"
    return (
        f"CASE json_type({table}properties, {path}) "
        f"WHEN 'text' THEN CASE WHEN instr({text}, '{_NUL}') THEN 'n' || ({text}) ELSE '\"' || {value} END "
        f"WHEN 'integer' THEN {value} WHEN 'real' THEN {value} ELSE {text} END"
    )


def bind_key(value: Value, name: str = "") -> tuple[str, Parameter]:
    """Return the SQL for the key of a value, and its parameter."""
    if isinstance(value, str):
        return "?", _encode_string_key(value)
    if isinstance(value, float):
        if value.is_integer() and MIN_INT64 <= value <= MAX_INT64:
            return "?", int(value)
        # SQLite may parse a number differently from Python, so SQLite parses both sides.
        return ("json_extract(?, '$')", repr(value)) if has_json_path(name) else ("?", value)
    plain = _encode_key(value)
    return "?", "" if plain is None else plain


def build_equality_sql(name: str, value: Value, table: str = "") -> tuple[str, Parameter]:
    """Build the condition that a property equals a value, and its parameter."""
    own = build_key_sql(name, table)
    other, parameter = bind_key(value, name)
    return build_key_equality_sql(own, "list" if isinstance(value, list) else other), parameter


def build_key_equality_sql(own: str, other: str) -> str:
    """Build the condition that two keys are equal; lists sort between "[" and the character after it."""
    if other == "list":
        return f"({own} >= '[' AND {own} < '\\' AND merganser_same({own}, ?))"
    return f"{own} = {other}"


def split_match(match: Properties) -> tuple[tuple[tuple[str, str], ...], list[Parameter]]:
    """Split a match into the conditions that its SQL depends on, and the parameters."""
    conditions = []
    parameters: list[Parameter] = []
    for name, value in match.items():
        other, parameter = bind_key(value, name)
        conditions.append((name, "list" if isinstance(value, list) else other))
        parameters.append(parameter)
    return tuple(conditions), parameters


def build_match_sql(type_: str, conditions: Iterable[tuple[str, str]], table: str = "") -> str:
    """Build the condition that a record has a type and matches."""
    return " AND ".join(
        [
            build_type_sql(type_, table),
            *(build_key_equality_sql(build_key_sql(name, table), other) for name, other in conditions),
        ]
    )


@lru_cache(maxsize=1024)
def build_type_sql(type_: str, table: str = "") -> str:
    """Build the condition that a record has a type.

    The type is a literal, so that SQLite uses its indexes. It is marked as unlikely, because SQLite otherwise assumes
    that a type has ten records, and prefers the index of types to all others.
    """
    return f"unlikely({table}type = {quote_literal(type_)})"


def define_functions(connection: sqlite3.Connection) -> None:
    """Define the functions that statements use; no index uses them, so any SQLite client may write the file."""
    connection.create_function("merganser_key", 2, _extract_key, deterministic=True)
    connection.create_function("merganser_value", 2, _extract_value, deterministic=True)
    connection.create_function("merganser_same", 2, _are_keys_equal, deterministic=True)
    connection.create_function("merganser_test", 3, _apply_operator, deterministic=True)
    connection.create_function("merganser_text", 1, _to_sort_key, deterministic=True)


def _encode_string_key(text: str) -> str:
    # Only such a string can have the escape of a NUL in its JSON.
    if "\0" in text or "\\" in text:
        written = encode(text)
        if _NUL in written:
            return "n" + written
    return '"' + text


def _encode_key(value: Value) -> Parameter | None:
    if isinstance(value, str):
        return _encode_string_key(value)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return encode(value)


def _extract_key(properties: str, name: str) -> Parameter | None:
    return _encode_key(decode(properties).get(name))


def _extract_value(properties: str, name: str) -> str | None:
    value = decode(properties).get(name)
    return None if value is None else encode(value)


def _are_keys_equal(left: str, right: str) -> bool:
    return are_equal(decode(left), decode(right))


def _apply_operator(own: str, operator: str, value: str) -> bool:
    """Compare the key of a list, or of a string with a NUL, with a value."""
    return _OPERATORS[operator](decode(own.removeprefix("n")), decode(value))


def _to_sort_key(own: str) -> str:
    """Return the key of a string with a NUL as if it were any other string, to sort it among those."""
    return '"' + str(decode(own.removeprefix("n")))


def _contains(own: str | list[Any], value: Value) -> bool:
    if isinstance(own, str):
        return isinstance(value, str) and value in own
    return any(are_equal(item, value) for item in own)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge, "contains": _contains}
_OPERATORS |= {"starts_with": str.startswith, "ends_with": str.endswith}
