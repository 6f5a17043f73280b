"""`graph import`, `graph merge`, `graph index` and `graph drop-index`."""

from __future__ import annotations

import shlex
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, columns, confirm, flatten_names, say, storage_option, wrap_command
from merganser.cli.graph.file import open_graph, open_writable_graph, schema_option, timeout_option
from merganser.cli.sources import make_reading, open_source, reading_options
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.errors import InvalidArgumentError, MergePerformanceWarning
from merganser.graph import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.graph import BulkResult, GraphDatabase

    OptionValues = Sequence[Sequence[str]]


@click.command("import")
@click.argument("graph")
@click.argument("source")
@click.option("--format", "form", type=click.Choice(["json", "parquet"]), help="Default: by the name of SOURCE.")
@click.option("--label", "node_type", help="Of vertices that have no type (Parquet).")
@click.option("--yes", is_flag=True, help="Do not ask before nodes are added to others.")
@schema_option
@timeout_option
@wrap_command
def import_graph(
    graph: str, source: str, *, form: str | None, node_type: str | None, yes: bool, schema: str | None, timeout: float
) -> CommandOutput:
    """Add a whole graph from JSON or Parquet.

    SOURCE is a JSON file as `graph export` writes it, or a folder with vertices and edges as GraphFrames has them, on a
    disk or at a URL. All of it is added, or nothing; what may be there already has to be merged instead. A GRAPH that
    is not there is begun.
    """
    is_json = (form or ("json" if source.endswith(".json") else "parquet")) == "json"
    if is_json and node_type is not None:
        raise click.UsageError("--label is for Parquet; in JSON every node has its type.")
    _check_source(source, is_json=is_json)
    with open_writable_graph(graph, timeout, schema) as opened:
        if there := opened.nodes().count():
            has = f"{graph} has {pluralize(there, 'node')} already, and an import adds all of its own beside them."
            confirm(f"{has} Import {source}?", yes=yes)
        done = opened.import_json(source) if is_json else opened.import_parquet(source, node_type=node_type)
    return CommandOutput(
        done.to_dict(), [f"{graph}: {pluralize(done.nodes, 'node')} and {pluralize(done.edges, 'edge')} added"]
    )


def _check_source(source: str, *, is_json: bool) -> None:
    if is_json:
        return
    if source.endswith(".graphml"):
        message = f"{source} is GraphML, which can be exported but not imported. Export the graph as JSON or Parquet."
        raise InvalidArgumentError(message)
    location = locate(source)
    if location.store.get_path_type(location.root) == "file":
        message = (
            f"{source} is a single file, and no whole graph in JSON. Merge its rows as nodes or edges with `merganser "
            "graph merge`, or say --format json if it is one."
        )
        raise InvalidArgumentError(message)


@click.command()
@click.argument("graph")
@click.argument("source")
@click.option("--label", help="Rows are nodes of this label.")
@click.option("--type", "edge_type", help="Rows are edges of this type.")
@click.option("--key", "match_on", type=columns, multiple=True, help="Columns that name a node, or one of like edges.")
@click.option(
    "--on-match",
    type=columns,
    multiple=True,
    metavar="COLUMN or PROPERTY=COLUMN",
    help="What is laid over one that is there.",
)
@click.option("--from-label", help="Edges: the label of the nodes that they come from.")
@click.option("--from-key", type=columns, multiple=True, metavar="PROPERTY=COLUMN", help="How those are found.")
@click.option("--from-id", help="Or the column of their ids.  [default: from_id]")
@click.option("--to-label", help="Edges: the label of the nodes that they lead to.")
@click.option("--to-key", type=columns, multiple=True, metavar="PROPERTY=COLUMN", help="How those are found.")
@click.option("--to-id", help="Or the column of their ids.  [default: to_id]")
@click.option("--direction", type=click.Choice(["out", "both"]), help="Edges: 'both' also finds one the other way.")
@click.option("--touch/--no-touch", default=True, help="Say of a match that it was seen; default yes.")
@click.option(
    "--warn-on-missing-index/--no-warn-on-missing-index", default=True, help="Warn of a slow merge; default yes."
)
@reading_options[0]
@reading_options[1]
@reading_options[2]
@schema_option
@timeout_option
@storage_option()
@wrap_command
def merge(graph: str, source: str, **given: Any) -> CommandOutput:
    """Merge keyed rows as nodes or edges.

    SOURCE is that of `merganser merge`. With --label, each row is a node: found by --key or created. With --type, each
    row is an edge between two nodes that are there. A GRAPH that is not there is begun.
    """
    _check_usage(given)
    rows = open_source(source, given["storage_option"], make_reading(given))
    with open_writable_graph(graph, given["timeout"], given["schema"]) as opened, _report_missing_indexes(graph):
        done = _merge_nodes(opened, rows, given) if given["label"] else _merge_edges(opened, rows, given)
    what = f"{given['label']} node" if given["label"] else f"{given['edge_type']} edge"
    return CommandOutput(
        done.to_dict(), [f"{graph}: {pluralize(done.created, what)} created, {done.matched:,} matched"]
    )


_EDGE_OPTIONS = ("from_label", "from_key", "from_id", "to_label", "to_key", "to_id", "direction")


def _check_usage(given: dict[str, Any]) -> None:
    if bool(given["label"]) == bool(given["edge_type"]):
        raise click.UsageError("Say --label to merge nodes, or --type to merge edges.")
    if given["label"]:
        for name in _EDGE_OPTIONS:
            if given[name]:
                message = f"--{name.replace('_', '-')} is for edges. Leave it out, or say --type instead of --label."
                raise click.UsageError(message)
        if not given["match_on"]:
            raise click.UsageError("Nodes need --key, the columns that name one.")
        return
    for end in ("from", "to"):
        label, keys, known = (given[f"{end}_{part}"] for part in ("label", "key", "id"))
        if bool(label) != bool(keys) or (label and known):
            message = f"Say --{end}-label and --{end}-key, or --{end}-id with the column of ids, or none of them."
            raise click.UsageError(message)


def _merge_nodes(graph: GraphDatabase, rows: Any, given: dict[str, Any]) -> BulkResult:
    return graph.bulk_merge_nodes(
        given["label"],
        rows,
        match_on=flatten_names(given["match_on"]),
        on_match=_parse_property_columns(given["on_match"], "--on-match"),
        touch=given["touch"],
        warn_on_missing_index=given["warn_on_missing_index"],
    )


def _merge_edges(graph: GraphDatabase, rows: Any, given: dict[str, Any]) -> BulkResult:
    return graph.bulk_merge_edges(
        given["edge_type"],
        rows,
        from_node=_make_endpoint(given, "from"),
        to_node=_make_endpoint(given, "to"),
        match_on=flatten_names(given["match_on"]),
        on_match=_parse_property_columns(given["on_match"], "--on-match"),
        direction=given["direction"] or "out",
        touch=given["touch"],
        warn_on_missing_index=given["warn_on_missing_index"],
    )


def _make_endpoint(given: dict[str, Any], end: str) -> str | Endpoint:
    if given[f"{end}_label"]:
        return Endpoint(given[f"{end}_label"], _parse_property_columns(given[f"{end}_key"], f"--{end}-key"))
    return given[f"{end}_id"] or f"{end}_id"


def _parse_property_columns(given: OptionValues, option: str) -> dict[str, str]:
    """Read the column of each property; one alone is for the property of its name."""
    found: dict[str, str] = {}
    for text in flatten_names(given):
        name, equals, column = text.partition("=")
        if name in found or not name or (equals and not column):
            message = f"{option} has {text!r}. Give each property once, as PROPERTY=COLUMN or as the name of both."
            raise InvalidArgumentError(message)
        found[name] = column if equals else name
    return found


@contextmanager
def _report_missing_indexes(graph: str) -> Iterator[None]:
    """Tell of a missing index by the command that creates it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MergePerformanceWarning)
        yield
    for found in caught:
        warning = found.message
        if not isinstance(warning, MergePerformanceWarning):
            warnings.warn_explicit(warning, found.category, found.filename, found.lineno)
            continue
        command = shlex.join(["merganser", "graph", "index", graph, warning.node_type, *warning.properties])
        by = ", ".join(warning.properties)
        remedy = warning.remedy or f"Create one: {command}"
        say(f"Warning: no index leads to {warning.node_type} nodes by {by}, so this looks at all of them. {remedy}")


@click.command()
@click.argument("graph")
@click.argument("label")
@click.argument("properties", nargs=-1, required=True)
@click.option("--unique", is_flag=True, help="No two may have the same values.")
@click.option("--edges", "of_edges", is_flag=True, help="LABEL is a type of edges.")
@timeout_option
@wrap_command
def index(
    graph: str, label: str, properties: tuple[str, ...], *, unique: bool, of_edges: bool, timeout: float
) -> CommandOutput:
    """Index the nodes of a label by properties.

    An index that is there already is kept. A GRAPH that is not there is begun.
    """
    with open_writable_graph(graph, timeout) as opened:
        made = opened.create_property_index(label, properties, unique, "edges" if of_edges else "nodes")
    return CommandOutput(made.to_dict(), [f"{graph}: {made.name} leads to {made.table} by {', '.join(made.columns)}"])


@click.command("drop-index")
@click.argument("graph")
@click.argument("name")
@timeout_option
@wrap_command
def drop_index(graph: str, name: str, *, timeout: float) -> CommandOutput:
    """Drop an index of properties.

    `graph stats` lists their names. The nodes or edges stay as they are.
    """
    with open_graph(graph, timeout, read_only=False) as opened:
        known = [found.name for found in opened.list_indexes()]
        if name not in known:
            message = f"{graph} has no index {name!r}; it has: {', '.join(known) or 'none'}."
            raise InvalidArgumentError(message)
        opened.drop_index(name)
    return CommandOutput({"dropped": name}, [f"{graph}: {name} dropped"])
