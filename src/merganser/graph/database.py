"""`GraphDatabase`: a property graph in an SQLite file.

Merges are here; single records are in `record_mixin`, queries in `query_mixin`, imports and exports in `exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from merganser.graph.argument_names import accept_synonyms
from merganser.graph.exchange.exchange_mixin import ExchangeMixin
from merganser.graph.merging import bulk, bulk_edges, bulk_options, merge, merge_pattern
from merganser.graph.query_mixin import QueryMixin
from merganser.graph.record_mixin import RecordMixin
from merganser.graph.records import Node
from merganser.graph.sqlite import indexes
from merganser.graph.sqlite.store import Store

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from merganser.graph.merging.bulk_edges import MissingNodePolicy
    from merganser.graph.merging.bulk_options import Endpoint, PropertyColumns
    from merganser.graph.merging.merge import OnMatch
    from merganser.graph.merging.missing import MissingPolicy
    from merganser.graph.records import BulkResult, IndexInfo, MergedEdge, MergedNode
    from merganser.graph.schema import GraphSchema
    from merganser.graph.sqlite.chosen import DetachPolicy
    from merganser.graph.sqlite.sql import Table


class GraphDatabase(RecordMixin, QueryMixin, ExchangeMixin):
    """A property graph in one SQLite file or in memory, with an idempotent MERGE.

    It may be shared between threads, and several processes may open one file.

    Args:
        path: The file, which is created if it does not exist, or `":memory:"`.
        schema: The types, properties and edges that are allowed; everything else is refused.
        timeout: Seconds to wait for another writer.
        read_only: Write nothing, neither to the file nor beside it, so that both may be write-protected. Unless another
            process has the file open, it must not change while it is read: once it changes, reading raises
            `GraphFileError`, and the file has to be opened again.

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

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GraphDatabase({self._store.path!r})"

    def close(self) -> None:
        """Close the connections of all threads; every later call raises `GraphError`.

        >>> GraphDatabase(":memory:").close()
        """
        self._store.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The SQLite connection of this thread, for your own statements and transactions; keep its `row_factory`.

        >>> with GraphDatabase(":memory:") as db:
        ...     db.connection.execute("SELECT count(*) FROM nodes").fetchone()
        (0,)
        """
        return self._store.connection

    def transaction(self) -> AbstractContextManager[None]:
        """Commit everything that the block does at once, or nothing if it raises; transactions nest.

        >>> with GraphDatabase(":memory:") as db, db.transaction():
        ...     company = db.merge_node("Company", {"name": "TechCorp"}, warn_on_missing_index=False)
        ...     job = db.create_node("Job", {"title": "Engineer"})
        ...     db.merge_edge(job.id, "POSTED_BY", company.id).created
        True
        """
        return self._store.transaction()

    @accept_synonyms()
    def merge_node(
        self,
        type: str,
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
        """Find the node of a type by its match properties, or create it.

        Args:
            type: The type of the node.
            match: The properties that identify it.
            base: Further properties of a new node.
            on_create: Properties of a new node, which override `base`.
            on_match: Properties to overwrite if the node exists; None removes one. A function receives the old
                properties and returns these.
            condition: Properties that an existing node must have to be updated; otherwise it is returned unchanged.
            allow_key_change: Allow `on_match` to change match properties.
            touch: Set `updated_at` even if no property changes.
            warn_on_missing_index: Warn if the match properties have no index.

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
        options = merge.MergeOptions(
            base=base,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            allow_key_change=allow_key_change,
            touch=touch,
        )
        return merge.merge_node(self._store, type, match, options, warn=warn_on_missing_index)

    @accept_synonyms()
    def merge_edge(
        self,
        from_id: int | Node,
        type: str,
        to_id: int | Node,
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

        Args:
            from_id: The node that the edge leads from, or its id.
            type: The type of the edge.
            to_id: The node that it leads to, or its id.
            properties: Properties of a new edge.
            on_create: Properties of a new edge, which override `properties`.
            on_match: Properties to overwrite if the edge exists, as in `merge_node`.
            match: Properties that identify the edge among those between the two nodes.
            direction: `"both"` also finds an edge that points the other way.
            condition: Properties that an existing edge must have to be updated, as in `merge_node`.
            allow_key_change: Allow `on_match` to change match properties.
            touch: Set `updated_at` even if no property changes.

        >>> with GraphDatabase(":memory:") as db:
        ...     job, company = db.create_node("Job"), db.create_node("Company")
        ...     [db.merge_edge(job, "POSTED_BY", company).created for _ in range(2)]
        [True, False]
        """
        options = merge.MergeOptions(
            base=properties,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            allow_key_change=allow_key_change,
            touch=touch,
        )
        start, end = (one.id if isinstance(one, Node) else one for one in (from_id, to_id))
        return merge.merge_edge(self._store, start, type, end, match, direction, options)

    @accept_synonyms()
    def bulk_merge_nodes(
        self,
        type: str,
        rows: Any,
        *,
        match_on: str | Sequence[str],
        on_create: PropertyColumns = (),
        on_match: PropertyColumns = (),
        condition: Mapping[str, Any] | None = None,
        missing: MissingPolicy = "keep",
        scope: Mapping[str, Any] | None = None,
        detach: DetachPolicy = False,
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> BulkResult:
        """Merge rows into nodes of a type in one transaction, as if by `merge_node` row after row.

        Args:
            type: The type of the nodes.
            rows: Dicts, or an Arrow table, a data frame or anything else with Arrow data.
            match_on: The columns that identify a node; all other columns are properties of a new node.
            on_create: Columns that override those of the same name in a new node, in a mapping `{property: column}`. A
                column that only sets a property of another name, here or in `on_match`, is not a property itself.
            on_match: The columns that overwrite properties of a node that is found, or such a mapping; `"*"` for all
                columns that are properties.
            condition: Properties that an existing node must have to be updated, as in `merge_node`.
            missing: What happens to the nodes of this type that no row matches: `"keep"`, `"delete"`, or the properties
                that they get, such as `{"active": False}`.
            scope: Properties of the nodes that the rows cover, such as `{"source": "feed-a"}`; others are never
                missing. New nodes have these properties, and rows with other values are refused.
            detach: Delete missing nodes together with their edges, or `"keep"` nodes that have edges; by default such
                a node refuses the merge.
            touch: Set `updated_at` even if no property changes.
            warn_on_missing_index: Warn if the match properties have no index.

        >>> rows = [{"url": "/1", "seen": 1}, {"url": "/2", "seen": 1}, {"url": "/1", "seen": 2}]
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_property_index("Job", "url")
        ...     done = db.bulk_merge_nodes("Job", rows, match_on="url", on_match=["seen"])
        >>> done
        BulkResult(created=2, matched=1)
        """
        options = bulk_options.BulkOptions(
            match_on=match_on,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            touch=touch,
            warn_on_missing_index=warn_on_missing_index,
            missing=missing,
            scope=scope,
            detach=detach,
        )
        return bulk.bulk_merge_nodes(self._store, type, rows, options)

    @accept_synonyms()
    def bulk_merge_edges(
        self,
        type: str,
        rows: Any,
        *,
        from_node: str | Endpoint = "from_id",
        to_node: str | Endpoint = "to_id",
        match_on: str | Sequence[str] = (),
        on_create: PropertyColumns = (),
        on_match: PropertyColumns = (),
        condition: Mapping[str, Any] | None = None,
        on_missing_node: MissingNodePolicy = "error",
        missing: MissingPolicy = "keep",
        scope: Mapping[str, Any] | None = None,
        direction: Literal["out", "both"] = "out",
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> BulkResult:
        """Merge rows into edges of a type in one transaction, as if by `merge_edge` row after row.

        Args:
            type: The type of the edges.
            rows: Rows as in `bulk_merge_nodes`.
            from_node: The column of the ids of the nodes that edges lead from, or an `Endpoint` that identifies them.
            to_node: The same for the nodes that edges lead to.
            match_on: The columns that identify an edge among those between the same nodes.
            on_create: Columns that override others in a new edge, as in `bulk_merge_nodes`.
            on_match: The columns that overwrite properties, as in `bulk_merge_nodes`.
            condition: Properties that an existing edge must have to be updated.
            on_missing_node: What happens to a row whose node does not exist: `"error"` refuses the merge, `"skip"`
                skips the row, `"create"` creates the node of an `Endpoint`.
            missing: What happens to the edges of this type that no row matches, as in `bulk_merge_nodes`; with an
                `Endpoint`, to those at nodes of its type.
            scope: Properties of the edges that the rows cover, as in `bulk_merge_nodes`.
            direction: `"both"` also finds an edge that points the other way.
            touch: Set `updated_at` even if no property changes.
            warn_on_missing_index: Warn if the match properties of an `Endpoint` have no index.

        >>> from merganser.graph import Endpoint
        >>> rows = [{"job": "/1", "company": "TechCorp"}, {"job": "/2", "company": "TechCorp"}]
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"url": "/1"}), db.create_node("Job", {"url": "/2"})
        ...     _ = db.create_node("Company", {"name": "TechCorp"})
        ...     _ = db.create_property_index("Job", "url"), db.create_property_index("Company", "name")
        ...     job, company = Endpoint("Job", {"url": "job"}), Endpoint("Company", {"name": "company"})
        ...     db.bulk_merge_edges("POSTED_BY", rows, from_node=job, to_node=company).created
        2
        """
        options = bulk_options.BulkOptions(
            match_on=match_on,
            on_create=on_create,
            on_match=on_match,
            condition=condition,
            touch=touch,
            warn_on_missing_index=warn_on_missing_index,
            missing=missing,
            scope=scope,
        )
        return bulk_edges.bulk_merge_edges(
            self._store, type, rows, (from_node, to_node), direction, on_missing_node, options
        )

    @accept_synonyms()
    def merge_pattern(
        self,
        parts: Sequence[Mapping[str, Any]],
        *,
        whole: bool = False,
        touch: bool = True,
        warn_on_missing_index: bool = True,
    ) -> tuple[MergedNode | MergedEdge, ...]:
        """Merge nodes and the edges between them in one transaction.

        Args:
            parts: Dicts with the arguments of `merge_node`, and with those of `merge_edge` where `edge` is the type,
                and `from` and `to` are the positions of its nodes in the list.
            whole: Find all parts together or create all of them, with new nodes, as Cypher's MERGE does.
            touch: Set `updated_at` even if no property changes.
            warn_on_missing_index: Warn if the match properties of a node have no index.

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

    @accept_synonyms()
    def create_property_index(
        self,
        type: str,
        property: str | Sequence[str],
        unique: bool = False,  # noqa: FBT001, FBT002 - as in the documents
        table: Table = "nodes",
    ) -> IndexInfo:
        """Index the nodes or edges of a type by one property or several; an existing index is kept.

        Args:
            type: The type of the nodes or edges.
            property: One property, or several that are indexed together.
            unique: Refuse two records with the same values.
            table: `"nodes"` or `"edges"`.

        >>> with GraphDatabase(":memory:") as db:
        ...     db.create_property_index("Job", "url", unique=True).name
        'idx_merge_Job_url'
        """
        return indexes.create_index(self._store, type, property, unique=unique, table=table)

    def list_indexes(self) -> list[IndexInfo]:
        """List the property indexes by name.

        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_property_index("Job", "url")
        ...     [index.name for index in db.list_indexes()]
        ['idx_merge_Job_url']
        """
        return [found.info for found in indexes.list_indexes(self._store)]

    @accept_synonyms()
    def drop_index(self, name: str) -> None:
        """Drop a property index, if it exists.

        Args:
            name: The name of the index, as in `list_indexes`.

        >>> with GraphDatabase(":memory:") as db:
        ...     db.drop_index(db.create_property_index("Job", "url").name)
        ...     db.list_indexes()
        []
        """
        indexes.drop_index(self._store, name)
