"""Source files: Parquet, CSV, JSON or Arrow, found by path or pattern and read one by one."""

from __future__ import annotations

import io
import lzma
import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.columnar.take import TARGET_CHUNK_BYTES, TARGET_CHUNK_ROWS
from merganser.core.model.schema import check_same_columns
from merganser.core.parquet.footer import load_footer
from merganser.core.sources.formats import READERS
from merganser.core.sources.read_options import DEFAULTS, ReadOptions
from merganser.core.storage.location import locate
from merganser.core.storage.store import CLIENT_ERRORS
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    InvalidArgumentError,
    MerganserError,
    SchemaMismatchError,
    UnreadableFileError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import fsspec

    from merganser.core.storage.location import Location
    from merganser.core.storage.remote import RemoteStore

_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")


@dataclass(frozen=True, slots=True)
class FileSource:
    """A path or pattern of source files, and how they are read."""

    path: str
    filesystem: Any = None
    options: ReadOptions = DEFAULTS

    @property
    def file_format(self) -> str:
        """The format that was given, or the extension of the path without that of a compression."""
        return self.options.file_format or os.path.splitext(_strip_compression(self.path.lower()))[1].removeprefix(".")


@dataclass(frozen=True, slots=True)
class SourceFileInfo:
    """The schema of a file, and for Parquet the bytes of each row group."""

    schema: pa.Schema
    group_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a path or pattern, in name order."""

    filesystem: fsspec.AbstractFileSystem | None  # None: local files
    names: tuple[str, ...]
    path: str
    options: ReadOptions = DEFAULTS

    @property
    def is_parquet(self) -> bool:
        """Whether schemas are cheap to read; other formats have to be read completely."""
        return all(map(self._is_parquet, self.names))

    def _is_parquet(self, name: str) -> bool:
        return self.options.file_format == "parquet" if self.options.file_format else name.lower().endswith(".parquet")

    def read_info(self, name: str) -> SourceFileInfo:
        """Read the schema of a file, and the sizes of its row groups."""
        if not self._is_parquet(name):
            return SourceFileInfo(self._read_table(name).schema)
        with _translate_errors(name), self._open(name) as stream:
            footer = load_footer(pa.PythonFile(stream, "r"), name)
            return SourceFileInfo(footer.schema, tuple(_list_group_sizes(footer.metadata)))

    def unify_schemas(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """Return a schema that the rows of all files fit."""
        for name, schema in zip(self.names, schemas, strict=True):
            check_same_columns(schemas[0], schema, self.names[0], name)
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaMismatchError(
                f"The files that {self.path} matches disagree about a column: {error}. Give them one schema "
                "(column_types, if they are text), or pass them one by one."
            ) from error

    def read_batches(
        self, name: str, schema: pa.Schema, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a file, or some row groups of it, cast to the common schema."""
        if not self._is_parquet(name):
            yield from _cast_table(schema, self._read_table(name)).to_batches()
            return
        with _translate_errors(name), self._open(name) as stream:
            footer = load_footer(pa.PythonFile(stream, "r"), name)
            # Read-ahead would bring all row groups into memory.
            with pq.ParquetFile(stream, metadata=footer.int96_as_bytes, pre_buffer=False) as parquet:
                for batch in parquet.iter_batches(choose_batch_size(footer.metadata), groups):
                    yield from _cast_table(schema, footer.decode_int96(pa.Table.from_batches([batch]))).to_batches()

    def read_all(self) -> pa.Table | pa.RecordBatchReader:
        """Read all files; Parquet as a reader."""
        if not self.is_parquet:
            tables = [self._read_table(name) for name in self.names]
            schema = self.unify_schemas([table.schema for table in tables])
            return pa.concat_tables([_cast_table(schema, table) for table in tables])
        schema = self.unify_schemas([self.read_info(name).schema for name in self.names])
        batches = (batch for name in self.names for batch in self.read_batches(name, schema))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _read_table(self, name: str) -> pa.Table:
        stem = _strip_compression(name)
        ending = f".{self.options.file_format}" if self.options.file_format else os.path.splitext(stem)[1].lower()
        reader = READERS.get(ending)
        if reader is None:
            known = ", ".join(READERS)
            raise InvalidArgumentError(f"The format of {name} is unknown. Its name must end in one of {known}.")
        is_zstd = name.endswith(".zst")
        compression = None if is_zstd or stem == name else "infer"
        with _translate_errors(name), self._open(name, compression) as stream:
            return reader(_decompress_zstd(stream) if is_zstd else stream, self.options)

    def _open(self, name: str, compression: str | None = None) -> Any:
        if self.filesystem is None and compression is None:
            return open(name, "rb")
        return (self.filesystem or _load_local_filesystem()).open(name, "rb", compression=compression)


def _decompress_zstd(stream: Any) -> io.BytesIO:
    """Decompress by Arrow: fsspec needs another package for it, and its stream cannot go back to the start."""
    with pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd") as content:
        return io.BytesIO(content.read())


def _strip_compression(name: str) -> str:
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name


def find_files(source: FileSource) -> SourceFiles | Location:
    """Resolve a path or pattern to source files, or to the folder of a dataset."""
    path = source.path
    location = locate(path, source.filesystem)
    filesystem = None if location.store.is_local else cast("RemoteStore", location.store).filesystem
    with _explain_access(path):
        path_type = location.store.get_path_type(location.root)
    if path_type == "directory":
        check_untyped(source.options, path)
        return location
    found = [location.root] if path_type == "file" else []
    if not found and any(mark in location.root for mark in "*?["):
        found = sorted((filesystem or _load_local_filesystem()).glob(location.root))
    if not found:
        problem = f"No file matches {path}" if "*" in path else f"The source file {path} does not exist"
        raise InvalidArgumentError(f"{problem}. Check the path of the source.")
    return SourceFiles(filesystem, tuple(found), path, source.options)


def _load_local_filesystem() -> fsspec.AbstractFileSystem:
    import fsspec  # noqa: PLC0415  slow to load, and only patterns and compressed files need it

    return fsspec.filesystem("file")


def check_untyped(options: ReadOptions, label: str) -> None:
    """Refuse options of reading text for a source whose columns have types."""
    for name, given in (("column_types", options.types), ("null_values", options.null_values)):
        if given:
            raise InvalidArgumentError(
                f"{name} is for CSV and JSON files, whose columns have no types; the source is {label}. Leave it out, "
                "and cast the columns of the source."
            )


def check_folder(schema: pa.Schema, path: str) -> None:
    """Refuse a folder without files, which has no schema."""
    if not schema.names:
        raise InvalidArgumentError(f"The source folder {path} holds no Parquet file. Check the path of the source.")


def choose_batch_size(metadata: pq.FileMetaData) -> int:
    """Choose the number of rows per batch."""
    rows: int = TARGET_CHUNK_BYTES * metadata.num_rows // max(1, sum(_list_group_sizes(metadata)))
    return max(1, min(TARGET_CHUNK_ROWS, rows))


def _list_group_sizes(metadata: pq.FileMetaData) -> Iterator[int]:
    return (metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))


def _cast_table(schema: pa.Schema, table: pa.Table) -> pa.Table:
    try:
        return (table if table.column_names == schema.names else table.select(schema.names)).cast(schema)
    except pa.ArrowInvalid as error:
        raise ColumnValueError(
            f"A value of one source file does not fit the type that all of them have in common: {error}. Give them one "
            "schema (column_types, if they are text), or pass them one by one."
        ) from error


@contextmanager
def _explain_access(path: str) -> Iterator[None]:
    """Name the source in errors of a store's client, such as missing credentials, which have no class in common."""
    try:
        yield
    except OSError:
        raise
    except CLIENT_ERRORS as error:
        raise UnreadableFileError(
            f"Cannot open the source {path}: {error}. Check the URL, and give credentials as storage options or in the "
            "environment."
        ) from error


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Name the source file in errors of reading it."""
    try:
        with translate_memory_errors(f"reading the source file {path}"):
            yield
    except UnreadableFileError as error:
        raise UnreadableFileError(f"Cannot read the source file {path}: {error}") from error
    except (ColumnTypeError, ColumnValueError) as error:
        raise type(error)(f"Cannot read the source file {path}: {error}") from error
    except MerganserError:
        raise
    except FileNotFoundError as error:
        raise InvalidArgumentError(f"The source file {path} does not exist. Check the path of the source.") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        message = f"Cannot read the source file {path}: {error}. Check that it is complete and of the right format."
        raise UnreadableFileError(message) from error
