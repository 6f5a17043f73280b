"""`graph query`, `graph stats` and `graph export`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, confirm, pair, wrap_command
from merganser.cli.graph.file import open_graph, timeout_option
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.graph import Edges, Nodes
from merganser.graph.querying.query_text import check_parameters_used, parse_hop, parse_json_value, parse_query
from merganser.graph.text_query import QueryOptions, count, run_query
from merganser.printable import escape_controls, mask_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.graph import GraphStats, Paths

_MAX_CELL_WIDTH = 40
FORMATS = ("json", "parquet", "graphml")


@click.command()
@click.argument("graph")
@click.argument("query")
@click.option("--param", type=pair, multiple=True, metavar="NAME=VALUE", help="What $NAME stands for; repeatable.")
@click.option("--order-by", multiple=True, metavar="PROPERTY", help="Of nodes or edges; repeatable.")
@click.option("--descending", is_flag=True, help="The highest first.")
@click.option("--limit", type=int, help="No more than so many.")
@click.option("--offset", type=int, default=0, help="Leave so many out at the beginning.")
@click.option(
    "--connected-to", multiple=True, metavar="HOP", help="Of nodes: with such a neighbour, '-[TYPE]->(LABEL {…})'."
)
@click.option("--not-connected-to", multiple=True, metavar="HOP", help="Of nodes: without such a neighbour.")
@click.option("--from-id", type=int, help="Of edges: from this node.")
@click.option("--to-id", type=int, help="Of edges: to this node.")
@click.option("--paths", is_flag=True, help="With *: every path, not only the nodes that are reached.")
@click.option("--count", "only_count", is_flag=True, help="Say how many there are.")
@timeout_option
@wrap_command
def query(graph: str, query: str, *, param: Sequence[tuple[str, str]], timeout: float, **given: Any) -> CommandOutput:
    """Find nodes, edges or paths.

    \b
    QUERY is drawn, and quoted so that the shell leaves it alone:
      '(Job)'  '(Job {seen >= 2, title: "Tester"})'  '(#7)'   nodes
      '[POSTED_BY {since: $day}]'                             edges
      '(Job)-[POSTED_BY]->(Company {name: "TechCorp"})'       paths, hop by hop
      '(#1)-[NEXT|NEAR*1..3]-(Stop)'                          nodes reached by 1 to 3 edges
      '(#1)-[*]->(#9)'                                        the shortest path

    Conditions have one of : = != < <= > >= in contains starts_with ends_with, and values as JSON has them, or $NAME.
    """  # noqa: D301 - the character that \b stands for keeps Click from filling the lines anew
    parameters = {name: parse_json_value(text) for name, text in param}
    texts = [query, *given["connected_to"], *given["not_connected_to"]]
    check_parameters_used(parameters, texts)
    asked = parse_query(query, parameters)
    hops = {
        name: tuple(parse_hop(text, parameters) for text in given[name])
        for name in ("connected_to", "not_connected_to")
    }
    only_count = given.pop("only_count")
    wishes = QueryOptions(**{**given, **hops})
    with open_graph(graph, timeout) as opened:
        if only_count:
            number = count(opened, asked, wishes)
            return CommandOutput({"count": number}, [f"{number:,}"])
        found = run_query(opened, asked, wishes)
    return CommandOutput(found.to_dict()["rows"], _format_table(found))


def _format_table(found: Nodes | Edges | Paths) -> Iterator[str]:
    names, rows = found.cells()
    if isinstance(found, Nodes | Edges):
        cells = [[_format_cell(text) for text in row] for row in ([names, *rows] if rows else [])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    else:
        yield from (escape_controls(text) for (text,) in rows)
    one = {Nodes: "node", Edges: "edge"}.get(type(found), "path")
    yield pluralize(len(found), one)


def _format_cell(text: str) -> str:
    shown = escape_controls(text)
    return shown if len(shown) <= _MAX_CELL_WIDTH else f"{shown[: _MAX_CELL_WIDTH - 1]}…"


@click.command()
@click.argument("graph")
@timeout_option
@wrap_command
def stats(graph: str, timeout: float) -> CommandOutput:
    """Count nodes and edges, and list indexes."""
    with open_graph(graph, timeout) as opened:
        found = opened.stats()
    return CommandOutput(found.to_dict(), _format_stats(found))


def _format_stats(found: GraphStats) -> Iterator[str]:
    nodes, edges = pluralize(found.node_count, "node"), pluralize(found.edge_count, "edge")
    yield f"{found.path}: {nodes}, {edges}, {pluralize(found.size_bytes, 'byte')}"
    counts = [("nodes", *one) for one in found.nodes.items()] + [("edges", *one) for one in found.edges.items()]
    wide = max((len(_format_cell(type_)) for _, type_, _ in counts), default=0)
    for table, type_, number in counts:
        yield f"{table}  {_format_cell(type_):<{wide}}  {number:,}"
    for index in found.indexes:
        unique = "unique, " if index.unique else ""
        columns = ", ".join(index.columns)
        yield escape_controls(f"index  {index.name} ({unique}{index.table} of {index.partial} by {columns})")


@click.command()
@click.argument("graph")
@click.argument("out")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Default: by the ending of OUT; Parquet if it has none."
)
@click.option("--yes", is_flag=True, help="Do not ask before an export takes another's place.")
@timeout_option
@wrap_command
def export(graph: str, out: str, *, form: str | None, yes: bool, timeout: float) -> CommandOutput:
    """Write the whole graph as JSON, Parquet or GraphML.

    OUT is a file, or for Parquet a folder, which gets vertices and edges as GraphFrames has them, on a disk or at a
    URL. Parquet and JSON can be imported again.
    """
    kind = form or _detect_format(out)
    with open_graph(graph, timeout) as opened:
        location = locate(out)
        first = location.to_path("vertices/part-0.parquet") if kind == "parquet" else location.root
        if location.store.get_path_type(first) == "file":
            confirm(f"Put this graph in the place of what is in {out}?", yes=yes)
        {"json": opened.export_json, "parquet": opened.export_parquet, "graphml": opened.export_graphml}[kind](out)
    return CommandOutput({"path": mask_credentials(out), "format": kind}, [f"{out}: {graph} as {kind}"])


def _detect_format(out: str) -> str:
    ending = os.path.splitext(out)[1]
    if ending and ending[1:] not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        message = f"The ending of {out} names no format; those that do are {known}. Say --format, or another name."
        raise click.UsageError(message)
    return ending[1:] or "parquet"
