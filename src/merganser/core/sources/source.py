"""Sources: anything with the Arrow interface, or a path to files."""

from __future__ import annotations

import os
import re
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.dataset.read import open_dataset
from merganser.core.sources.files import SourceFiles, check_folder, choose_batch_size, find_files
from merganser.core.sources.read_options import DEFAULTS, ReadOptions
from merganser.errors import InvalidArgumentError

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
        return open_path(os.fspath(source))
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
    known = (pa.Table, pa.RecordBatchReader, str, os.PathLike, pads.Dataset, pads.Scanner)
    return isinstance(source, known) or hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def open_path(path: str, filesystem: Any = None, options: ReadOptions = DEFAULTS) -> pa.Table | pa.RecordBatchReader:
    """Open files, or the folder of a dataset."""
    found = find_files(path, filesystem, options)
    if isinstance(found, SourceFiles):
        return found.read_all()
    dataset = open_dataset(found)
    check_folder(dataset.schema, path)
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
