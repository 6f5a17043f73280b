"""The default: PyArrow for a source that takes little memory, DuckDB for any other one.

PyArrow starts sooner and matches keys in less time, but holds the source and its keys in memory. DuckDB spills. The
choice depends only on the source: its kind, and its size in memory.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.columnar.spool import drain
from merganser.core.rows.table_source import LocalEngine
from merganser.core.sources.source import stream_source
from merganser.core.storage.sql_paths import check_dataset_path
from merganser.engines.arrow import ArrowEngine, PyArrowDatasetIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.merge.operation import OperationContext
    from merganser.engines.arrow import OpenedTable
    from merganser.engines.duckdb.engine import DuckDBEngine, OpenedStream

MAX_ARROW_BYTES = 64 << 20  # size of a source, as Arrow memory, up to which PyArrow merges it


class AutoDatasetIO(PyArrowDatasetIO):
    """Merge, plan and write Parquet datasets with the engine that suits each source, and read them with PyArrow."""

    engine_name = "auto"
    option_engines = ("duckdb",)

    @contextmanager
    def _open_engine(self, context: OperationContext) -> Iterator[AutoEngine]:
        # As on DuckDB, so that no path is accepted or refused by the size of a source.
        check_dataset_path(context.path, context.options.filesystem)
        with ExitStack() as stack:

            def open_duckdb() -> DuckDBEngine:
                from merganser.engines.duckdb import DuckDBDatasetIO  # noqa: PLC0415  most merges do without it

                return stack.enter_context(DuckDBDatasetIO()._open_engine(context))  # noqa: SLF001  the same base class

            yield AutoEngine(open_duckdb, needs_duckdb=context.options.use_merge is not None)


class AutoEngine(LocalEngine):
    """`merganser.core.model.engine.Engine` that becomes another one when it opens a source."""

    name = ArrowEngine.name

    def __init__(self, open_duckdb: Callable[[], DuckDBEngine], *, needs_duckdb: bool) -> None:
        self._open_duckdb = open_duckdb
        self._needs_duckdb = needs_duckdb

    def open(self, source: Any) -> OpenedTable | OpenedStream:
        # A relation streams, and its errors are DuckDB's.
        rows = source if self._needs_duckdb or _is_relation(source) else _read_start(stream_source(source))
        is_small = isinstance(rows, pa.Table) and rows.nbytes <= MAX_ARROW_BYTES and not self._needs_duckdb
        engine: ArrowEngine | DuckDBEngine = ArrowEngine() if is_small else self._open_duckdb()
        self.name = engine.name
        return engine.open(rows)


def _is_relation(source: Any) -> bool:
    duckdb = sys.modules.get("duckdb")
    return duckdb is not None and isinstance(source, duckdb.DuckDBPyRelation)


def _read_start(rows: pa.Table | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """Read a stream until it ends or is too large for PyArrow, and then return all of it as a stream."""
    if isinstance(rows, pa.Table):
        return rows
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        batches.append(batch)
        size += batch.nbytes
        if size > MAX_ARROW_BYTES:
            return pa.RecordBatchReader.from_batches(rows.schema, drain(batches, rows))
    return pa.Table.from_batches(batches, rows.schema)
