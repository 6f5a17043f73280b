"""Sources of the command line: files, patterns, URLs, standard input, and tables of SQLite and DuckDB files."""

from __future__ import annotations

import io
import os
import re
import sqlite3
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from merganser.cli.command import open_filesystem, pair
from merganser.core.dataset.snapshot import load_target
from merganser.core.sources.formats import READERS
from merganser.core.sources.read_options import DEFAULTS, ReadOptions
from merganser.core.sources.source import open_path
from merganser.errors import InvalidArgumentError, MerganserError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.cli.command import Pairs
    from merganser.core.storage.location import Location

STDIN = "-"
TABLE_SEPARATOR = "::"
FORMATS = ("parquet", "csv", "tsv", "json", "arrow")
_SQLITE_MAGIC = b"SQLite format 3\0"
_DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".duckdb")
# Formats without column types.
_UNTYPED_FORMATS = ("csv", "tsv", "json", "jsonl", "ndjson")
_BATCH_ROWS = 50_000


def open_source(text: str, options: Pairs = (), reading: ReadOptions = DEFAULTS, *, allow_path: bool = False) -> Any:
    """Open a SOURCE argument; with `allow_path`, return the path of plain files for Spark to read itself."""
    if text == STDIN:
        return _read_stdin(reading)
    file, mark, table = text.partition(TABLE_SEPARATOR)
    if mark and "://" not in text and not os.path.exists(text):
        return _read_table(file, table)
    if not mark and text.lower().endswith(_DATABASE_SUFFIXES):
        raise InvalidArgumentError(f"{text} is a database. Name one of its tables: {text}::TABLE.")
    filesystem = open_filesystem(text, options)
    if allow_path and filesystem is None and not (reading.file_format or reading.types or reading.delimiter):
        return text
    return open_path(text, filesystem, reading)


def use_target_types(text: str, reading: ReadOptions, target: Location) -> ReadOptions:
    """Use the target's column types for CSV and JSON where a guessed type could lose something."""
    if (reading.file_format or _guess_format_from_name(text)) not in _UNTYPED_FORMATS:
        return reading
    try:
        schema = load_target(target, [], None, {}).schema or ()
    except (MerganserError, OSError):
        # The merge reports it better.
        return reading
    kept = {field.name: field.type for field in schema if _is_ambiguous_type(field.type)}
    return replace(reading, types={**kept, **reading.types})


def _guess_format_from_name(text: str) -> str:
    """Guess the format from a name; standard input may be CSV."""
    stem = re.sub(r"\.(gz|bz2|zst|xz)$", "", text.lower())
    return "csv" if text == STDIN else stem.rpartition(".")[2]


def _is_ambiguous_type(data_type: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_decimal, pa.types.is_uint64)
    return any(test(data_type) for test in tests)


def column_type(text: str) -> tuple[str, pa.DataType]:
    """Parse an option of the form `column=type`."""
    name, alias = pair(text)
    decimal = re.fullmatch(r"decimal(?:128)?\((\d+), ?(\d+)\)", alias)
    try:
        return name, pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.type_for_alias(alias)
    except (ValueError, pa.ArrowInvalid) as error:
        examples = "string, int64, float64, bool, date32, timestamp[us], decimal128(38,0)"
        raise click.BadParameter(f"{alias!r} is not a type. Examples: {examples}.") from error


_TYPE_HELP = "Type of a CSV or JSON column, instead of a guess: string, int64, decimal128(38,0), … Repeatable."
reading_options = (
    click.option("--format", "form", type=click.Choice(FORMATS), help="Format of SOURCE; default: by its extension."),
    click.option("--column-type", type=column_type, multiple=True, metavar="COLUMN=TYPE", help=_TYPE_HELP),
    click.option("--delimiter", help="Delimiter of CSV values; default: a comma."),
)


def make_reading(given: Mapping[str, Any]) -> ReadOptions:
    """Collect the options of `reading_options`."""
    return ReadOptions(given["form"], dict(given["column_type"]), given["delimiter"])


def _read_stdin(reading: ReadOptions) -> pa.Table:
    if sys.stdin is None:
        raise InvalidArgumentError("Standard input is closed. Send rows to it, or name a file.")
    data = sys.stdin.buffer.read()
    form = reading.file_format or _guess_format_from_bytes(data)
    try:
        return READERS[f".{form}"](io.BytesIO(data), reading)
    except (pa.ArrowException, OSError) as error:
        message = f"Cannot read standard input as {form}: {error}. Set --format, or check the input."
        raise UnreadableFileError(message) from error


def _guess_format_from_bytes(data: bytes) -> str:
    if data.startswith(b"PAR1"):
        return "parquet"
    if data.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    return "json" if data.lstrip().startswith(b"{") else "csv"


def _read_table(file: str, table: str) -> Any:
    if not os.path.isfile(file):
        raise InvalidArgumentError(f"The database file {file} does not exist. Check the path of the source.")
    with open(file, "rb") as stream:
        start = stream.read(len(_SQLITE_MAGIC))
    if start == _SQLITE_MAGIC:
        return _read_sqlite(file, table)
    if start[8:12] == b"DUCK":
        return _read_duckdb(file, table)
    message = f"{file} is not a SQLite or DuckDB database. Name another, or give a file without {TABLE_SEPARATOR}."
    raise InvalidArgumentError(message)


def _read_duckdb(file: str, table: str) -> pa.RecordBatchReader:
    import duckdb  # noqa: PLC0415  other sources do without

    try:
        # A view runs SQL of its author, which must not read other files or load an extension.
        connection = duckdb.connect(file, read_only=True, config={"enable_external_access": "false"})
        reader = connection.table(table).to_arrow_reader(_BATCH_ROWS)
    except duckdb.Error as error:
        message = f"Cannot read table {table!r} of {file}: {error}. Check the name of the table."
        raise UnreadableFileError(message) from error

    def batches() -> Iterator[pa.RecordBatch]:
        # The reader needs the open connection.
        with connection:
            yield from reader

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _read_sqlite(file: str, table: str) -> pa.RecordBatchReader:
    uri = f"file:{os.path.abspath(file).replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    quoted = _quote(table)
    with _translate_errors(file, table):
        try:
            names = [column[0] for column in connection.execute(f"SELECT * FROM {quoted} LIMIT 0").description]  # noqa: S608  quoted
            schema = pa.schema([(name, _infer_sqlite_type(connection, quoted, name)) for name in names])
            rows = connection.execute(f"SELECT * FROM {quoted}")  # noqa: S608  as above
        except sqlite3.Error:
            connection.close()
            raise

    def batches() -> Iterator[pa.RecordBatch]:
        with closing(connection), _translate_errors(file, table):
            while some := rows.fetchmany(_BATCH_ROWS):
                columns = zip(zip(*some, strict=True), schema, strict=True)
                yield pa.record_batch([_make_array(values, field) for values, field in columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


@contextmanager
def _translate_errors(file: str, table: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        message = f"Cannot read table {table!r} of {file}: {error}. Check its name, and that its strings are UTF-8."
        raise UnreadableFileError(message) from error


def _make_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except pa.ArrowInvalid as error:
        message = f"Column {field.name!r} has a value that is not {field.type}: {error}. Cast the column to one type."
        raise UnreadableFileError(message) from error


def _infer_sqlite_type(connection: sqlite3.Connection, table: str, column: str) -> pa.DataType:
    """Infer the type of a column from its values, because SQLite lets every row have its own."""
    storage_classes = connection.execute(f"SELECT DISTINCT typeof({_quote(column)}) FROM {table}")  # noqa: S608  quoted
    match sorted(name for (name,) in storage_classes if name != "null"):
        case ["integer"]:
            return pa.int64()
        case ["real"] | ["integer", "real"]:
            return pa.float64()
        case ["blob"]:
            return pa.binary()
        case ["text"] | []:
            # NULLs alone have no type; a string can become any type.
            return pa.string()
        case several:
            message = f"Column {column!r} of {table} holds {' and '.join(several)}. Cast it to one type."
            raise UnreadableFileError(message)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
