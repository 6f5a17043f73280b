"""Tables of other formats: neither read nor written as if they were plain folders of Parquet files."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from tests.engines.test_nesting import everything, table, writes
from tests.support import load, open_dataset_io, put, read_table

import merganser
from merganser.core import (
    IncrementalFileManager,
    ParquetMetadataAnalyzer,
    list_dataset_files,
    plan_incremental_rewrite,
)
from merganser.errors import InvalidArgumentError, UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

ARROW = open_dataset_io("arrow")
DUCKLAKE = "ducklake-019a8f3e-7c11-7d52-9e60-0a1b2c3d4e5f.parquet"
# What each format leaves beside its data, and where its data is.
FORMATS = {
    "Delta Lake": ("_delta_log/00000000000000000000.json", "day=mon/a.parquet"),
    "Iceberg": ("metadata/00000-5b7c1a52-9e60-4d52-8f3e-0a1b2c3d4e5f.metadata.json", "data/day=mon/a.parquet"),
    "Hudi": (".hoodie/hoodie.properties", "day=mon/a.parquet"),
    "Lance": ("_versions/1.manifest", "day=mon/a.parquet"),
    "DuckLake": ("../catalog.ducklake", f"day=mon/{DUCKLAKE}"),
}


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a format."""
    return str(request.param)


@pytest.fixture
def made(name: str, lake: str) -> str:
    """A table of another format, below `lake/lake`."""
    path = f"{lake}/lake/t"
    log, data = FORMATS[name]
    put(f"{path}/{data}", table([1, 2]).drop_columns("day"))
    os.makedirs(os.path.dirname(f"{path}/{log}"), exist_ok=True)
    Path(f"{path}/{log}").write_text("{}", "utf-8")
    return path


def refused(call: Callable[[], object], *told: str, lake: str) -> None:
    before = everything(lake)
    with pytest.raises(UnsupportedFileError) as found:
        call()
    assert all(text in str(found.value) for text in (*told, "ignore_table_format=True")), str(found.value)
    assert everything(lake) == before


def test_a_table_of_another_format_is_neither_read_nor_written(
    io: AnyDatasetIO, made: str, name: str, lake: str
) -> None:
    _, data = FORMATS[name]
    ducklake = name == "DuckLake"
    places = {
        made: f"a file of a {name} table"
        if ducklake
        else f"{made} is {'an' if name == 'Iceberg' else 'a'} {name} table",
        f"{lake}/lake": f"{lake}/lake contains {made}/{data}" if ducklake else f"contains the {name} table {made}:",
        f"{made}/{os.path.dirname(data)}": f"a file of a {name} table"
        if ducklake
        else f"lies inside the {name} table {made}:",
    }
    for path, told in places.items():
        for call in writes(io, path):
            refused(call, told, lake=lake)
        refused(partial(read_table, io, path), told, lake=lake)
        refused(partial(io.merge, path, f"{lake}/new", "upsert", "id"), told, lake=lake)


def test_maintenance_refuses_a_table_of_another_format(made: str, name: str, lake: str) -> None:
    for call in (
        partial(merganser.compact, made),
        partial(merganser.dedupe, made, "id"),
        partial(merganser.inspect, made),
        partial(list_dataset_files, made),
        partial(ParquetMetadataAnalyzer().analyze_dataset_files, made),
        partial(plan_incremental_rewrite, made, [1], "id"),
        partial(IncrementalFileManager().create_staging_directory, made),
    ):
        refused(call, name, lake=lake)


def test_an_abandoned_table_can_be_used_as_plain_files(io: AnyDatasetIO, made: str, name: str, lake: str) -> None:
    log = Path(made, FORMATS[name][0])
    ignoring: dict[str, Any] = {"ignore_table_format": True}
    assert io.read(made, **ignoring) is not None
    assert io.plan(table([1, 3]), made, "upsert", "id", **ignoring).inserted == 1
    result = io.merge(table([1, 3]), made, "upsert", "id", retain=1, **ignoring)
    assert (result.inserted, result.updated) == (1, 1)
    assert merganser.history(made)[0].options == {"retain": 1, **ignoring}
    io.write_dataset(table([4]), made, "append", retain=2, **ignoring)
    refused(partial(merganser.undo, made), name, lake=lake)
    merganser.undo(made, **ignoring)
    merganser.compact(made, **ignoring)
    assert merganser.dedupe(made, "id", **ignoring).duplicate_keys == 0
    assert merganser.inspect(made, **ignoring).rows == 3
    assert merganser.vacuum(made) == []
    assert not merganser.recover(made)
    assert len(list_dataset_files(made, **ignoring)) == 1
    assert log.read_text("utf-8") == "{}"


def test_a_source_of_another_format_can_be_read_as_plain_files(io: AnyDatasetIO, made: str, lake: str) -> None:
    source = io.read(made, ignore_table_format=True)
    assert io.merge(source, f"{lake}/new", key_columns="id").inserted == 2


def test_names_alone_do_not_make_a_table(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/metadata/a.parquet", table([1]))
    put(f"{path}/ducklake-notes.parquet", table([2]))
    for folder in ("_delta_log", "_versions", ".hoodie", "data"):
        os.makedirs(f"{path}/{folder}")
    Path(f"{path}/_versions/readme.txt").write_text("", "utf-8")
    Path(f"{path}/metadata/orders.metadata.json").write_text("{}", "utf-8")
    assert io.merge(table([2, 3]), path, key_columns="id").updated == 1
    assert sorted(load(io, path).column("id").to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("file", ["v3.metadata.json", "v3.gz.metadata.json", "00002-{uuid}.gz.metadata.json"])
def test_names_that_iceberg_gives_are_known(lake: str, file: str) -> None:
    put(f"{lake}/t/a.parquet", table([1]))
    log = Path(f"{lake}/t/metadata", file.format(uuid="5b7c1a52-9e60-4d52-8f3e-0a1b2c3d4e5f"))
    log.parent.mkdir()
    log.write_text("{}", "utf-8")
    refused(partial(load, ARROW, f"{lake}/t"), f"{lake}/t is an Iceberg table", lake=lake)


def test_a_table_on_an_object_store_is_seen(io: AnyDatasetIO) -> None:
    store = fsspec.filesystem("memory")
    try:
        io.merge(table([1]), "memory://lake/t", key_columns="id", partition_by="day")
        store.pipe_file("/lake/t/_delta_log/0.json", b"{}")
        for path, told in (
            ("memory://lake/t", "memory://lake/t is a Delta Lake table"),
            ("memory://lake", "contains the Delta Lake table memory://lake/t:"),
            ("memory://lake/t/day=mon", "lies inside the Delta Lake table memory://lake/t:"),
        ):
            for call in (partial(io.merge, table([2]), path, "upsert", "id"), partial(load, io, path)):
                with pytest.raises(UnsupportedFileError, match=told):
                    call()
    finally:
        store.rm("/", recursive=True)


def test_the_option_takes_true_or_false(io: AnyDatasetIO, lake: str) -> None:
    for call in writes(io, f"{lake}/t", ignore_table_format="yes"):
        with pytest.raises(InvalidArgumentError, match="ignore_table_format must be True or False, not 'yes'"):
            call()


def test_a_real_delta_table_holds_removed_files(lake: str) -> None:
    # Two versions of one row; the log has removed the first.
    for version, status in enumerate(("old", "new")):
        put(f"{lake}/t/{version}.parquet", pa.table({"id": [1], "status": [status]}))
    entries: list[list[dict[str, Any]]] = [
        [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"add": {"path": "0.parquet"}}],
        [{"remove": {"path": "0.parquet"}}, {"add": {"path": "1.parquet"}}],
    ]
    for version, actions in enumerate(entries):
        log = Path(f"{lake}/t/_delta_log/{version:020}.json")
        log.parent.mkdir(exist_ok=True)
        log.write_text("\n".join(map(json.dumps, actions)), "utf-8")
    refused(partial(load, ARROW, f"{lake}/t"), f"{lake}/t is a Delta Lake table", lake=lake)
