"""The queries of `GraphDatabase`: conditions, traversals, paths, patterns and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.graph.merging.merge_pattern import merge_pattern
from merganser.graph.querying.pattern import Pattern, build_pattern
from merganser.graph.querying.query import EdgeQuery, NodeQuery, query_edges, query_nodes
from merganser.graph.querying.stats import GraphStats, read_stats
from merganser.graph.querying.text_merge import read_merged
from merganser.graph.querying.text_parser import check_parameters_used, parse_query
from merganser.graph.querying.text_query import QueryOptions, run_query
from merganser.graph.querying.traverse import Traversal
from merganser.graph.view.neighbourhood import Neighbourhood, read_neighbourhood

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph.querying.conditions import Direction, Where
    from merganser.graph.querying.results import Edges, Nodes, Paths, Rows
    from merganser.graph.records import Path
    from merganser.graph.sqlite.store import Store


class QueryMixin:
    """The methods of `GraphDatabase` that read many records."""

    _store: Store

    def nodes(self, type: str | None = None) -> NodeQuery:
        """Query the nodes of a type.

        Args:
            type: The type of the nodes; None for any.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (30, 20):
        ...         _ = db.create_node("Person", {"age": age})
        ...     [found.id for found in db.nodes("Person").where("age", ">=", 20).order_by("age").limit(5).exec()]
        [2, 1]
        """
        return query_nodes(self._store, type)

    def edges(self, type: str | None = None, *, from_id: int | None = None, to_id: int | None = None) -> EdgeQuery:
        """Query the edges of a type.

        Args:
            type: The type of the edges; None for any.
            from_id: The id of the node that they lead from; None for any.
            to_id: The id of the node that they lead to; None for any.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job").id, db.create_node("Company").id
        ...     _ = db.create_edge(job, "POSTED_BY", company)
        ...     db.edges("POSTED_BY", to_id=company).count()
        1
        """
        return query_edges(self._store, type, from_id, to_id)

    def query(self, text: str, /, **parameters: Any) -> Nodes | Edges | Paths | Rows:
        """Run a text query: a pattern, or a part of openCypher that [the guide](graph.md#text-queries) describes.

        Without RETURN, the result is the nodes, edges or paths of the pattern; with RETURN of one variable, its nodes
        or edges; otherwise rows.

        Args:
            text: The query. Values belong in parameters, which it names as `$name`.
            parameters: The values of parameters.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job").id, db.create_node("Company", {"name": "TechCorp"}).id
        ...     _ = db.create_edge(job, "POSTED_BY", company)
        ...     found = db.query("(:Job)-[:POSTED_BY]->(c:Company {name: $name}) RETURN c", name="TechCorp")
        ...     [node.id for node in found]
        [2]
        """
        parsed = parse_query(text, parameters)
        check_parameters_used(parameters, [text])
        if parsed.merge is None:
            return run_query(self._store, parsed, QueryOptions())
        parts = parsed.merge.parts
        merged = merge_pattern(self._store, parts, whole=parsed.merge.is_whole, touch=True, warn=True)
        return read_merged(parsed.merge, parsed.returning.items, merged)

    def traverse(
        self,
        start_id: int,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        min_depth: int = 1,
        max_depth: int | None = 1,
        node_type: str | None = None,
        edge_where: Where | None = None,
    ) -> Traversal:
        """Traverse the graph from a node along edges; the start itself is never returned.

        Args:
            start_id: The id of the node to start at.
            edge_type: The type of the edges to follow, or several; None for any.
            direction: Direction in which edges are followed: `"out"`, `"in"` or `"both"`.
            min_depth: The minimum number of edges to the nodes that are returned.
            max_depth: The maximum number of edges; None for no limit.
            node_type: The type of the nodes that are returned; others are still passed through.
            edge_where: Properties of the edges to follow, or conditions such as `[("minutes", "<", 30)]`.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c), db.create_edge(c, "NEXT", a)
        ...     [found.id for found in db.traverse(a, "NEXT", max_depth=None).nodes()]
        [2, 3]
        """
        return Traversal(
            _store=self._store,
            start_id=start_id,
            edge_type=edge_type,
            direction=direction,
            min_depth=min_depth,
            max_depth=max_depth,
            node_type=node_type,
            edge_where=edge_where,
        )

    def shortest_path(
        self,
        from_id: int,
        to_id: int,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        max_depth: int | None = None,
        edge_where: Where | None = None,
    ) -> Path | None:
        """Find a path with the fewest edges from one node to another, or None if there is none.

        Args:
            from_id: The id of the first node.
            to_id: The id of the last node.
            edge_type: The type of the edges to follow, or several; None for any.
            direction: Direction in which edges are followed: `"out"`, `"in"` or `"both"`.
            max_depth: The maximum number of edges; None for no limit.
            edge_where: Properties of the edges to follow, or conditions, as in `traverse`.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c)
        ...     len(db.shortest_path(a, c)), db.shortest_path(c, a)
        (2, None)
        """
        found = self.traverse(from_id, edge_type, direction=direction, max_depth=max_depth, edge_where=edge_where)
        return found.shortest_path(to_id)

    def pattern(self, type: str | None = None, where: Where | None = None, *, start_id: int | None = None) -> Pattern:
        """Find paths hop by hop. A path uses each edge at most once, but may visit a node again.

        Args:
            type: The type of the first node; None for any.
            where: Properties of the first node, or conditions such as `[("seen", ">", 1)]`.
            start_id: The id of the first node; None for any.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     ann, bob, job = (db.create_node(type).id for type in ("Person", "Person", "Job"))
        ...     _ = db.create_edge(ann, "LIKES", job), db.create_edge(bob, "LIKES", job)
        ...     found = db.pattern("Person").out("LIKES", "Job").in_("LIKES", "Person").exec()
        ...     [[node.id for node in path.nodes] for path in found]
        [[1, 3, 2], [2, 3, 1]]
        """
        return build_pattern(self._store, type, where, start_id)

    def neighbourhood(
        self,
        start: int | Sequence[int],
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "both",
        depth: int = 1,
        limit: int = 300,
    ) -> Neighbourhood:
        """Read the nodes around one node or several, and the edges between them. A notebook draws the result.

        Args:
            start: The id of the node to start at, or several.
            edge_type: The type of the edges to follow, or several; None for any.
            direction: Direction in which edges are followed: `"out"`, `"in"` or `"both"`.
            depth: The maximum number of edges to a node.
            limit: The maximum number of nodes; the nearest are kept, and the others counted.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     a, b, c = (db.create_node("Stop").id for _ in range(3))
        ...     _ = db.create_edge(a, "NEXT", b), db.create_edge(b, "NEXT", c)
        ...     found = db.neighbourhood(a)
        ...     [node.id for node in found.nodes], len(found.edges), found.nodes_left_out
        ([1, 2], 1, 1)
        """
        return read_neighbourhood(self._store, start, edge_type, direction=direction, depth=depth, limit=limit)

    def stats(self) -> GraphStats:
        """Count nodes and edges by type, and list the indexes.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job"), db.create_node("Job"), db.create_node("Company")
        ...     db.stats().nodes
        {'Company': 1, 'Job': 2}
        """
        return read_stats(self._store)
