"""`graph query`, `graph stats` and `graph export`."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, confirm, parse_value, wrap_command
from merganser.cli.graph.file import get_store, open_graph, param_option, report_missing_indexes, timeout_option
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.errors import InvalidArgumentError
from merganser.graph import Edges, GraphStats, Nodes, Paths, Rows
from merganser.graph.querying.text_parser import check_parameters_used, parse_hop, parse_query
from merganser.graph.querying.text_query import QueryOptions, count_results, run_query
from merganser.printable import escape_controls, mask_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MAX_CELL_WIDTH = 40
_NOUNS: dict[type, str] = {Nodes: "node", Edges: "edge", Paths: "path", Rows: "row"}
FORMATS = ("json", "parquet", "graphml")


@click.command()
@click.argument("graph")
@click.argument("query")
@param_option
@click.option("--order-by", multiple=True, metavar="PROPERTY", help="Property to sort nodes or edges by; repeatable.")
@click.option("--descending", is_flag=True, help="Sort the highest values first.")
@click.option("--limit", type=int, help="Maximum number of results.")
@click.option("--offset", type=int, default=0, help="Number of results to skip.")
@click.option(
    "--connected-to",
    multiple=True,
    metavar="HOP",
    help="Find only nodes with a neighbour that matches HOP, such as '-[TYPE]->(TYPE {…})'; repeatable.",
)
@click.option(
    "--not-connected-to",
    multiple=True,
    metavar="HOP",
    help="Find only nodes without a neighbour that matches HOP; repeatable.",
)
@click.option("--from-id", type=int, help="Find only edges from this node.")
@click.option("--to-id", type=int, help="Find only edges to this node.")
@click.option("--paths", is_flag=True, help="Return every path of a query with *, not only the nodes it reaches.")
@click.option("--count", "only_count", is_flag=True, help="Print only the number of results.")
@timeout_option
@wrap_command
def query(
    graph: str, query: str, *, parameters: Sequence[tuple[str, str]], only_count: bool, timeout: float, **given: Any
) -> CommandOutput:
    """Find nodes, edges or paths, or merge them.

    \b
    Put QUERY in quotes, because of the shell:
      '(:Job)'  '(:Job {seen >= 2, title: "Tester"})'  '(#7)'   nodes
      '[:POSTED_BY {since: $day}]'                              edges
      '(:Job)-[:POSTED_BY]->(:Company {name: "TechCorp"})'      paths, hop by hop
      '(#1)-[:NEXT|NEAR*1..3]-(:Stop)'                          nodes reached by 1 to 3 edges
      '(#1)-[*]->(#9)'                                          the shortest path
      'MATCH (j:Job) WHERE j.seen > 1 RETURN j.city, count(*)'  rows
      'MERGE (j:Job {url: $url}) ON MATCH SET j.seen = $seen'   a merge, which needs an existing GRAPH

    Conditions use one of : = != < <= > >= in contains starts_with ends_with, and a literal or $NAME.
    """  # noqa: D301 - the character that \b stands for keeps Click from filling the lines anew
    values = {name: parse_value(text) for name, text in parameters}
    check_parameters_used(values, [query, *given["connected_to"], *given["not_connected_to"]])
    parsed = parse_query(query, values)
    if parsed.merge is not None:
        return _merge(graph, query, values, QueryOptions(**given), only_count=only_count, timeout=timeout)
    for name in ("connected_to", "not_connected_to"):
        given[name] = tuple(parse_hop(text, values) for text in given[name])
    options = QueryOptions(**given)
    with open_graph(graph, timeout) as opened:
        if only_count:
            number = count_results(get_store(opened), parsed, options)
            return CommandOutput({"count": number}, [f"{number:,}"])
        found = run_query(get_store(opened), parsed, options)
    return CommandOutput(found.to_dict()["rows"], _format_table(found))


def _merge(
    graph: str, query: str, values: dict[str, Any], options: QueryOptions, *, only_count: bool, timeout: float
) -> CommandOutput:
    names = [field.name for field in fields(options)]
    options.refuse("a merge", *names)
    if only_count:
        raise InvalidArgumentError("--count does not apply to a merge, whose result has its counts. Leave it out.")
    with open_graph(graph, timeout, read_only=False) as opened, report_missing_indexes(graph):
        found = opened.query(query, **values)
    return CommandOutput(found.to_dict()["rows"], _format_table(found))


def _format_table(found: Nodes | Edges | Paths | Rows) -> Iterator[str]:
    names, rows = found.cells()
    if not isinstance(found, Paths):
        cells = [[_format_cell(text) for text in row] for row in ([names, *rows] if rows else [])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    else:
        yield from (escape_controls(text) for (text,) in rows)
    yield pluralize(len(found), _NOUNS[type(found)])


def _format_cell(text: str) -> str:
    printable = escape_controls(text)
    return printable if len(printable) <= _MAX_CELL_WIDTH else f"{printable[: _MAX_CELL_WIDTH - 1]}…"


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
    width = max((len(_format_cell(type_)) for _, type_, _ in counts), default=0)
    for table, type_, number in counts:
        yield f"{table}  {_format_cell(type_):<{width}}  {number:,}"
    for index in found.indexes:
        unique = "unique, " if index.unique else ""
        columns = ", ".join(index.columns)
        yield escape_controls(f"index  {index.name} ({unique}{index.table} of {index.partial} by {columns})")


@click.command()
@click.argument("graph")
@click.argument("out")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of OUT; default: by its extension, Parquet if it has none.",
)
@click.option("--yes", is_flag=True, help="Do not ask before replacing an existing export.")
@timeout_option
@wrap_command
def export(graph: str, out: str, *, form: str | None, yes: bool, timeout: float) -> CommandOutput:
    """Write the whole graph as JSON, Parquet or GraphML.

    OUT is a file, or for Parquet a folder, with vertices and edges as GraphFrames reads them; both may be URLs. Parquet
    and JSON can be imported again.
    """
    file_format = form or _detect_format(out)
    with open_graph(graph, timeout) as opened:
        location = locate(out)
        first = location.to_path("vertices/part-0.parquet") if file_format == "parquet" else location.root
        if location.store.get_path_type(first) == "file":
            confirm(f"Replace the export in {out}?", yes=yes)
        getattr(opened, f"export_{file_format}")(out)
    return CommandOutput(
        {"path": mask_credentials(out), "format": file_format}, [f"{out}: {graph} exported as {file_format}"]
    )


def _detect_format(out: str) -> str:
    extension = os.path.splitext(out)[1]
    if extension and extension[1:] not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise click.UsageError(f"The extension of {out} is not one of {known}. Give --format, or another name.")
    return extension[1:] or "parquet"
