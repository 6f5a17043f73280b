"""What `GraphDatabase` can be asked: queries, traversals, paths and patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.graph.querying import pattern, query, stats, traverse
from merganser.graph.view import neighbourhood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.graph.querying.conditions import Direction
    from merganser.graph.querying.pattern import Pattern
    from merganser.graph.querying.query import EdgeQuery, NodeQuery
    from merganser.graph.querying.stats import GraphStats
    from merganser.graph.querying.traverse import Traversal
    from merganser.graph.records import Path
    from merganser.graph.sqlite.store import Store
    from merganser.graph.view.neighbourhood import Neighbourhood


class QueryMixin:
    """The part of `GraphDatabase` that asks."""

    _store: Store

    def nodes(self, type: str | None = None) -> NodeQuery:  # noqa: A002
        """Query the nodes of a type, or all.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (30, 20):
        ...         _ = db.create_node("Person", {"age": age})
        ...     [found.id for found in db.nodes("Person").where("age", ">=", 20).order_by("age").limit(5).exec()]
        [2, 1]
        """
        return query.query_nodes(self._store, type)

    def edges(
        self,
        type: str | None = None,  # noqa: A002
        *,
        from_id: int | None = None,
        to_id: int | None = None,
    ) -> EdgeQuery:
        """Query the edges of a type, or all, from a node or to one."""
        return query.query_edges(self._store, type, from_id, to_id)

    def traverse(
        self,
        start_id: int,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        min_depth: int = 1,
        max_depth: int | None = 1,
        node_type: str | None = None,
    ) -> Traversal:
        """Go from a node along edges of a type, or of several; `max_depth=None` goes as far as they lead.

        `node_type` says which nodes to give, not which to pass through; the start itself is never given.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c), db.create_edge(c, "NEXT", a)
        ...     [found.id for found in db.traverse(a, "NEXT", max_depth=None).nodes()]
        [2, 3]
        """
        return traverse.traverse(
            self._store,
            start_id,
            edge_type,
            direction=direction,
            min_depth=min_depth,
            max_depth=max_depth,
            node_type=node_type,
        )

    def shortest_path(
        self,
        from_id: int,
        to_id: int,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        max_depth: int | None = None,
    ) -> Path | None:
        """Find a path with the fewest edges from one node to another; None if there is none.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c)
        ...     len(db.shortest_path(a, c)), db.shortest_path(c, a)
        (2, None)
        """
        return self.traverse(from_id, edge_type, direction=direction, max_depth=max_depth).shortest_path(to_id)

    def pattern(
        self,
        type: str | None = None,  # noqa: A002
        where: Mapping[str, Any] | None = None,
        *,
        start_id: int | None = None,
    ) -> Pattern:
        """Look for paths hop by hop, from the nodes of a type with these properties, or from one node.

        In one match an edge is used once at most; nodes may come again.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     ann, bob, job = (db.create_node(type).id for type in ("Person", "Person", "Job"))
        ...     _ = db.create_edge(ann, "LIKES", job), db.create_edge(bob, "LIKES", job)
        ...     found = db.pattern("Person").out("LIKES", "Job").in_("LIKES", "Person").exec()
        ...     [[node.id for node in path.nodes] for path in found]
        [[1, 3, 2], [2, 3, 1]]
        """
        return pattern.build_pattern(self._store, type, where, start_id)

    def neighbourhood(
        self,
        start: int | Sequence[int],
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "both",
        depth: int = 1,
        limit: int = 300,
    ) -> Neighbourhood:
        """Read what is around one node or several, nearest first and no more than `limit` nodes, and what is left out.

        A notebook shows it as a picture, and `to_html` gives that as a page.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c)
        ...     found = db.neighbourhood(a)
        ...     [node.id for node in found.nodes], len(found.edges), found.nodes_left_out
        ([1, 2], 1, 1)
        """
        return neighbourhood.read_neighbourhood(
            self._store, start, edge_type, direction=direction, depth=depth, limit=limit
        )

    def stats(self) -> GraphStats:
        """Count nodes and edges by type, and list the indexes.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job"), db.create_node("Job"), db.create_node("Company")
        ...     db.stats().nodes
        {'Company': 1, 'Job': 2}
        """
        return stats.read_stats(self._store)
