"""Stage the records of an SQLite graph as Parquet files in the Parquet graph that they go to, for Spark to read.

Executors may not reach the SQLite file, and its records may not fit into the driver; both reach the Parquet graph.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.storage.location import Location, locate
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
from merganser.graph.exchange.property_types import PropertyTypes, find_property_types
from merganser.graph.json_columns import to_python_values
from merganser.graph.merging.bulk_options import Endpoint
from merganser.graph.spark.columns import to_column_name
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.sqlite.sql import Table, build_key_sql
from merganser.graph.values import Value, are_equal, decode, normalize_properties

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.graph.database import GraphDatabase
    from merganser.graph.spark.parquet_graph import ParquetGraph

    MatchNames = Mapping[str, Sequence[str]]

_BATCH = 50_000
# Where files are staged: a folder for each merge, beside the lock of the process that merges.
_STAGING_FOLDER, _FOLDER_PREFIX = ".merganser/incoming", "graph_"
# Each row has the properties of a node, or of an edge and its two nodes, as JSON.
_NODES = "SELECT properties FROM nodes WHERE type = ? ORDER BY id"
_ENDPOINT_JOINS_SQL = "FROM edges e JOIN nodes f ON f.id = e.from_id JOIN nodes t ON t.id = e.to_id"
_EDGES = (
    f"SELECT e.properties, f.properties, t.properties {_ENDPOINT_JOINS_SQL} "
    "WHERE e.type = ? AND f.type = ? AND t.type = ? ORDER BY e.id"
)


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """The nodes of a type, or the edges of a type between two types of nodes; `columns` maps properties to columns."""

    frame: DataFrame
    type: str
    match_names: Sequence[str]
    columns: dict[str, str]
    endpoints: tuple[Endpoint, Endpoint] | None = None


@contextmanager
def stage_graph(
    graph: ParquetGraph, database: GraphDatabase, match: MatchNames, edge_match: MatchNames
) -> Iterator[list[StagedRecords]]:
    """Stage a snapshot of an SQLite graph, nodes first, while the block lasts."""
    io = graph._io  # noqa: SLF001 - exchange is a part of a graph
    location = locate(graph.path, io.filesystem)
    with _hold_staging_folder(location, graph._lock_timeout) as folder:  # noqa: SLF001 - as above
        with database._store.snapshot() as connection:  # noqa: SLF001 - as above
            staging = _Staging(graph, connection, location, folder)
            types = [row[0] for row in connection.execute("SELECT DISTINCT type FROM nodes ORDER BY type")]
            _check_types("match", match, types)
            keys = {type_: staging.find_match_names("nodes", type_, match.get(type_)) for type_ in types}
            staged = [staging.stage_nodes(type_, keys[type_]) for type_ in types]
            connected = f"SELECT DISTINCT e.type, f.type, t.type {_ENDPOINT_JOINS_SQL} ORDER BY 1, 2, 3"
            found = connection.execute(connected).fetchall()
            _check_types("edge_match", edge_match, {type_ for type_, _, _ in found})
            for type_, start, end in found:
                own = staging.find_match_names("edges", type_, edge_match.get(type_))
                staged.append(staging.stage_edges(type_, own, [(start, keys[start]), (end, keys[end])]))
        yield staged


@contextmanager
def _hold_staging_folder(location: Location, timeout: float) -> Iterator[str]:
    """Create a folder for staged files while the block lasts, after removing the folders of killed processes."""
    store, parent = location.store, location.to_path(_STAGING_FOLDER)
    # Only the holder of the lock has files there.
    with hold_lock(store, parent, location.to_display(_STAGING_FOLDER), timeout):
        for name in store.list_names(parent):
            if name.startswith(_FOLDER_PREFIX):
                store.remove_folder(f"{parent}/{name}")
        name = f"{_FOLDER_PREFIX}{uuid.uuid4().hex}"
        try:
            yield f"{_STAGING_FOLDER}/{name}"
        finally:
            store.remove_folder(f"{parent}/{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedColumn:
    """A column of a staged file: a property of one of the records in a row.

    Unless `safe`, it must be checked whether the type holds the values.
    """

    name: str
    record_index: int
    property_name: str
    type: pa.DataType
    safe: bool
    label: str

    def to_array(self, records: Sequence[Sequence[Mapping[str, Value]]]) -> pa.Array:
        values = [record.get(self.property_name) for record in records[self.record_index]]
        if self.safe:
            return pa.array(values, self.type)
        try:
            array = _make_array(values, self.type)
            held = normalize_properties({"": to_python_values(array, pa.field(self.property_name, self.type))}, "")[""]
        except (pa.ArrowException, ValueError, MerganserError) as error:
            raise self.make_error(str(error)) from error
        if not are_equal(held, values):
            raise self.make_error("some values would change")
        return array

    def make_error(self, why: str) -> PropertyTypeError:
        return PropertyTypeError(
            f"{self.label} has values in SQLite that a column of {self.type} in Parquet cannot hold: {why}. Convert "
            "them to one type, or rename the property."
        )


class _Staging:
    """Writes the records of an SQLite snapshot to staged files."""

    def __init__(self, graph: ParquetGraph, connection: sqlite3.Connection, location: Location, folder: str) -> None:
        self.graph, self.connection = graph, connection
        self.location, self.folder = location, folder
        self.property_types: dict[tuple[str, str], dict[str, PropertyTypes]] = {}
        self.file_count = 0

    def find_match_names(self, kind: Table, type_: str, given: Sequence[str] | None) -> Sequence[str]:
        """Find the match properties of a type: those of the Parquet graph, or else those that are given."""
        folder = self.graph._find_folder(kind, type_)  # noqa: SLF001 - as above
        role = f"{'match' if kind == 'nodes' else 'edge_match'} of {type_}"
        names = None if given is None else read_names(given, role)
        if names is not None:
            folder.check_match(names, role)
        known = folder.read_match_names()
        if known is not None:
            return known
        if names is None and kind == "nodes":
            raise InvalidArgumentError(
                f"The match properties of {type_} nodes are unknown: SQLite does not store them, and the Parquet graph "
                f"has no such nodes yet. Name them: match={{{type_!r}: [...]}}."
            )
        if not names and kind == "nodes":
            raise InvalidArgumentError(f"The {role} is empty; name the properties that identify a {type_}.")
        return names or ()

    def stage_nodes(self, type_: str, match: Sequence[str]) -> StagedRecords:
        self.check_distinct("nodes", type_, match, [])
        columns = self.make_columns("nodes", type_, 0)
        self.check_present("nodes", type_, match, columns)
        frame = self.write(list(columns.values()), self.connection.execute(_NODES, (type_,)))
        return StagedRecords(frame, type_, match, _map_column_names(columns))

    def stage_edges(self, type_: str, match: Sequence[str], nodes: list[tuple[str, Sequence[str]]]) -> StagedRecords:
        """Stage the edges of a type with the keys of their nodes; `nodes` has the type and match of both endpoints."""
        self.check_distinct("edges", type_, match, ["from_id", "to_id"])
        columns = self.make_columns("edges", type_, 0)
        self.check_present("edges", type_, match, columns)
        endpoints, staged = [], list(columns.values())
        for record_index, (node_type, names) in enumerate(nodes, 1):
            found = self.make_columns("nodes", node_type, record_index)
            endpoints.append(Endpoint(node_type, {name: found[name].name for name in names}))
            staged += [found[name] for name in names]
        start, end = endpoints
        frame = self.write(staged, self.connection.execute(_EDGES, (type_, start.type, end.type)))
        return StagedRecords(frame, type_, match, _map_column_names(columns), (start, end))

    def make_columns(self, kind: Table, type_: str, record_index: int) -> dict[str, _StagedColumn]:
        """Map each property of a type to a column, of its type in Parquet, or else of the type of its values."""
        schema = self.graph._find_folder(kind, type_).read_schema()  # noqa: SLF001 - as above
        existing = {} if schema is None else {field.name: field.type for field in schema}
        columns = {}
        if (kind, type_) not in self.property_types:
            self.property_types[kind, type_] = find_property_types(self.connection, kind, type_)
        for number, (name, found) in enumerate(self.property_types[kind, type_].items()):
            own = ARROW_TYPES.get(found.common_type)
            data_type = existing.get(to_column_name(name, kind)) or own or self.infer_type(kind, type_, name)
            columns[name] = _StagedColumn(
                name=f"c{record_index}_{number}",
                record_index=record_index,
                property_name=name,
                type=data_type,
                safe=data_type == own,
                label=f"The property {name!r} of {type_} {kind}",
            )
        return columns

    def infer_type(self, kind: Table, type_: str, name: str) -> pa.DataType:
        """Infer the common type of lists or dicts; each value is checked when it is written."""
        schemas = []
        rows = self.connection.execute(f"SELECT properties FROM {kind} WHERE type = ?", (type_,))
        try:
            while batch := rows.fetchmany(_BATCH):
                values = [decode(text).get(name) for (text,) in batch]
                schemas.append(pa.schema([(name, pa.infer_type(values))]))
            return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
        except pa.ArrowException as error:
            raise PropertyTypeError(
                f"The property {name!r} of {type_} {kind} has values of several types, but a Parquet column has one: "
                f"{error}. Convert them to one type."
            ) from error

    def write(self, columns: Sequence[_StagedColumn], rows: sqlite3.Cursor) -> DataFrame:
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

    def check_present(self, kind: Table, type_: str, match: Sequence[str], columns: dict[str, _StagedColumn]) -> None:
        """Refuse records without a match property, which have no id in Parquet."""
        for name in match:
            if name not in columns:
                message = f"None of the {type_} {kind} in SQLite has the match property {name!r}. Match on another."
                raise InvalidArgumentError(message)
            query = f"SELECT count(*), min(id) FROM {kind} WHERE type = ? AND ({build_key_sql(name)}) IS NULL"
            count, first = self.connection.execute(query, (type_,)).fetchone()
            if count:
                raise KeyColumnError(
                    f"{count} of the {type_} {kind} in SQLite lack the match property {name!r}, for example id "
                    f"{first}. Set it, delete them, or match on another property."
                )

    def check_distinct(self, table: Table, type_: str, match: Sequence[str], node_ids: list[str]) -> None:
        keys = [*node_ids, *map(build_key_sql, match)]
        present = "".join(f" AND ({key}) IS NOT NULL" for key in keys)
        groups = self.connection.execute(
            f"SELECT group_concat(id) FROM {table} WHERE type = ?{present} GROUP BY {', '.join(keys)} "
            "HAVING count(*) > 1 LIMIT 1",
            (type_,),
        ).fetchall()
        if groups:
            by = ", ".join(match) or "their nodes"
            raise UniqueConstraintError(
                f"The {type_} {table} with the ids {groups[0][0]} are equal in {by}, and would be one in Parquet. "
                "Match on properties that distinguish them, or delete the duplicates."
            )


def _make_array(values: Sequence[Value], data_type: pa.DataType) -> pa.Array:
    """Make an array of values; dates and times are strings in SQLite."""
    if pa.types.is_temporal(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    # Nested strings are parsed before: where a struct is NULL, Arrow would cast the empty strings beneath it.
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
        parsed = {field.name: _parse_times(value[field.name], field.type) for field in data_type if field.name in value}
        return value | parsed
    return value


def _check_types(role: str, given: MatchNames, types: Collection[str]) -> None:
    for type_ in given:
        if type_ not in types:
            raise InvalidArgumentError(
                f"{role} names the type {type_!r}, which SQLite does not have. Its types are: "
                f"{', '.join(sorted(types)) or 'none'}."
            )


def _map_column_names(columns: Mapping[str, _StagedColumn]) -> dict[str, str]:
    return {name: column.name for name, column in columns.items()}
