"""How graphs come into `GraphDatabase` and out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merganser.graph.exchange import graphml, json_file, networkx_graph, parquet, parquet_read

if TYPE_CHECKING:
    import os

    import networkx as nx

    from merganser.graph.exchange.loading import ImportResult
    from merganser.graph.sqlite.store import Store


class ExchangeMixin:
    """The part of `GraphDatabase` that imports and exports."""

    _store: Store

    def export_json(self, path: str | os.PathLike[str]) -> None:
        """Write the whole graph to one JSON file, on a disk or at an fsspec URL.

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
        """Add the graph of a JSON file, all of it or nothing.

        Ids are kept if no id was ever used here; else all records get new ones, which the result's `ids` tells for
        nodes. Files made by hand may leave out ids and times.
        """
        return json_file.import_json(self._store, path)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Give the graph as networkx has it: ids as keys, properties and `type` as attributes.

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
        """Add a graph of networkx, all of it or nothing.

        The attribute `type` is the type; what has none is of `node_type` or `edge_type`. Records get new ids; an edge
        without a direction gets the one in which networkx lists it.

        >>> import networkx
        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     db.from_networkx(networkx.path_graph(3), node_type="Stop", edge_type="NEXT").ids
        {0: 1, 1: 2, 2: 3}
        """
        return networkx_graph.from_networkx(self._store, graph, node_type, edge_type)

    def export_graphml(self, path: str | os.PathLike[str]) -> None:
        """Write the whole graph as GraphML, without its times; lists and dicts become JSON text.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_graphml("graph.graphml")
        """
        graphml.export_graphml(self._store, path)

    def export_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write the whole graph as Parquet in the way of GraphFrames, to `vertices/` and `edges/` below a folder.

        Each property is a column; one whose values are of several kinds, or dicts, holds JSON text.

        >>> from merganser import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"title": "Engineer"})
        ...     db.export_parquet("graph")
        """
        parquet.export_parquet(self._store, folder)

    def import_parquet(self, folder: str | os.PathLike[str], *, node_type: str | None = None) -> ImportResult:
        """Add the graph of `vertices/` and `edges/` below a folder, all of it or nothing.

        Any files with the columns of GraphFrames will do: `id`; `src`, `dst` and `relationship`. Vertices without a
        `type` are of `node_type`. Ids are kept if they are integers and none was ever used here.
        """
        return parquet_read.import_parquet(self._store, folder, node_type)
