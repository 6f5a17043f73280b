"""Records of an SQLite graph as DataFrames: written to Parquet beside the graph that they go to, then read by Spark.

Executors may not see the SQLite file, and the driver may not hold what is in it; both reach the Parquet graph.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.storage.location import locate
from merganser.core.storage.lock import exclusive
from merganser.errors import (
    InvalidArgumentError,
    KeyColumnError,
    MerganserError,
    PropertyTypeError,
    UniqueConstraintError,
)
from merganser.graph.exchange.columns import TYPES
from merganser.graph.exchange.files import replacing
from merganser.graph.exchange.property_types import find_kinds
from merganser.graph.merging.bulk import Endpoint
from merganser.graph.spark.columns import column_of
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.sqlite.lookup import column_values
from merganser.graph.sqlite.sql import key
from merganser.graph.values import decode, equal, plain

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.storage.location import Location
    from merganser.graph.database import GraphDatabase
    from merganser.graph.exchange.property_types import Found
    from merganser.graph.spark.parquet_graph import ParquetGraph
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.values import Value

    Names = Mapping[str, Sequence[str]]

_BATCH = 50_000
# Where files are staged: one folder of each graph that is merged, beside the lock of who merges it.
_INCOMING, _FOLDER = ".merganser/incoming", "graph_"
# What refers to the same nodes or edges: each row has the properties of these, as JSON.
_NODES = "SELECT properties FROM nodes WHERE type = ? ORDER BY id"
_BETWEEN = "FROM edges e JOIN nodes f ON f.id = e.from_id JOIN nodes t ON t.id = e.to_id"
_EDGES = (
    f"SELECT e.properties, f.properties, t.properties {_BETWEEN} WHERE e.type = ? AND f.type = ? AND t.type = ? "
    "ORDER BY e.id"
)


@dataclass(frozen=True, slots=True)
class Part:
    """The nodes of a type, or the edges of a type between two types of nodes, and the column of each property."""

    frame: DataFrame
    type: str
    match: Sequence[str]
    columns: dict[str, str]
    ends: tuple[Endpoint, Endpoint] | None = None


@contextmanager
def staged(graph: ParquetGraph, database: GraphDatabase, match: Names, edge_match: Names) -> Iterator[list[Part]]:
    """Give the parts of an SQLite graph as they are at one moment, nodes first, for as long as the block lasts."""
    io = graph._io  # noqa: SLF001 - exchange is a part of a graph
    location = locate(graph.path, io.filesystem)
    with _incoming(location, graph._lock_timeout) as folder:  # noqa: SLF001 - as above
        with database._store.snapshot() as connection:  # noqa: SLF001 - as above
            staging = _Staging(graph, connection, location, folder)
            types = [row[0] for row in connection.execute("SELECT DISTINCT type FROM nodes ORDER BY type")]
            _check_types("match", match, types)
            keys = {type_: staging.matched_by("nodes", type_, match.get(type_)) for type_ in types}
            parts = [staging.nodes(type_, keys[type_]) for type_ in types]
            between = f"SELECT DISTINCT e.type, f.type, t.type {_BETWEEN} ORDER BY 1, 2, 3"
            found = connection.execute(between).fetchall()
            _check_types("edge_match", edge_match, {type_ for type_, _, _ in found})
            for type_, start, end in found:
                own = staging.matched_by("edges", type_, edge_match.get(type_))
                parts.append(staging.edges(type_, own, (start, keys[start]), (end, keys[end])))
        yield parts


@contextmanager
def _incoming(location: Location, timeout: float) -> Iterator[str]:
    """Give a folder for staged files, until the block ends; what killed processes left of theirs is removed first."""
    store, parent = location.store, location.path(_INCOMING)
    # Whoever holds the lock is the only one to have files there.
    with exclusive(store, parent, location.shown(_INCOMING), timeout):
        for name in store.names(parent):
            if name.startswith(_FOLDER):
                store.remove_folder(f"{parent}/{name}")
        name = f"{_FOLDER}{uuid.uuid4().hex}"
        try:
            yield f"{_INCOMING}/{name}"
        finally:
            store.remove_folder(f"{parent}/{name}")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a staged file: the property that it holds of one of a row's records."""

    name: str
    of: int
    property: str
    type: pa.DataType
    # Otherwise it has to be seen whether the type holds the values.
    safe: bool
    shown: str

    def array(self, records: Sequence[Sequence[Mapping[str, Value]]]) -> pa.Array:
        values = [record.get(self.property) for record in records[self.of]]
        if self.safe:
            return pa.array(values, self.type)
        try:
            found = _timed_array(values, self.type)
            held = plain({"": column_values(found, pa.field(self.property, self.type))}, "")[""]
        except (pa.ArrowException, ValueError, MerganserError) as error:
            raise self.refusal(str(error)) from error
        if not equal(held, values):
            raise self.refusal("some would become others")
        return found

    def refusal(self, why: str) -> PropertyTypeError:
        return PropertyTypeError(
            f"{self.shown} has values in SQLite that a column of {self.type} in Parquet cannot hold: {why}. Make them "
            "alike, or give the property another name."
        )


class _Staging:
    """The files that the parts of a graph are written to."""

    def __init__(self, graph: ParquetGraph, connection: sqlite3.Connection, location: Location, folder: str) -> None:
        self.graph, self.connection = graph, connection
        self.location, self.folder = location, folder
        self.kinds: dict[tuple[str, str], dict[str, Found]] = {}
        self.written = 0

    def matched_by(self, kind: Table, type_: str, given: Sequence[str] | None) -> Sequence[str]:
        """Tell the match properties of a type, as the Parquet graph has them, or else as they are given."""
        folder = self.graph._folder(kind, type_)  # noqa: SLF001 - as above
        role = f"{'match' if kind == 'nodes' else 'edge_match'} of {type_}"
        names = None if given is None else read_names(given, role)
        if names is not None:
            folder.check_match(names, role)
        known = folder.matched_by()
        if known is not None:
            return known
        if names is None and kind == "nodes":
            message = (
                f"SQLite does not tell by which properties {type_} nodes are merged, and the Parquet graph has none "
                f"yet. Name them: match={{{type_!r}: [...]}}."
            )
            raise InvalidArgumentError(message)
        if not names and kind == "nodes":
            message = f"The {role} is empty; name the properties that identify a {type_}."
            raise InvalidArgumentError(message)
        return names or ()

    def nodes(self, type_: str, match: Sequence[str]) -> Part:
        """Stage the nodes of a type."""
        self.check_distinct("nodes", type_, match, [])
        columns = self.columns("nodes", type_, 0)
        self.check_there("nodes", type_, match, columns)
        frame = self.write(list(columns.values()), self.connection.execute(_NODES, (type_,)))
        return Part(frame, type_, match, _names(columns))

    def edges(
        self, type_: str, match: Sequence[str], start: tuple[str, Sequence[str]], end: tuple[str, Sequence[str]]
    ) -> Part:
        """Stage the edges of a type between two types of nodes, with the keys of these."""
        self.check_distinct("edges", type_, match, ["from_id", "to_id"])
        columns = self.columns("edges", type_, 0)
        self.check_there("edges", type_, match, columns)
        ends, wanted = [], list(columns.values())
        for of, (node_type, key_) in enumerate((start, end), 1):
            found = self.columns("nodes", node_type, of)
            ends.append(Endpoint(node_type, {name: found[name].name for name in key_}))
            wanted += [found[name] for name in key_]
        frame = self.write(wanted, self.connection.execute(_EDGES, (type_, start[0], end[0])))
        return Part(frame, type_, match, _names(columns), (ends[0], ends[1]))

    def columns(self, kind: Table, type_: str, of: int) -> dict[str, _Column]:
        """Give a column to each property of a type: as it is in Parquet already, or else as its values are."""
        schema = self.graph._folder(kind, type_).schema()  # noqa: SLF001 - as above
        there = {} if schema is None else {field.name: field.type for field in schema}
        columns = {}
        if (kind, type_) not in self.kinds:
            self.kinds[kind, type_] = find_kinds(self.connection, kind, type_)
        for number, (name, found) in enumerate(self.kinds[kind, type_].items()):
            own = TYPES.get(found.kind)
            wanted = there.get(column_of(name, kind)) or own or self.inferred(kind, type_, name)
            shown = f"The property {name!r} of {type_} {kind}"
            columns[name] = _Column(f"c{of}_{number}", of, name, wanted, wanted == own, shown)
        return columns

    def inferred(self, kind: Table, type_: str, name: str) -> pa.DataType:
        """Find the type of lists or dicts; whether it holds each of them, is seen when they are written."""
        schemas = []
        rows = self.connection.execute(f"SELECT properties FROM {kind} WHERE type = ?", (type_,))
        try:
            while batch := rows.fetchmany(_BATCH):
                values = [decode(text).get(name) for (text,) in batch]
                schemas.append(pa.schema([(name, pa.infer_type(values))]))
            return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
        except pa.ArrowException as error:
            message = (
                f"The property {name!r} of {type_} {kind} has values of several types, and a column of Parquet has "
                f"one: {error}. Make them alike."
            )
            raise PropertyTypeError(message) from error

    def write(self, columns: Sequence[_Column], rows: sqlite3.Cursor) -> DataFrame:
        """Write rows to a file, and open it."""
        rel = f"{self.folder}/{self.written}"
        self.written += 1
        schema = pa.schema([(column.name, column.type) for column in columns])
        with replacing(self.location, f"{rel}/part-0.parquet") as stream, pq.ParquetWriter(stream, schema) as writer:
            while batch := rows.fetchmany(_BATCH):
                records = [[decode(text) for text in texts] for texts in zip(*batch, strict=True)]
                arrays = [column.array(records) for column in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return self.graph._io.read(self.location.spelled(rel))  # noqa: SLF001 - as above

    def check_there(self, kind: Table, type_: str, match: Sequence[str], columns: Mapping[str, _Column]) -> None:
        """Refuse records without a match property, of which their ids could not be made."""
        for name in match:
            if name not in columns:
                message = f"None of the {type_} {kind} in SQLite has the match property {name!r}. Match on another."
                raise InvalidArgumentError(message)
            lacking = f"SELECT count(*), min(id) FROM {kind} WHERE type = ? AND ({key(name)}) IS NULL"
            count, first = self.connection.execute(lacking, (type_,)).fetchone()
            if count:
                message = (
                    f"Of the {type_} {kind} in SQLite, {count} lack the match property {name!r}, such as that with the "
                    f"id {first}. Give it to them, delete them, or match on another."
                )
                raise KeyColumnError(message)

    def check_distinct(self, table: Table, type_: str, match: Sequence[str], ends: list[str]) -> None:
        """Refuse records that would be one in Parquet."""
        keys = [*ends, *map(key, match)]
        present = "".join(f" AND ({found}) IS NOT NULL" for found in keys)
        groups = self.connection.execute(
            f"SELECT group_concat(id) FROM {table} WHERE type = ?{present} GROUP BY {', '.join(keys)} "
            "HAVING count(*) > 1 LIMIT 1",
            (type_,),
        ).fetchall()
        if groups:
            by = ", ".join(match) or "their nodes"
            message = (
                f"The {type_} {table} with the ids {groups[0][0]} are equal in {by}, and would be one in Parquet. "
                "Match on properties that tell them apart, or delete the duplicates."
            )
            raise UniqueConstraintError(message)


def _timed_array(values: Sequence[Value], kind: pa.DataType) -> pa.Array:
    """Give values as an array; what is a date or time there, is a text in SQLite."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.string()).cast(kind)
    # Not as texts in an array: where a struct is NULL, Arrow would cast the empty texts beneath it.
    return pa.array([_timed(value, kind) for value in values] if pa.types.is_nested(kind) else values, kind)


def _timed(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_temporal(kind):
        return (date if pa.types.is_date(kind) else datetime).fromisoformat(value)
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_timed(item, kind.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_map(kind):
        return {name: _timed(item, kind.item_type) for name, item in value.items()}
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return value | {field.name: _timed(value[field.name], field.type) for field in kind if field.name in value}
    return value


def _check_types(role: str, given: Names, types: Collection[str]) -> None:
    for type_ in given:
        if type_ not in types:
            message = (
                f"{role} names the type {type_!r}, which SQLite has not. It has: {', '.join(sorted(types)) or 'none'}."
            )
            raise InvalidArgumentError(message)


def _names(columns: Mapping[str, _Column]) -> dict[str, str]:
    return {name: column.name for name, column in columns.items()}
