"""Sources: anything with the Arrow interface, rows of Python, or a path to files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from merganser.core.dataset.read import open_dataset
from merganser.core.dataset.snapshot import load_target
from merganser.core.model.casts import cast_column
from merganser.core.model.schema import is_castable, is_list_like, to_plain_type
from merganser.core.sources.files import (
    FileSource,
    SourceFiles,
    check_folder,
    check_untyped,
    choose_batch_size,
    find_files,
)
from merganser.core.sources.python_rows import convert_rows, is_frame
from merganser.core.sources.read_options import ReadOptions
from merganser.errors import ColumnValueError, InvalidArgumentError, MerganserError

if TYPE_CHECKING:
    from merganser.core.model.options import Options
    from merganser.core.storage.location import Location

# Formats without column types, and with them.
_JSON_FORMATS = ("json", "jsonl", "ndjson")
_TEXT_FORMATS = ("csv", "tsv", *_JSON_FORMATS)
_TYPED_FORMATS = ("parquet", "arrow", "feather", "ipc")


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
    if isinstance(source, pads.Dataset | pads.Scanner):
        return _stream_dataset(source) if isinstance(source, pads.Dataset) else source.to_reader()
    try:
        if hasattr(source, "__arrow_c_stream__") and not is_frame(source):
            return pa.RecordBatchReader.from_stream(source)
        if hasattr(source, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(source)])
    except pa.ArrowInvalid as error:
        message = f"Cannot read rows from {type(source).__name__}: {error}. Convert it to a table."
        raise InvalidArgumentError(message) from error
    return convert_rows(source, {})


def is_source(source: Any) -> bool:
    """Check whether `stream_source` accepts an object."""
    known = (pa.Table, pa.RecordBatchReader, str, os.PathLike, FileSource, pads.Dataset, pads.Scanner)
    has_interface = hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    return isinstance(source, known) or has_interface or is_frame(source)


def describe_source(source: Any, options: Options, target: Location | None) -> Any:
    """Add to a source what is known of it: the options of the call, and the types of the target's columns."""
    reading = ReadOptions(types=options.column_types or {}, null_values=tuple(options.null_values or ()))
    if isinstance(source, str | os.PathLike):
        source = FileSource(os.fspath(source), options=reading)
    if isinstance(source, FileSource):
        if source.file_format in _TYPED_FORMATS:
            check_untyped(source.options, source.path)
        if source.file_format in _JSON_FORMATS and source.options.null_values:
            raise InvalidArgumentError(f"null_values is for CSV; {source.path} is JSON, which has null. Leave it out.")
        return source if target is None else add_target_types(source, target)
    is_plain = isinstance(source, list | tuple | Mapping)
    check_untyped(replace(reading, types={}) if is_plain else reading, f"a {type(source).__name__}")
    is_pandas = is_frame(source)
    if is_plain or is_pandas:
        source = convert_rows(source, reading.types)
    if target is None or not isinstance(source, pa.Table):
        return source
    source = _clear_empty_floats(source, target, is_pandas=is_pandas)
    # Not every engine has nanoseconds; other types are cast by the merge, unless it would widen the target.
    is_wide = options.schema_mode == "evolve" or any(_is_nanoseconds(field.type) for field in source.schema)
    return _narrow_types(source, target, reading.types) if is_wide and (is_plain or is_pandas) else source


def _is_nanoseconds(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) and data_type.unit == "ns")


def _narrow_types(table: pa.Table, target: Location, given: Mapping[str, Any]) -> pa.Table:
    """Cast columns to the target's types where all values fit: an inferred type is no reason to widen these.

    Integers of Python have 64 bits, and times of pandas nanoseconds, whatever their values.
    """
    for field in _read_schema(target) or ():
        at = table.schema.get_field_index(field.name)
        if at >= 0 and field.name not in given and is_castable(table.schema.field(at).type, field.type):
            with suppress(ColumnValueError):
                column = cast_column(table.column(at), to_plain_type(field.type), field.name)
                table = table.set_column(at, field.name, column)
    return table


def _clear_empty_floats(table: pa.Table, target: Location, *, is_pandas: bool) -> pa.Table:
    """Make float columns without a number NULL where the target has another type: pandas has no empty string column.

    A new column of pandas gets the type null, too, which takes the type of the first values (E4).
    """
    floats = [at for at, field in enumerate(table.schema) if pa.types.is_floating(field.type)]
    empty = [at for at in floats if _is_empty(table.column(at))]
    schema = _read_schema(target) if empty else None
    for at in empty:
        name = table.column_names[at]
        known = None if schema is None or name not in schema.names else schema.field(name).type
        is_new = is_pandas and schema is not None and known is None
        if is_new or (known is not None and not is_castable(pa.float64(), known)):
            table = table.set_column(at, name, pa.nulls(table.num_rows))
    return table


def _is_empty(column: pa.ChunkedArray) -> bool:
    # The first value settles most columns.
    parts = (column.slice(0, 1), column)
    return len(column) > 0 and all(pc.all(pc.is_null(part, nan_is_null=True)).as_py() for part in parts)


def add_target_types(source: FileSource, target: Location) -> FileSource:
    """Use the target's column types for CSV and JSON where an inferred type could be another one."""
    if source.file_format not in _TEXT_FORMATS:
        return source
    schema = _read_schema(target) or ()
    known = {field.name: field.type for field in schema if _is_ambiguous(field.type)}
    return replace(source, options=replace(source.options, types={**known, **source.options.types}))


def _read_schema(target: Location) -> pa.Schema | None:
    try:
        return load_target(target, [], None, {}).schema
    except (MerganserError, OSError):
        # The merge reports it better.
        return None


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
