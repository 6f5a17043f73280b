"""Every operation on a real object store, compared with the same on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import open_dataset_io

import merganser

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_stores.servers import Server


def read_rows(path: str) -> list[dict[str, Any]]:
    """Read all rows with PyArrow, file by file, sorted by key."""
    filesystem, root = fsspec.core.url_to_fs(path)
    found: list[dict[str, Any]] = []
    for name in filesystem.find(root):
        if name.endswith(".parquet"):
            with filesystem.open(name, "rb") as stream:
                found += pq.ParquetFile(stream).read().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def change(path: str, engine: Any) -> list[Any]:
    """Do one of each operation, and return what they tell of themselves."""
    rows = pa.table({"id": range(100), "v": ["old"] * 100})
    first = merganser.merge(rows, path, key_columns="id", max_rows_per_file=40, retain=9, engine=engine)
    told: list[Any] = [first.stats]
    some = pa.table({"id": [5, 50, 500], "v": ["new"] * 3})
    told.append(merganser.merge(some, path, key_columns="id", retain=9, batch_id="monday", engine=engine).stats)
    told.append(merganser.merge(some, path, key_columns="id", retain=9, batch_id="monday", engine=engine).replayed)
    told.append(merganser.write_dataset(pa.table({"id": [501], "v": ["appended"]}), path, "append", retain=9).row_count)
    told.append(merganser.merge(rows.slice(20), path, "full_merge", "id", retain=9, engine=engine).stats)
    told.append(merganser.undo(path).operation)
    told.append(len(merganser.compact(path, retain=9).files))
    told.append([(one.operation, one.inserted, one.updated, one.deleted) for one in merganser.history(path)])
    return told


@pytest.mark.parametrize("name", ["arrow", "duckdb"])
def test_operations_tell_and_leave_the_same_as_on_a_disk(lake: str, tmp_path: Path, name: str) -> None:
    here = f"{tmp_path}/t"
    assert change(f"{lake}/t", name) == change(here, name)
    assert read_rows(f"{lake}/t") == read_rows(here) != []
    found = open_dataset_io(name).read(f"{lake}/t")
    table = found.to_table() if name == "arrow" else found.to_arrow_table()
    assert table.sort_by("id").to_pylist() == read_rows(here)


def test_duckdb_reads_on_and_on(lake: str, request: pytest.FixtureRequest) -> None:
    # Threads of DuckDB, of Arrow and of the store's client must not wait for each other.
    rows = pa.table({"id": range(300), "v": ["some"] * 300})
    merganser.write_dataset(rows, f"{lake}/t", max_rows_per_file=40, row_group_size=20)
    io = merganser.DuckDBDatasetIO()
    for _ in range(5000 if request.config.getoption("--all-stores") else 10):
        assert io.read(f"{lake}/t").filter("id >= 100").aggregate("count(*)").fetchall() == [(200,)]


def test_a_folder_of_the_bucket_itself_is_a_dataset(server: Server) -> None:
    path = f"{server.url}/t{server.port}"
    assert merganser.merge(pa.table({"id": [1, 2]}), path, key_columns="id").target_count_after == 2
    assert merganser.recover(path) is False
