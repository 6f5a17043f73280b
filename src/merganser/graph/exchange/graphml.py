"""Export to GraphML, which many tools read; it has no times.

The description of a key tells what its name and type do not: that it holds a property with a name that is reserved, or
JSON for values of several types, lists and dicts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from merganser.core.storage.location import locate
from merganser.errors import GraphFileError, PropertyValueError
from merganser.graph.exchange.files import write_atomically
from merganser.graph.exchange.property_types import PropertyTypes, find_property_types, rename_reserved
from merganser.graph.values import Value, decode, encode, format_value

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterator

    from merganser.graph.sqlite.store import Store

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""
# What the description of a key of this library starts with; JSON follows.
KEY_DESCRIPTION = "merganser: "
# The type of a record is data with this name, and readers keep the XML ids of records as attributes.
_RESERVED = ("type", "id")
_TYPES = {"string": "string", "integer": "long", "real": "double", "boolean": "boolean"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# XML parsers convert a carriage return to a newline.
_ESCAPES = {"\r": "&#13;"}
_ATTRIBUTE_ESCAPES = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


def export_graphml(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the graph; see `GraphDatabase.export_graphml`."""
    with store.snapshot() as connection, write_atomically(locate(path)) as stream:
        nodes, edges = find_property_types(connection, "nodes"), find_property_types(connection, "edges")
        # The key of the type is the name of the domain.
        node_keys, edge_keys = (
            {name: f"{domain}{number}" for number, name in enumerate(found)}
            for domain, found in (("node", nodes), ("edge", edges))
        )
        stream.write(_HEAD.encode())
        stream.writelines(_format_keys("node", nodes, node_keys))
        stream.writelines(_format_keys("edge", edges, edge_keys))
        stream.write(b'<graph edgedefault="directed">\n')
        stream.writelines(_format_nodes(connection, node_keys, _find_json(nodes)))
        stream.writelines(_format_edges(connection, edge_keys, _find_json(edges)))
        stream.write(b"</graph>\n</graphml>\n")


def decode_text(text: str) -> Any:
    """Parse a value of a property that has values of several types.

    >>> [decode_text(text) for text in ("[1]", "one", '"1"')]
    [[1], 'one', '1']
    """
    try:
        return decode(text)
    except GraphFileError:
        return text


def _encode_text(value: Value) -> str:
    """Encode such a value: a string as it is, unless it would be read as JSON."""
    is_plain = isinstance(value, str) and decode_text(value) is value
    return str(value) if is_plain else encode(value)


def _find_json(found: dict[str, PropertyTypes]) -> set[str]:
    return {name for name, types in found.items() if types.common_type not in _TYPES}


def _format_keys(domain: str, found: dict[str, PropertyTypes], keys: dict[str, str]) -> Iterator[bytes]:
    yield f'<key id="{domain}" for="{domain}" attr.name="type" attr.type="string"/>\n'.encode()
    renamed, as_json = rename_reserved(found, _RESERVED), _find_json(found)
    for name, key in keys.items():
        _check_characters(name, f"The {domain} {found[name].first_record_id} has the property name {name!r}", name)
        type_ = _TYPES.get(found[name].common_type, "string")
        quoted = quoteattr(renamed.get(name, name), _ATTRIBUTE_ESCAPES)
        described: dict[str, Value] = {"property": name} if name in renamed else {}
        described |= {"json": True} if name in as_json else {}
        inner = f"<desc>{KEY_DESCRIPTION}{escape(encode(described))}</desc>" if described else ""
        yield f'<key id="{key}" for="{domain}" attr.name={quoted} attr.type="{type_}">{inner}</key>\n'.encode()


def _format_nodes(connection: sqlite3.Connection, keys: dict[str, str], as_json: set[str]) -> Iterator[bytes]:
    for found, type_, text in connection.execute("SELECT id, type, properties FROM nodes ORDER BY id"):
        yield f'<node id="n{found}">{_format_data("node", found, type_, text, keys, as_json)}</node>\n'.encode()


def _format_edges(connection: sqlite3.Connection, keys: dict[str, str], as_json: set[str]) -> Iterator[bytes]:
    query = "SELECT id, from_id, to_id, type, properties FROM edges ORDER BY id"
    for found, start, end, type_, text in connection.execute(query):
        data = _format_data("edge", found, type_, text, keys, as_json)
        yield f'<edge id="e{found}" source="n{start}" target="n{end}">{data}</edge>\n'.encode()


def _format_data(domain: str, record: int, type_: str, properties: str, keys: dict[str, str], as_json: set[str]) -> str:
    _check_characters(type_, f"The {domain} {record} has the type {type_!r}", "type")
    elements = [f'<data key="{domain}">{escape(type_, _ESCAPES)}</data>']
    for name, value in decode(properties).items():
        text = _encode_text(value) if name in as_json else format_value(value)
        _check_characters(text, f"The {domain} {record} has {text!r} as its property {name!r}", name)
        elements.append(f'<data key="{keys[name]}">{escape(text, _ESCAPES)}</data>')
    return "".join(elements)


def _check_characters(text: str, what: str, name: str) -> None:
    bad = _NOT_XML.search(text)
    if bad:
        raise PropertyValueError(
            f"{what}, with the character U+{ord(bad[0]):04X}, which XML cannot represent. Change {name!r}, or export "
            "as JSON or Parquet."
        )
