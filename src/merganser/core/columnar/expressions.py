"""Expressions of DuckDB over Arrow columns: parsed once, evaluated wherever the rows are.

An expression may come from another user. It sees the columns that it names, and no file, extension or setting. Its
columns are renamed on the way, because DuckDB ignores case and Arrow does not. Functions that depend on the time are
evaluated when the expression is parsed, so that every row and every task sees one value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.closed_database import open_cursor, query_rows
from merganser.core.columnar.sql_columns import to_duckdb
from merganser.core.columnar.sql_functions import CONSTANT_NAMES, list_functions
from merganser.errors import InvalidArgumentError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import duckdb

# What stands before an expression where DuckDB parses it; positions in its tree count from here.
PREFIX = "SELECT (\n"
_ROW = "merganser_row"
_REFUSED_NODES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by position",
    "DEFAULT": "DEFAULT",
}
# Functions that return one of their arguments.
_CHOOSING = {"operator_coalesce", "greatest", "least"}
_INTERNAL_NAME = re.compile(r'"?\b([a-z]+)_x([0-9a-f]*)\b"?')


@dataclass(frozen=True)
class Expression:
    """An expression, and the columns that it uses: pairs of a table's alias and a name."""

    text: str
    sql: str
    columns: tuple[tuple[str, str], ...]
    is_column: bool = False  # it is a column and nothing else

    def list_columns(self, alias: str) -> list[str]:
        """List the columns of a table that the expression uses."""
        return [name for one, name in self.columns if one == alias]

    @cached_property
    def uncast(self) -> str:
        """The expression without casts around it."""
        node = parse_tree(self.sql, self.text)
        while node.get("class") == "CAST" and not node["try_cast"]:
            node = node["child"]
        return write_tree(node)

    @cached_property
    def bounds(self) -> tuple[Comparison, ...]:
        """The comparisons of a column with a constant which are all true wherever the expression is."""
        return tuple(_find_comparisons(parse_tree(self.sql, self.text)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column, an operator of SQL, and a constant."""

    alias: str
    column: str
    operator: str
    constant: str


def parse_expression(
    text: object,
    scope: Mapping[str, Sequence[str] | None],
    default: str | None = None,
    constants: dict[str, str] | None = None,
) -> Expression:
    """Parse an expression over tables: their columns by alias, None if not known yet.

    A column without an alias is that of `default`, or of the only table that has it. Expressions that share
    `constants` share the values of functions that depend on the time.

    >>> parse_expression("t.qty + s.QTY", {"s": ["qty"], "t": ["id", "qty"]}).columns
    (('t', 'qty'), ('s', 'qty'))
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgumentError(f'An expression must be a string of SQL, such as "s.qty > 5", not {text!r}.')
    if "\0" in text:
        # DuckDB reads strings up to there only.
        raise InvalidArgumentError(f"{text!r} has a NUL character. Write chr(0) in its place.")
    columns: dict[tuple[str, str], None] = {}
    names = _Names(text, scope, default, columns, {} if constants is None else constants)
    try:
        node = parse_tree(text, text)
        # Brackets around it do not let it leave the parentheses that others put around it.
        parse_tree(f"[\n{text}\n]", text)
        bare = _rename(node, names, frozenset())
        sql = write_tree(bare)
    except RecursionError as error:
        raise InvalidArgumentError(f"{text[:100]!r}… is nested too deeply. Write it with fewer levels.") from error
    return Expression(text, sql, tuple(columns), is_column=len(columns) == 1 and len(bare.get("column_names", ())) == 1)


def list_choices(text: str) -> list[str]:
    """List the expressions of which an expression returns one: the arguments of these functions, or itself.

    >>> list_choices("coalesce(s.name, t.name)")
    ['s."name"', 't."name"']
    """
    node = parse_tree(text, text)
    if str(node.get("function_name") or node.get("type")).lower() not in _CHOOSING:
        return [text]
    # Some versions of DuckDB wrap arguments, which may have names.
    return [write_tree(child if "class" in child else child["expression"]) for child in _list_arguments(node)]


def evaluate(expressions: Sequence[Expression], tables: Mapping[str, pa.Table], rows: int) -> list[pa.ChunkedArray]:
    """Evaluate expressions on tables of as many rows, by alias; the answers are in the order of the rows."""
    found = [_take_plain(one, tables) for one in expressions]
    computed = [one for one, plain in zip(expressions, found, strict=True) if plain is None]
    if not computed:
        return [one for one in found if one is not None]
    wanted = dict.fromkeys(column for one in computed for column in one.columns)
    columns: dict[str, Any] = {_ROW: np.arange(rows)}
    columns |= {_encode_name(*one): to_duckdb(tables[one[0]].column(one[1]), ".".join(one)) for one in wanted}
    import duckdb  # noqa: PLC0415  only expressions need it

    with open_cursor() as cursor:
        try:
            cursor.register(_ROW, pa.table(columns))
            selected = ", ".join(f"{one.sql} AS c{at}" for at, one in enumerate(computed))
            answers = iter(cursor.from_query(f"SELECT {selected} FROM {_ROW}").to_arrow_table().columns)
        except (duckdb.Error, pa.ArrowException) as error:
            _check_columns(cursor, columns)
            raise _explain_error(error, computed) from error
    return [next(answers) if one is None else one for one in found]


def _check_columns(cursor: duckdb.DuckDBPyConnection, columns: Mapping[str, Any]) -> None:
    """Refuse a column whose type DuckDB does not have."""
    import duckdb  # noqa: PLC0415  only expressions need it

    for name, column in columns.items():
        try:
            cursor.register(_ROW, pa.table({name: column[:0]}))
            cursor.execute(f"SELECT * FROM {_ROW}")
        except duckdb.NotImplementedException as error:
            shown = _INTERNAL_NAME.sub(_decode_match, name)
            raise UnsupportedTypeError(
                f"Column {shown!r} has type {column.type}, which DuckDB does not have, so no expression can use it. "
                f"Use the column as it is, or leave it out."
            ) from error


def infer_types(expressions: Sequence[Expression], schemas: Mapping[str, pa.Schema]) -> list[pa.DataType]:
    """Find the types of expressions, and refuse those that DuckDB cannot bind."""
    empty = {alias: schema.empty_table() for alias, schema in schemas.items()}
    return [column.type for column in evaluate(expressions, empty, 0)]


def evaluate_constant(sql: str) -> pa.ChunkedArray:
    """Evaluate an expression without columns, to an array of one value."""
    import duckdb  # noqa: PLC0415  only expressions need it

    with open_cursor() as cursor:
        try:
            return cursor.sql(f"SELECT {sql}").to_arrow_table().column(0)
        except duckdb.Error as error:
            raise _explain_error(error, [Expression(sql, sql, ())]) from error


def _take_plain(expression: Expression, tables: Mapping[str, pa.Table]) -> pa.ChunkedArray | None:
    """Take a column that needs no evaluation, in its own type."""
    if not expression.is_column:
        return None
    alias, name = expression.columns[0]
    return tables[alias].column(name)


def _explain_error(error: Exception, expressions: Sequence[Expression]) -> InvalidArgumentError:
    reason = _INTERNAL_NAME.sub(_decode_match, str(error).partition("\n")[0]).rstrip(".! ")
    if len(expressions) > 1:
        names = ", ".join(repr(one.text) for one in expressions)
        return InvalidArgumentError(f"One of the expressions {names} cannot be evaluated: {reason}. Correct it.")
    return InvalidArgumentError(f"{expressions[0].text!r} cannot be evaluated: {reason}. Correct the expression.")


def _encode_name(alias: str, name: str) -> str:
    """Encode a column's name, so that names which differ in case do not clash."""
    return f"{alias}_x{name.encode().hex()}"


def _decode_match(match: re.Match[str]) -> str:
    try:
        return f"{match[1]}.{bytes.fromhex(match[2]).decode()}"
    except ValueError:
        return match[0]


def serialize(query: str) -> dict[str, Any]:
    """Parse a query with DuckDB, into its tree or the description of an error."""
    (answer,) = query_rows("SELECT json_serialize_sql(?)", [query])
    tree: dict[str, Any] = json.loads(answer[0])
    return tree


def parse_tree(text: str, shown: str) -> dict[str, Any]:
    """Parse an expression into DuckDB's tree; anything that is more or less than one expression is refused."""
    tree = serialize(PREFIX + text + "\n)")
    if tree.get("error"):
        place = max(1, int(tree.get("position") or len(PREFIX)) - len(PREFIX) + 1)
        raise InvalidArgumentError(
            f"{shown!r} is not an expression of SQL: {tree['error_message']}, at character {place}. Correct it."
        )
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    others = {key: value for key, value in node.items() if key != "select_list"}
    if others != _make_bare_node() or len(node["select_list"]) != 1:
        raise InvalidArgumentError(f"{shown!r} is not one expression of SQL. Write a single expression.")
    found: dict[str, Any] = node["select_list"][0]
    return found


@cache
def _make_bare_node() -> dict[str, Any]:
    """Make what DuckDB parses around an expression."""
    node = serialize("SELECT (1)")["statements"][0]["node"]
    return {key: value for key, value in node.items() if key != "select_list"}


def write_tree(node: Mapping[str, Any]) -> str:
    """Write the tree of an expression as SQL."""
    tree = {
        "error": False,
        "statements": [{"node": {**_make_bare_node(), "select_list": [node]}, "named_param_map": []}],
    }
    (answer,) = query_rows("SELECT json_deserialize_sql(?)", [json.dumps(tree)])
    return str(answer[0]).removeprefix("SELECT ")


@dataclass(frozen=True, slots=True)
class _Names:
    """What the names of an expression stand for; `columns` collects those that it uses."""

    text: str
    scope: Mapping[str, Sequence[str] | None]
    default: str | None
    columns: dict[tuple[str, str], None]
    constants: dict[str, str]

    def resolve(self, names: Sequence[str]) -> list[str]:
        """Return the internal name of a column, and the fields of a struct that follow."""
        alias = names[0].lower() if len(names) > 1 and names[0].lower() in self.scope else None
        rest = list(names if alias is None else names[1:])
        alias = self._find_table(rest[0]) if alias is None else alias
        column = alias, self._find_column(alias, rest[0])
        self.columns[column] = None
        return [_encode_name(*column), *rest[1:]]

    def has(self, name: str) -> bool:
        """Whether a table whose columns are known has a column of this name."""
        return any(_find(known or (), name) for known in self.scope.values())

    def _find_table(self, name: str) -> str:
        if self.default is not None:
            return self.default
        having = [alias for alias, known in self.scope.items() if known is not None and _find(known, name)]
        unknown = [alias for alias, known in self.scope.items() if known is None]
        if len(having) == 1:
            return having[0]
        if not having and len(unknown) == 1:
            return unknown[0]
        choice = " or ".join(f"{alias}.{name}" for alias in self.scope)
        raise InvalidArgumentError(f"{name!r} in {self.text!r} names no table. Write {choice}.")

    def _find_column(self, alias: str, name: str) -> str:
        known = self.scope[alias]
        if known is None:
            return name
        found = _find(known, name)
        if not found:
            side = {"s": "source", "t": "target"}.get(alias, alias)
            raise InvalidArgumentError(
                f"{self.text!r} uses {alias}.{name}, but the {side} has no such column. Its columns are: "
                f"{', '.join(known)}."
            )
        if len(found) > 1:
            raise InvalidArgumentError(
                f"{alias}.{name} in {self.text!r} is ambiguous: the columns {found[0]!r} and {found[1]!r} differ in "
                "case only, which SQL ignores. Rename one of them."
            )
        return found[0]


def _find(known: Sequence[str], name: str) -> list[str]:
    return [name] if name in known else [one for one in known if one.lower() == name.lower()]


def _rename(node: Any, names: _Names, parameters: frozenset[str]) -> Any:
    """Rename the columns of a tree, evaluate what depends on the time, and refuse what is not of one row."""
    if isinstance(node, list):
        return [_rename(one, names, parameters) for one in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("class")
    if kind in _REFUSED_NODES:
        raise InvalidArgumentError(
            f"{names.text!r} has {_REFUSED_NODES[kind]}, which a row cannot evaluate by itself. Use columns of the "
            "row, constants and functions."
        )
    if kind == "COLUMN_REF":
        return _rename_column(node, names, parameters)
    if kind == "CONSTANT" and _is_double(node.get("value")):
        # Some versions of DuckDB write doubles as decimals.
        return {**parse_tree(f"CAST('{node['value']['value']}' AS DOUBLE)", names.text), "alias": node["alias"]}
    if kind == "FUNCTION":
        stability = list_functions().get(str(node["function_name"]).lower())
        if stability == "CONSISTENT_WITHIN_QUERY" and not _list_arguments(node):
            return _make_constant(f"{node['function_name']}()", names.constants)
        if stability is not None:
            fault = "is not a function of one row" if stability == "aggregate" else "gives another value at every call"
            raise InvalidArgumentError(
                f"{names.text!r} calls {node['function_name']}(), which {fault}. Compute it in the source."
            )
    if kind == "LAMBDA":
        parameters |= {name.lower() for name in _list_parameters(node)}
    return {key: _rename(value, names, parameters) for key, value in node.items()}


def _is_double(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type", {}).get("id") == "DOUBLE" and not value.get("is_null")


def _rename_column(node: dict[str, Any], names: _Names, parameters: frozenset[str]) -> dict[str, Any]:
    parts = node["column_names"]
    if parts[0].lower() in parameters:
        return node
    if len(parts) == 1 and parts[0].lower() in CONSTANT_NAMES and not names.has(parts[0]):
        return _make_constant(parts[0], names.constants)
    return {**node, "column_names": names.resolve(parts)}


def map_columns(node: Any, change: Callable[[dict[str, Any]], Any], parameters: frozenset[str] = frozenset()) -> Any:
    """Change the references to columns in a tree; parameters of lambdas only look like these."""
    if isinstance(node, list):
        return [map_columns(one, change, parameters) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("class") == "COLUMN_REF":
        return node if node["column_names"][0].lower() in parameters else change(node)
    if node.get("class") == "LAMBDA":
        parameters |= {name.lower() for name in _list_parameters(node)}
    return {key: map_columns(value, change, parameters) for key, value in node.items()}


def _list_arguments(node: Mapping[str, Any]) -> list[Any]:
    """List the arguments of a function; versions of DuckDB name them differently."""
    return list(node.get("arguments") or node.get("children") or ())


def _list_parameters(node: Mapping[str, Any]) -> Iterator[str]:
    """List the parameters of a lambda, which look like columns or are listed by name."""
    yield from node.get("lambda_parameters") or ()
    pending = [node.get("lhs")]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield from one.get("column_names") or ()
            pending += list(one.values())
        elif isinstance(one, list):
            pending += one


def _make_constant(sql: str, constants: dict[str, str]) -> dict[str, Any]:
    """Replace a function that depends on the time by its value."""
    name = sql.lower()
    if name not in constants:
        # All of them are those of one transaction.
        value = evaluate_constant(f"CAST(x AS VARCHAR) || '|' || typeof(x) FROM (SELECT {sql} AS x)")[0].as_py()
        text, _, type_name = value.rpartition("|")
        constants[name] = f"CAST('{text}' AS {type_name})"
    return parse_tree(constants[name], sql)


_MIRRORED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}


def _find_comparisons(node: Mapping[str, Any]) -> Iterator[Comparison]:
    kind = str(node.get("type"))
    if kind == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _find_comparisons(child)
    if node.get("class") == "COMPARISON" and kind in _MIRRORED:
        left, right = node["left"], node["right"]
        for column, constant, operator in ((left, right, kind), (right, left, _MIRRORED[kind])):
            parts = column.get("column_names") or []
            match = _INTERNAL_NAME.fullmatch(parts[0]) if len(parts) == 1 else None
            # With a collation, strings have another order than their bytes.
            if match and not re.search("COLUMN_REF|collat", json.dumps(constant), re.IGNORECASE):
                alias, name = match.group(1), match.group(2)
                yield Comparison(alias, bytes.fromhex(name).decode(), operator, write_tree(constant))
