"""Sources: anything with the Arrow interface, or a path to files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.dataset.read import open_dataset
from merganser.core.dataset.snapshot import load_target
from merganser.core.model.schema import is_list_like
from merganser.core.sources.files import (
    FileSource,
    SourceFiles,
    check_folder,
    check_untyped,
    choose_batch_size,
    find_files,
)
from merganser.core.sources.read_options import ReadOptions
from merganser.errors import InvalidArgumentError, MerganserError

if TYPE_CHECKING:
    from merganser.core.model.options import Options
    from merganser.core.storage.location import Location

# Formats without column types, and with them.
_TEXT_FORMATS = ("csv", "tsv", "json", "jsonl", "ndjson")
_TYPED_FORMATS = ("parquet", "arrow", "feather", "ipc")
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def read_source(source: Any) -> pa.Table:
    """Read a source into memory: Arrow objects, anything with the Arrow PyCapsule interface, or a path.

    >>> read_source(pa.record_batch({"id": [1, 2]})).num_rows
    2
    """
    found = stream_source(source)
    return found if isinstance(found, pa.Table) else found.read_all()


def stream_source(source: Any) -> pa.Table | pa.RecordBatchReader:
    """Open a source, to be read once; as a reader where it need not be in memory at once.

    >>> stream_source(pa.table({"id": [1, 2]}).to_reader()).schema.names
    ['id']
    """
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return source
    if isinstance(source, str | os.PathLike):
        source = FileSource(os.fspath(source))
    if isinstance(source, FileSource):
        return _open_files(source)
    if isinstance(source, pads.Dataset):
        return _stream_dataset(source)
    if isinstance(source, pads.Scanner):
        return source.to_reader()
    try:
        if hasattr(source, "__arrow_c_stream__"):
            return _drop_index(pa.RecordBatchReader.from_stream(source))
        if hasattr(source, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(source)])
    except pa.ArrowInvalid as error:
        message = f"Cannot read rows from {type(source).__name__}: {error}. Convert it to a table."
        raise InvalidArgumentError(message) from error
    raise InvalidArgumentError(
        f"Cannot read rows from {type(source).__name__}. Give an Arrow table or reader, a pandas or Polars frame, a "
        "DuckDB relation, any object with __arrow_c_stream__, or a path to Parquet, CSV, JSON or Arrow."
    )


def is_source(source: Any) -> bool:
    """Check whether `stream_source` accepts an object."""
    known = (pa.Table, pa.RecordBatchReader, str, os.PathLike, FileSource, pads.Dataset, pads.Scanner)
    return isinstance(source, known) or hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def describe_source(source: Any, options: Options, target: Location | None) -> Any:
    """Add to a source what is known of it: the options of the call, and the types of the target's columns."""
    reading = ReadOptions(types=options.column_types or {}, null_values=tuple(options.null_values or ()))
    if isinstance(source, str | os.PathLike):
        source = FileSource(os.fspath(source), options=reading)
    if isinstance(source, FileSource):
        if source.file_format in _TYPED_FORMATS:
            check_untyped(source.options, source.path)
        return source if target is None else add_target_types(source, target)
    check_untyped(reading, f"a {type(source).__name__}")
    return source


def add_target_types(source: FileSource, target: Location) -> FileSource:
    """Use the target's column types for CSV and JSON where an inferred type could be another one."""
    if source.file_format not in _TEXT_FORMATS:
        return source
    try:
        schema = load_target(target, [], None, {}).schema or ()
    except (MerganserError, OSError):
        # The merge reports it better.
        return source
    known = {field.name: field.type for field in schema if _is_ambiguous(field.type)}
    return replace(source, options=replace(source.options, types={**known, **source.options.types}))


def _is_ambiguous(data_type: pa.DataType) -> bool:
    """Check for a type whose text may be inferred as another one."""
    if pa.types.is_struct(data_type):
        return any(_is_ambiguous(field.type) for field in data_type)
    if is_list_like(data_type):
        return _is_ambiguous(data_type.value_type)
    tests = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_decimal),
        *(pa.types.is_uint64, pa.types.is_timestamp, pa.types.is_time),
    )
    return any(test(data_type) for test in tests)


def _open_files(source: FileSource) -> pa.Table | pa.RecordBatchReader:
    found = find_files(source)
    if isinstance(found, SourceFiles):
        return found.read_all()
    dataset = open_dataset(found)
    check_folder(dataset.schema, source.path)
    return _stream_dataset(dataset)


def _drop_index(reader: pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """Drop the unnamed index of a pandas frame."""
    if b"pandas" not in (reader.schema.metadata or {}):
        return reader
    table = reader.read_all()
    return table.drop_columns([name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)])


def _stream_dataset(dataset: pads.Dataset) -> pa.RecordBatchReader:
    """Stream a dataset, with few row groups of Parquet in memory at a time."""
    options: dict[str, Any] = {}
    fragment = next(dataset.get_fragments(), None)
    if isinstance(fragment, pads.ParquetFileFragment):
        options = {
            "batch_size": choose_batch_size(fragment.metadata),
            "batch_readahead": 1,
            "fragment_readahead": 1,
            # With threads, batches would pile up in front of a slower consumer.
            "use_threads": False,
            "fragment_scan_options": pads.ParquetFragmentScanOptions(arrow_extensions_enabled=True, pre_buffer=False),
        }
    return dataset.scanner(**options).to_reader()
