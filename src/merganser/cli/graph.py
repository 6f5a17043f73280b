"""`graph`: the commands of the property graph by name. As in `app`, each is loaded when it is run."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

# The module and function of each command, and its help in a line.
COMMANDS = {
    "import": ("merganser.cli.graph_change", "import_graph", "Add a whole graph from JSON or Parquet."),
    "merge": ("merganser.cli.graph_change", "merge", "Merge keyed rows as nodes or edges."),
    "index": ("merganser.cli.graph_change", "index", "Index the nodes of a label by properties."),
    "drop-index": ("merganser.cli.graph_change", "drop_index", "Drop an index of properties."),
    "query": ("merganser.cli.graph_look", "query", "Find nodes, edges or paths."),
    "stats": ("merganser.cli.graph_look", "stats", "Count nodes and edges, and list indexes."),
    "export": ("merganser.cli.graph_look", "export", "Write the whole graph as JSON, Parquet or GraphML."),
    "view": ("merganser.cli.graph_view", "view", "Draw a part of the graph in one HTML file."),
}


class _Commands(click.Group):
    """Commands that are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  they are always the same
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        return cast("click.Command", getattr(import_module(module), function))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, _, told) in COMMANDS.items()])


@click.group(cls=_Commands)
def graph() -> None:
    """Merge into a property graph, ask it and look at it.

    GRAPH is the SQLite file of the graph. The label of a node and the type of an edge are what the library calls their
    type. A value of a property is read as JSON, and as a text if it is none.
    """
