"""Sources by name: files, patterns and URLs, standard input, and tables of SQLite and DuckDB files."""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.cli.command import filesystem_of
from merganser.core.errors import InvalidArgumentError, UnreadableFileError
from merganser.core.files import READERS
from merganser.core.source import open_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDIN = "-"
TABLE = "::"
FORMATS = ("parquet", "csv", "json", "arrow")
_SQLITE = b"SQLite format 3\0"
_AT_ONCE = 50_000


def open_source(text: str, options: Sequence[tuple[str, str]] = (), form: str | None = None) -> Any:
    """Open what a source is called on the command line; `form` is the format of standard input."""
    if text == STDIN:
        return _read_stdin(form)
    if form is not None:
        message = f"The format of {text} is told by its name. Leave --format out; it is for standard input."
        raise InvalidArgumentError(message)
    file, mark, table = text.partition(TABLE)
    if mark and "://" not in text:
        return _read_table(file, table)
    filesystem = filesystem_of(text, options)
    # Without options the library opens it, where it reads best; on Spark that is not here.
    return text if filesystem is None else open_path(text, filesystem)


def _read_stdin(form: str | None) -> pa.Table:
    data = sys.stdin.buffer.read()
    form = form or _form_of(data)
    try:
        return READERS[f".{form}"](io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        message = f"Cannot read standard input as {form}: {error}. Say --format, or check what is sent."
        raise UnreadableFileError(message) from error


def _form_of(data: bytes) -> str:
    """Tell the format of bytes by how they begin."""
    if data.startswith(b"PAR1"):
        return "parquet"
    if data.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    return "json" if data.lstrip().startswith(b"{") else "csv"


def _read_table(file: str, table: str) -> Any:
    """Open a table of a database file."""
    if not os.path.isfile(file):
        message = f"There is no database file {file}. Check the path of the source."
        raise InvalidArgumentError(message)
    with open(file, "rb") as stream:
        is_sqlite = stream.read(len(_SQLITE)) == _SQLITE
    return _read_sqlite(file, table) if is_sqlite else _read_duckdb(file, table)


def _read_duckdb(file: str, table: str) -> pa.RecordBatchReader:
    import duckdb  # noqa: PLC0415  other sources do without

    try:
        connection = duckdb.connect(file, read_only=True)
        reader = connection.table(table).to_arrow_reader(_AT_ONCE)
    except duckdb.Error as error:
        message = (
            f"Cannot read the table {table!r} of {file}: {error}. Give a DuckDB or SQLite file and one of its tables."
        )
        raise UnreadableFileError(message) from error

    def batches() -> Iterator[pa.RecordBatch]:
        # Rows are read as long as the connection is open.
        with connection:
            yield from reader

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _read_sqlite(file: str, table: str) -> pa.RecordBatchReader:
    uri = f"file:{os.path.abspath(file).replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    quoted = _quoted(table)
    try:
        names = [column[0] for column in connection.execute(f"SELECT * FROM {quoted} LIMIT 0").description]  # noqa: S608  quoted
        schema = pa.schema([(name, _sqlite_type(connection, quoted, name)) for name in names])
        rows = connection.execute(f"SELECT * FROM {quoted}")  # noqa: S608  as above
    except sqlite3.Error as error:
        connection.close()
        message = f"Cannot read the table {table!r} of {file}: {error}. Check the name of the table."
        raise UnreadableFileError(message) from error

    def batches() -> Iterator[pa.RecordBatch]:
        with closing(connection):
            while some := rows.fetchmany(_AT_ONCE):
                columns = zip(zip(*some, strict=True), schema.types, strict=True)
                yield pa.record_batch([pa.array(values, kind) for values, kind in columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _sqlite_type(connection: sqlite3.Connection, table: str, column: str) -> pa.DataType:
    """Tell the type of a column by what is in it: SQLite lets every row have its own."""
    kinds = connection.execute(f"SELECT DISTINCT typeof({_quoted(column)}) FROM {table}")  # noqa: S608  quoted
    match sorted(kind for (kind,) in kinds if kind != "null"):
        case ["integer"]:
            return pa.int64()
        case ["real"] | ["integer", "real"]:
            return pa.float64()
        case ["blob"]:
            return pa.binary()
        case ["text"] | []:
            # Of NULLs alone nothing is known; a text may become any type.
            return pa.string()
        case several:
            message = f"The column {column} of {table} holds {' and '.join(several)}. Cast it to one type first."
            raise UnreadableFileError(message)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
