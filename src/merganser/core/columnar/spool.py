"""A spool: rows that are read once and needed again, in memory while they are few, else in a file without a name.

The file is mapped, not read, so the system may take its memory back at any time; it is gone with the table, or with
the process, however that ends.
"""

from __future__ import annotations

import mmap
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.columnar.take import coalesce_batches
from merganser.errors import StagingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Bytes that a spool may hold in memory.
MAX_MEMORY_BYTES = 256 << 20


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Keep rows as a table that `merganser.core.columnar.take.take` can pick from.

    >>> spool(iter([pa.record_batch({"id": [1]}), pa.record_batch({"id": [2]})]), pa.schema({"id": pa.int64()}))
    pyarrow.Table
    id: int64
    ----
    id: [[1,2]]
    """
    coming = coalesce_batches(batches, schema)
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in coming:
        kept.append(batch)
        size += batch.nbytes
        if size > MAX_MEMORY_BYTES:
            return _write_mapped(_drain(kept, coming), schema)
    return pa.Table.from_batches(kept, schema)


def _drain(kept: list[pa.RecordBatch], coming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the batches that were kept, letting go of each, and then the rest."""
    while kept:
        yield kept.pop(0)
    yield from coming


def _write_mapped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    with _translate_spool_errors():
        file = tempfile.TemporaryFile(prefix="merganser-")  # noqa: SIM115  closed below
    with file:
        with _translate_spool_errors():
            writer = pa.ipc.new_file(file, schema)
        for batch in batches:
            with _translate_spool_errors():
                writer.write_batch(batch)
        with _translate_spool_errors():
            writer.close()
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()


@contextmanager
def _translate_spool_errors() -> Iterator[None]:
    """Say where rows cannot be kept; an error of the source itself is not meant."""
    try:
        with translate_memory_errors("buffering of the source"):
            yield
    except OSError as error:
        folder = tempfile.tempdir or "a folder for temporary files"
        message = (
            f"The source does not fit into memory and cannot be kept in {folder}: {error}. Free some space there, or "
            "set TMPDIR to a folder on a larger disk."
        )
        raise StagingError(message) from error
