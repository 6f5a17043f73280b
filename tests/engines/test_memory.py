"""Lack of memory is called that, with what was being done, and changes nothing (C7)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, open_dataset_io, put

import merganser
from merganser import DuckDBDatasetIO
from merganser.core.rows import key_scan as scan
from merganser.core.storage.local import LocalStore
from merganser.errors import DatasetMergeError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = pa.table({"id": [2, 3], "v": ["B", "c"]})
ENGINES = ["arrow", "duckdb"]
LACKING = {
    "arrow": pa.ArrowMemoryError("malloc of size 4096 failed"),
    "python": MemoryError(),
    "system": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
}
# A source of 1 GB where 256 MB of address space are left.
LIMITED = """
import resource, sys
from pathlib import Path
import pyarrow as pa
import merganser
path, engine = sys.argv[1:]
merganser.plan(pa.table({"id": [2], "v": ["b"]}), path, key_columns="id", engine=engine)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
texts = pa.array(["b" * 1024] * 4096)
ids = (pa.array(range(start, start + 4096)) for start in range(0, 1 << 20, 4096))
batches = (pa.record_batch([some, texts], schema=schema) for some in ids)
merganser.merge(pa.RecordBatchReader.from_batches(schema, batches), path, key_columns="id", engine=engine)
"""


@pytest.fixture
def path(lake: str) -> str:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "v": ["a", "b"]}))
    return f"{lake}/t"


def fail(error: BaseException) -> Callable[..., Any]:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    return failing


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("error", LACKING.values(), ids=LACKING)
def test_a_row_group_that_memory_cannot_hold(
    path: str, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan.OpenFile, "read", fail(error))
    with (
        assert_unchanged(path),
        pytest.raises(OutOfMemoryError, match=r"during reading row group 0 of .*a\.parquet: .* memory"),
    ):
        open_dataset_io(name).merge(SOURCE, path, "update", "id")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("error", LACKING.values(), ids=LACKING)
def test_a_source_file_that_memory_cannot_hold(
    path: str, lake: str, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(f"{lake}/in/rows.parquet", SOURCE)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail(error))
    with assert_unchanged(path), pytest.raises(MemoryError, match=r"Out of memory during reading .*rows\.parquet"):
        open_dataset_io(name).merge(source, path, key_columns="id")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("error", LACKING.values(), ids=LACKING)
def test_staging_for_which_there_is_no_memory(
    path: str, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "flush", fail(error))
    with assert_unchanged(path), pytest.raises(OutOfMemoryError, match=r"Out of memory during staging files for .*/t"):
        open_dataset_io(name).merge(SOURCE, path, key_columns="id")


def test_compaction_for_which_there_is_no_memory(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{path}/b.parquet", SOURCE)
    monkeypatch.setattr("merganser.core.maintenance.compact.load_existing", fail(MemoryError()))
    with (
        assert_unchanged(path),
        pytest.raises(OutOfMemoryError, match=r"during a change of .*/t: no more could be allocated"),
    ):
        merganser.compact(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_a_source_larger_than_the_memory_of_the_process(path: str, name: str) -> None:
    with assert_unchanged(path):
        command = [sys.executable, "-c", LIMITED, path, name]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "merganser.errors.OutOfMemoryError: Out of memory during" in ended.stderr


# D7
def test_the_limit_of_a_connection(path: str) -> None:
    connection = duckdb.connect(config={"memory_limit": "1MB", "threads": 1, "max_temp_directory_size": "0MB"})
    source = pa.table({"id": range(100_000), "v": [str(number) * 9 for number in range(100_000)]})
    with (
        assert_unchanged(path),
        pytest.raises(OutOfMemoryError, match=r"MERGE operation failed: (.|\n)*raise memory_limit"),
    ):
        DuckDBDatasetIO(connection).merge(source, path, key_columns="id")
    with assert_unchanged(path), pytest.raises(DatasetMergeError):
        DuckDBDatasetIO(connection).merge(source, path, key_columns="id")
