"""The kinds of values that each property has, found before a typed file is begun."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from merganser.errors import InvalidArgumentError
from merganser.graph.values import decode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from merganser.graph.sqlite.sql import Table
    from merganser.graph.values import Properties, Value

# Beyond this, a double does not hold every integer.
_EXACT = 2**53
_SCALARS = {bool: "boolean", float: "real", str: "string"}


@dataclass(frozen=True, slots=True)
class Found:
    """The kinds of one property's values, and the first record that has it."""

    record: int
    kinds: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        """The kind that holds all values exactly; "mixed" if none does."""
        kinds = self.kinds
        if any(kind.startswith("list of") for kind in kinds):
            kinds = kinds - {"empty list"}
        if kinds == {"integer", "real"}:
            return "real"
        if kinds == {"integer", "long"}:
            return "integer"
        (kind,) = kinds if len(kinds) == 1 else {"mixed"}
        return {"long": "integer", "empty list": "list of string"}.get(kind, kind)


def find_kinds(connection: sqlite3.Connection, table: Table, type_: str | None = None) -> dict[str, Found]:
    """Find the kinds of all properties, by name, of the records of a type or of all.

    They are found in Python because SQLite's `json_each` cuts a name at a NUL.
    """
    only, given = ("", ()) if type_ is None else ("WHERE type = ?", (type_,))
    rows = connection.execute(f"SELECT id, properties FROM {table} {only} ORDER BY id", given)
    return kinds_of((record, decode(text)) for record, text in rows)


def kinds_of(records: Iterable[tuple[int, Properties]]) -> dict[str, Found]:
    """Find the kinds of all properties, by name, of records with their ids."""
    found: dict[str, Found] = {}
    for record, properties in records:
        for name, value in properties.items():
            if name not in found:
                found[name] = Found(record)
            found[name].kinds.add(_kind(value))
    return found


def type_clash(kind: str, record: int) -> InvalidArgumentError:
    """Say that a property would take the place of the type."""
    return InvalidArgumentError(
        f"The {kind} {record} has a property 'type', and its own type could not stand beside that. Rename the "
        "property, or export by export_json or export_parquet."
    )


def _kind(value: Value) -> str:
    if type(value) is int:
        return "integer" if -_EXACT <= value <= _EXACT else "long"
    if isinstance(value, list):
        kinds = {"integer" if type(item) is int else _SCALARS.get(type(item), "mixed") for item in value}
        if not kinds:
            return "empty list"
        (kind,) = kinds if len(kinds) == 1 else {"mixed"}
        return "mixed" if kind == "mixed" else f"list of {kind}"
    return _SCALARS.get(type(value), "mixed")
