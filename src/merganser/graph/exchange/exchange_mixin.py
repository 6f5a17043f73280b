"""The imports and exports of `GraphDatabase`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.graph.exchange import graphml, graphml_read, json_file, networkx_graph, parquet, parquet_read

if TYPE_CHECKING:
    import os

    import networkx as nx

    from merganser.graph.exchange.loading import ImportResult
    from merganser.graph.sqlite.store import Store


class ExchangeMixin:
    """The methods of `GraphDatabase` that import and export."""

    _store: Store

    def export_json(self, path: str | os.PathLike[str]) -> None:
        """Write the whole graph to one JSON file.

        Args:
            path: The file, local or at an fsspec URL.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db, GraphDatabase(":memory:") as copy:
        ...     job = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_json("graph.json")
        ...     _ = copy.import_json("graph.json")
        ...     copy.get_node(job.id) == job
        True
        """
        json_file.export_json(self._store, path)

    def import_json(self, path: str | os.PathLike[str]) -> ImportResult:
        """Add the graph of a JSON file, atomically; see `export_json` for an example.

        Ids are kept if no id was ever used here; otherwise all records get new ones, and the `ids` of the result map
        those of nodes. Files written by hand may omit ids and times.

        Args:
            path: The file, local or at an fsspec URL.
        """
        return json_file.import_json(self._store, path)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Convert to a networkx graph, with ids as keys, and properties and `type` as attributes.

        A property called `type` becomes the attribute `property_type`.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job = db.create_node("Job", {"title": "Engineer"})
        ...     db.to_networkx().nodes[job.id]
        {'title': 'Engineer', 'type': 'Job'}
        """
        return networkx_graph.to_networkx(self._store)

    def from_networkx(
        self, graph: nx.Graph, *, node_type: str | None = None, edge_type: str | None = None
    ) -> ImportResult:
        """Add a networkx graph, atomically.

        The attribute `type` of nodes and edges is their type. Records get new ids; an undirected edge gets the
        direction in which networkx lists it.

        Args:
            graph: The graph to add.
            node_type: The type of nodes without a `type`.
            edge_type: The type of edges without a `type`.

        >>> import networkx
        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.from_networkx(networkx.path_graph(3), node_type="Stop", edge_type="NEXT").ids
        {0: 1, 1: 2, 2: 3}
        """
        return networkx_graph.from_networkx(self._store, graph, node_type, edge_type)

    def export_graphml(self, path: str | os.PathLike[str]) -> None:
        """Write the whole graph as GraphML, without its times; lists and dicts become JSON strings.

        Data called `type` hold the types of nodes and edges. Properties called `type` or `id` get the prefix
        `property_`, because readers would confuse them with these; `import_graphml` removes it.

        Args:
            path: The file, local or at an fsspec URL.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_graphml("graph.graphml")
        """
        graphml.export_graphml(self._store, path)

    def import_graphml(
        self, path: str | os.PathLike[str], *, node_type: str | None = None, edge_type: str | None = None
    ) -> ImportResult:
        """Add the graph of a GraphML file, atomically.

        Data called `type` are the types of nodes and edges, all other data their properties. Records get new ids; an
        undirected edge leads from its source to its target.

        Args:
            path: The file, local or at an fsspec URL.
            node_type: The type of nodes without a `type`.
            edge_type: The type of edges without a `type`.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db, GraphDatabase(":memory:") as copy:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_graphml("jobs.graphml")
        ...     copy.import_graphml("jobs.graphml").ids
        {'n1': 1}
        """
        return graphml_read.import_graphml(self._store, path, node_type, edge_type)

    def export_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write the whole graph as Parquet that GraphFrames reads, to `vertices/` and `edges/` in a folder.

        Each property is a column; one with values of several types, or with dicts, holds JSON strings.

        Args:
            folder: The folder, local or at an fsspec URL.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_parquet("graph")
        """
        parquet.export_parquet(self._store, folder)

    def import_parquet(self, folder: str | os.PathLike[str], *, node_type: str | None = None) -> ImportResult:
        """Add the graph in `vertices/` and `edges/` of a folder, atomically.

        The files need the columns of GraphFrames: `id`; `src`, `dst` and `relationship`. Ids are kept if they are
        integers and none was ever used here.

        Args:
            folder: The folder, local or at an fsspec URL.
            node_type: The type of vertices without a `type`.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db, GraphDatabase(":memory:") as copy:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_parquet("jobs")
        ...     copy.import_parquet("jobs").nodes
        1
        """
        return parquet_read.import_parquet(self._store, folder, node_type)
