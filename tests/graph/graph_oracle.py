"""What is true of a graph: two dicts, loops over them, and helpers that read a database without the library."""

from __future__ import annotations

import json
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from merganser.graph import GraphDatabase

Properties = dict[str, Any]


class ConflictError(Exception):
    """More than one record matches."""


class OnPurposeError(Exception):
    """Raised by tests, to see what becomes of what was done before."""


@dataclass
class Oracle:
    """A graph of dicts; ids are given by the database, so that the two can be compared."""

    nodes: dict[int, tuple[str, Properties]] = field(default_factory=dict)
    edges: dict[int, tuple[str, int, int, Properties]] = field(default_factory=dict)

    def find_node(self, type_: str, match: Properties) -> int | None:
        """Give the one node that matches."""
        return _only(
            [found for found, (own, properties) in self.nodes.items() if own == type_ and matches(properties, match)]
        )

    def find_edge(self, from_id: int, type_: str, to_id: int, match: Properties, direction: str = "out") -> int | None:
        """Give the one edge that matches."""
        ends = {(from_id, to_id)} | ({(to_id, from_id)} if direction == "both" else set())
        return _only(
            [
                found
                for found, (own, start, end, properties) in self.edges.items()
                if own == type_ and (start, end) in ends and matches(properties, match)
            ]
        )

    def lay_over_node(self, found: int, new: Mapping[str, Any]) -> None:
        """Change a node's properties."""
        type_, old = self.nodes[found]
        self.nodes[found] = (type_, stored({**old, **new}))

    def lay_over_edge(self, found: int, new: Mapping[str, Any]) -> None:
        """Change an edge's properties."""
        type_, start, end, old = self.edges[found]
        self.edges[found] = (type_, start, end, stored({**old, **new}))

    def delete_node(self, found: int) -> None:
        """Forget a node, and the edges at it."""
        del self.nodes[found]
        self.edges = {edge: record for edge, record in self.edges.items() if found not in record[1:3]}

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Be as before if an exception leaves the block."""
        nodes, edges = deepcopy(self.nodes), deepcopy(self.edges)
        try:
            yield
        except BaseException:
            self.nodes, self.edges = nodes, edges
            raise


def stored(properties: Mapping[str, Any]) -> Properties:
    """Leave out what is NULL."""
    return {name: value for name, value in properties.items() if value is not None}


def matches(properties: Properties, match: Mapping[str, Any]) -> bool:
    """Say whether a record has all of these properties."""
    return all(name in properties and tagged(properties[name]) == tagged(match[name]) for name in match)


def tagged(value: Any) -> object:
    """Make values comparable that Python takes for equal and a graph does not, such as True and 1."""
    if isinstance(value, list | tuple):
        return ("list", [tagged(item) for item in value])
    if isinstance(value, dict):
        return ("dict", {name: tagged(item) for name, item in value.items()})
    if isinstance(value, bool):
        return ("boolean", value)
    return ("text" if isinstance(value, str) else "number", value)


def content(db: GraphDatabase) -> Oracle:
    """Read a whole database as it is stored."""
    nodes = db.connection.execute("SELECT id, type, properties FROM nodes").fetchall()
    edges = db.connection.execute("SELECT id, type, from_id, to_id, properties FROM edges").fetchall()
    return Oracle(
        {found: (type_, json.loads(text)) for found, type_, text in nodes},
        {found: (type_, start, end, json.loads(text)) for found, type_, start, end, text in edges},
    )


def nodes_of(db: GraphDatabase, type_: str | None = None) -> list[Properties]:
    """Give the properties of all nodes, or of those of a type, oldest first."""
    return [properties for own, properties in content(db).nodes.values() if type_ in {None, own}]


def dump(db: GraphDatabase) -> list[str]:
    """Give everything in a database, with times and indexes, as SQL."""
    return list(db.connection.iterdump())


@contextmanager
def unchanged(db: GraphDatabase) -> Iterator[None]:
    """Check that a block leaves the database as it was, and no transaction open that was not."""
    before, inside = dump(db), db.connection.in_transaction
    yield
    assert db.connection.in_transaction == inside
    assert dump(db) == before


@contextmanager
def failing(db: GraphDatabase, error: type[BaseException] = OnPurposeError) -> Iterator[None]:
    """Let a transaction fail at its end, and check that the error comes out of it."""
    with pytest.raises(error), _then_raise(db, error):
        yield


@contextmanager
def _then_raise(db: GraphDatabase, error: type[BaseException]) -> Iterator[None]:
    with db.transaction():
        yield
        raise error


def _only(found: list[int]) -> int | None:
    if len(found) > 1:
        raise ConflictError
    return found[0] if found else None
