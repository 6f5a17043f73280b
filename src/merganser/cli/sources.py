"""Sources by name: files, patterns and URLs, standard input, and tables of SQLite and DuckDB files."""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from merganser.cli.command import filesystem_of
from merganser.core.errors import InvalidArgumentError, UnreadableFileError
from merganser.core.files import SourceFiles, find_files, read_arrow
from merganser.core.read import open_dataset
from merganser.core.source import stream_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    found = find_files(text, filesystem_of(text, options))
    return found.rows() if isinstance(found, SourceFiles) else stream_source(open_dataset(found))


def _read_stdin(form: str | None) -> pa.Table:
    data = sys.stdin.buffer.read()
    readers: dict[str, Callable[[Any], pa.Table]] = {
        "parquet": pq.read_table,
        "csv": pacsv.read_csv,
        "json": pajson.read_json,
        "arrow": read_arrow,
    }
    try:
        return readers[form or _form_of(data)](io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        message = f"Cannot read standard input as {form or _form_of(data)}: {error}. Say --format, or check what is sent."
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


def _read_duckdb(file: str, table: str) -> Any:
    import duckdb  # noqa: PLC0415  other sources do without

    try:
        with duckdb.connect(file, read_only=True) as connection:
            return connection.table(table).to_arrow_table()
    except duckdb.Error as error:
        message = f"Cannot read the table {table!r} of {file}: {error}. Give a DuckDB or SQLite file and one of its tables."
        raise UnreadableFileError(message) from error


def _read_sqlite(file: str, table: str) -> pa.Table:
    uri = f"file:{os.path.abspath(file).replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    try:
        return _joined(_sqlite_pieces(connection, table), table)
    except (sqlite3.Error, pa.ArrowException) as error:
        message = f"Cannot read the table {table!r} of {file}: {error}. Check the name, or cast columns of mixed types."
        raise UnreadableFileError(message) from error
    finally:
        connection.close()


def _sqlite_pieces(connection: sqlite3.Connection, table: str) -> Iterator[pa.Table]:
    quoted = table.replace('"', '""')
    found = connection.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608  quoted
    names = [column[0] for column in found.description]
    yield pa.table({name: pa.array([], pa.null()) for name in names})
    while rows := found.fetchmany(_AT_ONCE):
        yield pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def _joined(pieces: Iterator[pa.Table], table: str) -> pa.Table:
    joined = pa.concat_tables(list(pieces), promote_options="permissive")
    nothing = [name for name in joined.column_names if pa.types.is_null(joined.schema.field(name).type)]
    if nothing and joined.num_rows:
        # A column of NULLs alone has no type; a text may become any.
        schema = pa.schema([field.with_type(pa.string()) if field.name in nothing else field for field in joined.schema])
        return joined.cast(schema)
    return joined
