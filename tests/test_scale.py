"""The model of docs/scale.md: requests, bytes and time per file are what it says, and the page has its table."""

from __future__ import annotations

import hashlib
import time
import tracemalloc
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import scale
from benchmarks.table import markdown_table
from fsspec.implementations.memory import MemoryFileSystem

import merganser as mg
from merganser.core.dataset import file_statistics
from merganser.core.dataset.snapshot import load_target
from merganser.core.dataset.statistics_cache import CACHE_NAME
from merganser.core.storage.location import locate

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
SMALL, LARGE = 200, 1200


class CountingStore(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem in memory that lists and tags objects as an object store does, and counts requests."""

    protocol = "s3"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.requests["list"] += 1
        found = super().find(path, *arguments, **options)
        return {name: self._tag(info) for name, info in found.items()} if options.get("detail") else found

    def info(self, path: str, **options: Any) -> Any:
        return self._tag(super().info(path, **options))

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        self.requests["open" if mode == "rb" else "write"] += 1
        return super()._open(path, mode, *arguments, **options)

    def _tag(self, info: dict[str, Any]) -> dict[str, Any]:
        if info["type"] != "file":
            return info
        return {**info, "ETag": hashlib.sha256(self.store[info["name"]].getvalue()).hexdigest()}


def change(value: int) -> pa.Table:
    return pa.table({"id": [15], "v": [value]})


def make_files(folder: Path, count: int) -> str:
    folder.mkdir()
    for number in range(count):
        table = pa.table({"id": range(number * 2, number * 2 + 2), "v": [0, 0]})
        pq.write_table(table, folder / f"part-{uuid.UUID(int=number).hex}.parquet")
    return str(folder)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("scale")
    return {count: make_files(folder / str(count), count) for count in (SMALL, LARGE)}


def test_the_page_has_the_table_of_the_model() -> None:
    head = ["files", *(f"{files:,}" for files in scale.FILES)]
    assert markdown_table(tuple(head), scale.make_table()) in PAGE.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("files", [100, 300])
def test_requests_to_an_object_store_are_those_of_the_model(files: int) -> None:
    store, path = CountingStore(), f"/{uuid.uuid4().hex}/t"
    mg.write_dataset(
        pa.table({"id": range(files * 2), "v": [0] * files * 2}), path, filesystem=store, max_rows_per_file=2
    )
    for value, cached in enumerate((False, True), start=1):
        store.requests.clear()
        assert mg.merge(change(value), path, key_columns="id", filesystem=store).updated == 1
        assert store.requests["list"] == scale.MERGE_LISTINGS
        assert store.requests["open"] + store.requests["write"] <= scale.count_reads(files, cached=cached)
        assert store.requests["open"] >= (0 if cached else files)
    store.requests.clear()
    mg.plan(change(3), path, key_columns="id", filesystem=store)
    assert store.requests["list"] == scale.PLAN_LISTINGS


def per_file(datasets: dict[int, str], measure: Callable[[str], float]) -> float:
    """Return by how much a measurement grows with each file."""
    small, large = measure(datasets[SMALL]), measure(datasets[LARGE])
    return (large - small) / (LARGE - SMALL)


@pytest.mark.slow
def test_bytes_and_time_per_file_are_within_the_model(
    datasets: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files are new, and their statistics would not be stored yet.
    monkeypatch.setattr(file_statistics, "SETTLE_NANOSECONDS", 0)
    for path in datasets.values():
        mg.merge(change(1), path, key_columns="id")

    def measure_cache(path: str) -> float:
        return (Path(path).parent / f".{Path(path).name}.merganser" / CACHE_NAME).stat().st_size

    def measure_memory(path: str) -> float:
        tracemalloc.start()
        target = load_target(locate(path), ["id"], None, {})
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert target.files
        return held

    def measure_time(path: str) -> float:
        def merge(value: int) -> float:
            started = time.process_time()
            mg.merge(change(value), path, key_columns="id")
            return time.process_time() - started

        return min(merge(value) for value in (2, 3, 4))

    assert per_file(datasets, measure_cache) == pytest.approx(scale.CACHE_BYTES, rel=0.1)
    assert 0.2 * scale.MEMORY_BYTES < per_file(datasets, measure_memory) < scale.MEMORY_BYTES
    # The processor is shared, but a step that takes longer with each file would show.
    assert per_file(datasets, measure_time) < 5 * scale.WARM_MERGE_SECONDS
