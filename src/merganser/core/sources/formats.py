"""Readers of source files by file extension: Parquet, CSV, JSON lines and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.parquet.footer import load_footer
from merganser.core.sources.csv_reader import read_csv
from merganser.core.sources.json_reader import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from merganser.core.sources.read_options import ReadOptions

_ARROW_FILE = b"ARROW1"


def _read_parquet(stream: Any, _: ReadOptions) -> pa.Table:
    footer = load_footer(pa.PythonFile(stream, "r"), getattr(stream, "name", "the file"))
    with pq.ParquetFile(stream, metadata=footer.int96_as_bytes) as parquet:
        return footer.decode_int96(parquet.read()).cast(footer.schema)


def _read_arrow(stream: Any, _: ReadOptions) -> pa.Table:
    """Read the Arrow IPC format, as a file or a stream."""
    is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
    stream.seek(0)
    return pa.ipc.open_file(stream).read_all() if is_file else pa.ipc.open_stream(stream).read_all()


def _read_tsv(stream: Any, options: ReadOptions) -> pa.Table:
    return read_csv(stream, options, "\t")


# By file extension.
READERS: dict[str, Callable[[Any, ReadOptions], pa.Table]] = {
    ".parquet": _read_parquet,
    ".csv": read_csv,
    ".tsv": _read_tsv,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), read_json),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _read_arrow),
}
