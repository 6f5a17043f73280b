"""Export to Parquet as GraphFrames reads it: `vertices` with an `id`, `edges` with `src` and `dst`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.storage.location import Location, locate
from merganser.errors import InvalidArgumentError
from merganser.graph.exchange.columns import EDGE_COLUMNS, VERTEX_COLUMNS, make_columns
from merganser.graph.exchange.files import translate_os_errors, write_atomically
from merganser.graph.exchange.property_types import find_property_types
from merganser.graph.values import decode

if TYPE_CHECKING:
    import os
    import sqlite3

    from merganser.graph.sqlite.sql import Table
    from merganser.graph.sqlite.store import Store

FILE_NAME = "part-0.parquet"
BATCH = 50_000

_QUERIES: dict[Table, str] = {
    "nodes": "SELECT properties, id, type, created_at, updated_at FROM nodes ORDER BY id",
    "edges": "SELECT properties, id, from_id, to_id, type, created_at, updated_at FROM edges ORDER BY id",
}
_RESERVED: dict[Table, tuple[str, ...]] = {"nodes": VERTEX_COLUMNS, "edges": EDGE_COLUMNS}
_TIME = pa.timestamp("ms", tz="UTC")
_TYPES = {"type": pa.string(), "relationship": pa.string(), "created_at": _TIME, "updated_at": _TIME}


def export_parquet(store: Store, folder: str | os.PathLike[str]) -> None:
    """Write the graph; see `GraphDatabase.export_parquet`."""
    location = locate(folder)
    for name in ("vertices", "edges"):
        _check_folder(location, name)
    with (
        store.snapshot() as connection,
        write_atomically(location, f"vertices/{FILE_NAME}") as vertices,
        write_atomically(location, f"edges/{FILE_NAME}") as edges,
    ):
        _write_table(connection, "nodes", vertices)
        _write_table(connection, "edges", edges)


def is_data_file(name: str) -> bool:
    """Check whether a file holds data: not if it is hidden, or a marker such as `_SUCCESS`."""
    return not name.startswith((".", "_"))


def _check_folder(location: Location, name: str) -> None:
    display = location.to_display(name)
    with translate_os_errors("write", display):
        others = [
            found
            for found in location.store.list_names(location.to_path(name))
            if is_data_file(found) and found != FILE_NAME
        ]
    if others:
        raise InvalidArgumentError(
            f"{display!r} already holds {others[0]!r}, which would be read as a part of the graph. Give another "
            "folder, or remove it."
        )


def _write_table(connection: sqlite3.Connection, table: Table, stream: BinaryIO) -> None:
    reserved = _RESERVED[table]
    own = make_columns(find_property_types(connection, table), reserved)
    # Times come last, because they are needed least often.
    leading = [pa.field(name, _TYPES.get(name, pa.int64()), nullable=False) for name in reserved]
    schema = pa.schema([*leading[:-2], *(column.field for column in own), *leading[-2:]])
    with pq.ParquetWriter(stream, schema) as writer:
        rows = connection.execute(_QUERIES[table])
        while batch := rows.fetchmany(BATCH):
            texts, *given = zip(*batch, strict=True)
            records = [decode(text) for text in texts]
            fixed: list[Any] = [pa.array(values, field.type) for values, field in zip(given, leading, strict=True)]
            arrays = [*fixed[:-2], *(column.to_array(records) for column in own), *fixed[-2:]]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
