"""`GraphDatabase`: the one door to a property graph in an SQLite file.

What it merges, creates and deletes is here; queries are in `asking`, imports and exports in `exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.graph.exchange.exchange_mixin import ExchangeMixin
from merganser.graph.merging import bulk, merge, merge_pattern
from merganser.graph.query_mixin import QueryMixin
from merganser.graph.sqlite import indexes, write
from merganser.graph.sqlite.store import Store

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Literal, Self

    from merganser.graph.merging.bulk import Endpoint, OnMatchColumns
    from merganser.graph.merging.merge import OnMatch
    from merganser.graph.records import BulkResult, Edge, IndexInfo, MergedEdge, MergedNode, Node
    from merganser.graph.schema import GraphSchema
    from merganser.graph.sqlite.sql import Table


class GraphDatabase(QueryMixin, ExchangeMixin):
    """A property graph in one SQLite file, or in memory (`":memory:"`), whose MERGE makes imports repeatable.

    It may be shared between threads, and several processes may open one file. A writer waits `timeout` seconds for
    another. With a `schema`, whatever it does not allow is refused.

    With `read_only=True` nothing is written, neither to the file nor beside it, so that both may be write-protected. If
    nobody has the file open to write then, it has to stay as it is while it is read; once it changes, what is read is
    refused, and it has to be opened again.

    >>> with GraphDatabase(":memory:") as db:
    ...     _ = db.create_property_index("Job", "url")
    ...     job = db.merge_node("Job", {"url": "https://example.com/1"}, {"title": "Engineer"})
    ...     again = db.merge_node("Job", {"url": "https://example.com/1"}, on_match={"seen": 2})
    ...     print(job.created, again.created, again.properties)
    True False {'url': 'https://example.com/1', 'title': 'Engineer', 'seen': 2}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: GraphSchema | None = None,
        timeout: float = 30.0,
        read_only: bool = False,
    ) -> None:
        self._store = Store(path, timeout=timeout, schema=schema, read_only=read_only)

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
        """This thread's connection to SQLite, for statements of your own; leave its `row_factory` as it is.

        A transaction that was begun on it is respected.
        """
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
        return merge.merge_node(
            self._store,
            type,
            match,
            base,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            allow_key_change=allow_key_change,
            touch=touch,
            warn=warn_on_missing_index,
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
            touch=touch,
        )

    def bulk_merge_nodes(
        self,
        type: str,  # noqa: A002
        rows: Any,
        *,
        match_on: str | Sequence[str],
        on_match: OnMatchColumns = (),
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> BulkResult:
        """Merge rows into nodes of a type, in one transaction, as if by `merge_node` row after row.

        Rows are dicts, or an Arrow table, a data frame or anything else with Arrow data. The columns of `match_on` are
        the match; all others are the base of a new node; those of `on_match` are laid over one that is found. As a
        mapping `{property: column}`, `on_match` names columns that are laid over other properties than their own, and
        that a new node does not get.

        >>> rows = [{"url": "/1", "seen": 1}, {"url": "/2", "seen": 1}, {"url": "/1", "seen": 2}]
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_property_index("Job", "url")
        ...     db.bulk_merge_nodes("Job", rows, match_on="url", on_match=["seen"])
        BulkResult(created=2, matched=1)
        """
        return bulk.bulk_merge_nodes(
            self._store,
            type,
            rows,
            match_on=match_on,
            on_match=on_match,
            touch=touch,
            warn=warn_on_missing_index,
        )

    def bulk_merge_edges(
        self,
        type: str,  # noqa: A002
        rows: Any,
        *,
        from_node: str | Endpoint = "from_id",
        to_node: str | Endpoint = "to_id",
        match_on: str | Sequence[str] = (),
        on_match: OnMatchColumns = (),
        direction: Literal["out", "both"] = "out",
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> BulkResult:
        """Merge rows into edges of a type, in one transaction, as if by `merge_edge` row after row.

        The nodes of an edge are named by a column of ids, or by an `Endpoint`: their type, and the columns that they
        are found by. The other columns are as in `bulk_merge_nodes`.

        >>> from merganser.graph import Endpoint
        >>> rows = [{"job": "/1", "company": "TechCorp"}, {"job": "/2", "company": "TechCorp"}]
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"url": "/1"}), db.create_node("Job", {"url": "/2"})
        ...     _ = db.create_node("Company", {"name": "TechCorp"})
        ...     _ = db.create_property_index("Job", "url"), db.create_property_index("Company", "name")
        ...     job, company = Endpoint("Job", {"url": "job"}), Endpoint("Company", {"name": "company"})
        ...     db.bulk_merge_edges("POSTED_BY", rows, from_node=job, to_node=company)
        BulkResult(created=2, matched=0)
        """
        return bulk.bulk_merge_edges(
            self._store,
            type,
            rows,
            from_node=from_node,
            to_node=to_node,
            match_on=match_on,
            on_match=on_match,
            direction=direction,
            touch=touch,
            warn=warn_on_missing_index,
        )

    def merge_pattern(
        self,
        parts: Sequence[Mapping[str, Any]],
        *,
        whole: bool = False,
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> tuple[MergedNode | MergedEdge, ...]:
        """Merge nodes and the edges between them, in one transaction.

        A part with `type` is a node, with the arguments of `merge_node`; a part with `edge` is an edge of that type,
        `from` and `to` being the places of its nodes in the list. With `whole=True` the pattern is found as a whole or
        created as a whole, with new nodes, as Cypher's MERGE does.

        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_property_index("Job", "url"), db.create_property_index("Company", "name")
        ...     parts = db.merge_pattern([
        ...         {"type": "Job", "match": {"url": "/1"}},
        ...         {"type": "Company", "match": {"name": "TechCorp"}},
        ...         {"edge": "POSTED_BY", "from": 0, "to": 1},
        ...     ])
        ...     [part.created for part in parts]
        [True, True, True]
        """
        return merge_pattern.merge_pattern(self._store, parts, whole=whole, touch=touch, warn=warn_on_missing_index)

    def create_property_index(
        self,
        type: str,  # noqa: A002
        property: str | Sequence[str],  # noqa: A002
        unique: bool = False,  # noqa: FBT001, FBT002 - as in the documents
        table: Table = "nodes",
    ) -> IndexInfo:
        """Index the nodes (or edges) of a type by one property or several; an index that is there already is kept.

        >>> with GraphDatabase(":memory:") as db:
        ...     db.create_property_index("Job", "url", unique=True).name
        'idx_merge_Job_url'
        """
        return indexes.create_index(self._store, type, property, unique=unique, table=table)

    def list_indexes(self) -> list[IndexInfo]:
        """List the indexes of properties."""
        return [found.info for found in indexes.list_indexes(self._store)]

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
        write.delete_record(self._store, "nodes", node_id)

    def delete_edge(self, edge_id: int) -> None:
        """Delete an edge."""
        write.delete_record(self._store, "edges", edge_id)
