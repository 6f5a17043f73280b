"""`graph view`: a part of the graph in one HTML file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, confirm, pair, parse_value, wrap_command
from merganser.cli.graph.file import (
    RenamedOption,
    get_store,
    open_graph,
    option_with_default,
    param_option,
    timeout_option,
)
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.errors import GraphFileError, InvalidArgumentError
from merganser.graph import Edges, GraphDatabase, Neighbourhood, Nodes, Paths, Rows
from merganser.graph.exchange.files import write_atomically
from merganser.graph.querying.conditions import PropertyConditions
from merganser.graph.querying.text_parser import check_parameters_used, parse_query
from merganser.graph.querying.text_query import QueryOptions, count_results, run_query
from merganser.graph.querying.text_syntax import ParsedNode, ParsedPath, ParsedQuery

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("graph")
@click.argument("out", metavar="OUT.html")
@click.option("--node-type", cls=RenamedOption, former="--label", help="Start at the nodes of this type.")
@click.option(
    "--key",
    type=pair,
    multiple=True,
    metavar="PROPERTY=VALUE",
    help="Start at nodes whose property has this value; repeatable.",
)
@click.option("--query", help="Start at the results of a query; see `merganser graph query --help`.")
@param_option
@click.option("--edge-type", multiple=True, help="Follow only edges of this type; repeatable.")
@option_with_default(
    "--direction",
    type=click.Choice(["out", "in", "both"]),
    default="both",
    help="Direction in which edges are followed.",
)
@option_with_default(
    "--depth", type=click.IntRange(0), default=1, help="Number of edges to follow; expanding a node follows one more."
)
@option_with_default(
    "--limit", type=click.IntRange(1), default=300, help="Maximum number of nodes in the file; the nearest are kept."
)
@click.option("--title", help="Title of the page; default: the name of GRAPH.")
@click.option("--yes", is_flag=True, help="Do not ask before replacing an existing file.")
@timeout_option
@wrap_command
def view(graph: str, out: str, **given: Any) -> CommandOutput:
    """Draw a part of the graph in one HTML file.

    Any browser opens the file, also offline. Nodes can be dragged, expanded, searched and inspected. Without
    --node-type, --key and --query, the view starts at all nodes, of which there may be at most --limit.
    """
    start, depth = _parse_start(given), given["depth"]
    _check_folder(out)
    with open_graph(graph, given["timeout"]) as opened:
        ids, note = _find_start_ids(opened, start, given["limit"])
        found = opened.neighbourhood(
            ids, given["edge_type"] or None, direction=given["direction"], depth=depth + 1, limit=given["limit"]
        )
    page = found.to_html(given["title"] or os.path.basename(graph), depth=depth, note=note)
    location = locate(out)
    if location.store.get_path_type(location.root) == "file":
        confirm(f"Replace {out}?", yes=given["yes"])
    with write_atomically(location) as stream:
        stream.write(page.encode())
    return _make_output(found, out, depth)


def _check_folder(out: str) -> None:
    folder = os.path.dirname(out)
    if folder and "://" not in out and not os.path.isdir(folder):
        raise GraphFileError(f"The folder {folder!r} of the file {out} does not exist. Create it, or check the path.")


def _make_output(found: Neighbourhood, out: str, depth: int) -> CommandOutput:
    visible = sum(distance <= depth for distance in found.distances)
    values = {
        "path": out,
        "nodes": len(found.nodes),
        "nodes_shown": visible,
        "edges": len(found.edges),
        "nodes_left_out": found.nodes_left_out,
        "edges_left_out": found.edges_left_out,
    }
    more = f", {len(found.nodes) - visible:,} more by expanding" if len(found.nodes) > visible else ""
    lines = [f"{out}: {pluralize(visible, 'node')}{more}, {pluralize(len(found.edges), 'edge')}"]
    if found.nodes_left_out or found.edges_left_out:
        lines.append(
            f"left out: {pluralize(found.nodes_left_out, 'node')} next to these, "
            f"{pluralize(found.edges_left_out, 'edge')} between them"
        )
    return CommandOutput(values, lines)


def _parse_start(given: dict[str, Any]) -> ParsedQuery | None:
    """Parse which nodes to start at; None is all."""
    if given["query"] and (given["node_type"] or given["key"]):
        raise click.UsageError("Give --node-type and --key, or --query, not both.")
    parameters = {name: parse_value(text) for name, text in given["parameters"]}
    check_parameters_used(parameters, [given["query"] or ""])
    if given["query"]:
        parsed = parse_query(given["query"], parameters)
        if parsed.merge is not None:
            raise InvalidArgumentError("--query of a view finds where to start, and does not merge. Write a pattern.")
        return parsed
    if not given["node_type"] and not given["key"]:
        return None
    conditions = PropertyConditions((name, "=", parse_value(text)) for name, text in given["key"])
    return _make_node_query(ParsedNode(type=given["node_type"], conditions=conditions))


def _make_node_query(node: ParsedNode) -> ParsedQuery:
    return ParsedQuery(paths=(ParsedPath((node,)),))


def _run_with_limit(graph: GraphDatabase, parsed: ParsedQuery, limit: int) -> Nodes | Edges | Paths:
    options = QueryOptions() if parsed.has_clauses else QueryOptions(limit=limit)
    found = run_query(get_store(graph), parsed, options)
    if isinstance(found, Rows):
        raise InvalidArgumentError(
            "The query returns rows; a view starts at nodes, edges or paths. RETURN one of them."
        )
    return found


def _find_start_ids(graph: GraphDatabase, parsed: ParsedQuery | None, limit: int) -> tuple[Sequence[int], str]:
    """Find the nodes to start at, and a note if there are more than the limit."""
    if parsed is None:
        parsed = _make_node_query(ParsedNode())
        total = count_results(get_store(graph), parsed, QueryOptions())
        if total > limit:
            raise InvalidArgumentError(
                f"The graph has {total:,} nodes, more than the {limit:,} of --limit. Give --node-type, --key or "
                "--query to start at some of them."
            )
    found = _run_with_limit(graph, parsed, limit)
    if not found:
        raise InvalidArgumentError(
            "No node matches, so there is nothing to draw. Check the type and the values: a number does not equal a "
            "string, which is written as '\"7\"'."
        )
    if isinstance(found, Edges):
        ids = [node_id for edge in found for node_id in (edge.from_id, edge.to_id)]
    elif isinstance(found, Paths):
        ids = [node.id for path in found for node in path.nodes]
    else:
        ids = [node.id for node in found]
    note = ""
    if len(found) == limit and (total := count_results(get_store(graph), parsed, QueryOptions())) > limit:
        note = f"{total:,} match; this starts at the first {limit:,}."
    return list(dict.fromkeys(ids)), note
