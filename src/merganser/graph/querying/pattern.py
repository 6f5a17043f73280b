"""Patterns: paths of several hops, found by one join."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import (
    build_conditions,
    build_type_conditions,
    check_integer,
    join_conditions,
)
from merganser.graph.querying.fields import Condition
from merganser.graph.querying.traverse import read_paths
from merganser.graph.sqlite.write import check_ids
from merganser.graph.values import MAX_INT64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph.querying.conditions import Where
    from merganser.graph.querying.results import Paths
    from merganser.graph.sqlite.store import Store

# SQLite joins at most 64 tables: 31 edges and their endpoints.
_MAX_HOPS = 31

# How the edge e connects the nodes n and m.
_JOINS = {
    "out": "{e}.from_id = {n}.id AND {m}.id = {e}.to_id",
    "in": "{e}.to_id = {n}.id AND {m}.id = {e}.from_id",
    # A loop is found once. The conditions are repeated for both nodes, so that SQLite may start at either.
    "both": (
        "({e}.from_id = {n}.id OR {e}.to_id = {n}.id) AND ({e}.from_id = {m}.id OR {e}.to_id = {m}.id) "
        "AND {m}.id = CASE {e}.from_id WHEN {n}.id THEN {e}.to_id ELSE {e}.from_id END "
        "AND {n}.id = CASE {e}.from_id WHEN {m}.id THEN {e}.to_id ELSE {e}.from_id END"
    ),
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of nodes and the hops between them, built call by call; see `GraphDatabase.pattern`."""

    _store: Store
    _conditions: tuple[Condition, ...]
    _hops: int = 0
    _limit: int | None = None

    def out(
        self,
        edge_type: str | Sequence[str] | None = None,
        node_type: str | None = None,
        where: Where | None = None,
        edge_where: Where | None = None,
    ) -> Pattern:
        """Add a hop along an edge, to the node that it leads to.

        Args:
            edge_type: The type of the edge, or several; None for any.
            node_type: The type of the next node; None for any.
            where: Properties of the next node, or conditions such as `[("seen", ">", 1)]`.
            edge_where: Properties of the edge, or conditions.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job").id, db.create_node("Company", {"name": "TechCorp"}).id
        ...     _ = db.create_edge(job, "POSTED_BY", company)
        ...     db.pattern("Job").out("POSTED_BY", "Company", {"name": "TechCorp"}).count()
        1
        """
        return self._add_hop("out", (edge_type, edge_where), (node_type, where))

    def in_(
        self,
        edge_type: str | Sequence[str] | None = None,
        node_type: str | None = None,
        where: Where | None = None,
        edge_where: Where | None = None,
    ) -> Pattern:
        """Add a hop against an edge, to the node that it leads from.

        Args:
            edge_type: The type of the edge, or several; None for any.
            node_type: The type of the next node; None for any.
            where: Properties of the next node, or conditions such as `[("seen", ">", 1)]`.
            edge_where: Properties of the edge, or conditions.
        """
        return self._add_hop("in", (edge_type, edge_where), (node_type, where))

    def both(
        self,
        edge_type: str | Sequence[str] | None = None,
        node_type: str | None = None,
        where: Where | None = None,
        edge_where: Where | None = None,
    ) -> Pattern:
        """Add a hop along an edge in either direction.

        Args:
            edge_type: The type of the edge, or several; None for any.
            node_type: The type of the next node; None for any.
            where: Properties of the next node, or conditions such as `[("seen", ">", 1)]`.
            edge_where: Properties of the edge, or conditions.
        """
        return self._add_hop("both", (edge_type, edge_where), (node_type, where))

    def limit(self, count: int) -> Pattern:
        """Limit the number of paths.

        Args:
            count: The largest number of paths.
        """
        check_integer("limit", count, 0)
        return replace(self, _limit=count)

    def exec(self) -> Paths:
        """Read the paths that match, sorted by the ids of their first nodes and of their edges."""
        nodes = [f"n{number}.id" for number in range(self._hops + 1)]
        edges = [f"e{number}.id" for number in range(1, self._hops + 1)]
        order = ", ".join([nodes[0], *edges])
        with self._store.snapshot():
            rows = self._run("SELECT {}", ", ".join(nodes + edges), f"ORDER BY {order}")
            return read_paths(self._store, [(row[: len(nodes)], row[len(nodes) :]) for row in rows])

    def count(self) -> int:
        """Count the paths that `exec` would return."""
        ((count,),) = self._run("SELECT count(*) FROM (SELECT {})", "1", "")
        return int(count)

    def _add_hop(
        self,
        direction: str,
        edge: tuple[str | Sequence[str] | None, Where | None],
        node: tuple[str | None, Where | None],
    ) -> Pattern:
        if self._hops == _MAX_HOPS:
            raise InvalidArgumentError(f"A pattern has at most {_MAX_HOPS} hops; use traverse to go further.")
        hops = self._hops + 1
        own, other = f"e{hops}.", f"n{hops}."
        conditions = (
            build_hop_condition(direction, f"n{self._hops}", f"e{hops}", f"n{hops}"),
            *build_type_conditions(own, edge[0]),
            *build_conditions(edge[1], "edge_where", own),
            *build_type_conditions(other, node[0]),
            *build_conditions(node[1], "where", other),
        )
        return replace(self, _conditions=self._conditions + conditions, _hops=hops)

    def _run(self, frame: str, columns: str, order: str) -> list[Any]:
        """Run the join inside a frame, which has {} in the place of its columns."""
        numbers = range(1, self._hops + 1)
        tables = ", ".join(["nodes AS n0", *(f"edges AS e{number}, nodes AS n{number}" for number in numbers)])
        distinct = build_distinct_conditions([f"e{number}" for number in numbers])
        condition = join_conditions((*self._conditions, *distinct))
        limit = -1 if self._limit is None else min(self._limit, MAX_INT64)
        body = f"{columns} FROM {tables} WHERE {condition.sql} {order} LIMIT ?"
        return self._store.fetch_all(frame.replace("{}", body), (*condition.parameters, limit))


def build_pattern(store: Store, type_: str | None, where: Where | None, start_id: int | None) -> Pattern:
    """Start a pattern; see `GraphDatabase.pattern`."""
    conditions = [*build_type_conditions("n0.", type_), *build_conditions(where, "where", "n0.")]
    if start_id is not None:
        check_ids(start_id)
        conditions.append(Condition("n0.id = ?", (start_id,)))
    return Pattern(store, tuple(conditions))


def build_hop_condition(direction: str, start: str, edge: str, end: str) -> Condition:
    """Build the condition that an edge connects two nodes, all given by the names of their tables."""
    return Condition(_JOINS[direction].format(n=start, e=edge, m=end))


def build_distinct_conditions(edges: Sequence[str]) -> list[Condition]:
    """Build the conditions that a path uses no edge twice."""
    return [Condition(f"{one}.id <> {other}.id") for one, other in combinations(edges, 2)]
