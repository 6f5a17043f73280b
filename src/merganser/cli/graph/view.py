"""`graph view`: a part of the graph in one HTML file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, confirm, pair, wrap_command
from merganser.cli.graph.file import open_graph, timeout_option
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.errors import GraphFileError, InvalidArgumentError
from merganser.graph import Edges, Paths
from merganser.graph.exchange.files import write_atomically
from merganser.graph.querying.query_text import (
    Condition,
    ParsedNode,
    ParsedQuery,
    check_parameters_used,
    parse_json_value,
    parse_query,
)
from merganser.graph.text_query import QueryOptions, count, run_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph import GraphDatabase, Neighbourhood


@click.command()
@click.argument("graph")
@click.argument("out", metavar="OUT.html")
@click.option("--label", help="Begin at the nodes of this label.")
@click.option("--key", type=pair, multiple=True, metavar="PROPERTY=VALUE", help="And with these values; repeatable.")
@click.option("--query", help="Or begin at what this query finds; see `merganser graph query --help`.")
@click.option("--param", type=pair, multiple=True, metavar="NAME=VALUE", help="What $NAME stands for in --query.")
@click.option("--edge-type", multiple=True, help="Go along edges of this type only; repeatable.")
@click.option(
    "--direction", type=click.Choice(["out", "in", "both"]), default="both", show_default=True, help="Which way."
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="How many edges away; expanding shows one more.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=300, show_default=True, help="Nodes in the file, the nearest first."
)
@click.option("--title", help="Default: the name of GRAPH.")
@click.option("--yes", is_flag=True, help="Do not ask before a file is replaced.")
@timeout_option
@wrap_command
def view(graph: str, out: str, **given: Any) -> CommandOutput:
    """Draw a part of the graph in one HTML file.

    Any browser opens it, without a network: nodes can be dragged, expanded, searched and looked into. Without --label
    and --query it begins at all nodes, if there are no more than --limit.
    """
    asked = _parse_start(given)
    _check_folder(out)
    with open_graph(graph, given["timeout"]) as opened:
        ids, note = _find_start_ids(opened, asked, given["limit"])
        found = opened.neighbourhood(
            ids,
            given["edge_type"] or None,
            direction=given["direction"],
            depth=given["depth"] + 1,
            limit=given["limit"],
        )
    page = found.to_html(given["title"] or os.path.basename(graph), depth=given["depth"], note=note)
    location = locate(out)
    if location.store.get_path_type(location.root) == "file":
        confirm(f"Replace {out}?", yes=given["yes"])
    with write_atomically(location) as stream:
        stream.write(page.encode())
    return _make_output(found, out, given["depth"])


def _check_folder(out: str) -> None:
    folder = os.path.dirname(out)
    if folder and "://" not in out and not os.path.isdir(folder):
        message = f"There is no folder {folder!r} for the file {out}. Create it, or check the path."
        raise GraphFileError(message)


def _make_output(found: Neighbourhood, out: str, depth: int) -> CommandOutput:
    shown = sum(distance <= depth for distance in found.distances)
    values = {
        "path": out,
        "nodes": len(found.nodes),
        "nodes_shown": shown,
        "edges": len(found.edges),
        "nodes_left_out": found.nodes_left_out,
        "edges_left_out": found.edges_left_out,
    }
    more = f", {len(found.nodes) - shown:,} more by expanding" if len(found.nodes) > shown else ""
    lines = [f"{out}: {pluralize(shown, 'node')}{more}, {pluralize(len(found.edges), 'edge')}"]
    if found.nodes_left_out or found.edges_left_out:
        lines.append(
            f"left out: {pluralize(found.nodes_left_out, 'node')} next to these, "
            f"{pluralize(found.edges_left_out, 'edge')} between them"
        )
    return CommandOutput(values, lines)


def _parse_start(given: dict[str, Any]) -> ParsedQuery | None:
    """Read where to begin; None is at all nodes."""
    if given["query"] and (given["label"] or given["key"]):
        raise click.UsageError("Say --label and --key, or --query, not both.")
    parameters = {name: parse_json_value(text) for name, text in given["param"]}
    check_parameters_used(parameters, [given["query"] or ""])
    if given["query"]:
        return parse_query(given["query"], parameters)
    if not given["label"] and not given["key"]:
        return None
    conditions = tuple(Condition(name, "=", parse_json_value(text)) for name, text in given["key"])
    return ParsedQuery((ParsedNode(given["label"], None, conditions),), ())


def _find_start_ids(graph: GraphDatabase, parsed: ParsedQuery | None, limit: int) -> tuple[Sequence[int], str]:
    """Find the nodes to begin at, and say if there are too many."""
    if parsed is None:
        parsed = ParsedQuery((ParsedNode(None, None, ()),), ())
        total = count(graph, parsed, QueryOptions())
        if total > limit:
            message = (
                f"The graph has {total:,} nodes, more than the {limit:,} of --limit. Say where to begin: --label and "
                "--key, or --query."
            )
            raise InvalidArgumentError(message)
    found = run_query(graph, parsed, QueryOptions(limit=limit))
    if not found:
        message = (
            "No node is like that, so there is nothing to draw. Check the label and the values: a number is another "
            "value than a text, which is written as '\"7\"'."
        )
        raise InvalidArgumentError(message)
    if isinstance(found, Edges):
        ids = [end for edge in found for end in (edge.from_id, edge.to_id)]
    elif isinstance(found, Paths):
        ids = [node.id for path in found for node in path.nodes]
    else:
        ids = [node.id for node in found]
    note = ""
    if len(found) == limit and (total := count(graph, parsed, QueryOptions())) > limit:
        note = f"{total:,} are like that; this begins at the first {limit:,}."
    return list(dict.fromkeys(ids)), note
