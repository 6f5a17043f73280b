"""Sources: anything that carries Arrow data, or a path to rows."""

from __future__ import annotations

import lzma
import os
import re
import zlib
from contextlib import contextmanager
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
from merganser.core.rows import EVEN, HEAVY
from merganser.core.schema import check_same_columns
from merganser.core.store import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")


def read_source(source: Any) -> pa.Table:
    """Read a source into memory: Arrow objects, anything with the Arrow PyCapsule interface, or a path.

    >>> read_source(pa.record_batch({"id": [1, 2]})).num_rows
    2
    """
    found = stream_source(source)
    return found if isinstance(found, pa.Table) else found.read_all()


def stream_source(source: Any) -> pa.Table | pa.RecordBatchReader:
    """Open a source, to be read once; what need not be in memory at once comes as a reader.

    >>> stream_source(pa.table({"id": [1, 2]}).to_reader()).schema.names
    ['id']
    """
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return source
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if isinstance(source, pads.Dataset):
        return _streamed(source)
    if isinstance(source, pads.Scanner):
        return source.to_reader()
    try:
        if hasattr(source, "__arrow_c_stream__"):
            return _without_index(pa.RecordBatchReader.from_stream(source))
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


def _without_index(reader: pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """Leave out the unnamed index of a pandas frame, which is no column."""
    if b"pandas" not in (reader.schema.metadata or {}):
        return reader
    table = reader.read_all()
    return table.drop_columns([name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)])


def _open_path(path: str) -> pa.Table | pa.RecordBatchReader:
    location = locate(path)
    filesystem = location.store.filesystem if isinstance(location.store, RemoteStore) else fsspec.filesystem("file")
    kind = location.store.kind(location.root)
    if kind == "directory":
        return _streamed(open_dataset(location))
    found = [location.root] if kind == "file" else []
    if not found and any(mark in location.root for mark in "*?["):
        found = sorted(filesystem.glob(location.root))
    if not found:
        nothing = "No file matches" if "*" in path else "There is no source file"
        message = f"{nothing} {path}. Check the path of the source."
        raise InvalidArgumentError(message)
    if all(name.lower().endswith(".parquet") for name in found):
        return _parquet_reader(filesystem, found, path)
    tables = [_read_file(filesystem, name) for name in found]
    for name, table in zip(found, tables, strict=True):
        check_same_columns(tables[0].schema, table.schema, found[0], name)
    schema = _common_schema([table.schema for table in tables], path)
    return pa.concat_tables([_as(schema, table) for table in tables])


def _common_schema(schemas: list[pa.Schema], path: str) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        message = (
            f"The files that {path} matches disagree about a column: {error}. Give them one schema, or one by one."
        )
        raise SchemaMismatchError(message) from error


def _as(schema: pa.Schema, table: pa.Table) -> pa.Table:
    ordered = table if table.column_names == schema.names else table.select(schema.names)
    return ordered.cast(schema)


def _parquet_reader(filesystem: fsspec.AbstractFileSystem, names: list[str], path: str) -> pa.RecordBatchReader:
    """Stream Parquet files one after another, in the one schema they agree on."""
    schemas = []
    for name in names:
        with _reading(name), filesystem.open(name, "rb") as stream:
            schemas.append(arrow_schema(pq.read_metadata(stream)))
        check_same_columns(schemas[0], schemas[-1], names[0], name)
    schema = _common_schema(schemas, path)

    def batches() -> Iterator[pa.RecordBatch]:
        for name in names:
            with (
                _reading(name),
                filesystem.open(name, "rb") as stream,
                # Not read ahead, which would be row group after row group until all are in memory.
                pq.ParquetFile(stream, coerce_int96_timestamp_unit="us", pre_buffer=False) as parquet,
            ):
                for batch in parquet.iter_batches(_rows_at_once(parquet.metadata)):
                    yield from _as(schema, pa.Table.from_batches([batch])).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    size: int = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(EVEN, HEAVY * rows // max(1, size)))


def _streamed(dataset: pads.Dataset) -> pa.RecordBatchReader:
    """Stream a dataset; of Parquet, no more row groups at a time than there is memory for."""
    options: dict[str, Any] = {}
    fragment = next(dataset.get_fragments(), None)
    if isinstance(fragment, pads.ParquetFileFragment):
        options = {
            "batch_size": _rows_at_once(fragment.metadata),
            "batch_readahead": 1,
            "fragment_readahead": 1,
            # With threads, batches pile up before whoever is slower than they are.
            "use_threads": False,
            "fragment_scan_options": pads.ParquetFragmentScanOptions(arrow_extensions_enabled=True, pre_buffer=False),
        }
    return dataset.scanner(**options).to_reader()


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
    with _reading(path), filesystem.open(path, "rb", compression=None if stem == path else "infer") as stream:
        return reader(stream)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Say which source file cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        message = f"There is no source file {path}. Check the path of the source."
        raise InvalidArgumentError(message) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        message = f"Cannot read the source file {path}: {error}."
        raise UnreadableFileError(message) from error
