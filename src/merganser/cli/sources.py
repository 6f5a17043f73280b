"""Sources of the command line: files, patterns, URLs, standard input, and tables of SQLite and DuckDB files."""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from merganser.cli.command import combine, open_filesystem, pair
from merganser.core.model.type_names import parse_type
from merganser.core.sources.files import FileSource
from merganser.core.sources.formats import READERS
from merganser.core.sources.read_options import DEFAULTS, ReadOptions
from merganser.core.sources.source import add_target_types
from merganser.errors import InvalidArgumentError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.cli.command import Pairs
    from merganser.core.storage.location import Location

STDIN = "-"
TABLE_SEPARATOR = "::"
FORMATS = ("parquet", "csv", "tsv", "json", "arrow")
_SQLITE_MAGIC = b"SQLite format 3\0"
_DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".duckdb")
_BATCH_ROWS = 50_000


def open_source(text: str, options: Pairs = (), reading: ReadOptions = DEFAULTS, target: Location | None = None) -> Any:
    """Open a SOURCE argument; files are left to the engine to read."""
    if text == STDIN:
        return _read_stdin(reading, target)
    file, mark, table = text.partition(TABLE_SEPARATOR)
    if mark and "://" not in text and not os.path.exists(text):
        return _read_table(file, table)
    if not mark and text.lower().endswith(_DATABASE_SUFFIXES):
        raise InvalidArgumentError(f"{text} is a database. Name one of its tables: {text}::TABLE.")
    return FileSource(text, open_filesystem(text, options), reading)


def column_type(text: str) -> tuple[str, pa.DataType]:
    """Parse an option of the form `column=type`."""
    name, alias = pair(text)
    try:
        return name, parse_type(alias)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error)) from error


_TYPE_HELP = "Type of a CSV or JSON column, instead of an inferred one: string, BIGINT, list<string>, … Repeatable."
_NULL_HELP = "Unquoted CSV cell that is NULL, beside the empty one. Repeatable."
reading_options = combine(
    click.option("--format", "form", type=click.Choice(FORMATS), help="Format of SOURCE; default: by its extension."),
    click.option("--column-type", type=column_type, multiple=True, metavar="COLUMN=TYPE", help=_TYPE_HELP),
    click.option("--delimiter", help="Delimiter of CSV values; default: a comma."),
    click.option("--null-value", multiple=True, help=_NULL_HELP),
)


def make_reading(given: Mapping[str, Any]) -> ReadOptions:
    """Collect the options of `reading_options`."""
    return ReadOptions(given["form"], dict(given["column_type"]), given["delimiter"], given["null_value"])


def _read_stdin(reading: ReadOptions, target: Location | None) -> pa.Table:
    if sys.stdin is None:
        raise InvalidArgumentError("Standard input is closed. Send rows to it, or name a file.")
    data = sys.stdin.buffer.read()
    form = reading.file_format or _guess_format_from_bytes(data)
    if target is not None:
        reading = add_target_types(FileSource(f"{STDIN}.{form}", options=reading), target).options
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
