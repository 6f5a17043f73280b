"""A spool buffers rows that can be read only once: in memory, or from some size on in an anonymous temporary file.

The file is memory-mapped, so the system can reclaim its pages at any time. It is removed with the table, or when the
process ends.
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

MAX_MEMORY_BYTES = 256 << 20  # bytes that a spool may hold in memory


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Buffer rows as a table with chunks that `take` can use.

    >>> spool(iter([pa.record_batch({"id": [1]}), pa.record_batch({"id": [2]})]), pa.schema({"id": pa.int64()}))
    pyarrow.Table
    id: int64
    ----
    id: [[1,2]]
    """
    source = coalesce_batches(batches, schema)
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in source:
        buffered.append(batch)
        size += batch.nbytes
        if size > MAX_MEMORY_BYTES:
            return _write_mapped(drain(buffered, source), schema)
    return pa.Table.from_batches(buffered, schema)


def drain(buffered: list[pa.RecordBatch], source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the buffered batches, releasing each, and then the rest."""
    while buffered:
        yield buffered.pop(0)
    yield from source


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
    """Translate errors of the temporary file, but not those of the source."""
    try:
        with translate_memory_errors("buffering of the source"):
            yield
    except OSError as error:
        folder = tempfile.tempdir or "a folder for temporary files"
        raise StagingError(
            f"The source does not fit into memory and cannot be buffered in {folder}: {error}. Free some space there, "
            "or set TMPDIR to a folder on a larger disk."
        ) from error
