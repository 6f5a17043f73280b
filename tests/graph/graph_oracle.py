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


class OnPurposeError(Exception):
    """Raised by tests, to see what becomes of what was done before."""


class RefusedError(Exception):
    """The oracle does not allow this, for the reason given: "conflict" or "unique"."""


@dataclass
class Oracle:
    """A graph of dicts; what it creates has negative ids until `adopt` gives it those of the database."""

    nodes: dict[int, tuple[str, Properties]] = field(default_factory=dict)
    edges: dict[int, tuple[str, int, int, Properties]] = field(default_factory=dict)
    unique: set[tuple[str, str]] = field(default_factory=set)
    # The ids of records that merges gave other values, until a test clears them.
    changed: set[int] = field(default_factory=set, compare=False)

    def merge_node(
        self, type_: str, match: Properties, new: Properties, on_match: Properties, condition: Properties | None = None
    ) -> bool:
        """Find or create a node; return whether it was created."""
        found = [key for key, (own, old) in self.nodes.items() if own == type_ and has_properties(old, match)]
        if not found:
            self.create_node(type_, {**match, **new})
        elif has_properties(self.nodes[get_single(found)][1], condition or {}):
            self._note_change(found[0], self.nodes[found[0]][1], on_match)
            self.update_node(found[0], on_match)
        return not found

    def merge_edge(
        self,
        endpoints: tuple[int, int],
        type_: str,
        match: Properties,
        new: Properties,
        on_match: Properties,
        direction: str = "out",
        condition: Properties | None = None,
    ) -> bool:
        """Find or create an edge; return whether it was created."""
        ways = {endpoints, endpoints[::-1]} if direction == "both" else {endpoints}
        found = [
            key
            for key, (own, start, end, old) in self.edges.items()
            if own == type_ and (start, end) in ways and has_properties(old, match)
        ]
        if not found:
            self.create_edge(endpoints, type_, {**match, **new})
        elif has_properties(self.edges[get_single(found)][3], condition or {}):
            self._note_change(found[0], self.edges[found[0]][3], on_match)
            self.update_edge(found[0], on_match)
        return not found

    def create_node(self, type_: str, properties: Properties) -> Properties:
        """Add a node; gives its properties."""
        self.nodes[min([0, *self.nodes]) - 1] = (type_, drop_nulls(properties))
        self._check_unique()
        return drop_nulls(properties)

    def create_edge(self, endpoints: tuple[int, int], type_: str, properties: Properties) -> None:
        """Add an edge."""
        self.edges[min([0, *self.edges]) - 1] = (type_, *endpoints, drop_nulls(properties))

    def update_node(self, found: int, new: Properties) -> Properties:
        """Lay properties over a node's; gives what it has then."""
        type_, old = self.nodes[found]
        after = drop_nulls({**old, **new})
        self.nodes[found] = (type_, after)
        self._check_unique()
        return after

    def update_edge(self, found: int, new: Properties) -> None:
        """Lay properties over an edge's."""
        type_, start, end, old = self.edges[found]
        self.edges[found] = (type_, start, end, drop_nulls({**old, **new}))

    def delete_node(self, found: int) -> None:
        """Forget a node, and the edges at it."""
        del self.nodes[found]
        self.edges = {edge: record for edge, record in self.edges.items() if found not in record[1:3]}

    def adopt(self, db: GraphDatabase) -> None:
        """Return what is new the ids that the database gave it; there they grow with every creation."""
        real = read_graph(db)
        nodes = dict(zip([key for key in self.nodes if key < 0], sorted(real.nodes.keys() - self.nodes), strict=True))
        edges = dict(zip([key for key in self.edges if key < 0], sorted(real.edges.keys() - self.edges), strict=True))
        self.nodes = {nodes.get(key, key): record for key, record in self.nodes.items()}
        self.edges = {
            edges.get(key, key): (type_, nodes.get(start, start), nodes.get(end, end), properties)
            for key, (type_, start, end, properties) in self.edges.items()
        }

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Be as before if an exception leaves the block."""
        nodes, edges = deepcopy(self.nodes), deepcopy(self.edges)
        try:
            yield
        except BaseException:
            self.nodes, self.edges = nodes, edges
            raise

    def _note_change(self, found: int, old: Properties, new: Properties) -> None:
        if any(repr(old.get(name)) != repr(value) for name, value in new.items()):
            self.changed.add(found)

    def _check_unique(self) -> None:
        for type_, name in self.unique:
            seen = [repr(to_comparable(old[name])) for own, old in self.nodes.values() if own == type_ and name in old]
            if len(set(seen)) < len(seen):
                raise RefusedError("unique")


def drop_nulls(properties: Mapping[str, Any]) -> Properties:
    """Leave out what is NULL."""
    return {name: value for name, value in properties.items() if value is not None}


def has_properties(properties: Properties, match: Mapping[str, Any]) -> bool:
    """Return whether a record has all of these properties."""
    return all(name in properties and to_comparable(properties[name]) == to_comparable(match[name]) for name in match)


def to_comparable(value: Any) -> object:
    """Make values comparable that Python takes for equal and a graph does not, such as True and 1."""
    if isinstance(value, list | tuple):
        return ("list", [to_comparable(item) for item in value])
    if isinstance(value, dict):
        return ("dict", {name: to_comparable(item) for name, item in value.items()})
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ("text" if isinstance(value, str) else "number", value)


def read_graph(db: GraphDatabase) -> Oracle:
    """Read a whole database as it is stored."""
    nodes = db.connection.execute("SELECT id, type, properties FROM nodes").fetchall()
    edges = db.connection.execute("SELECT id, type, from_id, to_id, properties FROM edges").fetchall()
    return Oracle(
        {found: (type_, json.loads(text)) for found, type_, text in nodes},
        {found: (type_, start, end, json.loads(text)) for found, type_, start, end, text in edges},
    )


def list_nodes(db: GraphDatabase, type_: str | None = None) -> list[Properties]:
    """Return the properties of all nodes, or of those of a type, oldest first."""
    return [properties for own, properties in read_graph(db).nodes.values() if type_ in {None, own}]


def dump(db: GraphDatabase) -> list[str]:
    """Return everything in a database, with times and indexes, as SQL."""
    return list(db.connection.iterdump())


@contextmanager
def assert_unchanged(db: GraphDatabase) -> Iterator[None]:
    """Check that a block leaves the database as it was, and no transaction open that was not."""
    before, inside = dump(db), db.connection.in_transaction
    yield
    assert db.connection.in_transaction == inside
    assert dump(db) == before


@contextmanager
def expect_rollback(db: GraphDatabase, error: type[BaseException] = OnPurposeError) -> Iterator[None]:
    """Let a transaction fail at its end, and check that the error comes out of it."""
    with pytest.raises(error), _then_raise(db, error):
        yield


@contextmanager
def _then_raise(db: GraphDatabase, error: type[BaseException]) -> Iterator[None]:
    with db.transaction():
        yield
        raise error


def get_single(found: list[int]) -> int:
    """Return the one that was found."""
    if len(found) > 1:
        raise RefusedError("conflict")
    return found[0]
