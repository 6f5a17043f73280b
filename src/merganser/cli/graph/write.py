"""`graph import`, `graph merge`, `graph index` and `graph drop-index`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import (
    CommandOutput,
    columns,
    confirm,
    flatten_names,
    pair,
    parse_value,
    storage_option,
    wrap_command,
)
from merganser.cli.graph.file import (
    RenamedOption,
    open_graph,
    open_writable_graph,
    report_missing_indexes,
    schema_option,
    timeout_option,
)
from merganser.cli.graph.read import FORMATS
from merganser.cli.sources import make_reading, open_source, reading_options
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.errors import InvalidArgumentError
from merganser.graph import BulkResult, Endpoint, GraphDatabase
from merganser.graph.merging.bulk_options import ALL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    OptionValues = Sequence[Sequence[str]]


@click.command("import")
@click.argument("graph")
@click.argument("source")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format of SOURCE; default: by its extension.")
@click.option("--node-type", cls=RenamedOption, former="--label", help="Type of nodes without a type; not in JSON.")
@click.option("--edge-type", help="Type of edges without a type, in GraphML.")
@click.option("--yes", is_flag=True, help="Do not ask before adding to a graph that has nodes.")
@schema_option
@timeout_option
@wrap_command
def import_graph(
    graph: str, source: str, *, form: str | None, yes: bool, schema: str | None, timeout: float, **types: str | None
) -> CommandOutput:
    """Add a whole graph from JSON, GraphML or Parquet.

    SOURCE is a JSON file as `graph export` writes it, a GraphML file, or a folder with vertices and edges as
    GraphFrames writes them; all may be URLs. The import is atomic. It adds every record, even if an equal one exists;
    use `graph merge` for rows that may exist already. GRAPH is created if it does not exist.
    """
    form = form or next((one for one in ("json", "graphml") if source.endswith(f".{one}")), "parquet")
    given = {name: type_ for name, type_ in types.items() if type_ is not None}
    if form == "json" and given:
        raise click.UsageError(f"--{min(given).replace('_', '-')} is not for JSON, where every record has its type.")
    if form == "parquet" and "edge_type" in given:
        raise click.UsageError("--edge-type is for GraphML; in Parquet the column relationship has the type.")
    if form == "parquet":
        _check_folder(source)
    with open_writable_graph(graph, timeout, schema) as opened:
        if existing := opened.nodes().count():
            has = f"{graph} has {pluralize(existing, 'node')} already; the import adds all nodes, even equal ones."
            confirm(f"{has} Import {source}?", yes=yes)
        if form == "json":
            done = opened.import_json(source)
        elif form == "graphml":
            done = opened.import_graphml(source, **given)
        else:
            done = opened.import_parquet(source, **given)
    added = f"{pluralize(done.nodes, 'node')} and {pluralize(done.edges, 'edge')} added"
    return CommandOutput(done.to_dict(), [f"{graph}: {added}"])


def _check_folder(source: str) -> None:
    location = locate(source)
    if location.store.get_path_type(location.root) == "file":
        raise InvalidArgumentError(
            f"{source} is a single file, but not a graph in JSON or GraphML. Merge its rows as nodes or edges with "
            "`merganser graph merge`, or give --format if it is one."
        )


_names_option = partial(click.option, type=columns, multiple=True)


@click.command()
@click.argument("graph")
@click.argument("source")
@click.option("--node-type", cls=RenamedOption, former="--label", help="Merge the rows as nodes of this type.")
@click.option("--edge-type", cls=RenamedOption, former="--type", help="Merge the rows as edges of this type.")
@_names_option("--key", "match_on", help="Columns that identify a node, or an edge among those between the same nodes.")
@_names_option(
    "--on-create",
    metavar="COLUMN or PROPERTY=COLUMN",
    help="Columns that override others in new nodes or edges.",
)
@_names_option(
    "--on-match",
    metavar="COLUMN or PROPERTY=COLUMN",
    help="Columns that overwrite properties of matched nodes or edges, or '*' for all.",
)
@click.option(
    "--condition",
    type=pair,
    multiple=True,
    metavar="PROPERTY=VALUE",
    help="Properties that matched nodes or edges must have to be updated.",
)
@click.option("--from-type", cls=RenamedOption, former="--from-label", help="Type of the nodes that edges lead from.")
@_names_option("--from-key", metavar="PROPERTY=COLUMN", help="Columns that identify the nodes that edges lead from.")
@click.option(
    "--from-id", help="Column with the ids of these nodes, instead of --from-type and --from-key.  [default: from_id]"
)
@click.option("--to-type", cls=RenamedOption, former="--to-label", help="Type of the nodes that edges lead to.")
@_names_option("--to-key", metavar="PROPERTY=COLUMN", help="Columns that identify the nodes that edges lead to.")
@click.option(
    "--to-id", help="Column with the ids of these nodes, instead of --to-type and --to-key.  [default: to_id]"
)
@click.option(
    "--direction",
    type=click.Choice(["out", "both"]),
    help="Direction of edges to match: 'both' includes edges that point the other way; default: out.",
)
@click.option(
    "--on-missing-node",
    type=click.Choice(["error", "skip", "create"]),
    help="What happens to an edge whose node does not exist; default: error.",
)
@click.option(
    "--missing",
    multiple=True,
    metavar="keep, delete or PROPERTY=VALUE",
    help="What happens to nodes or edges of the type that no row matches: the properties are set; default: keep.",
)
@click.option(
    "--scope",
    type=pair,
    multiple=True,
    metavar="PROPERTY=VALUE",
    help="Properties of the nodes or edges that SOURCE covers; others are never missing.",
)
@click.option(
    "--detach",
    type=click.Choice(["yes", "keep"]),
    is_flag=False,
    flag_value="yes",
    help="Delete missing nodes with their edges, or keep nodes that have edges; by default these are refused.",
)
@click.option("--touch/--no-touch", default=True, help="Set updated_at of every match; on by default.")
@click.option(
    "--warn-on-missing-index/--no-warn-on-missing-index",
    default=True,
    help="Warn if a merge is slow because an index is missing; on by default.",
)
@reading_options
@schema_option
@timeout_option
@storage_option()
@wrap_command
def merge(graph: str, source: str, **given: Any) -> CommandOutput:
    """Merge keyed rows as nodes or edges.

    SOURCE is that of `merganser merge`. With --node-type, each row is a node, which is found by --key or created. With
    --edge-type, each row is an edge between two existing nodes. GRAPH is created if it does not exist.
    """
    _check_usage(given)
    rows = open_source(source, given["storage_option"], make_reading(given))
    with open_writable_graph(graph, given["timeout"], given["schema"]) as opened, report_missing_indexes(graph):
        done = _merge_rows(opened, rows, given)
    noun = f"{given['node_type']} node" if given["node_type"] else f"{given['edge_type']} edge"
    report = f"{graph}: {pluralize(done.created, noun)} created, {done.matched:,} matched"
    return CommandOutput(done.to_dict(), [report + _describe_further(done, given)])


def _describe_further(done: BulkResult, given: dict[str, Any]) -> str:
    """Describe what else a merge did, if it did."""
    missing = "deleted" if given["missing"] == ("delete",) else "missing and changed"
    counts = {
        missing: done.missing,
        "missing but kept": done.kept,
        "of their edges deleted": done.detached,
        "rows skipped": done.skipped,
        "nodes created for edges": done.nodes_created,
    }
    return "".join(f", {count:,} {text}" for text, count in counts.items() if count)


_EDGE_OPTIONS = ("from_type", "from_key", "from_id", "to_type", "to_key", "to_id", "direction", "on_missing_node")


def _check_usage(given: dict[str, Any]) -> None:
    if bool(given["node_type"]) == bool(given["edge_type"]):
        raise click.UsageError("Give --node-type to merge nodes, or --edge-type to merge edges.")
    if given["node_type"]:
        for name in _EDGE_OPTIONS:
            if given[name]:
                flag = f"--{name.replace('_', '-')}"
                message = f"{flag} is for edges. Leave it out, or give --edge-type instead of --node-type."
                raise click.UsageError(message)
        if not given["match_on"]:
            raise click.UsageError("Nodes need --key, the columns that identify one.")
        return
    if given["detach"]:
        raise click.UsageError("--detach is for nodes. Leave it out, or give --node-type instead of --edge-type.")
    for end in ("from", "to"):
        type_, keys, id_column = (given[f"{end}_{name}"] for name in ("type", "key", "id"))
        if bool(type_) != bool(keys) or (type_ and id_column):
            message = f"Give --{end}-type and --{end}-key, or --{end}-id with the column of ids, or none of them."
            raise click.UsageError(message)


def _merge_rows(graph: GraphDatabase, rows: Any, given: dict[str, Any]) -> BulkResult:
    options = {name: given[name] for name in ("touch", "warn_on_missing_index")}
    options["match_on"] = flatten_names(given["match_on"])
    all_columns = flatten_names(given["on_match"]) == [ALL_COLUMNS]
    options["on_match"] = ALL_COLUMNS if all_columns else _parse_property_columns(given["on_match"], "--on-match")
    options["on_create"] = _parse_property_columns(given["on_create"], "--on-create")
    options["condition"] = {name: parse_value(text) for name, text in given["condition"]}
    options["missing"] = _parse_missing(given["missing"])
    options["scope"] = {name: parse_value(text) for name, text in given["scope"]} or None
    if given["node_type"]:
        options["detach"] = {"yes": True, "keep": "keep"}.get(given["detach"], False)
        return graph.bulk_merge_nodes(given["node_type"], rows, **options)
    options["direction"] = given["direction"] or "out"
    options["on_missing_node"] = given["on_missing_node"] or "error"
    start, end = _make_endpoint(given, "from"), _make_endpoint(given, "to")
    return graph.bulk_merge_edges(given["edge_type"], rows, from_node=start, to_node=end, **options)


def _parse_missing(given: Sequence[str]) -> str | dict[str, Any]:
    """Parse what happens to missing records: a word, or the properties that they get."""
    if len(given) == 1 and given[0] in {"keep", "delete"}:
        return given[0]
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals or name in found:
            message = f"--missing has {text!r}. Give keep, delete, or each property once, as PROPERTY=VALUE."
            raise InvalidArgumentError(message)
        found[name] = parse_value(value)
    return found or "keep"


def _make_endpoint(given: dict[str, Any], end: str) -> str | Endpoint:
    if given[f"{end}_type"]:
        return Endpoint(given[f"{end}_type"], _parse_property_columns(given[f"{end}_key"], f"--{end}-key"))
    return given[f"{end}_id"] or f"{end}_id"


def _parse_property_columns(given: OptionValues, option: str) -> dict[str, str]:
    """Parse the column of each property; a name alone is both."""
    found: dict[str, str] = {}
    for text in flatten_names(given):
        name, equals, column = text.partition("=")
        if name in found or not name or (equals and not column):
            message = f"{option} has {text!r}. Give each property once, as PROPERTY=COLUMN, or as one name for both."
            raise InvalidArgumentError(message)
        found[name] = column if equals else name
    return found


@click.command()
@click.argument("graph")
@click.argument("type_", metavar="TYPE")
@click.argument("properties", nargs=-1, required=True)
@click.option("--unique", is_flag=True, help="Refuse two records with the same values.")
@click.option("--edges", "of_edges", is_flag=True, help="Index edges instead of nodes.")
@timeout_option
@wrap_command
def index(
    graph: str, type_: str, properties: tuple[str, ...], *, unique: bool, of_edges: bool, timeout: float
) -> CommandOutput:
    """Index the nodes or edges of a type by properties.

    An existing index is kept. GRAPH is created if it does not exist.
    """
    with open_writable_graph(graph, timeout) as opened:
        made = opened.create_property_index(type_, properties, unique, "edges" if of_edges else "nodes")
    return CommandOutput(
        made.to_dict(), [f"{graph}: {made.name} indexes {type_} {made.table} by {', '.join(made.columns)}"]
    )


@click.command("drop-index")
@click.argument("graph")
@click.argument("name")
@timeout_option
@wrap_command
def drop_index(graph: str, name: str, *, timeout: float) -> CommandOutput:
    """Drop a property index.

    `graph stats` lists the names of indexes. Nodes and edges do not change.
    """
    with open_graph(graph, timeout, read_only=False) as opened:
        known = [found.name for found in opened.list_indexes()]
        if name not in known:
            raise InvalidArgumentError(f"{graph} has no index {name!r}; it has: {', '.join(known) or 'none'}.")
        opened.drop_index(name)
    return CommandOutput({"dropped": name}, [f"{graph}: {name} dropped"])
