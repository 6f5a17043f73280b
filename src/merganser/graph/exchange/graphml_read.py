"""Import of GraphML, as this library, networkx and other tools write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.parsers.expat import ExpatError, ParserCreate

from merganser.core.storage.location import locate
from merganser.errors import GraphFileError, InvalidArgumentError
from merganser.graph.exchange.files import read_file
from merganser.graph.exchange.graphml import KEY_DESCRIPTION, decode_text
from merganser.graph.exchange.loading import GraphImport, ImportResult, NewEdge, NewNode, import_graph
from merganser.graph.values import decode

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from merganser.graph.sqlite.store import Store

_INTEGERS, _FLOATS = {"int", "long"}, {"float", "double"}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_REFUSED = {"hyperedge": "a hyperedge, which connects any number of nodes", "port": "a port, which is a part of a node"}


@dataclass(slots=True)
class _Key:
    """What data with a key are: a property, its type, and its value where there are no data."""

    domain: str
    name: str
    type: str
    default: str | None = None
    description: str = ""


@dataclass(slots=True)
class _Element:
    """A node or edge: its XML attributes, and the text of its data by their keys."""

    attributes: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)


def import_graphml(
    store: Store, path: str | os.PathLike[str], node_type: str | None, edge_type: str | None
) -> ImportResult:
    """Import a graph; see `GraphDatabase.import_graphml`."""
    location = locate(path)
    document = _Document(repr(location.display))
    document.parse(read_file(location))
    nodes, edges = list(document.read_nodes(node_type)), list(document.read_edges(edge_type))
    ids = [element.attributes["id"] for element in document.nodes]
    return import_graph(store, GraphImport(document.source, ids, nodes, [None] * len(edges), edges), keep_ids=False)


class _Document:
    """A GraphML document; the parser calls the methods that begin with `handle`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.keys: dict[str, _Key] = {}
        self.nodes: list[_Element] = []
        self.edges: list[_Element] = []
        self._graphs = 0
        # The open elements by their local names, and the text of the innermost.
        self._open: list[str] = []
        self._text: list[str] = []
        self._key = ""
        self._has_elements = False

    def parse(self, content: bytes) -> None:
        """Parse the whole document."""
        parser = ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._handle_start
        parser.EndElementHandler = self._handle_end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = self._handle_doctype
        try:
            parser.Parse(content, True)  # noqa: FBT003 - the parser's own signature
        except ExpatError as error:
            message = f"{self.source} cannot be read as GraphML: {error}. Export the graph again."
            raise GraphFileError(message) from error
        if not self._graphs:
            raise GraphFileError(f"{self.source} has no <graph>. Give a GraphML file.")

    def _handle_doctype(self, *_: Any) -> None:
        # Its entities could expand without end.
        raise GraphFileError(f"{self.source} has a document type, which is not read. Remove <!DOCTYPE …>.")

    def _handle_start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        parent = self._open[-1] if self._open else ""
        self._open.append(name)
        self._text.clear()
        if "data" in self._open[:-1]:
            # A tool's own elements, such as shapes and colours.
            self._has_elements = True
        elif name == "key":
            self._add_key(attributes)
        elif name == "graph":
            self._graphs += 1
            if self._graphs > 1:
                raise GraphFileError(f"{self.source} has several graphs, or one within a node. Give a file for each.")
        elif name in _REFUSED:
            raise GraphFileError(f"{self.source} has {_REFUSED[name]}, and cannot be imported. Remove it.")
        elif name == "node" and parent == "graph":
            self.nodes.append(_Element(self._check_attributes(name, attributes, "id")))
        elif name == "edge" and parent == "graph":
            self.edges.append(_Element(self._check_attributes(name, attributes, "source", "target")))
        elif name == "data":
            self._key = self._check_attributes(name, attributes, "key")["key"]
            self._has_elements = False

    def _handle_end(self, _: str) -> None:
        name = self._open.pop()
        parent = self._open[-1] if self._open else ""
        text = "".join(self._text)
        if parent == "key" and name in {"default", "desc"}:
            key = self.keys[self._key]
            if name == "default":
                key.default = text
            else:
                key.description = text
        elif name == "data" and parent in {"node", "edge"} and not self._has_elements:
            (self.nodes if parent == "node" else self.edges)[-1].data[self._key] = text

    def _add_key(self, attributes: dict[str, str]) -> None:
        self._key = self._check_attributes("key", attributes, "id")["id"]
        domain, type_ = attributes.get("for", "all"), attributes.get("attr.type", "string")
        self.keys[self._key] = _Key(domain, attributes.get("attr.name", self._key), type_)

    def _check_attributes(self, name: str, attributes: dict[str, str], *needed: str) -> dict[str, str]:
        for one in needed:
            if one not in attributes:
                raise GraphFileError(f"{self.source} has a <{name}> without {one!r}; add it.")
        return attributes

    def read_nodes(self, default: str | None) -> Iterator[NewNode]:
        """Read the nodes."""
        for element in self.nodes:
            label = f"node {element.attributes['id']!r} of {self.source}"
            yield NewNode(label, *self._read_data(element, "node", default, label))

    def read_edges(self, default: str | None) -> Iterator[NewEdge]:
        """Read the edges."""
        for element in self.edges:
            start, end = element.attributes["source"], element.attributes["target"]
            label = f"edge {start!r} -> {end!r} of {self.source}"
            type_, properties = self._read_data(element, "edge", default, label)
            yield NewEdge(label, type_, start, end, properties)

    def _read_data(self, element: _Element, domain: str, default: str | None, label: str) -> tuple[str, dict[str, Any]]:
        type_, properties = default, {}
        defaults = {
            name: key.default
            for name, key in self.keys.items()
            if key.default is not None and key.domain in {domain, "all"}
        }
        for name, text in {**defaults, **element.data}.items():
            if name not in self.keys:
                raise GraphFileError(f"{label} has data with the key {name!r}, which is not declared; add a <key>.")
            key = self.keys[name]
            property_, is_json = _read_description(key)
            if property_ is None and key.name == "type":
                type_ = text
            else:
                value = decode_text(text) if is_json else _parse_value(text, key, label)
                properties[key.name if property_ is None else property_] = value
        if type_ is None:
            message = f"{label} has no data called 'type'; add it, or give {domain}_type for all that have none."
            raise InvalidArgumentError(message)
        return type_, properties


def _read_description(key: _Key) -> tuple[str | None, bool]:
    """Read the name of the property that a key of this library stands for, and whether its data are JSON."""
    if not key.description.startswith(KEY_DESCRIPTION):
        return None, False
    found = decode(key.description.removeprefix(KEY_DESCRIPTION))
    if not isinstance(found, dict):
        return None, False
    name = found.get("property")
    return name if isinstance(name, str) else None, found.get("json") is True


def _parse_value(text: str, key: _Key, label: str) -> Any:
    try:
        if key.type in _INTEGERS:
            return int(text)
        if key.type in _FLOATS:
            return float(text)
        return _BOOLEANS[text.strip().lower()] if key.type == "boolean" else text
    except (ValueError, KeyError) as error:
        message = f"{label} has {text!r} as its {key.name!r}, which is not of the type {key.type}; correct it."
        raise GraphFileError(message) from error
