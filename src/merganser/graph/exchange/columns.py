"""The columns of properties in Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from merganser.graph.values import Properties, encode

if TYPE_CHECKING:
    from merganser.graph.exchange.property_types import PropertyTypes

# Metadata of a field: its values are JSON; it holds a property of another name.
JSON_METADATA_KEY = b"merganser:json"
PROPERTY_METADATA_KEY = b"merganser:property"

VERTEX_COLUMNS = ("id", "type", "created_at", "updated_at")
EDGE_COLUMNS = ("id", "src", "dst", "relationship", "created_at", "updated_at")

ARROW_TYPES = {"integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
ARROW_TYPES |= {f"list of {name}": pa.list_(type_) for name, type_ in ARROW_TYPES.items()}


class Column(NamedTuple):
    """The column of a property."""

    name: str
    field: pa.Field

    def to_array(self, records: list[Properties]) -> Any:
        """Convert the values of the property; absent ones are NULL."""
        values = [record.get(self.name) for record in records]
        if is_json(self.field):
            values = [None if value is None else encode(value) for value in values]
        return pa.array(values, self.field.type)


def make_columns(found: dict[str, PropertyTypes], reserved: tuple[str, ...]) -> list[Column]:
    """Assign a column to each property; names differ in more than case, because Spark ignores case."""
    taken = {name.casefold() for name in reserved}
    made = []
    for name, types in found.items():
        free = name if name.casefold() not in taken else f"property_{name}"
        number = 1
        while free.casefold() in taken:
            number += 1
            free = f"property_{name}_{number}"
        taken.add(free.casefold())
        made.append(Column(name, _make_field(free, name, types.common_type)))
    return made


def is_json(field: pa.Field) -> bool:
    """Check whether a column holds JSON."""
    return JSON_METADATA_KEY in (field.metadata or {})


def get_property_name(field: pa.Field) -> str:
    """Return the name of the property that a column holds."""
    stored: bytes | None = (field.metadata or {}).get(PROPERTY_METADATA_KEY)
    return str(field.name) if stored is None else stored.decode()


def _make_field(column: str, name: str, value_type: str) -> pa.Field:
    metadata = {}
    if column != name:
        metadata[PROPERTY_METADATA_KEY] = name.encode()
    if value_type not in ARROW_TYPES:
        metadata[JSON_METADATA_KEY] = b"true"
    return pa.field(column, ARROW_TYPES.get(value_type, pa.string()), metadata=metadata or None)
