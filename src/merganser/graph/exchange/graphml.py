"""Export to GraphML, which many tools read; it has no times, and holds lists and dicts as JSON strings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from merganser.core.storage.location import locate
from merganser.errors import PropertyValueError
from merganser.graph.exchange.files import write_atomically
from merganser.graph.exchange.property_types import PropertyTypes, find_property_types, make_type_clash_error
from merganser.graph.values import decode, format_value

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterator

    from merganser.graph.sqlite.store import Store

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""
_TYPES = {"integer": "long", "real": "double", "boolean": "boolean"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# XML parsers convert a carriage return to a newline.
_ESCAPES = {"\r": "&#13;"}
_ATTRIBUTE_ESCAPES = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


def export_graphml(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the graph; see `GraphDatabase.export_graphml`."""
    with store.snapshot() as connection, write_atomically(locate(path)) as stream:
        nodes, edges = find_property_types(connection, "nodes"), find_property_types(connection, "edges")
        node_keys, edge_keys = _assign_keys("node", nodes), _assign_keys("edge", edges)
        stream.write(_HEAD.encode())
        stream.writelines(_format_keys("node", nodes, node_keys))
        stream.writelines(_format_keys("edge", edges, edge_keys))
        stream.write(b'<graph edgedefault="directed">\n')
        stream.writelines(_format_nodes(connection, node_keys))
        stream.writelines(_format_edges(connection, edge_keys))
        stream.write(b"</graph>\n</graphml>\n")


def _assign_keys(domain: str, found: dict[str, PropertyTypes]) -> dict[str, str]:
    """Assign each property the id of its GraphML key; that of the type is the name of the domain."""
    if "type" in found:
        raise make_type_clash_error(domain, found["type"].first_record_id)
    return {name: f"{domain}{number}" for number, name in enumerate(found)}


def _format_keys(domain: str, found: dict[str, PropertyTypes], keys: dict[str, str]) -> Iterator[bytes]:
    yield f'<key id="{domain}" for="{domain}" attr.name="type" attr.type="string"/>\n'.encode()
    for name, key in keys.items():
        _check_characters(name, f"The {domain} {found[name].first_record_id} has the property name {name!r}", name)
        type_ = _TYPES.get(found[name].common_type, "string")
        quoted = quoteattr(name, _ATTRIBUTE_ESCAPES)
        yield f'<key id="{key}" for="{domain}" attr.name={quoted} attr.type="{type_}"/>\n'.encode()


def _format_nodes(connection: sqlite3.Connection, keys: dict[str, str]) -> Iterator[bytes]:
    for found, type_, text in connection.execute("SELECT id, type, properties FROM nodes ORDER BY id"):
        yield f'<node id="n{found}">{_format_data("node", found, type_, text, keys)}</node>\n'.encode()


def _format_edges(connection: sqlite3.Connection, keys: dict[str, str]) -> Iterator[bytes]:
    query = "SELECT id, from_id, to_id, type, properties FROM edges ORDER BY id"
    for found, start, end, type_, text in connection.execute(query):
        data = _format_data("edge", found, type_, text, keys)
        yield f'<edge id="e{found}" source="n{start}" target="n{end}">{data}</edge>\n'.encode()


def _format_data(domain: str, record: int, type_: str, properties: str, keys: dict[str, str]) -> str:
    _check_characters(type_, f"The {domain} {record} has the type {type_!r}", "type")
    elements = [f'<data key="{domain}">{escape(type_, _ESCAPES)}</data>']
    for name, value in decode(properties).items():
        text = format_value(value)
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
