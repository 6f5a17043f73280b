"""Row files: rows that tasks have written once to Arrow files, for any number of merges to read.

This module runs on executors; it knows nothing of Spark.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from merganser.core.columnar.take import coalesce_batches, empty_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from merganser.core.storage.store import Store

# Bytes of rows in one file, which a task may hold in memory.
FILE_BYTES = 64 << 20
IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file: its path and rows, and the bytes of each column in memory."""

    path: str
    rows: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Files of the same columns, in order."""

    store: Store
    schema: pa.Schema
    files: tuple[RowFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)

    def without_files(self) -> RowFiles:
        """Leave out the files, for tasks that get theirs as input."""
        return replace(self, files=())

    @classmethod
    def from_dict(cls, store: Store, folder: str, facts: Mapping[str, Any]) -> RowFiles:
        """Read it from the dict that `to_dict` made; the files are in a folder."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        files = tuple(RowFile(f"{folder}/{name}", int(rows), tuple(sizes)) for name, rows, sizes in facts["files"])
        return cls(store, schema, files)

    def to_dict(self) -> dict[str, Any]:
        """Convert it to dicts, lists, strings and numbers, as in JSON."""
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        files = [(file.path.rpartition("/")[2], file.rows, file.sizes) for file in self.files]
        return {"schema": schema, "files": files}

    def select(self, columns: Mapping[str, str | pa.Scalar] | Sequence[str]) -> SelectedRows:
        """Choose columns, by other names if it is a mapping."""
        return SelectedRows(self, columns if isinstance(columns, Mapping) else {name: name for name in columns})

    def read_batches(self, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns of one file."""
        options = pa.ipc.IpcReadOptions(included_fields=[self.schema.names.index(name) for name in names])
        with self.store.open_input(path) as stream:
            reader = pa.ipc.open_file(stream, options=options)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).select(list(names))


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows of row files as a source: each column is one of the files', or a constant.

    `unique_columns` are those of a key of which no two rows have the same.
    """

    row_files: RowFiles
    columns: Mapping[str, str | pa.Scalar]
    unique_columns: Sequence[str] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        schema = self.row_files.schema
        return pa.schema(
            [
                pa.field(name, schema.field(of).type if isinstance(of, str) else of.type)
                for name, of in self.columns.items()
            ]
        )

    @property
    def size(self) -> int:
        """The bytes of all rows in memory."""
        return sum(map(self.measure, self.row_files.files))

    def measure(self, file: RowFile) -> int:
        """Sum up the bytes of the columns of one file."""
        stored = {of for of in self.columns.values() if isinstance(of, str)}
        sizes = zip(self.row_files.schema.names, file.sizes, strict=True)
        return sum(size for name, size in sizes if name in stored)

    def without_files(self) -> SelectedRows:
        """Leave out the files, for tasks that get theirs as input."""
        return replace(self, row_files=self.row_files.without_files())

    def read_batches(self, path: str, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read one file, or some columns of it."""
        wanted = {name: self.columns[name] for name in (self.columns if names is None else names)}
        stored = list(dict.fromkeys(of for of in wanted.values() if isinstance(of, str)))
        # Without any column there would be no rows.
        for batch in self.row_files.read_batches(path, stored or self.row_files.schema.names[:1]):
            arrays = [
                batch.column(of) if isinstance(of, str) else pa.repeat(of, batch.num_rows) for of in wanted.values()
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(wanted))

    def read_table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Read all rows into memory."""
        schema = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        batches = [batch for file in self.row_files.files for batch in self.read_batches(file.path, names)]
        return pa.Table.from_batches(batches, schema) if batches else empty_table(schema)


class RowFileWriter:
    """Writes batches to files of at most about `FILE_BYTES` in memory; `files` are complete when the block ends."""

    def __init__(self, store: Store, folder: str, schema: pa.Schema) -> None:
        self._store, self._folder, self._schema = store, folder, schema
        self._open = ExitStack()
        self._writer: pa.RecordBatchFileWriter | None = None
        self._path = ""
        self._rows = 0
        self._sizes = [0] * len(schema)
        self.files: list[RowFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        else:
            self._open.__exit__(kind, error, trace)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of the schema."""
        if not batch.num_rows:
            return
        if self._writer is None:
            self._path = f"{self._folder}/{uuid.uuid4().hex}.rows"
            stream = self._open.enter_context(self._store.create(self._path))
            self._writer = self._open.enter_context(pa.ipc.new_file(stream, self._schema, options=IPC_OPTIONS))
        self._writer.write_batch(batch)
        self._rows += batch.num_rows
        self._sizes = [size + column.nbytes for size, column in zip(self._sizes, batch.columns, strict=True)]
        if sum(self._sizes) >= FILE_BYTES:
            self._finish()

    def _finish(self) -> None:
        self._open.close()
        if self._writer is not None:
            self.files.append(RowFile(self._path, self._rows, tuple(self._sizes)))
        self._writer, self._rows, self._sizes = None, 0, [0] * len(self._schema)


def write_row_files(batches: Iterable[pa.RecordBatch], store: Store, folder: str, schema: pa.Schema) -> list[RowFile]:
    """Write rows to files of a folder."""
    with RowFileWriter(store, folder, schema) as writer:
        for batch in coalesce_batches((batch for batch in batches if batch.num_rows), schema):
            writer.write(batch)
    return writer.files
