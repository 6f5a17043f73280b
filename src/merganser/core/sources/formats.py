"""Readers of source files by file extension: Parquet, CSV, JSON lines and Arrow.

Column types of CSV and JSON are inferred; an inferred type that would lose digits is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from merganser.core.parquet.footer import load_footer
from merganser.safe_json import DepthLimitedJson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ARROW_FILE = b"ARROW1"
_LARGE = r"^\s*[-+]?[0-9]{16,}\s*$"  # integers with more digits than a double holds


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading: the format if not by file extension, column types, and the delimiter of CSV."""

    file_format: str | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    delimiter: str | None = None


DEFAULTS = ReadOptions()


def _read_parquet(stream: Any, _: ReadOptions) -> pa.Table:
    footer = load_footer(pa.PythonFile(stream, "r"), getattr(stream, "name", "the file"))
    with pq.ParquetFile(stream, metadata=footer.int96_as_bytes) as parquet:
        return footer.decode_int96(parquet.read()).cast(footer.schema)


def _read_arrow(stream: Any, _: ReadOptions) -> pa.Table:
    """Read the Arrow IPC format, as a file or a stream."""
    is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
    stream.seek(0)
    return pa.ipc.open_file(stream).read_all() if is_file else pa.ipc.open_stream(stream).read_all()


def _read_tsv(stream: Any, options: ReadOptions) -> pa.Table:
    return _read_csv(stream, ReadOptions(options.file_format, options.types, options.delimiter or "\t"))


def _read_csv(stream: Any, options: ReadOptions) -> pa.Table:
    parsing = pacsv.ParseOptions(delimiter=options.delimiter or ",")
    conversion = pacsv.ConvertOptions(column_types=dict(options.types))
    table = pacsv.read_csv(stream, parse_options=parsing, convert_options=conversion)
    names = table.column_names
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise pa.ArrowInvalid(f"two columns are named {duplicate!r}")
    for one in table.schema:
        if pa.types.is_binary(one.type) and one.name not in options.types:
            raise pa.ArrowInvalid(f"column {one.name!r} is not UTF-8; convert the file with iconv")
    inferred = [one.name for one in table.schema if pa.types.is_floating(one.type) and one.name not in options.types]
    if inferred:
        stream.seek(0)
        as_string = pacsv.ConvertOptions(include_columns=inferred, column_types=dict.fromkeys(inferred, pa.string()))
        strings = pacsv.read_csv(stream, parse_options=parsing, convert_options=as_string)
        for name in inferred:
            _check_digits(strings.column(name), name)
    return table


def _check_digits(strings: pa.ChunkedArray, name: str) -> None:
    """Refuse integers inferred as floats that do not hold all of their digits."""
    large = strings.filter(pc.match_substring_regex(strings, _LARGE))
    if len(large):
        raise pa.ArrowInvalid(
            f"column {name!r} has numbers like {large[0].as_py().strip()}, which would lose digits as floats; pass "
            f"--column-type {name}=string, or decimal128(38,0), or in Python read the file with pyarrow.csv"
        )


def _read_json(stream: Any, options: ReadOptions) -> pa.Table:
    start = stream.read(64).lstrip()
    stream.seek(0)
    if start.startswith(b"["):
        raise pa.ArrowInvalid("it is an array; convert it to one object per line, with jq -c '.[]'")
    parsing = pajson.ParseOptions(explicit_schema=pa.schema(dict(options.types)) if options.types else None)
    table = pajson.read_json(DepthLimitedJson(stream), parse_options=parsing)
    if all(table.column(name).null_count < len(table) for name in options.types):
        return table
    # PyArrow adds a column for each given type, even if no line has it.
    stream.seek(0)
    present = pajson.read_json(stream).column_names
    return table.select([name for name in table.column_names if name in present])


# By file extension.
READERS: dict[str, Callable[[Any, ReadOptions], pa.Table]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _read_json),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _read_arrow),
}
