"""Import from Parquet: files of `export_parquet`, or others with the columns of GraphFrames."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from merganser.core.parquet.footer import Footer, load_footer
from merganser.core.storage.location import Location, locate
from merganser.errors import GraphFileError, MerganserError, UnreadableFileError, UnsupportedFileError
from merganser.graph.exchange.columns import get_property_name, is_json
from merganser.graph.exchange.loading import GraphImport, ImportResult, NewEdge, NewNode, import_graph
from merganser.graph.exchange.parquet import BATCH, is_data_file
from merganser.graph.json_columns import to_python_values
from merganser.graph.records import to_datetime
from merganser.graph.sqlite.write import call_with_label
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterable, Iterator

    from merganser.graph.sqlite.store import Store

_ID_COLUMNS = ("id", "src", "dst")
_ID_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def import_parquet(store: Store, folder: str | os.PathLike[str], node_type: str | None) -> ImportResult:
    """Read a graph; see `GraphDatabase.import_parquet`."""
    location = locate(folder)
    vertices, edges = _list_files(location, "vertices"), _list_files(location, "edges")
    node_ids, edge_ids = _read_ids(location, vertices, is_required=True), _read_ids(location, edges, is_required=False)
    nodes = _read_nodes(location, vertices, node_type)
    incoming = GraphImport(repr(location.display), node_ids, nodes, edge_ids, _read_edges(location, edges))
    return import_graph(store, incoming)


def _list_files(location: Location, folder: str) -> list[str]:
    """List the files of a folder; refuse subfolders, whose rows would be left out silently."""
    path = location.to_display(folder)
    with _translate_errors(path):
        names = [name for name in location.store.list_names(location.to_path(folder)) if is_data_file(name)]
        inner = [
            name for name in names if location.store.get_path_type(location.to_path(f"{folder}/{name}")) == "directory"
        ]
    if inner:
        raise GraphFileError(f"{path!r} holds the folder {inner[0]!r}; put all files directly into {folder!r}.")
    files = [f"{folder}/{name}" for name in names if name.endswith(".parquet")]
    if not files:
        raise GraphFileError(f"{path!r} holds no Parquet file; give a folder with 'vertices' and 'edges'.")
    return files


def _read_ids(location: Location, files: Iterable[str], *, is_required: bool) -> list[Hashable]:
    """Read all ids: strings or integers, or None for an edge without one."""
    ids: list[Hashable] = []
    for name in files:
        with _open(location, name) as file:
            if "id" not in file.schema.names and not is_required:
                ids.extend(repeat(None, file.footer.metadata.num_rows))
                continue
            _check_columns(file.schema, ("id",), location.to_display(name))
            column = file.parquet.read(columns=["id"]).column("id")
        if is_required and column.null_count:
            message = f"{location.to_display(name)!r} has a vertex whose 'id' is NULL; give every vertex an id."
            raise GraphFileError(message)
        ids.extend(column.to_pylist())
    return ids


def _read_nodes(location: Location, files: Iterable[str], default: str | None) -> Iterator[NewNode]:
    for path, batch in _read_batches(location, files, ("id",)):
        (ids,) = _read_columns(batch, ("id",), path)
        (types,) = _read_columns(batch, ("type",), path) if "type" in batch.schema.names else (repeat(None),)
        others = _read_properties(batch, ("id", "type"), path)
        for found, type_, own, created, updated in zip(ids, types, *others, strict=False):
            label = f"the vertex {found!r} of {path!r}"
            if type_ is None and default is None:
                raise GraphFileError(f"{label} has no 'type'; give node_type for all that have none.")
            yield NewNode(label, default if type_ is None else type_, own, created, updated)


def _read_edges(location: Location, files: Iterable[str]) -> Iterator[NewEdge]:
    required = ("src", "dst", "relationship")
    for path, batch in _read_batches(location, files, required):
        fixed = _read_columns(batch, required, path)
        others = _read_properties(batch, ("id", *required), path)
        for start, end, type_, own, created, updated in zip(*fixed, *others, strict=False):
            yield NewEdge(f"the edge {start!r} -> {end!r} of {path!r}", type_, start, end, own, created, updated)


def _read_batches(
    location: Location, files: Iterable[str], required: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for name in files:
        path = location.to_display(name)
        with _open(location, name) as file:
            _check_columns(file.schema, required, path)
            for batch in file.read_batches():
                yield path, batch


def _read_columns(batch: pa.RecordBatch, names: tuple[str, ...], path: str) -> list[list[Any]]:
    return [_to_values(batch.column(name), batch.schema.field(name), path) for name in names]


def _read_properties(
    batch: pa.RecordBatch, fixed: tuple[str, ...], path: str
) -> tuple[list[dict[str, Any]], Iterable[int | None], Iterable[int | None]]:
    """Read the properties of each row, and its times if columns of their names hold timestamps."""
    moments: dict[str, Iterable[int | None]] = {"created_at": repeat(None), "updated_at": repeat(None)}
    properties: dict[str, list[Any]] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in moments and pa.types.is_timestamp(field.type):
            moments[field.name] = _to_milliseconds(column, field, path)
        elif field.name not in fixed:
            properties[get_property_name(field)] = _to_values(column, field, path)
    rows = zip(*properties.values(), strict=True) if properties else repeat((), batch.num_rows)
    return [dict(zip(properties, row, strict=True)) for row in rows], moments["created_at"], moments["updated_at"]


def _to_milliseconds(column: pa.Array, field: pa.Field, path: str) -> list[int | None]:
    with _translate_errors(path, field.name):
        stored = column.cast(pa.timestamp("ms", tz=field.type.tz), safe=False).cast(pa.int64())
        for bound in pc.min_max(stored).as_py().values():
            # Python supports no times before the year 1 or after 9999.
            to_datetime(bound or 0)
    return stored.to_pylist()  # type: ignore[no-any-return]


def _to_values(column: pa.Array, field: pa.Field, path: str) -> list[Any]:
    values = call_with_label(repr(path), to_python_values, column, field)
    if not is_json(field):
        return values
    with _translate_errors(path, field.name):
        return [None if value is None else load_json(value) for value in values]


def _check_columns(schema: pa.Schema, required: tuple[str, ...], path: str) -> None:
    """Refuse a file without a required column, with two columns of one name, or with ids of another type."""
    names = Counter(schema.names)
    for name in (*required, *names):
        if names[name] != 1:
            raise GraphFileError(f"{path!r} has {names[name]} columns {name!r}; have one, and rename others.")
        data_type = schema.field(name).type
        data_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        if name in required and name in _ID_COLUMNS and not any(test(data_type) for test in _ID_TYPES):
            raise GraphFileError(f"The column {name!r} of {path!r} is {data_type}; cast it to integers or strings.")


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open Parquet file that reads INT96 as bytes; in `schema`, INT96 is a timestamp without a time zone."""

    footer: Footer
    parquet: pq.ParquetFile
    schema: pa.Schema

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.parquet.iter_batches(BATCH):
            if self.footer.int96_columns:
                yield from self.footer.decode_int96(pa.Table.from_batches([batch])).cast(self.schema).to_batches()
            else:
                yield batch


@contextmanager
def _open(location: Location, name: str) -> Iterator[_OpenFile]:
    path = location.to_display(name)
    with _translate_errors(path), location.store.open_input(location.to_path(name)) as source:
        try:
            footer = load_footer(source, path)
        except (UnreadableFileError, UnsupportedFileError) as error:
            raise GraphFileError(f"{path!r} cannot be read: {error}") from error
        # Only its schema is used: this reader returns wrong values for old timestamps.
        schema = pq.ParquetFile(source, metadata=footer.metadata, coerce_int96_timestamp_unit="us").schema_arrow
        yield _OpenFile(footer, pq.ParquetFile(source, metadata=footer.int96_as_bytes), schema)


@contextmanager
def _translate_errors(path: str, column: str | None = None) -> Iterator[None]:
    """Raise errors as `GraphFileError`, with the file and the column."""
    try:
        yield
    except MerganserError:
        raise
    except (OSError, ValueError, LookupError, OverflowError, NotImplementedError) as error:
        where = f"{path!r}" if column is None else f"The column {column!r} of {path!r}"
        raise GraphFileError(
            f"{where} cannot be read: {error}. Write the file again" + (", or cast the column." if column else ".")
        ) from error
