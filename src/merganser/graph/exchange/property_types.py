"""The types of the values of each property, which exports to typed formats need in advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from merganser.graph.values import Properties, Value, decode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable

    from merganser.graph.sqlite.sql import Table

# Beyond this, a double does not hold every integer.
_MAX_EXACT_INTEGER = 2**53
_SCALAR_TYPES = {bool: "boolean", float: "real", str: "string"}


@dataclass(frozen=True, slots=True)
class PropertyTypes:
    """The types of the values of one property, and the first record that has it."""

    first_record_id: int
    value_types: set[str] = field(default_factory=set)

    @property
    def common_type(self) -> str:
        """The type that holds all values exactly, or "mixed" if none does."""
        types = self.value_types
        if any(name.startswith("list of") for name in types):
            types = types - {"empty list"}
        if types == {"integer", "real"}:
            return "real"
        if types == {"integer", "long"}:
            return "integer"
        (common,) = types if len(types) == 1 else {"mixed"}
        return {"long": "integer", "empty list": "list of string"}.get(common, common)


def find_property_types(
    connection: sqlite3.Connection, table: Table, type_: str | None = None
) -> dict[str, PropertyTypes]:
    """Find the types of all properties, by name, of the records of one type or of all.

    This is done in Python because SQLite's `json_each` truncates a name at a NUL.
    """
    only, given = ("", ()) if type_ is None else ("WHERE type = ?", (type_,))
    rows = connection.execute(f"SELECT id, properties FROM {table} {only} ORDER BY id", given)
    return collect_property_types((record, decode(text)) for record, text in rows)


def collect_property_types(records: Iterable[tuple[int, Properties]]) -> dict[str, PropertyTypes]:
    """Find the types of all properties, by name, of records with their ids."""
    found: dict[str, PropertyTypes] = {}
    for record, properties in records:
        for name, value in properties.items():
            if name not in found:
                found[name] = PropertyTypes(record)
            found[name].value_types.add(_classify_value(value))
    return found


def rename_reserved(names: Collection[str], reserved: Collection[str]) -> dict[str, str]:
    """Find names for the properties that have the name of something else in a format.

    >>> rename_reserved(["type", "url", "property_type"], ["type"])
    {'type': 'property_type_2'}
    """
    renamed: dict[str, str] = {}
    for name in names:
        if name in reserved:
            free, number = f"property_{name}", 1
            while free in names or free in renamed.values():
                number += 1
                free = f"property_{name}_{number}"
            renamed[name] = free
    return renamed


def _classify_value(value: Value) -> str:
    if type(value) is int:
        return "integer" if -_MAX_EXACT_INTEGER <= value <= _MAX_EXACT_INTEGER else "long"
    if isinstance(value, list):
        types = {"integer" if type(item) is int else _SCALAR_TYPES.get(type(item), "mixed") for item in value}
        if not types:
            return "empty list"
        (common,) = types if len(types) == 1 else {"mixed"}
        return "mixed" if common == "mixed" else f"list of {common}"
    return _SCALAR_TYPES.get(type(value), "mixed")
