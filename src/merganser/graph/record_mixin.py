"""The methods of `GraphDatabase` for single records: create, read, update and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.graph.sqlite import write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from merganser.graph.records import Edge, Node
    from merganser.graph.sqlite.store import Store


class RecordMixin:
    """The methods of `GraphDatabase` for single records."""

    _store: Store

    def create_node(self, type: str, properties: Mapping[str, Any] | None = None) -> Node:
        """Create a node, even if an equal one exists.

        Args:
            type: The type of the node.
            properties: Its properties.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.create_node("Job", {"title": "Engineer"}).id
        1
        """
        return write.create_node(self._store, type, properties)

    def create_edge(self, from_id: int, type: str, to_id: int, properties: Mapping[str, Any] | None = None) -> Edge:
        """Create an edge, even if an equal one exists.

        Args:
            from_id: The id of the node that the edge leads from.
            type: The type of the edge.
            to_id: The id of the node that it leads to.
            properties: Its properties.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job").id, db.create_node("Company").id
        ...     db.create_edge(job, "POSTED_BY", company, {"since": 2026}).properties
        {'since': 2026}
        """
        return write.create_edge(self._store, from_id, type, to_id, properties)

    def get_node(self, node_id: int) -> Node | None:
        """Read a node by its id, or None if it does not exist.

        Args:
            node_id: The id of the node.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.get_node(1) is None
        True
        """
        return write.get_node(self._store, node_id)

    def get_edge(self, edge_id: int) -> Edge | None:
        """Read an edge by its id, or None if it does not exist.

        Args:
            edge_id: The id of the edge.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.get_edge(1) is None
        True
        """
        return write.get_edge(self._store, edge_id)

    def update_node(self, node_id: int, properties: Mapping[str, Any], *, replace: bool = False) -> Node:
        """Overwrite properties of a node.

        Args:
            node_id: The id of the node.
            properties: The new values; None removes a property.
            replace: Remove all other properties.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job = db.create_node("Job", {"title": "Engineer", "seen": 1})
        ...     db.update_node(job.id, {"seen": 2}).properties
        {'title': 'Engineer', 'seen': 2}
        """
        return write.update_record(self._store, "nodes", write.get_node, node_id, properties, replace=replace)

    def update_edge(self, edge_id: int, properties: Mapping[str, Any], *, replace: bool = False) -> Edge:
        """Overwrite properties of an edge.

        Args:
            edge_id: The id of the edge.
            properties: The new values; None removes a property.
            replace: Remove all other properties.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     stop = db.create_node("Stop").id
        ...     edge = db.create_edge(stop, "NEXT", stop, {"minutes": 2})
        ...     db.update_edge(edge.id, {"line": 7}, replace=True).properties
        {'line': 7}
        """
        return write.update_record(self._store, "edges", write.get_edge, edge_id, properties, replace=replace)

    def delete_node(self, node_id: int) -> None:
        """Delete a node and its edges.

        Args:
            node_id: The id of the node.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.delete_node(db.create_node("Job").id)
        ...     db.nodes().count()
        0
        """
        write.delete_record(self._store, "nodes", node_id)

    def delete_edge(self, edge_id: int) -> None:
        """Delete an edge.

        Args:
            edge_id: The id of the edge.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     stop = db.create_node("Stop").id
        ...     db.delete_edge(db.create_edge(stop, "NEXT", stop).id)
        ...     db.edges().count()
        0
        """
        write.delete_record(self._store, "edges", edge_id)
