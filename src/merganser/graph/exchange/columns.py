"""Which column of a Parquet file holds which property, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from merganser.graph.values import encode

if TYPE_CHECKING:
    from merganser.graph.exchange.property_types import Found
    from merganser.graph.values import Properties

# Marks of a field: its values are JSON text; it holds a property of another name.
JSON = b"merganser:json"
PROPERTY = b"merganser:property"

VERTEX_COLUMNS = ("id", "type", "created_at", "updated_at")
EDGE_COLUMNS = ("id", "src", "dst", "relationship", "created_at", "updated_at")

TYPES = {"integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
TYPES |= {f"list of {kind}": pa.list_(type_) for kind, type_ in TYPES.items()}


class Column(NamedTuple):
    """A property's column."""

    name: str
    field: pa.Field

    def array(self, records: list[Properties]) -> Any:
        """Give the property's values; absent ones are NULL."""
        values = [record.get(self.name) for record in records]
        if is_json(self.field):
            values = [None if value is None else encode(value) for value in values]
        return pa.array(values, self.field.type)


def columns(found: dict[str, Found], reserved: tuple[str, ...]) -> list[Column]:
    """Give each property a column; names differ in more than case, for Spark's sake."""
    taken = {name.casefold() for name in reserved}
    made = []
    for name, of in found.items():
        free = name if name.casefold() not in taken else f"property_{name}"
        number = 1
        while free.casefold() in taken:
            number += 1
            free = f"property_{name}_{number}"
        taken.add(free.casefold())
        made.append(Column(name, _field(free, name, of.kind)))
    return made


def is_json(field: pa.Field) -> bool:
    """Tell whether a column holds JSON text."""
    return JSON in (field.metadata or {})


def property_name(field: pa.Field) -> str:
    """Name the property that a column holds."""
    marked: bytes | None = (field.metadata or {}).get(PROPERTY)
    return str(field.name) if marked is None else marked.decode()


def _field(column: str, name: str, kind: str) -> pa.Field:
    marks = {}
    if column != name:
        marks[PROPERTY] = name.encode()
    if kind not in TYPES:
        marks[JSON] = b"true"
    return pa.field(column, TYPES.get(kind, pa.string()), metadata=marks or None)
