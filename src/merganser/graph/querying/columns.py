"""The columns of results that are values, not records: how each is selected, grouped, sorted and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.fields import COMPARED_FIELDS, TIME_FIELDS
from merganser.graph.querying.results import Rows
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, to_datetime, to_edge, to_node
from merganser.graph.sqlite.sql import build_key_sql, has_json_path, quote_literal, to_json_path
from merganser.graph.values import decode, normalize_name

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind: TypeAlias = Literal["property", "integer", "string", "time", "node", "edge"]

_RECORD_COLUMNS = {"node": NODE_COLUMNS.split(", "), "edge": EDGE_COLUMNS.split(", ")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a result: the SQL of what is read, of what equal values share, and of their order."""

    name: str
    kind: Kind
    selected: tuple[str, ...]
    key: str
    order: str
    is_aggregate: bool = False


def make_property_column(name: str, property_: str, table: str) -> Column:
    """Make the column of a property."""
    read = f"{table}properties -> {to_json_path(property_)}"
    if not has_json_path(property_):
        read = f"merganser_value({table}properties, {quote_literal(property_)})"
    key = build_key_sql(property_, table)
    return Column(name=name, kind="property", selected=(f"({read})",), key=f"({key})", order=build_order_sql(key))


def make_field_column(name: str, field: str, table: str) -> Column:
    """Make the column of an id, type or time."""
    own = f"{table}{field}"
    kind: Kind = "time" if field in TIME_FIELDS else "string" if field == "type" else "integer"
    return Column(name=name, kind=kind, selected=(own,), key=own, order=own)


def make_record_column(name: str, kind: Literal["node", "edge"], table: str) -> Column:
    """Make the column of whole nodes or edges, which are one if their ids are."""
    own = f"{table}id"
    selected = tuple(f"{table}{column}" for column in _RECORD_COLUMNS[kind])
    return Column(name=name, kind=kind, selected=selected, key=own, order=own)


def make_count_column(name: str, counted: str = "*") -> Column:
    """Make the column of a number of rows, or of values."""
    own = f"count({counted})"
    return Column(name=name, kind="integer", selected=(own,), key=own, order=own, is_aggregate=True)


def make_named_columns(names: Sequence[str], role: str, table: str) -> list[Column]:
    """Make the columns of properties, or of the id and times, that a caller names."""
    if not names:
        raise InvalidArgumentError(f"{role} needs the name of a property, or several. Give one.")
    given = [normalize_name(name, role) for name in names]
    check_names(given)
    return [
        make_field_column(name, name, table) if name in COMPARED_FIELDS else make_property_column(name, name, table)
        for name in given
    ]


def check_names(names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"The result would have two columns {name!r}. Name each once.")


def build_order_sql(key: str) -> str:
    """Build what values of a property are sorted by, from the SQL of their key."""
    return f"CASE WHEN {key} >= 'n\"' AND {key} < 'n#' THEN merganser_text({key}) ELSE {key} END"


def select_columns(columns: Sequence[Column], *, is_grouped: bool) -> str:
    """Build the list of what is selected; of equal values, the one whose text is least."""
    return ", ".join(
        f"min({sql})" if is_grouped and column.kind == "property" and not column.is_aggregate else sql
        for column in columns
        for sql in column.selected
    )


def group_columns(columns: Sequence[Column]) -> str:
    """Build the clause that makes one row of those with equal values."""
    keys = ", ".join(column.key for column in columns if not column.is_aggregate)
    return f"GROUP BY {keys}" if keys else ""


def read_columns(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> Rows:
    """Read the rows of a statement, column by column."""
    found, first = {}, 0
    for column in columns:
        last = first + len(column.selected)
        found[column.name] = _read_column(column.kind, [row[first:last] for row in rows])
        first = last
    return Rows(found, {column.name: column.kind for column in columns}, len(rows))


def _read_column(kind: Kind, cells: list[tuple[Any, ...]]) -> list[Any]:
    if kind == "node":
        return [to_node(cell) for cell in cells]
    if kind == "edge":
        return [to_edge(cell) for cell in cells]
    values = [value for (value,) in cells]
    if kind == "time":
        return [to_datetime(value) for value in values]
    if kind == "property":
        # One text for all values, because that is parsed at once.
        return decode(f"[{','.join('null' if text is None else text for text in values)}]")  # type: ignore[no-any-return]
    return values
