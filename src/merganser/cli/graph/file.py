"""The graph file of a command, which is created only if the command succeeds, and the options of several commands."""

from __future__ import annotations

import os
import shlex
import uuid
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import pair, say
from merganser.errors import GraphFileError, MergePerformanceWarning
from merganser.graph import GraphDatabase
from merganser.graph.schema_file import read_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.graph.sqlite.store import Store


class RenamedOption(click.Option):
    """An option whose former names still work, but are not shown in help."""

    def __init__(self, *arguments: Any, former: str, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option under all of its names."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [self.former], dest=self.name)


option_with_default = partial(click.option, show_default=True)
timeout_option = option_with_default("--timeout", type=float, default=30.0, help="Seconds to wait for another writer.")
schema_option = click.option(
    "--schema",
    metavar="FILE.json",
    help='Allowed types and properties: {"nodes": {TYPE: {"required": …}}, "edges": {TYPE: {"from_types": …, …}}}.',
)
param_option = click.option(
    "--param",
    "parameters",
    type=pair,
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of $NAME in a query; repeatable.",
)


def open_graph(path: str, timeout: float = 30.0, *, read_only: bool = True) -> GraphDatabase:
    """Open an existing graph."""
    if not _exists(path):
        raise GraphFileError(
            f"The graph file {path} does not exist. Check the path, or create a graph with `merganser graph import` or "
            "`merganser graph merge`."
        )
    return GraphDatabase(path, timeout=timeout, read_only=read_only)


def get_store(graph: GraphDatabase) -> Store:
    """Return the store of a graph, for queries whose options only commands have."""
    return graph._store  # noqa: SLF001 - commands and graphs are one package


@contextmanager
def open_writable_graph(path: str, timeout: float, schema: str | None = None) -> Iterator[GraphDatabase]:
    """Open a graph to change it; a new one is published only if the block raises nothing."""
    rules = None if schema is None else read_schema(schema)
    if _exists(path) or "://" in path:
        with GraphDatabase(path, schema=rules, timeout=timeout) as graph:
            yield graph
        return
    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise GraphFileError(
            f"The folder {os.path.dirname(path)!r} of the graph {path} does not exist. Create it, or check the path."
        )
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with GraphDatabase(temporary, schema=rules, timeout=timeout) as graph:
            yield graph
        _publish(temporary, path)
    except GraphFileError as error:
        raise GraphFileError(str(error).replace(repr(temporary), repr(path))) from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.remove(temporary + suffix)


@contextmanager
def report_missing_indexes(graph: str) -> Iterator[None]:
    """Report missing indexes with the command that creates them."""
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
        say(f"Warning: there is no index on {warning.node_type} nodes by {by}, so all of them are scanned. {remedy}")


def _exists(path: str) -> bool:
    # SQLite creates a database in an empty file, so that one does not count.
    return os.path.isdir(path) or (os.path.exists(path) and os.path.getsize(path) > 0)


def _publish(temporary: str, path: str) -> None:
    with suppress(FileNotFoundError):
        if os.path.getsize(path) == 0:
            os.remove(path)
    try:
        # A link, because renaming would replace a graph that another process has created.
        os.link(temporary, path)
    except FileExistsError as error:
        raise GraphFileError(
            f"Another process has created the graph {path} in the meantime. Run the command again to merge into it."
        ) from error
