"""Names of the columns that hold properties."""

from __future__ import annotations

import re

KEY_COLUMNS = {"nodes": ("id",), "edges": ("id", "src", "dst")}
TIME_COLUMNS = ("created_at", "updated_at")
# `type` is the partition of the folder; GraphFrames calls the type of an edge `relationship`.
_RESERVED = {
    "nodes": (*KEY_COLUMNS["nodes"], "type", *TIME_COLUMNS),
    "edges": (*KEY_COLUMNS["edges"], "type", "relationship", *TIME_COLUMNS),
}
_PREFIX = "property_"
_RESERVED_PATTERNS = {
    kind: re.compile(f"({_PREFIX})*({'|'.join(names)})", re.IGNORECASE | re.ASCII) for kind, names in _RESERVED.items()
}


def to_column_name(property_name: str, kind: str) -> str:
    """Name the column of a property; a prefix distinguishes it from the reserved columns.

    >>> to_column_name("url", "nodes"), to_column_name("ID", "nodes"), to_column_name("property_id", "nodes")
    ('url', 'property_ID', 'property_property_id')
    """
    return _PREFIX + property_name if _RESERVED_PATTERNS[kind].fullmatch(property_name) else property_name


def to_property_name(column: str, kind: str) -> str:
    """Name the property that a column holds.

    >>> names = ("url", "ID", "property_id", "property_x")
    >>> [to_property_name(to_column_name(name, "nodes"), "nodes") for name in names]
    ['url', 'ID', 'property_id', 'property_x']
    """
    return column.removeprefix(_PREFIX) if _RESERVED_PATTERNS[kind].fullmatch(column) else column
