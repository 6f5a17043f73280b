"""Which column of a dataset holds which property."""

from __future__ import annotations

import re

KEYS = {"nodes": ("id",), "edges": ("id", "src", "dst")}
TIMES = ("created_at", "updated_at")
# The folder of a dataset tells its type, and readers of GraphFrames call that of an edge its relationship.
_RESERVED = {"nodes": (*KEYS["nodes"], "type", *TIMES), "edges": (*KEYS["edges"], "type", "relationship", *TIMES)}
_PREFIX = "property_"
_TAKEN = {
    kind: re.compile(f"({_PREFIX})*({'|'.join(names)})", re.IGNORECASE | re.ASCII) for kind, names in _RESERVED.items()
}


def column_of(property_name: str, kind: str) -> str:
    """Name the column of a property; one that would be taken for a column of our own gets a prefix.

    >>> column_of("url", "nodes"), column_of("ID", "nodes"), column_of("property_id", "nodes")
    ('url', 'property_ID', 'property_property_id')
    """
    return _PREFIX + property_name if _TAKEN[kind].fullmatch(property_name) else property_name


def property_of(column: str, kind: str) -> str:
    """Name the property of a column that is not one of our own.

    >>> [property_of(column_of(name, "nodes"), "nodes") for name in ("url", "ID", "property_id", "property_x")]
    ['url', 'ID', 'property_id', 'property_x']
    """
    return column.removeprefix(_PREFIX) if _TAKEN[kind].fullmatch(column) else column
