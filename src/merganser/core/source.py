"""Sources: anything that carries Arrow data, or a path to rows."""

from __future__ import annotations

import lzma
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.json as pajson
import pyarrow.parquet as pq

from merganser.core.errors import InvalidArgumentError, SchemaMismatchError, UnreadableFileError
from merganser.core.footer import arrow_schema
from merganser.core.read import open_dataset
from merganser.core.remote import RemoteStore
from merganser.core.schema import check_same_columns
from merganser.core.store import locate

if TYPE_CHECKING:
    from collections.abc import Callable

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")


def read_source(source: Any) -> pa.Table:
    """Read a source into memory: Arrow objects, anything with the Arrow PyCapsule interface, or a path.

    >>> read_source(pa.record_batch({"id": [1, 2]})).num_rows
    2
    """
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_path(os.fspath(source))
    if isinstance(source, pads.Dataset | pads.Scanner):
        return source.to_table()
    try:
        if hasattr(source, "__arrow_c_stream__"):
            return _without_index(pa.RecordBatchReader.from_stream(source).read_all())
        if hasattr(source, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(source)])
    except pa.ArrowInvalid as error:
        message = f"Cannot read rows from {type(source).__name__}: {error}. Give it as a table."
        raise InvalidArgumentError(message) from error
    message = (
        f"Cannot read rows from {type(source).__name__}. Give an Arrow table or reader, a pandas or Polars frame, a "
        "DuckDB relation, any object with __arrow_c_stream__, or a path to Parquet, CSV or JSON."
    )
    raise InvalidArgumentError(message)


def _without_index(table: pa.Table) -> pa.Table:
    """Leave out the unnamed index of a pandas frame, which is no column."""
    if b"pandas" not in (table.schema.metadata or {}):
        return table
    return table.drop_columns([name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)])


def _read_path(path: str) -> pa.Table:
    location = locate(path)
    filesystem = location.store.filesystem if isinstance(location.store, RemoteStore) else fsspec.filesystem("file")
    kind = location.store.kind(location.root)
    if kind == "directory":
        return open_dataset(location).to_table()
    found = [location.root] if kind == "file" else []
    if not found and any(mark in location.root for mark in "*?["):
        found = sorted(filesystem.glob(location.root))
    if not found:
        nothing = "No file matches" if "*" in path else "There is no source file"
        message = f"{nothing} {path}. Check the path of the source."
        raise InvalidArgumentError(message)
    tables = [_read_file(filesystem, name) for name in found]
    for name, table in zip(found, tables, strict=True):
        check_same_columns(tables[0].schema, table.schema, found[0], name)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        message = (
            f"The files that {path} matches disagree about a column: {error}. Give them one schema, or one by one."
        )
        raise SchemaMismatchError(message) from error


def _read_parquet(stream: Any) -> pa.Table:
    with pq.ParquetFile(stream, coerce_int96_timestamp_unit="us") as parquet:
        return parquet.read().cast(arrow_schema(parquet.metadata))


def _read_file(filesystem: fsspec.AbstractFileSystem, path: str) -> pa.Table:
    stem = path
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    readers: dict[str, Callable[[Any], pa.Table]] = {
        ".parquet": _read_parquet,
        ".csv": pacsv.read_csv,
        ".json": pajson.read_json,
        ".jsonl": pajson.read_json,
        ".ndjson": pajson.read_json,
    }
    reader = readers.get(os.path.splitext(stem)[1].lower())
    if reader is None:
        message = f"Cannot tell the format of {path} from its name. Use .parquet, .csv, .json, .jsonl or .ndjson."
        raise InvalidArgumentError(message)
    try:
        with filesystem.open(path, "rb", compression=None if stem == path else "infer") as stream:
            return reader(stream)
    except FileNotFoundError as error:
        message = f"There is no source file {path}. Check the path of the source."
        raise InvalidArgumentError(message) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        message = f"Cannot read the source file {path}: {error}."
        raise UnreadableFileError(message) from error
