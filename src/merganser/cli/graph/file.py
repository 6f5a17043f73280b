"""The file of a graph: one that is there, or a new one that is there only when all has gone well."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from merganser.errors import GraphFileError
from merganser.graph import GraphDatabase
from merganser.graph.schema_file import read_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

timeout_option = click.option(
    "--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for another writer."
)
schema_option = click.option(
    "--schema",
    metavar="FILE.json",
    help='What the graph may hold: {"nodes": {LABEL: {"required": …}}, "edges": {TYPE: {"from_types": …, …}}}.',
)


def open_graph(path: str, timeout: float = 30.0, *, read_only: bool = True) -> GraphDatabase:
    """Open a graph that is there, to read it or to change it."""
    if not _exists(path):
        message = (
            f"There is no graph file {path}. Check the path; `merganser graph import` and `merganser graph merge` "
            "begin a new graph."
        )
        raise GraphFileError(message)
    return GraphDatabase(path, timeout=timeout, read_only=read_only)


@contextmanager
def open_writable_graph(path: str, timeout: float, schema: str | None = None) -> Iterator[GraphDatabase]:
    """Open a graph to change it; a new one comes into its place when no exception has left."""
    rules = None if schema is None else read_schema(schema)
    if _exists(path) or "://" in path:
        with GraphDatabase(path, schema=rules, timeout=timeout) as graph:
            yield graph
        return
    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(folder):
        message = f"There is no folder {os.path.dirname(path)!r} for the graph {path}. Create it, or check the path."
        raise GraphFileError(message)
    beside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with GraphDatabase(beside, schema=rules, timeout=timeout) as graph:
            yield graph
        _publish(beside, path)
    except GraphFileError as error:
        raise GraphFileError(str(error).replace(repr(beside), repr(path))) from error
    finally:
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.remove(beside + end)


def _exists(path: str) -> bool:
    # SQLite would make a graph of an empty file.
    return os.path.isdir(path) or (os.path.exists(path) and os.path.getsize(path) > 0)


def _publish(beside: str, path: str) -> None:
    with suppress(FileNotFoundError):
        if os.path.getsize(path) == 0:
            os.remove(path)
    try:
        # Not by renaming, which would replace what another process may have put there.
        os.link(beside, path)
    except FileExistsError as error:
        message = f"Another process has begun the graph {path} in the meantime. Run it again, to merge into that one."
        raise GraphFileError(message) from error
