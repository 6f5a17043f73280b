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
from merganser.core.storage.lock import hold_lock
from merganser.errors import (
    InvalidArgumentError,
    KeyColumnError,
    MerganserError,
    PropertyTypeError,
    UniqueConstraintError,
)
from merganser.graph.exchange.columns import ARROW_TYPES
from merganser.graph.exchange.files import write_atomically
from merganser.graph.exchange.property_types import find_property_types
from merganser.graph.merging.bulk import Endpoint
from merganser.graph.spark.columns import to_column_name
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.sqlite.lookup import to_python_values
from merganser.graph.sqlite.sql import build_key_sql
from merganser.graph.values import are_equal, decode, normalize_properties

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.storage.location import Location
    from merganser.graph.database import GraphDatabase
    from merganser.graph.exchange.property_types import PropertyTypes
    from merganser.graph.spark.parquet_graph import ParquetGraph
    from merganser.graph.sqlite.sql import Table
    from merganser.graph.values import Value

    MatchNames = Mapping[str, Sequence[str]]

_BATCH = 50_000
# Where files are staged: one folder of each graph that is merged, beside the lock of who merges it.
_STAGING_FOLDER, _FOLDER_PREFIX = ".merganser/incoming", "graph_"
# What refers to the same nodes or edges: each row has the properties of these, as JSON.
_NODES = "SELECT properties FROM nodes WHERE type = ? ORDER BY id"
_ENDPOINT_JOINS_SQL = "FROM edges e JOIN nodes f ON f.id = e.from_id JOIN nodes t ON t.id = e.to_id"
_EDGES = (
    f"SELECT e.properties, f.properties, t.properties {_ENDPOINT_JOINS_SQL} WHERE e.type = ? AND f.type = ? AND "
    "t.type = ? "
    "ORDER BY e.id"
)


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """The nodes of a type, or the edges of a type between two types of nodes, and the column of each property."""

    frame: DataFrame
    type: str
    match_names: Sequence[str]
    columns: dict[str, str]
    endpoints: tuple[Endpoint, Endpoint] | None = None


@contextmanager
def stage_graph(
    graph: ParquetGraph, database: GraphDatabase, match: MatchNames, edge_match: MatchNames
) -> Iterator[list[StagedRecords]]:
    """Give the parts of an SQLite graph as they are at one moment, nodes first, for as long as the block lasts."""
    io = graph._io  # noqa: SLF001 - exchange is a part of a graph
    location = locate(graph.path, io.filesystem)
    with _hold_staging_folder(location, graph._lock_timeout) as folder:  # noqa: SLF001 - as above
        with database._store.snapshot() as connection:  # noqa: SLF001 - as above
            staging = _Staging(graph, connection, location, folder)
            types = [row[0] for row in connection.execute("SELECT DISTINCT type FROM nodes ORDER BY type")]
            _check_types("match", match, types)
            keys = {type_: staging.find_match_names("nodes", type_, match.get(type_)) for type_ in types}
            parts = [staging.stage_nodes(type_, keys[type_]) for type_ in types]
            between = f"SELECT DISTINCT e.type, f.type, t.type {_ENDPOINT_JOINS_SQL} ORDER BY 1, 2, 3"
            found = connection.execute(between).fetchall()
            _check_types("edge_match", edge_match, {type_ for type_, _, _ in found})
            for type_, start, end in found:
                own = staging.find_match_names("edges", type_, edge_match.get(type_))
                parts.append(staging.stage_edges(type_, own, (start, keys[start]), (end, keys[end])))
        yield parts


@contextmanager
def _hold_staging_folder(location: Location, timeout: float) -> Iterator[str]:
    """Give a folder for staged files, until the block ends; what killed processes left of theirs is removed first."""
    store, parent = location.store, location.to_path(_STAGING_FOLDER)
    # Whoever holds the lock is the only one to have files there.
    with hold_lock(store, parent, location.to_display(_STAGING_FOLDER), timeout):
        for name in store.list_names(parent):
            if name.startswith(_FOLDER_PREFIX):
                store.remove_folder(f"{parent}/{name}")
        name = f"{_FOLDER_PREFIX}{uuid.uuid4().hex}"
        try:
            yield f"{_STAGING_FOLDER}/{name}"
        finally:
            store.remove_folder(f"{parent}/{name}")


@dataclass(frozen=True, slots=True)
class _StagedColumn:
    """A column of a staged file: the property that it holds of one of a row's records."""

    name: str
    record_index: int
    property_name: str
    type: pa.DataType
    # Otherwise it has to be seen whether the type holds the values.
    safe: bool
    label: str

    def to_array(self, records: Sequence[Sequence[Mapping[str, Value]]]) -> pa.Array:
        values = [record.get(self.property_name) for record in records[self.record_index]]
        if self.safe:
            return pa.array(values, self.type)
        try:
            found = _make_array(values, self.type)
            held = normalize_properties({"": to_python_values(found, pa.field(self.property_name, self.type))}, "")[""]
        except (pa.ArrowException, ValueError, MerganserError) as error:
            raise self.make_error(str(error)) from error
        if not are_equal(held, values):
            raise self.make_error("some would become others")
        return found

    def make_error(self, why: str) -> PropertyTypeError:
        return PropertyTypeError(
            f"{self.label} has values in SQLite that a column of {self.type} in Parquet cannot hold: {why}. Make them "
            "alike, or give the property another name."
        )


class _Staging:
    """The files that the parts of a graph are written to."""

    def __init__(self, graph: ParquetGraph, connection: sqlite3.Connection, location: Location, folder: str) -> None:
        self.graph, self.connection = graph, connection
        self.location, self.folder = location, folder
        self.property_types: dict[tuple[str, str], dict[str, PropertyTypes]] = {}
        self.file_count = 0

    def find_match_names(self, kind: Table, type_: str, given: Sequence[str] | None) -> Sequence[str]:
        """Tell the match properties of a type, as the Parquet graph has them, or else as they are given."""
        folder = self.graph._find_folder(kind, type_)  # noqa: SLF001 - as above
        role = f"{'match' if kind == 'nodes' else 'edge_match'} of {type_}"
        names = None if given is None else read_names(given, role)
        if names is not None:
            folder.check_match(names, role)
        known = folder.read_match_names()
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

    def stage_nodes(self, type_: str, match: Sequence[str]) -> StagedRecords:
        """Stage the nodes of a type."""
        self.check_distinct("nodes", type_, match, [])
        columns = self.make_columns("nodes", type_, 0)
        self.check_present("nodes", type_, match, columns)
        frame = self.write(list(columns.values()), self.connection.execute(_NODES, (type_,)))
        return StagedRecords(frame, type_, match, _map_column_names(columns))

    def stage_edges(
        self, type_: str, match: Sequence[str], start: tuple[str, Sequence[str]], end: tuple[str, Sequence[str]]
    ) -> StagedRecords:
        """Stage the edges of a type between two types of nodes, with the keys of these."""
        self.check_distinct("edges", type_, match, ["from_id", "to_id"])
        columns = self.make_columns("edges", type_, 0)
        self.check_present("edges", type_, match, columns)
        ends, wanted = [], list(columns.values())
        for of, (node_type, key_) in enumerate((start, end), 1):
            found = self.make_columns("nodes", node_type, of)
            ends.append(Endpoint(node_type, {name: found[name].name for name in key_}))
            wanted += [found[name] for name in key_]
        frame = self.write(wanted, self.connection.execute(_EDGES, (type_, start[0], end[0])))
        return StagedRecords(frame, type_, match, _map_column_names(columns), (ends[0], ends[1]))

    def make_columns(self, kind: Table, type_: str, of: int) -> dict[str, _StagedColumn]:
        """Give a column to each property of a type: as it is in Parquet already, or else as its values are."""
        schema = self.graph._find_folder(kind, type_).read_schema()  # noqa: SLF001 - as above
        there = {} if schema is None else {field.name: field.type for field in schema}
        columns = {}
        if (kind, type_) not in self.property_types:
            self.property_types[kind, type_] = find_property_types(self.connection, kind, type_)
        for number, (name, found) in enumerate(self.property_types[kind, type_].items()):
            own = ARROW_TYPES.get(found.common_type)
            wanted = there.get(to_column_name(name, kind)) or own or self.infer_type(kind, type_, name)
            shown = f"The property {name!r} of {type_} {kind}"
            columns[name] = _StagedColumn(f"c{of}_{number}", of, name, wanted, wanted == own, shown)
        return columns

    def infer_type(self, kind: Table, type_: str, name: str) -> pa.DataType:
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

    def write(self, columns: Sequence[_StagedColumn], rows: sqlite3.Cursor) -> DataFrame:
        """Write rows to a file, and open it."""
        rel = f"{self.folder}/{self.file_count}"
        self.file_count += 1
        schema = pa.schema([(column.name, column.type) for column in columns])
        with (
            write_atomically(self.location, f"{rel}/part-0.parquet") as stream,
            pq.ParquetWriter(stream, schema) as writer,
        ):
            while batch := rows.fetchmany(_BATCH):
                records = [[decode(text) for text in texts] for texts in zip(*batch, strict=True)]
                arrays = [column.to_array(records) for column in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return self.graph._io.read(self.location.to_url(rel))  # noqa: SLF001 - as above

    def check_present(
        self, kind: Table, type_: str, match: Sequence[str], columns: Mapping[str, _StagedColumn]
    ) -> None:
        """Refuse records without a match property, of which their ids could not be made."""
        for name in match:
            if name not in columns:
                message = f"None of the {type_} {kind} in SQLite has the match property {name!r}. Match on another."
                raise InvalidArgumentError(message)
            lacking = f"SELECT count(*), min(id) FROM {kind} WHERE type = ? AND ({build_key_sql(name)}) IS NULL"
            count, first = self.connection.execute(lacking, (type_,)).fetchone()
            if count:
                message = (
                    f"Of the {type_} {kind} in SQLite, {count} lack the match property {name!r}, such as that with the "
                    f"id {first}. Give it to them, delete them, or match on another."
                )
                raise KeyColumnError(message)

    def check_distinct(self, table: Table, type_: str, match: Sequence[str], ends: list[str]) -> None:
        """Refuse records that would be one in Parquet."""
        keys = [*ends, *map(build_key_sql, match)]
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


def _make_array(values: Sequence[Value], data_type: pa.DataType) -> pa.Array:
    """Give values as an array; what is a date or time there, is a text in SQLite."""
    if pa.types.is_temporal(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    # Not as texts in an array: where a struct is NULL, Arrow would cast the empty texts beneath it.
    return pa.array(
        [_parse_times(value, data_type) for value in values] if pa.types.is_nested(data_type) else values, data_type
    )


def _parse_times(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_temporal(data_type):
        return (date if pa.types.is_date(data_type) else datetime).fromisoformat(value)
    if isinstance(value, list) and pa.types.is_list(data_type):
        return [_parse_times(item, data_type.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_map(data_type):
        return {name: _parse_times(item, data_type.item_type) for name, item in value.items()}
    if isinstance(value, dict) and pa.types.is_struct(data_type):
        return value | {
            field.name: _parse_times(value[field.name], field.type) for field in data_type if field.name in value
        }
    return value


def _check_types(role: str, given: MatchNames, types: Collection[str]) -> None:
    for type_ in given:
        if type_ not in types:
            message = (
                f"{role} names the type {type_!r}, which SQLite has not. It has: {', '.join(sorted(types)) or 'none'}."
            )
            raise InvalidArgumentError(message)


def _map_column_names(columns: Mapping[str, _StagedColumn]) -> dict[str, str]:
    return {name: column.name for name, column in columns.items()}
