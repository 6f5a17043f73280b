"""`graph`: the commands of the property graph."""

from __future__ import annotations

import click

from merganser.cli.group import LazyGroup

COMMANDS = {
    "import": ("merganser.cli.graph.write:import_graph", "Add a whole graph from JSON, GraphML or Parquet."),
    "merge": ("merganser.cli.graph.write:merge", "Merge keyed rows as nodes or edges."),
    "index": ("merganser.cli.graph.write:index", "Index the nodes or edges of a type by properties."),
    "drop-index": ("merganser.cli.graph.write:drop_index", "Drop a property index."),
    "query": ("merganser.cli.graph.read:query", "Find nodes, edges or paths, or merge them."),
    "stats": ("merganser.cli.graph.read:stats", "Count nodes and edges, and list indexes."),
    "export": ("merganser.cli.graph.read:export", "Write the whole graph as JSON, Parquet or GraphML."),
    "view": ("merganser.cli.graph.view:view", "Draw a part of the graph in one HTML file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def graph() -> None:
    """Merge into a property graph, query it and draw it.

    GRAPH is the SQLite file of the graph. Values of properties are parsed as JSON; anything else is a string.
    """
