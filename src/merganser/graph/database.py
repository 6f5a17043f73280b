"""`GraphDatabase`: the one door to a property graph in an SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.graph import hops, indexes, merge, query, traverse, write
from merganser.graph.store import Store

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Literal, Self

    from merganser.graph.hops import Pattern
    from merganser.graph.merge import OnMatch
    from merganser.graph.query import EdgeQuery, NodeQuery
    from merganser.graph.records import Edge, IndexInfo, MergedEdge, MergedNode, Node, Path
    from merganser.graph.schema import GraphSchema
    from merganser.graph.sql import Table
    from merganser.graph.terms import Direction
    from merganser.graph.traverse import Traversal


class GraphDatabase:
    """A property graph in one SQLite file, or in memory (`":memory:"`), whose MERGE makes imports repeatable.

    It may be shared between threads, and several processes may open one file. A writer waits `timeout` seconds for
    another. With a `schema`, whatever it does not allow is refused.

    >>> with GraphDatabase(":memory:") as db:
    ...     _ = db.create_property_index("Job", "url")
    ...     job = db.merge_node("Job", {"url": "https://example.com/1"}, {"title": "Engineer"})
    ...     again = db.merge_node("Job", {"url": "https://example.com/1"}, on_match={"seen": 2})
    ...     print(job.created, again.created, again.properties)
    True False {'url': 'https://example.com/1', 'title': 'Engineer', 'seen': 2}
    """

    def __init__(
        self, path: str | os.PathLike[str], *, schema: GraphSchema | None = None, timeout: float = 30.0
    ) -> None:
        self._store = Store(path, timeout=timeout, schema=schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GraphDatabase({self._store.path!r})"

    def close(self) -> None:
        """Close the connections of all threads; a closed database refuses to work."""
        self._store.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection to SQLite, for statements of your own; a transaction begun on it is respected."""
        return self._store.connection

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what is done inside as one, or nothing of it if an exception leaves; transactions nest.

        >>> with GraphDatabase(":memory:") as db, db.transaction():
        ...     company = db.merge_node("Company", {"name": "TechCorp"}, warn_on_missing_index=False)
        ...     job = db.create_node("Job", {"title": "Engineer"})
        ...     db.merge_edge(job.id, "POSTED_BY", company.id).created
        True
        """
        return self._store.transaction()

    def merge_node(
        self,
        type: str,  # noqa: A002 - the word for it
        match: Mapping[str, Any],
        base: Mapping[str, Any] | None = None,
        *,
        on_create: Mapping[str, Any] | None = None,
        on_match: OnMatch | None = None,
        condition: Mapping[str, Any] | None = None,
        allow_key_change: bool = False,
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> MergedNode:
        """Find the node of a type with these match properties, or create it.

        A node that is found gets `on_match` laid over its properties; None removes one, and a function is given the old
        ones. A new node has `match`, then `base`, then `on_create`. With a `condition`, a node that does not have these
        properties is left as it is. `touch=False` writes nothing when nothing changes.

        >>> db = GraphDatabase(":memory:")
        >>> _ = db.create_property_index("Job", "url")
        >>> for _ in range(3):
        ...     job = db.merge_node(
        ...         "Job", {"url": "/1"}, on_create={"seen": 1}, on_match=lambda old: {"seen": old["seen"] + 1}
        ...     )
        >>> job.properties
        {'url': '/1', 'seen': 3}
        >>> db.close()
        """
        if warn_on_missing_index and (type, tuple(match)) not in self._store.checked:
            indexes.warn_without_index(self._store, type, match, 2)
        return merge.merge_node(
            self._store,
            type,
            match,
            base,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            allow_key_change=allow_key_change,
            touch_it=touch,
        )

    def merge_edge(
        self,
        from_id: int,
        type: str,  # noqa: A002
        to_id: int,
        properties: Mapping[str, Any] | None = None,
        *,
        on_create: Mapping[str, Any] | None = None,
        on_match: OnMatch | None = None,
        match: Mapping[str, Any] | None = None,
        direction: Literal["out", "both"] = "out",
        condition: Mapping[str, Any] | None = None,
        allow_key_change: bool = False,
        touch: bool = True,
    ) -> MergedEdge:
        """Find the edge of a type from one node to another, or create it.

        With `match`, edges with other values of these properties are other edges. `direction="both"` also finds an edge
        that points the other way. The rest is as in `merge_node`.

        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job").id, db.create_node("Company").id
        ...     [db.merge_edge(job, "POSTED_BY", company).created for _ in range(2)]
        [True, False]
        """
        return merge.merge_edge(
            self._store,
            from_id,
            type,
            to_id,
            properties,
            on_create=on_create,
            on_match=on_match,
            match=match,
            direction=direction,
            condition=condition,
            allow_key_change=allow_key_change,
            touch_it=touch,
        )

    def create_property_index(
        self,
        type: str,  # noqa: A002
        property: str | Sequence[str],  # noqa: A002
        unique: bool = False,  # noqa: FBT001, FBT002 - as in the documents
        table: Table = "nodes",
    ) -> IndexInfo:
        """Index the nodes (or edges) of a type by one property or several; there it is left as it is.

        >>> with GraphDatabase(":memory:") as db:
        ...     db.create_property_index("Job", "url", unique=True).name
        'idx_merge_Job_url'
        """
        return indexes.create_index(self._store, type, property, unique=unique, table=table)

    def list_indexes(self) -> list[IndexInfo]:
        """List the indexes of properties."""
        return [found.info for found in indexes.all_indexes(self._store)]

    def drop_index(self, name: str) -> None:
        """Drop an index of properties; if there is none of this name, nothing happens."""
        indexes.drop_index(self._store, name)

    def create_node(self, type: str, properties: Mapping[str, Any] | None = None) -> Node:  # noqa: A002
        """Create a node, whatever there is already."""
        return write.create_node(self._store, type, properties)

    def create_edge(
        self,
        from_id: int,
        type: str,  # noqa: A002
        to_id: int,
        properties: Mapping[str, Any] | None = None,
    ) -> Edge:
        """Create an edge, whatever there is already."""
        return write.create_edge(self._store, from_id, type, to_id, properties)

    def get_node(self, node_id: int) -> Node | None:
        """Read a node by its id; None if there is none."""
        return write.get_node(self._store, node_id)

    def get_edge(self, edge_id: int) -> Edge | None:
        """Read an edge by its id; None if there is none."""
        return write.get_edge(self._store, edge_id)

    def update_node(self, node_id: int, properties: Mapping[str, Any], *, replace: bool = False) -> Node:
        """Lay properties over a node's, None removing one; `replace=True` leaves nothing of the old ones."""
        return write.update_node(self._store, node_id, properties, replace=replace)

    def update_edge(self, edge_id: int, properties: Mapping[str, Any], *, replace: bool = False) -> Edge:
        """Lay properties over an edge's, None removing one; `replace=True` leaves nothing of the old ones."""
        return write.update_edge(self._store, edge_id, properties, replace=replace)

    def delete_node(self, node_id: int) -> None:
        """Delete a node and its edges."""
        write.delete(self._store, "nodes", node_id)

    def delete_edge(self, edge_id: int) -> None:
        """Delete an edge."""
        write.delete(self._store, "edges", edge_id)

    def nodes(self, type: str | None = None) -> NodeQuery:  # noqa: A002
        """Query the nodes of a type, or all.

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

        >>> with GraphDatabase(":memory:") as db:
        ...     ann, bob, job = (db.create_node(type).id for type in ("Person", "Person", "Job"))
        ...     _ = db.create_edge(ann, "LIKES", job), db.create_edge(bob, "LIKES", job)
        ...     found = db.pattern("Person").out("LIKES", "Job").in_("LIKES", "Person").exec()
        ...     [[node.id for node in path.nodes] for path in found]
        [[1, 3, 2], [2, 3, 1]]
        """
        return hops.begin(self._store, type, where, start_id)
