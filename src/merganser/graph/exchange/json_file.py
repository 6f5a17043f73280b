"""Import and export of one JSON document with a record on each line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from merganser.core.storage.location import locate
from merganser.errors import GraphFileError
from merganser.graph.exchange.files import read_file, write_atomically
from merganser.graph.exchange.loading import GraphImport, ImportResult, NewEdge, NewNode, import_graph
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, to_datetime, to_milliseconds
from merganser.graph.values import encode
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, KeysView

    from merganser.graph.sqlite.store import Store

FORMAT, VERSION = "merganser-graph", 1

_NODE_KEYS = dict.fromkeys(("id", "type", "properties", "created_at", "updated_at")).keys()
_EDGE_KEYS = dict.fromkeys(("id", "type", "from", "to", "properties", "created_at", "updated_at")).keys()
_OPTIONAL = frozenset({"id", "created_at", "updated_at"})


def export_json(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the graph; see `GraphDatabase.export_json`."""
    with store.snapshot() as connection, write_atomically(locate(path)) as stream:
        nodes = connection.execute(f"SELECT {NODE_COLUMNS} FROM nodes ORDER BY id")
        edges = connection.execute(f"SELECT {EDGE_COLUMNS} FROM edges ORDER BY id")
        stream.write(f'{{"format":"{FORMAT}","version":{VERSION},"nodes":['.encode())
        stream.writelines(_format_records(nodes, _NODE_KEYS))
        stream.write(b'\n],"edges":[')
        stream.writelines(_format_records(edges, _EDGE_KEYS))
        stream.write(b"\n]}\n")


def import_json(store: Store, path: str | os.PathLike[str]) -> ImportResult:
    """Read a graph; see `GraphDatabase.import_json`."""
    location = locate(path)
    source = repr(location.display)
    document = _parse_document(read_file(location), source)
    nodes = [_parse_node(record, f"nodes[{i}] of {source}") for i, record in enumerate(document["nodes"])]
    edges = [_parse_edge(record, f"edges[{i}] of {source}") for i, record in enumerate(document["edges"])]
    node_ids, edge_ids = ([record.get("id") for record in document[table]] for table in ("nodes", "edges"))
    return import_graph(store, GraphImport(source, node_ids, nodes, edge_ids, edges))


def _format_records(rows: Iterator[tuple[Any, ...]], keys: KeysView[str]) -> Iterator[bytes]:
    """Format records, whose properties are JSON already."""
    template = ",".join(f'"{key}":%s' for key in keys)
    separator = "\n"
    for number, type_, *endpoints, properties, created, updated in rows:
        times = (encode(_format_time(moment)) for moment in (created, updated))
        values = (number, encode(type_), *endpoints, properties, *times)
        yield f"{separator}{{{template % values}}}".encode()
        separator = ",\n"


def _format_time(moment: int) -> str:
    return to_datetime(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse_document(content: bytes, source: str) -> dict[str, Any]:
    try:
        document = load_json(content)
    except ValueError as error:
        raise GraphFileError(f"{source} cannot be read as JSON: {error}. Export the graph again.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise GraphFileError(
            f'{source} is not a graph: it does not begin with {{"format": "{FORMAT}"}}. Give a graph exported as JSON.'
        )
    if document.get("version") != VERSION:
        raise GraphFileError(
            f"{source} is version {document.get('version')!r} of the format, not {VERSION}. Install a newer merganser."
        )
    for table in ("nodes", "edges"):
        if not isinstance(document.get(table), list):
            raise GraphFileError(f"{source} has no list of {table}; add {table!r}, empty if there are none.")
    return document


def _parse_node(record: Any, label: str) -> NewNode:
    _check_keys(record, _NODE_KEYS, label)
    _check_id(record.get("id"), "id", label)
    return NewNode(label, record["type"], record["properties"], *_parse_times(record, label))


def _parse_edge(record: Any, label: str) -> NewEdge:
    _check_keys(record, _EDGE_KEYS, label)
    _check_id(record.get("id"), "id", label)
    for key in ("from", "to"):
        _check_id(record[key], key, label)
    start, end = record["from"], record["to"]
    return NewEdge(label, record["type"], start, end, record["properties"], *_parse_times(record, label))


def _check_keys(record: Any, keys: KeysView[str], label: str) -> None:
    if not isinstance(record, dict):
        message = f"{label} is {type(record).__name__}; a record is an object with the keys {', '.join(keys)}."
        raise GraphFileError(message)
    if record.keys() == keys:
        return
    for key in keys - record.keys():
        if key not in _OPTIONAL:
            raise GraphFileError(f"{label} has no {key!r}; add it.")
    for key in record.keys() - keys:
        raise GraphFileError(f"{label} has the key {key!r}, which is not known; move it to the properties.")


def _check_id(given: Any, key: str, label: str) -> None:
    if type(given) not in {int, str} and not (given is None and key == "id"):
        raise GraphFileError(f"{label} has {given!r} as its {key!r}; give an integer or a string.")


def _parse_times(record: dict[str, Any], label: str) -> tuple[int | None, int | None]:
    return _parse_time(record, "created_at", label), _parse_time(record, "updated_at", label)


def _parse_time(record: dict[str, Any], key: str, label: str) -> int | None:
    given = record.get(key)
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is not None:
            # In UTC it may be before the year 1 or after 9999.
            return to_milliseconds(moment.astimezone(UTC))
    except (TypeError, ValueError, OverflowError):
        pass
    message = f"{label} has {given!r} as its {key!r}; give a time such as '2026-01-31T12:00:00.000Z', or leave it out."
    raise GraphFileError(message)
