"""Reads CSV: an empty cell is NULL in every column, a quoted one is the empty string."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv

from merganser.core.columnar.arrow_versions import make_bytes_options
from merganser.core.columnar.threads import map_in_threads
from merganser.core.sources.inference import infer_column, parse_column, refuse_encoding
from merganser.core.sources.rewind import rewind
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from merganser.core.sources.read_options import ReadOptions

_ROW = re.compile(r"Row #(\d+): ")
_MAX_ROW_BYTES = 1 << 30


def read_csv(stream: Any, options: ReadOptions, delimiter: str = ",") -> pa.Table:
    """Read a stream of CSV; a type that is not given is inferred from all cells of the column."""
    table = _read_cells(stream, options, delimiter)
    try:
        names = table.column_names
    except UnicodeDecodeError:
        refuse_encoding("the name of a column")
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise pa.ArrowInvalid(f"two columns are named {duplicate!r}")

    def convert(name: str) -> pa.ChunkedArray:
        cells = _decode(table.column(name), name)
        data_type = options.types.get(name)
        return infer_column(cells, name) if data_type is None else parse_column(cells, data_type, name)

    return pa.table(map_in_threads(convert, names), names)


def _read_cells(stream: Any, options: ReadOptions, delimiter: str) -> pa.Table:
    delimiter = options.delimiter or delimiter
    if len(delimiter) != 1:
        raise InvalidArgumentError(f"The delimiter must be one character, not {delimiter!r}.")
    parsing = pacsv.ParseOptions(delimiter=delimiter)

    def read(reading: pacsv.ReadOptions) -> pa.Table:
        def read_names() -> list[str]:
            with rewind(stream) as start, pacsv.open_csv(start, reading, parsing) as reader:
                return reader.schema.names  # type: ignore[no-any-return]

        converting = pacsv.ConvertOptions(
            # Only bytes: Arrow does not name the column of a string that is not UTF-8.
            **make_bytes_options(read_names),
            null_values=["", *options.null_values],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with rewind(stream) as start:
            return pacsv.read_csv(start, reading, parsing, converting)

    with suppress(pa.ArrowInvalid):
        return read(pacsv.ReadOptions())
    # Arrow counts rows only without threads; a row may be longer than one of its usual blocks.
    try:
        return read(pacsv.ReadOptions(use_threads=False, block_size=_MAX_ROW_BYTES))
    except pa.ArrowInvalid as error:
        # It counts the header as well.
        raise pa.ArrowInvalid(_ROW.sub(lambda found: f"row {int(found[1]) - 1:,}: ", str(error))) from error


def _decode(cells: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        refuse_encoding(f"column {name!r}")
