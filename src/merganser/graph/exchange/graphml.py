"""A graph as GraphML, which many tools read; it holds no times, and lists and dicts only as JSON text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from merganser.core.storage.location import locate
from merganser.errors import PropertyValueError
from merganser.graph.exchange.files import replacing
from merganser.graph.exchange.property_types import find_kinds, type_clash
from merganser.graph.values import decode, encode

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterator

    from merganser.graph.exchange.property_types import Found
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Value

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""
_TYPES = {"integer": "long", "real": "double", "boolean": "boolean"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A reader would take a carriage return for a line end.
_KEPT = {"\r": "&#13;"}


def export_graphml(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the graph; see `GraphDatabase.export_graphml`."""
    with store.snapshot() as connection, replacing(locate(path)) as stream:
        nodes, edges = find_kinds(connection, "nodes"), find_kinds(connection, "edges")
        node_keys, edge_keys = _keys("node", nodes), _keys("edge", edges)
        stream.write(_HEAD.encode())
        stream.writelines(_key_lines("node", nodes, node_keys))
        stream.writelines(_key_lines("edge", edges, edge_keys))
        stream.write(b'<graph edgedefault="directed">\n')
        stream.writelines(_node_lines(connection, node_keys))
        stream.writelines(_edge_lines(connection, edge_keys))
        stream.write(b"</graph>\n</graphml>\n")


def _keys(domain: str, found: dict[str, Found]) -> dict[str, str]:
    """Give each property the id of its key; the type's own is the domain's name."""
    if "type" in found:
        raise type_clash(domain, found["type"].record)
    return {name: f"{domain}{number}" for number, name in enumerate(found)}


def _key_lines(domain: str, found: dict[str, Found], keys: dict[str, str]) -> Iterator[bytes]:
    yield f'<key id="{domain}" for="{domain}" attr.name="type" attr.type="string"/>\n'.encode()
    for name, key in keys.items():
        _check(name, f"The {domain} {found[name].record} has the property name {name!r}", name)
        type_ = _TYPES.get(found[name].kind, "string")
        yield f'<key id="{key}" for="{domain}" attr.name={_attribute(name)} attr.type="{type_}"/>\n'.encode()


def _node_lines(connection: sqlite3.Connection, keys: dict[str, str]) -> Iterator[bytes]:
    for found, type_, text in connection.execute("SELECT id, type, properties FROM nodes ORDER BY id"):
        yield f'<node id="n{found}">{_data("node", found, type_, text, keys)}</node>\n'.encode()


def _edge_lines(connection: sqlite3.Connection, keys: dict[str, str]) -> Iterator[bytes]:
    query = "SELECT id, from_id, to_id, type, properties FROM edges ORDER BY id"
    for found, start, end, type_, text in connection.execute(query):
        data = _data("edge", found, type_, text, keys)
        yield f'<edge id="e{found}" source="n{start}" target="n{end}">{data}</edge>\n'.encode()


def _data(domain: str, record: int, type_: str, properties: str, keys: dict[str, str]) -> str:
    _check(type_, f"The {domain} {record} has the type {type_!r}", "type")
    parts = [f'<data key="{domain}">{escape(type_, _KEPT)}</data>']
    for name, value in decode(properties).items():
        text = _text(value)
        _check(text, f"The {domain} {record} has {text!r} as its property {name!r}", name)
        parts.append(f'<data key="{keys[name]}">{escape(text, _KEPT)}</data>')
    return "".join(parts)


def _text(value: Value) -> str:
    return value if isinstance(value, str) else encode(value)


def _attribute(text: str) -> str:
    return quoteattr(text, {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _check(text: str, what: str, name: str) -> None:
    bad = _NOT_XML.search(text)
    if bad:
        message = (
            f"{what}, with the character U+{ord(bad[0]):04X}, which XML cannot carry. Change {name!r}, or export by "
            "export_json or export_parquet."
        )
        raise PropertyValueError(message)
