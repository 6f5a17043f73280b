"""The key scan: key columns of candidate row groups, streamed, several at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.arrow_versions import find_read_remedy
from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.columnar.threads import open_pool
from merganser.core.model.casts import cast_column
from merganser.core.model.file_shape import apply_shape
from merganser.core.model.keys import fill_null_keys, join_keys, list_key_names, name_key_columns, to_canonical
from merganser.core.model.schema import to_plain_type
from merganser.core.parquet.footer import load_footer
from merganser.errors import MerganserError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from merganser.core.model.engine import RewriteJob, ScanFile
    from merganser.core.model.file_shape import FileShape
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.store import Store

POSITION_COLUMNS = ("file", "row_group", "position")
READER_THREADS = 4
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class OpenFile:
    """A data file that is open, with its footer; `options` are those of `pq.ParquetFile`.

    With a `shape`, its columns are read in that schema.
    """

    footer: Footer
    stream: pa.NativeFile
    options: Mapping[str, Any]
    shape: FileShape | None = None

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer as PyArrow parses it."""
        return self.footer.metadata

    def read(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        """Decode a row group."""
        if self.shape is None:
            return self._read_stored(group, columns)
        shaped, rows = self.shape.select(columns), self.metadata.row_group(group).num_rows
        names = list(dict.fromkeys(column.origin for column in shaped if column.origin is not None))
        table = self._read_stored(group, names) if names else pa.table({})
        if names and table.num_rows != rows:
            return table
        return apply_shape(table, shaped, rows, self.footer.display_path)

    def _read_stored(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        int96 = self.footer.int96_columns
        if not (int96 if columns is None else int96.intersection(columns)):
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        return self.footer.decode_int96(self.read_bytes(group, columns))

    def read_bytes(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        """Decode a row group, INT96 as bytes."""
        return self._int96_file.read_row_group(group, columns=columns, use_threads=False)

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.stream, metadata=self.footer.metadata, **self.options)

    @cached_property
    def _int96_file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.stream, metadata=self.footer.int96_as_bytes, **self.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def open_parquet(
    store: Store,
    path: str,
    footer: Footer | None = None,
    *,
    read_ahead: bool = False,
    dictionaries: Sequence[str] = (),
    shape: FileShape | None = None,
) -> OpenFile:
    """Open a data file as all of merganser reads one, in its own schema or in that of a shape.

    Columns of strings or bytes may be read as `dictionaries`, if they are stored as such.

    `read_ahead` uses Arrow's IO threads. A key scan must not: it holds one of them while it waits for our readers, so
    that enough concurrent scans would deadlock.
    """
    stream = store.open_input(path)
    if footer is None:
        footer = load_footer(stream, path)
    stored = [name if shape is None else shape.origins[name] for name in dictionaries]
    return OpenFile(footer, stream, {"pre_buffer": read_ahead, "read_dictionary": stored}, shape)


def read_group(
    parquet: OpenFile, group: int, columns: Sequence[str] | None, path: str, *, int96_as_bytes: bool = False
) -> pa.Table:
    """Decode a row group; data that cannot be decoded is an error that names the file."""
    try:
        with translate_memory_errors(f"reading row group {group} of {path}"):
            table = (parquet.read_bytes if int96_as_bytes else parquet.read)(group, columns)
    except MerganserError:
        raise
    except (OSError, pa.ArrowException) as error:
        message = f"Cannot read row group {group} of {path}: {error}. {find_read_remedy(error)}"
        raise UnreadableFileError(message) from error
    rows = parquet.metadata.row_group(group).num_rows
    if table.num_rows != rows:
        raise UnreadableFileError(
            f"Row group {group} of {path} holds {table.num_rows} rows, but its footer records {rows}. "
            "Restore or remove the file."
        )
    return table


def match_keys(store: Store, files: Sequence[ScanFile], keys: Sequence[str], source: pa.Table) -> pa.Table:
    """Join the key columns of row groups with canonical source keys; returns positions and source rows, in order."""
    schema = make_key_schema([source.schema.field(name).type for name in list_key_names(keys)])
    reader = pa.RecordBatchReader.from_batches(schema, read_key_batches(store, files, keys, schema))
    matches = join_keys(reader, source, POSITION_COLUMNS)
    return matches.sort_by([(name, "ascending") for name in POSITION_COLUMNS])


def make_key_schema(types: Sequence[pa.DataType]) -> pa.Schema:
    """Make the schema of canonical keys of these types, with the file, row group and position of each row."""
    fields = [*((name, pa.int32()) for name in POSITION_COLUMNS[:2]), (POSITION_COLUMNS[2], pa.int64())]
    return pa.schema([*fields, *zip(name_key_columns(len(types)), types, strict=True)])


def read_key_batches(
    store: Store, files: Sequence[ScanFile], keys: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Stream canonical keys with the file, row group and position of each row."""
    tasks = list(_list_tasks(files))
    with open_pool(len(tasks), READER_THREADS, "scan") as pool:
        waiting: deque[Future[list[pa.RecordBatch]]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(_read_keys, store, *task, keys, schema))
                if len(waiting) > READER_THREADS:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _list_tasks(files: Iterable[ScanFile]) -> Iterator[tuple[ScanFile, Sequence[int]]]:
    for file in files:
        for start in range(0, len(file.groups), READER_THREADS):
            yield file, file.groups[start : start + READER_THREADS]


def _read_keys(
    store: Store, file: ScanFile, groups: Sequence[int], keys: Sequence[str], schema: pa.Schema
) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    with open_parquet(store, file.path, file.footer, shape=file.shape) as parquet:
        for group in groups:
            rows = parquet.metadata.row_group(group).num_rows
            columns = [to_canonical(column) for _, column in read_columns(parquet, group, file, keys)]
            position = [np.full(rows, file.number, np.int32), np.full(rows, group, np.int32), np.arange(rows)]
            batches += pa.table([*position, *fill_null_keys(columns, keys)], schema=schema).to_batches(
                max_chunksize=_BATCH_ROWS
            )
    return batches


def read_rows(
    store: Store, file: ScanFile | RewriteJob, group: int, columns: Sequence[str], positions: npt.NDArray[np.int64]
) -> dict[str, pa.ChunkedArray]:
    """Read columns of some rows of a row group."""
    picks = pa.array(positions)
    rows: dict[str, pa.ChunkedArray] = {}
    if not columns:
        return rows
    with open_parquet(store, file.path, file.footer, read_ahead=not store.is_local, shape=file.shape) as parquet:
        for name, column in read_columns(parquet, group, file, columns):
            # Arrow's `take` does not support views.
            taken = (
                column if pa.types.is_dictionary(column.type) else cast_column(column, to_plain_type(column.type), name)
            )
            rows[name] = taken.take(picks)
    return rows


def read_columns(
    parquet: OpenFile, group: int, file: ScanFile | RewriteJob, columns: Sequence[str]
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Read columns of a row group; constants win over the file."""
    rows = parquet.metadata.row_group(group).num_rows
    names = [name for name in columns if name not in file.constants]
    table = read_group(parquet, group, names, file.path) if names else None
    for name in columns:
        if table is None or name in file.constants:
            yield name, pa.chunked_array([pa.repeat(file.constants[name][0], rows)])
        else:
            yield name, table.column(name)
